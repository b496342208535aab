package qp

import (
	"github.com/roce-go/roce/bth"
)

// conn is the state that the requester and the responder of a queue pair share, in one
// place. A Requester or Responder that is used by itself has its own.
//
// Invariant: attr holds the attributes as they were last set, and nothing else holds
// a copy of them.
type conn struct {
	clock    *Clock
	own      Clock // where the config has none
	counters Counters
	attr     Attr
	trace    func(Trace)
	qpn      uint32
	typ      Type
	events   uint8       // set of Event
	why      Reason      // of the last packet that was not simply accepted
	service  bth.Service // that typ speaks
	pd       PD
	migrated bool
	mem      Memory
}

func (c *conn) init(cfg *Config) {
	c.clock, c.trace = cfg.Clock, cfg.Trace
	if c.clock == nil {
		c.clock = &c.own
	}
	c.pd, c.mem = cfg.PD, cfg.Memory
	c.qpn, c.typ, c.service, c.migrated = cfg.QPN, cfg.Type, service(cfg.Type), !cfg.NotMigrated
}

func (c *conn) mtu() uint32 { return uint32(c.attr.PathMTU) }

// outgoing returns the memory of a send.
func (c *conn) outgoing(wr *SendWR) span {
	return span{wr.Local, wr.Gather, wr.SGEs, c.keyed(wr.SGEs), c.pd}
}

// keyed returns the memory that resolves the keys of sges, or nil where sges is nil.
func (c *conn) keyed(sges []SGE) LocalMemory {
	if sges == nil {
		return nil
	}
	m, _ := c.mem.(LocalMemory)
	return m
}

func (c *conn) raise(e Event) { c.events |= 1 << e }

// drop records why a packet is dropped or refused, and returns v.
func (c *conn) drop(v Verdict, why Reason) Verdict {
	c.why = why
	return v
}

// tell calls the trace hook for a packet that was not simply accepted.
func (c *conn) tell(v Verdict, p *bth.Packet, expected uint32) {
	if c.trace == nil || v == Accepted {
		return
	}
	c.trace(Trace{QPN: c.qpn, Verdict: v, Reason: c.why, Opcode: p.Opcode, PSN: p.PSN, Expected: expected})
}

// admit makes the checks of rule RS-01 that come before everything else.
func (c *conn) admit(p *bth.Packet) Verdict {
	switch {
	case p.TVer != 0:
		c.why = WhyTVer
	case p.DestQP != c.qpn && (c.typ != UD || p.DestQP != MulticastQPN):
		c.why = WhyQPN
	case p.Opcode.Service() != c.service || !p.Opcode.Known():
		c.why = WhyOpcode
	case !bth.PKeyMatch(p.PKey, c.attr.PKey):
		c.why = WhyPKey
	default:
		return Accepted
	}
	c.counters.Invalid++
	return Invalid
}

// mode is what the state of the QP means to its requester or to its responder.
type mode uint8

const (
	idle     mode = iota // Reset, Init; RTR for a requester
	running              // RTS; RTR for a responder
	draining             // SQD
	broken               // Error
	stopped              // SQE: as broken, but responses are still handled
)

// sends reports whether requests are sent: running or draining, in one comparison.
func (m mode) sends() bool { return m-running <= draining-running }

func service(t Type) bth.Service {
	switch t {
	case UC:
		return bth.UC
	case UD:
		return bth.UD
	case XRCSend, XRCRecv:
		return bth.XRC
	}
	return bth.RC
}
