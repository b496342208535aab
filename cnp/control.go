package cnp

import "github.com/roce-go/roce/qp/congestion"

// Controller returns DCQCN with the parameters p, for a port to use: a
// [NotificationPoint] as the receiver, a [ReactionPoint] for each flow. NewPort
// fails with an error that wraps ErrParams.
//
// With [Params.EchoOnAck] the receiver marks acknowledgements instead of sending CNPs, and
// flows handle each of these as a CNP.
func Controller(p Params) congestion.Controller { return controller{p} }

type controller struct{ params Params }

// NewPort implements [congestion.Controller].
func (c controller) NewPort(lineRate uint64) (congestion.Port, error) {
	rp, err := NewReactionPort(c.params, lineRate)
	if err != nil {
		return nil, err
	}
	np, err := NewNotificationPoint(c.params, 0)
	if err != nil {
		return nil, err
	}
	return &controlPort{rp: rp, np: np}, nil
}

// controlPort is DCQCN at a port, and its receiver.
type controlPort struct {
	rp *ReactionPort
	np *NotificationPoint
}

func (c *controlPort) Flow() congestion.Flow         { return &flow{c.rp.ReactionPoint()} }
func (c *controlPort) Receiver() congestion.Receiver { return c }

// Needs implements [congestion.Port]. EchoOnAck needs an acknowledgement of each packet.
func (c *controlPort) Needs() congestion.Needs {
	if c.rp.params.EchoOnAck {
		return congestion.NeedECT | congestion.NeedAcks
	}
	return congestion.NeedECT
}

// CNPMarking returns the DSCP and the VLAN priority of CNPs.
func (c *controlPort) CNPMarking() (dscp, priority uint8) {
	return c.rp.params.CnpDscp, c.rp.params.Cnp802pPrio
}

// Received implements [congestion.Receiver].
func (c *controlPort) Received(now int64, a *congestion.Arrival) congestion.Action {
	n := c.np
	n.last = max(n.last, now)
	if !a.CE {
		return 0
	}
	n.NpEcnMarkedRocePackets++
	if !a.Data {
		return 0
	}
	if c.rp.params.EchoOnAck {
		return congestion.EchoECN
	}
	g := Gate{*a.Gate}
	ok := n.asked(a.Src, a.Dst, &g)
	*a.Gate = g.open
	if !ok {
		return 0
	}
	return congestion.SendCNP
}

// flow is a reaction point as a [congestion.Flow].
type flow struct{ rp ReactionPoint }

func (f *flow) Sent(now int64, s *congestion.Send) {
	if f.rp.active {
		f.rp.handleSent(f.rp.enter(now), s.Bytes)
	}
}

func (f *flow) Acked(now int64, a *congestion.Ack) {
	if a.ECN && f.rp.port.params.EchoOnAck {
		f.CNP(now)
	}
}

func (f *flow) CNP(now int64) { f.rp.handleCNP(f.rp.enter(now)) }

func (f *flow) Lost(int64, congestion.LossKind) {}

func (f *flow) Tick(now int64) {
	if f.rp.active {
		f.rp.run(f.rp.enter(now))
	}
}

func (f *flow) Reset() { f.rp = f.rp.port.ReactionPoint() }

func (f *flow) Due() int64 { return f.rp.due() }

func (f *flow) Rate() uint64 {
	if !f.rp.Limited() {
		return 0
	}
	return f.rp.rc
}

func (f *flow) Window() int64 { return 0 }
