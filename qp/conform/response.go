package conform

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// responder is what is remembered of the answers of a flow.
type responder struct {
	dead      bool // an error NAK was sent
	deadWith  aeth.Syndrome
	deadPSN   psn.PSN
	deadFrame uint64
	lastFrame uint64
	frames    uint64 // responses
	lastT     int64
}

// response judges an answer of RC or XRC.
func (w *Watcher) response(s *stream, payload int) {
	p := &w.f.Packet
	op := p.Opcode
	syn := p.AETH.Syndrome
	isAck := op.Operation() == bth.Acknowledge
	s.rsp.frames++
	s.rsp.lastT = w.now
	w.seen.Class = ClassResponse
	if p.AckReq {
		w.report(s, AckReqInResponse, 0, uint64(op), 0)
	}
	if p.SE {
		w.report(s, SolicitedMisplaced, 0, uint64(op), 0)
	}
	var r *requester
	if q := w.pair(s); q != nil && q.req != nil && q.req.started {
		r = q.req
	}
	if r != nil {
		r.silent = 0
	}
	if s.moved {
		s.moved, s.rsp.dead = false, false // perhaps another life of the QP number
	}
	hasAETH := w.full && op.Ext()&bth.HasAETH != 0
	if hasAETH && !w.syndrome(s, op, syn) {
		return
	}
	if s.rsp.dead {
		if r == nil {
			s.rsp.dead = false
		} else if s.rsp.deadWith == syn && isAck && p.PSN == s.rsp.deadPSN {
			w.seen.Class = ClassCopy
			s.Duplicates++
			return
		}
	}
	if s.rsp.dead {
		w.report(s, DeadAnswers, uint64(s.rsp.deadWith), uint64(op), s.rsp.deadFrame)
	}
	if isAck {
		if hasAETH {
			w.acknowledge(s, r, syn)
		} else if r != nil {
			r.refused(psn.Unwrap(r.next, p.PSN)) // for all one can tell
		}
		return
	}
	if r == nil {
		w.size(s, payload)
		w.good(s, payload)
		return
	}
	w.readResponse(s, r, payload, hasAETH)
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

// acknowledge judges an Acknowledge packet. r, where not nil, has the requests.
func (w *Watcher) acknowledge(s *stream, r *requester, syn aeth.Syndrome) {
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
	if r != nil {
		u = psn.Unwrap(r.next, w.f.Packet.PSN)
		if u >= r.next && u >= r.voidTo && !r.spanOpen {
			w.ahead(s, r, u)
		} else if r.spanOpen && u >= r.next {
			r = nil // how far the READ reaches is not known
		}
	}
	switch syn.Kind() {
	case aeth.Ack:
		w.ack(s, r, u)
	case aeth.RNR:
		w.rnrNak(s, r, u, syn)
	case aeth.Nak:
		w.nak(s, r, u, syn)
	}
}

// ahead notes an answer to a PSN that was not seen sent. Rule RQ-22.
func (w *Watcher) ahead(s *stream, r *requester, u uint64) {
	if w.cfg.Complete {
		w.report(s, AckNeverSent, uint64(psn.Wrap(r.next)), 0, 0)
	}
	p := &w.f.Packet
	r.suspect = refusal{true, u, w.now, p.Opcode.Operation() == bth.Acknowledge && p.AETH.Syndrome.Kind() == aeth.Ack}
	r.suspectFrame = w.frames
}

// ack judges a positive acknowledgement.
func (w *Watcher) ack(s *stream, r *requester, u uint64) {
	if r == nil {
		return
	}
	if u >= r.next {
		if r.next > r.first {
			w.cover(s, r, r.next-1)
			r.advance(r.next-1, w.now)
		}
		return
	}
	if u < r.first {
		return
	}
	if d := r.read(u); d != nil && !d.done && r.copies == 0 {
		w.report(s, AckOfRead, uint64(d.op), 0, 0)
		d.done = true
	}
	fresh := u >= r.acked
	e := r.at(u)
	behind := !fresh && r.answered != 0 && u < r.answered
	if !behind || !w.behind(s, r, u, e) {
		w.msn(s, r, e, u, fresh)
	}
	w.creditLimit(s, r)
	if fresh {
		w.cover(s, r, u)
	} else if r.copies > 0 {
		r.copies--
	} else if !behind {
		w.seen.Class = ClassCopy
		s.Duplicates++
		w.report(s, DuplicateResponse, 0, 0, s.rsp.lastFrame)
	}
	r.advance(u, w.now)
	s.rsp.lastFrame = w.frames
}

// advance notes that PSN u was answered positively.
func (r *requester) advance(u uint64, now int64) {
	if u >= r.answered {
		r.answered, r.answerAt = u, now
	}
}

// behind judges an acknowledgement older than one before, and returns true when
// it has reported it. Rules RS-14, RS-20.
func (w *Watcher) behind(s *stream, r *requester, u uint64, e *sent) bool {
	known := r.answered-u < uint64(len(r.ring))
	reads := known
	for v := u + 1; known && v <= r.answered; v++ {
		if d := r.read(v); d != nil {
			v = max(v, d.end-1)
			continue
		}
		reads = false
		known = r.at(v) != nil
	}
	msn := w.f.Packet.AETH.MSN
	switch {
	case known && reads:
		w.report(s, DuplicateAckBehind, uint64(psn.Wrap(r.answered)), 0, 0)
	case known && e != nil && e.flags&hasMSN != 0 && r.trust > 1 && newer(msn, e.msn) > 0:
		w.report(s, AckBehind, uint64(psn.Wrap(r.answered)), 0, 0)
	default:
		s.OutOfOrder++
		w.report(s, OutOfOrder, uint64(psn.Wrap(r.answered)), 0, 0)
	}
	return true
}

// msn judges the MSN of an answer that acknowledges all up to PSN u, whose entry
// is e. Rule RS-13.
func (w *Watcher) msn(s *stream, r *requester, e *sent, u uint64, fresh bool) {
	msn := w.f.Packet.AETH.MSN
	if e == nil {
		return
	}
	if e.flags&hasMSN == 0 {
		if fresh {
			r.learnMSN(e, u, msn)
		}
		return
	}
	bad := newer(msn, e.msn) < 0
	if top := r.at(r.next - 1); !bad && fresh && top != nil && top.flags&hasMSN != 0 {
		bad = newer(msn, top.msn) > 0
	}
	off := int32(newer(msn, e.msn))
	switch {
	case !bad:
		if fresh {
			r.trust++
		}
	case r.trust > 1 || r.certain:
		if r.offset == off {
			r.learnMSN(e, u, msn)
			r.offset = 0
			return
		}
		r.offset = off
		w.report(s, MSNWrong, uint64(e.msn), uint64(msn), e.frame)
	case fresh:
		r.learnMSN(e, u, msn)
	}
}

// learnMSN takes msn for the count after entry e at PSN u, and counts on.
func (r *requester) learnMSN(e *sent, u uint64, msn uint32) {
	r.trust = 0
	r.certain = false
	e.msn = msn
	e.flags |= hasMSN
	if r.guessedAt(e) {
		return // what follows is not known to be next
	}
	if d := r.read(u); d != nil {
		// The same at both ends of a READ.
		for _, v := range [2]uint64{d.start, d.end - 1} {
			if q := r.at(v); q != nil {
				q.msn = msn
				q.flags |= hasMSN
			}
		}
		u = d.end - 1
	}
	for v := u + 1; v < r.next; v++ {
		q := r.at(v)
		if q == nil {
			break
		}
		if q.flags&isEnd != 0 {
			msn = (msn + 1) & psn.Mask
		}
		q.msn = msn
		q.flags |= hasMSN
		if r.guessedAt(q) {
			break
		}
		if d := r.read(v); d != nil && d.end > v+1 && v == d.start {
			v = d.end - 1
			if q := r.at(v); q != nil {
				q.msn = msn
				q.flags |= hasMSN
			}
		}
	}
}

// creditLimit follows end-to-end credits. Rule RQ-15.
func (w *Watcher) creditLimit(s *stream, r *requester) {
	a := &w.f.Packet.AETH
	n, ok := a.Syndrome.Credit().Count()
	if !ok {
		r.credits, r.over.valid = false, false
		return
	}
	limit := (a.MSN + uint32(n)) & psn.Mask
	// What was sent above the newer limit was above any that lies between, of
	// which the capture may have lost the packet.
	if r.over.valid {
		if newer(r.over.msn, limit+1) > 0 {
			w.reportAt(s.peerOr(w), CreditsOverrun, uint64(limit), uint64(r.over.msn), w.frames, r.over.frame, r.over.t, psn.Wrap(r.over.psn))
		}
		r.over.valid = false
	}
	if !r.credits {
		r.credits, r.since, r.credit = true, w.now, limit
	} else if newer(limit, r.credit) > 0 {
		r.credit = limit
	}
}

// cover completes all requests up to and with PSN u. s is the responder's flow.
func (w *Watcher) cover(s *stream, r *requester, u uint64) {
	t := s.peerOr(w)
	if u >= r.next {
		u = r.next - 1
	}
	if u < r.acked {
		return
	}
	if n := uint64(len(r.ring)); u-r.acked >= n {
		r.acked = u - n + 1
	}
	missing := uint64(0)
	for v := r.acked; v <= u; v++ {
		e := r.at(v)
		if e == nil {
			if d := r.read(v); d != nil && d.end > v {
				v = d.end - 1 // the loop goes on behind it
			} else if v >= r.first {
				missing++
			}
			continue
		}
		if e.flags&isEnd == 0 || e.flags&isTail != 0 {
			continue
		}
		if answered(e.op) {
			if d := r.read(v); d != nil && !d.done && d.end-1 <= u {
				d.done = true
				t.MessagesDone++
			}
			continue
		}
		t.MessagesDone++
		if e.flags&asked != 0 || v == u {
			w.took(r, e.first, e.start)
		}
	}
	if missing > 0 {
		t.CaptureLost += missing
		r.disturbed = w.now
		w.report(s, CaptureLost, 0, missing, 0)
	}
	r.acked = u + 1
	if r.rnr.valid && r.rnr.psn <= u {
		r.rnr.valid = false
	}
	if r.nak.valid && r.nak.psn <= u {
		r.nakOld, r.nak.valid = r.nak, false
	}
}

// took measures a request that is answered now.
func (w *Watcher) took(r *requester, sent, start int64) {
	r.latency.add(w.now - sent)
	r.completion.add(w.now - start)
	w.latency.add(w.now - sent)
	w.fct.add(w.now - start)
}

// rnrNak judges an RNR NAK. Rules RS-09, RQ-28.
func (w *Watcher) rnrNak(s *stream, r *requester, u uint64, syn aeth.Syndrome) {
	wait := syn.RNRTimer().Duration()
	w.report(s, RNRNak, uint64(wait), 0, 0)
	if r == nil || u < r.first || u >= r.next {
		return
	}
	if r.answered != 0 && u <= r.answered {
		w.report(s, RNRAnswered, 0, 0, 0)
		return
	}
	if e := r.at(u); e != nil && answered(e.op) {
		w.report(s, RNROfRead, uint64(e.op), 0, e.frame)
	}
	w.before(s, r, u)
	r.refused(u)
	if r.rnr.valid && r.rnr.psn == u {
		return // one more for the same packet: the wait has begun
	}
	r.rnr = refusal{valid: true, psn: u, t: w.now}
	r.rnrTime = wait
}

// refused notes that PSN u got an answer, if not the one that was hoped for.
func (r *requester) refused(u uint64) {
	if e := r.at(u); e != nil {
		e.sends = 0
	}
}

// before completes what a refusal of PSN u acknowledges.
func (w *Watcher) before(s *stream, r *requester, u uint64) {
	if u > r.first {
		e := r.at(u - 1)
		w.msn(s, r, e, u-1, u-1 >= r.acked)
		w.cover(s, r, u-1)
		r.advance(u-1, w.now)
	} else if e := r.at(u); e != nil && u == r.first && r.certain && w.f.Packet.AETH.MSN != 0 {
		w.report(s, MSNWrong, 0, uint64(w.f.Packet.AETH.MSN), 0)
	}
}

// nak judges a NAK of another kind. Rules RS-03, RS-18.
func (w *Watcher) nak(s *stream, r *requester, u uint64, syn aeth.Syndrome) {
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
		s.rsp.dead, s.rsp.deadWith, s.rsp.deadPSN, s.rsp.deadFrame = r != nil, syn, w.f.Packet.PSN, w.frames
		if r == nil || u < r.first || u >= r.next {
			return
		}
		w.before(s, r, u)
		s.peerOr(w).MessagesFail++
		r.acked = r.next // nothing more is answered
		return
	}
	s.NakSequence++
	if r == nil || u >= r.next {
		return
	}
	r.refused(u)
	r.naks++
	switch {
	case r.nakLast == u && r.nakFrame != 0:
		if r.nakIPID == w.f.ID && (w.now-r.nakAt < int64(w.cfg.Reorder) ||
			r.lastSent < r.nakAt && w.now-r.nakAt < int64(w.cfg.MinTimeout)) {
			w.seen.Class = ClassCopy
			s.Duplicates++
			w.report(s, DuplicateResponse, 0, 0, r.nakFrame)
			return
		}
		w.report(s, NakRepeated, 0, 0, r.nakFrame)
		return
	case u < r.first:
		w.report(s, NakNeverSent, uint64(psn.Wrap(r.first)), 0, 0)
		return
	case r.answered != 0 && u <= r.answered:
		// An older MSN tells a NAK that was overtaken on its way.
		if e := r.at(u - 1); e != nil && e.flags&hasMSN != 0 && r.trust > 1 && newer(w.f.Packet.AETH.MSN, e.msn) > 0 {
			w.report(s, NakAcknowledged, 0, 0, 0)
		} else {
			s.OutOfOrder++
			w.report(s, OutOfOrder, uint64(psn.Wrap(r.answered)), 0, 0)
		}
		return
	}
	if d := r.read(u); r.next == u+1 || d != nil && r.next == d.end {
		w.report(s, NakNothingLost, 0, 0, 0)
	}
	r.nakLast, r.nakFrame, r.nakIPID, r.nakAt = u, w.frames, w.f.ID, w.now
	w.before(s, r, u)
	r.nakSeen = r.at(u) != nil
	if r.nak.valid {
		r.nakOld = r.nak
	}
	r.nak = refusal{valid: true, psn: u, t: w.now}
}

