package cm

import (
	"fmt"
	"time"
)

// Request holds what an active side requests.
type Request struct {
	Addr    Address
	Service ServiceID
	// CMA is RDMA-CM's header, for a service of RDMA-CM; nil: no header.
	CMA         *CMAHeader
	PrivateData []byte // REQ: at most 92 bytes, 56 after RDMA-CM's header; SIDR_REQ: 216 and 180

	Transport         TransportServiceType
	ExtendedTransport uint8
	QPN               uint32
	StartingPSN       uint32 // the first PSN that this side expects
	PKey              uint16
	PathMTU           MTU
	// ResponderResources and InitiatorDepth are the READs and ATOMICs that this side
	// accepts, and sends, at a time.
	ResponderResources, InitiatorDepth uint8
	RetryCnt, RNRRetry                 uint8
	SRQ, FlowControl                   bool
	QKey                               uint32

	TrafficClass uint8
	HopLimit     uint8 // 0 means 64
	FlowLabel    uint32

	VendorID, Options uint32 // enhanced connection establishment
}

// Reply holds what a passive side accepts.
type Reply struct {
	QPN         uint32
	StartingPSN uint32 // the first PSN that this side expects
	QKey        uint32
	// ResponderResources and InitiatorDepth are lowered to what the request
	// allows: its own initiator depth and responder resources (rule CM-13).
	ResponderResources, InitiatorDepth uint8
	RNRRetry                           uint8
	SRQ, FlowControl                   bool
	VendorID, Options                  uint32
	PrivateData                        []byte // at most 196 bytes
}

// Connect starts a call with a REQ and returns its local communication ID. The outcome is
// an EventReply, EventRejected or EventUnreachable. The errors are ErrFull, and ErrRange
// and ErrTooLong for values that do not fit.
func (m *Machine) Connect(now time.Time, r *Request) (id uint32, err error) {
	m.at(now)
	hops := r.HopLimit
	if hops == 0 {
		hops = 64
	}
	if r.PathMTU.Bytes() == 0 {
		return 0, fmt.Errorf("%w: PathMTU code %d", ErrRange, uint8(r.PathMTU))
	}
	ack := ackTimeout(m.cfg.PacketLifetime, m.cfg.AckDelay)
	q := REQ{
		VendorID: r.VendorID, ServiceID: r.Service, LocalCAGUID: m.cfg.CAGUID, LocalQKey: r.QKey, LocalQPN: r.QPN,
		ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth,
		RemoteCMResponseTimeout: m.cfg.ResponseTimeout, LocalCMResponseTimeout: m.cfg.ResponseTimeout,
		TransportServiceType: r.Transport, ExtendedTransportType: r.ExtendedTransport, EndToEndFlowControl: r.FlowControl,
		StartingPSN: r.StartingPSN, RetryCount: r.RetryCnt, RNRRetryCount: r.RNRRetry, PartitionKey: r.PKey,
		PathPacketPayloadMTU: r.PathMTU, MaxCMRetries: m.cfg.MaxRetries, SRQ: r.SRQ,
		Primary: Path{LocalPortLID: 0xffff, RemotePortLID: 0xffff,
			LocalPortGID: r.Addr.Local.As16(), RemotePortGID: r.Addr.Remote.As16(), FlowLabel: r.FlowLabel,
			TrafficClass: r.TrafficClass, HopLimit: hops, LocalACKTimeout: ack},
		PrivateData: r.private(),
	}
	if err := q.Validate(); err != nil {
		return 0, err
	}
	c := m.newCall(r.Addr)
	if c == nil {
		return 0, ErrFull
	}
	q.LocalCommID = c.id
	c.active, c.state, c.tid = true, ReqSent, m.newTID(c.id)
	c.mail.service = r.Service
	c.attr = Attr{Transport: r.Transport, ExtendedTransport: r.ExtendedTransport, QPN: r.QPN, RQPSN: r.StartingPSN,
		PKey: r.PKey, PathMTU: r.PathMTU, MaxDestRdAtomic: r.ResponderResources, MaxRdAtomic: r.InitiatorDepth,
		Timeout: ack, RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry,
		TrafficClass: r.TrafficClass, HopLimit: hops, FlowLabel: r.FlowLabel}
	m.out.Header = NewHeader(AttrREQ, c.tid)
	m.out.Header.AttributeModifier = r.Options
	m.out.REQ = q
	m.post(c)
	m.expect(c, 2*wait(m.cfg.PacketLifetime)+wait(m.cfg.ResponseTimeout), m.cfg.MaxRetries)
	return c.id, nil
}

