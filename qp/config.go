package qp

import (
	"math/bits"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/clock"
	"github.com/roce-go/roce/reth"
)

// MaxMessage is the longest message in bytes (rule RQ-01).
const MaxMessage = reth.MaxDMALen

// Config holds what does not change in the life of a queue pair: the fields of
// ibv_qp_init_attr, and what a port supplies.
type Config struct {
	Type   Type
	QPN    uint32 // 24 bits
	PD     PD
	Memory Memory // memory that the peer may access; nil: none

	// MaxSendWR is how many entries the send queue has, 0 .. 2^20. An entry is free again
	// when its completion was polled; that of an unsignalled request when it and all before
	// it are complete and their completions polled.
	MaxSendWR int
	// MaxRecvWR is how many entries the receive queue has, 0 .. 2^20; with a SRQ,
	// how many completions are held, where 0 means as many as the SRQ has entries,
	// and 256 for XRCRecv. While that many completions (rounded up to a power of
	// two) wait to be polled, no receive is consumed and SENDs get an RNR NAK.
	MaxRecvWR int
	MaxInline int // bytes of inline data an entry holds, 0 .. 4096

	// MaxRdAtomic and MaxDestRdAtomic are the upper limits, 0 .. 128, of the attributes
	// with these names: READs plus ATOMICs outstanding at once as requester, and remembered
	// at once as responder.
	MaxRdAtomic     int
	MaxDestRdAtomic int

	SRQ     *SRQ      // the receive queue, instead of one of its own; RC and UD
	XRCSRQs SRQLookup // XRCRecv: finds the SRQ that XRCETH names

	Clock *Clock // shared with other QPs; nil: one of its own

	// Trace, where not nil, is called for each packet handed in that was not simply
	// accepted, with the reason. It must not call the QP.
	Trace func(Trace)

	SignalAll bool // every send completes with a completion (sq_sig_all)

	// AckEvery asks for an acknowledgement at least every so many packets, so
	// that a long message shows progress. 0 means 64.
	AckEvery int
	// Window is the most PSNs outstanding, 1 .. 2^23-1. 0 means 8192. A READ that needs
	// more is sent when nothing else is outstanding.
	Window int
	// ResponseWeight and RequestWeight say how NextPacket alternates while both wait:
	// ResponseWeight responses and acknowledgements, then RequestWeight requests, and
	// again. Each is 1 .. 65535; 0 means 1. With other weights, or with peers of unequal
	// speed, one direction may be slow, but neither ever stops (rule EE-3).
	ResponseWeight int
	RequestWeight  int
	// Selective turns on selective repeat where its Packets is not 0: see [Selective]. The
	// responder then advertises no credits.
	Selective Selective
	// NoCredits makes the responder advertise no end-to-end credits (code 31).
	NoCredits bool
	// NotMigrated clears the M bit of packets sent, as the Linux driver does.
	NotMigrated bool
	// LinuxRetryForever reads a retry_cnt of 7 as "for ever", as the Linux driver does. By
	// rule RQ-32 it means seven.
	LinuxRetryForever bool
	// LinuxAckBeforeRead: when the request executed last is a READ or ATOMIC, the
	// acknowledgement of a duplicate carries the PSN before it. By rule RS-20 it carries
	// the PSN of that request itself; the Linux driver's requester, which asks for its lost
	// response with a duplicate, then completes the READ without its data.
	LinuxAckBeforeRead bool
}

