package qp

import (
	"time"

	"github.com/roce-go/roce/psn"
)

// Requester sends the requests of a queue pair and handles the responses: the send
// queue, retransmission, and completions of work requests (rules RQ-01 to RQ-36).
//
// After each Post, Handle or Tick, call NextPacket until it reports false,
// NextCompletion likewise, and arm one timer for Deadline.
//
// A Requester is not safe for concurrent use.
type Requester struct {
	*conn
	sq        sendQueue
	win       window
	retry     retry
	rnr       rnrWait
	credit    credits
	asks      ackReq
	reads     reads
	sel       *scoreboard // nil: go-back-N
	mode      mode
	signalAll bool
	winSize   uint32 // PSNs outstanding at most
}

// NewRequester returns the requester of a queue pair. It sends nothing until
// Connect.
func NewRequester(cfg Config) (*Requester, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	x := new(struct {
		Requester
		c conn
	})
	x.c.init(&cfg)
	x.Requester.init(&cfg, &x.c)
	return &x.Requester, nil
}

func (r *Requester) init(cfg *Config, c *conn) {
	*r = Requester{
		conn: c, sq: newSendQueue(cfg), sel: newScoreboard(&cfg.Selective),
		winSize: uint32(cfg.Window),
		retry:   retry{forever: cfg.LinuxRetryForever},
		asks:    ackReq{every: uint32(cfg.AckEvery)},
		reads:   reads{cap: uint32(cfg.MaxRdAtomic)}, signalAll: cfg.SignalAll,
	}
	if r.asks.every == 0 {
		r.asks.every = 64
	}
	if r.winSize == 0 {
		r.winSize = 8192
	}
	if n := uint32(cfg.Selective.Packets); n != 0 {
		// Long before the window is full: a sender that stops loses a round trip.
		r.winSize, r.asks.every = min(r.winSize, n), min(r.asks.every, max(1, n/4))
	}
}

// reset restores the state after init, in the same memory. Completions that were not polled
// are discarded.
func (r *Requester) reset() {
	r.sq.reset()
	if r.sel != nil {
		r.sel.start(0)
	}
	*r = Requester{conn: r.conn, sq: r.sq, winSize: r.winSize, retry: retry{forever: r.retry.forever}, sel: r.sel,
		asks: ackReq{every: r.asks.every}, reads: reads{cap: r.reads.cap}, signalAll: r.signalAll}
}

// Connect makes the requester ready to send with the attributes of RTS. It uses PKey, QKey,
// PathMTU, DestQPN, SQPSN, Timeout, RetryCnt, RNRRetry and MaxRdAtomic. It fails with a
// *AttrError, or with ErrState when it was called before.
func (r *Requester) Connect(a *Attr) error {
	switch {
	case r.conn == nil:
		return ErrZero
	case a == nil:
		return ErrNil
	}
	const m = AttrPathMTU | AttrDestQPN | AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	if bad := a.outOfRange(m, int(r.reads.cap), 0); bad != 0 {
		return &AttrError{From: Reset, To: RTS, Range: bad, attr: *a, maxRd: int(r.reads.cap)}
	}
	if r.mode != idle {
		return ErrState
	}
	r.attr.set(a, m|AttrPKey|AttrQKey)
	r.connect()
	return nil
}

// connect makes the requester ready to send with the attributes as they are set.
func (r *Requester) connect() {
	r.win.start(psn.First(r.attr.SQPSN))
	if r.sel != nil {
		r.sel.start(r.win.una)
	}
	r.retry.left, r.rnr.left = r.attr.RetryCnt, r.attr.RNRRetry
	r.mode = running
}

// changed applies a change of the attributes in m at time t, while requests may be
// outstanding. A new retry count counts from its full value. A new timeout holds from the
// next start of the timer; where there was no timeout before and a request is outstanding,
// the timer is started at once.
func (r *Requester) changed(t int64, m AttrMask) {
	if m&AttrRetryCnt != 0 {
		r.retry.left = r.attr.RetryCnt
	}
	if m&AttrRNRRetry != 0 {
		r.rnr.left = r.attr.RNRRetry
	}
	switch {
	case r.attr.Timeout == 0:
		r.retry.due = 0
	case r.retry.due == 0 && r.rnr.until == 0:
		r.startTimer(t)
	}
}

// startTimer starts the acknowledgement timer where an acknowledgement that was asked for
// is outstanding (rule RQ-31).
func (r *Requester) startTimer(t int64) {
	r.retry.due = 0
	if r.win.una < r.win.asked && r.attr.Timeout != 0 {
		r.retry.due = t + r.timeout()
	}
}

