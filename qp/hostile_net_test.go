package qp_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

const (
	hostileGuard  = 0xa5 // around everything that may be written
	hostileGuards = 64   // bytes of it on each side
	hostileInline = 64
	hostileSRQ    = 0x777
	hostilePD     = qp.PD(7)
	hostileAccess = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal
)

// hostileWorld runs a plan in virtual time.
type hostileWorld struct {
	plan  *hostilePlan
	rng   *rand.Rand
	now   int64
	hosts [2]hostileHost
	ends  []*hostileEnd
	wires []flying // heap by time, then by number
	seq   uint64
	burst int // packets still to be lost

	err     error
	hash    uint64 // of everything that happened (rule EE-4)
	events  int
	packets int
	resets  int
	failed  int // connections that ended in error
	trace   *strings.Builder
	free    [][]byte
	f       frame.Frame
	out     qp.Outgoing
}

type hostileHost struct {
	regs   *qp.Regions
	srq    *qp.SRQ
	recvs  map[uint64][]byte // posted to srq
	nextID uint64
	short  int // receives too small for some messages
	lost   int // SRQ receives that may have been consumed by a QP that was reset in mid-message
}

// hostileEnd is one QP, its application and its memory.
type hostileEnd struct {
	w    *hostileWorld
	name string
	host *hostileHost
	side int
	q    *qp.QP
	peer *hostileEnd
	work []hostileWork

	slab   []byte // guard, region, guard
	region []byte
	addr   uint64
	rkey   uint32
	winKey uint32
	window uint32 // key of the window, while it is not bound
	model  *hostileModel

	// Requests: posted in this connection, and those of them not yet completed.
	posted  int
	done    int
	sends   []*hostileSend
	fences  map[int]bool
	nextID  uint64
	postAt  int64
	failed  bool // a request completed in error
	badRecv bool // a receive did
	gone    bool // the connection cannot be used: the region was deregistered, or it ended

	// Receives.
	recvs  map[uint64][]byte // by ID
	order  []uint64
	expect []hostileMessage // what the peer sent and was not yet received

	// The wire, as the sender should see it.
	firstPSN psn.PSN
	sent     uint64            // PSNs used
	sums     map[uint64]uint32 // of what was sent with each PSN
	reads    []sentRead

	state    hostileState
	at       int64 // when state goes on
	wakeAt   int64
	gapUntil int64
	lazy     int64 // ns: rises while there are no completions to take
	incarn   uint32
	draining bool
}

type sentRead struct {
	first uint64
	n     uint32
	va    uint64
	len   uint32
}

type hostileState uint8

const (
	hostileUp hostileState = iota
	hostileClosing
	hostileDown
	hostileOver // not brought up again
)

type flying struct {
	at  int64
	seq uint64
	to  *hostileEnd
	b   []byte
	bad bool // changed on its way
}

func (e *hostileEnd) String() string { return e.name }

func newHostileWorld(p *hostilePlan, trace bool) *hostileWorld {
	w := &hostileWorld{plan: p, rng: rand.New(rand.NewPCG(p.Seed, 2)), now: 1, hash: 14695981039346656037}
	if trace {
		w.trace = new(strings.Builder)
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		h.regs, _ = qp.NewRegions(16)
		h.recvs = map[uint64][]byte{}
		h.srq, _ = qp.NewSRQ(hostileSRQ, 64)
	}
	for pair := range p.Pairs {
		for side := range 2 {
			w.ends = append(w.ends, w.newEnd(pair, side))
		}
		a, b := w.ends[2*pair], w.ends[2*pair+1]
		a.peer, b.peer = b, a
	}
	for _, wk := range p.Work {
		e := w.ends[2*wk.Pair+wk.Side]
		e.work = append(e.work, wk)
	}
	for _, e := range w.ends {
		e.bringUp()
	}
	return w
}

type oneSRQ struct{ q *qp.SRQ }

func (s oneSRQ) SRQ(num uint32) *qp.SRQ {
	if num != s.q.Num() {
		return nil
	}
	return s.q
}

