package simnet

import (
	"math/bits"
	"net/netip"
	"time"
)

// RouteInfo describes to a router a packet that a switch may send on several outputs.
type RouteInfo struct {
	To   *Host
	Hash uint64 // of the five-tuple, mixed for this switch
	Size int    // bytes on the wire with FCS
	Now  time.Duration
	In   int // port at which it was received

	n *Network
	p *packet
}

// Flow returns the addresses and ports of the packet. A protocol other than UDP has no
// ports.
func (r *RouteInfo) Flow() (src, dst netip.AddrPort) {
	t := r.n.tuple(r.p)
	return netip.AddrPortFrom(netip.AddrFrom16(t.src).Unmap(), t.sport), netip.AddrPortFrom(netip.AddrFrom16(t.dst).Unmap(), t.dport)
}

// Router chooses among the outputs of a switch that lead to a host on the shortest paths,
// or by SetRoute. There are at least two, all of which are up.
type Router interface {
	Route(r *RouteInfo, ways []*Direction) int
}

// RouterFunc is a function as a Router: for pinned routes, and for experiments.
type RouterFunc func(r *RouteInfo, ways []*Direction) int

// Route calls f.
func (f RouterFunc) Route(r *RouteInfo, ways []*Direction) int { return f(r, ways) }

// pick maps a hash to 0 .. n-1 by its high bits.
func pick(hash uint64, n int) int {
	hi, _ := bits.Mul64(hash, uint64(n))
	return int(hi)
}

// ECMP returns the default router: equal-cost multipath by the hash of the five-tuple, so
// that a flow keeps its path.
func ECMP() Router {
	return RouterFunc(func(r *RouteInfo, ways []*Direction) int { return pick(r.Hash, len(ways)) })
}

// Spray returns a router that sends each packet on the output where the fewest bytes wait,
// and on each in turn of equal ones. Packets of a flow overtake each other.
func Spray() Router {
	turn := uint64(0)
	return RouterFunc(func(r *RouteInfo, ways []*Direction) int {
		turn++
		return shortest(ways, int(turn%uint64(len(ways))))
	})
}

// shortest returns the output with the fewest bytes waiting, the first one from index from
// on.
func shortest(ways []*Direction, from int) int {
	best := from
	for i := 1; i < len(ways); i++ {
		k := from + i
		if k >= len(ways) {
			k -= len(ways)
		}
		if ways[k].Queue() < ways[best].Queue() {
			best = k
		}
	}
	return best
}

// Flowlets returns a router that keeps a flow on its path as long as its packets follow
// each other within gap, and otherwise sends it on the output where the fewest bytes wait.
// Flows whose hashes agree in 14 bits count as one.
func Flowlets(gap time.Duration) Router {
	type flowlet struct {
		last time.Duration
		way  *Direction
	}
	table := make([]flowlet, 1<<14)
	return RouterFunc(func(r *RouteInfo, ways []*Direction) int {
		f := &table[r.Hash>>50]
		if f.way != nil && r.Now-f.last <= gap {
			for i, d := range ways {
				if d == f.way {
					f.last = r.Now
					return i
				}
			}
		}
		i := shortest(ways, pick(r.Hash, len(ways)))
		f.last, f.way = r.Now, ways[i]
		return i
	})
}
