package simnet

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

// eventQueue is a four-way heap: a quarter of the levels' cache lines of a
// binary one. What keeps it fast is that it stays short: a direction has one event
// for all packets in flight and a host one for all timers, so that its length
// follows the number of links that are busy.
type eventQueue struct {
	h []event
}

func (q *eventQueue) push(e event) {
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
func (q *eventQueue) pop() event {
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
