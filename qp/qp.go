// Package qp holds the state machines of queue pairs: requester and responder of
// the reliable connected service, unreliable connections and datagrams, XRC, the
// QP states, memory regions, completions and counters.
//
// The machines are pure: no I/O, no goroutine, no lock, no clock, no randomness.
// Time comes in as an argument and goes out as a deadline. All memory is allocated
// when a machine is created. Same calls, same results.
//
// **After each call to a Post, Handle, Modify or Tick method, call NextPacket until it
// reports false, fetch completions and events, and arm one timer for Deadline.** To pace
// packets, delay the call of NextPacket: a packet is built when NextPacket is called, and
// none is queued. A loop over many QPs should take a bounded number from each in turn, for
// the response to one READ may be 2 GiB.
//
// Comments cite the rules that the machines follow by number (RQ-05, RS-03, ...).
// RULES.md in this directory has them, each with its source and how sure that is;
// [Rules] returns that page.
package qp

import (
	_ "embed"
	"time"

	"github.com/roce-go/roce/bth"
)

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of the transport by number: what comments
// cite as RQ-27. Package qp/rules looks entries up.
func Rules() string { return rules }

// Event is something that happens to a QP, enum ibv_event_type.
type Event uint8

// Events.
const (
	EventCommEst        Event = iota // the first packet arrived in RTR
	EventSQDrained                   // SQD: every request that was outstanding is complete
	EventLastWQEReached              // Error, with a SRQ: no more receives are consumed
	EventReqErr                      // a request was refused as invalid: the QP is in Error
	EventAccessErr                   // a request was refused for its R_Key: the QP is in Error
)

var eventNames = [...]string{"COMM_EST", "SQ_DRAINED", "QP_LAST_WQE_REACHED", "QP_REQ_ERR", "QP_ACCESS_ERR"}

// String returns the name of e.
func (e Event) String() string { return name(eventNames[:], int(e)) }

// QP is a queue pair: a requester, a responder, and the state that joins them.
//
// A QP is not safe for concurrent use.
type QP struct {
	conn
	req     Requester
	resp    Responder
	turns   turns
	drained bool // SQD: the event was raised
	commEst bool // RTR: EventCommEst was raised
}

// New returns a queue pair in Reset. It fails with ErrConfig.
func New(cfg Config) (*QP, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	q := new(QP)
	q.conn.init(&cfg)
	q.req.init(&cfg, &q.conn)
	q.resp.init(&cfg, &q.conn)
	q.turns.weight = [2]uint16{uint16(max(1, cfg.ResponseWeight)), uint16(max(1, cfg.RequestWeight))}
	q.turns.left = q.turns.weight[0]
	return q, nil
}

// Num returns the QP's number.
func (q *QP) Num() uint32 { return q.qpn }

// Type returns the kind of the QP.
func (q *QP) Type() Type { return q.typ }

// State returns the QP's state.
func (q *QP) State() State { return q.attr.State }

// Attr returns the attributes as they were set, and the state (ibv_query_qp).
func (q *QP) Attr() Attr { return q.attr }

// Counters returns what was counted since New.
func (q *QP) Counters() Counters { return q.counters }

// Outstanding returns the number of sends that are not complete.
func (q *QP) Outstanding() int { return q.req.Outstanding() }

