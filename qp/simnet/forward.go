package simnet

import (
	"math/bits"
	"time"
)

// receive handles a packet that arrived on d.
func (s *Switch) receive(d *Direction, p *packet) {
	if p.pause {
		if !p.broken {
			d.to.out.q.pausedBy(&p.pfc)
		}
		s.e.release(p)
		return
	}
	p.ingress = d.toPort
	if p.dst < 0 {
		if p.dst == -2 {
			s.e.release(p) // only for this end of the link
			return
		}
		s.spread(d.to, p)
		return
	}
	w := &s.ways[s.routes[p.dst]]
	ways := w.all
	switch len(ways) {
	case 0:
		s.noRoute++
		s.e.release(p)
		return
	case 1:
		s.enqueue(w.first, p)
		return
	}
	hash := finalize(s.n.flowHash(p) ^ s.salt)
	if s.router == nil {
		s.enqueue(ways[pick(hash, len(ways))].q, p)
		return
	}
	s.route = RouteInfo{s.n.hosts[p.dst], hash, int(p.size), time.Duration(s.e.now.ns), int(d.toPort), s.n, p}
	s.enqueue(ways[s.router.Route(&s.route, ways)].q, p)
}

// spread sends p over the spanning tree to all outputs except the one it was received on.
func (s *Switch) spread(at *end, p *packet) {
	for _, d := range s.flood {
		if d != at.out {
			s.enqueue(d.q, s.e.clone(p))
		}
	}
	s.e.release(p)
}

// enqueue puts p into its queue, or drops or trims it.
func (s *Switch) enqueue(q *egress, p *packet) {
	if !s.admit(q, p) {
		if !s.cfg.Trim || p.trimmed || s.lossless>>p.prio&1 != 0 || !s.trim(p) || !s.admit(q, p) {
			q.drop(p)
			return
		}
		q.d.counters.Trimmed++
	}
	d, size, prio := q.d, p.size, p.prio&7
	w := &q.q[prio]
	if q.marks && p.ecn != noECN {
		if t := q.cp.Threshold(int(w.bytes)); t != 0 && q.cp.Mark(int(w.bytes), p.ecn, uint32(s.luck.next()>>32)) {
			s.n.mark(p)
			d.counters.Marked++
		}
	}
	s.used += size
	s.maxUsed = max(s.maxUsed, s.used)
	q.account(s.e.now.ns)
	w.push(p)
	w.bytes += size
	q.bytes += size
	q.nonEmpty |= 1 << prio
	q.maxBytes = max(q.maxBytes, q.bytes)
	if held := w.held; len(held) != 0 {
		in := int(p.ingress)
		held[in] += size
		if x := &s.xoff[in]; *x>>prio&1 == 0 && s.pauses(in, int(prio), false) {
			*x |= 1 << prio
			s.ports[in].ask(prio)
		}
	}
	if !d.armed {
		d.serve()
	}
}

// pauses is BufferPolicy.Pause.
func (s *Switch) pauses(in, prio int, asked bool) bool {
	if b := s.static; b != nil {
		return b.Pause(in, prio, asked)
	}
	return s.buffer.Pause(in, prio, asked)
}

// admit reports whether there is room for p, and reserves it.
func (s *Switch) admit(q *egress, p *packet) bool {
	size, prio := p.size, p.prio&7
	if q.d.down || q.dead>>prio&1 != 0 || size > q.limit-q.bytes && s.lossless>>prio&1 == 0 {
		return false
	}
	if b := s.static; b != nil {
		return b.take(p.ingress, prio, size, s.lossless>>prio&1 != 0)
	}
	return s.buffer.Enqueue(int(p.ingress), int(q.port), int(prio), int(size)) == Accept
}

// trim cuts a packet to its headers, without telemetry, or reports false where there is
// nothing to cut.
func (s *Switch) trim(p *packet) bool {
	switch f := &p.f; {
	case s.n.bytes:
		if !p.cut(s.cfg.TrimDSCP) {
			return false
		}
		p.size = wireSize(len(p.buf))
	case len(f.Packet.Payload) == 0:
		return false
	default:
		f.Packet.Payload, p.buf = nil, p.buf[:0]
		p.size = wireSize(f.Size())
	}
	p.trimmed, p.broken, p.told, p.collect = true, true, false, false
	p.f.TrafficClass = s.cfg.TrimDSCP<<2 | p.f.TrafficClass&3
	if p.f.VLANs == 0 {
		p.prio = s.cfg.TrimDSCP >> 3
	}
	return true
}

