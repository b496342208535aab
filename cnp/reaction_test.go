package cnp_test

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
)

const gig uint64 = 1_000_000_000

// t0 is where every test's time begins.
var t0 = time.Unix(1_700_000_000, 0)

func us(n float64) time.Time { return t0.Add(time.Duration(n * 1000)) }

func newRP(t testing.TB, p cnp.Params, line uint64) cnp.ReactionPoint {
	t.Helper()
	port, err := cnp.NewReactionPort(p, line)
	require.NoError(t, err)
	port.ReactionPoint() // no side effect
	return port.ReactionPoint()
}

// alphaIs compares with a real number; both sides are exact in 2^-31.
func alphaIs(t *testing.T, want float64, r *cnp.ReactionPoint) {
	t.Helper()
	require.Equal(t, uint32(want*(1<<31)), r.Alpha())
}

// The worked numbers of the package documentation. Resolution: 1 b/s, rounded up.
// Rules RP-1, RP-2, RP-3.
func TestPaperWorkedNumbers(t *testing.T) {
	r := newRP(t, cnp.Paper(), 40*gig)
	require.False(t, r.Limited())
	require.EqualValues(t, 40*gig, r.Rate())
	require.Zero(t, r.Alpha())

	r.HandleCNP(us(0))
	require.EqualValues(t, 20*gig, r.Rate())
	require.EqualValues(t, 40*gig, r.TargetRate())
	alphaIs(t, 1, &r)
	require.True(t, r.Limited())

	probe := r // alpha after the period, looked at on a copy
	probe.Tick(us(55))
	alphaIs(t, 0.99609375, &probe)

	r.HandleCNP(us(55))
	require.EqualValues(t, 20*gig, r.TargetRate())
	require.EqualValues(t, uint64(10_039_062_500), r.Rate()) // 10.038909912 if alpha went first
	alphaIs(t, 0.9961090087890625, &r)

	for i, want := range []uint64{15_019_531_250, 17_509_765_625, 18_754_882_813, 19_377_441_407} {
		at := us(110 + 55*float64(i))
		d, ok := r.Deadline()
		require.True(t, ok)
		require.Equal(t, at, d)
		r.Tick(at)
		require.Equal(t, want, r.Rate(), i)
		require.EqualValues(t, 20*gig, r.TargetRate(), i)
	}
	r.Tick(us(330)) // the fifth: additive
	require.EqualValues(t, uint64(20_040_000_000), r.TargetRate())
	require.EqualValues(t, uint64(19_708_720_704), r.Rate())
}

// The sequence of a public report on the order of cut and alpha, with an increase timer that is out of the way.
// Rule RP-2.
func TestCutBeforeAlpha(t *testing.T) {
	p := cnp.Paper()
	p.RpgTimeReset = 1500
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	require.EqualValues(t, 20*gig, r.Rate())
	alphaIs(t, 1, &r)
	r.Tick(us(54.999))
	alphaIs(t, 1, &r)
	r.Tick(us(55))
	alphaIs(t, 0.99609375, &r)
	r.HandleCNP(us(60))
	require.EqualValues(t, 20*gig, r.TargetRate())
	require.EqualValues(t, uint64(10_039_062_500), r.Rate())
	alphaIs(t, 0.9961090087890625, &r)
	r.Tick(us(114.999)) // K counts from the CNP
	alphaIs(t, 0.9961090087890625, &r)
	r.Tick(us(115))
	require.Less(t, r.Alpha(), uint32(0.9961090087890625*(1<<31)))
}

