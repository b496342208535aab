package simnet_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
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
	packets, hops, events, cpu := delivered(), n.Hops(), n.Events(), cpuTime()
	b.ReportAllocs()
	for b.Loop() {
		if err := n.Run(100 * time.Microsecond); err != nil {
			b.Fatal(err)
		}
	}
	cpu = cpuTime() - cpu
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
				cpu, hops := cpuTime(), f.Hops()
				idle, err := f.RunUntilIdle(time.Second)
				require.NoError(b, err)
				require.True(b, idle)
				b.ReportMetric(float64(f.Hops()-hops)/(cpuTime()-cpu).Seconds(), "hops/cpu-s")
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
