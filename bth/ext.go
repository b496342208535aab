package bth

import "encoding/binary"

// DETHSize is the length of a DETH in bytes.
const DETHSize = 8

// DETH is the datagram extended transport header of UD packets and RD requests.
//
//	+---------------------------------------------------------------+
//	|                             Q_Key                             |
//	+---------------+-----------------------------------------------+
//	|   reserved    |                   source QP                   |
//	+---------------+-----------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.3.2.
type DETH struct {
	QKey  uint32
	Resv8 uint8  // reserved, sent as zero
	SrcQP uint32 // 24 bits
}

// Decode reads a DETH from the first DETHSize bytes of b.
func (h *DETH) Decode(b []byte) error {
	if len(b) < DETHSize {
		return ErrTruncated
	}
	h.QKey = binary.BigEndian.Uint32(b)
	h.Resv8 = b[4]
	h.SrcQP = binary.BigEndian.Uint32(b[4:]) & 0xffffff
	return nil
}

// AppendTo appends the DETHSize bytes of h to dst.
func (h *DETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, h.QKey)
	return append24(dst, h.Resv8, h.SrcQP)
}

// Validate returns ErrRange when the QP number exceeds 24 bits.
func (h *DETH) Validate() error { return fits24(h.SrcQP, errSrcQP) }

// AppendBinary implements [encoding.BinaryAppender].
func (h *DETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// DETHSize bytes.
func (h *DETH) UnmarshalBinary(b []byte) error {
	if len(b) > DETHSize {
		return ErrLength
	}
	return h.Decode(b)
}

// RDETHSize is the length of a RDETH in bytes.
const RDETHSize = 4

// RDETH is the reliable datagram extended transport header.
//
//	+---------------+-----------------------------------------------+
//	|   reserved    |                  EE context                   |
//	+---------------+-----------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 9.3.1.
type RDETH struct {
	Resv8 uint8  // reserved, sent as zero
	EE    uint32 // end-to-end context, 24 bits
}

// Decode reads a RDETH from the first RDETHSize bytes of b.
func (h *RDETH) Decode(b []byte) error {
	if len(b) < RDETHSize {
		return ErrTruncated
	}
	h.Resv8 = b[0]
	h.EE = binary.BigEndian.Uint32(b) & 0xffffff
	return nil
}

// AppendTo appends the RDETHSize bytes of h to dst.
func (h *RDETH) AppendTo(dst []byte) []byte { return append24(dst, h.Resv8, h.EE) }

// Validate returns ErrRange when the EE context exceeds 24 bits.
func (h *RDETH) Validate() error { return fits24(h.EE, errEE) }

// AppendBinary implements [encoding.BinaryAppender].
func (h *RDETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// RDETHSize bytes.
func (h *RDETH) UnmarshalBinary(b []byte) error {
	if len(b) > RDETHSize {
		return ErrLength
	}
	return h.Decode(b)
}

// XRCETHSize is the length of a XRCETH in bytes.
const XRCETHSize = 4

// XRCETH is the extended reliable connection header of XRC requests.
//
//	+---------------+-----------------------------------------------+
//	|   reserved    |                    XRC SRQ                    |
//	+---------------+-----------------------------------------------+
//
// InfiniBand Architecture Volume 1, Annex A14.
type XRCETH struct {
	Resv8 uint8  // reserved, sent as zero
	SRQ   uint32 // shared receive queue number, 24 bits
}

// Decode reads a XRCETH from the first XRCETHSize bytes of b.
func (h *XRCETH) Decode(b []byte) error {
	if len(b) < XRCETHSize {
		return ErrTruncated
	}
	h.Resv8 = b[0]
	h.SRQ = binary.BigEndian.Uint32(b) & 0xffffff
	return nil
}

// AppendTo appends the XRCETHSize bytes of h to dst.
func (h *XRCETH) AppendTo(dst []byte) []byte { return append24(dst, h.Resv8, h.SRQ) }

// Validate returns ErrRange when the SRQ number exceeds 24 bits.
func (h *XRCETH) Validate() error { return fits24(h.SRQ, errSRQ) }

// AppendBinary implements [encoding.BinaryAppender].
func (h *XRCETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// XRCETHSize bytes.
func (h *XRCETH) UnmarshalBinary(b []byte) error {
	if len(b) > XRCETHSize {
		return ErrLength
	}
	return h.Decode(b)
}

func append24(dst []byte, top uint8, v uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(top)<<24|v&0xffffff)
}

func fits24(v uint32, err error) error {
	if v > 0xffffff {
		return err
	}
	return nil
}
