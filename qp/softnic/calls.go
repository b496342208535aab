package softnic

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
)

// Call is a connection of the port's connection machine, from its request to the end of
// timewait. Port.NextCMEvent returns it with each of its events. After the last event it
// refers to nothing.
type Call struct {
	ID     uint32 // local communication ID
	QP     *QP    // nil where the caller drives QPs of its own, and for SIDR
	Active bool
	Local  netip.Addr // of this port
	Remote netip.Addr

	// User is the caller's.
	User any

	attr ConnAttr
	est  bool
}

// ConnAttr holds the attributes that one side wants for a connection.
type ConnAttr struct {
	PrivateData []byte

	Access      qp.Access // what the peer may do; READ and ATOMIC only where MaxDestRdAtomic > 0
	PathMTU     int       // bytes, of the active side; 0: 1024
	PKey        uint16    // 0: the port's first
	MaxRdAtomic int       // READs and ATOMICs to have outstanding; lowered to the peer's limit
	// MaxDestRdAtomic is how many the peer may have outstanding.
	MaxDestRdAtomic int
	RetryCnt        uint8 // 0..7; both sides take the active side's
	RNRRetry        uint8 // 0..7; for the peer's requests
	// MinRNRTimer is the code of the time that the peer waits after an RNR NAK. 0 means
	// code 12, 0.64 ms; the code 0, 655 ms, cannot be chosen.
	MinRNRTimer uint8
	SRQ         bool // set the SRQ bit: this side has a shared receive queue

	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32
	VLAN         uint16 // with HasVLAN; of the active side
	HasVLAN      bool
	SourcePort   uint16 // in RDMA-CM's header; of the active side

	VendorID, Options uint32 // enhanced connection establishment
}

// CMCounters returns what the connection machine counted.
func (p *Port) CMCounters() cm.MachineCounters { return p.gsi.m.Counters() }

// Calls returns how many calls the connection machine holds, and how many of those were
// requested by peers and are not established.
func (p *Port) Calls() (all, halfOpen int) { return p.gsi.m.Calls(), p.gsi.m.HalfOpen() }

var errNoCM = fmt.Errorf("%w: CM is nil, so this port has no connections", ErrConfig)

// Listen makes NextCMEvent report the requests for a service (for RDMA-CM see
// cm.IPServiceID): see cm.Machine's Listen. It fails with ErrConfig without Config.CM.
func (p *Port) Listen(service cm.ServiceID, backlog int) error {
	if !p.gsi.on {
		return errNoCM
	}
	return p.gsi.m.Listen(service, backlog)
}

// Unlisten undoes Listen.
func (p *Port) Unlisten(service cm.ServiceID) { p.gsi.m.Unlisten(service) }

// localFor returns the row of the first GID of a's family, for IPv6 of a's scope where
// there is one.
func (p *Port) localFor(a netip.Addr) (int, error) {
	best := -1
	for i := range p.gids {
		g := p.gids[i].addr
		if g.Is4() != a.Is4() {
			continue
		}
		if g.IsLinkLocalUnicast() == a.IsLinkLocalUnicast() {
			return i, nil
		}
		if best < 0 {
			best = i
		}
	}
	if best < 0 {
		return 0, fmt.Errorf("%w: the port has no address of the family of %v", ErrAddress, a)
	}
	return best, nil
}

// NewPSN returns a random starting PSN from Config.Seed, or 0 where that is nil.
func (p *Port) NewPSN() psn.PSN {
	if p.rng == nil {
		return 0
	}
	return psn.PSN(p.rng.Uint64() & 0xffffff)
}

// Connect requests a connection of q, an RC, UC or XRC QP in Reset or Init, from a peer. A
// QP in Reset goes to Init. NextCMEvent returns EventEstablished when q is in RTS, or
// EventRejected or EventUnreachable. Besides the errors of cm.Machine's Connect there are
// ErrConfig, ErrAddress and ErrPKey.
func (p *Port) Connect(now time.Time, q *QP, to netip.Addr, service cm.ServiceID, a ConnAttr) (*Call, error) {
	if !p.gsi.on {
		return nil, errNoCM
	}
	p.clock.At(now)
	r, err := p.request(to, service, &a)
	if err != nil {
		return nil, err
	}
	switch q.Type() {
	case qp.UC:
		r.Transport = cm.ServiceUC
	case qp.XRCSend, qp.XRCRecv:
		r.Transport, r.ExtendedTransport = cm.ServiceExtended, cm.ExtendedXRC
	case qp.UD:
		return nil, fmt.Errorf("%w: a UD QP has no connections, see ResolveSIDR", qp.ErrOp)
	}
	if a.PathMTU == 0 {
		a.PathMTU = 1024
	}
	for c := cm.MTU256; c <= cm.MTU4096; c++ {
		if c.Bytes() == a.PathMTU {
			r.PathMTU = c
		}
	}
	if err := q.toInit(now, r.PKey, a.Access); err != nil {
		return nil, err
	}
	r.QPN, r.StartingPSN = q.Num(), uint32(p.NewPSN())
	r.ResponderResources, r.InitiatorDepth = clip8(a.MaxDestRdAtomic), clip8(a.MaxRdAtomic)
	r.RetryCnt, r.RNRRetry, r.SRQ = a.RetryCnt, a.RNRRetry, a.SRQ
	r.VendorID, r.Options = a.VendorID, a.Options
	id, err := p.gsi.m.Connect(now, r)
	if err != nil {
		return nil, err
	}
	return p.newCall(id, q, true, r.Addr, a), nil
}

