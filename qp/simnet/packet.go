package simnet

import (
	"encoding/binary"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp/congestion"
)

// Bytes that go with a frame on an Ethernet wire: FCS, preamble, and the least gap
// between frames.
const (
	fcsSize      = 4
	preambleSize = 8
	gapSize      = 12
	minFrame     = 60
)

// noECN is the ECN field of a frame that has none.
const noECN = 0xff

// packet is a frame in the network. Packets are reused. The fields that switches use are
// first, in one cache line.
type packet struct {
	next    *packet // in a list, or free
	at      stamp   // arrival
	size    int32   // bytes on the wire with FCS, without preamble and gap
	dst     int32   // number of the destination host, -1 for all
	ingress int32   // in a switch: the port at which it was received
	prio    uint8
	ecn     uint8
	pause   bool   // a PFC frame, in pfc
	broken  bool   // decoded networks: the receiver's ICRC check would fail
	trimmed bool   // a switch cut it to its headers
	hashed  bool   // hash is known
	told    bool   // tel goes with it
	collect bool   // switches add to tel
	close   bool   // it follows the one before at once, and is long
	late    bool   // it is scheduled by itself: see flyLate
	hash    uint64 // of the five-tuple

	*body
}

// body has the fields that only hosts use. It is allocated apart, so that the fields that
// switches use are in few pages of memory.
type body struct {
	tel congestion.INT
	pfc pfc.Frame
	buf []byte      // bytes: the frame, without FCS; decoded: the payload
	f   frame.Frame // unless the network carries bytes
}

// list is a queue of packets.
type list struct {
	head, tail *packet
}

func (l *list) push(p *packet) {
	p.next = nil
	if l.tail == nil {
		l.head = p
	} else {
		l.tail.next = p
	}
	l.tail = p
}

func (l *list) pop() *packet {
	p := l.head
	if p != nil {
		if l.head = p.next; l.head == nil {
			l.tail = nil
		}
		p.next = nil
	}
	return p
}

// all ranges over the packets, the first first.
func (l *list) all(yield func(p *packet) bool) {
	for p := l.head; p != nil && yield(p); p = p.next {
	}
}

// newPacket returns a packet to be filled.
func (e *engine) newPacket() *packet {
	p := e.free
	if p == nil {
		some, bodies := make([]packet, 64), make([]body, 64)
		for i := range some {
			some[i].body, some[i].next = &bodies[i], e.free
			e.free = &some[i]
		}
		p = e.free
	}
	e.free = p.next
	p.next = nil
	return p
}

// newPause returns a PFC frame to be filled. They have a pool of their own: few are under
// way at a time, and they would otherwise take the place in the cache of packets that
// carry data.
func (e *engine) newPause() *packet {
	p := e.pauses
	if p == nil {
		p = e.newPacket()
	} else {
		e.pauses = p.next
		p.next = nil
	}
	p.pause, p.ecn, p.size = true, noECN, minFrame+fcsSize
	return p
}

func (e *engine) release(p *packet) {
	if p.pause {
		p.broken = false
		p.next = e.pauses
		e.pauses = p
		return
	}
	p.broken, p.trimmed, p.hashed, p.told, p.collect = false, false, false, false, false
	p.next = e.free
	e.free = p
}

// clone returns a copy of p.
func (e *engine) clone(p *packet) *packet {
	var c *packet
	if p.pause {
		c = e.newPause()
	} else {
		c = e.newPacket()
	}
	b, buf := c.body, c.buf
	*c, *b = *p, *p.body
	c.body, c.next = b, nil
	c.buf = append(buf[:0], p.buf...)
	if len(c.buf) != 0 && e.n.carry == Decoded {
		c.f.Packet.Payload = c.buf
	}
	return c
}

// wireSize returns the length on the wire of a frame of n bytes without FCS.
func wireSize(n int) int32 { return int32(max(n, minFrame) + fcsSize) }

// read sets the fields that switches use from the frame: destination, priority, ECN.
func (n *Network) read(p *packet) {
	p.hashed = false
	if n.bytes {
		n.readBytes(p)
		return
	}
	f := &p.f
	p.dst, p.prio, p.ecn = n.hostOf(f.DstMAC), f.TrafficClass>>5, f.TrafficClass&3
	if f.VLANs != 0 {
		p.prio = uint8(f.VLAN[0].TCI >> 13)
	}
}

func (n *Network) readBytes(p *packet) {
	b := p.buf
	p.dst, p.prio, p.ecn = -1, 0, noECN
	if len(b) < 14 {
		return
	}
	p.dst = n.hostOf(frame.MAC(b))
	at, v6, tci := ipOf(b)
	if at != 0 {
		tc := b[at+1]
		if v6 {
			tc = b[at]<<4 | b[at+1]>>4
		}
		p.ecn, p.prio = tc&3, tc>>5
	}
	if tci >= 0 {
		p.prio = uint8(tci >> 13)
	}
}

// ipOf returns the offset of the IP header of an Ethernet frame, 0 for none, whether it has
// the layout of IPv6, as a GRH has, and the control information of the first VLAN tag, -1
// for none.
func ipOf(b []byte) (at int, v6 bool, tci int) {
	typ, at, tags, err := frame.NetworkOffset(frame.Ethernet, b)
	if tci = -1; err != nil {
		return 0, false, tci
	}
	if tags > 0 {
		tci = int(binary.BigEndian.Uint16(b[14:]))
	}
	switch {
	case typ == frame.EtherTypeIPv4 && len(b) >= at+28:
		return at, false, tci
	case (typ == frame.EtherTypeIPv6 || typ == frame.EtherTypeRoCE) && len(b) >= at+48:
		return at, true, tci
	}
	return 0, false, tci
}