// Modify sets the attributes of a that mask names, and with AttrState takes the
// QP to another state (ibv_modify_qp). It fails with a *TransitionError or an
// *AttrError, and has changed nothing then.
func (q *QP) Modify(now time.Time, a *Attr, mask AttrMask) error {
	switch {
	case a == nil:
		return ErrNil
	case q.clock == nil:
		return ErrZero
	}
	from, to := q.attr.State, q.attr.State
	if mask&AttrState != 0 {
		to = a.State
	}
	r, ok := rule(q.typ, from, to)
	if !ok || to > Error {
		return &TransitionError{from, to}
	}
	m := mask &^ AttrState
	e := AttrError{From: from, To: to, Missing: r.need &^ m, Extra: m &^ (r.need | r.may), Range: a.outOfRange(m, int(q.req.reads.cap), len(q.resp.res.ring)),
		maxRd: int(q.req.reads.cap), maxDestRd: len(q.resp.res.ring)}
	if from == SQD && m&AttrMaxRdAtomic != 0 && a.MaxRdAtomic == 0 && q.req.Outstanding() != 0 {
		e.Range |= AttrMaxRdAtomic // a READ in the queue would wait for ever
	}
	if e.Missing|e.Extra|e.Range != 0 {
		err := e // e itself stays off the heap
		err.attr = *a
		return &err
	}
	t := q.clock.At(now)
	q.attr.set(a, m)
	q.attr.State = to
	switch {
	case to == Reset:
		q.reset()
	case to == Error && from != Error:
		q.fail()
	case to == Error:
	case to == RTR:
		if q.attr.PathMTU == 0 {
			q.attr.PathMTU = 4096 // UD, where it is the port's and may be left out
		}
		q.resp.connect()
	case to == RTS && from == RTR:
		q.req.connect()
	case to == RTS:
		q.req.mode = running
		q.req.runLocal()
	case to == SQD && from == RTS:
		q.req.drain()
		q.drained = false
	case from == SQD:
		q.req.changed(t, m)
	}
	q.after()
	return nil
}

// Connect takes a QP from Reset or Init to RTS with the attributes of a that its
// kind needs: the calls of Modify that verbs have, in one. From Init, where
// receives may have been posted, what was set there stays. a.State is ignored, and a
// PKey of 0 stands for the default partition, 0xffff. It fails with a
// *TransitionError or an *AttrError, and has changed nothing then.
func (q *QP) Connect(now time.Time, a *Attr) error {
	switch {
	case a == nil:
		return ErrNil
	case q.clock == nil:
		return ErrZero
	case q.attr.State > Init:
		return &TransitionError{q.attr.State, RTS}
	}
	b := *a
	if b.PKey == 0 {
		b.PKey = defaultPKey
	}
	steps := connectMasks(q.typ, &b)
	for i, m := range steps {
		// All ranges before the first step.
		if bad := b.outOfRange(m, int(q.req.reads.cap), len(q.resp.res.ring)); bad != 0 {
			return &AttrError{From: Reset + State(i), To: Init + State(i), Range: bad, attr: b, maxRd: int(q.req.reads.cap), maxDestRd: len(q.resp.res.ring)}
		}
	}
	for i, m := range steps {
		b.State = Init + State(i)
		if b.State == Init && q.attr.State == Init {
			continue
		}
		if err := q.Modify(now, &b, m|AttrState); err != nil {
			return err
		}
	}
	return nil
}

func (q *QP) reset() {
	q.req.reset()
	q.resp.reset()
	q.attr = Attr{}
	q.events, q.drained, q.commEst = 0, false, false
}

// fail goes to Error. A NAK that the responder still has to send is sent all the same.
func (q *QP) fail() {
	q.attr.State = Error
	q.req.flush()
	if q.resp.mode != broken {
		q.resp.silence()
	}
	if q.resp.rq.srq != nil || q.resp.rq.xrc != nil {
		q.raise(EventLastWQEReached)
	}
}

// after ends a call: if the requester or the responder is in Error, so is the QP, and
// events are raised.
func (q *QP) after() {
	if q.attr.State != Error && q.attr.State != Reset && (q.req.mode == broken || q.resp.mode == broken) {
		q.fail()
	}
	if q.attr.State == RTR && q.resp.established && !q.commEst {
		q.commEst = true
		q.raise(EventCommEst)
	}
	if q.attr.State == SQD && !q.drained && q.req.sq.done == q.req.sq.started {
		q.drained = true
		q.raise(EventSQDrained)
	}
	q.invariants()
}