func (w *hostileWorld) newEnd(pair, side int) *hostileEnd {
	p := w.plan
	e := &hostileEnd{w: w, name: fmt.Sprintf("%c%d", 'A'+side, pair), host: &w.hosts[side], side: side, nextID: 1000}
	e.slab = make([]byte, hostileGuards+8*p.MTU+hostileGuards)
	for i := range e.slab {
		e.slab[i] = hostileGuard
	}
	e.region = e.slab[hostileGuards:][: 8*p.MTU : 8*p.MTU]
	w.fill(e.region)
	e.addr = w.rng.Uint64()>>1&^7 + 8
	e.recvs = map[uint64][]byte{}
	cfg := qp.Config{
		Type: qp.RC, QPN: uint32(0x100*(side+1) + pair), PD: hostilePD, Memory: e.host.regs,
		MaxSendWR: p.SendWR, MaxRecvWR: p.RecvWR, MaxInline: hostileInline,
		MaxRdAtomic: p.MaxRd[side], MaxDestRdAtomic: p.MaxRd[1-side],
		SignalAll: p.All, AckEvery: p.AckEvery, Window: p.Window, NoCredits: !p.Credits[side],
		LinuxRetryForever: p.Forever, Selective: p.Sel[side],
	}
	switch {
	case p.XRC && side == 0:
		cfg.Type = qp.XRCSend
	case p.XRC:
		cfg.Type, cfg.XRCSRQs = qp.XRCRecv, oneSRQ{e.host.srq}
	case p.SRQ[side]:
		cfg.SRQ = e.host.srq
	}
	var err error
	if e.q, err = qp.New(cfg); err != nil {
		panic(err)
	}
	return e
}

func (e *hostileEnd) shared() bool { return e.w.plan.XRC && e.side == 1 || e.w.plan.SRQ[e.side] }

func (w *hostileWorld) time() time.Time { return time.Unix(0, w.now) }

func (w *hostileWorld) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
		w.logf("FAIL %v", w.err)
	}
}

func (w *hostileWorld) logf(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%9d "+format+"\n", append([]any{w.now}, args...)...)
	}
}

// mix adds a value to the trace's hash.
func (w *hostileWorld) mix(v ...uint64) {
	for _, x := range v {
		w.hash = (w.hash ^ x) * 1099511628211
		w.hash ^= w.hash >> 29
	}
}

func (w *hostileWorld) fill(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, w.rng.Uint64())
	}
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
}

// split cuts b into about n pieces, some of which are empty.
func (w *hostileWorld) split(b []byte, n int) [][]byte {
	out := [][]byte{}
	for range n {
		k := w.rng.IntN(len(b) + 1)
		out = append(out, b[:k:k])
		b = b[k:]
	}
	return append(out, b)
}

func (w *hostileWorld) chance(thousandths int) bool { return w.rng.IntN(1000) < thousandths }

// bringUp takes the QP from Reset to RTS.
func (e *hostileEnd) bringUp() {
	p := e.w.plan
	if e.rkey == 0 {
		var err error
		e.rkey, err = e.host.regs.Register(qp.Region{PD: hostilePD, Data: e.region, Addr: e.addr, Access: hostileAccess | qp.MWBind})
		if err != nil {
			panic(err)
		}
	}
	if p.Windows && e.window == 0 && e.winKey == 0 {
		e.window, _ = e.host.regs.AllocWindow(hostilePD)
	}
	e.bind()
	// Far from the PSNs of before, of which packets may still be in flight.
	step := e.incarn * (1 << 21)
	mine := psn.PSN(p.FirstPSN[e.side]+step) & psn.Mask
	his := psn.PSN(p.FirstPSN[1-e.side]+step) & psn.Mask
	a := qp.Attr{
		PKey: 0xffff, Access: hostileAccess, PathMTU: p.MTU, DestQPN: e.peer.q.Num(),
		RQPSN: his, SQPSN: mine, MaxDestRdAtomic: p.MaxRd[1-e.side], MaxRdAtomic: p.MaxRd[e.side],
		MinRNRTimer: p.RNRTimer, Timeout: p.Timeout, RetryCnt: p.RetryCnt, RNRRetry: p.RNRRetry,
	}
	if err := e.q.Connect(e.w.time(), &a); err != nil {
		e.w.fail("%v: %v", e, err)
	}
	e.firstPSN, e.sent, e.sums, e.reads = mine, 0, map[uint64]uint32{}, nil
	e.posted, e.done, e.sends, e.fences = 0, 0, nil, map[int]bool{}
	e.failed, e.badRecv, e.gone, e.draining = false, false, false, false
	e.expect = nil
	e.model = newModel(e.region)
	e.state = hostileUp
	e.incarn++
	e.wake(e.w.now + 1)
	e.peer.wake(e.w.now + 1)
	e.w.logf("%v up, PSN %v", e, mine)
}

