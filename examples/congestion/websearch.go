package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// webSearch is how long messages are: the part of them, in percent, up to each size.
// It is the table that HPCC's code has, of the web search cluster of Alizadeh et al.,
// "Data Center TCP (DCTCP)", SIGCOMM 2010.
var webSearch = []struct{ bytes, percent float64 }{
	{0, 0}, {10_000, 15}, {20_000, 20}, {30_000, 30}, {50_000, 40}, {80_000, 53}, {200_000, 60},
	{1_000_000, 70}, {2_000_000, 80}, {5_000_000, 90}, {10_000_000, 97}, {30_000_000, 100},
}

// size draws a length.
func size(rnd *rand.Rand) int {
	p := rnd.Float64() * 100
	for i := 1; ; i++ {
		a, b := webSearch[i-1], webSearch[i]
		if p <= b.percent {
			return max(1, int(a.bytes+(b.bytes-a.bytes)*(p-a.percent)/(b.percent-a.percent)))
		}
	}
}

func meanSize() (sum float64) {
	for i := 1; i < len(webSearch); i++ {
		a, b := webSearch[i-1], webSearch[i]
		sum += (a.bytes + b.bytes) / 2 * (b.percent - a.percent) / 100
	}
	return sum
}

// load is the part of the hosts' links that arrivals take.
const load = 0.5

// websearch has messages arrive by chance, each over a queue pair of its own from one
// host to another, in the first three quarters of the time.
func websearch(b *builder) error {
	b.top.Core = 2 * b.top.Rate
	if err := b.on(b.top.Clos(4, 4, 8)); err != nil {
		return err
	}
	b.s.Watch(b.f.Hosts()[0].Link().BA())
	hosts := b.f.Hosts()
	rnd := rand.New(rand.NewPCG(b.o.seed, 0x5eb5ea6c4))
	gap := meanSize() * 8e9 / (load * float64(b.top.Rate) * float64(len(hosts))) // ns
	var all []*simnet.Flow
	var sizes []int
	for at := 0.0; ; {
		if at += rnd.ExpFloat64() * gap; at > float64(b.total)*3/4 {
			break
		}
		from := rnd.IntN(len(hosts))
		to := (from + 1 + rnd.IntN(len(hosts)-1)) % len(hosts)
		n := size(rnd)
		c := b.conn()
		c.SendDepth, c.RecvDepth, c.RdAtomic = 1, 1, -1
		all = append(all, b.s.Flow(simnet.FlowConfig{
			Name: fmt.Sprint(len(all)), From: hosts[from], To: hosts[to], Op: qp.OpWrite, Size: n, Count: 1, Depth: 1,
			Start: time.Duration(at), Conn: c,
		}))
		sizes = append(sizes, n)
	}
	b.after = func() { b.slowdowns(all, sizes) }
	return nil
}

// bin is the messages of like sizes: how much longer they took than they would have
// taken alone.
type bin struct {
	Bytes  int     `json:"up_to_bytes"`
	Count  int     `json:"messages"`
	Median float64 `json:"p50"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
}

// binEnds are the sizes that bins end at.
var binEnds = []int{10_000, 30_000, 80_000, 200_000, 1_000_000, 5_000_000, 30_000_000}

func (b *builder) slowdowns(all []*simnet.Flow, sizes []int) {
	e := b.experiment
	by := make([][]float64, len(binEnds))
	var times []time.Duration
	bytes := 0.0
	for i, f := range all {
		if !f.Done() {
			e.Left++
			continue
		}
		times = append(times, f.Duration())
		bytes += float64(sizes[i])
		k, _ := slices.BinarySearch(binEnds, sizes[i])
		by[k] = append(by[k], float64(f.Duration())/b.alone(sizes[i]))
	}
	for k, v := range by {
		slices.Sort(v)
		at := func(p float64) float64 {
			if len(v) == 0 {
				return 0
			}
			return v[min(len(v)-1, int(p*float64(len(v))))]
		}
		e.Bins = append(e.Bins, bin{binEnds[k], len(v), at(0.5), at(0.95), at(0.99)})
	}
	e.times(times)
	e.Goodput = bytes * 8 / float64(b.total)
}

// alone is how long a message takes on an empty network, in nanoseconds: its packets
// one after the other at the rate of the host's link, the last of them over the other
// links, and the acknowledgement back. The links between switches are twice as fast.
func (b *builder) alone(n int) float64 {
	packets := math.Ceil(float64(n) / float64(b.o.mtu))
	ns := 8e9 / float64(b.top.Rate)
	last := float64(min(n, b.o.mtu) + overhead)
	return (float64(n)+packets*overhead)*ns + 2*4*float64(linkDelay) + last*ns*2 + 90*ns*3
}
