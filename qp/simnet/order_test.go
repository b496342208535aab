package simnet_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// traceOf runs flows of all kinds over a fabric and returns what the wire saw.
func traceOf(t require.TestingT, cfg simnet.Config, faults simnet.Faults) string {
	p := cnp.Paper()
	f, err := lab.Topology{
		Network: cfg,
		Switch: simnet.SwitchConfig{Lossless: 1 << 3, Buffer: 2_000_000, XOFF: 30_000,
			ECN: &cnp.CongestionParams{Kmin: 5_000, Kmax: 50_000, Pmax: 500_000}},
		Host: simnet.HostConfig{Control: cnp.Controller(p)},
	}.FatTree(4)
	require.NoError(t, err)
	for _, l := range f.Links() {
		require.NoError(t, l.BA().SetFaults(faults))
	}
	for i := range 16 {
		to := f.Hosts()[(i+5)%16]
		if i%2 == 0 && i != 2 {
			to = f.Hosts()[2] // incast
		}
		_, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[i], To: to, Start: time.Duration(i%3) * time.Microsecond,
			Op: []qp.Op{qp.OpWrite, qp.OpSend, qp.OpRead}[i%3], Size: 30_000 + 1000*i, Count: 3, Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}})
		require.NoError(t, err)
	}
	var out bytes.Buffer
	f.Trace(&out)
	f.After(40*time.Microsecond, func() { f.Hosts()[1].PauseStorm(1<<3, 20*time.Microsecond) })
	f.After(60*time.Microsecond, func() { f.Links()[40].SetUp(false) })
	f.After(90*time.Microsecond, func() { f.Links()[40].SetUp(true) })
	for range 3 {
		require.NoError(t, f.Run(50*time.Microsecond))
	}
	idle, err := f.RunUntilIdle(time.Second)
	require.NoError(t, err)
	require.True(t, idle)
	fmt.Fprintln(&out, f.Events(), f.Hops(), f.Elapsed())
	if f.Balance() < 1 || cfg.Threads <= 1 && f.Balance() != 1 {
		t.Errorf("balance %v of %d threads", f.Balance(), cfg.Threads)
	}
	return out.String()
}

// The same happens for 1, 2 and 4 threads and for all carries, event by event, as with
// events that wait in a heap, without look-ahead.
func TestSameTraceForThreadsAndCarries(t *testing.T) {
	for _, faults := range []simnet.Faults{{}, {Loss: 0.005, Duplicate: 0.01, Reorder: 0.01, Jitter: 300}} {
		want := traceOf(t, simnet.Config{Carry: simnet.Shared, Seed: 7}.Plain(), faults)
		require.Contains(t, want, "PFC")
		require.Contains(t, want, "CNP")
		for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
			for _, threads := range []int{1, 2, 4} {
				if carry == simnet.Decoded && threads == 4 && testing.Short() {
					continue
				}
				got := traceOf(t, simnet.Config{Carry: carry, Threads: threads, Seed: 7}, faults)
				if got != want {
					i := 0
					for i < min(len(got), len(want)) && got[i] == want[i] {
						i++
					}
					t.Fatalf("%v, %d threads: the traces part after\n%s\nhere\n%s\nalone\n%s", carry, threads,
						want[max(0, i-300):i], got[i:min(len(got), i+300)], want[i:min(len(want), i+300)])
				}
			}
		}
	}
}

// The same for any faults.
func TestSameTraceForThreadsRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	rapid.Check(t, func(t *rapid.T) {
		p := func(name string) float64 { return rapid.SampledFrom([]float64{0, 0, 0.02}).Draw(t, name) }
		faults := simnet.Faults{Loss: p("loss"), Duplicate: p("duplicate"), Reorder: p("reorder"), Corrupt: p("corrupt"),
			Jitter: time.Duration(rapid.IntRange(0, 500).Draw(t, "jitter"))}
		seed := rapid.Uint64().Draw(t, "seed")
		cfg := simnet.Config{Carry: simnet.Shared, Seed: seed}
		want := traceOf(t, cfg.Plain(), faults)
		cfg.Threads = rapid.IntRange(1, 6).Draw(t, "threads")
		require.True(t, want == traceOf(t, cfg, faults))
	})
}

