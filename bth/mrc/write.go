package mrc

import (
	"encoding/binary"
	"time"

	"github.com/roce-go/roce/bth"
)

// METHSize is the length of a METH in bytes.
const METHSize = 4

// METH is the message extended transport header of every WRITE packet.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|             RQMSN             |              MSN              |
//	+-------------------------------+-------------------------------+
//
// MRC 1.0, tables 6-8 and 6-9.
type METH struct {
	// RQMSN counts the WRITEs with immediate. It has no meaning in a WRITE
	// without, and is sent as 0 there.
	RQMSN uint16
	// MSN counts messages. It is the same in all packets of one.
	MSN uint16
}

// Decode reads a METH from the first METHSize bytes of b.
func (h *METH) Decode(b []byte) error {
	if len(b) < METHSize {
		return bth.ErrTruncated
	}
	v := binary.BigEndian.Uint32(b)
	h.RQMSN = uint16(v >> 16)
	h.MSN = uint16(v)
	return nil
}

// AppendTo appends the METHSize bytes of h to dst.
func (h *METH) AppendTo(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(h.RQMSN)<<16|uint32(h.MSN))
}

// Validate returns nil: every value fits.
func (h *METH) Validate() error { return nil }

// AppendBinary implements [encoding.BinaryAppender].
func (h *METH) AppendBinary(dst []byte) ([]byte, error) { return h.AppendTo(dst), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// METHSize bytes.
func (h *METH) UnmarshalBinary(b []byte) error {
	if len(b) > METHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}

// TSETHSize is the length of a TSETH in bytes.
const TSETHSize = 4

// TSETH is the timestamp extended transport header. It follows the METH where
// the ts bit of the BTH is set, which may differ within a message. The last four
// bytes of PETH, and bytes 12 to 15 of ERTH, have the same layout.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-+---------------------+-------+
//	|         tx_timestamp          |r|      reserved       | ftype |
//	+-------------------------------+-+---------------------+-------+
//
// MRC 1.0, tables 6-6 and 6-7.
type TSETH struct {
	TxTimestamp uint16 // time of sending, in TimestampUnit where TSR is not set; wraps
	Resv11      uint16 // reserved, sent as zero; 11 bits
	TSR         bool   // r: another unit
	FType       uint8  // 1; 4 bits
}

// Decode reads a TSETH from the first TSETHSize bytes of b.
func (h *TSETH) Decode(b []byte) error {
	if len(b) < TSETHSize {
		return bth.ErrTruncated
	}
	h.word(binary.BigEndian.Uint32(b))
	return nil
}

func (h *TSETH) word(v uint32) {
	h.TxTimestamp = uint16(v >> 16)
	h.TSR = v&(1<<15) != 0
	h.Resv11 = uint16(v >> 4 & 0x7ff)
	h.FType = uint8(v & 0xf)
}

// AppendTo appends the TSETHSize bytes of h to dst.
func (h *TSETH) AppendTo(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst,
		uint32(h.TxTimestamp)<<16|bit(h.TSR)<<15|uint32(h.Resv11&0x7ff)<<4|uint32(h.FType&0xf))
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *TSETH) Validate() error { return within(h.Resv11 <= 0x7ff && h.FType <= 0xf) }

// AppendBinary implements [encoding.BinaryAppender].
func (h *TSETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// TSETHSize bytes.
func (h *TSETH) UnmarshalBinary(b []byte) error {
	if len(b) > TSETHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}

// TimestampUnit is what a timestamp counts where tsr is not set. 16 bits of it
// wrap after 8.39 ms.
const TimestampUnit = 128 * time.Nanosecond

// Since returns the time from the timestamp then to now, below 2^16 units.
func Since(now, then uint16) time.Duration { return time.Duration(now-then) * TimestampUnit }

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func within(ok bool) error {
	if !ok {
		return bth.ErrRange
	}
	return nil
}
