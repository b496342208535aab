// Package lab is a kit of experiments with simulated networks:
//
//   - topologies ([Topology]: star, dumbbell, two- and three-tier Clos networks, ring, or
//     from a file);
//   - workloads: flow sizes that papers use ([WebSearch], [Hadoop], [Storage]), arrivals
//     at a load ([Poisson]), collectives ([RingAllReduce], [AllToAll], [Incast]), or from a
//     file ([ReadTransfers]);
//   - runs of them ([Play], [Scenario]) and their results: completion times against the
//     ideal ([Slowdowns]), time series of queues, rates and pauses ([Report]), as tables,
//     CSV and JSON;
//   - sweeps of independent networks over all cores, and over machines ([Sweep], [Shard]).
//
// Everything is determined by its seeds: results are the same on any machine, for any
// number of threads and shards.
package lab

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/qp/simnet"
)

// Topology holds the parameters of the hosts, switches and links of a ready-made network.
type Topology struct {
	Network simnet.Config
	Host    simnet.HostConfig // Name and LineRate are filled in; Addr is of the first, the others count up
	Switch  simnet.SwitchConfig
	Rate    uint64        // of host links, bits per second; 0 means 100 Gb/s
	Core    uint64        // of links between switches; 0 means Rate
	Delay   time.Duration // of each link; 0 means 1 us
}

// Fabric is a network that was created from a Topology.
type Fabric struct {
	*simnet.Network
	// Bottleneck is the direction that congestion is expected at: of a dumbbell
	// the one from left to right, of a star the one to the first host; else nil.
	Bottleneck *simnet.Direction
}

func (t *Topology) build() *Fabric {
	if t.Rate == 0 {
		t.Rate = 100e9
	}
	if t.Core == 0 {
		t.Core = t.Rate
	}
	if t.Delay == 0 {
		t.Delay = time.Microsecond
	}
	return &Fabric{Network: simnet.New(t.Network)}
}

