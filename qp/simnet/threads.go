package simnet

import (
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// A network with several threads runs in windows of time. Nothing that happens in one
// engine within a window reaches another before its end, since links between engines have a
// longer delay; packets sent on them are handed over at the end of the window. The order of
// events does not depend on what caused them, so that each engine runs as it would alone.

// partition distributes switches, each with its hosts, to the engines, and moves the events
// to where they belong.
func (n *Network) partition() {
	want := max(1, n.cfg.Threads)
	if want == 1 && len(n.engines) == 1 {
		return
	}
	groups := n.groups()
	for len(n.engines) < want {
		first := n.engines[0]
		n.engines = append(n.engines, newEngine(n, len(n.engines), first.now, first.clock))
	}
	// The heaviest first, each to the engine with the least weight.
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.weight, a.weight) })
	load := make([]int, len(n.engines))
	for _, g := range groups {
		least := 0
		for i := range load {
			if load[i] < load[least] {
				least = i
			}
		}
		load[least] += g.weight
		e := n.engines[least]
		for _, s := range g.switches {
			s.e = e
		}
		for _, h := range g.hosts {
			h.e = e
		}
	}
	for _, d := range n.dirs {
		d.e, d.toE = d.from.engine(), d.to.engine()
		d.crossing = d.e != d.toE
	}
	n.moveEvents()
}

// moveEvents moves all events to the engines of their switches and hosts.
func (n *Network) moveEvents() {
	var events []event
	for _, e := range n.engines {
		events = e.queue.drain(events)
		e.timers = 0
		for _, h := range e.dirty {
			if h.e != e {
				h.e.dirty = append(h.e.dirty, h)
			}
		}
		e.dirty = slices.DeleteFunc(e.dirty, func(h *Host) bool { return h.e != e })
	}
	for _, ev := range events {
		e := n.owner(ev.class(), ev.arg())
		if e.queue.push(ev); ev.class() == evTimer {
			e.timers++
		}
	}
}

// owner returns the engine that an event belongs to.
func (n *Network) owner(c class, arg int32) *engine {
	switch c {
	case evArrive, evLate:
		return n.dirs[arg].to.engine()
	case evHost:
		return n.hosts[arg>>1].e
	case evCall, evTimer:
		return n.hosts[arg].e
	case evOpen:
		return n.dirs[arg>>1].e
	case evPause:
		return n.swPorts[arg>>3].sw.e
	}
	return n.dirs[arg].e
}

// group is a set of nodes that must be in one engine.
type group struct {
	switches []*Switch
	hosts    []*Host
	weight   int
}

// groups returns the parts of the network that only links between switches with a
// delay join.
func (n *Network) groups() (out []*group) {
	parent := make([]int, len(n.switches)+len(n.hosts))
	for i := range parent {
		parent[i] = i
	}
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	number := func(e *end) int {
		if e.host != nil {
			return len(n.switches) + int(e.host.id)
		}
		return int(e.sw.id)
	}
	for _, l := range n.links {
		if l.cfg.Delay == 0 || l.a.host != nil && l.a == l.a.host.ends[0] || l.b.host != nil && l.b == l.b.host.ends[0] {
			a, b := find(number(l.a)), find(number(l.b))
			parent[max(a, b)] = min(a, b)
		}
	}
	of := make(map[int]*group)
	at := func(i int) *group {
		r := find(i)
		if of[r] == nil {
			of[r] = new(group)
			out = append(out, of[r])
		}
		return of[r]
	}
	for i, s := range n.switches {
		g := at(i)
		g.switches = append(g.switches, s)
		g.weight += len(s.ports)
	}
	for i, h := range n.hosts {
		g := at(len(n.switches) + i)
		g.hosts = append(g.hosts, h)
		g.weight += 4
	}
	return out
}

// lookahead returns the time for which engines cannot affect each other: the shortest delay
// of a link between two.
func (n *Network) lookahead() int64 {
	least := int64(searchEvery)
	for _, d := range n.dirs {
		if d.crossing {
			least = min(least, d.delay)
		}
	}
	return least
}

// runThreads handles all events up to end.
func (n *Network) runThreads(end int64) error {
	ahead := n.lookahead()
	w := newWorkers(n.engines)
	defer func() {
		w.stop()
		last := stamp{}
		for _, e := range n.engines {
			last = last.max(e.now)
		}
		for _, e := range n.engines {
			e.setNow(last)
		}
	}()
	for {
		next := int64(noTime)
		for _, e := range n.engines {
			next = min(next, e.next())
		}
		if next > end || next == noTime {
			return nil
		}
		limit := min(next+ahead-1, end, (next/searchEvery+1)*searchEvery-1, n.calls.Due(noTime)-1)
		if limit < next {
			return nil // a search was planned
		}
		n.parallel = true
		n.balance.begin(n.engines)
		w.run(limit)
		n.balance.end(n.engines)
		n.parallel = false
		n.exchange()
		n.planSearch()
		if n.observer != nil {
			n.replay()
		}
		if n.check.Load() {
			if err := n.changed(); err != nil {
				return err
			}
		}
	}
}

// balance is how evenly the events of windows were spread over the engines.
type balance struct {
	all, longest uint64 // all events, and the sum over windows of those of the busiest engine
	before       []uint64
}

