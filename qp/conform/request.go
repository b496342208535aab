package conform

import (
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// A PSN this far from the expected one belongs to a new connection with the same QP number.
const restart = 1 << 20

// request judges a request of RC, XRC or UC.
func (w *Watcher) request(s *stream, payload int) {
	p := &w.f.Packet
	x := w.exchangeOf(s)
	unreliable := p.Opcode.Service() == bth.UC
	u := base | uint64(p.PSN)
	if x.started {
		u = psn.Unwrap(x.next, p.PSN)
		if d := int64(u) - int64(x.next); d > restart || d < -restart || w.reused(s, x, u) {
			w.report(s, Restarted, uint64(psn.Wrap(x.next)), 0, 0)
			w.settle(x)
			w.forget(s)
			u = base | uint64(p.PSN)
			s.service, s.serviceKnown = p.Opcode, true
		}
	}
	if !x.started {
		x.started, x.first, x.next, x.acked, x.begun = true, u, u, u, w.now
		x.certain = x.certain || w.cfg.Complete
		x.voidTo = 0
		if x.certain || w.flows.evicted == 0 && w.now-max(w.clock.begun, s.since) > 100*int64(w.cfg.MinTimeout) {
			x.fresh = u // who had sent it before would not have been silent for so long
		}
		if x.certain {
			x.count = messages{known: true, at: u - 1}
		}
	}
	w.alone(s, payload, unreliable)
	if x.certain && u < x.first {
		w.report(s, CMStartingPSN, uint64(psn.Wrap(x.first)), uint64(p.PSN), 0)
		x.restart()
		x.started, x.first, x.next, x.acked = true, u, u, u
	}
	w.resolve(s, x, u)
	w.reconsider(s, x, u)
	w.shorten(s, x, u)
	outstanding := x.next - min(x.acked, x.next)
	if s.peer < 0 {
		outstanding = min(outstanding, 100) // it is not known how much of it is
	}
	x.log.room(outstanding + 12)
	if u >= x.next {
		w.newRequest(s, x, u, payload)
	} else {
		w.oldRequest(s, x, u, payload, unreliable)
	}
	x.last.psn, x.last.at = u, w.now
}

// reused reports whether PSN u is a sign of a new connection with the same QP number:
// everything was responded to, nothing was sent for a second, and this packet differs from
// the one that had the PSN before; or the connection before ended with an error, and this
// packet does not continue it.
func (w *Watcher) reused(s *stream, x *exchange, u uint64) bool {
	p := &w.f.Packet
	dead := s.peer >= 0 && w.flows.all[s.peer].rsp.dead
	if dead {
		// What was in flight at the time of the error may still arrive.
		if u > x.next || u+64 < x.next {
			return true
		}
		if u < x.next && w.differs(x, u) {
			return true
		}
	}
	if x.last.at == 0 || x.acked < x.next || w.now-max(x.last.at, x.answerAt) < int64(time.Second) {
		return false
	}
	if u >= x.next {
		return dead
	}
	if d := x.read(u); d != nil && p.Opcode.Operation() == bth.ReadRequest {
		return d.op != p.Opcode || w.full && d.is(isKnown) && p.RETH.RKey != d.rkey
	}
	return w.differs(x, u)
}

// differs reports whether the current packet differs from the one that had PSN u before.
func (c *current) differs(x *exchange, u uint64) bool {
	p := &c.f.Packet
	e := x.log.at(u)
	return e == nil || e.op != p.Opcode ||
		p.Opcode.Operation() != bth.ReadRequest && c.full && !c.f.Truncated() && e.flags&hasContent != 0 && !c.sameContent(&e.content)
}

// newRequest handles a PSN above all before.
func (w *Watcher) newRequest(s *stream, x *exchange, u uint64, payload int) {
	w.seen.Class = ClassNew
	w.good(s, payload)
	w.goesOn(s, x, u)
	x.back.active, x.back.far.valid, x.overdue.valid = false, false, false
	if x.spanOpen && u > x.next-1 {
		x.endSpan(u)
	}
	skipped := u > x.next
	if skipped {
		s.SequenceError++
		x.signs.gaps++
		x.signs.skipped += u - x.next
		x.missed.add(x.next, u, w.now, false)
		x.last.gap, x.signs.disturbed = w.now, w.now
		w.report(s, SequenceGap, uint64(psn.Wrap(x.next)), u-x.next, 0)
		if u-x.next > 64 {
			x.count.known = false // it may be a new connection
		}
	}
	n := w.enter(s, x, u, payload)
	if !skipped {
		w.wasEarly(s, x, u, u+n)
	} else {
		x.early.n = 0
	}
	x.next = u + n
	if x.spanOpen && s.mtu != 0 {
		x.closeSpan(s.mtu)
	}
}

// goesOn judges that the requester sends a new PSN.
func (w *Watcher) goesOn(s *stream, x *exchange, u uint64) {
	if x.back.active && x.back.next == x.next {
		x.nak.old.valid, x.nak.n = false, 0 // all was retransmitted
	}
	if x.rnr.valid && u == x.next && x.rnr.psn < u {
		// A requester that has received the RNR NAK sends nothing. Packets right after it
		// may have been in flight, and the NAK may have been lost.
		since := w.now - x.rnr.t
		if since > w.flight(x) && since+w.slack(x) < int64(x.wait) && !w.clock.still {
			w.doubt(s, x, NewDuringRNR, uint64(x.wait), uint64(since), x.rnr.frame)
		}
	}
}

// flight is how long after a response requests that were in flight may still be captured:
// half of the current RNR wait, and no more than a tenth of the shortest time-out, which
// has to be far above the round trip.
func (w *Watcher) flight(x *exchange) int64 {
	return max(int64(w.cfg.Reorder), min(int64(x.wait)/2, int64(w.cfg.MinTimeout)/10))
}

// peerOr returns the stream of the other direction, or s itself.
func (s *stream) peerOr(w *Watcher) *stream {
	if s.peer >= 0 {
		return w.flows.all[s.peer]
	}
	return s
}

// enter stores a request that was not seen before, judges it against the one before it, and
// returns how many PSNs it takes.
func (w *Watcher) enter(s *stream, x *exchange, u uint64, payload int) uint64 {
	p := &w.f.Packet
	op := p.Opcode
	n := uint64(1)
	if answered(op) {
		n = w.enterRead(s, x, u)
		x.log.room(min(n, 64))
	}
	var flags entryFlags
	if p.AckReq {
		flags |= asked
	}
	if !op.First() && !op.Middle() {
		flags |= isEnd
		s.MessagesTx++
	}
	// A SEND consumes its receive where it begins, a WRITE with immediate at its
	// end. What comes late is left out, as those behind it were counted without it.
	if u < x.next {
	} else if op.Send() && !op.Middle() && !op.Last() || op.Write() && op.Ext()&bth.HasImmDt != 0 {
		x.took++
	}
	e := x.log.slot(u)
	*e = entry{}
	e.psn, e.first, e.last, e.start, e.frame = u, w.now, w.now, w.now, w.frames
	e.op, e.sends, e.srq, e.takes, e.flags = op, 1, w.srq(), x.took, flags
	if w.full && !w.f.Truncated() && op.Service() != bth.UC {
		e.flags |= hasContent
		w.content(&e.content)
	}
	w.follows(s, x, x.log.at(u-1), e, payload)
	if op.Operation() == bth.WriteFirst && w.full && int(p.RETH.DMALen) > payload {
		e.flags |= hasLeft
		e.left = p.RETH.DMALen - uint32(payload)
	}
	if n > 1 {
		x.tail(x.newest())
	}
	if u >= x.next {
		x.credit.spend(w, x, e)
	}
	return n
}

// noSRQ stands for the number of an SRQ that the capture has cut off.
const noSRQ = 1 << 24

// srq returns the number of the SRQ that the packet names.
func (c *current) srq() uint32 {
	if !c.full {
		return noSRQ
	}
	return c.f.Packet.XRCETH.SRQ
}

// follows judges e against the packet before it. Rules RS-05, RS-07, XR-2.
func (w *Watcher) follows(s *stream, x *exchange, prev, e *entry, payload int) {
	op := e.op
	inside := op.Middle() || op.Last()
	switch {
	case prev == nil:
		if x.certain && e.psn == x.first && inside {
			w.report(s, OrderAtStart, 0, uint64(op), 0)
		}
	case !prev.op.First() && !prev.op.Middle():
		if inside {
			w.report(s, OrderOutside, uint64(prev.op), uint64(op), prev.frame)
		}
	case !inside || prev.op.Send() != op.Send():
		w.report(s, OrderInMessage, uint64(prev.op), uint64(op), prev.frame)
	default:
		e.start = prev.start
		if op.Service() == bth.XRC && e.srq != prev.srq && e.srq != noSRQ && prev.srq != noSRQ {
			w.report(s, XRCOtherSRQ, uint64(prev.srq), uint64(e.srq), prev.frame)
		}
		if prev.flags&hasLeft == 0 || !op.Write() {
			return
		}
		left := prev.left
		switch {
		case op.Last():
			if int(left) != payload {
				w.report(s, DMALengthLast, uint64(left), uint64(payload), 0)
			}
		case int(left) <= payload:
			w.report(s, DMALengthMiddle, uint64(left), uint64(payload), 0)
		default:
			e.flags |= hasLeft
			e.left = left - uint32(payload)
		}
	}
}

// shorten ends the newest READ before PSN u, which another request takes, where the length
// of the READ may be damaged: the capture has no ICRC of it. Not all of many are.
func (w *Watcher) shorten(s *stream, x *exchange, u uint64) {
	if u >= x.next || len(x.reads) == 0 {
		return
	}
	d := x.newest()
	if !d.is(isUnsure) || d.vague() || d.end != x.next || u <= d.start ||
		w.f.Packet.Opcode.Operation() == bth.ReadRequest && w.full && d.is(isKnown) && w.resumes(d, u) ||
		s.insists(PSNReused) {
		return
	}
	d.flags |= isGuessed
	d.end = u
	d.to = min(d.to, u)
	x.next = u
	x.count.known = false
	w.leave(PSNReused, ReasonSnaplen, 1)
}

// enterRead stores a READ or atomic.
func (w *Watcher) enterRead(s *stream, x *exchange, u uint64) uint64 {
	p := &w.f.Packet
	partial := x.log.at(u-1) == nil && x.read(u-1) == nil && !(x.certain && u == x.first)
	if q := x.read(u - 1); q != nil && q.is(isGuessed) && p.Opcode.Operation() == bth.ReadRequest {
		partial = !w.full || q.is(isKnown) && w.resumes(q, u)
	}
	d := x.addRead()
	*d = read{start: u, end: u + 1, from: u, to: u + 1, was: u, pos: u, high: u, whole: u, t: w.now, lastT: w.now, took: -1,
		op: p.Opcode, asks: 1, frame: w.frames, va: p.RETH.VA, rkey: p.RETH.RKey, len: p.RETH.DMALen}
	if w.full {
		d.flags |= isKnown
	} else {
		x.count.known = false // it may continue one before it, or be long
	}
	if partial {
		d.flags |= isPartial
	}
	if w.vague {
		d.flags |= isUnsure
	}
	if x.depth > 0 {
		n := 0
		for i := range x.reads {
			if q := &x.reads[i]; !q.is(isDoneR) && q.end > x.acked {
				n++
			}
		}
		if n > x.depth {
			w.report(s, ReadsAboveDepth, uint64(x.depth), uint64(n), 0)
		}
	}
	if p.Opcode.Operation() != bth.ReadRequest {
		return 1
	}
	switch {
	case !w.full:
		d.flags |= isOpen
		x.spanOpen = true
	case p.RETH.DMALen <= 256 || p.RETH.DMALen > 1<<31:
	case s.mtu == 0 || !s.mtuFirm:
		d.flags |= isOpen
		x.spanOpen = true
	default:
		d.end = u + span(d.len, s.mtu)
		d.to = d.end
	}
	return d.end - d.start
}
