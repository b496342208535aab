package qp

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// resource is a request that has a response of its own. It is kept until it is responded
// to, and then for a while for duplicates.
type resource struct {
	first psn.Seq // its first PSN
	n     uint32  // PSNs that it takes
	msn   uint32  // messages complete when it was
	op    bth.Operation
	pd    PD
	rkey  uint32
	va    uint64
	len   uint32

	swapAdd, compare uint64 // an atomic's operands
	orig             uint64 // what the memory held before

	// The pending response: packets at .. end-1 from PSN rspFirst on. None is pending when
	// at == end.
	rspFirst psn.Seq
	rspVA    uint64
	rspLen   uint32
	at, end  uint32
	sent     bool // sent in full once: what is pending is a replay
}

// resources is the ring of the last requests with responses of their own, of which
// max_dest_rd_atomic are remembered (rules RS-12, RS-16, RS-21, RS-22).
//
// Invariant: pending counts the requests with a pending response, and none of these is
// before first.
type resources struct {
	ring    []resource
	tail    uint64 // count of requests put in
	first   uint64 // a lower bound: every request before it has been responded to
	pending uint32
}

// at returns the entry of request i.
func (q *resources) at(i uint64) *resource { return &q.ring[i%uint64(len(q.ring))] }

// room reports whether another request may be outstanding with at most limit (rule RS-12):
// the oldest remembered one has been responded to. A pending replay for a duplicate of it
// does not count, for its requester has gone on.
func (q *resources) room(limit uint64) bool {
	if limit == 0 {
		return false
	}
	if q.tail < limit {
		return true
	}
	old := q.at(q.tail - limit)
	return old.at == old.end || old.sent
}

// push adds r, with its response pending.
func (q *resources) push(r *resource) {
	r.rspFirst, r.rspVA, r.rspLen, r.at, r.end = r.first, r.va, r.len, 0, r.n
	slot := q.at(q.tail)
	if q.tail >= uint64(len(q.ring)) && slot.at != slot.end {
		q.pending-- // a replay that is no longer needed
	}
	*slot = *r
	q.tail++
	q.pending++
}

// again makes the response of r pending once more: n packets from PSN first on.
func (q *resources) again(r *resource, first psn.Seq, n uint32) {
	if r.at == r.end {
		q.pending++
	}
	r.rspFirst, r.at, r.end = first, 0, n
}

// remembered returns the request of kind op that holds PSN n among the last limit, or nil.
// It may be responded to again, before the requests after it.
func (q *resources) remembered(n psn.Seq, op bth.Operation, limit uint64) *resource {
	for i := range min(q.tail, limit) {
		r := q.at(q.tail - 1 - i)
		if n >= r.first && n < r.first+psn.Seq(r.n) {
			if r.op != op {
				return nil
			}
			q.first = min(q.first, q.tail-1-i)
			return r
		}
	}
	return nil
}

// oldest returns the first request in order whose response is pending. There must be one.
func (q *resources) oldest() *resource {
	if n := uint64(len(q.ring)); q.tail-q.first > n {
		q.first = q.tail - n
	}
	for {
		if r := q.at(q.first); r.at != r.end {
			return r
		}
		q.first++
	}
}

// drop gives up the pending response of r.
func (q *resources) drop(r *resource) {
	r.at = r.end
	q.pending--
}

// dropAll gives up all pending responses.
func (q *resources) dropAll() {
	for i := range q.ring {
		q.ring[i].at = q.ring[i].end
	}
	q.pending = 0
}
