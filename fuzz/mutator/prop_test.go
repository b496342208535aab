package mutator_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/fuzz/seeds"
)

func drawConfig(t *rapid.T) mutator.Config {
	kinds := slices.Collect(mutator.FieldKinds.All)
	return mutator.Config{
		Seed:    rapid.Uint64().Draw(t, "seed"),
		ICRC:    mutator.ICRC(rapid.IntRange(0, 2).Draw(t, "icrc")),
		Lengths: mutator.Lengths(rapid.IntRange(0, 1).Draw(t, "lengths")),
		Kinds:   mutator.KindsOf(rapid.SliceOfN(rapid.SampledFrom(kinds), 1, 8).Draw(t, "kinds")...),
		Changes: rapid.IntRange(1, 8).Draw(t, "changes"),
		MRC:     rapid.Bool().Draw(t, "mrc"),
	}
}

// TestRepaired holds what the modes promise, for single kinds and for all.
func TestRepaired(t *testing.T) {
	all := append(captured(t), built()...)
	roce := slices.DeleteFunc(all, func(r mutator.Record) bool {
		var f frame.Frame
		return f.Decode(r.Link, r.Data) != nil
	})
	ofMRC := builtMRC()
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		if rapid.Bool().Draw(t, "all kinds") {
			cfg.Kinds = mutator.Kinds{}
		}
		m, err := mutator.New(cfg)
		require.NoError(t, err)
		for range 16 {
			r := roce[rapid.IntRange(0, len(roce)-1).Draw(t, "frame")]
			if cfg.MRC && rapid.Bool().Draw(t, "of mrc") {
				r = ofMRC[rapid.IntRange(0, len(ofMRC)-1).Draw(t, "frame")]
			}
			n := rapid.Uint64().Draw(t, "n")
			in := bytes.Clone(r.Data)
			prefix := []byte("before")
			var rep mutator.Report
			out := m.Mutate(n, r.Link, r.Data, r.WireLen, prefix, &rep)
			require.True(t, bytes.Equal(in, r.Data), "the input")
			require.Equal(t, "before", string(out[:len(prefix)]))
			out = out[len(prefix):]
			require.True(t, rep.RoCE)
			require.NotEmpty(t, rep.String())

			again, _ := mutate(t, cfg, n, &r)
			require.True(t, bytes.Equal(again, out), "same seed, number and input")
			check(t, cfg, &r, out, &rep)
		}
	})
}

func check(t require.TestingT, cfg mutator.Config, r *mutator.Record, out []byte, rep *mutator.Report) {
	escaped := rep.Has(mutator.EscapeKinds)
	var f frame.Frame
	err := frame.Finder{}.Find(r.Link, out, len(out), &f)
	if cfg.Lengths == mutator.LengthsLie {
		require.NotEqual(t, mutator.NoLie, rep.Lie)
		if !escaped {
			require.ErrorIs(t, err, frame.ErrLength, rep.String())
		}
		return
	}
	require.Equal(t, mutator.NoLie, rep.Lie)
	if escaped && err != nil {
		if !rep.Has(mutator.KindsOf(mutator.Flip)) { // which may hit the version, or the header length
			require.True(t, err == frame.ErrNotRoCE || err == frame.ErrFragment, "%v: %s", err, rep)
		}
		return
	}
	require.NoError(t, err, rep.String())
	if !rep.Has(mutator.KindsOf(mutator.Trailing, mutator.Flip)) {
		require.Equal(t, trailer(r), len(f.Trailer), rep.String())
	}
	if f.Net == frame.IPv4 && !escaped {
		h := f.NetPacket[:int(f.NetPacket[0]&15)*4]
		var sum uint32
		for ; len(h) > 0; h = h[2:] {
			sum += uint32(binary.BigEndian.Uint16(h))
		}
		require.EqualValues(t, 0xffff, sum&0xffff+sum>>16, rep.String())
	}
	switch cfg.ICRC {
	case mutator.ICRCValid:
		require.Equal(t, frame.ICRCGood, f.CheckICRC(), rep.String())
	case mutator.ICRCBad:
		require.Equal(t, frame.ICRCBad, f.CheckICRC(), rep.String())
	default:
		if was, err := decode(&cfg, r, r.Data); err == nil && !escaped {
			require.Equal(t, was.Transport[len(was.Transport)-4:], f.Transport[len(f.Transport)-4:], rep.String())
		}
	}
	if _, err = decode(&cfg, r, out); err != nil {
		_, malformed := decode(&cfg, r, r.Data)
		require.True(t, malformed != nil || rep.Has(mutator.MalformKinds), "%v: %s", err, rep)
		require.True(t, errors.Is(err, bth.ErrLength) || errors.Is(err, bth.ErrOpcode) ||
			errors.Is(err, bth.ErrVersion) || errors.Is(err, bth.ErrTruncated), "%v: %s", err, rep)
	}
}

