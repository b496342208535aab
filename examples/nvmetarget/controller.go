package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
)

// controller is what a host has connected to: properties, features, and the queues.
type controller struct {
	t         *target
	id        uint16
	discovery bool
	host      nvme.ConnectData
	seen      atomic.Int64 // when a command came last, nanoseconds

	mu         sync.Mutex
	cc, csts   uint32
	queues     map[uint16]*queue // by number, 0 included
	granted    int               // I/O queues that the host may have
	alive      time.Duration     // keep-alive timeout; 0: none
	timer      *time.Timer
	events     events
	thresholds [2]uint16 // of temperature, kelvins: over, under
	changed    bool      // the namespace, since the host read the log of it
	gone       bool
}

// setCC takes what the host writes to CC (Base 3.1.3.5).
func (c *controller) setCC(v uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.cc
	c.cc = v
	if v&nvme.CCEnable != 0 && old&nvme.CCEnable == 0 {
		// Only the NVM command set, pages of 4 KiB, round robin, and our entry sizes.
		c.csts = nvme.CSTSReady
		if v&0x3ff0 != 0 || !c.discovery && v&0xff0000 != nvme.CCEntrySizes {
			c.csts = nvme.CSTSFatal
		}
	}
	if v&nvme.CCEnable == 0 && old&nvme.CCEnable != 0 {
		c.csts &^= nvme.CSTSReady | nvme.CSTSFatal
		c.dropIO()
	}
	if v&nvme.CCShutdown != 0 && old&nvme.CCShutdown == 0 {
		c.csts = c.csts&^nvme.CSTSReady | nvme.CSTSShutdown
	}
	if v&nvme.CCShutdown == 0 {
		c.csts &^= nvme.CSTSShutdown
	}
}

// ready reports whether the controller takes other commands than those of fabrics.
func (c *controller) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.csts&(nvme.CSTSReady|nvme.CSTSFatal) == nvme.CSTSReady
}

// dropIO ends the connections of the I/O queues. The lock is held.
func (c *controller) dropIO() {
	for id, q := range c.queues {
		if id != 0 {
			q.link.close()
		}
	}
}

// add takes a queue, and reports whether its number was free.
func (c *controller) add(q *queue) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.queues[q.id] != nil {
		return false
	}
	c.queues[q.id] = q
	return true
}

// remove forgets a queue whose connection is over. With the admin queue the controller
// goes.
func (c *controller) remove(q *queue) {
	c.mu.Lock()
	delete(c.queues, q.id)
	if q.id == 0 {
		c.gone = true
		c.events.parked = nil
		c.timer.Stop()
		c.dropIO()
	}
	c.mu.Unlock()
	if q.id == 0 {
		c.t.mu.Lock()
		delete(c.t.controllers, c.id)
		c.t.mu.Unlock()
		c.t.log.Info("controller gone", "controller", c.id, "host", c.host.HostNQN)
	}
}

// fail ends a controller of which a queue pair has failed: the host hears of it from the
// end of all its queues, and need not wait until a command is overdue.
func (c *controller) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// end is fail with the lock held.
func (c *controller) end() {
	c.csts |= nvme.CSTSFatal
	for _, q := range c.queues {
		q.link.close()
	}
}

// setAlive changes the keep-alive timeout.
func (c *controller) setAlive(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive = d
	c.timer.Stop()
	if !c.gone {
		c.watch()
	}
}

// watch has checkAlive called when it is time. The lock is held.
func (c *controller) watch() {
	d := c.alive
	if d == 0 {
		d = c.t.cfg.patience
	}
	c.timer = time.AfterFunc(d, c.checkAlive)
}

// checkAlive ends a controller whose host has been silent for the keep-alive timeout. A
// host without one may be silent for ever: it is gone when a packet to it comes to
// nothing, so now and then there is one.
func (c *controller) checkAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	if c.alive == 0 {
		if q := c.queues[0]; q != nil {
			q.link.probe()
		}
		c.watch()
		return
	}
	silent := time.Since(time.Unix(0, c.seen.Load()))
	if silent < c.alive {
		c.timer = time.AfterFunc(c.alive-silent, c.checkAlive)
		return
	}
	c.t.log.Warn("keep-alive timeout", "controller", c.id, "host", c.host.HostNQN, "silent", silent)
	c.end()
}

// event is what a controller may tell its host of by the completion of an Asynchronous
// Event Request (Base 5.2): which bit of the feature says that the host wants to hear
// of it, its type, what happened, and the log page that says more.
type event struct {
	wanted           uint32
	kind, info, page uint8
}

// The events that there are here.
var (
	degraded         = event{1 << 2, 1, 0, nvme.LogSMART}
	tooWarm          = event{1 << 1, 1, 1, nvme.LogSMART}
	namespaceChanged = event{1 << 8, 2, 0, nvme.LogNamespaces}
)

// eventLimit is how many Asynchronous Event Requests may be outstanding.
const eventLimit = 4

// events are the requests and the events of a controller.
//
// Invariant: no request is parked while an event is due whose type is not masked.
type events struct {
	wanted uint32 // the feature
	parked []*slot
	due    []event // each once
	masked uint8   // bit of a type: told of, and the log page not read since
}

// next takes out a request and the event that completes it, or returns nil.
func (e *events) next() (*slot, event) {
	if len(e.parked) == 0 {
		return nil, event{}
	}
	for i, v := range e.due {
		if e.masked>>v.kind&1 == 0 {
			s := e.parked[0]
			e.parked, e.due = slices.Delete(e.parked, 0, 1), slices.Delete(e.due, i, i+1)
			e.masked |= 1 << v.kind
			return s, v
		}
	}
	return nil, event{}
}

