// Package softnic is one port of a RoCE network card in software, as a pure machine: queue
// pairs, completion queues, shared receive queues, regions, addresses; frames in, frames
// out. It implements RoCE v1 and v2, responds to ARP and neighbour discovery, sends
// congestion notification packets, and limits each queue pair to what congestion control
// allows.
//
// It does no I/O, starts no goroutine and reads no clock. **After each call that may have
// changed something, call NextFrame until it reports false, poll the completion queues, and
// arm one timer for Deadline.**
//
// A queue pair that has nothing to do costs no time: those with packets to send are in a
// list, those that wait for a time in a heap.
package softnic

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/clock"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/congestion"
)

var (
	// ErrConfig means that a value of a Config is out of range.
	ErrConfig = errors.New("softnic: configuration value out of range")
	// ErrNoQP means that all QP numbers, or the one asked for, are in use.
	ErrNoQP = errors.New("softnic: no free QP number")
	// ErrAddress means an address handle without a GID of this port or a
	// usable destination.
	ErrAddress = errors.New("softnic: no such address")
	// ErrNoPort means a QP that belongs to no port: it was destroyed, or not created by
	// CreateQP.
	ErrNoPort = errors.New("softnic: the QP was destroyed or not created by CreateQP")
	// ErrPKey means a P_Key that is not in the port's table.
	ErrPKey = errors.New("softnic: P_Key not in the table")
)

// GIDType is the version of RoCE that a GID is for.
type GIDType uint8

// GID types.
const (
	RoCEv2 GIDType = iota
	RoCEv1
)

// GID is a row of the port's address table.
type GID struct {
	Addr netip.Addr // IPv4 or IPv6
	Type GIDType
}

// GSIQPN is the number of the QP for management datagrams, and GSIQKey its Q_Key.
const (
	GSIQPN  = 1
	GSIQKey = 0x80010000
)

// firstQPN is the lowest number that CreateQP assigns.
const firstQPN = 0x11

// Config holds the parameters of a port.
type Config struct {
	MAC     frame.MAC
	GIDs    []GID       // addresses, 1 .. 256
	PKeys   []uint16    // partitions; empty means the default, 0xffff
	UDPPort uint16      // RoCE v2 destination port; 0 means 4791
	MaxQPs  int         // 0 means 1024; at most 2^23
	Regions *qp.Regions // nil: a new table of 1024

	// CM, where not nil, enables connections by QP 1: see Connect and Listen. A CAGUID of 0
	// means one derived from MAC, a nil Seed one derived from Seed. Without CM the port
	// refuses all requests for connections. A QP created with the number GSIQPN receives
	// the datagrams instead.
	CM *cm.Config
	// Seed makes QP numbers and starting PSNs unpredictable. With nil, QP numbers are
	// consecutive and starting PSNs are 0.
	Seed *[32]byte

	// PeerMAC, where not zero, is the Ethernet address of all peers, such as that of a
	// gateway, or any address for a wire without Ethernet addresses: nothing is resolved.
	PeerMAC frame.MAC

	// MaxNeighbors bounds the table of hardware addresses. 0 means 1024. Hosts that
	// requested this port's address are in it as well, until room is needed.
	MaxNeighbors int

	// Trace, where not nil, is called for each frame to this port that is dropped before it
	// reaches a QP; TraceQP for each packet that a QP does not simply accept, where the
	// QP's own Trace is nil. They must not call the port.
	Trace   func(Trace)
	TraceQP func(qp.Trace)
	// FreezeNeighbors keeps the first hardware address of each peer: later ARP and
	// neighbour advertisements do not change it.
	FreezeNeighbors bool
	// NeighborAge is how long a hardware address is used before it is requested again.
	// Without a reply it is removed from the table, but connected QPs keep theirs. 0 means
	// a minute, a negative value for ever.
	NeighborAge time.Duration

	// Control is congestion control, such as cnp.Controller(cnp.Paper()). nil is
	// none: no CNP is sent, and one received is only counted.
	Control  congestion.Controller
	LineRate uint64 // bits per second; for Control; 0 means 100 Gb/s
	// ECT marks the packets sent ECN-capable where the address handle leaves the
	// two bits clear. A Control that needs it does so by itself.
	ECT bool

	// AckEvery is the AckEvery of QPs whose own is 0: at least one of so many packets asks
	// for an acknowledgement. 0 means every packet where Control needs that, and else the
	// default of qp.Config.
	AckEvery int
	// MaxInFlight is how many packets of a QP may be in flight where Control counts
	// them, 1 .. 2^23; 32 bytes each. 0 means 1024.
	MaxInFlight int
	// CNP and Ack are the marking of CNPs and of acknowledgements. nil means for CNPs that
	// of Control, or DSCP 48 and priority 6, and for acknowledgements that of the QP's
	// data.
	CNP, Ack *Marking
	// Weights are the shares of the port for each priority, served by deficit round
	// robin. A priority of weight 0 is served strictly before all with a weight, and
	// a higher one of these before a lower. CNPs go before all.
	Weights [8]int

	// OnWork, where not nil, is called whenever a queue pair may have something to
	// do: after posts, changes, and packets that arrived. It must not call the port.
	OnWork func()
}

