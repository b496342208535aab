// Package bth holds the base transport header, the opcode table, the addressing
// headers DETH, RDETH and XRCETH, and [Packet]: a whole transport packet of RoCE
// v1 or v2, from BTH to ICRC.
//
// Each codec works on the caller's memory and allocates nothing. Decode fails only when the
// bytes are too few or their layout is not known, leaves the receiver unchanged then, and
// keeps reserved bits, so that encoding gives the same bytes. AppendTo never fails and
// masks each field to its width; Validate says what masking would lose. All fields but the
// ICRC are big-endian on the wire.
//
// What is around the packet (Ethernet, IP, UDP, GRH) and whether its ICRC is right is for
// package frame.
package bth

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/roce-go/roce/psn"
)

var (
	// ErrTruncated means that the input is shorter than its headers.
	ErrTruncated = fmt.Errorf("bth: packet truncated: %w", io.ErrUnexpectedEOF)
	// ErrLength means that the length does not fit the opcode: payload where
	// none belongs, too little room for pad and ICRC, or trailing bytes.
	ErrLength = errors.New("bth: length does not fit the opcode")
	// ErrOpcode means that the opcode is reserved or a manufacturer's, so that
	// its headers are not known.
	ErrOpcode = errors.New("bth: opcode without a known layout")
	// ErrVersion means that TVer is not 0, the only version with a layout.
	ErrVersion = errors.New("bth: transport header version is not 0")
	// ErrRange means that a field does not fit its width on the wire.
	ErrRange = errors.New("bth: field out of range")
)

// Size is the length of a BTH in bytes.
const Size = 12

// Header is the base transport header (BTH), which every packet begins with.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-+-+---+-------+-------------------------------+
//	|    opcode     |S|M|Pad| TVer  |             P_Key             |
//	+-+-+-----------+-+-+---+-------+-------------------------------+
//	|F|B|  resv6    |               destination QP                  |
//	+-+-+-----------+-----------------------------------------------+
//	|A|    resv7    |                     PSN                       |
//	+-+-------------+-----------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.2. The byte with FECN and BECN is
// not covered by the ICRC.
type Header struct {
	Opcode Opcode
	SE     bool   // solicited event
	M      bool   // migration state: true is Migrated, the usual value
	PadCnt uint8  // pad bytes after the payload, 0..3
	TVer   uint8  // transport header version, 0; 4 bits
	PKey   uint16 // partition key: bit 15 full member, low 15 bits the partition
	FECN   bool   // forward congestion, unused by RoCE v2
	BECN   bool   // backward congestion, set in CNPs
	Resv6  uint8  // reserved, ignored on receipt; 6 bits
	DestQP uint32 // 24 bits
	AckReq bool   // the sender requests an acknowledgement
	Resv7  uint8  // reserved; 7 bits
	PSN    psn.PSN
}

// Decode reads a BTH from the first Size bytes of b.
func (h *Header) Decode(b []byte) error {
	if len(b) < Size {
		return ErrTruncated
	}
	v := (*[Size]byte)(b)
	h.word0(binary.BigEndian.Uint32(v[0:]))
	h.word1(binary.BigEndian.Uint32(v[4:]))
	h.word2(binary.BigEndian.Uint32(v[8:]))
	return nil
}

// The words of a BTH are read one by one: each part is small enough to be
// inlined where it is used.

func (h *Header) word0(v uint32) {
	h.Opcode = Opcode(v >> 24)
	h.SE = v&(1<<23) != 0
	h.M = v&(1<<22) != 0
	h.PadCnt = uint8(v >> 20 & 3)
	h.TVer = uint8(v >> 16 & 0xf)
	h.PKey = uint16(v)
}

func (h *Header) word1(v uint32) {
	h.FECN = v&(1<<31) != 0
	h.BECN = v&(1<<30) != 0
	h.Resv6 = uint8(v >> 24 & 0x3f)
	h.DestQP = v & 0xffffff
}

func (h *Header) word2(v uint32) {
	h.AckReq = v&(1<<31) != 0
	h.Resv7 = uint8(v >> 24 & 0x7f)
	h.PSN = psn.PSN(v & psn.Mask)
}

// AppendTo appends the Size bytes of h to dst.
func (h *Header) AppendTo(dst []byte) []byte {
	u := uint32(h.Opcode)<<24 | bit(h.SE)<<23 | bit(h.M)<<22 |
		uint32(h.PadCnt&3)<<20 | uint32(h.TVer&0xf)<<16 | uint32(h.PKey)
	v := bit(h.FECN)<<31 | bit(h.BECN)<<30 | uint32(h.Resv6&0x3f)<<24 | h.DestQP&0xffffff
	w := bit(h.AckReq)<<31 | uint32(h.Resv7&0x7f)<<24 | uint32(h.PSN)&psn.Mask
	// Two appends are faster than three, and than one of twelve bytes.
	dst = binary.BigEndian.AppendUint64(dst, uint64(u)<<32|uint64(v))
	return binary.BigEndian.AppendUint32(dst, w)
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Validate returns ErrRange when a field exceeds its width. Values that fit but
// mean nothing, such as a TVer of 1, pass: tests need to send them.
func (h *Header) Validate() error {
	switch {
	case h.PadCnt > 3:
		return errPadCnt
	case h.TVer > 0xf:
		return errTVer
	case h.Resv6 > 0x3f:
		return errResv6
	case h.Resv7 > 0x7f:
		return errResv7
	case h.DestQP > 0xffffff:
		return errDestQP
	case h.PSN > psn.Mask:
		return errPSN
	}
	return nil
}

// wide returns an ErrRange that says of what. Each is allocated once.
func wide(s string) error { return fmt.Errorf("%w: %s", ErrRange, s) }

var (
	errPadCnt = wide("PadCnt exceeds 2 bits (0 to 3)")
	errTVer   = wide("TVer exceeds 4 bits (0 to 0xf)")
	errResv6  = wide("Resv6 exceeds 6 bits (0 to 0x3f)")
	errResv7  = wide("Resv7 exceeds 7 bits (0 to 0x7f)")
	errDestQP = wide("DestQP exceeds 24 bits (0 to 0xffffff)")
	errPSN    = wide("PSN exceeds 24 bits (0 to 0xffffff)")
	errSrcQP  = wide("SrcQP of the DETH exceeds 24 bits (0 to 0xffffff)")
	errEE     = wide("EE of the RDETH exceeds 24 bits (0 to 0xffffff)")
	errSRQ    = wide("SRQ of the XRCETH exceeds 24 bits (0 to 0xffffff)")
	errMSN    = wide("MSN of the AETH exceeds 24 bits (0 to 0xffffff)")
	errFETH   = wide("a field of the FETH exceeds its width (Resv26 26 bits, Sel 2, Placement 4)")
)

// AppendBinary implements [encoding.BinaryAppender].
func (h *Header) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly Size bytes.
func (h *Header) UnmarshalBinary(b []byte) error {
	if len(b) > Size {
		return ErrLength
	}
	return h.Decode(b)
}

// PKeyMatch reports whether QPs with the P_Keys a and b may communicate: the low 15 bits
// are equal and not zero, and at least one side is a full member (bit 15).
//
// InfiniBand Architecture Volume 1, clause 10.9.3.
func PKeyMatch(a, b uint16) bool {
	return (a^b)&0x7fff == 0 && a&0x7fff != 0 && (a|b)&0x8000 != 0
}

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of the wire by number: what comments cite as
// WI-9. Package qp/rules looks entries up.
func Rules() string { return rules }
