package qp

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// GRHSize is the length in bytes of the area before a datagram in the memory of
// its receive: a GRH, or for IPv4 20 unspecified bytes and the IPv4 header.
const GRHSize = 40

// MulticastQPN is the destination QP of multicast datagrams.
const MulticastQPN = 0xffffff

// handleUC takes a packet of an unreliable connection: what does not fit drops
// the message under way, and everything up to the next one's beginning (rules
// UC-1, UC-2).
func (r *Responder) handleUC(p *bth.Packet) Verdict {
	n := psn.Unwrap(r.epsn, p.PSN)
	begins := !p.Opcode.Middle() && !p.Opcode.Last()
	if n != r.epsn || r.skipping {
		if n != r.epsn {
			r.c.OutOfSequence++
		}
		if r.msg != noMessage {
			r.dropUC()
		}
		if !begins {
			r.skipping = true
			r.epsn = max(r.epsn, n+1) // what is skipped in order is no gap
			return OutOfSequence
		}
		r.epsn, r.skipping = n, false
	}
	r.epsn = n + 1
	if !r.inSequence(p.Opcode) {
		r.dropUC()
		if !begins {
			return OutOfSequence
		}
		r.skipping = false
	}
	if !r.lengthFits(p) {
		r.dropUC()
		return Invalid
	}
	r.epsn = n // what both do to a message that they take
	v := NoReceive
	if p.Opcode.Send() {
		v = r.ucSend(p)
	} else {
		v = r.ucWrite(p)
	}
	if v != Accepted {
		r.epsn = n + 1
		r.dropUC()
	}
	return v
}

// dropUC gives up the message under way; its receive waits for the next.
func (r *Responder) dropUC() {
	r.c.UCMessagesDropped++
	r.msg = noMessage
	r.skipping = true
}

func (r *Responder) ucSend(p *bth.Packet) Verdict {
	if !r.takeReceive(nil) {
		r.c.OutOfBuffer++
		return NoReceive
	}
	got := r.got
	if r.msg == noMessage {
		got = 0
	}
	if buf := (span{r.recv.Local, r.recv.Scatter}); uint64(got)+uint64(len(p.Payload)) > buf.len() {
		r.c.RespLocalLengthError++
		return NoReceive
	}
	return r.executeSend(p, nil)
}

func (r *Responder) ucWrite(p *bth.Packet) Verdict {
	v := r.executeWrite(p, nil)
	if v != Accepted {
		// The reliable service's answer is not this one's: no NAK, no Error.
		r.hasNak, r.quiet, r.mode, r.events = false, false, running, 0
		if v == Refused {
			return Invalid
		}
		return NoReceive
	}
	return v
}

// handleUD takes a UD packet that was admitted (rules UD-1, UD-3, UD-4). Whether a
// multicast packet's address is multicast, and which QPs are attached to it, is for
// the caller to know.
func (r *Responder) handleUD(p *bth.Packet, grh *[GRHSize]byte) Verdict {
	switch {
	case r.mode == idle || r.mode == broken:
		r.c.Inactive++
		return Inactive
	case p.DETH.QKey != r.qkey:
		r.c.QKeyViolations++
		return Invalid
	case uint32(len(p.Payload)) > r.mtu:
		r.c.Invalid++
		return Invalid
	}
	r.established = true
	next := r.peekReceive()
	if next == nil {
		r.c.OutOfBuffer++
		return NoReceive
	}
	n := uint64(GRHSize + len(p.Payload))
	buf := span{next.Local, next.Scatter}
	if n > buf.len() {
		// The receive waits for a datagram that fits.
		r.c.RespLocalLengthError++
		return NoReceive
	}
	r.takeReceive(r.srq)
	if grh == nil {
		grh = new([GRHSize]byte)
	}
	buf.put(0, grh[:])
	buf.put(GRHSize, p.Payload)
	c := Completion{Op: OpRecv, ByteLen: uint32(n), SrcQP: p.DETH.SrcQP, Solicited: p.SE, GRH: true}
	if p.Opcode.Ext()&bth.HasImmDt != 0 {
		c.HasImm, c.Imm = true, p.ImmDt.Imm
	}
	r.complete(c)
	return Accepted
}
