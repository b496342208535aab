package qp_test

import (
	"bytes"

	"github.com/roce-go/roce/qp"
)

// completions takes all completions and holds them against what was posted (rules
// EE-1, EE-2).
func (e *hostileEnd) completions() {
	var c qp.Completion
	for e.w.err == nil && e.q.NextCompletion(&c) {
		e.w.logf("%v done %#x %v %v %d bytes", e, c.ID, c.Op, c.Status, c.ByteLen)
		e.lazy = 0
		e.w.mix(6, c.ID, uint64(c.Status), uint64(c.ByteLen))
		if c.QPN != e.q.Num() {
			e.w.fail("%v: completion of QP %#x", e, c.QPN)
		}
		if c.Op == qp.OpRecv || c.Op == qp.OpRecvWrite {
			e.received(&c)
		} else {
			e.completed(&c)
		}
	}
}

// completed takes the completion of a request.
func (e *hostileEnd) completed(c *qp.Completion) {
	w := e.w
	for len(e.sends) > 0 && e.sends[0].wr.ID != c.ID {
		// Those between completed silently.
		s := e.sends[0]
		if s.signal || e.failed {
			w.fail("%v: request %d skipped or out of order (rules RQ-09, EE-1)", e, s.n)
			return
		}
		e.succeed()
	}
	if len(e.sends) == 0 {
		w.fail("%v: completion %#x of nothing, or for the second time (rule EE-1)", e, c.ID)
		return
	}
	s := e.sends[0]
	if c.Op != s.wr.Op {
		w.fail("%v: request %d is a %v, completed as %v", e, s.n, s.wr.Op, c.Op)
	}
	if c.Status == qp.Success {
		if e.failed {
			w.fail("%v: request %d succeeded after one that failed (rule RQ-33)", e, s.n)
		}
		if !s.signal {
			w.fail("%v: request %d succeeded loudly", e, s.n)
		}
		if n := uint32(len(s.local) - 8); c.ByteLen != 0 && c.ByteLen != n {
			w.fail("%v: request %d: %d bytes, want %d", e, s.n, c.ByteLen, n)
		}
		e.succeed()
		return
	}
	switch {
	case !w.plan.mayFail() && !e.gone && !e.peer.gone:
		w.fail("%v: request %d: %v, for no reason", e, s.n, c.Status)
	case e.failed && c.Status != qp.WRFlushErr:
		w.fail("%v: request %d: %v after the first error (rule RQ-33)", e, s.n, c.Status)
	}
	switch c.Status {
	case qp.WRFlushErr:
	case qp.RetryExcErr:
		if w.plan.Forever {
			w.fail("%v: request %d: %v with retries without end", e, s.n, c.Status)
		}
	case qp.RNRRetryExcErr:
		if w.plan.RNRRetry == 7 {
			w.fail("%v: request %d: %v with rnr_retry 7", e, s.n, c.Status)
		}
	case qp.RemoteAccessErr:
		if e.peer.rkey != 0 {
			w.fail("%v: request %d: %v to a region that is there", e, s.n, c.Status)
		}
	case qp.RemoteInvalidReqErr:
		if e.peer.host.short == 0 {
			w.fail("%v: request %d: %v, but all receives are long enough", e, s.n, c.Status)
		}
	default:
		w.fail("%v: request %d: %v", e, s.n, c.Status)
	}
	e.failed = true
	e.sends = e.sends[1:]
}

// succeed ends the oldest request.
func (e *hostileEnd) succeed() {
	s := e.sends[0]
	e.checkResult(s)
	e.done = s.n + 1
	e.sends = e.sends[1:]
}

// settle ends the requests that completed silently.
func (e *hostileEnd) settle() {
	for len(e.sends) > 0 && !e.sends[0].signal && !e.failed && e.w.err == nil {
		e.succeed()
	}
}

// received takes the completion of a receive.
func (e *hostileEnd) received(c *qp.Completion) {
	w := e.w
	recvs := e.recvs
	if e.shared() {
		recvs = e.host.recvs
	}
	b := recvs[c.ID]
	if b == nil {
		w.fail("%v: receive %#x completed twice, or was never posted", e, c.ID)
		return
	}
	delete(recvs, c.ID)
	defer func() { w.free = append(w.free, b) }()
	if !e.shared() {
		if e.order[0] != c.ID {
			w.fail("%v: receive %#x completed before %#x", e, c.ID, e.order[0])
		}
		e.order = e.order[1:]
	}
	if c.Status != qp.Success {
		if c.Status == qp.LocalLengthErr && e.host.short == 0 || c.Status != qp.LocalLengthErr && c.Status != qp.WRFlushErr && c.Status != qp.LocalAccessErr {
			w.fail("%v: receive %#x: %v", e, c.ID, c.Status)
		}
		if !e.gone && !e.peer.gone && !w.plan.mayFail() {
			w.fail("%v: receive %#x: %v, for no reason", e, c.ID, c.Status)
		}
		e.badRecv = true
		return
	}
	if e.badRecv || len(e.expect) == 0 {
		w.fail("%v: received what nobody sent (rule EE-2)", e)
		return
	}
	m := &e.expect[0]
	if c.Op != m.op || int(c.ByteLen) != m.n || c.HasImm != m.hasImm || c.HasImm && c.Imm != m.imm ||
		c.HasInv != m.hasInv || c.HasInv && c.InvRKey != m.inv || c.Solicited != m.solicited {
		w.fail("%v: received %+v, sent was %+v (rule EE-2)", e, *c, *m)
	}
	if !bytes.Equal(b[hostileGuards:][:len(m.data)], m.data) {
		w.fail("%v: received other data than was sent (rule EE-2)", e)
	}
	for _, v := range append(b[:hostileGuards:hostileGuards], b[hostileGuards+len(m.data):]...) {
		if v != hostileGuard {
			w.fail("%v: receive %#x written beyond the message (rule EE-5)", e, c.ID)
			break
		}
	}
	e.expect = e.expect[1:]
	if c.HasInv && e.rkey != 0 {
		e.window = c.InvRKey
		e.bind()
	}
}
