package mrc

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/roce-go/roce/bth"
)

// Op is the operation that an endpoint request asks for. Two bits; 2 and 3 are not defined.
type Op uint8

// Endpoint operations.
const (
	PortStatusUpdate Op = 0
	EVProbe          Op = 1 // entropy value probe
)

// String returns "port_status_update" or "ev_probe", and a value that is not
// defined as a number.
func (o Op) String() string {
	switch o {
	case PortStatusUpdate:
		return "port_status_update"
	case EVProbe:
		return "ev_probe"
	}
	return strconv.Itoa(int(o))
}

// Known reports whether o is one of the two operations.
func (o Op) Known() bool { return o <= EVProbe }

// ERTHSize is the length of an ERTH in bytes.
const ERTHSize = 16

// ERTH is the header of an endpoint request. Its id is in the low 16 bits of the
// BTH's PSN.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------+---------+---+---------------+---------------+
//	| type  |next hdr |reserved |op |   reserved    |  vendor_info  |
//	+-------+---------+---------+---+---------------+---------------+
//	|                       port_status_mask                        |
//	+---------------------------------------------------------------+
//	|                           reserved                            |
//	+-------------------------------+-+---------------------+-------+
//	|         tx_timestamp          |r|      reserved       | ftype |
//	+-------------------------------+-+---------------------+-------+
//
// MRC 1.0, tables 7-20 and 7-21.
type ERTH struct {
	Type       uint8 // 0; 4 bits
	Next       uint8 // next header, 0; 5 bits
	Resv5      uint8 // reserved, sent as zero
	Op         Op
	Resv8      uint8 // reserved, sent as zero
	VendorInfo uint8
	PortStatus uint32 // port_status_mask: a bit is set for each port that can be reached; PortStatusUpdate
	Resv32     uint32 // reserved, sent as zero
	Time       TSETH  // the last four bytes, laid out as a TSETH
}

// Decode reads an ERTH from the first ERTHSize bytes of b.
func (h *ERTH) Decode(b []byte) error {
	if len(b) < ERTHSize {
		return bth.ErrTruncated
	}
	v := (*[ERTHSize]byte)(b)
	w := binary.BigEndian.Uint32(v[0:])
	h.Type = uint8(w >> 28)
	h.Next = uint8(w >> 23 & 0x1f)
	h.Resv5 = uint8(w >> 18 & 0x1f)
	h.Op = Op(w >> 16 & 3)
	h.Resv8 = uint8(w >> 8)
	h.VendorInfo = uint8(w)
	h.PortStatus = binary.BigEndian.Uint32(v[4:])
	h.Resv32 = binary.BigEndian.Uint32(v[8:])
	h.Time.word(binary.BigEndian.Uint32(v[12:]))
	return nil
}