func (e *hostileEnd) bind() {
	if e.window != 0 {
		k, err := e.host.regs.Bind(qp.Binding{Window: e.window, Region: e.rkey, VA: e.addr, Len: uint32(len(e.region)),
			Access: qp.RemoteRead | qp.RemoteWrite | qp.FlushGlobal, QPN: e.q.Num()})
		if err != nil {
			e.w.fail("bind: %v", err)
		}
		e.window, e.winKey = 0, k
	}
}

// run continues until everything is complete.
func (w *hostileWorld) run() error {
	for w.err == nil {
		next := int64(1 << 62)
		for _, e := range w.ends {
			e.step()
		}
		w.planned()
		for _, e := range w.ends {
			for _, t := range []int64{e.deadline(), e.wakeAt, e.at} {
				if t != 0 && t < next {
					next = t
				}
			}
		}
		if w.finished() && len(w.wires) == 0 {
			break
		}
		if len(w.wires) > 0 {
			next = min(next, w.wires[0].at)
		}
		if next == 1<<62 {
			w.fail("nothing is due and requests are not complete (rule EE-3)")
			break
		}
		w.now = max(w.now, next)
		if w.events++; w.events > 1_000_000 {
			w.fail("no end (rule EE-3)")
			break
		}
		for len(w.wires) > 0 && w.wires[0].at <= w.now && w.err == nil {
			f := w.pop()
			w.deliver(f)
			f.to.step()
		}
		for _, e := range w.ends {
			e.tick()
		}
	}
	if w.err == nil {
		w.end()
	}
	return w.err
}

func (e *hostileEnd) deadline() int64 {
	t, ok := e.q.Deadline()
	if !ok {
		return 0
	}
	return t.UnixNano()
}

func (e *hostileEnd) tick() {
	w := e.w
	if d := e.deadline(); d != 0 && d <= w.now {
		e.q.Tick(w.time())
		w.mix(uint64(w.now), 3)
		w.logf("%v tick", e)
		if d := e.deadline(); d != 0 && d <= w.now {
			w.fail("%v: after Tick the deadline is %d", e, d)
		}
	}
	if e.wakeAt != 0 && e.wakeAt <= w.now {
		e.wakeAt = 0
	}
}

func (e *hostileEnd) wake(at int64) {
	if e.wakeAt == 0 || at < e.wakeAt {
		e.wakeAt = at
	}
}

// step lets the application and the port do what they can now.
func (e *hostileEnd) step() {
	w := e.w
	if w.err != nil {
		return
	}
	e.life()
	if e.state == hostileDown || e.state == hostileOver {
		return
	}
	e.postRecvs()
	e.postSends()
	e.transmit()
	if !w.plan.Lazy || w.rng.IntN(3) == 0 || e.q.State() == qp.Error {
		e.lazy = min(2*e.lazy+100, 1_000_000)
		e.completions()
		e.postSends()
		e.transmit()
	} else {
		e.wake(w.now + 1 + w.rng.Int64N(5000+e.lazy))
	}
	var ev qp.Event
	for e.q.NextEvent(&ev) {
		w.logf("%v event %v", e, ev)
		w.mix(4, uint64(ev))
		switch ev {
		case qp.EventSQDrained:
			e.drained()
		}
	}
}

func (e *hostileEnd) drained() {
	e.draining = false
	err := e.q.Modify(e.w.time(), &qp.Attr{State: qp.RTS}, qp.AttrState)
	if err != nil && e.q.State() != qp.Error {
		e.w.fail("%v: SQD to RTS: %v", e, err)
	}
}

