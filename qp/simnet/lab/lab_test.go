package lab_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// The means of the three distributions, added up by hand from the published points.
func TestSizes(t *testing.T) {
	require.InDelta(t, 1_711_250, lab.WebSearch.Mean(), 1)
	require.InDelta(t, 120_420.75, lab.Hadoop.Mean(), 1)
	require.InDelta(t, 40_869.8, lab.Storage.Mean(), 1)
	require.Equal(t, 10_000, lab.WebSearch.At(0.15))
	require.Equal(t, 65_000, lab.WebSearch.At(0.465), "half way between 50,000 at 40 % and 80,000 at 53 %")
	require.Equal(t, 30_000_000, lab.WebSearch.At(1))
	require.Equal(t, 1, lab.WebSearch.At(0))
	s, err := lab.ReadSizes("x", strings.NewReader("# mine\n0 0\n100 50\n\n300 100\n"))
	require.NoError(t, err)
	require.Equal(t, 125., s.Mean())
	for _, bad := range []string{"", "0 0\n", "0 0\n5 50\n", "0 0\n9 60\n5 100\n", "0 0\n5 60\n9 50\n10 100", "0 0\nx 100", "0 0\nNaN 100"} {
		_, err := lab.ReadSizes("bad", strings.NewReader(bad))
		require.ErrorIs(t, err, simnet.ErrConfig, bad)
	}
	for _, n := range []string{"websearch", "hadoop", "storage"} {
		_, err := lab.SizesByName(n)
		require.NoError(t, err)
	}
	_, err = lab.SizesByName("web")
	require.ErrorContains(t, err, "want websearch")
}

// Arrivals offer the load that was asked for, at exponential distances, from and to all.
func TestPoisson(t *testing.T) {
	list := lab.Poisson(1, lab.Storage, 32, 0.5, 100e9, 100*time.Millisecond)
	sum, from, to := 0.0, make([]int, 32), make([]int, 32)
	var gaps, squares float64
	for i, x := range list {
		sum += float64(x.Size)
		from[x.From]++
		to[x.To]++
		require.NotEqual(t, x.From, x.To)
		if i > 0 {
			g := float64(x.Start - list[i-1].Start)
			gaps += g
			squares += g * g
		}
	}
	require.InEpsilon(t, 0.5*100e9/8*0.1*32, sum, 0.02)
	n := float64(len(list) - 1)
	require.InEpsilon(t, 1, math.Sqrt(squares/n-gaps/n*gaps/n)/(gaps/n), 0.03, "as wide as its mean")
	for i := range from {
		require.InEpsilon(t, len(list)/32, from[i], 0.1)
		require.InEpsilon(t, len(list)/32, to[i], 0.1)
	}
	require.Equal(t, list, lab.Poisson(1, lab.Storage, 32, 0.5, 100e9, 100*time.Millisecond))
	require.Empty(t, lab.Poisson(1, lab.Storage, 1, 0.5, 100e9, time.Second))
}

// A transfer without others takes the ideal time: what the simulated network shows is the
// arithmetic over links, for every size and distance.
func TestIdeal(t *testing.T) {
	for _, core := range []uint64{100e9, 400e9, 40e9} {
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Core: core, Switch: simnet.SwitchConfig{Lossless: 1}}.FatTree(4)
		require.NoError(t, err)
		var list []lab.Transfer
		for i, size := range []int{0, 1, 100, 4096, 4097, 8192, 50_000, 1_000_000} {
			for k, to := range []int{1, 2, 15} {
				list = append(list, lab.Transfer{Start: time.Duration(3*i+k) * time.Millisecond, From: 0, To: to, Size: size})
			}
		}
		out, err := lab.Play{}.Run(f.Network, list)
		require.NoError(t, err)
		for _, o := range out {
			require.True(t, o.Over())
			require.InDelta(t, 1, o.Slowdown(), 0.002, "%d bytes to %d: %v, ideally %v", o.Size, o.To, o.Time, o.Ideal)
		}
	}
}