// Counters count what the port did with frames. The QPs count for themselves.
type Counters struct {
	RxFrames               uint64
	RxRoCE                 uint64 // packets for this port with a good ICRC
	RxICRCEncapsulated     uint64 // rx_icrc_encapsulated: bad ICRC, dropped
	RxMalformed            uint64 // to the RoCE port, but cannot be decoded
	RxHeaderChecksum       uint64 // wrong IPv4 header checksum, dropped; it covers fields that the ICRC does not
	RxNotRoCE              uint64
	RxWrongAddress         uint64 // not for this port, or not from the QP's peer to its GID
	RxNoQP                 uint64
	NpEcnMarkedRocePackets uint64 // np_ecn_marked_roce_packets
	NpCnpSent              uint64 // np_cnp_sent
	NpCnpDropped           uint64 // because the queue of CNPs was full
	RpCnpHandled           uint64 // rp_cnp_handled
	RpCnpIgnored           uint64 // rp_cnp_ignored: of another partition, or for a QP that does not receive
	TxFrames               uint64
	TxUnresolved           uint64 // sends given up because there is no hardware address
	Looped                 uint64 // packets that the port sent to itself
	NeighborsMoved         uint64 // peers that changed their hardware address
}

// Port is a port. It is not safe for concurrent use.
type Port struct {
	cfg      Config
	gids     []gid
	clock    qp.Clock // of the QPs as well
	counters Counters
	finder   frame.Finder

	qpTable
	srqs    map[uint32]*SRQ
	lastSRQ uint32
	lastPD  qp.PD
	groups  []group

	cc        control
	gsi       gsi
	loop      loopback
	control   controlRing
	neighbors neighborTable

	ready   readyLists      // QPs that may have a packet to send
	waiting clock.Heap[*QP] // QPs that wait for a time
	events  fifo            // QPs that have an event
	cnpRing
	scratch
}

// qpTable has the QPs by the low bits of their numbers; those below firstQPN are special.
type qpTable struct {
	qps     []*QP
	lastQPN uint32
	live    int
	rng     *rand.ChaCha8 // nil without Config.Seed
}

// scratch is memory that one call uses.
type scratch struct {
	out     qp.Outgoing
	rx, tx  frame.Frame
	grh     [qp.GRHSize]byte
	network [60]byte // the header that grhOf builds, with all options
}

type gid struct {
	addr  netip.Addr
	bytes [16]byte
	v1    bool
}

