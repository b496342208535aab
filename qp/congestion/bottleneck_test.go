package congestion_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
)

// bottleneck is the smallest network: senders, one queue before one link, and a fixed
// delay both ways. It shares nothing with the simulator of this module, so that what
// both say of a controller was found twice. Time is in picoseconds.
type bottleneck struct {
	line  float64 // of the link and of the senders, bits a second
	delay int64   // one way
	size  int     // of a packet
	cp    *cnp.CongestionPoint
	rnd   *rand.Rand

	now     int64
	events  eventHeap
	seq     int
	senders []*sender

	queue []packet // the first is on the link
	sent  uint64   // bytes by the link

	area     float64 // byte picoseconds waiting, since mark
	areaAt   int64
	mark     int64
	markSent uint64
	most     int
}

type sender struct {
	id       int
	flow     congestion.Flow
	receiver congestion.Receiver
	gate     int64
	start    int64

	psn, una uint64
	inFlight int64
	next     int64 // when the pacer lets go
	rate     float64
	wake     int64 // the latest event of its own
	got      int64 // bytes delivered since mark
}

type packet struct {
	s   *sender
	psn uint64
	at  int64
	ce  bool
	tel congestion.INT
}

type event struct {
	at, seq int64
	do      func()
}

type eventHeap []event

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (h *eventHeap) push(e event) {
	q := append(*h, e)
	i := len(q) - 1
	for i > 0 && e.before(&q[(i-1)/2]) {
		q[i] = q[(i-1)/2]
		i = (i - 1) / 2
	}
	q[i] = e
	*h = q
}

func (h *eventHeap) pop() event {
	q := *h
	top, e := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	for i := 0; len(q) > 0; {
		c := 2*i + 1
		if c+1 < len(q) && q[c+1].before(&q[c]) {
			c++
		}
		if c >= len(q) || !q[c].before(&e) {
			q[i] = e
			break
		}
		q[i] = q[c]
		i = c
	}
	*h = q
	return top
}

func newBottleneck(line float64, delayNs int64, size int, ecn *cnp.CongestionParams) *bottleneck {
	b := &bottleneck{line: line, delay: delayNs * 1000, size: size, rnd: rand.New(rand.NewPCG(1, 2))}
	if ecn != nil {
		cp, err := cnp.NewCongestionPoint(*ecn)
		if err != nil {
			panic(err)
		}
		b.cp = &cp
	}
	return b
}

// add has a flow of a host of its own begin at startNs.
func (b *bottleneck) add(t testing.TB, c congestion.Controller, startNs int64) *sender {
	p, err := c.NewPort(uint64(b.line))
	require.NoError(t, err)
	s := &sender{id: len(b.senders), flow: p.Flow(), receiver: p.Receiver(), start: startNs * 1000}
	b.senders = append(b.senders, s)
	b.at(s.start, func() { b.try(s) })
	return s
}

func (b *bottleneck) at(t int64, fn func()) {
	b.seq++
	b.events.push(event{t, int64(b.seq), fn})
}

func (b *bottleneck) ns() int64 { return b.now/1000 + 1 }

func (b *bottleneck) wire() int64 { return int64(float64(b.size) * 8e12 / b.line) }

func (b *bottleneck) run(untilNs int64) {
	until := untilNs * 1000
	for len(b.events) > 0 && b.events[0].at <= until {
		e := b.events.pop()
		b.now = e.at
		e.do()
	}
	b.now = until
}

// reset restarts the means.
func (b *bottleneck) reset() {
	b.account()
	b.area, b.mark, b.markSent, b.most = 0, b.now, b.sent, 0
	for _, s := range b.senders {
		s.got = 0
	}
}

func (b *bottleneck) waiting() int { return max(0, len(b.queue)-1) * b.size }

func (b *bottleneck) account() {
	b.area += float64(b.waiting()) * float64(b.now-b.areaAt)
	b.areaAt = b.now
}

// mean returns the mean queue in bytes, and use the link's use, since reset.
func (b *bottleneck) mean() float64 { b.account(); return b.area / float64(b.now-b.mark) }
func (b *bottleneck) use() float64 {
	return float64(b.sent-b.markSent) * 8e12 / float64(b.now-b.mark) / b.line
}

