package conform

import (
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
)

// maxPausers is how many senders of pause frames are counted separately.
const maxPausers = 16

// pauser is one sender of pause frames.
type pauser struct {
	mac   [6]byte
	known bool
	until [pfc.Priorities]int64 // end of the pause by its own time; 0: not paused
	since [pfc.Priorities]int64
	by    [pfc.Priorities]Pauses
}

// pause handles a frame that is not RoCE.
func (w *Watcher) pause(b []byte) bool {
	var f pfc.Frame
	if f.Decode(b) != nil {
		return false
	}
	w.seen.Class = ClassPaused
	p := &w.pausers[maxPausers] // of all further senders
	for i := range w.pausers[:maxPausers] {
		q := &w.pausers[i]
		if q.known && q.mac == f.Src {
			p = q
			break
		}
		if !q.known {
			p = q
			*p = pauser{mac: f.Src, known: true}
			break
		}
	}
	for prio := range w.pauses {
		quanta, ok := f.Time(prio)
		if !ok {
			continue
		}
		t, own := &w.pauses[prio], &p.by[prio]
		if since := p.since[prio]; since != 0 {
			end := w.now
			if u := p.until[prio]; u != 0 {
				end = min(end, u)
			}
			if end > since {
				t.Time += durationOf(end - since)
				own.Time += durationOf(end - since)
			}
			p.since[prio], p.until[prio] = 0, 0
		}
		if quanta == 0 {
			t.Resume++
			own.Resume++
			continue
		}
		t.Frames++
		own.Frames++
		p.since[prio] = w.now
		if w.cfg.LinkRate != 0 {
			p.until[prio] = w.now + int64(pfc.Duration(quanta, w.cfg.LinkRate))
		}
	}
	return true
}

// PausesBy calls yield with the pauses of each sender and priority, until it returns false.
// Beyond 16 senders, the others are counted together, under the zero address.
func (w *Watcher) PausesBy(yield func(mac frame.MAC, prio int, p Pauses) bool) {
	for i := range w.pausers {
		for prio, p := range w.pausers[i].by {
			if p != (Pauses{}) && !yield(w.pausers[i].mac, prio, p) {
				return
			}
		}
	}
}

// endPauses counts the pauses that end by their own time.
func (w *Watcher) endPauses() {
	for i := range w.pausers {
		p := &w.pausers[i]
		for prio := range p.since {
			if s, u := p.since[prio], p.until[prio]; s != 0 && u != 0 {
				w.pauses[prio].Time += durationOf(u - s)
				p.by[prio].Time += durationOf(u - s)
			}
			p.since[prio], p.until[prio] = 0, 0
		}
	}
}
