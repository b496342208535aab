// Package clock converts the times that callers pass to nanoseconds, for machines that do
// not read a clock themselves. All machines of this module use it.
package clock

import (
	"time"
)

// end is the latest time of a Clock, in nanoseconds: 146 years. A deadline, now plus
// a period, stays inside an int64 with it.
const end = 1 << 62

// Clock converts times to nanoseconds since the first one passed to At, which is 1, so that
// 0 can mean "no deadline". A time before the latest one counts as the latest; one more
// than 146 years after the first counts as 146 years.
//
// The first time may be any, the zero time.Time included. Several machines may share a
// Clock; each time is then converted once for all of them. It is not safe for concurrent
// use.
//
// The zero value is ready.
type Clock struct {
	base, seen time.Time
	last       int64
	zero       int64 // base as Unix time, nanoseconds
	begun      bool
	wall       bool // base has no monotonic reading, and zero is not out of range
}

// At returns now in nanoseconds of the clock, 1 or more.
func (c *Clock) At(now time.Time) int64 {
	if now == c.seen && c.begun { // a subtraction of times costs ten such comparisons
		return c.last
	}
	return c.advance(now)
}

func inRange(t time.Time) bool { return t.Unix() >= 0 && t.Unix() < 1<<33 }

func (c *Clock) advance(now time.Time) int64 {
	c.seen = now
	if !c.begun {
		c.base, c.begun, c.last = now, true, 1
		c.zero = now.UnixNano()
		c.wall = now == now.Round(0) && inRange(now)
		return 1
	}
	var t int64
	if c.wall && inRange(now) {
		t = now.UnixNano() - c.zero // what Sub gives, for less
	} else {
		t = int64(now.Sub(c.base)) // the largest or smallest int64 where it is out of range
	}
	c.last = max(c.last, min(t, end-1)+1)
	return c.last
}

// Last returns the latest time passed to At, in nanoseconds of the clock, or 0 before the
// first call.
func (c *Clock) Last() int64 { return c.last }

// Time returns the time that t nanoseconds of the clock stand for.
func (c *Clock) Time(t int64) time.Time {
	if u := c.zero + t - 1; c.wall && t > 0 && u >= c.zero {
		return time.Unix(0, u).In(c.base.Location())
	}
	return c.base.Add(time.Duration(t - 1))
}

// Deadline returns the time that t nanoseconds of the clock stand for, or false
// for 0.
func (c *Clock) Deadline(t int64) (time.Time, bool) {
	if t == 0 {
		return time.Time{}, false
	}
	return c.Time(t), true
}

// Heap holds items that wait for a time: the earliest first, and at the same time the one
// with the least order. Each node has four children: fewer levels than with two, and the
// times of children are adjacent in memory.
//
// The zero value is ready for items that are removed only as the first one. For items that
// are moved or removed earlier, use NewHeap, which reports their places.
type Heap[T any] struct {
	h     []entry[T]
	moved func(item T, at int)
}

type entry[T any] struct {
	item  T // first, so that one of no size takes none
	at    int64
	order uint64
}

// NewHeap returns a heap that calls moved with the place of an item whenever that
// changes, and with -1 when the item is taken off. Places are for Set and Remove.
func NewHeap[T any](moved func(item T, at int)) Heap[T] { return Heap[T]{moved: moved} }

func (e *entry[T]) before(f *entry[T]) bool {
	return e.at < f.at || e.at == f.at && e.order < f.order
}

// Len returns how many items there are.
func (q *Heap[T]) Len() int { return len(q.h) }

// Grow makes room for n items in all.
func (q *Heap[T]) Grow(n int) {
	if n > cap(q.h) {
		h := make([]entry[T], len(q.h), max(16, 2*cap(q.h), n))
		copy(h, q.h)
		q.h = h
	}
}

// Due returns the time of the first item, or never where there is none.
func (q *Heap[T]) Due(never int64) int64 {
	if len(q.h) == 0 {
		return never
	}
	return q.h[0].at
}

// First returns the first item; there must be one.
func (q *Heap[T]) First() (at int64, order uint64, item T) {
	e := &q.h[0]
	return e.at, e.order, e.item
}

// Push adds an item.
func (q *Heap[T]) Push(at int64, order uint64, item T) {
	q.h = append(q.h, entry[T]{item, at, order})
	q.up(len(q.h) - 1)
}

// Pop takes the first item off; there must be one.
func (q *Heap[T]) Pop() (at int64, order uint64, item T) {
	e := q.h[0]
	q.Remove(0)
	return e.at, e.order, e.item
}

// Set gives the item at place i another time.
func (q *Heap[T]) Set(i int, at int64) {
	sooner := at < q.h[i].at
	q.h[i].at = at
	if sooner {
		q.up(i)
	} else {
		q.down(i)
	}
}

// Remove takes off the item at place i.
func (q *Heap[T]) Remove(i int) {
	gone := q.h[i].item
	last := len(q.h) - 1
	e := q.h[last]
	q.h[last] = entry[T]{}
	q.h = q.h[:last]
	if i != last {
		q.h[i] = e
		if i > 0 && e.before(&q.h[(i-1)/4]) {
			q.up(i)
		} else {
			q.down(i)
		}
	}
	if q.moved != nil {
		q.moved(gone, -1)
	}
}

// Clear takes off all items, each of which drop is called with, in no order.
func (q *Heap[T]) Clear(drop func(at int64, order uint64, item T)) {
	list := q.h
	q.h = q.h[:0]
	for i := range list {
		e := list[i]
		list[i] = entry[T]{}
		if q.moved != nil {
			q.moved(e.item, -1)
		}
		drop(e.at, e.order, e.item)
	}
}

func (q *Heap[T]) put(i int, e *entry[T]) {
	q.h[i] = *e
	if q.moved != nil {
		q.moved(e.item, i)
	}
}

func (q *Heap[T]) up(i int) {
	e := q.h[i]
	for i > 0 {
		p := (i - 1) / 4
		if !e.before(&q.h[p]) {
			break
		}
		q.put(i, &q.h[p])
		i = p
	}
	q.put(i, &e)
}

func (q *Heap[T]) down(i int) {
	e, h := q.h[i], q.h
	for {
		c := 4*i + 1
		if c >= len(h) {
			break
		}
		least := c
		for k := c + 1; k < min(c+4, len(h)); k++ {
			if h[k].before(&h[least]) {
				least = k
			}
		}
		if !h[least].before(&e) {
			break
		}
		q.put(i, &h[least])
		i = least
	}
	q.put(i, &e)
}