func trailer(r *mutator.Record) int {
	var f frame.Frame
	if (frame.Finder{}).Find(r.Link, r.Data, r.WireLen, &f) != nil {
		return 0
	}
	return len(f.Trailer)
}

// TestKinds: every kind, by itself, changes bytes of some frame and is the one
// reported, on every frame to which it applies.
func TestKinds(t *testing.T) {
	recs := append(append(built(), captured(t)[:200]...), builtMRC()...)
	for k := range mutator.FieldKinds.All {
		t.Run(k.String(), func(t *testing.T) {
			set := mutator.KindsOf(k)
			made := 0
			for i := range recs {
				r := &recs[i]
				out, rep := mutate(t, mutator.Config{Seed: 5, Kinds: set, Changes: 1, MRC: true}, uint64(i), r)
				if len(rep.Changes()) == 0 {
					require.True(t, bytes.Equal(r.Data, out) || !rep.RoCE || trailer(r) > 0 || r.WireLen > len(r.Data), "nothing to change: %x -> %x", r.Data, out)
					continue
				}
				made++
				require.Len(t, rep.Changes(), 1)
				c := rep.Changes()[0]
				require.Equal(t, k, c.Kind)
				// A flipped bit may be one that is repaired.
				if k != mutator.Flip {
					require.False(t, bytes.Equal(r.Data, out), rep.String())
				}
			}
			require.Positive(t, made)
		})
	}
}

// TestNothingUndone: a frame with changes in its report is not the frame that
// went in, and no field is reported twice; nor does any change drop another: the
// value of each field reported is in the frame.
func TestNothingUndone(t *testing.T) {
	recs := append(built(), captured(t)...)
	want := func(out *frame.Frame) map[mutator.Kind]uint64 {
		p := &out.Packet
		return map[mutator.Kind]uint64{
			mutator.DestQP: uint64(p.DestQP), mutator.PSN: uint64(p.PSN), mutator.PKey: uint64(p.PKey),
			mutator.RETHRKey: uint64(p.RETH.RKey), mutator.RETHLength: uint64(p.RETH.DMALen), mutator.AETHMSN: uint64(p.AETH.MSN),
			mutator.Immediate: uint64(p.ImmDt.Imm), mutator.DETHQKey: uint64(p.DETH.QKey),
			mutator.PayloadTruncate: uint64(len(p.Payload)), mutator.PayloadExtend: uint64(len(p.Payload)),
			mutator.OpcodeService: uint64(p.Opcode), mutator.OpcodeOther: uint64(p.Opcode),
		}
	}
	checked := 0
	for _, cfg := range []mutator.Config{
		{Changes: 8}, {Changes: 2, Kinds: mutator.KindsOf(mutator.PSN)}, {Changes: 8, ICRC: mutator.ICRCBad},
		{Changes: 8, Kinds: mutator.KindsOf(mutator.VLANAdd, mutator.VLANRemove, mutator.AddressSwap)},
		{Changes: 8, Kinds: mutator.PayloadKinds.Or(mutator.KindsOf(mutator.IPv4Options))},
		{Changes: 8, Kinds: mutator.KindsOf(mutator.PadCnt, mutator.RETHRKey, mutator.OpcodeOther, mutator.PayloadExtend, mutator.Cut)},
		{Changes: 1, Kinds: mutator.KindsOf(mutator.Flip)},
	} {
		for n := range uint64(4 * len(recs)) {
			r := &recs[n%uint64(len(recs))]
			out, rep := mutate(t, cfg, n, r)
			changes := rep.Changes()
			if len(changes) == 0 {
				continue
			}
			if cfg.ICRC != mutator.ICRCBad {
				require.False(t, bytes.Equal(out, r.Data), rep.String())
			}
			var f frame.Frame
			decoded := rep.RoCE && f.Decode(r.Link, out) == nil
			seen := map[mutator.Kind]bool{}
			for _, c := range changes {
				require.False(t, seen[c.Kind], rep.String())
				seen[c.Kind] = true
				if v, ok := want(&f)[c.Kind]; ok && decoded && !rep.Has(mutator.KindsOf(mutator.Cut, mutator.PadCnt, mutator.Relabel)) {
					checked++
					require.Equal(t, c.New, v, "%v: %s", c.Kind, rep)
				}
			}
		}
	}
	require.Greater(t, checked, 1000)
}