// raise tells the host of an event, if it wants to hear of it: now, or when it may.
func (c *controller) raise(v event) {
	c.mu.Lock()
	if c.events.wanted&v.wanted != 0 && !slices.Contains(c.events.due, v) {
		c.events.due = append(c.events.due, v)
	}
	c.mu.Unlock()
	c.tell()
}

// tell completes requests while there are events for them. No lock is held.
func (c *controller) tell() {
	for {
		c.mu.Lock()
		s, v := c.events.next()
		c.mu.Unlock()
		if s == nil {
			return
		}
		s.q.finish(s, result{value: uint64(v.kind) | uint64(v.info)<<8 | uint64(v.page)<<16})
	}
}

// read notes that the host has read a log page: it may be told of events again that are
// to be seen there.
func (c *controller) read(page uint8) {
	c.mu.Lock()
	for _, v := range []event{degraded, namespaceChanged} { // one of each type
		if v.page == page {
			c.events.masked &^= 1 << v.kind
		}
	}
	c.mu.Unlock()
	c.tell()
}

// park keeps an Asynchronous Event Request until there is an event, or returns false
// when there are as many as may be.
func (c *controller) park(s *slot, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events.parked) >= limit {
		return false
	}
	c.events.parked = append(c.events.parked, s)
	return true
}

// unpark takes out the request with an identifier, or nil.
func (c *controller) unpark(cid uint16) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.events.parked {
		if s.cmd.CID == cid {
			c.events.parked = slices.Delete(c.events.parked, i, i+1)
			return s
		}
	}
	return nil
}

// fabrics does a Fabrics command. The first of a connection must be Connect.
func (q *queue) fabrics(s *slot) result {
	c := &s.cmd
	switch {
	case c.Opcode == nvme.Fabrics && c.FabricsType() == nvme.Connect:
		if q.ctrl != nil {
			return fail(nvme.SequenceError)
		}
		return q.connect(s)
	case q.ctrl == nil:
		return fail(nvme.SequenceError)
	case q.id == 0 && c.FabricsType() == nvme.PropertyGet:
		return q.ctrl.property(c)
	case q.id == 0 && c.FabricsType() == nvme.PropertySet:
		q.ctrl.seen.Store(s.began.UnixNano())
		if c.CDW10[0]&7 != 0 || c.CDW10[1] != nvme.PropertyCC {
			return fail(nvme.InvalidField)
		}
		if c.CDW10[2]&nvme.CCShutdown != 0 {
			q.stored(opFlush, q.t.store.flush())
		}
		q.ctrl.setCC(c.CDW10[2])
		return result{}
	}
	return fail(nvme.InvalidOpcode)
}

// property reads a property. CAP alone has 8 bytes.
func (c *controller) property(cmd *nvme.Command) result {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch size := cmd.CDW10[0] & 7; {
	case size == 1 && cmd.CDW10[1] == nvme.PropertyCAP:
		// Ready within 7.5 s.
		return result{value: nvme.CAPNVM | 15<<24 | nvme.CAPContiguous | uint64(c.t.cfg.depth-1)}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyVS:
		return result{value: nvme.Version14}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyCC:
		return result{value: uint64(c.cc)}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyCSTS:
		return result{value: uint64(c.csts)}
	}
	return fail(nvme.InvalidField)
}

// Where a parameter of Connect is wrong, the response says which: its offset in the
// data, or in the command.
func badData(offset uint64) result    { return wrong(1<<16 | offset) }
func badCommand(offset uint64) result { return wrong(offset) }
func wrong(v uint64) result {
	r := fail(nvme.ConnectInvalidParam)
	r.value = v
	return r
}

// connect takes the queue for a controller: a new one, or for an I/O queue that which
// the host names.
func (q *queue) connect(s *slot) result {
	c := &s.cmd
	recfmt, qid := uint16(c.CDW10[0]), uint16(c.CDW10[0]>>16)
	size, attr := uint16(c.CDW10[1]), uint8(c.CDW10[1]>>16)
	alive := time.Duration(c.CDW10[2]) * time.Millisecond
	switch {
	case recfmt != 0:
		return fail(nvme.ConnectFormat)
	case qid != q.id:
		return badCommand(42)
	case size == 0 || int(size)+1 > q.depth:
		return badCommand(44)
	}
	b, st := q.gather(s, nvme.ConnectDataSize, true)
	if st != nvme.Success {
		return result{status: st}
	}
	var d nvme.ConnectData
	_ = d.Decode(b)
	switch {
	case d.HostNQN == "":
		return badData(512)
	case d.SubNQN != q.t.cfg.nqn && d.SubNQN != nvme.DiscoveryNQN:
		return badData(256)
	}
	ctrl, err := q.t.find(d.CntlID), error(nil)
	switch {
	case q.id == 0 && d.CntlID != 0xffff:
		return badData(16)
	case q.id == 0:
		if ctrl, err = q.t.newController(&d, alive); err != nil {
			return result{status: nvme.InternalError}
		}
		q.t.log.Info("controller", "controller", ctrl.id, "host", d.HostNQN, "peer", q.peer, "subsystem", d.SubNQN, "keepalive", alive)
	case ctrl == nil || ctrl.discovery || d.SubNQN != ctrl.host.SubNQN:
		return badData(16)
	case d.HostNQN != ctrl.host.HostNQN || d.HostID != ctrl.host.HostID:
		return badData(512)
	case !ctrl.ready() || int(q.id) > ctrl.grantedQueues():
		return fail(nvme.SequenceError)
	}
	if !ctrl.add(q) {
		return fail(nvme.SequenceError)
	}
	q.ctrl, q.noSQ = ctrl, attr&4 != 0
	if q.patience != nil {
		q.patience.Stop()
	}
	return result{value: uint64(ctrl.id)}
}

func (c *controller) grantedQueues() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}