// NextEvent stores an event that happened in e. It reports false when there is none. An
// event that is not fetched before it happens again is reported once.
func (q *QP) NextEvent(e *Event) bool {
	for i := range Event(len(eventNames)) {
		if q.events>>i&1 != 0 {
			q.events &^= 1 << i
			*e = i
			return true
		}
	}
	return false
}

// PostSend adds a work request to the send queue: see [Requester.PostSend].
func (q *QP) PostSend(now time.Time, wr *SendWR) error {
	switch {
	case wr == nil:
		return ErrNil
	case q.req.mode == idle:
		return stateErrors[callPostSend][q.attr.State]
	}
	q.clock.At(now)
	err := q.req.postSend(wr)
	if q.req.sq.local == q.req.sq.tail { // it may have been executed, or have failed
		q.after()
	}
	q.invariants()
	return err
}

// PostRecv adds a receive, from Init on. The errors are ErrState, ErrQueueFull,
// ErrLength, ErrSRQ and ErrNil.
func (q *QP) PostRecv(wr *RecvWR) error {
	if q.attr.State == Reset {
		return stateErrors[callPostRecv][Reset]
	}
	err := q.resp.PostRecv(wr)
	q.invariants()
	return err
}

// HandlePacket handles a received packet. grh is the area that precedes a datagram in
// memory: a GRH, or for IPv4 20 unspecified bytes and the IPv4 header. Only UD looks at it;
// nil leaves the area zero. Nothing of p and grh is kept. A congestion notification packet
// is for the rate limiter (package cnp): here it is Invalid.
func (q *QP) HandlePacket(now time.Time, p *bth.Packet, grh *[GRHSize]byte) Verdict {
	q.counters.RxPackets++
	if p == nil || q.clock == nil {
		q.counters.Invalid++
		return Invalid
	}
	t := q.clock.At(now)
	if q.trace != nil {
		return q.traced(t, p, grh)
	}
	v := q.handle(t, p, grh)
	q.after()
	return v
}

// traced is HandlePacket with a trace hook.
func (q *QP) traced(t int64, p *bth.Packet, grh *[GRHSize]byte) Verdict {
	q.why = WhyNone
	expected := q.resp.epsn
	if p.Opcode.Class() == bth.Response {
		expected = q.req.win.una
	}
	v := q.handle(t, p, grh)
	q.after()
	q.tell(v, p, uint32(expected.PSN()))
	return v
}

func (q *QP) handle(t int64, p *bth.Packet, grh *[GRHSize]byte) Verdict {
	if q.attr.State < RTR || q.attr.State == Error {
		q.counters.Inactive++ // rules RS-18, RS-19
		return q.drop(Inactive, WhyState)
	}
	if v := q.admit(p); v != Accepted {
		return v
	}
	switch class := p.Opcode.Class(); {
	case q.typ == UD:
		return q.resp.handleUD(p, grh)
	case class == bth.Response && q.typ != XRCRecv:
		return q.req.handle(t, p)
	case class != bth.Request || q.typ == XRCSend:
		q.counters.WrongSide++
		return q.drop(WrongSide, WhyWrongSide)
	}
	return q.resp.handle(p)
}

// FailSend completes the oldest send that is not complete with status s, for a reason that
// only the port knows, such as a peer whose address was not resolved. UC and UD QPs go to
// SQE, others to Error; what else is queued completes flushed. It does nothing where every
// send is complete.
func (q *QP) FailSend(s Status) {
	if q.req.mode != running && q.req.mode != draining || q.req.sq.done == q.req.sq.tail {
		return
	}
	q.req.failHead(s)
	q.after()
}

// Tick lets time pass. After it, Deadline is later than now.
func (q *QP) Tick(now time.Time) {
	if q.clock == nil {
		return
	}
	t := q.clock.At(now)
	q.req.tick(t)
	q.after()
}

