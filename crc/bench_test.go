package crc_test

import (
	"fmt"
	"hash/crc32"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/roce-go/roce/crc"
)

// packet returns an IPv4 packet of n bytes, without its ICRC.
func packet(n int) []byte {
	p, payload, _ := knownAnswer()
	for len(p) < n {
		p = append(p, payload...)
	}
	return p[:n]
}

// 52 bytes are what the ICRC of an acknowledgement over IPv4 covers, the leading ones
// counted; 1084 and 4156 have 1 KiB and 4 KiB of payload.
var sizes = []int{52, 256, 1084, 4156}

var (
	sink      uint32
	sinkBytes []byte
)

func BenchmarkSum(b *testing.B) {
	crc.EachKernelBench(b, func(b *testing.B) {
		for _, n := range sizes {
			p := packet(n)
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					sink = crc.Sum(p)
				}
			})
		}
	})
}

// The reference: the plain CRC of as many bytes, without masks.
func BenchmarkHashCRC32(b *testing.B) {
	for _, n := range sizes {
		p := packet(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sink = crc32.ChecksumIEEE(p)
			}
		})
	}
}

func BenchmarkAppendPayload(b *testing.B) {
	crc.EachKernelBench(b, func(b *testing.B) {
		for _, n := range []int{256, 1024, 4096} {
			hdr, payload, buf := packet(56), packet(n), make([]byte, 0, 9000)
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					sinkBytes = crc.AppendPayload(append(buf, hdr...), 0, payload, 0)
				}
			})
		}
	})
}

// The reference: only the copy.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{256, 1024, 4096} {
		hdr, payload, buf := packet(56), packet(n), make([]byte, 0, 9000)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sinkBytes = append(append(buf, hdr...), payload...)
			}
		})
	}
}

func BenchmarkFlow(b *testing.B) {
	ack, req := packet(44), packet(56)
	a, r := crc.NewFlow(ack, 36), crc.NewFlow(req, 36)
	b.Run("ack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sink = a.Ack(sink, 0x1f000001)
		}
	})
	b.Run("read request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			sink = r.Sum(req[36:])
		}
	})
}

func BenchmarkPatch(b *testing.B) {
	crc.EachKernelBench(b, func(b *testing.B) {
		old, new := []byte{0, 0, 1, 2}, []byte{0, 0, 1, 3}
		b.ReportAllocs()
		for b.Loop() {
			sink = crc.Patch(sink, 4112, old, new)
		}
	})
}

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