// hosts adds n hosts to a switch.
func (t *Topology) hosts(f *Fabric, s *simnet.Switch, n int, name string) error {
	for i := range n {
		c := t.Host
		c.Name, c.LineRate = fmt.Sprintf("%s%d", name, i), t.Rate
		if c.Addr.IsValid() {
			t.Host.Addr = c.Addr.Next()
		}
		h, err := f.AddHost(c)
		if err != nil {
			return err
		}
		if _, err := f.Connect(h, s, simnet.LinkConfig{Rate: t.Rate, Delay: t.Delay}); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) switches(f *Fabric, n int, name string) ([]*simnet.Switch, error) {
	var out []*simnet.Switch
	for i := range n {
		c := t.Switch
		c.Name = fmt.Sprintf("%s%d", name, i)
		s, err := f.AddSwitch(c)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// Star is n hosts on one switch, h0 to h(n-1): incast when all send to one.
func (t Topology) Star(n int) (*Fabric, error) {
	f := t.build()
	s, err := t.switches(f, 1, "s")
	if err == nil {
		err = t.hosts(f, s[0], n, "h")
	}
	if err != nil {
		return nil, err
	}
	f.Bottleneck = s[0].Outputs()[0]
	return f, nil
}

// Dumbbell is n hosts on one switch, l0 to l(n-1), and n on another, r0 to
// r(n-1), with one link between the switches. Hosts has those on the left first.
func (t Topology) Dumbbell(n int) (*Fabric, error) {
	f := t.build()
	s, err := t.switches(f, 2, "s")
	if err != nil {
		return nil, err
	}
	l, err := f.Connect(s[0], s[1], simnet.LinkConfig{Rate: t.Core, Delay: t.Delay})
	if err != nil {
		return nil, err
	}
	f.Bottleneck = l.AB()
	for i, name := range []string{"l", "r"} {
		if err := t.hosts(f, s[i], n, name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Clos is a tree of two tiers: every leaf is linked to every spine, and has perLeaf hosts.
// Switches has the leaves first; host k of leaf j is Hosts[j*perLeaf+k] and is called by
// both numbers.
func (t Topology) Clos(leaves, spines, perLeaf int) (*Fabric, error) {
	f := t.build()
	l, err := t.switches(f, leaves, "leaf")
	if err != nil {
		return nil, err
	}
	s, err := t.switches(f, spines, "spine")
	if err != nil {
		return nil, err
	}
	for j, leaf := range l {
		if err := t.hosts(f, leaf, perLeaf, fmt.Sprintf("h%d.", j)); err != nil {
			return nil, err
		}
		for _, spine := range s {
			if _, err := f.Connect(leaf, spine, simnet.LinkConfig{Rate: t.Core, Delay: t.Delay}); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// Ring is n switches in a cycle, each with perSwitch hosts. All packets use one direction,
// so that PFC can cause a deadlock.
func (t Topology) Ring(n, perSwitch int) (*Fabric, error) {
	f := t.build()
	s, err := t.switches(f, n, "s")
	if err != nil {
		return nil, err
	}
	next := make([]*simnet.Direction, n)
	for i := range s {
		if err := t.hosts(f, s[i], perSwitch, fmt.Sprintf("h%d.", i)); err != nil {
			return nil, err
		}
		l, err := f.Connect(s[i], s[(i+1)%n], simnet.LinkConfig{Rate: t.Core, Delay: t.Delay})
		if err != nil {
			return nil, err
		}
		next[i] = l.AB()
	}
	for i := range s {
		for k, h := range f.Hosts() {
			if k/perSwitch != i {
				if err := s[i].SetRoute(h, next[i]); err != nil {
					return nil, err
				}
			}
		}
	}
	return f, nil
}

// Tiers holds the size of a network of three tiers.
type Tiers struct {
	Pods  int
	Edge  int // switches of a pod that have hosts
	Agg   int // switches of a pod above these, each linked to all of them
	Core  int // switches above the pods
	Hosts int // of an edge switch
	// Planes: aggregation switch i of each pod is linked to Core/Agg core switches, those
	// from i*Core/Agg on, and no other aggregation switch of its pod to these; else each is
	// linked to all.
	Planes bool
	// Spine is the rate of links to the core; 0 means that of Topology.Core.
	Spine uint64
}

// Clos3 is a tree of three tiers. Switches has the edge switches first, then the
// aggregation switches, each by pod, then the core; host i of edge switch e is
// Hosts[e*t.Hosts+i], and is called by both numbers.
func (t Topology) Clos3(c Tiers) (*Fabric, error) {
	if c.Pods < 1 || c.Edge < 1 || c.Agg < 1 || c.Core < 1 || c.Hosts < 0 || c.Planes && c.Core%c.Agg != 0 {
		return nil, fmt.Errorf("%w: tiers %+v, want numbers above 0, and with Planes a Core that Agg divides", simnet.ErrConfig, c)
	}
	f := t.build()
	var tiers [3][]*simnet.Switch
	for i, x := range []struct {
		n    int
		name string
	}{{c.Pods * c.Edge, "edge"}, {c.Pods * c.Agg, "agg"}, {c.Core, "core"}} {
		var err error
		if tiers[i], err = t.switches(f, x.n, x.name); err != nil {
			return nil, err
		}
	}
	edge, agg, core := tiers[0], tiers[1], tiers[2]
	link := func(a, b *simnet.Switch, rate uint64) error {
		if rate == 0 {
			rate = t.Core
		}
		_, err := f.Connect(a, b, simnet.LinkConfig{Rate: rate, Delay: t.Delay})
		return err
	}
	for e := range edge {
		if err := t.hosts(f, edge[e], c.Hosts, fmt.Sprintf("h%d.", e)); err != nil {
			return nil, err
		}
		for i := range c.Agg {
			if err := link(edge[e], agg[e/c.Edge*c.Agg+i], 0); err != nil {
				return nil, err
			}
		}
	}
	for a := range agg {
		above := core
		if n := c.Core / c.Agg; c.Planes {
			above = core[a%c.Agg*n:][:n]
		}
		for _, s := range above {
			if err := link(agg[a], s, c.Spine); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// FatTree is the network of three tiers of k pods, k even: a pod has k/2 edge and k/2
// aggregation switches, an edge switch k/2 hosts, and there are k*k/4 core switches in k/2
// planes, so that each switch has k links, and there are k*k*k/4 hosts.
func (t Topology) FatTree(k int) (*Fabric, error) {
	if k < 2 || k%2 != 0 {
		return nil, fmt.Errorf("%w: a fat tree of %d pods, want an even number", simnet.ErrConfig, k)
	}
	half := k / 2
	return t.Clos3(Tiers{Pods: k, Edge: half, Agg: half, Core: half * half, Hosts: half, Planes: true})
}