func clip8(n int) uint8 { return uint8(min(max(n, 0), 255)) }

// newCall adds a call to the port's table.
func (p *Port) newCall(id uint32, q *QP, active bool, addr cm.Address, a ConnAttr) *Call {
	c := &Call{ID: id, QP: q, Active: active, Local: addr.Local, Remote: addr.Remote, attr: a}
	p.gsi.calls[id] = c
	if q != nil {
		q.call = c
	}
	p.work()
	return c
}

// request returns a request with the fields that requests for connections and for datagram
// services share.
func (p *Port) request(to netip.Addr, service cm.ServiceID, a *ConnAttr) (*cm.Request, error) {
	to = to.Unmap().WithZone("")
	i, err := p.localFor(to)
	if err != nil {
		return nil, err
	}
	if !to.IsValid() || to.IsUnspecified() || to.IsMulticast() {
		return nil, fmt.Errorf("%w: %v cannot be called", ErrAddress, to)
	}
	g := &p.gids[i]
	r := &cm.Request{Addr: cm.Address{Local: g.addr, Remote: to, VLAN: a.VLAN, HasVLAN: a.HasVLAN}, Service: service,
		PrivateData: a.PrivateData, PKey: a.PKey, TrafficClass: a.TrafficClass, HopLimit: a.HopLimit, FlowLabel: a.FlowLabel}
	if r.PKey == 0 {
		r.PKey = p.cfg.PKeys[0]
	}
	if service.IsIP() {
		h, err := cm.NewCMAHeader(netip.AddrPortFrom(g.addr, a.SourcePort), to)
		if err != nil {
			return nil, err
		}
		r.CMA = &h
	}
	return r, nil
}

// ResolveSIDR requests the QP of a datagram service from a peer: NextCMEvent returns
// EventSIDRReply, with QPN and Q_Key in its Attr, or EventUnreachable.
func (p *Port) ResolveSIDR(now time.Time, to netip.Addr, service cm.ServiceID, a ConnAttr) (*Call, error) {
	if !p.gsi.on {
		return nil, errNoCM
	}
	p.clock.At(now)
	r, err := p.request(to, service, &a)
	if err != nil {
		return nil, err
	}
	id, err := p.gsi.m.ResolveSIDR(now, r)
	if err != nil {
		return nil, err
	}
	return p.newCall(id, nil, true, r.Addr, a), nil
}

// ReplySIDR responds to an EventSIDRRequest.
func (p *Port) ReplySIDR(now time.Time, c *Call, r *cm.SIDRReply) error {
	p.clock.At(now)
	p.work()
	return p.gsi.m.ReplySIDR(c.ID, r)
}

// Accept accepts an EventRequest with q, a QP in Reset or Init, which goes to RTS.
// NextCMEvent returns EventEstablished when the peer is ready. After an error the request
// is still open: accept it with other arguments, or reject it. Only where the QP refuses
// what the two sides agreed on, such as more READs than it can have outstanding, is the
// call rejected.
func (p *Port) Accept(now time.Time, c *Call, q *QP, a ConnAttr) error {
	p.clock.At(now)
	if a.PKey == 0 {
		a.PKey = p.cfg.PKeys[0]
	}
	if err := q.toInit(now, a.PKey, a.Access); err != nil {
		return err
	}
	start := p.NewPSN()
	c.attr = a
	at, err := p.gsi.m.Accept(now, c.ID, &cm.Reply{QPN: q.Num(), StartingPSN: uint32(start), RNRRetry: a.RNRRetry, SRQ: a.SRQ,
		ResponderResources: clip8(a.MaxDestRdAtomic), InitiatorDepth: clip8(a.MaxRdAtomic),
		VendorID: a.VendorID, Options: a.Options, PrivateData: a.PrivateData})
	if err != nil {
		return err
	}
	c.QP, q.call = q, c
	p.work()
	if err := p.connectQP(now, c, &at); err != nil {
		_ = p.gsi.m.Disconnect(now, c.ID, nil)
		return err
	}
	return nil
}

