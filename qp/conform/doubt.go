package conform

import (
	"github.com/roce-go/roce/psn"
)

// doubt is an observation that only a frame lost by the capture, or a copy made by the
// network, explains. It is a breach when the flow shows no sign of these, or when it
// happens too often: see settle.
type doubt struct {
	check   Check
	n       int
	told    bool
	lone    bool // one case proves nothing
	frame   uint64
	earlier uint64
	t       int64
	psn     psn.PSN
	want    uint64
	got     uint64
	accused *stream
	key     key
}

const maxDoubts = 8

// often is how often a doubt must occur before it is a breach in a flow of which frames are
// missing. One lost frame explains one doubt, and leaves a sign of its own unless it is an
// acknowledgement. So when there are several times as many doubts as signs, they are not
// due to loss.
const often = 3

// doubt records an observation about the current frame.
func (w *Watcher) doubt(accused *stream, x *exchange, c Check, want, got, earlier uint64) {
	w.doubtful(accused, x, c, want, got, earlier, lone(c) || w.vague)
}

// hint is doubt, but one case of it proves nothing.
func (w *Watcher) hint(accused *stream, x *exchange, c Check, want, got, earlier uint64) {
	w.doubtful(accused, x, c, want, got, earlier, true)
}

func (w *Watcher) doubtful(accused *stream, x *exchange, c Check, want, got, earlier uint64, lone bool) {
	if w.cfg.Complete {
		w.report(accused, c, want, got, earlier)
		return
	}
	for i := range x.doubts {
		d := &x.doubts[i]
		if d.check != c {
			continue
		}
		d.n++
		d.lone = d.lone && lone
		if d.told {
			w.report(accused, c, want, got, earlier)
		} else if d.n >= often && d.n > 4*x.signs.against(c, accused) {
			d.told = true
			w.tell(d)
		}
		return
	}
	if len(x.doubts) == maxDoubts {
		w.leave(c, ReasonLoss, 1)
		return
	}
	x.doubts = append(x.doubts, doubt{check: c, n: 1, lone: lone, frame: w.frames, earlier: earlier, t: w.now, psn: w.f.Packet.PSN,
		want: want, got: got, accused: accused, key: accused.key})
}

// unlikely reports whether n or more of what happens by chance are too many to be due
// to that, where mean are expected: less than once in about a million times.
func unlikely(n int, mean float64) bool {
	p := 1.0 // Poisson's, but for the factor below 1
	for i := 1; i <= n && p > 0; i++ {
		p *= mean / float64(i)
	}
	return mean < float64(n) && p < 1e-6
}

// insists counts a breach that a packet without its ICRC shows, and reports whether
// there were more than damaged packets explain: several, and one of a hundred.
func (s *stream) insists(c Check) bool {
	n := &s.suspects[c]
	*n++
	return *n >= often && uint64(*n) > s.ICRCUnchecked/100
}

// unsure counts a response of s that fails check c beside a request which may be damaged,
// as the capture has no ICRC of it, and reports whether that proves nothing.
func (w *Watcher) unsure(s *stream, damaged bool, c Check) bool {
	if !damaged || w.vague || s.insists(c) {
		return false // of a response that may be damaged itself, report says the same
	}
	w.leave(c, ReasonSnaplen, 1)
	return true
}

// against returns how many signs there are of what would explain that s fails check c.
func (g *signs) against(c Check, s *stream) int {
	switch c {
	case NakRepeated, NakAfterFatal:
		return g.lost + g.copies
	case NakThenAcked, ReadUnanswered, RNRTooEarly:
		return g.lost + g.gaps + g.copies + g.late
	case AckNeverSent:
		return g.copies + g.late + int(s.Duplicates)
	case ResponseLate:
		// Of a response that was captured twice, the first may be one that is missing.
		return g.lost + g.late + g.copies + int(s.Duplicates)
	}
	return g.lost
}

func (w *Watcher) tell(d *doubt) {
	s := d.accused
	if s.key != d.key {
		return // closed since
	}
	w.reportAt(s, d.check, d.want, d.got, d.earlier, d.frame, d.t, d.psn)
}

// settle decides the doubts of a connection at its end: where the capture shows no sign
// that it lost a frame, none was lost.
func (w *Watcher) settle(x *exchange) {
	for i := range x.doubts {
		d := &x.doubts[i]
		switch {
		case d.told:
		case x.signs.against(d.check, d.accused) == 0 && !d.lone:
			w.tell(d)
		default:
			w.leave(d.check, ReasonLoss, uint64(d.n))
		}
	}
	x.doubts = x.doubts[:0]
	k := &x.nak
	for _, d := range [...]struct {
		c Check
		n int
	}{{GoBackTooFar, k.before}, {GoBackBeyond, k.beyond}, {NakIgnored, k.ignored}, {NakRepeated, k.doubled}} {
		if d.n > 0 {
			w.leave(d.c, ReasonLoss, uint64(d.n))
		}
	}
	k.before, k.beyond, k.ignored, k.doubled = 0, 0, 0, 0
}

// lone reports whether a single case of c proves nothing even in a capture that shows no
// sign of loss: the network may have reordered or lost it at a place that was not captured.
func lone(c Check) bool {
	switch c {
	case ResponseLate, NewDuringRNR, NakNothingLost, ReadUnanswered:
		return true
	}
	return false
}

// Reason is why something was not judged.
type Reason uint8

// Reasons.
const (
	ReasonLoss      Reason = iota // the capture lost frames, or the network may have
	ReasonOneWay                  // the other direction was not captured
	ReasonSnaplen                 // the capture cut the packets short
	ReasonClock                   // the time stamps are of no use
	ReasonUnpaired                // it is not known which two flows are one connection
	ReasonEncrypted               // the packets are encrypted
	ReasonCopies                  // packets were captured twice, and copies cannot be told from retransmissions
	reasons
)

var reasonTexts = [reasons]string{
	ReasonLoss:      "frames are missing in the capture, or were lost in a part of the network that was not captured",
	ReasonOneWay:    "the other direction was not captured",
	ReasonSnaplen:   "the snapshot length cut the packets short",
	ReasonClock:     "the time stamps do not advance",
	ReasonUnpaired:  "it is not known which two flows are one connection",
	ReasonEncrypted: "the packets are encrypted",
	ReasonCopies:    "packets were captured more than once, and nothing in them distinguishes copies from retransmissions, so that such counts are not exact",
}

// String says the reason.
func (r Reason) String() string {
	if r < reasons {
		return reasonTexts[r]
	}
	return "for another reason"
}

// leave counts n cases in which check c could not be made.
func (w *Watcher) leave(c Check, r Reason, n uint64) { w.unjudged[checks[c].rule][r] += n }

// NotJudged calls yield with each rule and reason for which something could not
// be judged, and how often, until it returns false.
func (w *Watcher) NotJudged(yield func(Rule, Reason, uint64) bool) {
	for r := range w.unjudged {
		for why, n := range w.unjudged[r] {
			if n != 0 && !yield(Rule(r), Reason(why), n) {
				return
			}
		}
	}
}