// TestAnything: bytes of any kind do no harm.
func TestAnything(t *testing.T) {
	links := []frame.Link{1, 101, 113, 228, 229, 276, 5}
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.Kinds = mutator.Kinds{}
		r := mutator.Record{
			Link: rapid.SampledFrom(links).Draw(t, "link"),
			Data: rapid.SliceOfN(rapid.Byte(), 0, 120).Draw(t, "bytes"),
		}
		r.WireLen = len(r.Data) + rapid.IntRange(0, 100).Draw(t, "cut")
		out, rep := mutate(t, cfg, 1, &r)
		if rep.RoCE {
			check(t, cfg, &r, out, rep)
		}
	})
}

// TestSnaplen: a packet that the capture cut is closed where it ends.
func TestSnaplen(t *testing.T) {
	for i, r := range built() {
		whole := len(r.Data)
		r.Data = r.Data[:whole-8]
		out, rep := mutate(t, mutator.Config{Kinds: mutator.KindsOf(mutator.None)}, uint64(i), &r)
		if !rep.RoCE { // the BTH itself is cut
			require.Equal(t, r.Data, out)
			continue
		}
		require.Equal(t, mutator.Closed, rep.Changes()[0].Kind)
		check(t, mutator.Config{}, &r, out, rep)
	}
}

// TestOpcodeFits: with another opcode a packet gets the headers and the payload of
// that, and keeps what both have.
func TestOpcodeFits(t *testing.T) {
	for _, k := range []mutator.Kind{mutator.OpcodeService, mutator.OpcodeOther} {
		for i, r := range append(built(), captured(t)...) {
			var was, is frame.Frame
			if was.Decode(r.Link, r.Data) != nil {
				continue
			}
			out, rep := mutate(t, mutator.Config{Seed: 2, Kinds: mutator.KindsOf(k), Changes: 1}, uint64(i), &r)
			require.NoError(t, is.Decode(r.Link, out), rep.String())
			a, b := &was.Packet, &is.Packet
			require.NotEqual(t, a.Opcode, b.Opcode)
			if a.Opcode != bth.CNP {
				require.Equal(t, k == mutator.OpcodeService, a.Opcode.Service() == b.Opcode.Service(), rep.String())
			}
			both := a.Opcode.Ext() & b.Opcode.Ext()
			has := func(e bth.Ext) bool { return both&e != 0 }
			require.True(t, !has(bth.HasRETH) || a.RETH == b.RETH, rep.String())
			require.True(t, !has(bth.HasAETH) || a.AETH == b.AETH, rep.String())
			require.True(t, !has(bth.HasDETH) || a.DETH == b.DETH, rep.String())
			require.True(t, !has(bth.HasAtomicETH) || a.AtomicETH == b.AtomicETH, rep.String())
			require.True(t, !has(bth.HasImmDt) || a.ImmDt == b.ImmDt, rep.String())
			require.True(t, !has(bth.HasXRCETH) || a.XRCETH == b.XRCETH, rep.String())
			switch b.Opcode.Payload() {
			case bth.NoPayload, bth.EightBytes, bth.SixteenZero: // Decode looked
			default:
				require.True(t, bytes.Equal(a.Payload, b.Payload), rep.String())
			}
		}
	}
}

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

// TestCutToItsLength: a packet that grew and was then cut to the length that it had is
// compared whole, whatever its ICRC and its lengths are to be.
func TestCutToItsLength(t *testing.T) {
	recs := append(built(), captured(t)...)
	for i := range 4000 {
		r := recs[i%len(recs)]
		mutate(t, mutator.Config{ICRC: mutator.ICRCBad, Lengths: mutator.LengthsLie, Changes: 4, Seed: uint64(i)}, uint64(i), &r)
	}
}
