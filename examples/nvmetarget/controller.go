package main

import (
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

	mu          sync.Mutex
	cc, csts    uint32
	queues      map[uint16]*queue // by number, 0 included
	granted     int               // I/O queues that the host may have
	alive       time.Duration     // keep-alive timeout; 0: none
	timer       *time.Timer
	events      uint32 // that the host wants to hear of
	temperature uint16 // threshold, kelvins
	parked      []*slot
	gone        bool
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
		c.parked = nil
		if c.timer != nil {
			c.timer.Stop()
		}
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
	if c.timer != nil {
		c.timer.Stop()
	}
	if d != 0 && !c.gone {
		c.timer = time.AfterFunc(d, c.checkAlive)
	}
}

// checkAlive ends a controller whose host has been silent for the keep-alive timeout.
func (c *controller) checkAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.alive == 0 {
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

// park keeps an Asynchronous Event Request until there is an event, or returns false
// when there are as many as may be.
func (c *controller) park(s *slot, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.parked) >= limit {
		return false
	}
	c.parked = append(c.parked, s)
	return true
}

// unpark takes out the request with an identifier, or nil.
func (c *controller) unpark(cid uint16) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.parked {
		if s.cmd.CID == cid {
			c.parked = append(c.parked[:i], c.parked[i+1:]...)
			return s
		}
	}
	return nil
}

// eventLimit is how many Asynchronous Event Requests may be outstanding.
const eventLimit = 4
