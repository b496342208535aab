package conform_test

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

// raceEnabled is set under the race detector, which allocates.
var raceEnabled = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Frames of flows that were seen before allocate nothing, whatever they hold:
// counted over every capture, findings and malformed packets included.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var recs []rec
	for _, name := range names(t) {
		recs = append(recs, load(t, name)...)
	}
	w, err := conform.New(conform.Config{})
	require.NoError(t, err)
	var f conform.Finding
	play := func() {
		for _, r := range recs {
			w.HandleFrame(r.ts, frame.Ethernet, r.data, r.wire)
			for w.NextFinding(&f) {
			}
		}
	}
	play()
	play()
	// The runtime itself may allocate a little meanwhile: the least of several counts.
	least := uint64(1 << 32)
	for range 5 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 10 {
			play()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	require.Less(t, least, uint64(10))
}

// Memory is bounded by MaxFlows: a million frames, each of a flow of its own,
// of which 64 are kept.
func TestManyFlows(t *testing.T) {
	base := load(t, "rc-mixed")[12:16]
	var closed int
	var sum conform.Counters
	w, err := conform.New(conform.Config{MaxFlows: 64, Window: 16, Closed: func(f *conform.Flow) { closed++; sum.Add(f.Counters) }})
	require.NoError(t, err)
	var fi conform.Finding
	frames := 200_000
	if testing.Short() {
		frames = 20_000
	}
	var heap uint64
	n := 0
	for i := range frames {
		r := base[i%4]
		d := append([]byte(nil), r.data...)
		// Addresses that differ make the ICRC wrong, which makes no difference
		// to memory; every fourth flow is left good.
		d[27], d[28], d[29] = byte(i>>18), byte(i>>10), byte(i>>2)
		d[31], d[32], d[33] = d[27], d[28], d[29]
		if i%16 < 4 {
			fix(d)
		}
		w.HandleFrame(r.ts.Add(time.Duration(i)*time.Microsecond), frame.Ethernet, d, len(d))
		for w.NextFinding(&fi) {
			n++
		}
		if i == frames/4 || i == frames-1 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			if heap != 0 {
				require.Less(t, m.HeapAlloc, heap+1<<20)
			}
			heap = m.HeapAlloc
		}
	}
	require.Positive(t, w.Evicted())
	open := 0
	for range w.Flows {
		open++
	}
	require.Equal(t, 64, open)
	w.Finish()
	require.EqualValues(t, frames, sum.Frames)
	require.Equal(t, sum, w.Total())
	require.EqualValues(t, w.Evicted()+64, closed)
}

// A live flow takes 8 KiB at most: 4,000 connections, each with messages of
// all kinds, both directions and latencies of a wide range.
func TestMemoryOfFlows(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("long, and the race detector takes memory")
	}
	base := load(t, "rc-mixed")[8:]
	flows := 8000
	w, err := conform.New(conform.Config{MaxFlows: flows})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var fi conform.Finding
	for i := range flows / 2 {
		for _, r := range base {
			d := append([]byte(nil), r.data...)
			// Two addresses of one connection; the ICRC is made right.
			d[27], d[28], d[31], d[32] = byte(i>>8), byte(i), byte(i>>8), byte(i)
			fixIP(d)
			w.HandleFrame(r.ts.Add(time.Duration(i)*time.Microsecond), frame.Ethernet, d, len(d))
			for w.NextFinding(&fi) {
				require.Less(t, fi.Severity, conform.Breach, fi.String())
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	n := 0
	w.Flows(func(*conform.Flow) bool { n++; return true })
	require.Equal(t, flows, n)
	each := (after.HeapAlloc - before.HeapAlloc) / uint64(flows)
	t.Logf("%d bytes a flow", each)
	require.LessOrEqual(t, each, uint64(8<<10))
}
