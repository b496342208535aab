package conform

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// readResponse judges a READ response or an atomic acknowledgement.
func (w *Watcher) readResponse(s *stream, x *exchange, payload int, hasAETH bool) {
	p := &w.f.Packet
	op := p.Opcode
	u := psn.Unwrap(x.next, p.PSN)
	d := x.read(u)
	atomic := op.Operation() == bth.AtomicAcknowledge
	w.hear(x, u)
	if d == nil {
		w.unasked(s, x, u, payload)
		return
	}
	isAtomic := d.op.Operation() == bth.CmpSwap || d.op.Operation() == bth.FetchAdd
	if isAtomic != atomic {
		if d.vague() && u != d.start {
			return // another request may have begun there, unseen
		}
		check := ReadOutside
		if atomic {
			check = AtomicOutside
		}
		if !w.mispaired(s) && !w.unsure(s, d.is(isUnsure), check) {
			w.report(s, check, uint64(d.op), uint64(op), d.frame)
		}
		return
	}
	if !s.mtuFirm && (op.First() || op.Middle()) {
		w.size(s, payload) // gives the MTU, from which the end of a READ follows
	}
	if d.vague() && op.Operation() == bth.ReadResponseOnly && u == d.start && d.is(isKnown) && uint32(payload) == d.len {
		if d.is(isOpen) {
			x.spanOpen = false
		}
		d.flags &^= isOpen | isGuessed // it was one packet after all
		d.end, d.to = u+1, u+1
	}
	if hasAETH {
		w.messageNumber(s, x, d.start, x.endsAfter(d.start))
		w.allow(s, x, d.start)
	}
	again := u < d.high
	switch {
	case d.vague() || x.answered < d.end || again || w.beside: // what is seen at another place alone is not late for that
	case d.asks < 2 && !d.is(isPassed|isAgain), !d.is(isAgain) && w.quick(d.lastT):
		if !d.is(isLate) {
			w.doubt(s, x, ResponseLate, uint64(psn.Wrap(x.answered)), uint64(d.op), d.frame)
		}
		d.flags |= isLate
		if d.asks < 2 && !d.is(isPassed) {
			x.signs.late++
		}
	}
	if atomic {
		w.atomicAck(s, x, d, again)
	} else {
		w.readData(s, x, d, u, payload, again)
	}
	s.rsp.lastFrame = w.frames
}

// unasked judges a response with a PSN that no READ or atomic has.
func (w *Watcher) unasked(s *stream, x *exchange, u uint64, payload int) {
	p := &w.f.Packet
	op := p.Opcode
	w.good(s, payload)
	e := x.log.at(u)
	before := x.read(u - 1)
	switch {
	case e != nil && w.mispaired(s):
	case e != nil && answered(e.op):
		w.leave(ReadOpcode, ReasonLoss, 1) // more are outstanding than are remembered
	case e != nil && op.Operation() == bth.AtomicAcknowledge:
		if !w.unsure(s, e.flags&hasContent == 0, AtomicOutside) {
			w.report(s, AtomicOutside, uint64(e.op), uint64(op), e.frame)
		}
	case e != nil:
		if !w.unsure(s, e.flags&hasContent == 0, ReadOutside) {
			w.report(s, ReadOutside, uint64(e.op), uint64(op), e.frame)
		}
	case (op.Middle() || op.Last()) && before != nil && !before.vague() && before.end == u && before.high == u && before.op.Operation() == bth.ReadRequest:
		// It continues after the last response, as one more of the same READ.
		w.report(s, ReadTooMany, uint64(psn.Wrap(before.end-1)), uint64(op), before.frame)
	case u >= x.next && u >= x.voidTo && !x.spanOpen:
		w.ahead(s, x, u, false)
	default:
		w.size(s, payload)
	}
}

func (w *Watcher) atomicAck(s *stream, x *exchange, d *read, again bool) {
	orig := w.f.Packet.AtomicAckETH.Orig
	if !w.full {
		return
	}
	if d.is(hasOrig) && orig != d.orig {
		w.report(s, AtomicTwice, d.orig, orig, s.rsp.lastFrame)
	}
	d.orig = orig
	d.flags |= hasOrig
	w.repeated(s, x, d, again)
	w.respond(s, x, d, d.start)
}

// repeated counts a response that was sent before.
func (w *Watcher) repeated(s *stream, x *exchange, d *read, again bool) {
	if !again {
		return
	}
	if !d.is(isAgain) || w.twice(s) {
		w.seen.Class = ClassCopy
		s.Duplicates++
		x.signs.copies++
		if w.repeat >= 0 {
			s.place.gap.learn(w.repeat, w.clock.grain)
		}
		w.report(s, DuplicateResponse, 0, 0, 0)
		return
	}
	s.Retransmitted++
	s.RepliedAgain++
	w.seen.Class = ClassResent
	if x.owed > 0 {
		x.owed--
	}
}

