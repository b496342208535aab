package mutator_test

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/fuzz/mutator"
)

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
