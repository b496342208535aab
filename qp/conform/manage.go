package conform

import (
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/cm"
)

// conn is a connection being established: a REQ that waits for its REP.
type conn struct {
	used     bool
	src, dst netip.Addr // of REQ
	grh      bool
	commID   uint32
	qp       uint32
	psn      uint32
	mtu      int
	depth    int // READs and ATOMICs that the sender of REQ sends at a time
	taken    int // and accepts
	call     call
}

// calls are the connections that were set up lately.
type calls struct {
	conns [64]conn
	n     int        // how many there were
	msg   cm.Message // the current one
}

// manage follows connection management: REQ and REP have both QP numbers, both first PSNs
// and the path MTU.
func (w *Watcher) manage() {
	b := w.f.Packet.Payload
	if len(b) < cm.Size || w.calls.msg.Decode(b) != nil {
		return
	}
	src, dst := unmapped(w.f.Src), unmapped(w.f.Dst)
	grh := w.flows.front().grh
	if c, side := w.callOf(w.ids()); c != nil {
		w.judgeCall(c, side, b)
	}
	switch w.calls.msg.Header.AttributeID {
	case cm.AttrREQ:
		q := &w.calls.msg.REQ
		c := w.calls.find(src, dst, q.LocalCommID)
		if c == nil {
			c = &w.calls.conns[w.calls.n%len(w.calls.conns)]
			w.calls.n++
		}
		told := call{tid: w.calls.msg.Header.TransactionID, ids: [2]uint32{q.LocalCommID}, qps: [2]uint32{q.LocalQPN}, req: w.now}
		if c.src == src && c.dst == dst && c.call.again(&told, int64(w.cfg.Idle)) {
			told, told.req = c.call, w.now
		}
		w.repeats(&told, 0, b)
		w.judgeHeader(q.ServiceID, q.PrivateData)
		*c = conn{used: true, call: told, src: src, dst: dst, grh: grh, commID: q.LocalCommID, qp: q.LocalQPN, psn: q.StartingPSN,
			mtu: q.PathPacketPayloadMTU.Bytes(), depth: int(q.InitiatorDepth), taken: int(q.ResponderResources)}
	case cm.AttrREP:
		q := &w.calls.msg.REP
		c := w.calls.find(dst, src, q.RemoteCommID)
		if c == nil || !c.used {
			return
		}
		c.used = false
		w.connect(c, q)
	case cm.AttrREJ:
		w.report(w.flows.front(), Rejected, 0, uint64(w.calls.msg.REJ.Reason), 0)
	case cm.AttrDREQ:
		w.report(w.flows.front(), Disconnected, 0, uint64(w.calls.msg.DREQ.RemoteQPNEECN), 0)
	case cm.AttrSIDRREQ:
		w.judgeHeader(w.calls.msg.SIDRREQ.ServiceID, w.calls.msg.SIDRREQ.PrivateData)
	case cm.AttrSIDRREP:
		q := &w.calls.msg.SIDRREP
		if q.Status != 0 {
			return
		}
		here := w.flows.newest
		s := w.open(key{dst, src, q.QPN, w.segment(), grh})
		s.qkey, s.qkeyKnown = q.QKey, true
		w.report(s, Named, uint64(q.QKey), uint64(q.QPN), 0)
		w.flows.touch(here)
	}
}

// find returns the one that src set up with dst under communication ID id, or nil.
func (t *calls) find(src, dst netip.Addr, id uint32) *conn {
	for i := range t.conns {
		c := &t.conns[i]
		if c.commID == id && c.src == src && c.dst == dst {
			return c
		}
	}
	return nil
}

// connect opens both directions of a new connection. The starting PSN in a
// message is the first that its receiver is to send.
func (w *Watcher) connect(c *conn, q *cm.REP) {
	here := w.flows.newest
	there := w.open(key{c.src, c.dst, q.LocalQPN, w.segment(), c.grh})
	back := w.open(key{c.dst, c.src, c.qp, w.segment(), c.grh})
	for _, side := range [2]struct {
		s     *stream
		psn   uint32
		depth int
	}{{there, q.StartingPSN, min(c.depth, int(q.ResponderResources))}, {back, c.psn, min(c.taken, int(q.InitiatorDepth))}} {
		s := side.s
		x := w.exchangeOf(s)
		if x.started && x.next == base|uint64(side.psn) {
			continue // a repeated REP
		}
		w.settle(x)
		x.restart()
		u := base | uint64(side.psn)
		x.started, x.certain, x.first, x.fresh, x.next, x.acked = true, true, u, u, u, u
		x.count = messages{known: true, at: u - 1}
		x.depth = side.depth
		s.rsp = responder{}
		s.mtu, s.mtuFirm = c.mtu, c.mtu != 0
		s.serviceKnown, s.pkeyKnown = false, false
	}
	w.join(there, back, pairCM)
	w.reportAt(there, Connected, uint64(c.qp), uint64(q.LocalQPN), 0, w.frames, w.now, psn.PSN(q.StartingPSN))
	// The flow of the datagram itself stays the newest.
	w.flows.touch(here)
}

// finish reports what the end of a flow shows.
func (w *Watcher) finish(s *stream) {
	var p *stream
	if s.peer >= 0 {
		p = w.flows.all[s.peer]
	}
	if p != nil && s.marks >= 3 && p.CNPs == 0 && w.last(p) > s.firstCE {
		w.reportAt(p, ECNUnanswered, 0, s.marks, s.firstCEFrame, 0, w.now, 0)
	}
	x := s.req
	if x == nil || !x.started {
		return
	}
	w.resolve(s, x, 0)
	w.recount(s, x)
	w.settle(x)
	w.unheard(s, x)
	if x.early.n > 0 && !w.cfg.Complete {
		a := &x.early.acks[x.early.n-1]
		w.reportAt(s.peerOr(w), AckNeverSentDoubt, uint64(psn.Wrap(x.next)), 0, 0, a.frame, a.t, psn.Wrap(a.psn))
		x.early.n = 0
	}
	if p != nil && p.rsp.dead {
		return
	}
	for v := max(x.acked, x.first, x.undone); v < x.next && v < x.acked+uint64(len(x.log.ring)); v++ {
		e := x.log.at(v)
		if e == nil || e.flags&asked == 0 || e.flags&isTail != 0 || e.sends < 2 || e.op.Service() == bth.UC {
			continue
		}
		w.reportAt(s, Unanswered, 0, uint64(e.sends), e.frame, 0, w.now, psn.Wrap(v))
		return
	}
}

// unheard counts what was not judged, because nothing of the other direction was
// captured.
func (w *Watcher) unheard(s *stream, x *exchange) {
	if s.service.Service() == bth.UC || !w.oneWay(s) {
		return
	}
	for _, c := range [...]Check{NakRepeated, MSNWrong, ResponseLate, ReadOpcode, GoBackTooFar, RNRTooEarly} {
		w.leave(c, ReasonOneWay, s.DataFrames)
	}
}
