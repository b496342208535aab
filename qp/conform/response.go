package conform

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// responder holds what is remembered of the responses of a flow.
type responder struct {
	dead      bool // an error NAK was sent
	deadWith  aeth.Syndrome
	deadPSN   psn.PSN
	deadMSN   uint32
	deadFrame uint64
	lastFrame uint64
	frames    uint64 // responses
}

// response judges a response of RC or XRC.
func (w *Watcher) response(s *stream, payload int) {
	p := &w.f.Packet
	op := p.Opcode
	syn := p.AETH.Syndrome
	isAck := op.Operation() == bth.Acknowledge
	s.rsp.frames++
	w.seen.Class = ClassResponse
	if p.AckReq {
		w.report(s, AckReqInResponse, 0, uint64(op), 0)
	}
	if p.SE {
		w.report(s, SolicitedMisplaced, 0, uint64(op), 0)
	}
	var x *exchange
	if q := w.pair(s); q != nil && q.req != nil && q.req.started {
		x = q.req
		q.silent = 0
	}
	if s.moved {
		s.moved, s.rsp.dead = false, false // perhaps a new connection
	}
	hasAETH := w.full && op.Ext()&bth.HasAETH != 0
	if hasAETH && !w.syndrome(s, op, syn) {
		return
	}
	if s.rsp.dead && !w.afterFatal(s, x, isAck, hasAETH) {
		return
	}
	if isAck {
		if hasAETH {
			w.acknowledge(s, x, syn)
		} else {
			w.leave(MSNWrong, ReasonSnaplen, 1)
			if x != nil {
				x.refused(psn.Unwrap(x.next, p.PSN)) // as far as is known
			}
		}
		return
	}
	if x == nil {
		w.leave(ReadOpcode, ReasonUnpaired, 1)
		w.size(s, payload)
		w.good(s, payload)
		return
	}
	w.readResponse(s, x, payload, hasAETH)
}

// afterFatal judges a response after an error NAK. Rule RS-18. It returns false
// when it is to be ignored.
func (w *Watcher) afterFatal(s *stream, x *exchange, isAck, hasAETH bool) bool {
	p := &w.f.Packet
	d := &s.rsp
	if x == nil {
		d.dead = false
		return true
	}
	if isAck && hasAETH && d.deadWith == p.AETH.Syndrome && p.PSN == d.deadPSN {
		if w.repeat >= 0 || !s.place.tells(&w.f) {
			w.seen.Class = ClassCopy
			s.Duplicates++
			w.hint(s, x, NakAfterFatal, uint64(d.deadWith), 0, d.deadFrame)
			return false
		}
		w.report(s, NakAfterFatal, uint64(d.deadWith), 0, d.deadFrame)
		return false
	}
	if p.PSN.Diff(d.deadPSN) < 0 && (!hasAETH || newer(p.AETH.MSN, d.deadMSN) <= 0) {
		return true // it was overtaken by the NAK
	}
	if w.mispaired(s) {
		return true
	}
	w.report(s, DeadAnswers, uint64(d.deadWith), uint64(p.Opcode), d.deadFrame)
	return true
}

// syndrome judges a syndrome by itself and returns false when the packet is to
// be dropped. Rules RQ-30, XR-1.
func (w *Watcher) syndrome(s *stream, op bth.Opcode, syn aeth.Syndrome) bool {
	bad := false
	switch syn.Kind() {
	case aeth.Reserved:
		bad = true
	case aeth.Nak:
		bad = syn.Nak() > aeth.NakRemoteOperationalError || op.Operation() != bth.Acknowledge
	case aeth.RNR:
		bad = op.Operation() != bth.Acknowledge
	case aeth.Ack:
		if op.Service() == bth.XRC && syn.Credit() != aeth.NoCredits {
			w.report(s, XRCCredits, 0, uint64(syn.Value()), 0)
		}
	}
	if bad {
		w.seen.Class = ClassInvalid
		w.report(s, SyndromeReserved, 0, uint64(syn), 0)
	}
	return !bad
}

// acknowledge judges an Acknowledge packet. x, where not nil, has the requests.
func (w *Watcher) acknowledge(s *stream, x *exchange, syn aeth.Syndrome) {
	switch syn.Kind() {
	case aeth.Ack:
		s.Acks++
		w.seen.Class = ClassAck
	case aeth.RNR:
		s.RNRs++
		w.seen.Class = ClassRNR
	case aeth.Nak:
		s.Naks++
		w.seen.Class = ClassNak
	}
	var u uint64
	if x == nil {
		w.leave(MSNWrong, ReasonUnpaired, 1)
	} else {
		u = psn.Unwrap(x.next, w.f.Packet.PSN)
		if u >= x.next && u >= x.voidTo && !x.spanOpen {
			w.ahead(s, x, u, syn.Kind() == aeth.Ack)
		} else if x.spanOpen && u >= x.next {
			x = nil // how far the READ reaches is not known
		}
	}
	switch syn.Kind() {
	case aeth.Ack:
		w.ack(s, x, u)
	case aeth.RNR:
		w.rnrNak(s, x, u, syn)
	case aeth.Nak:
		w.nak(s, x, u, syn)
	}
}

