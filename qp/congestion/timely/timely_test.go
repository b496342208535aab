package timely_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/timely"
)

// model is the paper's algorithm 1, in microseconds and Gb/s.
type model struct {
	p                timely.Params
	rate, prev, diff float64
	line, delta      float64
	completions      int
}

func (m *model) completion(rtt float64) {
	if m.prev == 0 {
		m.prev = rtt
		return
	}
	us := func(d time.Duration) float64 { return float64(d) / 1000 }
	newDiff := rtt - m.prev
	m.prev = rtt
	m.diff = (1-m.p.Alpha)*m.diff + m.p.Alpha*newDiff
	g := m.diff / us(m.p.MinRTT)
	if rtt < us(m.p.TLow) {
		m.completions = 0
		m.rate += m.delta
	} else if rtt > us(m.p.THigh) {
		m.completions = 0
		m.rate *= 1 - m.p.Beta*(1-us(m.p.THigh)/rtt)
	} else if g <= 0 {
		m.completions++
		n := 1.0
		if m.completions >= m.p.HAI {
			n = 5
		}
		m.rate += n * m.delta
	} else {
		m.completions = 0
		m.rate *= math.Max(0, 1-m.p.Beta*g)
	}
	m.rate = math.Min(math.Max(m.rate, float64(m.p.MinRate)/1e9), m.line)
}

// Our flow follows the model over random round trips.
func TestPropModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := timely.Defaults()
		p.Segment = 0
		if rapid.Bool().Draw(t, "other") {
			p.Alpha = rapid.Float64Range(0, 1).Draw(t, "alpha")
			p.Beta = rapid.Float64Range(0, 1).Draw(t, "beta")
			p.HAI = rapid.IntRange(1, 8).Draw(t, "hai")
			p.Delta = rapid.Uint64Range(1e6, 1e9).Draw(t, "delta")
			p.InitRate = rapid.Uint64Range(100e6, 10e9).Draw(t, "init")
		}
		port, err := timely.Controller(p).NewPort(10e9)
		require.NoError(t, err)
		f := port.Flow()
		m := &model{p: p, rate: 10, line: 10, delta: 0.01}
		if p.InitRate != 0 {
			m.rate, m.delta = float64(p.InitRate)/1e9, float64(p.Delta)/1e9
		}
		una, next := uint64(100), uint64(100)
		until := uint64(0)
		rtt := rapid.Int64Range(20_000, 700_000)
		near := int64(100_000)
		for range rapid.IntRange(1, 200).Draw(t, "n") {
			next += rapid.Uint64Range(0, 9).Draw(t, "sent")
			una = min(next, una+rapid.Uint64Range(0, 9).Draw(t, "acked"))
			if rapid.Bool().Draw(t, "jump") {
				near = rtt.Draw(t, "rtt")
			} else {
				near += rapid.Int64Range(-3000, 3000).Draw(t, "step")
			}
			near = max(near, 2000)
			f.Acked(1, &congestion.Ack{Una: una, Next: next, RTT: near, Size: 1000, Bytes: 1000})
			if until == 0 || una > until {
				until = max(until, next)
				m.completion(float64(near)/1000 - 0.8) // without 1000 bytes at 10 Gb/s
			}
			require.InEpsilon(t, m.rate*1e9, float64(f.Rate()), 1e-6)
		}
	})
}

// Steps are a segment apart.
func TestSegment(t *testing.T) {
	p := timely.Defaults()
	p.Segment, p.InitRate = 10_000, 1e9
	port, err := timely.Controller(p).NewPort(10e9)
	require.NoError(t, err)
	f := port.Flow()
	for i := range uint64(31) {
		f.Acked(1, &congestion.Ack{Una: i + 1, Next: i + 1, RTT: 20_000, Bytes: 1000})
	}
	require.EqualValues(t, 1e9+3*10e6, f.Rate(), "the first only begins")
}

// A gradient of just 0 lets the rate rise.
func TestConstantRTT(t *testing.T) {
	p := timely.Defaults()
	p.Alpha, p.Segment, p.InitRate = 1, 0, 1e9
	port, err := timely.Controller(p).NewPort(10e9)
	require.NoError(t, err)
	f := port.Flow()
	for i := range uint64(4) {
		f.Acked(1, &congestion.Ack{Una: i + 1, Next: i + 1, RTT: 100_000, Bytes: 1000})
	}
	require.EqualValues(t, 1e9+3*10e6, f.Rate())
}

func TestParams(t *testing.T) {
	for want, change := range map[string]func(*timely.Params){
		"timely: bad parameter: Alpha is 2, want 0 to 1":                         func(p *timely.Params) { p.Alpha = 2 },
		"timely: bad parameter: Beta is NaN, want 0 to 1":                        func(p *timely.Params) { p.Beta = math.NaN() },
		"timely: bad parameter: TLow is 1ms, want 0s to THigh, 500µs":            func(p *timely.Params) { p.TLow = time.Millisecond },
		"timely: bad parameter: HAI is 0, want 1 to 1000":                        func(p *timely.Params) { p.HAI = 0 },
		"timely: bad parameter: InitRate is 5 b/s, below MinRate, 100000000 b/s": func(p *timely.Params) { p.InitRate = 5 },
	} {
		p := timely.Defaults()
		change(&p)
		_, err := timely.Controller(p).NewPort(10e9)
		require.ErrorIs(t, err, timely.ErrParams)
		require.EqualError(t, err, want)
	}
}
