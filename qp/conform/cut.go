package conform

import (
	"math/bits"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
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
		w.totals.past.Invalid++
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
func (w *Watcher) Clock() bool { return !w.clock.still }

// malformed handles a packet that could not be decoded. w.f.Packet holds an older one.
func (w *Watcher) malformed(err error) {
	b := w.f.Transport
	n := w.f.TransportLen
	w.full = false
	p := &w.f.Packet
	if len(b) < bth.Size {
		if n < bth.MinSize {
			w.totals.past.Invalid++
			*p = bth.Packet{}
			w.report(nil, LengthOpcode, 0, uint64(n), 0)
		}
		return
	}
	*p = bth.Packet{}
	_ = p.Header.Decode(b)
	s := w.stream()
	s.frame(w.now+w.clock.shift, w.wire)
	w.repeat = -1
	if err == bth.ErrTruncated && n >= bth.MinSize {
		// Extended headers are cut off: what the BTH says can be used.
		w.unchecked(s)
		id := w.identity()
		set := w.copies.setOf(id.sum)
		w.single(s, &id, &set)
		return
	}
	s.Invalid++
	w.seen.Class = ClassInvalid
	switch w.f.CheckICRC() {
	case frame.ICRCBad:
		w.badICRC(s)
		return
	case frame.ICRCUnchecked:
		w.unchecked(s)
	}
	s.void(p.PSN, w.now)
	switch err {
	case bth.ErrOpcode:
		w.report(s, OpcodeUnknown, 0, uint64(p.Opcode), 0)
	case bth.ErrVersion:
		w.report(s, VersionNotZero, 0, uint64(p.TVer), 0)
	default:
		w.report(s, LengthOpcode, uint64(p.Opcode), uint64(n), 0)
	}
}

func (w *Watcher) badICRC(s *stream) {
	s.ICRCBad++
	n := w.f.NetPacket
	w.report(s, ICRCBad, uint64(bits.ReverseBytes32(crc.Sum(n[:len(n)-crc.Size]))),
		uint64(bits.ReverseBytes32(crc.Stored(n))), 0)
}

// unchecked notes that the current packet, of flow s, has no ICRC.
func (w *Watcher) unchecked(s *stream) {
	w.vague = true
	s.ICRCUnchecked++
	w.leave(ICRCBad, ReasonSnaplen, 1)
}
