package main

import (
	"sync"
	"time"

	"github.com/roce-go/roce/qp/softnic"
)

// wire carries a port's packets.
type wire interface {
	// read waits for a packet, in buf or elsewhere. It is called by one goroutine.
	read(buf []byte) ([]byte, error)
	// deliver hands what read returned to the port.
	deliver(now time.Time, p *softnic.Port, b []byte)
	// send takes a packet out of the port and sends it. It returns its length in
	// bytes, 0 when the port had none.
	send(now time.Time, p *softnic.Port) (int, error)
	close() error
}

// loop runs a port against the wall clock: a goroutine that reads, one timer, and
// a lock around the port.
type loop struct {
	port *softnic.Port
	wire wire

	// rate bounds what is sent, in bytes a second, 0 for no bound: a peer in
	// software loses what comes faster than it looks. A packet counts for no less
	// than minCost bytes.
	rate int

	mu      sync.Mutex
	changed sync.Cond
	timer   *time.Timer
	free    time.Time // when the next packet may be sent, with rate
	err     error
	closed  bool
	done    chan struct{}
}

// With a rate, what a packet counts for at least, and how many bytes a loop may
// be ahead.
const (
	minCost = 1024
	burst   = 48 << 10
)

func newLoop(p *softnic.Port, w wire, rate int) *loop {
	l := &loop{port: p, wire: w, rate: rate, done: make(chan struct{})}
	l.changed.L = &l.mu
	l.timer = time.AfterFunc(time.Hour, func() {
		l.do(func(now time.Time) { l.port.Tick(now) })
	})
	go l.reader()
	return l
}

func (l *loop) reader() {
	defer close(l.done)
	buf := make([]byte, 1<<16)
	for {
		b, err := l.wire.read(buf)
		l.mu.Lock()
		if err != nil {
			if !l.closed {
				l.err = err
			}
			l.changed.Broadcast()
			l.mu.Unlock()
			return
		}
		now := time.Now()
		l.wire.deliver(now, l.port, b)
		l.settle(now)
		l.changed.Broadcast()
		l.mu.Unlock()
	}
}

// do runs fn with the port to itself, and sends what comes of it.
func (l *loop) do(fn func(now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	fn(now)
	l.settle(now)
	l.changed.Broadcast()
}

// wait runs done now and after every change, until it reports true. It reports
// false when the time is up or the wire has failed.
func (l *loop) wait(limit time.Duration, done func(now time.Time) bool) bool {
	end := time.Now().Add(limit)
	alarm := time.AfterFunc(limit, l.changed.Broadcast)
	defer alarm.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := time.Now()
		ok := done(now)
		l.settle(now)
		if ok {
			return true
		}
		if l.err != nil || l.closed || !now.Before(end) {
			return false
		}
		l.changed.Wait()
	}
}

// stuck says why nothing happens any more: what is wrong with the wire, or that
// the peer is silent.
func (l *loop) stuck() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	return errStuck
}

// settle sends what the port has and arms the timer.
func (l *loop) settle(now time.Time) {
	if l.closed {
		return
	}
	for {
		if l.rate != 0 {
			if l.free.Before(now) {
				l.free = now
			}
			if ahead, most := l.free.Sub(now), l.takes(burst); ahead > most {
				l.timer.Reset(ahead - most/2)
				return
			}
		}
		n, err := l.wire.send(now, l.port)
		if err != nil {
			l.err = err
		}
		if n == 0 {
			break
		}
		if l.rate != 0 {
			l.free = l.free.Add(l.takes(max(n, minCost)))
		}
	}
	if due, ok := l.port.Deadline(); ok {
		l.timer.Reset(max(time.Until(due), 0))
	} else {
		l.timer.Stop()
	}
}

// takes returns how long n bytes take at the rate.
func (l *loop) takes(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(l.rate)
}

// close ends the loop. Closing it again does nothing.
func (l *loop) close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	l.timer.Stop()
	l.changed.Broadcast()
	l.mu.Unlock()
	l.wire.close()
	<-l.done
}