// private returns the private data with RDMA-CM's header before them.
func (r *Request) private() []byte {
	if r.CMA == nil {
		return r.PrivateData
	}
	return append(r.CMA.AppendTo(make([]byte, 0, CMAHeaderSize+len(r.PrivateData))), r.PrivateData...)
}

// Accept responds to a request with a REP, and returns the attributes of the queue pair,
// which must be in RTS before NextMAD is called. EventEstablished follows when the peer is
// ready too. The errors are ErrCall, ErrState, ErrRange and ErrTooLong.
func (m *Machine) Accept(now time.Time, id uint32, r *Reply) (Attr, error) {
	m.at(now)
	c, err := m.in1(id, ReqReceived, MRAReqSent)
	if err != nil {
		return Attr{}, err
	}
	p := REP{
		LocalCommID: c.id, RemoteCommID: c.remoteID, LocalQKey: r.QKey, LocalQPN: r.QPN, StartingPSN: r.StartingPSN,
		VendorID:           r.VendorID,
		ResponderResources: min(r.ResponderResources, c.attr.MaxDestRdAtomic),
		InitiatorDepth:     min(r.InitiatorDepth, c.attr.MaxRdAtomic),
		TargetACKDelay:     m.cfg.AckDelay, EndToEndFlowControl: r.FlowControl,
		RNRRetryCount: r.RNRRetry, SRQ: r.SRQ, LocalCAGUID: m.cfg.CAGUID, PrivateData: r.PrivateData,
	}
	if err := p.Validate(); err != nil {
		return Attr{}, err
	}
	c.attr.QPN, c.attr.RQPSN = r.QPN, r.StartingPSN
	c.attr.MaxDestRdAtomic, c.attr.MaxRdAtomic = p.ResponderResources, p.InitiatorDepth
	c.state = RepSent
	c.mail.mraDue = false
	m.out.Header = NewHeader(AttrREP, c.tid)
	m.out.Header.AttributeModifier = r.Options
	m.out.REP = p
	m.post(c)
	m.expect(c, c.timer.every, c.timer.retries)
	return c.attr, nil
}

// in1 returns a call that is in one of two states.
func (m *Machine) in1(id uint32, a, b State) (*call, error) {
	c := m.find(id)
	if c == nil {
		return nil, ErrCall
	}
	if c.state != a && c.state != b {
		return nil, fmt.Errorf("%w: %v", ErrState, c.state)
	}
	return c, nil
}

// Ready responds to a REP with an RTU, after the queue pair has gone to RTS: the connection
// is established. The errors are ErrCall, ErrState and ErrTooLong.
func (m *Machine) Ready(id uint32, private []byte) error {
	c, err := m.in1(id, RepReceived, MRARepSent)
	if err != nil {
		return err
	}
	if len(private) > RTUPrivateDataSize {
		return ErrTooLong
	}
	c.state = Established
	c.mail.mraDue = false
	m.out.Header = NewHeader(AttrRTU, c.tid)
	m.out.RTU = RTU{LocalCommID: c.id, RemoteCommID: c.remoteID, PrivateData: private}
	m.post(c)
	return nil
}

// CommEst reports that the first packet was received on the call's queue pair: the peer is
// ready, whether or not its RTU has arrived (rule CM-6). It has an effect only in states
// that wait for RTU.
func (m *Machine) CommEst(id uint32) {
	if c := m.find(id); c != nil && (c.state == RepSent || c.state == MRARepReceived) {
		m.established(c, nil)
	}
}

func (m *Machine) established(c *call, private []byte) {
	c.mail.private.keep(private)
	c.state = Established
	m.stop(c)
	m.setHalf(c, false)
	m.tell(c, EventEstablished)
}

// Reject refuses a request or a reply. The EventRejected that follows is the
// call's last event. The errors are ErrCall, ErrState and ErrTooLong.
func (m *Machine) Reject(id uint32, reason Reason, info, private []byte) error {
	c := m.find(id)
	if c == nil {
		return ErrCall
	}
	switch c.state {
	case ReqReceived, MRAReqSent, RepReceived, MRARepSent:
	default:
		return fmt.Errorf("%w: %v", ErrState, c.state)
	}
	if len(info) > REJARISize || len(private) > REJPrivateDataSize {
		return ErrTooLong
	}
	m.reject(c, reason, info, private)
	return nil
}

func (m *Machine) reject(c *call, reason Reason, info, private []byte) {
	m.buildREJ(c, reason, info, private)
	c.mail.local = true
	c.mail.reject.what, c.mail.reject.reason = m.out.REJ.MessageRejected, reason
	c.mail.private.keep(nil)
	m.post(c)
	m.end(c, EventRejected)
}

