package conform

// cause is why a requester retransmits something.
type cause uint8

// Causes.
const (
	causeUnknown cause = iota // none was seen: the capture has lost it
	causeNAK                  // a NAK sequence error: rule RQ-23
	causeImplied              // a response to something later: rule RQ-24
	causeRNR                  // an RNR NAK: rule RQ-28
	causeTimer                // no response was received: rule RQ-31
)

// why returns the cause of the retransmission of PSN u; e and d are what was seen of it
// before.
func (w *Watcher) why(s *stream, x *exchange, u uint64, e *entry, d *read) cause {
	last := x.last.at
	if e != nil {
		last = e.last
	}
	timer := !w.quick(max(last, min(x.answerAt, last)))
	op := w.f.Packet.Opcode
	if r := &x.rnr; r.valid && u == r.psn {
		since := w.now - r.t
		if since <= 2*int64(x.wait)+int64(w.cfg.MinTimeout) {
			return causeRNR
		}
	}
	// A packet that fills a gap which appeared after the NAK was reordered, not
	// retransmitted.
	after := func(t int64) bool { return e == nil && d == nil && x.last.gap > t }
	if x.nak.open.valid && w.quick(x.nak.open.t) {
		switch {
		case x.implied.valid && u == x.implied.psn && x.implied.frame > x.nak.open.frame && u != x.nak.open.psn:
			return causeImplied
		case u > x.nak.open.psn && after(x.nak.open.t):
		case u >= x.nak.open.psn:
			return causeNAK
		case answered(op):
			return causeImplied
		}
	}
	if x.implied.valid && u == x.implied.psn && w.quick(x.implied.t) && x.implied.frame > x.nak.old.frame {
		return causeImplied
	}
	if x.nak.old.valid && u >= x.nak.old.psn && w.quick(x.nak.old.t) && !after(x.nak.old.t) && !(x.back.active && x.back.frame > x.nak.old.frame) {
		return causeNAK
	}
	if n := x.nak.onWay(u); n != nil && w.quick(n.t) && !after(n.t) && !(x.back.active && u == x.back.next && x.back.frame > n.frame) && !w.spaced(s) {
		return causeNAK
	}
	if x.implied.valid && u >= x.implied.psn && w.quick(x.implied.t) {
		return causeImplied
	}
	if answered(op) && x.heard > u && w.quick(x.heardAt) && !timer {
		return causeImplied
	}
	if d != nil && (d.is(hasGap) || d.pos > d.start) && w.quick(d.lastT) && d.lastT != d.t {
		return causeImplied
	}
	// The Linux driver's timer keeps running during RNR waits and retransmissions, as long
	// as there is no progress.
	if timer || e != nil && w.repeat < 0 && e.sends < 255 && !w.quick(e.first) && e.last != e.first && u >= x.acked-min(x.acked, 1) {
		return causeTimer
	}
	return causeUnknown
}

// onWay returns the NAK for PSN u that the requester has not reacted to yet, or nil.
func (k *naks) onWay(u uint64) *refusal {
	for i := range k.way {
		if n := &k.way[i]; n.valid && n.psn == u {
			return n
		}
	}
	return nil
}

// heed marks the NAK for PSN u as received by the requester, which has gone back to u. One
// for a lower PSN stays: a packet with a higher PSN may be late, and the requester may go
// back to it yet.
func (k *naks) heed(u uint64) {
	for i := range k.way {
		if k.way[i].psn == u {
			k.way[i].valid = false
		}
	}
}

// causes counts a retransmission by what caused it.
func (x *exchange) causes(s *stream, c cause) {
	switch c {
	case causeNAK:
		s.PacketSeqErr++
	case causeImplied:
		s.ImpliedNakSeqErr++
	case causeRNR:
		s.RNRNakRetry++
	case causeTimer:
		s.LocalAckTimeoutErr++
	default:
		s.UnknownCause++
	}
}
