package softnic

import (
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
)

// Marking is the DSCP and the VLAN priority of packets; the latter counts where
// they have a tag.
type Marking struct {
	DSCP     uint8 // 0..63
	Priority uint8 // 0..7
}

func (m Marking) ok() bool { return m.DSCP < 64 && m.Priority < 8 }

// control is the state of congestion control of a port.
type control struct {
	port     congestion.Port // nil without
	receiver congestion.Receiver
	needs    congestion.Needs
	ackEvery int // for QPs that do not say
	flight   int // packets that a QP may have in flight
	cnp      Marking

	// Arguments of interface methods, kept here so that none is allocated per call.
	send    congestion.Send
	ack     congestion.Ack
	arrival congestion.Arrival

	in  *congestion.INT // of the packet that is being handled
	out congestion.INT  // of the packet that was built last
}

// defaultFlight is how many packets a QP may have in flight where a controller
// counts them: 4 MB with a path MTU of 4096.
const defaultFlight = 1024

func (c *control) init(cfg *Config) error {
	c.cnp = Marking{DSCP: 48, Priority: 6}
	c.ackEvery, c.flight = cfg.AckEvery, cfg.MaxInFlight
	if c.flight == 0 {
		c.flight = defaultFlight
	}
	if cfg.Control != nil {
		port, err := cfg.Control.NewPort(cfg.LineRate)
		if err != nil {
			return err
		}
		c.port, c.receiver, c.needs = port, port.Receiver(), port.Needs()
		if m, ok := port.(interface{ CNPMarking() (dscp, priority uint8) }); ok {
			c.cnp.DSCP, c.cnp.Priority = m.CNPMarking()
		}
	}
	if cfg.CNP != nil {
		c.cnp = *cfg.CNP
	}
	if c.ackEvery == 0 && c.needs&(congestion.NeedRTT|congestion.NeedINT|congestion.NeedAcks) != 0 {
		c.ackEvery = 1
	}
	return nil
}

// limiter limits a QP to what congestion control allows, and keeps what the receiver is to
// send back to the peer.
type limiter struct {
	flow   congestion.Flow
	pacer  cnp.Pacer
	flight flight

	gate int64          // the receiver's
	echo congestion.INT // telemetry for the next acknowledgement
	mark bool           // a mark for the next acknowledgement
}

// newLimiter returns the limiter of a QP, or nil without control.
func (c *control) newLimiter(cfg *qp.Config) *limiter {
	if c.port == nil {
		return nil
	}
	l := &limiter{flow: c.port.Flow()}
	if c.needs&(congestion.NeedRTT|congestion.NeedINT) != 0 && cfg.Type != qp.UC && cfg.Type != qp.UD {
		l.flight = newFlight(c.flight)
		l.flight.selective = cfg.Selective.Packets != 0
	}
	return l
}

// reset restores the state of a new flow.
func (l *limiter) reset() {
	l.flow.Reset()
	*l = limiter{flow: l.flow, flight: flight{ring: l.flight.ring, selective: l.flight.selective}}
}

// rate returns how fast the QP may send, and whether that is limited at all.
func (l *limiter) rate(line uint64) (uint64, bool) {
	if r := l.flow.Rate(); r != 0 && r < line {
		return r, true
	}
	return line, false
}

// allowed returns which packets of q may leave now: acknowledgements always, responses at
// the flow's rate, requests within its window as well. waits is set where the QP waits only
// for its pacer.
func (p *Port) allowed(now time.Time, q *QP) (of qp.Pending, waits bool) {
	l := q.rate
	if d := l.flow.Due(); d != 0 && d <= p.now() {
		l.flow.Tick(p.now())
	}
	rate := l.flow.Rate()
	l.pacer.SetRate(now, rate)
	if rate != 0 && !l.pacer.Ready(now) {
		return qp.PendingAck, true
	}
	if l.flight.ring == nil {
		return qp.PendingPacket, false
	}
	w := l.flow.Window()
	if l.flight.full() || w != 0 && l.flight.bytes >= w {
		return qp.PendingAck | qp.PendingResponse, false
	}
	if w != 0 && l.flight.bytes+maxFrame >= w {
		q.m.AskAck() // or no acknowledgement would open the window
	}
	return qp.PendingPacket, false
}

// maxFrame is the longest frame, in bytes.
const maxFrame = 4096 + frame.MaxHeaderSize + 4

// park makes q wait for its pacer, or for its rate to rise.
func (p *Port) park(now time.Time, q *QP, waits bool) {
	due := q.rate.flow.Due()
	if waits {
		d, ok := q.rate.pacer.Deadline()
		if !ok {
			d = now
		}
		if at := p.now() + max(int64(d.Sub(now)), 1); due == 0 || at < due {
			due = at
		}
	}
	q.paced = due
	p.reschedule(q)
}

