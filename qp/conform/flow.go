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

// stream is the state of one flow. Its packets are requests of its sender, which req
// follows, and responses of its sender to the requests of the other direction, peer, whose
// req they are compared with.
type stream struct {
	key
	id           int32
	older, newer int32 // list by last use; -1: the end
	peer         int32 // -1: not known
	pairedBy     pairing
	firm         bool   // the pair was guessed soon after the request that it answers
	hits         uint32 // responses that fitted the pair
	tries        uint32 // of finding a peer
	service      bth.Opcode
	serviceKnown bool
	once         [2]uint64 // checks that are reported once
	suspects     [4]suspect
	peerQP       uint32 // QP of the sender, kept when the other direction is closed
	finished     bool
	since        int64 // when what was seen of it was forgotten as too old
	before       int64 // when either direction had a frame before this one
	pkey         uint16
	pkeyKnown    bool
	qkey         uint32
	qkeyKnown    bool // set by connection management
	sport        uint16
	moved        bool // the source port changed
	mtu          int
	mtuFirm      bool
	lastCNP      int64
	place        place
	silent       int    // time-outs since the last response of any kind
	closeCNPs    int    // copies of CNPs, or CNPs too close
	marks        uint64 // CE marks since
	firstCE      int64
	firstCEFrame uint64
	lastFrame    uint64
	Counters
	req *exchange
	rsp responder
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
	return s.Last - w.shift
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
		s.before = max(s.before, w.last(w.streams[s.peer]))
	}
	if d := w.now - s.before; s.Frames > 0 && (d > int64(w.cfg.Idle) || d < -int64(w.cfg.Idle)) {
		w.finish(s)
		if s.peer >= 0 {
			w.finish(w.streams[s.peer])
		}
		w.forget(s)
		s.since = w.now
	}
	return s
}

// sameOrPeer returns the flow k where it is the newest or the other direction of
// that, as for most packets; else nil.
func (w *Watcher) sameOrPeer(k *key) *stream {
	if w.newest < 0 {
		return nil
	}
	s := w.streams[w.newest]
	if s.key == *k {
		return s
	}
	if s.peer < 0 {
		return nil
	}
	if s = w.streams[s.peer]; s.key != *k {
		return nil
	}
	w.unlink(s.id)
	w.link(s.id)
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
	if i, ok := w.index[k]; ok {
		if i != w.newest {
			w.unlink(i)
			w.link(i)
		}
		return w.streams[i]
	}
	if len(w.index) >= w.cfg.MaxFlows {
		w.evicted++
		w.close(w.oldest)
	}
	var i int32
	if n := len(w.free); n > 0 {
		i = w.free[n-1]
		w.free = w.free[:n-1]
	} else {
		i = int32(len(w.streams))
		w.streams = append(w.streams, &stream{})
	}
	s := w.streams[i]
	req := s.req
	*s = stream{key: k, id: i, peer: -1, req: req}
	if req != nil {
		req.reset()
	}
	w.index[k] = i
	w.link(i)
	return s
}

// forget resets s, and the other direction, except for the counts: the QP number may be in
// use by another connection.
func (w *Watcher) forget(s *stream) {
	if s.peer >= 0 {
		p := w.streams[s.peer]
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
	*s = stream{key: s.key, id: s.id, older: s.older, newer: s.newer, peer: -1, peerQP: s.peerQP,
		Counters: s.Counters, before: s.before, service: s.service, place: s.place, req: req}
}

func (w *Watcher) link(i int32) {
	s := w.streams[i]
	s.older, s.newer = w.newest, -1
	if w.newest >= 0 {
		w.streams[w.newest].newer = i
	} else {
		w.oldest = i
	}
	w.newest = i
}

func (w *Watcher) unlink(i int32) {
	s := w.streams[i]
	if s.older >= 0 {
		w.streams[s.older].newer = s.newer
	} else {
		w.oldest = s.newer
	}
	if s.newer >= 0 {
		w.streams[s.newer].older = s.older
	} else {
		w.newest = s.older
	}
}

// close reports what the end of a flow shows, and removes it.
func (w *Watcher) close(i int32) {
	s := w.streams[i]
	if !s.finished {
		w.finish(s)
	}
	if w.cfg.Closed != nil {
		f := w.view(i)
		w.cfg.Closed(&f)
	}
	w.past.Add(&s.Counters)
	// The index may be reused.
	if s.peer >= 0 && w.streams[s.peer].peer == i {
		w.streams[s.peer].peer = -1
	}
	delete(w.index, s.key)
	w.unlink(i)
	w.free = append(w.free, i)
}

func (w *Watcher) view(i int32) Flow {
	s := w.streams[i]
	f := Flow{ID: int(i), Src: s.src, Dst: s.dst, QP: s.qp, Peer: -1, Service: s.service.Service(), MTU: s.mtu, Counters: &s.Counters,
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
		p := w.streams[s.peer]
		if p.mtu == 0 || !p.mtuFirm {
			p.mtu, p.mtuFirm = m, firm
			if p.req != nil {
				p.req.closeSpan(m)
			}
		}
	}
}
