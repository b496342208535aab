package simnet_test

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/simnet"
)

// raceEnabled is set under the race detector, which allocates.
var raceEnabled = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Once pools and queues have grown to what a network needs, it runs without an
// allocation: counted over a whole run, since AllocsPerRun rounds down.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		f, flows := incast(t, carry, 8, true, 0)
		require.NoError(t, f.Run(5*time.Millisecond))
		// The least of some: a queue may still reach a new height.
		least := ^uint64(0)
		for range 5 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, f.Run(2*time.Millisecond))
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		require.NotZero(t, flows[0].Received())
		require.LessOrEqual(t, least, uint64(2), "%v", carry) // the runtime's own
	}
}
