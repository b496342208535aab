package softnic

import (
	"net/netip"
	"slices"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
)

// Resolving an address: the number of requests, the time between them, and the age after
// which an address is requested again when it is used.
const (
	resolveTries = 3
	resolveGap   = 1e9 // nanoseconds
	neighborAge  = time.Minute
)

// neighborTable holds hardware addresses, and the requests for others.
type neighborTable struct {
	macs   map[netip.Addr]neighbor
	max    int
	asking []question
	due    int64 // when to send the next request, 0 for never
	more   bool  // QPs wait for addresses that were not requested yet

	// unrequested are the addresses in macs that were learned from a peer's own request,
	// oldest first.
	unrequested []netip.Addr
}

// neighbor is the hardware address of a host.
type neighbor struct {
	mac   frame.MAC
	given bool  // by AddNeighbor: never requested
	seen  int64 // when it was last heard of
}

// maxAsking is how many addresses are requested at the same time.
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

// forget removes an address.
func (n *neighborTable) forget(a netip.Addr) {
	delete(n.macs, a)
	if i := slices.Index(n.unrequested, a); i >= 0 {
		n.unrequested = slices.Delete(n.unrequested, i, i+1)
	}
}

// aged reports whether an address is to be requested again.
func (p *Port) aged(n neighbor) bool {
	return !n.given && p.cfg.NeighborAge > 0 && !p.cfg.FreezeNeighbors && p.now()-n.seen >= int64(p.cfg.NeighborAge)
}

// confirm requests the hardware address of q's peer again where it is too old, and sets
// when to check again. The old address is used until a reply arrives.
func (p *Port) confirm(q *QP) {
	q.macDue = 0
	n, known := p.neighbors.macs[q.peer]
	if p.cfg.NeighborAge <= 0 || p.cfg.FreezeNeighbors || known && n.given || q.ah.MAC != [6]byte{} ||
		p.cfg.PeerMAC != (frame.MAC{}) || p.ownAddr(q.peer) {
		return
	}
	if q.macDue = n.seen + int64(p.cfg.NeighborAge); !known || q.macDue <= p.now() {
		q.macDue = p.now() + int64(p.cfg.NeighborAge)
		p.resolve(q.peer, int(q.gid), tagOf(&q.ah))
	}
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

// AddNeighbor enters the hardware address of a peer, or changes it. The address does not
// age, but the peer's own ARP or neighbour advertisement changes it, unless
// Config.FreezeNeighbors is set. AddNeighbor does nothing where the table is full of
// addresses that this port requested: see Config.MaxNeighbors.
func (p *Port) AddNeighbor(a netip.Addr, mac frame.MAC) {
	a = a.Unmap()
	p.learn(a, mac, true)
	if n, ok := p.neighbors.macs[a]; ok {
		p.neighbors.macs[a] = neighbor{mac: mac, given: true, seen: p.now()}
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

// doubt requests the hardware address of q's peer again, because the peer does not respond,
// or its packets come from another hardware address. The old address is used until a reply
// arrives.
func (p *Port) doubt(q *QP) {
	n := p.neighbors.macs[q.peer]
	if n.given || p.cfg.FreezeNeighbors || q.mac == (frame.MAC{}) || q.ah.MAC != [6]byte{} || q.m.Type() == qp.UD ||
		p.cfg.PeerMAC != (frame.MAC{}) || p.ownAddr(q.peer) || p.now()-q.doubted < resolveGap {
		return
	}
	q.doubted = p.now()
	p.resolve(q.peer, int(q.gid), tagOf(&q.ah))
}

// learn enters an address. A full table accepts no unrequested address: a flood of them
// must not remove known peers. An unrequested one is removed for one that was requested.
func (p *Port) learn(a netip.Addr, mac frame.MAC, wanted bool) {
	n := &p.neighbors
	wanted = wanted || slices.ContainsFunc(n.asking, func(q question) bool { return q.addr == a })
	old, known := n.macs[a]
	if !known {
		if len(n.macs) >= n.max {
			if !wanted || len(n.unrequested) == 0 {
				return
			}
			delete(n.macs, n.unrequested[0])
			n.unrequested = slices.Delete(n.unrequested, 0, 1)
		}
		if !wanted {
			n.unrequested = append(n.unrequested, a)
		}
	} else if wanted {
		if i := slices.Index(n.unrequested, a); i >= 0 {
			n.unrequested = slices.Delete(n.unrequested, i, i+1)
		}
	}
	switch {
	case known && old.mac != mac:
		if p.cfg.FreezeNeighbors {
			return
		}
		p.counters.NeighborsMoved++
		p.moved(a, mac)
	case !known && wanted:
		p.moved(a, mac) // it may have been forgotten
	}
	n.macs[a] = neighbor{mac: mac, given: old.given, seen: p.now()}
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

// resolve sends the first request for an address, unless one is pending.
func (p *Port) resolve(a netip.Addr, sgid int, t tag) {
	n := &p.neighbors
	for _, q := range n.asking {
		if q.addr == a {
			return
		}
	}
	q := question{addr: a, sgid: sgid, tag: t, due: p.now() + resolveGap}
	if len(n.asking) < cap(n.asking) {
		q.tries = 1
		p.ask(a, sgid, t)
		n.asking = append(n.asking, q)
		n.rearm()
		return
	}
	n.more = true // requested when the resolution of another has ended
}

// askMore requests addresses that QPs wait for, as far as there is room.
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

// waitsFor returns the address that q's next packet needs, and the attributes that contain
// it.
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
		if !n.macs[a].given {
			n.forget(a) // no reply to any request
		}
		n.asking = append(n.asking[:i], n.asking[i+1:]...)
		i--
		p.wake(a, false)
	}
	n.rearm()
	p.askMore()
}

// wake continues the QPs that wait for an address: it is known, or no reply came.
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