// Fast recovery, additive and hyper increase by both counters; the two readings
// of F.
// Rule RP-4.
func TestPaperStages(t *testing.T) {
	p := cnp.Paper()
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	require.EqualValues(t, 20*gig, r.Rate())
	r.HandleCNP(us(0)) // RT 20, RC 10
	b := int(p.RpgByteReset) * 64
	require.Equal(t, 10_000_000, b)

	r.HandleSent(us(1), b-1)
	require.EqualValues(t, 10*gig, r.Rate())
	r.HandleSent(us(2), 1)
	require.EqualValues(t, 15*gig, r.Rate())
	r.HandleSent(us(3), 9*b) // BC 10: 3 more averages, then 6 additive steps
	_, bc := r.Stages()
	require.EqualValues(t, 10, bc)
	require.EqualValues(t, 20*gig+6*40e6, r.TargetRate())
	rt := r.TargetRate()
	for i := 1; i <= 5; i++ { // min(T, BC) <= F: still additive
		r.Tick(us(55 * float64(i)))
		rt += 40e6
		require.Equal(t, rt, r.TargetRate(), i)
	}
	for i := 6; i <= 10; i++ { // min = T > 5: hyper, i = T - F
		r.Tick(us(55 * float64(i)))
		rt += uint64(i-5) * 200e6
		require.Equal(t, rt, r.TargetRate(), i)
	}
	r.Tick(us(55 * 11)) // min stays at BC = 10
	require.Equal(t, rt+5*200e6, r.TargetRate())

	p.FullFastRecovery = true
	r = newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	r.HandleCNP(us(0))
	r.Tick(us(55 * 5))
	require.EqualValues(t, 20*gig, r.TargetRate(), "five averaging steps")
	r.Tick(us(55 * 6))
	require.EqualValues(t, 20*gig+40e6, r.TargetRate())
}

// Rule RP-6: NVIDIA's worked numbers, in real numbers and with alpha in 10 bits.
func TestNVIDIAWorkedNumbers(t *testing.T) {
	const g = 1019.0 / 1024
	p := cnp.NVIDIA()
	p.Release = false
	r := newRP(t, p, 40*gig)
	p.AlphaBits = 10
	coarse := newRP(t, p, 40*gig)
	both := func(at float64) { r.Tick(us(at)); coarse.Tick(us(at)) }
	near := func(want float64, got uint32) {
		t.Helper()
		require.InDelta(t, want, float64(got)/(1<<31), 1e-7)
	}
	r.HandleCNP(us(0))
	coarse.HandleCNP(us(0))
	require.EqualValues(t, 40*gig, r.Rate(), "a CNP only sets flags")
	require.EqualValues(t, 1023<<21, r.Alpha())
	alpha := 1023.0 / 1024
	for i, c := range []uint32{1023, 1018, 1013} {
		both(float64(1 + i))
		if alpha *= g; i == 0 {
			alpha += 1 - g
		}
		near(alpha, r.Alpha())
		require.Equal(t, c<<21, coarse.Alpha(), i)
		require.False(t, r.Limited())
	}
	d, ok := r.Deadline()
	require.True(t, ok)
	require.Equal(t, us(4), d)
	both(4) // alpha first: 0.984456...
	alpha *= g
	near(alpha, r.Alpha())
	require.InDelta(t, 40e9*(1-alpha/2), r.Rate(), 10_000)
	require.EqualValues(t, 1008<<21, coarse.Alpha())
	require.EqualValues(t, uint64(20_312_500_000), coarse.Rate())
	require.EqualValues(t, 40*gig, r.TargetRate(), "no increase before: target kept")
	both(303.999)
	require.EqualValues(t, uint64(20_312_500_000), coarse.Rate())
	both(304)
	require.EqualValues(t, uint64(30_156_250_000), coarse.Rate())
	require.EqualValues(t, 40*gig, coarse.TargetRate())
	both(604)
	require.EqualValues(t, uint64(35_078_125_000), coarse.Rate())
	ts, _ := r.Stages()
	require.EqualValues(t, 2, ts)

	// A cut after an increase by the timer clamps the target. In 10 bits alpha is 0 by
	// now, so that only the mark counts: 5/1024, 4 by the end of the period.
	near(alpha*math.Pow(g, 600), r.Alpha())
	require.Zero(t, coarse.Alpha())
	was := float64(r.Rate())
	r.HandleCNP(us(604.5))
	coarse.HandleCNP(us(604.5))
	both(608)
	require.EqualValues(t, uint64(35_078_125_000), coarse.TargetRate())
	require.EqualValues(t, uint64(35_078_125_000-35_078_125_000*2/2048), coarse.Rate())
	alpha = alpha*math.Pow(g, 604) + (1-g)*math.Pow(g, 3)
	near(alpha, r.Alpha())
	require.InDelta(t, was*(1-alpha/2), r.Rate(), 10_000)
	ts, _ = r.Stages()
	require.Zero(t, ts)
}

