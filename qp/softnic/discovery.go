package softnic

import (
	"encoding/binary"
	"net/netip"

	"github.com/roce-go/roce/bth/frame"
)

// controlRing holds frames of ARP and neighbour discovery to be sent. When it is full,
// further ones are dropped: the hosts retry.
type controlRing struct {
	frames     [2 * maxAsking][96]byte
	lens       [2 * maxAsking]uint8
	head, tail uint32
	last       bool // the frame sent last was from here
}

func (r *controlRing) push() []byte {
	if r.tail-r.head >= uint32(len(r.frames)) {
		return nil
	}
	return r.frames[r.tail%uint32(len(r.frames))][:0]
}

func (r *controlRing) commit(b []byte) {
	r.lens[r.tail%uint32(len(r.frames))] = uint8(len(b))
	r.tail++
}

// pop takes out the oldest frame, or returns nil where there is none, or it is not this
// ring's turn.
func (r *controlRing) pop(turn bool) []byte {
	if r.last = turn && r.head != r.tail; !r.last {
		return nil
	}
	i := r.head % uint32(len(r.frames))
	r.head++
	return r.frames[i][:r.lens[i]]
}

const (
	etherTypeARP  = 0x0806
	icmpv6        = 58
	neighborSol   = 135
	neighborAdv   = 136
	arpRequest    = 1
	arpReply      = 2
	optSourceMAC  = 1
	optTargetMAC  = 2
	advSolicited  = 0x60000000 // solicited, override
	neighborIPLen = 32         // ICMPv6 message with one option
)

var broadcast = frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ask sends an ARP request or a neighbour solicitation for an address.
func (p *Port) ask(a netip.Addr, sgid int, t tag) {
	src := p.gids[sgid].addr
	if a.Is4() && src.Is4() {
		p.arp(t, arpRequest, broadcast, frame.MAC{}, src, a)
		return
	}
	if !a.Is4() && !src.Is4() {
		x := a.As16()
		group := [16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: x[13], 14: x[14], 15: x[15]}
		mac := frame.MAC{0x33, 0x33, 0xff, x[13], x[14], x[15]}
		p.neighborMessage(t, neighborSol, 0, mac, src.As16(), group, x, optSourceMAC)
	}
}

// handleNeighbor handles an ARP or neighbour discovery frame, and reports whether b was one
// that concerns this port. A reply is sent to the VLAN, at the priority, that the request
// came from.
func (p *Port) handleNeighbor(b []byte) bool {
	if len(b) < 14 || b[6]&1 != 0 { // the sender is not a single host
		return false
	}
	h, t := b[12:], tag(0)
	if binary.BigEndian.Uint16(h) == frame.EtherTypeVLAN && len(h) >= 6 {
		t, h = isTag|tag(binary.BigEndian.Uint16(h[2:])), h[4:]
	}
	switch binary.BigEndian.Uint16(h) {
	case etherTypeARP:
		return p.handleARP(t, h[2:])
	case frame.EtherTypeIPv6:
		return p.handleND(t, frame.MAC(b[6:12]), h[2:])
	}
	return false
}

func (p *Port) ownAddr(a netip.Addr) bool {
	for i := range p.gids {
		if p.gids[i].addr == a {
			return true
		}
	}
	return false
}

func (p *Port) handleARP(t tag, h []byte) bool {
	if len(h) < 28 {
		return false
	}
	if binary.BigEndian.Uint64(h)>>16 != 0x000108000604 {
		return false
	}
	mac := frame.MAC(h[8:14])
	src, dst := netip.AddrFrom4([4]byte(h[14:18])), netip.AddrFrom4([4]byte(h[24:28]))
	if mac[0]&1 != 0 || p.ownAddr(src) {
		return false // not the address of a single host: all members of the group would get the reply
	}
	if !p.ownAddr(dst) {
		// A gratuitous ARP of a known host, as it sends when its address has moved.
		_, known := p.neighbors.macs[src]
		if known {
			p.learn(src, mac, false)
		}
		return known
	}
	if !src.IsUnspecified() {
		p.learn(src, mac, false)
	}
	if binary.BigEndian.Uint16(h[6:]) == arpRequest {
		p.arp(t, arpReply, mac, mac, dst, src)
	}
	return true
}

