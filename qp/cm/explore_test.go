package cm

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/internal/explore"
)

var exploreStates = flag.Int("explore", 0, "TestExploreMachines: most states of each scenario, 0 for 4000")

// The explorer's world: two machines of the code that ships, a link that holds few
// datagrams, and an owner of each machine that decides when it likes.
const (
	xWire  = 3 // datagrams in flight in each direction
	xCalls = 5 // calls of which an owner has an event

	xRetries = 2
)

// xScenario says what is explored: what the owners do, and what may go wrong.
type xScenario struct {
	name     string
	connects [2]int // calls that each end begins
	sameQP   bool   // both ends call, and accept, with one queue pair of theirs
	late     bool   // events are polled by moves
	data     bool   // the first packet on a queue pair may come before RTU
	sidr     bool   // ask for a datagram service instead of connecting
	maxHalf  int
	left     xFaults
}

// xFaults is how often each thing may happen.
type xFaults struct{ drop, duplicate, swap, early, reject, disconnect int8 }

type xStage uint8

// Stages of a call as its owner knows it.
const (
	xNone xStage = iota
	xAsked
	xOffered  // a REQ or SIDR_REQ needs a response
	xAccepted // waits for EventEstablished
	xReplied  // a REP needs a response
	xReady    // established, for its owner
	xEnding   // Disconnect was called
	xDown     // a DREQ needs a response
	xOver     // only the last event is to come
)

// xCall is a call as its owner knows it.
type xCall struct {
	id        uint32
	stage     xStage
	active    bool
	sidr      bool
	qpn, dest uint32 // of this side, of the peer
	psn, from uint32 // starting PSNs
	took      bool   // Accept was called
	ready     bool   // Ready was called
	learned   bool   // an event reported that the connection does not exist, or ended
	last      bool
}

type xEnd struct {
	m     *Machine
	n     int
	calls [xCalls]xCall
	made  int // calls started
	qpns  uint32
	done  uint64 // Ignored: calls to the machine that may have it send something
}

type xMAD struct {
	from int
	b    [Size]byte
}

type xLink struct {
	n int
	q [xWire]xMAD
}

type xWorld struct {
	in   [Size]byte // the datagram that is being handled: the machine's fields point into it
	now  int64
	ends [2]xEnd
	wire [2]xLink // wire[i] is from end i
	left xFaults
	// lost: a REJ was dropped, which is not sent again, or as many DREQs as there are.
	lost  bool
	dreqs int8
	drops int8
	hurt  bool // an owner did not want a connection, or time passed while datagrams were on their way
}

// xClassify leaves out what does not act on what follows.
func xClassify(t reflect.Type, field string) explore.Kind {
	switch {
	case t == reflect.TypeFor[MachineCounters](), t == reflect.TypeFor[Message](), t == reflect.TypeFor[xWorld]() && (field == "in" || field == "now"),
		t == reflect.TypeFor[xEnd]() && field == "done":
		return explore.Ignored
	}
	return explore.Plain
}

// Moves: what, of which end, and of which of its calls.
const (
	xConnect explore.Move = iota << 8
	xAccept
	xReject
	xSetReady
	xDisconnect
	xData
	xPoll
	xEmit
	xDeliver
	xDrop
	xDuplicate
	xSwap
	xTick
)

var xMoveNames = [...]string{"connect", "accept", "reject", "ready", "disconnect", "data", "poll", "emit", "deliver",
	"drop", "duplicate", "swap", "tick"}

func xName(m explore.Move) string {
	return fmt.Sprintf("%s at end %d, call %d", xMoveNames[m>>8], m>>7&1, m&0x7f)
}

func xMove(what explore.Move, end, call int) explore.Move {
	return what | explore.Move(end)<<7 | explore.Move(call)
}

var xAddrs = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

const xService = ServiceID(0x4711)

func xTime(ns int64) time.Time { return time.Unix(1000, ns) }

