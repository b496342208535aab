package simnet

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"
)

// LinkConfig says what a link is, in both directions.
type LinkConfig struct {
	Rate  uint64        // bits per second, up to 10^13; 0 is without limit
	Delay time.Duration // propagation, one way, at most an hour
	// With neither a rate nor a delay packets take no time at all: what never ends,
	// such as a flow without end, then keeps Run at one instant for ever.

	// QueueLimit is how many bytes may wait at a switch to be sent on the link,
	// all priorities together. 0 leaves it to the switch's buffer. Hosts have no
	// queue: they make packets when the link is free.
	QueueLimit int
}

// Faults are what a direction of a link does to packets. Chances are 0 .. 1 and
// independent; a packet that is lost has no other fate.
type Faults struct {
	Loss float64
	// LossList names packets to lose by their number in this direction, from 0.
	LossList []uint64
	// Duplicate is the chance that a packet arrives twice, one right after the
	// other.
	Duplicate float64
	// Reorder is the chance that a packet is late by up to ReorderBy, and others
	// overtake it. ReorderBy 0 means 10 us.
	Reorder   float64
	ReorderBy time.Duration
	// Corrupt is the chance that one bit is changed of what the ICRC covers. Of
	// a frame that is not RoCE it is one of what follows the Ethernet header.
	Corrupt float64
	// Jitter delays each packet by up to so much more, without changing the
	// order.
	Jitter time.Duration
}

// LinkCounters count what one direction of a link did.
type LinkCounters struct {
	Packets, Bytes uint64 // sent, with FCS, without preamble
	Lost           uint64
	Duplicated     uint64
	Reordered      uint64
	Corrupted      uint64
	Dropped        uint64 // at a switch: found no room to wait for this direction
	DroppedBytes   uint64
	Marked         uint64 // at a switch: marked congestion experienced on the way here
	PauseSent      uint64 // PFC frames that ask for a pause
	ResumeSent     uint64 // PFC frames that end one
	// PausedFor is how long each priority of this direction stood still.
	PausedFor [8]time.Duration
	// Pauses counts how often it began to.
	Pauses uint64
	// MaxQueue is the most bytes that waited for this direction.
	MaxQueue int
}

// end is where a link meets a node.
type end struct {
	link    *Link
	host    *Host
	sw      *Switch
	port    int // of the switch
	out, in *Direction
	capture *recorder
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

// Config returns what the link was made of.
func (l *Link) Config() LinkConfig { return l.cfg }

// Direction is one direction of a link.
type Direction struct {
	n        *Network
	id       int32
	from, to *end
	rate     uint64
	delay    int64
	limit    int

	flight      list  // packets under way, by arrival
	lastArrival int64 // of flight
	busyUntil   int64
	rest        uint64 // of the division that gave busyUntil, in bits per second
	armed       bool   // evFree is scheduled

	count    uint64
	faulty   bool
	loss     chance
	dup      chance
	reorder  chance
	corrupt  chance
	jitter   int64
	late     int64
	losses   []uint64
	luck     rng
	counters LinkCounters

	q     *egress // of a switch
	stuck bool    // of findDeadlock
}

// From and To return the nodes that the direction leads from and to.
func (d *Direction) From() Node { return d.from.node() }

// To returns the node that the direction leads to.
func (d *Direction) To() Node { return d.to.node() }

// Counters returns what was counted.
func (d *Direction) Counters() *LinkCounters {
	if d.q != nil {
		d.q.account(d.n.now)
	} else {
		d.from.host.account()
	}
	return &d.counters
}

// Rate returns the rate in bits per second, 0 without limit.
func (d *Direction) Rate() uint64 { return d.rate }

// Queue returns how many bytes wait at a switch for this direction.
func (d *Direction) Queue() int {
	if d.q == nil {
		return 0
	}
	return d.q.bytes
}

// SetFaults changes what the direction does to packets from now on. The numbers
// of LossList go on counting.
func (d *Direction) SetFaults(f Faults) {
	d.loss, d.dup, d.reorder, d.corrupt = newChance(f.Loss), newChance(f.Duplicate), newChance(f.Reorder), newChance(f.Corrupt)
	d.jitter = max(0, int64(f.Jitter))
	if d.late = int64(f.ReorderBy); d.late <= 0 {
		d.late = 10_000
	}
	d.losses = slices.Clone(f.LossList)
	slices.Sort(d.losses)
	d.losses = slices.Compact(d.losses)
	i, _ := slices.BinarySearch(d.losses, d.count)
	d.losses = d.losses[i:]
	d.faulty = d.loss|d.dup|d.reorder|d.corrupt != 0 || d.jitter != 0 || len(d.losses) != 0
}

// Connect links two nodes. The errors wrap ErrConfig: a host has one link, and
// its port has to have the link's rate where it uses congestion control.
func (n *Network) Connect(a, b Node, cfg LinkConfig) (*Link, error) {
	if cfg.Rate > 1e13 || cfg.Delay < 0 || cfg.Delay > time.Hour || cfg.QueueLimit < 0 || a == b {
		return nil, fmt.Errorf("%w: link %+v", ErrConfig, cfg)
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
			n: n, id: int32(len(n.dirs)), from: x[0], to: x[1], rate: cfg.Rate, delay: int64(cfg.Delay),
			limit: cfg.QueueLimit, luck: newRNG(n.cfg.Seed, uint64(len(n.dirs))),
		}
		x[0].out, x[1].in = d, d
		if sw := x[0].sw; sw != nil {
			d.q = newEgress(d, sw)
		}
		n.dirs = append(n.dirs, d)
	}
	n.links = append(n.links, l)
	n.routed = false
	return l, nil
}

