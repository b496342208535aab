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
)

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
