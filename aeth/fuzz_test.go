package aeth_test

import (
	"testing"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
)

func FuzzAeth(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x60, 0, 0, 1})
	f.Add([]byte{0x1f, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8})
	seeds.Into(f).Headers(bth.HasAETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[aeth.Header](t, aeth.Size, b)
		checkBytes[aeth.AtomicAckETH](t, aeth.AtomicAckETHSize, b)
		for _, v := range b {
			if aeth.Syndrome(v).String() == "" {
				t.Errorf("syndrome %#x has no name", v)
			}
		}
	})
}
