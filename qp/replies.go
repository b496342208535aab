package qp

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// replay handles the duplicate p at count n (rules RS-20 to RS-23).
func (r *Responder) replay(n uint64, p *bth.Packet) {
	op := p.Opcode.Operation()
	if !answered(op) {
		// Rule RS-20: whether or not it asks for it. A NAK of what is expected next
		// acknowledges it, one of a duplicate does not.
		if !r.hasNak || r.nakCount < r.epsn {
			r.hasAck = true
		}
		return
	}
	res := r.remembered(n, op)
	if res == nil {
		return
	}
	var again bool
	switch op {
	case bth.ReadRequest:
		r.replayRead(res, n, p)
		return
	case bth.CmpSwap, bth.FetchAdd:
		a := &p.AtomicETH
		again = a.VA == res.va && a.RKey == res.rkey && a.SwapAdd == res.swapAdd &&
			(a.Compare == res.compare || op == bth.FetchAdd)
	default:
		again = p.RETH.VA == res.va && p.RETH.RKey == res.rkey && p.RETH.DMALen == res.len
	}
	if !again {
		return
	}
	if res.at == res.end {
		r.pending++
	}
	res.at = 0
}

// replayRead sets the answer of res to what the duplicate READ p asks for, which
// may begin in the middle of the original and be shorter (rule RS-21).
func (r *Responder) replayRead(res *resource, n uint64, p *bth.Packet) {
	h := &p.RETH
	skip := (n - res.first) * uint64(r.mtu)
	if h.RKey != res.rkey || h.VA != res.va+skip || uint64(h.DMALen) > uint64(res.len)-skip {
		return
	}
	if h.DMALen == 0 && res.len != 0 {
		return
	}
	if h.DMALen != 0 {
		if _, ok := r.remote(h.RKey, h.VA, h.DMALen, RemoteRead); !ok {
			// A requester that misses the answer ends here. One that has it, and
			// has taken the region away since, drops the NAK as old: a packet
			// that the network repeats must not end a connection.
			r.c.RespRemoteAccessErrors++
			if !r.hasNak {
				r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), n)
			}
			return
		}
	}
	if res.at == res.end {
		r.pending++
	}
	res.ansFirst, res.ansVA, res.ansLen = n, h.VA, h.DMALen
	res.at, res.end = 0, packets(uint64(h.DMALen), r.mtu)
}

// remembered returns the request of kind op that holds count n, or nil.
func (r *Responder) remembered(n uint64, op bth.Operation) *resource {
	for i := range min(r.resTail, r.maxRd) {
		res := r.slot(r.resTail - 1 - i)
		if n >= res.first && n < res.first+uint64(res.n) {
			if res.op != op {
				return nil
			}
			// It may be answered again, before those after it.
			r.answering = min(r.answering, r.resTail-1-i)
			return res
		}
	}
	return nil
}

// NextPacket makes the next answer to send, or reports false when there is none:
// answers in request order, then a NAK or an acknowledgement (rule RS-14).
func (r *Responder) NextPacket(out *Outgoing) bool {
	if r.pending == 0 && !r.hasNak && !r.hasAck {
		return false
	}
	p := &out.Packet
	*p = bth.Packet{}
	out.AH, out.Retransmission = nil, false
	p.M, p.PKey, p.DestQP = r.migrated, r.pkey, r.destQPN
	r.c.TxPackets++
	if r.pending != 0 && r.answer(p) {
		return true
	}
	p.Opcode = service(r.typ).Opcode(bth.Acknowledge)
	p.AETH.MSN = r.msn
	if r.hasNak {
		r.hasNak = false
		p.PSN, p.AETH.Syndrome = psn.Wrap(r.nakCount), r.nak
		return true
	}
	r.hasAck = false
	p.PSN, p.AETH.Syndrome = psn.Wrap(r.epsn-1), r.credits()
	return true
}

// credits is the syndrome of a positive acknowledgement (rule RS-24).
func (r *Responder) credits() aeth.Syndrome {
	if r.noCredits {
		return aeth.AckSyndrome(aeth.NoCredits)
	}
	return aeth.AckSyndrome(aeth.CreditsFor(r.rq.len()))
}

// answer makes the next packet of the oldest answer under way. It reports false
// when its memory has gone, and a NAK is to be sent instead (rule RS-15).
func (r *Responder) answer(p *bth.Packet) bool {
	res := r.oldestPending()
	s := service(r.typ)
	p.PSN = psn.Wrap(res.ansFirst + uint64(res.at))
	p.AETH.MSN, p.AETH.Syndrome = res.msn, r.credits()
	switch res.op {
	case bth.CmpSwap, bth.FetchAdd:
		p.Opcode = s.Opcode(bth.AtomicAcknowledge)
		p.AtomicAckETH.Orig = res.orig
	case bth.Flush, bth.AtomicWrite:
		p.Opcode = s.Opcode(bth.ReadResponseOnly)
	default:
		off := uint64(res.at) * uint64(r.mtu)
		n := min(r.mtu, res.ansLen-uint32(off))
		if n != 0 {
			data, ok := r.remote(res.rkey, res.ansVA+off, n, RemoteRead)
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
		r.pending--
		res.made = true
	}
	return true
}

// oldestPending returns the first request in order whose answer is under way, of
// which there is one.
func (r *Responder) oldestPending() *resource {
	if n := uint64(len(r.res)); r.resTail-r.answering > n {
		r.answering = r.resTail - n
	}
	for {
		if res := r.slot(r.answering); res.at != res.end {
			return res
		}
		r.answering++
	}
}

// withdraw gives up the answer res for want of the memory to read, with a NAK.
// Where it is the first answer, it gives up all others too and goes to Error.
func (r *Responder) withdraw(res *resource) {
	r.c.RespRemoteAccessErrors++
	if res.made {
		if !r.hasNak {
			r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), res.ansFirst+uint64(res.at))
		}
		res.at = res.end
		r.pending--
		return
	}
	r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), res.ansFirst+uint64(res.at))
	r.hasAck = false
	for i := range r.res {
		r.res[i].at = r.res[i].end
	}
	r.pending = 0
	r.events |= 1 << EventAccessErr
	r.mode = broken
}
