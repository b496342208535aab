package conform

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// A packet may be captured several times: by two mirror ports, by taps at two places, or
// because the network made a copy. sighting is a packet that was seen recently; a second
// one of the same bytes is folded into it and not judged again.
//
// One that is seen at another place (another time to live, Ethernet address or tag) is the
// same packet, because a retransmission passes the first place again. At the same place, an
// IPv4 identification that the sender varies distinguishes copies, which have the same,
// from retransmissions. Without it, the exchange decides: see isRepeat.
type sighting struct { // half of a line of the processor's cache
	sum   uint64 // this, icrc and ext are its identity; 0: none
	at    int64
	icrc  uint32
	place uint32
	flow  int32
	ext   uint16
	hops  uint8
	flags sightFlags
}

type sightFlags uint8

const (
	isAway  sightFlags = 1 << iota // not seen yet at the place where the flow is judged
	isTwice                        // the copy at the distance of spacing was seen
)

// identity is the part of a packet that is the same at every place. What a capture has cut
// off, perhaps at one place only, is 0.
type identity struct {
	sum  uint64 // of addresses, IPv4 identification, BTH and length: see setBits
	icrc uint32 // covers the payload, too
	ext  uint16 // a sum of the extended headers
}

// is reports whether e is of the same identity, down to what was cut off.
func (e *sighting) is(id *identity) bool {
	return e.sum == id.sum && e.icrc == id.icrc && e.ext == id.ext
}

// may reports whether e may be a sighting of the packet that id is of.
func (e *sighting) may(id *identity) bool {
	return e.sum == id.sum && (e.icrc == id.icrc || e.icrc == 0 || id.icrc == 0) && (e.ext == id.ext || e.ext == 0 || id.ext == 0)
}

// sightings are the newest packets, in a ring, so that they are written in the order of
// memory. An index finds them by their sum: sets of four numbers, of which the oldest is
// replaced. Where copies arrive so late that few would still be found, both grow.
type sightings struct {
	ring  []sighting
	index [][setSize]place32
	n     uint32 // how many there were; the next is at ring[n%len(ring)]
}

// place32 is the number of a sighting, modulo 1<<turnBits, and above it a part of its
// sum, so that the ring is not read for a packet that is new. 0 is none.
type place32 uint32

const (
	firstRing = 1 << 14
	maxRing   = 1 << 17
	setSize   = 4
	turnBits  = 18 // a number is not reused before its packet has left the ring
	turnMask  = 1<<turnBits - 1
)

func newSightings(n int) sightings {
	return sightings{ring: make([]sighting, n), index: make([][setSize]place32, n/2)}
}

func tagOf(sum uint64) place32 { return (place32(sum>>40) | 1) << turnBits }

// setBits is how many low bits of a sum say where in the index it is. They rise with the
// PSN, so that the sets of a flow's packets lie beside each other in memory, and with the
// IPv4 identification, so that packets with one PSN do not share a set.
const setBits = 24

func (t *sightings) set(sum uint64) *[setSize]place32 { return &t.index[int(sum)&(len(t.index)-1)] }

// setOf returns the set of the index for sum. Loading it is slow: a caller with other work
// does that between setOf and find.
func (t *sightings) setOf(sum uint64) [setSize]place32 { return *t.set(sum) }

// find returns the newest sighting that may be of id, and how many were put since, or nil;
// set is setOf(id.sum).
func (t *sightings) find(id *identity, set *[setSize]place32) (found *sighting, since int) {
	tag := tagOf(id.sum)
	for _, p := range set {
		if p&^turnMask == tag {
			e, n := &t.ring[int(p)&(len(t.ring)-1)], int((t.n-uint32(p))&turnMask)
			if e.may(id) && (found == nil || n < since) {
				found, since = e, n
			}
		}
	}
	return found, since
}

// way returns which place of its set the next of id takes: that of what was seen of it
// before, or a free one, or that of the oldest.
func (t *sightings) way(g *[setSize]place32, id *identity) int {
	tag := tagOf(id.sum)
	way, most := 0, uint32(0)
	for i, p := range g {
		if p == 0 || p&^turnMask == tag && t.ring[int(p)&(len(t.ring)-1)].is(id) {
			return i
		}
		if age := (t.n - uint32(p)) & turnMask; age > most {
			way, most = i, age
		}
	}
	return way
}