// AppendTo appends the ERTHSize bytes of h to dst.
func (h *ERTH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Type&0xf)<<28|uint32(h.Next&0x1f)<<23|
		uint32(h.Resv5&0x1f)<<18|uint32(h.Op&3)<<16|uint32(h.Resv8)<<8|uint32(h.VendorInfo))
	dst = binary.BigEndian.AppendUint32(dst, h.PortStatus)
	dst = binary.BigEndian.AppendUint32(dst, h.Resv32)
	return h.Time.AppendTo(dst)
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *ERTH) Validate() error {
	return within(h.Type <= 0xf && h.Next <= 0x1f && h.Resv5 <= 0x1f && h.Op <= 3 && h.Time.Validate() == nil)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *ERTH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// ERTHSize bytes.
func (h *ERTH) UnmarshalBinary(b []byte) error {
	if len(b) > ERTHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}

// EETHSize is the length of an EETH in bytes.
const EETHSize = 36

// EETH is the header of an endpoint response. The BTH's PSN is that of the
// request.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------+-----+---+---+-------------------------------+
//	| type  |next hdr | res |op |res|           reserved            |
//	+-------+---------+-----+---+---+-------------------------------+
//	|                      reserved, 24 bytes                       |
//	+-------------------------------+-------------------------------+
//	|         tx_timestamp          |           reserved            |
//	+-------------------------------+-------------------------------+
//	|                           reserved                            |
//	+---------------------------------------------------------------+
//
// MRC 1.0, tables 7-22 and 7-23. Where op is differs between readers: see
// OpAt and [Requests].
type EETH struct {
	Type        uint8 // 0; 4 bits
	Next        uint8 // next header, 0; 5 bits
	Resv3       uint8 // reserved, sent as zero
	Op          Op    // bits 3..2 of byte 1
	Resv2       uint8 // reserved, sent as zero
	Resv16      uint16
	Resv24      [24]byte // reserved, sent as zero
	TxTimestamp uint16   // of the request
	TimeResv16  uint16   // after the timestamp: reserved, sent as zero
	Resv32      uint32   // reserved, sent as zero
}

// OpPlace is one of the two places where readers of the specification see the op
// of an EETH.
type OpPlace uint8

// Places.
const (
	OpBits32 OpPlace = iota // bits 3..2 of byte 1, where Op is read from
	OpBits54                // bits 5..4 of byte 1
)

// OpAt returns the op at a place.
func (h *EETH) OpAt(p OpPlace) Op {
	if p == OpBits54 {
		return Op(h.Resv3 & 3)
	}
	return h.Op
}

// Decode reads an EETH from the first EETHSize bytes of b.
func (h *EETH) Decode(b []byte) error {
	if len(b) < EETHSize {
		return bth.ErrTruncated
	}
	v := (*[EETHSize]byte)(b)
	w := binary.BigEndian.Uint32(v[0:])
	h.Type = uint8(w >> 28)
	h.Next = uint8(w >> 23 & 0x1f)
	h.Resv3 = uint8(w >> 20 & 7)
	h.Op = Op(w >> 18 & 3)
	h.Resv2 = uint8(w >> 16 & 3)
	h.Resv16 = uint16(w)
	h.Resv24 = [24]byte(v[4:28])
	w = binary.BigEndian.Uint32(v[28:])
	h.TxTimestamp, h.TimeResv16 = uint16(w>>16), uint16(w)
	h.Resv32 = binary.BigEndian.Uint32(v[32:])
	return nil
}

// AppendTo appends the EETHSize bytes of h to dst.
func (h *EETH) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Type&0xf)<<28|uint32(h.Next&0x1f)<<23|
		uint32(h.Resv3&7)<<20|uint32(h.Op&3)<<18|uint32(h.Resv2&3)<<16|uint32(h.Resv16))
	dst = append(dst, h.Resv24[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.TxTimestamp)<<16|uint32(h.TimeResv16))
	return binary.BigEndian.AppendUint32(dst, h.Resv32)
}

// Validate returns bth.ErrRange when a field exceeds its width.
func (h *EETH) Validate() error {
	return within(h.Type <= 0xf && h.Next <= 0x1f && h.Resv3 <= 7 && h.Op <= 3 && h.Resv2 <= 3)
}

// AppendBinary implements [encoding.BinaryAppender].
func (h *EETH) AppendBinary(dst []byte) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return dst, err
	}
	return h.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly
// EETHSize bytes.
func (h *EETH) UnmarshalBinary(b []byte) error {
	if len(b) > EETHSize {
		return bth.ErrLength
	}
	return h.Decode(b)
}

// Requests remembers the operations of the newest endpoint requests, so that the operation
// of a response follows from its id and not from its own field, whose place is uncertain.
// The zero value is ready for use. Where two requests have the same entry of its table, the
// newer is remembered.
type Requests struct {
	table [256]request
}

type request struct {
	src, dst netip.Addr
	id       uint16
	op       Op
	known    bool
}

// Seen records a request from src to dst with the id in the BTH's PSN.
func (r *Requests) Seen(src, dst netip.Addr, id uint16, op Op) {
	r.table[id%uint16(len(r.table))] = request{src, dst, id, op, true}
}

// Op returns the operation of the request to which a response from src to dst with this id
// belongs, and false when that request was not seen.
func (r *Requests) Op(src, dst netip.Addr, id uint16) (Op, bool) {
	q := &r.table[id%uint16(len(r.table))]
	if q.known && q.id == id && q.src == dst && q.dst == src {
		return q.op, true
	}
	return 0, false
}

// Halves says which half of a 32-bit entropy value is the UDP source port and
// which is in the low 16 bits of the IPv6 flow label, on which readers of the
// specification differ.
type Halves uint8

// Orders of the halves. The zero value fits what responders are said to report
// for IPv4, which has no flow label: the source port, and zeros above.
const (
	LowInPort  Halves = iota // the low half is the UDP source port
	HighInPort               // the high half is
)

// Entropy returns the entropy value of a packet from its UDP source port and
// flow label, 0 for IPv4. The upper four bits of the label do not count.
func (o Halves) Entropy(sport uint16, flowLabel uint32) uint32 {
	if o == HighInPort {
		return uint32(sport)<<16 | flowLabel&0xffff
	}
	return flowLabel&0xffff<<16 | uint32(sport)
}

// Split returns the UDP source port and the flow label of an entropy value.
func (o Halves) Split(ev uint32) (sport uint16, flowLabel uint32) {
	if o == HighInPort {
		return uint16(ev >> 16), ev & 0xffff
	}
	return uint16(ev), ev >> 16
}
