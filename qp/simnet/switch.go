package simnet

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/cnp/pfc"
)

// maxWire is the most bytes that a frame takes on the wire, with preamble and gap.
const maxWire = 4096 + frame.MaxHeaderSize + fcsSize + gapSize

// SwitchConfig says what a switch is. Lengths are in bytes. The zero value is a
// switch with 12 MB of buffer that drops what does not fit.
//
// The priority of a frame is that of its VLAN tag, or the first three bits of
// its DSCP.
type SwitchConfig struct {
	Name   string // empty: "switch" and a number
	Buffer int    // shared by all ports; 0 means 12,000,000

	// Lossless are the priorities that PFC protects: bit n is priority n. Each
	// port and lossless priority has XOFF + Headroom of the buffer to itself; what
	// is left is shared by the other priorities. With 0 for both of the first
	// two, three quarters of the buffer are dealt out evenly.
	Lossless uint8
	// XOFF is how much may wait that came by one port and priority before the
	// port's peer is asked to pause it, and XON at how much it may go on; 0 means
	// two frames less.
	XOFF, XON int
	// Headroom is the room for what still comes after the request. 0 takes what
	// the link's rate and delay call for: a round trip and three frames. Too
	// little of it drops packets.
	Headroom int

	// ECN says how queues mark; nil marks nothing. Each priority of each output
	// is a queue.
	ECN *cnp.CongestionParams

	// Weights are the shares of the output for each priority, served by deficit
	// round robin. A priority of weight 0 is served strictly before all with a
	// weight, and a higher one of these before a lower.
	Weights [8]int
}

// Switch stores packets and forwards them: output-queued, with one buffer. A
// packet leaves the buffer as it begins to be sent.
type Switch struct {
	n    *Network
	id   int32
	name string
	cfg  SwitchConfig
	luck rng
	cp   cnp.CongestionPoint

	ports     []*swPort
	routes    [][]*Direction // by number of the destination host
	fixed     map[int32][]*Direction
	flood     []*Direction
	strict    uint8 // priorities
	lossy     int   // room for those that are not lossless
	lossyUsed int
	used      int
	maxUsed   int
	noRoute   uint64
	h         header
	salt      uint64
	held      [8][]int // lossless priorities: see heldBy
}

// swPort is a port as an input.
type swPort struct {
	sw  *Switch
	end *end
	id  int32 // in Network.swPorts
	in  [8]ingress
}

// ingress is what waits in a switch that came by one port and priority.
type ingress struct {
	bytes    int
	room     int // XOFF and headroom
	xoffAt   int
	xonAt    int
	xoff     bool
	repeatAt int64
}

// egress is a port as an output.
type egress struct {
	sw       *Switch
	d        *Direction
	port     int  // of the switch
	control  list // PFC frames, before all else
	q        [8]list
	qbytes   [8]int
	bytes    int
	nonEmpty uint8
	paused   uint8
	till     [8]int64
	since    [8]int64 // when PausedFor was last brought up to date
	deficit  [8]int
	turn     int

	area   float64 // byte nanoseconds that waited
	areaAt int64
	from   int64 // when area was 0
}

// AddSwitch adds a switch. Errors wrap ErrConfig or cnp.ErrParams; that the buffer
// is too small for its ports shows when the network runs first.
func (n *Network) AddSwitch(cfg SwitchConfig) (*Switch, error) {
	if cfg.Buffer == 0 {
		cfg.Buffer = 12_000_000
	}
	if cfg.Buffer < 0 || cfg.XOFF < 0 || cfg.XON < 0 || cfg.Headroom < 0 || cfg.XON > cfg.XOFF {
		return nil, fmt.Errorf("%w: switch %+v", ErrConfig, cfg)
	}
	i := len(n.switches)
	name, err := n.name("switch", cfg.Name, i)
	if err != nil {
		return nil, err
	}
	s := &Switch{n: n, id: int32(i), name: name, cfg: cfg, luck: newRNG(n.cfg.Seed, 1<<32+uint64(i)), fixed: make(map[int32][]*Direction)}
	s.salt = uint64(newRNG(n.cfg.Seed, 1<<33+uint64(i)))
	if cfg.ECN != nil {
		if s.cp, err = cnp.NewCongestionPoint(*cfg.ECN); err != nil {
			delete(n.names, name)
			return nil, err
		}
	}
	for p, w := range cfg.Weights {
		switch {
		case w == 0:
			s.strict |= 1 << p
		case w < 0 || w > 1000:
			delete(n.names, name)
			return nil, fmt.Errorf("%w: weight %d, want 0..1000", ErrConfig, w)
		}
	}
	n.switches = append(n.switches, s)
	n.routed = false
	return s, nil
}