// farAhead is a distance that no requester has outstanding, whatever the capture
// lost.
const farAhead = 1 << 20

// ahead records a response to a PSN that was not seen sent. Rule RQ-22.
func (w *Watcher) ahead(s *stream, x *exchange, u uint64, plain bool) {
	if w.cfg.Complete || u-x.next >= farAhead {
		w.report(s, AckNeverSent, uint64(psn.Wrap(x.next)), 0, 0)
		return
	}
	a := earlyAck{psn: u, t: w.now, frame: w.frames, msn: w.f.Packet.AETH.MSN}
	if !plain {
		a.kind = 1
	}
	x.early.put(a)
}

// wasEarly judges, when the PSNs [u, next) are sent for the first time, responses that were
// seen before them.
//
// If the capture had lost the first transmission of these, this would be a retransmission,
// after a time-out. Where the clocks of two capture points differ, a response may be
// captured a little too early; its MSN is right then. A packet that was seen at another
// place than the rest of its flow does not show when it passed here.
func (w *Watcher) wasEarly(s *stream, x *exchange, u, next uint64) {
	kept := 0
	// Where either direction was captured more than once, this may be the later sighting. Of
	// a few copies, the doubts take account.
	t := s.peerOr(w)
	elsewhere := w.beside || 100*(s.Duplicates+t.Duplicates) > s.Frames+t.Frames
	for i := range x.early.n {
		a := &x.early.acks[i]
		switch d := w.now - a.t; {
		case a.psn >= next && d < int64(w.cfg.MinTimeout):
			x.early.acks[kept] = *a
			kept++
			fallthrough
		case a.kind != 0 || a.psn < u || d < 0:
		case d > int64(w.cfg.Reorder)+w.clock.grain && d < int64(w.cfg.MinTimeout) && u >= x.voidTo && x.signs.copies+x.signs.late == 0:
			if elsewhere {
				w.leave(AckNeverSent, ReasonCopies, 1)
				continue
			}
			w.beforeSent(s, x, a)
			kept, x.early.n = 0, 0
			return
		case a.psn < next && d <= int64(w.cfg.Reorder):
			if n, ok := x.numberAtLeast(u - 1); ok && w.isEndAt(x, u) && newer(a.msn, n) <= 0 && !elsewhere {
				w.beforeSent(s, x, a)
			} else {
				w.leave(AckNeverSent, ReasonLoss, 1)
			}
		}
	}
	x.early.n = kept
}

// beforeSent doubts response a, which was seen before the current request, to whose PSN it
// is. What was seen twice may show later that requests were seen at another place.
func (w *Watcher) beforeSent(s *stream, x *exchange, a *earlyAck) {
	n := len(x.doubts)
	if p := s.peerOr(w); p.pairedBy == pairGuessed && p.hits < sureHits && !w.only(p) {
		w.leave(AckNeverSent, ReasonUnpaired, 1) // the response may be to another flow
		return
	}
	if w.cfg.Complete {
		w.reportAt(s.peerOr(w), AckNeverSent, uint64(w.f.Packet.PSN), 0, w.frames, a.frame, a.t, psn.Wrap(a.psn))
		return
	}
	w.doubtful(s.peerOr(w), x, AckNeverSent, uint64(w.f.Packet.PSN), 0, w.frames, w.vague)
	if len(x.doubts) > n {
		d := &x.doubts[n]
		d.frame, d.t, d.psn = a.frame, a.t, psn.Wrap(a.psn)
	}
}

// isEndAt reports whether a message of SEND or WRITE ends at PSN u.
func (w *Watcher) isEndAt(x *exchange, u uint64) bool {
	e := x.log.at(u)
	return e != nil && e.flags&isEnd != 0
}

// numberAtLeast returns the MSN after PSN u where it is known for certain.
func (x *exchange) numberAtLeast(u uint64) (uint32, bool) {
	m := &x.count
	if !m.known || m.width != 0 || u < m.at {
		return 0, false
	}
	n, unseen, _, ok := x.ends(m.at, u)
	return (m.lo + n) & psn.Mask, ok && unseen == 0
}

