package qp

import "github.com/roce-go/roce/bth"

// handleUC handles a packet of an unreliable connection. One that does not fit drops the
// current message, and everything up to the start of the next one (rules UC-1, UC-2).
func (r *Responder) handleUC(p *bth.Packet) Verdict {
	n := r.epsn.Near(p.PSN)
	begins := !p.Opcode.Middle() && !p.Opcode.Last()
	if n != r.epsn || r.msg.skipping {
		if n != r.epsn {
			r.counters.OutOfSequence++
		}
		if r.msg.kind != noMessage {
			r.dropUC()
		}
		if !begins {
			r.msg.skipping = true
			r.epsn = max(r.epsn, n+1) // what is skipped in order is no gap
			return r.drop(OutOfSequence, WhySkipping)
		}
		r.epsn, r.msg.skipping = n, false
	}
	r.epsn = n + 1
	if !r.msg.inSequence(p.Opcode) {
		r.dropUC()
		if !begins {
			return r.drop(OutOfSequence, WhySequence)
		}
		r.msg.skipping = false
	}
	if !r.lengthFits(p) {
		r.dropUC()
		return r.drop(Invalid, WhyLength)
	}
	// executeSend and executeWrite advance the expected PSN themselves on success:
	// undo our step first.
	r.epsn = n
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

// dropUC gives up the current message; its receive is kept for the next one.
func (r *Responder) dropUC() {
	r.counters.UCMessagesDropped++
	r.msg.kind = noMessage
	r.msg.skipping = true
}

func (r *Responder) ucSend(p *bth.Packet) Verdict {
	if !r.rq.take(nil) {
		r.counters.OutOfBuffer++
		return r.drop(NoReceive, WhyNoReceive)
	}
	got := r.msg.got
	if r.msg.kind == noMessage {
		got = 0
	}
	if buf := r.incoming(&r.rq.recv); uint64(got)+uint64(len(p.Payload)) > buf.len() {
		r.counters.RespLocalLengthError++
		return r.drop(NoReceive, WhyRecvLength)
	}
	return r.executeSend(p, nil)
}

func (r *Responder) ucWrite(p *bth.Packet) Verdict {
	events := r.events
	v := r.executeWrite(p, nil)
	if v != Accepted {
		// No NAK, no Error and no event, as the reliable service has them.
		r.ack, r.mode, r.events = owed{}, running, events
		if v == Refused {
			return Invalid
		}
		return NoReceive
	}
	return v
}