// Rounds of a workload: no transfer of a round begins at a host before all that ends the
// round before is over there.
func TestRounds(t *testing.T) {
	// In a chain host 0 ends nothing: it waits for its own part. What another host's
	// transfer begins waits for the host's own as well.
	chain := lab.Rounds([]lab.Transfer{{From: 0, To: 1, Size: 1}, {From: 1, To: 2, Size: 1, After: []int{0}}}, 3)
	require.Equal(t, []int{0}, chain[2].After)
	require.Equal(t, []int{2, 1}, chain[3].After)
	require.Equal(t, []int{2}, chain[4].After)

	list := lab.Rounds(lab.RingAllReduce(4, 400_000), 3)
	require.Len(t, list, 3*4*6)
	require.Empty(t, list[0].After)
	require.Equal(t, []int{20, 23}, list[24].After, "host 0: its own last part, and the one that it gets")
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}}.Star(4)
	require.NoError(t, err)
	out, err := lab.Play{}.Run(f.Network, list)
	require.NoError(t, err)
	for i, o := range out {
		require.True(t, o.Over(), "%d", i)
		for _, k := range o.After {
			if out[k].From == o.From {
				require.GreaterOrEqual(t, o.Began, out[k].Began+out[k].Time)
			} else {
				require.Greater(t, o.Began, out[k].Began)
			}
		}
	}
}

// Three tiers of any size: so many ways between hosts of two pods, of a pod, of a switch,
// as the links allow, and their rates; a fat tree is one of them.
func TestClos3(t *testing.T) {
	top := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Rate: 100e9, Core: 200e9}
	for _, c := range []struct {
		tiers    lab.Tiers
		core     int // links of each core switch
		between  int // ways between pods
		switches int
	}{
		{lab.Tiers{Pods: 3, Edge: 2, Agg: 4, Core: 16, Hosts: 5, Planes: true, Spine: 400e9}, 3, 16, 3*6 + 16},
		{lab.Tiers{Pods: 2, Edge: 4, Agg: 2, Core: 3, Hosts: 1}, 4, 6, 2*6 + 3},
		{lab.Tiers{Pods: 1, Edge: 1, Agg: 1, Core: 1, Hosts: 2}, 1, 0, 3},
	} {
		f, err := top.Clos3(c.tiers)
		require.NoError(t, err)
		require.Len(t, f.Switches(), c.switches)
		hosts := f.Hosts()
		require.Len(t, hosts, c.tiers.Pods*c.tiers.Edge*c.tiers.Hosts)
		core := f.Switches()[len(f.Switches())-1]
		require.Len(t, core.Outputs(), c.core)
		if c.tiers.Spine != 0 {
			require.Equal(t, c.tiers.Spine, core.Outputs()[0].Rate())
		}
		first, last := hosts[0], hosts[len(hosts)-1]
		path, err := f.Path(first, last)
		require.NoError(t, err)
		if c.between == 0 {
			require.Len(t, path, 2)
			continue
		}
		require.Len(t, path, 6, "edge, aggregation, core and down again")
		used := map[string]bool{}
		for range 60 * c.between {
			_, err := f.AddFlow(simnet.FlowConfig{From: first, To: last, Op: qp.OpSend, Size: 1, Count: 1, Conn: simnet.ConnConfig{RdAtomic: -1, SendDepth: 1, RecvDepth: 1}})
			require.NoError(t, err)
		}
		f.Observe(func(e *simnet.PacketEvent) {
			if from, to := e.Direction.From().Name(), e.Direction.To().Name(); strings.HasPrefix(from, "agg") && strings.HasPrefix(to, "core") {
				used[from+to] = true
			}
		})
		idle, err := f.RunUntilIdle(time.Second)
		require.True(t, idle && err == nil)
		// Acknowledgements come back by the other pod's switches.
		up := 0
		for k := range used {
			if n := 0; strings.HasPrefix(k, "agg") {
				_, _ = fmt.Sscanf(k, "agg%d", &n)
				if n < c.tiers.Agg {
					up++
				}
			}
		}
		require.Equal(t, c.between, up)
	}
	for _, bad := range []lab.Tiers{{}, {Pods: 1, Edge: 1, Agg: 2, Core: 3, Planes: true}, {Pods: 1, Edge: 1, Agg: 1, Core: 1, Hosts: -1}} {
		_, err := top.Clos3(bad)
		require.ErrorIs(t, err, simnet.ErrConfig)
	}
}

