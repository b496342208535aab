package softnic

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
)

// Result is what became of a frame.
type Result uint8

// Results. Each but Delivered and Answered has a counter.
const (
	Delivered    Result = iota // handed to a QP, which counts what became of it
	Answered                   // ARP or neighbour discovery
	NotRoCE                    // another protocol
	Malformed                  // to the RoCE port, but cannot be decoded, or with a wrong IPv4 header checksum
	BadICRC                    // dropped
	WrongAddress               // not for this port, or not from the QP's peer to its GID
	NoQP                       // no such QP
)

var resultNames = [...]string{"delivered", "answered", "not RoCE", "malformed", "bad ICRC", "wrong address", "no QP"}

// String returns the name of r, or its decimal value if it is not a defined reason.
func (r Result) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return strconv.Itoa(int(r))
}

// HandleFrame handles a received Ethernet frame, without FCS. Nothing of b is kept.
func (p *Port) HandleFrame(now time.Time, b []byte) Result {
	r := p.handleFrame(now, b)
	if p.cfg.Trace != nil {
		p.trace(r, &p.rx)
	}
	return r
}

func (p *Port) handleFrame(now time.Time, b []byte) Result {
	p.clock.At(now)
	p.counters.RxFrames++
	f := &p.rx
	if len(b) == 0 {
		p.counters.RxNotRoCE++
		return NotRoCE
	}
	if err := p.finder.Decode(frame.Ethernet, b, len(b), f); err != nil {
		switch {
		case p.handleNeighbor(b):
			return Answered
		case err == frame.ErrNotRoCE, !p.finder.IsRoCE(p.finder.Protocol(frame.Ethernet, b, len(b))):
			p.counters.RxNotRoCE++
			return NotRoCE
		}
		p.counters.RxMalformed++
		return Malformed
	}
	if s := f.CheckIPv4(); s == frame.ChecksumBad || s == frame.ChecksumOffloaded {
		p.counters.RxHeaderChecksum++
		return Malformed
	}
	if f.DstMAC != p.cfg.MAC && f.DstMAC[0]&1 == 0 {
		p.counters.RxWrongAddress++
		return WrongAddress
	}
	if f.CheckICRC() != frame.ICRCGood {
		p.counters.RxICRCEncapsulated++
		return BadICRC
	}
	return p.handle(now, f)
}

// CountReceived counts a frame that was decoded outside the port, before
// HandleDecoded.
func (p *Port) CountReceived() { p.counters.RxFrames++ }

// CountDropped counts a frame that the caller decoded outside the port and dropped as
// NotRoCE, Malformed or BadICRC.
func (p *Port) CountDropped(r Result) {
	p.counters.RxFrames++
	switch r {
	case NotRoCE:
		p.counters.RxNotRoCE++
	case Malformed:
		p.counters.RxMalformed++
	case BadICRC:
		p.counters.RxICRCEncapsulated++
	}
}

// HandleDecoded handles a packet that was decoded and checked already, for a simulated
// network without bytes or a socket that does not show the headers. Nothing of f is kept.
// It does not count RxFrames.
func (p *Port) HandleDecoded(now time.Time, f *frame.Frame) Result {
	p.clock.At(now)
	r := p.handle(now, f)
	if p.cfg.Trace != nil {
		p.trace(r, f)
	}
	return r
}

// handle is HandleDecoded, also for packets that this port sent to itself.
func (p *Port) handle(now time.Time, f *frame.Frame) Result {
	q := p.QP(f.Packet.DestQP)
	toQP := q != nil && p.gids[q.gid].is(f) // as most packets
	if !toQP {
		multicast := f.Packet.DestQP == qp.MulticastQPN && f.Dst.IsMulticast()
		// What the network sends back members on this port have received already.
		if multicast && p.ownAddr(f.Src.Unmap()) || !multicast && !p.owns(f) {
			p.counters.RxWrongAddress++
			return WrongAddress
		}
		if multicast {
			p.counters.RxRoCE++
			r := p.handleMulticast(now, f, nil)
			if r == NoQP {
				p.counters.RxNoQP++
			}
			return r
		}
	}
	p.counters.RxRoCE++
	if q == nil && f.Packet.DestQP == GSIQPN {
		return p.handleGSI(now, f)
	}
	if q == nil || f.Packet.DestQP == 0 {
		p.counters.RxNoQP++
		return NoQP
	}
	datagram := q.m.Type() == qp.UD
	if !datagram && (!toQP || f.Src != q.peer && f.Src.Unmap() != q.peer || q.m.State() < qp.RTR) {
		p.counters.RxWrongAddress++
		return WrongAddress
	}
	if f.Packet.Opcode == bth.CNP {
		// For the rate limiter, not for the QP.
		p.notified(now, q, f)
		p.touch(q)
		return Delivered
	}
	if datagram {
		p.grhOf(f)
	}
	v := q.m.HandlePacket(now, &f.Packet, &p.grh)
	if q.call != nil && !q.call.est && v < qp.Invalid {
		q.call.est = true
		p.gsi.m.CommEst(q.call.ID) // the RTU may be lost (rule CM-6)
	}
	if q.rate != nil && f.Packet.Opcode.Class() == bth.Response {
		p.acked(now, q, f, v)
	}
	if !datagram && f.SrcMAC != q.mac && f.Link == frame.Ethernet && v < qp.Invalid {
		p.doubt(q) // a router may use another one, but so may a forged packet
	}
	if p.cc.in != nil || f.ECN() == frame.CE {
		p.arrived(q, f, v)
	}
	p.touch(q)
	return Delivered
}

