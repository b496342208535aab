package reth

import (
	"encoding/binary"
	"strconv"
)

// FETHSize is the length of a FETH in bytes.
const FETHSize = 4

// Selectivity says how much a FLUSH covers: the range that the RETH names or
// the whole region. Two bits.
type Selectivity uint8

// Selectivity levels of FLUSH.
const (
	MemoryRange  Selectivity = 0
	MemoryRegion Selectivity = 1
)

// String returns the name of s, or its number where it is reserved.
func (s Selectivity) String() string {
	switch s {
	case MemoryRange:
		return "memory range"
	case MemoryRegion:
		return "memory region"
	}
	return strconv.Itoa(int(s))
}

// Placement is the set of guarantees that a FLUSH asks for. Four bits.
type Placement uint8

// Placement types of FLUSH.
const (
	GlobalVisibility Placement = 1 << 0
	Persistence      Placement = 1 << 1
)

// FETH is the flush extended transport header.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------+---+-------+
//	|                     reserved                      |SEL|  PLT  |
//	+---------------------------------------------------+---+-------+
//
// InfiniBand Architecture Volume 1, Annex A19.
type FETH struct {
	Resv26    uint32 // reserved, sent as zero; 26 bits
	Sel       Selectivity
	Placement Placement
}

// Decode reads a FETH from the first FETHSize bytes of b.
func (h *FETH) Decode(b []byte) error {
	if len(b) < FETHSize {
		return ErrTruncated
	}
	v := binary.BigEndian.Uint32(b)
	h.Resv26 = v >> 6
	h.Sel = Selectivity(v >> 4 & 3)
	h.Placement = Placement(v & 0xf)
	return nil
}

// AppendTo appends the FETHSize bytes of h to dst.
func (h *FETH) AppendTo(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst,
		h.Resv26<<6|uint32(h.Sel&3)<<4|uint32(h.Placement&0xf))
}

// Validate returns ErrRange when a field exceeds its width.
func (h *FETH) Validate() error {
	if h.Resv26 >= 1<<26 || h.Sel > 3 || h.Placement > 0xf {
		return ErrRange
	}
	return nil
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *FETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// FETHSize bytes.
func (h *FETH) UnmarshalBinary(b []byte) error {
	if len(b) > FETHSize {
		return ErrLength
	}
	return h.Decode(b)
}