func fabric(t *testing.T, threads int) *lab.Fabric {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared, Seed: 4, Threads: threads},
		Switch: simnet.SwitchConfig{Lossless: 1 << 3}}.Clos(4, 2, 4)
	require.NoError(t, err)
	return f
}

// A ring all-reduce takes 2(n-1) steps of a part each, no step before the one before
// it, and the time of 2(n-1)/n of the data over a link.
func TestRingAllReduce(t *testing.T) {
	const size = 16_000_000
	for _, threads := range []int{1, 3} {
		f := fabric(t, threads)
		list := lab.RingAllReduce(16, size)
		require.Len(t, list, 16*30)
		out, err := lab.Play{Conn: simnet.ConnConfig{DSCP: 26}}.Run(f.Network, list)
		require.NoError(t, err)
		last := time.Duration(0)
		for _, o := range out {
			require.True(t, o.Over())
			for _, k := range o.After {
				require.Equal(t, o.From, out[k].To)
				require.GreaterOrEqual(t, o.Began, out[k].Began+out[k].Ideal/2, "not before it was received")
			}
			last = max(last, o.Began+o.Time)
		}
		atLeast := time.Duration(30 * size / 16 * 8 / 100)
		require.Greater(t, last, atLeast)
		require.Less(t, last, atLeast*112/100)
	}
}

func TestCollectives(t *testing.T) {
	out, err := lab.Play{}.Run(fabric(t, 1).Network, lab.AllToAll(16, 100_000))
	require.NoError(t, err)
	require.Len(t, out, 240)
	pairs := make(map[[2]int]bool)
	for i, o := range out {
		require.True(t, o.Over())
		pairs[[2]int{o.From, o.To}] = true
		for _, k := range o.After {
			require.GreaterOrEqual(t, o.Began, out[k].Began+out[k].Time, i)
		}
	}
	require.Len(t, pairs, 240)

	out, err = lab.Play{Conn: simnet.ConnConfig{DSCP: 26}}.Run(fabric(t, 2).Network, lab.Incast(8, 50_000, 5))
	require.NoError(t, err)
	ends := time.Duration(0)
	rounds := 0
	for _, o := range out {
		require.True(t, o.Over())
		if o.To == 0 {
			ends = max(ends, o.Began+o.Time)
			rounds++
		}
	}
	require.Equal(t, 40, rounds)
	require.Greater(t, ends, time.Duration(5*8*50_000*8/100))
}

