package cm_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/internal/testenv"
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

func TestAllocs(t *testing.T) {
	if testenv.Allocates {
		t.Skip("allocations are not counted under -race")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	mads := [][]byte{}
	for _, d := range captured(t) {
		mads = append(mads, d.mad)
	}
	for id := cm.AttrREQ; id <= cm.AttrAPR; id++ {
		b := append([]byte(nil), mads[0]...)
		b[17] = byte(id)
		mads = append(mads, b)
	}
	var m cm.Message
	var h cm.CMAHeader
	buf := make([]byte, 0, cm.Size)
	for name, f := range map[string]func(b []byte){
		"Message.Decode":       func(b []byte) { sinkErr = m.Decode(b) },
		"Message.Decode short": func(b []byte) { sinkErr = m.Decode(b[:cm.Size-1]) },
		"Message.Decode class": func(b []byte) { b[1] ^= 1; sinkErr = m.Decode(b); b[1] ^= 1 },
		"Message.Decode attr":  func(b []byte) { b[16] ^= 1; sinkErr = m.Decode(b); b[16] ^= 1 },
		"Message.AppendTo":     func(b []byte) { sinkErr = m.Decode(b); buf = m.AppendTo(buf[:0]) },
		"Message.AppendBinary": func(b []byte) { sinkErr = m.Decode(b); buf, sinkErr = m.AppendBinary(buf[:0]) },
		"Message.Validate":     func(b []byte) { sinkErr = m.Decode(b); sinkErr = m.Validate() },
		"Header.Decode":        func(b []byte) { sinkErr = m.Header.Decode(b) },
		"Header.AppendTo":      func([]byte) { buf = m.Header.AppendTo(buf[:0]) },
		"REQ.CMA":              func([]byte) { _, _ = m.REQ.CMA(&h); _, _ = h.Src(), h.Dst() },
		"CMAHeader.AppendTo":   func([]byte) { buf = h.AppendTo(buf[:0]) },
	} {
		run := func() {
			for range 100 {
				for _, b := range mads {
					f(b)
				}
			}
		}
		run()
		require.Zero(t, testenv.Mallocs(run), name)
	}
	// Each message by itself.
	for name, c := range codecs {
		v := c.make()
		full := make([]byte, c.size)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			sinkErr = v.Decode(full)
			sinkErr = v.Decode(full[:c.size-1])
			sinkErr = v.Validate()
			buf = v.AppendTo(buf[:0])
		}), name)
	}
}

var sinkErr error
