package main

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/qp/simnet/lab"
)

// reduceBytes is what an all-reduce sums up.
const reduceBytes = 8 << 20

// allreduce has hosts do a ring all-reduce over and over: each of n hosts sends its part
// of 1/n to the next, 2 (n-1) times. A step begins when the part of the step before has
// come from the neighbour, and a round, at each host, when the one before is over there.
func allreduce(b *builder) error {
	if b.n < 2 || b.n%2 != 0 {
		return fmt.Errorf("allreduce takes an even number of hosts, -n %d is none", b.n)
	}
	// Two racks, and as many ways between them as a rack has hosts: which flows
	// share one is luck.
	if err := b.on(b.top.Clos(2, b.n/2, b.n/2)); err != nil {
		return err
	}
	b.s.Watch(b.f.Switches()[0].Outputs()[b.n/2]) // the first way up

	round := lab.RingAllReduce(b.n, reduceBytes)
	for i := range round { // from rack to rack
		place := func(h int) int { return h%2*(b.n/2) + h/2 }
		round[i].From, round[i].To = place(round[i].From), place(round[i].To)
	}
	sent := 2 * float64(b.n-1) / float64(b.n) * reduceBytes * 8 // bits by a host in a round
	most := int(b.total.Seconds()*float64(b.top.Rate)/sent) + 1 // rounds
	var err error
	if b.play, err = (lab.Play{Conn: b.conn()}).Start(b.f.Network, lab.Rounds(round, most)); err != nil {
		return err
	}
	b.after = func() {
		// A round is from the end of the one before to when its last part has come.
		var times []time.Duration
		last, out := time.Duration(0), b.play.Outcomes()
		for ; len(out) >= len(round); out = out[len(round):] {
			end := last
			for i := range round {
				if !out[i].Over() {
					end = 0
					break
				}
				end = max(end, out[i].Began+out[i].Time)
			}
			if end == 0 {
				break
			}
			times = append(times, end-last)
			last = end
		}
		for _, d := range times {
			b.Rounds = append(b.Rounds, float64(d)/1e3)
		}
		if last > 0 {
			b.Goodput = sent * float64(len(times)) / float64(last)
		}
		b.times(times)
	}
	return nil
}
