package simnet

import (
	"errors"
	"fmt"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

var (
	// ErrConfig means that a value of a configuration is out of range, or that
	// two nodes cannot be linked.
	ErrConfig = errors.New("simnet: configuration value out of range")
	// ErrDeadlock means that switches wait for each other in a circle: see
	// Network.Deadlock.
	ErrDeadlock = errors.New("simnet: pause deadlock")
	// ErrStopped means that Stop was called.
	ErrStopped = errors.New("simnet: stopped")
)

// Carry says what packets are made of.
type Carry uint8

const (
	// Bytes is whole frames, encoded and decoded, with ICRC.
	Bytes Carry = iota
	// Decoded is decoded packets with a copy of their payload.
	Decoded
	// Shared is decoded packets whose payload stays in the sender's memory, for
	// speed. The caller must not change that memory while packets of it may be
	// under way, not even after completion, nor use gather lists.
	Shared
)

// Config says what a network is. The zero value is good.
type Config struct {
	Seed  uint64
	Start time.Time // time 0, 1970 to 2200; the zero value means 2030-01-01 00:00 UTC
	Carry Carry
	// KeepDeadlocked goes on after a pause deadlock. Otherwise Run returns
	// ErrDeadlock.
	KeepDeadlocked bool
}

// Node is a *Host or a *Switch.
type Node interface {
	Name() string
	attachable(*LinkConfig) error
	attach(*end)
}

// Network is a network. It is not safe for concurrent use.
type Network struct {
	cfg   Config
	carry Carry
	bytes bool

	now     int64
	seq     uint64
	clock   time.Time // now
	zero    int64     // Unix time of the start, nanoseconds
	queue   eventQueue
	timers  timerQueue
	stopped bool

	dirty    []*Host // ports that were called
	settled  []*Host // the list before
	hosts    []*Host
	switches []*Switch
	links    []*Link
	dirs     []*Direction
	swPorts  []*swPort
	names    map[string]bool

	packets []*packet // all there are
	free    *packet

	calls     []func()
	freeCalls []int32

	routed   bool
	observer func(*PacketEvent)
	event    PacketEvent
	scratch  frame.Frame
	deadlock *Deadlock
	waits    []*Direction // of findDeadlock
	events   uint64
	hops     uint64
}

// New returns an empty network.
func New(cfg Config) *Network {
	if cfg.Start.IsZero() {
		cfg.Start = time.Unix(1_893_456_000, 0)
	}
	cfg.Start = cfg.Start.Round(0).UTC()
	return &Network{
		cfg: cfg, clock: cfg.Start, zero: cfg.Start.UnixNano(), carry: cfg.Carry, bytes: cfg.Carry == Bytes,
		names: make(map[string]bool),
	}
}

// Now returns the time.
func (n *Network) Now() time.Time { return n.clock }

func (n *Network) setNow(at int64) {
	if at != n.now {
		n.now = at
		n.clock = time.Unix(0, n.zero+at).UTC()
	}
}

// since turns a time into nanoseconds since the start. No time here has a monotonic
// reading, and Sub takes five times as long.
func (n *Network) since(t time.Time) int64 { return t.UnixNano() - n.zero }

// Elapsed returns the time since the start.
func (n *Network) Elapsed() time.Duration { return time.Duration(n.now) }

// Hosts returns the hosts in the order in which they were added.
func (n *Network) Hosts() []*Host { return n.hosts }

// Switches returns the switches in the order in which they were added.
func (n *Network) Switches() []*Switch { return n.switches }

// Links returns the links in the order in which they were added.
func (n *Network) Links() []*Link { return n.links }

// Events returns how many events there were, and Hops how many packets crossed a
// link, so far.
func (n *Network) Events() uint64 { return n.events }

// Hops returns how many packets arrived at the other end of a link so far.
func (n *Network) Hops() uint64 { return n.hops }

func (n *Network) nextSeq() uint64 {
	n.seq++
	return n.seq
}

func (n *Network) schedule(at int64, k eventKind, arg int32) {
	n.queue.push(event{at: at, seq: n.nextSeq(), kind: k, arg: arg})
}

// At calls fn at t, or now if t has passed. It may post to the queue pairs of any
// host, and change the network.
func (n *Network) At(t time.Time, fn func()) {
	i := int32(len(n.calls))
	if l := len(n.freeCalls); l != 0 {
		i = n.freeCalls[l-1]
		n.freeCalls = n.freeCalls[:l-1]
		n.calls[i] = fn
	} else {
		n.calls = append(n.calls, fn)
	}
	n.schedule(max(n.now, n.since(t)), evCall, i)
}

// After calls fn after d: see At.
func (n *Network) After(d time.Duration, fn func()) { n.At(n.Now().Add(d), fn) }

// Stop makes Run return, after the event under way.
func (n *Network) Stop() { n.stopped = true }

// Deadlock returns the pause deadlock that was found, or nil.
func (n *Network) Deadlock() *Deadlock { return n.deadlock }

// horizon returns the time after d, and no later than the year 2260: a time.Time
// of nanoseconds since 1970 ends soon after. Time does not go back.
func (n *Network) horizon(d time.Duration) int64 {
	const latest = 1<<63 - 1 - 2*365*24*int64(time.Hour)
	return n.now + min(max(0, int64(d)), max(0, latest-n.zero-n.now))
}

// Run lets d pass. It returns ErrStopped or ErrDeadlock when it was cut short,
// and the time is what it was then.
func (n *Network) Run(d time.Duration) error {
	end := n.horizon(d)
	if err := n.run(end); err != nil {
		return err
	}
	n.setNow(end)
	return nil
}

// RunUntilIdle runs until nothing is left to do, for limit at most, and reports
// whether nothing is left.
func (n *Network) RunUntilIdle(limit time.Duration) (idle bool, err error) {
	err = n.run(n.horizon(limit))
	return err == nil && len(n.queue.h) == 0 && n.timers.idle(), err
}

func (n *Network) run(end int64) error {
	if err := n.route(); err != nil {
		return err
	}
	n.stopped = false
	n.settleDirty()
	dead := n.deadlock
	for {
		if q := n.timers.h; len(q) != 0 && (len(n.queue.h) == 0 || q[0].at < n.queue.h[0].at ||
			q[0].at == n.queue.h[0].at && q[0].seq < n.queue.h[0].seq) {
			if q[0].at > end {
				return nil
			}
			n.events++
			q[0].host.timer()
		} else {
			if len(n.queue.h) == 0 || n.queue.h[0].at > end {
				return nil
			}
			e := n.queue.pop()
			n.events++
			n.setNow(e.at)
			n.handle(&e)
		}
		if len(n.dirty) != 0 {
			n.settleDirty()
		}
		if !n.routed { // a function of the caller added something
			if err := n.route(); err != nil {
				return err
			}
		}
		if n.stopped {
			return ErrStopped
		}
		if n.deadlock != dead && !n.cfg.KeepDeadlocked {
			return ErrDeadlock
		}
	}
}

func (n *Network) handle(e *event) {
	switch e.kind {
	case evArrive:
		n.dirs[e.arg].arrive()
	case evLate:
		p := n.packets[e.arg]
		n.dirs[p.ingress].deliver(p)
	case evFree:
		n.dirs[e.arg].done()
	case evCall:
		fn := n.calls[e.arg]
		n.calls[e.arg] = nil
		n.freeCalls = append(n.freeCalls, e.arg)
		fn()
	case evResume:
		n.hosts[e.arg].resume()
	case evPause:
		n.repeatPause(e.arg)
	case evOpen:
		n.dirs[e.arg].open()
	}
}

func (n *Network) name(kind string, name string, i int) (string, error) {
	if name == "" {
		name = fmt.Sprintf("%s%d", kind, i)
	}
	if n.names[name] {
		return "", fmt.Errorf("%w: two nodes are called %q", ErrConfig, name)
	}
	n.names[name] = true
	return name, nil
}
