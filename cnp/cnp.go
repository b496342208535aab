package cnp

import (
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/roce-go/roce/bth"
)

var (
	// ErrTruncated means that the input is shorter than Size.
	ErrTruncated = fmt.Errorf("cnp: packet truncated: %w", io.ErrUnexpectedEOF)
	// ErrOpcode means that the packet's opcode is not that of a CNP, 0x81.
	ErrOpcode = errors.New("cnp: opcode is not 0x81")
	// ErrLength means that UnmarshalBinary was given bytes past the CNP.
	ErrLength = errors.New("cnp: trailing bytes")
)

// Size is the length of a CNP in bytes: BTH and 16 reserved bytes. The ICRC, 4
// bytes, comes after it.
const Size = bth.Size + bth.CNPReserved

// Header is a congestion notification packet up to its ICRC.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-+-+---+-------+-------------------------------+
//	|  opcode 0x81  |0|0| 0 |   0   |             P_Key             |
//	+-+-+-----------+-+-+---+-------+-------------------------------+
//	|0|B|     0     |  QP of the sender whose packets were marked   |
//	+-+-+-----------+-----------------------------------------------+
//	|0|      0      |                    PSN 0                      |
//	+-+-------------+-----------------------------------------------+
//	|                     reserved, 16 bytes of zero                |
//	|                              ...                              |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, Annex A17.9. InfiniBand's own CNP, opcode
// 0x80, is another packet.
type Header struct {
	BTH      bth.Header
	Reserved [bth.CNPReserved]byte // zero when sent, ignored on receipt
}

// New returns a CNP to the QP destQP (24 bits) with BECN set, as ConnectX adapters send it;
// Annex A17 lets receivers ignore that bit, so a caller may clear it.
func New(destQP uint32, pkey uint16) Header {
	return Header{BTH: bth.Header{Opcode: bth.CNP, PKey: pkey, BECN: true, DestQP: destQP}}
}

// Decode reads a CNP from the first Size bytes of b. It fails with ErrTruncated
// or ErrOpcode and leaves h unchanged then.
func (h *Header) Decode(b []byte) error {
	if len(b) < Size {
		return ErrTruncated
	}
	if bth.Opcode(b[0]) != bth.CNP {
		return ErrOpcode
	}
	if err := h.BTH.Decode(b); err != nil {
		return err // not reached: the length is checked
	}
	h.Reserved = [bth.CNPReserved]byte(b[bth.Size:])
	return nil
}

// AppendTo appends the Size bytes of h to dst. The ICRC is not among them.
func (h *Header) AppendTo(dst []byte) []byte {
	return append(h.BTH.AppendTo(dst), h.Reserved[:]...)
}

// Validate returns ErrOpcode when the BTH is not that of a CNP, and
// bth.ErrRange when a field of it exceeds its width.
func (h *Header) Validate() error {
	if h.BTH.Opcode != bth.CNP {
		return ErrOpcode
	}
	return h.BTH.Validate()
}

// AppendBinary implements [encoding.BinaryAppender]: Validate, then AppendTo.
func (h *Header) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly Size
// bytes, without the ICRC.
func (h *Header) UnmarshalBinary(b []byte) error {
	if len(b) > Size {
		return ErrLength
	}
	return h.Decode(b)
}

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of congestion notification and DCQCN by
// number: what comments cite as RP-2. Package qp/rules looks entries up.
func Rules() string { return rules }
