//go:build !race

package aeth_test

import (
	"testing"
	"time"

	"github.com/roce-go/roce/aeth"
)

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
