package simnet_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
	"github.com/roce-go/roce/qp/softnic"
)

var carryNames = []string{"bytes", "decoded", "shared"}

// measure lets the network run and reports what a second moves: by the clock, and
// by the processor time that was used.
func measure(b *testing.B, n *simnet.Network, flows []*simnet.Flow) {
	b.Helper()
	require.NoError(b, n.Run(2*time.Millisecond))
	runtime.GC() // of what building the network left
	delivered := func() (t uint64) {
		for _, f := range flows {
			t += f.Received() / 4096
		}
		return t
	}
	packets, hops, events, cpu := delivered(), n.Hops(), n.Events(), testenv.CPUTime()
	b.ReportAllocs()
	for b.Loop() {
		if err := n.Run(100 * time.Microsecond); err != nil {
			b.Fatal(err)
		}
	}
	cpu = testenv.CPUTime() - cpu
	packets, hops, events = delivered()-packets, n.Hops()-hops, n.Events()-events
	b.ReportMetric(float64(packets)/b.Elapsed().Seconds(), "pkt/s")
	b.ReportMetric(float64(hops)/b.Elapsed().Seconds(), "hops/s")
	if cpu > 0 {
		b.ReportMetric(float64(packets)/cpu.Seconds(), "pkt/cpu-s")
		b.ReportMetric(float64(hops)/cpu.Seconds(), "hops/cpu-s")
	}
	b.ReportMetric(float64(events)/float64(packets), "events/pkt")
}

// One flow over one link: the machines, the port and the event loop, without a
// switch.
func BenchmarkLink(b *testing.B) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		b.Run(carryNames[carry], func(b *testing.B) {
			n := simnet.New(simnet.Config{Carry: carry})
			x, err := n.AddHost(simnet.HostConfig{})
			require.NoError(b, err)
			y, err := n.AddHost(simnet.HostConfig{})
			require.NoError(b, err)
			_, err = n.Connect(x, y, gigabit100)
			require.NoError(b, err)
			f, err := n.AddFlow(simnet.FlowConfig{From: x, To: y, Op: qp.OpWrite, Size: 64 << 10, Depth: 4})
			require.NoError(b, err)
			measure(b, n, []*simnet.Flow{f})
		})
	}
}

func incast(t testing.TB, carry simnet.Carry, senders int, dcqcn bool, idle int) (*lab.Fabric, []*simnet.Flow) {
	top := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: carry},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, ECN: &cnp.CongestionParams{Kmin: 100_000, Kmax: 400_000, Pmax: 200_000}},
		Host:    simnet.HostConfig{MaxQPs: idle + 64},
	}
	if dcqcn {
		p := cnp.Paper()
		top.Host.Control = cnp.Controller(p)
	}
	f, err := top.Star(senders + 1)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for i := range senders {
		fl, err := f.AddFlow(simnet.FlowConfig{
			From: f.Hosts()[i+1], To: f.Hosts()[0], Op: qp.OpWrite, Size: 64 << 10, Depth: 4,
			Conn: simnet.ConnConfig{DSCP: 26},
		})
		require.NoError(t, err)
		flows = append(flows, fl)
	}
	for i := range idle {
		_, _, err := f.ConnectQPs(f.Hosts()[1+i%senders], f.Hosts()[0], simnet.ConnConfig{SendDepth: 1, RecvDepth: 1, RdAtomic: 1})
		require.NoError(t, err)
	}
	return f, flows
}

// The incast of 32 senders of 100 Gb/s to one receiver, with packets of 4 KiB.
func BenchmarkIncast(b *testing.B) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		for _, dcqcn := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/dcqcn=%v", carryNames[carry], dcqcn), func(b *testing.B) {
				f, flows := incast(b, carry, 32, dcqcn, 0)
				measure(b, f.Network, flows)
			})
		}
	}
}

// The cost of a packet must not grow with queue pairs that are idle.
func BenchmarkIdle(b *testing.B) {
	for _, idle := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(idle), func(b *testing.B) {
			f, flows := incast(b, simnet.Shared, 32, true, idle)
			measure(b, f.Network, flows)
		})
	}
}

// Four links a packet: every host of a two-tier tree sends to one under another
// leaf.
func BenchmarkClos(b *testing.B) {
	p := cnp.Paper()
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: simnet.Shared},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, ECN: &cnp.CongestionParams{Kmin: 100_000, Kmax: 400_000, Pmax: 200_000}},
		Host:    simnet.HostConfig{Control: cnp.Controller(p)},
	}.Clos(8, 4, 8)
	require.NoError(b, err)
	var flows []*simnet.Flow
	for i := range 64 {
		fl, err := f.AddFlow(simnet.FlowConfig{
			From: f.Hosts()[i], To: f.Hosts()[(i+8)%64], Op: qp.OpWrite, Size: 64 << 10, Depth: 4,
			Conn: simnet.ConnConfig{DSCP: 26},
		})
		require.NoError(b, err)
		flows = append(flows, fl)
	}
	measure(b, f.Network, flows)
}

