package reth_test

import (
	"testing"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/reth"
)

func FuzzReth(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "0000123456780000 000007c4 00000401"))                                     // RETH
	f.Add(unhex(f, "0000123456880000 00000291 a0b0c0d0e0f00004 410203040506070c 0000000013")) // AtomicETH, more
	seeds.Into(f).Headers(bth.HasRETH | bth.HasAtomicETH | bth.HasImmDt | bth.HasIETH | bth.HasFETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[reth.Header](t, reth.Size, b)
		checkBytes[reth.AtomicETH](t, reth.AtomicETHSize, b)
		checkBytes[reth.ImmDt](t, reth.ImmDtSize, b)
		checkBytes[reth.IETH](t, reth.IETHSize, b)
		checkBytes[reth.FETH](t, reth.FETHSize, b)
	})
}
