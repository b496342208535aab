package conform

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// oldRequest handles a PSN not above the highest: a retransmission, a copy, or a
// late packet.
func (w *Watcher) oldRequest(s *stream, x *exchange, u uint64, payload int, unreliable bool) {
	p := &w.f.Packet
	e := x.log.at(u)
	var d *read
	if p.Opcode.Operation() == bth.ReadRequest {
		if d = x.read(u); d != nil && d.is(isGuessed) && u != d.start && w.full && d.is(isKnown) && !w.resumes(d, u) {
			d.end, d.to, d = u, min(d.to, u), nil // it is another READ
		}
	}
	if w.takesRead(s, x, u) {
		return
	}
	if unreliable {
		if w.repeat >= 0 {
			w.copied(s)
			return
		}
		w.late(s, x, u, payload, e == nil)
		return
	}
	going := x.back.active && u == x.back.next
	cause := w.why(s, x, u, e, d)
	late, again := false, false
	if e != nil && !going {
		late, again = w.overtaken(x, u, e, cause)
	}
	switch {
	case late:
		w.late(s, x, u, payload, false)
		w.seen.Class, w.seen.Good = ClassResent, 0
		s.GoodBytes -= uint64(payload)
		if again {
			s.Retransmitted++
		}
		w.sentAgain(s, x, u, e, d)
		return
	case e != nil && w.isRepeat(s, x, u, cause, going || w.goesOnBehind(s, x, u)):
		x.signs.copies++
		x.signs.disturbed = w.now
		x.nak.copy(u, w.now)
		w.copied(s)
		if answered(p.Opcode) {
			if d := x.read(u); d != nil {
				d.flags |= isAgain
			}
		}
		return
	case e == nil && d == nil && u >= x.first && cause == causeNAK && !going && u == x.nak.open.psn:
		// The retransmission that the NAK asks for, or the packet itself, overtaken by the
		// one that caused the NAK. The next packet decides: see resolve.
		x.overdue = refusal{valid: true, psn: u, t: w.now, frame: w.frames}
		w.seen.Class = ClassResent
		s.Retransmitted++
		x.signs.disturbed = w.now
		w.firstSight(s, x, u, payload)
		return
	case e == nil && d == nil && u >= x.first && cause == causeUnknown && !going && w.quick(x.last.gap):
		x.missed.take(w, u)
		w.late(s, x, u, payload, true)
		return
	}
	w.seen.Class = ClassResent
	s.Retransmitted++
	x.owed++
	x.signs.disturbed = w.now
	w.undo(s, x, u)
	newer := x.back.active && (cause == causeNAK && x.nak.open.valid && x.nak.open.frame > x.back.frame && u == x.nak.open.psn ||
		cause == causeImplied && x.implied.valid && x.implied.frame > x.back.frame && u == x.implied.psn)
	switch {
	case going && !newer:
		if x.back.far.valid && x.nak.open.valid && u == x.nak.open.psn {
			w.report(s, GoBackTooFar, uint64(psn.Wrap(u)), u-x.back.far.psn, x.nak.last.frame)
			x.back.far.valid, x.nak.open.valid = false, false
		}
		x.passRNR(u)
	case x.back.active && u > x.back.next && u < x.back.next+64 && w.quick(x.back.at) && !newer && cause != causeRNR:
		if u > x.acked {
			s.SequenceError++
			x.signs.gaps++
			x.signs.skipped += u - x.back.next
			x.missed.add(x.back.next, u, w.now, true)
			w.report(s, SequenceGap, uint64(psn.Wrap(x.back.next)), u-x.back.next, 0)
		}
		x.passRNR(u)
	default:
		x.prior = x.back
		x.back.lone = cause == causeNAK
		w.goBack(s, x, e, d, u, cause)
		x.back.from, x.back.began = u, w.now
	}
	x.back.active, x.back.next, x.back.at, x.back.frame = true, u+1, w.now, w.frames
	if d != nil {
		x.back.next = d.end
	}
	x.nak.resent = true
	if e == nil || e.flags&isTail != 0 {
		if d == nil && u >= x.first && (e == nil || !answered(p.Opcode)) {
			w.firstSight(s, x, u, payload) // it was lost before it was captured
			return
		}
	} else {
		w.sentAgain(s, x, u, e, d)
		return
	}
	if answered(p.Opcode) {
		w.askAgain(s, x, u)
	}
}

