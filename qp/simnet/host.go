package simnet

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/softnic"
)

// HostConfig holds the parameters of a host. The zero value can be used.
type HostConfig struct {
	Name string // empty: "host" and a number
	// Addr is the host's address. The zero value means 10.0.0.1, 10.0.0.2, ..., by the
	// number of the host.
	Addr netip.Addr
	// GIDs replaces Addr, for several addresses or RoCE v1.
	GIDs []softnic.GID

	MaxQPs     int // 0 means 1024
	MaxRegions int // 0 means 1024

	// Control is congestion control, such as cnp.Controller(cnp.Paper()); nil is none.
	// One that needs telemetry, as HPCC does, takes a network that carries no bytes.
	// LineRate must be the rate of the host's link; 0 means 100 Gb/s.
	Control  congestion.Controller
	LineRate uint64

	// Receive, where not nil, limits how fast the host reads received packets.
	Receive *ReceiveConfig

	// Port, where not nil, changes the port's configuration before the port is created.
	Port func(*softnic.Config)
}

// Host is a computer with one port, on one link, or on several that share its packets.
type Host struct {
	// What every packet looks at comes first.
	e *engine
	// Port is the host's network card. The network notices what is posted to its
	// queue pairs.
	Port     *softnic.Port
	out      *Direction // of its link, where it has one
	rx       *receiver
	zero     int64 // the port's time 0 in that of the network
	timers   timers
	id       int32
	handled  int32 // how many handlers there are
	settling bool
	dirty    bool  // on the engine's list of hosts for settle
	paused   uint8 // priorities, as last passed to the port
	forged   list
	// CQ is the completion queue of queue pairs created by ConnectQPs. The caller may poll
	// it, unless OnCompletion or Handle are used.
	CQ *softnic.CQ
	// OnCompletion, where not nil, is called with each completion of CQ whose
	// queue pair has no function of its own by Handle. It may post to the queue pairs
	// of any host.
	OnCompletion func(wc *qp.Completion)
	n            *Network
	ends         []*end

	name string
	// Regions is the memory that peers may access.
	Regions *qp.Regions
	// OnTrimmed, where not nil, is called with each packet that arrives cut to its headers:
	// see SwitchConfig.Trim. Only in a network that carries bytes does the port see it, and
	// drop it.
	OnTrimmed func(f *frame.Frame)

	last       flowHash
	lineRate   uint64 // 0 where it does not matter
	handlers   []func(wc *qp.Completion)
	wake       int64 // time of the event for the end of a pause, 0 for none
	calls      callQueue
	called     uint64
	storm      storm
	nextAddr   uint64
	neighbors  map[*Host]bool
	scratch    []byte // of flows
	scratchVA  uint64
	scratchKey uint32

	wc     qp.Completion
	broken uint64
}

// AddHost adds a host. Errors wrap ErrConfig, or are those of softnic.New.
func (n *Network) AddHost(cfg HostConfig) (*Host, error) {
	i := len(n.hosts)
	name, err := n.name("host", cfg.Name, i)
	if err != nil {
		return nil, err
	}
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = 1024
	}
	if !cfg.Addr.IsValid() {
		v := uint32(10<<24) + uint32(i) + 1
		cfg.Addr = netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
	}
	if cfg.GIDs == nil {
		cfg.GIDs = []softnic.GID{{Addr: cfg.Addr}}
	}
	h := &Host{n: n, e: n.engines[0], id: int32(i), name: name, CQ: softnic.NewCQ(), nextAddr: uint64(i+1) << 40, neighbors: make(map[*Host]bool)}
	if h.Regions, err = qp.NewRegions(cfg.MaxRegions); err != nil {
		delete(n.names, name)
		return nil, fmt.Errorf("%w: %d regions", ErrConfig, cfg.MaxRegions)
	}
	sc := softnic.Config{
		MAC: hostMAC(i), GIDs: cfg.GIDs, MaxQPs: cfg.MaxQPs, Regions: h.Regions,
		Control: cfg.Control, LineRate: cfg.LineRate,
	}
	if cfg.Port != nil {
		cfg.Port(&sc)
	}
	onWork := sc.OnWork
	sc.OnWork = h.work
	if onWork != nil {
		sc.OnWork = func() { h.work(); onWork() }
	}
	if sc.Control != nil {
		if h.lineRate = sc.LineRate; h.lineRate == 0 {
			h.lineRate = 100e9
		}
	}
	if h.Port, err = softnic.New(sc); err != nil {
		delete(n.names, name)
		return nil, err
	}
	if cfg.Receive != nil {
		if h.rx, err = newReceiver(cfg.Receive); err != nil {
			delete(n.names, name)
			return nil, err
		}
	}
	h.Port.Tick(h.e.time()) // its time 1
	h.zero = h.e.now.ns - 1
	n.hosts = append(n.hosts, h)
	n.reroute()
	return h, nil
}