// owns reports whether f was sent to one of the port's addresses in the version of RoCE
// that this address is for.
func (p *Port) owns(f *frame.Frame) bool { return p.ownsAddress(f.Net == frame.GRH, f.Dst) }

func (p *Port) ownsAddress(v1 bool, dst netip.Addr) bool {
	for i := range p.gids {
		if p.gids[i].at(v1, dst) {
			return true
		}
	}
	return false
}

// is reports whether f was sent to g.
func (g *gid) is(f *frame.Frame) bool { return g.at(f.Net == frame.GRH, f.Dst) }

func (g *gid) at(v1 bool, dst netip.Addr) bool {
	return g.v1 == v1 && (g.addr == dst || v1 && g.bytes == dst.As16())
}

// handleMulticast hands f to the members of its group, except its sender.
func (p *Port) handleMulticast(now time.Time, f *frame.Frame, from *QP) Result {
	r := NoQP
	p.grhOf(f)
	for i := range p.groups {
		if g := &p.groups[i]; g.addr == f.Dst {
			for _, q := range g.qps {
				if q == from {
					continue
				}
				q.m.HandlePacket(now, &f.Packet, &p.grh)
				p.touch(q)
				r = Delivered
			}
		}
	}
	return r
}

// grhOf builds the 40 bytes that precede a datagram in memory: the GRH or IPv6 header, or
// 20 bytes of zeros and the IPv4 header. Where the network carries no bytes, they are built
// from the frame's fields.
func (p *Port) grhOf(f *frame.Frame) {
	p.grh = [qp.GRHSize]byte{}
	h, at := f.NetPacket, 0
	if len(h) == 0 {
		h = f.AppendNetworkTo(p.network[:0])
	}
	if f.Net == frame.IPv4 {
		at = qp.GRHSize - 20
	}
	copy(p.grh[at:], h)
}

// cnpRing holds the congestion notification packets that are to be sent.
type cnpRing struct {
	cnps             []cnpDue
	cnpHead, cnpTail uint32
}

// cnpDue is a congestion notification packet to be sent. It has no pointers, so that the garbage
// collector does not scan the ring.
type cnpDue struct {
	dst     [16]byte // as IPv6
	mac     frame.MAC
	vlan    uint16
	hasVLAN bool
	gid     uint8
	qpn     uint32
	pkey    uint16
	srcPort uint16
}

// queueCNP queues a CNP to the sender of f.
func (p *Port) queueCNP(q *QP, f *frame.Frame) {
	if p.cnpTail-p.cnpHead >= uint32(len(p.cnps)) {
		p.counters.NpCnpDropped++
		return
	}
	at := q.m.Attr()
	d := cnpDue{dst: f.Src.As16(), mac: f.SrcMAC, gid: q.gid, qpn: at.DestQPN, pkey: at.PKey, srcPort: q.srcPort}
	if q.m.Type() == qp.UD {
		d.qpn = f.Packet.DETH.SrcQP
		d.srcPort = frame.SourcePort(frame.FlowLabel(q.Num(), d.qpn))
		for i := range p.gids {
			if p.gids[i].is(f) {
				d.gid = uint8(i)
			}
		}
	}
	if f.VLANs != 0 {
		d.vlan, d.hasVLAN = f.VLAN[f.VLANs-1].ID(), true
	}
	p.cnps[p.cnpTail%uint32(len(p.cnps))] = d
	p.cnpTail++
}
