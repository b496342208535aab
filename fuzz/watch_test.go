package fuzz_test

import (
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/qp/conform"
)

// A record's mode in FuzzWatch: four bits of time, and four that choose what the
// capture did.
const (
	watchRaw  = 1 << iota // no Ethernet header
	watchSnap             // 96 bytes kept
	watchLost             // not captured
	watchPure             // not mutated
)

// watch lets a mutated capture be judged, and holds that the findings are sane
// and their number is bounded by that of the frames.
func watch(t testing.TB, cfg conform.Config, in []byte, mut mutator.Config) (breaches int) {
	w, err := conform.New(cfg)
	must(t, err)
	s, err := mutator.NewStream(mut)
	must(t, err)
	now := t0
	frames, findings, flows := uint64(0), 0, 0
	drain := func() {
		var f conform.Finding
		for w.NextFinding(&f) {
			if findings++; f.String() == "" || f.Check.String() == "" || f.Rule().String() == "" {
				t.Fatalf("a finding without words: %+v", f)
			}
			if f.Frame > frames || f.Earlier > frames {
				t.Fatalf("frame %d, %d after %d frames: %v", f.Frame, f.Earlier, frames, &f)
			}
			if f.Severity == conform.Breach {
				breaches++
			}
		}
	}
	feed := func() {
		var rec mutator.Record
		for s.Next(&rec) {
			frames++
			w.HandleFrame(rec.Time, rec.Link, rec.Data, rec.WireLen)
			drain()
			// A frame that is shorter than its headers say was cut.
			if seen := w.Last(); seen.Payload > max(rec.WireLen, 0xffff) {
				t.Fatalf("%d bytes of payload in %d", seen.Payload, rec.WireLen)
			}
		}
	}
	for {
		mode, b, rest, ok := records.Next(in)
		if !ok {
			break
		}
		in = rest
		now = now.Add(time.Nanosecond << (mode >> 4 * 2))
		rec := mutator.Record{Time: now, Link: frame.Ethernet, Data: b, WireLen: len(b)}
		switch {
		case mode&watchLost != 0:
			continue
		case mode&watchRaw != 0 && len(b) > 14:
			rec.Link, rec.Data, rec.WireLen = frame.RawIP, b[14:], len(b)-14
		}
		if mode&watchSnap != 0 {
			rec.Data = rec.Data[:min(96, len(rec.Data))]
		}
		if mode&watchPure != 0 {
			frames++
			w.HandleFrame(rec.Time, rec.Link, rec.Data, rec.WireLen)
			drain()
			continue
		}
		s.Push(&rec)
		feed()
	}
	s.Flush()
	feed()
	for range w.Flows {
		flows++
	}
	if cfg.MaxFlows > 0 && flows > cfg.MaxFlows {
		t.Fatalf("%d flows open, %d allowed", flows, cfg.MaxFlows)
	}
	w.Finish()
	drain()
	total := w.Total()
	if w.Frames() != frames || w.RoCEFrames() > frames || total.Frames > frames || total.GoodBytes > total.PayloadBytes {
		t.Fatalf("%d frames, counted %d, %d, %+v", frames, w.Frames(), w.RoCEFrames(), total)
	}
	// A frame breaks a few rules, and the end may show one per PSN in the window.
	if limit := 16*int(frames) + 1024; findings > limit {
		t.Fatalf("%d findings in %d frames", findings, frames)
	}
	return breaches
}

// FuzzWatch mutates captures by a fuzzed seed and lets the watcher judge them.
func FuzzWatch(f *testing.F) {
	for _, name := range []string{"rc-mixed", "rc-loss-request", "uc", "ud", "cm-rping"} {
		recs, err := records.ReadFile("captures/" + name + ".pcap")
		must(f, err)
		var b []byte
		for i, r := range recs {
			if len(b)+len(r.Data) < 8000 {
				b = records.Append(b, byte(i%16<<4), r.Data)
			}
		}
		f.Add(b, uint64(1), byte(0))
		f.Add(b, uint64(2), byte(0xff))
	}
	seeds.Into(f).Flows(func(int) byte { return 5 << 4 },
		func(b []byte) []any { return []any{b, uint64(len(b)), byte(len(b))} })
	f.Fuzz(func(t *testing.T, in []byte, seed uint64, mode byte) {
		if len(in) > 1<<16 {
			t.Skip()
		}
		cfg := conform.Config{MaxFlows: 4, Window: 16, Complete: mode&1 != 0}
		mut := mutator.Config{
			Seed: seed, Keep: int(mode>>1&3) * 33, ICRC: mutator.ICRC(mode >> 3 & 3 % 3), Hold: 4,
			Changes: 1 + int(mode>>5&3), Lengths: mutator.Lengths(mode >> 7),
		}
		watch(t, cfg, in, mut)
	})
}
