package qp_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/reth"
)

// What the hostile networks found, each reduced to the packets that show it.

var foundStart = time.Unix(1000, 0)

func foundRequester(t *testing.T) *qp.Requester {
	r, err := qp.NewRequester(qp.Config{QPN: 1, MaxSendWR: 8, MaxRdAtomic: 1})
	require.NoError(t, err)
	require.NoError(t, r.Connect(&qp.Attr{PKey: 0xffff, PathMTU: 256, DestQPN: 2, SQPSN: 10, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1}))
	return r
}

func foundAck(n uint32, s aeth.Syndrome, msn uint32) *bth.Packet {
	p := &bth.Packet{AETH: aeth.Header{Syndrome: s, MSN: msn}}
	p.Opcode, p.PKey, p.DestQP, p.PSN = bth.Opcode(0x11), 0xffff, 1, psn.PSN(n)
	return p
}

// Rules RQ-05, RQ-15: the first credits come in the middle of a message whose
// packets did not ask for an acknowledgement.
func TestFoundCreditsInMidMessage(t *testing.T) {
	r := foundRequester(t)
	var out qp.Outgoing
	require.NoError(t, r.PostSend(foundStart, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 8)}))
	require.True(t, r.NextPacket(foundStart, &out))
	require.NoError(t, r.PostSend(foundStart, &qp.SendWR{Op: qp.OpSend, Local: make([]byte, 1000)}))
	require.True(t, r.NextPacket(foundStart, &out))
	require.False(t, out.Packet.AckReq)
	r.HandlePacket(foundStart, foundAck(10, aeth.AckSyndrome(0), 1))
	require.True(t, r.NextPacket(foundStart, &out), "nothing was asked for, so one packet goes out")
	require.True(t, out.Packet.AckReq)
	require.False(t, r.NextPacket(foundStart, &out), "and none without credits")
	r.HandlePacket(foundStart, foundAck(12, aeth.AckSyndrome(0), 1))
	require.True(t, r.NextPacket(foundStart, &out), "the message has its receive")
	require.EqualValues(t, 13, out.Packet.PSN)
}

// Rules RQ-05, RQ-14: SQD comes after a packet that did not ask for an
// acknowledgement, because another was to follow.
func TestFoundDrainAsks(t *testing.T) {
	q, err := qp.New(qp.Config{QPN: 1, MaxSendWR: 8})
	require.NoError(t, err)
	a := qp.Attr{PKey: 0xffff, PathMTU: 256, DestQPN: 2, RetryCnt: 7, RNRRetry: 7}
	require.NoError(t, q.Connect(foundStart, &a))
	for range 2 {
		require.NoError(t, q.PostSend(foundStart, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 8)}))
	}
	var out qp.Outgoing
	require.True(t, q.NextPacket(foundStart, &out))
	require.False(t, out.Packet.AckReq)
	require.NoError(t, q.Modify(foundStart, &qp.Attr{State: qp.SQD}, qp.AttrState))
	require.True(t, q.NextPacket(foundStart, &out))
	require.EqualValues(t, 0, out.Packet.PSN)
	require.True(t, out.Retransmission)
	require.True(t, out.Packet.AckReq)
	require.False(t, q.NextPacket(foundStart, &out))
	q.HandlePacket(foundStart, foundAck(0, aeth.AckSyndrome(aeth.NoCredits), 1), nil)
	var ev qp.Event
	require.True(t, q.NextEvent(&ev))
	require.Equal(t, qp.EventSQDrained, ev)
}

func foundRead(n psn.PSN, key uint32) *bth.Packet {
	p := &bth.Packet{RETH: reth.Header{VA: 0x1000, RKey: key, DMALen: 512}}
	p.Opcode, p.PKey, p.DestQP, p.AckReq = bth.Opcode(0x0c), 0xffff, 2, true
	p.PSN = n
	return p
}

func foundResponder(t *testing.T) (*qp.Responder, *qp.Regions, uint32) {
	regs, err := qp.NewRegions(2)
	require.NoError(t, err)
	key, err := regs.Register(qp.Region{Data: make([]byte, 512), Addr: 0x1000, Access: qp.RemoteRead})
	require.NoError(t, err)
	r, err := qp.NewResponder(qp.Config{QPN: 2, Memory: regs, MaxDestRdAtomic: 1})
	require.NoError(t, err)
	require.NoError(t, r.Connect(&qp.Attr{PKey: 0xffff, PathMTU: 256, DestQPN: 1, RQPSN: 10, Access: qp.RemoteRead, MaxDestRdAtomic: 1}))
	return r, regs, key
}

