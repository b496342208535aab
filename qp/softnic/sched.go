package softnic

import (
	"math/bits"

	"github.com/roce-go/roce/qp"
)

// qpList is a queue of QPs, linked through them.
type qpList struct {
	head, tail *QP
}

func (l *qpList) push(q *QP) {
	q.queued, q.next, q.prev = true, nil, l.tail
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
}

func (l *qpList) remove(q *QP) {
	if q.prev == nil {
		l.head = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.tail = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.queued, q.next, q.prev = false, nil, nil
}

// readyLists are the QPs that may have a packet to send, by the priority of that
// packet. Invariant: bit n of filled is set if and only if list n is not empty.
type readyLists struct {
	list   [8]qpList
	filled uint8
	paused uint8

	strict  uint8 // priorities without a weight
	weight  [8]int
	deficit [8]int
	turn    int
}

func (r *readyLists) init(weights [8]int) error {
	r.weight = weights
	for p, w := range weights {
		switch {
		case w < 0 || w > 1000:
			return ErrConfig
		case w == 0:
			r.strict |= 1 << p
		}
	}
	return nil
}

// push puts q at the end of the list of a priority, unless it is in that list.
func (r *readyLists) push(q *QP, prio uint8) {
	if q.queued {
		if q.readyPrio == prio {
			return
		}
		r.remove(q)
	}
	q.readyPrio = prio
	r.list[prio].push(q)
	r.filled |= 1 << prio
}

func (r *readyLists) remove(q *QP) {
	l := &r.list[q.readyPrio]
	if l.remove(q); l.head == nil {
		r.filled &^= 1 << q.readyPrio
	}
}

// next returns the QP whose turn it is, which stays in its list, or nil when all are
// of paused priorities.
func (r *readyLists) next() *QP {
	open := r.filled &^ r.paused
	if open == 0 {
		return nil
	}
	if s := open & r.strict; s != 0 {
		return r.list[(bits.Len8(s)-1)&7].head
	}
	return r.list[r.roundRobin(open)].head
}

// rotate puts q, which is in a list, at the end of the list of a priority.
func (r *readyLists) rotate(q *QP, prio uint8) {
	if q.readyPrio == prio && q.next == nil {
		return
	}
	r.remove(q)
	r.push(q, prio)
}

// roundRobin returns the priority whose turn it is among those in open. Each turn adds
// weight times the longest frame, in bytes, to what a priority may send.
func (r *readyLists) roundRobin(open uint8) int {
	for open>>r.turn&1 == 0 || r.deficit[r.turn] <= 0 {
		if open>>r.turn&1 == 0 {
			r.deficit[r.turn] = 0
		}
		if r.turn = (r.turn + 1) & 7; open>>r.turn&1 != 0 {
			r.deficit[r.turn] += r.weight[r.turn] * maxFrame
		}
	}
	return r.turn
}

// priorityOf returns the priority that q's next packet is sent with. Where acknowledgements
// have a priority of their own and both kinds wait, it is the priority that is served
// first.
func (p *Port) priorityOf(q *QP) uint8 {
	if p.cfg.Ack == nil && q.m.Type() != qp.UD {
		return q.prio // without a call
	}
	return p.choosePriority(q)
}

func (p *Port) choosePriority(q *QP) uint8 {
	if q.m.Type() == qp.UD {
		_, ah := q.waitsFor()
		return Priority(ah.TrafficClass, ah.HasVLAN, ah.VLAN)
	}
	prio := q.prio
	has := q.m.Pending(qp.PendingPacket)
	if has&(qp.PendingAck|qp.PendingResponse) != qp.PendingAck {
		return prio
	}
	ack := p.ackPriority(q)
	if has != qp.PendingAck && (p.ready.paused>>ack&1 != 0 || ack < prio && p.ready.paused>>prio&1 == 0) {
		return prio
	}
	return ack
}

// otherPriority makes q wait at the priority of its other kind of packets, after it had
// none to send of the kind that it waited with.
func (p *Port) otherPriority(q *QP, ack bool) {
	has := q.m.Pending(qp.PendingPacket)
	switch {
	case ack && has&^qp.PendingAck != 0:
		p.ready.push(q, q.prio)
	case !ack && has&(qp.PendingAck|qp.PendingResponse) == qp.PendingAck:
		p.ready.push(q, p.ackPriority(q))
	}
}

func (p *Port) ackPriority(q *QP) uint8 {
	a := p.cfg.Ack
	return Priority(a.DSCP<<2, q.ah.HasVLAN, uint16(a.Priority)<<13)
}

// touch updates the port after a call of q's machine, which may have packets, completions,
// events, and another deadline.
func (p *Port) touch(q *QP) {
	if q.port == nil {
		return
	}
	if p.cfg.OnWork != nil {
		p.cfg.OnWork()
	}
	if !q.unresolved {
		p.ready.push(q, p.priorityOf(q))
	}
	p.collect(q, qp.PendingSendCompletion|qp.PendingRecvCompletion|qp.PendingEvent)
}

// collect updates the completion, event and timer queues with what q has for them.
func (p *Port) collect(q *QP, of qp.Pending) {
	if has := q.m.Pending(of); has != 0 {
		if has&qp.PendingSendCompletion != 0 {
			q.sendCQ.push(&q.sendNode)
		}
		if has&qp.PendingRecvCompletion != 0 {
			q.recvCQ.push(&q.recvNode)
		}
		if has&qp.PendingEvent != 0 {
			p.events.push(&q.eventNode)
		}
	}
	p.reschedule(q)
}

// reschedule moves q in the heap to where its deadline belongs.
func (p *Port) reschedule(q *QP) {
	due := q.paced
	if d := q.m.Due(); d != 0 && (due == 0 || d < due) {
		due = d
	}
	if due == q.due {
		return
	}
	q.due = due
	switch {
	case q.heapAt < 0:
		p.waiting.Push(due, uint64(q.Num()), q)
	case due == 0:
		p.waiting.Remove(int(q.heapAt))
	default:
		p.waiting.Set(int(q.heapAt), due)
	}
}

// CQ is a completion queue. It holds no completions itself, only a list of QPs that have
// some, and so never overflows: a completion stays in its QP until it is polled.
type CQ struct{ fifo fifo }

// NewCQ returns a completion queue. QPs of any port may share it.
func NewCQ() *CQ { return new(CQ) }

func (c *CQ) push(n *node) {
	if c != nil {
		c.fifo.push(n)
	}
}

// Poll stores a completion in wc (ibv_poll_cq). It reports false when there is none.
// Completions of one work queue are in order.
func (c *CQ) Poll(wc *qp.Completion) bool {
	for n := c.fifo.head; n != nil; n = c.fifo.head {
		ok := false
		if n.recv {
			ok = n.q.m.NextRecvCompletion(wc)
		} else {
			ok = n.q.m.NextSendCompletion(wc)
		}
		if ok {
			return true
		}
		c.fifo.pop()
	}
	return false
}

// drop removes n, when its QP is destroyed.
func (c *CQ) drop(n *node) {
	if c != nil {
		c.fifo.drop(n)
	}
}

// fifo is a queue of QPs that have something to fetch, each once. A QP has a node for
// each queue that it may be in.
type fifo struct{ head, tail *node }

type node struct {
	q      *QP
	next   *node
	queued bool
	recv   bool // in a CQ: for receives
}

func (l *fifo) push(n *node) {
	if n.queued {
		return
	}
	n.queued, n.next = true, nil
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
}

// pop takes out the first, of which there must be one.
func (l *fifo) pop() {
	n := l.head
	if l.head = n.next; l.head == nil {
		l.tail = nil
	}
	n.queued, n.next = false, nil
}

// drop takes out n, wherever it is.
func (l *fifo) drop(n *node) {
	if !n.queued {
		return
	}
	if l.head == n {
		l.pop()
		return
	}
	prev := l.head
	for prev.next != n {
		prev = prev.next
	}
	if prev.next = n.next; l.tail == n {
		l.tail = prev
	}
	n.queued, n.next = false, nil
}

// Event is something that happened to a QP.
type Event struct {
	QP    *QP
	Event qp.Event
}

// NextEvent stores an event in e (ibv_get_async_event), or reports false when there is
// none.
func (p *Port) NextEvent(e *Event) bool {
	for n := p.events.head; n != nil; n = p.events.head {
		if q := n.q; q.port != nil && q.m.NextEvent(&e.Event) {
			e.QP = q
			return true
		}
		p.events.pop()
	}
	return false
}
