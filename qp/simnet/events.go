package simnet

// eventKind says what is to be done when an event's time comes.
type eventKind uint8

const (
	evArrive eventKind = iota // the packet at the head of a direction's flight arrives
	evLate                    // a packet that flies by itself arrives
	evFree                    // a direction has sent its packet and may send another
	evCall                    // a function of the caller
	evResume                  // a pause that a host obeys may be over
	evPause                   // a pause that a switch asked for is to be repeated
	evOpen                    // a pause that a switch obeys may be over
)

// event has no pointers, so that the collector does not look at the queue.
type event struct {
	at   int64  // nanoseconds of virtual time
	seq  uint64 // breaks ties in the order in which events were caused
	kind eventKind
	arg  int32 // direction, host, packet, call, by kind
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.seq < f.seq
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
	seq  uint64
	host *Host
}

func (t *timer) before(u *timer) bool {
	return t.at < u.at || t.at == u.at && t.seq < u.seq
}

// set gives a host's timer a time.
func (q *timerQueue) set(h *Host, at int64, seq uint64) {
	t := timer{at, seq, h}
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
