package simnet

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

var (
	// ErrConfig means that a value of a configuration is out of range, or that
	// two nodes cannot be linked.
	ErrConfig = errors.New("simnet: configuration value out of range")
	// ErrDeadlock means that switches wait for each other in a cycle: see Network.Deadlock.
	ErrDeadlock = errors.New("simnet: pause deadlock")
	// ErrStopped means that Stop was called.
	ErrStopped = errors.New("simnet: stopped")
)

// Carry says what packets consist of.
type Carry uint8

const (
	// Bytes is whole frames, encoded and decoded, with ICRC.
	Bytes Carry = iota
	// Decoded is decoded packets with a copy of their payload, except that of flows
	// (AddFlow), whose memory never changes.
	Decoded
	// Shared is decoded packets whose payload stays in the sender's memory, for speed. The
	// caller must not change that memory while packets may refer to it, not even after
	// completion, nor use gather lists. Flows (AddFlow) then carry lengths only: their
	// payload is never read or written.
	Shared
)

// Config holds the parameters of a network. The zero value can be used.
type Config struct {
	Seed  uint64
	Start time.Time // time 0, 1970 to 2200; the zero value means 2030-01-01 00:00 UTC
	Carry Carry
	// KeepDeadlocked: Run goes on after a pause deadlock. Otherwise it returns ErrDeadlock.
	KeepDeadlocked bool
	// Threads is how many parts of the network run at the same time, each on a thread of
	// its own; 0 and 1 mean that everything runs on the caller's. The network is divided
	// between switches, at links that have a delay. Events and trace are the same for any
	// number. Functions that hosts call (OnCompletion, Handle, At) then run at the same
	// time as those of other hosts: they must use Host.Now and Host.At, and must not use
	// anything of another host.
	Threads int

	plain bool // events wait in a heap, and nothing is read ahead: the reference in tests
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
	zero  int64 // Unix time of the start, nanoseconds

	engines  []*engine
	parallel bool // engines run at the same time
	balance  balance
	calls    callQueue
	callSeq  uint64
	check    atomic.Bool // stopped, deadlock, routed or calls has changed
	stopped  atomic.Bool

	room     int    // bytes of the largest flow: see scratchFor
	arena    []byte // of all flows, unless each host has its own
	hosts    []*Host
	switches []*Switch
	links    []*Link
	dirs     []*Direction
	swPorts  []*swPort
	names    map[string]bool

	routed bool
	// multipath is set where a switch has several paths to a host.
	multipath bool
	observer  func(*PacketEvent)
	deadlock  *Deadlock
	deadlocks
}

// New returns an empty network.
func New(cfg Config) *Network {
	if cfg.Start.IsZero() {
		cfg.Start = time.Unix(1_893_456_000, 0)
	}
	cfg.Start = cfg.Start.Round(0).UTC()
	n := &Network{
		cfg: cfg, zero: cfg.Start.UnixNano(), carry: cfg.Carry, bytes: cfg.Carry == Bytes,
		names: make(map[string]bool),
	}
	n.engines = []*engine{newEngine(n, 0, stamp{}, cfg.Start)}
	return n
}

// Now returns the time. With Config.Threads above 1 functions of completions and of
// Host.At must use Host.Now.
func (n *Network) Now() time.Time { return n.engines[0].time() }

// Elapsed returns the time since the start.
func (n *Network) Elapsed() time.Duration { return time.Duration(n.engines[0].now.ns) }

func (n *Network) timeAt(ns int64) time.Time { return time.Unix(0, n.zero+ns).UTC() }

// since converts a time to nanoseconds since the start. No time here has a monotonic
// reading, and Sub takes five times as long.
func (n *Network) since(t time.Time) int64 { return t.UnixNano() - n.zero }

// Hosts returns the hosts in the order in which they were added.
func (n *Network) Hosts() []*Host { return n.hosts }

// Switches returns the switches in the order in which they were added.
func (n *Network) Switches() []*Switch { return n.switches }

// Links returns the links in the order in which they were added.
func (n *Network) Links() []*Link { return n.links }

// Events returns how many events there were so far.
func (n *Network) Events() (sum uint64) {
	for _, e := range n.engines {
		sum += e.events
	}
	return sum
}

// Hops returns how many packets arrived at the other end of a link so far.
func (n *Network) Hops() (sum uint64) {
	for _, e := range n.engines {
		sum += e.hops
	}
	return sum
}