// Disconnect ends a call whatever its state. An established one ends with a DREQ or, after
// a DREQ of the peer, a DREP; others with a REJ, without private, and an EventRejected with
// Local set. Calling it again does nothing. It returns ErrCall and ErrTooLong.
func (m *Machine) Disconnect(now time.Time, id uint32, private []byte) error {
	m.at(now)
	c := m.find(id)
	if c == nil {
		return ErrCall
	}
	if len(private) > DREQPrivateDataSize {
		return ErrTooLong
	}
	switch c.state {
	case Established:
		m.sendDREQ(c, private)
	case DreqReceived:
		m.buildDREP(c.id, c.remoteID, c.tid, private)
		m.post(c)
		m.timewait(c)
	case ReqSent, MRAReqReceived:
		m.reject(c, ReasonTimeout, guidARI(m.cfg.CAGUID), nil)
	case SIDRReqSent:
		c.mail.local = true
		m.drop(c)
		m.end(c, EventRejected)
	case SIDRReqReceived:
		return m.ReplySIDR(id, &SIDRReply{Status: SIDRRejected})
	case Idle, DreqSent, Timewait:
	default:
		m.reject(c, ReasonConsumer, nil, nil)
	}
	return nil
}

func (m *Machine) sendDREQ(c *call, private []byte) {
	c.state = DreqSent
	c.tid = m.newTID(c.id)
	m.out.Header = NewHeader(AttrDREQ, c.tid)
	m.out.DREQ = DREQ{LocalCommID: c.id, RemoteCommID: c.remoteID, RemoteQPNEECN: c.attr.DestQPN, PrivateData: private}
	m.post(c)
	every, n := c.timer.every, m.cfg.MaxRetries
	if c.active {
		every = 2*wait(m.cfg.PacketLifetime) + wait(m.cfg.ResponseTimeout)
	}
	m.expect(c, every, n)
}

func (m *Machine) buildDREP(local, remote uint32, tid uint64, private []byte) {
	m.out.Header = NewHeader(AttrDREP, tid)
	m.out.DREP = DREP{LocalCommID: local, RemoteCommID: remote, PrivateData: private}
}

// ResolveSIDR requests the queue pair of an unconnected service with a SIDR_REQ: it uses
// Addr, Service, CMA, PKey and PrivateData of r. The call ends with an EventSIDRReply or
// EventUnreachable. The errors are those of Connect.
func (m *Machine) ResolveSIDR(now time.Time, r *Request) (id uint32, err error) {
	m.at(now)
	q := SIDRREQ{PartitionKey: r.PKey, ServiceID: r.Service, PrivateData: r.private()}
	if err := q.Validate(); err != nil {
		return 0, err
	}
	c := m.newCall(r.Addr)
	if c == nil {
		return 0, ErrFull
	}
	q.RequestID = c.id
	c.active, c.state, c.tid = true, SIDRReqSent, m.newTID(c.id)
	c.mail.service = r.Service
	c.attr = Attr{PKey: r.PKey}
	m.out.Header = NewHeader(AttrSIDRREQ, c.tid)
	m.out.SIDRREQ = q
	m.post(c)
	m.expect(c, wait(m.cfg.ResponseTimeout), m.cfg.MaxRetries)
	return c.id, nil
}

// SIDRReply is the response to a SIDR_REQ: the queue pair of the service, or why there is
// none.
type SIDRReply struct {
	Status      SIDRStatus
	QPN, QKey   uint32 // with SIDRValid
	Info        []byte // at most 72 bytes
	PrivateData []byte // at most 136 bytes
}

// ReplySIDR responds to an EventSIDRRequest. The errors are ErrCall (also when the peer's
// timeout is over), ErrState, ErrRange and ErrTooLong.
func (m *Machine) ReplySIDR(id uint32, r *SIDRReply) error {
	c, err := m.in1(id, SIDRReqReceived, SIDRReqReceived)
	if err != nil {
		return err
	}
	p := SIDRREP{RequestID: c.remoteID, Status: r.Status, QPN: r.QPN, QKey: r.QKey, ServiceID: c.mail.service,
		AdditionalInformationLength: uint8(min(len(r.Info), SIDRREPInfoSize)), AdditionalInformation: r.Info, PrivateData: r.PrivateData}
	if err := p.Validate(); err != nil {
		return err
	}
	m.out.Header = NewHeader(AttrSIDRREP, c.tid)
	m.out.SIDRREP = p
	m.post(c)
	m.forget(c)
	return nil
}