// Name returns the switch's name.
func (s *Switch) Name() string { return s.name }

// Buffered returns how many bytes wait in the switch, and the most there were.
func (s *Switch) Buffered() (now, most int) { return s.used, s.maxUsed }

// NoRoute returns how many packets were dropped because no link leads to the host
// that they were for.
func (s *Switch) NoRoute() uint64 { return s.noRoute }

// Outputs returns the directions that lead away from the switch, in the order of
// its links.
func (s *Switch) Outputs() []*Direction {
	out := make([]*Direction, len(s.ports))
	for i, p := range s.ports {
		out[i] = p.end.out
	}
	return out
}

func (s *Switch) attachable(*LinkConfig) error { return nil }

func (s *Switch) attach(e *end) {
	e.sw, e.port = s, len(s.ports)
	p := &swPort{sw: s, end: e, id: int32(len(s.n.swPorts))}
	s.ports = append(s.ports, p)
	s.n.swPorts = append(s.n.swPorts, p)
}

func newEgress(d *Direction, s *Switch) *egress { return &egress{sw: s, d: d, port: d.from.port} }

// share deals the buffer out to the ports.
func (s *Switch) share() error {
	c := &s.cfg
	s.lossy = c.Buffer
	if c.Lossless == 0 || len(s.ports) == 0 {
		return nil
	}
	queues := bits.OnesCount8(c.Lossless)
	s.count()
	head, sum := make([]int, len(s.ports)), 0
	for i, p := range s.ports {
		l := p.end.link.cfg
		if l.Rate == 0 {
			return fmt.Errorf("%w: PFC of %s on a link without a rate", ErrConfig, s.name)
		}
		if head[i] = c.Headroom; head[i] == 0 {
			head[i] = int(2*float64(l.Delay)*float64(l.Rate)/8e9) + 3*maxWire + 2*(minFrame+fcsSize+gapSize)
		}
		sum += head[i] * queues
	}
	xoff := c.XOFF
	if xoff == 0 {
		xoff = (c.Buffer/4*3 - sum) / (len(s.ports) * queues)
	}
	xon := c.XON
	if xon == 0 {
		xon = max(0, xoff-2*maxWire)
	}
	if s.lossy = c.Buffer - sum - xoff*len(s.ports)*queues; xoff < maxWire || s.lossy < 0 {
		return fmt.Errorf("%w: %s has %d bytes of buffer for %d ports with %d lossless priorities: XOFF %d bytes, %d of headroom in all",
			ErrConfig, s.name, c.Buffer, len(s.ports), queues, xoff, sum)
	}
	for i, p := range s.ports {
		for prio := range p.in {
			in := &p.in[prio]
			in.xoffAt, in.xonAt, in.room = xoff, xon, xoff+head[i]
		}
	}
	return nil
}

// receive takes a packet that arrived at e.
func (s *Switch) receive(e *end, p *packet) {
	if p.pause {
		if !p.broken {
			e.out.q.pausedBy(&p.pfc)
		}
		s.n.release(p)
		return
	}
	h := &s.h
	h.read(p, s.n.bytes)
	p.prio = h.prio
	p.ingress = int32(e.port)
	to := s.n.hostOf(h.dst)
	if to < 0 {
		s.spread(e, p)
		return
	}
	group := s.routes[to]
	switch len(group) {
	case 0:
		s.noRoute++
		s.n.release(p)
		return
	case 1:
		s.enqueue(group[0].q, p)
		return
	}
	h.tuple(p, s.n.bytes)
	s.enqueue(group[h.hash(s.salt)%uint64(len(group))].q, p)
}

