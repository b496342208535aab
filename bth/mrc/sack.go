package mrc

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// SETHSize is the length of a SETH in bytes.
const SETHSize = 28

// PathVerdict is the verdict of a SACK about the path of the reflected entropy value. Two
// bits; 3 is not defined.
type PathVerdict uint8

// Verdicts.
const (
	PathGood PathVerdict = 0
	PathSkip PathVerdict = 1 // skip it once: the packet was marked congestion experienced
	PathBad  PathVerdict = 2 // skip it until a probe got a response
)

// SETH is the selective acknowledgement extended transport header of a SACK; a
// CC_STATE follows it.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------+---+-----+-+-+-------------------------------+
//	| type  |next hdr | m | res |p|r|  ack_psn_offset or probe_id   |
//	+-------+---------+---+-----+-+-+-------------------------------+
//	|                            entropy                            |
//	+-------------------------------+-------------------------------+
//	|            spdcid             |            dpdcid             |
//	+---------------+---------------+-------------------------------+
//	|   reserved    |                   cack_psn                    |
//	+-------+-------+---------------+-------------------------------+
//	|cc_type|cc_flag|      mpr      |          sack_offset          |
//	+-------+-------+---------------+-------------------------------+
//	|                   sack_bitmap, bits 63..32                    |
//	|                   sack_bitmap, bits 31..0                     |
//	+---------------------------------------------------------------+
//
// MRC 1.0, tables 7-14 and 7-15.
type SETH struct {
	Type  uint8 // reserved, sent as zero; 4 bits
	Next  uint8 // next header: reserved, sent as zero; 5 bits
	M     PathVerdict
	Resv3 uint8 // reserved, sent as zero
	PR    bool  // p: the response to a reliability probe
	Resv1 bool  // r: reserved, sent as zero
	// Cause is the packet that caused the SACK: its PSN less CumPSN as a signed
	// number, or, where PR is set, the id of the probe. See AckPSN and ProbeID.
	Cause   uint16
	Entropy uint32 // entropy value of that packet
	SPDCID  uint16 // context ids: of QP numbers the low 16 bits
	DPDCID  uint16
	Resv8   uint8   // reserved, sent as zero
	CumPSN  psn.PSN // cack_psn: all packets up to this PSN were received
	CCType  uint8   // 0: the CC_STATE that follows is laid out as CCState; 4 bits
	CCFlags uint8   // 0; 4 bits
	MPR     uint8   // window, in units of MPRUnit packets; 0 where it does not change
	// SACKOffset less CumPSN, as a signed number, is the PSN of bit 0 of the bitmap.
	SACKOffset int16
	SACKBitmap uint64 // bit i, from the least significant: PSN SACKBase + i was received
}

// MPRUnit is what SETH's MPR counts, in packets.
const MPRUnit = 128

// AckPSN returns the PSN of the packet that caused the SACK. It has no meaning
// where PR is set.
func (h *SETH) AckPSN() psn.PSN { return h.CumPSN.Add(int(int16(h.Cause))) }

// AckPSNOffset returns Cause as the signed distance of AckPSN from CumPSN.
func (h *SETH) AckPSNOffset() int16 { return int16(h.Cause) }

// ProbeID returns the id of the probe that caused the SACK. It has no meaning
// where PR is not set.
func (h *SETH) ProbeID() uint16 { return h.Cause }

// SACKBase returns the PSN of bit 0 of the bitmap.
func (h *SETH) SACKBase() psn.PSN { return h.CumPSN.Add(int(h.SACKOffset)) }

// Window returns MPR in packets.
func (h *SETH) Window() int { return int(h.MPR) * MPRUnit }

// Decode reads a SETH from the first SETHSize bytes of b.
func (h *SETH) Decode(b []byte) error {
	if len(b) < SETHSize {
		return bth.ErrTruncated
	}
	v := (*[SETHSize]byte)(b)
	w := binary.BigEndian.Uint32(v[0:])
	h.Type = uint8(w >> 28)
	h.Next = uint8(w >> 23 & 0x1f)
	h.M = PathVerdict(w >> 21 & 3)
	h.Resv3 = uint8(w >> 18 & 7)
	h.PR = w&(1<<17) != 0
	h.Resv1 = w&(1<<16) != 0
	h.Cause = uint16(w)
	h.Entropy = binary.BigEndian.Uint32(v[4:])
	w = binary.BigEndian.Uint32(v[8:])
	h.SPDCID, h.DPDCID = uint16(w>>16), uint16(w)
	w = binary.BigEndian.Uint32(v[12:])
	h.Resv8 = uint8(w >> 24)
	h.CumPSN = psn.PSN(w & psn.Mask)
	w = binary.BigEndian.Uint32(v[16:])
	h.CCType = uint8(w >> 28)
	h.CCFlags = uint8(w >> 24 & 0xf)
	h.MPR = uint8(w >> 16)
	h.SACKOffset = int16(w)
	h.SACKBitmap = binary.BigEndian.Uint64(v[20:])
	return nil
}

