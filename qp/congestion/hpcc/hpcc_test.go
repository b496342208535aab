package hpcc_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
)

// model is the paper's algorithm 1, in windows as it stands there, with the bounds
// and the beginning of the published code. Records are taken apart by hand.
type model struct {
	eta, wai, T, B float64 // bytes, seconds, bytes a second
	maxStage       int
	wMin           float64

	W, Wc, U float64
	stage    int
	last     uint64
	L        []congestion.Hop
	at       int64
}

var rates = [8]float64{25e9, 50e9, 100e9, 200e9, 400e9, 10e9, 40e9, 800e9}

func fields(h congestion.Hop) (rate, ts, bytes, queue float64) {
	x := uint64(h)
	rate = rates[x&7]
	m := math.Max(1, math.Floor(rate/25e9))
	return rate, float64(x >> 3 & 0xffffff), float64(x>>27&0xfffff) * 128 * m, float64(x>>47) * 80 * m
}

func (m *model) newAck(now int64, una, next uint64, hops []congestion.Hop) {
	full := m.last == 0 || una > m.last
	if m.last != 0 && len(hops) == len(m.L) && now-m.at < 16e6 {
		u, tau := -1.0, 0.0
		ok := true
		for i := range hops {
			b, ts, tx, q := fields(hops[i])
			b0, ts0, tx0, q0 := fields(m.L[i])
			ok = ok && (b == b0 || ts == ts0)
			dt := math.Mod(ts-ts0+1<<24, 1<<24) * 1e-9
			mod := 1048576 * 128 * math.Max(1, math.Floor(b/25e9))
			sent := math.Mod(tx-tx0+mod, mod)
			if dt == 0 {
				continue
			}
			if v := math.Min(q, q0)/(b/8*m.T) + sent/dt/(b/8); v > u {
				u, tau = v, dt
			}
		}
		if ok && u >= 0 {
			tau = math.Min(tau, m.T)
			m.U = (1-tau/m.T)*m.U + tau/m.T*u
			stage := m.stage + 1
			w := m.Wc + m.wai
			if m.U >= m.eta || m.stage >= m.maxStage {
				w, stage = m.Wc/(m.U/m.eta)+m.wai, 0
			}
			m.W = math.Min(math.Max(w, m.wMin), m.B*m.T)
			if full {
				m.Wc, m.stage = m.W, stage
			}
		}
	}
	m.L = append(m.L[:0], hops...)
	m.at = max(m.at, now)
	if full {
		m.last = max(m.last, next)
	}
}

// Our flow follows the model over random acknowledgements.
func TestPropModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]uint64{25e9, 100e9, 400e9}).Draw(t, "line")
		p := hpcc.Params{
			Eta: rapid.Float64Range(0.5, 1).Draw(t, "eta"), MaxStage: rapid.IntRange(0, 6).Draw(t, "stages"),
			AI: rapid.Uint64Range(1e6, 1e9).Draw(t, "ai"), BaseRTT: time.Duration(rapid.IntRange(2000, 50_000).Draw(t, "rtt")),
			MinRate: rapid.Uint64Range(1e6, 1e9).Draw(t, "min"),
		}
		port, err := hpcc.Controller(p).NewPort(line)
		require.NoError(t, err)
		f := port.Flow()
		require.EqualValues(t, line, f.Rate())
		T := p.BaseRTT.Seconds()
		m := &model{eta: p.Eta, wai: float64(p.AI) / 8 * T, T: T, B: float64(line) / 8, maxStage: p.MaxStage, wMin: float64(p.MinRate) / 8 * T, U: 1}
		m.W, m.Wc = m.B*T, m.B*T
		now, una, next := int64(1), uint64(100), uint64(100)
		sent, queue := make([]uint64, 8), make([]uint64, 8)
		n := 1
		for range rapid.IntRange(1, 150).Draw(t, "n") {
			if rapid.IntRange(0, 30).Draw(t, "other path") == 0 {
				n = rapid.IntRange(1, congestion.MaxHops).Draw(t, "hops")
			}
			d := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 20_000), rapid.SampledFrom([]int64{15e6, 17e6})).Draw(t, "dt")
			now += d
			next += rapid.Uint64Range(0, 5).Draw(t, "sent")
			una = min(next, una+rapid.Uint64Range(0, 5).Draw(t, "acked"))
			x := congestion.INT{Mode: congestion.INTCollect}
			for i := range n {
				sent[i] += uint64(float64(line) / 8e9 * float64(d) * rapid.Float64Range(0, 1.05).Draw(t, "use"))
				queue[i] = rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(0, 1_000_000)).Draw(t, "queue")
				x.Stamp(congestion.NewHop(line, now, sent[i], queue[i]))
			}
			x.Mode = congestion.INTEcho
			f.Acked(now, &congestion.Ack{Una: una, Next: next, INT: &x})
			m.newAck(now, una, next, x.Records())
			require.InEpsilon(t, m.W/T*8, float64(f.Rate()), 1e-6)
			require.InDelta(t, m.W, float64(f.Window()), 1+m.W*1e-6)
		}
	})
}

func TestParams(t *testing.T) {
	for want, change := range map[string]func(*hpcc.Params){
		"hpcc: bad parameter: Eta is 0, want 0.01 to 1":                                                             func(p *hpcc.Params) { p.Eta = 0 },
		"hpcc: bad parameter: Eta is NaN, want 0.01 to 1":                                                           func(p *hpcc.Params) { p.Eta = math.NaN() },
		"hpcc: bad parameter: MaxStage is -1, want 0 to 1000":                                                       func(p *hpcc.Params) { p.MaxStage = -1 },
		"hpcc: bad parameter: BaseRTT is 1s, want 100ns to 1ms":                                                     func(p *hpcc.Params) { p.BaseRTT = time.Second },
		"hpcc: bad parameter: MinRate is 0 b/s, want 1 to 10000000000000 b/s":                                       func(p *hpcc.Params) { p.MinRate = 0 },
		"hpcc: bad parameter: line rate is 100000000000 b/s, want MinRate, 200000000000 b/s, to 10000000000000 b/s": func(p *hpcc.Params) { p.MinRate = 200e9 },
	} {
		p := hpcc.Defaults()
		change(&p)
		_, err := hpcc.Controller(p).NewPort(100e9)
		require.ErrorIs(t, err, hpcc.ErrParams)
		require.EqualError(t, err, want)
	}
	p := hpcc.Defaults()
	require.NoError(t, p.Validate())
}
