// Package testenv is what tests and benchmarks below qp ask of the process that
// they run in.
package testenv

import (
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Race says that the race detector is on.
var Race = setting("-race") == "true"

// Allocates says that the build allocates where the code does not: for the race
// detector, or for the checks of invariants.
var Allocates = Race || strings.Contains(","+setting("-tags")+",", ",invariants,")

func setting(key string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == key {
				return s.Value
			}
		}
	}
	return ""
}

// Mallocs returns the least allocations of up to five runs of f, by the runtime's count,
// which unlike testing.AllocsPerRun is not rounded down. The runtime itself, or something
// else in the process, may allocate during one run, but not during each.
func Mallocs(f func()) uint64 {
	least := once(f)
	for n := 1; n < 5 && least != 0; n++ {
		least = min(least, once(f))
	}
	return least
}

func once(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

var cpuTime = func() time.Duration { return 0 }

// CPUTime returns the processor time of the process so far: on a machine that does
// other work too it says more than the clock. It is 0 on systems that are not Unix.
func CPUTime() time.Duration { return cpuTime() }
