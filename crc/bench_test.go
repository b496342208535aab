package crc_test

import (
	"fmt"
	"hash/crc32"
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

// The reference: the copy alone.
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
