package qp

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
)

// window holds the PSNs of a requester.
//
// Invariant: una <= next <= sent, asked <= sent, and sent - una is below 2^23 (rule
// PS-2), so that a PSN of the peer names one of them only.
type window struct {
	una   psn.Seq // oldest without an acknowledgement
	next  psn.Seq // to send next: below sent after going back
	sent  psn.Seq // first never sent
	asked psn.Seq // end of those for which an acknowledgement was asked
}

// start begins with first.
func (w *window) start(first psn.Seq) { w.una, w.next, w.sent, w.asked = first, first, first, first }

// ackReq says when a packet asks for an acknowledgement in mid-message (rule RQ-05).
//
// Invariant: since < every after each packet; AskAck sets it to every.
type ackReq struct {
	every uint32
	since uint32 // packets since one asked
}

// retry is the acknowledgement timer and the transport retries (rules RQ-31, RQ-32,
// RQ-34).
//
// Invariant: left <= retry_cnt. The timer runs only while something asked for is
// outstanding, and never with a timeout of 0 or during an RNR wait.
type retry struct {
	due        int64 // when the timer fires; 0: it is off
	left       uint8
	recovering bool // gone back for a loss, no progress or timeout since
	forever    bool // retry_cnt 7 is unlimited
}

// rnrWait is the wait that an RNR NAK started (rule RQ-28).
//
// Invariant: left <= rnr_retry; during a wait the next packet is the refused one.
type rnrWait struct {
	until int64 // end of the wait; 0: none
	left  uint8
	alone bool // the oldest message was refused: no other is sent until it is accepted
}

// reads counts the outstanding requests with responses of their own (rule RQ-07).
//
// Invariant: out <= max_rd_atomic <= cap, except while more are outstanding than a lowered
// max_rd_atomic.
type reads struct {
	out uint32
	cap uint32
}

// credits is the end-to-end flow control of a requester (rule RQ-15). Message numbers
// are 32 bits here, near those of the wire.
//
// Invariant: limit only rises while credits are on; beyond is never above what was
// sent.
type credits struct {
	on     bool    // the peer advertises credits
	limit  uint32  // last message that may be sent freely
	ssn    uint32  // last message started
	beyond psn.Seq // end of the last packet sent beyond the limit
}

// start returns the number of a message that is started. One that consumes no receive
// raises the limit, which counts receives.
func (c *credits) start(takesReceive bool) uint32 {
	c.ssn++
	if !takesReceive {
		c.limit++
	}
	return c.ssn
}

// limited reports whether message ssn lies beyond the limit.
func (c *credits) limited(takesReceive bool, ssn uint32) bool {
	return c.on && takesReceive && int32(ssn-c.limit) > 0
}

// waits reports whether a packet of the limited message ssn has to wait. One such packet
// may be unacknowledged, of the first message beyond the limit. Where no acknowledgement is
// outstanding, because the limit arrived after the last packet was sent, one more packet
// asks for it (rule RQ-05).
func (c *credits) waits(w *window, ssn uint32) bool {
	return c.beyond > w.una || int32(ssn-c.limit) > 1 && w.asked > w.una
}

// take applies the credits of an acknowledgement. An old one only raises the limit (rule
// RQ-21).
func (c *credits) take(a aeth.Header, old bool) {
	n, ok := a.Syndrome.Credit().Count()
	switch {
	case !ok:
		c.on = false
		return
	case !c.on && old:
		return
	}
	// The newest message at the peer, as a 32-bit number near our own count.
	msn := c.ssn + uint32(psn.PSN(a.MSN).Diff(psn.PSN(c.ssn)))
	limit := msn + uint32(n)
	if !c.on || int32(limit-c.limit) > 0 {
		c.on, c.limit = true, limit
	}
}

// Flight returns the oldest PSN that is not acknowledged and the next to send,
// unwrapped: those between are in flight, or to be sent again where the latter has
// gone back. Of UC and UD nothing is ever in flight.
func (q *QP) Flight() (una, next uint64) { return uint64(q.req.win.una), uint64(q.req.win.next) }

// AskAck has the next request packet ask for an acknowledgement, for callers that
// are about to stop sending (rule RQ-05).
func (q *QP) AskAck() { q.req.asks.since = q.req.asks.every }

// Executed returns how many PSNs of the peer's requests were executed since the QP
// began to receive.
func (q *QP) Executed() uint64 {
	if q.resp.epsn == 0 {
		return 0
	}
	return uint64(q.resp.epsn - psn.First(q.attr.RQPSN))
}
