package crc

import (
	"encoding/binary"
	"slices"
)

// Size is the length in bytes of an ICRC on the wire.
const Size = 4

// start is the register (reflected, not complemented) after the eight bytes of
// ones that stand for InfiniBand's local route header.
const start = 0xdebb20e3

// A form says where the masked fields are.
type form uint8

const (
	formIPv4    form = iota // IPv4 header without options, UDP, BTH
	formIPv6                // IPv6 header, UDP, BTH
	formGRH                 // GRH, BTH
	formOptions             // IPv4 header longer than 20 bytes, UDP, BTH
)

// minForm is the shortest packet whose bytes show its form: the
// next-header byte of IPv6 is byte 6.
const minForm = 7

// formOf wants minForm bytes.
func formOf(pkt []byte) form {
	switch b := pkt[0]; {
	case b>>4 == 6:
		if pkt[6] == 0x1b {
			return formGRH
		}
		return formIPv6
	case b&0xf > 5:
		return formOptions
	}
	return formIPv4
}

// Sum returns the ICRC of pkt, a network packet that ends just before its ICRC.
// It reads every byte of pkt once and writes none. Any input has a result: fields
// that lie beyond the end of pkt are not masked, an IPv4 header length below 20
// counts as 20.
func Sum(pkt []byte) uint32 {
	return sum(pkt)
}

// Check reports whether pkt, a network packet with its ICRC in the last four
// bytes, carries the right one. Packets shorter than an ICRC do not.
func Check(pkt []byte) bool {
	n := len(pkt) - Size
	return n >= 0 && sum(pkt[:n]) == binary.LittleEndian.Uint32(pkt[n:])
}

// Stored returns the ICRC that stands in the last four bytes of pkt, for reports
// of what was found beside what was expected. It panics if pkt is shorter.
func Stored(pkt []byte) uint32 {
	return binary.LittleEndian.Uint32(pkt[len(pkt)-Size:])
}

// AppendValue appends an ICRC in wire order, least significant byte first.
func AppendValue(dst []byte, icrc uint32) []byte {
	return binary.LittleEndian.AppendUint32(dst, icrc)
}

// Append appends the ICRC of the network packet buf[start:]. It panics if start
// is not in 0..len(buf), and allocates only if buf has no room for four bytes.
func Append(buf []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(buf, sum(buf[start:]))
}

// AppendPayload finishes a packet: buf[start:] is everything before the payload
// (network header, UDP, BTH, extended headers), to which it appends payload, pad
// zero bytes (0..3, the low two bits count) and the ICRC. The payload is read once
// and a long one summed in passing; it must not overlap the free capacity of buf.
// It allocates only if buf has no room.
func AppendPayload(buf []byte, start int, payload []byte, pad int) []byte {
	head := buf[start:]
	n := len(buf) + len(payload)
	pad &= 3
	buf = slices.Grow(buf, len(payload)+pad+Size)[:n+pad+Size]
	binary.LittleEndian.PutUint32(buf[n:], 0) // at least the pad
	if len(payload) < minFused || len(head) < maxMasked && (len(head) < minForm || len(head) < reach(head)) {
		// Short, or masked bytes may lie in what is called payload here.
		copy(buf[n-len(payload):], payload)
		binary.LittleEndian.PutUint32(buf[n+pad:], sum(buf[start:n+pad]))
		return buf
	}
	r := copyUpdate(^sum(head), buf[n-len(payload):n], payload)
	for range pad {
		r = step1(r, 0)
	}
	binary.LittleEndian.PutUint32(buf[n+pad:], ^r)
	return buf
}

// minFused is the payload from which copying and summing at once is faster than
// copying, then summing the whole: the header has a sum of its own then, for which
// the payload's must wait.
const minFused = 1024

// reach returns how far masked bytes reach into pkt, which has at least minForm.
func reach(pkt []byte) int {
	switch formOf(pkt) {
	case formIPv4:
		return 20 + 8 + 5
	case formIPv6:
		return 40 + 8 + 5
	case formGRH:
		return 40 + 5
	}
	return 4*int(pkt[0]&0xf) + 8 + 5
}

// State is a running ICRC: a plain value, so that what many packets have in
// common is hashed once and copied. The zero State is not a start; use [Start].
type State struct{ r uint32 }

// Start returns the state after hdr, the first bytes of a network packet, masked
// as [Sum] masks them. hdr should reach up to the last masked byte, byte 4 of the
// BTH: bytes that are added later are not masked.
func Start(hdr []byte) State { return State{^sum(hdr)} }

// Update returns the state after the further covered bytes p.
func (s State) Update(p []byte) State { return State{update(s.r, p)} }

// Sum returns the ICRC of a packet that ends here.
func (s State) Sum() uint32 { return ^s.r }