func (s *xScenario) start() *xWorld {
	w := &xWorld{left: s.left}
	for i := range w.ends {
		m, err := NewMachine(Config{CAGUID: uint64(0xa + i), MaxRetries: xRetries, MaxCalls: 3, MaxHalfOpen: max(s.maxHalf, 1)})
		if err == nil {
			err = m.Listen(xService, 0)
		}
		if err != nil {
			panic(err)
		}
		m.Tick(xTime(0))
		w.ends[i].m = m
	}
	return w
}

func (s *xScenario) model() *explore.Model[xWorld] {
	return &explore.Model[xWorld]{
		Graph: explore.Graph[xWorld]{Classify: xClassify},
		Start: s.start, Moves: s.moves, Apply: s.apply, Finish: s.finish,
		Now: func(w *xWorld) int64 { return xTime(w.now).UnixNano() },
	}
}

func (s *xScenario) moves(w *xWorld, to []explore.Move) []explore.Move {
	idle := true
	for i := range w.ends {
		e, d := &w.ends[i], &w.wire[i]
		if e.made < s.connects[i] {
			to = append(to, xMove(xConnect, i, 0))
		}
		for k := range e.calls[:e.n] {
			c := &e.calls[k]
			switch c.stage {
			case xOffered, xReplied:
				to = append(to, xMove(xAccept, i, k))
				if w.left.reject > 0 {
					to = append(to, xMove(xReject, i, k))
				}
				if w.left.disconnect > 0 {
					to = append(to, xMove(xDisconnect, i, k))
				}
			case xAsked, xAccepted, xReady:
				if w.left.disconnect > 0 {
					to = append(to, xMove(xDisconnect, i, k))
				}
			case xDown:
				to = append(to, xMove(xDisconnect, i, k))
			}
			if s.data && c.stage == xAccepted && s.partner(w, i, c) != nil {
				to = append(to, xMove(xData, i, k))
			}
		}
		if s.late && e.m.events.head >= 0 {
			idle = false
			to = append(to, xMove(xPoll, i, 0))
		}
		if e.m.Pending() {
			idle = false
			if d.n < xWire {
				to = append(to, xMove(xEmit, i, 0))
			}
		}
		if d.n != 0 {
			idle = false
			to = append(to, xMove(xDeliver, i, 0))
			if w.left.drop > 0 {
				to = append(to, xMove(xDrop, i, 0))
			}
			if w.left.duplicate > 0 && d.n < xWire {
				to = append(to, xMove(xDuplicate, i, 0))
			}
			if w.left.swap > 0 && d.n > 1 {
				to = append(to, xMove(xSwap, i, 0))
			}
		}
	}
	if _, ok := s.deadline(w); ok && (idle || w.left.early > 0) {
		to = append(to, xTick)
	}
	return to
}

// partner returns the active call that c accepted.
func (s *xScenario) partner(w *xWorld, i int, c *xCall) *xCall {
	e := &w.ends[1-i]
	for k := range e.calls[:e.n] {
		if p := &e.calls[k]; p.active && p.ready && p.qpn == c.dest && p.dest == c.qpn && p.from == c.psn {
			return p
		}
	}
	return nil
}

// deadline returns the earlier one of the two machines.
func (s *xScenario) deadline(w *xWorld) (first int64, ok bool) {
	for i := range w.ends {
		if t, has := w.ends[i].m.Deadline(); has {
			if ns := int64(t.Sub(xTime(0))); !ok || ns < first {
				first, ok = ns, true
			}
		}
	}
	return first, ok
}