// displaced returns the sighting that can no longer be found when the next is of id; nil:
// none.
func (t *sightings) displaced(id *identity) *sighting {
	g := t.set(id.sum)
	p := g[t.way(g, id)]
	if p == 0 {
		p = place32(t.n)
	}
	e := &t.ring[int(p)&(len(t.ring)-1)]
	if e.sum == 0 {
		return nil
	}
	return e
}

// put stores e as the newest.
func (t *sightings) put(e sighting) {
	g := t.set(e.sum)
	g[t.way(g, &identity{e.sum, e.icrc, e.ext})] = tagOf(e.sum) | place32(t.n&turnMask)
	t.ring[int(t.n)&(len(t.ring)-1)] = e
	t.n++
}

// grow makes room for twice as many, up to a limit.
func (t *sightings) grow() {
	if len(t.ring) == maxRing {
		return
	}
	old := *t
	*t = newSightings(2 * len(old.ring))
	for i := range old.ring {
		if e := &old.ring[(int(old.n)+i)&(len(old.ring)-1)]; e.sum != 0 {
			set := old.setOf(e.sum)
			if newest, _ := old.find(&identity{e.sum, e.icrc, e.ext}, &set); newest == e {
				t.put(*e)
			}
		}
	}
}

// maxFold is how long a packet may take from one place to another. A table of more than
// that would be too large.
const maxFold = int64(1e9)

// identity returns that of the current packet.
func (c *current) identity() (id identity) {
	f := &c.f
	p := &f.Packet
	var ends uint64
	n := f.NetPacket
	switch {
	case f.Net == frame.IPv4 && len(n) >= 20:
		ends = binary.BigEndian.Uint64(n[12:])
	case len(n) >= 40:
		ends = binary.BigEndian.Uint64(n[16:]) ^ binary.BigEndian.Uint64(n[32:])*3
	}
	flow := (ends ^ uint64(p.DestQP)<<32) * 0xd6e8feb86659fd93
	h := flow ^ uint64(p.Opcode)<<56 ^ uint64(p.PSN)
	h ^= (uint64(f.ID)<<48 ^ uint64(f.TransportLen)<<8) * 0x9e3779b97f4a7c15
	h *= 0xd6e8feb86659fd93
	id.sum = (h|1<<63)&^(1<<setBits-1) | (flow>>40+uint64(p.PSN)+uint64(f.ID))&(1<<setBits-1)
	if !c.full {
		return id
	}
	x := (uint64(p.AETH.Syndrome)<<40 ^ uint64(p.AETH.MSN) ^ p.RETH.VA ^ uint64(p.RETH.DMALen)<<20 ^ p.AtomicETH.VA) * 0x9e3779b97f4a7c15
	id.ext = uint16(x>>48) | 1
	if !f.Truncated() {
		id.icrc = p.ICRC
	}
	return id
}

// placeOf returns a number for the place where the current packet was seen.
func (c *current) placeOf() uint32 {
	f := &c.f
	h := uint64(f.HopLimit)
	h = h*0x100000001b3 ^ (uint64(f.SrcMAC[0])<<40 | uint64(f.SrcMAC[1])<<32 | uint64(binary.BigEndian.Uint32(f.SrcMAC[2:])))
	h = h*0x100000001b3 ^ (uint64(f.DstMAC[0])<<40 | uint64(f.DstMAC[1])<<32 | uint64(binary.BigEndian.Uint32(f.DstMAC[2:])))
	h = h*0x100000001b3 ^ uint64(c.source)<<40 ^ uint64(f.VLANs)
	if f.VLANs > 0 {
		h ^= uint64(f.VLAN[0].TCI)<<16 ^ uint64(f.VLAN[f.VLANs-1].TCI)<<32
	}
	for i := range f.Outer.Len() {
		// A mirror port is one place, whatever switches the copy passes after it.
		t := f.Outer.Tunnel(i)
		src := t.Src.As16()
		h = (h^uint64(t.Kind)<<56^uint64(t.ID))*0x100000001b3 ^ binary.BigEndian.Uint64(src[8:])
	}
	return uint32(h>>32) ^ uint32(h)
}

