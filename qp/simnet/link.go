package simnet

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// LinkConfig holds the parameters of a link, for both directions.
type LinkConfig struct {
	Rate  uint64        // bits per second, up to 10^13; 0: no limit
	Delay time.Duration // propagation, one way, at most an hour
	// With neither a rate nor a delay packets take no time at all: a flow without end then
	// keeps Run at the same time for ever.

	// QueueLimit is how many bytes may wait at a switch to be sent on the link, all
	// priorities together. 0 leaves it to the switch's buffer. Hosts have no queue: they
	// build packets when the link is free.
	QueueLimit int
}

// Faults are the faults of one direction of a link. Probabilities are 0 .. 1 and
// independent; a packet that is lost has no other fault.
type Faults struct {
	Loss float64
	// LossList names packets to lose by their number in this direction, from 0.
	LossList []uint64
	// Duplicate is the probability that a packet arrives twice, one right after the other.
	Duplicate float64
	// Reorder is the probability that a packet is late by up to ReorderBy, and others
	// overtake it. ReorderBy 0 means 10 us.
	Reorder   float64
	ReorderBy time.Duration
	// Corrupt is the probability that one bit that the ICRC covers is changed; in a frame
	// that is not RoCE, one bit after the Ethernet header.
	Corrupt float64
	// Jitter is the largest additional delay of a packet; packets stay in order.
	Jitter time.Duration
}

// LinkCounters count what one direction of a link did.
type LinkCounters struct {
	Packets, Bytes uint64 // sent, with FCS, without preamble
	// MaxQueue is the most bytes that waited for this direction.
	MaxQueue     int
	Lost         uint64 // by chance, or because the link was down
	Duplicated   uint64
	Reordered    uint64
	Corrupted    uint64
	Dropped      uint64 // at a switch: no room in the queue of this direction, or flushed
	DroppedBytes uint64
	Trimmed      uint64 // at a switch: cut to their headers because there was no room
	Marked       uint64 // at a switch: marked congestion experienced in the queue of this direction
	PauseSent    uint64 // PFC frames that request a pause
	ResumeSent   uint64 // PFC frames that end one
	// PausedFor is how long each priority of this direction was paused.
	PausedFor [8]time.Duration
	// Pauses counts how often a priority was paused.
	Pauses uint64
	// Watchdog counts how often a switch flushed a queue that was paused for too long.
	Watchdog uint64
}

// end is where a link meets a node.
type end struct {
	link    *Link
	host    *Host
	sw      *Switch
	port    int // of the switch
	out, in *Direction
	capture *recorder
	nic     nic // of a host
}

func (e *end) engine() *engine {
	if e.host != nil {
		return e.host.e
	}
	return e.sw.e
}

func (e *end) name() string {
	if e.host != nil {
		return e.host.name
	}
	return e.sw.name
}

func (e *end) node() Node {
	if e.host != nil {
		return e.host
	}
	return e.sw
}

// Link joins two nodes.
type Link struct {
	cfg  LinkConfig
	a, b *end
}

// AB returns the direction from the first node of Connect to the second.
func (l *Link) AB() *Direction { return l.a.out }

// BA returns the direction from the second node of Connect to the first.
func (l *Link) BA() *Direction { return l.b.out }

// Config returns the link's parameters.
func (l *Link) Config() LinkConfig { return l.cfg }

// Direction is one direction of a link.
type Direction struct {
	// Used by an arrival: one cache line.
	flight list    // packets under way, by arrival
	toE    *engine // of to
	toSW   *Switch // the node that it leads to: one of these two
	toHost *Host
	q      *egress // of a switch
	id     int32
	toPort int32 // of toSW
	odd    bool  // sending or arrival needs more than the usual: see review

	// Used by sending: two more.
	busyUntil stamp
	onWire    stamp   // how long a packet of size takes: to its end,
	spacing   stamp   // and until the next one may begin
	e         *engine // of from
	size      int32
	armed     bool // evFree is scheduled
	down      bool
	crossing  bool // it leads to another engine

	delay       int64
	lastArrival stamp // of flight
	count       uint64
	counters    LinkCounters

	n        *Network
	from, to *end
	rate     uint64
	sent     list // crossing: packets not yet passed to the other engine
	lates    list // packets that were held back, by arrival
	trouble
	stuck bool // of findDeadlock
}

// trouble holds the faults of a direction, and functions that its packets need.
type trouble struct {
	faulty    bool
	loss      chance
	dup       chance
	reorder   chance
	corrupt   chance
	jitter    int64
	late      int64
	losses    []uint64
	luck      rng
	intercept func(*PacketEvent) Fate
}

// review sets odd.
func (d *Direction) review() {
	d.odd = d.down || d.faulty || d.intercept != nil || d.from.capture != nil || d.to.capture != nil
}

// From and To return the nodes that the direction leads from and to.
func (d *Direction) From() Node { return d.from.node() }

// To returns the node that the direction leads to.
func (d *Direction) To() Node { return d.to.node() }

// Counters returns what was counted.
func (d *Direction) Counters() *LinkCounters {
	if q := d.q; q != nil {
		q.accountPauses(d.e.now.ns)
		d.counters.MaxQueue = int(q.maxBytes)
	} else {
		d.from.nic.account(d)
	}
	return &d.counters
}

// Rate returns the rate in bits per second, 0: no limit.
func (d *Direction) Rate() uint64 { return d.rate }