// Rule RP-6: alpha of the NVIDIA preset stays with its recurrence in real numbers at every
// spacing of CNPs; at 6 us it comes to rest at 0.165 just before a mark.
func TestNVIDIAAlphaInReals(t *testing.T) {
	const g = 1019.0 / 1024
	for spacing := 1; spacing <= 100; spacing++ {
		p := cnp.NVIDIA()
		p.Release = false
		r := newRP(t, p, 40*gig)
		alpha, marked, least := 1023.0/1024, false, 1.0
		for at := range 20_000 {
			if at != 0 {
				least = min(least, float64(r.Alpha())/(1<<31))
				r.Tick(us(float64(at)))
				if alpha *= g; marked {
					alpha += 1 - g
				}
				marked = false
				require.InEpsilon(t, alpha, float64(r.Alpha())/(1<<31), 1e-5, "a CNP every %d us, after %d us", spacing, at)
			}
			if at%spacing == 0 {
				r.HandleCNP(us(float64(at)))
				marked = true
			}
		}
		if spacing == 6 {
			require.InDelta(t, 0.165, least, 0.001)
		}
	}
}

// Rule RP-13: a flow that is back at its ceiling has no limiter, and its next CNP is a first one.
func TestRelease(t *testing.T) {
	for name, p := range map[string]cnp.Params{"paper": cnp.Paper(), "nvidia": cnp.NVIDIA(), "ns3": cnp.NS3(40 * gig)} {
		for _, release := range []bool{false, true} {
			p.Release = release
			r := newRP(t, p, 40*gig)
			burst := func(from float64) uint64 {
				for i := range 5 {
					r.HandleCNP(us(from + 50*float64(i)))
					r.Tick(us(from + 50*float64(i) + 4))
				}
				return r.Rate()
			}
			first := burst(0)
			require.Less(t, first, 10*gig, name)
			for now := us(204); ; {
				d, ok := r.Deadline()
				if !ok {
					break
				}
				require.True(t, d.After(now))
				now = d
				r.Tick(now)
			}
			require.EqualValues(t, 40*gig, r.Rate(), name)
			require.False(t, r.Limited(), name)
			second := burst(1e6)
			if release {
				require.Zero(t, func() uint32 { x := r; x.Tick(us(100e6)); return x.Alpha() }(), "no limiter, no alpha")
				require.Equal(t, first, second, name)
			} else {
				require.Greater(t, second, 3*first, name)
			}
		}
	}
	// With RpgMaxRate, reaching that is enough.
	p := cnp.NVIDIA()
	p.RpgMaxRate = 10_000
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	r.Tick(us(4))
	require.Less(t, r.Rate(), 6*gig)
	r.Tick(us(1e6))
	require.EqualValues(t, 40*gig, r.Rate())
	require.False(t, r.Limited())
}

