// Package simnet is a network in virtual time: hosts with a software RoCE port
// each, links with rate, delay and faults, switches with ECN marking and
// priority flow control. It is for tests and experiments: what takes a rack of
// machines and an hour takes a laptop and a second, and the same seed gives the
// same run, byte for byte.
//
//	n := simnet.New(simnet.Config{Seed: 1})
//	a, _ := n.AddHost(simnet.HostConfig{Name: "a"})
//	b, _ := n.AddHost(simnet.HostConfig{Name: "b"})
//	l, _ := n.Connect(a, b, simnet.LinkConfig{Rate: 100e9, Delay: 2 * time.Microsecond})
//	l.AB().SetFaults(simnet.Faults{Loss: 0.01})
//	qa, qb, _ := n.ConnectQPs(a, b, simnet.ConnConfig{})
//	// post work to qa and qb, then:
//	n.RunUntilIdle(time.Minute)
//
// # Time and events
//
// Nothing here reads a clock. Time is int64 nanoseconds from the network's start, shown
// as time.Time at the API; links also keep fractions of 2^-32 ns. Events of one instant
// happen in an order that the events alone decide (first what the caller's functions do,
// then arrivals by the number of the direction, and so on), not what caused them first. So
// a network may run on several threads (Config.Threads), cut between switches, and gives
// the same trace.
//
// The cost of a packet does not depend on how many queue pairs are idle: a
// host has one timer, for its port's next deadline, which the port finds in a
// heap of those queue pairs alone that wait for something; a link direction has
// one event for all packets in flight on it. So the event queue is about as long
// as there are busy links, whatever hangs on them.
//
// # What packets are made of
//
// By default a network carries bytes: frames are encoded with their ICRC, and
// decoded and checked by the receiver. With [Decoded] it carries decoded packets,
// which is faster, and what bytes would show (ARP, malformed frames) does not
// occur; a corrupted packet is then dropped where the ICRC check would. [Shared]
// does not even copy payloads at the sender.
//
// A host makes its next packet when its link is free to send it, so that rates,
// pauses and back pressure act on what is not yet made. Switches store and forward.
//
// # What a network may be
//
// Switches share their buffer by a policy (static, Dynamic, or of the caller's), mark by
// queue, choose among equal ways by a router (ECMP, Spray, Flowlets, or a function), trim,
// and watch over pauses. Hosts may have several links, be slow to receive, and send PFC. Links
// lose, duplicate, corrupt, reorder, delay, and go down. Direction.Intercept decides the
// fate of packets by what is in them. Package lab has topologies, workloads and statistics.
//
// # Speed
//
// Nothing is allocated once pools and queues have grown. README.md has figures, and the
// commands that measure them.
package simnet
