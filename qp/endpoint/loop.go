package endpoint

import (
	"sync"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// loop runs a port against the wall clock: a goroutine that reads, one timer, and
// the endpoint's lock around the port.
type loop struct {
	changed sync.Cond
	waiters int
	timer   *time.Timer
	armed   time.Time     // when the timer fires, at the latest; zero: not armed
	free    time.Time     // when the next packet may be sent, with a rate
	err     error         // of the wire
	running bool          // from Open to Close
	done    chan struct{} // closed when nothing is received any more
}

// With a rate: the least number of bytes that a packet counts as, and how many bytes may be
// sent ahead of it.
const (
	minCost = 1024
	burst   = 48 << 10
)

func (l *loop) start(e *Endpoint) {
	l.changed.L = &e.mu
	l.done, l.running = make(chan struct{}), true
	l.timer = time.AfterFunc(time.Hour, func() {
		e.mu.Lock()
		l.armed = time.Time{}
		if l.running {
			now := time.Now()
			e.port.Tick(now)
			e.settle(now)
		}
		e.unlock()
	})
	go l.read(e)
}

// read hands what arrives to the port, until the wire is closed or fails.
func (l *loop) read(e *Endpoint) {
	defer close(l.done)
	for {
		err := e.wire.wait()
		e.mu.Lock()
		if err != nil {
			if l.running {
				l.err = err
				e.log.Error("the wire failed", "err", err)
				now := time.Now()
				for c := range e.conns {
					c.end(now, err)
				}
			}
			l.changed.Broadcast()
			e.unlock()
			return
		}
		if l.running {
			now := time.Now()
			e.wire.deliver(now, e)
			e.settle(now)
		}
		e.unlock()
	}
}

// settle is called after calls into the port: it handles completions and events, sends
// packets, and arms the timer. It reports whether anything was sent. The lock is held.
func (e *Endpoint) settle(now time.Time) (sent bool) {
	if !e.loop.running {
		return false
	}
	for {
		e.takeEvents(now)
		e.takeCompletions(now)
		sent = e.send(now) || sent
		// Sending completes datagrams, and packets to the port itself arrive.
		again := e.takeEvents(now)
		again = e.takeCompletions(now) || again
		for _, c := range e.failed {
			_ = e.port.Disconnect(now, c.call, nil)
			again = true
		}
		if e.failed = e.failed[:0]; !again {
			break
		}
	}
	if e.loop.waiters != 0 {
		e.loop.changed.Broadcast()
	}
	return sent
}

// send sends what the port has, as far as the rate allows, and arms the timer. It
// reports whether there was anything.
func (e *Endpoint) send(now time.Time) (any bool) {
	l := &e.loop
	for {
		if e.cfg.Rate != 0 {
			if l.free.Before(now) {
				l.free = now
			}
			if ahead, most := l.free.Sub(now), e.takes(burst); ahead > most {
				l.arm(now.Add(ahead - most/2))
				return any
			}
		}
		n, bytes, err := e.wire.send(now, e)
		if err != nil {
			if e.counted.TooLong++; e.counted.TooLong == 1 {
				e.log.Warn("packets are lost", "err", err)
			}
		}
		if n == 0 {
			break
		}
		any = true
		if e.cfg.Rate != 0 {
			l.free = l.free.Add(e.takes(max(bytes, n*minCost)))
		}
	}
	if due, ok := e.port.Deadline(); ok {
		l.arm(due)
	}
	return any
}

// arm has the timer fire at due or before. It is left as it is where it fires before: most
// deadlines move on with each packet, and the timer need not.
func (l *loop) arm(due time.Time) {
	if l.armed.IsZero() || due.Before(l.armed) {
		l.armed = due
		l.timer.Reset(max(time.Until(due), 0))
	}
}

// takes returns how long sending n bytes takes at the rate.
func (e *Endpoint) takes(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(e.cfg.Rate)
}

// stop ends the goroutines. The lock is not held.
func (l *loop) stop(e *Endpoint) error {
	l.timer.Stop()
	err := e.wire.close()
	select {
	case <-l.done:
	case <-time.After(time.Second): // Close was called by a callback, for which that goroutine waits
	}
	return err
}

// takeEvents handles events of queue pairs and calls, and reports whether there was one of
// a call.
func (e *Endpoint) takeEvents(now time.Time) (any bool) {
	var q softnic.Event
	for e.port.NextEvent(&q) {
		// Errors are seen in completions, and the first packet by the connection machine.
	}
	var ev cm.Event
	for {
		call, ok := e.port.NextCMEvent(now, &ev)
		if !ok {
			return any
		}
		any = true
		e.handleEvent(now, call, &ev)
	}
}

// takeCompletions hands out completions, and reports whether there were any.
func (e *Endpoint) takeCompletions(now time.Time) (any bool) {
	var wc qp.Completion
	for e.cq.Poll(&wc) {
		any = true
		if c := e.qpns[wc.QPN]; c != nil {
			c.complete(now, &wc)
		}
	}
	return any
}

// callbacks runs the functions that callers passed, in order, one at a time, without the
// lock.
type callbacks struct {
	queue   []func()
	running bool
}

// later queues fn to be called when the lock is released.
func (e *Endpoint) later(fn func()) { e.calls.queue = append(e.calls.queue, fn) }

// unlock releases the lock and runs the callbacks, unless another goroutine is running
// them.
func (e *Endpoint) unlock() {
	for len(e.calls.queue) != 0 && !e.calls.running {
		q := e.calls.queue
		e.calls.queue, e.calls.running = nil, true
		e.mu.Unlock()
		for _, fn := range q {
			fn()
		}
		e.mu.Lock()
		e.calls.running = false
	}
	e.mu.Unlock()
}

// unlockFirst releases the lock, and has another goroutine run the callbacks: the caller
// may hold locks that they need.
func (e *Endpoint) unlockFirst() {
	if len(e.calls.queue) != 0 && !e.calls.running {
		go func() {
			e.mu.Lock()
			e.unlock()
		}()
	}
	e.mu.Unlock()
}
