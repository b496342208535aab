// Package aeth holds the extended headers of responses: AETH with its syndrome,
// credit and RNR timer codes, and AtomicAckETH.
//
// Each codec works on the caller's memory and allocates nothing. Decode reads
// the first bytes of its input and leaves the receiver unchanged when they are
// too few. AppendTo never fails and masks each field to its width; Validate
// says what masking would lose. All fields are big-endian on the wire.
package aeth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrTruncated means that the input is shorter than the header.
	ErrTruncated = fmt.Errorf("aeth: header truncated: %w", io.ErrUnexpectedEOF)
	// ErrLength means that UnmarshalBinary got more bytes than the header has.
	ErrLength = errors.New("aeth: input longer than the header")
	// ErrRange means that a field does not fit its width on the wire.
	ErrRange = errors.New("aeth: MSN exceeds 24 bits (0 to 0xffffff)")
)

// Size is the length of an AETH in bytes.
const Size = 4

// Header is the acknowledge extended transport header (AETH) of acknowledgements
// and of the first and last RDMA READ responses.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	|   syndrome    |                      MSN                      |
//	+---------------+-----------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.3.5.
type Header struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

// Decode reads an AETH from the first Size bytes of b.
func (h *Header) Decode(b []byte) error {
	if len(b) < Size {
		return ErrTruncated
	}
	v := binary.BigEndian.Uint32(b)
	h.Syndrome = Syndrome(v >> 24)
	h.MSN = v & 0xffffff
	return nil
}

// AppendTo appends the Size bytes of h to dst.
func (h *Header) AppendTo(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(h.Syndrome)<<24|h.MSN&0xffffff)
}

// Validate returns ErrRange when the MSN exceeds 24 bits.
func (h *Header) Validate() error {
	if h.MSN > 0xffffff {
		return ErrRange
	}
	return nil
}

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

// AtomicAckETHSize is the length of an AtomicAckETH in bytes.
const AtomicAckETHSize = 8

// AtomicAckETH is the atomic acknowledge extended transport header: the value
// that the remote memory held before the operation.
//
// InfiniBand Architecture Volume 1, clause 9.3.5.3.
type AtomicAckETH struct {
	Orig uint64
}

// Decode reads an AtomicAckETH from the first AtomicAckETHSize bytes of b.
func (h *AtomicAckETH) Decode(b []byte) error {
	if len(b) < AtomicAckETHSize {
		return ErrTruncated
	}
	h.Orig = binary.BigEndian.Uint64(b)
	return nil
}

// AppendTo appends the AtomicAckETHSize bytes of h to dst.
func (h *AtomicAckETH) AppendTo(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(dst, h.Orig)
}

// Validate returns nil: every value fits.
func (h *AtomicAckETH) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *AtomicAckETH) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// AtomicAckETHSize bytes.
func (h *AtomicAckETH) UnmarshalBinary(b []byte) error {
	if len(b) > AtomicAckETHSize {
		return ErrLength
	}
	return h.Decode(b)
}
