package softnic

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
)

// QPConfig holds the parameters of a QP of a port.
type QPConfig struct {
	qp.Config // QPN 0: a free one; Memory nil: the port's regions

	SendCQ, RecvCQ *CQ // where completions are polled; nil: not at all
	SRQ            *SRQ
	XRCD           uint32 // XRCRecv: the XRC domain, above 0
}

// QP is a queue pair of a port.
type QP struct {
	port *Port
	m    *qp.QP

	route
	rate *limiter // nil without congestion control
	call *Call    // that established its connection

	sendCQ, recvCQ                *CQ
	sendNode, recvNode, eventNode node
	next, prev                    *QP // in a list of those that are ready

	due, paced int64 // deadline in the heap; end of a wait for the pacer
	heapAt     int32
	prio       uint8 // of a connected QP's data
	readyPrio  uint8 // of the list that it is in
	queued     bool
}

// route is where the packets of a connected QP go.
type route struct {
	ah         qp.AHAttr
	peer       netip.Addr
	mac        frame.MAC
	macDue     int64 // when to request it again, 0 for never
	doubted    int64 // when it was last doubted
	srcPort    uint16
	gid        uint8
	unresolved bool // the QP waits for a hardware address
	toSelf     bool // connected, to an address of its own port
}

// CreateQP creates a QP in Reset. QP 1, the GSI, is a UD QP. The errors are ErrNoQP and
// those of qp.New.
func (p *Port) CreateQP(cfg QPConfig) (*QP, error) {
	qpn := cfg.QPN
	switch {
	case qpn == 0:
		qpn = p.freeQPN()
	case int64(qpn) >= int64(firstQPN+p.cfg.MaxQPs) || int(qpn) < len(p.qps) && p.qps[qpn] != nil:
		qpn = 0
	}
	if qpn == 0 || qpn == GSIQPN && cfg.Type != qp.UD {
		return nil, ErrNoQP
	}
	c := cfg.Config
	c.QPN = qpn
	c.Clock = &p.clock
	if c.AckEvery == 0 {
		c.AckEvery = p.cc.ackEvery
	}
	if c.Memory == nil && p.cfg.Regions != nil {
		c.Memory = p.cfg.Regions
	}
	if cfg.SRQ != nil {
		c.SRQ = cfg.SRQ.SRQ
	}
	if c.Type == qp.XRCRecv {
		if cfg.XRCD == 0 {
			return nil, fmt.Errorf("%w: XRCD is 0 for a QP of type XRC_RECV", ErrConfig)
		}
		c.XRCSRQs = xrcDomain{p, cfg.XRCD}
	}
	if c.Trace == nil {
		c.Trace = p.cfg.TraceQP
	}
	m, err := qp.New(c)
	if err != nil {
		return nil, err
	}
	q := &QP{port: p, m: m, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ, heapAt: -1}
	q.sendNode.q, q.recvNode.q, q.eventNode.q = q, q, q
	q.recvNode.recv = true
	q.rate = p.cc.newLimiter(&c)
	p.makePlace(qpn)
	p.qps[p.place(qpn)] = q
	p.live++
	p.waiting.Grow(p.live) // so that no call on the packet path allocates
	return q, nil
}

// place returns the index of the QP with a number: with a seed, QP numbers have more bits
// than indexes.
func (p *Port) place(qpn uint32) uint32 { return qpn & uint32(len(p.qps)-1) }

// makePlace grows the table to the number of a QP. A simulated network has many ports with
// few queue pairs each, and the garbage collector scans every table as a whole.
func (p *Port) makePlace(qpn uint32) {
	if p.rng != nil || int(qpn) < len(p.qps) {
		return
	}
	size := len(p.qps)
	for size <= int(qpn) {
		size *= 2
	}
	p.qps = append(p.qps, make([]*QP, size-len(p.qps))...)
}

// freeQPN returns a number for a QP, or 0 when there are MaxQPs. Numbers are reused as late
// as possible, or taken from the seed, so that late packets of a destroyed QP do not reach
// another.
func (p *Port) freeQPN() uint32 {
	if p.live >= p.cfg.MaxQPs {
		return 0
	}
	if p.rng == nil {
		for {
			if p.lastQPN++; int(p.lastQPN) >= firstQPN+p.cfg.MaxQPs {
				p.lastQPN = firstQPN
			}
			if int(p.lastQPN) >= len(p.qps) || p.qps[p.lastQPN] == nil {
				return p.lastQPN
			}
		}
	}
	for {
		qpn := uint32(p.rng.Uint64()) & 0xffffff
		// Any free place will do, except those of special numbers.
		for p.qps[p.place(qpn)] != nil || p.place(qpn) <= GSIQPN {
			qpn = qpn&^uint32(len(p.qps)-1) | p.place(qpn+1)
		}
		if qpn >= firstQPN && qpn != qp.MulticastQPN {
			return qpn
		}
	}
}

