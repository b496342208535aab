package qp

import (
	"encoding/binary"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// HandlePacket handles a response of the peer. P_Key, QP number and service are checked
// first. The payload is copied to the memory of the work request; nothing of p is kept.
func (r *Requester) HandlePacket(now time.Time, p *bth.Packet) Verdict {
	if r.conn == nil || p == nil {
		return Invalid
	}
	t := r.clock.At(now)
	r.counters.RxPackets++
	r.why = WhyNone
	v := r.admit(p)
	switch {
	case v != Accepted:
	case p.Opcode.Class() != bth.Response:
		r.counters.WrongSide++
		v = r.drop(WrongSide, WhyWrongSide)
	default:
		v = r.handle(t, p)
	}
	r.invariants()
	r.tell(v, p, uint32(r.win.una.PSN()))
	return v
}

// handle handles a response that was admitted.
func (r *Requester) handle(t int64, p *bth.Packet) Verdict {
	if r.mode == idle || r.mode == broken {
		r.counters.Inactive++
		return r.drop(Inactive, WhyState)
	}
	n := r.win.una.Near(p.PSN)
	if n >= r.win.sent {
		r.counters.UnexpectedAck++ // rule RQ-22
		return r.drop(Unsent, WhyNeverSent)
	}
	if p.Opcode.Operation() == bth.Acknowledge {
		return r.handleAck(t, n, p.AETH)
	}
	return r.handleResponse(t, n, p)
}

// handleAck handles an Acknowledge packet, positive or negative.
func (r *Requester) handleAck(t int64, n psn.Seq, a aeth.Header) Verdict {
	kind, code := a.Syndrome.Kind(), a.Syndrome.Nak()
	if kind == aeth.Reserved || kind == aeth.Nak && code > aeth.NakRemoteOperationalError {
		r.counters.ReservedSyndrome++ // rule RQ-30
		return r.drop(Reserved, WhySyndrome)
	}
	if kind == aeth.Ack {
		r.credit.take(a, n < r.win.una)
	}
	if n < r.win.una {
		return r.drop(Stale, WhyOld) // rules RQ-21, RQ-34
	}
	if kind == aeth.Ack {
		n++
	}
	selected := psn.Seq(0)
	if r.sel != nil {
		selected = r.selected(n, a)
	}
	if v := r.acknowledge(t, n); v != Accepted {
		return v
	}
	if kind == aeth.Ack {
		return Accepted
	}

	r.why = WhyNak
	w := r.sq.at(r.sq.done) // it holds n: all before n is complete
	if kind == aeth.RNR {
		return r.handleRNR(t, w, a.Syndrome.RNRTimer())
	}
	switch code {
	case aeth.NakPSNSequenceError:
		if r.rnr.until != 0 {
			return r.drop(Stale, WhyRNR) // rule RQ-28
		}
		if r.sel != nil {
			return r.handleSelected(selected)
		}
		if r.retry.recovering {
			return r.drop(Stale, WhyRecovering) // rule RQ-34
		}
		r.counters.PacketSeqErr++
		if r.rnr.alone {
			// NAKs for the packets after the refused one may have been in flight when the
			// wait ended: no retry is used up (rule RQ-28).
			r.retry.recovering = true
			r.again()
			return Retried
		}
		r.goBack()
		return r.retryVerdict()
	case aeth.NakInvalidRequest:
		r.counters.ReqRemoteInvalidRequest++
		r.fail(w, RemoteInvalidReqErr)
	case aeth.NakRemoteAccessError:
		r.counters.ReqRemoteAccessErrors++
		r.fail(w, RemoteAccessErr)
	default:
		r.counters.ReqRemoteOpErr++
		r.fail(w, RemoteOpErr)
	}
	return Failed
}

func (r *Requester) retryVerdict() Verdict {
	if r.mode == broken {
		return Failed
	}
	return Retried
}

// handleRNR starts the wait of rule RQ-28.
func (r *Requester) handleRNR(t int64, w *wqe, code aeth.RNRTimer) Verdict {
	r.why = WhyRNR
	if r.rnr.until != 0 {
		return Stale // the same RNR NAK once more
	}
	r.counters.RNRNakReceived++
	if r.attr.RNRRetry != 7 {
		if r.rnr.left == 0 {
			r.counters.RNRNakRetryErr++
			r.fail(w, RNRRetryExcErr)
			return Failed
		}
		r.rnr.left--
	}
	r.rnr.until = t + int64(code.Duration())
	r.retry.recovering = false // what was refused has arrived
	r.rnr.alone = true
	r.retry.left = r.attr.RetryCnt // the peer is alive
	if r.sel != nil {              // the peer has dropped the packets that it held after it (rule SR-4)
		clear(r.sel.ring)
		r.sel.high, r.sel.taken = r.win.sent, r.win.una
	}
	r.again()
	return Retried
}

// acknowledge completes everything before PSN n, which a response at n shows to be
// executed. It stops at a request that still lacks its own response: that response is lost,
// the requester goes back to it, and acknowledge returns a verdict other than Accepted
// (rules RQ-20, RQ-24).
func (r *Requester) acknowledge(t int64, n psn.Seq) Verdict {
	for r.sq.done != r.sq.started {
		w := r.sq.at(r.sq.done)
		if w.wr.Op.hasResponse() {
			if due := w.first + psn.Seq(w.got); due < n {
				r.progress(t, due)
				return r.lost(n)
			}
			break
		}
		if w.end() > n {
			break
		}
		r.complete(w, Success)
	}
	r.progress(t, n)
	r.runLocal()
	return Accepted
}

// lost goes back for a response that was lost, as a later one at PSN n shows.
func (r *Requester) lost(n psn.Seq) Verdict {
	if r.sel != nil {
		r.sel.lose(n)
		r.sel.taken = max(r.sel.taken, n)
	}
	if r.retry.recovering {
		if r.sel != nil {
			r.expose()
		}
		return r.drop(Stale, WhyRecovering) // rule RQ-34
	}
	r.why = WhyLost
	r.counters.ImpliedNakSeqErr++
	r.goBack()
	return r.retryVerdict()
}

// progress moves the oldest unacknowledged PSN to n.
func (r *Requester) progress(t int64, n psn.Seq) {
	if n <= r.win.una {
		return
	}
	r.win.una = n
	r.retry.recovering, r.rnr.alone = false, false
	r.retry.left, r.rnr.left = r.attr.RetryCnt, r.attr.RNRRetry
	if r.win.next < n {
		r.rewind()
	}
	if r.rnr.until != 0 {
		return // the timer stays off
	}
	r.startTimer(t)
}

// rewind makes the oldest unacknowledged packet the next to send.
func (r *Requester) rewind() {
	r.asks.since = 0
	r.credit.beyond = r.win.una // what is retransmitted waits for credits as it did the first time
	if r.sel != nil {
		r.resume(r.win.una)
		return
	}
	r.win.next, r.sq.cur = r.win.una, r.sq.done
}

// goBack uses up a retry and retransmits from the oldest unacknowledged packet on (rules
// RQ-23, RQ-24, RQ-27, RQ-31).
func (r *Requester) goBack() {
	if r.spend() {
		r.retry.recovering = true
		r.again()
	}
}

// spend uses up a retry, or fails the oldest request where none is left (rule RQ-32).
func (r *Requester) spend() bool {
	if r.retry.left == 0 && !(r.retry.forever && r.attr.RetryCnt == 7) {
		r.counters.RetryExceededErr++
		r.fail(r.sq.at(r.sq.done), RetryExcErr)
		return false
	}
	if r.retry.left != 0 {
		r.retry.left--
	}
	return true
}

// again retransmits from the oldest unacknowledged packet on, and asks for acknowledgements
// again.
func (r *Requester) again() {
	r.retry.due = 0
	if r.sel != nil {
		r.sel.restart(&r.win) // an acknowledgement of what is not retransmitted was asked for already
	} else {
		r.win.asked = r.win.una
	}
	r.rewind()
}

// handleResponse handles a READ response, an atomic acknowledgement, or the empty READ
// response to FLUSH and ATOMIC WRITE, at PSN n.
func (r *Requester) handleResponse(t int64, n psn.Seq, p *bth.Packet) Verdict {
	if p.Opcode.Ext()&bth.HasAETH != 0 {
		if p.AETH.Syndrome.Kind() != aeth.Ack {
			r.counters.ReservedSyndrome++
			return r.drop(Reserved, WhySyndrome)
		}
		r.credit.take(p.AETH, n < r.win.una)
	}
	if n < r.win.una {
		return r.drop(Stale, WhyOld) // rule RQ-26
	}
	if v := r.acknowledge(t, n); v != Accepted {
		// The missing response may be an earlier part of the same READ (rule RQ-27). This
		// packet is dropped, and the peer must send it again as well.
		if r.sel != nil && r.mode != broken {
			r.sel.lose(n + 1)
			r.expose()
		}
		return v
	}
	w := r.sq.at(r.sq.done)
	if r.rnr.until != 0 {
		// While the peer has refused n, nothing from n on is outstanding.
		return r.drop(Stale, WhyRNR)
	}
	if !r.fits(w, n, p) {
		r.counters.BadRespErr++ // rule RQ-25
		r.fail(w, BadRespErr)
		return r.drop(Refused, WhyResponse)
	}
	placed := true
	switch w.wr.Op {
	case OpRead:
		buf := r.outgoing(&w.wr)
		placed = buf.put(uint64(w.got)*uint64(r.mtu()), p.Payload)
	case OpCmpSwap, OpFetchAdd:
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], p.AtomicAckETH.Orig)
		buf := r.outgoing(&w.wr)
		placed = buf.put(0, v[:])
	}
	if !placed {
		r.fail(w, LocalProtErr)
		return r.drop(Refused, WhyLocal)
	}
	w.got++
	if w.got == w.n {
		r.complete(w, Success)
	}
	r.progress(t, n+1)
	if r.sel != nil && w.got == w.n {
		return r.acknowledge(t, min(r.sel.taken, r.responded()))
	}
	r.runLocal()
	return Accepted
}

