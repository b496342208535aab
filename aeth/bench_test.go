//go:build !race

package aeth_test

import (
	"testing"
	"time"

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
	allocates[aeth.Header](t, "AETH", aeth.Size)
	allocates[aeth.AtomicAckETH](t, "AtomicAckETH", aeth.AtomicAckETHSize)
	tooWide, buf := aeth.Header{MSN: 1 << 24}, make([]byte, 0, 8)
	n := 0
	for what, f := range map[string]func(){
		"refusal":     func() { buf, _ = tooWide.AppendBinary(buf[:0]) },
		"CreditsFor":  func() { n += int(aeth.CreditsFor(n & 0xffff)) },
		"RNRTimerFor": func() { n += int(aeth.RNRTimerFor(time.Duration(n&0xfffff) * 100)) },
		"syndrome": func() {
			s := aeth.Syndrome(n)
			c, _ := s.Credit().Count()
			n += c + int(s.Kind()) + int(s.Nak()) + int(s.Value()) + int(s.RNRTimer().Duration())
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
