package conform

// cover completes all requests up to and with PSN u, as far as their responses were seen. s
// is the responder's flow. A READ whose responses are missing stops it: either the
// requester lacks them too and goes back (rule RQ-24), or the capture has lost them.
func (w *Watcher) cover(s *stream, x *exchange, u uint64) {
	t := s.peerOr(w)
	if u >= x.next {
		u = x.next - 1
	}
	if u < x.acked || len(x.log.ring) == 0 {
		return
	}
	if n := uint64(len(x.log.ring)); u-x.acked >= n {
		x.acked = u - n + 1
	}
	missing := uint64(0)
	v := x.acked
	for ; v <= u; v++ {
		e := x.log.at(v)
		if e != nil && !answered(e.op) {
			if e.flags&(isEnd|isDone) == isEnd {
				e.flags |= isDone
				t.MessagesDone++
				if e.flags&isMeasured == 0 && (e.flags&asked != 0 || v == u) {
					e.flags |= isMeasured
					e.done = w.now
					w.took(x, w.now-e.first, w.now-e.start, 1)
				}
			}
			continue
		}
		d := x.read(v)
		if d == nil {
			if v >= max(x.first, x.undone) {
				missing++
			}
			continue
		}
		if !d.is(isDoneR) {
			if w.awaits(s, x, d, u) {
				break
			}
			if d.end-1 <= u || d.vague() {
				d.flags |= isDoneR
				t.MessagesDone++
			}
		}
		if d.end > v {
			v = d.end - 1 // the loop continues after it
		}
	}
	if missing > 0 {
		t.CaptureLost += missing
		x.signs.disturbed = w.now
		x.signs.lost++
		w.report(s, CaptureLost, 0, missing, 0)
	}
	x.acked = max(x.acked, min(v, x.next))
	if x.rnr.valid && x.rnr.psn < x.acked {
		x.rnr.valid = false
	}
	if x.nak.open.valid && x.nak.open.psn < x.acked {
		x.nak.old, x.nak.open.valid = x.nak.open, false
	}
}

// awaits reports whether d, which is not complete though PSN u got a response, will be
// requested again.
func (w *Watcher) awaits(s *stream, x *exchange, d *read, u uint64) bool {
	if d.vague() {
		return false
	}
	if u < d.end {
		return !x.over || u+1 < d.end
	}
	if !x.over && !d.is(isPassed) {
		if d.asks >= 4 && d.high == d.start {
			w.doubt(s, x, ReadUnanswered, uint64(d.op), uint64(d.asks), d.frame)
		}
		d.flags |= isPassed
		d.lastT = w.now
		x.implied = refusal{valid: true, psn: d.whole, by: u, t: w.now, frame: w.frames}
		x.acked = max(x.acked, d.whole)
		return true
	}
	if !x.over && w.quick(d.lastT) && x.next-x.acked < uint64(w.cfg.Window)/2 {
		return true
	}
	// It was not requested again. The requester had the response; the capture lost it.
	if !x.over {
		x.signs.lost++
	}
	w.leave(ReadOpcode, ReasonLoss, 1)
	if x.implied.valid && x.implied.psn < d.end {
		x.implied.valid = false
	}
	return false
}

// undo marks PSN u and those above it as not complete: the requester retransmits u, so it
// does not have the response.
func (w *Watcher) undo(s *stream, x *exchange, u uint64) {
	x.reach = min(x.reach, u-1)
	if u >= x.acked || u < x.first {
		return
	}
	x.undone = max(x.undone, x.acked)
	for v := max(u, x.acked-min(x.acked, uint64(len(x.log.ring)))); v < x.acked; v++ {
		if e := x.log.at(v); e != nil && e.flags&isDone != 0 {
			e.flags &^= isDone
			s.MessagesDone--
			if e.flags&isMeasured != 0 {
				e.flags &^= isMeasured
				w.took(x, e.done-e.first, e.done-e.start, -1)
			}
		}
	}
	for i := range x.reads {
		d := &x.reads[i]
		if d.end <= u || !d.is(isDoneR) {
			continue
		}
		d.flags &^= isDoneR | isPassed
		d.whole = min(d.whole, max(u, d.start))
		s.MessagesDone--
		if d.took >= 0 {
			w.took(x, d.took, d.took, -1)
			d.took = -1
		}
	}
	x.acked = u
}

// took adds the latency of a request that is complete now; with n = -1 it removes it.
func (w *Watcher) took(x *exchange, latency, completion int64, n int) {
	for _, h := range [...]struct {
		h *Histogram
		d int64
	}{{&x.latency, latency}, {&x.completion, completion}, {&w.totals.latency, latency}, {&w.totals.completion, completion}} {
		if n > 0 {
			h.h.add(h.d)
		} else {
			h.h.remove(h.d)
		}
	}
}

// recount counts, at the end, the requests that were complete once and not retransmitted
// after.
func (w *Watcher) recount(s *stream, x *exchange) {
	if s.peer >= 0 && x.answered > 0 && x.answered < x.next && x.answered >= x.acked {
		x.over = true
		w.cover(w.flows.all[s.peer], x, x.answered)
		x.over = false
	}
	for v := x.acked; v < x.undone && v < x.acked+uint64(len(x.log.ring)); v++ {
		if e := x.log.at(v); e != nil && e.flags&(isEnd|isDone|isTail) == isEnd && !answered(e.op) {
			e.flags |= isDone
			s.MessagesDone++
		}
	}
	for i := range x.reads {
		if d := &x.reads[i]; !d.is(isDoneR) && (d.end <= x.undone || d.is(isPassed)) {
			d.flags |= isDoneR
			s.MessagesDone++
		}
	}
}
