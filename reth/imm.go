package reth

import "encoding/binary"

// ImmDtSize is the length of an ImmDt in bytes.
const ImmDtSize = 4

// ImmDt is the immediate data header: 32 bits that the transport carries to
// the receive completion without looking at them. The number here is the wire's
// four bytes read big-endian.
//
// InfiniBand Architecture Volume 1, clause 9.3.6.
type ImmDt struct {
	Imm uint32
}

// Decode reads an ImmDt from the first ImmDtSize bytes of b.
func (h *ImmDt) Decode(b []byte) error {
	if len(b) < ImmDtSize {
		return ErrTruncated
	}
	h.Imm = binary.BigEndian.Uint32(b)
	return nil
}

// AppendTo appends the ImmDtSize bytes of h to dst.
func (h *ImmDt) AppendTo(dst []byte) []byte { return binary.BigEndian.AppendUint32(dst, h.Imm) }

// Validate returns nil: every value fits.
func (h *ImmDt) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *ImmDt) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// ImmDtSize bytes.
func (h *ImmDt) UnmarshalBinary(b []byte) error {
	if len(b) > ImmDtSize {
		return ErrLength
	}
	return h.Decode(b)
}

// IETHSize is the length of an IETH in bytes.
const IETHSize = 4

// IETH is the invalidate extended transport header: the R_Key that a SEND with
// invalidate invalidates at the receiver.
//
// InfiniBand Architecture Volume 1, clause 9.3.7.
type IETH struct {
	RKey uint32
}

// Decode reads an IETH from the first IETHSize bytes of b.
func (h *IETH) Decode(b []byte) error {
	if len(b) < IETHSize {
		return ErrTruncated
	}
	h.RKey = binary.BigEndian.Uint32(b)
	return nil
}

// AppendTo appends the IETHSize bytes of h to dst.
func (h *IETH) AppendTo(dst []byte) []byte { return binary.BigEndian.AppendUint32(dst, h.RKey) }

// Validate returns nil: every value fits.
func (h *IETH) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *IETH) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// IETHSize bytes.
func (h *IETH) UnmarshalBinary(b []byte) error {
	if len(b) > IETHSize {
		return ErrLength
	}
	return h.Decode(b)
}
