package cm

import "time"

// HandleMAD handles a datagram that was received on QP 1 with the management Q_Key.
// from.Remote is its sender, from.Local the address of this port. Nothing of b is kept. It
// reports whether the datagram was one of connection management: others are left to the
// caller.
func (m *Machine) HandleMAD(now time.Time, from Address, b []byte) bool {
	m.at(now)
	m.counters.Rx++
	switch err := m.in.Decode(b); {
	case err == ErrClass:
		m.counters.NotCM++
		return false
	case err != nil:
		m.counters.Malformed++
		return true
	}
	h := &m.in.Header
	if h.BaseVersion != BaseVersion || h.ClassVersion != ClassVersion || h.Method != MethodSend {
		m.counters.Malformed++
		return true
	}
	switch h.AttributeID {
	case AttrREQ:
		m.handleREQ(from, h, &m.in.REQ)
	case AttrREP:
		m.handleREP(from, h, &m.in.REP)
	case AttrRTU:
		m.handleRTU(&m.in.RTU)
	case AttrMRA:
		m.handleMRA(&m.in.MRA)
	case AttrREJ:
		m.handleREJ(&m.in.REJ)
	case AttrDREQ:
		m.handleDREQ(from, h, &m.in.DREQ)
	case AttrDREP:
		m.handleDREP(&m.in.DREP)
	case AttrSIDRREQ:
		m.handleSIDRREQ(from, h, &m.in.SIDRREQ)
	case AttrSIDRREP:
		m.handleSIDRREP(&m.in.SIDRREP)
	case AttrLAP:
		m.handleLAP(from, h, &m.in.LAP)
	default: // APR: no LAP is ever sent
		m.counters.Unknown++
	}
	return true
}

// callOf returns the call that a message names by both communication IDs.
func (m *Machine) callOf(ours, theirs uint32) *call {
	if c := m.find(ours); c != nil && c.remoteID == theirs && theirs != 0 {
		return c
	}
	m.counters.Unknown++
	return nil
}

// refuse responds to a REQ or REP with a REJ that belongs to no call.
func (m *Machine) refuse(to Address, tid uint64, localID, remoteID uint32, what MessageRejected, reason Reason) {
	m.out.Header = NewHeader(AttrREJ, tid)
	m.out.REJ = REJ{LocalCommID: localID, RemoteCommID: remoteID, MessageRejected: what, Reason: reason}
	m.respond(to)
}

// admit allocates a call for a peer's request, with a listener and within the limits (rule
// CM-19), or returns nil.
func (m *Machine) admit(from Address, l *listener) *call {
	if m.halfOpen >= m.cfg.MaxHalfOpen || l.open >= l.backlog ||
		m.halfOpen >= m.cfg.MaxHalfOpenPeer && m.halfOpenOf(from.Remote) >= m.cfg.MaxHalfOpenPeer {
		m.counters.HalfOpenFull++
		return nil
	}
	c := m.newCall(from)
	if c == nil {
		m.counters.Full++
		return nil
	}
	c.mail.service = l.service
	m.setHalf(c, true)
	return c
}

