package simnet

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
)

// Bytes that go with a frame on an Ethernet wire: FCS, and preamble with the gap
// between frames.
const (
	fcsSize  = 4
	gapSize  = 20
	minFrame = 60
)

// packet is a frame on its way. Packets are used again.
type packet struct {
	f    frame.Frame // unless the network carries bytes
	buf  []byte      // bytes: the frame, without FCS; decoded: the payload
	next *packet     // in flight, in a queue, or free

	at  int64 // arrival
	seq uint64
	id  int32 // place in Network.packets

	size    int32 // bytes on the wire with FCS, without preamble and gap
	ingress int32 // in a switch: the port it came by
	prio    uint8
	pause   bool // a PFC frame, in pfc
	control bool // ARP and the like: bytes that are not RoCE
	broken  bool // decoded networks: the receiver's ICRC check would fail
	pfc     pfc.Frame
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

func (n *Network) newPacket() *packet {
	p := n.free
	if p == nil {
		p = &packet{id: int32(len(n.packets))}
		n.packets = append(n.packets, p)
		return p
	}
	n.free = p.next
	p.next = nil
	return p
}

func (n *Network) release(p *packet) {
	p.pause, p.control, p.broken = false, false, false
	p.next = n.free
	n.free = p
}

// clone returns a copy of p.
func (n *Network) clone(p *packet) *packet {
	c := n.newPacket()
	id, buf := c.id, c.buf
	*c = *p
	c.id, c.next = id, nil
	c.buf = append(buf[:0], p.buf...)
	if n.carry == Decoded {
		c.f.Packet.Payload = c.buf
	}
	return c
}

// decodedSize returns the length of f as a frame, in bytes without FCS.
func decodedSize(f *frame.Frame) int {
	n := 14 + 4*int(f.VLANs) + f.Packet.Size() + len(f.Options)
	switch f.Net {
	case frame.IPv4:
		return n + 20 + 8
	case frame.IPv6:
		return n + 40 + 8
	}
	return n + 40
}

// header is what a switch reads and writes of a frame.
type header struct {
	dst      frame.MAC
	prio     uint8
	ecn      uint8
	hasECN   bool
	tcAt     int // bytes: where the IP header begins, 0 for none
	v6       bool
	src, to  [16]byte
	sport    uint16
	dport    uint16
	protocol uint8
}

// read fills h from p.
func (h *header) read(p *packet, bytes bool) {
	if !bytes {
		f := &p.f
		h.dst, h.ecn, h.hasECN, h.prio = f.DstMAC, f.TrafficClass&3, true, f.TrafficClass>>5
		if f.VLANs != 0 {
			h.prio = uint8(f.VLAN[0].TCI >> 13)
		}
		return
	}
	b := p.buf
	h.dst, h.hasECN, h.tcAt, h.prio = frame.MAC{}, false, 0, 0
	if len(b) < 14 {
		return
	}
	h.dst = frame.MAC(b)
	at, tagged := 12, false
	for range 2 {
		if t := binary.BigEndian.Uint16(b[at:]); t != frame.EtherTypeVLAN && t != frame.EtherTypeQinQ || len(b) < at+6 {
			break
		}
		if !tagged {
			tagged, h.prio = true, b[at+2]>>5
		}
		at += 4
	}
	typ := binary.BigEndian.Uint16(b[at:])
	at += 2
	var tc uint8
	switch {
	case typ == frame.EtherTypeIPv4 && len(b) >= at+28:
		tc, h.v6 = b[at+1], false
	case (typ == frame.EtherTypeIPv6 || typ == frame.EtherTypeRoCE) && len(b) >= at+48:
		tc, h.v6 = b[at]<<4|b[at+1]>>4, true
	default:
		return
	}
	h.tcAt, h.ecn, h.hasECN = at, tc&3, true
	if !tagged {
		h.prio = tc >> 5
	}
}

// tuple fills the five-tuple, after read.
func (h *header) tuple(p *packet, bytes bool) {
	if !bytes {
		f := &p.f
		h.src, h.to = f.Src.As16(), f.Dst.As16()
		h.sport, h.dport, h.protocol = f.SrcPort, f.DstPort, 17
		return
	}
	h.src, h.to, h.sport, h.dport, h.protocol = [16]byte{}, [16]byte{}, 0, 0, 0
	if h.tcAt == 0 {
		return
	}
	b := p.buf[h.tcAt:]
	if h.v6 {
		h.src, h.to, h.protocol = [16]byte(b[8:24]), [16]byte(b[24:40]), b[6]
		b = b[40:]
	} else {
		h.src, h.to, h.protocol = [16]byte{10: 0xff, 11: 0xff}, [16]byte{10: 0xff, 11: 0xff}, b[9]
		copy(h.src[12:], b[12:16])
		copy(h.to[12:], b[16:20])
		if l := int(b[0]&15) * 4; l >= 20 && len(b) >= l+4 {
			b = b[l:]
		} else {
			return
		}
	}
	if h.protocol == 17 {
		h.sport, h.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
}

// mark sets congestion experienced, after read. The ICRC does not cover it; the
// IPv4 header checksum does.
func (h *header) mark(p *packet, bytes bool) {
	if !bytes {
		p.f.TrafficClass |= 3
		return
	}
	b := p.buf[h.tcAt:]
	if h.v6 {
		b[1] |= 0x30
		return
	}
	// RFC 1624: the new sum is ~(~old + ~m + m').
	was := binary.BigEndian.Uint16(b)
	b[1] |= 3
	now := binary.BigEndian.Uint16(b)
	sum := uint32(^binary.BigEndian.Uint16(b[10:])) + uint32(^was) + uint32(now)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}