// resumes reports whether the current READ request may ask for the rest of d from PSN u
// on, whatever the MTU is.
func (c *current) resumes(d *read, u uint64) bool {
	p := &c.f.Packet
	skipped := d.len - p.RETH.DMALen
	mtu := uint64(skipped) / (u - d.start)
	return p.RETH.DMALen < d.len && p.RETH.VA == d.va+uint64(skipped) && p.RETH.RKey == d.rkey && uint64(skipped)%(u-d.start) == 0 &&
		mtu >= 256 && mtu <= 4096 && mtu&(mtu-1) == 0
}

// sentAgain records that e, which has PSN u, was retransmitted.
func (w *Watcher) sentAgain(s *stream, x *exchange, u uint64, e *entry, d *read) {
	p := &w.f.Packet
	w.same(s, e, d)
	e.last = w.now
	if e.sends < 255 {
		e.sends++
	}
	if p.AckReq {
		e.flags |= asked
	}
	if answered(p.Opcode) {
		w.askAgain(s, x, u)
	}
}

// overtaken reports whether PSN u, which e has, was missing in the current
// retransmission, or in what was sent before it, and is captured now: the network has
// reordered it. again says whether it was a retransmission.
func (w *Watcher) overtaken(x *exchange, u uint64, e *entry, cause cause) (late, again bool) {
	switch {
	case e.flags&isTail != 0:
		return false, false
	case cause == causeNAK && (u == x.nak.open.psn || x.nak.onWay(u) != nil):
		return false, false
	case cause == causeImplied && u == x.implied.psn:
		return false, false
	case cause == causeTimer || cause == causeRNR:
		return false, false
	}
	if late, again = x.missed.take(w, u); late {
		return late, again
	}
	b := &x.back
	return b.active && u >= b.from && u < b.next && e.last < b.began && w.quick(b.at), true
}

// passRNR records that the PSN that an RNR NAK refused was retransmitted.
func (x *exchange) passRNR(u uint64) {
	if x.rnr.valid && u == x.rnr.psn {
		x.rnr.valid = false
	}
}

// isRepeat reports whether the current packet, the same in every bit as one that was seen
// at this place, is a copy of that: there is no reason to retransmit it, or it follows
// itself although another packet is due.
func (w *Watcher) isRepeat(s *stream, x *exchange, u uint64, cause cause, going bool) bool {
	switch {
	case w.repeat < 0:
		return false
	case cause == causeUnknown:
		return !going
	case w.spaced(s) && !going:
		// It is at the distance of copies, and does not begin where a retransmission would.
		switch cause {
		case causeNAK:
			if u != x.nak.open.psn && x.nak.onWay(u) == nil {
				return true
			}
		case causeImplied:
			if u != x.implied.psn {
				return true
			}
		}
	}
	if u != x.last.psn || cause == causeTimer {
		return false
	}
	switch cause {
	case causeRNR:
		return w.repeat < 2000
	case causeNAK:
		return u != x.nak.open.psn && x.nak.onWay(u) == nil && !going
	}
	return x.heardAt <= x.last.at // no response was seen since
}

// goesOnBehind reports whether PSN u continues the current retransmission, of which the
// packets before it were lost. A packet that is captured twice is seen again at a fixed
// distance, retransmission or not.
func (w *Watcher) goesOnBehind(s *stream, x *exchange, u uint64) bool {
	return x.back.active && u > x.back.next && u < x.back.next+64 && w.quick(x.back.at) && !w.spaced(s)
}

