package cnp_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/fuzz/seeds"
)

// genParams draws a preset as it is half of the time, and else one with every
// knob turned.
func genParams(t *rapid.T) (cnp.Params, uint64) {
	line := rapid.SampledFrom([]uint64{1 * gig, 10 * gig, 40 * gig, 100 * gig, 800 * gig}).Draw(t, "line")
	p := rapid.SampledFrom([]cnp.Params{cnp.Paper(), cnp.NVIDIA(), cnp.NS3(line)}).Draw(t, "preset")
	if rapid.Bool().Draw(t, "as it is") {
		return p, line
	}
	u := func(name string, lo, hi uint32) uint32 { return rapid.Uint32Range(lo, hi).Draw(t, name) }
	p.ClampTgtRate = rapid.Bool().Draw(t, "ClampTgtRate")
	p.ClampTgtRateAfterTimeInc = rapid.Bool().Draw(t, "ClampTgtRateAfterTimeInc")
	p.FullFastRecovery = rapid.Bool().Draw(t, "FullFastRecovery")
	p.RpgTimeReset = u("RpgTimeReset", 1, 400)
	if p.Algorithm != cnp.AlgorithmNS3 {
		p.RpgByteReset = u("RpgByteReset", 0, 40000)
	}
	p.Release = rapid.Bool().Draw(t, "Release")
	p.AlphaBits = rapid.SampledFrom([]uint32{0, 31, 30, 20, 10}).Draw(t, "AlphaBits")
	p.RpgThreshold = u("RpgThreshold", 0, 31)
	p.RpgAIRate = u("RpgAIRate", 0, 500)
	p.RpgHAIRate = u("RpgHAIRate", 0, 500)
	p.RpgMinRate = u("RpgMinRate", 1, 1000)
	if rapid.Bool().Draw(t, "max") {
		p.RpgMaxRate = u("RpgMaxRate", p.RpgMinRate, 200_000)
	}
	if rapid.Bool().Draw(t, "first") {
		p.RateToSetOnFirstCnp = u("RateToSetOnFirstCnp", p.RpgMinRate, 200_000)
	}
	p.RpgMinDecFac = u("RpgMinDecFac", 0, 100)
	p.RpgGd = u("RpgGd", 10, 11)
	p.DceTcpG = u("DceTcpG", 0, 1023)
	p.DceTcpRtt = u("DceTcpRtt", 1, 100)
	p.RateReduceMonitorPeriod = u("RateReduceMonitorPeriod", 1, 100)
	p.InitialAlphaValue = u("InitialAlphaValue", 0, 1023)
	return p, line
}

type step struct {
	kind  int // 0 CNP, 1 sent, 2 tick
	wait  int64
	bytes int
}

// genSteps draws calls with waits that are often whole periods, so that ends of
// periods and CNPs meet.
func genSteps(t *rapid.T, p cnp.Params) []step {
	wait := rapid.OneOf(
		rapid.Int64Range(0, 60_000),
		rapid.Int64Range(0, 3_000_000),
		rapid.Custom(func(t *rapid.T) int64 {
			unit := rapid.SampledFrom([]uint32{p.RpgTimeReset, p.DceTcpRtt, p.RateReduceMonitorPeriod, 1}).Draw(t, "unit")
			return int64(unit) * 1000 * rapid.Int64Range(0, 6).Draw(t, "times")
		}))
	n := rapid.IntRange(1, 250).Draw(t, "n") // a slice's own length is mostly small
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			kind:  rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "kind"),
			wait:  wait.Draw(t, "wait"),
			bytes: rapid.OneOf(rapid.IntRange(-1, 9000), rapid.IntRange(0, 30_000_000)).Draw(t, "bytes"),
		}
	}), n, n).Draw(t, "steps")
}

func do(r *cnp.ReactionPoint, s step, now time.Time) {
	switch s.kind {
	case 0:
		r.HandleCNP(now)
	case 1:
		r.HandleSent(now, s.bytes)
	default:
		r.Tick(now)
	}
}

// The stated bound against the equations in real numbers, e being 2^-31/g (2^-23
// in the paper preset): alpha within e + 2^-31, rates within 2 b/s plus, for
// each CNP, e of themselves and 2 b/s.
func TestPropAgainstReference(t *testing.T) {
	worst := 0.0
	rapid.Check(t, func(t *rapid.T) {
		p, line := genParams(t)
		p.Release, p.AlphaBits = false, 0
		port, err := cnp.NewReactionPort(p, line)
		require.NoError(t, err)
		r := port.ReactionPoint()
		m := newReference(p, float64(line))
		r.Tick(t0)
		now := int64(0)
		first := port.ReactionPoint()
		first.HandleCNP(t0) // sets the origin of time
		port.RpCnpHandled = 0
		e := 1024 / float64(1024-p.DceTcpG) / (1 << 31)
		e *= math.Exp2(11 - float64(p.RpgGd)) // a cut is by alpha rather than alpha/2 with 10
		near := func(want float64, got uint64, what string, i int) {
			diff := math.Abs(want - float64(got))
			worst = max(worst, diff/want)
			require.LessOrEqual(t, diff, 2+float64(port.RpCnpHandled)*(e*want+2), "%s after step %d: %v, want %v", what, i, got, want)
		}
		for i, s := range genSteps(t, p) {
			now += s.wait
			do(&r, s, t0.Add(time.Duration(now)))
			switch s.kind {
			case 0:
				m.cnp(now)
			case 1:
				m.sent(now, int64(max(s.bytes, 0)))
			default:
				m.advance(now, now)
			}
			if m.on {
				near(m.rc, r.Rate(), "RC", i)
				near(m.rt, r.TargetRate(), "RT", i)
				require.InDelta(t, m.alpha, float64(r.Alpha())/(1<<31), e+1.0/(1<<31), i)
				ts, bc := r.Stages()
				require.EqualValues(t, m.T, ts, i)
				require.EqualValues(t, m.BC, bc, i)
			}
		}
	})
	t.Logf("largest difference: %.3g of the rate", worst)
}