// Rules RS-12, RS-21: the response to a late duplicate is being sent when the next request
// is received, which then gets its place.
func TestFoundReplayHoldsNoSlot(t *testing.T) {
	r, _, key := foundResponder(t)
	var out qp.Outgoing
	require.Equal(t, qp.Accepted, r.HandlePacket(foundRead(10, key), nil))
	for range 2 {
		require.True(t, r.NextPacket(&out))
	}
	require.Equal(t, qp.Duplicate, r.HandlePacket(foundRead(10, key), nil))
	require.Equal(t, qp.Accepted, r.HandlePacket(foundRead(12, key), nil))
	for i := range 2 {
		require.True(t, r.NextPacket(&out))
		require.EqualValues(t, 12+i, out.Packet.PSN)
	}
	require.False(t, r.NextPacket(&out))
}

// Rules RS-15, RS-21: the region of a READ that had its response is deregistered, and the READ is
// received again. Only a NAK is sent; during the first response the QP would go to Error.
func TestFoundDuplicateOfWithdrawnRead(t *testing.T) {
	r, regs, key := foundResponder(t)
	var out qp.Outgoing
	require.Equal(t, qp.Accepted, r.HandlePacket(foundRead(10, key), nil))
	for range 2 {
		require.True(t, r.NextPacket(&out))
	}
	require.NoError(t, regs.Deregister(key))
	require.Equal(t, qp.Duplicate, r.HandlePacket(foundRead(10, key), nil))
	require.True(t, r.NextPacket(&out))
	require.EqualValues(t, 10, out.Packet.PSN)
	require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteAccessError), out.Packet.AETH.Syndrome)
	require.False(t, r.Err())

	r, regs, key = foundResponder(t)
	require.Equal(t, qp.Accepted, r.HandlePacket(foundRead(10, key), nil))
	for range 2 {
		require.True(t, r.NextPacket(&out))
	}
	require.Equal(t, qp.Duplicate, r.HandlePacket(foundRead(10, key), nil))
	require.True(t, r.NextPacket(&out))
	require.NoError(t, regs.Deregister(key)) // in the middle of the second response
	require.True(t, r.NextPacket(&out))
	require.EqualValues(t, 11, out.Packet.PSN)
	require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteAccessError), out.Packet.AETH.Syndrome)
	require.False(t, r.NextPacket(&out))
	require.False(t, r.Err())

	r, regs, key = foundResponder(t)
	require.Equal(t, qp.Accepted, r.HandlePacket(foundRead(10, key), nil))
	require.True(t, r.NextPacket(&out))
	require.NoError(t, regs.Deregister(key))
	require.True(t, r.NextPacket(&out))
	require.EqualValues(t, 11, out.Packet.PSN)
	require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteAccessError), out.Packet.AETH.Syndrome)
	require.True(t, r.Err())
}

// completions takes all completions and holds them against what was posted (rules
// EE-1, EE-2).
func (e *hostileEnd) completions() {
	var c qp.Completion
	for e.w.err == nil && e.q.NextCompletion(&c) {
		e.w.logf("%v done %#x %v %v %d bytes", e, c.ID, c.Op, c.Status, c.ByteLen)
		e.lazy = 0
		e.w.mix(6, c.ID, uint64(c.Status), uint64(c.ByteLen))
		if c.QPN != e.q.Num() {
			e.w.fail("%v: completion of QP %#x", e, c.QPN)
		}
		if c.Op == qp.OpRecv || c.Op == qp.OpRecvWrite {
			e.received(&c)
		} else {
			e.completed(&c)
		}
	}
}

