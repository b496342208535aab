package bth

import (
	"encoding/binary"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// ICRCSize is the length of the invariant CRC in bytes.
const ICRCSize = 4

// MinSize is the length of the shortest transport packet: BTH and ICRC.
const MinSize = Size + ICRCSize

// CNPReserved is the number of zero bytes between the BTH and the ICRC of a CNP.
// They are a CNP's Payload.
const CNPReserved = 16

// MaxHeaderSize is the length of BTH and extended headers of the longest opcode,
// an RD atomic.
const MaxHeaderSize = Size + RDETHSize + DETHSize + reth.AtomicETHSize

// Packet is a whole transport packet: BTH, the extended headers that its opcode
// has, payload, pad and ICRC. Fields of headers that the opcode does not have
// are zero after Decode and ignored by AppendTo.
type Packet struct {
	Header
	RDETH        RDETH
	DETH         DETH
	XRCETH       XRCETH
	FETH         reth.FETH
	RETH         reth.Header
	AtomicETH    reth.AtomicETH
	AETH         aeth.Header
	AtomicAckETH aeth.AtomicAckETH
	ImmDt        reth.ImmDt
	IETH         reth.IETH

	// Payload has no pad. Decode makes it alias the input, cut to capacity.
	// Setting it goes with the pad count: see SetPayload.
	Payload []byte
	// Pad holds the bytes after the payload, of which the first PadCnt count.
	// They are sent as zero and ignored on receipt.
	Pad [3]byte
	// ICRC is the number whose least significant byte is first on the wire.
	ICRC uint32
}

// Size returns the length in bytes of the extended headers in e.
func (e Ext) Size() int {
	n := 0
	for i, size := range extSizes {
		if e>>i&1 != 0 {
			n += size
		}
	}
	return n
}

var extSizes = [...]int{RDETHSize, DETHSize, XRCETHSize, reth.FETHSize, reth.Size,
	reth.AtomicETHSize, aeth.Size, aeth.AtomicAckETHSize, reth.ImmDtSize, reth.IETHSize}

// Decode reads a packet that fills b from BTH to ICRC. It fails with
// ErrTruncated below MinSize, with ErrVersion or ErrOpcode where the layout is
// not known, with ErrLength where b is too short for the opcode's headers, pad
// and ICRC or does not fit its payload, and leaves p unchanged then. The ICRC is
// stored, not checked.
func (p *Packet) Decode(b []byte) error {
	if len(b) < MinSize {
		return ErrTruncated
	}
	v := (*[MinSize]byte)(b)
	w0 := binary.BigEndian.Uint32(v[0:])
	l := layouts[w0>>24]
	hl := l.size()
	end := len(b) - ICRCSize
	if w0>>16&0x3f != 0 || end < hl || l.payload() != anyPayload && end-hl != l.payload() {
		return p.DecodePrefix(b, len(b)) // pad, or a fault
	}

	*p = Packet{}
	p.Opcode = Opcode(w0 >> 24)
	p.SE = w0&(1<<23) != 0
	p.M = w0&(1<<22) != 0
	p.PKey = uint16(w0)
	w1 := binary.BigEndian.Uint32(v[4:])
	p.DestQP = w1 & 0xffffff
	if w1>>24 != 0 { // hardly ever
		p.Header.word1(w1)
	}
	p.Header.word2(binary.BigEndian.Uint32(v[8:]))
	p.ICRC = binary.LittleEndian.Uint32(b[end:])
	p.Payload = b[hl:end:end]
	switch l.ext() {
	case 0:
	case HasAETH:
		_ = p.AETH.Decode(v[Size:])
	case HasRETH:
		h := (*[Size + reth.Size]byte)(b)
		_ = p.RETH.Decode(h[Size:])
	default:
		p.decodeExt(l.ext(), b[Size:hl])
	}
	return nil
}

// DecodePrefix is Decode for a packet of n bytes of which a capture kept only
// the first len(b). All headers must be there, else it fails with ErrTruncated.
// Payload holds what was kept of it; a lost ICRC is 0. Bytes of b beyond n are
// left alone.
func (p *Packet) DecodePrefix(b []byte, n int) error {
	if n < MinSize || len(b) < Size {
		return ErrTruncated
	}
	w0 := binary.BigEndian.Uint32(b)
	if w0>>16&0xf != 0 {
		return ErrVersion
	}
	l := layouts[w0>>24]
	hl := l.size()
	if hl == 0 {
		return ErrOpcode
	}
	pad := int(w0 >> 20 & 3)
	end := n - ICRCSize - pad
	if end < hl || l.payload() != anyPayload && (end-hl != l.payload() || pad != 0) {
		return ErrLength
	}
	if len(b) < hl {
		return ErrTruncated
	}

	*p = Packet{}
	p.Header.word0(w0)
	p.Header.word1(binary.BigEndian.Uint32(b[4:]))
	p.Header.word2(binary.BigEndian.Uint32(b[8:]))
	if len(b) >= n {
		p.ICRC = binary.LittleEndian.Uint32(b[n-ICRCSize:])
	}
	if pad != 0 && len(b) > end {
		copy(p.Pad[:pad], b[end:])
	}
	end = min(end, len(b))
	p.Payload = b[hl:end:end]
	p.decodeExt(l.ext(), b[Size:hl])
	return nil
}

// decodeExt reads the headers of e, whose total length b has. The common sets
// come first: one comparison instead of a walk over all bits.
func (p *Packet) decodeExt(e Ext, b []byte) {
	switch e {
	case 0:
		return
	case HasAETH:
		_ = p.AETH.Decode(b)
		return
	}
	if e&HasRDETH != 0 {
		_ = p.RDETH.Decode(b)
		b = b[RDETHSize:]
	}
	if e&HasDETH != 0 {
		_ = p.DETH.Decode(b)
		b = b[DETHSize:]
	}
	if e&HasXRCETH != 0 {
		_ = p.XRCETH.Decode(b)
		b = b[XRCETHSize:]
	}
	if e&HasFETH != 0 {
		_ = p.FETH.Decode(b)
		b = b[reth.FETHSize:]
	}
	if e&HasRETH != 0 {
		_ = p.RETH.Decode(b)
		b = b[reth.Size:]
	}
	if e&HasAtomicETH != 0 {
		_ = p.AtomicETH.Decode(b)
		b = b[reth.AtomicETHSize:]
	}
	if e&HasAETH != 0 {
		_ = p.AETH.Decode(b)
		b = b[aeth.Size:]
	}
	if e&HasAtomicAckETH != 0 {
		_ = p.AtomicAckETH.Decode(b)
		b = b[aeth.AtomicAckETHSize:]
	}
	if e&HasImmDt != 0 {
		_ = p.ImmDt.Decode(b)
	}
	if e&HasIETH != 0 {
		_ = p.IETH.Decode(b)
	}
}

// AppendHeadersTo appends BTH and extended headers to dst. An opcode without a
// known layout gives only the BTH.
func (p *Packet) AppendHeadersTo(dst []byte) []byte {
	dst = p.Header.AppendTo(dst)
	e := p.Opcode.Ext()
	if e == 0 {
		return dst
	}
	if e&HasRDETH != 0 {
		dst = p.RDETH.AppendTo(dst)
	}
	if e&HasDETH != 0 {
		dst = p.DETH.AppendTo(dst)
	}
	if e&HasXRCETH != 0 {
		dst = p.XRCETH.AppendTo(dst)
	}
	if e&HasFETH != 0 {
		dst = p.FETH.AppendTo(dst)
	}
	if e&HasRETH != 0 {
		dst = p.RETH.AppendTo(dst)
	}
	if e&HasAtomicETH != 0 {
		dst = p.AtomicETH.AppendTo(dst)
	}
	if e&HasAETH != 0 {
		dst = p.AETH.AppendTo(dst)
	}
	if e&HasAtomicAckETH != 0 {
		dst = p.AtomicAckETH.AppendTo(dst)
	}
	if e&HasImmDt != 0 {
		dst = p.ImmDt.AppendTo(dst)
	}
	if e&HasIETH != 0 {
		dst = p.IETH.AppendTo(dst)
	}
	return dst
}

// AppendTo appends the packet to dst, with PadCnt bytes of Pad and the ICRC
// field as they stand. What computes the ICRC is frame.Frame's AppendTo, which
// knows the network header that it covers.
func (p *Packet) AppendTo(dst []byte) []byte {
	dst = p.AppendHeadersTo(dst)
	dst = append(dst, p.Payload...)
	dst = append(dst, p.Pad[:p.PadCnt&3]...)
	return binary.LittleEndian.AppendUint32(dst, p.ICRC)
}

// Size returns the length in bytes of what AppendTo appends.
func (p *Packet) Size() int {
	return max(Size, p.Opcode.HeaderSize()) + len(p.Payload) + int(p.PadCnt&3) + ICRCSize
}

// SetPayload makes b the payload, with the pad that its length asks for: zero
// bytes up to the next multiple of four (rule RQ-03).
func (p *Packet) SetPayload(b []byte) {
	p.Payload = b
	p.PadCnt = uint8(-len(b) & 3)
	p.Pad = [3]byte{}
}

// Validate returns what AppendTo would lose (ErrRange), or why the result could
// not be decoded (ErrVersion, ErrOpcode, ErrLength).
func (p *Packet) Validate() error {
	if err := p.Header.Validate(); err != nil {
		return err
	}
	info := &opcodes[p.Opcode]
	switch {
	case p.TVer != 0:
		return ErrVersion
	case info.size == 0:
		return ErrOpcode
	case info.payload == NoPayload && (len(p.Payload) != 0 || p.PadCnt != 0),
		info.payload == EightBytes && (len(p.Payload) != 8 || p.PadCnt != 0),
		info.payload == SixteenZero && (len(p.Payload) != CNPReserved || p.PadCnt != 0):
		return ErrLength
	}
	e := info.ext
	switch {
	case e&HasRDETH != 0 && p.RDETH.Validate() != nil:
		return errEE
	case e&HasDETH != 0 && p.DETH.Validate() != nil:
		return errSrcQP
	case e&HasXRCETH != 0 && p.XRCETH.Validate() != nil:
		return errSRQ
	case e&HasFETH != 0 && p.FETH.Validate() != nil:
		return errFETH
	case e&HasAETH != 0 && p.AETH.Validate() != nil:
		return errMSN
	}
	return nil
}

// AppendBinary implements [encoding.BinaryAppender].
func (p *Packet) AppendBinary(dst []byte) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return dst, err
	}
	return p.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. Payload aliases b.
