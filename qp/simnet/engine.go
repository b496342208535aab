package simnet

import (
	"math"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// engine is a part of a network that runs by itself: switches and hosts, with their events,
// timers and packets. A network has one, or one for each thread.
type engine struct {
	n       *Network
	id      int
	now     stamp
	clockAt int64
	clock   time.Time // clockAt, see time

	queue  eventQueue
	timers int   // events of queue that are timers
	cur    event // the current one

	free    *packet
	pauses  *packet // as free, PFC frames
	dirty   []*Host // hosts whose ports were called
	settled []*Host // the list before

	events uint64
	hops   uint64

	large  bool   // warm makes it faster
	warmed uint64 // keeps the compiler from removing the loads of warm

	crossing  []*Direction // with packets for another engine
	suspects  []suspect    // pauses that have lasted
	log       []logged     // for the observer
	logMemory []logged     // log before it was read
	scratch   frame.Frame
	event     PacketEvent
}

func newEngine(n *Network, id int, now stamp, clock time.Time) *engine {
	return &engine{n: n, id: id, now: now, clock: clock, queue: newEventQueue(now.ns, n.cfg.plain)}
}

func (e *engine) setNow(at stamp) { e.now = e.now.max(at) }

// time returns now as a time.Time, for the hosts' ports.
func (e *engine) time() time.Time {
	if e.clockAt != e.now.ns {
		e.clockAt, e.clock = e.now.ns, e.n.timeAt(e.now.ns)
	}
	return e.clock
}

func (e *engine) schedule(at stamp, c class, arg int32) { e.queue.push(newEvent(at, c, arg)) }

// next returns the time of the engine's next event, noTime for none.
func (e *engine) next() int64 {
	if ev := e.queue.first(); ev != nil {
		return ev.at
	}
	return noTime
}

// run handles all events up to limit. It returns early where Network.check is set, which it
// tests unless several threads run.
func (e *engine) run(limit int64) {
	n, q := e.n, &e.queue
	for {
		k := q.least()
		ev := q.heads[k]
		if ev.at > limit {
			return
		}
		if k == wheel {
			if len(q.cur) == 0 {
				q.fill()
				continue
			}
		} else if l := &q.lanes[k]; e.large && int32(l.head-l.warmed) >= 0 {
			list := l.ahead(warmMost)
			l.warmed = l.head + uint32(len(list))
			e.warm(list)
		}
		q.drop(k)
		e.handle(ev)
		e.events++
		if len(e.dirty) != 0 {
			e.settleDirty()
		}
		if n.check.Load() && !n.parallel {
			return
		}
	}
}

// handle handles an event.
func (e *engine) handle(ev event) {
	e.cur = ev
	n, arg := e.n, ev.arg()
	if ev.class() == evTimer {
		n.hosts[arg].timer(ev.at)
		return
	}
	if at := ev.stamp(); e.now.before(at) {
		e.now = at
	}
	switch ev.class() {
	case evCall:
		_, _, fn := n.hosts[arg].calls.Pop()
		fn()
	case evArrive:
		n.dirs[arg].arrive()
	case evFree:
		n.dirs[arg].done()
	case evLate:
		n.dirs[arg].arriveLate()
	case evHost:
		n.hosts[arg>>1].resume(arg&1 != 0)
	case evOpen:
		if arg&1 == 0 {
			n.dirs[arg>>1].reopen()
		} else {
			n.dirs[arg>>1].q.watch()
		}
	case evPause:
		n.swPorts[arg>>3].repeatPause(uint8(arg & 7))
	}
}

// settleDirty calls settle of the hosts whose ports have been called.
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
	if e.queue.len() != e.timers {
		return false
	}
	for _, h := range e.n.hosts {
		if h.e == e && h.linked() && h.Port.Due() != 0 {
			return false
		}
	}
	return true
}

// rng is splitmix64. Each direction and each switch has its own, so that an additional link
// does not change the random numbers of others.
type rng uint64

func newRNG(seed uint64, stream uint64) rng {
	r := rng(seed)
	return rng(r.next() ^ (stream+1)*0xd1342543de82ef95)
}

func (r *rng) next() uint64 {
	z := finalize(uint64(*r))
	*r += 0x9e3779b97f4a7c15
	return z
}

// below returns a number of 0 .. n-1; n must not be 0. Its bias is below n/2^64.
func (r *rng) below(n uint64) uint64 { return r.next() % n }

// chance is a probability times 2^64.
type chance uint64

func newChance(p float64) chance {
	switch {
	case !(p > 0):
		return 0
	case p >= 1:
		return math.MaxUint64
	}
	return chance(p * (1 << 63) * 2)
}

// hit draws once, unless the chance is none.
func (r *rng) hit(c chance) bool { return c != 0 && r.next() <= uint64(c) }
