package main

import (
	"time"

	"github.com/roce-go/roce/qp/simnet/lab"
)

// load is the part of the hosts' links that arrivals take.
const load = 0.5

// binEdges are the sizes that slowdowns are told apart by, in bytes.
var binEdges = []int{10_000, 30_000, 80_000, 200_000, 1_000_000, 5_000_000}

// websearch has messages arrive by chance, each over a queue pair of its own from one
// host to another, in the first three quarters of the time.
func websearch(b *builder) error {
	b.top.Core = 2 * b.top.Rate
	if err := b.on(b.top.Clos(4, 4, 8)); err != nil {
		return err
	}
	hosts := b.f.Hosts()
	b.s.Watch(hosts[0].Link().BA())
	c := b.conn()
	c.SendDepth, c.RecvDepth, c.RdAtomic = 1, 1, -1
	var err error
	b.play, err = lab.Play{Conn: c}.Start(b.f.Network, lab.Poisson(b.o.seed, lab.WebSearch, len(hosts), load, b.top.Rate, b.total*3/4))
	if err != nil {
		return err
	}
	b.after = func() {
		var times []time.Duration
		bytes := 0
		out := b.play.Outcomes()
		for _, o := range out {
			if !o.Over() {
				b.Left++
				continue
			}
			times = append(times, o.Time)
			bytes += o.Size
		}
		bins := lab.Slowdowns(out, binEdges, 0)
		b.Bins = bins[:len(bins)-1] // the last is that of all
		b.times(times)
		b.Goodput = float64(bytes) * 8 / float64(b.total)
	}
	return nil
}
