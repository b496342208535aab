package bth

import (
	"encoding/binary"

	"github.com/roce-go/roce/aeth"
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
// ErrTruncated below MinSize or when headers are cut short, with ErrVersion,
// ErrOpcode or ErrLength when the bytes cannot be laid out, and leaves p
// unchanged then. The ICRC is stored, not checked.
func (p *Packet) Decode(b []byte) error { return p.DecodePrefix(b, len(b)) }

// DecodePrefix is Decode for a packet of n bytes of which a capture kept only
// the first len(b). All headers must be there. Payload holds what was kept of
// it; a lost ICRC is 0. Bytes of b beyond n are left alone.
func (p *Packet) DecodePrefix(b []byte, n int) error {
	if n < MinSize || len(b) < Size {
		return ErrTruncated
	}
	if len(b) > n {
		b = b[:n]
	}
	info := &opcodes[b[0]]
	hl := int(info.size)
	if b[1]&0xf != 0 {
		return ErrVersion
	}
	if hl == 0 {
		return ErrOpcode
	}
	pad := int(b[1] >> 4 & 3)
	payload := n - hl - pad - ICRCSize
	if payload < 0 {
		return ErrLength
	}
	switch info.payload {
	case NoPayload:
		if payload+pad != 0 {
			return ErrLength
		}
	case EightBytes:
		if payload != 8 || pad != 0 {
			return ErrLength
		}
	case SixteenZero:
		if payload != CNPReserved || pad != 0 {
			return ErrLength
		}
	}
	if len(b) < hl {
		return ErrTruncated
	}

	*p = Packet{}
	p.Header.decode((*[Size]byte)(b))
	p.decodeExt(info.ext, b[Size:hl])
	if len(b) == n {
		end := n - ICRCSize
		p.ICRC = binary.LittleEndian.Uint32(b[end:])
		p.Payload = b[hl : hl+payload : hl+payload]
		if pad != 0 {
			copy(p.Pad[:], b[hl+payload:end])
		}
		return nil
	}
	end := min(hl+payload, len(b))
	p.Payload = b[hl:end:end]
	copy(p.Pad[:pad], b[end:])
	return nil
}

// decodeExt reads the headers of e, whose total length b has. The common sets
// come first: one comparison instead of a walk over all bits.
func (p *Packet) decodeExt(e Ext, b []byte) {
	switch e {
	case 0:
		return
	case HasRETH:
		_ = p.RETH.Decode(b)
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
// known layout gives the BTH alone.
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
	return Size + p.Opcode.Ext().Size() + len(p.Payload) + int(p.PadCnt&3) + ICRCSize
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
	if e&HasRDETH != 0 && p.RDETH.Validate() != nil ||
		e&HasDETH != 0 && p.DETH.Validate() != nil ||
		e&HasXRCETH != 0 && p.XRCETH.Validate() != nil ||
		e&HasFETH != 0 && p.FETH.Validate() != nil ||
		e&HasAETH != 0 && p.AETH.Validate() != nil {
		return ErrRange
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
