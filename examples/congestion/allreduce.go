package main

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/softnic"
)

// reduceBytes is what an all-reduce sums up.
const reduceBytes = 8 << 20

// ring is an all-reduce over and over: each of n hosts sends its part of 1/n to the
// next, 2 (n-1) times. A step begins when the part of the step before has come from
// the neighbour, and a round when all hosts have all parts.
type ring struct {
	b      *builder
	hosts  []*simnet.Host
	out    []*softnic.QP // to the next
	in     []*softnic.QP // from the one before
	buf    []byte
	got    []int // steps received in this round
	left   int   // hosts that are not done
	began  time.Duration
	rounds []time.Duration
	failed qp.Status
}

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
	r := &ring{b: b, buf: make([]byte, reduceBytes/b.n), got: make([]int, b.n)}
	h := b.f.Hosts()
	for i := range b.n { // from rack to rack
		r.hosts = append(r.hosts, h[i%2*(b.n/2)+i/2])
	}
	r.out, r.in = make([]*softnic.QP, b.n), make([]*softnic.QP, b.n)
	for i := range b.n {
		to := (i + 1) % b.n
		c := b.conn()
		c.RecvDepth = 2 * b.n
		var err error
		if r.out[i], r.in[to], err = b.f.ConnectQPs(r.hosts[i], r.hosts[to], c); err != nil {
			return err
		}
		for range 2 * b.n {
			if err := r.in[to].PostRecv(&qp.RecvWR{Local: r.buf}); err != nil {
				return err
			}
		}
		r.hosts[i].Handle(r.out[i], func(wc *qp.Completion) {
			if wc.Status != qp.Success {
				r.failed = wc.Status
			}
		})
		r.hosts[to].Handle(r.in[to], func(wc *qp.Completion) { r.received(to, wc) })
	}
	b.f.After(0, r.begin)
	b.after = r.collect
	return nil
}

func (r *ring) begin() {
	r.began, r.left = r.b.f.Elapsed(), len(r.hosts)
	clear(r.got)
	for i := range r.hosts {
		r.send(i)
	}
}

func (r *ring) send(i int) {
	// The queue has room for more than a round.
	_ = r.out[i].PostSend(r.b.f.Now(), &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, Local: r.buf})
}

// received counts a part that host i got.
func (r *ring) received(i int, wc *qp.Completion) {
	if wc.Status != qp.Success {
		r.failed = wc.Status
		return
	}
	_ = r.in[i].PostRecv(&qp.RecvWR{Local: r.buf}) // in place of the one that was consumed
	r.got[i]++
	if steps := 2 * (len(r.hosts) - 1); r.got[i] < steps {
		r.send(i)
		return
	}
	if r.left--; r.left == 0 {
		r.rounds = append(r.rounds, r.b.f.Elapsed()-r.began)
		r.b.f.After(0, r.begin)
	}
}

// collect gives the times of the rounds, and the bytes that a host sent in them over
// their time.
func (r *ring) collect() {
	e := r.b.experiment
	sum := time.Duration(0)
	for _, d := range r.rounds {
		e.Rounds = append(e.Rounds, float64(d)/1e3)
		sum += d
	}
	if sum > 0 {
		n := float64(len(r.hosts))
		e.Goodput = 2 * (n - 1) / n * reduceBytes * 8 * float64(len(r.rounds)) / float64(sum)
	}
	e.times(r.rounds)
	for _, q := range r.out {
		e.Again += q.Counters().Retransmitted
	}
	if r.failed != qp.Success {
		e.Status = r.failed.String()
	}
}