// drop drops a packet for which there is no room.
func (q *egress) drop(p *packet) {
	q.d.counters.Dropped++
	q.d.counters.DroppedBytes += uint64(p.size)
	q.d.e.observe(q.d, p, Dropped)
	q.d.e.release(p)
}

// left counts a packet that leaves a queue.
func (q *egress) left(p *packet) {
	s, size, prio := q.sw, p.size, p.prio&7
	q.account(s.e.now.ns)
	w := &q.q[prio]
	w.bytes -= size
	q.bytes -= size
	if w.head == nil {
		q.nonEmpty &^= 1 << prio
	}
	s.used -= size
	in := int(p.ingress)
	if b := s.static; b != nil {
		b.give(p.ingress, prio, size, s.lossless>>prio&1 != 0)
	} else {
		s.buffer.Dequeue(in, int(q.port), int(prio), int(size))
	}
	if held := w.held; len(held) != 0 {
		held[in] -= size
		if x := &s.xoff[in]; *x>>prio&1 != 0 && !s.pauses(in, int(prio), true) {
			*x &^= 1 << prio
			s.ports[in].tell(prio, 0)
		}
	}
}

// flush drops what waits for an output, in the priorities of mask.
func (q *egress) flush(mask uint8) {
	for m := mask & q.nonEmpty; m != 0; m &= m - 1 {
		prio := bits.TrailingZeros8(m)
		for p := q.q[prio].pop(); p != nil; p = q.q[prio].pop() {
			q.left(p)
			q.drop(p)
		}
	}
}

// account updates the integral of the queue's length until now.
func (q *egress) account(now int64) {
	if now != q.areaAt {
		q.area += float64(q.bytes) * float64(now-q.areaAt)
		q.areaAt = now
	}
}

// accountPauses updates the pause times until now.
func (q *egress) accountPauses(now int64) {
	for m := q.paused; m != 0; m &= m - 1 {
		p := bits.TrailingZeros8(m)
		q.d.counters.PausedFor[p] += time.Duration(now - q.pauses.since[p])
		q.pauses.since[p] = now
	}
}

// MeanQueue returns the mean number of bytes that waited at a switch for this
// direction, over the time since the start or the last call with reset.
func (d *Direction) MeanQueue(reset bool) float64 {
	q := d.q
	if q == nil {
		return 0
	}
	q.account(d.e.now.ns)
	mean := 0.0
	if t := d.e.now.ns - q.from; t > 0 {
		mean = q.area / float64(t)
	}
	if reset {
		q.area, q.from = 0, d.e.now.ns
	}
	return mean
}

// serve sends the next packet of the queues if the direction is free.
func (d *Direction) serve() {
	q := d.q
	for !d.armed && (q.nonEmpty&^q.paused != 0 || q.urgent) {
		if !d.free() {
			d.awaitFree()
			return
		}
		d.send(q.next())
	}
}

// next removes and returns the packet whose turn it is; there is one.
func (q *egress) next() *packet {
	if q.urgent {
		p := q.control.pop()
		q.urgent = q.control.head != nil
		return p
	}
	ready := q.nonEmpty &^ q.paused
	s := q.sw
	prio := 0
	if m := ready & s.strict; m != 0 {
		prio = 7 - bits.LeadingZeros8(m)
	} else {
		prio = q.roundRobin(ready)
	}
	p := q.q[prio].pop()
	q.left(p)
	return p
}

// roundRobin returns the priority whose turn it is among those that are ready: each turn
// adds weight times the longest frame, in bytes, to what a priority may send.
func (q *egress) roundRobin(ready uint8) int {
	for {
		p := int(q.turn)
		if ready>>p&1 != 0 && q.deficit[p] >= int(q.q[p].head.size) {
			q.deficit[p] -= int(q.q[p].head.size)
			return p
		}
		if ready>>p&1 == 0 {
			q.deficit[p] = 0
		}
		q.turn = uint8(p+1) & 7
		if ready>>q.turn&1 != 0 {
			q.deficit[q.turn] += q.sw.cfg.Weights[q.turn] * maxWire
		}
	}
}
