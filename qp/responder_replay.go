package qp

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// replay handles the duplicate p at PSN n (rules RS-20 to RS-23).
func (r *Responder) replay(n psn.Seq, p *bth.Packet) {
	op := p.Opcode.Operation()
	if !responded(op) {
		// Rule RS-20: whether or not it asks for it. A NAK of what is expected next
		// acknowledges it, one of a duplicate does not.
		if !r.ack.hasNak || r.ack.seq < r.epsn {
			r.ack.hasAck = true
		}
		return
	}
	res := r.res.remembered(n, op, r.maxRd())
	if res == nil {
		r.why = WhyForgotten
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
		r.why = WhyForgotten
		return
	}
	r.res.again(res, res.rspFirst, res.end)
}

// replayRead sets the response of res to what the duplicate READ p asks for, which
// may begin in the middle of the original and be shorter (rule RS-21).
func (r *Responder) replayRead(res *resource, n psn.Seq, p *bth.Packet) {
	h := &p.RETH
	skip := uint64(n-res.first) * uint64(r.mtu())
	if h.RKey != res.rkey || h.VA != res.va+skip || uint64(h.DMALen) > uint64(res.len)-skip || h.DMALen == 0 && res.len != 0 {
		r.why = WhyForgotten
		return
	}
	if h.DMALen != 0 {
		if _, ok := r.remote(res.pd, h.RKey, h.VA, h.DMALen, RemoteRead); !ok {
			// A requester that lacks the response fails here. One that has it, and for
			// which the region was deregistered since, drops the NAK as old: a packet
			// duplicated by the network must not end a connection.
			r.counters.RespRemoteAccessErrors++
			r.why = WhyRKey
			if !r.ack.hasNak {
				r.sendNak(aeth.NakSyndrome(aeth.NakRemoteAccessError), n)
			}
			return
		}
	}
	res.rspVA, res.rspLen = h.VA, h.DMALen
	r.res.again(res, n, packets(uint64(h.DMALen), r.mtu()))
}