// readResponse judges a READ response or an atomic acknowledgement.
func (w *Watcher) readResponse(s *stream, r *requester, payload int, hasAETH bool) {
	p := &w.f.Packet
	op := p.Opcode
	u := psn.Unwrap(r.next, p.PSN)
	d := r.read(u)
	atomic := op.Operation() == bth.AtomicAcknowledge
	if d == nil {
		w.good(s, payload)
		e := r.at(u)
		switch {
		case e != nil && atomic:
			w.report(s, AtomicOutside, uint64(e.op), uint64(op), e.frame)
		case e != nil:
			w.report(s, ReadOutside, uint64(e.op), uint64(op), e.frame)
		case u >= r.next && u >= r.voidTo && !r.spanOpen:
			w.ahead(s, r, u)
		default:
			w.size(s, payload)
		}
		return
	}
	isAtomic := d.op.Operation() == bth.CmpSwap || d.op.Operation() == bth.FetchAdd
	if isAtomic != atomic {
		if (d.open || d.guessed) && u != d.start {
			return // another request may have begun there, unseen
		}
		check := ReadOutside
		if atomic {
			check = AtomicOutside
		}
		w.report(s, check, uint64(d.op), uint64(op), 0)
		return
	}
	if !s.mtuFirm && (op.First() || op.Middle()) {
		w.size(s, payload) // teaches the MTU, which tells how far a READ reaches
	}
	if (d.open || d.guessed) && op.Operation() == bth.ReadResponseOnly && u == d.start && d.known && uint32(payload) == d.len {
		if d.open {
			r.spanOpen = false
		}
		d.open, d.guessed = false, false // it was one packet after all
		d.end, d.to = u+1, u+1
	}
	if hasAETH {
		if e := r.at(d.start); e != nil {
			w.msn(s, r, e, d.start, u >= r.acked)
		}
		w.creditLimit(s, r)
	}
	again := u < d.high
	late := !d.open && !d.guessed && r.answered >= d.end && !d.again && !again && w.calm(r) && w.now-r.answerAt < int64(w.cfg.MinTimeout)
	if late {
		w.report(s, ResponseLate, uint64(psn.Wrap(r.answered)), uint64(d.op), 0)
	}
	if atomic {
		w.atomicAck(s, r, d, again)
	} else {
		w.readData(s, r, d, u, payload, again)
	}
	s.rsp.lastFrame = w.frames
}

