package simnet

import "math/bits"

// warmMost is how many events are looked ahead at.
const warmMost = 16

// warmFrom is from how many directions on a network is large: with their queues,
// switches and packets some 1.5 kB for each are looked at all the time.
var warmFrom = 400

// warm reads what the events of a slot are going to look at, step by step for all of
// them, so that the processor waits for its memory once for each step and not once for
// each thing that each event looks at. In a network that fits the cache it gains
// nothing, and costs little; in a large one it is most of the speed.
func (e *engine) warm(list []event) {
	list = list[:min(len(list), warmMost)]
	var ds [warmMost]*Direction
	var ps [warmMost]*packet
	var qs [warmMost]*egress
	n, sum := e.n, uint64(0)
	for i := range list {
		if c := list[i].class(); c == evArrive || c == evFree {
			ds[i] = n.dirs[list[i].arg()]
		}
	}
	for i := range list {
		d := ds[i]
		switch {
		case d == nil:
		case list[i].class() == evArrive:
			ps[i] = d.flight.head
		default:
			qs[i] = d.q
			sum += uint64(d.busyUntil.ns)
		}
	}
	for i := range list {
		d := ds[i]
		switch p, q := ps[i], qs[i]; {
		case p != nil:
			sum += uint64(p.size)
			if s := d.toSW; s != nil {
				sum += uint64(s.used)
			} else {
				sum += uint64(d.toHost.id) + uint64(p.f.Src.BitLen())
			}
		case q != nil:
			sum += uint64(d.count) + uint64(q.bytes)
			if m := q.nonEmpty; m != 0 {
				ps[i] = q.q[bits.TrailingZeros8(m)].head
			}
		case d != nil:
			sum += uint64(d.from.host.id)
		}
	}
	for i := range list {
		d, p := ds[i], ps[i]
		switch {
		case p == nil:
		case qs[i] != nil:
			sum += uint64(p.size)
		case d.toSW != nil:
			if p.dst >= 0 {
				qs[i] = d.toSW.ways[d.toSW.routes[p.dst]].first
			}
			if p = p.next; p != nil {
				sum += uint64(p.size)
			}
		}
	}
	for i := range list {
		if q := qs[i]; q != nil && list[i].class() == evArrive {
			sum += uint64(q.bytes) + uint64(q.q[3].bytes) + uint64(q.d.busyUntil.ns) + q.d.count
		}
	}
	e.warmed += sum
}
