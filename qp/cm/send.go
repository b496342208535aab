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

// replyRing holds a bounded number of them. What finds it full is lost: the peer
// asks again.
type replyRing struct {
	ring       []reply // a power of two
	head, tail uint32
}

// respond has m.out sent to a, without a call.
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

// post has m.out sent for c, and kept for when it is sent again.
func (m *Machine) post(c *call) {
	m.out.AppendTo(c.mail.msg[:0])
	m.again(c)
}

// again has the last message of c sent, once more.
func (m *Machine) again(c *call) {
	c.mail.msgDue = true
	m.sending.push(c)
}

// expect has the message of c sent again until a response comes: every so often,
// at most so many times.
func (m *Machine) expect(c *call, every time.Duration, retries uint8) {
	c.timer.every, c.timer.retries = every, retries
	m.arm(c, every)
}

// NextMAD appends the next datagram to send to dst, or reports false when there
// is none. It goes from QP 1 to QP 1 with Q_Key 0x80010000.
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

// Pending reports whether NextMAD has a datagram.
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
		// After an MRA that promised too much, all is as before it.
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

// buildREJ makes m.out the refusal of c (rule CM-8).
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

// timewait ends a connection but for its number (rule CM-15).
func (m *Machine) timewait(c *call) {
	c.state = Timewait
	m.setHalf(c, false)
	m.byQPN.remove(c)
	m.arm(c, wait(c.attr.Timeout))
}

// disconnected tells the owner that the connection is over.
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