// planned does what the plan has for this time.
func (w *hostileWorld) planned() {
	p := w.plan
	if p.Revoke != 0 && w.now >= p.Revoke {
		e := w.ends[w.rng.IntN(len(w.ends))]
		if e.state == hostileUp && e.rkey != 0 {
			w.logf("%v revokes its region", e)
			if err := e.host.regs.Deregister(e.rkey); err != nil {
				w.fail("deregister: %v", err)
			}
			if k := e.winKey | e.window; k != 0 {
				_ = e.host.regs.Deregister(k)
			}
			e.rkey, e.winKey, e.window = 0, 0, 0
			e.gone = true
			// The application learns of errors; a connection without one is reset.
			for _, x := range []*hostileEnd{e, e.peer} {
				if x.state == hostileUp {
					x.at = w.now + 2_000_000
				}
			}
		}
		p = clonePlan(w)
		p.Revoke = 0
		p.Short = true // from here on errors are allowed
	}
	if p.Reset != 0 && w.now >= p.Reset {
		e := w.ends[w.rng.IntN(len(w.ends))]
		if e.state == hostileUp {
			w.logf("%v is taken down", e)
			e.at = w.now
			e.gone, e.peer.gone = true, true
		}
		clonePlan(w).Reset = 0
	}
	if p.Drain != 0 && w.now >= p.Drain {
		e := w.ends[w.rng.IntN(len(w.ends))]
		if e.q.State() == qp.RTS {
			w.logf("%v drains", e)
			if err := e.q.Modify(w.time(), &qp.Attr{State: qp.SQD}, qp.AttrState); err != nil {
				w.fail("to SQD: %v", err)
			}
			e.draining = true
			e.step()
		}
		clonePlan(w).Drain = 0
	}
}

// clonePlan gives the world a plan of its own to change.
func clonePlan(w *hostileWorld) *hostilePlan {
	p := *w.plan
	w.plan = &p
	return &p
}

// life resets a connection that failed or is to be reset, and connects it again.
func (e *hostileEnd) life() {
	w := e.w
	switch e.state {
	case hostileUp:
		if e.q.State() == qp.Error && e.at == 0 {
			// The peer learns of it some time later, as by a connection manager.
			e.at = w.now + 1 + w.rng.Int64N(30000)
			if e.peer.at == 0 {
				e.peer.at = e.at + 1 + w.rng.Int64N(30000)
			}
		}
		if e.at == 0 || e.at > w.now {
			return
		}
		e.at = 0
		e.state = hostileClosing
		if e.q.State() == qp.Error || w.rng.IntN(2) == 0 {
			e.flush()
		}
		e.down()
	case hostileDown:
		p := e.peer
		if e.at <= w.now && (e.at != 0 && p.state == hostileDown && p.incarn == e.incarn || p.state == hostileUp && p.incarn > e.incarn) {
			e.at = 0
			e.bringUp()
			if e.peer.state == hostileDown && e.peer.at == 0 {
				e.peer.at = w.now + w.rng.Int64N(5000)
			}
		}
	}
}

// flush moves to Error and polls all completions.
func (e *hostileEnd) flush() {
	w := e.w
	if err := e.q.Modify(w.time(), &qp.Attr{State: qp.Error}, qp.AttrState); err != nil {
		w.fail("%v: to Error: %v", e, err)
	}
	w.logf("%v to Error", e)
	e.gone = true
	e.completions()
	if n := e.q.Outstanding(); n != 0 {
		w.fail("%v: %d requests not complete in Error (rule EE-1)", e, n)
	}
	e.settle()
	if len(e.sends) != 0 {
		w.fail("%v: request %d never completed (rule EE-1)", e, e.sends[0].n)
	}
	if !e.shared() && len(e.order) != 0 {
		w.fail("%v: receive %#x not flushed", e, e.order[0])
	}
}

// down resets the QP and checks the memory that its peer could access.
func (e *hostileEnd) down() {
	w := e.w
	if e.q.State() != qp.Error {
		// What did succeed is known only as far as completions were polled.
		e.completions()
		e.host.lost++
	}
	if err := e.q.Modify(w.time(), &qp.Attr{State: qp.Reset}, qp.AttrState); err != nil {
		w.fail("%v: to Reset: %v", e, err)
	}
	w.logf("%v down", e)
	if e.q.Outstanding() != 0 {
		w.fail("%v: requests outstanding after Reset", e)
	}
	for _, b := range e.recvs {
		w.free = append(w.free, b)
	}
	clear(e.recvs)
	e.order = nil
	e.state = hostileDown
	e.at = 0
	if e.peer.state == hostileUp && e.peer.at == 0 {
		e.peer.at = w.now + w.rng.Int64N(20000)
	}
	e.incarn = max(e.incarn, e.peer.incarn) // one may not have come up
	e.peer.incarn = max(e.incarn, e.peer.incarn)
	if e.peer.state == hostileDown || e.peer.state == hostileOver {
		for _, x := range []*hostileEnd{e, e.peer} {
			if err := x.model.checkPrefix(x.region, x.peer.done); err != nil {
				w.fail("%v: %v", x, err)
			}
		}
		w.failed++
		if e.incarn >= 3 {
			e.state, e.peer.state = hostileOver, hostileOver
			e.at, e.peer.at = 0, 0
			return
		}
		w.resets++
		e.at = w.now + 1
	}
}