// respond records the response of d at PSN u.
func (w *Watcher) respond(s *stream, x *exchange, d *read, u uint64) {
	if d.start > x.acked {
		w.cover(s, x, d.start-1)
	}
	if u == d.whole {
		d.whole = u + 1
	} else if u > d.whole && !d.vague() && (!x.implied.valid || x.implied.psn > d.whole) {
		x.implied = refusal{valid: true, psn: d.whole, by: u, t: w.now, frame: w.frames}
	}
	x.advance(u, w.now)
	w.accepted(s, x, u)
	d.high = max(d.high, u+1)
	d.pos = u + 1
	d.lastT = w.now
	if x.acked < d.start {
		d.flags |= isEarly
		return // an earlier one is missing
	}
	x.acked = max(x.acked, min(d.whole, d.end))
	last := w.f.Packet.Opcode.Last() || w.f.Packet.Opcode.Operation() != bth.ReadResponseFirst && w.f.Packet.Opcode.Operation() != bth.ReadResponseMiddle
	if d.is(isDoneR) || !(!d.vague() && d.whole == d.end || d.vague() && last && u+1 == d.end) {
		return
	}
	d.flags |= isDoneR
	x.acked = max(x.acked, d.end)
	s.peerOr(w).MessagesDone++
	d.took = max(0, w.now-d.t)
	w.took(x, d.took, d.took, 1)
	if x.implied.valid && x.implied.psn < d.end {
		x.implied.valid = false
	}
	// Requests after it that got responses are complete now.
	if x.reach >= d.end {
		w.cover(s, x, x.reach)
	}
}

// readData judges a READ response. Rule RS-15.
func (w *Watcher) readData(s *stream, x *exchange, d *read, u uint64, payload int, again bool) {
	op := w.f.Packet.Opcode
	if u > d.pos && !again {
		s.SequenceError++
		x.signs.gaps++
		d.flags |= hasGap
		x.signs.disturbed = w.now
		w.report(s, ReadSequenceGap, uint64(psn.Wrap(d.pos)), u-d.pos, 0)
	}
	if !again {
		w.good(s, payload)
	}
	w.repeated(s, x, d, again)
	// A request for the rest that was not captured explains what seems wrong, unless this
	// response follows directly on the one before.
	sure := u == d.from || u == d.pos && w.quick(d.lastT)
	if !d.vague() && u < d.to {
		// The response to a request for the rest begins with First or Only.
		resumed := u != d.start && (op.First() || op.Operation() == bth.ReadResponseOnly) && !w.calm(x)
		w.readShape(s, d, u, payload, op, sure && !resumed)
		if s.peer < 0 {
			return // it was a response to another
		}
	} else if d.vague() && d.is(isKnown) && payload > int(d.len) && !w.mispaired(s) {
		w.report(s, ReadSize, uint64(d.len), uint64(payload), 0)
	}
	w.respond(s, x, d, u)
}

// position returns the operation of the response at PSN u of those in [from, to).
func position(u, from, to uint64) bth.Operation {
	switch {
	case u == from && u == to-1:
		return bth.ReadResponseOnly
	case u == from:
		return bth.ReadResponseFirst
	case u == to-1:
		return bth.ReadResponseLast
	}
	return bth.ReadResponseMiddle
}

// ends reports whether a response of operation o is the last to its READ. A READ of which
// the capture may have lost the beginning ends where it would have ended, too.
func ends(o bth.Operation) bool { return o == bth.ReadResponseLast || o == bth.ReadResponseOnly }

// readShape judges opcode and size of a response by its place.
func (w *Watcher) readShape(s *stream, d *read, u uint64, payload int, op bth.Opcode, sure bool) {
	whole, part := position(u, d.start, d.end), position(u, d.from, d.to)
	switch got := op.Operation(); {
	case got == part:
	case got == whole:
		if u == d.from && !w.mispaired(s) {
			w.report(s, ReadResumedMiddle, 0, uint64(op), 0)
		}
	case got == position(u, d.was, d.end): // to the request before the last
	case sure && (!d.is(isPartial) || ends(got) != ends(part)):
		if w.mispaired(s) {
			return
		}
		w.report(s, ReadOpcode, uint64(op.Service().Opcode(part)), uint64(op), 0)
		return
	default:
		return
	}
	if !d.is(isKnown) || d.op.Operation() != bth.ReadRequest {
		if d.is(isKnown) && payload != 0 && !w.mispaired(s) {
			w.report(s, ReadSize, 0, uint64(payload), 0)
		}
		return
	}
	if s.mtu == 0 && d.end > d.start+1 {
		return
	}
	want := s.mtu
	if u == d.end-1 {
		want = int(d.len) - int(u-d.start)*s.mtu
	}
	if want != payload && (d.to == d.end || u != d.to-1) && sure && !w.mispaired(s) {
		w.report(s, ReadSize, uint64(want), uint64(payload), 0)
	}
}
