package simnet

import (
	"fmt"
	"slices"
	"strconv"
)

// SetRoute sends packets for host h, at this switch, by the given outputs of it
// instead of the shortest ways: by several, each flow by one of them. Outputs whose link
// is down do not count. None undoes that.
func (s *Switch) SetRoute(h *Host, outputs ...*Direction) error {
	for _, d := range outputs {
		if d.from.sw != s {
			return fmt.Errorf("%w: route of %s by a link of another node", ErrConfig, s.name)
		}
	}
	if len(outputs) == 0 {
		delete(s.fixed, h.id)
	} else {
		s.fixed[h.id] = outputs
	}
	s.n.reroute()
	return nil
}

// Path returns the directions of the shortest way from one host to another, the first
// of those that are equal, or nil where there is none.
func (n *Network) Path(from, to *Host) ([]*Direction, error) {
	if err := n.prepare(); err != nil || from == to || !from.linked() {
		return nil, err
	}
	path := []*Direction{from.Out()}
	for s := from.Out().to.sw; s != nil; {
		ways := s.routes[to.id]
		if len(ways) == 0 || len(path) > len(n.switches)+1 {
			return nil, nil
		}
		path = append(path, ways[0])
		s = ways[0].to.sw
	}
	if path[len(path)-1].to.host != to {
		return nil, nil
	}
	return path, nil
}

// route finds the shortest ways to all hosts, all of equal length (ECMP), and a
// tree for what goes to all.
func (n *Network) route() error {
	if n.routed {
		return nil
	}
	for _, s := range n.switches {
		if err := s.share(); err != nil {
			return err
		}
		s.routes = make([][]*Direction, len(n.hosts))
	}
	// Hosts behind the same switches are reached by the same ways.
	behind := make(map[string][]*Host)
	var keys []string
	for _, h := range n.hosts {
		k := ""
		for _, e := range h.ends {
			if s := e.out.to.sw; s != nil && !e.out.down {
				k += strconv.Itoa(int(s.id)) + ","
			}
		}
		if behind[k] == nil {
			keys = append(keys, k)
		}
		behind[k] = append(behind[k], h)
	}
	for _, k := range keys {
		n.routesTo(behind[k])
	}
	for _, s := range n.switches {
		for h, ways := range s.fixed {
			ways = slices.DeleteFunc(slices.Clone(ways), func(d *Direction) bool { return d.down })
			if len(ways) != 0 {
				s.routes[h] = ways
			}
		}
	}
	n.spanningTree()
	n.routed = true
	return nil
}

// routesTo finds the ways to hosts that are behind the same switches.
func (n *Network) routesTo(hosts []*Host) {
	dist := make([]int, len(n.switches)) // links to one of those, -1 for none
	for i := range dist {
		dist[i] = -1
	}
	var todo []*Switch
	for _, h := range hosts {
		for _, e := range h.ends {
			s := e.out.to.sw
			if s == nil || e.out.down {
				continue
			}
			s.routes[h.id] = append(s.routes[h.id], e.in)
			if dist[s.id] < 0 {
				dist[s.id] = 0
				todo = append(todo, s)
			}
		}
	}
	for ; len(todo) != 0; todo = todo[1:] {
		s := todo[0]
		for _, p := range s.ports {
			if t := p.end.in.from.sw; t != nil && !p.end.out.down && dist[t.id] < 0 {
				dist[t.id] = dist[s.id] + 1
				todo = append(todo, t)
			}
		}
	}
	for _, s := range n.switches {
		if dist[s.id] <= 0 {
			continue
		}
		var ways []*Direction
		for _, p := range s.ports {
			if t := p.end.in.from.sw; t != nil && !p.end.out.down && dist[t.id] == dist[s.id]-1 {
				ways = append(ways, p.end.out)
			}
		}
		for _, h := range hosts {
			s.routes[h.id] = ways
		}
	}
}

// spanningTree says by which outputs a switch sends what goes to all.
func (n *Network) spanningTree() {
	seen := make([]bool, len(n.switches))
	tree := make(map[*Link]bool)
	for _, root := range n.switches {
		if seen[root.id] {
			continue
		}
		seen[root.id] = true
		for todo := []*Switch{root}; len(todo) != 0; todo = todo[1:] {
			for _, p := range todo[0].ports {
				if t := p.end.in.from.sw; t != nil && !p.end.out.down && !seen[t.id] {
					seen[t.id] = true
					tree[p.end.link] = true
					todo = append(todo, t)
				}
			}
		}
	}
	for _, s := range n.switches {
		s.flood = s.flood[:0]
		for _, p := range s.ports {
			// A host with several links gets one of each packet.
			if h := p.end.in.from.host; h != nil && h.ends[0] == p.end.in.from || tree[p.end.link] {
				s.flood = append(s.flood, p.end.out)
			}
		}
	}
}