// firstSight enters a request that was not seen when it was sent first.
func (w *Watcher) firstSight(s *stream, x *exchange, u uint64, payload int) {
	p := &w.f.Packet
	w.good(s, payload)
	open := x.spanOpen
	w.enter(s, x, u, payload)
	if !answered(p.Opcode) {
		return
	}
	// Its span ends where the next request begins.
	d := x.newest()
	if !d.is(isOpen) {
		return
	}
	x.spanOpen = open
	d.flags = d.flags&^isOpen | isGuessed
	for d.end < x.next && x.log.at(d.end) == nil && d.end-u < uint64(w.cfg.Window) {
		d.end++
	}
	d.to = d.end
}

// late handles a packet that was overtaken.
func (w *Watcher) late(s *stream, x *exchange, u uint64, payload int, fresh bool) {
	w.seen.Class = ClassLate
	s.OutOfOrder++
	x.signs.late++
	w.report(s, OutOfOrder, uint64(psn.Wrap(x.next-1)), 0, 0)
	if u >= x.first && fresh {
		w.firstSight(s, x, u, payload)
	} else {
		w.good(s, payload)
	}
}

// resolve decides what the first sighting of a PSN that a NAK asks for was, now that PSN u
// is the next packet; 0 is the end.
func (w *Watcher) resolve(s *stream, x *exchange, u uint64) {
	o := &x.overdue
	if !o.valid {
		return
	}
	o.valid = false
	after := o.psn + 1
	if d := x.read(o.psn); d != nil {
		after = d.end
	}
	if u > o.psn && u < x.next || after >= x.next || !w.quick(o.t) {
		x.causes(s, causeNAK)
		w.reportAt(s, ResentNAK, uint64(max(0, o.t-x.nak.open.t)), 0, x.nak.last.frame, o.frame, o.t, psn.Wrap(o.psn))
		x.back.active, x.back.next, x.back.at, x.back.frame = true, after, o.t, o.frame
		x.nak.resent, x.nak.used = true, x.nak.open.frame
		x.nak.old, x.nak.open.valid = x.nak.open, false
		return
	}
	x.missed.take(w, o.psn)
	s.Retransmitted--
	s.OutOfOrder++
	x.signs.late++
	w.reportAt(s, OutOfOrder, uint64(psn.Wrap(x.next-1)), 0, 0, o.frame, o.t, psn.Wrap(o.psn))
}

// reconsider takes back that a NAK made the requester retransmit one packet, now that PSN u
// is the next: others were due behind it, and what was sent before goes on instead. So it
// was the transmission that the NAK missed, overtaken.
func (w *Watcher) reconsider(s *stream, x *exchange, u uint64) {
	b := &x.back
	if !b.lone {
		return
	}
	b.lone = false
	goesOn := x.prior.active && u == x.prior.next
	if u == b.next || !goesOn && !(u == x.next && b.next < x.next) || x.signs.late == 0 {
		return
	}
	if found, _ := x.missed.take(w, b.from); !found {
		return
	}
	s.PacketSeqErr--
	s.Retransmitted--
	s.OutOfOrder++
	x.signs.late++
	x.nak.heeded--
	if *b = x.prior; !goesOn {
		b.active = false
	}
}

// takesRead judges whether a request takes a PSN that belongs to a READ. Rule
// RQ-02.
func (w *Watcher) takesRead(s *stream, x *exchange, u uint64) bool {
	p := &w.f.Packet
	if p.Opcode.Operation() == bth.ReadRequest {
		return false
	}
	d := x.read(u)
	if d == nil || d.op.Operation() != bth.ReadRequest || d.vague() || u == d.start {
		return false
	}
	w.seen.Class = ClassInvalid
	w.report(s, PSNReused, uint64(d.op), uint64(p.Opcode), d.frame)
	x.count.known = false // a responder rightly handles it as a duplicate
	x.signs.disturbed = w.now
	return true
}

