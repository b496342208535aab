package qp

import "github.com/roce-go/roce/psn"

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