func (m *Machine) handleREQ(from Address, h *Header, r *REQ) {
	if r.LocalCommID == 0 {
		m.counters.Malformed++
		return
	}
	if c := m.findRemote(r.LocalCAGUID, r.LocalCommID); c != nil {
		m.counters.Duplicates++
		switch c.state {
		case MRAReqSent:
			c.mail.mraDue = true
			m.sending.push(c)
		case Timewait:
			m.counters.Stale++
			m.refuse(from, h.TransactionID, 0, r.LocalCommID, RejectedREQ, ReasonStaleConnection)
		}
		return
	}
	if m.stale(r.LocalCAGUID, r.LocalQPN, nil) {
		m.refuse(from, h.TransactionID, 0, r.LocalCommID, RejectedREQ, ReasonStaleConnection)
		return
	}
	l := m.listener(r.ServiceID)
	if l == nil {
		m.counters.NoListener++
		m.refuse(from, h.TransactionID, 0, r.LocalCommID, RejectedREQ, ReasonInvalidServiceID)
		return
	}
	var call CMAHeader
	private, isCMA := r.CMA(&call)
	reason := Reason(0)
	switch {
	case r.ServiceID.IsIP() && !isCMA:
		reason = ReasonConsumer
	case r.TransportServiceType == ServiceRD, r.TransportServiceType == ServiceExtended && r.ExtendedTransportType != ExtendedXRC:
		reason = ReasonInvalidTransportServiceType
	case r.PathPacketPayloadMTU.Bytes() == 0:
		reason = ReasonInvalidPathMTU
	}
	if reason != 0 {
		m.refuse(from, h.TransactionID, 0, r.LocalCommID, RejectedREQ, reason)
		return
	}
	c := m.admit(from, l)
	if c == nil {
		return
	}
	c.state, c.tid = ReqReceived, h.TransactionID
	c.remoteID, c.guid = r.LocalCommID, r.LocalCAGUID
	c.attr = Attr{Transport: r.TransportServiceType, ExtendedTransport: r.ExtendedTransportType, DestQPN: r.LocalQPN,
		SQPSN: r.StartingPSN, QKey: r.LocalQKey, PKey: r.PartitionKey, PathMTU: r.PathPacketPayloadMTU,
		MaxDestRdAtomic: r.InitiatorDepth, MaxRdAtomic: r.ResponderResources, Timeout: r.Primary.LocalACKTimeout,
		RetryCnt: r.RetryCount, RNRRetry: r.RNRRetryCount, SRQ: r.SRQ, FlowControl: r.EndToEndFlowControl,
		TrafficClass: r.Primary.TrafficClass, HopLimit: r.Primary.HopLimit, FlowLabel: r.Primary.FlowLabel,
		VendorID: r.VendorID, Options: h.AttributeModifier}
	c.timer.every, c.timer.retries = wait(r.LocalCMResponseTimeout), r.MaxCMRetries
	if !isCMA {
		private = r.PrivateData
	}
	c.mail.call, c.mail.cma = call, isCMA
	c.mail.private.keep(private)
	m.byRemote.add(c, remoteKey(c.guid, c.remoteID))
	m.byQPN.add(c, remoteKey(c.guid, c.attr.DestQPN))
	m.tell(c, EventRequest)
}

// stale reports whether a peer's queue pair belongs to a call other than c: one of the two
// is stale. The old connection is ended (rule CM-5).
func (m *Machine) stale(guid uint64, qpn uint32, c *call) bool {
	old := m.findQPN(guid, qpn)
	if old == nil || old == c {
		return false
	}
	m.counters.Stale++
	if old.state == Established {
		m.sendDREQ(old, nil)
	}
	return true
}

func (m *Machine) handleREP(from Address, h *Header, r *REP) {
	c := m.find(r.RemoteCommID)
	if c == nil || r.LocalCommID == 0 {
		m.counters.Unknown++
		return
	}
	if c.state != ReqSent && c.state != MRAReqReceived {
		if !c.active || c.remoteID != r.LocalCommID {
			m.counters.Unknown++
			return
		}
		m.counters.Duplicates++
		switch c.state {
		case Established:
			m.again(c) // the RTU
		case MRARepSent:
			c.mail.mraDue = true
			m.sending.push(c)
		}
		return
	}
	if m.findRemote(r.LocalCAGUID, r.LocalCommID) != nil {
		m.counters.Unknown++ // a communication ID of another call
		return
	}
	if m.stale(r.LocalCAGUID, r.LocalQPN, c) {
		m.refuse(from, h.TransactionID, c.id, r.LocalCommID, RejectedREP, ReasonStaleConnection)
		c.mail.local = true
		c.mail.reject.what, c.mail.reject.reason = RejectedREP, ReasonStaleConnection
		c.mail.private.keep(nil)
		m.drop(c)
		m.end(c, EventRejected)
		return
	}
	c.state = RepReceived
	c.remoteID, c.guid = r.LocalCommID, r.LocalCAGUID
	a := &c.attr
	a.DestQPN, a.SQPSN, a.QKey = r.LocalQPN, r.StartingPSN, r.LocalQKey
	a.MaxDestRdAtomic, a.MaxRdAtomic = min(a.MaxDestRdAtomic, r.InitiatorDepth), min(a.MaxRdAtomic, r.ResponderResources)
	a.Timeout = ackTimeout(m.cfg.PacketLifetime, r.TargetACKDelay)
	a.RNRRetry, a.SRQ, a.FlowControl = r.RNRRetryCount, r.SRQ, r.EndToEndFlowControl
	a.VendorID, a.Options = r.VendorID, h.AttributeModifier
	c.mail.private.keep(r.PrivateData)
	m.drop(c)
	m.stop(c)
	m.byRemote.add(c, remoteKey(c.guid, c.remoteID))
	m.byQPN.add(c, remoteKey(c.guid, a.DestQPN))
	m.tell(c, EventReply)
}