// completed takes the completion of a request.
func (e *hostileEnd) completed(c *qp.Completion) {
	w := e.w
	for len(e.sends) > 0 && e.sends[0].wr.ID != c.ID {
		// Those between completed silently.
		s := e.sends[0]
		if s.signal || e.failed {
			w.fail("%v: request %d skipped or out of order (rules RQ-09, EE-1)", e, s.n)
			return
		}
		e.succeed()
	}
	if len(e.sends) == 0 {
		w.fail("%v: completion %#x of nothing, or for the second time (rule EE-1)", e, c.ID)
		return
	}
	s := e.sends[0]
	if c.Op != s.wr.Op {
		w.fail("%v: request %d is a %v, completed as %v", e, s.n, s.wr.Op, c.Op)
	}
	if c.Status == qp.Success {
		if e.failed {
			w.fail("%v: request %d succeeded after one that failed (rule RQ-33)", e, s.n)
		}
		if !s.signal {
			w.fail("%v: request %d succeeded loudly", e, s.n)
		}
		if n := uint32(len(s.local) - 8); c.ByteLen != 0 && c.ByteLen != n {
			w.fail("%v: request %d: %d bytes, want %d", e, s.n, c.ByteLen, n)
		}
		e.succeed()
		return
	}
	switch {
	case !w.plan.mayFail() && !e.gone && !e.peer.gone:
		w.fail("%v: request %d: %v, for no reason", e, s.n, c.Status)
	case e.failed && c.Status != qp.WRFlushErr:
		w.fail("%v: request %d: %v after the first error (rule RQ-33)", e, s.n, c.Status)
	}
	switch c.Status {
	case qp.WRFlushErr:
	case qp.RetryExcErr:
		if w.plan.Forever {
			w.fail("%v: request %d: %v with retries without end", e, s.n, c.Status)
		}
	case qp.RNRRetryExcErr:
		if w.plan.RNRRetry == 7 {
			w.fail("%v: request %d: %v with rnr_retry 7", e, s.n, c.Status)
		}
	case qp.RemoteAccessErr:
		if e.peer.rkey != 0 {
			w.fail("%v: request %d: %v to a region that is there", e, s.n, c.Status)
		}
	case qp.RemoteInvalidReqErr:
		if e.peer.host.short == 0 {
			w.fail("%v: request %d: %v, but all receives are long enough", e, s.n, c.Status)
		}
	default:
		w.fail("%v: request %d: %v", e, s.n, c.Status)
	}
	e.failed = true
	e.sends = e.sends[1:]
}

// succeed ends the oldest request.
func (e *hostileEnd) succeed() {
	s := e.sends[0]
	e.checkResult(s)
	e.done = s.n + 1
	e.sends = e.sends[1:]
}

// settle ends the requests that completed silently.
func (e *hostileEnd) settle() {
	for len(e.sends) > 0 && !e.sends[0].signal && !e.failed && e.w.err == nil {
		e.succeed()
	}
}

// received takes the completion of a receive.
func (e *hostileEnd) received(c *qp.Completion) {
	w := e.w
	recvs := e.recvs
	if e.shared() {
		recvs = e.host.recvs
	}
	b := recvs[c.ID]
	if b == nil {
		w.fail("%v: receive %#x completed twice, or was never posted", e, c.ID)
		return
	}
	delete(recvs, c.ID)
	defer func() { w.free = append(w.free, b) }()
	if !e.shared() {
		if e.order[0] != c.ID {
			w.fail("%v: receive %#x completed before %#x", e, c.ID, e.order[0])
		}
		e.order = e.order[1:]
	}
	if c.Status != qp.Success {
		if c.Status == qp.LocalLengthErr && e.host.short == 0 || c.Status != qp.LocalLengthErr && c.Status != qp.WRFlushErr && c.Status != qp.LocalAccessErr {
			w.fail("%v: receive %#x: %v", e, c.ID, c.Status)
		}
		if !e.gone && !e.peer.gone && !w.plan.mayFail() {
			w.fail("%v: receive %#x: %v, for no reason", e, c.ID, c.Status)
		}
		e.badRecv = true
		return
	}
	if e.badRecv || len(e.expect) == 0 {
		w.fail("%v: received what nobody sent (rule EE-2)", e)
		return
	}
	m := &e.expect[0]
	if c.Op != m.op || int(c.ByteLen) != m.n || c.HasImm != m.hasImm || c.HasImm && c.Imm != m.imm ||
		c.HasInv != m.hasInv || c.HasInv && c.InvRKey != m.inv || c.Solicited != m.solicited {
		w.fail("%v: received %+v, sent was %+v (rule EE-2)", e, *c, *m)
	}
	if !bytes.Equal(b[hostileGuards:][:len(m.data)], m.data) {
		w.fail("%v: received other data than was sent (rule EE-2)", e)
	}
	for _, v := range append(b[:hostileGuards:hostileGuards], b[hostileGuards+len(m.data):]...) {
		if v != hostileGuard {
			w.fail("%v: receive %#x written beyond the message (rule EE-5)", e, c.ID)
			break
		}
	}
	e.expect = e.expect[1:]
	if c.HasInv && e.rkey != 0 {
		e.window = c.InvRKey
		e.bind()
	}
}