// Two packets of 64 bytes take 0.84 ns each at 800 Gb/s. Through a chain of switches
// they keep their distance, and the last of many arrives when they have taken their
// time, not when each was rounded.
func TestFractionsOfNanoseconds(t *testing.T) {
	const packets, switches = 1000, 4
	n := simnet.New(simnet.Config{})
	a, err := n.AddHost(simnet.HostConfig{})
	require.NoError(t, err)
	b, err := n.AddHost(simnet.HostConfig{})
	require.NoError(t, err)
	last := simnet.Node(a)
	for range switches {
		s, err := n.AddSwitch(simnet.SwitchConfig{})
		require.NoError(t, err)
		_, err = n.Connect(last, s, simnet.LinkConfig{Rate: 800e9, Delay: 100})
		require.NoError(t, err)
		last = s
	}
	_, err = n.Connect(last, b, simnet.LinkConfig{Rate: 800e9, Delay: 100})
	require.NoError(t, err)
	frame := make([]byte, 60)
	mac := b.Port.MAC()
	copy(frame, mac[:])
	for range packets {
		require.NoError(t, a.Inject(frame))
	}
	idle, err := n.RunUntilIdle(time.Second)
	require.NoError(t, err)
	require.True(t, idle)
	require.EqualValues(t, packets, b.Port.Counters().RxFrames)
	// 84 bytes with preamble and gap; the last has arrived before its gap, on each link.
	want := 8/800e9*1e9*(84*(packets-1)+72*(switches+1)) + 100*(switches+1)
	require.InDelta(t, want, float64(n.Elapsed()), 1)
	for _, l := range n.Links() {
		require.LessOrEqual(t, l.AB().Counters().MaxQueue, 64, "no two packets meet in a switch")
	}
}

// Edge, 4 aggregation, 16 core switches: many queue pairs of few host pairs use all 16
// paths, and none much more than its share, on any seed.
func TestECMPUsesAllPaths(t *testing.T) {
	const qps = 1024
	for _, pairs := range []int{1, 2, 4, 16} {
		seeds := uint64(20)
		if testing.Short() {
			seeds = 2
		}
		for seed := range seeds {
			f, err := lab.Topology{Network: simnet.Config{Seed: seed, Carry: simnet.Shared}, Host: simnet.HostConfig{MaxQPs: 2048}}.FatTree(8)
			require.NoError(t, err)
			for i := range qps {
				k := i % pairs
				_, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[k], To: f.Hosts()[64+k], Op: qp.OpSend, Size: 1, Count: 1,
					Conn: simnet.ConnConfig{RetryForever: true, SendDepth: 1, RecvDepth: 1, RdAtomic: 1}})
				require.NoError(t, err)
			}
			used := make(map[string]int)
			f.Observe(func(e *simnet.PacketEvent) {
				from, to := e.Direction.From().Name(), e.Direction.To().Name()
				if e.Frame != nil && from[0] == 'a' && to[0] == 'c' && len(e.Frame.Packet.Payload) != 0 && from[:3] == "agg" {
					used[to]++
				}
			})
			idle, err := f.RunUntilIdle(time.Second)
			require.NoError(t, err)
			require.True(t, idle)
			most, sum := 0, 0
			for _, u := range used {
				most, sum = max(most, u), sum+u
			}
			require.Len(t, used, 16, "%d pairs, seed %d", pairs, seed)
			require.LessOrEqual(t, float64(most), 1.7*float64(sum)/16, "%d pairs, seed %d", pairs, seed)
		}
	}
}
