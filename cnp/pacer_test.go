package cnp_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp"
)

// A million packets sent at their deadlines are off by less than a nanosecond
// (a packet takes 30 of them at the fastest).
func TestPacerNoDrift(t *testing.T) {
	for _, rate := range []uint64{1, 7_777_777, 10_039_062_500, 40 * gig, 100 * gig, 399_999_999_999, 10_000 * gig} {
		var p cnp.Pacer
		now := t0
		p.SetRate(now, rate)
		rnd := rand.New(rand.NewPCG(1, rate))
		bits := new(big.Int)
		n := 1_000_000
		if rate == 1 {
			n = 1000
		}
		sum := int64(0)
		for range n {
			b := 64 + rnd.IntN(4096)
			p.HandleSent(now, b)
			sum += int64(b)
			now, _ = p.Deadline()
		}
		bits.Mul(big.NewInt(sum*8), big.NewInt(1e9))
		bits.Quo(bits, new(big.Int).SetUint64(rate)) // whole nanoseconds
		require.InDelta(t, float64(bits.Int64()), float64(now.Sub(t0)), 1, rate)
	}
}

// With a rate that keeps changing, also in the middle of waits, what was sent
// is the integral of the rate, within 64 bits (a nanosecond is 40) and the packet
// that leaves.
func TestPropPacerRateChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		lo := rapid.SampledFrom([]uint64{1e6, 1e9, 39e9}).Draw(t, "lo")
		var p cnp.Pacer
		rate := 40 * gig
		now := t0
		p.SetRate(now, rate)
		sent, due := 0.0, 0.0 // bits
		const size = 4096
		for range 3000 {
			d, ok := p.Deadline()
			if !ok {
				d = now
			}
			if rnd.IntN(3) == 0 && d.After(now) { // change the rate while waiting
				part := time.Duration(rnd.Int64N(int64(d.Sub(now)) + 1))
				now = now.Add(part)
				due += float64(part) * float64(rate) / 1e9
				rate = lo + rnd.Uint64N(40*gig-lo+1)
				p.SetRate(now, rate)
				continue
			}
			due += float64(d.Sub(now)) * float64(rate) / 1e9
			now = d
			require.True(t, p.Ready(now))
			p.HandleSent(now, size)
			// A packet leaves when all before it are paid for, to the nanosecond.
			require.InDelta(t, due, sent, 64)
			sent += size * 8
		}
	})
}

func TestPacer(t *testing.T) {
	var p cnp.Pacer
	_, ok := p.Deadline()
	require.False(t, ok)
	require.True(t, p.Ready(us(0)))
	p.HandleSent(us(0), 5000) // rate 0: no wait
	require.True(t, p.Ready(us(0)))

	p.SetRate(us(0), 8*gig) // a byte a nanosecond
	require.EqualValues(t, 8*gig, p.Rate())
	p.HandleSent(us(1), 1000)
	d, ok := p.Deadline()
	require.True(t, ok)
	require.Equal(t, us(2), d)
	require.False(t, p.Ready(us(1.999)))
	require.True(t, p.Ready(us(2)))

	p.SetRate(us(1.5), 4*gig) // half of the wait is left, and doubles
	d, _ = p.Deadline()
	require.Equal(t, us(2.5), d)
	p.SetRate(us(1.5), 8*gig)
	d, _ = p.Deadline()
	require.Equal(t, us(2), d)
	p.SetRate(us(1.5), 0)
	require.True(t, p.Ready(us(1.5)))
	p.SetRate(us(1.5), 8*gig)

	// Sent early: paid for all the same.
	p.HandleSent(us(10), 1000)
	p.HandleSent(us(10), 1000)
	d, _ = p.Deadline()
	require.Equal(t, us(12), d)

	// Late by 3 us: without Burst the time is lost, with it the schedule holds.
	q := p
	p.HandleSent(us(15), 1000)
	d, _ = p.Deadline()
	require.Equal(t, us(16), d)
	q.Burst = 2 * time.Microsecond
	q.HandleSent(us(15), 1000)
	d, _ = q.Deadline()
	require.Equal(t, us(14), d)

	// Extremes: no overflow, no panic.
	p.SetRate(us(20), 1)
	p.HandleSent(us(20), math.MaxInt)
	d, _ = p.Deadline()
	require.Equal(t, us(20).Add(8*cnp.MaxPacerBytes*time.Second), d)
	p.HandleSent(us(20), -1)
	p.SetRate(us(20), 1e13)
	p.SetRate(us(20), 1)
	p.SetRate(us(20), math.MaxUint64)
	p.SetRate(us(20), 1)
	require.False(t, p.Ready(us(20)))
}

// No panic and no wait without end for any rates.
func TestPropPacerTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p cnp.Pacer
		now := t0
		for range 30 {
			now = now.Add(time.Duration(rapid.Int64Range(-1000, math.MaxInt32).Draw(t, "wait")))
			if rapid.Bool().Draw(t, "rate") {
				p.SetRate(now, rapid.Uint64().Draw(t, "bits per second"))
			} else {
				p.HandleSent(now, rapid.Int().Draw(t, "bytes"))
			}
		}
		if p.Rate() == 0 {
			p.HandleSent(now, 1)
			require.True(t, p.Ready(now))
		}
	})
}
