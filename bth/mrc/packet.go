package mrc

import (
	"encoding/binary"
	"math/bits"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// MaxHeaderSize is the length of BTH and headers of the longest MRC packet, an
// endpoint response.
const MaxHeaderSize = bth.Size + EETHSize

// Packet is a whole MRC packet: BTH, the headers that its opcode and ts bit have,
// payload, pad and ICRC. Fields of headers that the packet does not have are zero
// after decoding and ignored by encoding.
type Packet struct {
	bth.Header
	METH    METH
	TSETH   TSETH
	RETH    reth.Header
	ImmDt   reth.ImmDt
	AETH    aeth.Header
	SETH    SETH
	CCState CCState
	NETH    NETH
	PETH    PETH
	ERTH    ERTH
	EETH    EETH

	// Payload has no pad. Decode makes it alias the input, cut to capacity.
	// Setting it goes with the pad count: see SetPayload.
	Payload []byte
	// Pad holds the bytes after the payload, of which the first PadCnt count.
	Pad [3]byte
	// ICRC is the number whose least significant byte is first on the wire.
	ICRC uint32

	// Trimmed is set on a WRITE that a switch has cut: it has neither pad nor
	// ICRC, and Payload is what follows the last whole header.
	Trimmed bool
	// Lost are the headers that were cut off a trimmed packet.
	Lost Ext
}

// layout is what decoding looks up, in one load, by opcode: the length of BTH and
// headers without TSETH in bits 7..0, the headers in bits 31..16; 0 for what is
// not MRC's.
type layout uint32

var layouts = func() (t [256]layout) {
	for i := range t {
		if op := bth.Opcode(i); Known(op) {
			t[i] = layout(ExtOf(op, false))<<16 | layout(HeaderSize(op, false))
		}
	}
	return t
}()

// layoutOf returns length and headers of a packet whose first word of the BTH is w0
// and whose last is w2; 0 where the opcode is not MRC's.
func layoutOf(w0, w2 uint32) (size int, e Ext) {
	l := layouts[w0>>24]
	size, e = int(l&0xff), Ext(l>>16)
	if w2&(tsBit<<24) != 0 && e&HasMETH != 0 {
		size, e = size+TSETHSize, e|HasTSETH
	}
	return size, e
}

// Decode reads a packet that fills b from BTH to ICRC. It fails with
// bth.ErrTruncated below bth.MinSize, with bth.ErrVersion or bth.ErrOpcode where
// the layout is not known, with bth.ErrLength where b is too short for headers,
// pad and ICRC or, in packets other than WRITEs, too long, and leaves p
// unchanged then. The ICRC is stored, not checked.
func (p *Packet) Decode(b []byte) error {
	if len(b) < bth.MinSize {
		return bth.ErrTruncated
	}
	v := (*[bth.MinSize]byte)(b)
	w0, w2 := binary.BigEndian.Uint32(v[0:]), binary.BigEndian.Uint32(v[8:])
	hl, e := layoutOf(w0, w2)
	end := len(b) - bth.ICRCSize
	if w0>>16&0x3f != 0 || e == 0 || end < hl || e&HasMETH == 0 && end != hl {
		// Pad, or a fault.
		return p.DecodePrefix(b, len(b))
	}
	*p = Packet{}
	p.Opcode = bth.Opcode(w0 >> 24)
	p.SE = w0&(1<<23) != 0
	p.M = w0&(1<<22) != 0
	p.PKey = uint16(w0)
	w1 := binary.BigEndian.Uint32(v[4:])
	p.DestQP = w1 & 0xffffff
	if w1>>24 != 0 { // hardly ever
		p.word1(w1)
	}
	p.word2(w2)
	p.ICRC = binary.LittleEndian.Uint32(b[end:])
	p.Payload = b[hl:end:end]
	switch e {
	case HasMETH | HasRETH:
		h := (*[bth.Size + METHSize + reth.Size]byte)(b)
		_ = p.METH.Decode(h[bth.Size:])
		_ = p.RETH.Decode(h[bth.Size+METHSize:])
	case HasMETH | HasTSETH | HasRETH:
		h := (*[bth.Size + METHSize + TSETHSize + reth.Size]byte)(b)
		_ = p.METH.Decode(h[bth.Size:])
		_ = p.TSETH.Decode(h[bth.Size+METHSize:])
		_ = p.RETH.Decode(h[bth.Size+METHSize+TSETHSize:])
	case HasSETH | HasCCState:
		h := (*[bth.Size + SETHSize + CCStateSize]byte)(b)
		_ = p.SETH.Decode(h[bth.Size:])
		_ = p.CCState.Decode(h[bth.Size+SETHSize:])
	default:
		p.headers(e, b[bth.Size:hl])
	}
	return nil
}

// word0, word1 and word2 set the BTH from its three words. They are small, to be
// inlined.

func (p *Packet) word0(v uint32) {
	p.Opcode = bth.Opcode(v >> 24)
	p.SE = v&(1<<23) != 0
	p.M = v&(1<<22) != 0
	p.PadCnt = uint8(v >> 20 & 3)
	p.PKey = uint16(v)
}

func (p *Packet) word1(v uint32) {
	p.FECN = v&(1<<31) != 0
	p.BECN = v&(1<<30) != 0
	p.Resv6 = uint8(v >> 24 & 0x3f)
	p.DestQP = v & 0xffffff
}

func (p *Packet) word2(v uint32) {
	p.AckReq = v&(1<<31) != 0
	p.Resv7 = uint8(v >> 24 & 0x7f)
	p.PSN = psn.PSN(v & psn.Mask)
}

// DecodePrefix is Decode for a packet of n bytes of which a capture kept only
// the first len(b). All headers must be there, else it fails with
// bth.ErrTruncated. Payload holds what was kept of it; a lost ICRC is 0. Bytes of
// b beyond n are left alone.
func (p *Packet) DecodePrefix(b []byte, n int) error {
	if n < bth.MinSize || len(b) < bth.Size {
		return bth.ErrTruncated
	}
	v := (*[bth.Size]byte)(b)
	w0, w2 := binary.BigEndian.Uint32(v[0:]), binary.BigEndian.Uint32(v[8:])
	if w0>>16&0xf != 0 {
		return bth.ErrVersion
	}
	hl, e := layoutOf(w0, w2)
	if e == 0 {
		return bth.ErrOpcode
	}
	pad := int(w0 >> 20 & 3)
	end := n - bth.ICRCSize - pad
	if end < hl || e&HasMETH == 0 && (end != hl || pad != 0) {
		return bth.ErrLength
	}
	if len(b) < hl {
		return bth.ErrTruncated
	}

	*p = Packet{}
	p.word0(w0)
	p.word1(binary.BigEndian.Uint32(v[4:]))
	p.word2(w2)
	if len(b) >= n {
		p.ICRC = binary.LittleEndian.Uint32(b[n-bth.ICRCSize:])
	}
	if pad != 0 && len(b) > end {
		copy(p.Pad[:pad], b[end:])
	}
	end = min(end, len(b))
	p.Payload = b[hl:end:end]
	p.headers(e, b[bth.Size:hl])
	return nil
}

// DecodeTrimmed reads a WRITE that a switch has cut anywhere after the BTH: the headers
// that are whole, and the rest as Payload. There is no ICRC. It fails with bth.ErrTruncated
// below bth.Size, bth.ErrVersion, or bth.ErrOpcode for a packet that is not a WRITE, and
// leaves p unchanged then.
func (p *Packet) DecodeTrimmed(b []byte) error {
	if len(b) < bth.Size {
		return bth.ErrTruncated
	}
	v := (*[bth.Size]byte)(b)
	w0, w2 := binary.BigEndian.Uint32(v[0:]), binary.BigEndian.Uint32(v[8:])
	if w0>>16&0xf != 0 {
		return bth.ErrVersion
	}
	hl, all := layoutOf(w0, w2)
	if all&HasMETH == 0 {
		return bth.ErrOpcode
	}
	e := all
	for hl > len(b) { // the last header first
		last := Ext(1) << (bits.Len16(uint16(e)) - 1)
		e &^= last
		hl -= last.Size()
	}
	*p = Packet{Trimmed: true, Lost: all &^ e}
	p.word0(w0)
	p.word1(binary.BigEndian.Uint32(v[4:]))
	p.word2(w2)
	p.Payload = b[hl:len(b):len(b)]
	p.headers(e, b[bth.Size:hl])
	return nil
}

// headers reads the headers of e, whose total length b has.
func (p *Packet) headers(e Ext, b []byte) {
	if e&HasMETH != 0 {
		_ = p.METH.Decode(b)
		b = b[METHSize:]
		if e&HasTSETH != 0 {
			_ = p.TSETH.Decode(b)
			b = b[TSETHSize:]
		}
		if e&HasRETH != 0 {
			_ = p.RETH.Decode(b)
			b = b[reth.Size:]
		}
		if e&HasImmDt != 0 {
			_ = p.ImmDt.Decode(b)
		}
		return
	}
	switch e {
	case HasSETH | HasCCState:
		_ = p.SETH.Decode(b)
		_ = p.CCState.Decode(b[SETHSize:])
	case HasAETH:
		_ = p.AETH.Decode(b)
	case HasNETH:
		_ = p.NETH.Decode(b)
	case HasPETH:
		_ = p.PETH.Decode(b)
	case HasERTH:
		_ = p.ERTH.Decode(b)
	case HasEETH:
		_ = p.EETH.Decode(b)
	}
}

// Ext returns the headers that the packet has.
func (p *Packet) Ext() Ext {
	e := ExtOf(p.Opcode, TS(&p.Header))
	if p.Trimmed {
		e &^= p.Lost
	}
	return e
}

// AppendHeadersTo appends BTH and headers to dst. An opcode that is not MRC's gives only
// the BTH.
func (p *Packet) AppendHeadersTo(dst []byte) []byte {
	dst = p.Header.AppendTo(dst)
	e := p.Ext()
	if e&HasMETH != 0 {
		dst = p.METH.AppendTo(dst)
	}
	if e&HasTSETH != 0 {
		dst = p.TSETH.AppendTo(dst)
	}
	if e&HasRETH != 0 {
		dst = p.RETH.AppendTo(dst)
	}
	if e&HasImmDt != 0 {
		dst = p.ImmDt.AppendTo(dst)
	}
	if e&^(HasMETH|HasTSETH|HasRETH|HasImmDt) == 0 {
		return dst
	}
	if e&HasAETH != 0 {
		dst = p.AETH.AppendTo(dst)
	}
	if e&HasSETH != 0 {
		dst = p.SETH.AppendTo(dst)
	}
	if e&HasCCState != 0 {
		dst = p.CCState.AppendTo(dst)
	}
	if e&HasNETH != 0 {
		dst = p.NETH.AppendTo(dst)
	}
	if e&HasPETH != 0 {
		dst = p.PETH.AppendTo(dst)
	}
	if e&HasERTH != 0 {
		dst = p.ERTH.AppendTo(dst)
	}
	if e&HasEETH != 0 {
		dst = p.EETH.AppendTo(dst)
	}
	return dst
}

// AppendTo appends the packet to dst, with PadCnt bytes of Pad and the ICRC
// field as they stand; a trimmed packet has neither. Package frame computes
// ICRCs.
func (p *Packet) AppendTo(dst []byte) []byte {
	dst = p.AppendHeadersTo(dst)
	dst = append(dst, p.Payload...)
	if p.Trimmed {
		return dst
	}
	dst = append(dst, p.Pad[:p.PadCnt&3]...)
	return binary.LittleEndian.AppendUint32(dst, p.ICRC)
}

// Size returns the length in bytes of what AppendTo appends.
func (p *Packet) Size() int {
	n := bth.Size + p.Ext().Size() + len(p.Payload)
	if p.Trimmed {
		return n
	}
	return n + int(p.PadCnt&3) + bth.ICRCSize
}

// SetPayload makes b the payload, with the pad that its length asks for: zero
// bytes up to the next multiple of four.
func (p *Packet) SetPayload(b []byte) {
	p.Payload = b
	p.PadCnt = uint8(-len(b) & 3)
	p.Pad = [3]byte{}
}

// Validate returns what AppendTo would lose (bth.ErrRange), or why the result
// could not be decoded (bth.ErrVersion, bth.ErrOpcode, bth.ErrLength).
func (p *Packet) Validate() error {
	if err := p.Header.Validate(); err != nil {
		return err
	}
	e := p.Ext()
	switch {
	case p.TVer != 0:
		return bth.ErrVersion
	case !Known(p.Opcode) || p.Trimmed && !IsWrite(p.Opcode):
		return bth.ErrOpcode
	case !IsWrite(p.Opcode) && (len(p.Payload) != 0 || p.PadCnt != 0):
		return bth.ErrLength
	case p.Trimmed && !p.couldBeTrimmed():
		return bth.ErrLength
	case e&HasTSETH != 0 && p.TSETH.Validate() != nil,
		e&HasAETH != 0 && p.AETH.Validate() != nil,
		e&HasSETH != 0 && p.SETH.Validate() != nil,
		e&HasCCState != 0 && p.CCState.Validate() != nil,
		e&HasNETH != 0 && p.NETH.Validate() != nil,
		e&HasPETH != 0 && p.PETH.Validate() != nil,
		e&HasERTH != 0 && p.ERTH.Validate() != nil,
		e&HasEETH != 0 && p.EETH.Validate() != nil:
		return bth.ErrRange
	}
	return nil
}

// couldBeTrimmed reports whether Lost is what a switch can have cut off: the last
// headers, of which Payload may hold a part that is not whole.
func (p *Packet) couldBeTrimmed() bool {
	all := ExtOf(p.Opcode, TS(&p.Header))
	first := p.Lost & -p.Lost // the first of them on the wire
	return p.Lost == 0 ||
		p.Lost&^all == 0 && all&^p.Lost < first && len(p.Payload) < first.Size()
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