// sent reports the packet f, which q built, to congestion control; before is the PSN that
// was next to be sent before it.
func (p *Port) sent(now time.Time, q *QP, f *frame.Frame, before uint64) {
	l, c := q.rate, &p.cc
	op := f.Packet.Opcode
	request := op.Class() == bth.Request
	if op.Operation() == bth.Acknowledge {
		if l.echo.Mode == congestion.INTEcho {
			c.out = l.echo
			l.echo.Mode = congestion.INTNone
		}
		f.Packet.BECN = f.Packet.BECN || l.mark
		l.mark = false
		return
	}
	// Requests without data count as well: nothing else would limit them.
	if len(f.Packet.Payload) == 0 && !request {
		return
	}
	n := f.Size() + fcsSize
	if c.needs&congestion.NeedINT != 0 {
		c.out.Mode, c.out.N, c.out.Missed = congestion.INTCollect, 0, 0
		n += c.out.Size()
	}
	if request && l.flight.ring != nil {
		_, next := q.m.Flight()
		l.flight.sent(before, inFlight{
			upTo: next, at: p.now(), size: int32(n),
			timed: !p.out.Retransmission && (op.Send() || op.Write()),
		})
	}
	c.send = congestion.Send{PSN: before, Bytes: n, Again: p.out.Retransmission}
	l.flow.Sent(p.now(), &c.send)
	rate := l.flow.Rate()
	l.pacer.SetRate(now, rate)
	if rate != 0 {
		l.pacer.HandleSent(now, n)
	}
}

// notified handles a CNP for q. One of another partition, or for a QP that does not receive
// yet, is ignored: a host that can send packets to this port must not be able to slow down
// others by them.
func (p *Port) notified(now time.Time, q *QP, f *frame.Frame) {
	if q.m.State() < qp.RTR || !bth.PKeyMatch(q.m.Attr().PKey, f.Packet.PKey) {
		p.counters.RpCnpIgnored++
		return
	}
	p.counters.RpCnpHandled++
	if l := q.rate; l != nil {
		l.flow.CNP(p.now())
		l.pacer.SetRate(now, l.flow.Rate())
	}
}

// acked reports a response that q handled with verdict v to congestion control.
func (p *Port) acked(now time.Time, q *QP, f *frame.Frame, v qp.Verdict) {
	if v != qp.Accepted && v != qp.Retried && v != qp.Stale {
		return
	}
	l, c := q.rate, &p.cc
	una, next := q.m.Flight()
	nak := f.Packet.Opcode.Operation() == bth.Acknowledge && f.Packet.AETH.Syndrome.Kind() == aeth.Nak
	if nak && l.flight.selective {
		l.flight.lost(next)
	}
	c.ack = congestion.Ack{Una: una, Next: next, ECN: f.Packet.BECN}
	if last := l.flight.acked(una, &c.ack.Bytes); last.timed {
		c.ack.Size, c.ack.RTT = int(last.size), max(1, p.now()-last.at)
	}
	if c.in != nil && c.in.Mode == congestion.INTEcho {
		c.ack.INT = c.in
	}
	l.flow.Acked(p.now(), &c.ack)
	if v == qp.Retried {
		l.flight.lost(next)
		switch {
		case f.Packet.Opcode.Operation() != bth.Acknowledge:
			l.flow.Lost(p.now(), congestion.LossImplied)
		case nak:
			l.flow.Lost(p.now(), congestion.LossNAK)
		}
	}
	l.pacer.SetRate(now, l.flow.Rate())
}

// tick calls Tick of q's machine, and reports to congestion control when its
// acknowledgement timer fired.
func (p *Port) tick(now time.Time, q *QP) {
	_, before := q.m.Flight()
	q.m.Tick(now)
	if q.rate == nil {
		return
	}
	if _, next := q.m.Flight(); next < before {
		q.rate.flight.lost(next)
		q.rate.flow.Lost(p.now(), congestion.LossTimeout)
	}
}

// arrived calls the receiver for a packet with an ECN mark or telemetry that q handled with
// verdict v, and does what it returns. A packet that q dropped is only counted.
func (p *Port) arrived(q *QP, f *frame.Frame, v qp.Verdict) {
	c := &p.cc
	ce := f.ECN() == frame.CE
	if ce {
		p.counters.NpEcnMarkedRocePackets++
	}
	if c.receiver == nil || v == qp.Invalid || v == qp.Inactive {
		return
	}
	l, op := q.rate, f.Packet.Opcode
	c.arrival = congestion.Arrival{
		Src: f.Src, Dst: f.Dst, CE: ce, Gate: &l.gate,
		Data: op.Send() || op.Write() || op.ReadResponse(),
	}
	do := c.receiver.Received(p.now(), &c.arrival)
	if do&congestion.SendCNP != 0 {
		p.queueCNP(q, f)
	}
	l.mark = l.mark || do&congestion.EchoECN != 0
	if do&congestion.EchoINT != 0 && c.in != nil && c.in.Mode == congestion.INTCollect {
		l.echo = *c.in
		l.echo.Mode = congestion.INTEcho
	}
}

// Needs returns what congestion control needs from the port and its network.
func (p *Port) Needs() congestion.Needs { return p.cc.needs }

// HandleTelemetry is HandleDecoded for a packet with telemetry. t is not kept.
func (p *Port) HandleTelemetry(now time.Time, f *frame.Frame, t *congestion.INT) Result {
	p.cc.in = t
	r := p.HandleDecoded(now, f)
	p.cc.in = nil
	return r
}

// HandleFrameTelemetry is HandleFrame for a frame with telemetry. t is not kept.
func (p *Port) HandleFrameTelemetry(now time.Time, b []byte, t *congestion.INT) Result {
	p.cc.in = t
	r := p.HandleFrame(now, b)
	p.cc.in = nil
	return r
}

// Telemetry returns the telemetry of the packet that was built last, or nil where it has
// none. It is valid until the next call to the port.
func (p *Port) Telemetry() *congestion.INT {
	if p.cc.out.Mode == congestion.INTNone {
		return nil
	}
	return &p.cc.out
}