// NextPacket builds the next packet to send, or reports false when there is none now. While
// requests and responses both wait, they alternate: see [Config.ResponseWeight].
func (q *QP) NextPacket(now time.Time, out *Outgoing) bool {
	switch {
	case !q.resp.owes():
		return q.nextRequest(now, out)
	case q.req.sq.cur == q.req.sq.tail:
		return q.nextResponse(out)
	}
	return q.NextPacketOf(now, PendingPacket, out)
}

// NextPacketOf is NextPacket for the kinds of packets in of only. A pacer that
// holds back data lets acknowledgements through with PendingAck: one is built only
// where no response that it must follow is due (rule RS-14).
func (q *QP) NextPacketOf(now time.Time, of Pending, out *Outgoing) bool {
	if !q.resp.owes() {
		return of&PendingRequest != 0 && q.nextRequest(now, out)
	}
	owes := of&PendingResponse != 0 && q.resp.res.pending != 0 ||
		of&PendingAck != 0 && q.resp.res.pending == 0 && (q.resp.ack.hasNak || q.resp.ack.hasAck)
	asks := of&PendingRequest != 0 && q.req.sq.cur != q.req.sq.tail
	switch {
	case asks && (!owes || q.turns.ofRequests):
		if q.nextRequest(now, out) {
			q.turns.took(true, owes)
			return true
		}
		if !owes {
			return false
		}
	case !owes:
		return false
	}
	q.turns.took(false, asks)
	return q.nextResponse(out)
}

// nextResponse builds a packet of the responder, which has one to send.
func (q *QP) nextResponse(out *Outgoing) bool {
	q.resp.NextPacket(out)
	if q.resp.mode == broken {
		q.after()
	}
	q.invariants()
	return true
}

func (q *QP) nextRequest(now time.Time, out *Outgoing) bool {
	if q.req.sq.cur == q.req.sq.tail {
		return false
	}
	if !q.req.nextPacket(q.clock.At(now), out) {
		q.after() // its memory may have refused what was to be sent
		return false
	}
	if q.attr.State == SQD {
		q.after() // what was built may have been the last of a UC message
	}
	q.invariants()
	return true
}

// turns alternates between the responder and the requester of a QP, so that neither starves
// the other (rule EE-3). The side whose turn it is may send at most its weight of packets;
// it keeps the turn while it has nothing to send.
type turns struct {
	weight     [2]uint16 // of responses and acknowledgements; of requests
	left       uint16
	ofRequests bool // whose turn it is
}

// took records that a packet was built, and whether the other side had to wait.
func (t *turns) took(request, waits bool) {
	if !waits || request != t.ofRequests {
		return
	}
	if t.left > 1 {
		t.left--
		return
	}
	t.ofRequests = !request
	t.left = t.weight[0]
	if t.ofRequests {
		t.left = t.weight[1]
	}
}

// NextAH returns the address handle of the datagram that NextPacket would build next, or
// nil where there is none.
func (q *QP) NextAH() *AddressHandle {
	if q.typ == UD {
		if w := q.req.sendable(); w != nil {
			return w.wr.AH
		}
	}
	return nil
}

// NextSendCompletion polls a completion of the send queue: see NextCompletion.
func (q *QP) NextSendCompletion(c *Completion) bool { return q.req.NextCompletion(c) }

// NextRecvCompletion polls a completion of the receive queue: see NextCompletion.
func (q *QP) NextRecvCompletion(c *Completion) bool { return q.resp.NextCompletion(c) }

// NextCompletion polls a completion into c, of sends first, or reports false when there is
// none. Those of the send queue come in the order of their posts, and so do those of the
// receive queue.
func (q *QP) NextCompletion(c *Completion) bool {
	return q.req.NextCompletion(c) || q.resp.NextCompletion(c)
}

// Due returns the deadline in nanoseconds of the QP's clock, or 0 when there is
// none.
func (q *QP) Due() int64 { return q.req.deadline() }

// Deadline returns when Tick is due, or false when nothing is.
func (q *QP) Deadline() (time.Time, bool) { return q.clock.Deadline(q.req.deadline()) }
