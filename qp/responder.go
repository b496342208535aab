package qp

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
)

// Responder handles the requests of a queue pair's peer and responds to them: receives,
// remote memory access, acknowledgements, and replay for duplicate requests (rules RS-01 to
// RS-24; UC-1, UC-2; UD-1 to UD-4).
//
// After each Post or Handle, call NextPacket until it reports false, and
// NextCompletion likewise. A responder has no timers.
//
// A Responder is not safe for concurrent use.
type Responder struct {
	*conn
	rq          recvQueue
	msg         inbound
	res         resources
	ack         owed
	held        *reorder // nil: go-back-N
	epsn        psn.Seq  // expected PSN
	msn         uint32   // messages complete, modulo 2^24 (rule RS-13)
	mode        mode
	noCredits   bool
	beforeRead  bool // LinuxAckBeforeRead
	established bool // a packet arrived
}

// NewResponder returns the responder of a queue pair. It drops all packets until
// Connect.
func NewResponder(cfg Config) (*Responder, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	x := new(struct {
		Responder
		c conn
	})
	x.c.init(&cfg)
	x.Responder.init(&cfg, &x.c)
	return &x.Responder, nil
}

func (r *Responder) init(cfg *Config, c *conn) {
	*r = Responder{
		conn: c, rq: newRecvQueue(cfg),
		res:        resources{ring: make([]resource, cfg.MaxDestRdAtomic)},
		held:       newReorder(&cfg.Selective),
		beforeRead: cfg.LinuxAckBeforeRead,
		noCredits:  cfg.NoCredits || cfg.SRQ != nil || cfg.Type != RC || cfg.Selective.Packets != 0,
	}
}

// reset restores the state after init, in the same memory. Receives, and completions that
// were not polled, are discarded.
func (r *Responder) reset() {
	r.rq.reset()
	clear(r.res.ring)
	r.held.forget()
	*r = Responder{conn: r.conn, rq: r.rq,
		res: resources{ring: r.res.ring}, held: r.held, noCredits: r.noCredits, beforeRead: r.beforeRead}
}

// Connect makes the responder ready for requests with the attributes of RTR. It uses PKey,
// QKey, Access, PathMTU, DestQPN, RQPSN, MaxDestRdAtomic and MinRNRTimer. It fails with a
// *AttrError, or with ErrState when it was called before.
func (r *Responder) Connect(a *Attr) error {
	switch {
	case r.conn == nil:
		return ErrZero
	case a == nil:
		return ErrNil
	}
	const m = AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMinRNRTimer | AttrMaxDestRdAtomic
	if bad := a.outOfRange(m, 0, len(r.res.ring)); bad != 0 {
		return &AttrError{From: Reset, To: RTR, Range: bad, attr: *a, maxDestRd: len(r.res.ring)}
	}
	if r.mode != idle {
		return ErrState
	}
	r.attr.set(a, m|AttrPKey|AttrQKey|AttrAccess)
	r.connect()
	return nil
}

// connect makes the responder ready for requests with the attributes as they are set.
func (r *Responder) connect() {
	r.epsn = psn.First(r.attr.RQPSN)
	r.msg.pd = r.pd
	r.mode = running
}

func (r *Responder) maxRd() uint64 { return uint64(r.attr.MaxDestRdAtomic) }

// Counters returns what was counted; with a QP's requester, both together.
func (r *Responder) Counters() Counters {
	if r.conn == nil {
		return Counters{}
	}
	return r.counters
}

// Err reports whether the responder is in Error.
func (r *Responder) Err() bool { return r.mode == broken }

// PostRecv adds a receive. The errors are ErrQueueFull, ErrLength, ErrSRQ and ErrNil.
func (r *Responder) PostRecv(wr *RecvWR) error {
	if r.rq.srq != nil || r.rq.xrc != nil {
		return ErrSRQ
	}
	if wr != nil && wr.SGEs != nil && r.keyed(wr.SGEs) == nil {
		return errNoLocal
	}
	return r.rq.ring.post(wr)
}

// NextCompletion polls the oldest receive completion into c. It reports false when there is
// none.
func (r *Responder) NextCompletion(c *Completion) bool {
	if r.rq.pop(c) {
		return true
	}
	// Flushed receives need no room: they come from the queue itself.
	if r.mode != broken || !r.rq.hasRecv && !r.rq.ring.take(&r.rq.recv) {
		return false
	}
	*c = Completion{ID: r.rq.recv.ID, Status: WRFlushErr, Op: OpRecv, QPN: r.qpn}
	r.rq.recv, r.rq.hasRecv = RecvWR{}, false
	return true
}

// incoming returns the memory of a receive.
func (r *Responder) incoming(wr *RecvWR) span {
	pd := r.msg.pd
	if r.rq.srq != nil && r.rq.srq.hasPD {
		pd = r.rq.srq.pd
	}
	return span{wr.Local, wr.Scatter, wr.SGEs, r.keyed(wr.SGEs), pd}
}

// complete completes the receive of the current message.
func (r *Responder) complete(c Completion) {
	c.ID, c.QPN = r.rq.recv.ID, r.qpn
	if r.rq.xrc != nil {
		c.SRQ = r.msg.srq
	}
	r.rq.push(c)
	r.rq.recv, r.rq.hasRecv = RecvWR{}, false
}

// silence goes to Error without a NAK.
func (r *Responder) silence() {
	r.res.dropAll()
	r.ack = owed{}
	r.mode = broken
}

// owed is the acknowledgement or NAK that is to be sent (rules RS-03, RS-14).
//
// Invariant: a NAK for the expected PSN also acknowledges all before it: the two are never
// to be sent together.
type owed struct {
	hasNak bool
	hasAck bool
	quiet  bool // a NAK was sent for the expected PSN: no more until it arrives
	nak    aeth.Syndrome
	seq    psn.Seq // PSN of the NAK
}