// finished reports whether all connections have done their work.
func (w *hostileWorld) finished() bool {
	for _, e := range w.ends {
		if e.state == hostileOver {
			continue
		}
		if e.state != hostileUp || e.at != 0 || len(e.work) != 0 || e.q.Outstanding() != 0 || len(e.expect) != 0 || e.draining || e.q.State() == qp.Error {
			return false
		}
	}
	return true
}

// end makes the checks of rules EE-1 and EE-2 that can be made at the end only.
func (w *hostileWorld) end() {
	for _, e := range w.ends {
		for _, b := range [][]byte{e.slab[:hostileGuards], e.slab[hostileGuards+len(e.region):]} {
			if slices.ContainsFunc(b, func(v byte) bool { return v != hostileGuard }) {
				w.fail("%v: written outside the region (rule EE-5)", e)
			}
		}
		if e.state == hostileOver {
			continue
		}
		e.completions()
		if e.failed || e.badRecv {
			w.fail("%v: failed, and ended as if not", e)
		}
		e.settle()
		if len(e.sends) != 0 {
			w.fail("%v: request %d never completed (rule EE-1)", e, e.sends[0].n)
		}
		for i, v := range e.region {
			if v != e.model.now[i] {
				w.fail("%v: memory at %d is %#x, with an ideal link it would be %#x (rule EE-2)", e, i, v, e.model.now[i])
				break
			}
		}
		// Every receive that was not consumed completes flushed: none is lost.
		e.flush()
	}
	for i := range w.hosts {
		if h := &w.hosts[i]; h.srq.Len() > len(h.recvs) || h.srq.Len()+h.lost < len(h.recvs) {
			w.fail("host %d: %d receives in the SRQ, %d posted and not completed", i, h.srq.Len(), len(h.recvs))
		}
	}
}

func (w *hostileWorld) buffer() []byte {
	n := 4*w.plan.MTU + 16 + 2*hostileGuards
	var b []byte
	if k := len(w.free); k > 0 {
		b, w.free = w.free[k-1], w.free[:k-1]
	} else {
		b = make([]byte, n)
	}
	for i := range b {
		b[i] = hostileGuard
	}
	return b
}

func (e *hostileEnd) postRecvs() {
	w := e.w
	p := w.plan
	want := p.RecvWR
	if p.LateRecv {
		want = min(want, 2)
	}
	have := len(e.recvs)
	if e.shared() {
		have, want = e.host.srq.Len(), min(want*p.Pairs, 64)
	}
	for have < want && e.q.State() != qp.Error {
		if p.LateRecv && w.rng.IntN(6) != 0 {
			e.wake(w.now + 1 + w.rng.Int64N(20000))
			return
		}
		b := w.buffer()
		room := b[hostileGuards : len(b)-hostileGuards]
		if p.Short && w.rng.IntN(20) == 0 {
			room = room[:w.rng.IntN(p.MTU)]
			e.host.short++
		}
		id := e.host.nextID
		e.host.nextID++
		wr := qp.RecvWR{ID: id, Local: room}
		if w.rng.IntN(4) == 0 {
			wr.Local, wr.Scatter = nil, w.split(room, 1+w.rng.IntN(3))
		}
		var err error
		if e.shared() {
			err = e.host.srq.PostRecv(&wr)
		} else {
			err = e.q.PostRecv(&wr)
		}
		if errors.Is(err, qp.ErrQueueFull) && !e.shared() {
			// Completed receives hold their places until they are polled.
			w.free = append(w.free, b)
			return
		}
		if err != nil {
			w.fail("%v: PostRecv: %v", e, err)
			return
		}
		w.logf("%v recv %#x of %d bytes", e, id, len(room))
		if e.shared() {
			e.host.recvs[id] = b
		} else {
			e.recvs[id] = b
			e.order = append(e.order, id)
		}
		have++
	}
}

