// Package congestion defines the interfaces between a port and the control of its sending
// rates: the events that a port reports to a controller, and the rates that it gets from
// it.
//
// A [Controller] is an algorithm with its parameters. A port creates one [Port] from it and
// a [Flow] for each queue pair that sends, and calls the [Receiver] for each packet that
// arrives. DCQCN is in package cnp, HPCC, Swift and TIMELY are in the packages below this
// one.
//
// Controllers are pure, as all machines of this module are: no I/O, no goroutine, no clock,
// no randomness, and nothing is allocated after Port and Flow. Times are nanoseconds of the
// port's clock, which starts at 1; 0 means no time. Times that go backwards count as the
// latest seen. Rates are bits per second of whole frames, FCS included and preamble not;
// windows are bytes of the same.
//
// Controllers whose published form is in real numbers use float64. Each product is
// converted explicitly before it is added, so that no architecture fuses the two: equal
// calls give equal rates everywhere.
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
	// Needs says what the port has to measure and send.
	Needs() Needs
}

// Needs is a set of what a controller needs from its port.
type Needs uint8

// Needs.
const (
	// NeedRTT: round trip times. The port records when packets were sent, and requests more
	// acknowledgements.
	NeedRTT Needs = 1 << iota
	// NeedINT: telemetry. The port's data packets collect records of switches, and
	// acknowledgements carry them back.
	NeedINT
	// NeedECT: data is sent ECN-capable.
	NeedECT
	// NeedAcks: an acknowledgement of each packet, as far as the receiver can send them.
	// NeedRTT and NeedINT include it.
	NeedAcks
)

// Flow is the control of one sending queue pair. After each call of another method, call
// Due, Rate and Window again.
type Flow interface {
	// Sent reports that a packet of data, or a request without data, was sent.
	Sent(now int64, s *Send)
	// Acked reports that an acknowledgement arrived, whether or not it acknowledges
	// anything new.
	Acked(now int64, a *Ack)
	// CNP reports that a congestion notification packet arrived.
	CNP(now int64)
	// Lost reports that packets were lost, as far as the sender can know.
	Lost(now int64, k LossKind)
	// Tick runs all periods that have ended by now.
	Tick(now int64)
	// Reset restores the initial state: the queue pair will be used for another connection.
	Reset()

	// Due returns when Tick is due, or 0 when nothing is. After Tick(now) it is
	// later than now.
	Due() int64
	// Rate returns how fast the flow may send, in bits per second; 0 is without
	// limit.
	Rate() uint64
	// Window returns how many bytes may be in flight, 0 for any number. A packet may be
	// sent as long as fewer are.
	Window() int64
}

// PathFlow is a Flow that depends on the length of its path.
type PathFlow interface {
	Flow
	// SetHops sets how many switches a packet crosses, 1 .. 64. Reset does not undo it.
	SetHops(n int)
}

// Send is a packet that was sent.
type Send struct {
	PSN   uint64 // unwrapped packet sequence number
	Bytes int    // of the frame
	Again bool   // a retransmission
}

// Ack is an acknowledgement. Size, RTT, ECN and INT are of the packet that was acknowledged
// last.
type Ack struct {
	Una   uint64 // oldest unwrapped packet sequence number that is not acknowledged
	Next  uint64 // the one that is sent next
	Bytes int64  // of frames that this acknowledgement is the first to acknowledge
	Size  int    // bytes of the frame whose time RTT is; 0 where unknown
	RTT   int64  // round trip time in nanoseconds; 0 where there is no sample
	ECN   bool   // the receiver echoes a congestion mark
	INT   *INT   // records of switches, valid during the call; nil for none
}

// LossKind says how a sender detected a loss.
type LossKind uint8

// Kinds of losses.
const (
	LossNAK     LossKind = iota // PSN sequence error NAK
	LossImplied                 // a response shows that an earlier one was lost
	LossTimeout                 // the acknowledgement timer fired
)

// Receiver is the part of a controller at the receiver.
type Receiver interface {
	// Received handles a packet and returns what is to be done for it.
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
	EchoECN                    // the next acknowledgement reports the congestion mark
	EchoINT                    // the next acknowledgement carries the telemetry back
)
