package pfc_test

import (
	"testing"

	"github.com/roce-go/roce/cnp/pfc"
)

func BenchmarkDecode(b *testing.B) {
	in := unhex(b, golden[0].hex)
	var f pfc.Frame
	b.ReportAllocs()
	for b.Loop() {
		_ = f.Decode(in)
	}
}

func BenchmarkAppendFrame(b *testing.B) {
	f := golden[2].want
	buf := make([]byte, 0, pfc.MinFrame)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.AppendFrame(buf[:0])
	}
}

// BenchmarkCopy is the reference: 60 bytes moved and nothing else.
func BenchmarkCopy(b *testing.B) {
	in := unhex(b, golden[2].hex)
	buf := make([]byte, 0, pfc.MinFrame)
	b.ReportAllocs()
	for b.Loop() {
		buf = append(buf[:0], in...)
	}
}