// Delay returns the propagation delay.
func (d *Direction) Delay() time.Duration { return time.Duration(d.delay) }

// Queue returns how many bytes wait at a switch for this direction.
func (d *Direction) Queue() int {
	if d.q == nil {
		return 0
	}
	return int(d.q.bytes)
}

// SetFaults changes the faults of the direction from now on. The numbers of LossList go on
// counting. The error wraps ErrConfig, for a probability outside 0 .. 1 or a time that is
// negative or above an hour; then nothing has changed.
func (d *Direction) SetFaults(f Faults) error {
	for _, c := range []struct {
		name string
		p    float64
	}{{"Loss", f.Loss}, {"Duplicate", f.Duplicate}, {"Reorder", f.Reorder}, {"Corrupt", f.Corrupt}} {
		if !(c.p >= 0 && c.p <= 1) {
			return fmt.Errorf("%w: %s is %v, want a probability of 0 to 1", ErrConfig, c.name, c.p)
		}
	}
	if f.Jitter < 0 || f.Jitter > time.Hour || f.ReorderBy < 0 || f.ReorderBy > time.Hour {
		return fmt.Errorf("%w: Jitter is %v, ReorderBy %v, want 0 to an hour", ErrConfig, f.Jitter, f.ReorderBy)
	}
	d.loss, d.dup, d.reorder, d.corrupt = newChance(f.Loss), newChance(f.Duplicate), newChance(f.Reorder), newChance(f.Corrupt)
	if d.jitter != int64(f.Jitter) {
		d.jitter = int64(f.Jitter)
		d.n.reroute() // headroom
	}
	if d.late = int64(f.ReorderBy); d.late <= 0 {
		d.late = 10_000
	}
	d.losses = slices.Clone(f.LossList)
	slices.Sort(d.losses)
	d.losses = slices.Compact(d.losses)
	i, _ := slices.BinarySearch(d.losses, d.count)
	d.losses = d.losses[i:]
	d.faulty = d.loss|d.dup|d.reorder|d.corrupt != 0 || d.jitter != 0 || len(d.losses) != 0
	d.review()
	return nil
}

// Connect links two nodes. The errors wrap ErrConfig: a host has one link, and its LineRate
// must be the link's rate where it uses congestion control.
func (n *Network) Connect(a, b Node, cfg LinkConfig) (*Link, error) {
	if cfg.Rate > 1e13 || cfg.Delay < 0 || cfg.Delay > time.Hour || cfg.QueueLimit < 0 || a == b {
		return nil, fmt.Errorf("%w: link %+v", ErrConfig, cfg)
	}
	if len(n.dirs) >= maxEntity/16 {
		return nil, fmt.Errorf("%w: %d links", ErrConfig, len(n.links))
	}
	for _, nd := range [2]Node{a, b} {
		if nd == nil {
			return nil, fmt.Errorf("%w: link to no node", ErrConfig)
		}
		if err := nd.attachable(&cfg); err != nil {
			return nil, err
		}
	}
	l := &Link{cfg: cfg, a: new(end), b: new(end)}
	l.a.link, l.b.link = l, l
	for _, x := range [2]struct {
		nd Node
		e  *end
	}{{a, l.a}, {b, l.b}} {
		x.nd.attach(x.e)
	}
	for _, x := range [2][2]*end{{l.a, l.b}, {l.b, l.a}} {
		d := &Direction{
			n: n, e: n.engines[0], toE: n.engines[0], id: int32(len(n.dirs)), from: x[0], to: x[1], rate: cfg.Rate, delay: int64(cfg.Delay),
			toSW: x[1].sw, toHost: x[1].host, toPort: int32(x[1].port),
			trouble: trouble{luck: newRNG(n.cfg.Seed, uint64(len(n.dirs)))},
		}
		x[0].out, x[1].in = d, d
		if h := x[0].host; h != nil {
			if h.out = nil; len(h.ends) == 1 {
				h.out = d
			}
		}
		if sw := x[0].sw; sw != nil {
			d.q = newEgress(d, sw, cfg.QueueLimit)
		}
		n.dirs = append(n.dirs, d)
	}
	n.links = append(n.links, l)
	n.reroute()
	return l, nil
}

// SetUp takes a link down, or up again, in both directions. Packets in flight arrive; those
// that wait for a link that is down, or are sent on it, are lost, and switches use other
// links from then on. Call it between runs, or in a function of Network.At.
func (l *Link) SetUp(up bool) {
	for _, d := range [2]*Direction{l.AB(), l.BA()} {
		d.down = !up
		d.review()
		if d.q != nil && !up {
			d.q.accountPauses(d.e.now.ns)
			d.q.paused, d.q.dead = 0, 0
			d.q.flush(0xff)
		}
		if h := d.from.host; h != nil {
			d.from.nic.account(d)
			d.from.nic.paused = 0
			h.unpause()
			h.work()
		}
	}
	l.a.out.n.reroute()
}

// Up reports whether the link is up.
func (l *Link) Up() bool { return !l.a.out.down }

// Intercept sets the function that decides the fate of each packet that the direction
// starts to send: Sent leaves it to SetFaults, Dropped means Lost. The event is valid until
// fn returns. nil removes the function.
func (d *Direction) Intercept(fn func(*PacketEvent) Fate) {
	d.intercept = fn
	d.review()
}

// Directions ranges over the directions of all links, in the order in which the links were
// added.
func (n *Network) Directions() iter.Seq[*Direction] { return slices.Values(n.dirs) }
