package simnet

import "math/bits"

// warmMost is for how many events memory is read ahead.
const warmMost = 16

// warmFrom is the number of directions from which on a network is large: with queues,
// switches and packets, about 1.5 kB for each direction are in use all the time.
var warmFrom = 400

// warm reads the memory that the events of a slot will use, for each a chain of pointers:
// direction, packet, switch, output, queue. The chains do not depend on each other, so that
// the processor waits for several at once instead of for each load in turn. In a network
// that fits the cache this gains nothing; in a large one it halves the time.
func (e *engine) warm(list []event) {
	dirs, sum := e.n.dirs, uint64(0)
	for i := max(0, len(list)-warmMost); i < len(list); i++ {
		ev := &list[i]
		switch ev.class() {
		case evArrive:
			d := dirs[ev.arg()]
			p := d.flight.head
			s := d.toSW
			if s == nil {
				sum += uint64(d.toHost.zero) + uint64(p.f.TrafficClass) + uint64(p.f.Packet.DestQP)
				continue
			}
			if next := p.next; next != nil {
				sum += uint64(next.at.ns)
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
				sum += uint64(q.q[bits.TrailingZeros8(q.nonEmpty)].head.size)
			}
		}
	}
	e.warmed += sum
}
