package softnic

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
)

// Resolving an address: so many questions, so far apart.
const (
	resolveTries = 3
	resolveGap   = 1e9 // nanoseconds
)

// neighborTable holds hardware addresses, and those being asked for.
type neighborTable struct {
	macs   map[netip.Addr]neighbor
	max    int
	asking []question
	due    int64 // when to ask again, 0 for never
	more   bool  // QPs wait for addresses that are not asked for yet

	// strangers are those in macs that nobody here asked for, oldest first.
	strangers []netip.Addr
}

// neighbor is the hardware address of a host.
type neighbor struct {
	mac   frame.MAC
	given bool // by AddNeighbor: never asked for
}

// maxAsking is how many addresses are asked for at once.
const maxAsking = 64

type question struct {
	addr  netip.Addr
	sgid  int
	tag   tag
	tries int
	due   int64
}

func (n *neighborTable) init(size int) {
	n.max = size
	n.macs = make(map[netip.Addr]neighbor)
	n.asking = make([]question, 0, maxAsking)
}

func (n *neighborTable) lookup(a netip.Addr) (frame.MAC, bool) {
	m, ok := n.macs[a]
	return m.mac, ok
}

// tag is a VLAN tag: its TCI and isTag, or 0 for none.
type tag uint32

const isTag tag = 1 << 16

func tagOf(ah *qp.AHAttr) tag {
	if !ah.HasVLAN {
		return 0
	}
	return isTag | tag(ah.VLAN)
}

// append appends t to the Ethernet addresses of a frame.
func (t tag) append(b []byte) []byte {
	if t == 0 {
		return b
	}
	return append(b, frame.EtherTypeVLAN>>8, frame.EtherTypeVLAN&0xff, byte(t>>8), byte(t))
}

// AddNeighbor enters the hardware address of a peer, or changes it. It is never asked
// for, but what the peer says of itself changes it, unless Config.FreezeNeighbors is
// set. AddNeighbor does nothing where the table is full of addresses that were asked
// for: see Config.MaxNeighbors.
func (p *Port) AddNeighbor(a netip.Addr, mac frame.MAC) {
	a = a.Unmap()
	p.learn(a, mac, true)
	if n, ok := p.neighbors.macs[a]; ok {
		p.neighbors.macs[a] = neighbor{mac, true}
		if n.mac != mac {
			p.moved(a, mac)
		}
	}
}

// moved gives connected QPs the new hardware address of their peer.
func (p *Port) moved(a netip.Addr, mac frame.MAC) {
	for _, q := range p.qps {
		if q != nil && q.peer == a && q.ah.MAC == [6]byte{} && q.mac != (frame.MAC{}) && q.m.Type() != qp.UD {
			q.mac = mac
		}
	}
}

// doubt asks again for the hardware address of q's peer, because it does not respond,
// or packets of it come from another one. What was known stays until there is news.
func (p *Port) doubt(q *QP) {
	n, known := p.neighbors.macs[q.peer]
	if !known || n.given || p.cfg.FreezeNeighbors || q.ah.MAC != [6]byte{} || q.m.Type() == qp.UD {
		return
	}
	p.resolve(q.peer, int(q.gid), tagOf(&q.ah))
}

// learn enters an address. A full table takes no strangers: a flood of them must
// not cost known peers their place. They make room for one that was asked for.
func (p *Port) learn(a netip.Addr, mac frame.MAC, wanted bool) {
	n := &p.neighbors
	wanted = wanted || slices.ContainsFunc(n.asking, func(q question) bool { return q.addr == a })
	old, known := n.macs[a]
	if !known {
		if len(n.macs) >= n.max {
			if !wanted || len(n.strangers) == 0 {
				return
			}
			delete(n.macs, n.strangers[0])
			n.strangers = slices.Delete(n.strangers, 0, 1)
		}
		if !wanted {
			n.strangers = append(n.strangers, a)
		}
	} else if wanted {
		if i := slices.Index(n.strangers, a); i >= 0 {
			n.strangers = slices.Delete(n.strangers, i, i+1)
		}
	}
	if known && old.mac != mac {
		if p.cfg.FreezeNeighbors {
			return
		}
		p.counters.NeighborsMoved++
		p.moved(a, mac)
	}
	n.macs[a] = neighbor{mac, old.given}
	for i, q := range n.asking {
		if q.addr == a {
			n.asking = append(n.asking[:i], n.asking[i+1:]...)
			n.rearm()
			p.wake(a, true)
			p.askMore()
			return
		}
	}
	if n.more {
		p.wake(a, true)
	}
}