// Rule RP-14: in the code of ns-3 the first CNP does not count into alpha; the stage of the timer
// is the only cause; the numbers were worked out by hand.
func TestNS3WorkedNumbers(t *testing.T) {
	const g = 255.0 / 256
	p := cnp.NS3(100 * gig)
	require.EqualValues(t, 20, p.RpgAIRate)
	require.EqualValues(t, 200, p.RpgHAIRate)
	r := newRP(t, p, 100*gig)
	r.HandleCNP(us(0))
	alphaIs(t, 1, &r)
	r.Tick(us(1))
	alphaIs(t, g, &r)
	r.Tick(us(4))
	rate := 100e9 * (1 - g*g*g*g/2)
	require.InDelta(t, rate, r.Rate(), 100)
	require.EqualValues(t, 100*gig, r.TargetRate())
	r.HandleCNP(us(5))
	r.Tick(us(8))
	rate *= 1 - (g*g*g*g*g*g*g*g+(1-g)*g*g)/2
	require.InDelta(t, rate, r.Rate(), 100)
	require.EqualValues(t, 100*gig, r.TargetRate(), "no increase since the last cut: the target stays")
	r.Tick(us(308)) // fast recovery
	rate = (rate + 100e9) / 2
	require.InDelta(t, rate, r.Rate(), 100)
	r.HandleCNP(us(309))
	r.Tick(us(312)) // the target is clamped after an increase
	require.InDelta(t, rate, r.TargetRate(), 100)
	target := rate
	for i, add := range []float64{0, 20e6, 200e6, 200e6} {
		r.Tick(us(312 + 300*float64(i+1)))
		target += add
		require.InDelta(t, target, r.TargetRate(), 100, i)
	}
	slow := cnp.NS3Paper(25 * gig)
	require.EqualValues(t, []uint32{50, 50, 55, 5, 50, 1000}, []uint32{slow.DceTcpRtt, slow.RateReduceMonitorPeriod,
		slow.RpgTimeReset, slow.RpgAIRate, slow.RpgHAIRate, slow.RpgMinRate})
	_, err := cnp.NewReactionPort(cnp.NS3(100e6), 100e6)
	require.NoError(t, err)
}

// Rule RP-7.
func TestNVIDIACut(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*cnp.Params)
		before func(*cnp.ReactionPoint)
		rate   uint64
		target uint64
	}{
		{"defaults", func(*cnp.Params) {}, nil, 20_312_500_000, 40 * gig},
		{"clamp_tgt_rate", func(p *cnp.Params) { p.ClampTgtRate = true }, nil, 20_312_500_000, 40 * gig},
		{"rpg_gd 10, rpg_min_dec_fac 50", func(p *cnp.Params) { p.RpgGd = 10 }, nil, 20 * gig, 40 * gig},
		{"rpg_min_dec_fac 80", func(p *cnp.Params) { p.RpgMinDecFac = 80 }, nil, 32 * gig, 40 * gig},
		{"rpg_min_dec_fac 100", func(p *cnp.Params) { p.RpgMinDecFac = 100 }, nil, 40 * gig, 40 * gig},
		{"rpg_min_rate", func(p *cnp.Params) { p.RpgMinRate = 30_000 }, nil, 30 * gig, 40 * gig},
		{"rpg_max_rate", func(p *cnp.Params) { p.RpgMaxRate = 10_000 }, nil, 5_078_125_000, 10 * gig},
		{"rate_to_set_on_first_cnp", func(p *cnp.Params) { p.RateToSetOnFirstCnp = 10_000 }, nil, 5_078_125_000, 10 * gig},
		{"rate_to_set_on_first_cnp above the line", func(p *cnp.Params) { p.RateToSetOnFirstCnp = 100_000 }, nil, 20_312_500_000, 40 * gig},
		{"initial_alpha_value 0", func(p *cnp.Params) { p.InitialAlphaValue = 0 }, nil, 40*gig - 40*gig*2/2048, 40 * gig},
		{"dce_tcp_g 0", func(p *cnp.Params) { p.DceTcpG = 0 }, nil, 40 * gig, 40 * gig},
		{"rate_reduce_monitor_period 1", func(p *cnp.Params) { p.RateReduceMonitorPeriod = 1 }, nil, 40*gig - 40*gig*1023/2048, 40 * gig},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := cnp.NVIDIA()
			p.AlphaBits = 10 // for round numbers
			c.change(&p)
			r := newRP(t, p, 40*gig)
			r.HandleCNP(us(0))
			r.Tick(us(4))
			require.Equal(t, c.rate, r.Rate())
			require.Equal(t, c.target, r.TargetRate())
		})
	}
}

