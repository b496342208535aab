//go:build !race

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

// allocates fails the test where the codec allocates, on bytes that are enough
// and on bytes that are too few.
func allocates[T any, P pointer[T]](t *testing.T, name string, size int) {
	buf := make([]byte, size, size+1)
	var v T
	var err error
	for what, f := range map[string]func(){
		"Decode":                func() { err = P(&v).Decode(buf) },
		"Decode, short":         func() { err = P(&v).Decode(buf[:size-1]) },
		"UnmarshalBinary":       func() { err = P(&v).UnmarshalBinary(buf) },
		"UnmarshalBinary, long": func() { err = P(&v).UnmarshalBinary(buf[:size+1]) },
		"AppendTo":              func() { buf = P(&v).AppendTo(buf[:0]) },
		"AppendBinary":          func() { buf, err = P(&v).AppendBinary(buf[:0]) },
		"Validate":              func() { err = P(&v).Validate() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %s: %v allocations", name, what, n)
		}
	}
	_ = err
}

func TestNoAllocations(t *testing.T) {
	allocates[reth.Header](t, "RETH", reth.Size)
	allocates[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize)
	allocates[reth.ImmDt](t, "ImmDt", reth.ImmDtSize)
	allocates[reth.IETH](t, "IETH", reth.IETHSize)
	allocates[reth.FETH](t, "FETH", reth.FETHSize)
	tooWide, buf := reth.FETH{Sel: 4}, make([]byte, 0, 8)
	if n := testing.AllocsPerRun(100, func() { buf, _ = tooWide.AppendBinary(buf[:0]) }); n != 0 {
		t.Errorf("refusal: %v allocations", n)
	}
}
