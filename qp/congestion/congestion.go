// Package congestion is the seam between a port and the control of its sending
// rates: what a controller may be told, and what it may be asked.
//
// A [Controller] is an algorithm with its parameters. A port makes a [Port] of it
// once, a [Flow] for each queue pair that sends, and asks its [Receiver] about each
// packet that arrives. DCQCN is in package cnp, HPCC, Swift and TIMELY are in the
// packages below this one.
//
// Controllers are pure, as all machines of this module are: no I/O, no goroutine,
// no clock, no randomness, and nothing is allocated after Port and Flow. Times are
// nanoseconds of the port's clock, which begins at 1; 0 stands for none. Times that
// go backwards count as the latest seen. Rates are bits per second of whole frames,
// FCS included and preamble not; windows are bytes of the same.
//
// Controllers whose published form is in real numbers keep float64, each
// multiplication converted before it is added, so that no architecture fuses the
// two: equal calls give equal rates everywhere.
package congestion

import "net/netip"

// Controller is an algorithm with its parameters. It is immutable, so that many
// ports may share one.
type Controller interface {
	// NewPort returns the control of a port with a line rate in bits per second. The
	// error says which parameter is out of range.
	NewPort(lineRate uint64) (Port, error)
}

// Port is the control of one port. It is not safe for concurrent use, and neither
// are the flows of one port.
type Port interface {
	// Flow returns the control of a new flow. It may allocate.
	Flow() Flow
	// Receiver returns what decides about packets that arrive, or nil where the
	// receiver has no part in the algorithm.
	Receiver() Receiver
	// Needs says what the port has to gather.
	Needs() Needs
}

// Needs is a set of what a controller needs from its port.
type Needs uint8

// Needs.
const (
	// NeedRTT asks for round trip times: the port keeps when packets left, and
	// asks for more acknowledgements.
	NeedRTT Needs = 1 << iota
	// NeedINT asks for telemetry: the port's data collects records of switches,
	// and acknowledgements bring them back.
	NeedINT
	// NeedECT asks that data be sent ECN-capable.
	NeedECT
	// NeedAcks asks for an acknowledgement of each packet, as far as the receiver
	// has time for them. NeedRTT and NeedINT do so as well.
	NeedAcks
)

// Flow is the control of one sending queue pair. After each call but the last
// three, ask Rate, Window and Due again.
type Flow interface {
	// Sent tells that a packet of data, or a request without data, left.
	Sent(now int64, s *Send)
	// Acked tells that an acknowledgement arrived, whether or not it acknowledges
	// anything new.
	Acked(now int64, a *Ack)
	// CNP tells that a congestion notification packet arrived.
	CNP(now int64)
	// Lost tells that packets were lost, as far as the sender can know.
	Lost(now int64, k LossKind)
	// Tick makes up for all periods that have ended by now.
	Tick(now int64)
	// Reset begins anew: the queue pair will be another connection.
	Reset()

	// Due returns when Tick is due, or 0 when nothing is. After Tick(now) it is
	// later than now.
	Due() int64
	// Rate returns how fast the flow may send, in bits per second; 0 is without
	// limit.
	Rate() uint64
	// Window returns how many bytes may be in flight, 0 for any number. A packet may
	// leave as long as fewer are.
	Window() int64
}

// PathFlow is a Flow that goes by how long its way is.
type PathFlow interface {
	Flow
	// SetHops tells how many switches a packet crosses, 1 .. 64. Reset does not undo it.
	SetHops(n int)
}

// Send is a packet that left.
type Send struct {
	PSN   uint64 // unwrapped packet sequence number
	Bytes int    // of the frame
	Again bool   // a retransmission
}

// Ack is an acknowledgement. All but the PSNs and Bytes are of what was
// acknowledged last.
type Ack struct {
	Una   uint64 // oldest unwrapped packet sequence number that is not acknowledged
	Next  uint64 // the one that is sent next
	Bytes int64  // of frames that this one acknowledges first
	Size  int    // bytes of the frame whose time RTT is; 0 where unknown
	RTT   int64  // round trip time in nanoseconds; 0 where there is no sample
	ECN   bool   // the receiver echoes a congestion mark
	INT   *INT   // what switches wrote, valid during the call; nil for nothing
}

// LossKind says how a sender came to know of a loss.
type LossKind uint8

// Kinds of losses.
const (
	LossNAK     LossKind = iota // PSN sequence error NAK
	LossImplied                 // a response shows that an earlier one was lost
	LossTimeout                 // the acknowledgement timer fired
)

// Receiver is the part of a controller at the receiver.
type Receiver interface {
	// Received takes a packet and says what is to be done for it.
	Received(now int64, a *Arrival) Action
}

// Arrival is a packet that arrived for a queue pair and was not refused.
type Arrival struct {
	Src, Dst netip.Addr
	CE       bool // marked congestion experienced
	Data     bool // a SEND, a WRITE or a READ response, and no multicast
	// Gate is 8 bytes of the queue pair for the receiver to use, 0 at first.
	Gate *int64
}

// Action is a set of what is to be done for a packet that arrived.
type Action uint8

// Actions.
const (
	SendCNP Action = 1 << iota // send a congestion notification packet to the sender
	EchoECN                    // the next acknowledgement says that there was a mark
	EchoINT                    // the next acknowledgement brings the telemetry back
)
