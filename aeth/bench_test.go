package aeth_test

import (
	"testing"

	"github.com/roce-go/roce/aeth"
)

// BenchmarkAETH has a copy of the same bytes as its reference.
func BenchmarkAETH(b *testing.B) {
	h := aeth.Header{Syndrome: 0x1f, MSN: 0x123456}
	raw := h.AppendTo(nil)
	buf := make([]byte, 0, aeth.Size)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := h.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = h.AppendTo(buf[:0])
		}
	})
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			buf = append(buf[:0], raw...)
		}
	})
	b.Run("credits-for", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = n + 1 + int(aeth.CreditsFor(n&0xffff))
		}
	})
}