// AppendTo appends the SETHSize bytes of h to dst.
func (h *SETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Type&0xf)<<28|uint32(h.Next&0x1f)<<23|
		uint32(h.M&3)<<21|uint32(h.Resv3&7)<<18|bit(h.PR)<<17|bit(h.Resv1)<<16|uint32(h.Cause))
	dst = binary.BigEndian.AppendUint32(dst, h.Entropy)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.SPDCID)<<16|uint32(h.DPDCID))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Resv8)<<24|uint32(h.CumPSN)&psn.Mask)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.CCType&0xf)<<28|uint32(h.CCFlags&0xf)<<24|
		uint32(h.MPR)<<16|uint32(uint16(h.SACKOffset)))
	return binary.BigEndian.AppendUint64(dst, h.SACKBitmap)
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *SETH) Validate() error {
	return within(h.Type <= 0xf && h.Next <= 0x1f && h.M <= 3 && h.Resv3 <= 7 &&
		h.CumPSN <= psn.Mask && h.CCType <= 0xf && h.CCFlags <= 0xf)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *SETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// SETHSize bytes.
func (h *SETH) UnmarshalBinary(b []byte) error {
	if len(b) > SETHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}

// CCStateSize is the length of a CC_STATE in bytes.
const CCStateSize = 8

// CCState is the congestion control state (CC_STATE) behind a SETH whose
// cc_type is 0.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-+-----------------------------+
//	|         tx_timestamp          |r|          ooo_count          |
//	+-+-------------+---------------+-+-----------------------------+
//	|c|rcv_cwnd_pen |                 rcvd_bytes                    |
//	+-+-------------+-----------------------------------------------+
//
// MRC 1.0, tables 7-12 and 7-13.
type CCState struct {
	TxTimestamp uint16 // of the TSETH or PETH of the packet that caused the SACK
	Resv1       bool   // r: reserved, sent as zero
	OOOCount    uint16 // packets received above cack_psn; 15 bits
	RestoreCwnd bool   // c: restore_cwnd, the requestor restores its old window after the penalty
	RcvCwndPen  uint8  // penalty: 0 none, 64 about half, 127 one packet a round trip; 7 bits
	RcvdBytes   uint32 // received on the QP since its start, in units of 256 bytes; 24 bits, wraps
}

// RcvdBytesUnit is what CCState's RcvdBytes counts, in bytes.
const RcvdBytesUnit = 256

// Decode reads a CC_STATE from the first CCStateSize bytes of b.
func (h *CCState) Decode(b []byte) error {
	if len(b) < CCStateSize {
		return bth.ErrTruncated
	}
	v := binary.BigEndian.Uint64(b)
	h.TxTimestamp = uint16(v >> 48)
	h.Resv1 = v&(1<<47) != 0
	h.OOOCount = uint16(v >> 32 & 0x7fff)
	h.RestoreCwnd = v&(1<<31) != 0
	h.RcvCwndPen = uint8(v >> 24 & 0x7f)
	h.RcvdBytes = uint32(v & 0xffffff)
	return nil
}

// AppendTo appends the CCStateSize bytes of h to dst.
func (h *CCState) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.TxTimestamp)<<16|bit(h.Resv1)<<15|uint32(h.OOOCount&0x7fff))
	return binary.BigEndian.AppendUint32(dst,
		bit(h.RestoreCwnd)<<31|uint32(h.RcvCwndPen&0x7f)<<24|h.RcvdBytes&0xffffff)
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *CCState) Validate() error {
	return within(h.OOOCount <= 0x7fff && h.RcvCwndPen <= 0x7f && h.RcvdBytes <= 0xffffff)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *CCState) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// CCStateSize bytes.
func (h *CCState) UnmarshalBinary(b []byte) error {
	if len(b) > CCStateSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}
