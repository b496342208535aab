package main

import "math"

// wire is what a data packet takes on the link besides its payload, in bytes: preamble,
// Ethernet, IPv4, UDP, BTH, ICRC, FCS and the least gap between frames.
const wire = 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12

// turn is how long the sender of a lost packet goes on before it goes back: the next
// packet shows the loss, and the NAK, 62 bytes and what frames take, comes back.
func turn(packet float64) float64 {
	return packet + 2*float64(delay) + (62+24)*8/(rate/1e9)
}

// model returns the goodput that a sender without end of messages over a link has, in
// Gb/s: c says how it repeats, p is the chance of a packet to be lost, either way.
//
// Go-back-N: a lost packet costs a turn, for all that was sent meanwhile is sent again.
// Where the NAK or the packet sent again is lost as well, nobody asks a second time
// (rule RS-03): the sender waits for its timeout, as often as the packet is lost. The
// timer starts with the next packet that asks for an acknowledgement: the 64th, or the
// last of a message.
//
// Selective repeat: a lost packet costs a packet, and so does one that arrives behind a
// gap, which stays open for a turn, and whose NAK is lost.
func (c *curve) model(p float64) float64 {
	n := float64((c.size + c.mtu - 1) / c.mtu) // packets of a message
	bytes := float64(c.size) / n
	packet := (bytes + wire) * 8 / (rate / 1e9) // ns
	if c.selective {
		behind := 1 - math.Pow(1-p, turn(packet)/packet)
		return bytes * 8 / (packet * (1/(1-p) + p*behind))
	}
	asks := 0.0
	for i := 1.0; i <= n; i++ {
		asks += min(i, 64) / n
	}
	wait := 4096*math.Exp2(float64(c.timeout)) + asks*packet
	fails := 1 - (1-p)*(1-p)
	return bytes * 8 / (packet + p*(turn(packet)+fails/(1-p)*wait))
}