func (b *balance) begin(engines []*engine) {
	b.before = b.before[:0]
	for _, e := range engines {
		b.before = append(b.before, e.events)
	}
}

func (b *balance) end(engines []*engine) {
	most := uint64(0)
	for i, e := range engines {
		did := e.events - b.before[i]
		b.all += did
		most = max(most, did)
	}
	b.longest += most
}

// Balance returns the speedup of Config.Threads threads over one that was possible so far,
// if each event took the same time and waiting for each other took none: all events divided
// by those of the busiest thread of each window. It is 1 for one thread.
func (n *Network) Balance() float64 {
	if n.balance.longest == 0 {
		return 1
	}
	return float64(n.balance.all) / float64(n.balance.longest)
}

// exchange hands over packets sent between engines. For each an unused packet is returned,
// so that neither engine runs out of them.
func (n *Network) exchange() {
	for _, e := range n.engines {
		for _, d := range e.crossing {
			to := d.toE
			for p := d.sent.pop(); p != nil; p = d.sent.pop() {
				if p.late {
					d.flyLate(p)
				} else {
					d.fly(p)
				}
				from, back := &to.free, &e.free
				if p.pause {
					from, back = &to.pauses, &e.pauses
				}
				if k := *from; k != nil {
					*from = k.next
					k.next = *back
					*back = k
				}
			}
		}
		e.crossing = e.crossing[:0]
	}
}

// workers run engines at the same time, the first on the caller's goroutine.
type workers struct {
	engines []*engine
	others  []*worker
	looks   int
}

// worker runs one engine on a goroutine of its own.
type worker struct {
	e           *engine
	start, done gate
	limit       int64 // how far to go; noTime ends the goroutine
	busy        bool  // whether it has been started and not waited for
}

func newWorkers(engines []*engine) *workers {
	w := &workers{engines: engines}
	if runtime.GOMAXPROCS(0) >= len(engines) {
		w.looks = gateLooks
	}
	for _, e := range engines[1:] {
		o := &worker{e: e, start: newGate(), done: newGate()}
		w.others = append(w.others, o)
		go func() {
			for o.start.wait(w.looks); o.limit != noTime; o.start.wait(w.looks) {
				o.e.run(o.limit)
				o.done.open()
			}
		}()
	}
	return w
}

// run makes all engines handle their events up to limit, except those that have none.
func (w *workers) run(limit int64) {
	for _, o := range w.others {
		if o.busy = o.e.next() <= limit; o.busy {
			o.limit = limit
			o.start.open()
		}
	}
	w.engines[0].run(limit)
	for _, o := range w.others {
		if o.busy {
			o.done.wait(w.looks)
		}
	}
}

func (w *workers) stop() {
	for _, o := range w.others {
		o.limit = noTime
		o.start.open()
	}
}

// gate lets one goroutine wait until another opens it, once for each time that it is
// opened. The one that waits first only looks, since a window takes less time than to wake
// up, and then sleeps.
type gate struct {
	opened atomic.Uint32
	asleep atomic.Bool
	wake   chan struct{}
	passed uint32 // how often wait has returned
	_      [64]byte
}

// gateLooks is how often a goroutine looks before it sleeps, for some 50 us. By Balance the
// shares of BenchmarkThreads' windows, of 200 us, differ by some 10 us.
const gateLooks = 1 << 16

func newGate() gate { return gate{wake: make(chan struct{}, 1)} }

func (g *gate) open() {
	g.opened.Add(1)
	if g.asleep.CompareAndSwap(true, false) {
		g.wake <- struct{}{}
	}
}

func (g *gate) wait(looks int) {
	for ; g.opened.Load() == g.passed; looks-- {
		if looks > 0 {
			continue
		}
		g.asleep.Store(true)
		// Opened meanwhile by one that did not see it asleep, or that wakes it.
		if g.opened.Load() == g.passed || !g.asleep.CompareAndSwap(true, false) {
			<-g.wake
		}
	}
	g.passed++
}

// logged is a packet event of a window, for the observer afterwards.
type logged struct {
	key  event
	at   int64
	d    *Direction
	p    *packet
	fate Fate
}

// replay calls the observer for the packet events of a window, in the order of a single
// engine: the earliest event of all engines is next.
func (n *Network) replay() {
	for {
		var first *engine
		for _, e := range n.engines {
			if len(e.log) != 0 && (first == nil || e.log[0].key.before(&first.log[0].key)) {
				first = e
			}
		}
		if first == nil {
			break
		}
		x := first.log[0]
		first.log = first.log[1:]
		n.tell(x.d, x.p, x.fate, time.Duration(x.at))
		first.release(x.p)
	}
	for _, e := range n.engines {
		e.log = e.logMemory[:0]
	}
}

// observe calls the observer for a packet, or logs it for replay.
func (e *engine) observe(d *Direction, p *packet, fate Fate) {
	n := e.n
	if n.observer == nil {
		return
	}
	if !n.parallel {
		n.tell(d, p, fate, time.Duration(e.now.ns))
		return
	}
	e.log = append(e.log, logged{e.cur, e.now.ns, d, e.clone(p), fate})
	e.logMemory = e.log
}
