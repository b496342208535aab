package qp

import (
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/reth"
)

// sendable returns the entry of the packet that may be sent now, or nil.
func (r *Requester) sendable() *wqe {
	if r.sq.cur == r.sq.tail || !r.mode.sends() || r.rnr.alone && r.sq.cur != r.sq.done {
		return nil
	}
	w := r.sq.at(r.sq.cur)
	if w.status != Success {
		return nil // its memory was refused: it fails when those before it are complete
	}
	if r.sq.cur == r.sq.started {
		// The first packet of a message.
		if r.mode == draining || w.wr.Op.local() {
			return nil
		}
		if w.wr.Op.hasResponse() && r.reads.out >= r.maxRd() || w.wr.Flags&Fence != 0 && r.reads.out != 0 {
			return nil
		}
		need := uint64(1)
		if w.wr.Op == OpRead {
			need = uint64(w.n)
		}
		if out := uint64(r.win.next - r.win.una); out != 0 && out+need > uint64(r.winSize) {
			return nil
		}
		if r.credit.on && r.limited(w, r.credit.ssn+1) && r.credit.waits(&r.win, r.credit.ssn+1) {
			return nil
		}
		return w
	}
	if r.win.next == r.win.sent && uint64(r.win.next-r.win.una) >= uint64(r.winSize) {
		return nil
	}
	if r.credit.on && r.limited(w, w.ssn) && r.credit.waits(&r.win, w.ssn) {
		return nil
	}
	return w
}

// limited reports whether w, as message ssn, lies beyond the credits (rule RQ-15).
func (r *Requester) limited(w *wqe, ssn uint32) bool {
	return r.credit.limited(w.wr.Op.takesReceive(), ssn)
}

// NextPacket builds the next packet to send, or reports false when there is none
// now.
func (r *Requester) NextPacket(now time.Time, out *Outgoing) bool {
	if r.conn == nil || !r.nextPacket(r.clock.At(now), out) {
		return false
	}
	r.invariants()
	return true
}

// drain enters SQD: no further message is started. The last packet sent may lack AckReq
// because more was expected; it is retransmitted with AckReq, or SQD would never drain.
func (r *Requester) drain() {
	r.mode = draining
	if r.sq.cur == r.sq.started && r.sq.cur != r.sq.done && r.win.next == r.win.sent && r.win.asked < r.win.next {
		r.sq.cur--
		r.win.next--
	}
}

// nextPacket never sends while an RNR wait lasts.
func (r *Requester) nextPacket(t int64, out *Outgoing) bool {
	if r.rnr.until != 0 {
		if t < r.rnr.until {
			return false
		}
		r.rnr.until = 0
	}
	w := r.sendable()
	if w == nil {
		return false
	}
	if r.sq.cur == r.sq.started {
		r.start(w)
	}
	out.Retransmission = r.win.next < r.win.sent
	out.AH = nil
	if r.typ == UD {
		out.AH = w.wr.AH
	}
	first := r.win.next
	if !r.build(w, out) {
		r.refuseLocal(w)
		return false
	}

	p := &out.Packet
	r.counters.TxPackets++
	if out.Retransmission {
		r.counters.Retransmitted++
	}
	end := r.win.next
	last := end >= w.end()
	if last {
		r.sq.cur++
	}
	r.win.sent = max(r.win.sent, r.win.next)
	if r.sel != nil {
		r.sent(first, out.Retransmission)
	}
	if r.typ == UC || r.typ == UD {
		r.win.una = r.win.next
		if last {
			r.sq.done = r.sq.cur
			r.runLocal()
		}
		return true
	}

	limited := r.limited(w, w.ssn)
	if limited {
		r.credit.beyond = end
	}
	r.asks.since++
	// Rule RQ-05.
	p.AckReq = last && (r.signals(w) || w.wr.Op.hasResponse()) || r.asks.since >= r.asks.every ||
		limited || out.Retransmission && r.sel != nil || r.sendable() == nil
	if p.AckReq {
		r.asks.since = 0
		r.win.asked = max(r.win.asked, end)
		if r.retry.due == 0 {
			r.startTimer(t)
		}
	}
	return true
}

// start assigns an entry its PSNs.
func (r *Requester) start(w *wqe) {
	w.first = r.win.next
	r.sq.started++
	w.ssn = r.credit.start(w.wr.Op.takesReceive())
	if w.wr.Op.hasResponse() {
		r.reads.out++
	}
}