// jain is Jain's index of what the flows got since reset.
func (b *bottleneck) jain() float64 {
	sum, squares := 0.0, 0.0
	for _, s := range b.senders {
		sum += float64(s.got)
		squares += float64(s.got) * float64(s.got)
	}
	return sum * sum / squares / float64(len(b.senders))
}

// repace applies a rate that has changed to what is left of the wait.
func (b *bottleneck) repace(s *sender) {
	rate := b.line
	if r := s.flow.Rate(); r != 0 {
		rate = min(rate, float64(r))
	}
	if s.rate != 0 && rate != s.rate && s.next > b.now {
		s.next = b.now + int64(float64(s.next-b.now)*s.rate/rate)
	}
	s.rate = rate
}

// try sends what s may send now, and sees to it that it is asked again.
func (b *bottleneck) try(s *sender) {
	if d := s.flow.Due(); d != 0 && d <= b.ns() {
		s.flow.Tick(b.ns())
	}
	b.repace(s)
	w := s.flow.Window()
	open := w == 0 || s.inFlight < w
	for open && s.next <= b.now {
		p := packet{s: s, psn: s.psn, at: b.now, tel: congestion.INT{Mode: congestion.INTCollect}}
		s.psn++
		s.inFlight += int64(b.size)
		s.flow.Sent(b.ns(), &congestion.Send{PSN: p.psn, Bytes: b.size})
		b.repace(s)
		s.next = b.now + int64(float64(b.size)*8e12/s.rate)
		at := b.now + int64(float64(b.size)*8e12/b.line) + b.delay
		b.at(at, func() { b.enqueue(p) })
		w = s.flow.Window()
		open = w == 0 || s.inFlight < w
	}
	next := int64(0)
	if open {
		next = s.next
	}
	if d := s.flow.Due(); d != 0 && (next == 0 || (d-1)*1000 < next) {
		next = max(b.now+1, (d-1)*1000)
	}
	if next != 0 && next != s.wake {
		s.wake = next
		b.at(next, func() {
			if s.wake == b.now {
				s.wake = 0
				b.try(s)
			}
		})
	}
}

func (b *bottleneck) enqueue(p packet) {
	if b.cp != nil && b.cp.Mark(b.waiting(), cnp.ECT0, b.rnd.Uint32()) {
		p.ce = true
	}
	b.account()
	b.queue = append(b.queue, p)
	b.most = max(b.most, b.waiting())
	if len(b.queue) == 1 {
		b.begin()
	}
}

// begin begins to send the first packet.
func (b *bottleneck) begin() {
	b.queue[0].tel.Stamp(congestion.NewHop(uint64(b.line), b.now/1000, b.sent, uint64(b.waiting())))
	b.sent += uint64(b.size)
	b.at(b.now+b.wire(), func() {
		b.account()
		p := b.queue[0]
		b.queue = b.queue[1:]
		b.at(b.now+b.delay, func() { b.deliver(p) })
		if len(b.queue) > 0 {
			b.begin()
		}
	})
}

func (b *bottleneck) deliver(p packet) {
	s := p.s
	s.got += int64(b.size)
	act := congestion.Action(0)
	if s.receiver != nil {
		act = s.receiver.Received(b.ns(), &congestion.Arrival{
			Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(s.id)}), Dst: netip.AddrFrom4([4]byte{10, 1}),
			CE: p.ce, Data: true, Gate: &s.gate,
		})
	}
	b.at(b.now+2*b.delay, func() {
		if act&congestion.SendCNP != 0 {
			s.flow.CNP(b.ns())
		}
		s.una = p.psn + 1
		s.inFlight -= int64(b.size)
		a := congestion.Ack{Una: s.una, Next: s.psn, Bytes: int64(b.size), Size: b.size, RTT: (b.now - p.at) / 1000, ECN: act&congestion.EchoECN != 0}
		if act&congestion.EchoINT != 0 {
			p.tel.Mode = congestion.INTEcho
			a.INT = &p.tel
		}
		s.flow.Acked(b.ns(), &a)
		b.try(s)
	})
}
