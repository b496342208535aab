package simnet

import (
	"fmt"
	"math"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
)

// maxWire is the most bytes that a frame takes on the wire, with preamble and gap.
const maxWire = 4096 + frame.MaxHeaderSize + fcsSize + preambleSize + gapSize

// SwitchConfig holds the parameters of a switch. Lengths are in bytes. The zero value is a
// switch with 12 MB of buffer that drops what does not fit.
//
// The priority of a frame is that of its VLAN tag, or the first three bits of
// its DSCP.
type SwitchConfig struct {
	Name   string // empty: "switch" and a number
	Buffer int    // shared by all ports; 0 means 12,000,000

	// Lossless are the priorities that PFC protects: bit n is priority n. Each port and
	// lossless priority has XOFF + Headroom of the buffer to itself; what is left is shared
	// by the other priorities. With XOFF and XON both 0, three quarters of the buffer are
	// divided evenly.
	Lossless uint8
	// XOFF is how many bytes received at one port in one priority may wait before the
	// port's peer is requested to pause it, and XON the number at which it may resume; 0
	// means two frames less.
	XOFF, XON int
	// Headroom is the room for packets that still arrive after the request. 0 means what
	// the link's rate and delay need: a round trip and three frames. With too little of it
	// packets are dropped.
	Headroom int

	// Dynamic, where not nil, makes ports share the buffer instead; XOFF and XON are then
	// not used. Policy, where not nil, returns a policy of the caller's.
	Dynamic *Dynamic
	Policy  func(c *SwitchConfig) BufferPolicy

	// ECN says how queues mark; nil marks nothing. Each priority of each output
	// is a queue. ECNRate, where not 0, is the link rate in bits per second that the
	// thresholds are for; those of other links are scaled by their rate.
	ECN     *cnp.CongestionParams
	ECNRate uint64

	// Router, where not nil, returns the router that chooses among paths of equal length;
	// nil: ECMP.
	Router func() Router

	// Trim: packets for which there is no room in a priority that is not lossless are cut
	// to their headers and forwarded with TrimDSCP, in the priority of that DSCP. They have
	// no payload and no ICRC, and the lengths in their headers are those of the rest.
	Trim     bool
	TrimDSCP uint8

	// Watchdog, where not 0, is how long a queue may be paused; then the packets that wait
	// in it, and further ones for it, are dropped until the pause ends.
	Watchdog time.Duration

	// Weights are the shares of the output for each priority, served by deficit
	// round robin. A priority of weight 0 is served strictly before all with a
	// weight, and a higher one of these before a lower.
	Weights [8]int
}

// Switch stores packets and forwards them: output-queued, with one buffer. A packet leaves
// the buffer when the switch starts to send it.
type Switch struct {
	// Used for every packet: two cache lines.
	e        *engine
	routes   []uint16 // by number of the destination host: index in ways
	ways     []ways   // the first is none
	lossless uint8
	strict   uint8         // priorities
	static   *staticBuffer // buffer, where it is that
	xoff     []uint8       // by port: priorities that its peer was requested to pause
	used     int32
	maxUsed  int32

	n       *Network
	ports   []*swPort
	buffer  BufferPolicy
	router  Router
	luck    rng
	salt    uint64
	id      int32
	name    string
	cfg     SwitchConfig
	fixed   map[int32][]*Direction
	flood   []*Direction
	noRoute uint64
	route   RouteInfo
}

// ways are outputs that lead to a host.
type ways struct {
	first *egress
	all   []*Direction
}

// waysTo returns the outputs that lead to a host.
func (s *Switch) waysTo(host int32) []*Direction { return s.ways[s.routes[host]].all }

// swPort is a port as an input.
type swPort struct {
	sw       *Switch
	end      *end
	id       int32    // in Network.swPorts
	repeatAt [8]int64 // when the requested pause is to be requested again
	awaited  uint8    // priorities that have an event, at repeatAt or before
}

