package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
	"github.com/roce-go/roce/qp/softnic"
)

// dscp marks the data, whose priority is 3, and urgent marks CNPs and acknowledgements, whose
// priority is 6.
const (
	dscp     = 26
	lossless = 1 << 3
	urgent   = 48
)

// experiment is a scenario with a control, and its results.
type experiment struct {
	o        *options
	Point    int     `json:"point"` // index among all runs of all shards
	Scenario string  `json:"scenario"`
	Control  string  `json:"control"`
	Virtual  float64 `json:"virtual_ms"`
	Rate     float64 `json:"link_gbps"`
	Status   string  `json:"status"`

	Flows   []flowResult `json:"flows,omitempty"`
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

	Rounds []float64 `json:"round_us,omitempty"`      // allreduce
	Bins   []lab.Bin `json:"slowdown,omitempty"`      // websearch, mixed
	Slow   float64   `json:"slowdown_mean,omitempty"` // websearch, mixed
	Left   int       `json:"unfinished,omitempty"`    // websearch, mixed

	ecn    cnp.CongestionParams
	report *lab.Report
	from   time.Duration // start of the second half
	to     time.Duration
}

type flowResult struct {
	Name    string  `json:"name"`
	Goodput float64 `json:"goodput_gbps"`
}

// scenario describes the traffic of the hosts.
type scenario struct {
	name  string
	title string  // %d stands for the number of senders
	ms    float64 // virtual milliseconds
	rate  float64 // rate of the hosts' links, Gb/s
	links int     // number of links of the longest path
	first string  // label of a flow that is shown apart from the others
	build func(b *builder) error
}

var scenarios = []scenario{
	{"incast", "Incast: %d hosts send to one", 60, 40, 2, "", incast},
	{"converge", "Two flows share a link, the second comes later", 200, 40, 3, "", converge},
	{"burst", "A long flow, and bursts of 64 KiB from %d hosts every 5 ms", 60, 40, 2, "long flow", burst},
	{"parking", "Parking lot: a long flow over 3 links, each shared with a flow of its own", 60, 40, 5, "long flow", parking},
	{"unfair", "%d hosts behind one link, and one beside the receiver, send to it", 60, 40, 3, "near host", unfair},
	{"victim", "%d hosts congest one; a victim shares a link with them on its way to another", 60, 40, 3, "victim", victim},
	{"allreduce", "Ring all-reduce of 8 MiB among %d hosts, every neighbour in another rack", 10, 100, 4, "", allreduce},
	{"websearch", "Web search messages at half load, 32 hosts in 4 racks", 8, 100, 4, "", websearch},
	{"mixed", "Short and long messages at 70 % load, 54 hosts in a fat tree of small buffers", 8, 40, 6, "", mixed},
}

func scenarioNames() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func scenarioOf(name string) *scenario {
	for i := range scenarios {
		if scenarios[i].name == name {
			return &scenarios[i]
		}
	}
	panic("no scenario " + name) // cannot happen: names are checked
}

// builder builds and runs an experiment.
type builder struct {
	*experiment
	n     int
	total time.Duration
	top   lab.Topology
	s     *lab.Scenario
	f     *lab.Fabric

	timed []*simnet.Flow // flows whose message times are reported
	fair  []int          // flows that should be equal; nil: all
	after func()         // called at the end of the run
	play  *lab.Playing   // transfers that start and end during the run, or nil
}