// hostMAC is the Ethernet address of host i, by which switches find it.
func hostMAC(i int) frame.MAC {
	return frame.MAC{0x02, 0, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}
}

// hostOf returns the number of the host with address m, -1 for none, and -2 for the
// addresses that no bridge forwards (IEEE 802.1Q, table 8-1).
func (n *Network) hostOf(m frame.MAC) int32 {
	i := int(m[2])<<24 | int(m[3])<<16 | int(m[4])<<8 | int(m[5])
	if m[0] != 2 || m[1] != 0 || i >= len(n.hosts) {
		if m[0] == 1 && m[1] == 0x80 && m[2] == 0xc2 && m[3] == 0 && m[4] == 0 && m[5]>>4 == 0 {
			return -2
		}
		return -1
	}
	return int32(i)
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Link returns the host's first link, or nil.
func (h *Host) Link() *Link {
	if len(h.ends) == 0 {
		return nil
	}
	return h.ends[0].link
}

// Links returns the host's links.
func (h *Host) Links() (l []*Link) {
	for _, e := range h.ends {
		l = append(l, e.link)
	}
	return l
}

// Out returns the direction of the host's first link in which it sends, or nil where the
// host has none.
func (h *Host) Out() *Direction {
	if len(h.ends) == 0 {
		return nil
	}
	return h.ends[0].out
}

// Now returns the time, in functions that the host calls.
func (h *Host) Now() time.Time { return h.e.time() }

// Elapsed returns the time since the network's start, in functions that the host calls.
func (h *Host) Elapsed() time.Duration { return time.Duration(h.e.now.ns) }

// At calls fn at t, or now if t has passed, before all else that happens to the host
// at that time. It may post to the host's queue pairs.
func (h *Host) At(t time.Time, fn func()) {
	at := max(h.e.now.ns, h.n.since(t))
	h.called++
	h.calls.Push(at, h.called, fn)
	h.e.schedule(stamp{ns: at}, evCall, h.id)
}

// After calls fn after d: see At.
func (h *Host) After(d time.Duration, fn func()) { h.At(h.Now().Add(d), fn) }

// Broken returns how many packets were dropped because a switch trimmed them or, in a
// decoded network, a link corrupted them. In a network that carries bytes the port counts
// them.
func (h *Host) Broken() uint64 { return h.broken }

func (h *Host) attachable(l *LinkConfig) error {
	if r := l.Rate; h.lineRate != 0 && r != h.lineRate {
		return fmt.Errorf("%w: host %s has a port of %d b/s on a link of %d b/s", ErrConfig, h.name, h.lineRate, r)
	}
	return nil
}

func (h *Host) attach(e *end) {
	e.host = h
	h.ends = append(h.ends, e)
	h.work()
}

func (h *Host) linked() bool { return len(h.ends) != 0 }

// Handle sets the function that is called with each completion of q, a queue pair of this
// host whose completions go to h.CQ. nil removes it. It may post as OnCompletion may.
func (h *Host) Handle(q *softnic.QP, fn func(wc *qp.Completion)) {
	i := int(q.Num())
	for len(h.handlers) <= i {
		h.handlers = append(h.handlers, make([]func(*qp.Completion), max(64, len(h.handlers)))...)
	}
	if (fn == nil) != (h.handlers[i] == nil) {
		if fn == nil {
			h.handled--
		} else {
			h.handled++
		}
	}
	h.handlers[i] = fn
}

// work records that the port may have something to do.
func (h *Host) work() {
	if !h.dirty && !h.settling {
		h.dirty = true
		h.e.dirty = append(h.e.dirty, h)
	}
}

// receive handles a packet that arrived at one of the host's links.
func (h *Host) receive(at *end, p *packet) {
	if p.pause {
		if !p.broken {
			h.pause(at, &p.pfc)
		}
		h.e.release(p)
		h.settle()
		return
	}
	if h.rx != nil {
		h.rx.push(h, p)
		return
	}
	h.take(p)
}

// take passes a packet to the port.
func (h *Host) take(p *packet) {
	e := h.e
	h.dirty = true // it is settled below
	switch {
	case p.trimmed:
		if h.OnTrimmed != nil {
			h.OnTrimmed(&p.f)
		}
		h.broken++
		if e.n.bytes {
			h.Port.HandleFrame(e.time(), p.buf) // which finds no ICRC there
		}
	case p.broken:
		h.broken++
	case e.n.bytes && p.told && p.tel.Decode(afterIP(p.buf)):
		h.Port.HandleFrameTelemetry(e.time(), p.buf, &p.tel)
	case e.n.bytes:
		h.Port.HandleFrame(e.time(), p.buf)
	case p.told:
		h.Port.HandleTelemetry(e.time(), &p.f, &p.tel)
	default:
		h.Port.HandleDecoded(e.time(), &p.f)
	}
	e.release(p)
	h.dirty = false
	h.settle()
}

// timers holds the times of a host's timer events, the earliest last. A deadline that moves
// to an earlier time has a new event. For one that moves to a later time the old event is
// kept, and is set again when it fires.
type timers struct {
	at [6]int64
	n  int
}

// setTimer has timer called at a time, unless an earlier call is due.
func (h *Host) setTimer(at int64) {
	t := &h.timers
	if t.n != 0 && at >= t.at[t.n-1] {
		return
	}
	if t.n == len(t.at) { // the latest event finds no time here and does nothing
		copy(t.at[:], t.at[1:])
		t.n--
	}
	t.at[t.n] = at
	t.n++
	h.e.timers++
	h.e.schedule(stamp{ns: at}, evTimer, h.id)
}

// timer is called at a time given to setTimer. The port's deadline may have moved to a later
// time; the network's time then does not advance.
func (h *Host) timer(at int64) {
	e, t := h.e, &h.timers
	e.timers--
	if t.n == 0 || t.at[t.n-1] != at {
		return
	}
	t.n--
	d := h.Port.Due()
	if d == 0 {
		return
	}
	if next := h.zero + d; next > at {
		h.setTimer(next)
		return
	}
	e.setNow(stamp{ns: at})
	h.dirty = true
	h.Port.Tick(e.time())
	h.dirty = false
	h.settle()
}

// settle handles what the port has to do now: completions, packets while a link is free,
// timer.
func (h *Host) settle() {
	if h.settling {
		return // a completion's function called the port
	}
	if !h.linked() {
		h.complete()
		return
	}
	h.settling = true
	for {
		h.complete()
		if !h.ready() {
			if !h.Port.Idle() || h.forged.head != nil {
				h.rearm()
			}
			break
		}
		if !h.sendOne() {
			break
		}
	}
	h.settling = false
	if d := h.Port.Due(); d != 0 {
		h.setTimer(max(h.zero+d, h.e.now.ns))
	}
}

func (h *Host) complete() {
	if h.handled == 0 && h.OnCompletion == nil {
		return
	}
	for h.CQ.Poll(&h.wc) {
		i := int(h.wc.QPN)
		if i < len(h.handlers) && h.handlers[i] != nil {
			h.handlers[i](&h.wc)
		} else if h.OnCompletion != nil {
			h.OnCompletion(&h.wc)
		}
	}
}

// Inject sends the frame b (without FCS) as if the host's port had built it, before other
// packets of the port, for example a forged packet. The link's other end obeys a PFC frame.
// Without a network that carries bytes, or without a link, the error is ErrConfig.
func (h *Host) Inject(b []byte) error {
	switch {
	case !h.n.bytes:
		return fmt.Errorf("%w: Inject needs a network that carries bytes", ErrConfig)
	case !h.linked():
		return fmt.Errorf("%w: host %s has no link", ErrConfig, h.name)
	case len(b) > maxWire:
		return fmt.Errorf("%w: a frame of %d bytes, want %d at most", ErrConfig, len(b), maxWire)
	}
	p := h.e.newPacket()
	p.buf = append(p.buf[:0], b...)
	p.size = wireSize(len(b))
	p.pause = p.pfc.Decode(b) == nil
	h.n.read(p)
	h.forged.push(p)
	h.work()
	return nil
}

// sendOne builds the next packet and starts to send it.
func (h *Host) sendOne() bool {
	e := h.e
	if p := h.forged.pop(); p != nil {
		h.emit(p)
		return true
	}
	p := e.newPacket()
	ok := false
	if e.n.bytes {
		if p.buf, ok = h.Port.NextFrame(e.time(), p.buf[:0]); ok {
			if t := h.Port.Telemetry(); t != nil {
				p.tel, p.told, p.collect = *t, true, t.Mode == congestion.INTCollect
				p.buf = t.AppendTo(p.buf)
			}
			p.size = wireSize(len(p.buf))
		}
	} else if ok = h.Port.NextDecoded(e.time(), &p.f); ok {
		if p.buf = p.buf[:0]; e.n.carry == Decoded && !e.n.constant(p.f.Packet.Payload) {
			p.buf = append(p.buf, p.f.Packet.Payload...)
			p.f.Packet.Payload = p.buf
		}
		p.size = wireSize(p.f.Size())
		if t := h.Port.Telemetry(); t != nil {
			p.tel, p.told, p.collect = *t, true, t.Mode == congestion.INTCollect
			p.size += int32(t.Size())
		}
	}
	if !ok {
		e.release(p)
		return false
	}
	if e.n.read(p); e.n.multipath && !e.n.bytes {
		h.last.of(e.n, p) // now that it is at hand
	}
	h.emit(p)
	return true
}