func (s *xScenario) apply(w *xWorld, m explore.Move) error {
	i, k := int(m>>7&1), int(m&0x7f)
	e, d := &w.ends[i], &w.wire[i]
	now := xTime(w.now)
	var err error
	switch m &^ 0xff {
	case xConnect:
		err = s.connect(w, i)
	case xAccept:
		err = s.accept(w, i, &e.calls[k])
	case xReject:
		w.left.reject--
		w.hurt = true
		c := &e.calls[k]
		c.stage = xOver
		e.done++
		if c.sidr {
			c.last = true // it gets no more events
			err = s.answered(e.m.ReplySIDR(c.id, &SIDRReply{Status: SIDRRejected}))
		} else {
			err = s.allowed(c, e.m.Reject(c.id, ReasonConsumer, nil, nil))
		}
	case xDisconnect:
		c := &e.calls[k]
		if c.stage != xDown {
			w.left.disconnect--
			w.hurt = true
		}
		err = s.disconnect(w, e, c)
	case xData:
		e.m.CommEst(e.calls[k].id)
	case xPoll:
		err = s.poll(w, i)
	case xEmit:
		p := &d.q[d.n]
		b, to, _ := e.m.NextMAD(p.b[:0])
		if len(b) != Size || to.Remote != xAddrs[1-i] {
			return fmt.Errorf("end %d: %d bytes to %v", i, len(b), to.Remote)
		}
		p.from = i
		d.n++
	case xDeliver:
		w.in = d.q[0].b
		d.shift()
		w.ends[1-i].m.HandleMAD(now, Address{Local: xAddrs[1-i], Remote: xAddrs[i]}, w.in[:])
	case xDrop:
		w.left.drop--
		w.drops++
		switch AttributeID(d.q[0].b[17]) {
		case AttrREJ:
			w.lost = true
		case AttrDREQ:
			w.dreqs++
			w.lost = w.lost || w.dreqs > xRetries
		}
		d.shift()
	case xDuplicate:
		w.left.duplicate--
		d.q[d.n] = d.q[0]
		d.n++
	case xSwap:
		w.left.swap--
		d.q[0], d.q[1] = d.q[1], d.q[0]
	case xTick:
		err = s.tick(w)
	}
	if err != nil {
		return err
	}
	for i := range w.ends {
		if !s.late {
			if err := s.poll(w, i); err != nil {
				return err
			}
		}
		e := &w.ends[i]
		e.m.tidy()
		if err := e.m.check(); err != nil {
			return fmt.Errorf("end %d: %w", i, err)
		}
		// Nobody sends more than its owner, its timers and its peer give reason to: two
		// datagrams at most for one that came (rule CM-5).
		if n := &e.m.counters; n.Tx > e.done+n.Retries+n.TimedOut+2*n.Rx {
			return fmt.Errorf("CM-1: end %d sends %d datagrams: %d calls of its owner, %d retries, %d times given up, %d received",
				i, n.Tx, e.done, n.Retries, n.TimedOut, n.Rx)
		}
	}
	return nil
}

// tick lets time pass up to the first deadline.
func (s *xScenario) tick(w *xWorld) error {
	at, _ := s.deadline(w)
	if w.wire[0].n != 0 || w.wire[1].n != 0 || w.ends[0].m.Pending() || w.ends[1].m.Pending() {
		w.left.early--
		w.hurt = true
	}
	for i := range w.ends {
		e := &w.ends[i]
		for k := range e.m.calls {
			if c := &e.m.calls[k]; c.mail.pending&(1<<EventRequest|1<<EventReply|1<<EventSIDRRequest) != 0 {
				w.hurt = true // its owner has not yet got the event that it is to respond to
			}
		}
		for k := range e.calls[:e.n] {
			if c := &e.calls[k]; c.stage == xOffered || c.stage == xReplied {
				w.hurt = true // its owner takes its time
			}
		}
	}
	w.now = max(w.now, at)
	for i := range w.ends {
		m := w.ends[i].m
		m.Tick(xTime(w.now))
		if t, ok := m.Deadline(); ok && !t.After(xTime(w.now)) {
			return fmt.Errorf("end %d: the deadline after Tick is not later than now", i)
		}
	}
	return nil
}

func (s *xScenario) qpn(e *xEnd, i int) uint32 {
	if s.sameQP {
		return uint32(0x10 * (i + 1))
	}
	e.qpns++
	return uint32(0x10*(i+1)) + e.qpns
}

