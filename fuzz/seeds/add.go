package seeds

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/internal/records"
)

// Limit is the maximum number of bytes of seeds that one call adds to a target.
const Limit = 40_000

// Target receives seeds: a *testing.F.
type Target interface {
	Add(args ...any)
	Helper()
	Fatal(args ...any)
}

// Feeder adds a corpus to a target, each seed once, and at most Limit bytes in each call.
type Feeder struct {
	c  *Corpus
	to Target
}

var own = sync.OnceValues(Captures)

// Into returns a Feeder of the module's own captures, and of those that the environment
// variable ROCE_CAPTURES names, for a target.
func Into(to Target) *Feeder {
	to.Helper()
	c, err := own()
	if err != nil {
		to.Fatal(err)
	}
	return c.Into(to)
}

// Into returns a Feeder of c for a target.
func (c *Corpus) Into(to Target) *Feeder { return &Feeder{c, to} }

// Each adds the result of args for each chosen frame to the target, RoCE or not; nil adds no
// seed.
func (f *Feeder) Each(args func(*Frame) []any) {
	add := f.adder()
	for _, s := range f.c.Chosen {
		add(args(s))
	}
}

// Packets is Each for the frames that hold a whole RoCE packet.
func (f *Feeder) Packets(args func(*Frame) []any) {
	f.Each(func(s *Frame) []any {
		if !s.RoCE || s.Frame.Truncated() {
			return nil
		}
		return args(s)
	})
}

// Headers adds the extended headers of packets that have one of a set to the target, from the
// first of them on.
func (f *Feeder) Headers(set bth.Ext) {
	f.Packets(func(s *Frame) []any {
		e := s.Frame.Packet.Opcode.Ext()
		if e&set == 0 {
			return nil
		}
		first := e & set & -(e & set)
		b := s.Frame.Transport[bth.Size+(e&(first-1)).Size():]
		return []any{b[:min(len(b), 40)]}
	})
}

// Starts adds the start of each capture file to the target, in which the last record is
// truncated: a case of its own.
func (f *Feeder) Starts() {
	add := f.adder()
	for _, file := range f.c.byNews(1500) {
		add([]any{file.Bytes[:min(len(file.Bytes), 1500)]})
	}
}

// Flows adds the first frames of each capture, from the first RoCE frame on, to the target,
// packed into one input: for each frame two bytes of length, big-endian, one byte that mode
// returns for frame i, and the frame.
func (f *Feeder) Flows(mode func(i int) byte, args func([]byte) []any) {
	add := f.adder()
	for _, file := range f.c.byNews(2500) {
		var b []byte
		for i, s := range file.beginning(2500) {
			b = records.Append(b, mode(i), s.Data)
		}
		if b != nil {
			add(args(b))
		}
	}
}

func (f *Feeder) adder() func(args []any) {
	left := Limit
	seen := map[string]bool{}
	return func(args []any) {
		if args == nil {
			return
		}
		size := 0
		for i, v := range args {
			if b, ok := v.([]byte); ok {
				args[i] = bytes.Clone(b) // a target may write to its input
				size += len(b)
			}
		}
		key := fmt.Sprint(args)
		if size > left || seen[key] {
			return
		}
		seen[key] = true
		left -= size
		f.to.Add(args...)
	}
}