// New returns a port. The errors are ErrConfig, and those of Control.
func New(cfg Config) (*Port, error) {
	if cfg.MaxQPs == 0 {
		cfg.MaxQPs = 1024
	}
	if cfg.MaxNeighbors == 0 {
		cfg.MaxNeighbors = 1024
	}
	if cfg.NeighborAge == 0 {
		cfg.NeighborAge = neighborAge
	}
	if cfg.UDPPort == 0 {
		cfg.UDPPort = frame.Port
	}
	if cfg.LineRate == 0 {
		cfg.LineRate = 100e9
	}
	if len(cfg.PKeys) == 0 {
		cfg.PKeys = []uint16{0xffff}
	}
	if len(cfg.GIDs) == 0 || len(cfg.GIDs) > 256 || cfg.MaxQPs < 1 || cfg.MaxQPs > 1<<23 || cfg.MaxNeighbors < 1 {
		return nil, ErrConfig
	}
	if cfg.Regions == nil {
		var err error
		if cfg.Regions, err = qp.NewRegions(1024); err != nil {
			return nil, err
		}
	}
	size := 32
	for cfg.Seed != nil && size < firstQPN+cfg.MaxQPs {
		size *= 2 // of numbers that come in turn the table grows
	}
	p := &Port{
		cfg:     cfg,
		qpTable: qpTable{qps: make([]*QP, size), lastQPN: firstQPN - 1},
		finder:  frame.Finder{UDPPort: cfg.UDPPort},
		cnpRing: cnpRing{cnps: make([]cnpDue, 256)},
		srqs:    make(map[uint32]*SRQ),
		waiting: clock.NewHeap(func(q *QP, at int) { q.heapAt = int32(at) }),
	}
	if cfg.Seed != nil {
		p.rng = rand.NewChaCha8(*cfg.Seed)
	}
	if err := p.gsi.init(&p.cfg); err != nil {
		return nil, err
	}
	p.neighbors.init(cfg.MaxNeighbors)
	for _, g := range cfg.GIDs {
		if !g.Addr.IsValid() || g.Type > RoCEv1 {
			return nil, ErrConfig
		}
		a := g.Addr.Unmap()
		p.gids = append(p.gids, gid{addr: a, bytes: a.As16(), v1: g.Type == RoCEv1})
	}
	if cfg.AckEvery < 0 || cfg.MaxInFlight < 0 || cfg.MaxInFlight > 1<<23 ||
		cfg.CNP != nil && !cfg.CNP.ok() || cfg.Ack != nil && !cfg.Ack.ok() {
		return nil, ErrConfig
	}
	if err := p.ready.init(cfg.Weights); err != nil {
		return nil, err
	}
	if err := p.cc.init(&p.cfg); err != nil {
		return nil, err
	}
	p.cfg.ECT = p.cfg.ECT || p.cc.needs&congestion.NeedECT != 0
	return p, nil
}

// Counters returns what was counted.
func (p *Port) Counters() Counters { return p.counters }

// MAC returns the port's Ethernet address.
func (p *Port) MAC() frame.MAC { return p.cfg.MAC }

// GID returns row i of the address table, in the form of [qp.AHAttr].
func (p *Port) GID(i int) (addr [16]byte, ok bool) {
	if i < 0 || i >= len(p.gids) {
		return addr, false
	}
	return p.gids[i].bytes, true
}

// Regions returns the memory that peers may access, as configured.
func (p *Port) Regions() *qp.Regions { return p.cfg.Regions }

// AllocPD returns a protection domain that no earlier call returned.
func (p *Port) AllocPD() qp.PD {
	p.lastPD++
	return p.lastPD
}

// SRQ is a shared receive queue of a port.
type SRQ struct {
	*qp.SRQ
	port *Port
	xrcd uint32
}

// CreateSRQ creates a shared receive queue for n receives. XRC targets of the XRC domain
// xrcd find it by its number; 0 is no domain. The errors are those of qp.NewSRQ, and
// ErrConfig when all 2^24-1 numbers are in use.
func (p *Port) CreateSRQ(n int, xrcd uint32) (*SRQ, error) {
	const most = 0xffffff
	if len(p.srqs) == most {
		return nil, ErrConfig
	}
	// From 1 to most, then from 1 again.
	p.lastSRQ = p.lastSRQ%most + 1
	for p.srqs[p.lastSRQ] != nil {
		p.lastSRQ = p.lastSRQ%most + 1
	}
	q, err := qp.NewSRQ(p.lastSRQ, n)
	if err != nil {
		return nil, err
	}
	s := &SRQ{SRQ: q, port: p, xrcd: xrcd}
	p.srqs[q.Num()] = s
	return s, nil
}