func (s *xScenario) connect(w *xWorld, i int) error {
	e := &w.ends[i]
	e.made++
	c := e.add()
	c.stage, c.active, c.qpn = xAsked, true, s.qpn(e, i)
	c.psn = 100 * c.qpn
	r := Request{Addr: Address{Local: xAddrs[i], Remote: xAddrs[1-i]}, Service: xService, QPN: c.qpn, StartingPSN: c.psn, PKey: 0xffff,
		PathMTU: MTU1024, ResponderResources: 4, InitiatorDepth: 3, PrivateData: []byte{byte(c.qpn)}}
	var err error
	if s.sidr {
		c.id, err = e.m.ResolveSIDR(xTime(w.now), &r)
	} else {
		c.id, err = e.m.Connect(xTime(w.now), &r)
	}
	if errors.Is(err, ErrFull) {
		c.stage, c.last = xOver, true
		return nil
	}
	e.done++
	return err
}

func (e *xEnd) add() *xCall {
	for k := range e.calls[:e.n] {
		if c := &e.calls[k]; c.sidr && c.last { // a SIDR_REQ that had its SIDR_REP may be received again
			*c = xCall{}
			return c
		}
	}
	if e.n == xCalls {
		panic("cm: the explorer's owners have too few places for calls")
	}
	e.n++
	return &e.calls[e.n-1]
}

// allowed takes the errors of a call that has ended before its owner knows, which is
// possible only where events are polled late.
func (s *xScenario) allowed(c *xCall, err error) error {
	if s.late && (errors.Is(err, ErrCall) || errors.Is(err, ErrState)) {
		c.stage = xEnding
		return nil
	}
	return err
}

// answered takes the error of ReplySIDR: the peer's patience may be over, of which
// an owner has no event.
func (s *xScenario) answered(err error) error {
	if errors.Is(err, ErrCall) {
		return nil
	}
	return err
}

// accept takes a call one step further: it responds to a REQ, a SIDR_REQ or a REP.
func (s *xScenario) accept(w *xWorld, i int, c *xCall) error {
	e := &w.ends[i]
	e.done++
	switch {
	case c.sidr:
		c.stage, c.last = xOver, true
		return s.answered(e.m.ReplySIDR(c.id, &SIDRReply{QPN: 9, QKey: 1}))
	case c.stage == xReplied:
		if err := e.m.Ready(c.id, []byte{7}); err != nil {
			return s.allowed(c, err)
		}
		c.stage, c.ready = xReady, true
	default:
		qpn := s.qpn(e, i)
		psn := 100 * qpn
		a, err := e.m.Accept(xTime(w.now), c.id, &Reply{QPN: qpn, StartingPSN: psn, ResponderResources: 9, InitiatorDepth: 9, PrivateData: []byte{byte(qpn)}})
		if err != nil {
			return s.allowed(c, err)
		}
		c.stage, c.took, c.qpn, c.psn = xAccepted, true, qpn, psn
		if a.DestQPN != c.dest || a.SQPSN != c.from || a.RQPSN != psn || a.MaxDestRdAtomic != 3 || a.MaxRdAtomic != 4 {
			return fmt.Errorf("CM-13: end %d accepts with %+v", i, a)
		}
	}
	return nil
}

func (s *xScenario) disconnect(w *xWorld, e *xEnd, c *xCall) error {
	c.stage = xEnding
	e.done++
	if c.sidr {
		c.last = true
		return s.answered(e.m.Disconnect(xTime(w.now), c.id, nil))
	}
	return s.allowed(c, e.m.Disconnect(xTime(w.now), c.id, nil))
}

// poll takes events and checks that each may come.
func (s *xScenario) poll(w *xWorld, i int) error {
	e := &w.ends[i]
	var ev Event
	for e.m.NextEvent(&ev) {
		if err := s.event(w, i, &ev); err != nil {
			return fmt.Errorf("end %d: %v: %w", i, &ev, err)
		}
		if s.late {
			break
		}
	}
	return nil
}