func (p *Packet) UnmarshalBinary(b []byte) error { return p.Decode(b) }

// View is a BTH where it lies, for code that filters or rewrites packets in
// place. Its length is checked once, by [ViewOf]; no method can fail. Setters
// mask their value to the field's width. After changing anything but FECN, BECN
// and Resv6 the packet's ICRC must be computed again (crc.Patch). A UDP checksum that
// is not 0 covers all bytes, the ICRC too: compute it again as well, or set it to 0.
type View [Size]byte

// ViewOf returns the first Size bytes of b as a View of the same memory.
func ViewOf(b []byte) (*View, error) {
	if len(b) < Size {
		return nil, ErrTruncated
	}
	return (*View)(b), nil
}

// Opcode returns the opcode.
func (v *View) Opcode() Opcode { return Opcode(v[0]) }

// SE returns the solicited event bit.
func (v *View) SE() bool { return v[1]&0x80 != 0 }

// M returns the migration state bit.
func (v *View) M() bool { return v[1]&0x40 != 0 }

// PadCnt returns the number of pad bytes, 0..3.
func (v *View) PadCnt() uint8 { return v[1] >> 4 & 3 }

// TVer returns the transport header version.
func (v *View) TVer() uint8 { return v[1] & 0xf }

// PKey returns the partition key.
func (v *View) PKey() uint16 { return binary.BigEndian.Uint16(v[2:]) }