func (n *neighborTable) rearm() {
	n.due = 0
	for _, q := range n.asking {
		if n.due == 0 || q.due < n.due {
			n.due = q.due
		}
	}
}

// resolve asks for an address, once.
func (p *Port) resolve(a netip.Addr, sgid int, t tag) {
	n := &p.neighbors
	for _, q := range n.asking {
		if q.addr == a {
			return
		}
	}
	q := question{addr: a, sgid: sgid, tag: t, due: p.now + resolveGap}
	if len(n.asking) < cap(n.asking) {
		q.tries = 1
		p.ask(a, sgid, t)
		n.asking = append(n.asking, q)
		n.rearm()
		return
	}
	n.more = true // asked for when another has its answer
}

// askMore asks for addresses that QPs wait for, as far as there is room.
func (p *Port) askMore() {
	n := &p.neighbors
	if !n.more {
		return
	}
	n.more = false
	for _, q := range p.qps {
		if q == nil || !q.unresolved {
			continue
		}
		dst, ah := q.waitsFor()
		if p.resolve(dst, int(ah.SGIDIndex), tagOf(&ah)); n.more {
			return
		}
	}
}

// waitsFor returns the address that q's next packet needs, and the attributes that
// have it.
func (q *QP) waitsFor() (netip.Addr, qp.AHAttr) {
	if h := q.m.NextAH(); h != nil {
		ah := h.Attr()
		return netip.AddrFrom16(ah.GID).Unmap(), ah
	}
	return q.peer, q.ah
}

func (p *Port) resolveAgain(t int64) {
	n := &p.neighbors
	for i := 0; i < len(n.asking); i++ {
		q := &n.asking[i]
		if q.due > t {
			continue
		}
		if q.tries < resolveTries {
			q.tries++
			q.due = t + resolveGap
			p.ask(q.addr, q.sgid, q.tag)
			continue
		}
		a := q.addr
		n.asking = append(n.asking[:i], n.asking[i+1:]...)
		i--
		p.wake(a, false)
	}
	n.rearm()
	p.askMore()
}

// wake tells the QPs that wait for an address that it is known, or that nobody
// answers.
func (p *Port) wake(a netip.Addr, known bool) {
	p.wakeMADs(a, known)
	for _, q := range p.qps {
		if q == nil || !q.unresolved {
			continue
		}
		if dst, _ := q.waitsFor(); dst != a {
			continue
		}
		q.unresolved = false
		if !known {
			p.counters.TxUnresolved++
			s := qp.RetryExcErr
			if q.m.Type() == qp.UD || q.m.Type() == qp.UC {
				s = qp.LocalQPOpErr
			}
			q.m.FailSend(s)
		}
		p.touch(q)
	}
}

// controlRing holds frames of ARP and neighbour discovery to be sent. Those that
// find it full are dropped: they are asked for again.
type controlRing struct {
	frames     [2 * maxAsking][96]byte
	lens       [2 * maxAsking]uint8
	head, tail uint32
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

func (r *controlRing) pop() []byte {
	if r.head == r.tail {
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

// ask sends the question for an address.
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

// handleNeighbor takes an ARP or neighbour discovery frame, and reports whether b
// was one that concerns this port. The answer goes to the VLAN, at its priority,
// that the question came from.
func (p *Port) handleNeighbor(b []byte) bool {
	if len(b) < 14 {
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
	if !p.ownAddr(dst) || p.ownAddr(src) {
		// What a known host tells everybody of itself, as when it has moved.
		if _, known := p.neighbors.macs[src]; known && mac[0]&1 == 0 && !p.ownAddr(src) {
			p.learn(src, mac, false)
			return true
		}
		return false
	}
	if !src.IsUnspecified() && mac[0]&1 == 0 {
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

// handleND takes neighbour solicitations and advertisements (RFC 4861) for this
// port's addresses.
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
		if o[0] == want {
			mac = frame.MAC(o[2:8])
			break
		}
	}
	if m[0] == neighborAdv {
		_, known := p.neighbors.macs[target]
		override := m[4]&0x20 != 0
		if mac != (frame.MAC{}) && mac[0]&1 == 0 && !p.ownAddr(target) && (override || !known) {
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
	} else if mac[0]&1 == 0 {
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
