package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
)

// controller is the object that a host connects to: properties, features, and the queues.
type controller struct {
	t         *target
	id        uint16
	discovery bool
	host      nvme.ConnectData
	seen      atomic.Int64 // time of the last command, in nanoseconds

	mu         sync.Mutex
	cc, csts   uint32
	queues     map[uint16]*queue // by number, 0 included
	granted    int               // I/O queues that the host may have
	alive      time.Duration     // keep-alive timeout; 0: none
	timer      *time.Timer
	events     events
	thresholds [2]uint16 // of temperature, kelvins: over, under
	changed    bool      // the namespace has changed since the host read the log page about it
	gone       bool
}

// setCC handles a write to CC by the host (Base 3.1.3.5).
func (c *controller) setCC(v uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.cc
	c.cc = v
	if v&nvme.CCEnable != 0 && old&nvme.CCEnable == 0 {
		// Only the NVM command set, pages of 4 KiB, round robin, and our entry sizes are
		// supported.
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

// ready reports whether the controller accepts commands other than Fabrics commands.
func (c *controller) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.csts&(nvme.CSTSReady|nvme.CSTSFatal) == nvme.CSTSReady
}

// dropIO ends the connections of the I/O queues. The caller holds the lock.
func (c *controller) dropIO() {
	for id, q := range c.queues {
		if id != 0 {
			q.link.close()
		}
	}
}

// add adds a queue, and reports whether its number was free.
func (c *controller) add(q *queue) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.queues[q.id] != nil {
		return false
	}
	c.queues[q.id] = q
	return true
}

// remove removes a queue whose connection has ended. With the admin queue the controller is
// removed.
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
		c.t.log.Info("controller removed", "controller", c.id, "host", c.host.HostNQN)
	}
}

// fail ends a controller after one of its queue pairs has failed: all its queues end, so the
// host sees it and need not wait for a command timeout.
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

// watch starts the timer for checkAlive. The caller holds the lock.
func (c *controller) watch() {
	d := c.alive
	if d == 0 {
		d = c.t.cfg.patience
	}
	c.timer = time.AfterFunc(d, c.checkAlive)
}

// checkAlive ends a controller whose host has been silent for the keep-alive timeout. A host
// without keep-alive may be silent for ever: the controller sends it a packet now and then,
// and ends when that is not acknowledged.
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

// event is an event that a controller may report to its host by the completion of an
// Asynchronous Event Request (Base 5.2): the bit of the feature that enables it, its type,
// its information, and the log page with details.
type event struct {
	wanted           uint32
	kind, info, page uint8
}

// The events that this target reports.
var (
	degraded         = event{1 << 2, 1, 0, nvme.LogSMART}
	tooWarm          = event{1 << 1, 1, 1, nvme.LogSMART}
	namespaceChanged = event{1 << 8, 2, 0, nvme.LogNamespaces}
)

// eventLimit is how many Asynchronous Event Requests may be outstanding.
const eventLimit = 4

// events holds the requests and the events of a controller.
//
// Invariant: no request is parked while an event is pending whose type is not masked.
type events struct {
	wanted uint32 // value of the feature
	parked []*slot
	due    []event // pending events, each once
	masked uint8   // bit of a type: reported, and the log page not read since
}

// next removes and returns a request and the event that completes it, or returns nil.
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

// raise reports an event to the host, if the host has enabled it: now, or as soon as a
// request is available.
func (c *controller) raise(v event) {
	c.mu.Lock()
	if c.events.wanted&v.wanted != 0 && !slices.Contains(c.events.due, v) {
		c.events.due = append(c.events.due, v)
	}
	c.mu.Unlock()
	c.tell()
}

// tell completes requests while there are events for them. The caller holds no lock.
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

// read records that the host has read a log page: events about that page may be reported
// again.
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

// park keeps an Asynchronous Event Request until there is an event, or returns false when
// there are limit requests already.
func (c *controller) park(s *slot, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events.parked) >= limit {
		return false
	}
	c.events.parked = append(c.events.parked, s)
	return true
}

// unpark removes and returns the request with an identifier, or nil.
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

// fabrics executes a Fabrics command. The first command of a connection must be Connect.
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

// property reads a property. Only CAP has 8 bytes.
func (c *controller) property(cmd *nvme.Command) result {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch size := cmd.CDW10[0] & 7; {
	case size == 1 && cmd.CDW10[1] == nvme.PropertyCAP:
		// The timeout until ready is 7.5 s.
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

// If a parameter of Connect is wrong, the response has its offset in the data, or in the
// command.
func badData(offset uint64) result    { return wrong(1<<16 | offset) }
func badCommand(offset uint64) result { return wrong(offset) }
func wrong(v uint64) result {
	r := fail(nvme.ConnectInvalidParam)
	r.value = v
	return r
}

// connect assigns the queue to a controller: a new one, or for an I/O queue the one that the
// host names.
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
