package simnet

import (
	"math/bits"
	"time"

	"github.com/roce-go/roce/qp/congestion"
)

// free reports whether the direction may begin to send a packet.
func (d *Direction) free() bool { return !d.e.now.before(d.busyUntil) }

// rearm schedules done for when the direction is free.
func (d *Direction) rearm() {
	if !d.armed && !d.free() {
		d.awaitFree()
	}
}

// awaitFree schedules done. Where that is the whole time of a packet from now, as when one has
// just been sent, it is mostly later than what waits in the lane.
func (d *Direction) awaitFree() {
	d.armed = true
	ev := newEvent(d.busyUntil, evFree, d.id)
	if d.size > shortPacket && d.busyUntil == d.e.now.add(d.spacing) {
		d.e.queue.pushLane(laneSpacing, ev)
	} else {
		d.e.queue.push(ev)
	}
}

// done is called when the direction has become free.
func (d *Direction) done() {
	d.armed = false
	if d.q != nil {
		d.serve()
		return
	}
	d.from.host.linkFree(d.from)
}

// duration returns the time to send bytes bytes, in units of 2^-32 ns.
func (d *Direction) duration(bytes int32) stamp {
	x := uint64(bytes) * 8e9
	hi, lo := bits.Mul64(x%d.rate, 1<<32)
	frac, _ := bits.Div64(hi, lo, d.rate)
	return stamp{int64(x / d.rate), uint32(frac)}
}

// measure updates onWire and spacing.
func (d *Direction) measure(size int32) {
	d.size = size
	if d.rate == 0 {
		return
	}
	b := max(size, minFrame+fcsSize) + preambleSize
	d.onWire, d.spacing = d.duration(b), d.duration(b+gapSize)
}

// send starts to send p, which belongs to the direction from now on.
func (d *Direction) send(p *packet) {
	e := d.e
	if p.collect && d.q != nil {
		before := p.tel.Size()
		p.tel.Stamp(congestion.NewHop(d.rate, e.now.ns, d.counters.Bytes, uint64(d.Queue())))
		if e.n.bytes {
			p.buf = p.tel.AppendTo(p.buf[:len(p.buf)-len(afterIP(p.buf))])
			p.size = wireSize(len(p.buf))
		} else {
			p.size += int32(p.tel.Size() - before) // nothing beyond congestion.MaxHops
		}
	}
	if d.size != p.size {
		d.measure(p.size)
	}
	p.close = p.size > shortPacket && d.busyUntil == e.now
	d.busyUntil = e.now.add(d.spacing)
	d.count++
	d.counters.Packets++
	d.counters.Bytes += uint64(p.size)
	at := e.now.add(d.onWire)
	at.ns += d.delay
	fate := Sent
	if d.odd {
		if d.from.capture != nil {
			d.from.capture.record(e.now.ns, p)
		}
		switch {
		case d.down:
			d.counters.Lost++
			fate = Lost
		case d.faulty || d.intercept != nil:
			fate = d.fate(p)
		}
		switch fate {
		case Lost:
			e.observe(d, p, Lost)
			e.release(p)
			return
		case Reordered:
			e.observe(d, p, fate)
			at.ns += 1 + int64(d.luck.below(uint64(d.late)))
			p.at = at
			d.pass(p, true)
			return
		}
		if d.jitter != 0 {
			at.ns += int64(d.luck.below(uint64(d.jitter) + 1))
		}
	}
	if e.n.observer != nil {
		e.observe(d, p, fate)
	}
	if at.before(d.lastArrival) {
		at = d.lastArrival
	}
	d.lastArrival = at
	switch {
	case fate == Duplicated:
		p.at = at
		c := e.clone(p)
		d.pass(p, false)
		d.pass(c, false)
	case d.crossing:
		p.at = at
		d.pass(p, false)
	default:
		p.at = at
		d.fly(p)
	}
}

