package conform

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
)

// rnrNak judges an RNR NAK. Rules RS-09, RQ-28.
func (w *Watcher) rnrNak(s *stream, x *exchange, u uint64, syn aeth.Syndrome) {
	wait := syn.RNRTimer().Duration()
	w.report(s, RNRNak, uint64(wait), 0, 0)
	if x == nil || u < x.first || u >= x.next {
		return
	}
	w.hear(x, u)
	if x.answered != 0 && u <= x.answered {
		w.refusedLate(s, x, u, RNRAnswered)
		return
	}
	if e := x.log.at(u); e != nil && e.flags&isTail == 0 {
		c := CheckNone
		switch {
		case answered(e.op):
			c = RNROfRead
		case !consumes(e.op) || e.op.Send() && (e.op.Middle() || e.op.Last()):
			c = RNROfWrite
		}
		switch {
		case c == CheckNone:
		case w.mispaired(s):
			return
		case !w.unsure(s, e.flags&hasContent == 0, c):
			w.report(s, c, uint64(e.op), 0, e.frame)
		}
	}
	w.before(s, x, u)
	w.denied(s, x, u)
	x.refused(u)
	if x.nak.last.valid && x.nak.last.psn == u {
		x.nak.refused = true
	}
	if x.rnr.valid && x.rnr.psn == u && w.now-x.rnr.t < int64(x.wait) {
		return // one more for the same packet: the wait has started
	}
	x.rnr = refusal{valid: true, psn: u, t: w.now, frame: w.frames}
	x.wait = wait
}

// refusedLate judges a refusal of PSN u, which was acknowledged before. One that
// was overtaken on its way has an MSN as old as its PSN.
func (w *Watcher) refusedLate(s *stream, x *exchange, u uint64, c Check) {
	d := x.read(u)
	most, ok := x.numberAt(u - 1)
	if ok && newer(w.f.Packet.AETH.MSN, most) > 0 || d != nil && u >= d.start && u < d.high && c == RNRAnswered {
		if !w.mispaired(s) {
			w.report(s, c, 0, 0, 0)
		}
		return
	}
	s.OutOfOrder++
	x.signs.late++
	w.report(s, OutOfOrder, uint64(psn.Wrap(x.answered)), 0, 0)
}

// refused records that PSN u got a response, though a negative one.
func (x *exchange) refused(u uint64) {
	if e := x.log.at(u); e != nil {
		e.sends = 0
	}
}

// before completes what a refusal of PSN u acknowledges, and judges its MSN, which is that
// of the PSN before. A READ that is refused after some of its responses is counted already.
func (w *Watcher) before(s *stream, x *exchange, u uint64) {
	slack := uint32(0)
	if d := x.read(u); d != nil && d.start == u {
		slack = 1
	}
	if u > x.first || x.certain && u == x.first {
		w.messageNumber(s, x, u-1, slack)
	}
	if u > x.first {
		w.cover(s, x, u-1)
		x.advance(u-1, w.now)
	}
}

// nak judges a NAK of another kind. Rules RS-03, RS-18.
func (w *Watcher) nak(s *stream, x *exchange, u uint64, syn aeth.Syndrome) {
	check := NakSequence
	switch syn.Nak() {
	case aeth.NakInvalidRequest:
		check = NakInvalid
	case aeth.NakRemoteAccessError:
		check = NakAccess
	case aeth.NakRemoteOperationalError:
		check = NakOperational
	}
	w.report(s, check, 0, 0, 0)
	if check != NakSequence {
		w.fatal(s, x, u, syn)
		return
	}
	s.NakSequence++
	if x == nil || u >= x.next {
		return
	}
	w.hear(x, u)
	x.nak.n++
	switch {
	case u < x.first:
		x.refused(u)
		if u+1 < x.first {
			w.report(s, NakNeverSent, uint64(psn.Wrap(x.first)), 0, 0)
		}
		return
	case x.nak.last.valid && x.nak.last.psn == u && !x.nak.refused:
		w.nakAgain(s, x)
		return
	case x.answered != 0 && u <= x.answered:
		w.refusedLate(s, x, u, NakAcknowledged)
		return
	}
	x.refused(u)
	if d := x.read(u); (x.next == u+1 || d != nil && x.next == d.end) && x.voidTo <= x.next && !x.nak.refused {
		w.doubt(s, x, NakNothingLost, 0, 0, 0)
	}
	w.before(s, x, u)
	if x.nak.seen = x.log.at(u) != nil; x.nak.seen {
		s.peerOr(w).LostBehind++
	}
	if x.nak.open.valid {
		x.nak.old = x.nak.open
	}
	r := refusal{valid: true, psn: u, by: u, t: w.now, frame: w.frames}
	x.nak.last, x.nak.resent, x.nak.refused = r, false, false
	copy(x.nak.way[1:], x.nak.way[:])
	x.nak.way[0] = r
	if e := x.log.at(u); e != nil && e.first != e.last {
		x.nak.resent = true // one transmission may have been in flight when the NAK was sent
	}
	if x.rnr.valid && x.rnr.psn == u {
		return // rule RQ-28: the wait goes on
	}
	x.nak.open = r
}

// nakAgain judges a second NAK for the same PSN. One follows an RNR NAK, whose
// packet was the expected one; the capture may have lost that.
func (w *Watcher) nakAgain(s *stream, x *exchange) {
	frame := x.nak.last.frame
	switch {
	case w.repeat >= 0 || !s.place.tells(&w.f):
		w.seen.Class = ClassCopy
		s.Duplicates++
		if w.repeat >= 0 {
			s.place.gap.learn(w.repeat, w.clock.grain)
		}
		w.report(s, DuplicateResponse, 0, 0, frame)
		// A single one may be a copy made by the network. But a network does not copy every
		// third NAK and nothing else.
		k := &x.nak
		if w.allTwice(s) {
			return // by the capture, which has requests twice, too
		}
		if k.doubled++; k.doubled >= often && 3*k.doubled > int(s.NakSequence) && int(s.Duplicates+s.peerOr(w).Duplicates) <= 2*k.doubled {
			w.report(s, NakRepeated, 0, 0, frame)
		}
	case x.nak.resent || x.signs.lost > 0:
		w.doubt(s, x, NakRepeated, 0, 0, frame)
	default:
		w.report(s, NakRepeated, 0, 0, frame)
	}
}

// fatal judges a NAK that ends a connection.
func (w *Watcher) fatal(s *stream, x *exchange, u uint64, syn aeth.Syndrome) {
	p := &w.f.Packet
	if x != nil && u >= x.first && u < x.next && x.answered != 0 && u <= x.answered {
		if d := x.read(u); d == nil || d.is(isDoneR) && d.asks < 2 {
			w.refusedLate(s, x, u, NakAcknowledged)
		}
	}
	s.rsp.dead, s.rsp.deadWith, s.rsp.deadPSN, s.rsp.deadMSN, s.rsp.deadFrame = x != nil, syn, p.PSN, p.AETH.MSN, w.frames
	if x == nil || u < x.first || u >= x.next {
		return
	}
	w.before(s, x, u)
	s.peerOr(w).MessagesFail++
	x.acked = x.next // no further request gets a response
}
