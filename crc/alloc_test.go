package crc_test

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/roce-go/roce/crc"
)

// raceEnabled is set under the race detector, which allocates.
var raceEnabled = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Nothing allocates when there is room, and nothing that is passed in escapes: the
// packet below lives on the stack.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	crc.EachKernel(t, func(t *testing.T) {
		buf, payload := make([]byte, 0, 9000), make([]byte, 4096)
		hdr := packet(56)
		flow := crc.NewFlow(packet(44), 36)
		script := func() {
			var pkt [300]byte
			for _, first := range []byte{0x45, 0x60, 0x4b, 0x00} {
				pkt[0] = first
				for _, n := range []int{0, 3, 20, 44, 64, 300} {
					sink ^= crc.Sum(pkt[:n])
					if crc.Check(pkt[:n]) {
						sink++
					}
				}
				sink ^= crc.Stored(pkt[:])
				sink ^= crc.Patch(1, 1000, pkt[:9], pkt[9:18])
				sink ^= crc.Start(pkt[:60]).Update(pkt[60:]).Sum()
				f := crc.NewFlow(pkt[:60], 40)
				f.SetID(3)
				sink ^= f.Sum(pkt[:20])
			}
			flow.SetID(9)
			sink ^= flow.Ack(1, 2) ^ flow.Sum(hdr[:8])
			b := append(buf, hdr...)
			for _, n := range []int{0, 1, 300, 4096} {
				b = crc.AppendPayload(b[:56], 0, payload[:n], n&3)
			}
			b = crc.AppendValue(crc.Append(b, 0), 1)
			sink ^= uint32(len(b))
		}
		script()
		var before, after runtime.MemStats
		const runs = 50
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range runs {
			script()
		}
		runtime.ReadMemStats(&after)
		// The test's own neighbours may allocate now and then, but not every run.
		if n := after.Mallocs - before.Mallocs; n >= runs {
			t.Errorf("%d allocations in %d runs", n, runs)
		}
		if n := testing.AllocsPerRun(100, script); n != 0 {
			t.Errorf("%v allocations a run", n)
		}
	})
}