// run runs the experiment, and calls step after each part of it.
func (e *experiment) run(step func()) error {
	o, sc := e.o, scenarioOf(e.Scenario)
	e.Virtual, e.Rate = o.ms, o.rate
	if e.Virtual == 0 {
		e.Virtual = sc.ms
	}
	if e.Rate == 0 {
		e.Rate = sc.rate
	}
	e.ecn = o.marking(e.Rate)
	p := path{rate: uint64(e.Rate * 1e9), links: sc.links, mtu: o.mtu, n: o.n}
	b := &builder{experiment: e, n: o.n, total: milliseconds(e.Virtual)}
	b.top = lab.Topology{
		Network: simnet.Config{Seed: o.seed, Carry: simnet.Shared},
		Switch:  simnet.SwitchConfig{ECN: &e.ecn},
		Host: simnet.HostConfig{Control: controlOf(e.Control).make(&p), Port: func(c *softnic.Config) {
			c.Ack, c.MaxInFlight = &softnic.Marking{DSCP: urgent}, 512
		}},
		Rate:  p.rate,
		Delay: linkDelay,
	}
	if o.pfc {
		b.top.Switch.Lossless = lossless
	}
	if err := sc.build(b); err != nil {
		return err
	}
	for range parts {
		if b.play != nil {
			if err := b.play.Prepare(b.f.Elapsed() + b.total/parts); err != nil {
				return err
			}
		}
		var err error
		if e.report, err = b.s.Run(b.total / parts); err != nil {
			return err
		}
		step()
	}
	b.collect()
	if b.after != nil {
		b.after()
	}
	return nil
}

// on sets the network that a topology has built, and its scenario.
func (b *builder) on(f *lab.Fabric, err error) error {
	if err != nil {
		return err
	}
	b.f, b.s = f, lab.NewScenario(f.Network, 10*time.Microsecond)
	return nil
}

// flow adds a flow of messages of size bytes from one host to another, without end.
func (b *builder) flow(name string, from, to *simnet.Host, size int, start, every time.Duration) *simnet.Flow {
	return b.s.Flow(simnet.FlowConfig{
		Name: name, From: from, To: to, Op: qp.OpWrite, Size: size, Count: 1 << 30, Depth: 4, Start: start, Interval: every,
		Conn: b.conn(),
	})
}

func (b *builder) conn() simnet.ConnConfig {
	// A timeout of 17 ms, because a pause may last several milliseconds.
	c := simnet.ConnConfig{MTU: b.o.mtu, DSCP: dscp, SendDepth: 64, Timeout: 12, RetryForever: true}
	if b.o.selective {
		c.Selective.Packets = 512
	}
	return c
}

func incast(b *builder) error {
	if err := b.on(b.top.Star(b.n + 1)); err != nil {
		return err
	}
	b.s.Watch(b.f.Bottleneck)
	h := b.f.Hosts()
	for i := range b.n {
		b.timed = append(b.timed, b.flow(fmt.Sprintf("flow %d", i+1), h[i+1], h[0], 1<<20, 0, 0))
	}
	return nil
}

func converge(b *builder) error {
	if err := b.on(b.top.Dumbbell(2)); err != nil {
		return err
	}
	b.s.Watch(b.f.Bottleneck)
	h := b.f.Hosts()
	for i := range 2 {
		b.timed = append(b.timed, b.flow(fmt.Sprintf("flow %d", i+1), h[i], h[2+i], 1<<20, time.Duration(i)*b.total/8, 0))
	}
	return nil
}

func burst(b *builder) error {
	if err := b.on(b.top.Star(b.n + 2)); err != nil {
		return err
	}
	b.s.Watch(b.f.Bottleneck)
	h := b.f.Hosts()
	b.flow("long flow", h[1], h[0], 1<<20, 0, 0)
	for i := range b.n {
		b.timed = append(b.timed, b.flow(fmt.Sprintf("burst %d", i+1), h[i+2], h[0], 64<<10, 5*time.Millisecond, 5*time.Millisecond))
		b.fair = append(b.fair, i+1)
	}
	return nil
}

