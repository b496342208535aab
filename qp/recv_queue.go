package qp

// recvQueue is where a responder takes receives from, and the completions that wait to
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
	recv  RecvWR       // the receive of the message under way, where hasRecv

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
		if comps == 0 { // usual in verbs, where completions are kept elsewhere
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

// take finds the receive of a message. Completions that the caller does not poll
// hold up receives, so that their number is bounded.
func (q *recvQueue) take(srq *SRQ) bool {
	if !q.hasRecv && q.room() {
		q.hasRecv = q.source(srq).take(&q.recv)
	}
	return q.hasRecv
}

// peek returns the receive that take would find, or nil.
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
