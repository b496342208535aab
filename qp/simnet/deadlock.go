package simnet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Deadlock is a cycle of switch outputs of one priority, each paused by the next switch,
// whose buffer is full of packets for the next output of the cycle. It never ends by
// itself.
type Deadlock struct {
	At       time.Duration // when it was found
	Priority int
	Cycle    []*Direction
}

// String names the switches of the cycle.
func (d *Deadlock) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pause deadlock of priority %d at %v: ", d.Priority, d.At)
	for _, x := range d.Cycle {
		b.WriteString(x.from.name())
		b.WriteString(" > ")
	}
	if len(d.Cycle) != 0 {
		b.WriteString(d.Cycle[0].from.name())
	}
	return b.String()
}

// heldBy returns how many bytes of one priority, received at an input, wait for an output.
// The counts are kept up to date, so that the search for deadlocks need not visit packets.
func (s *Switch) heldBy(prio int, in, out int) int {
	return int(s.ports[out].end.out.q.q[prio].held[in])
}

// count allocates the counts of heldBy, and counts the packets that wait already.
func (s *Switch) count() {
	ports := len(s.ports)
	for prio := range 8 {
		if s.lossless>>prio&1 == 0 || ports == 0 || len(s.ports[0].end.out.q.q[prio].held) == ports {
			continue
		}
		held := make([]int32, ports*ports)
		for _, p := range s.ports {
			q := &p.end.out.q.q[prio]
			q.held, held = held[:ports:ports], held[ports:]
			for k := range q.all {
				q.held[k.ingress] += k.size
			}
		}
	}
}

// searchEvery is the interval in nanoseconds of the times at which deadlocks are searched
// for after a long pause: times that do not depend on the order of events.
const searchEvery = 100_000

// suspect is a direction with a long pause.
type suspect struct {
	d    *Direction
	prio uint8
}

// deadlocks is the state of the search.
type deadlocks struct {
	found    *Deadlock // before this run
	planned  bool      // a search
	suspects []suspect
	waits    []*Direction
}

// suspect plans a search that begins with d.
func (e *engine) suspect(d *Direction, prio uint8) {
	e.suspects = append(e.suspects, suspect{d, prio})
	if !e.n.parallel {
		e.n.planSearch()
	}
}

// planSearch plans the next search, if there is a suspect.
func (n *Network) planSearch() {
	if n.planned || n.deadlock != nil {
		return
	}
	for _, e := range n.engines {
		if len(e.suspects) != 0 {
			n.planned = true
			at := (e.now.ns/searchEvery + 1) * searchEvery
			n.call(at, 0, n.search)
			return
		}
	}
}

func (n *Network) search() {
	n.planned = false
	list := n.suspects[:0]
	for _, e := range n.engines {
		list = append(list, e.suspects...)
		e.suspects = e.suspects[:0]
	}
	n.suspects = list
	slices.SortFunc(list, func(a, b suspect) int {
		return cmp.Or(cmp.Compare(a.d.id, b.d.id), cmp.Compare(a.prio, b.prio))
	})
	for _, s := range list {
		if n.deadlock == nil {
			n.findDeadlock(s.d, int(s.prio))
		}
	}
}

// blocked reports whether d is an output of a switch, with packets of a priority
// that wait, paused by a switch that is still over its threshold.
func (d *Direction) blocked(prio int) bool {
	t := d.to.sw
	return d.q != nil && t != nil && d.q.paused>>prio&1 != 0 && d.q.q[prio].bytes != 0 && t.xoff[d.to.port]>>prio&1 != 0
}

// findDeadlock checks whether d, which has a long pause, can never send again. From the
// blocked outputs that d waits for, directly or not, it removes those whose pause will end,
// because enough of the bytes that were received on that link can be sent on outputs that
// are not in the set. The rest wait for each other. Pauses in a deadlock are repeated, so
// that none is missed.
func (n *Network) findDeadlock(d *Direction, prio int) {
	if !d.blocked(prio) {
		return
	}
	found := n.waits[:0]
	defer func() {
		for _, x := range found {
			x.stuck = false
		}
		n.waits = found[:0]
	}()
	d.stuck = true
	found = append(found, d)
	for i := 0; i < len(found); i++ {
		t, in := found[i].to.sw, found[i].to.port
		for out, p := range t.ports {
			if o := p.end.out; !o.stuck && t.heldBy(prio, in, out) != 0 && o.blocked(prio) {
				o.stuck = true
				found = append(found, o)
			}
		}
	}
	for again := true; again; {
		again = false
		for _, x := range found {
			if !x.stuck {
				continue
			}
			t, in, held, rest := x.to.sw, x.to.port, 0, 0
			for out, p := range t.ports {
				if p.end.out.stuck {
					held += t.heldBy(prio, in, out)
					rest += int(p.end.out.q.q[prio].bytes)
				}
			}
			if t.buffer.Lifts(in, prio, held, rest) {
				x.stuck, again = false, true
			}
		}
	}
	if !d.stuck {
		return
	}
	// Each of them waits for another of them; walk until one is visited again.
	var walk []*Direction
	at := make(map[*Direction]int)
	for {
		if i, seen := at[d]; seen {
			n.check.Store(true)
			n.deadlock = &Deadlock{At: time.Duration(n.engines[0].now.ns), Priority: prio, Cycle: walk[i:]}
			return
		}
		at[d] = len(walk)
		walk = append(walk, d)
		t, in := d.to.sw, d.to.port
		for out, p := range t.ports {
			if o := p.end.out; o.stuck && t.heldBy(prio, in, out) != 0 {
				d = o
				break
			}
		}
	}
}

// DependencyCycle returns links between switches, each of which may have to wait for the
// next one and the last for the first, by the present routes, or nil. With PFC such a
// network can deadlock; without a cycle it cannot.
func (n *Network) DependencyCycle() ([]*Direction, error) {
	if err := n.route(); err != nil {
		return nil, err
	}
	waits := make(map[*Direction]map[*Direction]bool)
	for _, s := range n.switches {
		for h := range n.hosts {
			for _, d := range s.waysTo(int32(h)) {
				if t := d.to.sw; t != nil {
					for _, next := range t.waysTo(int32(h)) {
						if next.to.sw != nil {
							if waits[d] == nil {
								waits[d] = make(map[*Direction]bool)
							}
							waits[d][next] = true
						}
					}
				}
			}
		}
	}
	const open, closed = 1, 2
	state := make(map[*Direction]int)
	var path, cycle []*Direction
	var visit func(d *Direction) bool
	visit = func(d *Direction) bool {
		switch state[d] {
		case closed:
			return false
		case open:
			for i, x := range path {
				if x == d {
					cycle = path[i:]
				}
			}
			return true
		}
		state[d] = open
		path = append(path, d)
		for _, next := range n.dirs {
			if waits[d][next] && visit(next) {
				return true
			}
		}
		state[d] = closed
		path = path[:len(path)-1]
		return false
	}
	for _, d := range n.dirs {
		if visit(d) {
			return cycle, nil
		}
	}
	return nil, nil
}
