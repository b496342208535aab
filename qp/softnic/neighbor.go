package softnic

import (
	"net/netip"
	"slices"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
)

// Resolving an address: so many questions, so far apart. An address of which nothing was
// heard for so long is asked for again when it is used.
const (
	resolveTries = 3
	resolveGap   = 1e9 // nanoseconds
	neighborAge  = time.Minute
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
	given bool  // by AddNeighbor: never asked for
	seen  int64 // when it was last heard of
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

// forget takes an address out.
func (n *neighborTable) forget(a netip.Addr) {
	delete(n.macs, a)
	if i := slices.Index(n.strangers, a); i >= 0 {
		n.strangers = slices.Delete(n.strangers, i, i+1)
	}
}

// aged reports whether an address is to be asked for again.
func (p *Port) aged(n neighbor) bool {
	return !n.given && p.cfg.NeighborAge > 0 && !p.cfg.FreezeNeighbors && p.now-n.seen >= int64(p.cfg.NeighborAge)
}

// confirm asks for the hardware address of q's peer where nothing was heard of it for
// long, and sets when to look again. What was known stays until there is news.
func (p *Port) confirm(q *QP) {
	q.macDue = 0
	n, known := p.neighbors.macs[q.peer]
	if p.cfg.NeighborAge <= 0 || p.cfg.FreezeNeighbors || known && n.given || q.ah.MAC != [6]byte{} ||
		p.cfg.PeerMAC != (frame.MAC{}) || p.ownAddr(q.peer) {
		return
	}
	if q.macDue = n.seen + int64(p.cfg.NeighborAge); !known || q.macDue <= p.now {
		q.macDue = p.now + int64(p.cfg.NeighborAge)
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

// AddNeighbor enters the hardware address of a peer, or changes it. It is never asked
// for, but what the peer says of itself changes it, unless Config.FreezeNeighbors is
// set. AddNeighbor does nothing where the table is full of addresses that were asked
// for: see Config.MaxNeighbors.
func (p *Port) AddNeighbor(a netip.Addr, mac frame.MAC) {
	a = a.Unmap()
	p.learn(a, mac, true)
	if n, ok := p.neighbors.macs[a]; ok {
		p.neighbors.macs[a] = neighbor{mac: mac, given: true, seen: p.now}
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
	n := p.neighbors.macs[q.peer]
	if n.given || p.cfg.FreezeNeighbors || q.mac == (frame.MAC{}) || q.ah.MAC != [6]byte{} || q.m.Type() == qp.UD ||
		p.cfg.PeerMAC != (frame.MAC{}) || p.ownAddr(q.peer) || p.now-q.doubted < resolveGap {
		return
	}
	q.doubted = p.now
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
	n.macs[a] = neighbor{mac: mac, given: old.given, seen: p.now}
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
		if !n.macs[a].given {
			n.forget(a) // nobody answers any more
		}
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