// goBack handles the start of a retransmission.
func (w *Watcher) goBack(s *stream, x *exchange, e *entry, d *read, u uint64, cause cause) {
	last := x.last.at
	if e != nil {
		last = e.last
	}
	x.back.far.valid = false
	if cause == causeTimer && x.nak.open.valid {
		// The requester did not react to the NAK: it may have been lost on the way, but not
		// all of many.
		k := &x.nak
		if k.ignored++; k.ignored > 8*k.heeded && (k.ignored >= 5 || k.ignored == 4 && x.signs.lost == 0) {
			w.report(s, NakIgnored, uint64(x.nak.ignored), 0, x.nak.last.frame)
		}
	}
	switch cause {
	case causeRNR:
		since := w.now - x.rnr.t
		s.RNRWait += durationOf(since)
		w.tooEarly(s, x, since, e)
		x.rnr.valid = false
		w.report(s, ResentRNR, uint64(max(0, since)), 0, x.rnr.frame)
	case causeNAK:
		k := &x.nak
		k.heeded++
		w.whereNAK(s, x, u)
		n := &k.open
		if !n.valid || u < n.psn {
			n = &x.nak.old
		}
		if r := x.nak.onWay(u); r != nil && (!n.valid || u != n.psn) {
			n = r
		}
		if b := &k.beyondOf; b.valid && b.frame == n.frame && u == n.psn && x.back.next == x.back.from+1 {
			s.PacketSeqErr-- // what seemed to begin behind it was a late packet
			x.nak.heeded--
			x.signs.late++
		} else if n.frame == k.used && u == n.psn {
			// One NAK makes it go back once: this packet or the one before was late.
			s.PacketSeqErr--
			s.Retransmitted--
			s.OutOfOrder++
			k.heeded--
			x.signs.late++
			x.back.lone = false // it is counted as late already
		}
		k.used = n.frame
		x.nak.beyondOf = *n
		x.nak.beyondOf.valid = u > n.psn
		x.nak.heed(u)
		w.report(s, ResentNAK, uint64(max(0, w.now-n.t)), 0, n.frame)
		if n == &x.nak.open {
			x.nak.old = *n // it may have been a late packet
		}
		n.valid = false
	case causeImplied:
		if n := &x.nak.open; n.valid && u < n.psn && !x.implied.valid {
			// By the NAK itself, to which the requester has reacted so.
			x.nak.heed(n.psn)
			n.valid = false
		}
		x.implied.valid = false
		w.report(s, ResentImplied, uint64(max(0, w.now-x.heardAt)), 0, 0)
	case causeTimer:
		s.silent++
		w.report(s, ResentTimeout, uint64(max(0, w.now-last)), 0, 0)
		x.nak.open.valid, x.implied.valid = false, false
		x.passRNR(u)
	default:
		settled := s.peer >= 0 && (s.pairedBy == pairCM || w.flows.all[s.peer].hits > 1) // earlier NAKs were seen
		if x.nak.open.valid && x.nak.n == 1 && x.nak.seen && settled && x.signs.copies+x.signs.late+x.signs.lost+x.signs.gaps == 0 &&
			u < x.nak.open.psn && w.quick(x.nak.open.t) && w.quick(last) && !answered(w.f.Packet.Opcode) {
			// Before the PSN that the NAK asks for, and too soon for a time-out. It may be
			// a late packet, but not if the following ones continue up to the NAK's. It is
			// no fault either where a READ or atomic before the NAK's PSN lacks its
			// response: the requester goes back to it (RQ-24). In a network that copies or
			// reorders, this cannot be decided.
			x.back.far = refusal{valid: true, psn: u, t: w.now}
			return
		}
		x.signs.lost++
		w.report(s, ResentUnknown, uint64(max(0, w.now-last)), 0, 0)
	}
	x.causes(s, cause)
}

