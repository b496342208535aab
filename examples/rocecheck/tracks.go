package main

import (
	"time"

	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// Limits of what is recorded for the page.
const (
	maxTracks = 256
	maxPoints = 4096 // in each of the two lists of a track
	maxBins   = 256
)

// point is a packet on a time line.
type point struct {
	t     int64  // nanoseconds since 1970
	psn   uint32 // as on the wire
	frame uint32
	class conform.Class
	rsp   bool // a response: its PSN is that of the other direction's requests
}

// sample is a list of points of bounded length: when it is full, every second point is
// removed, and from then on only every second new one is added.
type sample struct {
	points []point
	stride uint64
	seen   uint64
}

func (s *sample) add(p point) {
	if s.stride == 0 {
		s.stride = 1
	}
	if s.seen++; (s.seen-1)%s.stride != 0 {
		return
	}
	if len(s.points) == maxPoints {
		kept := s.points[:0]
		for i := 0; i < len(s.points); i += 2 {
			kept = append(kept, s.points[i])
		}
		s.points = kept
		s.stride *= 2
		if (s.seen-1)%s.stride != 0 {
			return
		}
	}
	s.points = append(s.points, p)
}

// bins count bytes over time. When the time exceeds the last bin, pairs of bins are merged.
type bins struct {
	start int64
	width int64 // nanoseconds; 0 before the first
	bytes [maxBins]uint64
	last  int
}

func (b *bins) add(t int64, n int) {
	if b.width == 0 {
		b.start, b.width = t, 1000
	}
	i := (t - b.start) / b.width
	for i >= maxBins {
		for j := range maxBins / 2 {
			b.bytes[j] = b.bytes[2*j] + b.bytes[2*j+1]
		}
		clear(b.bytes[maxBins/2:])
		b.width *= 2
		b.last /= 2
		i = (t - b.start) / b.width
	}
	i = max(i, 0)
	b.bytes[i] += uint64(n)
	b.last = max(b.last, int(i))
}

// track is what the page shows of a flow.
type track struct {
	plain   sample // new requests, ACKs, READ responses
	special sample // all others
	good    bins
	// Packets of each class, drawn or not.
	classes [conform.ClassManagement + 1]uint64
}

type tracks struct {
	byFlow map[int]*track
	pauses sample
	n      int
}

func newTracks() *tracks { return &tracks{byFlow: map[int]*track{}} }

// add records the frame that the watcher handled last.
func (t *tracks) add(w *conform.Watcher, at time.Time) {
	s := w.Last()
	p := point{t: at.UnixNano(), psn: uint32(s.PSN) & psn.Mask, class: s.Class, rsp: s.Response, frame: uint32(w.Frames())}
	if s.Class == conform.ClassPaused {
		t.pauses.add(p)
		return
	}
	if s.Flow < 0 || s.Class == conform.ClassOther {
		return
	}
	k := t.byFlow[s.Flow]
	if k == nil {
		if t.n >= maxTracks {
			return
		}
		t.n++
		k = &track{}
		t.byFlow[s.Flow] = k
	}
	k.classes[s.Class]++
	switch s.Class {
	case conform.ClassNew, conform.ClassAck, conform.ClassResponse, conform.ClassManagement:
		k.plain.add(p)
	default:
		k.special.add(p)
	}
	if s.Good > 0 {
		k.good.add(p.t, s.Good)
	}
}

// take removes and returns the track of a flow that is closed: its number may be used again.
func (t *tracks) take(flow int) *track {
	k := t.byFlow[flow]
	delete(t.byFlow, flow)
	return k
}