// place is where a flow's packets are seen and judged.
type place struct {
	known bool
	id    uint32
	hops  uint8  // time to live
	away  uint8  // packets in a row that were seen at another place first
	apart uint32 // packets that were seen at another place, too
	// The IPv4 identification: whether it distinguishes packets.
	lastID uint16
	same   uint8 // packets in a row with the same one
	varies bool
	// The identification began again at 0 from a small one: the sender's kernel cuts
	// datagrams into packets and numbers those of each from 0 (UDP_SEGMENT of Linux, at
	// most 128), so that a retransmission has the same identification as the original.
	restarts bool
	gap      spacing // of copies
	repeats  spacing // of all packets that were the same as one before, whatever they count as
}

// spacing learns the distance in time of copies that are the same in every bit. Two merged
// captures have a copy of most packets, at a fixed distance; retransmissions may be at a
// fixed distance too, but only of few packets.
type spacing struct {
	d     int64
	hits  uint16 // copies at about that distance
	fresh uint16 // packets since
}

// near reports whether d is about that distance, where times are multiples of grain.
func (g *spacing) near(d, grain int64) bool {
	tol := g.d/4 + 50 + min(grain, 1000)
	return d-g.d <= tol && g.d-d <= tol
}

func (g *spacing) learn(d, grain int64) {
	switch {
	case g.hits > 0 && g.near(d, grain):
		g.d += (d - g.d) / 8
		g.hits++
	case g.hits > 4:
		g.hits -= 2
	default:
		g.d, g.hits, g.fresh = d, 1, 0
	}
}

// pass counts a packet that is no copy.
func (g *spacing) pass() {
	if g.fresh++; g.fresh >= 512 {
		g.fresh /= 2
		g.hits /= 2
	}
}

func (g *spacing) firm() bool { return g.hits >= 6 && 2*g.hits >= g.fresh }

// spaced reports whether the current packet, of flow s, is at the distance of copies from
// the same packet before.
func (w *Watcher) spaced(s *stream) bool {
	g := &s.place.gap
	return w.repeat >= 0 && g.hits > 0 && g.near(w.repeat, w.clock.grain)
}

// twice reports whether the packet of which the current one, of flow s, may be a copy was
// captured twice, as the requests of the other direction were, rather than sent twice by
// the responder.
func (w *Watcher) twice(s *stream) bool {
	if w.repeat < 0 || s.peer < 0 {
		return false
	}
	g := &w.flows.all[s.peer].place.gap
	return g.hits > 0 && 2*g.hits >= g.fresh && g.near(w.repeat, w.clock.grain)
}

// crossed reports whether the times of s and of its other direction do not compare: packets
// were seen at two places, but not most of both directions at both, so that those of one
// may have been seen nearer to their receiver alone. A stray copy in a hundred packets is no
// second place.
func (w *Watcher) crossed(s *stream) bool {
	t := s.peerOr(w)
	a, b := uint64(s.place.apart), uint64(t.place.apart)
	return 100*(a+b) > s.Frames+t.Frames && (4*a < s.Frames || 4*b < t.Frames)
}

// allTwice reports whether packets of the other direction of s are seen again at the
// distance in time that the current packet has from one that was the same.
func (w *Watcher) allTwice(s *stream) bool {
	if w.repeat < 0 || s.peer < 0 {
		return false
	}
	g := &w.flows.all[s.peer].place.repeats
	return g.hits >= often && g.near(w.repeat, w.clock.grain)
}

// tells reports whether the IPv4 identification distinguishes packets.
func (p *place) tells(f *frame.Frame) bool {
	return f.Net == frame.IPv4 && !p.restarts && (p.varies || f.ID != 0 && p.same < 2)
}