// Bounds of RC, RT and alpha; a CNP never raises a rate; deadlines lie ahead.
// Rule RP-11.
func TestPropInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, line := genParams(t)
		port, err := cnp.NewReactionPort(p, line)
		require.NoError(t, err)
		r := port.ReactionPoint()
		now := t0
		ceil := line
		floor := uint64(p.RpgMinRate) * 1e6
		for i, s := range genSteps(t, p) {
			wait := time.Duration(s.wait)
			if rapid.IntRange(0, 20).Draw(t, "jump") == 0 {
				wait = rapid.SampledFrom([]time.Duration{-time.Hour, time.Hour, 1e6 * time.Hour, math.MaxInt64}).Draw(t, "far")
			}
			now = now.Add(wait)
			if s.kind == 1 && s.bytes > 20_000_000 {
				s.bytes = math.MaxInt
			}
			ticked := r
			ticked.Tick(now)
			before := r
			do(&r, s, now)
			if s.kind == 0 {
				require.LessOrEqual(t, r.Rate(), max(ticked.Rate(), before.Rate()), i)
				require.LessOrEqual(t, r.TargetRate(), max(ticked.TargetRate(), before.TargetRate()), i)
			}
			if _, ok := r.Deadline(); r.Limited() || ok {
				require.GreaterOrEqual(t, r.Rate(), floor, i)
			}
			require.LessOrEqual(t, r.Rate(), r.TargetRate(), i)
			require.LessOrEqual(t, r.TargetRate(), ceil, i)
			require.LessOrEqual(t, r.Alpha(), uint32(1<<31), i)
			r2 := r
			r2.Tick(now)
			if d, ok := r2.Deadline(); ok && !now.Before(t0) && wait >= 0 {
				require.True(t, d.After(now) || d.Sub(t0) > 1<<61, i)
			}
		}
	})
}

// Calling at every deadline and calling late give the same state, to the bit.
// Rule RP-10.
func TestPropLateEqualsPunctual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, line := genParams(t)
		port, err := cnp.NewReactionPort(p, line)
		require.NoError(t, err)
		late, punctual := port.ReactionPoint(), port.ReactionPoint()
		now := t0
		for i, s := range genSteps(t, p) {
			now = now.Add(time.Duration(s.wait))
			for {
				d, ok := punctual.Deadline()
				if !ok || !d.Before(now) {
					break
				}
				punctual.Tick(d)
			}
			do(&late, s, now)
			do(&punctual, s, now)
			require.Equal(t, late, punctual, i)
		}
	})
}

// Same calls, same states.
// Rule RP-12.
func TestPropDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, line := genParams(t)
		steps := genSteps(t, p)
		port, err := cnp.NewReactionPort(p, line)
		require.NoError(t, err)
		a, b := port.ReactionPoint(), port.ReactionPoint()
		now := t0
		for _, s := range steps {
			now = now.Add(time.Duration(s.wait))
			do(&a, s, now)
			do(&b, s, now)
		}
		require.Equal(t, a, b)
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(k01Packet(f))
	f.Add([]byte{0x81})
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		if s.Frame.Packet.Opcode != bth.CNP {
			return nil
		}
		return []any{s.Frame.Transport}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		before := cnp.New(1, 2)
		h := before
		err := h.Decode(b)
		if !bytes.Equal(in, b) {
			t.Fatal("input changed")
		}
		if err != nil {
			if h != before {
				t.Fatal("receiver changed on error")
			}
			return
		}
		if err := h.Validate(); err != nil {
			t.Fatal(err)
		}
		if out := h.AppendTo(nil); !bytes.Equal(out, b[:cnp.Size]) {
			t.Fatalf("%x became %x", b[:cnp.Size], out)
		}
	})
}

// FuzzReactionPoint reads calls of 9 bytes each: what, how long after, how much.
func FuzzReactionPoint(f *testing.F) {
	f.Add(false, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xd6, 0xd8, 0, 0, 0, 0})
	f.Add(true, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xff, 0, 0, 0, 0})
	f.Add(true, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, nvidia bool, calls []byte) {
		p := cnp.Paper()
		if nvidia {
			p = cnp.NVIDIA()
		}
		port, err := cnp.NewReactionPort(p, 40*gig)
		if err != nil {
			t.Fatal(err)
		}
		r := port.ReactionPoint()
		now := t0
		for ; len(calls) >= 9; calls = calls[9:] {
			now = now.Add(time.Duration(int32(binary.BigEndian.Uint32(calls[1:]))) << (calls[0] >> 3))
			switch calls[0] & 7 {
			case 0, 3:
				ticked := r
				ticked.Tick(now)
				r.HandleCNP(now)
				if r.Rate() > ticked.Rate() {
					t.Fatal("a CNP raised the rate")
				}
			case 1, 4:
				r.HandleSent(now, int(int32(binary.BigEndian.Uint32(calls[5:])))<<(calls[0]>>4))
			default:
				r.Tick(now)
			}
			if r.Rate() < uint64(p.RpgMinRate)*1e6 || r.Rate() > r.TargetRate() ||
				r.TargetRate() > 40*gig || r.Alpha() > 1<<31 {
				t.Fatalf("out of bounds: %+v", r)
			}
		}
	})
}
