package conform

import (
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
)

// maxPausers is how many senders of pause frames are counted separately.
const maxPausers = 16

// pauses are the PFC and PAUSE frames.
type pauses struct {
	all [pfc.Priorities]Pauses
	by  [maxPausers + 1]pauser // the last: all further senders
}

// pauser is one sender of pause frames.
type pauser struct {
	mac   frame.MAC
	known bool
	until [pfc.Priorities]int64 // end of the pause by its own time; 0: not paused
	since [pfc.Priorities]int64
	by    [pfc.Priorities]Pauses
}

// pause handles a frame that is not RoCE, and reports whether it was a pause.
func (w *Watcher) pause(b []byte) bool {
	var f pfc.Frame
	if f.Decode(b) != nil {
		return false
	}
	w.seen.Class = ClassPaused
	w.pauses.count(&f, w.now, w.cfg.LinkRate)
	return true
}

// of returns the sender with address mac.
func (t *pauses) of(mac frame.MAC) *pauser {
	for i := range t.by[:maxPausers] {
		p := &t.by[i]
		if !p.known {
			*p = pauser{mac: mac, known: true}
		}
		if p.mac == mac {
			return p
		}
	}
	return &t.by[maxPausers]
}

// count counts frame f, on a link of rate bits per second.
func (t *pauses) count(f *pfc.Frame, now int64, rate uint64) {
	p := t.of(f.Src)
	for prio := range t.all {
		quanta, ok := f.Time(prio)
		if !ok {
			continue
		}
		all, own := &t.all[prio], &p.by[prio]
		if since := p.since[prio]; since != 0 {
			end := now
			if u := p.until[prio]; u != 0 {
				end = min(end, u)
			}
			all.Time += durationOf(end - since)
			own.Time += durationOf(end - since)
			p.since[prio], p.until[prio] = 0, 0
		}
		if quanta == 0 {
			all.Resume++
			own.Resume++
			continue
		}
		all.Frames++
		own.Frames++
		p.since[prio] = now
		if rate != 0 {
			p.until[prio] = now + int64(pfc.Duration(quanta, rate))
		}
	}
}

// end counts the pauses that end by their own time.
func (t *pauses) end() {
	for i := range t.by {
		p := &t.by[i]
		for prio := range p.since {
			if s, u := p.since[prio], p.until[prio]; s != 0 && u != 0 {
				t.all[prio].Time += durationOf(u - s)
				p.by[prio].Time += durationOf(u - s)
			}
			p.since[prio], p.until[prio] = 0, 0
		}
	}
}

// PausesBy calls yield with the pauses of each sender and priority, until it returns false.
// Beyond 16 senders, the others are counted together, under the zero address.
func (w *Watcher) PausesBy(yield func(mac frame.MAC, prio int, p Pauses) bool) {
	for i := range w.pauses.by {
		for prio, p := range w.pauses.by[i].by {
			if p != (Pauses{}) && !yield(w.pauses.by[i].mac, prio, p) {
				return
			}
		}
	}
}