// drop removes the message of c that is still to be sent: it is no longer needed.
func (m *Machine) drop(c *call) {
	c.mail.msgDue = false
	m.unqueue(c)
}

// unqueue removes c from the queue of calls with something to send when it has nothing.
func (m *Machine) unqueue(c *call) {
	if !c.mail.mraDue && !c.mail.aprDue && !c.mail.msgDue {
		m.sending.remove(c)
	}
}

func (m *Machine) handleRTU(r *RTU) {
	c := m.callOf(r.RemoteCommID, r.LocalCommID)
	switch {
	case c == nil:
	case c.state == RepSent || c.state == MRARepReceived:
		m.established(c, r.PrivateData)
	default:
		m.counters.Duplicates++
	}
}

func (m *Machine) handleMRA(r *MRA) {
	c := m.find(r.RemoteCommID)
	switch {
	case c == nil:
		m.counters.Unknown++
		return
	case r.MessageMRAed == MRAedREQ && (c.state == ReqSent || c.state == MRAReqReceived):
		c.state = MRAReqReceived
	case r.MessageMRAed == MRAedREP && (c.state == RepSent || c.state == MRARepReceived) && r.LocalCommID == c.remoteID:
		c.state = MRARepReceived
	default:
		m.counters.Unknown++
		return
	}
	m.drop(c)
	m.arm(c, wait(r.ServiceTimeout)+2*wait(m.cfg.PacketLifetime))
}

// rejectedCall returns the call that a REJ is about (rule CM-8).
func (m *Machine) rejectedCall(r *REJ) *call {
	if r.Reason == ReasonTimeout && r.RejectInfoLength >= 8 && r.RemoteCommID == 0 {
		// The peer gave up before it had received this side's communication ID.
		var guid uint64
		for _, b := range r.ARI[:8] {
			guid = guid<<8 | uint64(b)
		}
		return m.findRemote(guid, r.LocalCommID)
	}
	c := m.find(r.RemoteCommID)
	if c == nil {
		return nil
	}
	// A peer that refuses a REQ may have no communication ID, and before its REP this side
	// does not know it.
	if c.remoteID == r.LocalCommID || c.remoteID == 0 || r.LocalCommID == 0 && r.MessageRejected == RejectedREQ {
		return c
	}
	return nil
}

func (m *Machine) handleREJ(r *REJ) {
	c := m.rejectedCall(r)
	if c == nil {
		m.counters.Unknown++
		return
	}
	to := Idle
	switch c.state {
	case ReqSent, MRAReqReceived, RepSent, MRARepReceived:
		if r.Reason == ReasonStaleConnection {
			to = Timewait
		}
	case Established, DreqSent:
		to = Timewait
	case ReqReceived, MRAReqSent, RepReceived, MRARepSent:
	default:
		m.counters.Unknown++
		return
	}
	if c.mail.pending != 0 {
		// A REJ is not retransmitted: its event replaces those that were not polled.
		c.mail.pending = 0
		m.events.remove(c)
		if c.state == ReqReceived { // its owner has had no event of it
			m.forget(c)
			return
		}
	}
	j := &c.mail.reject
	j.what, j.reason = r.MessageRejected, r.Reason
	j.info = j.buf[:copy(j.buf[:], r.ARI[:min(int(r.RejectInfoLength), len(r.ARI))])]
	c.mail.private.keep(r.PrivateData)
	m.drop(c)
	if to == Timewait {
		m.timewait(c)
		m.tell(c, EventRejected)
		return
	}
	m.end(c, EventRejected)
}

