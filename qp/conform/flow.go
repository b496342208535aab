package conform

import (
	"hash/maphash"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// key names a flow: the packets from one address to a QP at another, by one version of
// RoCE.
type key struct {
	src, dst netip.Addr
	qp       uint32
	net      uint64 // stands for the VLANs and the tunnel; 0: none
	grh      bool
}

// is reports whether two keys are equal. The operator would compare all bytes in a call.
func (k *key) is(o *key) bool {
	return k.qp == o.qp && k.net == o.net && k.grh == o.grh && k.src == o.src && k.dst == o.dst
}

// stream is the state of one flow. Its packets are requests of its sender, which req
// follows, and responses of its sender to the requests of the other direction, peer, whose
// req they are compared with.
type stream struct {
	key
	segment      frame.Segment // what key.net stands for
	id           int32
	older, newer int32 // list by last use; -1: the end
	partner
	profile
	reported
	congestion
	place    place
	finished bool
	since    int64 // when what was seen of it was forgotten as too old
	before   int64 // when either direction had a frame before this one
	silent   int   // time-outs since the last response of any kind
	Counters
	req *exchange
	rsp responder
}

// partner is the other direction of a flow.
type partner struct {
	peer     int32  // -1: not known
	peerQP   uint32 // QP of the sender, kept when the other direction is closed
	pairedBy pairing
	firm     bool   // the pair was guessed soon after the request that it answers
	hits     uint32 // responses that fitted the pair
	tries    uint32 // of finding a peer
}

// profile is what the packets of a flow have in common.
type profile struct {
	service      bth.Opcode
	serviceKnown bool
	pkey         uint16
	pkeyKnown    bool
	qkey         uint32
	qkeyKnown    bool // set by connection management
	sport        uint16
	moved        bool // the source port changed
	mtu          int
	mtuFirm      bool
}

// reported is what was found about a flow before.
type reported struct {
	once     [2]uint64          // checks that are reported once
	suspects [checkCount]uint32 // how often packets failed that of which the capture has no ICRC
}

// congestion is what is known of a flow's marks and CNPs.
type congestion struct {
	lastCNP      int64
	lastFrame    uint64 // of lastCNP
	closeCNPs    int    // copies of CNPs, or CNPs too close
	marks        uint64 // CE marks
	firstCE      int64
	firstCEFrame uint64
}

type pairing uint8

const (
	pairGuessed pairing = iota // by PSN
	pairPort                   // by UDP source ports
	pairCM                     // by connection management
)

// last returns when the last frame of s came, as now has it, and 0 before the first.
func (w *Watcher) last(s *stream) int64 {
	if s.Frames == 0 {
		return 0
	}
	return s.Last - w.clock.shift
}

// flows is the table of those that are open, and a list of them by last use.
type flows struct {
	all     []*stream // by stream.id; closed ones are kept for their memory
	free    []int32
	index   map[key]int32
	oldest  int32 // -1: none
	newest  int32
	evicted uint64 // closed to make room
}

func newFlows() flows { return flows{index: make(map[key]int32), oldest: -1, newest: -1} }

// front returns the flow that was used last, of which there is one.
func (t *flows) front() *stream { return t.all[t.newest] }

// touch makes flow i the newest.
func (t *flows) touch(i int32) {
	if i != t.newest {
		t.unlink(i)
		t.link(i)
	}
}

// add adds flow k as the newest, in the memory of a closed one where there is one.
func (t *flows) add(k key) *stream {
	var i int32
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		i = int32(len(t.all))
		t.all = append(t.all, &stream{})
	}
	s := t.all[i]
	req := s.req
	*s = stream{key: k, id: i, partner: partner{peer: -1}, req: req}
	if req != nil {
		req.reset()
	}
	t.index[k] = i
	t.link(i)
	return s
}

// remove removes flow s. Its number may be used again.
func (t *flows) remove(s *stream) {
	if s.peer >= 0 && t.all[s.peer].peer == s.id {
		t.all[s.peer].peer = -1
	}
	delete(t.index, s.key)
	t.unlink(s.id)
	t.free = append(t.free, s.id)
}

