package mrc

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
)

// PETHSize is the length of a PETH in bytes.
const PETHSize = 16

// PETH is the probe extended transport header of a reliability probe, which takes no PSN;
// the response is a SACK.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------+-------------+---------------+---------------+
//	| type  |next hdr |  reserved   |   reserved    |  vendor_info  |
//	+-------+---------+-------------+---------------+---------------+
//	|           probe_id            |           reserved            |
//	+-------------------------------+-------------------------------+
//	|            spdcid             |            dpdcid             |
//	+-------------------------------+-+---------------------+-------+
//	|         tx_timestamp          |r|      reserved       | ftype |
//	+-------------------------------+-+---------------------+-------+
//
// MRC 1.0, tables 7-18 and 7-19.
type PETH struct {
	Type       uint8 // 0; 4 bits
	Next       uint8 // next header, 0; 5 bits
	Resv7      uint8 // reserved, sent as zero
	Resv8      uint8 // reserved, sent as zero
	VendorInfo uint8
	ProbeID    uint16
	Resv16     uint16 // reserved, sent as zero
	SPDCID     uint16 // context ids: of QP numbers the low 16 bits
	DPDCID     uint16
	Time       TSETH // the last four bytes, laid out as a TSETH
}

// Decode reads a PETH from the first PETHSize bytes of b.
func (h *PETH) Decode(b []byte) error {
	if len(b) < PETHSize {
		return bth.ErrTruncated
	}
	v := (*[PETHSize]byte)(b)
	w := binary.BigEndian.Uint32(v[0:])
	h.Type = uint8(w >> 28)
	h.Next = uint8(w >> 23 & 0x1f)
	h.Resv7 = uint8(w >> 16 & 0x7f)
	h.Resv8 = uint8(w >> 8)
	h.VendorInfo = uint8(w)
	w = binary.BigEndian.Uint32(v[4:])
	h.ProbeID, h.Resv16 = uint16(w>>16), uint16(w)
	w = binary.BigEndian.Uint32(v[8:])
	h.SPDCID, h.DPDCID = uint16(w>>16), uint16(w)
	h.Time.word(binary.BigEndian.Uint32(v[12:]))
	return nil
}

// AppendTo appends the PETHSize bytes of h to dst.
func (h *PETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Type&0xf)<<28|uint32(h.Next&0x1f)<<23|
		uint32(h.Resv7&0x7f)<<16|uint32(h.Resv8)<<8|uint32(h.VendorInfo))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.ProbeID)<<16|uint32(h.Resv16))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.SPDCID)<<16|uint32(h.DPDCID))
	return h.Time.AppendTo(dst)
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *PETH) Validate() error {
	return within(h.Type <= 0xf && h.Next <= 0x1f && h.Resv7 <= 0x7f && h.Time.Validate() == nil)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *PETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// PETHSize bytes.
func (h *PETH) UnmarshalBinary(b []byte) error {
	if len(b) > PETHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}