// timeout returns how long the acknowledgement timer runs, in nanoseconds.
func (r *Requester) timeout() int64 {
	if r.sel != nil {
		return r.sel.timeout(&r.win)
	}
	return ackTimeout(r.attr.Timeout)
}

func (r *Requester) maxRd() uint32 { return uint32(r.attr.MaxRdAtomic) }

// Counters returns what was counted; with a QP's responder, both together.
func (r *Requester) Counters() Counters {
	if r.conn == nil {
		return Counters{}
	}
	return r.counters
}

// Outstanding returns the number of work requests that are not complete.
func (r *Requester) Outstanding() int { return int(r.sq.tail - r.sq.done) }

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
	err := r.postSend(wr)
	r.invariants()
	return err
}

func (r *Requester) postSend(wr *SendWR) error {
	if r.sq.full() {
		// Entries of unsignalled requests are freed here at the latest.
		if r.skipSilent(); r.sq.full() {
			return errSendFull
		}
	}
	length, err := r.checkWR(wr)
	if err != nil {
		return err
	}
	n := uint32(1)
	if r.typ != UD && wr.Op != OpFlush && !wr.Op.local() && r.attr.PathMTU != 0 { // Error may come before the MTU
		n = packets(uint64(length), r.mtu())
	}
	w := r.sq.push(wr, length, n)
	if wr.Fail != Success {
		r.sq.local = r.sq.tail
		r.postFailed(w)
		return nil
	}
	if wr.Flags&Inline != 0 && !r.sq.copyInline(w, r.outgoing(wr)) {
		r.sq.tail--
		return errInlineKey
	}
	if r.mode == broken || r.mode == stopped {
		w.status = WRFlushErr
		r.sq.done, r.sq.cur, r.sq.started = r.sq.tail, r.sq.tail, r.sq.tail
	} else if wr.Op.local() {
		r.sq.local = r.sq.tail
		r.runLocal()
	}
	return nil
}

// operations are the sets of operations that may be posted.
var operations = [...]uint32{
	RC:      1<<(OpLocalInv+1) - 1,
	UC:      1<<OpSend | 1<<OpSendImm | 1<<OpWrite | 1<<OpWriteImm | 1<<OpBindMW | 1<<OpLocalInv,
	UD:      1<<(OpSendImm+1) - 1,
	XRCSend: 1<<(OpFetchAdd+1) - 1 | 1<<OpBindMW | 1<<OpLocalInv,
	XRCRecv: 0,
}

// checkWR returns the length of wr's message in bytes, or why it is refused.
func (r *Requester) checkWR(wr *SendWR) (uint32, error) {
	if wr.Fail != Success {
		return 0, nil
	}
	local := uint64(len(wr.Local))
	if wr.Gather != nil || wr.SGEs != nil {
		buf := r.outgoing(wr)
		if local = buf.len(); wr.SGEs != nil && buf.mem == nil {
			return 0, errNoLocal
		}
	}
	switch {
	case wr.Op > OpLocalInv || operations[r.typ]>>wr.Op&1 == 0:
		return 0, ErrOp
	case wr.Op.hasResponse() && r.maxRd() == 0 && r.mode != broken: // it would wait for ever
		return 0, errNoRd
	case local > MaxMessage:
		return 0, errMessage
	case r.typ == XRCSend && wr.SRQ > maxQPN:
		return 0, errSRQNumber
	}
	if wr.Op.local() {
		if _, ok := r.mem.(Binder); !ok {
			return 0, errNoBinder
		}
		return 0, nil
	}
	if wr.Flags&Inline != 0 && (wr.Op.hasResponse() && wr.Op != OpAtomicWrite || local > uint64(r.sq.inlineSize)) {
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
		if r.mtu() != 0 && packets(local, r.mtu()) >= psn.Half {
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
		case local > uint64(r.mtu()) && r.mtu() != 0:
			return 0, errDatagram
		case wr.RemoteQPN > maxQPN:
			return 0, errRemoteQPN
		}
	}
	return uint32(local), nil
}

// NextCompletion polls the oldest completion into c. It reports false when there is none.
func (r *Requester) NextCompletion(c *Completion) bool {
	r.skipSilent()
	if r.sq.head == r.sq.done {
		return false
	}
	w := r.sq.at(r.sq.head)
	*c = Completion{ID: w.wr.ID, Status: w.status, Op: w.wr.Op, QPN: r.qpn}
	if w.wr.Op.hasResponse() {
		c.ByteLen = w.length
	}
	r.sq.release(w)
	r.invariants()
	return true
}

