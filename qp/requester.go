package qp

import (
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// wqe is an entry of the send queue.
type wqe struct {
	wr     SendWR
	first  uint64 // count of its first PSN, once started
	n      uint32 // PSNs that it takes
	length uint32 // bytes of the message, or asked for
	ssn    uint32 // number of the message among those started, from 1
	got    uint32 // answered requests: response packets received, in order
	again  bool   // a READ that was taken up again: its answer may begin anywhere
	status Status
}

// Requester sends the requests of a queue pair and takes the answers: the send
// queue, retransmission, and completions of work requests (rules RQ-01 to RQ-35
// of the transport).
//
// After each Post, Handle or Tick, call NextPacket until it reports false,
// NextCompletion likewise, and arm one timer for Deadline.
//
// A Requester is not safe for concurrent use.
type Requester struct {
	clock *Clock
	own   Clock // where the config has none
	c     *Counters

	sq     []wqe // ring; the counts below index it modulo its length
	inline []byte
	max    uint32 // entries in use at most

	// Counts of entries: posted at tail, begun to be sent below started, complete
	// below done, handed to the caller below head. The next packet belongs to
	// entry cur.
	head, done, cur, started, tail uint64

	// Counts of PSNs: oldest without an acknowledgement, next to send, first
	// never sent, and the end of those for which an answer was asked.
	una, next, sent, asked uint64

	ackDue   int64 // acknowledgement timer, 0 when off
	rnrUntil int64 // end of an RNR wait, 0 for none
	timeout  int64

	limit        uint32 // credits: last message number that may be sent freely
	limitedPSN   uint64 // end of the last packet that was sent beyond the credits
	lastSSN      uint32
	sinceAckReq  uint32
	ackEvery     uint32
	window       uint32
	mtu          uint32
	rdOut        uint32 // answered requests under way
	maxRd        uint32
	inlineSize   uint32
	rdCap        uint32 // what maxRd may be
	destQPN      uint32
	qpn          uint32
	qkey         uint32
	pkey         uint16
	typ          Type
	retryCnt     uint8
	retries      uint8
	rnrRetry     uint8
	rnrRetries   uint8
	mode         mode
	credited     bool // the peer gives credits
	recovering   bool // gone back for a loss, no progress or timeout since
	alone        bool // an RNR NAK refused the oldest message: no other is sent until it is taken
	migrated     bool
	signalAll    bool
	retryForever bool
}

// mode is what the state of the QP means to one of its machines.
type mode uint8

const (
	idle     mode = iota // Reset, Init; RTR for a requester
	running              // RTS; RTR for a responder
	draining             // SQD
	broken               // Error
	stopped              // SQE: as broken, but answers are still handled
)

// NewRequester returns the requester of a queue pair. It sends nothing until
// Connect.
func NewRequester(cfg Config) (*Requester, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := new(Requester)
	r.init(&cfg, new(Counters))
	return r, nil
}

func (r *Requester) init(cfg *Config, c *Counters) {
	n := ringSize(cfg.MaxSendWR)
	*r = Requester{
		clock:        cfg.Clock,
		c:            c,
		sq:           make([]wqe, n),
		inline:       make([]byte, n*cfg.MaxInline),
		inlineSize:   uint32(cfg.MaxInline),
		max:          uint32(cfg.MaxSendWR),
		rdCap:        uint32(cfg.MaxRdAtomic),
		typ:          cfg.Type,
		qpn:          cfg.QPN,
		ackEvery:     uint32(cfg.AckEvery),
		window:       uint32(cfg.Window),
		migrated:     !cfg.NotMigrated,
		signalAll:    cfg.SignalAll,
		retryForever: cfg.LinuxRetryForever,
	}
	if r.clock == nil {
		r.clock = &r.own
	}
	if r.ackEvery == 0 {
		r.ackEvery = 64
	}
	if r.window == 0 {
		r.window = 8192
	}
}

// reset goes back to how init left it, in the same memory. Completions that
// were not taken are gone.
func (r *Requester) reset() {
	clear(r.sq)
	*r = Requester{
		clock: r.clock, own: r.own, c: r.c, sq: r.sq, inline: r.inline, inlineSize: r.inlineSize,
		max: r.max, rdCap: r.rdCap, typ: r.typ, qpn: r.qpn, ackEvery: r.ackEvery, window: r.window,
		migrated: r.migrated, signalAll: r.signalAll, retryForever: r.retryForever,
	}
}

// Connect begins to send with the attributes of RTS, of which it takes PKey,
// QKey, PathMTU, DestQPN, SQPSN, Timeout, RetryCnt, RNRRetry and MaxRdAtomic.
func (r *Requester) Connect(a *Attr) error {
	switch {
	case r.clock == nil:
		return ErrZero
	case a == nil:
		return ErrNil
	}
	const m = AttrPathMTU | AttrDestQPN | AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	if a.outOfRange(m, int(r.rdCap), 0) != 0 {
		return ErrRange
	}
	if r.mode != idle {
		return ErrState
	}
	r.setAttr(a)
	r.una = firstCount(a.SQPSN)
	r.next, r.sent, r.asked = r.una, r.una, r.una
	r.mode = running
	return nil
}

func (r *Requester) setAttr(a *Attr) {
	r.pkey, r.qkey, r.destQPN = a.PKey, a.QKey, a.DestQPN
	r.mtu = uint32(a.PathMTU)
	r.timeout = ackTimeout(a.Timeout)
	r.retryCnt, r.retries = a.RetryCnt, a.RetryCnt
	r.rnrRetry, r.rnrRetries = a.RNRRetry, a.RNRRetry
	r.maxRd = uint32(a.MaxRdAtomic)
}

// changeAttr takes those attributes of a in m over at time t, while requests may be
// outstanding. A new count of retries begins anew, a new timeout with the next start
// of the timer, which an outstanding request has at once where there was none.
func (r *Requester) changeAttr(t int64, a *Attr, m AttrMask) {
	retries, rnrRetries := r.retries, r.rnrRetries
	r.setAttr(a)
	if m&AttrRetryCnt == 0 {
		r.retries = retries
	}
	if m&AttrRNRRetry == 0 {
		r.rnrRetries = rnrRetries
	}
	switch {
	case r.timeout == 0:
		r.ackDue = 0
	case r.ackDue == 0 && r.rnrUntil == 0 && r.asked > r.una:
		r.ackDue = t + r.timeout
	}
}

// Counters returns what was counted. Those of a QP's responder are zero.
func (r *Requester) Counters() Counters { return *r.c }

// Outstanding returns the number of work requests that are not complete.
func (r *Requester) Outstanding() int { return int(r.tail - r.done) }

// Err reports whether the requester is in Error.
func (r *Requester) Err() bool { return r.mode == broken }

// PostSend adds a work request to the send queue. In Error it completes flushed
// (rule RQ-33). The errors are ErrQueueFull, ErrState, ErrOp, ErrLength,
// ErrAlign, ErrInline, ErrNoAH, ErrRange and ErrNil; nothing has changed then.
func (r *Requester) PostSend(now time.Time, wr *SendWR) error {
	switch {
	case wr == nil:
		return ErrNil
	case r.mode == idle:
		return stateErrors[callPostSend][Reset]
	}
	r.clock.At(now)
	return r.postSend(wr)
}

func (r *Requester) postSend(wr *SendWR) error {
	if r.tail-r.head >= uint64(r.max) {
		// Silent completions give their room back here at the latest.
		if r.skipSilent(); r.tail-r.head >= uint64(r.max) {
			return errSendFull
		}
	}
	length, err := r.checkWR(wr)
	if err != nil {
		return err
	}
	i := r.tail & uint64(len(r.sq)-1)
	w := &r.sq[i]
	w.wr = *wr
	w.length = length
	w.n = 1
	if r.typ != UD && wr.Op != OpFlush && r.mtu != 0 { // Error may come before the MTU
		w.n = packets(uint64(length), r.mtu)
	}
	w.got, w.again, w.status, w.first = 0, false, Success, 0
	if wr.Flags&Inline != 0 {
		buf := r.inline[i*uint64(r.inlineSize):][:0:r.inlineSize]
		buf = append(buf, span{wr.Local, wr.Gather}.slice(0, uint64(length), buf)...)
		w.wr.Local, w.wr.Gather = buf, nil
	}
	r.tail++
	if r.mode == broken || r.mode == stopped {
		w.status = WRFlushErr
		r.done, r.cur, r.started = r.tail, r.tail, r.tail
	}
	return nil
}

// checkWR returns the length of wr's message in bytes, or why it is refused.
func (r *Requester) checkWR(wr *SendWR) (uint32, error) {
	local := span{wr.Local, wr.Gather}.len()
	switch {
	case wr.Op > OpFlush,
		r.typ == UD && wr.Op > OpSendImm,
		r.typ == UC && wr.Op != OpSend && wr.Op != OpSendImm && wr.Op != OpWrite && wr.Op != OpWriteImm,
		r.typ == XRCSend && wr.Op > OpFetchAdd,
		r.typ == XRCRecv:
		return 0, ErrOp
	case wr.Op.answered() && r.maxRd == 0 && r.mode != broken: // it would wait for ever
		return 0, errNoRd
	case local > MaxMessage:
		return 0, errMessage
	case r.typ == XRCSend && wr.SRQ > maxQPN:
		return 0, errSRQNumber
	}
	if wr.Flags&Inline != 0 && (wr.Op.answered() && wr.Op != OpAtomicWrite || local > uint64(r.inlineSize)) {
		return 0, ErrInline
	}
	switch wr.Op {
	case OpCmpSwap, OpFetchAdd:
		if wr.RemoteAddr&7 != 0 {
			return 0, ErrAlign
		}
		if local < 8 {
			return 0, errAtomicLocal
		}
		return 8, nil
	case OpAtomicWrite:
		if wr.RemoteAddr&7 != 0 {
			return 0, ErrAlign
		}
		if local != 8 {
			return 0, errAtomicWrite
		}
	case OpRead:
		// All PSNs of a READ are outstanding at once (rule PS-2).
		if r.mtu != 0 && packets(local, r.mtu) >= psn.Half {
			return 0, errReadPSNs
		}
	case OpFlush:
		if wr.Length > MaxMessage {
			return 0, errMessage
		}
		return wr.Length, nil
	}
	if r.typ == UD {
		switch {
		case wr.AH == nil:
			return 0, ErrNoAH
		case local > uint64(r.mtu) && r.mtu != 0:
			return 0, errDatagram
		case wr.RemoteQPN > maxQPN:
			return 0, errRemoteQPN
		}
	}
	return uint32(local), nil
}

func (r *Requester) at(i uint64) *wqe { return &r.sq[i&uint64(len(r.sq)-1)] }

// NextCompletion takes the oldest completion. It reports false when there is
// none.
func (r *Requester) NextCompletion(c *Completion) bool {
	r.skipSilent()
	if r.head == r.done {
		return false
	}
	w := r.at(r.head)
	*c = Completion{ID: w.wr.ID, Status: w.status, Op: w.wr.Op, QPN: r.qpn}
	if w.wr.Op.answered() {
		c.ByteLen = w.length
	}
	r.release(w)
	return true
}

// skipSilent frees entries that succeeded and were not signalled.
func (r *Requester) skipSilent() {
	for r.head != r.done {
		w := r.at(r.head)
		if w.status != Success || r.signals(w) {
			return
		}
		r.release(w)
	}
}

func (r *Requester) signals(w *wqe) bool { return r.signalAll || w.wr.Flags&Signaled != 0 }

// release frees the entry at head, and lets go of the caller's memory.
func (r *Requester) release(w *wqe) {
	w.wr.Local, w.wr.Gather, w.wr.AH = nil, nil, nil
	r.head++
}

// Deadline returns when Tick is due, or false when nothing is.
func (r *Requester) Deadline() (time.Time, bool) { return r.clock.Deadline(r.deadline()) }

func (r *Requester) deadline() int64 { return earlier(r.ackDue, r.rnrUntil) }

// Tick lets time pass: it ends RNR waits and fires the acknowledgement timer.
func (r *Requester) Tick(now time.Time) { r.tick(r.clock.At(now)) }

func (r *Requester) tick(t int64) {
	if r.rnrUntil != 0 && t >= r.rnrUntil {
		r.rnrUntil = 0
	}
	if r.ackDue != 0 && t >= r.ackDue {
		r.c.LocalAckTimeoutErr++
		r.goBack()
		r.recovering = false // what is sent again now may be lost again (rule RQ-34)
	}
}

// sendable returns the entry of the packet that may be sent now, or nil.
func (r *Requester) sendable() *wqe {
	if r.cur == r.tail || r.mode == idle || r.mode == broken || r.mode == stopped || r.alone && r.cur != r.done {
		return nil
	}
	w := r.at(r.cur)
	if r.cur == r.started {
		// A message that begins.
		if r.mode == draining {
			return nil
		}
		if w.wr.Op.answered() && r.rdOut >= r.maxRd || w.wr.Flags&Fence != 0 && r.rdOut != 0 {
			return nil
		}
		need := uint64(1)
		if w.wr.Op == OpRead {
			need = uint64(w.n)
		}
		if out := r.next - r.una; out != 0 && out+need > uint64(r.window) {
			return nil
		}
		if r.limited(w, r.lastSSN+1) && r.waitsForCredit(r.lastSSN+1) {
			return nil
		}
		return w
	}
	if r.next == r.sent && r.next-r.una >= uint64(r.window) {
		return nil
	}
	if r.limited(w, w.ssn) && r.waitsForCredit(w.ssn) {
		return nil
	}
	return w
}

// limited reports whether w, the message of number ssn, consumes a receive and
// lies beyond the credits (rule RQ-15).
func (r *Requester) limited(w *wqe, ssn uint32) bool {
	return r.credited && w.wr.Op.takesReceive() && int32(ssn-r.limit) > 0
}

// waitsForCredit reports whether a packet of the limited message ssn has to wait.
// One such packet may be unacknowledged, of the first message beyond the limit.
// Where no acknowledgement is to come, for the limit arrived after the last packet
// was sent, one more packet asks for it (rule RQ-05).
func (r *Requester) waitsForCredit(ssn uint32) bool {
	return r.limitedPSN > r.una || int32(ssn-r.limit) > 1 && r.asked > r.una
}

// NextPacket makes the next packet to send, or reports false when there is none
// now.
func (r *Requester) NextPacket(now time.Time, out *Outgoing) bool {
	return r.nextPacket(r.clock.At(now), out)
}

// drain begins SQD: no message begins. What went out last may have asked for no
// acknowledgement, for more was to follow: it is sent again and asks.
func (r *Requester) drain() {
	r.mode = draining
	if r.cur == r.started && r.cur != r.done && r.next == r.sent && r.asked < r.next {
		r.cur--
		r.next--
	}
}

// nextPacket never sends while an RNR wait lasts.
func (r *Requester) nextPacket(t int64, out *Outgoing) bool {
	if r.rnrUntil != 0 {
		if t < r.rnrUntil {
			return false
		}
		r.rnrUntil = 0
	}
	w := r.sendable()
	if w == nil {
		return false
	}
	if r.cur == r.started {
		r.start(w)
	}
	out.Retransmission = r.next < r.sent
	out.AH = nil
	if r.typ == UD {
		out.AH = w.wr.AH
	}
	r.build(w, out)

	p := &out.Packet
	r.c.TxPackets++
	if out.Retransmission {
		r.c.Retransmitted++
	}
	last := r.next >= w.first+uint64(w.n)
	if last {
		r.cur++
	}
	r.sent = max(r.sent, r.next)
	if r.typ == UC || r.typ == UD {
		r.una = r.next
		if last {
			r.done = r.cur
		}
		return true
	}

	limited := r.limited(w, w.ssn)
	if limited {
		r.limitedPSN = r.next
	}
	r.sinceAckReq++
	// Rule RQ-05.
	p.AckReq = last && (r.signals(w) || w.wr.Op.answered()) || r.sinceAckReq >= r.ackEvery ||
		limited || r.sendable() == nil
	if p.AckReq {
		r.sinceAckReq = 0
		r.asked = max(r.asked, r.next)
		if r.ackDue == 0 && r.timeout != 0 {
			r.ackDue = t + r.timeout
		}
	}
	return true
}

// start gives an entry its PSNs.
func (r *Requester) start(w *wqe) {
	w.first = r.next
	r.started++
	r.lastSSN++
	w.ssn = r.lastSSN
	if w.wr.Op.answered() {
		r.rdOut++
	}
	if !w.wr.Op.takesReceive() {
		r.limit++ // it needs none of the receives that the limit counts
	}
}

// sendOps are the operations of Only, First, Middle and Last packets.
var sendOps = [...][4]bth.Operation{
	OpSend:     {bth.SendOnly, bth.SendFirst, bth.SendMiddle, bth.SendLast},
	OpSendImm:  {bth.SendOnlyImm, bth.SendFirst, bth.SendMiddle, bth.SendLastImm},
	OpSendInv:  {bth.SendOnlyInv, bth.SendFirst, bth.SendMiddle, bth.SendLastInv},
	OpWrite:    {bth.WriteOnly, bth.WriteFirst, bth.WriteMiddle, bth.WriteLast},
	OpWriteImm: {bth.WriteOnlyImm, bth.WriteFirst, bth.WriteMiddle, bth.WriteLastImm},
}

// build makes the packet at next of w, and moves next past it.
func (r *Requester) build(w *wqe, out *Outgoing) {
	p := &out.Packet
	*p = bth.Packet{}
	p.M, p.PKey, p.DestQP, p.PSN = r.migrated, r.pkey, r.destQPN, psn.Wrap(r.next)
	s := service(r.typ)
	if r.typ == XRCSend {
		p.XRCETH.SRQ = w.wr.SRQ
	}
	i := r.next - w.first // which packet of the message
	off := i * uint64(r.mtu)
	switch w.wr.Op {
	case OpRead:
		// Never begun anew: what was received stays (rule RQ-27).
		p.Opcode = s.Opcode(bth.ReadRequest)
		p.RETH = reth.Header{VA: w.wr.RemoteAddr + off, RKey: w.wr.RKey, DMALen: w.length - uint32(off)}
		w.again = w.again || i != 0
		r.next = w.first + uint64(w.n)
		return
	case OpCmpSwap, OpFetchAdd:
		p.Opcode = s.Opcode(bth.CmpSwap)
		p.AtomicETH = reth.AtomicETH{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, SwapAdd: w.wr.Swap, Compare: w.wr.CompareAdd}
		if w.wr.Op == OpFetchAdd {
			p.Opcode = s.Opcode(bth.FetchAdd)
			p.AtomicETH.SwapAdd, p.AtomicETH.Compare = w.wr.CompareAdd, 0
		}
		r.next++
		return
	case OpFlush:
		p.Opcode = s.Opcode(bth.Flush)
		p.RETH = reth.Header{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, DMALen: w.length}
		p.FETH.Placement = reth.GlobalVisibility
		if w.wr.FlushPersistence {
			p.FETH.Placement = reth.Persistence
		}
		if w.wr.FlushRegion {
			p.FETH.Sel = reth.MemoryRegion
		}
		r.next++
		return
	}

	last := i+1 == uint64(w.n)
	if w.wr.Op == OpAtomicWrite {
		p.Opcode = s.Opcode(bth.AtomicWrite)
	} else {
		place := 2
		switch {
		case w.n == 1:
			place = 0
		case i == 0:
			place = 1
		case last:
			place = 3
		}
		p.Opcode = s.Opcode(sendOps[w.wr.Op][place])
	}
	size := uint64(w.length) - off
	if !last {
		size = uint64(r.mtu)
	}
	p.SetPayload(span{w.wr.Local, w.wr.Gather}.slice(off, size, out.gather[:]))
	if i == 0 && (w.wr.Op == OpWrite || w.wr.Op == OpWriteImm || w.wr.Op == OpAtomicWrite) {
		p.RETH = reth.Header{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, DMALen: w.length}
	}
	if last {
		p.SE = w.wr.Flags&Solicited != 0 && w.wr.Op.takesReceive()
		switch w.wr.Op {
		case OpSendImm, OpWriteImm:
			p.ImmDt.Imm = w.wr.Imm
		case OpSendInv:
			p.IETH.RKey = w.wr.RKey
		}
	}
	if r.typ == UD {
		p.DestQP = w.wr.RemoteQPN
		p.DETH = bth.DETH{QKey: w.wr.RemoteQKey, SrcQP: r.qpn}
		if w.wr.RemoteQKey&(1<<31) != 0 { // rule UD-2
			p.DETH.QKey = r.qkey
		}
	}
	r.next++
}
