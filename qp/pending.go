package qp

// Pending is a set of things that a QP has for its caller.
type Pending uint8

// What may be pending.
const (
	PendingRequest        Pending = 1 << iota // a request to send, now or after an RNR wait
	PendingResponse                           // a READ response or atomic acknowledgement to send
	PendingAck                                // an acknowledgement or a NAK to send
	PendingSendCompletion                     // NextSendCompletion may return one
	PendingRecvCompletion                     // NextRecvCompletion may return one
	PendingEvent                              // NextEvent returns one

	PendingPacket = PendingRequest | PendingResponse | PendingAck
)

// Pending returns the members of the set of that are pending. A caller with many QPs need
// not call every Next method of each QP after each call.
func (q *QP) Pending(of Pending) Pending {
	var p Pending
	if of&PendingPacket != 0 {
		p = q.packets(of)
	}
	if q.req.sq.head != q.req.sq.done {
		p |= PendingSendCompletion
	}
	if q.resp.rq.compHead != q.resp.rq.compTail || q.resp.mode == broken {
		p |= PendingRecvCompletion
	}
	if q.events != 0 {
		p |= PendingEvent
	}
	return p & of
}

func (q *QP) packets(of Pending) Pending {
	var p Pending
	if of&PendingRequest != 0 && q.req.sendable() != nil {
		p |= PendingRequest
	}
	if q.resp.res.pending != 0 {
		p |= PendingResponse
	}
	if q.resp.ack.hasNak || q.resp.ack.hasAck {
		p |= PendingAck
	}
	return p
}
