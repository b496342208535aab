package qp

// recvQueue holds the receives that a responder consumes, and the completions that wait to
// be polled.
//
// Invariant: at most one of ring, srq and xrc has receives. No more completions wait
// than comps has entries: a receive is consumed only while there is room for its
// completion.
type recvQueue struct {
	ring  recvRing
	srq   *SRQ
	xrc   SRQLookup
	comps []Completion // ring
	recv  RecvWR       // the receive of the current message, where hasRecv

	compHead, compTail uint32
	hasRecv            bool
}

// defaultSRQCompletions is how many completions an XRC target holds where MaxRecvWR
// is 0.
const defaultSRQCompletions = 256

func newRecvQueue(cfg *Config) recvQueue {
	n, comps := cfg.MaxRecvWR, cfg.MaxRecvWR
	if cfg.SRQ != nil || cfg.XRCSRQs != nil {
		n = 0
		if comps == 0 { // usual in verbs, where completions are in a completion queue
			comps = defaultSRQCompletions
			if cfg.SRQ != nil {
				comps = int(cfg.SRQ.ring.max)
			}
		}
	}
	return recvQueue{ring: newRecvRing(n), srq: cfg.SRQ, xrc: cfg.XRCSRQs, comps: make([]Completion, ringSize(comps))}
}

func (q *recvQueue) reset() {
	clear(q.ring.wr)
	*q = recvQueue{ring: recvRing{wr: q.ring.wr, max: q.ring.max}, srq: q.srq, xrc: q.xrc, comps: q.comps}
}

// room reports whether another completion has room.
func (q *recvQueue) room() bool { return q.compTail-q.compHead < uint32(len(q.comps)) }

// source returns where the next receive comes from: srq, or else the queue's own ring.
func (q *recvQueue) source(srq *SRQ) *recvRing {
	if srq != nil {
		return &srq.ring
	}
	return &q.ring
}

// take consumes the receive of a message. While comps is full of completions that the
// caller has not polled, it consumes none: their number is bounded.
func (q *recvQueue) take(srq *SRQ) bool {
	if !q.hasRecv && q.room() {
		q.hasRecv = q.source(srq).take(&q.recv)
	}
	return q.hasRecv
}

// peek returns the receive that take would consume, or nil.
func (q *recvQueue) peek() *RecvWR {
	if r := q.source(q.srq); r.head != r.tail && q.room() {
		return &r.wr[r.head&uint32(len(r.wr)-1)]
	}
	return nil
}

func (q *recvQueue) push(c Completion) {
	q.comps[q.compTail&uint32(len(q.comps)-1)] = c
	q.compTail++
}

func (q *recvQueue) pop(c *Completion) bool {
	if q.compHead == q.compTail {
		return false
	}
	*c = q.comps[q.compHead&uint32(len(q.comps)-1)]
	q.compHead++
	return true
}

// recvRing holds posted receives, oldest first.
type recvRing struct {
	wr         []RecvWR
	head, tail uint32
	max        uint32
}

func newRecvRing(n int) recvRing {
	return recvRing{wr: make([]RecvWR, ringSize(n)), max: uint32(n)}
}

func (q *recvRing) len() int { return int(q.tail - q.head) }

func (q *recvRing) post(wr *RecvWR) error {
	if wr == nil {
		return ErrNil
	}
	if q.tail-q.head >= q.max {
		return errRecvFull
	}
	if buf := (span{one: wr.Local, many: wr.Scatter, sges: wr.SGEs}); buf.len() > MaxMessage {
		return errMessage
	}
	q.wr[q.tail&uint32(len(q.wr)-1)] = *wr
	q.tail++
	return nil
}

func (q *recvRing) take(wr *RecvWR) bool {
	if q.head == q.tail {
		return false
	}
	slot := &q.wr[q.head&uint32(len(q.wr)-1)]
	*wr = *slot
	*slot = RecvWR{}
	q.head++
	return true
}

// SRQ is a receive queue that several QPs share. Like the QPs that use it, it
// is not safe for concurrent use.
type SRQ struct {
	ring  recvRing
	num   uint32
	limit uint32
	armed bool
	hasPD bool
	pd    PD
}

// NewSRQ returns a queue for at most n receives, 1 .. 2^20. Its number, 24 bits,
// is how XRC requests name it.
func NewSRQ(num uint32, n int) (*SRQ, error) {
	if n < 1 || n > 1<<20 || num > 0xffffff {
		return nil, ErrConfig
	}
	return &SRQ{ring: newRecvRing(n), num: num}, nil
}

// Num returns the queue's number.
func (q *SRQ) Num() uint32 { return q.num }

// SetPD gives the queue a protection domain of its own: SGEs of its receives name memory of
// pd instead of that of the QP, and requests to an XRC target that name the queue access
// that memory. Without SetPD, the QP's domain is used.
func (q *SRQ) SetPD(pd PD) { q.pd, q.hasPD = pd, true }

// Len returns the number of receives posted and not yet consumed.
func (q *SRQ) Len() int { return q.ring.len() }

// LimitReached reports, once after each Arm, that fewer receives are left than
// the limit (IBV_EVENT_SRQ_LIMIT_REACHED).
func (q *SRQ) LimitReached() bool {
	if q.armed && q.ring.len() < int(q.limit) {
		q.armed = false
		return true
	}
	return false
}

// Arm sets the limit that LimitReached reports (srq_limit). 0 disarms.
func (q *SRQ) Arm(limit int) { q.limit, q.armed = uint32(limit), limit > 0 }

// PostRecv adds a receive.
func (q *SRQ) PostRecv(wr *RecvWR) error { return q.ring.post(wr) }