func (t *flows) link(i int32) {
	s := t.all[i]
	s.older, s.newer = t.newest, -1
	if t.newest >= 0 {
		t.all[t.newest].newer = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *flows) unlink(i int32) {
	s := t.all[i]
	if s.older >= 0 {
		t.all[s.older].newer = s.newer
	} else {
		t.oldest = s.newer
	}
	if s.newer >= 0 {
		t.all[s.newer].older = s.older
	} else {
		t.newest = s.older
	}
}

// stream returns the flow of w.f, which it creates if there is none, and makes it the
// newest.
func (w *Watcher) stream() *stream {
	k := key{unmapped(w.f.Src), unmapped(w.f.Dst), w.f.Packet.DestQP, w.segment(), w.f.Net == frame.GRH}
	s := w.sameOrPeer(&k)
	if s == nil {
		s = w.open(k)
	}
	w.seen.Flow = int(s.id)
	w.seen.PSN = w.f.Packet.PSN
	s.before = w.last(s)
	if s.peer >= 0 {
		s.before = max(s.before, w.last(w.flows.all[s.peer]))
	}
	if d := w.now - s.before; s.Frames > 0 && (d > int64(w.cfg.Idle) || d < -int64(w.cfg.Idle)) {
		w.finish(s)
		if s.peer >= 0 {
			w.finish(w.flows.all[s.peer])
		}
		w.forget(s)
		s.since = w.now
	}
	return s
}

// sameOrPeer returns the flow k where it is the newest or the other direction of
// that, as for most packets; else nil.
func (w *Watcher) sameOrPeer(k *key) *stream {
	if w.flows.newest < 0 {
		return nil
	}
	s := w.flows.front()
	if s.key.is(k) {
		return s
	}
	if s.peer < 0 {
		return nil
	}
	if s = w.flows.all[s.peer]; !s.key.is(k) {
		return nil
	}
	w.flows.touch(s.id)
	return s
}

// segment returns a number for the VLANs and the tunnel of the current packet, which
// distinguish networks with the same addresses.
func (w *Watcher) segment() uint64 {
	if w.f.VLANs == 0 && w.f.Outer.Len() == 0 {
		return 0
	}
	if g := w.f.Segment(); g != (frame.Segment{}) {
		return maphash.Comparable(w.seed, g) | 1
	}
	return 0
}

func (w *Watcher) open(k key) *stream {
	if i, ok := w.flows.index[k]; ok {
		w.flows.touch(i)
		return w.flows.all[i]
	}
	if len(w.flows.index) >= w.cfg.MaxFlows {
		w.flows.evicted++
		w.close(w.flows.oldest)
	}
	s := w.flows.add(k)
	if k.net != 0 {
		s.segment = w.f.Segment()
	}
	return s
}

// forget resets s, and the other direction, except for the counts: the QP number may be in
// use by another connection.
func (w *Watcher) forget(s *stream) {
	if s.peer >= 0 {
		p := w.flows.all[s.peer]
		s.peer, p.peer = -1, -1
		p.forget()
	}
	s.forget()
}

func (s *stream) forget() {
	req := s.req
	if req != nil {
		req.restart()
	}
	*s = stream{key: s.key, segment: s.segment, id: s.id, older: s.older, newer: s.newer, partner: partner{peer: -1, peerQP: s.peerQP},
		profile: profile{service: s.service}, Counters: s.Counters, before: s.before, place: s.place, req: req}
}

// close reports what the end of a flow shows, and removes it.
func (w *Watcher) close(i int32) {
	s := w.flows.all[i]
	if !s.finished {
		w.finish(s)
	}
	if w.cfg.Closed != nil {
		f := w.view(i)
		w.cfg.Closed(&f)
	}
	w.totals.past.Add(&s.Counters)
	w.flows.remove(s)
}

func (w *Watcher) view(i int32) Flow {
	s := w.flows.all[i]
	f := Flow{ID: int(i), Src: s.src, Dst: s.dst, Segment: s.segment, QP: s.qp, Peer: -1, Service: s.service.Service(), MTU: s.mtu, Counters: &s.Counters,
		Latency: &noHistogram, Completion: &noHistogram, PeerQP: s.peerQP}
	if s.peer >= 0 {
		f.Peer = int(s.peer)
	}
	if s.req != nil {
		f.Latency, f.Completion = &s.req.latency, &s.req.completion
	}
	return f
}

var noHistogram Histogram

// first reports whether c was not reported for s before, and remembers it.
func (s *stream) first(c Check) bool {
	word, bit := &s.once[c/64&1], uint64(1)<<(c%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// forgo takes back that c was reported for s.
func (s *stream) forgo(c Check) { s.once[c/64&1] &^= 1 << (c % 64) }

// void records the PSN of a packet that its receiver drops, so that neither its absence nor
// a response to it counts as a fault.
func (s *stream) void(p psn.PSN, now int64) {
	if s.req == nil || !s.req.started {
		return
	}
	s.req.signs.disturbed = now
	if u := psn.Unwrap(s.req.next, p); u >= s.req.next && u < s.req.next+64 {
		s.req.voidTo = max(s.req.voidTo, u+1)
	}
}

// learnMTU sets m as the path MTU of both directions.
func (w *Watcher) learnMTU(s *stream, m int, firm bool) {
	s.mtu, s.mtuFirm = m, firm
	if s.req != nil {
		s.req.closeSpan(m)
	}
	if s.peer >= 0 {
		p := w.flows.all[s.peer]
		if p.mtu == 0 || !p.mtuFirm {
			p.mtu, p.mtuFirm = m, firm
			if p.req != nil {
				p.req.closeSpan(m)
			}
		}
	}
}
