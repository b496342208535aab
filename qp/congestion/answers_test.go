package congestion_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/congestion/swift"
	"github.com/roce-go/roce/qp/congestion/timely"
)

// The mean queue of N flows under DCQCN is that of the fluid model's fixed point
// (Zhu et al., "ECN or Delay", CoNEXT 2016), within 15 %:
//
//	p*^3 = R_AI N^2 / (tau C^2) x (1/B + N/(T C))^2;  q* = Kmin + p*/Pmax (Kmax - Kmin)
//
// in packets and seconds. The numbers are of 40 Gb/s and packets of 1,000 bytes.
//
// The model is smooth: its marking goes on rising with the queue. At the paper's Kmax,
// 200 KB, marking jumps from 1 % to 100 %. The queue of 2 or 4 flows does not come
// there. That of 8 or 10 swings by more than the room above q*, all flows are cut at
// once and the queue runs empty: a limit cycle, whose mean lies below q*. With the
// same slope to twice the length the model's numbers hold for all N.
func TestDCQCNFixedPoint(t *testing.T) {
	for _, c := range []struct {
		n      int
		want   float64
		double bool
	}{
		{2, 23_600, false}, {4, 51_700, false}, {8, 122_400, true}, {10, 163_000, true},
		{8, 122_400, false}, {10, 163_000, false},
	} {
		const pkt, rate, tau, period = 8000.0, 40e9 / 8000, 50e-6, 55e-6
		b, ai := 10e6*8/pkt, 40e6/pkt
		f := 1/b + float64(c.n)/(period*rate)
		p := math.Cbrt(ai * float64(c.n*c.n) / (tau * rate * rate) * f * f)
		require.InEpsilon(t, c.want, 5000+p/0.01*195_000, 0.005, "the model itself")
		if testing.Short() {
			continue
		}
		ecn := cnp.PaperCongestion()
		if c.double {
			ecn.Kmax, ecn.Pmax = 395_000, 20_000
		}
		net := newBottleneck(40e9, 1000, 1000, &ecn)
		for i := range c.n {
			net.add(t, cnp.Controller(cnp.Paper()), int64(i)*1700)
		}
		net.run(40e6)
		net.reset()
		net.run(120e6)
		t.Logf("N %d, Kmax %d KB: mean queue %.1f KB, q* %.1f KB (%+.1f %%), most %d KB, use %.4f, Jain %.4f", c.n, ecn.Kmax/1000,
			net.mean()/1000, c.want/1000, 100*(net.mean()/c.want-1), net.most/1000, net.use(), net.jain())
		if c.n >= 8 && !c.double {
			require.Greater(t, net.most, int(ecn.Kmax))
			require.Less(t, net.mean(), c.want)
			require.Greater(t, net.use(), 0.95)
			continue
		}
		require.InEpsilon(t, c.want, net.mean(), 0.15, "N %d", c.n)
		require.Greater(t, net.jain(), 0.99)
	}
}

// HPCC with maxStage 0 and N flows: the link is used to eta + N AI/C with an empty
// queue as long as N AI <= (1 - eta) C, which is up to 125 flows.
//
// That is of a fluid. Packets that arrive together form a queue, which U counts, so that the use
// is less by as much: with 100 bytes a packet, 0.5 % for 100 flows.
func TestHPCCUseAndQueue(t *testing.T) {
	const c, eta, ai = 100e9, 0.95, 40e6
	for _, n := range []int{1, 10, 50, 100} {
		if testing.Short() && n != 10 {
			continue
		}
		p := hpcc.Defaults()
		p.MaxStage, p.MinRate = 0, 1e6
		net := newBottleneck(c, 3000, 100, nil)
		for i := range n {
			net.add(t, hpcc.Controller(p), int64(i)*100)
		}
		net.run(2e6)
		net.reset()
		net.run(3e6)
		use := eta + float64(n)*ai/c
		t.Logf("N %d: use %.4f, fluid %.4f; queue %.0f bytes; Jain %.3f", n, net.use(), use, net.mean(), net.jain())
		require.InDelta(t, use, net.use(), 0.006, "N %d", n)
		require.Less(t, net.mean(), 1500.0, "N %d", n)
		require.Greater(t, net.jain(), 0.97)
	}
}

// Beyond the limit HPCC has a standing queue. With only the rates that would be
// C T (eta C/(C - N AI) - 1), where they add up to C. But windows bind first: with s the
// sum of the rates over C, x = N AI/C, and the network's own round trip b T,
//
//	windows:  q = C T (s - b)
//	U:        1 + q/(C T) = eta s/(s - x)
//
// which is a quadratic equation for s. The queue is that within 5 %, and less than with
// only the rates.
func TestHPCCBeyondTheLimit(t *testing.T) {
	const c, eta, rtt, n, b = 100e9, 0.95, 13e-6, 10, 12.0 / 13
	for _, x := range []float64{0.2, 0.4} {
		if testing.Short() && x != 0.4 {
			continue
		}
		half := (eta + x - (1 - b)) / 2
		s := half + math.Sqrt(half*half+x*(1-b))
		want := c / 8 * rtt * (s - b)
		p := hpcc.Defaults()
		p.MaxStage, p.MinRate, p.AI = 0, 1e6, uint64(x*c/n)
		net := newBottleneck(c, 3000, 100, nil)
		for i := range n {
			net.add(t, hpcc.Controller(p), int64(i)*100)
		}
		net.run(1e6)
		net.reset()
		net.run(2e6)
		t.Logf("N AI = %v C: queue %.1f KB, by windows %.1f KB, by rates only %.1f KB", x, net.mean()/1e3, want/1e3, c/8e3*rtt*(eta/(1-x)-1))
		require.InEpsilon(t, want, net.mean(), 0.05)
		require.Less(t, net.mean(), c/8*rtt*(eta/(1-x)-1))
		require.Greater(t, net.use(), 0.999)
	}
}

