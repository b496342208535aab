package simnet

import "math/bits"

// warmMost is how many events are looked ahead at, up to the end of the slot of the last.
const warmMost = 12

// warmFrom is from how many directions on a network is large: with their queues,
// switches and packets some 1.5 kB for each are looked at all the time.
var warmFrom = 400

// warming is what an engine has read ahead.
type warming struct {
	large bool    // it is worth its while
	done  int     // of the events that come next
	list  []event // of ahead
	sum   uint64  // nothing, but that the compiler must not leave out the reading
}

// ahead is called with the number of events of a slot whose turn has come. When these are
// all that were read ahead, it does so for them and those after them.
func (e *engine) ahead(n int) {
	w := &e.warming
	if w.done -= n; w.done > 0 {
		return
	}
	w.list = e.queue.coming(append(w.list[:0], e.queue.cur...), warmMost)
	w.done = len(w.list) - n
	e.warm(w.list)
}

// warm reads what events are going to look at, each a chain of what leads
// to what: direction, packet, switch, way, queue. The chains do not depend on each other,
// so that the processor waits for the memory of several at once, and not once for each
// thing that each event looks at. In a network that fits the cache this gains nothing;
// in a large one it is half of the time.
func (e *engine) warm(list []event) {
	dirs, sum := e.n.dirs, uint64(0)
	for i := range list[:min(len(list), 2*warmMost)] {
		ev := &list[i]
		switch ev.class() {
		case evArrive:
			d := dirs[ev.arg()]
			p := d.flight.first().p
			s := d.toSW
			if s == nil {
				sum += uint64(d.toHost.zero) + uint64(p.f.TrafficClass) + uint64(p.f.Packet.DestQP)
				continue
			}
			if p.dst >= 0 {
				if q := s.ways[s.routes[p.dst]].first; q != nil {
					sum += uint64(q.bytes) + uint64(q.q[p.prio].bytes) + uint64(q.d.busyUntil.ns) + q.d.count
				}
			}
		case evFree:
			d := dirs[ev.arg()]
			sum += uint64(d.busyUntil.ns) + d.count
			if q := d.q; q == nil {
				sum += uint64(d.from.host.zero)
			} else if q.nonEmpty != 0 {
				sum += uint64(q.q[bits.TrailingZeros8(q.nonEmpty)].first().size)
			}
		}
	}
	e.sum += sum
}
