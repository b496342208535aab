package cm

import (
	"net/netip"
	"time"
)

// call is a connection from its request to the end of timewait; or a SIDR request.
type call struct {
	at    int32 // its place in the machine's calls
	state State
	addr  Address

	id       uint32 // local communication ID; 0: free
	remoteID uint32
	guid     uint64 // the peer's CA GUID, where known
	tid      uint64 // of the current transaction
	active   bool   // this side sent REQ or SIDR_REQ

	attr  Attr
	timer timer
	mail  mail

	links  [4]link
	queues [2]queued
}

// timer is when a call is to be looked at next, and how often its message may be
// sent again.
type timer struct {
	at      int32 // place in Machine.timers, -1 when there is nothing to wait for
	retries uint8 // left
	every   time.Duration
}

// mail is what a call has to send, and its events for the owner.
type mail struct {
	msgDue  bool // msg is to be sent
	mraDue  bool
	aprDue  bool // a LAP is to be refused
	aprTID  uint64
	pending eventSet
	told    bool // the last event was polled
	local   bool // this side ended the call
	cma     bool // call holds RDMA-CM's addresses
	service ServiceID
	call    CMAHeader
	reject  rejected
	msg     [Size]byte // the message to send, and to send again
	private private
	bye     private // of EventDisconnected, which may wait behind another event
}

// private is the private data of an event.
type private struct {
	data []byte // in buf
	buf  [DREPPrivateDataSize]byte
}

// rejected holds the fields of a REJ or SIDR_REP.
type rejected struct {
	what   MessageRejected
	reason Reason
	status SIDRStatus
	info   []byte // in buf
	buf    [REJARISize]byte
}

// find returns the call with a local communication ID, or nil when there is none
// or it has ended.
func (m *Machine) find(id uint32) *call {
	if c := m.lookup(id); c != nil && c.state != Idle {
		return c
	}
	return nil
}

func (m *Machine) lookup(id uint32) *call {
	for c := m.byID.first(uint64(id)); c != nil; c = m.byID.next(c) {
		if c.id == id {
			return c
		}
	}
	return nil
}

func remoteKey(guid uint64, n uint32) uint64 { return guid ^ uint64(n)<<20 ^ uint64(n) }

// findRemote returns the call of a peer by its communication ID.
func (m *Machine) findRemote(guid uint64, id uint32) *call {
	for c := m.byRemote.first(remoteKey(guid, id)); c != nil; c = m.byRemote.next(c) {
		if c.guid == guid && c.remoteID == id {
			return c
		}
	}
	return nil
}

// findQPN returns the call of a peer's queue pair.
func (m *Machine) findQPN(guid uint64, qpn uint32) *call {
	for c := m.byQPN.first(remoteKey(guid, qpn)); c != nil; c = m.byQPN.next(c) {
		if c.guid == guid && c.attr.DestQPN == qpn {
			return c
		}
	}
	return nil
}

// newCall allocates a call, or returns nil when all are in use.
func (m *Machine) newCall(addr Address) *call {
	if len(m.free) == 0 {
		return nil
	}
	c := &m.calls[m.free[len(m.free)-1]]
	m.free = m.free[:len(m.free)-1]
	*c = call{at: c.at, addr: addr, timer: timer{at: -1}}
	c.id = m.newID()
	m.byID.add(c, uint64(c.id))
	return c
}

// release frees a call.
func (m *Machine) release(c *call) {
	m.byID.remove(c)
	m.sending.remove(c)
	m.events.remove(c)
	c.id = 0
	m.free = append(m.free, c.at)
}

// setHalf counts c as half-open, or no longer.
func (m *Machine) setHalf(c *call, half bool) {
	if half == m.half.of(c).in {
		return
	}
	d := 1
	if half {
		m.half.add(c, addrKey(c.addr))
	} else {
		m.half.remove(c)
		d = -1
	}
	m.halfOpen += d
	if l := m.listener(c.mail.service); l != nil {
		l.open = max(l.open+d, 0) // a listener may have come after the call
	}
}

