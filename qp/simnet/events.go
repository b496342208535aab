package simnet

import (
	"math"
	"math/bits"
	"slices"

	"github.com/roce-go/roce/qp/clock"
)

// class is the kind of an event. Events at the same time happen in this order, and within a
// class by the number of the direction, host or port that they belong to: an order that
// does not depend on the order in which they were caused.
type class uint8

const (
	evCall   class = iota // a function of the caller
	evArrive              // the packet at the head of a direction's flight arrives
	evLate                // a packet that was held back arrives
	evHost                // a pause of a host may be over, or a packet is read
	evOpen                // a pause of a switch's output may be over, or has lasted too long
	evPause               // a pause that a switch requested is to be repeated
	evFree                // a direction has sent its packet and may send another
	evTimer               // a host's port has a deadline
)

// stamp is a time: nanoseconds since the network's start, and 2^-32 ns. Only packets on
// links need the fraction; all other times are whole nanoseconds.
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

// event has no pointers, so that the garbage collector does not scan the queue.
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

// eventQueue is a few lanes, a wheel of time slots, and a heap of later events. A direction
// has one event for all packets in flight, and a host a few for all timers (see timers), so
// that the queue's length does not depend on the number of packets or queue pairs.
//
// A lane is a list in order, to whose end events are added: those that are all caused about
// the same time before they happen, such as the ends of packets of one length. Most events
// are of this kind.
//
// A slot is an unordered list until it becomes the current one; then its events are sorted,
// in an array. The length of a slot is adapted to the number of events, so that a slot has
// a few of them and the cost of an event does not depend on their number.
type eventQueue struct {
	heads [lanes + 1]event // the first of each lane, and of the wheel: see look
	lanes [lanes]lane

	cur   []event // of the slots up to slot: the first event last
	slot  int64   // time of the current slot, in slots
	shift uint    // a slot is 1<<shift nanoseconds
	plain bool    // only the heap: the reference in tests of the wheel

	free  int32
	near  int                     // events in the wheel
	nodes []node                  // the first is not used
	words uint64                  // bit for each word of used that is not 0
	used  [wheelSlots / 64]uint64 // bit for each slot that has events
	slots [wheelSlots]int32
	far   clock.Heap[struct{}]

	fills, filled int     // slots and their events, since shift was reviewed
	moving        []event // of reshape
	early         []event // of order
}

const (
	wheelSlots = 4096
	firstShift = 4  // of a new queue
	mostShift  = 10 // so that at most a microsecond is sorted at once
	manyInSlot = 5  // a slot with so many events on average is made shorter
	manyRuns   = 8  // in a full slot: it is sorted otherwise
	fullSlot   = 64
)

// never is later than all events.
var never = event{noTime, math.MaxUint64}

// node is an event in a slot.
type node struct {
	ev   event
	next int32
}

func newEventQueue(now int64, plain bool) eventQueue {
	q := eventQueue{shift: firstShift, plain: plain, slot: math.MinInt64 / 2}
	if !plain {
		q.slot = now>>q.shift - 1
	}
	for i := range q.heads {
		q.heads[i] = never
	}
	return q
}

// look sets the head of the wheel while cur is empty: no event of the wheel and of the heap
// is before that. fill finds the event itself.
func (q *eventQueue) look() {
	q.heads[wheel] = event{q.far.Due(noTime), 0}
	if q.near != 0 {
		q.looked(q.nextSlot() << (q.shift & 63))
	}
}

// looked is look after an event of the wheel or the heap was added, which is not before at.
func (q *eventQueue) looked(at int64) {
	if at < q.heads[wheel].at {
		q.heads[wheel] = event{at, 0}
	}
}