// Destroy removes the queue: XRC requests that name it are refused from now on.
func (s *SRQ) Destroy() { delete(s.port.srqs, s.Num()) }

// xrcDomain finds the SRQs of one XRC domain.
type xrcDomain struct {
	port *Port
	xrcd uint32
}

// SRQ implements [qp.SRQLookup].
func (d xrcDomain) SRQ(num uint32) *qp.SRQ {
	if s := d.port.srqs[num]; s != nil && s.xrcd == d.xrcd { // a target has a domain: CreateQP
		return s.SRQ
	}
	return nil
}

// now returns the latest time that was passed to the port, in nanoseconds of its clock.
func (p *Port) now() int64 { return p.clock.Last() }

// Deadline returns when Tick is due, or false when nothing is.
func (p *Port) Deadline() (time.Time, bool) {
	t := p.Due()
	if t == 0 {
		return time.Time{}, false
	}
	return p.clock.Time(t), true
}

// Due is Deadline in nanoseconds since the first time passed to the port, which is 1; 0
// means none.
func (p *Port) Due() int64 {
	t := p.neighbors.due
	if d := p.waiting.Due(0); d != 0 && (t == 0 || d < t) {
		t = d
	}
	if !p.gsi.used {
		// Nothing waits there.
	} else if d, ok := p.gsi.m.Deadline(); ok {
		if d := max(p.now()+int64(d.Sub(p.clock.Time(p.now()))), 1); t == 0 || d < t {
			t = d
		}
	}
	if p.loop.due != 0 && (t == 0 || p.loop.due < t) {
		t = p.loop.due
	}
	return t
}

// Tick lets time pass. After it, Deadline is later than now.
func (p *Port) Tick(now time.Time) {
	t := p.clock.At(now)
	for p.waiting.Due(t+1) <= t {
		_, _, q := p.waiting.First()
		if d := q.m.Due(); d != 0 && d <= t {
			before := q.m.Counters().LocalAckTimeoutErr
			p.tick(now, q)
			if q.m.Counters().LocalAckTimeoutErr != before {
				p.doubt(q)
			}
		}
		q.paced = 0
		p.touch(q)
	}
	if p.neighbors.due != 0 && p.neighbors.due <= t {
		p.resolveAgain(t)
	}
	if p.gsi.used {
		p.gsi.m.Tick(now)
	}
	if p.loop.due <= t {
		p.loop = loopback{}
	}
}

// Trace says why the port dropped a frame before it reached a QP. It is the argument of
// [Config.Trace], and a [slog.LogValuer]. For a Malformed frame only Result is set.
type Trace struct {
	Result   Result
	Src, Dst netip.Addr
	QPN      uint32 // destination
	Opcode   bth.Opcode
	PSN      psn.PSN
}

// LogValue implements [slog.LogValuer].
func (t Trace) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("result", t.Result.String()),
		slog.String("src", t.Src.String()),
		slog.String("dst", t.Dst.String()),
		slog.Uint64("qpn", uint64(t.QPN)),
		slog.String("opcode", t.Opcode.String()),
		slog.Uint64("psn", uint64(t.PSN)),
	)
}

// trace calls the trace hook for f, which was decoded unless r is Malformed, with the
// result r.
func (p *Port) trace(r Result, f *frame.Frame) {
	switch r {
	case Delivered, Answered, NotRoCE:
	case Malformed:
		p.cfg.Trace(Trace{Result: r})
	default:
		h := &f.Packet
		p.cfg.Trace(Trace{Result: r, Src: f.Src, Dst: f.Dst, QPN: h.DestQP, Opcode: h.Opcode, PSN: h.PSN})
	}
}