// Eight flows that begin together at line rate have a window of 13 us each: their
// queue is never longer than those windows, and 400 us later it is empty, with the
// link at eta C. It takes several round trips rather than one, since Rc is stored once
// a round trip, and that is long while the queue is.
func TestHPCCIncast(t *testing.T) {
	p := hpcc.Defaults()
	p.MaxStage = 0
	net := newBottleneck(100e9, 3000, 1000, nil)
	for range 8 {
		net.add(t, hpcc.Controller(p), 0)
	}
	net.run(400e3)
	require.Less(t, net.most, 8*162_500)
	require.Greater(t, net.most, 6*162_500)
	net.reset()
	net.run(600e3)
	require.InDelta(t, 0.953, net.use(), 0.01)
	require.Less(t, net.mean(), 3_000.0)
}

// HPCC shares badly where a window is three packets: its rates go up or down by the
// noise of single ones. The same bytes in packets of a fifth are shared well.
func TestHPCCFewPackets(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	jain := func(size int) float64 {
		p := hpcc.Defaults()
		p.BaseRTT, p.MinRate = 5000, 40e6
		net := newBottleneck(40e9, 2000, size, nil)
		for i := range 8 {
			net.add(t, hpcc.Controller(p), int64(i)*100)
		}
		net.run(4e6)
		net.reset()
		net.run(12e6)
		t.Logf("packets of %d bytes: Jain %.3f, use %.3f, queue %.0f bytes", size, net.jain(), net.use(), net.mean())
		return net.jain()
	}
	require.Less(t, jain(1086), 0.85)
	require.Greater(t, jain(200), 0.95)
}

// Two flows that begin at 7 and 3 Gb/s: TIMELY, with segments of 64 KB, leaves them
// unequal, DCQCN does not. With segments of 16 KB, which take less than a round trip, they
// come together within 100 ms, and with a step each round trip within 30 ms.
func TestTIMELYStaysUnfair(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	start := func(from, to int64, c func(i int) congestion.Controller) float64 {
		ecn := cnp.PaperCongestion()
		net := newBottleneck(10e9, 5000, 1000, &ecn)
		for i := range 2 {
			net.add(t, c(i), 0)
		}
		net.run(from * 1e6)
		net.reset()
		net.run(to * 1e6)
		t.Logf("%d to %d ms: Jain %.4f, use %.4f, queue %.1f KB", from, to, net.jain(), net.use(), net.mean()/1000)
		require.Greater(t, net.use(), 0.9)
		return net.jain()
	}
	unequal := func(segment int) func(i int) congestion.Controller {
		return func(i int) congestion.Controller {
			p := timely.Defaults()
			p.InitRate, p.Segment = []uint64{7e9, 3e9}[i], segment
			return timely.Controller(p)
		}
	}
	require.Less(t, start(100, 200, unequal(64_000)), 0.95)
	require.Less(t, start(0, 10, unequal(16_000)), 0.98, "they begin unequal")
	require.Greater(t, start(100, 150, unequal(16_000)), 0.99)
	require.Greater(t, start(30, 60, unequal(0)), 0.99)
	require.Greater(t, start(100, 200, func(int) congestion.Controller { return cnp.Controller(cnp.Paper()) }), 0.99)
}

// Swift's target: arithmetic of the paper's formula with fs_range 100 us, fs_min 0.1
// and fs_max 100. N flows hold the delay there: cwnd is C x target/N, which gives the
// target, solved here by halving.
func TestSwiftTarget(t *testing.T) {
	p := swift.Defaults()
	for cwnd, want := range map[float64]float64{1: 29.4, 0.1: 100, 0.01: 100, 100: 0, 1000: 0} {
		require.InDelta(t, 20+want, float64(p.Target(cwnd))/1000, 0.05, fmt.Sprint(cwnd))
	}
	p.Hops = 3
	require.InDelta(t, 23+29.4, float64(p.Target(1))/1000, 0.05)
	p.Hops = 0
	for _, n := range []int{4, 16, 64} {
		if testing.Short() {
			continue
		}
		lo, hi := 20.0, 120.0 // us
		for range 50 {
			mid := (lo + hi) / 2
			cwnd := 100e9 * mid * 1e-6 / 8000 / float64(n)
			alpha := 100 / (1/math.Sqrt(0.1) - 1/math.Sqrt(100))
			if 20+min(max(alpha/math.Sqrt(cwnd)-alpha/10, 0), 100) > mid {
				lo = mid
			} else {
				hi = mid
			}
		}
		net := newBottleneck(100e9, 2000, 1000, nil)
		for i := range n {
			net.add(t, swift.Controller(p), int64(i)*1000)
		}
		net.run(20e6)
		net.reset()
		net.run(30e6)
		delay := 8 + net.mean()*8/100e3
		t.Logf("N %d: delay %.1f us, target %.1f us, use %.3f, Jain %.3f", n, delay, lo, net.use(), net.jain())
		require.InEpsilon(t, lo, delay, 0.1, "N %d", n)
		require.Greater(t, net.use(), 0.98)
	}
}