// skipSilent frees entries that succeeded and were not signalled.
func (r *Requester) skipSilent() {
	for r.sq.head != r.sq.done {
		w := r.sq.at(r.sq.head)
		if w.status != Success || r.signals(w) {
			return
		}
		r.sq.release(w)
	}
}

func (r *Requester) signals(w *wqe) bool { return r.signalAll || w.wr.Flags&Signaled != 0 }

// Deadline returns when Tick is due, or false when nothing is.
func (r *Requester) Deadline() (time.Time, bool) {
	if r.conn == nil {
		return time.Time{}, false
	}
	return r.clock.Deadline(r.deadline())
}

func (r *Requester) deadline() int64 { return earlier(r.retry.due, r.rnr.until) }

// Tick lets time pass: it ends RNR waits and fires the acknowledgement timer.
func (r *Requester) Tick(now time.Time) {
	if r.conn != nil {
		r.tick(r.clock.At(now))
		r.invariants()
	}
}

func (r *Requester) tick(t int64) {
	if r.rnr.until != 0 && t >= r.rnr.until {
		r.rnr.until = 0
	}
	if r.retry.due != 0 && t >= r.retry.due {
		r.counters.LocalAckTimeoutErr++
		if r.sel != nil {
			r.sel.high, r.sel.taken = r.win.sent, r.win.una // rule SR-6
		}
		r.goBack()
		r.retry.recovering = false // what is retransmitted now may be lost again (rule RQ-34)
	}
}

// runLocal executes the local operations at the head of the send queue: one starts when all
// before it are complete, and those after it start when it is complete (rule RQ-36). They
// take no PSN. It fails a request at the head whose memory was refused.
func (r *Requester) runLocal() {
	if r.sq.done < r.sq.local {
		r.runLocalHead()
	}
}

func (r *Requester) runLocalHead() {
	begun := r.mode == draining && r.sq.done != r.sq.started
	if r.sq.done != r.sq.tail && (r.mode == running || begun) && r.sq.at(r.sq.done).status != Success {
		r.failHead(r.sq.at(r.sq.done).status)
		return
	}
	for r.mode == running && r.sq.done == r.sq.started && r.sq.started != r.sq.tail {
		w := r.sq.at(r.sq.started)
		if !w.wr.Op.local() {
			return
		}
		r.sq.started++
		r.sq.cur = r.sq.started
		if !r.execute(&w.wr) {
			r.fail(w, MWBindErr)
			return
		}
		r.complete(w, Success)
	}
}

// execute performs a local operation, or returns false where the memory refuses it.
func (r *Requester) execute(wr *SendWR) bool {
	binder := r.mem.(Binder) // checked when it was posted
	if wr.Op == OpLocalInv {
		return binder.InvalidateLocal(wr.RKey) == nil
	}
	_, err := binder.Bind(Binding{Window: wr.RKey, Region: wr.Region, VA: wr.RemoteAddr, Len: wr.Length, Access: wr.Access, QPN: r.qpn, NewRKey: wr.NewRKey})
	return err == nil
}

// refuseLocal marks w, the entry at cur, to fail with LocalProtErr when all before it are
// complete, because the memory refuses one of its SGEs. What was sent before it is
// retransmitted, so that the last packet asks for an acknowledgement.
func (r *Requester) refuseLocal(w *wqe) {
	w.status = LocalProtErr
	r.sq.local = max(r.sq.local, r.sq.cur+1)
	if r.sq.cur == r.sq.done {
		r.failHead(LocalProtErr)
		return
	}
	r.ask()
}

// ask retransmits all that is not acknowledged; the last packet of it asks for an
// acknowledgement.
func (r *Requester) ask() {
	if r.sel != nil {
		r.sel.lose(r.win.sent)
	}
	r.again()
}

// postFailed handles the post of w, the newest entry, which is to complete with the status
// in its Fail.
func (r *Requester) postFailed(w *wqe) {
	w.status = w.wr.Fail
	switch {
	case r.mode == broken || r.mode == stopped:
		w.status = WRFlushErr
		r.sq.done, r.sq.cur, r.sq.started = r.sq.tail, r.sq.tail, r.sq.tail
	case r.sq.done == r.sq.tail-1:
		r.runLocal()
	case r.sq.cur == r.sq.tail-1 && r.win.asked < r.win.next:
		r.ask()
	}
}

// failHead completes the entry at done with status s. UC and UD QPs go to SQE, others to
// Error; what else is queued completes flushed.
func (r *Requester) failHead(s Status) {
	r.fail(r.sq.at(r.sq.done), s)
	if r.typ == UC || r.typ == UD {
		r.mode = stopped
		r.attr.State = SQE
	}
}
