package swift_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/swift"
)

// model is the paper's algorithm 1 and equation 1, in nanoseconds and packets.
type model struct {
	p         swift.Params
	cwnd, rtt float64
	tLast     float64
	never     bool
	retx      int
}

func (m *model) target() float64 {
	ns := func(d time.Duration) float64 { return float64(d) }
	alpha := ns(m.p.FsRange) / (1/math.Sqrt(m.p.FsMin) - 1/math.Sqrt(m.p.FsMax))
	beta := -alpha / math.Sqrt(m.p.FsMax)
	return ns(m.p.BaseTarget) + float64(m.p.Hops)*ns(m.p.HopScale) + math.Max(0, math.Min(alpha/math.Sqrt(m.cwnd)+beta, ns(m.p.FsRange)))
}

func (m *model) end(prev, now float64) {
	m.cwnd = math.Max(m.p.MinCwnd, math.Min(m.cwnd, m.p.MaxCwnd))
	if m.cwnd < prev {
		m.tLast, m.never = now, false
	}
}

func (m *model) ack(now, delay, acked float64, progress bool) {
	prev := m.cwnd
	m.rtt = delay
	if progress {
		m.retx = 0
	}
	can := m.never || now-m.tLast >= m.rtt
	if t := m.target(); delay < t {
		if m.cwnd >= 1 {
			m.cwnd += m.p.AI / m.cwnd * acked
		} else {
			m.cwnd += m.p.AI * acked
		}
	} else if can {
		m.cwnd *= math.Max(1-m.p.Beta*(delay-t)/delay, 1-m.p.MaxMDF)
	}
	m.end(prev, now)
}

func (m *model) lost(now float64, timeout bool) {
	prev := m.cwnd
	can := m.never || now-m.tLast >= m.rtt
	if timeout {
		if m.retx++; m.retx >= m.p.RetxReset {
			m.cwnd = m.p.MinCwnd
			m.tLast, m.never = now, false
		} else if can {
			m.cwnd *= 1 - m.p.MaxMDF
		}
	} else {
		m.retx = 0
		if can {
			m.cwnd *= 1 - m.p.MaxMDF
		}
	}
	m.end(prev, now)
}

// Our flow follows the model over random events.
func TestPropModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := swift.Defaults()
		if rapid.Bool().Draw(t, "other") {
			p.AI = rapid.Float64Range(0.1, 4).Draw(t, "ai")
			p.Beta = rapid.Float64Range(0, 1).Draw(t, "beta")
			p.MaxMDF = rapid.Float64Range(0, 0.9).Draw(t, "mdf")
			p.Hops = rapid.IntRange(0, 6).Draw(t, "hops")
			p.InitCwnd = rapid.Float64Range(0.01, 100).Draw(t, "init")
		}
		port, err := swift.Controller(p).NewPort(100e9)
		require.NoError(t, err)
		f := port.Flow()
		const size = 4178
		now := int64(1)
		f.Sent(now, &congestion.Send{Bytes: size})
		m := &model{p: p, cwnd: p.InitCwnd, never: true}
		if m.cwnd == 0 {
			m.cwnd = 100e9 * p.BaseTarget.Seconds() / 8 / size
		}
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			now += rapid.Int64Range(0, 60_000).Draw(t, "wait")
			at := float64(now)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				f.Lost(now, congestion.LossNAK)
				m.lost(at, false)
			case 1:
				f.Lost(now, congestion.LossTimeout)
				m.lost(at, true)
			default:
				rtt := rapid.OneOf(rapid.Int64Range(5_000, 60_000), rapid.Int64Range(1, 5_000_000)).Draw(t, "rtt")
				acked := rapid.Int64Range(0, 4).Draw(t, "packets")
				f.Acked(now, &congestion.Ack{Bytes: acked * size, RTT: rtt, Size: size})
				m.ack(at, float64(rtt), float64(acked), acked > 0)
			}
			if m.cwnd >= 1 {
				require.Zero(t, f.Rate())
				require.InDelta(t, m.cwnd*size, float64(f.Window()), size*1.0001)
			} else if m.rtt != 0 {
				require.EqualValues(t, size, f.Window())
				require.InDelta(t, math.Min(size*8*m.cwnd/(m.rtt*1e-9), 100e9), float64(f.Rate()), 1+1e-6*float64(f.Rate()))
			}
		}
	})
}

func TestParams(t *testing.T) {
	for want, change := range map[string]func(*swift.Params){
		"swift: bad parameter: BaseTarget is 0s, want 1µs to 10ms":                             func(p *swift.Params) { p.BaseTarget = 0 },
		"swift: bad parameter: FsMax is 0.1, not above FsMin, 0.1":                             func(p *swift.Params) { p.FsMax = 0.1 },
		"swift: bad parameter: AI is NaN, want 1e-06 to 1000":                                  func(p *swift.Params) { p.AI = math.NaN() },
		"swift: bad parameter: MaxMDF is 1, want 0 to 0.99":                                    func(p *swift.Params) { p.MaxMDF = 1 },
		"swift: bad parameter: InitCwnd is 5000, want MinCwnd to MaxCwnd, 0.001 to 1000, or 0": func(p *swift.Params) { p.InitCwnd = 5000 },
	} {
		p := swift.Defaults()
		change(&p)
		_, err := swift.Controller(p).NewPort(100e9)
		require.ErrorIs(t, err, swift.ErrParams)
		require.EqualError(t, err, want)
	}
	_, err := swift.Controller(swift.Defaults()).NewPort(0)
	require.ErrorIs(t, err, swift.ErrParams)
}