// push adds an event to the wheel or the heap.
func (q *eventQueue) push(e event) {
	s := e.at >> (q.shift & 63)
	if uint64(s-q.slot-1) >= wheelSlots-1 {
		q.pushAside(e, s <= q.slot)
		return
	}
	i := q.free
	if i == 0 {
		i = q.grow()
	}
	n, slot := &q.nodes[i], uint64(s)%wheelSlots
	q.free = n.next
	n.ev, n.next = e, q.slots[slot]
	if n.next == 0 {
		q.used[slot/64] |= 1 << (slot % 64)
		q.words |= 1 << (slot / 64)
	}
	q.slots[slot] = i
	q.near++
	if len(q.cur) == 0 {
		q.looked(s << (q.shift & 63))
	}
}

// pushAside is push for events in slots up to the current one, or beyond the wheel.
func (q *eventQueue) pushAside(e event, now bool) {
	if now {
		q.insert(e)
		if c := q.cur; len(c) > fullSlot && q.shift > 0 && c[0].at>>(q.shift-1) != c[len(c)-1].at>>(q.shift-1) {
			q.reshape(q.shift - 1)
		}
		return
	}
	if q.plain && len(q.cur) != 0 {
		q.far.Push(q.cur[0].at, q.cur[0].ord, struct{}{})
		q.cur = q.cur[:0]
		q.look()
	}
	q.far.Push(e.at, e.ord, struct{}{})
	if len(q.cur) == 0 {
		q.looked(e.at)
	}
}

// grow makes a free node.
func (q *eventQueue) grow() int32 {
	if len(q.nodes) == 0 {
		q.nodes = append(q.nodes, node{})
	}
	q.nodes = append(q.nodes, node{})
	return int32(len(q.nodes) - 1)
}

// insert puts e among the events of cur.
func (q *eventQueue) insert(e event) {
	q.cur = append(q.cur, e)
	c := q.cur
	i := len(c) - 1
	for i > 0 && c[i-1].before(&e) {
		c[i] = c[i-1]
		i--
	}
	c[i] = e
	q.heads[wheel] = c[len(c)-1]
}

// first returns the first event, or nil. It is valid until the queue changes.
func (q *eventQueue) first() *event {
	k := q.least()
	if k == wheel && len(q.cur) == 0 {
		if !q.fill() {
			return nil
		}
		k = q.least()
	}
	return &q.heads[k]
}

// fill makes the next slot with events the current one, and reports whether there is one.
func (q *eventQueue) fill() bool {
	if q.plain {
		if q.far.Len() == 0 {
			return false
		}
		at, ord, _ := q.far.Pop()
		q.cur = append(q.cur[:0], event{at, ord})
		q.heads[wheel] = q.cur[0]
		return true
	}
	next := int64(noTime)
	if q.near != 0 {
		next = q.nextSlot()
	}
	far := q.far.Due(noTime)
	if far != noTime {
		far >>= q.shift & 63
		next = min(next, far)
	}
	if next == noTime {
		return false
	}
	if q.cur = q.cur[:0]; next-q.slot < wheelSlots {
		q.take(uint64(next) % wheelSlots)
	}
	for q.slot = next; far == next; {
		at, ord, _ := q.far.Pop()
		q.insert(event{at, ord})
		if far = q.far.Due(noTime); far != noTime {
			far >>= q.shift & 63
		}
	}
	q.heads[wheel] = q.cur[len(q.cur)-1]
	q.fills++
	q.filled += len(q.cur)
	if q.fills == 256 {
		q.review()
	}
	return true
}

// take moves the events of a slot of the wheel to cur, in order.
func (q *eventQueue) take(slot uint64) {
	k := q.slots[slot]
	if k == 0 {
		return
	}
	cur, first := q.cur, k
	for {
		n := &q.nodes[k]
		cur = append(cur, n.ev)
		if n.next == 0 {
			n.next = q.free
			break
		}
		k = n.next
	}
	q.free, q.slots[slot] = first, 0
	if q.used[slot/64] &^= 1 << (slot % 64); q.used[slot/64] == 0 {
		q.words &^= 1 << (slot / 64)
	}
	q.near -= len(cur)
	q.cur = cur
	q.order(cur)
}