func (w *Watcher) atomicAck(s *stream, r *requester, d *read, again bool) {
	orig := w.f.Packet.AtomicAckETH.Orig
	if !w.full {
		return
	}
	if d.hasOrig && orig != d.orig {
		w.report(s, AtomicTwice, d.orig, orig, s.rsp.lastFrame)
	}
	d.orig, d.hasOrig = orig, true
	w.repeated(s, r, d, again)
	w.answer(s, r, d, d.start)
}

// repeated counts an answer that was given before.
func (w *Watcher) repeated(s *stream, r *requester, d *read, again bool) {
	if !again {
		return
	}
	s.Retransmitted++
	w.seen.Class = ClassResent
	if !d.again {
		w.seen.Class = ClassCopy
		s.Retransmitted--
		s.Duplicates++
		w.report(s, DuplicateResponse, 0, 0, 0)
	} else if r.copies > 0 {
		r.copies--
	}
}

// answer notes that the response at PSN u of d came.
func (w *Watcher) answer(s *stream, r *requester, d *read, u uint64) {
	if u > r.acked {
		w.cover(s, r, u-1)
	}
	r.acked = max(r.acked, u+1)
	r.advance(u, w.now)
	d.high = max(d.high, u+1)
	d.pos = u + 1
	d.lastT = w.now
	if !d.open && !d.guessed && u == d.end-1 && !d.done {
		d.done = true
		s.peerOr(w).MessagesDone++
		w.took(r, d.t, d.t)
	}
}

