package conform

import (
	"hash/maphash"

	"github.com/roce-go/roce/qp/cm"
)

// call is what the messages of a connection's management have told so far, of REQ's
// sender (0) and its receiver (1).
type call struct {
	tid   uint64    // REQ's transaction
	ids   [2]uint32 // communication IDs; that of the receiver is known from REP on
	qps   [2]uint32
	dreqs [2]uint64 // transactions of the DREQs, one more, or 0
	sent  [3]uint64 // hashes of REQ, REP and RTU, or 0
	req   int64     // time of the newest REQ
}

// again reports whether a REQ is the one of c once more, and no other one of a host that
// began anew with the same numbers.
func (c *call) again(n *call, idle int64) bool {
	return c.tid == n.tid && c.ids[0] == n.ids[0] && c.qps[0] == n.qps[0] && n.req-c.req <= idle
}

// repeats reports a message that was sent before and is another one now.
func (w *Watcher) repeats(c *call, i int, b []byte) {
	h := maphash.Bytes(w.seed, b[:cm.Size]) | 1
	if c.sent[i] != 0 && c.sent[i] != h {
		w.report(w.flows.front(), CMRepeats, 0, uint64(w.calls.msg.Header.AttributeID), 0)
	}
	c.sent[i] = h
}

// judgeCall judges a message about a connection whose REQ was captured; side is its
// sender's.
func (w *Watcher) judgeCall(c *call, side int, b []byte) {
	s := w.flows.front()
	tid := c.tid
	switch m := &w.calls.msg; m.Header.AttributeID {
	case cm.AttrREP:
		w.repeats(c, 1, b)
		c.ids[1], c.qps[1] = m.REP.LocalCommID, m.REP.LocalQPN
	case cm.AttrRTU:
		w.repeats(c, 2, b)
	case cm.AttrMRA:
	case cm.AttrREJ:
		if int(m.REJ.MessageRejected) == side { // its own REQ or REP
			w.report(s, CMRejected, 0, uint64(m.REJ.MessageRejected), 0)
		}
		if c.dreqs != [2]uint64{} {
			return // it may be about one of them
		}
	case cm.AttrDREQ:
		if to := c.qps[1-side]; to != 0 && m.DREQ.RemoteQPNEECN != to {
			w.report(s, CMDisconnects, uint64(to), uint64(m.DREQ.RemoteQPNEECN), 0)
		}
		c.dreqs[side] = m.Header.TransactionID + 1
		return
	case cm.AttrDREP:
		if tid = c.dreqs[1-side] - 1; tid == 1<<64-1 {
			return // the DREQ was not captured
		}
	default:
		return
	}
	if m := w.calls.msg.Header.TransactionID; m != tid {
		w.report(s, CMTransaction, tid, m, 0)
	}
}

// judgeHeader judges RDMA-CM's addressing header of a REQ or SIDR_REQ.
func (w *Watcher) judgeHeader(service cm.ServiceID, private []byte) {
	var h cm.CMAHeader
	if !service.IsIP() || h.Decode(private) != nil {
		return
	}
	if h.MajorVersion != 0 || h.IPVersion != 4 && h.IPVersion != 6 {
		w.report(w.flows.front(), CMHeader, 0, uint64(private[0])<<8|uint64(private[1]), 0)
	}
}

// callOf finds the call of a message between two communication IDs, of its sender and
// its receiver, and says which side sends.
func (w *Watcher) callOf(local, remote uint32) (c *call, side int) {
	if local == 0 && remote == 0 {
		return nil, 0
	}
	src, dst := unmapped(w.f.Src), unmapped(w.f.Dst)
	if x := w.calls.find(src, dst, local); x != nil && local != 0 && (remote == 0 || x.call.ids[1] == 0 || x.call.ids[1] == remote) {
		return &x.call, 0
	}
	if x := w.calls.find(dst, src, remote); x != nil && (local == 0 || x.call.ids[1] == 0 || x.call.ids[1] == local) {
		return &x.call, 1
	}
	return nil, 0
}

// ids returns the communication IDs of the current message, of its sender and its receiver, or 0.
func (w *Watcher) ids() (local, remote uint32) {
	switch m := &w.calls.msg; m.Header.AttributeID {
	case cm.AttrREP:
		return m.REP.LocalCommID, m.REP.RemoteCommID
	case cm.AttrRTU:
		return m.RTU.LocalCommID, m.RTU.RemoteCommID
	case cm.AttrMRA:
		return m.MRA.LocalCommID, m.MRA.RemoteCommID
	case cm.AttrREJ:
		return m.REJ.LocalCommID, m.REJ.RemoteCommID
	case cm.AttrDREQ:
		return m.DREQ.LocalCommID, m.DREQ.RemoteCommID
	case cm.AttrDREP:
		return m.DREP.LocalCommID, m.DREP.RemoteCommID
	}
	return 0, 0
}
