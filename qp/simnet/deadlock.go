package simnet

import (
	"fmt"
	"strings"
	"time"
)

// Deadlock is a circle of switch outputs of one priority, each paused by the next
// switch, whose buffer is full of what waits for the next output of the circle. It
// never ends by itself.
type Deadlock struct {
	At       time.Duration // when it was found
	Priority int
	Cycle    []*Direction
}

// String names the switches of the circle.
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

// findDeadlock looks for outputs that can never send again. It begins with all
// that are paused by a switch that is still over its threshold, and takes away
// those whose pause will end: because what holds it up, the bytes that came by
// that link, can leave by outputs that are not among them. What remains waits for
// itself.
func (n *Network) findDeadlock(prio int) {
	stuck := make(map[*Direction]bool)
	for _, s := range n.switches {
		for _, p := range s.ports {
			d := p.end.out
			t := d.to.sw
			if t != nil && d.q.paused>>prio&1 != 0 && d.q.qbytes[prio] != 0 && t.ports[d.to.port].in[prio].xoff {
				stuck[d] = true
			}
		}
	}
	for again := true; again && len(stuck) != 0; {
		again = false
		for _, d := range n.dirs { // in order, not as the map has it
			if !stuck[d] {
				continue
			}
			t := d.to.sw
			held := 0
			for _, p := range t.ports {
				if stuck[p.end.out] {
					held += heldBy(p.end.out.q, prio, int32(d.to.port))
				}
			}
			if held <= t.ports[d.to.port].in[prio].xonAt {
				delete(stuck, d)
				again = true
			}
		}
	}
	if len(stuck) == 0 {
		return
	}
	// Each of them waits for another of them; walk until one comes again.
	var d *Direction
	for _, x := range n.dirs {
		if stuck[x] {
			d = x
			break
		}
	}
	var walk []*Direction
	at := make(map[*Direction]int)
	for {
		if i, seen := at[d]; seen {
			n.deadlock = &Deadlock{At: time.Duration(n.now), Priority: prio, Cycle: walk[i:]}
			return
		}
		at[d] = len(walk)
		walk = append(walk, d)
		for _, p := range d.to.sw.ports {
			if o := p.end.out; stuck[o] && heldBy(o.q, prio, int32(d.to.port)) != 0 {
				d = o
				break
			}
		}
	}
}

// heldBy returns how many bytes of a queue came by one port.
func heldBy(q *egress, prio int, port int32) int {
	n := 0
	for p := q.q[prio].head; p != nil; p = p.next {
		if p.ingress == port {
			n += int(p.size)
		}
	}
	return n
}

// DependencyCycle returns links between switches, each of which may have to wait
// for the next one and the last for the first, by the routes as they are, or nil.
// With PFC such a network can deadlock; without a circle it cannot.
func (n *Network) DependencyCycle() ([]*Direction, error) {
	if err := n.route(); err != nil {
		return nil, err
	}
	waits := make(map[*Direction]map[*Direction]bool)
	for _, s := range n.switches {
		for h, ways := range s.routes {
			for _, d := range ways {
				if t := d.to.sw; t != nil {
					for _, next := range t.routes[h] {
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
