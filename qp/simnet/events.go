package simnet

import "math/bits"

// class says what is to be done when an event's time comes. Of one instant, events
// happen in this order, and within a class by the number of the direction, host or
// port that they are of: an order that does not depend on who caused what first.
type class uint8

const (
	evCall   class = iota // a function of the caller
	evArrive              // the packet at the head of a direction's flight arrives
	evLate                // a packet that was held back arrives
	evHost                // a pause that a host obeys may be over, or a packet is read
	evOpen                // a pause that a switch obeys may be over, or has lasted too long
	evPause               // a pause that a switch asked for is to be repeated
	evFree                // a direction has sent its packet and may send another
	evTimer               // a host's port has a deadline
)

// stamp is a time: nanoseconds since the network's start, and 2^-32 ns. It is of whole
// nanoseconds for all but links, whose packets follow each other in fractions of one.
type stamp struct {
	ns   int64
	frac uint32
}

func (a stamp) before(b stamp) bool { return a.ns < b.ns || a.ns == b.ns && a.frac < b.frac }

// add returns a later by ns and frac.
func (a stamp) add(b stamp) stamp {
	f := uint64(a.frac) + uint64(b.frac)
	return stamp{a.ns + b.ns + int64(f>>32), uint32(f)}
}

func (a stamp) max(b stamp) stamp {
	if a.before(b) {
		return b
	}
	return a
}

// event has no pointers, so that the collector does not look at the queue.
type event struct {
	at  int64  // nanoseconds of virtual time
	ord uint64 // frac in the upper half, then class, then the number that arg is
}

// maxEntity is how many directions, hosts or queues of ports there may be.
const maxEntity = 1 << 29

func newEvent(at stamp, c class, arg int32) event {
	return event{at.ns, uint64(at.frac)<<32 | uint64(c)<<29 | uint64(arg)}
}

func (e *event) stamp() stamp { return stamp{e.at, uint32(e.ord >> 32)} }
func (e *event) class() class { return class(e.ord >> 29 & 7) }
func (e *event) arg() int32   { return int32(e.ord & (maxEntity - 1)) }

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.ord < f.ord
}

// eventQueue is a wheel of the nanoseconds to come, and a heap of what is later. A
// direction has one event for all packets in flight and a host one for all timers, so
// that its length follows the number of links that are busy, and nearly all events are
// of the next microseconds: the wheel takes and gives them at a cost that does not grow
// with their number.
type eventQueue struct {
	base  int64 // time of the event that was taken last: none is earlier
	near  int   // events in the wheel
	slot  int   // where first found the first, -1 for the heap
	heads [wheelSize]int32
	used  [wheelSize / 64]uint64 // bit for each slot that has events
	words uint64                 // bit for each word of used that is not 0
	nodes []node                 // the first is not used
	free  int32
	far   eventHeap
}

const wheelSize = 4096 // nanoseconds

// node is an event in a list of those of one nanosecond, in order.
type node struct {
	ev   event
	next int32
}

func (q *eventQueue) push(e event) {
	if uint64(e.at-q.base) >= wheelSize {
		q.far.push(e)
		return
	}
	i := q.free
	if i != 0 {
		q.free = q.nodes[i].next
	} else {
		if len(q.nodes) == 0 {
			q.nodes = append(q.nodes, node{})
		}
		i = int32(len(q.nodes))
		q.nodes = append(q.nodes, node{})
	}
	slot := int(e.at % wheelSize)
	at := &q.heads[slot]
	for *at != 0 && q.nodes[*at].ev.ord < e.ord {
		at = &q.nodes[*at].next
	}
	q.nodes[i] = node{e, *at}
	*at = i
	q.used[slot/64] |= 1 << (slot % 64)
	q.words |= 1 << (slot / 64)
	q.near++
}

// first returns the first event, if there is one.
func (q *eventQueue) first() (e event, ok bool) {
	q.slot = -1
	if q.near == 0 {
		if len(q.far.h) == 0 {
			return e, false
		}
		return q.far.h[0], true
	}
	from := int(q.base % wheelSize)
	w := from / 64
	if m := q.used[w] >> (from % 64); m != 0 {
		q.slot = from + bits.TrailingZeros64(m)
	} else {
		// The words after w, then round to w again.
		w = (w + 1 + bits.TrailingZeros64(bits.RotateLeft64(q.words, -(w+1)))) % 64
		q.slot = w*64 + bits.TrailingZeros64(q.used[w])
	}
	e = q.nodes[q.heads[q.slot]].ev
	if len(q.far.h) != 0 && q.far.h[0].before(&e) {
		q.slot = -1
		return q.far.h[0], true
	}
	return e, true
}