// sendOps are the operations of Only, First, Middle and Last packets.
var sendOps = [...][4]bth.Operation{
	OpSend:     {bth.SendOnly, bth.SendFirst, bth.SendMiddle, bth.SendLast},
	OpSendImm:  {bth.SendOnlyImm, bth.SendFirst, bth.SendMiddle, bth.SendLastImm},
	OpSendInv:  {bth.SendOnlyInv, bth.SendFirst, bth.SendMiddle, bth.SendLastInv},
	OpWrite:    {bth.WriteOnly, bth.WriteFirst, bth.WriteMiddle, bth.WriteLast},
	OpWriteImm: {bth.WriteOnlyImm, bth.WriteFirst, bth.WriteMiddle, bth.WriteLastImm},
}

// build builds the packet of w at PSN next, and moves next past it, or returns false where
// the memory refuses an SGE.
func (r *Requester) build(w *wqe, out *Outgoing) bool {
	if w.wr.SGEs != nil && w.wr.Op.hasResponse() && w.wr.Op != OpAtomicWrite && w.got == 0 {
		// Before the peer executes the request.
		if buf := r.outgoing(&w.wr); !buf.reaches() {
			return false
		}
	}
	p := &out.Packet
	*p = bth.Packet{}
	p.M, p.PKey, p.DestQP, p.PSN = r.migrated, r.attr.PKey, r.attr.DestQPN, r.win.next.PSN()
	s := r.service
	if r.typ == XRCSend {
		p.XRCETH.SRQ = w.wr.SRQ
	}
	i := uint64(r.win.next - w.first) // which packet of the message
	off := i * uint64(r.mtu())
	switch w.wr.Op {
	case OpRead:
		// A READ continues where its responses stopped: what was received is kept (rule
		// RQ-27).
		p.Opcode = s.Opcode(bth.ReadRequest)
		p.RETH = reth.Header{VA: w.wr.RemoteAddr + off, RKey: w.wr.RKey, DMALen: w.length - uint32(off)}
		w.again = w.again || i != 0
		r.win.next = w.end()
		return true
	case OpCmpSwap, OpFetchAdd:
		p.Opcode = s.Opcode(bth.CmpSwap)
		p.AtomicETH = reth.AtomicETH{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, SwapAdd: w.wr.Swap, Compare: w.wr.CompareAdd}
		if w.wr.Op == OpFetchAdd {
			p.Opcode = s.Opcode(bth.FetchAdd)
			p.AtomicETH.SwapAdd, p.AtomicETH.Compare = w.wr.CompareAdd, 0
		}
		r.win.next++
		return true
	case OpFlush:
		p.Opcode = s.Opcode(bth.Flush)
		p.RETH = reth.Header{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, DMALen: w.length}
		p.FETH.Placement = reth.GlobalVisibility
		if w.wr.FlushPersistence {
			p.FETH.Placement = reth.Persistence
		}
		if w.wr.FlushRegion {
			p.FETH.Sel = reth.MemoryRegion
		}
		r.win.next++
		return true
	}

	last := i+1 == uint64(w.n)
	if w.wr.Op == OpAtomicWrite {
		p.Opcode = s.Opcode(bth.AtomicWrite)
	} else {
		place := 2
		switch {
		case w.n == 1:
			place = 0
		case i == 0:
			place = 1
		case last:
			place = 3
		}
		p.Opcode = s.Opcode(sendOps[w.wr.Op][place])
	}
	size := uint64(w.length) - off
	if !last {
		size = uint64(r.mtu())
	}
	if w.wr.Gather == nil && w.wr.SGEs == nil {
		p.SetPayload(w.wr.Local[off : off+size : off+size])
	} else {
		buf := r.outgoing(&w.wr)
		payload, ok := buf.slice(off, size, out.gather[:])
		if !ok {
			return false
		}
		p.SetPayload(payload)
	}
	if i == 0 && (w.wr.Op == OpWrite || w.wr.Op == OpWriteImm || w.wr.Op == OpAtomicWrite) {
		p.RETH = reth.Header{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, DMALen: w.length}
	}
	if last {
		p.SE = w.wr.Flags&Solicited != 0 && w.wr.Op.takesReceive()
		switch w.wr.Op {
		case OpSendImm, OpWriteImm:
			p.ImmDt.Imm = w.wr.Imm
		case OpSendInv:
			p.IETH.RKey = w.wr.RKey
		}
	}
	if r.typ == UD {
		p.DestQP = w.wr.RemoteQPN
		p.DETH = bth.DETH{QKey: w.wr.RemoteQKey, SrcQP: r.qpn}
		if w.wr.RemoteQKey&(1<<31) != 0 { // rule UD-2
			p.DETH.QKey = r.attr.QKey
		}
	}
	r.win.next++
	return true
}