// Reject rejects an EventRequest, with cm.ReasonConsumer for reasons of the application's
// own. An EventRejected ends the call.
func (p *Port) Reject(c *Call, reason cm.Reason, info, private []byte) error {
	p.work()
	return p.gsi.m.Reject(c.ID, reason, info, private)
}

// Disconnect ends a call, whatever its state. The QP of an established one goes to
// Error at once; an EventDisconnected and, when its number is free to be used
// again, an EventTimewaitExit follow. Calls that are not established end with an
// EventRejected.
func (p *Port) Disconnect(now time.Time, c *Call, private []byte) error {
	p.clock.At(now)
	p.work()
	if p.gsi.calls[c.ID] != c {
		return cm.ErrCall
	}
	c.toError(now)
	return p.gsi.m.Disconnect(now, c.ID, private)
}

// toError takes the call's QP to Error, except from Reset.
func (c *Call) toError(now time.Time) {
	if q := c.QP; q != nil && q.port != nil && q.State() != qp.Reset && q.State() != qp.Error {
		_ = q.Modify(now, &qp.Attr{State: qp.Error}, qp.AttrState)
	}
}

// toInit takes a QP in Reset to Init.
func (q *QP) toInit(now time.Time, pkey uint16, access qp.Access) error {
	if q.State() == qp.Init {
		return nil
	}
	mask := qp.AttrState | qp.AttrPKey | qp.AttrAccess
	return q.Modify(now, &qp.Attr{State: qp.Init, PKey: pkey, Access: access}, mask)
}

// connectQP takes the call's QP to RTS with what was agreed on.
func (p *Port) connectQP(now time.Time, c *Call, at *cm.Attr) error {
	sgid, ok := p.rowOf(c.Local)
	if !ok {
		return ErrAddress
	}
	rnr := c.attr.MinRNRTimer
	if rnr == 0 {
		rnr = 12
	}
	if access := c.attr.Access &^ (qp.RemoteRead | qp.RemoteAtomic); at.MaxDestRdAtomic == 0 && c.QP.Type() != qp.XRCSend {
		// Rights without the resources for them are not granted (rule CM-13).
		if err := c.QP.Modify(now, &qp.Attr{Access: access}, qp.AttrAccess); err != nil {
			return err
		}
	}
	return c.QP.Connect(now, &qp.Attr{PathMTU: at.PathMTU.Bytes(), DestQPN: at.DestQPN, Access: c.attr.Access,
		AH: qp.AHAttr{GID: c.Remote.As16(), SGIDIndex: uint8(sgid), TrafficClass: at.TrafficClass, HopLimit: at.HopLimit,
			FlowLabel: at.FlowLabel, VLAN: c.attr.VLAN, HasVLAN: c.attr.HasVLAN},
		RQPSN: psn.PSN(at.RQPSN), SQPSN: psn.PSN(at.SQPSN), MinRNRTimer: aeth.RNRTimer(rnr),
		MaxDestRdAtomic: int(at.MaxDestRdAtomic), MaxRdAtomic: int(at.MaxRdAtomic),
		Timeout: at.Timeout, RetryCnt: at.RetryCnt, RNRRetry: at.RNRRetry})
}

// NextCMEvent stores an event of the connection machine in e and returns its call, or
// reports false when there is none. The port has changed the QP's state by then: a
// connected QP is in RTS, one whose connection has ended is in Error. The event's private
// data are valid until the next call to the port.
//
// Call Accept or Reject for an EventRequest. A call without a QP gets EventReply, where one
// with a QP gets EventEstablished.
func (p *Port) NextCMEvent(now time.Time, e *cm.Event) (*Call, bool) {
	p.clock.At(now)
	if !p.gsi.m.NextEvent(e) {
		return nil, false
	}
	c := p.gsi.calls[e.ID]
	if c == nil {
		c = p.newCall(e.ID, nil, e.Active, e.Addr, ConnAttr{})
		c.attr.VLAN, c.attr.HasVLAN = e.Addr.VLAN, e.Addr.HasVLAN
	}
	switch e.Kind {
	case cm.EventReply:
		if c.QP == nil {
			break
		}
		if err := p.connectQP(now, c, &e.Attr); err != nil {
			_ = p.gsi.m.Reject(e.ID, cm.ReasonConsumer, nil, nil)
			return p.NextCMEvent(now, e)
		}
		_ = p.gsi.m.Ready(e.ID, nil)
		e.Kind = cm.EventEstablished
		c.est = true
	case cm.EventEstablished:
		c.est = true
	case cm.EventRejected, cm.EventUnreachable, cm.EventDisconnected:
		c.toError(now)
		if e.Kind == cm.EventDisconnected {
			_ = p.gsi.m.Disconnect(now, e.ID, nil)
		}
	}
	if e.Last && e.Kind != cm.EventSIDRRequest {
		delete(p.gsi.calls, e.ID)
		if c.QP != nil && c.QP.call == c {
			c.QP.call = nil
		}
	}
	p.work()
	return c, true
}
