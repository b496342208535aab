package softnic

import (
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
)

// NextFrame appends the next frame to send to dst, or reports false when there is
// none now. The frame has no FCS, and may be shorter than Ethernet's 60 bytes.
func (p *Port) NextFrame(now time.Time, dst []byte) ([]byte, bool) {
	p.clock.At(now)
	p.cc.out.Mode = congestion.INTNone
	// Frames of ARP or neighbour discovery and of queue pairs alternate: a flood of
	// requests does not keep queue pairs from sending.
	if b := p.control.pop(!p.control.last); b != nil {
		p.counters.TxFrames++
		return append(dst, b...), true
	}
	if !p.next(now, &p.tx) {
		// A QP may have requested an address.
		if b := p.control.pop(true); b != nil {
			p.counters.TxFrames++
			return append(dst, b...), true
		}
		return dst, false
	}
	return p.tx.AppendTo(dst), true
}

// NextDecoded is NextFrame for a network that carries no bytes: it sets all fields of f
// except those of frame.Decoded. The payload aliases the memory that it comes from; it is
// valid until the next call. ARP and neighbour discovery are left out: see AddNeighbor.
func (p *Port) NextDecoded(now time.Time, f *frame.Frame) bool {
	p.clock.At(now)
	p.cc.out.Mode = congestion.INTNone
	return p.next(now, f)
}

func (p *Port) next(now time.Time, f *frame.Frame) bool {
	if p.cnpHead != p.cnpTail {
		if d := p.nextCNP(); d != nil {
			p.buildCNP(d, f)
			p.cnpHead++
			p.counters.NpCnpSent++
			p.counters.TxFrames++
			return true
		}
	}
	for p.gsi.used && p.loop.due == 0 && p.nextGSI(f) {
		if !p.looped(now, f, nil) {
			p.counters.TxFrames++
			return true
		}
	}
	for p.loop.due == 0 {
		q := p.ready.next()
		if q == nil {
			return false
		}
		prio := q.readyPrio
		if q.port == nil || q.unresolved || !p.nextOf(now, q, f) {
			if q.readyPrio == prio { // else it waits with its other kind of packets
				p.ready.remove(q)
			}
			continue
		}
		if l := q.rate; l != nil && l.flow.Rate() != 0 && !l.pacer.Ready(now) && q.m.Pending(qp.PendingResponse|qp.PendingAck) == 0 {
			p.park(now, q, true) // rather than find that out at the next call
			p.ready.remove(q)
		} else {
			p.ready.rotate(q, p.priorityOf(q)) // at the end: the other QPs come first
		}
		if (q.toSelf || q.m.Type() == qp.UD) && p.looped(now, f, q) {
			continue
		}
		p.counters.TxFrames++
		return true
	}
	return false
}

// loopback limits how many packets the port sends to itself without a pause.
type loopback struct {
	n   int
	due int64 // end of the pause
}

const maxLooped = 256

// looped handles f where it is for this port itself, and reports whether it is not to be
// sent to the network. Members of a multicast group on this port, except the sender q,
// receive the packet too.
func (p *Port) looped(now time.Time, f *frame.Frame, q *QP) bool {
	if q != nil && f.Packet.DestQP == qp.MulticastQPN && f.Dst.IsMulticast() {
		p.handleMulticast(now, f, q)
		return false
	}
	if !p.owns(f) {
		return false
	}
	p.counters.Looped++
	p.handle(now, f)
	if p.loop.n++; p.loop.n == maxLooped {
		p.loop.due = p.now() + 1 // others have their turn
	}
	return true
}

// Idle reports whether NextFrame has nothing to send, and so would report false until
// another call changes the port.
func (p *Port) Idle() bool {
	return p.ready.filled&^p.ready.paused == 0 && p.cnpHead == p.cnpTail && p.control.head == p.control.tail && p.gsi.idle()
}

// nextOf builds the next packet of q.
func (p *Port) nextOf(now time.Time, q *QP, f *frame.Frame) bool {
	// Checked first: a packet that was built must not be lost because its address is not
	// known.
	if q.m.Type() == qp.UD || q.mac == (frame.MAC{}) {
		if q.m.Pending(qp.PendingPacket) == 0 {
			q.paced = 0
			p.touchTimes(q)
			return false
		}
		if !p.resolved(q) {
			return false
		}
	} else if q.macDue != 0 && p.now() >= q.macDue {
		p.confirm(q)
	}
	of, waits, before := qp.PendingPacket, false, uint64(0)
	if q.rate != nil {
		of, waits = p.allowed(now, q)
		_, before = q.m.Flight()
	}
	ack := false
	if p.cfg.Ack != nil && q.m.Type() != qp.UD {
		if ack = q.readyPrio != q.prio; ack {
			of &= qp.PendingAck
		} else if p.ackPriority(q) != q.prio {
			of &^= qp.PendingAck
		}
	}
	q.paced = 0
	if !q.m.NextPacketOf(now, of, &p.out) {
		if p.touchTimes(q); q.rate != nil && of != qp.PendingPacket && !ack {
			p.park(now, q, waits)
		}
		if p.cfg.Ack != nil {
			p.otherPriority(q, ack)
		}
		return false
	}
	p.address(q, f)
	f.Packet = p.out.Packet
	if a := p.cfg.Ack; a != nil && f.Packet.Opcode.Operation() == bth.Acknowledge {
		f.TrafficClass = f.TrafficClass&3 | a.DSCP<<2
		if f.VLANs != 0 {
			f.VLAN[0].TCI = f.VLAN[0].TCI&0x1fff | uint16(a.Priority)<<13
		}
	}
	if q.rate != nil {
		p.sent(now, q, f, before)
	}
	if p.ready.strict>>(q.readyPrio&7)&1 == 0 {
		p.ready.deficit[q.readyPrio] -= f.Size() + fcsSize
	}
	if t := q.m.Type(); t == qp.UD || t == qp.UC || q.m.State() != qp.RTS {
		p.touchTimes(q)
	} else {
		p.reschedule(q) // acknowledgements complete what was sent, not sending
	}
	return true
}