func (p *Port) arp(t tag, op uint16, dstMAC, target frame.MAC, src, dst netip.Addr) {
	b := p.control.push()
	if b == nil {
		return
	}
	s, d := src.As4(), dst.As4()
	b = append(b, dstMAC[:]...)
	b = append(b, p.cfg.MAC[:]...)
	b = t.append(b)
	b = append(b, etherTypeARP>>8, etherTypeARP&0xff, 0, 1, 8, 0, 6, 4, byte(op>>8), byte(op))
	b = append(b, p.cfg.MAC[:]...)
	b = append(b, s[:]...)
	b = append(b, target[:]...)
	b = append(b, d[:]...)
	p.control.commit(b)
}

// handleND handles neighbour solicitations and advertisements (RFC 4861) for this port's
// addresses.
func (p *Port) handleND(t tag, from frame.MAC, b []byte) bool {
	if len(b) < 40+24 {
		return false
	}
	h, m := b[:40], b[40:]
	n := int(binary.BigEndian.Uint16(h[4:]))
	if h[6] != icmpv6 || h[7] != 255 || n < 24 || n > len(m) {
		return false
	}
	m = m[:n]
	if m[0] != neighborSol && m[0] != neighborAdv || m[1] != 0 ||
		icmpv6Checksum([16]byte(h[8:24]), [16]byte(h[24:40]), m) != 0 {
		return false
	}
	src, target := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(m[8:24]))
	want := byte(optSourceMAC)
	if m[0] == neighborAdv {
		want = optTargetMAC
	}
	var mac frame.MAC
	for o := m[24:]; len(o) >= 8 && o[1] != 0 && int(o[1])*8 <= len(o); o = o[int(o[1])*8:] {
		if o[0] == want && o[2]&1 == 0 { // the address of a single host
			mac = frame.MAC(o[2:8])
			break
		}
	}
	if m[0] == neighborAdv {
		_, known := p.neighbors.macs[target]
		override := m[4]&0x20 != 0
		if mac != (frame.MAC{}) && !p.ownAddr(target) && (override || !known) {
			p.learn(target, mac, false)
		}
		return true
	}
	if !p.ownAddr(target) {
		return false
	}
	dst, dstMAC := src.As16(), mac
	flags := uint32(advSolicited)
	if src.IsUnspecified() { // duplicate address detection
		dst, dstMAC, flags = [16]byte{0xff, 0x02, 15: 1}, frame.MAC{0x33, 0x33, 5: 1}, advSolicited&^0x40000000
	} else if mac == (frame.MAC{}) {
		dstMAC = from
	} else {
		p.learn(src, mac, false)
	}
	p.neighborMessage(t, neighborAdv, flags, dstMAC, target.As16(), dst, target.As16(), optTargetMAC)
	return true
}

func (p *Port) neighborMessage(t tag, typ byte, flags uint32, mac frame.MAC, src, dst, target [16]byte, opt byte) {
	b := p.control.push()
	if b == nil {
		return
	}
	b = append(b, mac[:]...)
	b = append(b, p.cfg.MAC[:]...)
	b = t.append(b)
	b = append(b, frame.EtherTypeIPv6>>8, frame.EtherTypeIPv6&0xff)
	b = append(b, 0x60, 0, 0, 0, 0, neighborIPLen, icmpv6, 255)
	b = append(b, src[:]...)
	b = append(b, dst[:]...)
	at := len(b)
	b = append(b, typ, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, flags)
	b = append(b, target[:]...)
	b = append(b, opt, 1)
	b = append(b, p.cfg.MAC[:]...)
	binary.BigEndian.PutUint16(b[at+2:], icmpv6Checksum(src, dst, b[at:]))
	p.control.commit(b)
}

// icmpv6Checksum returns the checksum of message m, which is 0 when m holds the
// right one.
func icmpv6Checksum(src, dst [16]byte, m []byte) uint16 {
	sum := uint16(len(m) + icmpv6) // of the pseudo-header; a message is far shorter than 64 KiB
	sum = frame.OnesSum(sum, src[:])
	sum = frame.OnesSum(sum, dst[:])
	return ^frame.OnesSum(sum, m)
}
