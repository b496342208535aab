package simnet

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/softnic"
)

// HostConfig says what a host is. The zero value is good.
type HostConfig struct {
	Name string // empty: "host" and a number
	// Addr is the host's address. The zero value takes 10.0.0.1 and on, by the
	// number of the host.
	Addr netip.Addr
	// GIDs replaces Addr, for several addresses or RoCE v1.
	GIDs []softnic.GID

	MaxQPs     int // 0 means 1024
	MaxRegions int // 0 means 1024

	// Control is congestion control, such as cnp.Controller(cnp.Paper()); nil is none.
	// LineRate must be the rate of the host's link; 0 means 100 Gb/s.
	Control  congestion.Controller
	LineRate uint64

	// Port, where not nil, changes the port's configuration before it is made.
	Port func(*softnic.Config)
}

// Host is a computer with one port.
type Host struct {
	n    *Network
	id   int32
	name string
	end  *end

	// Port is the host's network card. The network notices what is posted to its
	// queue pairs.
	Port *softnic.Port
	// Regions is the memory that peers may reach.
	Regions *qp.Regions
	// CQ takes the completions of queue pairs made by ConnectQPs. It may be polled
	// by the caller, unless OnCompletion or Handle are used.
	CQ *softnic.CQ
	// OnCompletion, where not nil, is called with each completion of CQ whose
	// queue pair has no function of its own by Handle. It may post to the queue pairs
	// of any host.
	OnCompletion func(wc *qp.Completion)

	zero       int64  // the port's time 0 in that of the network
	lineRate   uint64 // 0 where it does not matter
	handlers   []func(wc *qp.Completion)
	handled    int
	timerAt    int64 // as the timer queue has it
	timerIn    int   // place in the timer queue, from 1; 0 when not in it
	settling   bool
	dirty      bool // on the network's list of hosts to look at
	paused     uint8
	pausedTill [8]int64
	pausedAt   [8]int64
	nextAddr   uint64
	neighbors  map[*Host]bool
	scratch    []byte // of flows
	scratchVA  uint64
	scratchKey uint32

	wc     qp.Completion
	broken uint64
	forged list
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
	h := &Host{n: n, id: int32(i), name: name, CQ: softnic.NewCQ(), nextAddr: uint64(i+1) << 40, neighbors: make(map[*Host]bool)}
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
	h.Port.Tick(n.clock) // its time 1
	h.zero = n.now - 1
	n.hosts = append(n.hosts, h)
	n.routed = false
	return h, nil
}

// hostMAC is the address of host i, which switches find it by.
func hostMAC(i int) frame.MAC {
	return frame.MAC{0x02, 0, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}
}