func (s *xScenario) event(w *xWorld, i int, ev *Event) error {
	e := &w.ends[i]
	var c *xCall
	for k := range e.calls[:e.n] {
		if e.calls[k].id == ev.ID {
			c = &e.calls[k]
		}
	}
	if c == nil {
		if ev.Kind != EventRequest && ev.Kind != EventSIDRRequest {
			return errors.New("CM-20: of a call of which its owner had no event")
		}
		c = e.add()
		c.id, c.stage, c.sidr = ev.ID, xOffered, ev.Kind == EventSIDRRequest
		c.dest, c.from = ev.Attr.DestQPN, ev.Attr.SQPSN
		if ev.Kind == EventRequest && ev.PrivateData[0] != byte(c.dest) {
			return fmt.Errorf("CM-16: private data %d of QP %d", ev.PrivateData[0], c.dest)
		}
		if ev.Last != c.sidr {
			return errors.New("CM-20: a request that is the last event")
		}
		return nil
	}
	if c.last {
		return errors.New("CM-20: after the last event")
	}
	c.last = ev.Last
	ending := c.stage == xEnding
	switch ev.Kind {
	case EventReply:
		if ending {
			break
		}
		c.stage, c.dest, c.from = xReplied, ev.Attr.DestQPN, ev.Attr.SQPSN
		for k := range w.ends[1-i].calls[:w.ends[1-i].n] {
			p := &w.ends[1-i].calls[k]
			if !p.active && p.took && p.qpn == c.dest && p.psn == c.from && p.dest == c.qpn && p.from == c.psn {
				if ev.PrivateData[0] != byte(p.qpn) {
					return errors.New("CM-16: other private data")
				}
				return nil
			}
		}
		return errors.New("a reply that the peer's owner did not give")
	case EventEstablished:
		if !c.took {
			return errors.New("established without Accept")
		}
		if s.partner(w, i, c) == nil {
			return errors.New("CM-6: established, and the peer's owner was never ready")
		}
		if !ending {
			c.stage = xReady
		}
	case EventRejected, EventUnreachable:
		c.learned = true
		c.stage = xOver
	case EventDisconnected:
		c.learned = true
		if e.m.State(c.id) == DreqReceived {
			c.stage = xDown
		} else {
			c.stage = xOver
		}
	case EventTimewaitExit, EventSIDRReply:
		c.stage = xOver
	default:
		return errors.New("not expected")
	}
	if ev.Last && c.stage != xOver {
		return fmt.Errorf("CM-20: the last event in stage %d", c.stage)
	}
	return nil
}

// finish makes all moves, without faults and with owners that agree, until
// nothing happens any more. Then both ends of each connection have the same state, and
// it is established where less was lost than there are retries (rule CM-1); and when their owners end all, nothing is left.
func (s *xScenario) finish(w *xWorld) error {
	w.left = xFaults{}
	if err := s.settle(w); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if err := s.agreed(w); err != nil {
		return err
	}
	for i := range w.ends {
		e := &w.ends[i]
		for k := range e.calls[:e.n] {
			if c := &e.calls[k]; c.stage == xReady {
				if err := s.disconnect(w, e, c); err != nil {
					return fmt.Errorf("at the end: %w", err)
				}
			}
		}
		if err := s.settle(w); err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
	}
	for i := range w.ends {
		e := &w.ends[i]
		if n, h := e.m.Calls(), e.m.HalfOpen(); n != 0 || h != 0 {
			return fmt.Errorf("CM-20: end %d: %d calls are left, %d of them half-open", i, n, h)
		}
		for k := range e.calls[:e.n] {
			if c := &e.calls[k]; !c.last {
				return fmt.Errorf("CM-20: end %d: call %#x has no last event, in stage %d", i, c.id, c.stage)
			}
		}
	}
	return nil
}

// settle makes all moves that are no faults, until none is left.
func (s *xScenario) settle(w *xWorld) error {
	var can []explore.Move
	for range 400 {
		can = s.moves(w, can[:0])
		if len(can) == 0 {
			return nil
		}
		if err := s.apply(w, can[0]); err != nil { // time passes last
			return fmt.Errorf("%s: %w", xName(can[0]), err)
		}
	}
	return errors.New("EE-3: 400 moves without faults, and still something to do")
}

