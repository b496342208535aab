package cm

import (
	"math"
	"time"
)

// reply is a response that belongs to no call.
type reply struct {
	to  Address
	mad [Size]byte
}

// replyRing holds a bounded number of them. When it is full, further ones are dropped: the
// peer retransmits.
type replyRing struct {
	ring       []reply // a power of two
	head, tail uint32
}

// respond queues m.out to be sent to a, without a call.
func (m *Machine) respond(a Address) {
	r := &m.replies
	if r.tail-r.head == uint32(len(r.ring)) {
		m.counters.RepliesLost++
		return
	}
	e := &r.ring[r.tail%uint32(len(r.ring))]
	e.to = a
	m.out.AppendTo(e.mad[:0])
	r.tail++
}

// post queues m.out to be sent for c, and keeps it for retransmission.
func (m *Machine) post(c *call) {
	m.out.AppendTo(c.mail.msg[:0])
	m.again(c)
}

// again queues the last message of c once more.
func (m *Machine) again(c *call) {
	c.mail.msgDue = true
	m.sending.push(c)
}

// expect retransmits the message of c until a response arrives: at intervals of every, at
// most retries times.
func (m *Machine) expect(c *call, every time.Duration, retries uint8) {
	c.timer.every, c.timer.retries = every, retries
	m.arm(c, every)
}

// NextMAD appends the next datagram to send to dst, or reports false when there is none. It
// is sent from QP 1 to QP 1 with Q_Key 0x80010000.
func (m *Machine) NextMAD(dst []byte) (mad []byte, to Address, ok bool) {
	if r := &m.replies; r.head != r.tail {
		e := &r.ring[r.head%uint32(len(r.ring))]
		r.head++
		m.counters.Tx++
		return append(dst, e.mad[:]...), e.to, true
	}
	c := m.sending.front()
	if c == nil {
		return dst, Address{}, false
	}
	to = c.addr
	switch {
	case c.mail.mraDue:
		c.mail.mraDue = false
		what := MRAedREQ
		if c.state == MRARepSent {
			what = MRAedREP
		}
		m.out.Header = NewHeader(AttrMRA, c.tid)
		m.out.MRA = MRA{LocalCommID: c.id, RemoteCommID: c.remoteID, MessageMRAed: what, ServiceTimeout: m.cfg.ServiceTimeout}
		dst = m.out.AppendTo(dst)
	case c.mail.aprDue:
		c.mail.aprDue = false
		m.out.Header = NewHeader(AttrAPR, c.mail.aprTID)
		m.out.APR = APR{LocalCommID: c.id, RemoteCommID: c.remoteID, APStatus: APUnsupported}
		dst = m.out.AppendTo(dst)
	default:
		c.mail.msgDue = false
		dst = append(dst, c.mail.msg[:]...)
	}
	m.unqueue(c)
	m.finish(c)
	m.counters.Tx++
	return dst, to, true
}

// Pending reports whether NextMAD would return a datagram.
func (m *Machine) Pending() bool { return m.replies.head != m.replies.tail || m.sending.head >= 0 }

// Deadline returns when Tick is due, or false when nothing is.
func (m *Machine) Deadline() (time.Time, bool) {
	return m.clock.Deadline(m.timers.Due(0))
}

// Tick lets time pass. After it, Deadline is later than now.
func (m *Machine) Tick(now time.Time) {
	m.at(now)
	for m.timers.Due(math.MaxInt64) <= m.now {
		_, _, c := m.timers.First()
		m.expire(c)
	}
}

// expire does what is due for c.
func (m *Machine) expire(c *call) {
	switch c.state {
	case Timewait:
		m.end(c, EventTimewaitExit)
		return
	case SIDRReqReceived: // the peer has given up
		m.forget(c)
		return
	}
	if c.timer.retries > 0 {
		// The delay that an MRA announced is over: the state is that of before it.
		switch c.state {
		case MRAReqReceived:
			c.state = ReqSent
		case MRARepReceived:
			c.state = RepSent
		}
		c.timer.retries--
		m.counters.Retries++
		m.again(c)
		m.arm(c, c.timer.every)
		return
	}
	m.counters.TimedOut++
	switch c.state {
	case DreqSent:
		c.mail.bye.keep(nil)
		m.drop(c)
		m.disconnected(c)
	case SIDRReqSent:
		m.drop(c)
		m.end(c, EventUnreachable)
	default: // REQ or REP sent (rule CM-3)
		m.buildREJ(c, ReasonTimeout, guidARI(m.cfg.CAGUID), nil)
		m.post(c)
		m.end(c, EventUnreachable)
	}
}

func guidARI(guid uint64) []byte {
	var b [8]byte
	for i := range b {
		b[i] = byte(guid >> (56 - 8*i))
	}
	return b[:]
}

// buildREJ builds the REJ of c in m.out (rule CM-8).
func (m *Machine) buildREJ(c *call, reason Reason, info, private []byte) {
	r := REJ{LocalCommID: c.id, RemoteCommID: c.remoteID, MessageRejected: RejectedOther,
		Reason: reason, RejectInfoLength: uint8(min(len(info), REJARISize)), ARI: info, PrivateData: private}
	switch c.state {
	case ReqReceived:
		r.LocalCommID, r.MessageRejected = 0, RejectedREQ
	case MRAReqSent:
		r.MessageRejected = RejectedREQ
	case RepReceived, MRARepSent:
		r.MessageRejected = RejectedREP
	}
	m.out.Header = NewHeader(AttrREJ, c.tid)
	m.out.REJ = r
}

// timewait ends a connection, and keeps its call until the QP number may be reused (rule
// CM-15).
func (m *Machine) timewait(c *call) {
	c.state = Timewait
	m.setHalf(c, false)
	m.byQPN.remove(c)
	m.arm(c, wait(c.attr.Timeout))
}

// disconnected reports the end of the connection to the owner.
func (m *Machine) disconnected(c *call) {
	m.timewait(c)
	m.tell(c, EventDisconnected)
}

// forget removes a call whose last event was polled already, or was never to be.
func (m *Machine) forget(c *call) {
	m.stop(c)
	m.setHalf(c, false)
	m.byRemote.remove(c)
	m.byQPN.remove(c)
	c.state = Idle
	if c.mail.pending == 0 {
		c.mail.told = true
	}
	m.finish(c)
}
