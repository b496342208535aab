package lab

import (
	"errors"
	"slices"
	"time"

	"github.com/roce-go/roce/qp/simnet"
)

// Scenario runs flows over a network and samples them.
//
//	f, err := lab.Topology{...}.Star(9)
//	s := lab.NewScenario(f.Network, 10*time.Microsecond)
//	s.Watch(f.Bottleneck)
//	for _, h := range f.Hosts()[1:] {
//		s.Flow(simnet.FlowConfig{From: h, To: f.Hosts()[0], Op: qp.OpWrite, Size: 1 << 20})
//	}
//	r, err := s.Run(20 * time.Millisecond)
type Scenario struct {
	n      *simnet.Network
	every  time.Duration
	flows  []*simnet.Flow
	queues []*simnet.Direction
	err    error
	report *Report
	last   []uint64
	taken  int // samples
}

// NewScenario returns a scenario that samples flows and queues once in every; 0 means 10
// us.
func NewScenario(n *simnet.Network, every time.Duration) *Scenario {
	if every <= 0 {
		every = 10 * time.Microsecond
	}
	return &Scenario{n: n, every: every}
}

// Flow adds a flow, also between runs: its samples before that are 0. Run returns its
// error.
func (s *Scenario) Flow(cfg simnet.FlowConfig) *simnet.Flow {
	f, err := s.n.AddFlow(cfg)
	if err != nil {
		s.err = errors.Join(s.err, err)
		return nil
	}
	s.flows = append(s.flows, f)
	return f
}

// Watch samples the queue of a direction from now on: its samples before that are 0.
func (s *Scenario) Watch(d *simnet.Direction) { s.queues = append(s.queues, d) }

// Report holds the samples of a scenario. Those of index i are of the interval that ends at
// At(i).
type Report struct {
	Every   time.Duration
	Start   time.Duration // of the first sample, since the network's start
	Samples int
	Flows   []FlowReport
	Queues  []QueueReport

	// Sums over the whole network and run.
	Packets, Dropped, Marked uint64
	PauseFrames              uint64 // that request a pause
	Pauses                   uint64 // times that a priority of a direction was paused
	PausedFor                time.Duration
	CNPs                     uint64
	Retransmitted, Timeouts  uint64
}

// FlowReport holds the samples of a flow.
type FlowReport struct {
	Flow  *simnet.Flow
	Bytes []uint64 // of messages received, by sample
}

// QueueReport holds the samples of a queue.
type QueueReport struct {
	Direction *simnet.Direction
	Bytes     []int           // waiting, by sample
	Sent      []uint64        // bytes, by sample
	Paused    []time.Duration // by sample: how long priorities were paused, added up

	sent   uint64
	paused time.Duration
}

// pausedFor returns how long priorities of a direction were paused, added up.
func pausedFor(c *simnet.LinkCounters) (sum time.Duration) {
	for _, d := range c.PausedFor {
		sum += d
	}
	return sum
}

// At returns the time of sample i.
func (r *Report) At(i int) time.Duration { return r.Start + time.Duration(i+1)*r.Every }

// Run runs the network for d of virtual time and reports. It may be called again: the
// report is continued.
func (s *Scenario) Run(d time.Duration) (*Report, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.report == nil {
		s.report = &Report{Every: s.every, Start: s.n.Elapsed()}
	}
	r := s.report
	for _, f := range s.flows[len(r.Flows):] {
		r.Flows = append(r.Flows, FlowReport{Flow: f, Bytes: make([]uint64, s.taken)})
		s.last = append(s.last, 0)
	}
	for _, q := range s.queues[len(r.Queues):] {
		r.Queues = append(r.Queues, QueueReport{Direction: q, Bytes: make([]int, s.taken),
			Sent: make([]uint64, s.taken), Paused: make([]time.Duration, s.taken),
			sent: q.Counters().Bytes, paused: pausedFor(q.Counters())})
	}
	for end := s.n.Elapsed() + d; s.n.Elapsed() < end; {
		next := r.At(s.taken)
		if err := s.n.Run(min(next, end) - s.n.Elapsed()); err != nil {
			s.sums()
			return r, err
		}
		if next > end {
			break // the sample is for the next call
		}
		s.taken++
		r.Samples++
		for i, f := range s.flows {
			got := f.Received()
			r.Flows[i].Bytes = append(r.Flows[i].Bytes, got-min(got, s.last[i]))
			s.last[i] = got
		}
		for i, q := range s.queues {
			x, c := &r.Queues[i], q.Counters()
			x.Bytes = append(x.Bytes, q.Queue())
			x.Sent = append(x.Sent, c.Bytes-x.sent)
			x.Paused = append(x.Paused, pausedFor(c)-x.paused)
			x.sent, x.paused = c.Bytes, pausedFor(c)
		}
	}
	s.sums()
	return r, nil
}

func (s *Scenario) sums() {
	r := s.report
	*r = Report{Every: r.Every, Start: r.Start, Samples: r.Samples, Flows: r.Flows, Queues: r.Queues}
	for d := range s.n.Directions() {
		c := d.Counters()
		r.Packets += c.Packets
		r.Dropped += c.Dropped
		r.Marked += c.Marked
		r.PauseFrames += c.PauseSent
		r.Pauses += c.Pauses
		for _, p := range c.PausedFor {
			r.PausedFor += p
		}
	}
	for _, h := range s.n.Hosts() {
		r.CNPs += h.Port.Counters().NpCnpSent
	}
	for _, f := range s.flows {
		q, _ := f.QPs()
		c := q.Counters()
		r.Retransmitted += c.Retransmitted
		r.Timeouts += c.LocalAckTimeoutErr
	}
}

// samples returns the indexes of the samples between two times since the start.
func (r *Report) samples(from, to time.Duration, n int) (i, j int) {
	at := func(t time.Duration) int { return min(max(int((t-r.Start)/r.Every), 0), n) }
	i = at(from)
	return i, max(i, at(to))
}

// Goodput returns a flow's mean goodput between two times since the network's
// start, in bits per second.
func (r *Report) Goodput(flow int, from, to time.Duration) float64 {
	b := r.Flows[flow].Bytes
	i, j := r.samples(from, to, len(b))
	if i == j {
		return 0
	}
	sum := uint64(0)
	for _, x := range b[i:j] {
		sum += x
	}
	return float64(sum) * 8 / (float64(j-i) * r.Every.Seconds())
}

// Fairness returns the mean of Jain's index of the flows' goodput over windows
// between two times, of the flows named, or of all.
func (r *Report) Fairness(from, to, window time.Duration, flows ...int) float64 {
	if flows == nil {
		for i := range r.Flows {
			flows = append(flows, i)
		}
	}
	sum, n := 0.0, 0
	x := make([]float64, len(flows))
	for t := from; t+window <= to; t += window {
		for k, i := range flows {
			x[k] = r.Goodput(i, t, t+window)
		}
		sum += Jain(x)
		n++
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}

// Queue returns mean, 99th percentile and maximum of the samples of a queue between two
// times, in bytes.
func (r *Report) Queue(queue int, from, to time.Duration) (mean, p99, most int) {
	b := r.Queues[queue].Bytes
	i, j := r.samples(from, to, len(b))
	if i == j {
		return 0, 0, 0
	}
	s := slices.Clone(b[i:j])
	slices.Sort(s)
	sum := 0
	for _, x := range s {
		sum += x
	}
	return sum / len(s), s[len(s)*99/100], s[len(s)-1]
}
