package mutator_test

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/mutator"
)

// BenchmarkMutate has a copy and the ICRC alone beside it: no mutator that makes
// valid frames does without them.
func BenchmarkMutate(b *testing.B) {
	var r mutator.Record
	for _, c := range captured(b) {
		var f frame.Frame
		if f.Decode(c.Link, c.Data) == nil && f.PayloadLen() == 1024 {
			r = c
			break
		}
	}
	dst := make([]byte, 0, 16384)
	for name, cfg := range map[string]mutator.Config{
		"all":  {},
		"psn":  {Kinds: mutator.KindsOf(mutator.PSN), Changes: 1},
		"keep": {Keep: 100},
	} {
		b.Run(name, func(b *testing.B) {
			m, err := mutator.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			var rep mutator.Report
			var n uint64
			b.ReportAllocs()
			b.SetBytes(int64(len(r.Data)))
			for b.Loop() {
				m.Mutate(n, r.Link, r.Data, r.WireLen, dst, &rep)
				n++
			}
		})
	}
	b.Run("copy-and-icrc", func(b *testing.B) {
		b.SetBytes(int64(len(r.Data)))
		for b.Loop() {
			out := append(dst, r.Data...)
			crc.Append(out[:len(out)-4], 14)
		}
	})
}

// raceEnabled is set under the race detector, which allocates.
var raceEnabled = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// TestAllocations counts over whole runs: an average would round small leaks
// away.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	recs := append(captured(t), built()...)
	for _, cfg := range []mutator.Config{{}, {ICRC: mutator.ICRCBad, Lengths: mutator.LengthsLie, Changes: 8}} {
		m, err := mutator.New(cfg)
		require.NoError(t, err)
		s, err := mutator.NewStream(cfg)
		require.NoError(t, err)
		dst := make([]byte, 0, 16384)
		var rep mutator.Report
		var rec mutator.Record
		require.Zero(t, mallocs(func() {
			for i := range recs {
				m.Mutate(uint64(i), recs[i].Link, recs[i].Data, recs[i].WireLen, dst, &rep)
			}
		}), "Mutate")
		require.Zero(t, mallocs(func() {
			for i := range recs {
				s.Push(&recs[i])
				for s.Next(&rec) {
				}
			}
			s.Flush()
			for s.Next(&rec) {
			}
		}), "Stream")
	}
}

// mallocs returns the least of some runs, since the runtime allocates too.
func mallocs(f func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}