// readData judges a READ response. Rule RS-15.
func (w *Watcher) readData(s *stream, r *requester, d *read, u uint64, payload int, again bool) {
	op := w.f.Packet.Opcode
	if u > d.pos && !again {
		s.SequenceError++
		d.gap = true
		r.disturbed = w.now
		w.report(s, ReadSequenceGap, uint64(psn.Wrap(d.pos)), u-d.pos, 0)
	}
	if !again {
		w.good(s, payload)
	}
	w.repeated(s, r, d, again)
	// A middle or a lost request for the rest explains what seems wrong, unless
	// this is what follows at once on what came before.
	sure := u == d.from || u == d.pos && w.now-d.lastT < int64(w.cfg.MinTimeout)
	if !d.open && !d.guessed && u < d.to {
		// The answer to a request for the rest begins with First or Only.
		resumed := u != d.start && (op.First() || op.Operation() == bth.ReadResponseOnly) && !w.calm(r)
		w.readShape(s, d, u, payload, op, sure && !resumed)
	} else if (d.open || d.guessed) && d.known && payload > int(d.len) {
		w.report(s, ReadSize, uint64(d.len), uint64(payload), 0)
	}
	w.answer(s, r, d, u)
}

// place returns the operation of the response at PSN u of those in [from, to).
func place(u, from, to uint64) bth.Operation {
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

// readShape judges opcode and size of a response by its place.
func (w *Watcher) readShape(s *stream, d *read, u uint64, payload int, op bth.Opcode, sure bool) {
	whole, part := place(u, d.start, d.end), place(u, d.from, d.to)
	switch got := op.Operation(); {
	case got == part:
	case got == whole:
		if u == d.from {
			w.report(s, ReadResumedMiddle, 0, uint64(op), 0)
		}
	case got == place(u, d.was, d.end): // to the request before the last
	case sure && !d.partial:
		w.report(s, ReadOpcode, uint64(op.Service().Opcode(part)), uint64(op), 0)
		return
	default:
		return
	}
	if !d.known || d.op.Operation() != bth.ReadRequest {
		if d.known && payload != 0 {
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
	if want != payload && (d.to == d.end || u != d.to-1) && sure {
		w.report(s, ReadSize, uint64(want), uint64(payload), 0)
	}
}
