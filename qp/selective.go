package qp

import (
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// Selective is selective repeat in place of go-back-N, for RC and XRC: the responder holds
// what arrives ahead of a lost packet, and the requester retransmits only what is lost.
// READ responses are not repeated selectively: after a loss the READ is sent again from the
// first missing response, and all responses behind it with it.
// Both ends must use it; otherwise throughput suffers, data does not. It is an option of
// this module, after the "improved RoCE NIC" of Mittal et al. (SIGCOMM 2018), and in no
// standard: see rules SR-1 to SR-6. The zero value is go-back-N.
type Selective struct {
	// Packets is how many PSNs the requester has outstanding at most, if Config.Window
	// allows, and within how many from the expected one the responder holds packets, 2 ..
	// 8192; 0 is go-back-N. About two bandwidth-delay products are a good value: with one,
	// each loss stops the sender for a round trip. Unless ByReference is set, the responder
	// has 4096 bytes for each, their number being rounded up to a power of two.
	Packets int
	// Reorder is how many packets may overtake one before it counts as lost, 0 .. Packets -
	// 1, for networks that deliver out of order.
	Reorder int
	// RTOLow and RTOHigh replace the attribute Timeout (where that is 0, there are no
	// timeouts): the first while at most Few PSNs are outstanding, 1 us .. 1 s, and not
	// above the second. 0 means 100 us and 320 us; a Few of 0 means 3.
	RTOLow, RTOHigh time.Duration
	Few             int
	// ByReference has the responder keep the payloads of packets that it holds where they
	// are, instead of a copy: for ends that share memory. They must stay as they are
	// until the requester's work request completes.
	ByReference bool
}

const (
	defaultFew = 3
	maxPayload = 4096
)

func (c *Selective) rtoLow() time.Duration {
	if c.RTOLow == 0 {
		return 100 * time.Microsecond
	}
	return c.RTOLow
}

func (c *Selective) rtoHigh() time.Duration {
	if c.RTOHigh == 0 {
		return 320 * time.Microsecond
	}
	return c.RTOHigh
}

// scoreboard records which outstanding packets are acknowledged or lost (rules SR-3 to
// SR-6).
//
// Invariant: high, again, end and taken are at most win.sent.
type scoreboard struct {
	ring  []outstanding
	high  psn.Seq // what is not acknowledged from again to here is lost
	again psn.Seq // what was lost before it has been retransmitted in this recovery
	end   psn.Seq // the recovery lasts until all before it is acknowledged
	top   psn.Seq // the newest PSN that a NAK has named
	due   psn.Seq // no retransmission is known to be lost before top is here
	taken psn.Seq // the peer has executed the requests before it

	reorder, few    uint32
	rtoLow, rtoHigh uint32 // ns
	long            bool   // the timer runs for rtoHigh
}

// outstanding is what is known of the packet at PSN seq. Where the ring entry of a PSN
// holds another PSN, nothing is known of it.
type outstanding struct {
	seq   psn.Seq
	due   psn.Seq // it was retransmitted, and is lost once more when a NAK names this or a newer PSN
	acked bool    // named by a NAK
}

const never = ^psn.Seq(0)

func newScoreboard(c *Selective) *scoreboard {
	if c.Packets == 0 {
		return nil
	}
	s := &scoreboard{
		ring: make([]outstanding, ringSize(c.Packets)), due: never, reorder: uint32(c.Reorder), few: uint32(c.Few),
		rtoLow: uint32(c.rtoLow()), rtoHigh: uint32(c.rtoHigh()),
	}
	if s.few == 0 {
		s.few = defaultFew
	}
	return s
}

// start begins with first, with nothing acknowledged.
func (s *scoreboard) start(first psn.Seq) {
	clear(s.ring)
	s.high, s.again, s.end, s.taken, s.top, s.due = first, first, first, first, 0, never
}

func (s *scoreboard) place(n psn.Seq) *outstanding { return &s.ring[n&psn.Seq(len(s.ring)-1)] }

// at returns the entry of PSN n, cleared where it held another PSN.
func (s *scoreboard) at(n psn.Seq) *outstanding {
	o := s.place(n)
	if o.seq != n {
		*o = outstanding{seq: n, due: never}
	}
	return o
}

// lost reports whether the packet of w at PSN n is to be retransmitted: it has not arrived,
// or its responses have not.
func (s *scoreboard) lost(n psn.Seq, w *wqe) bool {
	if n < s.taken {
		return n >= s.again && w.wr.Op.hasResponse()
	}
	if o := s.place(n); o.seq == n {
		return !o.acked && (n >= s.again || o.due <= s.top)
	}
	return n >= s.again
}

// timeout returns how long the acknowledgement timer runs when it starts (rule SR-6).
func (s *scoreboard) timeout(w *window) int64 {
	if s.long = w.sent-w.una > psn.Seq(s.few); s.long {
		return int64(s.rtoHigh)
	}
	return int64(s.rtoLow)
}

// lengthen extends a running timer to rtoHigh, where more than Few PSNs are outstanding by
// now.
func (s *scoreboard) lengthen(w *window, due *int64) {
	if *due != 0 && !s.long && w.sent-w.una > psn.Seq(s.few) {
		*due += int64(s.rtoHigh - s.rtoLow)
		s.long = true
	}
}

// lose marks all from una to upTo that is not acknowledged as lost (rule SR-5).
func (s *scoreboard) lose(upTo psn.Seq) { s.high = max(s.high, upTo) }

// restart starts a recovery at the oldest unacknowledged packet.
func (s *scoreboard) restart(w *window) {
	s.again, s.end = w.una, w.sent
	if w.una < w.sent {
		s.at(w.una).acked = false // if a NAK said that it has arrived, it has not
		s.lose(w.una + 1)
	}
}

// selected returns the PSN that has arrived according to a NAK sequence error for n, and
// records it; or 0 (rule SR-2).
func (r *Requester) selected(n psn.Seq, a aeth.Header) psn.Seq {
	if r.rnr.until != 0 || a.Syndrome != aeth.NakSyndrome(aeth.NakPSNSequenceError) {
		return 0
	}
	s := r.win.una.Near(psn.PSN(a.MSN))
	if s <= max(n, r.win.una) || s >= r.win.sent {
		return 0
	}
	r.sel.at(s).acked = true
	r.sel.top = max(r.sel.top, s)
	return s
}

// handleSelected handles a NAK sequence error for the oldest unacknowledged PSN. Where s is
// not 0, the NAK says that s has arrived (rule SR-5).
func (r *Requester) handleSelected(s psn.Seq) Verdict {
	b, una := r.sel, r.win.una
	if o := b.at(una); o.acked {
		// A peer without selective repeat puts its MSN where others name a PSN. If the PSN
		// so named is the one that the peer expects, it has not arrived.
		o.acked, o.due = false, 0
	}
	upTo := una + 1
	if s != 0 {
		if upTo = s - psn.Seq(b.reorder); upTo <= una {
			return Accepted // it may have been overtaken
		}
	}
	b.lose(upTo)
	switch {
	case una >= b.end: // a recovery begins
		r.counters.PacketSeqErr++
		if r.rnr.alone { // as in go-back-N
			r.again()
			return Retried
		}
		r.goBack()
		return r.retryVerdict()
	case s == 0:
		return r.drop(Stale, WhyRecovering)
	case una < b.again && r.win.next != una && b.at(una).due <= b.top:
		// The retransmission is lost as well, and is not waiting to be sent.
		r.counters.PacketSeqErr++
		if r.spend() {
			b.end = r.win.sent
			r.resume(una)
			if r.win.next != r.win.sent {
				r.retry.due = 0 // the next packet sent starts the timer
			}
		}
		return r.retryVerdict()
	}
	r.expose()
	return Accepted
}

// responded returns the first PSN at which a request still lacks its own response: what is
// executed before it is complete.
func (r *Requester) responded() psn.Seq {
	for i := r.sq.done; i != r.sq.started; i++ {
		if w := r.sq.at(i); w.wr.Op.hasResponse() {
			return w.first
		}
	}
	return r.win.sent
}

// expose starts retransmitting what was found to be lost, unless retransmission is in
// progress.
func (r *Requester) expose() {
	if r.mode != broken && r.win.next == r.win.sent {
		r.resume(r.win.una)
	}
}

// resume makes the first packet from PSN n on that is lost the next to be sent, or
// else what was never sent.
func (r *Requester) resume(n psn.Seq) {
	b := r.sel
	due, whole := never, n == r.win.una
	if b.top < b.due {
		n, whole = max(n, b.again), false
	}
	for i := r.sq.find(n); i != r.sq.started && n < b.high; {
		w := r.sq.at(i)
		switch {
		case n >= w.end():
			i++
			continue
		case b.lost(n, w):
			r.win.next, r.sq.cur = n, i
			if n >= b.end {
				b.end = r.win.sent
			}
			return
		case w.wr.Op.hasResponse():
			n = w.end()
			continue
		}
		if o := b.place(n); o.seq == n && !o.acked {
			due = min(due, o.due)
		}
		n++
	}
	if whole {
		b.due = due
	}
	b.again = min(max(b.again, n), r.win.sent)
	r.win.next, r.sq.cur = r.win.sent, r.sq.started
	if r.sq.started != r.sq.done && r.sq.at(r.sq.started-1).end() > r.win.sent {
		r.sq.cur--
	}
}

// sent records that the packet at PSN n was sent, for the first time or again.
func (r *Requester) sent(n psn.Seq, again bool) {
	b := r.sel
	b.lengthen(&r.win, &r.retry.due)
	if again {
		o := b.at(n)
		o.due = r.win.sent + psn.Seq(b.reorder)
		b.due = min(b.due, o.due)
		b.again = max(b.again, r.win.next)
		r.resume(r.win.next)
	}
}

// find returns the first started entry that ends after PSN n.
func (q *sendQueue) find(n psn.Seq) uint64 {
	lo, hi := q.done, q.started
	for lo != hi {
		if m := lo + (hi-lo)/2; q.at(m).end() > n {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// reorder holds the packets that arrived ahead of the expected one (rule SR-4).
//
// Invariant: a slot holds the packet of PSN seq where that is beyond the expected PSN, by
// less than size. None is held at top or after it, none before first is to be reported, and
// unreported counts those to be reported, and perhaps some that need it no more.
type reorder struct {
	buf        []byte       // of each slot, maxPayload bytes
	slots      []heldPacket // ring
	size       uint32
	unreported uint32
	first, top psn.Seq
}

type heldPacket struct {
	seq    psn.Seq
	report bool // to be named to the peer in a NAK
	p      bth.Packet
}

func newReorder(c *Selective) *reorder {
	if c.Packets == 0 {
		return nil
	}
	n := ringSize(c.Packets)
	o := &reorder{slots: make([]heldPacket, n), size: uint32(c.Packets)}
	if !c.ByReference {
		o.buf = make([]byte, n*maxPayload)
	}
	return o
}

func (o *reorder) at(n psn.Seq) *heldPacket { return &o.slots[n&psn.Seq(len(o.slots)-1)] }

// forget drops all that is held.
func (o *reorder) forget() {
	if o == nil {
		return
	}
	for i := range o.slots {
		o.slots[i].seq, o.slots[i].report, o.slots[i].p.Payload = 0, false, nil
	}
	o.unreported, o.first, o.top = 0, 0, 0
}

// put holds p at PSN n.
func (o *reorder) put(n psn.Seq, p *bth.Packet) {
	s := o.at(n)
	if s.seq != n {
		o.told(s)
		s.seq, s.p = n, *p
		if o.buf != nil && len(p.Payload) != 0 {
			at := int(n&psn.Seq(len(o.slots)-1)) * maxPayload
			s.p.Payload = append(o.buf[at:at:at+maxPayload], p.Payload...)
		}
		o.top = max(o.top, n+1)
	}
	if !s.report {
		s.report = true
		o.unreported++
	}
	o.first = min(o.first, n)
}

func (o *reorder) told(s *heldPacket) {
	if s.report {
		s.report = false
		o.unreported--
	}
}

// next returns the first PSN beyond the expected one that is to be reported, or 0.
func (o *reorder) next(expected psn.Seq) psn.Seq {
	if o.unreported == 0 {
		return 0
	}
	for n := max(o.first, expected+1); n < o.top; n++ {
		if s := o.at(n); s.seq == n && s.report {
			o.first = n
			return n
		}
	}
	o.unreported, o.first = 0, o.top
	return 0
}

// hold keeps the packet at PSN n, which is beyond the expected one, and has it reported to
// the peer (rules SR-2, SR-4).
func (r *Responder) hold(n psn.Seq, p *bth.Packet) Verdict {
	r.counters.OutOfSequence++
	o := r.held
	if r.ack.quiet { // it is retransmitted after the message that an RNR NAK refused (rule RS-09)
		return r.drop(OutOfSequence, WhyGap)
	}
	why := WhyGap
	if n-r.epsn < psn.Seq(o.size) && len(p.Payload) <= maxPayload {
		why = WhyHeld
		o.put(n, p)
	}
	if !r.ack.hasNak {
		r.sendNak(aeth.NakSyndrome(aeth.NakPSNSequenceError), r.epsn)
	}
	return r.drop(OutOfSequence, why)
}

// release executes what was held and is expected now.
func (r *Responder) release() {
	o := r.held
	for r.mode == running {
		s := o.at(r.epsn)
		if s.seq != r.epsn {
			break
		}
		s.seq = 0
		o.told(s)
		v := r.execute(&s.p)
		s.p.Payload = nil
		if v == NotReady {
			return // and packets after it are no longer held
		}
	}
	r.reportHeld()
}

// reportHeld queues a NAK where held packets are to be reported to the peer.
func (r *Responder) reportHeld() {
	if r.held != nil && r.mode == running && !r.ack.hasNak && r.held.next(r.epsn) != 0 {
		r.sendNak(aeth.NakSyndrome(aeth.NakPSNSequenceError), r.epsn)
	}
}

// nakHeld fills the NAK sequence error p with what is expected and what has arrived
// (rule SR-2).
func (r *Responder) nakHeld(p *bth.Packet) {
	n := r.held.next(r.epsn)
	if n == 0 {
		n = r.epsn
	} else {
		r.held.told(r.held.at(n))
	}
	p.PSN, p.AETH.MSN = r.epsn.PSN(), uint32(n.PSN())
}
