package qp

import (
	"encoding/binary"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// resource is a request that has an answer of its own, kept to be answered and,
// for a while, to be answered again.
type resource struct {
	first uint64 // count of its first PSN
	n     uint32 // PSNs that it takes
	msn   uint32 // messages complete when it was
	op    bth.Operation
	rkey  uint32
	va    uint64
	len   uint32

	swapAdd, compare uint64 // an atomic's operands
	orig             uint64 // what the memory held before

	// The answer under way: packets at .. end-1 of answer PSNs from ansFirst.
	// Nothing is under way when at == end.
	ansFirst uint64
	ansVA    uint64
	ansLen   uint32
	at, end  uint32
	made     bool // once made in full: what is under way is a replay
}

// Responder takes the requests of a queue pair's peer and answers them: receives,
// remote memory access, acknowledgements, and replay of what the peer asks for
// again (rules RS-01 to RS-24 of the transport; UC-1, UC-2).
//
// After each Post or Handle, call NextPacket until it reports false, and
// NextCompletion likewise. A responder has no timers.
//
// A Responder is not safe for concurrent use.
type Responder struct {
	c *Counters

	mem     Memory
	flusher Flusher
	srq     *SRQ
	xrc     SRQLookup

	rq    recvRing
	comps []Completion // ring of completions not yet taken
	res   []resource   // ring of the last answered requests, of which maxRd are remembered

	recv RecvWR // the receive of the message under way, where hasRecv

	epsn     uint64 // expected PSN, as a count
	nakCount uint64 // PSN of the NAK to send

	resTail            uint64 // count of requests put into res
	answering          uint64 // of those, none before this has its answer under way
	compHead, compTail uint32
	pending            uint32 // answers under way in res

	msn    uint32
	got    uint32 // bytes of the message under way
	want   uint32 // WRITE: its DMA length
	rkey   uint32
	va     uint64
	maxRd  uint64
	mtu    uint32
	msgSRQ uint32 // XRC: the SRQ that the message under way names

	qpn, destQPN uint32
	qkey         uint32
	pd           PD
	pkey         uint16
	typ          Type
	access       Access
	rnrTimer     aeth.RNRTimer
	nak          aeth.Syndrome
	mode         mode
	msg          message
	hasRecv      bool
	hasNak       bool
	hasAck       bool
	quiet        bool // a NAK was sent for epsn: no more until it arrives
	skipping     bool // UC: until the next message begins
	migrated     bool
	noCredits    bool
	established  bool
	events       uint8 // set of Event: what was refused, where no completion tells it
}

// message is what kind of message is under way.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// NewResponder returns the responder of a queue pair. It drops all packets until
// Connect.
func NewResponder(cfg Config) (*Responder, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := new(Responder)
	r.init(&cfg, new(Counters))
	return r, nil
}

// defaultSRQCompletions is how many completions an XRC target holds where MaxRecvWR
// is 0.
const defaultSRQCompletions = 256

func (r *Responder) init(cfg *Config, c *Counters) {
	rq, comps := cfg.MaxRecvWR, cfg.MaxRecvWR
	if cfg.SRQ != nil || cfg.XRCSRQs != nil {
		rq = 0
		if comps == 0 { // usual in verbs, where completions are kept elsewhere
			comps = defaultSRQCompletions
			if cfg.SRQ != nil {
				comps = int(cfg.SRQ.ring.max)
			}
		}
	}
	*r = Responder{
		c:         c,
		mem:       cfg.Memory,
		srq:       cfg.SRQ,
		xrc:       cfg.XRCSRQs,
		rq:        newRecvRing(rq),
		comps:     make([]Completion, ringSize(comps)),
		res:       make([]resource, cfg.MaxDestRdAtomic),
		qpn:       cfg.QPN,
		pd:        cfg.PD,
		typ:       cfg.Type,
		migrated:  !cfg.NotMigrated,
		noCredits: cfg.NoCredits || cfg.SRQ != nil || cfg.Type != RC,
	}
	r.flusher, _ = cfg.Memory.(Flusher)
}

// reset goes back to how init left it, in the same memory. Receives and
// completions that were not taken are gone.
func (r *Responder) reset() {
	clear(r.rq.wr)
	clear(r.res)
	*r = Responder{
		c: r.c, mem: r.mem, flusher: r.flusher, srq: r.srq, xrc: r.xrc,
		rq: recvRing{wr: r.rq.wr, max: r.rq.max}, comps: r.comps, res: r.res,
		qpn: r.qpn, pd: r.pd, typ: r.typ, migrated: r.migrated, noCredits: r.noCredits,
	}
}

// Connect begins to serve requests with the attributes of RTR, of which it takes
// PKey, QKey, Access, PathMTU, DestQPN, RQPSN, MaxDestRdAtomic and MinRNRTimer.
func (r *Responder) Connect(a *Attr) error {
	switch {
	case r.c == nil:
		return ErrZero
	case a == nil:
		return ErrNil
	}
	const m = AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMinRNRTimer | AttrMaxDestRdAtomic
	if a.outOfRange(m, 0, len(r.res)) != 0 {
		return ErrRange
	}
	if r.mode != idle {
		return ErrState
	}
	r.setAttr(a)
	r.epsn = firstCount(a.RQPSN)
	r.mode = running
	return nil
}

func (r *Responder) setAttr(a *Attr) {
	r.pkey, r.qkey, r.destQPN, r.access = a.PKey, a.QKey, a.DestQPN, a.Access
	r.mtu = uint32(a.PathMTU)
	r.maxRd = uint64(a.MaxDestRdAtomic)
	r.rnrTimer = a.MinRNRTimer
}

// Counters returns what was counted. Those of a QP's requester are zero.
func (r *Responder) Counters() Counters { return *r.c }

// Err reports whether the responder is in Error.
func (r *Responder) Err() bool { return r.mode == broken }

// PostRecv adds a receive. The errors are ErrQueueFull, ErrLength and ErrSRQ.
func (r *Responder) PostRecv(wr *RecvWR) error {
	if r.srq != nil || r.xrc != nil {
		return ErrSRQ
	}
	return r.rq.post(wr)
}

// NextCompletion takes the oldest receive completion. It reports false when
// there is none.
func (r *Responder) NextCompletion(c *Completion) bool {
	if r.compHead != r.compTail {
		*c = r.comps[r.compHead&uint32(len(r.comps)-1)]
		r.compHead++
		return true
	}
	if r.mode != broken {
		return false
	}
	// Flushed receives need no room: they are told from the queue itself.
	if !r.hasRecv && !r.rq.take(&r.recv) {
		return false
	}
	*c = Completion{ID: r.recv.ID, Status: WRFlushErr, Op: OpRecv, QPN: r.qpn}
	r.recv, r.hasRecv = RecvWR{}, false
	return true
}

// complete ends the receive under way.
func (r *Responder) complete(c Completion) {
	c.ID, c.QPN = r.recv.ID, r.qpn
	r.comps[r.compTail&uint32(len(r.comps)-1)] = c
	r.compTail++
	r.recv, r.hasRecv = RecvWR{}, false
}

// takeReceive finds the receive of a message. Completions that the caller does
// not take hold up receives, so that their number is bounded.
func (r *Responder) takeReceive(srq *SRQ) bool {
	if r.hasRecv {
		return true
	}
	if r.compTail-r.compHead >= uint32(len(r.comps)) {
		return false
	}
	if srq != nil {
		r.hasRecv = srq.ring.take(&r.recv)
	} else {
		r.hasRecv = r.rq.take(&r.recv)
	}
	return r.hasRecv
}

// peekReceive returns the receive that takeReceive would find, or nil.
func (r *Responder) peekReceive() *RecvWR {
	ring := &r.rq
	if r.srq != nil {
		ring = &r.srq.ring
	}
	if ring.head == ring.tail || r.compTail-r.compHead >= uint32(len(r.comps)) {
		return nil
	}
	return &ring.wr[ring.head&uint32(len(ring.wr)-1)]
}

// HandlePacket takes a request of the peer, and the GRH area of a datagram: see
// [QP.HandlePacket].
func (r *Responder) HandlePacket(p *bth.Packet, grh *[GRHSize]byte) Verdict {
	r.c.RxPackets++
	if v := admit(p, r.typ, r.qpn, r.pkey); v != Accepted {
		r.c.Invalid++
		return v
	}
	if r.typ == UD {
		return r.handleUD(p, grh)
	}
	return r.handle(p)
}

func (r *Responder) handle(p *bth.Packet) Verdict {
	if p.Opcode.Class() != bth.Request {
		r.c.WrongSide++
		return WrongSide
	}
	if r.mode == idle || r.mode == broken {
		r.c.Inactive++ // rules RS-18, RS-19
		return Inactive
	}
	r.established = true
	if r.typ == UC {
		return r.handleUC(p)
	}
	n := psn.Unwrap(r.epsn, p.PSN)
	switch {
	case n > r.epsn:
		r.c.OutOfSequence++
		if !r.quiet { // rule RS-03
			r.quiet = true
			r.sendNak(aeth.NakSyndrome(aeth.NakPSNSequenceError), r.epsn)
		}
		return OutOfSequence
	case n < r.epsn:
		r.c.DuplicateRequest++
		r.replay(n, p)
		return Duplicate
	}
	r.quiet = false
	if r.hasNak {
		// Not sent yet, and out of date. It acknowledged what is before it.
		r.hasNak, r.hasAck = false, true
	}
	v := r.execute(p)
	if v == Accepted && p.AckReq && !answered(p.Opcode.Operation()) {
		r.hasAck = true
	}
	return v
}

// answered reports whether op has an answer of its own.
func answered(op bth.Operation) bool {
	switch op {
	case bth.ReadRequest, bth.CmpSwap, bth.FetchAdd, bth.Flush, bth.AtomicWrite:
		return true
	}
	return false
}

// execute takes the packet at the expected PSN: opcode sequence, then length and
// resources, then memory (rule RS-01).
func (r *Responder) execute(p *bth.Packet) Verdict {
	op := p.Opcode.Operation()
	if !r.inSequence(p.Opcode) || !r.lengthFits(p) {
		return r.refuse(aeth.NakInvalidRequest)
	}
	srq, ok := r.findSRQ(p)
	switch {
	case !ok:
	case p.Opcode.Send():
		return r.executeSend(p, srq)
	case p.Opcode.Write():
		return r.executeWrite(p, srq)
	case answered(op):
		return r.executeAnswered(p)
	}
	return r.refuse(aeth.NakInvalidRequest)
}

// inSequence checks rule RS-05.
func (r *Responder) inSequence(op bth.Opcode) bool {
	inside := op.Middle() || op.Last()
	switch r.msg {
	case sendMessage:
		return inside && op.Send()
	case writeMessage:
		return inside && op.Write()
	}
	return !inside
}

// lengthFits checks rule RS-06.
func (r *Responder) lengthFits(p *bth.Packet) bool {
	n := uint32(len(p.Payload))
	switch p.Opcode.Payload() {
	case bth.ExactlyMTU:
		return n == r.mtu && p.PadCnt == 0
	case bth.OneToMTU:
		return n >= 1 && n <= r.mtu
	case bth.UpToMTU:
		return n <= r.mtu
	case bth.EightBytes:
		return n == 8
	}
	return n == 0
}

// refuse answers the packet at the expected PSN with a NAK and goes to Error.
func (r *Responder) refuse(code aeth.NakCode) Verdict {
	switch code {
	case aeth.NakInvalidRequest:
		r.c.RespInvalidRequest++
		r.events |= 1 << EventReqErr
	case aeth.NakRemoteAccessError:
		r.c.RespRemoteAccessErrors++
		r.events |= 1 << EventAccessErr
	}
	r.sendNak(aeth.NakSyndrome(code), r.epsn)
	r.mode = broken
	return Refused
}

// refuseReceive is refuse for a request that has a receive, which ends with s. That
// completion tells what an event tells otherwise.
func (r *Responder) refuseReceive(s Status, op Op, code aeth.NakCode) Verdict {
	r.complete(Completion{Status: s, Op: op})
	events := r.events
	v := r.refuse(code)
	r.events = events
	return v
}

// sendNak queues a NAK, which stands for an acknowledgement of all before it.
func (r *Responder) sendNak(s aeth.Syndrome, n uint64) {
	r.nak, r.nakCount, r.hasNak = s, n, true
	r.hasAck = r.hasAck && n < r.epsn
}

// notReady answers with an RNR NAK (rule RS-09).
func (r *Responder) notReady() Verdict {
	r.c.OutOfBuffer++
	r.quiet = true
	r.sendNak(aeth.RNRSyndrome(r.rnrTimer), r.epsn)
	return NotReady
}

// findSRQ returns the SRQ of the message that p belongs to, nil for the QP's own
// queue, and false when an XRC request names none or another than before (rules
// XR-2, XR-3).
//
// That a request of any kind must name an SRQ of the target's domain is our
// reading of Annex A14.
func (r *Responder) findSRQ(p *bth.Packet) (*SRQ, bool) {
	if r.xrc == nil {
		return r.srq, true
	}
	if r.msg != noMessage && p.XRCETH.SRQ != r.msgSRQ {
		return nil, false
	}
	r.msgSRQ = p.XRCETH.SRQ
	srq := r.xrc.SRQ(p.XRCETH.SRQ)
	return srq, srq != nil
}

func (r *Responder) executeSend(p *bth.Packet, srq *SRQ) Verdict {
	if !r.takeReceive(srq) {
		return r.notReady()
	}
	if r.msg == noMessage {
		r.msg, r.got = sendMessage, 0
	}
	buf := span{r.recv.Local, r.recv.Scatter}
	if uint64(r.got)+uint64(len(p.Payload)) > buf.len() {
		r.c.RespLocalLengthError++ // rule RS-08
		return r.refuseReceive(LocalLengthErr, OpRecv, aeth.NakInvalidRequest)
	}
	last := !p.Opcode.First() && !p.Opcode.Middle()
	c := Completion{Op: OpRecv, Solicited: p.SE}
	if last && p.Opcode.Ext()&bth.HasIETH != 0 {
		// Rule RS-17: before the receive completes.
		if r.mem == nil || !r.mem.Invalidate(RemoteAccess{PD: r.pd, QPN: r.qpn, RKey: p.IETH.RKey}) {
			// No NAK: the fault class of a bad R_Key to invalidate has none, and
			// neither the driver nor the suite of verbs tests expects one.
			r.c.RespRemoteAccessErrors++
			r.complete(Completion{Status: LocalProtErr, Op: OpRecv})
			r.mode = broken
			return Refused
		}
		c.HasInv, c.InvRKey = true, p.IETH.RKey
	}
	buf.put(uint64(r.got), p.Payload)
	r.got += uint32(len(p.Payload))
	r.epsn++
	if last {
		c.ByteLen = r.got
		r.finish(p, c)
	}
	return Accepted
}

// finish ends the message under way and completes its receive.
func (r *Responder) finish(p *bth.Packet, c Completion) {
	r.count()
	r.msg = noMessage
	if p.Opcode.Ext()&bth.HasImmDt != 0 {
		c.HasImm, c.Imm = true, p.ImmDt.Imm
	}
	if r.xrc != nil {
		c.SRQ = r.msgSRQ
	}
	r.complete(c)
}

// count advances the MSN (rule RS-13).
func (r *Responder) count() { r.msn = (r.msn + 1) & 0xffffff }

func (r *Responder) executeWrite(p *bth.Packet, srq *SRQ) Verdict {
	takes := p.Opcode.Ext()&bth.HasImmDt != 0
	got, want, va, rkey := r.got, r.want, r.va, r.rkey
	begins := r.msg == noMessage
	if begins {
		got, want, va, rkey = 0, p.RETH.DMALen, p.RETH.VA, p.RETH.RKey
		if r.access&RemoteWrite == 0 || want > MaxMessage {
			return r.refuse(aeth.NakInvalidRequest) // rules RS-07, RS-11
		}
	}
	last := !p.Opcode.First() && !p.Opcode.Middle()
	n := uint32(len(p.Payload))
	if n > want-got || last && n != want-got {
		return r.refuse(aeth.NakInvalidRequest) // rule RS-07
	}
	if takes && !r.takeReceive(srq) {
		return r.notReady() // before its data is placed
	}
	ok, dst := true, []byte(nil)
	if begins && want != 0 {
		_, ok = r.remote(rkey, va, want, RemoteWrite)
	}
	if ok && n != 0 {
		// Asked for again at each packet: the region may have gone.
		dst, ok = r.remote(rkey, va+uint64(got), n, RemoteWrite)
	}
	if !ok {
		if takes && r.typ != UC {
			return r.refuseReceive(LocalAccessErr, OpRecvWrite, aeth.NakRemoteAccessError)
		}
		return r.refuse(aeth.NakRemoteAccessError)
	}
	place(dst, p.Payload)
	if begins {
		r.c.RxWriteRequests++
		r.msg, r.want, r.va, r.rkey = writeMessage, want, va, rkey
	}
	r.got = got + n
	r.epsn++
	switch {
	case last && takes:
		r.finish(p, Completion{Op: OpRecvWrite, ByteLen: r.got, Solicited: p.SE})
	case last:
		r.count()
		r.msg = noMessage
	}
	return Accepted
}

func (r *Responder) remote(rkey uint32, va uint64, n uint32, right Access) ([]byte, bool) {
	if r.mem == nil || r.access&right != right { // the QP's own rights may have gone since
		return nil, false
	}
	return r.mem.Remote(RemoteAccess{PD: r.pd, QPN: r.qpn, RKey: rkey, VA: va, Len: n, Right: right})
}

// executeAnswered takes a READ, ATOMIC, FLUSH or ATOMIC WRITE.
func (r *Responder) executeAnswered(p *bth.Packet) Verdict {
	res := resource{first: r.epsn, n: 1, op: p.Opcode.Operation()}
	right := RemoteRead
	switch res.op {
	case bth.CmpSwap, bth.FetchAdd:
		right = RemoteAtomic
		a := &p.AtomicETH
		res.va, res.rkey, res.len, res.swapAdd, res.compare = a.VA, a.RKey, 8, a.SwapAdd, a.Compare
	default:
		res.va, res.rkey, res.len = p.RETH.VA, p.RETH.RKey, p.RETH.DMALen
	}
	switch res.op {
	case bth.Flush:
		right = 0
		if p.FETH.Placement&reth.GlobalVisibility != 0 {
			right |= FlushGlobal
		}
		if p.FETH.Placement&reth.Persistence != 0 {
			right |= FlushPersistent
		}
	case bth.AtomicWrite:
		right = RemoteWrite
	case bth.ReadRequest:
		if n := packets(uint64(res.len), r.mtu); n < psn.Half {
			res.n = n
		} else {
			return r.refuse(aeth.NakInvalidRequest) // rule PS-2
		}
	}
	wholeRegion := res.op == bth.Flush && p.FETH.Sel == reth.MemoryRegion // looks at no range
	misaligned := res.op != bth.ReadRequest && res.op != bth.Flush && (res.va&7 != 0 || res.len != 8)
	if right == 0 || r.access&right != right || misaligned || res.len > MaxMessage && !wholeRegion || !r.roomFor() {
		return r.refuse(aeth.NakInvalidRequest) // rules RS-11, RS-11a, RS-12
	}

	n := res.len
	if wholeRegion {
		n = 0
	}
	// Zero-length READs check no R_Key, FLUSH always does (rule RS-10).
	var mem []byte
	if n != 0 || res.op == bth.Flush {
		var ok bool
		if mem, ok = r.remote(res.rkey, res.va, n, right); !ok {
			return r.refuse(aeth.NakRemoteAccessError)
		}
	}
	switch res.op {
	case bth.ReadRequest:
		r.c.RxReadRequests++
	case bth.Flush:
		if r.flusher != nil {
			r.flusher.Flush(res.rkey, res.va, res.len, p.FETH.Sel, p.FETH.Placement)
		}
	case bth.AtomicWrite:
		r.c.RxWriteRequests++
		copy(mem, p.Payload)
	default:
		r.c.RxAtomicRequests++
		res.orig = binary.LittleEndian.Uint64(mem)
		switch {
		case res.op == bth.FetchAdd:
			binary.LittleEndian.PutUint64(mem, res.orig+res.swapAdd)
		case res.orig == res.compare:
			binary.LittleEndian.PutUint64(mem, res.swapAdd)
		}
	}
	r.count()
	res.msn = r.msn
	res.ansFirst, res.ansVA, res.ansLen, res.end = res.first, res.va, res.len, res.n
	slot := r.slot(r.resTail)
	if r.resTail >= uint64(len(r.res)) && slot.at != slot.end {
		r.pending-- // a replay that nobody needs any more
	}
	*slot = res
	r.resTail++
	r.pending++
	r.epsn += uint64(res.n)
	r.hasAck = false // its answer acknowledges all before it
	return Accepted
}

// roomFor reports whether another answered request may be outstanding (rule
// RS-12): the oldest remembered one has been answered. That it is being answered
// again, for a duplicate, does not count: its requester has gone on.
func (r *Responder) roomFor() bool {
	if r.maxRd == 0 {
		return false
	}
	if r.resTail < r.maxRd {
		return true
	}
	old := r.slot(r.resTail - r.maxRd)
	return old.at == old.end || old.made
}

// slot returns the entry of answered request i.
func (r *Responder) slot(i uint64) *resource { return &r.res[i%uint64(len(r.res))] }
