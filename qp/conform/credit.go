package conform

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// credits follows end-to-end credits: an acknowledgement at a PSN allows a number of
// messages after it that consume a receive, and one packet more. Rule RQ-15.
//
// Only messages that consume a receive are counted, so that a requester may count others
// against the limit or not. An acknowledgement that the capture lost could have raised the
// limit, but not above that of the next one. So a breach is reported only after one that
// was captured so much later that the responder sent it later, too, whatever order the
// clocks gave it.
type credits struct {
	known   bool
	since   int64
	limit   uint32     // of entry.takes
	limited uint64     // above the last packet sent beyond the limit
	close   int        // packets beyond the limit that an acknowledgement shows too soon to be sure
	over    [2]overrun // of the packets beyond it that are not decided, the first and the newest
}

// overrun is a packet beyond the limit.
type overrun struct {
	valid bool
	takes uint32
	frame uint64
	psn   uint64
	t     int64
}

func (c *credits) forget() { c.over = [2]overrun{} }

// decide judges the packets beyond the limit, now that the responder, whose flow is s, is
// seen to have allowed up to limit, n of them credits of the current response.
func (c *credits) decide(w *Watcher, s *stream, x *exchange, limit uint32, n uint64) {
	if !c.over[1].valid {
		return
	}
	shown := false
	for i := range c.over {
		o := &c.over[i]
		switch {
		case !o.valid:
		case int32(o.takes-limit) <= 1:
			o.valid = false
		case w.now-o.t > int64(w.cfg.Reorder)+w.clock.grain:
			c.tell(w, s, o, n, limit-uint32(n))
			return
		default:
			shown = true
		}
	}
	if !c.over[0].valid {
		c.over[0] = c.over[1]
	}
	if !shown {
		return
	}
	// The response may have been sent before the newest one that the requester had. Clocks
	// and reordering which do that leave signs.
	c.close++
	g := &x.signs
	if c.close >= often && c.close > 4*(g.late+g.copies+g.lost+g.gaps) && s.Duplicates == 0 && x.early.n == 0 {
		c.tell(w, s, &c.over[1], n, limit-uint32(n))
		return
	}
	w.leave(CreditsOverrun, ReasonLoss, 1)
}

// tell reports o, where credits up to message takes+n are known.
func (c *credits) tell(w *Watcher, s *stream, o *overrun, n uint64, takes uint32) {
	w.reportAt(s.peerOr(w), CreditsOverrun, n, uint64(o.takes-takes), w.frames, o.frame, o.t, psn.Wrap(o.psn))
	c.forget()
}

// consumes reports whether op consumes a receive when its message begins or ends.
func consumes(op bth.Opcode) bool { return op.Send() || op.Ext()&bth.HasImmDt != 0 }

// spend records that e was sent for the first time.
func (c *credits) spend(w *Watcher, x *exchange, e *entry) {
	begins := !e.op.Middle() && !e.op.Last() || e.op.Write() && e.op.Ext()&bth.HasImmDt != 0
	if !c.known || !begins || !consumes(e.op) || w.now-c.since <= int64(w.cfg.MinTimeout) || int32(e.takes-c.limit) <= 0 {
		return
	}
	if int32(e.takes-c.limit) > 1 && c.limited > x.acked {
		c.over[1] = overrun{true, e.takes, w.frames, e.psn, w.now}
		if !c.over[0].valid {
			c.over[0] = c.over[1]
		}
	}
	c.limited = e.psn + 1
}

// allow applies the credits of the current response, whose PSN is u. s is the responder's
// flow.
func (w *Watcher) allow(s *stream, x *exchange, u uint64) {
	c := &x.credit
	n, ok := w.f.Packet.AETH.Syndrome.Credit().Count()
	if !ok {
		c.known = false
		c.forget()
		return
	}
	if u >= x.next {
		return
	}
	e := x.log.at(u)
	if e == nil {
		return
	}
	limit := e.takes + uint32(n)
	if u >= x.answered {
		c.decide(w, s, x, limit, uint64(n))
	}
	if !c.known {
		c.known, c.since, c.limit = true, w.now, limit
	} else if int32(limit-c.limit) > 0 {
		c.limit = limit
	}
}

// denied records that the message which consumes its receive at PSN u got none: no
// acknowledgement, captured or lost, allowed it.
func (w *Watcher) denied(s *stream, x *exchange, u uint64) {
	c := &x.credit
	e := x.log.at(u)
	o := &c.over[1]
	if !o.valid || e == nil || e.takes == 0 {
		return
	}
	if int32(o.takes-(e.takes-1)) > 1 {
		c.tell(w, s, o, 0, e.takes-1)
	}
	c.forget()
}