// At calls fn at t, or now if t has passed: before all else that happens at that time.
// It may post to the queue pairs of any host, and change the network.
//
// With Config.Threads above 1 functions of completions and of Host.At must use Host.At
// instead; At panics there.
func (n *Network) At(t time.Time, fn func()) {
	if n.parallel {
		panic("simnet: Network.At from a function of a host while several threads run: use Host.At")
	}
	n.callSeq++
	n.call(max(n.engines[0].now.ns, n.since(t)), n.callSeq, fn)
}

// call schedules fn at a time, which may be before the limit of the engine's run.
func (n *Network) call(at int64, seq uint64, fn func()) {
	n.calls.Push(at, seq, fn)
	n.check.Store(true)
}

// After calls fn after d: see At.
func (n *Network) After(d time.Duration, fn func()) { n.At(n.Now().Add(d), fn) }

// Stop makes Run return, after the current event, or with several threads soon after it.
func (n *Network) Stop() {
	n.stopped.Store(true)
	n.check.Store(true)
}

// Deadlock returns the pause deadlock that was found, or nil.
func (n *Network) Deadlock() *Deadlock { return n.deadlock }

// horizon returns the time after d, and no later than the year 2260: a time.Time
// of nanoseconds since 1970 ends soon after. Time does not go back.
func (n *Network) horizon(d time.Duration) int64 {
	const latest = 1<<63 - 1 - 2*365*24*int64(time.Hour)
	now := n.engines[0].now.ns
	return now + min(max(0, int64(d)), max(0, latest-n.zero-now))
}

// Run simulates d of virtual time. It returns ErrStopped or ErrDeadlock when it ended
// early, at the time of that.
func (n *Network) Run(d time.Duration) error {
	end := n.horizon(d)
	if err := n.run(end); err != nil {
		return err
	}
	n.setNow(end)
	return nil
}

// RunUntilIdle runs until no events are left, for at most limit of virtual time, and
// reports whether none are left. Its errors are those of Run.
func (n *Network) RunUntilIdle(limit time.Duration) (idle bool, err error) {
	if err = n.run(n.horizon(limit)); err != nil || n.calls.Len() != 0 {
		return false, err
	}
	for _, e := range n.engines {
		if !e.idle() {
			return false, nil
		}
	}
	return true, nil
}

// setNow sets the time of all engines.
func (n *Network) setNow(ns int64) {
	for _, e := range n.engines {
		e.setNow(stamp{ns: ns})
	}
}

// prepare applies what changed between events.
func (n *Network) prepare() error {
	if !n.routed {
		if err := n.route(); err != nil {
			return err
		}
		n.partition()
		for _, e := range n.engines {
			e.large = !n.cfg.plain && len(n.dirs) >= warmFrom*len(n.engines)
		}
	}
	for _, e := range n.engines {
		e.settleDirty()
	}
	return nil
}

func (n *Network) run(end int64) error {
	n.stopped.Store(false)
	n.found = n.deadlock
	if err := n.prepare(); err != nil {
		return err
	}
	for {
		at := n.calls.Due(noTime)
		last := min(end, at-1)
		if len(n.engines) == 1 {
			n.engines[0].run(last)
			if n.check.Load() {
				if err := n.changed(); err != nil {
					return err
				}
				continue
			}
		} else if err := n.runThreads(last); err != nil {
			return err
		}
		if at = n.calls.Due(noTime); at > end {
			return nil
		} else if at != last+1 {
			continue // it was added in the meantime
		}
		n.setNow(at)
		n.engines[0].events++
		_, _, fn := n.calls.Pop()
		fn()
		for _, e := range n.engines {
			e.settleDirty()
		}
		if n.check.Load() {
			if err := n.changed(); err != nil {
				return err
			}
		}
	}
}

// changed handles what has set check.
func (n *Network) changed() error {
	n.check.Store(false)
	if !n.routed { // a function of the caller added something
		if err := n.prepare(); err != nil {
			return err
		}
	}
	if n.stopped.Load() {
		return ErrStopped
	}
	if n.deadlock != n.found && !n.cfg.KeepDeadlocked {
		return ErrDeadlock
	}
	return nil
}

// reroute makes routes and partitions be computed again before the next event.
func (n *Network) reroute() {
	n.routed = false
	n.check.Store(true)
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
