// Command _isal times package crc beside Intel's ISA-L (crc32_gzip_refl), hash/crc32
// and copy, in one run: many short interleaved repetitions, of which it prints the
// medians, and the medians of the ratios within a repetition. It wants cgo and
// ISA-L (Debian: libisal-dev). ISA-L and hash/crc32 sum the same bytes without masks.
//
//	cd crc/_isal && go run .
package main

/*
#cgo LDFLAGS: -lisal
#include <isa-l/crc.h>
static unsigned run(const unsigned char *p, unsigned long n, long times) {
	unsigned x = 0;
	for (long i = 0; i < times; i++) x ^= crc32_gzip_refl(0, p, n);
	return x;
}
*/
import "C"

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"slices"
	"time"
	"unsafe"

	"github.com/roce-go/roce/crc"
)

var (
	reps = flag.Int("reps", 201, "interleaved repetitions")
	unit = flag.Duration("unit", 100*time.Microsecond, "about how long each takes")
	sink uint32
)

// A contest is one row: what is timed first, then what it is held against.
type contest struct {
	name string
	runs []contestant
	bar  string
}

type contestant struct {
	name string
	f    func(times int)
}

func (c contest) run() {
	n := len(c.runs)
	times := make([]int, n)
	for i, r := range c.runs {
		for k := 64; ; k *= 2 {
			t := time.Now()
			r.f(k)
			if d := time.Since(t); d > *unit/2 {
				times[i] = k
				break
			}
		}
	}
	ns := make([][]float64, n)
	for rep := range *reps {
		for j := range n {
			i := (j + rep) % n
			t := time.Now()
			c.runs[i].f(times[i])
			ns[i] = append(ns[i], float64(time.Since(t).Nanoseconds())/float64(times[i]))
		}
	}
	fmt.Printf("%-34s", c.name)
	for i, r := range c.runs {
		if i > 0 {
			ratio := make([]float64, *reps)
			for k := range ratio {
				ratio[k] = ns[0][k] / ns[i][k]
			}
			fmt.Printf("  | %s %.1f ns, ratio %.2f", r.name, median(ns[i]), median(ratio))
		} else {
			fmt.Printf("%7.1f ns", median(ns[0]))
		}
	}
	fmt.Println("  " + c.bar)
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// packet is an RDMA WRITE of n bytes in all over IPv4.
func packet(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i * 7)
	}
	p[0], p[9] = 0x45, 17
	binary.BigEndian.PutUint16(p[2:], uint16(n+crc.Size))
	p[28] = 0x0a
	return p
}

func ours(p []byte) contestant {
	return contestant{"crc.Sum", func(times int) {
		for range times {
			sink ^= crc.Sum(p)
		}
	}}
}

func isal(p []byte) contestant {
	return contestant{"ISA-L", func(times int) {
		sink ^= uint32(C.run((*C.uchar)(unsafe.Pointer(&p[0])), C.ulong(len(p)), C.long(times)))
	}}
}

func std(p []byte) contestant {
	return contestant{"hash/crc32", func(times int) {
		for range times {
			sink ^= crc32.ChecksumIEEE(p)
		}
	}}
}

func main() {
	flag.Parse()
	p := packet(100)
	if got, want := uint32(C.run((*C.uchar)(&p[0]), 100, 1)), crc32.ChecksumIEEE(p); got != want {
		panic(fmt.Sprintf("ISA-L says %08x, hash/crc32 %08x", got, want))
	}

	for _, n := range []int{52, 60, 128, 256, 300, 512, 1024, 1084, 4096, 4156} {
		p := packet(n)
		bar := "(ISA-L at most 1.0)"
		if n < 128 {
			bar = "(hash/crc32 at most 0.5)"
		}
		contest{fmt.Sprintf("ICRC of %d bytes", n), []contestant{ours(p), isal(p), std(p)}, bar}.run()
	}

	for _, n := range []int{256, 1024, 4096} {
		bar := ""
		if n == 4096 {
			bar = "(the larger at most 1.5)"
		}
		pkt := packet(56 + n)
		payload := slices.Clone(pkt[56:])
		buf := make([]byte, 56, 56+n+8)
		copy(buf, pkt)
		contest{fmt.Sprintf("frame of %d bytes, copy and ICRC", n), []contestant{
			{"", func(times int) {
				for range times {
					b := crc.AppendPayload(buf, 0, payload, 0)
					sink ^= uint32(b[len(b)-1])
				}
			}},
			{"copy", func(times int) {
				for range times {
					b := append(buf, payload...)
					sink ^= uint32(b[len(b)-1])
				}
			}},
			ours(pkt),
		}, bar}.run()
	}

	ack := packet(44)
	flow := crc.NewFlow(ack, 36)
	contest{"acknowledgement from a Flow", []contestant{
		{"", func(times int) {
			for i := range times {
				sink ^= flow.Ack(uint32(i), 0x1f000000|uint32(i))
			}
		}},
		ours(ack),
	}, "(at most 6 ns)"}.run()
	contest{"the same, identification stepped", []contestant{
		{"", func(times int) {
			for i := range times {
				flow.SetID(uint16(i))
				sink ^= flow.Ack(uint32(i), 0x1f000000|uint32(i))
			}
		}},
		ours(ack),
	}, ""}.run()
	req := packet(56)
	reqFlow := crc.NewFlow(req, 36)
	contest{"READ request from a Flow", []contestant{
		{"", func(times int) {
			for range times {
				sink ^= reqFlow.Sum(req[36:])
			}
		}},
		ours(req),
	}, ""}.run()

	psn := [][]byte{{0, 0, 1, 2}, {0, 0, 1, 3}}
	write := packet(4152)
	contest{"Patch of a PSN, 4 KiB behind it", []contestant{
		{"", func(times int) {
			for range times {
				sink ^= crc.Patch(sink, 4112, psn[0], psn[1])
			}
		}},
		ours(write),
	}, ""}.run()

	for _, n := range []int{64, 128, 256, 512, 1024, 4096} {
		pkt := packet(56 + n)
		payload := slices.Clone(pkt[56:])
		buf := make([]byte, 0, 56+n+8)
		contest{fmt.Sprintf("the same for %d, header just written", n), []contestant{
			{"", func(times int) {
				for range times {
					b := crc.AppendPayload(append(buf, pkt[:56]...), 0, payload, 0)
					sink ^= uint32(b[len(b)-1])
				}
			}},
			{"copy, then Append", func(times int) {
				for range times {
					b := crc.Append(append(append(buf, pkt[:56]...), payload...), 0)
					sink ^= uint32(b[len(b)-1])
				}
			}},
		}, ""}.run()
	}
}