// The three conditions of a clamped target, on the second cut.
// Rule RP-7.
func TestNVIDIAClamping(t *testing.T) {
	for _, c := range []struct {
		clamp, afterTime, timer, bytes bool
		clamped                        bool
	}{
		{false, true, false, false, false},
		{true, false, false, false, true},
		{false, true, true, false, true},
		{false, false, true, false, false},
		{false, false, false, true, true},
	} {
		p := cnp.NVIDIA()
		p.ClampTgtRate, p.ClampTgtRateAfterTimeInc = c.clamp, c.afterTime
		r := newRP(t, p, 40*gig)
		r.HandleCNP(us(0))
		r.Tick(us(4))
		at := 10.0
		if c.timer {
			at = 310
		}
		if c.bytes {
			r.HandleSent(us(5), 32767*64)
		}
		r.Tick(us(at))
		before := r.Rate()
		r.HandleCNP(us(at))
		r.Tick(us(at + 4))
		require.Less(t, r.Rate(), before)
		if c.clamped {
			require.Equal(t, before, r.TargetRate(), c)
		} else {
			require.EqualValues(t, 40*gig, r.TargetRate(), c)
		}
	}
}

// Rule RP-8.
func TestNVIDIAIncrease(t *testing.T) {
	p := cnp.NVIDIA()
	p.ClampTgtRate = true
	r := newRP(t, p, 40*gig)
	for i := range 3 {
		r.HandleCNP(us(4 * float64(i)))
		r.Tick(us(4 * float64(i+1)))
	}
	rt := r.TargetRate()
	require.Less(t, rt, uint64(20*gig))
	b := 32767 * 64
	add := func(want uint64) {
		t.Helper()
		rt += want
		require.Equal(t, rt, r.TargetRate())
	}
	r.HandleSent(us(13), b) // 0, 0: recovery; BC 1
	add(0)
	r.HandleSent(us(14), b) // max 1 >= threshold 1: additive; BC 2
	add(5e6)
	r.Tick(us(312)) // T 0: additive; T 1
	add(5e6)
	r.Tick(us(612)) // min 1: additive; T 2
	add(5e6)
	r.Tick(us(912)) // min 2 > 1: hyper
	add(50e6)
	r.HandleSent(us(913), b) // hyper again, by the same amount
	add(50e6)
}

// Periods are free-running, several CNPs in one are one, and the flags are used up.
// Rule RP-5.
func TestNVIDIAFlags(t *testing.T) {
	p := cnp.NVIDIA()
	p.AlphaBits = 10
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	r.HandleCNP(us(3.2))
	r.HandleCNP(us(3.3))
	r.Tick(us(4)) // the mark of 3.2 counts at 4: 1013 became 1013 x 1019/1024 + 5
	require.EqualValues(t, 1013<<21, r.Alpha())
	rate := r.Rate()
	r.Tick(us(12))
	require.Equal(t, rate, r.Rate())
	r.HandleCNP(us(13.9)) // the grid is 0, 4, 8, 12, 16
	d, ok := r.Deadline()
	require.True(t, ok)
	require.Equal(t, us(16), d)
	r.HandleCNP(us(16)) // at the end of a period: counts for the next one
	require.Less(t, r.Rate(), rate)
	d, _ = r.Deadline()
	require.Equal(t, us(20), d)
}

// At one instant a cut comes before an increase and takes its place.
// Rule RP-9.
func TestTies(t *testing.T) {
	p := cnp.NVIDIA()
	p.RpgTimeReset, p.AlphaBits = 4, 10
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	r.Tick(us(4))
	require.EqualValues(t, uint64(20_312_500_000), r.Rate())
	ts, _ := r.Stages()
	require.Zero(t, ts)

	r = newRP(t, cnp.Paper(), 40*gig)
	r.HandleCNP(us(0))
	r.HandleCNP(us(55))
	require.EqualValues(t, 20*gig, r.TargetRate())
	r = newRP(t, cnp.Paper(), 40*gig)
	r.HandleCNP(us(0))
	r.Tick(us(55)) // called for first: the increase has happened
	r.HandleCNP(us(55))
	require.EqualValues(t, 30*gig, r.TargetRate())
}