func (e *hostileEnd) postSends() {
	w := e.w
	for len(e.work) > 0 && e.state == hostileUp {
		if e.postAt > w.now {
			e.wake(e.postAt)
			return
		}
		if e.peer.state != hostileUp {
			return // the application knows when both are connected
		}
		wk := &e.work[0]
		if e.gone || e.peer.gone || e.q.State() == qp.Error {
			// A few more, which are flushed or fail.
			if e.posted > 0 && w.rng.IntN(4) != 0 {
				return
			}
		}
		s, commit := e.prepare(wk)
		err := e.q.PostSend(w.time(), &s.wr)
		if errors.Is(err, qp.ErrQueueFull) {
			return
		}
		if err != nil {
			w.fail("%v: PostSend %v: %v", e, wk.Op, err)
			return
		}
		commit()
		if wk.Flags&qp.Inline != 0 {
			clear(s.local[:wk.Len]) // rule RQ-12: the buffer is the caller's again
		}
		w.logf("%v post %d %v %d bytes at %d, rkey %#x, flags %b", e, s.n, s.wr.Op, wk.Len, wk.Off, s.wr.RKey, wk.Flags)
		w.mix(1, uint64(w.now), uint64(s.n))
		if wk.Flags&qp.Fence != 0 {
			e.fences[s.n] = true
		}
		e.sends = append(e.sends, s)
		e.posted++
		e.nextID++
		e.work = e.work[1:]
		e.postAt = w.now + wk.Wait
	}
}

var (
	hostileLong = flag.Duration("long", 0, "run hostile networks for this long")
	hostileSeed = flag.Uint64("hostile", 0, "run and print only the hostile network of this seed")
)

// hostileNetworks is how many seeds a plain go test runs.
const hostileNetworks = 5000

// runHostile runs a plan, and when it fails runs it again for its trace.
func runHostile(t testing.TB, p *hostilePlan) *hostileWorld {
	w := newHostileWorld(p, false)
	err := w.run()
	if err == nil {
		return w
	}
	again := newHostileWorld(p, true)
	_ = again.run()
	script := p.String() + again.trace.String()
	file := filepath.Join(os.TempDir(), "hostile-network.txt")
	_ = os.WriteFile(file, []byte(script), 0o644)
	if len(script) > 20000 {
		script = p.String() + "...\n" + script[len(script)-15000:]
	}
	t.Logf("%s\nthe whole is in %s", script, file)
	return w
}

func seedPlan(seed uint64) *hostilePlan { return makePlan(randPicker(seed), seed) }

// TestHostileNetworks runs random work over random links. Rules EE-1, EE-2, EE-3,
// EE-5; and RQ-09, RQ-12, RQ-16, RQ-27, RQ-33 on the way.
func TestHostileNetworks(t *testing.T) {
	if *hostileSeed != 0 {
		w := newHostileWorld(seedPlan(*hostileSeed), true)
		err := w.run()
		t.Logf("%v%v%v", w.plan, w.trace, err)
		if err != nil {
			t.FailNow()
		}
		return
	}
	var packets, events, failed, resets int
	n := hostileNetworks
	if testing.Short() {
		n = 200
	}
	start := time.Now()
	for seed := uint64(1); int(seed) <= n || time.Since(start) < *hostileLong; seed++ {
		w := runHostile(t, seedPlan(seed))
		if w.err != nil {
			t.Fatalf("%v\nrun only this one: go test ./qp -run TestHostileNetworks -v -hostile=%d", w.err, seed)
		}
		packets, events, failed, resets = packets+w.packets, events+w.events, failed+w.failed, resets+w.resets
	}
	t.Logf("%d packets, %d events, %d connections down, %d of them up again", packets, events, failed, resets)
}

// TestHostileRapid is the same with plans that shrink.
func TestHostileRapid(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		p := makePlan(rapidPicker(rt), seed)
		w := newHostileWorld(p, false)
		if err := w.run(); err != nil {
			again := newHostileWorld(p, true)
			_ = again.run()
			rt.Fatalf("%v\n%v%v", err, p, again.trace)
		}
	})
}

// Rule EE-4: the same seed gives the same trace.
func TestHostileSameTrace(t *testing.T) {
	hashes := map[uint64]bool{}
	for seed := uint64(1); seed <= 100; seed++ {
		a, b := newHostileWorld(seedPlan(seed), true), newHostileWorld(seedPlan(seed), true)
		_, _ = a.run(), b.run()
		if a.hash != b.hash || a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d: two runs differ", seed)
		}
		hashes[a.hash] = true
	}
	if len(hashes) < 95 {
		t.Fatalf("%d different traces of 100 seeds", len(hashes))
	}
}