// tuple holds the fields of a packet that are hashed.
type tuple struct {
	src, dst     [16]byte
	sport, dport uint16
	protocol     uint8
}

func (n *Network) tuple(p *packet) (t tuple) {
	if !n.bytes {
		f := &p.f
		return tuple{f.Src.As16(), f.Dst.As16(), f.SrcPort, f.DstPort, 17}
	}
	if len(p.buf) < 14 {
		return t
	}
	at, v6, _ := ipOf(p.buf)
	if at == 0 {
		return t
	}
	b := p.buf[at:]
	if v6 {
		t.src, t.dst, t.protocol = [16]byte(b[8:24]), [16]byte(b[24:40]), b[6]
		b = b[40:]
	} else {
		t.src, t.dst, t.protocol = [16]byte{10: 0xff, 11: 0xff}, [16]byte{10: 0xff, 11: 0xff}, b[9]
		copy(t.src[12:], b[12:16])
		copy(t.dst[12:], b[16:20])
		l := int(b[0]&15) * 4
		if l < 20 || len(b) < l+4 {
			return t
		}
		b = b[l:]
	}
	if t.protocol == 17 {
		t.sport, t.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	return t
}

// hash mixes the addresses as IPv6, the ports and the protocol, in words of 64 bits.
func (t *tuple) hash() uint64 {
	x := uint64(0)
	for _, a := range [2]*[16]byte{&t.src, &t.dst} {
		x = finalize(x ^ binary.BigEndian.Uint64(a[:8]))
		x = finalize(x ^ binary.BigEndian.Uint64(a[8:]))
	}
	return finalize(x ^ uint64(t.sport)<<32 ^ uint64(t.dport)<<16 ^ uint64(t.protocol))
}

// finalize is the mix of splitmix64 (Steele, Lea, Flood, 2014): each bit of the result
// depends on every bit of x.
func finalize(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// flowHash returns the hash of the packet's five-tuple.
func (n *Network) flowHash(p *packet) uint64 {
	if !p.hashed {
		t := n.tuple(p)
		p.hash, p.hashed = t.hash(), true
	}
	return p.hash
}

// flowHash is the hash of the five-tuple of a host's last packet, most often that of the
// next one too.
type flowHash struct {
	src, dst     netip.Addr
	sport, dport uint16
	hash         uint64
}

// of sets the hash of a decoded packet.
func (k *flowHash) of(n *Network, p *packet) {
	f := &p.f
	if f.SrcPort != k.sport || f.DstPort != k.dport || f.Dst != k.dst || f.Src != k.src {
		*k = flowHash{f.Src, f.Dst, f.SrcPort, f.DstPort, n.flowHash(p)}
	}
	p.hash, p.hashed = k.hash, true
}

// mark sets congestion experienced. The ICRC does not cover it; the IPv4 header
// checksum does.
func (n *Network) mark(p *packet) {
	p.ecn = 3
	if !n.bytes {
		p.f.TrafficClass |= 3
		return
	}
	at, v6, _ := ipOf(p.buf)
	if v6 {
		p.buf[at+1] |= 0x30
		return
	}
	setTrafficClass(p.buf[at:], p.buf[at+1]|3)
}

// setTrafficClass changes the second byte of an IPv4 header, and the checksum with it
// (RFC 1624: the new sum is ~(~old + ~m + m')).
func setTrafficClass(b []byte, tc uint8) {
	words := [...]byte{^b[10], ^b[11], ^b[0], ^b[1], b[0], tc}
	b[1] = tc
	binary.BigEndian.PutUint16(b[10:], ^frame.OnesSum(0, words[:]))
}

// afterIP returns what follows the IP packet of an Ethernet frame: padding, and telemetry.
func afterIP(b []byte) []byte {
	at, v6, _ := ipOf(b)
	if at == 0 {
		return nil
	}
	end := at + int(binary.BigEndian.Uint16(b[at+2:]))
	if v6 {
		end = at + 40 + int(binary.BigEndian.Uint16(b[at+4:]))
	}
	return b[min(end, len(b)):]
}

// cut removes payload, ICRC and what follows them from a RoCE frame, and sets its DSCP. It
// reports false where there is no payload. The lengths in the headers are set to those of
// the rest.
func (p *packet) cut(dscp uint8) bool {
	f := &p.f
	if f.Decode(frame.Ethernet, p.buf) != nil || len(f.Packet.Payload) == 0 {
		return false
	}
	at, v6, _ := ipOf(p.buf)
	tail := len(f.Packet.Payload) + int(f.Packet.PadCnt) + bth.ICRCSize
	end := len(p.buf) - len(afterIP(p.buf)) - tail
	udp := at + 40
	if v6 {
		binary.BigEndian.PutUint16(p.buf[at+4:], uint16(end-at-40))
		tc := dscp<<2 | p.buf[at+1]>>4&3
		p.buf[at] = p.buf[at]&0xf0 | tc>>4
		p.buf[at+1] = p.buf[at+1]&0xf | tc<<4
	} else {
		udp = at + int(p.buf[at]&15)*4
		b := p.buf[at:]
		binary.BigEndian.PutUint16(b[2:], uint16(end-at))
		b[1] = dscp<<2 | b[1]&3
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^frame.OnesSum(0, b[:udp-at]))
	}
	if f.Net != frame.GRH {
		binary.BigEndian.PutUint16(p.buf[udp+4:], uint16(end-udp))
		p.buf[udp+6], p.buf[udp+7] = 0, 0 // no checksum
	}
	p.buf = p.buf[:end]
	f.Packet.Payload = nil
	return true
}
