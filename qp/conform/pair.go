package conform

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// pair finds the flow whose requests s responds to: in the other direction between the same
// addresses, with the current PSN outstanding.
func (w *Watcher) pair(s *stream) *stream {
	if s.peer >= 0 {
		p := w.flows.all[s.peer]
		x := p.req
		if s.pairedBy == pairCM || x == nil || !x.started || s.pairedBy == pairPort && portsTell(s, p) {
			w.hit(s)
			return p
		}
		if s.hits < sureHits {
			if t := w.byPort(s); t != nil && t != p {
				x.count.known = false // what it learned may belong to another flow
				w.join(s, t, pairPort)
				return t
			}
		}
		u := psn.Unwrap(x.next, w.f.Packet.PSN)
		d := int64(u) - int64(x.next)
		if !s.firm && s.hits < 2 && w.fits(x, u) != fit {
			d = 1 << 16 // a guess that this contradicts
		}
		if d < 1<<16 && d > -1<<16 {
			// A response without a request may be to another QP, when this one's number is
			// reused.
			if s.rsp.dead || u < x.acked && u >= x.first || u >= x.next && !x.spanOpen {
				if t := w.candidate(s, true); t != nil && (s.rsp.dead || x.owed == 0 && x.undone == 0 && x.signs.copies == 0 || t.req.last.at > x.last.at) {
					w.report(s, Restarted, uint64(psn.Wrap(x.next)), 0, 0)
					s.rsp = responder{}
					w.join(s, t, pairGuessed)
					return t
				}
			}
			w.hit(s)
			return p
		}
		if s.hits > 2 || s.firm && w.only(s) {
			return p
		}
		x.unlearn()
		s.peer, p.peer = -1, -1
		s.peerQP, p.peerQP = 0, 0
	}
	if t := w.byPort(s); t != nil {
		w.join(s, t, pairPort)
		return t
	}
	if t := w.candidate(s, false); t != nil {
		w.join(s, t, pairGuessed)
		return t
	}
	return nil
}

// sureHits is how many responses have to fit a guessed pair before it counts as right.
const sureHits = 8

// hit counts that the current packet fits the pair of s. The middle of a READ fits the
// middle of any other.
func (w *Watcher) hit(s *stream) {
	if w.f.Packet.Opcode.Operation() != bth.ReadResponseMiddle {
		s.hits++
	}
}

// portsTell reports whether the UDP source port of both flows is the one that follows from
// the QP numbers of a pair: many cards derive it from these.
func portsTell(s, t *stream) bool {
	return s.sport >= 0xc000 && s.sport == t.sport && s.sport == frame.SourcePort(frame.FlowLabel(s.qp, t.qp))
}

// byPort returns the flow that the UDP source ports show to be the other
// direction of s, or nil.
func (w *Watcher) byPort(s *stream) *stream {
	if s.sport < 0xc000 || s.tries > 64 && s.tries%64 != 0 {
		return nil
	}
	for t := range w.lively {
		if t.src == s.dst && t.dst == s.src && t.grh == s.grh && t.net == s.net && t.req != nil && t.req.started && t != s &&
			(t.peer < 0 || t.peer == s.id || t.pairedBy == pairGuessed) && portsTell(s, t) &&
			w.fits(t.req, psn.Unwrap(t.req.next, w.f.Packet.PSN)) == fit { // some cards use one port for all
			return t
		}
	}
	return nil
}

// maxLively is how many flows are searched for the other direction of one.
const maxLively = 1024

// lively calls yield with the flows that were active recently, the newest first.
func (w *Watcher) lively(yield func(*stream) bool) {
	i := w.flows.newest
	for range maxLively {
		if i < 0 || w.now-w.last(w.flows.all[i]) > int64(w.cfg.Idle) || !yield(w.flows.all[i]) {
			return
		}
		i = w.flows.all[i].older
	}
}

// mispaired is called when a response contradicts its request. It separates a pair that was
// guessed and is not yet certain, where the response may belong to another flow.
func (w *Watcher) mispaired(s *stream) bool {
	if s.pairedBy != pairGuessed || s.hits >= sureHits || s.peer < 0 ||
		s.firm && !(w.early(s) && !w.only(s)) && !w.rivals(s) {
		return false
	}
	p := w.flows.all[s.peer]
	if p.req != nil {
		p.req.count.known = false
	}
	s.peer, p.peer = -1, -1
	s.peerQP, p.peerQP = 0, 0
	w.leave(MSNWrong, ReasonUnpaired, 1)
	return true
}

// early reports whether a response of s may be to a request that was sent before the
// capture began, or before what was seen was forgotten.
func (w *Watcher) early(s *stream) bool {
	return !w.cfg.Complete && w.now-max(w.clock.begun, s.since) < int64(w.cfg.MinTimeout)
}

// fitness is how well a response fits what was requested with its PSN.
type fitness uint8

const (
	unfit   fitness = iota
	unknown         // no request with the PSN was seen
	fit
)

