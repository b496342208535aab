package conform

import (
	"github.com/roce-go/roce/bth/frame"
)

// sliced distinguishes frames that a switch or a mirror port has cut (they are shorter than
// their headers say, though the capture has all of them) from frames with wrong lengths: a
// device that cuts frames cuts all that are longer.
type sliced struct {
	longest [2]int // of the frames that are whole, outside of tunnels and inside
	cut     [2]slice
}

type slice struct {
	n     int
	size  int
	frame uint64
	t     int64
}

// cut checks the length of the current frame, of which the capture has n bytes of wireLen.
// It returns false when the headers have wrong lengths.
func (w *Watcher) cut(n, wireLen int) bool {
	f := &w.f
	if w.short = f.Truncated() && n >= wireLen; w.short {
		w.wire += f.TransportLen - len(f.Transport) // as it was before it was cut
	}
	in := 0
	if f.Outer.Len() > 0 {
		in = 1
	}
	g, c := &w.slices.longest[in], &w.slices.cut[in]
	switch {
	case !f.Truncated():
		*g = max(*g, n)
		if c.n > 0 && n > c.size {
			w.reportAt(nil, LengthFrame, 0, uint64(c.size), w.frames, c.frame, c.t, 0)
			c.n = 0
		}
	case n < wireLen: // by the snapshot length, as the capture says
	case n < *g || w.f.CheckIPv4() == frame.ChecksumBad:
		w.past.Invalid++
		w.seen.Class = ClassInvalid
		w.report(nil, LengthFrame, 0, uint64(n), 0)
		return false
	default:
		if c.n == 0 {
			*c = slice{size: n, frame: w.frames, t: w.now}
		}
		c.n++
		c.size = max(c.size, n)
	}
	return true
}

// endCuts reports frames that were cut, where no longer frame contradicts that.
func (w *Watcher) endCuts() {
	for i := range w.slices.cut {
		if c := &w.slices.cut[i]; c.n > 0 {
			w.reportAt(nil, LengthSliced, uint64(c.size), uint64(c.n), 0, c.frame, c.t, 0)
			c.n = 0
		}
	}
}

const maxOthers = 256

// note counts a frame that is not RoCE.
func (w *Watcher) note(p frame.Protocol) {
	if _, ok := w.others[p]; ok || len(w.others) < maxOthers {
		w.others[p]++
	}
}

// Others calls yield with the protocols of frames that were not RoCE, and the number of
// frames of each, in no order, until it returns false.
func (w *Watcher) Others(yield func(frame.Protocol, uint64) bool) {
	for p, n := range w.others {
		if !yield(p, n) {
			return
		}
	}
}

// Clock reports whether the time stamps of the RoCE frames advance.
func (w *Watcher) Clock() bool { return !w.still }
