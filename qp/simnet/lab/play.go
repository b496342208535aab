package lab

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// Play holds the parameters of a run of a workload. The zero value can be used.
type Play struct {
	// Conn holds the parameters of queue pairs. A transfer that depends on no other, and on
	// which no other depends, is a WRITE over a pair of its own; the others are SENDs, and
	// share one pair between each two hosts.
	Conn simnet.ConnConfig
	// Limit is how long the network runs at most, in virtual time; 0 means 10 s.
	Limit time.Duration
	// Progress, where not nil, is called from time to time with the number of transfers
	// that are complete, and that of all.
	Progress func(over, all int)
}

// Outcome is the result of a transfer.
type Outcome struct {
	Transfer
	Began time.Duration // since the network's start; negative if it was never posted
	// Time is how long it took from its post to its completion, 0 if it is not complete.
	Time time.Duration
	// Ideal is how long it takes in an idle network.
	Ideal time.Duration
}

// Over reports whether the transfer is complete.
func (o *Outcome) Over() bool { return o.Time > 0 }

// Slowdown returns Time as a multiple of Ideal, 0 if the transfer is not complete.
func (o *Outcome) Slowdown() float64 {
	if o.Ideal <= 0 {
		return 0
	}
	return float64(o.Time) / float64(o.Ideal)
}

// batch is how often queue pairs are created for the next transfers, and destroyed.
const batch = 100 * time.Microsecond

// Playing is a running workload.
type Playing struct {
	n       *simnet.Network
	p       Play
	out     []Outcome
	alone   []int // transfers with a queue pair of their own, by start
	next    int   // of alone
	live    []*simnet.Flow
	again   uint64 // retransmitted by queue pairs that were destroyed
	over    []int  // complete transfers, by the number of their sending host
	waiting []int  // how many transfers each waits for
	wakes   [][]int
	pairs   map[[2]int]*pair
}

// pair is a queue pair that transfers share.
type pair struct {
	flow    *simnet.Flow
	backlog []int // transfers to be posted
}

// Run runs transfers on a network, and returns the outcome of each, in their order.
// Transfers for which the time was too short, or that failed, are not Over. Errors are
// those of the network, and simnet.ErrConfig for impossible transfers.
func (p Play) Run(n *simnet.Network, list []Transfer) ([]Outcome, error) {
	if p.Limit == 0 {
		p.Limit = 10 * time.Second
	}
	x, err := p.Start(n, list)
	if err != nil {
		return nil, err
	}
	for end := n.Elapsed() + p.Limit; n.Elapsed() < end; {
		if err := x.Prepare(n.Elapsed() + batch); err != nil {
			return x.out, err
		}
		over := x.Over()
		if p.Progress != nil {
			p.Progress(over, len(list))
		}
		if over == len(list) {
			return x.out, nil
		}
		if err := n.Run(min(batch, end-n.Elapsed())); err != nil {
			return x.out, err
		}
	}
	return x.out, nil
}

// Start is Run for callers that run the network themselves, in intervals: they call Prepare
// before each. Limit and Progress are not used.
func (p Play) Start(n *simnet.Network, list []Transfer) (*Playing, error) {
	x := &Playing{n: n, p: p, out: make([]Outcome, len(list)), over: make([]int, len(n.Hosts())),
		waiting: make([]int, len(list)), wakes: make([][]int, len(list)), pairs: make(map[[2]int]*pair)}
	if err := x.plan(list); err != nil {
		return nil, err
	}
	return x, nil
}

// Over returns how many transfers are complete.
func (x *Playing) Over() (sum int) {
	for _, k := range x.over {
		sum += k
	}
	return sum
}

// Outcomes returns the outcome of each transfer so far.
func (x *Playing) Outcomes() []Outcome { return x.out }

// Retransmitted returns how many packets were retransmitted so far.
func (x *Playing) Retransmitted() uint64 {
	sum := x.again
	x.flows(func(f *simnet.Flow) { sum += retransmitted(f) })
	return sum
}

// Status returns the status with which a queue pair has failed, or qp.Success. Destroyed
// queue pairs do not count.
func (x *Playing) Status() qp.Status {
	s := qp.Success
	x.flows(func(f *simnet.Flow) {
		if f.Status() != qp.Success {
			s = f.Status()
		}
	})
	return s
}

func (x *Playing) flows(fn func(f *simnet.Flow)) {
	for _, f := range x.live {
		fn(f)
	}
	for _, p := range x.pairs {
		fn(p.flow)
	}
}

func retransmitted(f *simnet.Flow) uint64 {
	q, _ := f.QPs()
	return q.Counters().Retransmitted
}