func (c *Config) check() error {
	for _, f := range [...]struct {
		name      string
		v, lo, hi int64
	}{
		{"Type", int64(c.Type), 0, int64(XRCRecv)},
		{"QPN", int64(c.QPN), 0, maxQPN},
		{"MaxSendWR", int64(c.MaxSendWR), 0, 1 << 20},
		{"MaxRecvWR", int64(c.MaxRecvWR), 0, 1 << 20},
		{"MaxInline", int64(c.MaxInline), 0, 4096},
		{"MaxRdAtomic", int64(c.MaxRdAtomic), 0, 128},
		{"MaxDestRdAtomic", int64(c.MaxDestRdAtomic), 0, 128},
		{"AckEvery", int64(c.AckEvery), 0, 1 << 20},
		{"ResponseWeight", int64(c.ResponseWeight), 0, 1<<16 - 1},
		{"RequestWeight", int64(c.RequestWeight), 0, 1<<16 - 1},
		{"Window", int64(c.Window), 0, psn.Half - 1},
		{"Selective.Packets", int64(c.Selective.Packets), 0, 8192},
		{"Selective.Reorder", int64(c.Selective.Reorder), 0, max(0, int64(c.Selective.Packets)-1)},
		{"Selective.RTOLow", int64(c.Selective.RTOLow), 0, int64(time.Second)},
		{"Selective.RTOHigh", int64(c.Selective.RTOHigh), 0, int64(time.Second)},
		{"Selective.Few", int64(c.Selective.Few), 0, 8192},
		// The memory of inline data, in one piece.
		{"MaxSendWR x MaxInline", int64(ringSize(c.MaxSendWR)) * int64(c.MaxInline), 0, 1 << 30},
	} {
		if f.v < f.lo || f.v > f.hi {
			return &RangeError{Field: f.name, Value: f.v, Min: f.lo, Max: f.hi, kind: ErrConfig}
		}
	}
	switch {
	case c.Selective.Packets == 1:
		return &RangeError{Field: "Selective.Packets", Value: 1, Min: 2, Max: 8192, kind: ErrConfig}
	case c.Selective.rtoLow() < time.Microsecond:
		return &RangeError{Field: "Selective.RTOLow", Value: int64(c.Selective.RTOLow), Min: int64(time.Microsecond), Max: int64(time.Second), kind: ErrConfig}
	case c.Selective.rtoLow() > c.Selective.rtoHigh():
		return detailed{ErrConfig, "qp: Selective.RTOLow is " + c.Selective.rtoLow().String() + ", above RTOHigh, " + c.Selective.rtoHigh().String()}
	case c.Selective.Packets != 0 && (c.Type == UC || c.Type == UD):
		return detailed{ErrConfig, "qp: a QP of type " + c.Type.String() + " has no selective repeat"}
	case c.SRQ != nil && c.Type != RC && c.Type != UD:
		return detailed{ErrConfig, "qp: a QP of type " + c.Type.String() + " has no SRQ"}
	case c.XRCSRQs != nil && c.Type != XRCRecv:
		return detailed{ErrConfig, "qp: XRCSRQs is set on a QP of type " + c.Type.String()}
	case c.XRCSRQs == nil && c.Type == XRCRecv:
		return detailed{ErrConfig, "qp: XRCSRQs is nil on a QP of type XRC_RECV"}
	}
	return nil
}

// Attr holds the attributes that a QP gets as it is brought up, ibv_qp_attr.
type Attr struct {
	State State

	PKey   uint16 // the partition key itself, not an index
	QKey   uint32 // UD
	Access Access // what the peer may do: RemoteWrite, RemoteRead, RemoteAtomic, Flush...

	PathMTU int // payload bytes: 256, 512, 1024, 2048 or 4096
	DestQPN uint32
	AH      AHAttr // for the port; the QP itself does not use it, and it may be zero

	RQPSN           psn.PSN // first PSN expected
	MaxDestRdAtomic int     // READs and ATOMICs the peer may have outstanding here
	MinRNRTimer     aeth.RNRTimer

	SQPSN       psn.PSN // first PSN sent
	Timeout     uint8   // 4.096 us x 2^Timeout, 0..31; 0 means no timeout
	RetryCnt    uint8   // 0..7
	RNRRetry    uint8   // 0..7; 7 means for ever
	MaxRdAtomic int     // READs and ATOMICs outstanding at the peer
}

// ackTimeout returns the time after which the acknowledgement timer fires, in
// nanoseconds, 0 for never.
func ackTimeout(code uint8) int64 {
	if code == 0 {
		return 0
	}
	return 4096 << code
}

// validMTU reports whether m is a path MTU.
func validMTU(m int) bool {
	return m >= 256 && m <= 4096 && bits.OnesCount(uint(m)) == 1
}

// Outgoing is a packet to send, in the caller's variable. Its payload aliases the memory it
// comes from, or the Outgoing itself: encode or copy it before the next call to the
// machine, and before that memory is used again. (A send of UC or UD is complete as soon as
// its last packet is built.)
type Outgoing struct {
	Packet bth.Packet
	// AH is where a datagram goes; nil for the peer of a connected QP.
	AH *AddressHandle
	// Retransmission is set on a request packet that was sent before.
	Retransmission bool

	gather [4096]byte // payload that several slices hold
}

// Clone returns a copy that owns its payload, for networks that queue packets: the
// payload of o is valid until the next call to the QP, and may be the application's
// memory.
func (o *Outgoing) Clone() *Outgoing {
	c := &Outgoing{Packet: o.Packet, AH: o.AH, Retransmission: o.Retransmission}
	if o.Packet.Payload != nil {
		c.Packet.Payload = append(c.gather[:0:len(c.gather)], o.Packet.Payload...)
	}
	return c
}

// Clock converts times to nanoseconds: see [clock.Clock]. For QPs that share one by
// Config.Clock, as those of a port do, each time is converted once.
type Clock = clock.Clock

// earlier returns the earlier of two deadlines, where 0 means that there is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// ringSize returns the power of two that holds n entries.
func ringSize(n int) int {
	if n <= 1 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// packets returns how many packets a message of n bytes takes (rule RQ-01).
func packets(n uint64, mtu uint32) uint32 {
	if n == 0 {
		return 1
	}
	return uint32((n + uint64(mtu) - 1) / uint64(mtu))
}
