package conform

import (
	"github.com/roce-go/roce/cnp/pfc"
)

// pauser is one sender of pause frames.
type pauser struct {
	mac   [6]byte
	known bool
	until [pfc.Priorities]int64 // end of the pause by its own time; 0: not paused
	since [pfc.Priorities]int64
}

// pause handles a frame that is not RoCE.
func (w *Watcher) pause(b []byte) {
	var f pfc.Frame
	if f.Decode(b) != nil {
		return
	}
	w.seen.Class = ClassPaused
	p := &w.pausers[0]
	for i := range w.pausers {
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
		t := &w.pauses[prio]
		if since := p.since[prio]; since != 0 {
			end := w.now
			if u := p.until[prio]; u != 0 {
				end = min(end, u)
			}
			if end > since {
				t.Time += durationOf(end - since)
			}
			p.since[prio], p.until[prio] = 0, 0
		}
		if quanta == 0 {
			t.Resume++
			continue
		}
		t.Frames++
		p.since[prio] = w.now
		if w.cfg.LinkRate != 0 {
			p.until[prio] = w.now + int64(pfc.Duration(quanta, w.cfg.LinkRate))
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
			}
			p.since[prio], p.until[prio] = 0, 0
		}
	}
}