func (m *Machine) handleDREQ(from Address, h *Header, r *DREQ) {
	c := m.find(r.RemoteCommID)
	if c == nil || c.remoteID != r.LocalCommID {
		// A DREQ for an unknown connection gets a DREP: for this side the connection has
		// ended.
		m.counters.Unknown++
		m.buildDREP(r.RemoteCommID, r.LocalCommID, h.TransactionID, nil)
		m.respond(from)
		return
	}
	if r.RemoteQPNEECN != c.attr.QPN {
		m.counters.Unknown++
		return
	}
	switch c.state {
	case RepSent, MRARepReceived, Established:
		m.stop(c)
		m.setHalf(c, false)
		c.state, c.tid = DreqReceived, h.TransactionID
		c.mail.bye.keep(r.PrivateData)
		m.drop(c)
		m.tell(c, EventDisconnected)
	case DreqSent: // both sides disconnect at once
		c.mail.bye.keep(r.PrivateData)
		m.buildDREP(c.id, c.remoteID, h.TransactionID, nil)
		m.post(c)
		m.disconnected(c)
	case Timewait:
		m.counters.Duplicates++
		m.buildDREP(c.id, c.remoteID, h.TransactionID, nil)
		m.post(c)
	default:
		m.counters.Duplicates++
	}
}

func (m *Machine) handleDREP(r *DREP) {
	c := m.callOf(r.RemoteCommID, r.LocalCommID)
	switch {
	case c == nil:
	case c.state == DreqSent:
		c.mail.bye.keep(r.PrivateData)
		m.drop(c)
		m.disconnected(c)
	default:
		m.counters.Duplicates++
	}
}

func (m *Machine) handleLAP(from Address, h *Header, r *LAP) {
	c := m.find(r.RemoteCommID)
	if c == nil || c.remoteID != r.LocalCommID || c.state != Established {
		m.counters.Unknown++
		m.out.Header = NewHeader(AttrAPR, h.TransactionID)
		m.out.APR = APR{LocalCommID: r.RemoteCommID, RemoteCommID: r.LocalCommID, APStatus: APInvalidCommID}
		m.respond(from)
		return
	}
	c.mail.aprDue, c.mail.aprTID = true, h.TransactionID
	m.sending.push(c)
	m.tell(c, EventPath)
}

func (m *Machine) handleSIDRREQ(from Address, h *Header, r *SIDRREQ) {
	status := SIDRValid
	l := m.listener(r.ServiceID)
	var call CMAHeader
	private, isCMA := r.CMA(&call)
	switch {
	case l == nil:
		m.counters.NoListener++
		status = SIDRUnsupportedService
	case r.ServiceID.IsIP() && !isCMA:
		status = SIDRUnsupportedVersion
	}
	if status != SIDRValid {
		m.out.Header = NewHeader(AttrSIDRREP, h.TransactionID)
		m.out.SIDRREP = SIDRREP{RequestID: r.RequestID, Status: status, ServiceID: r.ServiceID}
		m.respond(from)
		return
	}
	// SIDR_REQ has no CA GUID: the address is used instead.
	guid := addrKey(from)
	if m.findRemote(guid, r.RequestID) != nil {
		m.counters.Duplicates++
		return
	}
	c := m.admit(from, l)
	if c == nil {
		return
	}
	c.state, c.tid = SIDRReqReceived, h.TransactionID
	c.remoteID, c.guid = r.RequestID, guid
	c.attr = Attr{PKey: r.PartitionKey}
	if !isCMA {
		private = r.PrivateData
	}
	c.mail.call, c.mail.cma = call, isCMA
	c.mail.private.keep(private)
	m.byRemote.add(c, remoteKey(guid, c.remoteID))
	m.tell(c, EventSIDRRequest)
	m.arm(c, time.Duration(m.cfg.MaxRetries+1)*wait(m.cfg.ResponseTimeout))
}

// addrKey hashes a remote address to a number that is unlikely to be a CA GUID.
func addrKey(a Address) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range a.Remote.As16() {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

func (m *Machine) handleSIDRREP(r *SIDRREP) {
	c := m.find(r.RequestID)
	if c == nil || c.state != SIDRReqSent {
		m.counters.Unknown++
		return
	}
	j := &c.mail.reject
	j.status = r.Status
	j.info = j.buf[:copy(j.buf[:], r.AdditionalInformation[:min(int(r.AdditionalInformationLength), len(r.AdditionalInformation))])]
	c.attr.DestQPN, c.attr.QKey = r.QPN, r.QKey
	c.mail.private.keep(r.PrivateData)
	m.drop(c)
	m.end(c, EventSIDRReply)
}