// FECN returns the forward congestion bit.
func (v *View) FECN() bool { return v[4]&0x80 != 0 }

// BECN returns the backward congestion bit.
func (v *View) BECN() bool { return v[4]&0x40 != 0 }

// DestQP returns the destination QP number.
func (v *View) DestQP() uint32 { return binary.BigEndian.Uint32(v[4:]) & 0xffffff }

// AckReq returns the acknowledge request bit.
func (v *View) AckReq() bool { return v[8]&0x80 != 0 }

// PSN returns the packet sequence number.
func (v *View) PSN() psn.PSN { return psn.PSN(binary.BigEndian.Uint32(v[8:]) & psn.Mask) }

// SetOpcode replaces the opcode.
func (v *View) SetOpcode(o Opcode) { v[0] = byte(o) }

// SetSE replaces the solicited event bit.
func (v *View) SetSE(on bool) { v.setBit(1, 0x80, on) }

// SetM replaces the migration state bit.
func (v *View) SetM(on bool) { v.setBit(1, 0x40, on) }

// SetPadCnt replaces the pad count, of which two bits count.
func (v *View) SetPadCnt(n uint8) { v[1] = v[1]&^0x30 | n&3<<4 }

// SetTVer replaces the transport header version, of which four bits count.
func (v *View) SetTVer(n uint8) { v[1] = v[1]&^0x0f | n&0xf }

// SetPKey replaces the partition key.
func (v *View) SetPKey(k uint16) { binary.BigEndian.PutUint16(v[2:], k) }

// SetFECN replaces the forward congestion bit, which the ICRC does not cover.
func (v *View) SetFECN(on bool) { v.setBit(4, 0x80, on) }

// SetBECN replaces the backward congestion bit, which the ICRC does not cover.
func (v *View) SetBECN(on bool) { v.setBit(4, 0x40, on) }

// SetDestQP replaces the destination QP number, of which 24 bits count.
func (v *View) SetDestQP(qp uint32) { put24(v[5:8], qp) }

// SetAckReq replaces the acknowledge request bit.
func (v *View) SetAckReq(on bool) { v.setBit(8, 0x80, on) }

// SetPSN replaces the packet sequence number.
func (v *View) SetPSN(p psn.PSN) { put24(v[9:12], uint32(p)) }

func (v *View) setBit(i int, mask byte, on bool) {
	v[i] &^= mask
	if on {
		v[i] |= mask
	}
}

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}