// parking has four switches in a row. The long flow goes from the first to the last; over
// each link between switches goes one more flow, from one switch to the next.
func parking(b *builder) error {
	n := simnet.New(b.top.Network)
	var sw []*simnet.Switch
	for i := range 4 {
		c := b.top.Switch
		c.Name = fmt.Sprintf("s%d", i)
		s, err := n.AddSwitch(c)
		if err != nil {
			return err
		}
		sw = append(sw, s)
	}
	link := simnet.LinkConfig{Rate: b.top.Rate, Delay: b.top.Delay}
	host := func(name string, s *simnet.Switch) (*simnet.Host, error) {
		c := b.top.Host
		c.Name, c.LineRate = name, b.top.Rate
		h, err := n.AddHost(c)
		if err == nil {
			_, err = n.Connect(h, s, link)
		}
		return h, err
	}
	var ends [4][2]*simnet.Host
	names := []string{"long", "short1.", "short2.", "short3."}
	for i, at := range [4][2]int{{0, 3}, {0, 1}, {1, 2}, {2, 3}} {
		for k := range 2 {
			h, err := host(fmt.Sprintf("%s%d", names[i], k), sw[at[k]])
			if err != nil {
				return err
			}
			ends[i][k] = h
		}
	}
	var middle *simnet.Direction
	for i := range 3 {
		l, err := n.Connect(sw[i], sw[i+1], link)
		if err != nil {
			return err
		}
		if i == 1 {
			middle = l.AB()
		}
	}
	if err := b.on(&lab.Fabric{Network: n, Bottleneck: middle}, nil); err != nil {
		return err
	}
	b.s.Watch(middle)
	for i, e := range ends {
		name := "long flow"
		if i > 0 {
			name = fmt.Sprintf("over link %d", i)
			b.fair = append(b.fair, i)
		}
		b.timed = append(b.timed, b.flow(name, e[0], e[1], 1<<20, 0, 0))
	}
	b.fair = append(b.fair, 0)
	return nil
}

// unfair has a receiver's switch with two inputs that PFC may pause: many flows arrive at
// one, one flow at the other.
func unfair(b *builder) error {
	if err := b.on(b.top.Dumbbell(max(b.n, 2))); err != nil {
		return err
	}
	h, n := b.f.Hosts(), max(b.n, 2)
	b.s.Watch(h[n].Link().BA())
	b.timed = append(b.timed, b.flow("near host", h[n+1], h[n], 1<<20, 0, 0))
	for i := range b.n {
		b.flow(fmt.Sprintf("far host %d", i+1), h[i], h[n], 1<<20, 0, 0)
	}
	return nil
}

func victim(b *builder) error {
	b.top.Core = b.top.Rate * uint64(b.n+1) // enough for all flows
	if err := b.on(b.top.Dumbbell(b.n + 1)); err != nil {
		return err
	}
	h := b.f.Hosts()
	// The congested output is the one to the receiver of the incast.
	b.s.Watch(h[b.n+1].Link().BA())
	b.timed = append(b.timed, b.flow("victim", h[b.n], h[b.n+2], 1<<20, b.total/4, 0))
	for i := range b.n {
		b.flow(fmt.Sprintf("incast %d", i+1), h[i], h[b.n+1], 1<<20, 0, 0)
		b.fair = append(b.fair, i+1)
	}
	return nil
}

// collect takes the results from the report.
func (b *builder) collect() {
	e, r := b.experiment, b.report
	e.to = r.At(len(r.Queues[0].Bytes) - 1)
	e.from = e.to / 2
	e.Status = qp.Success.String()
	for i := range r.Flows {
		f := r.Flows[i].Flow
		if f.Status() != qp.Success {
			e.Status = f.Status().String()
		}
		g := r.Goodput(i, e.from, e.to) / 1e9
		e.Flows = append(e.Flows, flowResult{f.Name(), g})
		e.Goodput += g
	}
	window := time.Millisecond
	if e.Scenario == "burst" {
		window = 5 * time.Millisecond // the interval of the bursts
	}
	if len(e.Flows) != 0 {
		e.Jain = r.Fairness(e.from, e.to, window, b.fair...)
	}
	e.Mean, e.P99, e.Max = r.Queue(0, e.from, e.to)
	e.Marks, e.CNPs, e.Pauses, e.Drops, e.Again = r.Marked, r.CNPs, r.Pauses, r.Dropped, r.Retransmitted
	e.PausedFor = float64(r.PausedFor) / 1e6
	if b.play != nil {
		e.Again += b.play.Retransmitted()
		if s := b.play.Status(); s != qp.Success {
			e.Status = s.String()
		}
	}
	var times []time.Duration
	for _, f := range b.timed {
		times = append(times, f.Times()...)
	}
	e.times(times)
}

func (e *experiment) times(times []time.Duration) {
	slices.Sort(times)
	us := func(p float64) float64 { return float64(lab.Percentile(times, p)) / 1e3 }
	e.Messages, e.FCT50, e.FCT99, e.FCTMax = len(times), us(0.5), us(0.99), us(1)
}