// A loaded network: transfers are slowed down, bins hold them all, the same for any
// number of threads, and queue pairs are taken away again.
func TestWebSearch(t *testing.T) {
	hosts := 32
	until := 2 * time.Millisecond
	if testing.Short() {
		until = 500 * time.Microsecond
	}
	var first []lab.Outcome
	for _, threads := range []int{1, 2} {
		p := cnp.Paper()
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared, Seed: 4, Threads: threads},
			Switch: simnet.SwitchConfig{Lossless: 1 << 3, ECN: &cnp.CongestionParams{Kmin: 100_000, Kmax: 400_000, Pmax: 200_000}},
			Host:   simnet.HostConfig{Control: cnp.Controller(p)}}.Clos(4, 4, 8)
		require.NoError(t, err)
		calls := 0
		out, err := lab.Play{Conn: simnet.ConnConfig{DSCP: 26}, Progress: func(over, all int) { calls++ }}.
			Run(f.Network, lab.Poisson(2, lab.WebSearch, hosts, 0.5, 100e9, until))
		require.NoError(t, err)
		require.NotZero(t, calls)
		for _, o := range out {
			require.True(t, o.Over())
			require.Greater(t, o.Slowdown(), 0.99)
		}
		if first == nil {
			first = out
		}
		require.Equal(t, first, out)
	}
	bins := lab.Slowdowns(first, lab.DefaultBins, 0)
	require.Len(t, bins, 6)
	sum := 0
	for _, b := range bins[:5] {
		sum += b.Count
		require.Equal(t, b.Count, b.Over)
		require.LessOrEqual(t, b.P50, b.P95)
		require.LessOrEqual(t, b.P99, b.P999)
	}
	require.Equal(t, len(first), sum)
	require.Equal(t, len(first), bins[5].Count)
	require.Greater(t, bins[5].P99, 2.)
	var text, csv bytes.Buffer
	lab.WriteBins(&text, bins)
	require.Contains(t, text.String(), "10 KB to 100 KB")
	require.NoError(t, lab.WriteOutcomes(&csv, first))
	require.Equal(t, len(first)+1, strings.Count(csv.String(), "\n"))
}

// Percentiles are by the nearest rank; edges belong to the bin above; what is not over
// is counted and nothing else.
func TestSlowdowns(t *testing.T) {
	var out []lab.Outcome
	for i := 1; i <= 1000; i++ {
		out = append(out, lab.Outcome{Transfer: lab.Transfer{Size: 10}, Time: time.Duration(i), Ideal: 1})
	}
	out = append(out, lab.Outcome{Transfer: lab.Transfer{Size: 100}, Ideal: 1})
	b := lab.Slowdowns(out, []int{100}, 0)
	require.Equal(t, lab.Bin{To: 100, Count: 1000, Over: 1000, P50: 500, P95: 950, P99: 990, P999: 999, MeanTime: 500}, b[0])
	require.Equal(t, lab.Bin{From: 100, Count: 1}, b[1])
	require.Equal(t, 1001, b[2].Count)
	d := []time.Duration{3, 1, 2}
	require.EqualValues(t, 2, lab.Percentile(d, 0.5))
	require.Equal(t, []time.Duration{3, 1, 2}, d, "the flow's own order")
	var line bytes.Buffer
	require.NoError(t, lab.WriteJSON(&line, b[0]))
	require.JSONEq(t, `{"from":0,"to":100,"count":1000,"over":1000,"p50":500,"p95":950,"p99":990,"p999":999,"mean_ns":500}`, line.String())
}

func TestTransfersFile(t *testing.T) {
	list := append(lab.Incast(2, 100, 2), lab.Transfer{Start: 1500, From: 1, To: 2, Size: 7})
	var b bytes.Buffer
	require.NoError(t, lab.WriteTransfers(&b, list))
	got, err := lab.ReadTransfers(&b)
	require.NoError(t, err)
	require.Equal(t, list, got)
	for _, bad := range []string{"1,2,3", "a,0,1,5", "1 0 1 5 x", "-1 0 1 5"} {
		_, err := lab.ReadTransfers(strings.NewReader(bad))
		require.ErrorContains(t, err, "line 1", bad)
	}
	for _, bad := range []lab.Transfer{{From: 0, To: 0}, {From: 0, To: 99}, {From: -1, To: 1}, {From: 0, To: 1, Size: -1}, {From: 0, To: 1, After: []int{0}}} {
		_, err := lab.Play{}.Run(fabric(t, 1).Network, []lab.Transfer{bad})
		require.ErrorIs(t, err, simnet.ErrConfig)
	}
}

