package mutator

import (
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// Record is a frame of a capture.
type Record struct {
	Time    time.Time
	Link    frame.Link
	Data    []byte // what was captured
	WireLen int    // bytes that it had on the wire

	// Number is that of the frame in its run, from 0, and Again is set on a copy that a
	// Stream sends a second time. Replay and Push ignore them.
	Number uint64
	Again  bool
}

// Stream changes frames and their order: frames in by Push, frames out by Next. Frame number
// n is the one of the nth Push, from 0, and its bytes are those that Mutate builds. It must
// be used by one goroutine at a time.
type Stream struct {
	m     *Mutator
	kinds Kinds // of SequenceKinds
	n     uint64
	last  time.Time
	cur   slot
	rep   Report

	held    []*slot // waiting, in the order of their Push
	free    []*slot
	old     []slot // a ring of frames sent, for ReplayOld
	oldNext int
	oldLen  int
	replay  slot

	out  []outgoing
	next int
}

type slot struct {
	rec   Record
	buf   []byte
	after int       // frames still to wait for
	due   time.Time // or the time to wait for; zero: none
}

type outgoing struct {
	s     *slot
	at    time.Time
	again bool
	held  bool // s is free again after the next Push
}

// NewStream returns a stream, or ErrConfig. It allocates its memory here,
// about 2 x Hold x MaxFrame bytes; only frames longer than MaxFrame make it grow.
func NewStream(cfg Config) (*Stream, error) {
	m, err := New(cfg)
	if err != nil {
		return nil, err
	}
	cfg = m.cfg
	s := &Stream{m: m, kinds: cfg.Kinds.And(SequenceKinds)}
	buf := func() []byte { return make([]byte, 0, cfg.MaxFrame+room) }
	s.cur.buf = buf()
	if s.kinds.Has(Reorder) || s.kinds.Has(Delay) {
		for range cfg.Hold {
			s.free = append(s.free, &slot{buf: buf()})
		}
		s.held = make([]*slot, 0, cfg.Hold)
	}
	if s.kinds.Has(ReplayOld) {
		s.old = make([]slot, cfg.Hold)
		for i := range s.old {
			s.old[i].buf = buf()
		}
		s.replay.buf = buf()
	}
	s.out = make([]outgoing, 0, cfg.Hold+4)
	return s, nil
}

// Push changes the next frame, of which nothing is kept, and returns what was done to it.
// Call Next after it until it reports false: frames that are not fetched are lost. The report
// is valid until the next Push.
func (s *Stream) Push(rec *Record) *Report {
	s.reuse()
	n := s.n
	s.n++
	s.last = rec.Time
	s.due(rec.Time)

	c := &s.cur
	c.buf = s.m.Mutate(n, rec.Link, rec.Data, rec.WireLen, c.buf[:0], &s.rep)
	c.rec = Record{Time: rec.Time, Link: rec.Link, Data: c.buf, WireLen: len(c.buf), Number: n}
	if s.rep.Kept {
		// A frame that was not changed and that the capture had truncated is still truncated.
		c.rec.WireLen = max(rec.WireLen, len(c.buf))
	}
	s.order(rec.Time)
	s.counted(rec.Time)
	return &s.rep
}

// order decides about the position of the current frame.
func (s *Stream) order(now time.Time) {
	m, c := s.m, &s.cur
	kind := None
	m.seed(s.rep.Frame, sequenceChoices)
	if k := s.kinds.Len(); !s.rep.Kept && k > 0 && (s.kinds == m.cfg.Kinds || m.rng.IntN(4) == 0) {
		kind = s.kinds.nth(m.rng.IntN(k))
	}
	switch kind {
	case Drop:
		s.rep.add(Drop, 1, 0)
		return
	case Reorder, Delay:
		if s.hold(kind, now) {
			return
		}
	}
	s.out = append(s.out, outgoing{s: c, at: now})
	switch kind {
	case Duplicate:
		s.rep.add(Duplicate, 1, 2)
		s.out = append(s.out, outgoing{s: c, at: now, again: true})
	case ReplayOld:
		if s.oldLen == 0 {
			break
		}
		o := &s.old[m.rng.IntN(s.oldLen)]
		s.replay.buf = append(s.replay.buf[:0], o.buf...)
		s.replay.rec = o.rec
		s.replay.rec.Data = s.replay.buf
		s.rep.add(ReplayOld, s.rep.Frame, o.rec.Number)
		s.out = append(s.out, outgoing{s: &s.replay, at: now, again: true})
	}
	if len(s.old) > 0 {
		o := &s.old[s.oldNext]
		o.buf = append(o.buf[:0], c.buf...)
		o.rec = c.rec
		s.oldNext = (s.oldNext + 1) % len(s.old)
		s.oldLen = min(s.oldLen+1, len(s.old))
	}
}

// hold keeps the current frame for later, or reports false when there is no room.
func (s *Stream) hold(kind Kind, now time.Time) bool {
	if len(s.free) == 0 {
		return false
	}
	h := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	// The buffers are swapped, so that nothing is copied.
	h.buf, s.cur.buf = s.cur.buf, h.buf
	h.rec, h.after, h.due = s.cur.rec, 0, time.Time{}
	if kind == Reorder {
		h.after = 1 + s.m.rng.IntN(8)
		s.rep.add(Reorder, 0, uint64(h.after))
	} else {
		d := time.Microsecond << s.m.rng.IntN(18)
		d += time.Duration(s.m.rng.Int64N(int64(d)))
		h.due = now.Add(d)
		s.rep.add(Delay, 0, uint64(d))
	}
	s.held = append(s.held, h)
	return true
}

// due sends the delayed frames whose time has come, the earliest first.
func (s *Stream) due(now time.Time) {
	for {
		best := -1
		for i, h := range s.held {
			if !h.due.IsZero() && !h.due.After(now) && (best < 0 || h.due.Before(s.held[best].due)) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		s.release(best, s.held[best].due)
	}
}

// counted sends the frames that waited for enough others.
func (s *Stream) counted(now time.Time) {
	for i := 0; i < len(s.held); {
		h := s.held[i]
		if !h.due.IsZero() || h.rec.Number == s.rep.Frame {
			i++
			continue
		}
		if h.after--; h.after > 0 {
			i++
			continue
		}
		s.release(i, now)
	}
}

func (s *Stream) release(i int, at time.Time) {
	s.out = append(s.out, outgoing{s: s.held[i], at: at, held: true})
	s.held = append(s.held[:i], s.held[i+1:]...)
}

func (s *Stream) reuse() {
	for _, o := range s.out {
		if o.held {
			s.free = append(s.free, o.s)
		}
	}
	s.out, s.next = s.out[:0], 0
}

// Next returns a frame, or reports false when there is no more before the next Push
// or Flush, until which its Data is valid. Times do not go back where those of
// Push do not.
func (s *Stream) Next(rec *Record) bool {
	if s.next == len(s.out) {
		return false
	}
	o := &s.out[s.next]
	s.next++
	*rec = o.s.rec
	rec.Time, rec.Again = o.at, o.again
	return true
}

// Flush releases, through Next, the frames that are still held back: those that wait for
// frames now, then the delayed ones in the order of their times.
func (s *Stream) Flush() {
	s.reuse()
	for i := 0; i < len(s.held); {
		if s.held[i].due.IsZero() {
			s.release(i, s.last)
		} else {
			i++
		}
	}
	s.due(s.last.Add(time.Hour))
}
