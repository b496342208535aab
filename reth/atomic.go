package reth

import "encoding/binary"

// AtomicETHSize is the length of an AtomicETH in bytes.
const AtomicETHSize = 28

// AtomicETH is the atomic extended transport header of CmpSwap and FetchAdd
// requests.
//
//	+---------------------------------------------------------------+
//	|                  virtual address, bits 63..32                 |
//	|                  virtual address, bits 31..0                  |
//	+---------------------------------------------------------------+
//	|                             R_Key                             |
//	+---------------------------------------------------------------+
//	|               swap (or add) data, bits 63..32                 |
//	|               swap (or add) data, bits 31..0                  |
//	+---------------------------------------------------------------+
//	|                  compare data, bits 63..32                    |
//	|                  compare data, bits 31..0                     |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.3.4.
type AtomicETH struct {
	VA      uint64 // remote virtual address, bytes; a multiple of 8
	RKey    uint32
	SwapAdd uint64 // value to store (CmpSwap) or to add (FetchAdd)
	Compare uint64 // value to compare with; FetchAdd ignores it
}

// Decode reads an AtomicETH from the first AtomicETHSize bytes of b.
func (h *AtomicETH) Decode(b []byte) error {
	if len(b) < AtomicETHSize {
		return ErrTruncated
	}
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.SwapAdd = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
	return nil
}

// AppendTo appends the AtomicETHSize bytes of h to dst.
func (h *AtomicETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, h.VA)
	dst = binary.BigEndian.AppendUint32(dst, h.RKey)
	dst = binary.BigEndian.AppendUint64(dst, h.SwapAdd)
	return binary.BigEndian.AppendUint64(dst, h.Compare)
}

// Validate returns nil: every value fits.
func (h *AtomicETH) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *AtomicETH) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// AtomicETHSize bytes.
func (h *AtomicETH) UnmarshalBinary(b []byte) error {
	if len(b) > AtomicETHSize {
		return ErrLength
	}
	return h.Decode(b)
}