// order sorts the events of a slot, the first last. They are in the order of push, the last
// first: mostly a few runs that are in order already, which it merges.
func (q *eventQueue) order(c []event) {
	n := inOrder(c)
	for runs := 1; n < len(c); runs++ {
		if runs == manyRuns && len(c) > fullSlot {
			slices.SortFunc(c, func(a, b event) int {
				if b.before(&a) {
					return -1
				}
				return 1
			})
			return
		}
		m, at := n+inOrder(c[n:]), n
		for at > 0 && c[at-1].before(&c[n]) {
			at--
		}
		early := append(q.early[:0], c[at:n]...)
		q.early = early
		for k := at; len(early) != 0; k++ {
			if n < m && early[0].before(&c[n]) {
				c[k] = c[n]
				n++
			} else {
				c[k] = early[0]
				early = early[1:]
			}
		}
		n = m
	}
}

// inOrder returns how many events from the first on are in order, the latest first.
func inOrder(c []event) int {
	i := 1
	for i < len(c) && c[i].before(&c[i-1]) {
		i++
	}
	return i
}

// review makes slots longer or shorter where they have few or many events.
func (q *eventQueue) review() {
	mean := q.filled / q.fills
	q.fills, q.filled = 0, 0
	switch {
	case mean < manyInSlot/2 && q.shift < mostShift:
		q.reshape(q.shift + 1)
	case mean > manyInSlot && q.shift > 0:
		q.reshape(q.shift - 1)
	}
}

// nextSlot returns the first slot after the current one that has events.
func (q *eventQueue) nextSlot() int64 {
	from := uint64(q.slot+1) % wheelSlots
	w := from / 64
	to := uint64(0)
	if m := q.used[w] >> (from % 64); m != 0 {
		to = from + uint64(bits.TrailingZeros64(m))
	} else {
		// The words after w, then those up to w.
		w = (w + 1 + uint64(bits.TrailingZeros64(bits.RotateLeft64(q.words, -int(w+1))))) % 64
		to = w*64 + uint64(bits.TrailingZeros64(q.used[w]))
	}
	return q.slot + 1 + int64((to-from)%wheelSlots)
}

// reshape changes how long a slot is. There is an event in cur.
func (q *eventQueue) reshape(shift uint) {
	at := q.cur[len(q.cur)-1].at
	q.moving = q.drainWheel(q.moving[:0])
	q.shift = shift
	q.slot = at >> shift
	for _, e := range q.moving {
		q.push(e)
	}
}

// drain removes all events and appends them to list, in no order.
func (q *eventQueue) drain(list []event) []event {
	for k := range q.lanes {
		for l := &q.lanes[k]; l.head != l.tail; {
			list = append(list, q.heads[k])
			q.drop(uint(k))
		}
	}
	return q.drainWheel(list)
}

// drainWheel is drain of the wheel and the heap.
func (q *eventQueue) drainWheel(list []event) []event {
	list = append(list, q.cur...)
	q.cur = q.cur[:0]
	q.far.Clear(func(at int64, ord uint64, _ struct{}) { list = append(list, event{at, ord}) })
	for i, k := range q.slots {
		if k == 0 {
			continue
		}
		last := k
		for ; k != 0; k = q.nodes[k].next {
			list = append(list, q.nodes[k].ev)
			last = k
		}
		q.nodes[last].next, q.free, q.slots[i] = q.free, q.slots[i], 0
	}
	q.near, q.words, q.used = 0, 0, [wheelSlots / 64]uint64{}
	q.heads[wheel] = never
	return list
}

func (q *eventQueue) len() int {
	n := len(q.cur) + q.near + q.far.Len()
	for i := range q.lanes {
		n += int(q.lanes[i].tail - q.lanes[i].head)
	}
	return n
}

// noTime is later than all times.
const noTime = 1<<63 - 1

// callQueue holds functions of the caller: of the network, or of a host. Those of one
// time come in the order of the calls of At.
type callQueue = clock.Heap[func()]