// halfOpenOf returns how many half-open calls a remote address has.
func (m *Machine) halfOpenOf(a netip.Addr) (n int) {
	for c := m.half.first(addrKey(Address{Remote: a})); c != nil; c = m.half.next(c) {
		if c.addr.Remote == a {
			n++
		}
	}
	return n
}

// link is a call's place in an index.
type link struct {
	next, prev int32 // -1: none
	bucket     int32
	in         bool
}

// index finds calls by a key: a table of lists that allocates nothing after init.
type index struct {
	heads []int32
	key   uint64
	of    func(*call) *link
	calls []call
}

func (x *index) init(n int, key uint64, of func(*call) *link, calls []call) {
	size := 16
	for size < n {
		size *= 2
	}
	*x = index{heads: make([]int32, size), key: key | 1, of: of, calls: calls}
	for i := range x.heads {
		x.heads[i] = -1
	}
}

func (x *index) bucket(key uint64) int32 {
	// The peer chooses the key; x.key, which it does not know, keeps it from choosing the
	// list.
	h := (key ^ x.key) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29 ^ x.key) * (x.key | 1)
	return int32(h >> 33 & uint64(len(x.heads)-1))
}

func (x *index) add(c *call, key uint64) {
	x.remove(c)
	b := x.bucket(key)
	l := x.of(c)
	*l = link{next: x.heads[b], prev: -1, bucket: b, in: true}
	if l.next >= 0 {
		x.of(&x.calls[l.next]).prev = c.at
	}
	x.heads[b] = c.at
}

func (x *index) remove(c *call) {
	l := x.of(c)
	if !l.in {
		return
	}
	if l.prev >= 0 {
		x.of(&x.calls[l.prev]).next = l.next
	} else {
		x.heads[l.bucket] = l.next
	}
	if l.next >= 0 {
		x.of(&x.calls[l.next]).prev = l.prev
	}
	*l = link{}
}

func (x *index) first(key uint64) *call {
	if i := x.heads[x.bucket(key)]; i >= 0 {
		return &x.calls[i]
	}
	return nil
}

func (x *index) next(c *call) *call {
	if i := x.of(c).next; i >= 0 {
		return &x.calls[i]
	}
	return nil
}

// queued is a call's place in a fifo.
type queued struct {
	next, prev int32
	in         bool
}

// fifo is a queue of calls, linked through them; a call is in it once.
type fifo struct {
	head, tail int32
	of         func(*call) *queued
	calls      []call
}

func (f *fifo) init(of func(*call) *queued, calls []call) {
	*f = fifo{head: -1, tail: -1, of: of, calls: calls}
}

func (f *fifo) push(c *call) {
	q := f.of(c)
	if q.in {
		return
	}
	*q = queued{next: -1, prev: f.tail, in: true}
	if f.tail >= 0 {
		f.of(&f.calls[f.tail]).next = c.at
	} else {
		f.head = c.at
	}
	f.tail = c.at
}

func (f *fifo) front() *call {
	if f.head < 0 {
		return nil
	}
	return &f.calls[f.head]
}

func (f *fifo) remove(c *call) {
	q := f.of(c)
	if !q.in {
		return
	}
	if q.prev >= 0 {
		f.of(&f.calls[q.prev]).next = q.next
	} else {
		f.head = q.next
	}
	if q.next >= 0 {
		f.of(&f.calls[q.next]).prev = q.prev
	} else {
		f.tail = q.prev
	}
	*q = queued{}
}

// arm sets the timer of c to d from now.
func (m *Machine) arm(c *call, d time.Duration) {
	due := m.now + int64(d)
	if c.timer.at < 0 {
		m.timers.Push(due, uint64(c.at), c)
	} else {
		m.timers.Set(int(c.timer.at), due)
	}
}

// stop stops the timer of c.
func (m *Machine) stop(c *call) {
	if c.timer.at >= 0 {
		m.timers.Remove(int(c.timer.at))
	}
}
