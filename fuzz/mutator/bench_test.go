package mutator_test

import (
	"testing"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/mutator"
)

// BenchmarkMutate has a copy and the ICRC alone beside it: no mutator that makes
// valid frames does without them.
func BenchmarkMutate(b *testing.B) {
	var r mutator.Record
	for _, c := range captured(b) {
		var f frame.Frame
		if f.Decode(c.Link, c.Data) == nil && f.PayloadLen() == 1024 {
			r = c
			break
		}
	}
	dst := make([]byte, 0, 16384)
	for name, cfg := range map[string]mutator.Config{
		"all":  {},
		"psn":  {Kinds: mutator.KindsOf(mutator.PSN), Changes: 1},
		"keep": {Keep: 100},
	} {
		b.Run(name, func(b *testing.B) {
			m, err := mutator.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			var rep mutator.Report
			var n uint64
			b.ReportAllocs()
			b.SetBytes(int64(len(r.Data)))
			for b.Loop() {
				m.Mutate(n, r.Link, r.Data, r.WireLen, dst, &rep)
				n++
			}
		})
	}
	b.Run("copy-and-icrc", func(b *testing.B) {
		b.SetBytes(int64(len(r.Data)))
		for b.Loop() {
			out := append(dst, r.Data...)
			crc.Append(out[:len(out)-4], 14)
		}
	})
}
