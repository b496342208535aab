package cm

import (
	"fmt"
	"math/bits"
	"strconv"
)

// State is the state of a call.
type State uint8

// States. Passive calls start in ReqReceived, active ones in ReqSent.
const (
	Idle            State = iota // no such call, or it has ended
	ReqSent                      // waits for REP
	ReqReceived                  // a REQ was received; the event is to be polled
	MRAReqSent                   // the owner has to respond to the REQ; its duplicates get MRA
	MRAReqReceived               // the peer has delayed its response to REQ
	RepSent                      // waits for RTU
	RepReceived                  // a REP was received; the event is to be polled
	MRARepSent                   // the owner has to respond to the REP; its duplicates get MRA
	MRARepReceived               // the peer has delayed its response to REP
	Established                  // connected
	DreqSent                     // waits for DREP
	DreqReceived                 // the owner has to respond to the DREQ
	Timewait                     // ended; the QP number must not be reused yet
	SIDRReqSent                  // waits for SIDR_REP
	SIDRReqReceived              // the owner has to respond to the SIDR_REQ
)

var stateNames = [...]string{
	"idle", "REQ sent", "REQ received", "MRA(REQ) sent", "MRA(REQ) received", "REP sent", "REP received",
	"MRA(REP) sent", "MRA(REP) received", "established", "DREQ sent", "DREQ received", "timewait",
	"SIDR_REQ sent", "SIDR_REQ received",
}

// String returns the state's name, or its number.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return strconv.Itoa(int(s))
}

// EventKind says what happened to a call.
type EventKind uint8

// Kinds of events, in the order in which a call has them.
const (
	// EventRequest: a REQ for a listener was received. Call Accept or Reject.
	EventRequest EventKind = iota
	// EventSIDRRequest: a SIDR_REQ for a listener was received. Call ReplySIDR; it is the
	// call's only event.
	EventSIDRRequest
	// EventReply: the peer has accepted. Take the queue pair to RTS, then call Ready, or
	// Reject.
	EventReply
	// EventEstablished: the peer is ready (passive side), by its RTU or because its first
	// packet arrived before that.
	EventEstablished
	// EventPath: the peer requested an alternate path, which was refused: they are not
	// supported.
	EventPath
	// EventRejected: a REJ was received, or with Local this side refused or gave up.
	EventRejected
	// EventUnreachable: no response was received, after all retries.
	EventUnreachable
	// EventDisconnected: the connection has ended, by a DREQ of the peer (respond with
	// Disconnect) or by Disconnect.
	EventDisconnected
	// EventTimewaitExit: the QP number may be used again.
	EventTimewaitExit
	// EventSIDRReply: the response to ResolveSIDR.
	EventSIDRReply

	eventKinds = iota
)

var eventNames = [eventKinds]string{
	"request", "SIDR request", "reply", "established", "alternate path", "rejected", "unreachable",
	"disconnected", "timewait exit", "SIDR reply",
}

// String returns the kind's name, or its number.
func (k EventKind) String() string {
	if k < eventKinds {
		return eventNames[k]
	}
	return strconv.Itoa(int(k))
}

// eventSet is a set of kinds of events.
type eventSet uint16

func (s eventSet) first() EventKind { return EventKind(bits.TrailingZeros16(uint16(s))) }

// Attr holds what the messages of a call agreed on: the attributes of this side's
// queue pair, under the names of verbs.
type Attr struct {
	Transport         TransportServiceType
	ExtendedTransport uint8 // of ServiceExtended

	QPN     uint32 // of this side
	DestQPN uint32
	SQPSN   uint32 // first PSN to send: the StartingPSN of the peer's message
	RQPSN   uint32 // first PSN to expect: the StartingPSN of this side's message
	QKey    uint32 // datagram services: the peer's
	PKey    uint16
	PathMTU MTU

	MaxDestRdAtomic uint8 // READs and ATOMICs that the peer may have outstanding here
	MaxRdAtomic     uint8 // that this side may have outstanding at the peer
	Timeout         uint8 // local ACK timeout, 4.096 us x 2^Timeout
	RetryCnt        uint8
	RNRRetry        uint8
	SRQ             bool // the peer's queue pair has a shared receive queue
	FlowControl     bool // the peer's has end-to-end flow control

	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32

	// VendorID and Options are the peer's enhanced connection establishment.
	VendorID uint32
	Options  uint32
}

