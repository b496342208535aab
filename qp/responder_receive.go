package qp

import (
	"encoding/binary"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// HandlePacket handles a request of the peer; grh is the GRH area of a datagram: see
// [QP.HandlePacket].
func (r *Responder) HandlePacket(p *bth.Packet, grh *[GRHSize]byte) Verdict {
	if r.conn == nil || p == nil {
		return Invalid
	}
	r.counters.RxPackets++
	r.why = WhyNone
	expected := uint32(r.epsn.PSN())
	v := r.admit(p)
	switch {
	case v != Accepted:
	case r.typ != UD && p.Opcode.Class() != bth.Request:
		r.counters.WrongSide++
		v = r.drop(WrongSide, WhyWrongSide)
	case r.mode == broken:
		r.counters.Inactive++ // rule RS-18; before Connect no P_Key matches
		v = r.drop(Inactive, WhyState)
	case r.typ == UD:
		v = r.handleUD(p, grh)
	default:
		v = r.handle(p)
	}
	r.invariants()
	r.tell(v, p, expected)
	return v
}

// handle handles a request of a connected QP that was admitted.
func (r *Responder) handle(p *bth.Packet) Verdict {
	r.established = true
	if r.typ == UC {
		return r.handleUC(p)
	}
	n := r.epsn.Near(p.PSN)
	switch {
	case n > r.epsn && r.held != nil:
		return r.hold(n, p)
	case n > r.epsn:
		r.counters.OutOfSequence++
		if !r.ack.quiet { // rule RS-03
			r.ack.quiet = true
			r.sendNak(aeth.NakSyndrome(aeth.NakPSNSequenceError), r.epsn)
		}
		return r.drop(OutOfSequence, WhyGap)
	case n < r.epsn:
		r.counters.DuplicateRequest++
		r.why = WhyOld
		r.replay(n, p)
		return Duplicate
	}
	r.ack.quiet = false
	if r.ack.hasNak {
		// The NAK was not sent yet, and is obsolete. It also acknowledged what is before
		// it.
		r.ack.hasNak, r.ack.hasAck = false, true
	}
	v := r.execute(p)
	if v == Accepted && r.held != nil {
		r.release()
	}
	return v
}

// responded reports whether op has a response of its own.
func responded(op bth.Operation) bool {
	switch op {
	case bth.ReadRequest, bth.CmpSwap, bth.FetchAdd, bth.Flush, bth.AtomicWrite:
		return true
	}
	return false
}

// execute checks and executes the packet at the expected PSN: opcode sequence, then length
// and resources, then memory (rule RS-01).
func (r *Responder) execute(p *bth.Packet) Verdict {
	switch {
	case !r.msg.inSequence(p.Opcode):
		return r.refuse(aeth.NakInvalidRequest, WhySequence)
	case !r.lengthFits(p):
		return r.refuse(aeth.NakInvalidRequest, WhyLength)
	}
	srq, ok := r.rq.srq, true
	if r.rq.xrc != nil {
		srq, ok = r.findSRQ(p)
	}
	var v Verdict
	switch {
	case !ok:
		return r.refuse(aeth.NakInvalidRequest, WhySRQ)
	case p.Opcode.Send():
		v = r.executeSend(p, srq)
	case p.Opcode.Write():
		v = r.executeWrite(p, srq)
	case responded(p.Opcode.Operation()):
		return r.executeResponded(p)
	default:
		return r.refuse(aeth.NakInvalidRequest, WhyOpcode)
	}
	if v == Accepted && p.AckReq {
		r.ack.hasAck = true
	}
	return v
}

// lengthFits checks rule RS-06.
func (r *Responder) lengthFits(p *bth.Packet) bool {
	n := uint32(len(p.Payload))
	switch p.Opcode.Payload() {
	case bth.ExactlyMTU:
		return n == r.mtu() && p.PadCnt == 0
	case bth.OneToMTU:
		return n >= 1 && n <= r.mtu()
	case bth.UpToMTU:
		return n <= r.mtu()
	case bth.EightBytes:
		return n == 8
	}
	return n == 0
}

// refuse sends a NAK for the packet at the expected PSN and goes to Error.
func (r *Responder) refuse(code aeth.NakCode, why Reason) Verdict {
	switch code {
	case aeth.NakInvalidRequest:
		r.counters.RespInvalidRequest++
		r.raise(EventReqErr)
	case aeth.NakRemoteAccessError:
		r.counters.RespRemoteAccessErrors++
		r.raise(EventAccessErr)
	}
	r.sendNak(aeth.NakSyndrome(code), r.epsn)
	r.mode = broken
	return r.drop(Refused, why)
}

// refuseReceive is refuse for a request that has a receive, which ends with s. The
// completion reports the fault, so that no event is needed.
func (r *Responder) refuseReceive(s Status, op Op, code aeth.NakCode, why Reason) Verdict {
	r.complete(Completion{Status: s, Op: op})
	events := r.events
	v := r.refuse(code, why)
	r.events = events
	return v
}

// refuseLocal ends the receive whose memory refuses the message (rule RS-08a), and goes to
// Error.
func (r *Responder) refuseLocal() Verdict {
	r.complete(Completion{Status: LocalProtErr, Op: OpRecv})
	if r.typ != UC && r.typ != UD {
		r.sendNak(aeth.NakSyndrome(aeth.NakRemoteOperationalError), r.epsn)
	}
	r.mode = broken
	return r.drop(Refused, WhyLocal)
}

// sendNak queues a NAK, which also acknowledges all before it.
func (r *Responder) sendNak(s aeth.Syndrome, n psn.Seq) {
	r.ack.nak, r.ack.seq, r.ack.hasNak = s, n, true
	r.ack.hasAck = r.ack.hasAck && n < r.epsn
}

// notReady sends an RNR NAK (rule RS-09).
func (r *Responder) notReady() Verdict {
	r.counters.OutOfBuffer++
	r.ack.quiet = true
	r.held.forget() // all from here on is retransmitted (rule RQ-28)
	r.sendNak(aeth.RNRSyndrome(r.attr.MinRNRTimer), r.epsn)
	return r.drop(NotReady, WhyNoReceive)
}

func (r *Responder) executeSend(p *bth.Packet, srq *SRQ) Verdict {
	if !r.rq.take(srq) {
		return r.notReady()
	}
	if r.msg.kind == noMessage {
		r.msg.kind, r.msg.got = sendMessage, 0
	}
	buf := r.incoming(&r.rq.recv)
	if uint64(r.msg.got)+uint64(len(p.Payload)) > buf.len() {
		r.counters.RespLocalLengthError++ // rule RS-08
		return r.refuseReceive(LocalLengthErr, OpRecv, aeth.NakInvalidRequest, WhyRecvLength)
	}
	last := !p.Opcode.First() && !p.Opcode.Middle()
	c := Completion{Op: OpRecv, Solicited: p.SE}
	if last && p.Opcode.Ext()&bth.HasIETH != 0 {
		// Rule RS-17: before the receive completes.
		if r.mem == nil || !r.mem.Invalidate(RemoteAccess{PD: r.msg.pd, QPN: r.qpn, RKey: p.IETH.RKey}) {
			// No NAK: the fault class of a bad R_Key to invalidate has none, and
			// neither the driver nor the suite of verbs tests expects one.
			r.counters.RespRemoteAccessErrors++
			r.complete(Completion{Status: LocalProtErr, Op: OpRecv})
			r.mode = broken
			return r.drop(Refused, WhyInvalidate)
		}
		c.HasInv, c.InvRKey = true, p.IETH.RKey
	}
	if !buf.put(uint64(r.msg.got), p.Payload) {
		return r.refuseLocal()
	}
	r.msg.got += uint32(len(p.Payload))
	r.epsn++
	if last {
		c.ByteLen = r.msg.got
		r.finish(p, c)
	}
	return Accepted
}

// finish ends the current message and completes its receive.
func (r *Responder) finish(p *bth.Packet, c Completion) {
	r.count()
	r.msg.kind = noMessage
	if p.Opcode.Ext()&bth.HasImmDt != 0 {
		c.HasImm, c.Imm = true, p.ImmDt.Imm
	}
	r.complete(c)
}

// count advances the MSN (rule RS-13).
func (r *Responder) count() { r.msn = (r.msn + 1) & 0xffffff }

func (r *Responder) executeWrite(p *bth.Packet, srq *SRQ) Verdict {
	takes := p.Opcode.Ext()&bth.HasImmDt != 0
	got, want, va, rkey := r.msg.got, r.msg.want, r.msg.va, r.msg.rkey
	begins := r.msg.kind == noMessage
	if begins {
		got, want, va, rkey = 0, p.RETH.DMALen, p.RETH.VA, p.RETH.RKey
		switch {
		case r.attr.Access&RemoteWrite == 0:
			return r.refuse(aeth.NakInvalidRequest, WhyRights) // rule RS-11
		case want > MaxMessage:
			return r.refuse(aeth.NakInvalidRequest, WhyLength) // rule RS-07
		}
	}
	last := !p.Opcode.First() && !p.Opcode.Middle()
	n := uint32(len(p.Payload))
	if n > want-got || last && n != want-got {
		return r.refuse(aeth.NakInvalidRequest, WhyLength) // rule RS-07
	}
	if takes && !r.rq.take(srq) {
		return r.notReady() // before its data is placed
	}
	ok, dst := true, []byte(nil)
	if begins && want != n { // the whole range, before its first bytes are placed
		_, ok = r.remote(r.msg.pd, rkey, va, want, RemoteWrite)
	}
	if ok && n != 0 {
		// Looked up for each packet: the region may have been deregistered.
		dst, ok = r.remote(r.msg.pd, rkey, va+uint64(got), n, RemoteWrite)
	}
	if !ok {
		if takes && r.typ != UC {
			return r.refuseReceive(LocalAccessErr, OpRecvWrite, aeth.NakRemoteAccessError, WhyRKey)
		}
		return r.refuse(aeth.NakRemoteAccessError, WhyRKey)
	}
	place(dst, p.Payload)
	if begins {
		r.counters.RxWriteRequests++
		r.msg.kind, r.msg.want, r.msg.va, r.msg.rkey = writeMessage, want, va, rkey
	}
	r.msg.got = got + n
	r.epsn++
	switch {
	case last && takes:
		r.finish(p, Completion{Op: OpRecvWrite, ByteLen: r.msg.got, Solicited: p.SE})
	case last:
		r.count()
		r.msg.kind = noMessage
	}
	return Accepted
}

func (r *Responder) remote(pd PD, rkey uint32, va uint64, n uint32, right Access) ([]byte, bool) {
	if r.mem == nil || r.attr.Access&right != right { // the QP's own rights may have been removed since
		return nil, false
	}
	return r.mem.Remote(RemoteAccess{PD: pd, QPN: r.qpn, RKey: rkey, VA: va, Len: n, Right: right})
}

// executeResponded executes a request with a response of its own: READ, ATOMIC, FLUSH or
// ATOMIC WRITE.
func (r *Responder) executeResponded(p *bth.Packet) Verdict {
	res := resource{first: r.epsn, n: 1, pd: r.msg.pd, op: p.Opcode.Operation()}
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
		if n := packets(uint64(res.len), r.mtu()); n < psn.Half {
			res.n = n
		} else {
			return r.refuse(aeth.NakInvalidRequest, WhyLength) // rule PS-2
		}
	}
	wholeRegion := res.op == bth.Flush && p.FETH.Sel == reth.MemoryRegion // the range is not checked
	misaligned := res.op != bth.ReadRequest && res.op != bth.Flush && (res.va&7 != 0 || res.len != 8)
	switch {
	case right == 0 || r.attr.Access&right != right:
		return r.refuse(aeth.NakInvalidRequest, WhyRights) // rule RS-11
	case misaligned:
		return r.refuse(aeth.NakInvalidRequest, WhyAlign) // rules RS-11, RS-11a
	case res.len > MaxMessage && !wholeRegion:
		return r.refuse(aeth.NakInvalidRequest, WhyLength) // rule RS-07
	case !r.res.room(r.maxRd()):
		return r.refuse(aeth.NakInvalidRequest, WhyResources) // rule RS-12
	}

	n := res.len
	if wholeRegion {
		n = 0
	}
	// Zero-length READs check no R_Key, FLUSH always does (rule RS-10).
	var mem []byte
	if n != 0 || res.op == bth.Flush {
		var ok bool
		if mem, ok = r.remote(res.pd, res.rkey, res.va, n, right); !ok {
			return r.refuse(aeth.NakRemoteAccessError, WhyRKey)
		}
	}
	switch res.op {
	case bth.ReadRequest:
		r.counters.RxReadRequests++
	case bth.Flush:
		if f, ok := r.mem.(Flusher); ok {
			f.Flush(res.rkey, res.va, res.len, p.FETH.Sel, p.FETH.Placement)
		}
	case bth.AtomicWrite:
		r.counters.RxWriteRequests++
		copy(mem, p.Payload)
	default:
		r.counters.RxAtomicRequests++
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
	r.res.push(&res)
	r.epsn += psn.Seq(res.n)
	r.ack.hasAck = false // its response acknowledges all before it
	return Accepted
}
