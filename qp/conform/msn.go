package conform

import (
	"github.com/roce-go/roce/psn"
)

// messages holds what is known of the responder's MSN: after PSN at it lies in [lo,
// lo+width]. Each response narrows that, requests that the capture lost widen it. A
// response outside has no explanation, whatever was lost: between two PSNs whose requests
// were all seen, the MSN rises by the messages that end there.
type messages struct {
	known bool
	at    uint64
	lo    uint32
	width uint32
	wrong int // responses that were outside
	fits  int // responses in a row that were inside
	off   int // by how much the last response was outside, 0: it was not
}

// learn sets the MSN after PSN u to got-slack .. got.
func (m *messages) learn(u uint64, got, slack uint32) {
	m.known, m.at, m.lo, m.width, m.off = true, u, (got-slack)&psn.Mask, slack, 0
}

// newer returns by how much message number a is above b, modulo 2^24.
func newer(a, b uint32) int { return psn.PSN(a).Diff(psn.PSN(b)) }

// ends counts the messages that end in the PSNs (a, u], and those of them that
// were not seen, each of which may have ended one. least is how many of these
// must have: one where the hole lies between two messages. ok is false when u is
// too far away.
func (x *exchange) ends(a, u uint64) (ends, unseen, least uint32, ok bool) {
	if u-a > uint64(len(x.log.ring)) && u-a > 4096 {
		return 0, 0, 0, false
	}
	whole := true // the packet before ends a message
	hole := false
	for v := a + 1; v <= u; v++ {
		e := x.log.at(v)
		if e != nil && !answered(e.op) {
			if hole && whole && !e.op.Middle() && !e.op.Last() {
				least++
			}
			hole = false
			whole = e.flags&isEnd != 0
			if whole {
				ends++
			}
			continue
		}
		d := x.read(v)
		if d == nil {
			unseen++
			if !hole {
				prev := x.log.at(v - 1)
				whole = prev != nil && (prev.flags&isEnd != 0)
			}
			hole = true
			continue
		}
		if hole && whole && v == d.start && !d.is(isPartial) {
			least++
		}
		hole, whole = false, true
		if v == d.start {
			ends++
		}
		if d.vague() {
			// After its end, others may have begun.
			last := max(v, min(u, max(d.end, d.start+1)-1))
			unseen += uint32(last - v)
			if v != d.start {
				unseen++
			}
			whole = false
			v = last
			continue
		}
		v = max(v, min(u, d.end-1))
	}
	return ends, min(unseen, 1<<20), least, true
}

// readsAfter counts the READs and atomics right after PSN u. The Linux driver
// acknowledges a duplicate with the PSN of the newest SEND or WRITE and the MSN of
// all, so that the MSN may be above that of the PSN by so many.
func (x *exchange) readsAfter(u uint64) (n uint32) {
	v := u + 1
	if old := x.next - min(x.next, uint64(len(x.log.ring))); v < old && len(x.reads) > 0 {
		n, v = uint32(min(old-v, 1<<20)), old // nothing is remembered of these
	}
	for ; v < x.next && len(x.reads) > 0; n++ {
		if d := x.read(v); d != nil {
			v = max(d.end, v+1)
			continue
		}
		if x.log.at(v) != nil {
			break
		}
		v++ // not seen: it may have been one
	}
	return n
}

// endsAfter counts the messages that end above PSN u, as far as they were sent: a request
// that got a response was sent, even if it was not seen.
func (x *exchange) endsAfter(u uint64) uint32 {
	more := uint32(0)
	if x.heard >= x.next {
		more = uint32(min(x.heard+1-x.next, 1<<20))
	}
	if u+1 >= x.next {
		return more
	}
	n, unseen, _, ok := x.ends(u, x.next-1)
	if !ok {
		return 1 << 20
	}
	return n + unseen + more
}

// messageNumber judges the MSN of a response whose PSN is u, and which may count
// slack messages more than those that end up to u. Rule RS-13. It returns false
// when it is out of bounds.
func (w *Watcher) messageNumber(s *stream, x *exchange, u uint64, slack uint32) bool {
	got := w.f.Packet.AETH.MSN
	m := &x.count
	if u >= x.next {
		return true
	}
	if !m.known {
		m.learn(u, got, slack)
		return true
	}
	lo, width := m.lo, m.width
	var least uint32
	ok := true
	if u >= m.at {
		var ends, unseen uint32
		if ends, unseen, least, ok = x.ends(m.at, u); ok {
			lo = (lo + ends) & psn.Mask
			width += unseen
		}
	} else {
		var ends, unseen uint32
		if ends, unseen, _, ok = x.ends(u, m.at); ok {
			lo = (lo - ends - unseen) & psn.Mask
			width += unseen
		}
	}
	if !ok || width > 1<<20 {
		m.learn(u, got, slack)
		return true
	}
	d := newer(got, lo)
	if d >= 0 && d <= int(width+slack) {
		if d < int(least) && slack == 0 && m.width == 0 && u > m.at && m.fits >= 1 && m.wrong == 0 &&
			x.signs.late+x.signs.copies == 0 && x.signs.lost <= 1 && x.signs.gaps <= 1 {
			// No message ended in the gap, though one must have: the PSNs were not seen
			// because they were not sent.
			w.report(s.peerOr(w), PSNSkipped, uint64(psn.Wrap(u)), uint64(least), 0)
		}
		m.off = 0
		m.fits++
		if u >= m.at {
			// The true number lies in [got-slack, got] and in [lo, lo+width].
			from, to := max(0, d-int(slack)), min(int(width), d)
			m.at, m.lo, m.width = u, (lo+uint32(from))&psn.Mask, uint32(to-from)
		}
		return true
	}
	if w.mispaired(s) {
		return true
	}
	m.fits = 0
	m.wrong++
	if m.off == d {
		// Twice by the same number: one of those before was wrong, or it is another QP.
		m.learn(u, got, slack)
		return true
	}
	m.off = d
	var earlier uint64
	if e := x.log.at(u); e != nil {
		earlier = e.frame
	}
	want := lo
	if d > 0 {
		want = (lo + width) & psn.Mask
	}
	w.report(s, MSNWrong, uint64(want), uint64(got), earlier)
	return false
}

// numberAt returns the greatest MSN after PSN u that is possible, or false.
func (x *exchange) numberAt(u uint64) (uint32, bool) {
	m := &x.count
	if !m.known || m.at < x.first {
		return 0, false
	}
	if u >= m.at {
		n, unseen, _, ok := x.ends(m.at, min(u, x.next-1))
		return (m.lo + m.width + n + unseen) & psn.Mask, ok
	}
	n, _, least, ok := x.ends(max(u, x.first-1), m.at)
	return (m.lo + m.width - n - least) & psn.Mask, ok
}
