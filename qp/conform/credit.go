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
// limit, but not above that of the next one. So a breach is reported only after the next
// one.
type credits struct {
	known   bool
	since   int64
	limit   uint32 // of entry.takes
	limited uint64 // above the last packet sent beyond the limit
	over    struct {
		valid bool
		takes uint32
		frame uint64
		psn   uint64
		t     int64
	}
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
		c.over.valid, c.over.takes, c.over.frame, c.over.psn, c.over.t = true, e.takes, w.frames, e.psn, w.now
	}
	c.limited = e.psn + 1
}

// allow applies the credits of the current response, whose PSN is u. s is the responder's
// flow.
func (w *Watcher) allow(s *stream, x *exchange, u uint64) {
	c := &x.credit
	n, ok := w.f.Packet.AETH.Syndrome.Credit().Count()
	if !ok {
		c.known, c.over.valid = false, false
		return
	}
	if u >= x.next {
		return
	}
	e := x.log.at(u)
	if e == nil {
		return
	}
	takes := e.takes
	limit := takes + uint32(n)
	if c.over.valid {
		if int32(c.over.takes-limit) > 1 {
			w.reportAt(s.peerOr(w), CreditsOverrun, uint64(n), uint64(c.over.takes-takes), w.frames, c.over.frame, c.over.t, psn.Wrap(c.over.psn))
		}
		c.over.valid = false
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
	if !c.over.valid || e == nil || e.takes == 0 {
		return
	}
	if over := int32(c.over.takes - (e.takes - 1)); over > 1 {
		w.reportAt(s.peerOr(w), CreditsOverrun, 0, uint64(over), w.frames, c.over.frame, c.over.t, psn.Wrap(c.over.psn))
	}
	c.over.valid = false
}
