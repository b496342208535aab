package main

import (
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/congestion/swift"
	"github.com/roce-go/roce/qp/congestion/timely"
)

// path holds what a controller may need to know about the network.
type path struct {
	rate  uint64 // rate of the hosts' links, bits per second
	links int    // number of links of the longest path
	mtu   int
	n     int // senders
}

// floor is the minimum rate of flows for the controls that have one: the 1 Gb/s of HPCC's
// scripts, but no more than a quarter of a fair share.
func (p *path) floor() uint64 { return min(1e9, p.rate/uint64(4*p.n)) }

// overhead is the number of bytes on the wire besides the payload of a packet: headers, FCS,
// preamble and gap.
const overhead = 82

// baseRTT is the round-trip time without queues: each link takes a microsecond in each
// direction and the serialisation time of a packet, plus 100 ns for an acknowledgement.
func (p *path) baseRTT() time.Duration {
	packet := float64(p.mtu+overhead) * 8e9 / float64(p.rate)
	return time.Duration(p.links) * (2*linkDelay + time.Duration(packet) + 100)
}

const linkDelay = time.Microsecond

// control is a congestion control.
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
		return swift.Controller(swift.Defaults()) // the simulator gives each flow its number of hops
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
	panic("no control " + name) // cannot happen: names are checked
}
