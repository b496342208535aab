package simnet

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// SetRoute makes this switch send packets for host h on the given outputs of it, instead of
// on the shortest paths: with several, each flow on one of them. Outputs whose link is down
// are not used. Without outputs the shortest paths are used again. Errors wrap ErrConfig.
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

// Path returns the directions of the shortest path from one host to another, the first of
// equal ones, or nil where there is none.
func (n *Network) Path(from, to *Host) ([]*Direction, error) {
	if err := n.prepare(); err != nil || from == to || !from.linked() {
		return nil, err
	}
	path := []*Direction{from.Out()}
	for s := from.Out().to.sw; s != nil; {
		ways := s.waysTo(to.id)
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

// route finds the shortest paths to all hosts, all of equal length (ECMP), and a spanning
// tree for broadcasts.
func (n *Network) route() error {
	if n.routed {
		return nil
	}
	for _, s := range n.switches {
		if err := s.share(); err != nil {
			return err
		}
	}
	routes := make([][][]*Direction, len(n.switches)) // by switch, then by host
	for i := range routes {
		routes[i] = make([][]*Direction, len(n.hosts))
	}
	// Hosts behind the same switches have the same paths.
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
		n.routesTo(behind[k], routes)
	}
	for _, s := range n.switches {
		for h, ways := range s.fixed {
			ways = slices.DeleteFunc(slices.Clone(ways), func(d *Direction) bool { return d.down })
			if len(ways) != 0 {
				routes[s.id][h] = ways
			}
		}
		if err := s.setRoutes(routes[s.id]); err != nil {
			return err
		}
	}
	n.spanningTree()
	n.routed = true
	return nil
}

// setRoutes sets the outputs to each host. There are few different sets, and packets use
// their numbers.
func (s *Switch) setRoutes(to [][]*Direction) error {
	s.routes, s.ways = make([]uint16, len(to)), []ways{{}}
	numbers := make(map[string]uint16)
	var key []byte
	for h, all := range to {
		if len(all) == 0 {
			continue
		}
		key = key[:0]
		for _, d := range all {
			key = binary.NativeEndian.AppendUint32(key, uint32(d.id))
		}
		i, ok := numbers[string(key)]
		if !ok {
			if len(s.ways) > math.MaxUint16 {
				return fmt.Errorf("%w: switch %s has more than %d different sets of outputs to hosts", ErrConfig, s.name, math.MaxUint16)
			}
			i = uint16(len(s.ways))
			numbers[string(key)] = i
			s.ways = append(s.ways, ways{all[0].q, all})
			s.n.multipath = s.n.multipath || len(all) > 1
		}
		s.routes[h] = i
	}
	return nil
}

// routesTo finds the paths to hosts that are behind the same switches, into routes.
func (n *Network) routesTo(hosts []*Host, routes [][][]*Direction) {
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
			routes[s.id][h.id] = append(routes[s.id][h.id], e.in)
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
			routes[s.id][h.id] = ways
		}
	}
}

// spanningTree finds the outputs on which switches send broadcasts.
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