// The incast of 32 hosts to one in a three-tier fat tree with PFC and without rate
// control, 20 MB each in packets of 4 KiB, to its end. PFC spreads over the tree.
// _htsim measures htsim with the same.
func BenchmarkFatTree(b *testing.B) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		b.Run(carryNames[carry], func(b *testing.B) {
			for b.Loop() {
				f, err := lab.Topology{
					Network: simnet.Config{Seed: 1, Carry: carry},
					Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 15 * 4096, XON: 12 * 4096}, // as htsim
				}.FatTree(8)
				require.NoError(b, err)
				for i := range 32 {
					_, err := f.AddFlow(simnet.FlowConfig{
						From: f.Hosts()[4*i+3], To: f.Hosts()[0], Op: qp.OpWrite, Size: 20_000_000, Count: 1,
						Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true, Timeout: 20},
					})
					require.NoError(b, err)
				}
				cpu, hops := testenv.CPUTime(), f.Hops()
				idle, err := f.RunUntilIdle(time.Second)
				require.NoError(b, err)
				require.True(b, idle)
				b.ReportMetric(float64(f.Hops()-hops)/(testenv.CPUTime()-cpu).Seconds(), "hops/cpu-s")
				b.ReportMetric(float64(f.Elapsed())/1e6, "virtual-ms")
			}
		})
	}
}

// A call of the caller's in a network with many idle hosts costs what it costs with
// few.
func BenchmarkAfter(b *testing.B) {
	for _, hosts := range []int{2, 1024} {
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}}.Star(hosts)
			require.NoError(b, err)
			fn := func() {}
			b.ReportAllocs()
			for b.Loop() {
				f.After(time.Nanosecond, fn)
				if err := f.Run(time.Nanosecond); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Once pools and queues have grown to what a network needs, it runs without an
// allocation: counted over a whole run, since AllocsPerRun rounds down.
func TestNoAllocations(t *testing.T) {
	if testenv.Allocates {
		t.Skip("the race detector allocates")
	}
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		f, flows := incast(t, carry, 8, true, 0)
		require.NoError(t, f.Run(5*time.Millisecond))
		// The least of some: a queue may still reach a new height.
		least := ^uint64(0)
		for range 5 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, f.Run(2*time.Millisecond))
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		require.NotZero(t, flows[0].Received())
		require.LessOrEqual(t, least, uint64(2), "%v", carry) // the runtime's own
	}
}

// manyQPs connects n queue pairs of one host to others on other hosts.
func manyQPs(t testing.TB, n, others int, p congestion.Controller) (*lab.Fabric, []*softnic.QP, []*softnic.QP) {
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 1},
		Host:    simnet.HostConfig{MaxQPs: n, Control: p},
	}.Star(others + 1)
	require.NoError(t, err)
	qa, qb := make([]*softnic.QP, n), make([]*softnic.QP, n)
	cc := simnet.ConnConfig{SendDepth: 1, RecvDepth: 1, RdAtomic: 1, MTU: 1024}
	for i := range n {
		qa[i], qb[i], err = f.ConnectQPs(f.Hosts()[0], f.Hosts()[1+i%others], cc)
		require.NoError(t, err)
	}
	return f, qa, qb
}

// 100,000 queue pairs of one host pass traffic, and one that is
// idle takes at most 1 KiB beyond its rings. In bytes: qp.QP 1000, with the rings of
// one send, receive, completion, READ and response some 450 more.
func TestHundredThousandQPs(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f, qa, qb := manyQPs(t, n, 4, nil)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perQP := float64(after.HeapAlloc-before.HeapAlloc) / float64(2*n)
	t.Logf("%.0f bytes a queue pair with its port's state and rings of one entry", perQP)
	require.Less(t, perQP, 2048.0)

	msg, got := pattern(1500), make([]byte, 1500)
	done := 0
	f.Hosts()[0].OnCompletion = func(wc *qp.Completion) {
		require.Equal(t, qp.Success, wc.Status)
		done++
	}
	for i := range qa {
		require.NoError(t, qb[i].PostRecv(&qp.RecvWR{Local: got}))
		require.NoError(t, qa[i].PostSend(f.Now(), &qp.SendWR{Flags: qp.Signaled, Local: msg}))
	}
	idle, err := f.RunUntilIdle(time.Second)
	require.NoError(t, err)
	require.True(t, idle)
	require.Equal(t, n, done)
	require.Equal(t, msg, got)
}

// Queue pairs that are idle cause no events, and cost a run of
// others nothing. The number of events is what is counted: time would be flaky.
func TestIdleQPsCauseNoEvents(t *testing.T) {
	events := func(idle int) uint64 {
		f, qa, qb := manyQPs(t, idle+1, 1, nil)
		q, r := qa[idle/2], qb[idle/2]
		got := make([]byte, 100_000)
		require.NoError(t, r.PostRecv(&qp.RecvWR{Local: got}))
		require.NoError(t, q.PostSend(f.Now(), &qp.SendWR{Flags: qp.Signaled, Local: pattern(100_000)}))
		_, err := f.RunUntilIdle(time.Hour)
		require.NoError(t, err)
		var wc qp.Completion
		require.True(t, f.Hosts()[0].CQ.Poll(&wc))
		return f.Events()
	}
	require.Equal(t, events(0), events(20_000))
}
