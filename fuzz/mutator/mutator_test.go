package mutator_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
)

func TestConfig(t *testing.T) {
	for _, cfg := range []mutator.Config{
		{ICRC: 3}, {Lengths: 2}, {Keep: 101}, {Keep: -1}, {Changes: 9}, {Changes: -1},
		{MaxFrame: 100}, {MaxFrame: 70000}, {Hold: 5000}, {Hold: -1},
	} {
		_, err := mutator.New(cfg)
		require.ErrorIs(t, err, mutator.ErrConfig, "%+v", cfg)
		_, err = mutator.NewStream(cfg)
		require.ErrorIs(t, err, mutator.ErrConfig, "%+v", cfg)
	}
}

func TestParseKinds(t *testing.T) {
	for list, want := range map[string]mutator.Kinds{
		"all":         mutator.AllKinds,
		"none":        mutator.KindsOf(mutator.None),
		"psn, drop":   mutator.KindsOf(mutator.PSN, mutator.Drop),
		"-sequence":   mutator.FieldKinds,
		"bth,-opcode": mutator.BTHKinds.AndNot(mutator.KindsOf(mutator.OpcodeService)),
		"raw,reth-va": mutator.RawKinds.Or(mutator.KindsOf(mutator.RETHAddress)),
	} {
		got, err := mutator.ParseKinds(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for _, list := range []string{"", "psn,", "closed", "PSN", "-nothing"} {
		_, err := mutator.ParseKinds(list)
		require.ErrorIs(t, err, mutator.ErrKind, list)
	}
	seen := make(map[string]bool)
	for k := range mutator.AllKinds.All {
		got, err := mutator.ParseKinds(k.String())
		require.NoError(t, err)
		require.Equal(t, mutator.KindsOf(k), got)
		require.False(t, seen[k.String()], k)
		seen[k.String()] = true
	}
	for name, set := range mutator.Groups {
		require.False(t, seen[name], name)
		require.Positive(t, set.Len())
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "psn", mutator.PSN.String())
	require.Equal(t, "closed", mutator.Closed.String())
	require.Equal(t, "200", mutator.Kind(200).String())
	require.Equal(t, "valid bad keep 3", mutator.ICRC(0).String()+" "+mutator.ICRCBad.String()+" "+mutator.ICRCKeep.String()+" "+mutator.ICRC(3).String())
	require.Equal(t, "udp-length", mutator.LieUDP.String())
	require.Equal(t, "99", mutator.Lie(99).String())
	require.False(t, mutator.AllKinds.Has(200))
}

func TestKeep(t *testing.T) {
	r := built()[0]
	kept := 0
	for n := range uint64(1000) {
		out, rep := mutate(t, mutator.Config{Keep: 30}, n, &r)
		if rep.Kept {
			kept++
			require.Equal(t, r.Data, out)
			require.Contains(t, rep.String(), "kept")
		}
	}
	require.InDelta(t, 300, kept, 60)
}

// captured returns the frames of the captures beside this package.
func captured(t testing.TB) (recs []mutator.Record) {
	names, err := filepath.Glob("../captures/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		more, err := records.ReadFile(name)
		require.NoError(t, err)
		recs = append(recs, more...)
	}
	return recs
}

// built returns a frame for each known opcode, network header, link and number
// of tags.
func built() (recs []mutator.Record) {
	payload := []byte("some payload that is not a multiple of 4")[:39]
	for i := range 256 {
		op := bth.Opcode(i)
		if !op.Known() {
			continue
		}
		f := frame.Frame{
			Net: frame.Net(1 + i%3), DF: true, HopLimit: 64, SrcPort: 0xc001,
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
			Packet: bth.Packet{Header: bth.Header{Opcode: op, PKey: 0xffff, DestQP: 0x11, PSN: 0xffffff}},
		}
		if f.Net != frame.IPv4 {
			f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		}
		switch op.Payload() {
		case bth.UpToMTU, bth.OneToMTU, bth.ExactlyMTU:
			f.Packet.SetPayload(payload)
		case bth.EightBytes:
			f.Packet.SetPayload(payload[:8])
		case bth.SixteenZero:
			f.Packet.SetPayload(make([]byte, 16))
		}
		net := f.AppendTo(nil)
		ether := map[frame.Net][]byte{frame.IPv4: {8, 0}, frame.IPv6: {0x86, 0xdd}, frame.GRH: {0x89, 0x15}}[f.Net]
		add := func(link frame.Link, parts ...[]byte) {
			b := bytes.Join(append(parts, net), nil)
			recs = append(recs, mutator.Record{Link: link, Data: b, WireLen: len(b)})
		}
		tag := []byte{0x81, 0, 0, 9}
		add(frame.Ethernet, make([]byte, 12), ether)
		add(frame.Ethernet, make([]byte, 12), tag, ether)
		add(frame.Ethernet, make([]byte, 12), []byte{0x88, 0xa8, 0, 1}, tag, ether)
		add(frame.LinuxSLL, make([]byte, 14), ether)
		add(frame.LinuxSLL, make([]byte, 14), tag, ether)
		add(frame.LinuxSLL2, ether, make([]byte, 18))
		add(frame.LinuxSLL2, tag[:2], make([]byte, 18), tag[2:], ether)
		if f.Net != frame.GRH {
			add(frame.RawIP, nil)
		}
	}
	return recs
}

// builtMRC returns a frame for each opcode of MRC, with and without a timestamp
// header, over IPv4 and IPv6.
func builtMRC() (recs []mutator.Record) {
	for i := range 256 {
		op := bth.Opcode(i)
		if !mrc.Known(op) {
			continue
		}
		for j := range 4 {
			f := frame.Frame{
				Link: frame.Ethernet, Net: frame.Net(1 + j&1), DF: true, SrcPort: 0xc001, MRC: new(mrc.Packet),
				Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
			}
			if f.Net != frame.IPv4 {
				f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			}
			p := f.MRC
			p.Header = bth.Header{Opcode: op, PKey: 0xffff, DestQP: 0x11, PSN: 0xffffff}
			mrc.SetTS(&p.Header, j&2 != 0)
			p.TSETH.FType, p.PETH.Time.FType, p.ERTH.Time.FType, p.NETH.CCType = 1, 1, 1, 2
			p.METH.MSN, p.RETH.DMALen, p.SETH.SACKOffset, p.NETH.Reason = 7, 39, 1, mrc.NoBitmap
			if mrc.IsWrite(op) {
				p.SetPayload([]byte("some payload that is not a multiple of 4")[:39])
			}
			b := f.AppendTo(nil)
			recs = append(recs, mutator.Record{Link: f.Link, Data: b, WireLen: len(b)})
		}
	}
	return recs
}

// decode decodes a frame as cfg says.
func decode(cfg *mutator.Config, r *mutator.Record, b []byte) (f frame.Frame, err error) {
	if cfg.MRC {
		f.MRC = new(mrc.Packet)
	}
	err = f.Decode(r.Link, b)
	return f, err
}

func mutate(t require.TestingT, cfg mutator.Config, n uint64, r *mutator.Record) ([]byte, *mutator.Report) {
	m, err := mutator.New(cfg)
	require.NoError(t, err)
	var rep mutator.Report
	return m.Mutate(n, r.Link, r.Data, r.WireLen, nil, &rep), &rep
}

var t0 = time.Unix(1_800_000_000, 0)

// run sends all records through a stream, and returns copies of what came out
// and the reports.
func run(t testing.TB, cfg mutator.Config, in []mutator.Record) (out []mutator.Record, reps []mutator.Report) {
	s, err := mutator.NewStream(cfg)
	require.NoError(t, err)
	drain := func() {
		var rec mutator.Record
		for s.Next(&rec) {
			rec.Data = bytes.Clone(rec.Data)
			out = append(out, rec)
		}
	}
	for i := range in {
		reps = append(reps, *s.Push(&in[i]))
		drain()
	}
	s.Flush()
	drain()
	return out, reps
}

func frames(t testing.TB, n int) []mutator.Record {
	recs := captured(t)[:n]
	for i := range recs {
		recs[i].Time = t0.Add(time.Duration(i) * 10 * time.Microsecond)
	}
	return recs
}

// TestOrder: with one kind of sequence change at a time, what comes out is what
// the reports say.
func TestOrder(t *testing.T) {
	in := frames(t, 400)
	for k := range mutator.SequenceKinds.All {
		t.Run(k.String(), func(t *testing.T) {
			out, reps := run(t, mutator.Config{Seed: 3, Kinds: mutator.KindsOf(k), Keep: 60}, in)
			seen := make(map[uint64]int)
			for i, r := range out {
				seen[r.Number]++
				require.Equal(t, in[r.Number].Data, r.Data, "no bytes changed but the order: %d", r.Number)
				if i > 0 {
					require.False(t, r.Time.Before(out[i-1].Time), "time goes back")
				}
			}
			want := make(map[uint64]int)
			changed := 0
			for n := range reps {
				want[uint64(n)]++
				for _, c := range reps[n].Changes() {
					changed++
					require.Equal(t, k, c.Kind)
					switch k {
					case mutator.Drop:
						want[uint64(n)]--
					case mutator.Duplicate:
						want[uint64(n)]++
					case mutator.ReplayOld:
						want[c.New]++
						require.Less(t, c.New, uint64(n))
					}
				}
			}
			for n, c := range want {
				require.Equal(t, c, seen[n], "frame %d", n)
			}
			require.Greater(t, changed, 40) // delays fill the places
			moved := 0
			for i := 1; i < len(out); i++ {
				if out[i].Number < out[i-1].Number && !out[i].Again {
					moved++
				}
			}
			require.Equal(t, k == mutator.Reorder || k == mutator.Delay, moved > 20)
		})
	}
}

// TestFrameAgain: frame n of a run is built by itself.
func TestFrameAgain(t *testing.T) {
	in := frames(t, 300)
	cfg := mutator.Config{Seed: 9, Keep: 10}
	out, reps := run(t, cfg, in)
	again, _ := run(t, cfg, in)
	require.Equal(t, again, out)
	cfg.Seed++
	other, _ := run(t, cfg, in)
	require.NotEqual(t, other, out)
	cfg.Seed--
	for _, r := range out {
		b, rep := mutate(t, cfg, r.Number, &in[r.Number])
		require.Equal(t, b, r.Data)
		require.Equal(t, rep.Kept, reps[r.Number].Kept)
	}
}

func TestReplay(t *testing.T) {
	in := frames(t, 50)
	source := func() func(*mutator.Record) bool {
		i := 0
		return func(r *mutator.Record) bool {
			if i == len(in) {
				return false
			}
			*r = in[i]
			i++
			return true
		}
	}
	for _, speed := range []float64{1, 0.5, 10, 0} {
		synctest.Test(t, func(t *testing.T) {
			start, n := time.Now(), 0
			err := mutator.Replay(t.Context(), speed, source(), func(r *mutator.Record) error {
				want := time.Duration(0)
				if speed > 0 {
					want = time.Duration(float64(n*10000) / speed)
				}
				require.Equal(t, want, time.Since(start))
				n++
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, len(in), n)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Microsecond)
		defer cancel()
		n := 0
		err := mutator.Replay(ctx, 1, source(), func(*mutator.Record) error { n++; return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10, n)
	})
	full := errors.New("full")
	require.ErrorIs(t, mutator.Replay(t.Context(), 0, source(), func(*mutator.Record) error { return full }), full)
}

// BenchmarkMutate has only a copy and the ICRC beside it: no mutator that builds
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

// TestAllocations counts over whole runs: an average would round small leaks
// away.
func TestAllocations(t *testing.T) {
	recs := append(captured(t), built()...)
	for _, cfg := range []mutator.Config{{}, {ICRC: mutator.ICRCBad, Lengths: mutator.LengthsLie, Changes: 8}} {
		m, err := mutator.New(cfg)
		require.NoError(t, err)
		s, err := mutator.NewStream(cfg)
		require.NoError(t, err)
		dst := make([]byte, 0, 16384)
		var rep mutator.Report
		var rec mutator.Record
		require.Zero(t, mallocs(func() {
			for i := range recs {
				m.Mutate(uint64(i), recs[i].Link, recs[i].Data, recs[i].WireLen, dst, &rep)
			}
		}), "Mutate")
		require.Zero(t, mallocs(func() {
			for i := range recs {
				s.Push(&recs[i])
				for s.Next(&rec) {
				}
			}
			s.Flush()
			for s.Next(&rec) {
			}
		}), "Stream")
	}
}

// mallocs returns the least of some runs, since the runtime allocates too.
func mallocs(f func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}