// touchTimes updates the completion, event and timer queues after a packet was
// sent; it does not mark q ready.
func (p *Port) touchTimes(q *QP) {
	p.collect(q, qp.PendingSendCompletion|qp.PendingEvent)
}

// address sets the addresses of f: the peer of q, or the destination of the datagram in
// p.out.
func (p *Port) address(q *QP, f *frame.Frame) {
	ah, peer, mac, sport := &q.ah, q.peer, q.mac, q.srcPort
	if p.out.AH != nil {
		a := p.out.AH.Attr()
		ah = &a
		peer = netip.AddrFrom16(ah.GID).Unmap()
		fl := ah.FlowLabel
		if fl == 0 {
			fl = frame.FlowLabel(q.Num(), p.out.Packet.DestQP)
		}
		sport = frame.SourcePort(fl)
		mac, _ = p.macOf(ah, peer)
	}
	tc := ah.TrafficClass
	if p.cfg.ECT && tc&3 == 0 {
		tc |= uint8(frame.ECT0)
	}
	p.head(f, int(ah.SGIDIndex), peer, mac, sport, tc, ah.HopLimit, ah.FlowLabel)
	if ah.HasVLAN {
		f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: ah.VLAN}
	}
}

const (
	defaultHopLimit = 64
	fcsSize         = 4
)

func (p *Port) head(f *frame.Frame, sgid int, dst netip.Addr, mac frame.MAC, sport uint16, tc, hops uint8, flow uint32) {
	g := &p.gids[sgid]
	f.Link = frame.Ethernet
	f.DstMAC, f.SrcMAC = mac, p.cfg.MAC
	f.VLANs = 0
	f.Src, f.Dst = g.addr, dst
	if hops == 0 {
		hops = defaultHopLimit
	}
	f.TrafficClass, f.HopLimit, f.FlowLabel = tc, hops, flow
	f.ID, f.ReservedFlag, f.Options = 0, false, nil
	f.SrcPort, f.DstPort, f.UDPChecksum = sport, p.cfg.UDPPort, 0
	f.NetPacket, f.Transport, f.Trailer, f.TransportLen = nil, nil, nil, 0
	f.DF = false
	switch {
	case g.v1:
		f.Net = frame.GRH
		f.Src, f.Dst = netip.AddrFrom16(g.bytes), netip.AddrFrom16(dst.As16())
	case g.addr.Is4():
		f.Net, f.DF = frame.IPv4, true
	default:
		f.Net = frame.IPv6
	}
}

func (p *Port) buildCNP(d *cnpDue, f *frame.Frame) {
	mark := p.cc.cnp
	p.head(f, int(d.gid), netip.AddrFrom16(d.dst).Unmap(), d.mac, d.srcPort, mark.DSCP<<2, 0, 0)
	if d.hasVLAN {
		f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: uint16(mark.Priority)<<13 | d.vlan}
	}
	f.Packet = bth.Packet{Header: cnp.New(d.qpn, d.pkey).BTH, Payload: cnpReserved[:]}
}

var cnpReserved [bth.CNPReserved]byte

// macOf returns the hardware address of dst: the handle's, that of a multicast
// group, or what the table has.
func (p *Port) macOf(ah *qp.AHAttr, dst netip.Addr) (frame.MAC, bool) {
	switch {
	case ah.MAC != [6]byte{}:
		return ah.MAC, true
	case dst.Is4() && dst.IsMulticast():
		a := dst.As4()
		return frame.MAC{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}, true
	case dst.IsMulticast():
		a := dst.As16()
		return frame.MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}, true
	case p.ownAddr(dst):
		return p.cfg.MAC, true
	case p.cfg.PeerMAC != frame.MAC{}:
		return p.cfg.PeerMAC, true
	}
	n, ok := p.neighbors.macs[dst]
	if ok && p.aged(n) {
		p.resolve(dst, int(ah.SGIDIndex), tagOf(ah))
	}
	return n.mac, ok
}

// resolved reports whether the hardware address of q's next packet is known, and requests
// it if not.
func (p *Port) resolved(q *QP) bool {
	dst, ah := q.waitsFor()
	mac, ok := p.macOf(&ah, dst)
	if ok {
		if q.m.Type() != qp.UD {
			q.mac = mac
			p.confirm(q)
		}
		return true
	}
	q.unresolved = true
	p.resolve(dst, int(ah.SGIDIndex), tagOf(&ah))
	return false
}
