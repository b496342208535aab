package mrc

import (
	"encoding/binary"
	"strconv"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// Reason says why a packet was refused.
type Reason uint8

// Reasons of a NACK. The two about trimmed packets are sent only where both ends
// have agreed on it, all others by every responder.
const (
	Trimmed         Reason = 0x01
	TrimmedLastHop  Reason = 0x02
	NoBitmap        Reason = 0x06 // no room in the bitmap
	NoPacketBuffer  Reason = 0x07
	NoResource      Reason = 0x0a // another resource is missing
	PSNOutOfWindow  Reason = 0x0b
	UnexpectedEvent Reason = 0x19 // the requestor's QP goes to error
)

// String returns the name of r, for example "trimmed_last_hop", and a value that
// is not defined as a number.
func (r Reason) String() string {
	if s, ok := r.name(); ok {
		return s
	}
	return strconv.Itoa(int(r))
}

// Known reports whether r is one of the seven reasons.
func (r Reason) Known() bool {
	_, ok := r.name()
	return ok
}

func (r Reason) name() (string, bool) {
	switch r {
	case Trimmed:
		return "trimmed", true
	case TrimmedLastHop:
		return "trimmed_last_hop", true
	case NoBitmap:
		return "no_bitmap", true
	case NoPacketBuffer:
		return "no_packet_buffer", true
	case NoResource:
		return "no_resource", true
	case PSNOutOfWindow:
		return "psn_out_of_window", true
	case UnexpectedEvent:
		return "unexpected_event", true
	}
	return "", false
}

// NETHSize is the length of a NETH in bytes.
const NETHSize = 20

// NETH is the negative acknowledgement extended transport header of a NACK.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------+-------------+---------------+---------------+
//	| type  |next hdr |  reserved   |    reason     |  vendor_info  |
//	+-------+---------+-------------+---------------+---------------+
//	|                            entropy                            |
//	+-------------------------------+-------------------------------+
//	|            spdcid             |            dpdcid             |
//	+---------------+---------------+-------------------------------+
//	|   reserved    |                   nack_psn                    |
//	+-------+-------+---------------+-------------------------------+
//	|cc_type|cc_flag|   reserved    |         tx_timestamp          |
//	+-------+-------+---------------+-------------------------------+
//
// MRC 1.0, tables 7-16 and 7-17.
type NETH struct {
	Type        uint8 // 0; 4 bits
	Next        uint8 // next header, 0; 5 bits
	Resv7       uint8 // reserved, sent as zero
	Reason      Reason
	VendorInfo  uint8
	Resv8       uint8  // the one before nack_psn: reserved, sent as zero
	CCType      uint8  // 2; 4 bits
	CCFlags     uint8  // 0; 4 bits
	CCResv8     uint8  // the one behind cc_flags: reserved, sent as zero
	SPDCID      uint16 // context ids: of QP numbers the low 16 bits
	DPDCID      uint16
	TxTimestamp uint16  // of the packet refused
	Entropy     uint32  // entropy value of the packet refused
	PSN         psn.PSN // nack_psn: the packet refused
}

// Decode reads a NETH from the first NETHSize bytes of b.
func (h *NETH) Decode(b []byte) error {
	if len(b) < NETHSize {
		return bth.ErrTruncated
	}
	v := (*[NETHSize]byte)(b)
	w := binary.BigEndian.Uint32(v[0:])
	h.Type = uint8(w >> 28)
	h.Next = uint8(w >> 23 & 0x1f)
	h.Resv7 = uint8(w >> 16 & 0x7f)
	h.Reason = Reason(w >> 8)
	h.VendorInfo = uint8(w)
	h.Entropy = binary.BigEndian.Uint32(v[4:])
	w = binary.BigEndian.Uint32(v[8:])
	h.SPDCID, h.DPDCID = uint16(w>>16), uint16(w)
	w = binary.BigEndian.Uint32(v[12:])
	h.Resv8 = uint8(w >> 24)
	h.PSN = psn.PSN(w & psn.Mask)
	w = binary.BigEndian.Uint32(v[16:])
	h.CCType = uint8(w >> 28)
	h.CCFlags = uint8(w >> 24 & 0xf)
	h.CCResv8 = uint8(w >> 16)
	h.TxTimestamp = uint16(w)
	return nil
}

// AppendTo appends the NETHSize bytes of h to dst.
func (h *NETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Type&0xf)<<28|uint32(h.Next&0x1f)<<23|
		uint32(h.Resv7&0x7f)<<16|uint32(h.Reason)<<8|uint32(h.VendorInfo))
	dst = binary.BigEndian.AppendUint32(dst, h.Entropy)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.SPDCID)<<16|uint32(h.DPDCID))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Resv8)<<24|uint32(h.PSN)&psn.Mask)
	return binary.BigEndian.AppendUint32(dst, uint32(h.CCType&0xf)<<28|uint32(h.CCFlags&0xf)<<24|
		uint32(h.CCResv8)<<16|uint32(h.TxTimestamp))
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *NETH) Validate() error {
	return within(h.Type <= 0xf && h.Next <= 0x1f && h.Resv7 <= 0x7f && h.PSN <= psn.Mask &&
		h.CCType <= 0xf && h.CCFlags <= 0xf)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *NETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// NETHSize bytes.
func (h *NETH) UnmarshalBinary(b []byte) error {
	if len(b) > NETHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}
