package simnet

import (
	"math/bits"
	"time"

	"github.com/roce-go/roce/cnp/pfc"
)

// maxQuanta is the longest pause that a frame can request.
const maxQuanta = 0xffff

// pauses is the state of the pauses of an output.
type pauses struct {
	till  [8]int64 // when priorities resume
	since [8]int64 // when PausedFor was last brought up to date
	began [8]int64 // time of the pause, or of the last packet sent after it
	wake  int64    // when the next evOpen is, 0 for none
}

// ask requests the peer of a port to pause a priority, and again before that ends.
func (p *swPort) ask(prio uint8) {
	p.tell(prio, maxQuanta)
	e := p.sw.e
	p.repeatAt[prio] = e.now.ns + int64(pfc.Duration(maxQuanta, p.end.link.cfg.Rate))/2
	p.awaitRepeat(prio)
}

// awaitRepeat schedules an event at repeatAt, unless there is an earlier one, which then
// checks again.
func (p *swPort) awaitRepeat(prio uint8) {
	if p.awaited>>prio&1 == 0 {
		p.awaited |= 1 << prio
		p.sw.e.schedule(stamp{ns: p.repeatAt[prio]}, evPause, p.id<<3|int32(prio))
	}
}

// repeatPause is called when a pause that a port requested is half over.
func (p *swPort) repeatPause(prio uint8) {
	e, xoff := p.sw.e, &p.sw.xoff[p.end.port]
	p.awaited &^= 1 << prio
	switch {
	case *xoff>>prio&1 == 0:
		return
	case p.repeatAt[prio] > e.now.ns: // it was requested again since
		p.awaitRepeat(prio)
		return
	}
	if !p.sw.buffer.Pause(p.end.port, int(prio), true) { // a threshold has risen
		*xoff &^= 1 << prio
		p.tell(prio, 0)
		return
	}
	if p.end.in.from.sw != nil {
		e.suspect(p.end.in, prio)
	}
	p.ask(prio)
}

// tell sends a PFC frame for one priority.
func (p *swPort) tell(prio uint8, quanta uint16) {
	e := p.sw.e
	k := e.newPause()
	k.pfc = pfc.New([6]byte{0x02, 1, byte(p.id >> 24), byte(p.id >> 16), byte(p.id >> 8), byte(p.id)})
	k.pfc.Set(int(prio), quanta)
	if e.n.bytes {
		k.buf = k.pfc.AppendFrame(k.buf[:0])
	}
	d := p.end.out
	if quanta == 0 {
		d.counters.ResumeSent++
	} else {
		d.counters.PauseSent++
	}
	d.q.control.push(k)
	d.q.urgent = true
	d.serve()
}

// pausedBy obeys a PFC frame from the peer of the output.
func (q *egress) pausedBy(f *pfc.Frame) {
	e, c := q.sw.e, &q.pauses
	now := e.now.ns
	q.accountPauses(now)
	for prio := range 8 {
		quanta, ok := f.Time(prio)
		if !ok {
			continue
		}
		if quanta == 0 {
			c.till[prio] = now
			continue
		}
		if q.paused>>prio&1 == 0 {
			q.paused |= 1 << prio
			c.since[prio], c.began[prio] = now, now
			q.d.counters.Pauses++
			if w := q.sw.cfg.Watchdog; w != 0 {
				e.schedule(stamp{ns: now + int64(w)}, evOpen, q.d.id<<1|1)
			}
		}
		c.till[prio] = now + int64(pfc.Duration(quanta, q.d.rate))
	}
	q.d.open()
}

// reopen is called when a pause may be over.
func (d *Direction) reopen() {
	c := &d.q.pauses
	if c.wake == d.e.now.ns {
		c.wake = 0
	}
	d.open()
}

// open ends the pauses whose time is over, and is called again at the end of the next.
// Pauses are often extended and cut short: an event stays at the first end that was set,
// and then checks for the next.
func (d *Direction) open() {
	q, now := d.q, d.e.now.ns
	c := &q.pauses
	q.accountPauses(now)
	next := int64(noTime)
	for m := q.paused; m != 0; m &= m - 1 {
		if prio := bits.TrailingZeros8(m); c.till[prio] <= now {
			q.paused &^= 1 << prio
			q.dead &^= 1 << prio
		} else {
			next = min(next, c.till[prio])
		}
	}
	if next != noTime && (c.wake == 0 || next < c.wake) {
		c.wake = next
		d.e.schedule(stamp{ns: next}, evOpen, d.id<<1)
	}
	d.serve()
}

// watch is the watchdog: it flushes queues that have been paused for too long.
func (q *egress) watch() {
	c := &q.pauses
	for m := q.paused &^ q.dead; m != 0; m &= m - 1 {
		prio := bits.TrailingZeros8(m)
		if time.Duration(q.d.e.now.ns-c.began[prio]) >= q.sw.cfg.Watchdog {
			q.dead |= 1 << prio
			q.d.counters.Watchdog++
			q.flush(1 << prio)
		}
	}
}
