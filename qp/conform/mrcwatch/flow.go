package mrcwatch

import (
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// key names a flow: the packets from one address to a QP at another.
type key struct {
	src, dst netip.Addr
	qp       uint32
}

// Counters count the packets of a flow: its requests and their responses.
type Counters struct {
	Packets        uint64 // WRITE packets, retransmissions included
	PayloadBytes   uint64
	GoodBytes      uint64 // not seen before
	Retransmitted  uint64 // retransmissions, with or without the rtx bit
	Copies         uint64 // by the network or the capture
	OutOfOrder     uint64
	Holes          uint64 // PSNs that were never seen, below the highest
	Trimmed        uint64
	CE             uint64 // WRITE packets with congestion experienced
	Messages       uint64 // their last packets
	SACKs          uint64
	SACKVerdicts   [4]uint64 // by m
	NACKs          uint64
	NACKReasons    [256]uint64
	Acks           uint64
	NAKs           uint64
	Probes         uint64
	ProbesAnswered uint64
	First, Last    int64 // nanoseconds since 1970 of the first and the last frame
}

// Path counts the WRITE packets of one entropy value.
type Path struct {
	Entropy       uint32
	Packets       uint64
	CE            uint64 // with congestion experienced, where they were captured
	Retransmitted uint64
	Verdicts      [4]uint64 // SACKs that reflect it, by m
	NACKs         uint64    // that reflect it
}

// Flow is what is known of a flow.
type Flow struct {
	Src, Dst netip.Addr // of the requests
	QP       uint32     // of the responder
	PeerQP   uint32     // of the requestor, where responses were seen; else 0
	*Counters
	// Paths are those in use, in no order; OtherPaths counts packets of more than
	// Config.MaxPaths.
	Paths      []Path
	OtherPaths uint64
}

// flow is the state of one: the requests of a requestor to a QP.
//
// Invariant: sent holds, at next-1 down to next-Window, the packets of these PSNs
// that were seen; start <= next.
type flow struct {
	key
	response key // of the SACKs, once known
	paired   bool
	sent     []packet // ring by unwrapped PSN
	start    uint64   // unwrapped PSN of the first
	next     uint64   // unwrapped: one above the highest seen; 0 before the first
	probes   pending
	paths    []Path
	index    map[uint32]int32 // of paths, by entropy value
	others   uint64
	Counters
}

// packet is one that was sent.
type packet struct {
	seq     uint64 // unwrapped PSN; 0 for none
	frame   uint64
	va      uint64
	rkey    uint32
	dmaLen  uint32
	entropy uint32
	icrc    uint32
	payload int32 // -1: trimmed, unknown
	msn     uint16
	rqmsn   uint16
	op      bth.Opcode
	headers bool // RETH is known
	plain   bool // seen without the rtx bit
}

// Unwrapped PSNs start here, so that they never go below 0, and 0 means none.
const firstRound = 1 << 32

// flowOf returns the flow of the current requests, which it creates if there is none.
func (w *Watcher) flowOf(k key) *flow {
	if f := w.flows[k]; f != nil {
		return f
	}
	if len(w.flows) >= w.cfg.MaxFlows {
		w.close(w.idlest())
	}
	f := &flow{key: k, sent: make([]packet, w.cfg.Window), index: make(map[uint32]int32)}
	f.First = w.now
	w.flows[k] = f
	return f
}

func (w *Watcher) idlest() (idle *flow) {
	for _, f := range w.flows {
		if idle == nil || f.Last < idle.Last || f.Last == idle.Last && f.less(&idle.key) {
			idle = f
		}
	}
	return idle
}

// less orders flows of equal age, so that the same capture gives the same report.
func (k *key) less(o *key) bool {
	if c := k.src.Compare(o.src); c != 0 {
		return c < 0
	}
	if c := k.dst.Compare(o.dst); c != 0 {
		return c < 0
	}
	return k.qp < o.qp
}

// close reports what the end of a flow shows, and removes it.
func (w *Watcher) close(f *flow) {
	w.expireProbes(f, f.Last+int64(w.cfg.AnswerTime)+1)
	for seq := f.oldest(); seq < f.next; seq++ {
		if f.at(seq) == nil {
			f.Holes++
		}
	}
	if w.cfg.Closed != nil {
		view := Flow{Src: f.src, Dst: f.dst, QP: f.qp, Counters: &f.Counters, Paths: f.paths, OtherPaths: f.others}
		if f.paired {
			view.PeerQP = f.response.qp
		}
		w.cfg.Closed(&view)
	}
	if f.paired {
		delete(w.back, f.response)
	}
	delete(w.flows, f.key)
}

// touch records that the flow has a frame.
func (f *flow) touch(now int64) {
	f.Last = max(f.Last, now)
	f.First = min(f.First, now)
}

// oldest returns the lowest PSN that is remembered.
func (f *flow) oldest() uint64 {
	if f.next < f.start+uint64(len(f.sent)) {
		return f.start
	}
	return f.next - uint64(len(f.sent))
}

// at returns the packet that was seen with a PSN, or nil.
func (f *flow) at(seq uint64) *packet {
	if seq == 0 {
		return nil
	}
	if p := &f.sent[seq&uint64(len(f.sent)-1)]; p.seq == seq {
		return p
	}
	return nil
}

// path returns the counts of an entropy value, or nil when there are too many.
func (f *flow) path(ev uint32, limit int) *Path {
	i, ok := f.index[ev]
	if !ok {
		if len(f.paths) >= limit {
			f.others++
			return nil
		}
		i = int32(len(f.paths))
		f.paths = append(f.paths, Path{Entropy: ev})
		f.index[ev] = i
	}
	return &f.paths[i]
}

// seen returns the path of an entropy value that a response reflects, or nil.
func (f *flow) seenPath(ev uint32) *Path {
	if i, ok := f.index[ev]; ok {
		return &f.paths[i]
	}
	return nil
}

// near is how far beyond the PSNs seen a response may be and still belong to a flow.
const near = 1 << 15

// peer returns the flow to whose requests the current response, about PSN p, belongs, or
// nil when that is not known. Where several could be meant, the context ids decide if they
// are the QP numbers of one: nothing says that they must be.
func (w *Watcher) peer(p psn.PSN, spdcid, dpdcid uint16) *flow {
	back := key{w.f.Src, w.f.Dst, w.m.DestQP}
	f := w.back[back]
	if f == nil {
		f = w.candidate(back, p, spdcid, dpdcid)
	}
	if f == nil || !f.near(p) {
		w.unpaired++
		return nil
	}
	if !f.paired {
		f.paired, f.response = true, back
		w.back[back] = f
	}
	f.touch(w.now)
	return f
}

func (w *Watcher) candidate(back key, p psn.PSN, spdcid, dpdcid uint16) *flow {
	var found, named *flow
	several, own := false, uint16(back.qp)
	for _, f := range w.flows {
		if f.src != back.dst || f.dst != back.src || f.paired || !f.near(p) {
			continue
		}
		several = several || found != nil
		found = f
		if qp := uint16(f.qp); spdcid == qp && dpdcid == own || spdcid == own && dpdcid == qp {
			if named != nil {
				return nil
			}
			named = f
		}
	}
	if several {
		return named
	}
	return found
}

// near reports whether p is a PSN that a response to the flow may have.
func (f *flow) near(p psn.PSN) bool {
	if f.next == 0 {
		return f.Probes > 0 // nothing but probes was seen
	}
	u := psn.Unwrap(f.next, p)
	return u+near >= f.start && u < f.next+near
}

// pending remembers requests until they get a response: a ring.
type pending struct {
	ring [64]question
	next int
}

type question struct {
	used     bool
	answered bool
	id       uint16
	src, dst netip.Addr
	frame    uint64
	at       int64
}

// ask records a request, and returns the one that had its place and got no response, or
// nil.
func (p *pending) ask(q question) (lost question, ok bool) {
	place := &p.ring[p.next%len(p.ring)]
	p.next++
	lost, ok = *place, place.used && !place.answered
	*place = q
	place.used = true
	return lost, ok
}

// answer marks the newest request with id from src to dst, and reports whether there is
// one, and whether it had a response before.
func (p *pending) answer(src, dst netip.Addr, id uint16) (found, again bool) {
	for i := range p.ring {
		q := &p.ring[(p.next-1-i+2*len(p.ring))%len(p.ring)]
		if q.used && q.id == id && q.src == src && q.dst == dst {
			again = q.answered
			q.answered = true
			return true, again
		}
	}
	return false, false
}

// expire calls lost with each request that is older than limit and got no response, and
// removes it.
func (p *pending) expire(now, limit int64, lost func(*question)) {
	for i := range p.ring {
		q := &p.ring[(p.next+i)%len(p.ring)]
		if q.used && !q.answered && now-q.at > limit {
			lost(q)
			q.answered = true
		}
	}
}
