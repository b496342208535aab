package qp

import (
	"encoding/binary"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// HandlePacket takes an answer of the peer. P_Key, QP number and service are
// checked first. The packet's payload is copied where the caller's memory wants
// it; nothing of p is kept.
func (r *Requester) HandlePacket(now time.Time, p *bth.Packet) Verdict {
	t := r.clock.At(now)
	r.c.RxPackets++
	if v := admit(p, r.typ, r.qpn, r.pkey); v != Accepted {
		r.c.Invalid++
		return v
	}
	return r.handle(t, p)
}

// admit makes the checks of rule RS-01 that come before everything else.
func admit(p *bth.Packet, t Type, qpn uint32, pkey uint16) Verdict {
	if p.TVer != 0 || p.DestQP != qpn && (t != UD || p.DestQP != MulticastQPN) || p.Opcode.Service() != service(t) || !p.Opcode.Known() ||
		!bth.PKeyMatch(p.PKey, pkey) {
		return Invalid
	}
	return Accepted
}

func (r *Requester) handle(t int64, p *bth.Packet) Verdict {
	if p.Opcode.Class() != bth.Response {
		r.c.WrongSide++
		return WrongSide
	}
	if r.mode == idle || r.mode == broken {
		r.c.Inactive++
		return Inactive
	}
	n := psn.Unwrap(r.una, p.PSN)
	if n >= r.sent {
		r.c.UnexpectedAck++ // rule RQ-22
		return Unsent
	}
	if p.Opcode.Operation() == bth.Acknowledge {
		return r.handleAck(t, n, p.AETH)
	}
	return r.handleAnswer(t, n, p)
}

// handleAck takes an Acknowledge, positive or negative.
func (r *Requester) handleAck(t int64, n uint64, a aeth.Header) Verdict {
	kind, code := a.Syndrome.Kind(), a.Syndrome.Nak()
	if kind == aeth.Reserved || kind == aeth.Nak && code > aeth.NakRemoteOperationalError {
		r.c.ReservedSyndrome++ // rule RQ-30
		return Reserved
	}
	if kind == aeth.Ack {
		r.credit(n, a)
	}
	if n < r.una {
		return Stale // rules RQ-21, RQ-34
	}
	if kind == aeth.Ack {
		n++
	}
	if v := r.acknowledge(t, n); v != Accepted {
		return v
	}
	if kind == aeth.Ack {
		return Accepted
	}

	w := r.at(r.done) // it holds n: all before n is complete
	if kind == aeth.RNR {
		return r.handleRNR(t, w, a.Syndrome.RNRTimer())
	}
	switch code {
	case aeth.NakPSNSequenceError:
		if r.rnrUntil != 0 {
			return Stale // rule RQ-28
		}
		if r.recovering {
			return Stale // rule RQ-34
		}
		r.c.PacketSeqErr++
		if r.alone {
			// A NAK for each packet behind the refused one may have been under way
			// when the wait ended: no retry is spent (rule RQ-28).
			r.recovering = true
			r.again()
			return Retried
		}
		r.goBack()
		return r.retryVerdict()
	case aeth.NakInvalidRequest:
		r.c.ReqRemoteInvalidRequest++
		r.fail(w, RemoteInvalidReqErr)
	case aeth.NakRemoteAccessError:
		r.c.ReqRemoteAccessErrors++
		r.fail(w, RemoteAccessErr)
	default:
		r.c.ReqRemoteOpErr++
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

// handleRNR begins the wait of rule RQ-28.
func (r *Requester) handleRNR(t int64, w *wqe, code aeth.RNRTimer) Verdict {
	if r.rnrUntil != 0 {
		return Stale // the same refusal once more
	}
	r.c.RNRNakReceived++
	if r.rnrRetry != 7 {
		if r.rnrRetries == 0 {
			r.c.RNRNakRetryErr++
			r.fail(w, RNRRetryExcErr)
			return Failed
		}
		r.rnrRetries--
	}
	r.rnrUntil = t + int64(code.Duration())
	r.recovering = false // what was refused has arrived
	r.alone = true
	r.retries = r.retryCnt // the peer lives
	r.again()
	return Retried
}

// credit takes the credits of an acknowledgement at count n (rule RQ-15). Message
// numbers are compared around their 24-bit circle.
func (r *Requester) credit(n uint64, a aeth.Header) {
	credits, ok := a.Syndrome.Credit().Count()
	if !ok {
		r.credited = false
		return
	}
	if !r.credited && n < r.una {
		return // an old one only raises the limit (rule RQ-21)
	}
	// The newest message at the peer, as a 32-bit number near our own count.
	msn := r.lastSSN + uint32(psn.PSN(a.MSN).Diff(psn.PSN(r.lastSSN)))
	limit := msn + uint32(credits)
	if !r.credited || int32(limit-r.limit) > 0 {
		r.credited, r.limit = true, limit
	}
}

// acknowledge completes what an answer at count n shows to be done: everything
// before n. A request with an answer of its own that still lacks it ends that:
// its answer is lost, the requester goes back to it, and acknowledge returns
// another verdict than Accepted (rules RQ-20, RQ-24).
func (r *Requester) acknowledge(t int64, n uint64) Verdict {
	for r.done != r.started {
		w := r.at(r.done)
		if w.wr.Op.answered() {
			if w.first+uint64(w.got) < n {
				r.progress(t, w.first+uint64(w.got))
				return r.lost()
			}
			break
		}
		if w.first+uint64(w.n) > n {
			break
		}
		r.complete(w, Success)
	}
	r.progress(t, n)
	return Accepted
}

// lost goes back for an answer that a later one shows to be lost.
func (r *Requester) lost() Verdict {
	if r.recovering {
		return Stale // rule RQ-34
	}
	r.c.ImpliedNakSeqErr++
	r.goBack()
	return r.retryVerdict()
}

// progress moves the oldest unacknowledged PSN to n.
func (r *Requester) progress(t int64, n uint64) {
	if n <= r.una {
		return
	}
	r.una = n
	r.recovering, r.alone = false, false
	r.retries, r.rnrRetries = r.retryCnt, r.rnrRetry
	if r.next < n {
		r.rewind()
	}
	if r.rnrUntil != 0 {
		return // the timer stands still
	}
	r.ackDue = 0
	if r.una < r.asked && r.timeout != 0 {
		r.ackDue = t + r.timeout
	}
}

// rewind makes the oldest unacknowledged packet the next to send.
func (r *Requester) rewind() {
	r.next, r.cur = r.una, r.done
	r.sinceAckReq = 0
	r.limitedPSN = r.una // what is sent again waits as it did the first time
}

// goBack spends a retry and sends again from the oldest unacknowledged packet
// (rules RQ-23, RQ-24, RQ-27, RQ-31).
func (r *Requester) goBack() {
	if r.retries == 0 && !(r.retryForever && r.retryCnt == 7) {
		r.c.RetryExceededErr++
		r.fail(r.at(r.done), RetryExcErr)
		return
	}
	if r.retries != 0 {
		r.retries--
	}
	r.recovering = true
	r.again()
}

// again sends from the oldest unacknowledged packet, and asks anew.
func (r *Requester) again() {
	r.ackDue = 0
	r.asked = r.una
	r.rewind()
}

// handleAnswer takes a READ response, an atomic acknowledgement, or the empty
// READ response that answers FLUSH and ATOMIC WRITE, at count n.
func (r *Requester) handleAnswer(t int64, n uint64, p *bth.Packet) Verdict {
	if p.Opcode.Ext()&bth.HasAETH != 0 {
		if p.AETH.Syndrome.Kind() != aeth.Ack {
			r.c.ReservedSyndrome++
			return Reserved
		}
		r.credit(n, p.AETH)
	}
	if n < r.una {
		return Stale // rule RQ-26
	}
	if v := r.acknowledge(t, n); v != Accepted {
		// What is missed may be an earlier part of the same READ (rule RQ-27).
		return v
	}
	w := r.at(r.done)
	if r.rnrUntil != 0 {
		// Nothing from n on is under way while the peer has refused n.
		return Stale
	}
	if !r.fits(w, n, p) {
		r.c.BadRespErr++ // rule RQ-25
		r.fail(w, BadRespErr)
		return Refused
	}
	switch w.wr.Op {
	case OpRead:
		span{w.wr.Local, w.wr.Gather}.put(uint64(w.got)*uint64(r.mtu), p.Payload)
	case OpCmpSwap, OpFetchAdd:
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], p.AtomicAckETH.Orig)
		span{w.wr.Local, w.wr.Gather}.put(0, v[:])
	}
	w.got++
	if w.got == w.n {
		r.complete(w, Success)
	}
	r.progress(t, n+1)
	return Accepted
}

// fits reports whether p may answer the entry w at count n, where its next
// answer is due: opcode by position, and length.
func (r *Requester) fits(w *wqe, n uint64, p *bth.Packet) bool {
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
	size := r.mtu
	if last {
		size = w.length - w.got*r.mtu
	}
	if uint32(len(p.Payload)) != size {
		return false
	}
	// The answer to a READ that was taken up again may begin with First or Only,
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

// complete ends the entry at done.
func (r *Requester) complete(w *wqe, s Status) {
	w.status = s
	r.done++
	if w.wr.Op.answered() {
		r.rdOut--
	}
}

// fail ends the entry at done with s, flushes the others and goes to Error
// (rule RQ-33).
func (r *Requester) fail(w *wqe, s Status) {
	w.status = s
	r.done++
	r.flush()
}

// flush goes to Error: what is not complete completes flushed.
func (r *Requester) flush() {
	for ; r.done != r.tail; r.done++ {
		r.at(r.done).status = WRFlushErr
	}
	r.cur, r.started = r.tail, r.tail
	r.rdOut = 0
	r.ackDue, r.rnrUntil = 0, 0
	r.mode = broken
}
