package main

import (
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/congestion/swift"
	"github.com/roce-go/roce/qp/congestion/timely"
)

// path is what a controller may have to know of the network.
type path struct {
	rate  uint64 // of hosts' links, bits per second
	links int    // of the longest way
	mtu   int
	n     int // senders
}

// floor is the least rate of flows where a control has one: the gigabit of HPCC's
// scripts, but no more than a quarter of a fair share.
func (p *path) floor() uint64 { return min(1e9, p.rate/uint64(4*p.n)) }

// overhead is what goes with the payload of a packet on the wire: headers, FCS,
// preamble and gap.
const overhead = 82

// baseRTT is a round trip without queues: each link takes a microsecond both ways and
// is crossed by a packet, and by an acknowledgement in next to no time.
func (p *path) baseRTT() time.Duration {
	packet := float64(p.mtu+overhead) * 8e9 / float64(p.rate)
	return time.Duration(p.links) * (2*linkDelay + time.Duration(packet) + 100)
}

const linkDelay = time.Microsecond

// control is a way to control congestion.
type control struct {
	name, title string
	make        func(p *path) congestion.Controller
}

var controls = []control{
	{"off", "PFC alone", func(*path) congestion.Controller { return nil }},
	{"dcqcn", "DCQCN, the paper's", func(*path) congestion.Controller { return cnp.Controller(cnp.Paper()) }},
	{"nvidia", "DCQCN, ConnectX", func(*path) congestion.Controller { return cnp.Controller(cnp.NVIDIA()) }},
	{"ns3", "DCQCN, HPCC's ns-3 code", func(p *path) congestion.Controller { return cnp.Controller(cnp.NS3(p.rate)) }},
	{"hpcc", "HPCC", func(p *path) congestion.Controller {
		c := hpcc.Defaults()
		c.BaseRTT = p.baseRTT()
		c.MinRate = p.floor()
		return hpcc.Controller(c)
	}},
	{"swift", "Swift", func(p *path) congestion.Controller {
		return swift.Controller(swift.Defaults()) // each flow is told its hops
	}},
	{"timely", "TIMELY", func(p *path) congestion.Controller {
		c := timely.Defaults()
		c.MinRate = p.floor()
		return timely.Controller(c)
	}},
}

func controlNames() (names []string) {
	for _, c := range controls {
		names = append(names, c.name)
	}
	return names
}

func controlOf(name string) *control {
	for i := range controls {
		if controls[i].name == name {
			return &controls[i]
		}
	}
	panic("no control " + name) // names are checked
}