// hash is the ECMP hash of the five-tuple: the salt, then the addresses as IPv6
// in words of 64 bits, then both ports and the protocol, each added with xor and
// followed by a multiplication with 2^64 divided by the golden ratio and a shift
// of the upper half into the lower.
func (h *header) hash(salt uint64) uint64 {
	x := salt
	mix := func(w uint64) {
		x = (x ^ w) * 0x9e3779b97f4a7c15
		x ^= x >> 32
	}
	for _, a := range [2]*[16]byte{&h.src, &h.to} {
		for i := 0; i < 16; i += 8 {
			w := uint64(0)
			for _, b := range a[i : i+8] {
				w = w<<8 | uint64(b)
			}
			mix(w)
		}
	}
	mix(uint64(h.sport)<<32 | uint64(h.dport)<<16 | uint64(h.protocol))
	return x
}

// spread sends p to all but where it came from, over a tree.
func (s *Switch) spread(e *end, p *packet) {
	for _, d := range s.flood {
		if d != e.out {
			s.enqueue(d.q, s.n.clone(p))
		}
	}
	s.n.release(p)
}

// enqueue puts p into its queue, or drops it.
func (s *Switch) enqueue(q *egress, p *packet) {
	size, prio := int(p.size), p.prio
	in := &s.ports[p.ingress].in[prio]
	d := q.d
	lossless := s.cfg.Lossless>>prio&1 != 0
	if lossless && in.bytes+size > in.room ||
		!lossless && (s.lossyUsed+size > s.lossy || d.limit != 0 && q.bytes+size > d.limit) {
		d.counters.Dropped++
		d.counters.DroppedBytes += uint64(size)
		s.n.observe(d, p, Dropped)
		s.n.release(p)
		return
	}
	if s.cfg.ECN != nil && s.h.hasECN {
		if t := s.cp.Threshold(q.qbytes[prio]); t != 0 && s.cp.Mark(q.qbytes[prio], s.h.ecn, uint32(s.luck.next()>>32)) {
			s.h.mark(p, s.n.bytes)
			d.counters.Marked++
		}
	}
	if !lossless {
		s.lossyUsed += size
	}
	s.used += size
	s.maxUsed = max(s.maxUsed, s.used)
	in.bytes += size
	q.account(s.n.now)
	q.q[prio].push(p)
	q.qbytes[prio] += size
	q.bytes += size
	q.nonEmpty |= 1 << prio
	if lossless {
		s.held[prio][q.port*len(s.ports)+int(p.ingress)] += size
	}
	d.counters.MaxQueue = max(d.counters.MaxQueue, q.bytes)
	if lossless && !in.xoff && in.bytes > in.xoffAt {
		in.xoff = true
		s.ports[p.ingress].ask(prio)
	}
	d.serve()
}

// account adds up the queue and the pauses until now.
func (q *egress) account(now int64) {
	if now == q.areaAt {
		return
	}
	q.area += float64(q.bytes) * float64(now-q.areaAt)
	q.areaAt = now
	for m := q.paused; m != 0; m &= m - 1 {
		p := bits.TrailingZeros8(m)
		q.d.counters.PausedFor[p] += time.Duration(now - q.since[p])
		q.since[p] = now
	}
}

// MeanQueue returns the mean number of bytes that waited at a switch for this
// direction, over the time since the start or the last call with reset.
func (d *Direction) MeanQueue(reset bool) float64 {
	q := d.q
	if q == nil {
		return 0
	}
	q.account(d.n.now)
	mean := 0.0
	if t := d.n.now - q.from; t > 0 {
		mean = q.area / float64(t)
	}
	if reset {
		q.area, q.from = 0, d.n.now
	}
	return mean
}

// serve sends the next packet of the queues if the direction is free.
func (d *Direction) serve() {
	q := d.q
	if d.armed {
		return
	}
	for {
		if q.control.head == nil && q.nonEmpty&^q.paused == 0 {
			return
		}
		if !d.free() {
			d.rearm()
			return
		}
		p := q.next()
		d.send(p)
	}
}