// QP returns the QP with a number, or nil.
func (p *Port) QP(qpn uint32) *QP {
	if q := p.qps[p.place(qpn)]; q != nil && q.m.Num() == qpn {
		return q
	}
	return nil
}

// Destroy removes the QP. Completions that were not polled, and requests that were not
// complete, are discarded. After it, calls that would change something fail with ErrNoPort,
// and the others return the state of the QP at Destroy.
func (q *QP) Destroy() {
	p := q.port
	if p == nil {
		return
	}
	p.qps[p.place(q.Num())] = nil
	p.live--
	if q.heapAt >= 0 {
		p.waiting.Remove(int(q.heapAt))
	}
	q.sendCQ.drop(&q.sendNode)
	q.recvCQ.drop(&q.recvNode)
	p.detach(q, netip.Addr{})
	q.port = nil // the lists skip it
}

// machine returns the machine of q. That of the zero QP is the zero machine.
func (q *QP) machine() *qp.QP {
	if q.m == nil {
		return new(qp.QP)
	}
	return q.m
}

// Num returns the QP's number.
func (q *QP) Num() uint32 { return q.machine().Num() }

// Type returns the kind of the QP.
func (q *QP) Type() qp.Type { return q.machine().Type() }

// State returns the QP's state.
func (q *QP) State() qp.State { return q.machine().State() }

// Attr returns the QP's attributes.
func (q *QP) Attr() qp.Attr { return q.machine().Attr() }

// Counters returns what the QP counted.
func (q *QP) Counters() qp.Counters { return q.machine().Counters() }

// Outstanding returns the number of sends that are not complete.
func (q *QP) Outstanding() int { return q.machine().Outstanding() }

// SetHops sets how many switches the packets of the QP cross, for congestion control that
// uses it; see [congestion.PathFlow]. A real port can derive it from the hop limit of
// packets that arrive.
func (q *QP) SetHops(n int) {
	if q.rate == nil {
		return
	}
	if f, ok := q.rate.flow.(congestion.PathFlow); ok {
		f.SetHops(n)
	}
}

// GoesByPath reports whether congestion control of the QP uses SetHops.
func (q *QP) GoesByPath() bool {
	if q.rate == nil {
		return false
	}
	_, ok := q.rate.flow.(congestion.PathFlow)
	return ok
}

// Executed returns how many PSNs of the peer's requests were executed since the QP
// began to receive.
func (q *QP) Executed() uint64 { return q.machine().Executed() }

// Rate returns what congestion control allows the QP to send, in bits per second,
// and whether it is limited at all.
func (q *QP) Rate() (rate uint64, limited bool) {
	if q.port == nil {
		return 0, false
	}
	if q.rate == nil {
		return q.port.cfg.LineRate, false
	}
	return q.rate.rate(q.port.cfg.LineRate)
}

// Window returns how many bytes congestion control allows the QP to have in flight,
// 0 for any number, and how many are, where it counts them.
func (q *QP) Window() (most, inFlight int64) {
	if q.port == nil || q.rate == nil {
		return 0, 0
	}
	return q.rate.flow.Window(), q.rate.flight.bytes
}

// Modify changes attributes and state: see qp.QP's Modify. Besides its errors
// there are ErrAddress, ErrPKey and ErrNoPort; nothing has changed on any of them.
func (q *QP) Modify(now time.Time, a *qp.Attr, mask qp.AttrMask) error {
	peer, err := q.check(a, mask)
	if err != nil {
		return err
	}
	q.port.clock.At(now)
	if err := q.m.Modify(now, a, mask); err != nil {
		return err
	}
	q.modified(a, mask, peer)
	return nil
}

// Connect takes the QP from Reset or Init to RTS: see qp.QP's Connect. Besides its errors
// there are ErrAddress, ErrPKey and ErrNoPort; nothing has changed on any of them.
func (q *QP) Connect(now time.Time, a *qp.Attr) error {
	mask := qp.AttrMask(0)
	if a != nil && q.State() == qp.Reset {
		mask |= qp.AttrPKey
		if a.PKey == 0 {
			b := *a
			b.PKey = 0xffff // as the machine does
			a = &b
		}
	}
	if q.m != nil && q.m.Type() != qp.UD {
		mask |= qp.AttrAH | qp.AttrDestQPN
	}
	peer, err := q.check(a, mask)
	if err != nil {
		return err
	}
	q.port.clock.At(now)
	if err := q.m.Connect(now, a); err != nil {
		return err
	}
	q.modified(a, mask, peer)
	return nil
}

// check returns the address of the peer, where mask has AttrAH.
func (q *QP) check(a *qp.Attr, mask qp.AttrMask) (peer netip.Addr, err error) {
	switch {
	case q.port == nil:
		return peer, ErrNoPort
	case a == nil:
		return peer, qp.ErrNil
	case mask&qp.AttrPKey != 0 && !q.port.hasPKey(a.PKey):
		return peer, ErrPKey
	case mask&qp.AttrAH != 0:
		return q.port.destination(&a.AH)
	}
	return peer, nil
}

