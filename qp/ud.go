package qp

import "github.com/roce-go/roce/bth"

// GRHSize is the length in bytes of the area before a datagram in the memory of
// its receive: a GRH, or for IPv4 20 unspecified bytes and the IPv4 header.
const GRHSize = 40

// MulticastQPN is the destination QP of multicast datagrams.
const MulticastQPN = 0xffffff

// handleUD handles a UD packet that was admitted (rules UD-1, UD-3, UD-4). The caller
// checks that a multicast packet has a multicast address, and which QPs are attached to it.
func (r *Responder) handleUD(p *bth.Packet, grh *[GRHSize]byte) Verdict {
	switch {
	case p.DETH.QKey != r.attr.QKey:
		r.counters.QKeyViolations++
		return r.drop(Invalid, WhyQKey)
	case uint32(len(p.Payload)) > r.mtu():
		r.counters.Invalid++
		return r.drop(Invalid, WhyLength)
	}
	r.established = true
	next := r.rq.peek()
	if next == nil {
		r.counters.OutOfBuffer++
		return r.drop(NoReceive, WhyNoReceive)
	}
	n := uint64(GRHSize + len(p.Payload))
	buf := r.incoming(next)
	if n > buf.len() {
		// The receive is kept for a datagram that fits.
		r.counters.RespLocalLengthError++
		return r.drop(NoReceive, WhyRecvLength)
	}
	r.rq.take(r.rq.srq)
	if grh == nil {
		grh = new([GRHSize]byte)
	}
	if !buf.put(0, grh[:]) || !buf.put(GRHSize, p.Payload) {
		return r.refuseLocal()
	}
	c := Completion{Op: OpRecv, ByteLen: uint32(n), SrcQP: p.DETH.SrcQP, Solicited: p.SE, GRH: true}
	if p.Opcode.Ext()&bth.HasImmDt != 0 {
		c.HasImm, c.Imm = true, p.ImmDt.Imm
	}
	r.complete(c)
	return Accepted
}