// fold searches for an earlier sighting of the current packet, of flow s: id is its
// identity, set that of the index. Where the packet is certainly a copy, fold returns the
// flow of the original, else nil. w.repeat is set to how long ago it was seen, also where
// it only may be a copy; -1 when it was not seen.
func (w *Watcher) fold(s *stream, id *identity, set *[setSize]place32) *stream {
	w.repeat, w.told = -1, true
	f := &w.f
	p := &s.place
	here := w.placeOf()
	w.beside = p.known && here != p.id
	e, late := w.copies.find(id, set)
	known := e != nil && w.now-e.at < maxFold && w.now-e.at > -maxFold
	if !p.known {
		p.known, p.id, p.hops = true, here, f.HopLimit
	}
	if known && e.flow != s.id {
		// The same in another VLAN or tunnel: a router has forwarded it, or it has no tag
		// at one of the places. Else it is another network with the same addresses, or the
		// flow was closed, and another one has its number.
		t := w.flows.all[e.flow]
		if t.qp == s.qp && t.src == s.src && t.dst == s.dst && (e.hops != f.HopLimit || s.net == 0 || t.net == 0) {
			w.repeat = max(0, w.now-e.at)
			return t
		}
		known = false
	}
	if known && (here != p.id || e.flags&isAway != 0) {
		// Two places. It is judged at the one nearest to the sender.
		if here == p.id {
			e.flags &^= isAway
			e.place = here
		} else if f.HopLimit > p.hops {
			p.id, p.hops = here, f.HopLimit
			e.flags &^= isAway
			e.place = here
		}
		p.away = 0
		p.apart++
		w.repeat = max(0, w.now-e.at)
		if late >= len(w.copies.ring)/8 && w.now >= e.at {
			w.copies.grow()
		}
		return s
	}
	if known && p.tells(f) {
		w.repeat = max(0, w.now-e.at)
		return s
	}
	w.told = false
	if known {
		w.repeat = max(0, w.now-e.at)
		p.repeats.learn(w.repeat, w.clock.grain)
		if p.gap.firm() && p.gap.near(w.repeat, w.clock.grain) && e.flags&isTwice == 0 {
			e.flags |= isTwice // one more is a retransmission
			return s
		}
	}
	if !known {
		if f.Net == frame.IPv4 {
			if f.ID == 0 && p.lastID != 0 && p.lastID < 128 {
				p.restarts = true
			}
			if f.ID != p.lastID {
				p.varies = p.varies || p.lastID != 0
				p.same = 0
			} else if p.same < 255 {
				p.same++
			}
			p.lastID = f.ID
		}
		if here != p.id {
			if old := w.copies.displaced(id); p.away >= 4 && old != nil && old.at <= w.now && w.now-old.at < maxFold {
				// The sighting that is replaced is recent: these may be copies of replaced
				// ones.
				w.copies.grow()
			}
			if p.away++; p.away > 16 {
				p.id, p.hops, p.away = here, f.HopLimit, 0
			}
		} else {
			p.away = 0
		}
	}
	p.gap.pass()
	now := sighting{sum: id.sum, icrc: id.icrc, ext: id.ext, at: w.now, place: here, flow: s.id, hops: f.HopLimit}
	if here != p.id {
		now.flags = isAway
	}
	w.copies.put(now)
	return nil
}

// nearer notes that a response with PSN p is seen again at another place, which may be
// the one nearer to the requester: what that sent before did not know of it.
func (x *exchange) nearer(p psn.PSN, frame uint64) {
	u := psn.Unwrap(x.next, p)
	k := &x.nak
	for _, r := range [...]*refusal{&k.open, &k.old, &k.way[0], &k.way[1], &k.way[2], &k.way[3], &x.implied} {
		if r.valid && r.by == u {
			r.frame = frame
		}
	}
}

// copied counts the current packet as a copy.
func (w *Watcher) copied(s *stream) {
	s.Duplicates++
	w.seen.Class = ClassCopy
	if s.req != nil && w.f.Packet.Opcode.Class() == bth.Request && !w.beside {
		s.req.owed++
		if answered(w.f.Packet.Opcode) {
			if d := s.req.read(psn.Unwrap(s.req.next, w.f.Packet.PSN)); d != nil {
				d.flags |= isAgain
			}
		}
	}
	p := &w.f.Packet
	if s.req != nil && !w.told && p.Opcode.Class() == bth.Request {
		// It may be the retransmission that a NAK asked for.
		if k := &s.req.nak; k.last.valid && k.last.psn == psn.Unwrap(s.req.next, p.PSN) {
			k.resent = true
		}
	}
	switch {
	case !w.told:
		s.place.gap.learn(w.repeat, w.clock.grain)
		w.leave(ResentUnknown, ReasonCopies, 1)
	case p.Opcode.Class() == bth.Response && s.peer >= 0 && w.flows.all[s.peer].req != nil:
		w.flows.all[s.peer].req.nearer(p.PSN, w.frames)
	}
	switch {
	case p.Opcode == bth.CNP:
		w.report(s, DuplicateCNP, uint64(max(0, w.repeat)), 0, 0)
	case p.Opcode.Class() == bth.Response:
		w.report(s, DuplicateResponse, 0, 0, s.rsp.lastFrame)
	default:
		w.report(s, DuplicateRequest, uint64(max(0, w.repeat)), 0, 0)
	}
}
