package simnet

import "fmt"

// SetRoute sends packets for host h, at this switch, by the given outputs of it
// instead of the shortest ways: by several, each flow by one of them. None undoes
// that.
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
	s.n.routed = false
	return nil
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
	for _, edge := range n.switches {
		var hosts []*Host
		for _, p := range edge.ports {
			if h := p.end.in.from.host; h != nil {
				hosts = append(hosts, h)
				edge.routes[h.id] = []*Direction{p.end.out}
			}
		}
		if len(hosts) == 0 {
			continue
		}
		dist := n.distances(edge)
		for _, s := range n.switches {
			if s == edge || dist[s.id] < 0 {
				continue
			}
			var ways []*Direction
			for _, p := range s.ports {
				if t := p.end.in.from.sw; t != nil && dist[t.id] == dist[s.id]-1 {
					ways = append(ways, p.end.out)
				}
			}
			for _, h := range hosts {
				s.routes[h.id] = ways
			}
		}
	}
	for _, s := range n.switches {
		for h, ways := range s.fixed {
			s.routes[h] = ways
		}
	}
	n.spanningTree()
	n.routed = true
	return nil
}

// distances returns the number of links from each switch to one, -1 for none.
func (n *Network) distances(to *Switch) []int {
	dist := make([]int, len(n.switches))
	for i := range dist {
		dist[i] = -1
	}
	dist[to.id] = 0
	for todo := []*Switch{to}; len(todo) != 0; todo = todo[1:] {
		s := todo[0]
		for _, p := range s.ports {
			if t := p.end.in.from.sw; t != nil && dist[t.id] < 0 {
				dist[t.id] = dist[s.id] + 1
				todo = append(todo, t)
			}
		}
	}
	return dist
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
				if t := p.end.in.from.sw; t != nil && !seen[t.id] {
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
			if p.end.in.from.host != nil || tree[p.end.link] {
				s.flood = append(s.flood, p.end.out)
			}
		}
	}
}
