//go:build !race

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

func TestAllocs(t *testing.T) {
	good := unhex(t, golden[0].hex)
	bad := append([]byte(nil), good...)
	bad[14] = 0x77
	buf := make([]byte, 0, pfc.MinFrame)
	var f pfc.Frame
	for name, fn := range map[string]func(){
		"Decode":          func() { _ = f.Decode(good) },
		"Decode bad":      func() { _ = f.Decode(bad) },
		"Decode short":    func() { _ = f.Decode(good[:20]) },
		"UnmarshalBinary": func() { _ = f.UnmarshalBinary(good[:pfc.Size]) },
		"AppendTo":        func() { buf = f.AppendTo(buf[:0]) },
		"AppendFrame":     func() { buf = f.AppendFrame(buf[:0]) },
		"AppendBinary":    func() { buf, _ = f.AppendBinary(buf[:0]) },
		"Validate":        func() { _ = f.Validate() },
	} {
		if n := testing.AllocsPerRun(200, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
