package crc_test

import (
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/roce-go/roce/crc"
)

// packet returns an IPv4 packet of n bytes, without its ICRC.
func packet(n int) []byte {
	hdr, payload, _ := knownAnswer()
	p := hdr
	for len(p) < n {
		p = append(p, payload...)
	}
	return p[:n]
}

var sizes = []int{52, 76, 256, 1084, 4156}

var sink uint32

func BenchmarkSum(b *testing.B) {
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
}

// The reference: the plain CRC, of as many bytes, without masks.
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

var sinkBytes []byte

func BenchmarkAppendPayload(b *testing.B) {
	for _, n := range []int{256, 1024, 4096} {
		hdr, payload, buf := packet(56), packet(n), make([]byte, 9000)
		copy(buf, hdr)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				sinkBytes = crc.AppendPayload(buf[:56], 0, payload, 0)
			}
		})
		b.Run(fmt.Sprintf("copyonly/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sinkBytes = append(buf[:56], payload...)
			}
		})
		b.Run(fmt.Sprintf("sumonly/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sink = crc.Sum(buf[:56+n])
			}
		})
	}
}