// plan checks the transfers and creates the queue pairs that they share.
func (x *Playing) plan(list []Transfer) error {
	hosts := x.n.Hosts()
	most := make(map[[2]int]int)
	for i, t := range list {
		if t.From < 0 || t.From >= len(hosts) || t.To < 0 || t.To >= len(hosts) || t.From == t.To || t.Size < 0 || t.Start < 0 {
			return fmt.Errorf("%w: transfer %d: %+v with %d hosts", simnet.ErrConfig, i, t, len(hosts))
		}
		x.out[i] = Outcome{Transfer: t, Began: -1}
		for _, k := range t.After {
			if k < 0 || k >= i || list[k].To != t.From && list[k].From != t.From {
				return fmt.Errorf("%w: transfer %d waits for %d, want one before it that is from or for host %d", simnet.ErrConfig, i, k, t.From)
			}
			x.wakes[k] = append(x.wakes[k], i)
			x.waiting[i]++
		}
		ideal, err := Ideal(x.n, hosts[t.From], hosts[t.To], t.Size, x.p.Conn.MTU)
		if err != nil {
			return err
		}
		x.out[i].Ideal = ideal
	}
	for i, t := range list {
		if len(t.After) == 0 && len(x.wakes[i]) == 0 {
			x.alone = append(x.alone, i)
			continue
		}
		k := [2]int{t.From, t.To}
		most[k] = max(most[k], t.Size)
	}
	slices.SortStableFunc(x.alone, func(a, b int) int { return cmp.Compare(list[a].Start, list[b].Start) })
	for i, t := range list {
		k := [2]int{t.From, t.To}
		if len(t.After) == 0 && len(x.wakes[i]) == 0 || x.pairs[k] != nil {
			continue
		}
		f, err := x.n.AddFlow(simnet.FlowConfig{From: hosts[t.From], To: hosts[t.To], Op: qp.OpSend, Size: most[k], Manual: true, Conn: x.p.Conn})
		if err != nil {
			return err
		}
		pr := &pair{flow: f}
		f.OnSent(func(tag uint32) { x.sent(pr, int(tag)) })
		f.OnReceived(func(tag uint32) { x.received(int(tag)) })
		x.pairs[k] = pr
	}
	for i := range list {
		if len(list[i].After) == 0 && len(x.wakes[i]) != 0 {
			h := hosts[list[i].From]
			h.After(max(0, list[i].Start-x.n.Elapsed()), func() { x.begin(i) })
		}
	}
	return nil
}

// begin posts a transfer of a shared pair. It and the next function run at the transfer's
// sender.
func (x *Playing) begin(i int) {
	t := &x.out[i]
	h := x.n.Hosts()[t.From]
	if d := t.Start - h.Elapsed(); d > 0 {
		h.After(d, func() { x.begin(i) })
		return
	}
	pr := x.pairs[[2]int{t.From, t.To}]
	t.Began = h.Elapsed()
	pr.backlog = append(pr.backlog, i)
	pr.post(x)
}

func (pr *pair) post(x *Playing) {
	for len(pr.backlog) != 0 {
		i := pr.backlog[0]
		if pr.flow.Post(x.out[i].Size, uint32(i)) != nil {
			return // the send queue is full
		}
		pr.backlog = pr.backlog[1:]
	}
}

func (x *Playing) sent(pr *pair, i int) {
	o := &x.out[i]
	o.Time = x.n.Hosts()[o.From].Elapsed() - o.Began
	x.over[o.From]++
	pr.post(x)
	for _, k := range x.wakes[i] {
		if x.out[k].From == o.From {
			x.ready(k)
		}
	}
}

// received runs at the receiver, and starts the transfers that wait there.
func (x *Playing) received(i int) {
	for _, k := range x.wakes[i] {
		if x.out[k].From == x.out[i].To {
			x.ready(k)
		}
	}
}

func (x *Playing) ready(k int) {
	if x.waiting[k]--; x.waiting[k] == 0 {
		x.begin(k)
	}
}

// Prepare creates queue pairs for the transfers that start before until, a time since the
// network's start, and destroys those of complete transfers.
func (x *Playing) Prepare(until time.Duration) error {
	live := x.live[:0]
	for _, f := range x.live {
		if f.Done() || f.Status() != qp.Success {
			x.again += retransmitted(f)
			f.Close()
		} else {
			live = append(live, f)
		}
	}
	x.live = live
	hosts, now := x.n.Hosts(), x.n.Elapsed()
	for ; x.next < len(x.alone); x.next++ {
		i := x.alone[x.next]
		o := &x.out[i]
		if o.Start >= until {
			break
		}
		f, err := x.n.AddFlow(simnet.FlowConfig{From: hosts[o.From], To: hosts[o.To], Op: qp.OpWrite, Size: o.Size, Count: 1, Depth: 1,
			Start: max(0, o.Start-now), Conn: x.p.Conn})
		if err != nil {
			return fmt.Errorf("transfer %d: %w", i, err)
		}
		o.Began = max(now, o.Start)
		f.OnDone(func(f *simnet.Flow) {
			o.Time = f.Duration()
			x.over[o.From]++
		})
		x.live = append(x.live, f)
	}
	return nil
}
