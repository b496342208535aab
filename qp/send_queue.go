package qp

import "github.com/roce-go/roce/psn"

// wqe is an entry of the send queue.
type wqe struct {
	wr     SendWR
	first  psn.Seq // of its first packet, once started
	n      uint32  // PSNs that it takes
	length uint32  // bytes of the message, or asked for
	ssn    uint32  // number of the message among those started, from 1
	got    uint32  // requests with responses of their own: response packets received, in order
	again  bool    // a READ that was resumed: its responses may begin with any opcode
	status Status
}

// end returns the PSN after the last one of w.
func (w *wqe) end() psn.Seq { return w.first + psn.Seq(w.n) }

// sendQueue is the ring of work requests, in the order of their posts. The counts
// index it modulo its length.
//
// Invariant: head <= done <= cur <= started <= tail, and tail - head <= max. Entries below
// head are free, below done complete, below started started, below tail posted. The next
// packet belongs to entry cur.
type sendQueue struct {
	wqe        []wqe
	inline     []byte // of each entry, inlineSize bytes
	max        uint32 // entries in use at most
	inlineSize uint32

	head, done, cur, started, tail uint64

	// The entries from done to local may be local operations, or have failed already.
	// Those behind are not.
	local uint64
}

func newSendQueue(cfg *Config) sendQueue {
	n := ringSize(cfg.MaxSendWR)
	return sendQueue{wqe: make([]wqe, n), inline: make([]byte, n*cfg.MaxInline), max: uint32(cfg.MaxSendWR), inlineSize: uint32(cfg.MaxInline)}
}

func (q *sendQueue) reset() {
	clear(q.wqe)
	*q = sendQueue{wqe: q.wqe, inline: q.inline, max: q.max, inlineSize: q.inlineSize}
}

func (q *sendQueue) at(i uint64) *wqe { return &q.wqe[i&uint64(len(q.wqe)-1)] }

func (q *sendQueue) full() bool { return q.tail-q.head >= uint64(q.max) }

// push adds wr, of length bytes in n packets.
func (q *sendQueue) push(wr *SendWR, length, n uint32) *wqe {
	i := q.tail & uint64(len(q.wqe)-1)
	w := &q.wqe[i]
	w.wr, w.length, w.n = *wr, length, n
	w.first, w.got, w.again, w.status = 0, 0, false, Success
	q.tail++
	return w
}

// copyInline copies the data of w, the newest entry (rule RQ-12). It returns false where
// the memory refuses it.
func (q *sendQueue) copyInline(w *wqe, from span) bool {
	i := (q.tail - 1) & uint64(len(q.wqe)-1)
	buf := q.inline[i*uint64(q.inlineSize):][:0:q.inlineSize]
	b, ok := from.slice(0, uint64(w.length), buf)
	w.wr.Local, w.wr.Gather, w.wr.SGEs = append(buf, b...), nil, nil
	return ok
}

// release frees the entry at head, and drops its references to the caller's memory.
func (q *sendQueue) release(w *wqe) {
	w.wr.Local, w.wr.Gather, w.wr.SGEs, w.wr.AH = nil, nil, nil, nil
	q.head++
}
