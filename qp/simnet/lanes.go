package simnet

import "math/bits"

// Lanes: by what the time of an event is after that of its cause.
const (
	laneSpacing = iota // the time of a packet on the wire
	laneFlight         // that and the link's delay
	laneShort          // the same for a packet of up to shortPacket bytes
	lanes
	wheel = lanes // in heads, which are one cache line

	shortPacket = 512
	laneBack    = 8 // how many events of a lane may be later than one that is added
)

// flightOf returns the lane for the arrival of a packet that was sent at once.
func flightOf(size int32) uint {
	if size <= shortPacket {
		return laneShort
	}
	return laneFlight
}

// lane is a ring of events, the first first.
type lane struct {
	ring       []event // its length is a power of two
	head, tail uint32
	warmed     uint32 // warm was called for the events up to here
}

// pushLane is push for an event that is probably later than those of lane k.
func (q *eventQueue) pushLane(k uint, e event) {
	l := &q.lanes[k%lanes]
	i, mask := l.tail, uint32(len(l.ring)-1)
	if n := i - l.head; n-1 < mask-1 && l.ring[(i-1)&mask].before(&e) { // neither empty nor full
		l.ring[i&mask] = e
		l.tail = i + 1
		return
	}
	q.pushBack(k, e)
}

// pushBack is pushLane for an event that is not simply the last of others.
func (q *eventQueue) pushBack(k uint, e event) {
	if q.plain {
		q.push(e)
		return
	}
	l := &q.lanes[k]
	if int(l.tail-l.head) >= len(l.ring)-1 {
		l.grow()
	}
	i, mask := l.tail, uint32(len(l.ring)-1)
	if i == l.head {
		q.heads[k] = e
	} else {
		for !l.ring[(i-1)&mask].before(&e) {
			if i--; i == l.head || l.tail-i > laneBack {
				q.push(e)
				return
			}
		}
		for j := l.tail; j != i; j-- {
			l.ring[j&mask] = l.ring[(j-1)&mask]
		}
	}
	l.ring[i&mask] = e
	l.tail++
}

// grow doubles the ring.
func (l *lane) grow() {
	ring := make([]event, max(64, 2*len(l.ring)))
	n := uint32(0)
	for i := l.head; i != l.tail; i++ {
		ring[n] = l.ring[i&uint32(len(l.ring)-1)]
		n++
	}
	l.ring, l.warmed, l.head, l.tail = ring, uint32(max(0, int32(l.warmed-l.head))), 0, n
}

// ahead returns up to most events from the first on that follow each other in the ring.
func (l *lane) ahead(most uint32) []event {
	i := l.head & uint32(len(l.ring)-1)
	return l.ring[i:min(i+min(most, l.tail-l.head), uint32(len(l.ring)))]
}

// least returns which of heads is the first, without a branch.
func (q *eventQueue) least() uint {
	h := &q.heads
	return sooner(h, sooner(h, laneSpacing, laneFlight), sooner(h, laneShort, wheel))
}

// sooner returns which of two heads is the first.
func sooner(h *[lanes + 1]event, i, j uint) uint {
	a, b := &h[i%(lanes+1)], &h[j%(lanes+1)]
	_, less := bits.Sub64(b.ord, a.ord, 0)
	_, less = bits.Sub64(uint64(b.at), uint64(a.at), less)
	return i ^ (i^j)&-uint(less)
}

// drop removes the first event, which is that of heads[k].
func (q *eventQueue) drop(k uint) {
	if k >= wheel {
		last := len(q.cur) - 1
		if q.cur = q.cur[:last]; last > 0 {
			q.heads[wheel] = q.cur[last-1]
		} else {
			q.look()
		}
		return
	}
	l := &q.lanes[k]
	if l.head++; l.head == l.tail {
		q.heads[k] = never
	} else {
		q.heads[k] = l.ring[l.head&uint32(len(l.ring)-1)]
	}
}

// warmMost is for how many events memory is read ahead.
const warmMost = 16

// warmFrom is the number of directions from which on a network is large: with queues,
// switches and packets, about 1.5 kB for each direction are in use all the time.
var warmFrom = 400

// warm reads the memory that list, the next events of a lane, will use, for each a chain of pointers:
// direction, packet, switch, output, queue. The chains do not depend on each other, so that
// the processor waits for several at once instead of for each load in turn. In a network
// that fits the cache this gains nothing; in a large one it halves the time.
func (e *engine) warm(list []event) {
	dirs, sum := e.n.dirs, uint64(0)
	for i := range list {
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