func TestTopologyFile(t *testing.T) {
	f, err := lab.Topology{}.Read(strings.NewReader(`
switch leaf0 # left
switch leaf1
host a
host b 40G
host c
link a leaf0
link b leaf1 40G 300ns
link c leaf1 100G 1us
link c leaf0
link leaf0 leaf1 400G
`))
	require.NoError(t, err)
	require.Len(t, f.Links(), 5)
	require.EqualValues(t, 400e9, f.Links()[4].AB().Rate())
	require.Equal(t, 300*time.Nanosecond, f.Links()[1].Config().Delay)
	require.Len(t, f.Hosts()[2].Links(), 2)
	path, err := f.Path(f.Hosts()[0], f.Hosts()[1])
	require.NoError(t, err)
	require.Len(t, path, 3)
	for bad, says := range map[string]string{
		"swich a":                        "line 1",
		"switch a\nlink a b":             `no switch or host "b"`,
		"switch a\nhost b\nlink a b 5X":  `rate "5X"`,
		"switch a\nhost b\nlink a b 5 x": `delay "x"`,
		"switch a\nswitch a":             "two nodes",
	} {
		_, err := lab.Topology{}.Read(strings.NewReader(bad))
		require.ErrorContains(t, err, says)
	}
}

// A sweep gives results in order, shards of it are the whole, and an error ends it.
func TestSweep(t *testing.T) {
	points := make([]int, 50)
	for i := range points {
		points[i] = i
	}
	square := func(_ int, p int) (int, error) { return p * p, nil }
	var whole []string
	collect := func(into *[]string) func(i, r int) error {
		return func(i, r int) error {
			b, err := json.Marshal([2]int{i, r})
			*into = append(*into, string(b))
			return err
		}
	}
	require.NoError(t, lab.Sweep(points, lab.Shard{}, square, collect(&whole)))
	require.Len(t, whole, 50)
	require.Equal(t, "[7,49]", whole[7])
	var parts []string
	for i := range 3 {
		s, err := lab.ParseShard(fmt.Sprintf("%d/3", i))
		require.NoError(t, err)
		require.NoError(t, lab.Sweep(points, s, square, collect(&parts)))
	}
	require.ElementsMatch(t, whole, parts)
	err := lab.Sweep(points, lab.Shard{}, func(i, p int) (int, error) {
		if i == 20 {
			return 0, simnet.ErrConfig
		}
		return p, nil
	}, func(int, int) error { return nil })
	require.ErrorContains(t, err, "point 20")
	for _, bad := range []string{"3/3", "-1/2", "x/2", "1", "0/0"} {
		_, err := lab.ParseShard(bad)
		require.ErrorIs(t, err, simnet.ErrConfig, bad)
	}
}

// The time series of a scenario as CSV: goodput, queue, rate and pauses add up.
func TestSeries(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Switch: simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 20_000}}.Star(4)
	require.NoError(t, err)
	s := lab.NewScenario(f.Network, 10*time.Microsecond)
	s.Watch(f.Bottleneck)
	s.Watch(f.Hosts()[1].Out())
	for _, h := range f.Hosts()[1:] {
		s.Flow(simnet.FlowConfig{From: h, To: f.Hosts()[0], Op: qp.OpWrite, Size: 1 << 20, Conn: simnet.ConnConfig{DSCP: 26}})
	}
	r, err := s.Run(time.Millisecond)
	require.NoError(t, err)
	sent, paused := uint64(0), time.Duration(0)
	for i := range r.Samples {
		sent += r.Queues[0].Sent[i]
		paused += r.Queues[1].Paused[i]
	}
	require.Equal(t, f.Bottleneck.Counters().Bytes, sent)
	require.Equal(t, f.Hosts()[1].Out().Counters().PausedFor[3], paused)
	require.NotZero(t, paused)
	var b bytes.Buffer
	require.NoError(t, r.WriteCSV(&b))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 101)
	require.Equal(t, "time_us,h1 > h0 bit/s,h2 > h0 bit/s,h3 > h0 bit/s,s0 > h0 queue B,s0 > h0 bit/s,s0 > h0 paused,h1 > s0 queue B,h1 > s0 bit/s,h1 > s0 paused", lines[0])
}