// egress is a port as an output.
type egress struct {
	// Used for every packet: one cache line, and one of q.
	sw       *Switch
	d        *Direction
	area     float64 // byte nanoseconds that waited
	areaAt   int64
	bytes    int32
	maxBytes int32 // that there were
	limit    int32 // of bytes, for priorities that are not lossless
	port     int32 // of the switch
	nonEmpty uint8
	paused   uint8 // priorities that are paused
	dead     uint8 // those of paused that the watchdog has flushed
	turn     uint8
	marks    bool // by cp
	urgent   bool // control is not empty

	q       [8]queue
	control list // PFC frames, before all else
	cp      cnp.CongestionPoint
	pauses  pauses

	deficit [8]int
	from    int64 // when area was 0
}

// queue holds the packets that wait for an output in one priority.
type queue struct {
	list
	bytes int32
	held  []int32 // of a lossless priority: bytes by the port at which they were received
}

// AddSwitch adds a switch. Errors wrap ErrConfig or cnp.ErrParams; a buffer that is too
// small for the ports is an error of the first run.
func (n *Network) AddSwitch(cfg SwitchConfig) (*Switch, error) {
	if cfg.Buffer == 0 {
		cfg.Buffer = 12_000_000
	}
	if cfg.Buffer < 0 || cfg.Buffer > math.MaxInt32 || cfg.XOFF < 0 || cfg.XON < 0 || cfg.Headroom < 0 || cfg.XON > cfg.XOFF ||
		cfg.Watchdog < 0 || cfg.TrimDSCP > 63 {
		return nil, fmt.Errorf("%w: switch %+v", ErrConfig, cfg)
	}
	i := len(n.switches)
	name, err := n.name("switch", cfg.Name, i)
	if err != nil {
		return nil, err
	}
	cfg.Name = name
	s := &Switch{n: n, e: n.engines[0], id: int32(i), name: name, cfg: cfg, lossless: cfg.Lossless, luck: newRNG(n.cfg.Seed, 1<<32+uint64(i)), fixed: make(map[int32][]*Direction)}
	s.salt = uint64(newRNG(n.cfg.Seed, 1<<33+uint64(i)))
	if cfg.ECN != nil {
		if err = cfg.ECN.Validate(); err != nil {
			delete(n.names, name)
			return nil, err
		}
	}
	if cfg.Dynamic != nil {
		if err = cfg.Dynamic.validate(); err != nil {
			delete(n.names, name)
			return nil, err
		}
	}
	switch {
	case cfg.Policy != nil:
		s.buffer = cfg.Policy(&s.cfg)
	case cfg.Dynamic != nil:
		s.buffer = newDynamic(&s.cfg)
	default:
		s.static = &staticBuffer{cfg: &s.cfg}
		s.buffer = s.static
	}
	if cfg.Router != nil {
		s.router = cfg.Router()
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
	n.reroute()
	return s, nil
}

// Name returns the switch's name.
func (s *Switch) Name() string { return s.name }

// Buffered returns how many bytes wait in the switch, and the most there were.
func (s *Switch) Buffered() (now, most int) { return int(s.used), int(s.maxUsed) }

// NoRoute returns how many packets were dropped because no link leads to their destination
// host.
func (s *Switch) NoRoute() uint64 { return s.noRoute }

// Outputs returns the directions in which the switch sends, in the order of its links.
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
	s.xoff = append(s.xoff, 0)
	s.n.swPorts = append(s.n.swPorts, p)
}

func newEgress(d *Direction, s *Switch, limit int) *egress {
	q := &egress{sw: s, d: d, port: int32(d.from.port), marks: s.cfg.ECN != nil, limit: math.MaxInt32}
	if limit != 0 {
		q.limit = int32(min(limit, math.MaxInt32))
	}
	if c := s.cfg.ECN; c != nil {
		p := *c
		if r := s.cfg.ECNRate; r != 0 && d.rate != 0 {
			scale := func(v uint32) uint32 {
				return uint32(min(math.MaxUint32, float64(v)*float64(d.rate)/float64(r)))
			}
			p.Kmin, p.Kmax = scale(p.Kmin), scale(p.Kmax)
		}
		q.cp, _ = cnp.NewCongestionPoint(p) // checked by AddSwitch
	}
	return q
}

// share passes the ports to the buffer's policy.
func (s *Switch) share() error {
	var ports []PortInfo
	for _, p := range s.ports {
		l := p.end.link.cfg
		ports = append(ports, PortInfo{l.Rate, l.Delay, time.Duration(max(p.end.in.jitter, p.end.out.jitter))})
	}
	s.count()
	return s.buffer.Resize(ports)
}
