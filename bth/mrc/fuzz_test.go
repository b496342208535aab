package mrc_test

import (
	"encoding/hex"
	"testing"

	"github.com/roce-go/roce/bth/mrc"
)

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	for _, v := range loadVectors(f) {
		b, _ := hex.DecodeString(v.Hex)
		f.Add(b[min(len(b), 28+12):])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[mrc.METH](t, mrc.METHSize, b)
		checkBytes[mrc.TSETH](t, mrc.TSETHSize, b)
		checkBytes[mrc.SETH](t, mrc.SETHSize, b)
		checkBytes[mrc.CCState](t, mrc.CCStateSize, b)
		checkBytes[mrc.NETH](t, mrc.NETHSize, b)
		checkBytes[mrc.PETH](t, mrc.PETHSize, b)
		checkBytes[mrc.ERTH](t, mrc.ERTHSize, b)
		checkBytes[mrc.EETH](t, mrc.EETHSize, b)
	})
}

func FuzzPacket(f *testing.F) {
	f.Add([]byte{}, 0)
	for _, v := range loadVectors(f) {
		b, _ := hex.DecodeString(v.Hex)
		b = b[min(len(b), 28):]
		f.Add(b, len(b))
		f.Add(b[:len(b)/2], len(b))
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) { checkPacket(t, b, n) })
}