// pop takes off the event that first returned just now.
func (q *eventQueue) pop() {
	if q.slot < 0 {
		q.base = q.far.pop().at
		return
	}
	s := q.slot
	i := q.heads[s]
	n := &q.nodes[i]
	q.base = n.ev.at
	q.heads[s] = n.next
	if n.next == 0 {
		if q.used[s/64] &^= 1 << (s % 64); q.used[s/64] == 0 {
			q.words &^= 1 << (s / 64)
		}
	}
	n.next = q.free
	q.free = i
	q.near--
}

func (q *eventQueue) len() int { return q.near + len(q.far.h) }

// eventHeap is a four-way heap: a quarter of the levels' cache lines of a binary one.
type eventHeap struct {
	h []event
}

func (q *eventHeap) push(e event) {
	q.h = append(q.h, e)
	h := q.h
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
}

// pop takes the first event off; there must be one.
func (q *eventHeap) pop() event {
	h := q.h
	first := h[0]
	last := len(h) - 1
	e := h[last]
	h = h[:last]
	q.h = h
	if last == 0 {
		return first
	}
	i := 0
	for {
		c := 4*i + 1
		if c >= last {
			break
		}
		least := c
		for k := c + 1; k < min(c+4, last); k++ {
			if h[k].before(&h[least]) {
				least = k
			}
		}
		if !h[least].before(&e) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = e
	return first
}

// timerQueue is a heap of the hosts whose ports have a deadline, each in it once:
// unlike an event, a timer may be moved.
type timerQueue struct {
	h []timer
}

type timer struct {
	at   int64
	host *Host
}

func (t *timer) before(u *timer) bool {
	return t.at < u.at || t.at == u.at && t.host.id < u.host.id
}

// event returns the timer in the order of events.
func (t *timer) event() event { return newEvent(stamp{ns: t.at}, evTimer, t.host.id) }

// set gives a host's timer a time.
func (q *timerQueue) set(h *Host, at int64) {
	t := timer{at, h}
	if h.timerIn == 0 {
		q.h = append(q.h, t)
		h.timerIn = len(q.h)
	}
	h.timerAt = at
	i := h.timerIn - 1
	for i > 0 {
		up := (i - 1) / 4
		if !t.before(&q.h[up]) {
			break
		}
		q.put(i, q.h[up])
		i = up
	}
	q.put(i, t)
	q.down(i)
}

// remove takes the first timer off.
func (q *timerQueue) remove() {
	h := q.h[0].host
	h.timerIn, h.timerAt = 0, 0
	last := len(q.h) - 1
	t := q.h[last]
	q.h[last] = timer{}
	q.h = q.h[:last]
	if last != 0 {
		q.put(0, t)
		q.down(0)
	}
}

// idle reports whether no port has a deadline. Timers stay until the earliest
// deadline that there was, which may have gone.
func (q *timerQueue) idle() bool {
	for i := range q.h {
		if q.h[i].host.Port.Due() != 0 {
			return false
		}
	}
	return true
}

func (q *timerQueue) put(i int, t timer) {
	q.h[i] = t
	t.host.timerIn = i + 1
}

func (q *timerQueue) down(i int) {
	t := q.h[i]
	for {
		c := 4*i + 1
		if c >= len(q.h) {
			break
		}
		least := c
		for k := c + 1; k < min(c+4, len(q.h)); k++ {
			if q.h[k].before(&q.h[least]) {
				least = k
			}
		}
		if !q.h[least].before(&t) {
			break
		}
		q.put(i, q.h[least])
		i = least
	}
	q.put(i, t)
}

// call is a function of the caller: one of the network, or of a host.
type call struct {
	at   int64
	host int32  // -1 for the network
	seq  uint64 // in the order in which the network or the host was given them
	fn   func()
}

func (c *call) before(d *call) bool {
	switch {
	case c.at != d.at:
		return c.at < d.at
	case c.host != d.host:
		return c.host < d.host
	}
	return c.seq < d.seq
}

// callQueue is a binary heap of calls.
type callQueue struct {
	h []call
}

// due returns when the first call is due, noTime if there is none.
func (q *callQueue) due() int64 {
	if len(q.h) == 0 {
		return noTime
	}
	return q.h[0].at
}

const noTime = 1<<63 - 1

func (q *callQueue) push(c call) {
	q.h = append(q.h, c)
	i := len(q.h) - 1
	for i > 0 && c.before(&q.h[(i-1)/2]) {
		q.h[i] = q.h[(i-1)/2]
		i = (i - 1) / 2
	}
	q.h[i] = c
}

// pop takes the first call off; there must be one.
func (q *callQueue) pop() call {
	first, last := q.h[0], len(q.h)-1
	c := q.h[last]
	q.h[last] = call{}
	q.h = q.h[:last]
	if last == 0 {
		return first
	}
	i := 0
	for {
		k := 2*i + 1
		if k >= last {
			break
		}
		if k+1 < last && q.h[k+1].before(&q.h[k]) {
			k++
		}
		if !q.h[k].before(&c) {
			break
		}
		q.h[i] = q.h[k]
		i = k
	}
	q.h[i] = c
	return first
}
