package lab_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// webSearch is a leaf-spine network of 16 hosts a leaf under web search at half its load.
func webSearch(t testing.TB, hosts, threads int, until time.Duration) (*lab.Fabric, []lab.Transfer) {
	f, err := lab.Topology{
		Network: simnet.Config{Carry: simnet.Shared, Seed: 4, Threads: threads},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, ECN: &cnp.CongestionParams{Kmin: 100_000, Kmax: 400_000, Pmax: 200_000}},
		Host:    simnet.HostConfig{Control: cnp.Controller(cnp.Paper()), MaxQPs: 4096},
	}.Clos(max(2, hosts/16), 8, min(16, hosts/2))
	require.NoError(t, err)
	return f, lab.Poisson(2, lab.WebSearch, hosts, 0.5, 100e9, until)
}

// Web search on 256 hosts by the number of threads. It says more on a machine that does
// nothing else: wall time is what threads are for.
func BenchmarkThreads(b *testing.B) {
	for _, threads := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			hops, cpu, balance := uint64(0), testenv.CPUTime(), 0.0
			for b.Loop() {
				f, list := webSearch(b, 256, threads, time.Millisecond)
				_, err := lab.Play{Conn: simnet.ConnConfig{DSCP: 26}, Limit: 2 * time.Millisecond}.Run(f.Network, list)
				require.NoError(b, err)
				hops += f.Hops()
				balance = f.Balance()
			}
			b.ReportMetric(balance, "balance")
			b.ReportMetric(float64(hops)/b.Elapsed().Seconds(), "hops/s")
			b.ReportMetric(float64(testenv.CPUTime()-cpu)/float64(hops), "cpu-ns/hop")
		})
	}
}

// The cost of a hop by the number of hosts: web search, and incasts of 15 to 1 under every
// leaf from other leaves, whose pauses spread.
func BenchmarkHosts(b *testing.B) {
	for _, kind := range []string{"websearch", "storm"} {
		for _, hosts := range []int{16, 64, 256, 1024} {
			b.Run(fmt.Sprintf("%s/%d", kind, hosts), func(b *testing.B) {
				hops, took := uint64(0), time.Duration(0)
				for b.Loop() {
					var run func() error
					var f *lab.Fabric
					span := time.Duration(256*1024/hosts) * time.Microsecond
					if kind == "websearch" {
						var list []lab.Transfer
						f, list = webSearch(b, hosts, 1, span)
						run = func() error {
							_, err := lab.Play{Conn: simnet.ConnConfig{DSCP: 26}, Limit: span}.Run(f.Network, list)
							return err
						}
					} else {
						f = storm(b, hosts)
						require.NoError(b, f.Run(100*time.Microsecond))
						run = func() error { return f.Run(2 * span) }
					}
					runtime.GC()
					at, cpu := f.Hops(), testenv.CPUTime()
					require.NoError(b, run())
					hops += f.Hops() - at
					took += testenv.CPUTime() - cpu
				}
				b.ReportMetric(float64(took)/float64(hops), "cpu-ns/hop")
				b.ReportMetric(float64(hops)/took.Seconds(), "hops/cpu-s")
			})
		}
	}
}

// storm is a network in which one host under each leaf gets more than its link takes.
func storm(t testing.TB, hosts int) *lab.Fabric {
	f, err := lab.Topology{
		Network: simnet.Config{Carry: simnet.Shared, Seed: 4},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 40_000},
	}.Clos(max(2, hosts/16), 8, min(16, hosts/2))
	require.NoError(t, err)
	per := min(16, hosts/2)
	for i, h := range f.Hosts() {
		leaf := (i/per + 1 + i%per) % (hosts / per)
		if to := f.Hosts()[leaf*per]; to != h {
			_, err := f.AddFlow(simnet.FlowConfig{From: h, To: to, Op: qp.OpWrite, Size: 1 << 20, Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}})
			require.NoError(t, err)
		}
	}
	return f
}
