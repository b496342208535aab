package fuzz_test

import (
	"bytes"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/qp"
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

// raceEnabled is set under the race detector, which allocates.
var raceEnabled = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Bits of a record's mode in FuzzPort.
const (
	modeAdapt = 1 << iota // make it a frame to this port
	modePost              // post a request first
	modeRecv              // post receives first
	modeTick              // let the next deadline come first
	modeTime              // four bits: time passes first, 1 ns << 2 x them
)

// runPort feeds a port with the frames of an input.
func runPort(t testing.TB, n *node, in []byte) {
	a := adapter{n: n, buf: make([]byte, 0, 16384)}
	for k := 0; ; k++ {
		mode, b, rest, ok := records.Next(in)
		if !ok {
			break
		}
		in = rest
		if mode&modeRecv != 0 {
			n.postRecv()
		}
		if mode&modePost != 0 {
			n.post(k)
		}
		n.now = n.now.Add(time.Nanosecond << (mode / modeTime * 2))
		if mode&modeTick != 0 {
			n.tick()
		}
		if mode&modeAdapt != 0 {
			b = a.adapt(b)
		}
		n.port.HandleFrame(n.now, b)
		n.drain(nil)
	}
	for range 300 {
		if !n.tick() {
			break
		}
		n.drain(nil)
	}
	n.check()
}

// placed changes where a request goes, as the adapter reads it: to the ends of the
// region, or to the one that cannot be written.
func placed(b []byte, place int) []byte {
	var f frame.Frame
	if place == 0 || f.Decode(frame.Ethernet, b) != nil {
		return b
	}
	p := &f.Packet
	// One byte before the region, its start, its end, one byte beyond.
	at := [...]uint64{0, 1<<62 | 63, 1<<62 | 64, 1<<63 | 64, 1<<63 | 65, 0}[place]
	p.RETH.VA, p.AtomicETH.VA = at, at&^7
	if place == 5 {
		p.RETH.RKey, p.AtomicETH.RKey = 0, 0
	}
	return f.AppendTo(nil)
}

// FuzzPort hands frames to a port with a QP of each kind: it must not panic, nor
// write outside of what is registered or posted, nor to its input, nor respond
// without bound; and what it sends is decoded again and has a good ICRC.
func FuzzPort(f *testing.F) {
	for _, name := range []string{"rc-mixed", "rc-write", "rc-atomic", "rc-rnr", "uc", "ud"} {
		recs, err := records.ReadFile("captures/" + name + ".pcap")
		must(f, err)
		for place := range 6 {
			var b []byte
			for i, r := range recs {
				if len(b)+len(r.Data) < 8000 {
					b = records.Append(b, byte(modeAdapt|modeRecv|i%16<<4), placed(r.Data, place))
				}
			}
			f.Add(b)
		}
	}
	seeds.Into(f).Flows(func(i int) byte {
		mode := byte(modeAdapt | modeRecv | i%8<<4)
		if i%5 == 0 {
			mode |= modePost
		}
		return mode
	}, func(b []byte) []any { return []any{b} })
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<16 {
			t.Skip()
		}
		before := bytes.Clone(in)
		runPort(t, newNode(t, 0), in)
		if !bytes.Equal(before, in) {
			t.Fatal("the input was written to")
		}
	})
}

// TestPortMemory: however long a port is fed, it takes no memory after it was
// made.
func TestPortMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	names, err := filepath.Glob("captures/*.pcap")
	must(t, err)
	least := ^uint64(0)
	for range 3 { // the runtime allocates too
		n := newNode(t, 0)
		n.done = make([]qp.Completion, 0, 1024)
		a := adapter{n: n, buf: make([]byte, 0, 16384)}
		m, err := mutator.New(mutator.Config{Seed: 1, Keep: 50})
		must(t, err)
		var rep mutator.Report
		out := make([]byte, 0, 16384)
		mallocs := uint64(0)
		k := uint64(0)
		for _, name := range names {
			recs, err := records.ReadFile(name)
			must(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, r := range recs {
				k++
				b := m.Mutate(k, r.Link, a.adapt(r.Data), r.WireLen, out, &rep)
				n.now = n.now.Add(time.Millisecond)
				n.port.HandleFrame(n.now, b)
				n.drain(nil)
				n.tick()
				n.drain(nil)
			}
			runtime.ReadMemStats(&after)
			mallocs += after.Mallocs - before.Mallocs
		}
		n.check()
		least = min(least, mallocs)
	}
	// ReadMemStats itself allocates now and then.
	if least > uint64(len(names)) {
		t.Fatalf("%d allocations", least)
	}
}