// pass puts p in flight, at once or, where the other end belongs to another engine, at the
// next exchange.
func (d *Direction) pass(p *packet, late bool) {
	if d.crossing && d.e.n.parallel {
		if d.sent.head == nil {
			d.e.crossing = append(d.e.crossing, d)
		}
		p.late = late
		d.sent.push(p)
		return
	}
	if late {
		d.flyLate(p)
	} else {
		d.fly(p)
	}
}

// fly schedules the arrival of p, after all packets in flight.
func (d *Direction) fly(p *packet) {
	if d.flight.head == nil {
		d.toE.queue.pushLane(flightOf(p.size), newEvent(p.at, evArrive, d.id))
	}
	d.flight.push(p)
}

// flyLate schedules the arrival of p, which others may overtake.
func (d *Direction) flyLate(p *packet) {
	d.toE.schedule(p.at, evLate, d.id)
	// There are few at a time.
	at := &d.lates.head
	for *at != nil && !p.at.before((*at).at) {
		at = &(*at).next
	}
	p.next, *at = *at, p
}

// fate draws what happens to the next packet.
func (d *Direction) fate(p *packet) Fate {
	wish := Sent
	if d.intercept != nil {
		ev := &d.e.event
		d.e.describe(ev, d, p, Sent)
		wish = d.intercept(ev)
	}
	lose := wish == Lost || wish == Dropped
	if len(d.losses) != 0 && d.losses[0] == d.count-1 {
		d.losses = d.losses[1:]
		lose = true
	}
	switch {
	case d.luck.hit(d.loss) || lose:
		d.counters.Lost++
		return Lost
	case d.luck.hit(d.corrupt) || wish == Corrupted:
		d.counters.Corrupted++
		d.damage(p)
		return Corrupted
	case d.luck.hit(d.dup) || wish == Duplicated:
		d.counters.Duplicated++
		return Duplicated
	case d.luck.hit(d.reorder) || wish == Reordered:
		d.counters.Reordered++
		return Reordered
	}
	return Sent
}

// damage changes a bit of p.
func (d *Direction) damage(p *packet) {
	if !d.n.bytes || p.pause {
		p.broken = true
		return
	}
	from := 14
	if len(p.buf) <= from {
		from = 0 // no whole Ethernet header
	}
	if len(p.buf) == 0 {
		return
	}
	if f := &d.e.scratch; f.Decode(1, p.buf) == nil {
		from = len(p.buf) - len(f.Trailer) - len(f.Transport)
	}
	bit := d.luck.below(uint64(len(p.buf)-from) * 8)
	at := from + int(bit/8)
	if from > 14 && at == from+4 {
		at++ // the one byte of the BTH that the ICRC does not cover
	}
	p.buf[at] ^= 1 << (bit % 8)
	d.n.read(p)
}

// arrive delivers the first packet in flight.
func (d *Direction) arrive() {
	p := d.flight.pop()
	if q := d.flight.head; q != nil {
		if ev := newEvent(q.at, evArrive, d.id); q.close {
			d.toE.queue.pushLane(laneSpacing, ev)
		} else {
			d.toE.queue.push(ev)
		}
	}
	d.deliver(p)
}

// arriveLate delivers the first of the packets that were held back.
func (d *Direction) arriveLate() {
	p := d.lates.head
	d.lates.head, p.next = p.next, nil
	d.deliver(p)
}

func (d *Direction) deliver(p *packet) {
	d.toE.hops++
	if d.odd && d.to.capture != nil {
		d.to.capture.record(d.toE.now.ns, p)
	}
	if d.toHost != nil {
		d.toHost.receive(d.to, p)
		return
	}
	d.toSW.receive(d, p)
}

// Utilization returns the part of the rate that was used over d, given the
// bytes sent in that time, preambles and gaps counted for packets.
func Utilization(packets, bytes, rate uint64, d time.Duration) float64 {
	if rate == 0 || d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(bytes+packets*(preambleSize+gapSize), 8e9)
	return (float64(hi)*(1<<64) + float64(lo)) / float64(rate) / float64(d)
}