// next takes the packet off whose turn it is; there is one.
func (q *egress) next() *packet {
	if p := q.control.pop(); p != nil {
		return p
	}
	ready := q.nonEmpty &^ q.paused
	s := q.sw
	prio := 0
	if m := ready & s.strict; m != 0 {
		prio = 7 - bits.LeadingZeros8(m)
	} else {
		prio = q.roundRobin(ready)
	}
	p := q.q[prio].pop()
	size := int(p.size)
	q.account(s.n.now)
	q.qbytes[prio] -= size
	q.bytes -= size
	if q.q[prio].head == nil {
		q.nonEmpty &^= 1 << prio
	}
	s.used -= size
	port := s.ports[p.ingress]
	in := &port.in[prio]
	in.bytes -= size
	if s.cfg.Lossless>>prio&1 == 0 {
		s.lossyUsed -= size
	} else {
		s.held[prio][q.port*len(s.ports)+int(p.ingress)] -= size
		if in.xoff && in.bytes <= in.xonAt {
			in.xoff = false
			port.tell(uint8(prio), 0)
		}
	}
	return p
}

// roundRobin returns whose turn it is of those that are ready: each turn adds the
// weight in longest frames to what a priority may send.
func (q *egress) roundRobin(ready uint8) int {
	for {
		p := q.turn
		if ready>>p&1 != 0 && q.deficit[p] >= int(q.q[p].head.size) {
			q.deficit[p] -= int(q.q[p].head.size)
			return p
		}
		if ready>>p&1 == 0 {
			q.deficit[p] = 0
		}
		q.turn = (p + 1) & 7
		if ready>>q.turn&1 != 0 {
			q.deficit[q.turn] += q.sw.cfg.Weights[q.turn] * maxWire
		}
	}
}

// ask has the peer of port pause a priority, and again before that ends.
func (p *swPort) ask(prio uint8) {
	const quanta = 0xffff
	p.tell(prio, quanta)
	n := p.sw.n
	p.in[prio].repeatAt = n.now + int64(pfc.Duration(quanta, p.end.link.cfg.Rate))/2
	n.schedule(p.in[prio].repeatAt, evPause, p.id<<3|int32(prio))
}

// repeatPause is called when a pause that a port asked for is half over.
func (n *Network) repeatPause(arg int32) {
	p, prio := n.swPorts[arg>>3], uint8(arg&7)
	if in := &p.in[prio]; in.xoff && in.repeatAt == n.now {
		if n.deadlock == nil {
			n.findDeadlock(p.end.in, int(prio))
		}
		p.ask(prio)
	}
}

// tell sends a PFC frame for one priority.
func (p *swPort) tell(prio uint8, quanta uint16) {
	n := p.sw.n
	k := n.newPacket()
	k.pause = true
	k.size = minFrame + fcsSize
	k.pfc = pfc.New([6]byte{0x02, 1, byte(p.id >> 24), byte(p.id >> 16), byte(p.id >> 8), byte(p.id)})
	k.pfc.Set(int(prio), quanta)
	if n.bytes {
		k.buf = k.pfc.AppendFrame(k.buf[:0])
	}
	d := p.end.out
	if quanta == 0 {
		d.counters.ResumeSent++
	} else {
		d.counters.PauseSent++
	}
	d.q.control.push(k)
	d.serve()
}

// pausedBy obeys a PFC frame that came from the peer of the output.
func (q *egress) pausedBy(f *pfc.Frame) {
	n := q.sw.n
	q.account(n.now)
	for prio := range 8 {
		quanta, ok := f.Time(prio)
		if !ok {
			continue
		}
		if quanta == 0 {
			q.till[prio] = n.now
			continue
		}
		if q.paused>>prio&1 == 0 {
			q.paused |= 1 << prio
			q.since[prio] = n.now
			q.d.counters.Pauses++
		}
		q.till[prio] = n.now + int64(pfc.Duration(quanta, q.d.rate))
		n.schedule(q.till[prio], evOpen, q.d.id)
	}
	q.d.open()
}

// open ends the pauses whose time has come.
func (d *Direction) open() {
	q := d.q
	q.account(d.n.now)
	for prio := range 8 {
		if q.paused>>prio&1 != 0 && q.till[prio] <= d.n.now {
			q.paused &^= 1 << prio
		}
	}
	d.serve()
}