// whereNAK judges where the retransmission begins that a NAK asks for. It may begin later
// because of a lost packet, or earlier because of copies, but not with every third NAK.
// Rule RQ-23.
func (w *Watcher) whereNAK(s *stream, x *exchange, u uint64) {
	n, k := &x.nak.open, &x.nak
	if !n.valid || u < n.psn {
		return
	}
	e := x.log.at(n.psn)
	switch {
	case u > n.psn && e != nil && !answered(e.op):
		// Of so many the capture may lack the packet that it began with.
		lacks := float64(k.heeded) * float64(x.signs.skipped) / float64(s.DataFrames+x.signs.skipped)
		if k.beyond++; k.beyond >= often && 3*k.beyond > k.heeded && k.beyond > x.signs.late+int(s.Duplicates) && unlikely(k.beyond, lacks) {
			w.report(s, GoBackBeyond, uint64(psn.Wrap(n.psn)), u-n.psn, n.frame)
		}
	case u == n.psn && k.run.valid && k.run.psn == u && k.run.t > n.t && !s.place.gap.firm():
		k.runs += int(k.runLen)
		if k.before++; k.before >= often && 3*k.before > k.heeded && k.before > x.signs.late+x.signs.gaps && x.signs.copies <= 4*k.runs {
			w.report(s, GoBackTooFar, uint64(psn.Wrap(n.psn)), k.runLen, n.frame)
		}
	}
}

// copy records a copy of PSN u, which may be the start of a retransmission that goes back
// too far.
func (k *naks) copy(u uint64, now int64) {
	if !k.run.valid || k.run.psn != u {
		k.run = refusal{valid: true, t: now}
		k.runLen = 0
	}
	k.run.psn = u + 1
	k.runLen++
}

// impliedBefore reports whether the requester may still lack the response to a READ or
// atomic before PSN u.
func (x *exchange) impliedBefore(w *Watcher, u uint64) bool {
	for i := range x.reads {
		if d := &x.reads[i]; d.end <= u && u-d.end < 64 && w.quick(d.lastT) {
			return true
		}
	}
	return false
}

// oneWay reports whether nothing was seen of the other direction.
func (w *Watcher) oneWay(s *stream) bool {
	return s.peer < 0 || w.flows.all[s.peer].rsp.frames == 0
}

// slack is by how much the current RNR wait may seem too short, because of the clocks.
func (w *Watcher) slack(x *exchange) int64 {
	return min(int64(w.cfg.Reorder), int64(x.wait)/4) + max(2000, w.clock.grain)
}

// tooEarly judges the wait after an RNR NAK. Rule RQ-28.
func (w *Watcher) tooEarly(s *stream, x *exchange, since int64, e *entry) {
	wait := int64(x.wait)
	if since+w.slack(x) >= wait || w.clock.still {
		x.hasty = 0
		return
	}
	x.hasty++
	switch {
	case w.crossed(s):
		w.leave(RNRTooEarly, ReasonCopies, 1)
	case since <= int64(w.cfg.Reorder) && w.repeat >= 0 && x.hasty < 2*often:
		// The same in every bit. A packet that is captured twice seems early once for each
		// wait.
		w.leave(RNRTooEarly, ReasonCopies, 1)
	case x.impliedBefore(w, x.rnr.psn):
		// To a requester that lacks the response to an earlier READ or atomic, the NAK
		// shows that this was lost, and it goes back at once (RQ-24).
		w.hint(s, x, RNRTooEarly, uint64(wait), uint64(max(0, since)), x.rnr.frame)
	case since >= int64(w.cfg.MinTimeout):
		// A requester that never received the NAK retransmits by its timer.
		w.doubt(s, x, RNRTooEarly, uint64(wait), uint64(max(0, since)), x.rnr.frame)
	case since > w.flight(x) && w.repeat < 0:
		w.report(s, RNRTooEarly, uint64(wait), uint64(max(0, since)), x.rnr.frame)
	case e == nil || e.sends > 1:
		// It may have been in flight already, retransmitted for another reason.
	case since <= int64(w.cfg.Reorder):
		// So may one of which the first transmission was not seen.
		w.hint(s, x, RNRTooEarly, uint64(wait), uint64(max(0, since)), x.rnr.frame)
	default:
		w.doubt(s, x, RNRTooEarly, uint64(wait), uint64(max(0, since)), x.rnr.frame)
	}
}