// Event is something that happened to a call.
type Event struct {
	Kind EventKind
	ID   uint32 // local communication ID: the call
	// Last is set on the last event of the call, after which its ID is free.
	Last    bool
	Addr    Address
	Active  bool // this side started the call
	Service ServiceID
	// CMA holds RDMA-CM's addresses, of a request that has them: HasCMA.
	CMA    CMAHeader
	HasCMA bool
	Attr   Attr
	// PrivateData is the private data of the message after RDMA-CM's header, padded with
	// zeros: messages do not say how much of it is used. It is valid until the next call to
	// the machine.
	PrivateData []byte

	// EventRejected. Local: this side refused, or gave up.
	Local    bool
	Rejected MessageRejected
	Reason   Reason
	Info     []byte // ARI of REJ, additional information of SIDR_REP; as PrivateData

	Status SIDRStatus // EventSIDRReply; Attr has DestQPN and QKey
}

// String describes the event in one line.
func (e *Event) String() string {
	s := fmt.Sprintf("call %#x with %v: %v", e.ID, e.Addr.Remote, e.Kind)
	switch e.Kind {
	case EventRejected:
		by := "by the peer"
		if e.Local {
			by = "here"
		}
		s += fmt.Sprintf(" %s: %v of %v: %s", by, uint16(e.Reason), e.Rejected, e.Reason.Sentence())
	case EventSIDRReply:
		s += ": " + e.Status.String()
	}
	return s
}

// NextEvent stores an event in e, the oldest of the call that has waited longest. It
// reports false when there is none.
func (m *Machine) NextEvent(e *Event) bool {
	c := m.events.front()
	if c == nil {
		return false
	}
	k := c.mail.pending.first()
	c.mail.pending &^= 1 << k
	*e = Event{Kind: k, ID: c.id, Addr: c.addr, Active: c.active, Service: c.mail.service,
		CMA: c.mail.call, HasCMA: c.mail.cma, Attr: c.attr}
	switch k {
	case EventRejected:
		e.Local = c.mail.local
		fallthrough
	case EventSIDRReply:
		e.Rejected, e.Reason, e.Status, e.Info = c.mail.reject.what, c.mail.reject.reason, c.mail.reject.status, c.mail.reject.info
	}
	switch k {
	case EventUnreachable, EventTimewaitExit, EventPath:
	case EventDisconnected:
		e.PrivateData = c.mail.bye.data
	default:
		e.PrivateData = c.mail.private.data
	}
	switch {
	case k == EventRequest && c.state == ReqReceived:
		c.state = MRAReqSent
	case k == EventReply && c.state == RepReceived:
		c.state = MRARepSent
	}
	if c.mail.pending != 0 {
		return true
	}
	m.events.remove(c)
	if c.state == Idle || k == EventSIDRRequest {
		e.Last = true
		c.mail.told = true
		m.finish(c)
	}
	return true
}

// tell queues an event for the owner.
func (m *Machine) tell(c *call, k EventKind) {
	c.mail.pending |= 1 << k
	m.events.push(c)
}

// end ends a call. A message that it still has to send is sent.
func (m *Machine) end(c *call, k EventKind) {
	m.stop(c)
	m.setHalf(c, false)
	m.byRemote.remove(c)
	m.byQPN.remove(c)
	c.state = Idle
	c.mail.mraDue, c.mail.aprDue = false, false
	m.unqueue(c)
	m.tell(c, k)
}

// finish frees a call, once it has ended, has nothing to send, and its last event was
// polled.
func (m *Machine) finish(c *call) {
	if c.state == Idle && c.mail.told && !m.sending.of(c).in {
		m.release(c)
	}
}

// keep stores private data for the event that will carry it.
func (p *private) keep(data []byte) { p.data = p.buf[:copy(p.buf[:], data)] }