// modified updates the port after a change of the attributes in mask.
func (q *QP) modified(a *qp.Attr, mask qp.AttrMask, peer netip.Addr) {
	p := q.port
	if mask&qp.AttrAH != 0 {
		q.ah, q.peer, q.gid = a.AH, peer, a.AH.SGIDIndex
		q.mac = a.AH.MAC
		q.toSelf = p.ownsAddress(p.gids[q.gid].v1, peer)
		q.prio = Priority(q.ah.TrafficClass, q.ah.HasVLAN, q.ah.VLAN)
	}
	// The destination of the next packet may have changed, and whether there is one.
	q.unresolved = false
	if mask&(qp.AttrAH|qp.AttrDestQPN) != 0 {
		at := q.m.Attr()
		fl := at.AH.FlowLabel
		if fl == 0 {
			fl = frame.FlowLabel(q.Num(), at.DestQPN)
		}
		q.srcPort = frame.SourcePort(fl)
	}
	if a.State == qp.Reset && mask&qp.AttrState != 0 {
		q.paced = 0
		if q.rate != nil {
			q.rate.reset()
		}
	}
	p.touch(q)
}

// hasPKey reports whether k is an entry of the table, full or limited as it is there.
func (p *Port) hasPKey(k uint16) bool {
	for _, have := range p.cfg.PKeys {
		if have == k {
			return true
		}
	}
	return false
}

// destination returns the address of h, which must be of the family of the GID that it is
// to be sent from, unless that is for RoCE v1.
func (p *Port) destination(h *qp.AHAttr) (netip.Addr, error) {
	if int(h.SGIDIndex) >= len(p.gids) {
		return netip.Addr{}, ErrAddress
	}
	g := &p.gids[h.SGIDIndex]
	a := netip.AddrFrom16(h.GID).Unmap()
	if a.IsUnspecified() || !g.v1 && a.Is4() != g.addr.Is4() {
		return netip.Addr{}, ErrAddress
	}
	return a, nil
}

// CreateAH returns the handle of a, for datagrams of the port's QPs
// (ibv_create_ah). It fails with ErrAddress.
func (p *Port) CreateAH(a qp.AHAttr) (*qp.AddressHandle, error) {
	if _, err := p.destination(&a); err != nil {
		return nil, err
	}
	return qp.NewAddressHandle(a), nil
}

// PostSend adds a send: see qp.Requester's PostSend. Besides its errors there is
// ErrAddress for a datagram, and ErrNoPort.
func (q *QP) PostSend(now time.Time, wr *qp.SendWR) error {
	switch {
	case q.port == nil:
		return ErrNoPort
	case wr == nil:
		return qp.ErrNil
	}
	if wr.AH != nil && q.m.Type() == qp.UD {
		ah := wr.AH.Attr()
		if _, err := q.port.destination(&ah); err != nil {
			return err
		}
	}
	q.port.clock.At(now)
	if err := q.m.PostSend(now, wr); err != nil {
		return err
	}
	q.port.touch(q)
	return nil
}

// PostRecv adds a receive: see qp.QP's PostRecv.
func (q *QP) PostRecv(wr *qp.RecvWR) error {
	if q.port == nil {
		return ErrNoPort
	}
	if err := q.m.PostRecv(wr); err != nil {
		return err
	}
	if q.m.State() == qp.Error {
		q.port.touch(q) // it completes flushed
	}
	return nil
}

// group is a multicast address and the QPs attached to it.
type group struct {
	addr netip.Addr
	qps  []*QP
}

func (g *group) detach(q *QP) {
	for i, x := range g.qps {
		if x == q {
			g.qps = append(g.qps[:i], g.qps[i+1:]...)
			return
		}
	}
}

// AttachMulticast makes a UD QP receive the datagrams to a multicast address
// (ibv_attach_mcast). Joining the group on the network is left to the caller. The errors
// are ErrAddress, ErrNoPort, and qp.ErrOp on a QP of another type.
func (q *QP) AttachMulticast(addr netip.Addr) error {
	switch {
	case q.port == nil:
		return ErrNoPort
	case q.m.Type() != qp.UD:
		return qp.ErrOp
	case !addr.IsMulticast():
		return ErrAddress
	}
	addr = addr.Unmap()
	p := q.port
	for i := range p.groups {
		if g := &p.groups[i]; g.addr == addr {
			g.detach(q)
			g.qps = append(g.qps, q)
			return nil
		}
	}
	p.groups = append(p.groups, group{addr, []*QP{q}})
	return nil
}

// DetachMulticast undoes AttachMulticast.
func (q *QP) DetachMulticast(addr netip.Addr) {
	if q.port != nil {
		q.port.detach(q, addr.Unmap())
	}
}

// detach removes q from the group addr, or from all for the zero address. A group without
// QPs is removed.
func (p *Port) detach(q *QP, addr netip.Addr) {
	p.groups = slices.DeleteFunc(p.groups, func(g group) bool {
		if addr.IsValid() && g.addr != addr {
			return false
		}
		g.detach(q)
		return len(g.qps) == 0
	})
}