// fits reports whether p may be the response to entry w at PSN n, where its next one
// is due: opcode by position, and length.
func (r *Requester) fits(w *wqe, n psn.Seq, p *bth.Packet) bool {
	op := p.Opcode.Operation()
	switch w.wr.Op {
	case OpCmpSwap, OpFetchAdd:
		return op == bth.AtomicAcknowledge
	case OpFlush, OpAtomicWrite:
		return op == bth.ReadResponseOnly && len(p.Payload) == 0
	case OpRead:
	default:
		return false
	}
	last := w.got+1 == w.n
	size := r.mtu()
	if last {
		size = w.length - w.got*r.mtu()
	}
	if uint32(len(p.Payload)) != size {
		return false
	}
	// The response to a READ that was resumed may begin with First or Only,
	// or, from the Linux driver, go on with Middle or Last.
	begins := w.got == 0 || w.again
	goesOn := w.got != 0
	switch op {
	case bth.ReadResponseFirst:
		return begins && !last
	case bth.ReadResponseMiddle:
		return goesOn && !last
	case bth.ReadResponseLast:
		return goesOn && last
	case bth.ReadResponseOnly:
		return begins && last
	}
	return false
}

// complete completes w, the entry at done, with status s.
func (r *Requester) complete(w *wqe, s Status) {
	w.status = s
	r.sq.done++
	if w.wr.Op.hasResponse() {
		r.reads.out--
	}
}

// fail completes w, the entry at done, with status s, flushes the others and goes to Error
// (rule RQ-33).
func (r *Requester) fail(w *wqe, s Status) {
	w.status = s
	r.sq.done++
	r.flush()
}

// flush goes to Error: what is not complete completes flushed.
func (r *Requester) flush() {
	for ; r.sq.done != r.sq.tail; r.sq.done++ {
		r.sq.at(r.sq.done).status = WRFlushErr
	}
	r.sq.cur, r.sq.started = r.sq.tail, r.sq.tail
	r.reads.out = 0
	r.retry.due, r.rnr.until = 0, 0
	r.mode = broken
}
