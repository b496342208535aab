package cm_test

import (
	"testing"

	"github.com/roce-go/roce/qp/cm"
)

// The reference: a copy of a datagram.
func BenchmarkCopy(b *testing.B) {
	src, dst := find(b, "cm-rping", "10"), make([]byte, cm.Size)
	b.SetBytes(cm.Size)
	b.ReportAllocs()
	for b.Loop() {
		copy(dst, src)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct{ name, file, frame string }{
		{"REQ", "cm-rping", "10"}, {"REP", "cm-rping", "11"}, {"RTU", "cm-rping", "12"},
		{"REJ", "cm-reject", "10"}, {"DREQ", "cm-rping", "49"}, {"SIDR_REP", "cm-udaddy", "11"},
	} {
		b.Run(c.name, func(b *testing.B) {
			in := find(b, c.file, c.frame)
			var m cm.Message
			b.SetBytes(cm.Size)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Decode(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("refused", func(b *testing.B) {
		in := find(b, "cm-rping", "10")
		in[1] = 0x03
		var m cm.Message
		b.ReportAllocs()
		for b.Loop() {
			if m.Decode(in) == nil {
				b.Fatal("taken")
			}
		}
	})
}

func BenchmarkAppendTo(b *testing.B) {
	for _, c := range []struct{ name, file, frame string }{
		{"REQ", "cm-rping", "10"}, {"REP", "cm-rping", "11"}, {"RTU", "cm-rping", "12"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var m cm.Message
			if err := m.Decode(find(b, c.file, c.frame)); err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 0, cm.Size)
			b.SetBytes(cm.Size)
			b.ReportAllocs()
			for b.Loop() {
				buf = m.AppendTo(buf[:0])
			}
		})
	}
}
