package mutator_test

import (
	"bytes"
	"testing"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/fuzz/seeds"
)

// FuzzMutate changes fuzzed frames with fuzzed choices, and holds what the modes
// promise.
func FuzzMutate(f *testing.F) {
	for i, r := range built() {
		f.Add(r.Data, uint16(r.Link), uint16(0), uint64(i), byte(i))
	}
	seeds.Into(f).Each(func(s *seeds.Frame) []any {
		return []any{s.Data, uint16(s.Link), uint16(0), uint64(s.Number), byte(s.Number)}
	})
	for i, r := range builtMRC() {
		f.Add(r.Data, uint16(r.Link), uint16(0), uint64(i), byte(i)|0x80)
	}
	f.Fuzz(func(t *testing.T, b []byte, link, cut uint16, seed uint64, mode byte) {
		cfg := mutator.Config{
			Seed: seed, ICRC: mutator.ICRC(mode % 3), Lengths: mutator.Lengths(mode / 3 % 2),
			Changes: int(mode>>4&7) + 1, MRC: mode>>7 != 0,
		}
		r := mutator.Record{Link: frame.Link(link), Data: b, WireLen: len(b) + int(cut)}
		in := bytes.Clone(b)
		out, rep := mutate(t, cfg, 1, &r)
		if !bytes.Equal(in, b) {
			t.Fatal("the input was written to")
		}
		if len(out) > max(9216, len(b))+128+64 {
			t.Fatalf("%d bytes became %d", len(b), len(out))
		}
		if rep.RoCE {
			check(t, cfg, &r, out, rep)
		}
	})
}
