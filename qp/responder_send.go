package qp

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// NextPacket builds the next response to send, or reports false when there is none:
// responses in request order, then a NAK or an acknowledgement (rule RS-14).
func (r *Responder) NextPacket(out *Outgoing) bool {
	if !r.owes() {
		return false
	}
	p := &out.Packet
	*p = bth.Packet{}
	out.AH, out.Retransmission = nil, false
	p.M, p.PKey, p.DestQP = r.migrated, r.attr.PKey, r.attr.DestQPN
	r.counters.TxPackets++
	if r.res.pending != 0 && r.respond(p) {
		return true
	}
	p.Opcode = r.service.Opcode(bth.Acknowledge)
	p.AETH.MSN = r.msn
	if r.ack.hasNak {
		r.ack.hasNak = false
		p.PSN, p.AETH.Syndrome = r.ack.seq.PSN(), r.ack.nak
		if r.held != nil {
			if r.ack.nak == aeth.NakSyndrome(aeth.NakPSNSequenceError) {
				r.nakHeld(p)
			}
			r.reportHeld()
		}
		return true
	}
	r.ack.hasAck = false
	p.PSN, p.AETH.Syndrome = r.newest().PSN(), r.credits()
	return true
}

// newest returns the PSN that a positive acknowledgement carries: that of the last request
// executed, or with LinuxAckBeforeRead of the last one with no response of its own.
func (r *Responder) newest() psn.Seq {
	n := r.epsn
	if !r.beforeRead {
		return n - 1
	}
	for i := range min(r.res.tail, uint64(len(r.res.ring))) {
		res := r.res.at(r.res.tail - 1 - i)
		if res.first+psn.Seq(res.n) != n {
			break
		}
		n = res.first
	}
	return n - 1
}

// owes reports whether NextPacket would build a packet.
func (r *Responder) owes() bool { return r.res.pending != 0 || r.ack.hasNak || r.ack.hasAck }

// credits returns the syndrome of a positive acknowledgement (rule RS-24).
func (r *Responder) credits() aeth.Syndrome {
	if r.noCredits {
		return aeth.AckSyndrome(aeth.NoCredits)
	}
	return aeth.AckSyndrome(aeth.CreditsFor(r.rq.ring.len()))
}

// respond builds the next packet of the oldest pending response. It reports false when its
// memory is no longer accessible, and a NAK is to be sent instead (rule RS-15).
func (r *Responder) respond(p *bth.Packet) bool {
	res := r.res.oldest()
	s := r.service
	p.PSN = (res.rspFirst + psn.Seq(res.at)).PSN()
	p.AETH.MSN, p.AETH.Syndrome = res.msn, r.credits()
	switch res.op {
	case bth.CmpSwap, bth.FetchAdd:
		p.Opcode = s.Opcode(bth.AtomicAcknowledge)
		p.AtomicAckETH.Orig = res.orig
	case bth.Flush, bth.AtomicWrite:
		p.Opcode = s.Opcode(bth.ReadResponseOnly)
	default:
		off := uint64(res.at) * uint64(r.mtu())
		n := min(r.mtu(), res.rspLen-uint32(off))
		if n != 0 {
			data, ok := r.remote(res.pd, res.rkey, res.rspVA+off, n, RemoteRead)
			if !ok {
				r.withdraw(res)
				return false
			}
			p.SetPayload(data)
		}
		first, last := res.at == 0, res.at+1 == res.end
		op := bth.ReadResponseMiddle
		switch {
		case first && last:
			op = bth.ReadResponseOnly
		case first:
			op = bth.ReadResponseFirst
		case last:
			op = bth.ReadResponseLast
		}
		p.Opcode = s.Opcode(op)
		if op == bth.ReadResponseMiddle {
			p.AETH = aeth.Header{}
		}
	}
	res.at++
	if res.at == res.end {
		r.res.pending--
		res.sent = true
	}
	return true
}

// withdraw gives up the response of res because its memory is no longer accessible, and
// sends a NAK. Where it is not a replay, it gives up all others too and goes to Error.
func (r *Responder) withdraw(res *resource) {
	r.counters.RespRemoteAccessErrors++
	if res.sent {
		if !r.ack.hasNak {
			r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), res.rspFirst+psn.Seq(res.at))
		}
		r.res.drop(res)
		return
	}
	r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), res.rspFirst+psn.Seq(res.at))
	r.ack.hasAck = false
	r.res.dropAll()
	r.raise(EventAccessErr)
	r.mode = broken
}