// agreed checks each connection that is established at one end.
func (s *xScenario) agreed(w *xWorld) error {
	for i := range w.ends {
		e, f := &w.ends[i], &w.ends[1-i]
		if c := &e.calls[0]; s.connects[1-i] == 0 && s.connects[i] == 1 && !w.hurt && w.drops <= xRetries && e.made == 1 && e.m.State(c.id) != Established {
			return fmt.Errorf("CM-1: end %d: %d datagrams were lost, and call %#x is %v", i, w.drops, c.id, e.m.State(c.id))
		}
		for k := range e.calls[:e.n] {
			c := &e.calls[k]
			if e.m.State(c.id) != Established {
				continue
			}
			var peer *xCall
			for j := range f.calls[:f.n] {
				if p := &f.calls[j]; p.active != c.active && p.id == e.m.lookup(c.id).remoteID {
					peer = p // there may be others between the same queue pairs
				}
			}
			switch {
			case peer != nil && (peer.qpn != c.dest || peer.dest != c.qpn):
				return fmt.Errorf("CM-13: end %d: call %#x joins QP %d to %d, and the peer's %d to %d", i, c.id, c.qpn, c.dest, peer.qpn, peer.dest)
			case peer == nil:
				return fmt.Errorf("end %d: call %#x stands, and the peer knows nothing of it", i, c.id)
			case f.m.State(peer.id) == Established:
			case !peer.learned:
				return fmt.Errorf("end %d: call %#x is established, the peer's is %v, and there was no event of a failure", i, c.id, f.m.State(peer.id))
			case !w.lost:
				return fmt.Errorf("end %d: call %#x stands, the peer's is %v, and no last word was lost", i, c.id, f.m.State(peer.id))
			}
		}
	}
	return nil
}

func (d *xLink) shift() {
	copy(d.q[:], d.q[1:d.n])
	d.n--
	d.q[d.n] = xMAD{}
}

// tidy forgets what free places and sent responses still hold: it acts on nothing.
func (m *Machine) tidy() {
	for _, at := range m.free {
		m.calls[at] = call{at: at, timer: timer{at: -1}}
	}
	if r := &m.replies; r.head == r.tail {
		clear(r.ring)
		r.head, r.tail = 0, 0
	}
}

// check returns what does not hold of a machine's parts.
func (m *Machine) check() error {
	half, timers := 0, 0
	for i := range m.calls {
		c := &m.calls[i]
		if c.id == 0 {
			if c.timer.at >= 0 || c.queues[0].in || c.queues[1].in || c.links[3].in || c.links[0].in || c.links[1].in || c.links[2].in {
				return fmt.Errorf("the free place %d is in a list: %+v", i, c.links)
			}
			continue
		}
		if c.timer.at >= 0 {
			timers++
		}
		if m.half.of(c).in {
			half++
		}
		switch {
		case m.lookup(c.id) != c:
			return fmt.Errorf("call %#x is not found", c.id)
		case (c.mail.pending != 0) != m.events.of(c).in:
			return fmt.Errorf("call %#x in %v: events %b, queued %t", c.id, c.state, c.mail.pending, m.events.of(c).in)
		case (c.mail.msgDue || c.mail.mraDue || c.mail.aprDue) != m.sending.of(c).in:
			return fmt.Errorf("call %#x in %v: has something to send, or not, and is queued, or not", c.id, c.state)
		case c.state == Idle && c.mail.told && !m.sending.of(c).in:
			return fmt.Errorf("call %#x is over and has a place", c.id)
		case m.half.of(c).in && (c.active || c.state == Established || c.state == Timewait || c.state == Idle || c.state == DreqSent || c.state == DreqReceived):
			return fmt.Errorf("call %#x in %v counts as half-open (rule CM-19)", c.id, c.state)
		}
		waits := true
		switch c.state {
		case Idle, Established, ReqReceived, MRAReqSent, RepReceived, MRARepSent, DreqReceived:
			waits = false // for its owner, or for nothing
		}
		if waits != (c.timer.at >= 0) {
			return fmt.Errorf("call %#x in %v: waits for time: %t", c.id, c.state, c.timer.at >= 0)
		}
	}
	switch {
	case half != m.halfOpen || half > m.cfg.MaxHalfOpen:
		return fmt.Errorf("CM-19: %d calls are half-open, counted are %d, allowed %d", half, m.halfOpen, m.cfg.MaxHalfOpen)
	case m.listener(xService).open != m.halfOpen:
		return fmt.Errorf("CM-19: the listener counts %d half-open calls, want %d", m.listener(xService).open, m.halfOpen)
	case timers != m.timers.Len():
		return fmt.Errorf("%d timers for %d calls", m.timers.Len(), timers)
	}
	return nil
}