// ack judges a positive acknowledgement.
func (w *Watcher) ack(s *stream, x *exchange, u uint64) {
	if x == nil {
		return
	}
	w.hear(x, u)
	if u >= x.next {
		if x.next > x.first {
			w.cover(s, x, x.next-1)
			x.advance(x.next-1, w.now)
		}
		return
	}
	if u < x.first && (x.certain || x.first-u >= farAhead) { // whatever the capture lost
		w.report(s, AckNeverSent, uint64(psn.Wrap(x.next)), 0, 0)
		return
	}
	fresh := x.answered == 0 && u >= x.first || u > x.answered
	if !fresh && (u < x.first || u < x.answered) {
		w.behind(s, x, u)
	} else {
		if d := x.read(u); d != nil && !d.is(isDoneR) && !d.vague() && x.owed == 0 && d.high == d.start {
			if w.mispaired(s) {
				return
			}
			d.flags |= isDoneR
			d.whole = d.end
			// What was sent and answered before the capture began is acknowledged
			// again with the duplicate of another request (RS-14). But then the
			// response before is not the one to what comes right before it.
			first := x.fresh != 0 && d.start >= x.fresh || x.answered == d.start-1
			w.doubtful(s, x, AckOfRead, uint64(d.op), 0, d.frame, !first || w.vague)
		}
		if x.fresh == 0 && w.now-x.begun > int64(w.cfg.MinTimeout) {
			x.fresh = u + 1 // an acknowledgement has the newest PSN that the responder took
		}
		w.messageNumber(s, x, u, x.readsAfter(u))
	}
	if d := x.read(u); d != nil && !d.vague() && (d.whole < d.end && !d.is(isDoneR) || d.is(isEarly)) {
		// It is no response to a READ, but shows that the READ was executed (RQ-20, RQ-24).
		from := d.whole
		if d.is(isEarly) {
			from = d.start
		}
		x.implied = refusal{valid: true, psn: from, by: u, t: w.now, frame: w.frames}
	}
	w.allow(s, x, u)
	switch {
	case fresh || u >= x.acked:
		w.cover(s, x, u)
	case x.owed > 0 && !w.twice(s):
		x.owed--
	case u == x.answered:
		w.seen.Class = ClassCopy
		s.Duplicates++
		s.Acks--
		x.signs.copies++
		if w.repeat >= 0 {
			s.place.gap.learn(w.repeat, w.clock.grain)
		}
		w.report(s, DuplicateResponse, 0, 0, s.rsp.lastFrame)
	}
	w.accepted(s, x, u)
	x.advance(u, w.now)
	s.rsp.lastFrame = w.frames
}

// hear records a response at PSN u.
func (w *Watcher) hear(x *exchange, u uint64) {
	if u >= x.next+4096 {
		return
	}
	x.heard = max(x.heard, u)
	x.heardAt = w.now
}

// accepted judges, with regard to earlier NAKs, that the responder has accepted PSN u.
func (w *Watcher) accepted(s *stream, x *exchange, u uint64) {
	n := &x.nak
	if n.last.valid && u > n.last.psn && !n.resent && !n.refused && n.last.psn >= x.first && u < x.next {
		// A packet that was seen may have arrived late, after it was refused.
		w.doubtful(s, x, NakThenAcked, uint64(psn.Wrap(n.last.psn)), 0, n.last.frame, n.seen)
		n.resent = true
	}
	if n.last.valid && u >= n.last.psn {
		n.last.valid = false
	}
}

// advance records that PSN u was acknowledged.
func (x *exchange) advance(u uint64, now int64) {
	x.reach = max(x.reach, u)
	if u >= x.answered {
		x.answered, x.answerAt = u, now
	}
}

// behind judges an acknowledgement older than one before. One that was overtaken
// has an MSN as old as its PSN. Rules RS-14, RS-20, RQ-22.
func (w *Watcher) behind(s *stream, x *exchange, u uint64) {
	most, ok := x.numberAt(u)
	if !ok || newer(w.f.Packet.AETH.MSN, most) <= 0 {
		if u >= x.first {
			s.OutOfOrder++
			x.signs.late++
			w.report(s, OutOfOrder, uint64(psn.Wrap(x.answered)), 0, 0)
		}
		return
	}
	v := max(u+1, x.first, x.answered-min(x.answered, uint64(len(x.log.ring)))) // nothing older is remembered
	for v <= x.answered {
		if d := x.read(v); d != nil {
			v = max(d.end, v+1) // the end of an open one is not known
		} else if x.log.at(v) == nil {
			v++ // not seen: it may have been one
		} else {
			break
		}
	}
	switch {
	case v > x.answered && u < x.first:
	case v > x.answered:
		w.report(s, DuplicateAckBehind, uint64(psn.Wrap(x.answered)), 0, 0)
	case u >= x.first:
		w.report(s, AckBehind, uint64(psn.Wrap(x.answered)), 0, 0)
	default:
		w.report(s, AckNeverSent, uint64(psn.Wrap(x.next)), 0, 0)
	}
}