// hostOf returns the number of the host with address m, or -1.
func (n *Network) hostOf(m frame.MAC) int {
	i := int(m[2])<<24 | int(m[3])<<16 | int(m[4])<<8 | int(m[5])
	if m[0] != 2 || m[1] != 0 || i >= len(n.hosts) {
		return -1
	}
	return i
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Link returns the host's link, or nil.
func (h *Host) Link() *Link {
	if h.end == nil {
		return nil
	}
	return h.end.link
}

// Out returns the direction of the host's link that leads away from it.
func (h *Host) Out() *Direction { return h.end.out }

// Broken returns how many packets of a decoded network were dropped because a
// link corrupted them. With bytes the port counts them.
func (h *Host) Broken() uint64 { return h.broken }

func (h *Host) attachable(l *LinkConfig) error {
	if h.end != nil {
		return fmt.Errorf("%w: host %s has a link already", ErrConfig, h.name)
	}
	if r := l.Rate; h.lineRate != 0 && r != h.lineRate {
		return fmt.Errorf("%w: host %s has a port of %d b/s on a link of %d b/s", ErrConfig, h.name, h.lineRate, r)
	}
	return nil
}

func (h *Host) attach(e *end) {
	e.host, h.end = h, e
	h.work()
}

// Handle has fn called with each completion of q, a queue pair of this host whose
// completions go to h.CQ. nil takes fn away. It may post as OnCompletion may.
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

// work notes that the port may have something to do.
func (h *Host) work() {
	if !h.dirty && !h.settling {
		h.dirty = true
		h.n.dirty = append(h.n.dirty, h)
	}
}

// settleDirty lets the hosts whose ports have been called look for work.
func (n *Network) settleDirty() {
	for len(n.dirty) != 0 {
		list := n.dirty
		n.dirty, n.settled = n.settled[:0], list
		for _, h := range list {
			h.dirty = false
			if h.end != nil {
				h.settle()
			}
		}
	}
}

func (h *Host) receive(p *packet) {
	n := h.n
	h.dirty = true // it is looked at below
	switch {
	case p.broken:
		h.broken++
	case p.pause:
		h.pause(&p.pfc)
	case n.bytes:
		h.Port.HandleFrame(n.clock, p.buf)
	default:
		h.Port.HandleDecoded(n.clock, &p.f)
	}
	n.release(p)
	h.dirty = false
	h.settle()
}

// timer is called when the host's timer is the next event, which may be earlier
// than the port's deadline has become; then no time has passed.
func (h *Host) timer() {
	n := h.n
	at := h.timerAt
	d := h.Port.Due()
	if d == 0 {
		n.timers.remove()
		return
	}
	if t := h.zero + d; t > at {
		n.timers.set(h, t, n.nextSeq())
		return
	}
	n.timers.remove()
	n.setNow(at)
	h.dirty = true
	h.Port.Tick(n.clock)
	h.dirty = false
	h.settle()
}

// settle does what the port has to do now: completions, packets while the link is
// free, timer.
func (h *Host) settle() {
	if h.settling {
		return // a completion's function woke its own host
	}
	h.settling = true
	for {
		h.complete()
		if !h.end.out.free() {
			if !h.Port.Idle() || h.forged.head != nil {
				h.end.out.rearm()
			}
			break
		}
		if !h.sendOne() {
			break
		}
	}
	h.settling = false
	d := h.Port.Due()
	if d == 0 {
		return
	}
	// A deadline that has moved away is looked at again when the old time comes.
	if t := max(h.zero+d, h.n.now); h.timerIn == 0 || t < h.timerAt {
		h.n.timers.set(h, t, h.n.nextSeq())
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

// Inject sends the frame b (without FCS) as if the host's port had made it, ahead of
// what the port sends: forged packets and such. It takes a network that carries
// bytes; the error is ErrConfig.
func (h *Host) Inject(b []byte) error {
	if !h.n.bytes || h.end == nil || len(b) > maxWire {
		return fmt.Errorf("%w: inject", ErrConfig)
	}
	p := h.n.newPacket()
	p.buf = append(p.buf[:0], b...)
	p.size = int32(max(len(b), minFrame) + fcsSize)
	h.forged.push(p)
	h.work()
	return nil
}

// sendOne makes the next packet and begins to send it.
func (h *Host) sendOne() bool {
	n := h.n
	if p := h.forged.pop(); p != nil {
		h.end.out.send(p)
		return true
	}
	p := n.newPacket()
	ok := false
	if n.bytes {
		p.buf, ok = h.Port.NextFrame(n.clock, p.buf[:0])
		p.size = int32(max(len(p.buf), minFrame) + fcsSize)
	} else if ok = h.Port.NextDecoded(n.clock, &p.f); ok {
		if n.carry == Decoded {
			p.buf = append(p.buf[:0], p.f.Packet.Payload...)
			p.f.Packet.Payload = p.buf
		}
		p.size = int32(max(decodedSize(&p.f), minFrame) + fcsSize)
	}
	if !ok {
		n.release(p)
		return false
	}
	h.end.out.send(p)
	return true
}

// pause obeys a PFC frame.
func (h *Host) pause(f *pfc.Frame) {
	n := h.n
	for prio := range 8 {
		q, ok := f.Time(prio)
		if !ok {
			continue
		}
		bit := uint8(1) << prio
		if q == 0 {
			h.pausedTill[prio] = n.now
			continue
		}
		if h.paused&bit == 0 {
			h.paused |= bit
			h.pausedAt[prio] = n.now
			h.end.out.counters.Pauses++
		}
		h.pausedTill[prio] = n.now + int64(pfc.Duration(q, h.end.out.rate))
		n.schedule(h.pausedTill[prio], evResume, h.id)
	}
	h.unpause()
}

// resume is called when a pause may be over.
func (h *Host) resume() {
	if h.unpause() {
		h.settle()
	}
}

// account brings PausedFor up to date.
func (h *Host) account() {
	now := h.n.now
	for prio := range 8 {
		if h.paused>>prio&1 != 0 {
			h.end.out.counters.PausedFor[prio] += time.Duration(now - h.pausedAt[prio])
			h.pausedAt[prio] = now
		}
	}
}

// unpause ends pauses whose time has come, and tells the port.
func (h *Host) unpause() bool {
	was := h.paused
	if was != 0 {
		h.account()
	}
	for prio := range 8 {
		if h.paused>>prio&1 != 0 && h.pausedTill[prio] <= h.n.now {
			h.paused &^= 1 << prio
		}
	}
	h.Port.SetPaused(h.paused)
	return h.paused != was
}