// xScenarios are explored whole, or up to a number of states.
var xScenarios = []xScenario{
	{name: "connect", connects: [2]int{1, 0}, left: xFaults{drop: 3, duplicate: 1, swap: 1, early: 1}},
	{name: "connect and end", connects: [2]int{1, 0}, left: xFaults{drop: 2, duplicate: 1, swap: 1, disconnect: 2}},
	{name: "loss until all is given up", connects: [2]int{1, 0}, left: xFaults{drop: 9, reject: 1}},
	{name: "reject", connects: [2]int{1, 0}, left: xFaults{drop: 2, duplicate: 1, reject: 2, early: 1}},
	{name: "end at any time", connects: [2]int{1, 0}, left: xFaults{drop: 2, swap: 1, disconnect: 3, early: 2}},
	{name: "data before RTU", connects: [2]int{1, 0}, data: true, left: xFaults{drop: 3, duplicate: 1, disconnect: 1}},
	{name: "owners that poll late", connects: [2]int{1, 0}, late: true, left: xFaults{reject: 1, disconnect: 2}},
	{name: "owners that poll late, and loss", connects: [2]int{1, 0}, late: true, left: xFaults{drop: 1, duplicate: 1, disconnect: 1, early: 2}},
	{name: "owners that poll late, and one ends", connects: [2]int{1, 0}, late: true, left: xFaults{disconnect: 1, early: 1}},
	{name: "both call", connects: [2]int{1, 1}, maxHalf: 2, left: xFaults{drop: 2, duplicate: 1, early: 1}},
	{name: "both call for the same queue pairs", connects: [2]int{1, 1}, sameQP: true, maxHalf: 2, left: xFaults{drop: 1, duplicate: 1, early: 1, disconnect: 1}},
	{name: "two calls, one half-open at a time", connects: [2]int{2, 0}, left: xFaults{drop: 1, duplicate: 1, reject: 1}},
	{name: "again with the same queue pair", connects: [2]int{2, 0}, sameQP: true, maxHalf: 2, left: xFaults{drop: 1, duplicate: 1, disconnect: 2}},
	{name: "SIDR", connects: [2]int{1, 1}, sidr: true, left: xFaults{drop: 2, duplicate: 2, swap: 1, early: 1, reject: 1, disconnect: 1}},
}

// TestExploreMachines goes through what two machines, the link between them and
// their owners can do: every interleaving of a small world, with a bounded number of
// faults. From every state on, a good link and owners that agree must bring both ends
// to the same view, and the end of all connections must leave nothing. Rules CM-1,
// CM-4, CM-6, CM-13, CM-16, CM-19, CM-20.
func TestExploreMachines(t *testing.T) {
	limit := 4000
	if testing.Short() {
		limit = 400
	}
	if *exploreStates != 0 {
		limit = *exploreStates
	}
	begin := time.Now()
	var all atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d states, %.0f a second", all.Load(), float64(all.Load())/time.Since(begin).Seconds())
	})
	for i := range xScenarios {
		s := xScenarios[i]
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			m := s.model()
			r, err := explore.Run(m, limit)
			all.Add(int64(r.States))
			t.Log(r)
			var c *explore.Counterexample
			if errors.As(err, &c) {
				for _, mv := range c.Moves {
					t.Log(xName(mv))
				}
			}
			require.NoError(t, err)
		})
	}
}