func (w *Watcher) fits(x *exchange, u uint64) fitness {
	op := w.f.Packet.Opcode
	d, e := x.read(u), x.log.at(u)
	switch {
	case d != nil:
		kind := d.op.Operation() == bth.CmpSwap || d.op.Operation() == bth.FetchAdd
		switch op.Operation() {
		case bth.Acknowledge:
			if w.full && w.f.Packet.AETH.Syndrome.Kind() == aeth.Nak {
				return fit
			}
			return unfit
		case bth.AtomicAcknowledge:
			if kind {
				return fit
			}
			return unfit
		}
		if kind || !d.vague() && !d.is(isAgain) && op.Operation() != position(u, d.start, d.end) {
			return unfit
		}
		if op.Operation() == bth.ReadResponseOnly && d.is(isKnown) && !d.is(isAgain) && w.f.PayloadLen() != int(d.len) {
			return unfit
		}
		return fit
	case e == nil:
		return unknown
	case op.Operation() == bth.Acknowledge:
		return fit
	}
	return unfit
}

// candidate returns the flow without a peer that the current packet, of s, fits best as a
// response; nil when there is none or more than one, or when it is in doubt. With recent,
// its last request must be too recent for a time-out.
func (w *Watcher) candidate(s *stream, recent bool) *stream {
	if s.tries++; s.tries > 64 && s.tries%64 != 0 {
		return nil // it searches all flows
	}
	op := w.f.Packet.Opcode
	var best *stream
	rank := 0
	unique, firm := true, false
	for t := range w.lively {
		if t.src != s.dst || t.dst != s.src || t.grh != s.grh || t.peer >= 0 || t.req == nil || !t.req.started ||
			t.service.Service() != op.Service() {
			continue
		}
		x := t.req
		u := psn.Unwrap(x.next, w.f.Packet.PSN)
		ahead := u >= x.next && !(x.spanOpen && u < x.open().most())
		before := u < x.acked && !(w.cfg.Complete && x.acked == x.first && u+64 >= x.first)
		if before || ahead && (!w.cfg.Complete || u >= x.next+64) {
			continue
		}
		fits := w.fits(x, u)
		n := 1 + 8*int(fits)
		fresh := w.now-x.last.at < int64(w.cfg.MinTimeout)
		if fresh {
			n += 20 // a response comes within a round trip
		} else if recent || n <= 9 {
			continue
		}
		if fits == unfit && w.early(s) && (x.read(u) == nil || op.Operation() == bth.Acknowledge) {
			continue
		}
		if t.qp == s.qp {
			n++
		}
		if t.net == s.net {
			n += 4
		}
		if t.sport == s.sport {
			n++
		}
		switch {
		case n > rank:
			best, rank, unique, firm = t, n, true, fresh && fits != unknown
		case n == rank:
			unique = false
		}
	}
	if best == nil || !unique {
		return nil // s may have a peer, and be sure of it
	}
	s.firm = firm
	return best
}

// unlearn discards what was learned from responses that perhaps belong to another flow.
func (x *exchange) unlearn() {
	x.count.known = false
	x.answered = 0
}

// join makes s and t the two directions of a connection.
func (w *Watcher) join(s, t *stream, by pairing) {
	for _, x := range [2]*stream{s, t} {
		if x.peer < 0 || x.peer == s.id || x.peer == t.id {
			continue
		}
		old := w.flows.all[x.peer]
		old.peer = -1
		for _, y := range [2]*stream{x, old} {
			if y.req != nil {
				y.req.unlearn()
			}
		}
	}
	s.peer, t.peer = t.id, s.id
	s.peerQP, t.peerQP = t.qp, s.qp
	s.pairedBy, t.pairedBy = by, by
	s.hits = 0
	for _, x := range [2]*stream{s, t} {
		x.rsp.dead = false // the NAK was to another QP
	}
	switch {
	case s.mtuFirm && !t.mtuFirm:
		w.learnMTU(s, s.mtu, true)
	case t.mtuFirm && !s.mtuFirm:
		w.learnMTU(t, t.mtu, true)
	}
}

// only reports whether s and its peer are the only flows of their service between
// two addresses, so that whatever s acknowledges is the peer's, or was never sent.
func (w *Watcher) only(s *stream) bool {
	for t := range w.lively {
		ends := t.src == s.src && t.dst == s.dst || t.src == s.dst && t.dst == s.src
		if ends && t.id != s.id && t.id != s.peer && t.service.Service() == s.service.Service() {
			return false
		}
	}
	return true
}

// rivals reports whether the current packet of s might be a response to another flow: one
// that is not paired for certain, is not idle, and has similar PSNs.
func (w *Watcher) rivals(s *stream) bool {
	for t := range w.lively {
		if t.src != s.dst || t.dst != s.src || t.req == nil || !t.req.started || t.peer == s.id ||
			t.peer >= 0 && (t.pairedBy != pairGuessed || w.flows.all[t.peer].hits >= sureHits) {
			continue
		}
		if u := psn.Unwrap(t.req.next, w.f.Packet.PSN); u+64 >= t.req.acked && u < t.req.next+64 &&
			w.now-t.req.last.at < 10*int64(w.cfg.MinTimeout) {
			return true
		}
	}
	return false
}
