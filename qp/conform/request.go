package conform

import (
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// Unwrapped PSNs begin here, so that what lies before the first is positive.
const base = 1 << 32

// A PSN this far from the expected one is another life of the QP number.
const restart = 1 << 20

// sent is what is remembered of a request packet. A READ has one at its first
// PSN and one, with isTail, at its last.
type sent struct {
	psn   uint64 // unwrapped; 0: none
	first int64  // when it was first sent
	last  int64  // when it was last sent
	start int64  // when the message's first packet was first sent
	frame uint64 // first
	left  uint32 // bytes of DMA length after this packet
	icrc  uint32 // its ICRC, which stands for its content
	msn   uint32 // the responder's MSN after it
	srq   uint32
	ipid  uint16 // of the last
	// What the ICRC covers that may differ: IPv4 identification and flags, UDP
	// source port, bytes 1, 2, 3 and 8 of the BTH.
	ip    uint32
	sport uint16
	bth   [4]byte
	op    bth.Opcode
	sends uint8 // since it was last refused
	flags sentFlags
}

type sentFlags uint8

const (
	hasLeft sentFlags = 1 << iota
	hasICRC
	hasMSN
	isEnd // of a message
	isTail
	asked // AckReq was set
)

// read is a READ, ATOMIC, FLUSH or ATOMIC WRITE that awaits its answer.
type read struct {
	start, end uint64 // PSNs [start, end)
	from, to   uint64 // PSNs asked for by the newest request for it
	was        uint64 // where the request before that began
	pos        uint64 // next response expected
	high       uint64 // responses below it were seen
	va         uint64
	orig       uint64 // an atomic's answer
	t          int64  // first sent
	lastT      int64  // last sent or answered
	rkey, len  uint32
	op         bth.Opcode
	known      bool // extended headers were captured
	open       bool // end is not known: the MTU is not
	guessed    bool // end is where the next request seen began
	done       bool
	again      bool // asked for more than once
	gap        bool // a response was missing
	partial    bool // may be the rest of a READ that was not seen
	hasOrig    bool
}

const maxReads = 64

// requester follows the requests of a flow, and what their answers say of them.
type requester struct {
	started bool
	certain bool   // the first PSN is known, and that MSN was 0 before it
	first   uint64 // the first PSN
	next    uint64 // above the highest seen
	voidTo  uint64 // PSNs from next to it went out in packets that are dropped
	ring    []sent
	reads   [maxReads]read
	readN   int // reads[(readN-1) % maxReads] is the newest

	spanOpen bool // the newest request is a READ whose number of PSNs is not known

	lastU    uint64 // PSN of the packet before
	lastSent int64
	lastIPID uint16
	varies   bool // the IP identification differs between packets

	resend     bool // in a retransmission, of which resendNext is next
	resendNext uint64
	gapAt      int64

	acked     uint64 // above the highest acknowledged
	answered  uint64 // highest PSN answered positively; 0: none
	answerAt  int64
	nak       refusal // sequence error that awaits retransmission
	nakSeen   bool    // what the last refused had been captured
	naks      int     // sequence errors since all was sent again
	nakOld    refusal // one before that the requester may not have reacted to yet
	rnr       refusal
	rnrTime   time.Duration
	far       refusal // retransmission that began before what the NAK asks for
	nakLast   uint64  // PSN of the last NAK sequence error
	nakFrame  uint64
	nakIPID   uint16
	nakAt     int64
	silent    int   // time-outs since the last answer of any kind
	disturbed int64 // when something was last lost, copied, damaged or sent again
	copies    int   // duplicates and retransmissions, each of which may be answered

	suspect      refusal // acknowledgement of what was not seen sent
	suspectFrame uint64

	trust  int   // MSNs that fitted
	offset int32 // by which the last did not

	credit  uint32 // limit in messages
	credits bool
	limited uint64 // above the last packet sent beyond the limit
	since   int64
	over    struct {
		valid bool
		msn   uint32
		frame uint64
		psn   uint64
		t     int64
	}
	depth int // initiator depth of connection management; 0: not known

	latency    Histogram
	completion Histogram
}

type refusal struct {
	valid bool
	psn   uint64
	t     int64
	sure  bool // nothing was refused
}

func (r *requester) reset() {
	ring := r.ring
	clear(ring)
	*r = requester{ring: ring}
}

// restart keeps what was measured.
func (r *requester) restart() {
	ring := r.ring
	clear(ring)
	lat, com := r.latency, r.completion
	*r = requester{ring: ring, latency: lat, completion: com}
}

// calm reports whether nothing was amiss for a while, so that what looks wrong
// cannot be due to requests that the capture lost.
func (w *Watcher) calm(r *requester) bool {
	return r.disturbed == 0 || w.now-r.disturbed > 100*int64(w.cfg.MinTimeout)
}

func (w *Watcher) requesterOf(s *stream) *requester {
	if s.req == nil {
		s.req = &requester{ring: make([]sent, w.cfg.Window)}
	}
	return s.req
}

func (r *requester) slot(u uint64) *sent { return &r.ring[u&uint64(len(r.ring)-1)] }

// at returns what was sent with PSN u, or nil.
func (r *requester) at(u uint64) *sent {
	if e := r.slot(u); e.psn == u {
		return e
	}
	return nil
}

// read returns the newest READ or atomic that has PSN u, or nil.
func (r *requester) read(u uint64) *read {
	for i := 0; i < min(r.readN, maxReads); i++ {
		d := &r.reads[(r.readN-1-i)%maxReads]
		if u >= d.start && (u < d.end || d.open && i == 0) {
			return d
		}
	}
	return nil
}

// span returns how many PSNs a READ of n bytes takes.
func span(n uint32, mtu int) uint64 {
	if n == 0 {
		return 1
	}
	return (uint64(n) + uint64(mtu) - 1) / uint64(mtu)
}

// closeSpan gives READs their end when the MTU becomes known.
func (r *requester) closeSpan(mtu int) {
	for i := range min(r.readN, maxReads) {
		d := &r.reads[i]
		if !d.known || !d.open && !d.guessed {
			continue
		}
		whole := d.to == d.end
		d.end = d.start + span(d.len, mtu)
		if whole {
			d.to = d.end
		}
		if d.open {
			r.spanOpen = false
			r.next = max(r.next, d.end)
		}
		d.open, d.guessed = false, false
		r.tail(d)
	}
}

// tail puts the entry at a READ's last PSN.
func (r *requester) tail(d *read) {
	if e := r.at(d.start); e != nil && d.end > d.start+1 {
		t := *e
		t.psn = d.end - 1
		t.flags |= isTail
		*r.slot(d.end - 1) = t
	}
}

// request judges a request of RC, XRC or UC.
func (w *Watcher) request(s *stream, payload int) {
	p := &w.f.Packet
	r := w.requesterOf(s)
	unreliable := p.Opcode.Service() == bth.UC
	u := base | uint64(p.PSN)
	if r.started {
		u = psn.Unwrap(r.next, p.PSN)
		if d := int64(u) - int64(r.next); d > restart || d < -restart || w.reused(s, r, u) {
			w.report(s, Restarted, uint64(psn.Wrap(r.next)), 0, 0)
			w.forget(s)
			u = base | uint64(p.PSN)
			s.service, s.serviceKnown = p.Opcode, true
		}
	}
	if !r.started {
		r.started, r.first, r.next, r.acked = true, u, u, u
		r.certain = r.certain || w.cfg.Complete
		r.voidTo = 0
	}
	w.alone(s, payload, unreliable)
	if r.certain && u < r.first {
		w.report(s, CMStartingPSN, uint64(psn.Wrap(r.first)), uint64(p.PSN), 0)
		r.certain = false
	}
	ipid := w.f.ID
	if w.f.Net == frame.IPv4 && u != r.lastU && r.lastSent != 0 && ipid != r.lastIPID {
		r.varies = true
	}
	if u >= r.next {
		w.newRequest(s, r, u, payload)
	} else {
		w.oldRequest(s, r, u, payload, unreliable)
	}
	r.lastU, r.lastSent, r.lastIPID = u, w.now, ipid
}

// reused reports whether PSN u is a sign of another life of the QP number: all
// was answered, nothing was sent for a second, and this is not what had the PSN
// before, or what had it was refused for good.
func (w *Watcher) reused(s *stream, r *requester, u uint64) bool {
	if r.lastSent == 0 || r.acked < r.next || w.now-max(r.lastSent, r.answerAt) < int64(time.Second) {
		return false
	}
	if u >= r.next {
		return s.peer >= 0 && w.streams[s.peer].rsp.dead
	}
	p := &w.f.Packet
	e := r.at(u)
	if d := r.read(u); d != nil && p.Opcode.Operation() == bth.ReadRequest {
		return d.op != p.Opcode || w.full && d.known && p.RETH.RKey != d.rkey
	}
	return e == nil || e.op != p.Opcode ||
		w.full && !w.f.Truncated() && e.flags&hasICRC != 0 && !w.sameContent(e)
}

// alone judges what one request shows without others.
func (w *Watcher) alone(s *stream, payload int, unreliable bool) {
	p := &w.f.Packet
	op := p.Opcode
	if unreliable && p.AckReq {
		w.report(s, UnreliableAckReq, 0, uint64(op), 0)
	}
	if p.SE && !solicitable(op) {
		w.report(s, SolicitedMisplaced, 0, uint64(op), 0)
	}
	w.size(s, payload)
	if !w.full {
		return
	}
	if op.Ext()&bth.HasRETH != 0 && p.RETH.DMALen > 1<<31 {
		w.report(s, SizeAboveLimit, 1<<31, uint64(p.RETH.DMALen), 0)
	}
	switch op.Operation() {
	case bth.WriteOnly, bth.WriteOnlyImm, bth.AtomicWrite:
		if int(p.RETH.DMALen) != payload {
			w.report(s, DMALengthOnly, uint64(p.RETH.DMALen), uint64(payload), 0)
		}
	case bth.WriteFirst:
		if int(p.RETH.DMALen) <= payload {
			w.report(s, DMALengthFirst, uint64(p.RETH.DMALen), uint64(payload), 0)
		}
	}
	if va := p.AtomicETH.VA | p.RETH.VA; (op.Ext()&bth.HasAtomicETH != 0 || op.Operation() == bth.AtomicWrite) && va%8 != 0 {
		w.report(s, AtomicMisaligned, 0, va, 0)
	}
}

// solicitable: rule RQ-06.
func solicitable(op bth.Opcode) bool {
	switch op.Operation() {
	case bth.SendLast, bth.SendLastImm, bth.SendLastInv, bth.SendOnly, bth.SendOnlyImm, bth.SendOnlyInv,
		bth.WriteLastImm, bth.WriteOnlyImm:
		return true
	}
	return false
}

// size judges payload against the path MTU. Rule RS-06.
func (w *Watcher) size(s *stream, payload int) {
	switch w.f.Packet.Opcode.Payload() {
	case bth.ExactlyMTU:
		legal := payload >= 256 && payload <= 4096 && payload&(payload-1) == 0
		switch {
		case s.mtu == 0 && !legal:
			w.report(s, SizeNoMTU, 0, uint64(payload), 0)
		case s.mtu == 0 || !s.mtuFirm && legal:
			w.learnMTU(s, payload, true)
		case payload != s.mtu:
			w.report(s, SizeNotMTU, uint64(s.mtu), uint64(payload), 0)
		}
	case bth.OneToMTU, bth.UpToMTU:
		limit := 4096
		if s.mtu != 0 && s.mtuFirm {
			limit = s.mtu
		}
		if payload > limit {
			w.report(s, SizeOverMTU, uint64(limit), uint64(payload), 0)
		} else if payload == 0 && w.f.Packet.Opcode.Payload() == bth.OneToMTU {
			w.report(s, SizeEmptyLast, 0, 0, 0)
		}
	}
}

// newRequest handles a PSN above all before.
func (w *Watcher) newRequest(s *stream, r *requester, u uint64, payload int) {
	p := &w.f.Packet
	w.seen.Class = ClassNew
	w.good(s, payload)
	if r.resend && r.resendNext == r.next {
		r.nakOld.valid, r.naks = false, 0 // all was sent again
	}
	r.resend, r.far.valid = false, false
	if r.spanOpen && u > r.next-1 {
		r.endSpan(u)
	}
	if u > r.next {
		s.SequenceError++
		r.gapAt, r.disturbed = w.now, w.now
		w.report(s, SequenceGap, uint64(psn.Wrap(r.next)), u-r.next, 0)
	} else if q := &r.suspect; q.valid && u <= q.psn && u >= r.voidTo && q.sure && s.Duplicates == 0 {
		// The acknowledged PSN follows only now. Had the capture lost it the first
		// time, this would be a retransmission, which takes a time-out.
		if d := w.now - q.t; d > int64(w.cfg.Reorder) && d < int64(w.cfg.MinTimeout) && !w.cfg.Complete {
			w.reportAt(s.peerOr(w), AckNeverSent, uint64(p.PSN), 0, w.frames, r.suspectFrame, q.t, psn.Wrap(q.psn))
		}
	}
	r.suspect.valid = false
	n := w.enter(s, r, u, payload)
	r.next = u + n
	if r.spanOpen && s.mtu != 0 {
		r.closeSpan(s.mtu)
	}
}

// peerOr returns the stream of the other direction, or s itself.
func (s *stream) peerOr(w *Watcher) *stream {
	if s.peer >= 0 {
		return w.streams[s.peer]
	}
	return s
}

// endSpan ends a READ of unknown span, when the next request seen has PSN u. It
// may be that others in between were not seen.
func (r *requester) endSpan(u uint64) {
	d := &r.reads[(r.readN-1)%maxReads]
	r.spanOpen, d.open, d.guessed = false, false, true
	whole := d.to == d.end
	d.end = max(u, d.start+1)
	if whole {
		d.to = d.end
	}
	r.next = u
}

// enter remembers a request that was not seen before, judges it against the one
// before it, and returns how many PSNs it takes.
func (w *Watcher) enter(s *stream, r *requester, u uint64, payload int) uint64 {
	p := &w.f.Packet
	op := p.Opcode
	e := sent{psn: u, first: w.now, last: w.now, start: w.now, frame: w.frames, ipid: w.f.ID, op: op, sends: 1}
	if p.AckReq {
		e.flags |= asked
	}
	inside := op.Middle() || op.Last()
	if !op.First() && !op.Middle() {
		e.flags |= isEnd
		s.MessagesTx++
	}
	if w.full && !w.f.Truncated() && op.Service() != bth.UC {
		e.flags |= hasICRC
		w.content(&e)
	}
	e.srq = p.XRCETH.SRQ
	prev := r.at(u - 1)
	switch {
	case prev != nil && !(prev.op.First() || prev.op.Middle()):
		if inside {
			w.report(s, OrderOutside, uint64(prev.op), uint64(op), prev.frame)
		}
	case prev != nil:
		if !inside || prev.op.Send() != op.Send() {
			w.report(s, OrderInMessage, uint64(prev.op), uint64(op), prev.frame)
		} else {
			e.start = prev.start
			if op.Service() == bth.XRC && w.full && p.XRCETH.SRQ != prev.srq {
				w.report(s, XRCOtherSRQ, uint64(prev.srq), uint64(p.XRCETH.SRQ), prev.frame)
			}
			if prev.flags&hasLeft != 0 && op.Write() {
				w.left(s, &e, prev.left, payload)
			}
		}
	case r.certain && u == r.first && inside:
		w.report(s, OrderAtStart, 0, uint64(op), 0)
	}
	if op.Operation() == bth.WriteFirst && w.full && int(p.RETH.DMALen) > payload {
		e.flags |= hasLeft
		e.left = p.RETH.DMALen - uint32(payload)
	}
	switch {
	case prev != nil && prev.flags&hasMSN != 0 && !r.guessedAt(prev):
		e.flags |= hasMSN
		e.msn = prev.msn
	case r.certain && u == r.first:
		e.flags |= hasMSN
	}
	if e.flags&isEnd != 0 {
		e.msn = (e.msn + 1) & psn.Mask
	}
	n := uint64(1)
	if answered(op) {
		n = w.enterRead(s, r, u)
	}
	*r.slot(u) = e
	if n > 1 {
		r.tail(&r.reads[(r.readN-1)%maxReads])
	}
	takes := op.Send() || op.Ext()&bth.HasImmDt != 0
	if r.credits && e.flags&isEnd != 0 && !takes {
		r.credit = (r.credit + 1) & psn.Mask // it needs none of the receives that the limit counts
	}
	if r.credits && takes && e.flags&(hasMSN|isEnd) == hasMSN|isEnd &&
		r.trust > 0 && w.now-r.since > int64(w.cfg.MinTimeout) && newer(e.msn, r.credit) > 0 {
		// One packet may go beyond the limit, and then another that asks for the
		// acknowledgement where the limit came too late for that.
		if r.limited > r.acked && newer(e.msn, r.credit+1) > 0 {
			r.over.valid, r.over.msn, r.over.frame, r.over.psn, r.over.t = true, e.msn, w.frames, u, w.now
		}
		r.limited = u + 1
	}
	return n
}

// guessedAt reports whether e is a READ of which it is not known where it ends.
func (r *requester) guessedAt(e *sent) bool {
	if e.op.Operation() != bth.ReadRequest {
		return false
	}
	d := r.read(e.psn)
	return d != nil && (d.open || d.guessed)
}

// left judges the DMA length inside a WRITE. Rule RS-07.
func (w *Watcher) left(s *stream, e *sent, left uint32, payload int) {
	if e.op.Last() {
		if int(left) != payload {
			w.report(s, DMALengthLast, uint64(left), uint64(payload), 0)
		}
		return
	}
	if int(left) <= payload {
		w.report(s, DMALengthMiddle, uint64(left), uint64(payload), 0)
		return
	}
	e.flags |= hasLeft
	e.left = left - uint32(payload)
}

// answered reports whether requests with op get an answer of their own.
func answered(op bth.Opcode) bool {
	switch op.Operation() {
	case bth.ReadRequest, bth.CmpSwap, bth.FetchAdd, bth.Flush, bth.AtomicWrite:
		return op.Class() == bth.Request
	}
	return false
}

func (w *Watcher) enterRead(s *stream, r *requester, u uint64) uint64 {
	p := &w.f.Packet
	d := &r.reads[r.readN%maxReads]
	r.readN++
	*d = read{start: u, end: u + 1, from: u, to: u + 1, was: u, pos: u, high: u, t: w.now, lastT: w.now, op: p.Opcode, known: w.full,
		va: p.RETH.VA, rkey: p.RETH.RKey, len: p.RETH.DMALen}
	d.partial = r.at(u-1) == nil && !(r.certain && u == r.first)
	if r.depth > 0 {
		n := 0
		for i := 0; i < min(r.readN, maxReads); i++ {
			if q := &r.reads[i]; !q.done && q.end > r.acked {
				n++
			}
		}
		if n > r.depth {
			w.report(s, ReadsAboveDepth, uint64(r.depth), uint64(n), 0)
		}
	}
	if p.Opcode.Operation() != bth.ReadRequest {
		return 1
	}
	switch {
	case !w.full:
		d.open, r.spanOpen = true, true
	case p.RETH.DMALen <= 256 || p.RETH.DMALen > 1<<31:
	case s.mtu == 0 || !s.mtuFirm:
		d.open, r.spanOpen = true, true
	default:
		d.end = u + span(d.len, s.mtu)
		d.to = d.end
	}
	return d.end - d.start
}

// oldRequest handles a PSN not above the highest: a retransmission, a copy, or a
// late packet.
func (w *Watcher) oldRequest(s *stream, r *requester, u uint64, payload int, unreliable bool) {
	p := &w.f.Packet
	e := r.at(u)
	var d *read
	if p.Opcode.Operation() == bth.ReadRequest {
		d = r.read(u)
	}
	cause := r.nak.valid && u >= r.nak.psn || r.rnr.valid && u == r.rnr.psn
	// A copy has the identification of what it is a copy of. Where that says
	// nothing, it follows at once, be it during a wait for RNR.
	waits := r.rnr.valid && w.now-r.rnr.t < int64(r.rnrTime)
	copied := e != nil && e.flags&isTail == 0 && e.op == p.Opcode && w.f.ID == e.ipid &&
		(r.varies || u == r.lastU && (!cause || waits) && w.now-r.lastSent < int64(w.cfg.MinTimeout))
	switch {
	case copied:
		w.seen.Class = ClassCopy
		s.Duplicates++
		r.copies++
		r.disturbed = w.now
		w.report(s, DuplicateRequest, uint64(max(0, w.now-e.last)), 0, e.frame)
		w.same(s, e, d)
		if answered(p.Opcode) {
			w.askAgain(s, r, u)
		}
		return
	case unreliable, e == nil && d == nil && u >= r.first && !cause && !r.resend && r.gapAt != 0 &&
		w.now-r.gapAt < int64(w.cfg.MinTimeout):
		w.seen.Class = ClassLate
		s.OutOfOrder++
		w.good(s, payload)
		w.report(s, OutOfOrder, uint64(psn.Wrap(r.next-1)), 0, 0)
		if u >= r.first && e == nil {
			w.enter(s, r, u, payload)
		}
		return
	}
	w.seen.Class = ClassResent
	s.Retransmitted++
	r.copies++
	r.disturbed = w.now
	switch {
	case r.resend && u == r.resendNext:
		if r.far.valid && r.nak.valid && u == r.nak.psn {
			w.report(s, GoBackTooFar, uint64(psn.Wrap(u)), u-r.far.psn, r.nakFrame)
			r.far.valid, r.nak.valid = false, false
		}
	case r.resend && u > r.resendNext && u < r.resendNext+64 && w.now-r.lastSent < int64(w.cfg.MinTimeout):
		s.SequenceError++
		w.report(s, SequenceGap, uint64(psn.Wrap(r.resendNext)), u-r.resendNext, 0)
	default:
		w.goBack(s, r, e, d, u)
	}
	r.resend, r.resendNext = true, u+1
	if d != nil {
		r.resendNext = d.end
	}
	switch {
	case e != nil && e.flags&isTail == 0:
		w.same(s, e, d)
		e.last, e.ipid = w.now, w.f.ID
		if e.sends < 255 {
			e.sends++
		}
		if p.AckReq {
			e.flags |= asked
		}
	case d == nil && u >= r.first && !answered(p.Opcode):
		w.good(s, payload) // the first was lost before it was captured
		w.enter(s, r, u, payload)
	case d == nil && u >= r.first && e == nil:
		// A READ or atomic that was lost before the capture. Its span is taken
		// from what followed it.
		if n := w.enter(s, r, u, payload); n > 1 || r.spanOpen {
			r.spanOpen = false
			if d := &r.reads[(r.readN-1)%maxReads]; d.open {
				d.open, d.guessed = false, true
				for d.end < r.next && r.at(d.end) == nil && d.end-u < uint64(w.cfg.Window) {
					d.end++
				}
				d.to = d.end
			}
		}
		return
	}
	if answered(p.Opcode) {
		w.askAgain(s, r, u)
	}
}

// goBack tells why a retransmission begins at u.
func (w *Watcher) goBack(s *stream, r *requester, e *sent, d *read, u uint64) {
	last := r.lastSent
	if e != nil {
		last = e.last
	}
	r.far.valid = false
	quick := func(t int64) bool { return w.now-t < int64(w.cfg.MinTimeout) }
	switch {
	case r.rnr.valid && u == r.rnr.psn:
		since := w.now - r.rnr.t
		s.RNRWait += durationOf(since)
		// Two microseconds for the grain of the time stamps. What comes right after
		// the NAK may have been on its way when it was sent.
		if flight := min(int64(r.rnrTime)/2, int64(w.cfg.MinTimeout)/10); since > flight && since+2000 < int64(r.rnrTime) {
			w.report(s, RNRTooEarly, uint64(r.rnrTime), uint64(max(0, since)), 0)
		}
		r.rnr.valid = false
		w.report(s, ResentRNR, uint64(max(0, since)), 0, 0)
	case r.nak.valid && u >= r.nak.psn && w.now-r.nak.t < 2*int64(w.cfg.MinTimeout):
		w.report(s, ResentNAK, uint64(max(0, w.now-r.nak.t)), 0, r.nakFrame)
		r.nakOld, r.nak.valid = r.nak, false // it may have been a late packet
	case r.nakOld.valid && u >= r.nakOld.psn && w.now-r.nakOld.t < 2*int64(w.cfg.MinTimeout):
		w.report(s, ResentNAK, uint64(max(0, w.now-r.nakOld.t)), 0, 0)
		r.nakOld.valid = false
	case d != nil && (d.gap || d.pos > d.start) && quick(d.lastT):
		w.report(s, ResentRead, uint64(max(0, w.now-d.lastT)), 0, 0)
	default:
		settled := s.peer >= 0 && (s.pairedBy == pairCM || w.streams[s.peer].hits > 1) // earlier NAKs were seen
		if r.nak.valid && r.naks == 1 && r.nakSeen && settled && s.Duplicates+s.OutOfOrder == 0 && u < r.nak.psn && quick(r.nak.t) && quick(last) && !answered(w.f.Packet.Opcode) {
			// Behind what the NAK asks for, and too soon for a time-out. It may
			// be a late packet, but not if what follows goes on up to the NAK's. Nor
			// does a NAK stand for the answer to a READ or atomic before it: where
			// that was lost, the requester goes back to it (RQ-24). A network that
			// copies or reorders leaves too much open.
			r.far = refusal{valid: true, psn: u, t: w.now}
			return
		}
		r.silent++
		w.report(s, ResentTimeout, uint64(max(0, w.now-last)), 0, 0)
		r.nak.valid = false
	}
}

// same judges whether a retransmission is what it was. Rules RQ-16, RQ-27.
func (w *Watcher) same(s *stream, e *sent, d *read) {
	p := &w.f.Packet
	if e.op != p.Opcode {
		w.report(s, ResendDiffers, uint64(e.op), uint64(p.Opcode), e.frame)
		return
	}
	if d != nil {
		return // askAgain judges it
	}
	if w.full && !w.f.Truncated() && e.flags&hasICRC != 0 && !w.sameContent(e) {
		w.report(s, ResendDiffers, uint64(e.op), uint64(p.Opcode), e.frame)
	}
}

// askAgain notes that a READ or atomic is asked for again, from PSN u on.
func (w *Watcher) askAgain(s *stream, r *requester, u uint64) {
	p := &w.f.Packet
	d := r.read(u)
	if d == nil {
		return
	}
	d.again = true
	d.lastT = w.now
	d.was, d.from, d.to = d.from, u, d.end
	d.pos = u
	if p.Opcode.Operation() != bth.ReadRequest || !w.full || !d.known || d.op != p.Opcode || s.mtu == 0 && u != d.start {
		return
	}
	skipped := uint32(0)
	if u != d.start {
		skipped = uint32(u-d.start) * uint32(s.mtu)
	}
	if p.RETH.RKey != d.rkey || p.RETH.VA != d.va+uint64(skipped) || p.RETH.DMALen > d.len-skipped {
		check, want := ResumeDiffers, uint64(d.len-skipped)
		if u == d.start {
			check, want = ResendDiffers, uint64(d.op)
		}
		got := uint64(p.RETH.DMALen)
		if u == d.start {
			got = uint64(p.Opcode)
		}
		w.report(s, check, want, got, 0)
		d.to = u // what comes is not judged
		return
	}
	if s.mtu != 0 {
		d.to = min(d.end, u+span(p.RETH.DMALen, s.mtu))
	}
}

func durationOf(ns int64) time.Duration { return time.Duration(max(0, ns)) }

// newer returns by how much message number a is above b, modulo 2^24.
func newer(a, b uint32) int { return psn.PSN(a).Diff(psn.PSN(b)) }
