package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// dscp is that of the data, whose priority is 3.
const (
	dscp     = 26
	lossless = 1 << 3
)

// experiment is a scenario with a preset, and what came of it.
type experiment struct {
	o        *options
	Scenario string  `json:"scenario"`
	Preset   string  `json:"preset"`
	Virtual  float64 `json:"virtual_ms"`
	Status   string  `json:"status"`

	Flows   []flowResult `json:"flows"`
	Goodput float64      `json:"goodput_gbps"`
	Jain    float64      `json:"jain"`
	Mean    int          `json:"queue_mean"`
	P99     int          `json:"queue_p99"`
	Max     int          `json:"queue_max"`

	Marks     uint64  `json:"ecn_marked"`
	CNPs      uint64  `json:"np_cnp_sent"`
	Pauses    uint64  `json:"pauses"`
	PausedFor float64 `json:"paused_ms"`
	Drops     uint64  `json:"dropped"`
	Again     uint64  `json:"retransmitted"`

	Messages int     `json:"messages"`
	FCT50    float64 `json:"message_p50_us"`
	FCT99    float64 `json:"message_p99_us"`
	FCTMax   float64 `json:"message_max_us"`

	report *lab.Report
	from   time.Duration // of the second half
	to     time.Duration
}

type flowResult struct {
	Name    string  `json:"name"`
	Goodput float64 `json:"goodput_gbps"`
}

// defaults are the virtual milliseconds of each scenario.
var defaults = map[string]float64{"incast": 60, "converge": 200, "burst": 60, "victim": 60}

// run does the experiment, and calls step after each part of it.
func (e *experiment) run(step func()) error {
	o := e.o
	e.Virtual = o.ms
	if e.Virtual == 0 {
		e.Virtual = defaults[e.Scenario]
	}
	total := milliseconds(e.Virtual)
	rate := uint64(o.rate * 1e9)
	top := lab.Topology{
		Network: simnet.Config{Seed: o.seed, Carry: simnet.Shared},
		Switch:  simnet.SwitchConfig{ECN: &o.ecn},
		Rate:    rate,
	}
	if o.pfc {
		top.Switch.Lossless = lossless
	}
	switch e.Preset {
	case "paper":
		p := cnp.Paper()
		top.Host.Control = cnp.Controller(p)
	case "nvidia":
		p := cnp.NVIDIA()
		top.Host.Control = cnp.Controller(p)
	}
	// The message times of all flows, or of those that the scenario is about.
	var timed []*simnet.Flow
	var fair []int
	s, err := e.build(top, total, &timed, &fair)
	if err != nil {
		return err
	}
	for range parts {
		if e.report, err = s.Run(total / parts); err != nil {
			return err
		}
		step()
	}
	e.collect(timed, fair)
	return nil
}

// build makes the network and the flows of the scenario.
func (e *experiment) build(top lab.Topology, total time.Duration, timed *[]*simnet.Flow, fair *[]int) (*lab.Scenario, error) {
	n := e.o.n
	flow := func(s *lab.Scenario, name string, from, to *simnet.Host, size int, start, every time.Duration) *simnet.Flow {
		return s.Flow(simnet.FlowConfig{
			Name: name, From: from, To: to, Op: qp.OpWrite, Size: size, Count: 1 << 30, Depth: 4, Start: start, Interval: every,
			// A timeout of 17 ms: a pause may last for some.
			Conn: simnet.ConnConfig{DSCP: dscp, SendDepth: 64, Timeout: 12, RetryForever: true},
		})
	}
	var f *lab.Fabric
	var err error
	var s *lab.Scenario
	begin := func() {
		s = lab.NewScenario(f.Network, 10*time.Microsecond)
	}
	switch e.Scenario {
	case "incast":
		if f, err = top.Star(n + 1); err != nil {
			return nil, err
		}
		begin()
		s.Watch(f.Bottleneck)
		for i := range n {
			*timed = append(*timed, flow(s, fmt.Sprintf("flow %d", i+1), f.Hosts()[i+1], f.Hosts()[0], 1<<20, 0, 0))
		}
	case "converge":
		if f, err = top.Dumbbell(2); err != nil {
			return nil, err
		}
		begin()
		s.Watch(f.Bottleneck)
		for i := range 2 {
			*timed = append(*timed, flow(s, fmt.Sprintf("flow %d", i+1), f.Hosts()[i], f.Hosts()[2+i], 1<<20, time.Duration(i)*total/8, 0))
		}
	case "burst":
		if f, err = top.Star(n + 2); err != nil {
			return nil, err
		}
		begin()
		s.Watch(f.Bottleneck)
		flow(s, "long flow", f.Hosts()[1], f.Hosts()[0], 1<<20, 0, 0)
		for i := range n {
			*timed = append(*timed, flow(s, fmt.Sprintf("burst %d", i+1), f.Hosts()[i+2], f.Hosts()[0], 64<<10, 5*time.Millisecond, 5*time.Millisecond))
			*fair = append(*fair, i+1)
		}
	case "victim":
		top.Core = top.Rate * uint64(n+1) // room for all
		if f, err = top.Dumbbell(n + 1); err != nil {
			return nil, err
		}
		begin()
		// The congested output is the one to the receiver of the incast.
		s.Watch(f.Hosts()[n+1].Link().BA())
		*timed = append(*timed, flow(s, "victim", f.Hosts()[n], f.Hosts()[n+2], 1<<20, total/4, 0))
		for i := range n {
			flow(s, fmt.Sprintf("incast %d", i+1), f.Hosts()[i], f.Hosts()[n+1], 1<<20, 0, 0)
			*fair = append(*fair, i+1)
		}
	}
	return s, nil
}

// collect draws the figures from the report.
func (e *experiment) collect(timed []*simnet.Flow, fair []int) {
	r := e.report
	e.to = r.At(len(r.Queues[0].Bytes) - 1)
	e.from = e.to / 2
	e.Status = qp.Success.String()
	for i := range r.Flows {
		f := r.Flows[i].Flow
		g := r.Goodput(i, e.from, e.to) / 1e9
		e.Flows = append(e.Flows, flowResult{f.Name(), g})
		e.Goodput += g
		if f.Status() != qp.Success {
			e.Status = f.Status().String()
		}
	}
	e.Jain = r.Fairness(e.from, e.to, time.Millisecond, fair...)
	if e.Scenario == "burst" {
		// Bursts are 5 ms apart: within a millisecond there is often nothing.
		e.Jain = r.Fairness(e.from, e.to, 5*time.Millisecond, fair...)
	}
	e.Mean, e.P99, e.Max = r.Queue(0, e.from, e.to)
	e.Marks, e.CNPs, e.Pauses, e.Drops, e.Again = r.Marked, r.CNPs, r.Pauses, r.Dropped, r.Retransmitted
	e.PausedFor = float64(r.PausedFor) / 1e6
	var times []time.Duration
	for _, f := range timed {
		times = append(times, f.Times()...)
	}
	slices.Sort(times)
	us := func(p float64) float64 { return float64(lab.Percentile(times, p)) / 1e3 }
	e.Messages, e.FCT50, e.FCT99, e.FCTMax = len(times), us(0.5), us(0.99), us(1)
}
