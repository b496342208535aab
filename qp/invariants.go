//go:build invariants

package qp

import (
	"fmt"

	"github.com/roce-go/roce/psn"
)

// The invariants of the parts, as their types state them. With the build tag
// invariants they are checked after every call; without it the checks are empty.

func must(ok bool, format string, args ...any) {
	if !ok {
		panic("qp: invariant broken: " + fmt.Sprintf(format, args...))
	}
}

func (q *QP) invariants() {
	if q.clock == nil {
		return
	}
	q.req.invariants()
	q.resp.invariants()
	must(q.req.conn == &q.conn && q.resp.conn == &q.conn, "requester and responder share the state of the QP")
	broken := q.req.mode == broken || q.resp.mode == broken
	must(broken == (q.attr.State == Error) || q.typ == UD || q.typ == UC, "state %v, modes %d and %d", q.attr.State, q.req.mode, q.resp.mode)
	must(q.turns.left <= max(q.turns.weight[0], q.turns.weight[1]), "turns %+v", q.turns)
}

func (r *Requester) invariants() {
	if r.conn == nil {
		return
	}
	r.sq.invariants()
	r.win.invariants()
	must(r.asks.since <= r.asks.every, "ackReq %+v", r.asks)
	must(r.retry.left <= r.attr.RetryCnt || r.mode == idle, "retry %+v of %d", r.retry, r.attr.RetryCnt)
	must(r.rnr.left <= r.attr.RNRRetry || r.mode == idle, "rnrWait %+v of %d", r.rnr, r.attr.RNRRetry)
	if r.retry.due != 0 {
		must(r.attr.Timeout != 0 && r.rnr.until == 0 && r.win.asked > r.win.una, "the timer runs: %+v %+v", r.retry, r.win)
	}
	if r.rnr.until != 0 {
		must(r.win.next == r.win.una, "RNR wait with %+v", r.win)
	}
	out := uint32(0)
	for i := r.sq.done; i != r.sq.started; i++ {
		if r.sq.at(i).wr.Op.hasResponse() {
			out++
		}
	}
	must(out == r.reads.out, "%d outstanding requests with responses, counted %d", out, r.reads.out)
	if s := r.sel; s != nil {
		must(max(s.high, s.again, s.end, s.taken) <= r.win.sent, "scoreboard %d %d %d %d of %d", s.high, s.again, s.end, s.taken, r.win.sent)
	}
	must(r.credit.beyond <= r.win.sent, "credits %+v with %+v", r.credit, r.win)
	if r.typ != UC && r.typ != UD && r.sq.cur != r.sq.started && r.mode != broken && r.mode != idle {
		w := r.sq.at(r.sq.cur)
		must(r.win.next >= w.first && r.win.next < w.end(), "next %d is not of the entry %d..%d", r.win.next, w.first, w.end())
	}
}

func (q *sendQueue) invariants() {
	must(q.head <= q.done && q.done <= q.cur && q.cur <= q.started && q.started <= q.tail && q.tail-q.head <= uint64(q.max), "sendQueue %d %d %d %d %d of %d",
		q.head, q.done, q.cur, q.started, q.tail, q.max)
	must(q.local <= q.tail, "sendQueue: local %d of %d", q.local, q.tail)
	for i := max(q.done, q.local); i != q.tail; i++ {
		must(!q.at(i).wr.Op.local() && q.at(i).status == Success, "sendQueue: entry %d is local or has failed, and local is %d", i, q.local)
	}
}

func (w *window) invariants() {
	must(w.una <= w.next && w.next <= w.sent && w.asked <= w.sent && w.sent-w.una < psn.Half, "window %+v", *w)
}

func (r *Responder) invariants() {
	if r.conn == nil {
		return
	}
	r.rq.invariants()
	r.res.invariants()
	must(!r.ack.hasNak || !r.ack.hasAck || r.ack.seq < r.epsn, "owed %+v at %d", r.ack, r.epsn)
	must(r.msn <= psn.Mask, "MSN %#x", r.msn)
	if r.msg.kind == writeMessage {
		must(r.msg.got <= r.msg.want && r.msg.want <= MaxMessage, "inbound %+v", r.msg)
	}
}

func (q *recvQueue) invariants() {
	must(q.compTail-q.compHead <= uint32(len(q.comps)), "%d completions of %d", q.compTail-q.compHead, len(q.comps))
	must(q.srq == nil && q.xrc == nil || q.ring.len() == 0, "a SRQ and receives of its own")
}

func (q *resources) invariants() {
	pending := uint32(0)
	for i := range min(q.tail, uint64(len(q.ring))) {
		at := q.tail - 1 - i
		r := q.at(at)
		must(r.at <= r.end, "resource %+v", *r)
		if r.at != r.end {
			pending++
			must(at >= q.first, "resource %d has a pending response, first is %d", at, q.first)
		}
	}
	must(pending == q.pending, "%d pending responses, counted %d", pending, q.pending)
}
