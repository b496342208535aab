// Package reth holds the extended headers with which a request says what the
// responder is to do: RETH, AtomicETH, ImmDt, IETH and FETH.
//
// Each codec works on the caller's memory and allocates nothing. Decode reads
// the first bytes of its input, leaves the receiver unchanged when they are
// too few, and keeps reserved bits, so that encoding gives the same bytes.
// AppendTo never fails and masks each field to its width; Validate says what
// masking would lose. All fields are big-endian on the wire.
package reth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrTruncated means that the input is shorter than the header.
	ErrTruncated = fmt.Errorf("reth: header truncated: %w", io.ErrUnexpectedEOF)
	// ErrLength means that UnmarshalBinary got more bytes than the header has.
	ErrLength = errors.New("reth: input longer than the header")
	// ErrRange means that a field does not fit its width on the wire.
	ErrRange = errors.New("reth: a field of the FETH exceeds its width (Resv26 26 bits, Sel 2, Placement 4)")
)

// Size is the length of a RETH in bytes.
const Size = 16

// MaxDMALen is the longest message that the transport carries, in bytes.
const MaxDMALen = 1 << 31

// Header is the RDMA extended transport header (RETH): the remote memory of a
// RDMA WRITE, RDMA READ, FLUSH or ATOMIC WRITE request.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                  virtual address, bits 63..32                 |
//	|                  virtual address, bits 31..0                  |
//	+---------------------------------------------------------------+
//	|                             R_Key                             |
//	+---------------------------------------------------------------+
//	|                          DMA length                           |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.3.3.
type Header struct {
	VA     uint64 // remote virtual address, bytes
	RKey   uint32
	DMALen uint32 // length of the whole message in bytes, 0 .. MaxDMALen
}

// Decode reads a RETH from the first Size bytes of b.
func (h *Header) Decode(b []byte) error {
	if len(b) < Size {
		return ErrTruncated
	}
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.DMALen = binary.BigEndian.Uint32(b[12:])
	return nil
}

// AppendTo appends the Size bytes of h to dst.
func (h *Header) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, h.VA)
	dst = binary.BigEndian.AppendUint32(dst, h.RKey)
	return binary.BigEndian.AppendUint32(dst, h.DMALen)
}

// Validate returns nil: every value fits. A DMA length above MaxDMALen is for the
// responder to refuse.
func (h *Header) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *Header) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly Size bytes.
func (h *Header) UnmarshalBinary(b []byte) error {
	if len(b) > Size {
		return ErrLength
	}
	return h.Decode(b)
}