// free reports whether the direction may begin to send a packet.
func (d *Direction) free() bool { return d.busyUntil <= d.n.now }

// rearm has done called when the direction is free.
func (d *Direction) rearm() {
	if !d.armed && d.busyUntil > d.n.now {
		d.armed = true
		d.n.schedule(d.busyUntil, evFree, d.id)
	}
}

// done is called when the direction has become free.
func (d *Direction) done() {
	d.armed = false
	if h := d.from.host; h != nil {
		h.settle()
		return
	}
	d.serve()
}

// send begins to send p, which belongs to the direction from now on.
func (d *Direction) send(p *packet) {
	n := d.n
	if d.rate != 0 {
		// The remainder is carried on, so that rounding costs no rate.
		x := uint64(max(p.size, minFrame+fcsSize)+gapSize) * 8e9
		if d.busyUntil == n.now {
			x += d.rest
		}
		d.busyUntil = n.now + int64(x/d.rate)
		d.rest = x % d.rate
	}
	d.count++
	d.counters.Packets++
	d.counters.Bytes += uint64(p.size)
	at := max(d.busyUntil, n.now) + d.delay
	if d.from.capture != nil {
		d.from.capture.record(n.now, p)
	}
	fate := Sent
	if d.faulty {
		fate = d.fate(p)
		switch fate {
		case Lost:
			n.observe(d, p, Lost)
			n.release(p)
			return
		case Reordered:
			n.observe(d, p, fate)
			p.at = at + 1 + int64(d.luck.below(uint64(d.late)))
			p.ingress = d.id // until it arrives
			n.schedule(p.at, evLate, p.id)
			return
		}
		if d.jitter != 0 {
			at += int64(d.luck.below(uint64(d.jitter) + 1))
		}
	}
	if n.observer != nil {
		n.observe(d, p, fate)
	}
	at = max(at, d.lastArrival)
	d.fly(p, at)
	if fate == Duplicated {
		d.fly(n.clone(p), at)
	}
}

func (d *Direction) fly(p *packet, at int64) {
	p.at, p.seq = at, d.n.nextSeq()
	d.lastArrival = at
	if d.flight.head == nil {
		d.n.queue.push(event{at: at, seq: p.seq, kind: evArrive, arg: d.id})
	}
	d.flight.push(p)
}

// fate draws what happens to the next packet.
func (d *Direction) fate(p *packet) Fate {
	lose := false
	if len(d.losses) != 0 && d.losses[0] == d.count-1 {
		d.losses = d.losses[1:]
		lose = true
	}
	switch {
	case d.luck.hit(d.loss) || lose:
		d.counters.Lost++
		return Lost
	case d.luck.hit(d.corrupt):
		d.counters.Corrupted++
		d.damage(p)
		return Corrupted
	case d.luck.hit(d.dup):
		d.counters.Duplicated++
		return Duplicated
	case d.luck.hit(d.reorder):
		d.counters.Reordered++
		return Reordered
	}
	return Sent
}

// damage changes a bit of p.
func (d *Direction) damage(p *packet) {
	if !d.n.bytes || p.pause {
		p.broken = true
		return
	}
	from := 14
	if len(p.buf) <= from {
		from = 0 // no whole Ethernet header
	}
	if len(p.buf) == 0 {
		return
	}
	if f := &d.n.scratch; f.Decode(1, p.buf) == nil {
		from = len(p.buf) - len(f.Trailer) - len(f.Transport)
	}
	bit := d.luck.below(uint64(len(p.buf)-from) * 8)
	at := from + int(bit/8)
	if from > 14 && at == from+4 {
		at++ // the one byte of the BTH that the ICRC does not cover
	}
	p.buf[at] ^= 1 << (bit % 8)
}

// arrive takes the first packet out of flight.
func (d *Direction) arrive() {
	p := d.flight.pop()
	if q := d.flight.head; q != nil {
		d.n.queue.push(event{at: q.at, seq: q.seq, kind: evArrive, arg: d.id})
	}
	d.deliver(p)
}

func (d *Direction) deliver(p *packet) {
	d.n.hops++
	if d.to.capture != nil {
		d.to.capture.record(d.n.now, p)
	}
	if h := d.to.host; h != nil {
		h.receive(p)
		return
	}
	d.to.sw.receive(d.to, p)
}

// Utilization returns the part of the rate that was used over d, given the
// bytes sent in that time, preambles and gaps counted for packets.
func Utilization(packets, bytes, rate uint64, d time.Duration) float64 {
	if rate == 0 || d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(bytes+packets*gapSize, 8e9)
	return (float64(hi)*(1<<64) + float64(lo)) / float64(rate) / float64(d)
}

// Directions ranges over the directions of all links, in the order in which they were
// made.
func (n *Network) Directions() iter.Seq[*Direction] { return slices.Values(n.dirs) }