// binEdges are the limits of the message sizes, in bytes, for which slowdowns are reported
// separately.
var binEdges = []int{10_000, 30_000, 80_000, 200_000, 1_000_000, 5_000_000}

// websearch has messages that arrive at random times, each on its own queue pair from one
// host to another.
func websearch(b *builder) error {
	b.top.Core = 2 * b.top.Rate
	if err := b.on(b.top.Clos(4, 4, 8)); err != nil {
		return err
	}
	return b.arrivals(lab.WebSearch, 0.5, b.conn())
}

// mixed is similar to what Mittal et al. (2018) simulate, with links of 1 us instead of 2: a
// fat tree of 54 hosts with two bandwidth-delay products of buffer for each port, and with
// selective repeat one of them in flight. Half of the messages are one packet long, and 15 %
// are 200 KB to 3 MB.
func mixed(b *builder) error {
	const ports, portBuffer = 6, 120_000
	b.top.Switch.Buffer = ports * portBuffer
	if b.o.pfc {
		b.top.Switch.XOFF = portBuffer * 3 / 4 // the rest is headroom
	}
	if err := b.on(b.top.FatTree(ports)); err != nil {
		return err
	}
	sizes, err := lab.NewSizes("mixed", []float64{32, 1000, 200e3, 3e6}, []float64{0, 50, 85, 100})
	if err != nil {
		return err
	}
	c := b.conn()
	if b.o.selective {
		c.Selective.Packets = 64
	}
	return b.arrivals(sizes, 0.7, c)
}

// arrivals adds messages at random times in the first three quarters of the run, at a given
// load of the hosts' links.
func (b *builder) arrivals(sizes *lab.Sizes, load float64, c simnet.ConnConfig) (err error) {
	hosts := b.f.Hosts()
	b.s.Watch(hosts[0].Link().BA())
	c.SendDepth, c.RecvDepth, c.RdAtomic = 1, 1, -1
	b.play, err = lab.Play{Conn: c}.Start(b.f.Network, lab.Poisson(b.o.seed, sizes, len(hosts), load, b.top.Rate, b.total*3/4))
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
			b.Slow += o.Slowdown()
		}
		b.Slow /= float64(max(1, len(times)))
		bins := lab.Slowdowns(out, binEdges, 0)
		b.Bins = bins[:len(bins)-1] // the last bin holds all sizes
		b.times(times)
		b.Goodput = float64(bytes) * 8 / float64(b.total)
	}
	return nil
}

// reduceBytes is the size of the data of an all-reduce.
const reduceBytes = 8 << 20

// allreduce has hosts do a ring all-reduce over and over: each of n hosts sends its part of
// 1/n to the next, 2 (n-1) times. A step starts when the part of the step before has arrived
// from the neighbour; a round starts at each host when it has finished the round before.
func allreduce(b *builder) error {
	if b.n < 2 || b.n%2 != 0 {
		return fmt.Errorf("allreduce takes an even number of hosts, -n %d is none", b.n)
	}
	// Two racks, and as many paths between them as a rack has hosts: which flows share a path
	// is random.
	if err := b.on(b.top.Clos(2, b.n/2, b.n/2)); err != nil {
		return err
	}
	b.s.Watch(b.f.Switches()[0].Outputs()[b.n/2]) // the first uplink

	round := lab.RingAllReduce(b.n, reduceBytes)
	for i := range round { // from rack to rack
		place := func(h int) int { return h%2*(b.n/2) + h/2 }
		round[i].From, round[i].To = place(round[i].From), place(round[i].To)
	}
	sent := 2 * float64(b.n-1) / float64(b.n) * reduceBytes * 8 // bits that a host sends in a round
	most := int(b.total.Seconds()*float64(b.top.Rate)/sent) + 1 // upper limit of the number of rounds
	var err error
	if b.play, err = (lab.Play{Conn: b.conn()}).Start(b.f.Network, lab.Rounds(round, most)); err != nil {
		return err
	}
	b.after = func() {
		// A round lasts from the end of the round before until its last part has arrived.
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
