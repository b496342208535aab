// Package simnet is a network in virtual time: hosts with a software RoCE port each, links
// with rate, delay and faults, switches with ECN marking and priority flow control. It is
// for tests and experiments without hardware. The same seed gives the same run, byte for
// byte.
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
// Nothing here reads a clock. Time is int64 nanoseconds from the network's start, shown as
// time.Time at the API; links also keep fractions of 2^-32 ns. The order of events at the
// same time depends only on the events (first the caller's functions, then arrivals by the
// number of the direction, and so on), not on the order in which they were caused. So a
// network may run on several threads (Config.Threads), divided between switches, with the
// same trace.
//
// The cost of a packet does not depend on how many queue pairs are idle: a host has one
// timer, for its port's next deadline, which the port finds in a heap of the queue pairs
// that wait for a time; a link direction has one event for all packets in flight on it. So
// the length of the event queue is about the number of busy links.
//
// # What packets consist of
//
// By default a network carries bytes: frames are encoded with their ICRC, and decoded and
// checked by the receiver. With [Decoded] it carries decoded packets, which is faster, but
// without ARP and malformed frames; a corrupted packet is then dropped where the ICRC check
// would drop it. [Shared] does not even copy payloads at the sender.
//
// A host builds its next packet when its link is free, so that rates, pauses and back
// pressure act on packets that are not yet built. Switches store and forward.
//
// # What can be simulated
//
// Switches divide their buffer by a policy (static, Dynamic, or of the caller's), mark by
// queue length, choose among equal paths by a router (ECMP, Spray, Flowlets, or a
// function), trim, and have a watchdog for pauses. Hosts may have several links, be slow to
// receive, and send PFC. Links lose, duplicate, corrupt, reorder and delay packets, and go
// down. Direction.Intercept decides the fate of packets by their content. Package lab has
// topologies, workloads and statistics.
//
// # Speed
//
// Nothing is allocated once pools and queues have grown. README.md has figures, and the
// commands that measure them.
package simnet
