// Package clock turns the times that callers pass into nanoseconds, for machines
// that know no time of their own. It is the one clock of this module.
package clock

import "time"

// end is the latest time of a Clock, in nanoseconds: 146 years. A deadline, now plus
// a period, stays inside an int64 with it.
const end = 1 << 62

// Clock turns times into nanoseconds since the first one that it was shown, which
// is 1, so that 0 may stand for "no deadline". Time that goes backwards stands
// still, and so does time that is more than 146 years after the first.
//
// The first time may be any, the zero time.Time included. Several machines may
// share a Clock; each time is then turned once for all of them. It is not safe for
// concurrent use.
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

// Last returns the latest time that the clock was shown, in nanoseconds, or 0
// before the first.
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