// Rule RP-10.
func TestTimeBackwards(t *testing.T) {
	for _, p := range []cnp.Params{cnp.Paper(), cnp.NVIDIA()} {
		port, err := cnp.NewReactionPort(p, 40*gig)
		require.NoError(t, err)
		a, b := port.ReactionPoint(), port.ReactionPoint()
		a.HandleCNP(us(100))
		b.HandleCNP(us(100))
		a.Tick(us(200))
		b.Tick(us(200))
		a.HandleCNP(us(50))
		b.HandleCNP(us(200))
		require.Equal(t, b, a)
		a.HandleSent(time.Time{}, 1e9)
		b.HandleSent(us(200), 1e9)
		require.Equal(t, b, a)
		a.Tick(us(0).AddDate(500, 0, 0)) // past what nanoseconds can count
		require.EqualValues(t, 40*gig, a.Rate())
		require.EqualValues(t, 4, port.RpCnpHandled)
	}
}

func TestDeadline(t *testing.T) {
	var zero cnp.ReactionPoint
	zero.HandleCNP(us(0))
	zero.HandleSent(us(0), 5)
	zero.Tick(us(1))
	_, ok := zero.Deadline()
	require.False(t, ok)
	require.False(t, zero.Limited())
	require.EqualValues(t, uint64(math.MaxUint64), zero.Rate())
	require.EqualValues(t, uint64(math.MaxUint64), zero.TargetRate())

	for _, p := range []cnp.Params{cnp.Paper(), cnp.NVIDIA()} {
		r := newRP(t, p, 40*gig)
		_, ok := r.Deadline()
		require.False(t, ok, "no limiter")
		r.Tick(us(0))
		r.HandleSent(us(0), 1e9)
		r.HandleCNP(us(1))
		n := 0
		for now := us(1); ; n++ {
			d, ok := r.Deadline()
			if !ok {
				break
			}
			require.True(t, d.After(now), "%v %v", d, now)
			now = d
			r.Tick(now)
		}
		require.EqualValues(t, 40*gig, r.Rate())
		require.False(t, r.Limited())
		require.Less(t, n, 60)
	}
}

// The nearer of increase and cut is the deadline.
func TestDeadlineOrder(t *testing.T) {
	p := cnp.NVIDIA()
	p.RpgTimeReset, p.RateReduceMonitorPeriod = 3, 4
	r := newRP(t, p, 40*gig)
	r.HandleCNP(us(0))
	r.Tick(us(4)) // cut: the next increase is at 7, the next period ends at 8
	r.HandleCNP(us(5))
	d, ok := r.Deadline()
	require.True(t, ok)
	require.Equal(t, us(7), d)
	r.Tick(d)
	d, ok = r.Deadline()
	require.True(t, ok)
	require.Equal(t, us(8), d)
}

// fingerprint runs a fixed scenario and hashes every state on its way.
func fingerprint(t *testing.T, p cnp.Params, line uint64) uint64 {
	r := newRP(t, p, line)
	h := fnv.New64a()
	now, x := t0, uint64(1)
	for range 20_000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		now = now.Add(time.Duration(x >> 20 % 70_000))
		switch x >> 8 % 16 {
		case 0, 1:
			r.HandleCNP(now)
		case 2:
			now = now.Add(time.Duration(x>>24%20) * time.Millisecond)
			r.Tick(now)
		case 3:
			r.Tick(now)
		case 4:
			r.HandleSent(now, int(x>>30%30_000_000))
		default:
			r.HandleSent(now, 4096+62)
		}
		ts, bc := r.Stages()
		var b []byte
		b = binary.BigEndian.AppendUint64(b, r.Rate())
		b = binary.BigEndian.AppendUint64(b, r.TargetRate())
		b = binary.BigEndian.AppendUint32(b, r.Alpha())
		b = binary.BigEndian.AppendUint32(b, ts)
		b = binary.BigEndian.AppendUint32(b, bc)
		if d, ok := r.Deadline(); ok {
			b = binary.BigEndian.AppendUint64(b, uint64(d.UnixNano()))
		}
		h.Write(b)
	}
	return h.Sum64()
}

