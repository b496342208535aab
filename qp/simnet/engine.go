package simnet

import (
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// engine is the part of a network that runs by itself: some switches and hosts, with
// the events and timers of theirs and the packets that they have. A network has one,
// or one for each thread.
type engine struct {
	n       *Network
	id      int
	now     stamp
	clockAt int64
	clock   time.Time // clockAt, see time

	queue  eventQueue
	timers timerQueue
	calls  callQueue // of hosts
	cur    event     // under way

	free    *packet
	dirty   []*Host // ports that were called
	settled []*Host // the list before

	events uint64
	hops   uint64

	crossing  []*Direction // with packets for another engine
	suspects  []suspect    // pauses that have lasted
	log       []logged     // for the observer
	logMemory []logged     // log before it was read
	scratch   frame.Frame
	event     PacketEvent
}

func (e *engine) setNow(at stamp) { e.now = e.now.max(at) }

// time returns now as the hosts' ports want it.
func (e *engine) time() time.Time {
	if e.clockAt != e.now.ns {
		e.clockAt, e.clock = e.now.ns, e.n.timeAt(e.now.ns)
	}
	return e.clock
}

func (e *engine) schedule(at stamp, c class, arg int32) { e.queue.push(newEvent(at, c, arg)) }

// next returns when the engine's next event is, noTime for never.
func (e *engine) next() int64 {
	at := e.calls.due()
	if ev, ok := e.queue.first(); ok {
		at = min(at, ev.at)
	}
	if h := e.timers.h; len(h) != 0 {
		at = min(at, h[0].at)
	}
	return at
}

// step does the next event, if there is one no later than end.
func (e *engine) step(end int64) bool {
	first, ok := e.queue.first()
	if !ok {
		first = event{noTime, 1<<64 - 1}
	}
	timer := false
	if h := e.timers.h; len(h) != 0 && h[0].at <= first.at {
		if t := h[0].event(); t.before(&first) {
			first, timer, ok = t, true, true
		}
	}
	switch at := e.calls.due(); {
	case at <= min(first.at, end) && at != noTime:
		c := e.calls.pop()
		e.cur = newEvent(stamp{ns: c.at}, evCall, c.host)
		e.setNow(stamp{ns: c.at})
		c.fn()
	case first.at > end || !ok:
		return false
	case timer:
		e.cur = first
		e.timers.h[0].host.timer()
	default:
		e.queue.pop()
		e.cur = first
		e.setNow(first.stamp())
		e.handle(&first)
	}
	e.events++
	if len(e.dirty) != 0 {
		e.settleDirty()
	}
	return true
}

func (e *engine) handle(ev *event) {
	n, arg := e.n, ev.arg()
	switch ev.class() {
	case evArrive:
		n.dirs[arg].arrive()
	case evLate:
		n.dirs[arg].arriveLate()
	case evHost:
		n.hosts[arg>>1].resume(arg&1 != 0)
	case evOpen:
		if arg&1 == 0 {
			n.dirs[arg>>1].open()
		} else {
			n.dirs[arg>>1].q.watch()
		}
	case evPause:
		n.swPorts[arg>>3].repeatPause(uint8(arg & 7))
	case evFree:
		n.dirs[arg].done()
	}
}

// settleDirty lets the hosts whose ports have been called look for work.
func (e *engine) settleDirty() {
	for len(e.dirty) != 0 {
		list := e.dirty
		e.dirty, e.settled = e.settled[:0], list
		for _, h := range list {
			h.dirty = false
			if h.linked() {
				h.settle()
			}
		}
	}
}

// idle reports whether nothing is left to do.
func (e *engine) idle() bool {
	return e.queue.len() == 0 && len(e.calls.h) == 0 && e.timers.idle()
}
