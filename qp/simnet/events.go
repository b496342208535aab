package simnet

// eventKind says what is to be done when an event's time comes.
type eventKind uint8

const (
	evArrive eventKind = iota // the packet at the head of a direction's flight arrives
	evLate                    // a packet that flies by itself arrives
	evFree                    // a direction has sent its packet and may send another
	evTimer                   // a host's port has a deadline
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
