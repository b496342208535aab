package reth_test

import (
	"testing"

	"github.com/roce-go/roce/reth"
)

// BenchmarkRETH has a copy of the same bytes as its reference.
func BenchmarkRETH(b *testing.B) {
	h := reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096}
	raw := h.AppendTo(nil)
	buf := make([]byte, 0, reth.Size)
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
}