// Equal calls give equal states on every architecture: these constants were
// written down on amd64 and hold on 386, arm64 and s390x.
// Rule RP-12.
func TestSameOnEveryArchitecture(t *testing.T) {
	require.Equal(t, uint64(0x6d58c8f06f0e7da0), fingerprint(t, cnp.Paper(), 40*gig), "paper")
	require.Equal(t, uint64(0xc9d0cadc1ee40574), fingerprint(t, cnp.NVIDIA(), 100*gig), "nvidia")
}

func TestParamsErrors(t *testing.T) {
	for _, c := range []struct {
		change func(*cnp.Params)
		want   string
	}{
		{func(p *cnp.Params) { p.Algorithm = 3 }, "cnp: bad parameter: Algorithm is 3, want 0..2"},
		{func(p *cnp.Params) { p.AlphaBits = 9 }, "cnp: bad parameter: AlphaBits is 9, want 10..31, or 0 for 31"},
		{func(p *cnp.Params) { p.RpgTimeReset = 0 }, "cnp: bad parameter: RpgTimeReset is 0, want 1..2147483647"},
		{func(p *cnp.Params) { p.RpgGd = 12 }, "cnp: bad parameter: RpgGd is 12, want 10..11"},
		{func(p *cnp.Params) { p.DceTcpG = 1024 }, "cnp: bad parameter: DceTcpG is 1024, want 0..1023"},
		{func(p *cnp.Params) { p.InitialAlphaValue = 1024 }, "cnp: bad parameter: InitialAlphaValue is 1024, want 0..1023"},
		{func(p *cnp.Params) { p.CnpScope = 4 }, "cnp: bad parameter: CnpScope is 4, want 0..3"},
		{func(p *cnp.Params) { p.RpgMinRate, p.RpgMaxRate = 100, 50 },
			"cnp: bad parameter: RpgMaxRate is 50 Mb/s, below RpgMinRate, 100 Mb/s (0 switches it off)"},
		{func(p *cnp.Params) { p.RpgMinRate, p.RateToSetOnFirstCnp = 100, 50 },
			"cnp: bad parameter: RateToSetOnFirstCnp is 50 Mb/s, below RpgMinRate, 100 Mb/s (0 switches it off)"},
		{func(p *cnp.Params) { p.RpgMinRate = 50_000 },
			"cnp: bad parameter: line rate is 40000000000 b/s, want RpgMinRate, 50000000000 b/s, to 10000000000000 b/s"},
	} {
		p := cnp.NVIDIA()
		c.change(&p)
		_, err := cnp.NewReactionPort(p, 40*gig)
		require.ErrorIs(t, err, cnp.ErrParams)
		require.EqualError(t, err, c.want)
	}
	for _, p := range []cnp.Params{cnp.Paper(), cnp.NVIDIA()} {
		require.NoError(t, p.Validate())
		port, err := cnp.NewReactionPort(p, 10_000_000*1_000_000)
		require.NoError(t, err)
		require.Equal(t, p, port.Params())
		require.EqualValues(t, 1e13, port.LineRate())
		_, err = cnp.NewReactionPort(p, 10_000_000*1_000_000+1)
		require.ErrorIs(t, err, cnp.ErrParams)
	}
	require.Equal(t, cnp.ScopePort, cnp.NVIDIA().CnpScope)
	require.Equal(t, cnp.ScopeDestination, cnp.ConnectX4Lx().CnpScope)
	require.Equal(t, "paper nvidia ns3 7", cnp.AlgorithmPaper.String()+" "+cnp.AlgorithmNVIDIA.String()+" "+cnp.AlgorithmNS3.String()+" "+cnp.Algorithm(7).String())
	require.Equal(t, "qp address-pair destination port 9", cnp.ScopeQP.String()+" "+cnp.ScopeAddressPair.String()+" "+
		cnp.ScopeDestination.String()+" "+cnp.ScopePort.String()+" "+cnp.Scope(9).String())
}
