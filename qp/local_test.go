package qp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/reth"
)

// localQP is a QP in RTS with a region that allows windows, and an unbound window.
func localQP(t *testing.T, typ qp.Type) (q *qp.QP, m *qp.Regions, region, window uint32) {
	t.Helper()
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	region, err = m.Register(qp.Region{Data: make([]byte, 64), Addr: 0x1000, Access: qp.MWBind})
	require.NoError(t, err)
	window, err = m.AllocWindow(0)
	require.NoError(t, err)
	cfg := base(typ)
	cfg.Memory = m
	q, err = qp.New(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	a.SQPSN, a.RQPSN, a.Access = 10, 0, qp.RemoteWrite|qp.RemoteRead
	require.NoError(t, q.Connect(epoch, a))
	return q, m, region, window
}

func usableBy(m *qp.Regions, qpn, key uint32) bool {
	_, ok := m.Remote(qp.RemoteAccess{QPN: qpn, RKey: key, VA: 0x1000, Len: 8, Right: qp.RemoteWrite})
	return ok
}

func bindWR(id uint64, window, region uint32) *qp.SendWR {
	return &qp.SendWR{ID: id, Op: qp.OpBindMW, Flags: qp.Signaled, RKey: window, Region: region, RemoteAddr: 0x1000, Length: 8, Access: qp.RemoteWrite}
}

// Rule RQ-36: BIND_MW and LOCAL_INV as work requests, in the order of the queue: each
// starts when all before it are complete, and what follows starts when it is.
func TestLocalOrder(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.XRCSend} {
		q, m, region, window := localQP(t, typ)
		bound := qp.IncRKey(window)
		var out qp.Outgoing
		var c qp.Completion
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpWrite, Flags: qp.Signaled}))
		require.NoError(t, q.PostSend(epoch, bindWR(2, window, region)))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 3, Op: qp.OpSend, Flags: qp.Signaled}))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 4, Op: qp.OpLocalInv, Flags: qp.Signaled, RKey: bound}))
		require.True(t, q.NextPacket(epoch, &out))
		require.True(t, out.Packet.AckReq, "nothing else is sent until it is acknowledged")
		require.False(t, q.NextPacket(epoch, &out))
		require.False(t, usableBy(m, 1, bound))
		ack := func(n psn.PSN) {
			p := request(bth.Acknowledge, n)
			p.Opcode = bth.Opcode(0x11)
			if typ == qp.XRCSend {
				p.Opcode = bth.XRC.Opcode(bth.Acknowledge)
			}
			p.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
			require.Equal(t, qp.Accepted, q.HandlePacket(epoch, p, nil))
		}
		ack(10)
		require.True(t, usableBy(m, 1, bound))
		require.False(t, usableBy(m, 2, bound), "another QP")
		require.True(t, q.NextPacket(epoch, &out))
		require.EqualValues(t, 11, out.Packet.PSN, "a local operation takes no PSN")
		ack(11)
		require.False(t, usableBy(m, 1, bound))
		for id := uint64(1); id <= 4; id++ {
			require.True(t, q.NextSendCompletion(&c))
			require.Equal(t, id, c.ID)
			require.Equal(t, qp.Success, c.Status)
		}
		require.Zero(t, q.Outstanding())
		require.Equal(t, qp.OpLocalInv, c.Op)
	}
}

// Rule RQ-36: on an idle queue they are done when posted, on UC too.
func TestLocalAtOnce(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.UC} {
		q, m, region, window := localQP(t, typ)
		require.NoError(t, q.PostSend(epoch, bindWR(1, window, region)))
		require.True(t, usableBy(m, 1, qp.IncRKey(window)))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 3000)}))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 2, Op: qp.OpLocalInv, Flags: qp.Signaled, RKey: qp.IncRKey(window)}))
		var out qp.Outgoing
		for q.NextPacket(epoch, &out) {
		}
		require.Equal(t, typ == qp.RC, usableBy(m, 1, qp.IncRKey(window)), "RC waits for the acknowledgement")
	}
}

// Rule RQ-36: what the memory refuses completes with an error and ends the QP; what is
// behind it completes flushed.
func TestLocalRefused(t *testing.T) {
	q, _, region, window := localQP(t, qp.RC)
	require.NoError(t, q.PostSend(epoch, bindWR(1, window^1, region)))
	require.Equal(t, qp.Error, q.State())
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 2}))
	var c qp.Completion
	require.True(t, q.NextSendCompletion(&c))
	require.Equal(t, qp.MWBindErr, c.Status)
	require.Equal(t, qp.OpBindMW, c.Op)
	require.True(t, q.NextSendCompletion(&c))
	require.Equal(t, qp.WRFlushErr, c.Status)

	// Where there is no such operation, the call says so.
	ud, _, region, window := localQP(t, qp.UD)
	require.ErrorIs(t, ud.PostSend(epoch, bindWR(1, window, region)), qp.ErrOp)
	cfg := base(qp.RC)
	cfg.Memory = nil
	none := in(t, cfg, qp.RTS)
	require.ErrorIs(t, none.PostSend(epoch, bindWR(1, window, region)), qp.ErrOp)
}

// Rules RQ-14, RQ-36: in SQD none starts; back in RTS it does.
func TestLocalInSQD(t *testing.T) {
	q, m, region, window := localQP(t, qp.RC)
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.SQD}, qp.AttrState))
	require.NoError(t, q.PostSend(epoch, bindWR(1, window, region)))
	require.False(t, usableBy(m, 1, qp.IncRKey(window)))
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.RTS}, qp.AttrState))
	require.True(t, usableBy(m, 1, qp.IncRKey(window)))
}

// keyedQP is a QP in RTS whose region, of 16 bytes at 0x1000, may be written locally, and
// another region that may not.
func keyedQP(t *testing.T, typ qp.Type) (q *qp.QP, m *qp.Regions, key, readOnly uint32) {
	t.Helper()
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	key, err = m.Register(qp.Region{PD: 1, Data: []byte("0123456789abcdef"), Addr: 0x1000, Access: qp.LocalWrite})
	require.NoError(t, err)
	readOnly, err = m.Register(qp.Region{PD: 1, Data: make([]byte, 128), Addr: 0x1000})
	require.NoError(t, err)
	cfg := base(typ)
	cfg.Memory = m
	q, err = qp.New(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	a.SQPSN, a.RQPSN, a.Access = 10, 0, qp.RemoteWrite|qp.RemoteRead
	require.NoError(t, q.Connect(epoch, a))
	return q, m, key, readOnly
}

func ackOf(q *qp.QP, n psn.PSN) {
	p := request(bth.Acknowledge, n)
	p.Opcode, p.AETH.Syndrome = bth.Opcode(0x11), aeth.Syndrome(31)
	q.HandlePacket(epoch, p, nil)
}

// Rule RQ-11: what SGEs name is sent, and a key that is invalidated ends the request with a local
// protection error when all before it are complete.
func TestKeyedSend(t *testing.T) {
	var out qp.Outgoing
	var c qp.Completion
	q, m, key, _ := keyedQP(t, qp.RC)
	sges := []qp.SGE{{Addr: 0x1002, Len: 3, LKey: key}, {}, {Addr: 0x100f, Len: 1, LKey: key}}
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpSend, SGEs: sges}))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 2, Op: qp.OpSend, SGEs: sges}))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 3, Op: qp.OpSend}))
	require.True(t, q.NextPacket(epoch, &out))
	require.Equal(t, "234f", string(out.Packet.Payload))
	require.NoError(t, m.Deregister(key))
	require.False(t, q.NextPacket(epoch, &out))
	require.False(t, q.NextPacket(epoch, &out), "the one before is to be sent again, and its memory is not accessible either")
	for i, want := range []qp.Status{qp.LocalProtErr, qp.WRFlushErr, qp.WRFlushErr} {
		require.True(t, q.NextCompletion(&c))
		require.EqualValues(t, i+1, c.ID)
		require.Equal(t, want, c.Status)
	}
}

// Rule RQ-11: the request that was refused waits for those before it, which are sent again
// to ask for an acknowledgement.
func TestKeyedSendOrder(t *testing.T) {
	var out qp.Outgoing
	var c qp.Completion
	q, _, key, _ := keyedQP(t, qp.RC)
	good := []qp.SGE{{Addr: 0x1000, Len: 16, LKey: key}}
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpWrite, SGEs: good}))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 2, Op: qp.OpWrite, SGEs: []qp.SGE{{Addr: 0x1001, Len: 16, LKey: key}}}))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 3, Op: qp.OpSend}))
	require.True(t, q.NextPacket(epoch, &out))
	require.False(t, out.Packet.AckReq)
	require.False(t, q.NextPacket(epoch, &out))
	require.True(t, q.NextPacket(epoch, &out))
	require.True(t, out.Retransmission && out.Packet.AckReq)
	require.False(t, q.NextPacket(epoch, &out))
	require.False(t, q.NextCompletion(&c))
	ackOf(q, 10)
	for _, want := range []qp.Completion{{ID: 2, Status: qp.LocalProtErr, Op: qp.OpWrite, QPN: 1}, {ID: 3, Status: qp.WRFlushErr, Op: qp.OpSend, QPN: 1}} {
		require.True(t, q.NextCompletion(&c))
		require.Equal(t, want, c)
	}
	require.Equal(t, qp.Error, q.State())
}

// Rule RQ-11: the same on each kind of QP and operation, each fault of the key by itself.
func TestKeyedFaults(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.UC, qp.UD, qp.XRCSend} {
		for _, op := range []qp.Op{qp.OpSend, qp.OpWrite, qp.OpRead, qp.OpCmpSwap} {
			_, m, key, readOnly := keyedQP(t, typ)
			other, err := m.Register(qp.Region{PD: 7, Data: make([]byte, 16), Addr: 0x1000, Access: qp.LocalWrite})
			require.NoError(t, err)
			bad := []qp.SGE{{0x1000, 8, 666}, {0x1009, 8, key}, {0xfff, 8, key}, {1<<64 - 1, 8, key}, {0x1000, 8, other}}
			if op == qp.OpRead || op == qp.OpCmpSwap {
				bad = append(bad, qp.SGE{Addr: 0x1000, Len: 8, LKey: readOnly})
			}
			for _, e := range bad {
				q, err := qp.New(func() qp.Config { c := base(typ); c.Memory = m; return c }())
				require.NoError(t, err)
				a := good(qp.RTS)
				require.NoError(t, q.Connect(epoch, a))
				wr := &qp.SendWR{ID: 1, Op: op, SGEs: []qp.SGE{e}, AH: qp.NewAddressHandle(qp.AHAttr{})}
				if err := q.PostSend(epoch, wr); err != nil {
					require.ErrorIs(t, err, qp.ErrOp)
					continue
				}
				var out qp.Outgoing
				var c qp.Completion
				require.False(t, q.NextPacket(epoch, &out))
				require.True(t, q.NextCompletion(&c))
				require.Equal(t, qp.LocalProtErr, c.Status, "%v %v %v", typ, op, e)
				want := qp.Error
				if typ == qp.UC || typ == qp.UD {
					want = qp.SQE
				}
				require.Equal(t, want, q.State())
			}
		}
	}
}

// Rule RQ-11: a READ whose memory is deregistered before its response is received.
func TestKeyedResponse(t *testing.T) {
	var out qp.Outgoing
	var c qp.Completion
	q, m, key, _ := keyedQP(t, qp.RC)
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpRead, SGEs: []qp.SGE{{Addr: 0x1004, Len: 2, LKey: key}}}))
	require.True(t, q.NextPacket(epoch, &out))
	require.NoError(t, m.Deregister(key))
	p := request(bth.ReadResponseOnly, 10)
	p.AETH.Syndrome = aeth.Syndrome(31)
	p.SetPayload([]byte("xy"))
	require.Equal(t, qp.Refused, q.HandlePacket(epoch, p, nil))
	require.True(t, q.NextCompletion(&c))
	require.Equal(t, qp.Completion{ID: 1, Status: qp.LocalProtErr, Op: qp.OpRead, QPN: 1}, qp.Completion{ID: c.ID, Status: c.Status, Op: c.Op, QPN: c.QPN})
}

// Rule RS-08a: a receive whose memory is refused.
func TestKeyedReceive(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.UC, qp.UD} {
		q, m, key, readOnly := keyedQP(t, typ)
		big, err := m.Register(qp.Region{PD: 1, Data: make([]byte, 64), Addr: 0x2000, Access: qp.LocalWrite})
		require.NoError(t, err)
		require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 1, SGEs: []qp.SGE{{Addr: 0x2000, Len: 60, LKey: big}}}))
		require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 2, SGEs: []qp.SGE{{Addr: 0x1000, Len: 64, LKey: readOnly}}}))
		require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 3, SGEs: []qp.SGE{{Addr: 0x1000, Len: 16, LKey: key}}}))
		send := func(n psn.PSN) qp.Verdict {
			p := request(bth.SendOnly, n)
			switch typ {
			case qp.UC:
				p.Opcode = bth.UC.Opcode(bth.SendOnly)
			case qp.UD:
				p.Opcode = bth.UD.Opcode(bth.SendOnly)
				p.DETH.QKey = q.Attr().QKey
			}
			p.SetPayload([]byte("hello"))
			return q.HandlePacket(epoch, p, nil)
		}
		require.Equal(t, qp.Accepted, send(0), typ)
		b, ok := m.Local(qp.LocalAccess{PD: 1, LKey: big, VA: 0x2000, Len: 64})
		require.True(t, ok)
		require.Contains(t, string(b), "hello")
		require.NotEqual(t, qp.Accepted, send(1), typ)
		require.Equal(t, qp.Error, q.State())
		var c qp.Completion
		for i, want := range []qp.Status{qp.Success, qp.LocalProtErr, qp.WRFlushErr} {
			require.True(t, q.NextCompletion(&c))
			require.Equal(t, want, c.Status)
			require.EqualValues(t, i+1, c.ID)
		}
		var out qp.Outgoing
		if typ == qp.RC {
			require.True(t, q.NextPacket(epoch, &out))
			require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteOperationalError), out.Packet.AETH.Syndrome)
		} else {
			require.False(t, q.NextPacket(epoch, &out))
		}
	}
}

// A receive of a SRQ names memory of the SRQ's protection domain, where it has one.
func TestKeyedSRQ(t *testing.T) {
	for _, own := range []bool{false, true} {
		m, err := qp.NewRegions(4)
		require.NoError(t, err)
		key, err := m.Register(qp.Region{PD: 2, Data: make([]byte, 16), Addr: 0x1000, Access: qp.LocalWrite})
		require.NoError(t, err)
		srq, err := qp.NewSRQ(1, 4)
		require.NoError(t, err)
		if own {
			srq.SetPD(2)
		}
		cfg := base(qp.RC)
		cfg.Memory, cfg.SRQ = m, srq
		q, err := qp.New(cfg)
		require.NoError(t, err)
		a := good(qp.RTS)
		a.RQPSN = 0
		require.NoError(t, q.Connect(epoch, a))
		require.NoError(t, srq.PostRecv(&qp.RecvWR{SGEs: []qp.SGE{{Addr: 0x1000, Len: 16, LKey: key}}}))
		p := request(bth.SendOnly, 0)
		p.SetPayload([]byte("x"))
		want := qp.Refused
		if own {
			want = qp.Accepted
		}
		require.Equal(t, want, q.HandlePacket(epoch, p, nil))
	}
}

type twoSRQs [2]*qp.SRQ

func (s *twoSRQs) SRQ(num uint32) *qp.SRQ { return s[num] }

// An XRC request reaches memory of the protection domain of the SRQ that it names, or else
// of the QP, whatever the requests before and after it name; so does its response.
func TestXRCDomains(t *testing.T) {
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	var keys [2]uint32 // of the domains 1 and 2
	var srqs twoSRQs
	for i := range keys {
		keys[i], err = m.Register(qp.Region{PD: qp.PD(1 + i), Data: make([]byte, 16), Addr: 0x1000, Access: qp.RemoteRead})
		require.NoError(t, err)
		srqs[i], err = qp.NewSRQ(uint32(i), 4)
		require.NoError(t, err)
	}
	srqs[1].SetPD(2)
	cfg := base(qp.XRCRecv)
	cfg.Memory, cfg.XRCSRQs = m, &srqs
	q, err := qp.New(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	a.RQPSN, a.Access = 0, qp.RemoteRead
	require.NoError(t, q.Connect(epoch, a))
	read := func(n psn.PSN, srq, key uint32) qp.Verdict {
		p := request(bth.ReadRequest, n)
		p.Opcode, p.XRCETH.SRQ = bth.XRC.Opcode(bth.ReadRequest), srq
		p.RETH = reth.Header{VA: 0x1000, RKey: key, DMALen: 16}
		return q.HandlePacket(epoch, p, nil)
	}
	require.Equal(t, qp.Accepted, read(0, 1, keys[1]))
	require.Equal(t, qp.Accepted, read(1, 0, keys[0]))
	require.Equal(t, qp.Duplicate, read(0, 1, keys[1]))
	var out qp.Outgoing
	for i := range 2 {
		require.True(t, q.NextPacket(epoch, &out))
		require.EqualValues(t, i, out.Packet.PSN)
		require.Equal(t, bth.XRC.Opcode(bth.ReadResponseOnly), out.Packet.Opcode)
	}
	require.Equal(t, qp.Refused, read(2, 0, keys[1]))
}

// Rule RS-18: a responder of datagrams that is in Error consumes no more receives.
func TestKeyedDatagramError(t *testing.T) {
	m, err := qp.NewRegions(1)
	require.NoError(t, err)
	cfg := base(qp.UD)
	cfg.Memory = m
	r, err := qp.NewResponder(cfg)
	require.NoError(t, err)
	require.NoError(t, r.Connect(good(qp.RTS)))
	p := request(bth.SendOnly, 0)
	p.Opcode, p.DETH.QKey = bth.UD.Opcode(bth.SendOnly), good(qp.RTS).QKey
	require.NoError(t, r.PostRecv(&qp.RecvWR{SGEs: []qp.SGE{{Addr: 0x1000, Len: 64, LKey: 7}}}))
	require.NoError(t, r.PostRecv(&qp.RecvWR{Local: make([]byte, 64)}))
	require.Equal(t, qp.Refused, r.HandlePacket(p, nil))
	require.Equal(t, qp.Inactive, r.HandlePacket(p, nil))
	var c qp.Completion
	for _, want := range []qp.Status{qp.LocalProtErr, qp.WRFlushErr} {
		require.True(t, r.NextCompletion(&c))
		require.Equal(t, want, c.Status)
	}
}

// What was sent before a request whose memory is refused is all sent again, and asks for an
// acknowledgement: a loss of it is noticed, with selective repeat too.
func TestKeyedRefusedBehindLoss(t *testing.T) {
	for _, packets := range []int{0, 8} {
		m, err := qp.NewRegions(1)
		require.NoError(t, err)
		cfg := base(qp.RC)
		cfg.Memory, cfg.Selective.Packets = m, packets
		q, err := qp.New(cfg)
		require.NoError(t, err)
		require.NoError(t, q.Connect(epoch, good(qp.RTS)))
		for range 2 {
			require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 8)}))
		}
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 3, Op: qp.OpWrite, SGEs: []qp.SGE{{Len: 8, LKey: 7}}}))
		var out qp.Outgoing
		for i := range 4 {
			if i == 2 {
				require.False(t, q.NextPacket(epoch, &out))
			}
			require.True(t, q.NextPacket(epoch, &out))
			require.EqualValues(t, 20+i%2, out.Packet.PSN)
			require.Equal(t, i >= 2, out.Retransmission)
		}
		require.True(t, out.Packet.AckReq)
		ack := request(bth.Acknowledge, 20)
		ack.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
		require.Equal(t, qp.Accepted, q.HandlePacket(epoch, ack, nil))
		_, ok := q.Deadline()
		require.True(t, ok)
		ack.PSN = 21
		require.Equal(t, qp.Accepted, q.HandlePacket(epoch, ack, nil))
		var c qp.Completion
		require.True(t, q.NextCompletion(&c))
		require.EqualValues(t, 3, c.ID)
		require.Equal(t, qp.LocalProtErr, c.Status)
	}
}

// SendWR.Fail in SQD: no request starts, or ends this way, before RTS.
func TestFailedSendDrained(t *testing.T) {
	q, _, _, _ := keyedQP(t, qp.RC)
	var c qp.Completion
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.SQD}, qp.AttrState))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpSend, Fail: qp.LocalLengthErr}))
	require.Equal(t, qp.SQD, q.State())
	require.False(t, q.NextCompletion(&c))
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.RTS}, qp.AttrState))
	require.True(t, q.NextCompletion(&c))
	require.Equal(t, qp.LocalLengthErr, c.Status)
	require.Equal(t, qp.Error, q.State())
}

// SendWR.Fail: the request ends in its turn, and nothing of it is sent.
func TestFailedSend(t *testing.T) {
	var out qp.Outgoing
	var c qp.Completion
	for _, typ := range []qp.Type{qp.RC, qp.UC} {
		for _, before := range []bool{false, true} {
			q, _, _, _ := keyedQP(t, typ)
			if before {
				require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 1, Op: qp.OpSend, Flags: qp.Signaled}))
				require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 2, Op: qp.OpSend}))
				require.True(t, q.NextPacket(epoch, &out))
				require.True(t, q.NextPacket(epoch, &out))
			}
			require.NoError(t, q.PostSend(epoch, &qp.SendWR{ID: 3, Op: qp.OpSend, Fail: qp.LocalLengthErr}))
			require.False(t, q.NextPacket(epoch, &out) && !out.Retransmission)
			if before {
				ackOf(q, 11)
				require.True(t, q.NextCompletion(&c))
				require.EqualValues(t, 1, c.ID)
			}
			require.True(t, q.NextCompletion(&c))
			require.Equal(t, qp.Completion{ID: 3, Status: qp.LocalLengthErr, Op: qp.OpSend, QPN: 1}, c)
			require.GreaterOrEqual(t, q.State(), qp.SQE)
		}
	}
}

// A window may get another key than the next, of the same window.
func TestBindNewRKey(t *testing.T) {
	q, m, region, window := localQP(t, qp.RC)
	wr := bindWR(1, window, region)
	wr.NewRKey = window&^0xff | 0x77
	require.NoError(t, q.PostSend(epoch, wr))
	require.True(t, usableBy(m, 1, wr.NewRKey))
	require.False(t, usableBy(m, 1, qp.IncRKey(window)))
	require.NoError(t, m.InvalidateLocal(wr.NewRKey))
	_, err := m.Bind(qp.Binding{Window: wr.NewRKey, Region: region, VA: 0x1000, Len: 8, NewRKey: 0x66600})
	require.ErrorIs(t, err, qp.ErrBind)

	// Seeded keys cannot be chosen: no caller gets a key that is not valid.
	seeded, err := qp.NewRegions(4)
	require.NoError(t, err)
	require.True(t, seeded.Seed([32]byte{1}))
	region, err = seeded.Register(qp.Region{Data: make([]byte, 16), Addr: 0x1000, Access: qp.MWBind})
	require.NoError(t, err)
	window, err = seeded.AllocWindow(0)
	require.NoError(t, err)
	b := qp.Binding{Window: window, Region: region, VA: 0x1000, Len: 8, Access: qp.RemoteWrite, QPN: 1, NewRKey: window&^0xff | 0x77}
	_, err = seeded.Bind(b)
	require.ErrorIs(t, err, qp.ErrBind)
	b.NewRKey = 0
	key, err := seeded.Bind(b)
	require.NoError(t, err)
	require.True(t, usableBy(seeded, 1, key))
}

// A full table has no room for a window of either type.
func TestWindowsOfFullTable(t *testing.T) {
	m, err := qp.NewRegions(1)
	require.NoError(t, err)
	w, err := m.AllocWindow1(1)
	require.NoError(t, err)
	require.NotZero(t, w)
	_, err = m.AllocWindow1(1)
	require.ErrorIs(t, err, qp.ErrNoKeys)
	_, err = m.AllocWindow(1)
	require.ErrorIs(t, err, qp.ErrNoKeys)
}

// Type 1 windows: of all QPs of a protection domain, bound again and unbound by binds.
func TestWindowType1(t *testing.T) {
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	region, err := m.Register(qp.Region{PD: 1, Data: make([]byte, 64), Addr: 0x1000, Access: qp.MWBind})
	require.NoError(t, err)
	w, err := m.AllocWindow1(1)
	require.NoError(t, err)
	reaches := func(pd qp.PD, qpn, key uint32, va uint64) bool {
		_, ok := m.Remote(qp.RemoteAccess{PD: pd, QPN: qpn, RKey: key, VA: va, Len: 8, Right: qp.RemoteWrite})
		return ok
	}
	bind := func(va uint64, n uint32) error {
		var err error
		k, err := m.Bind(qp.Binding{Window: w, Region: region, VA: va, Len: n, Access: qp.RemoteWrite, QPN: 5})
		if err == nil {
			require.Equal(t, qp.IncRKey(w), k)
			w = k
		}
		return err
	}
	require.False(t, reaches(1, 6, w, 0x1000))
	require.NoError(t, bind(0x1000, 8))
	require.True(t, reaches(1, 6, w, 0x1000))
	require.False(t, reaches(2, 6, w, 0x1000))
	old := w
	require.NoError(t, bind(0x1008, 8), "bound anew")
	require.False(t, reaches(1, 6, old, 0x1000))
	require.False(t, reaches(1, 6, w, 0x1000))
	require.True(t, reaches(1, 6, w, 0x1008))
	require.False(t, m.Invalidate(qp.RemoteAccess{PD: 1, QPN: 5, RKey: w}))
	require.ErrorIs(t, m.InvalidateLocal(w), qp.ErrNoRegion)
	require.NoError(t, bind(0, 0), "unbound")
	require.False(t, reaches(1, 6, w, 0x1008))
	require.NoError(t, bind(0x1000, 8))
	require.True(t, reaches(1, 6, w, 0x1000))
}

// A region that is registered again keeps its key; its windows become invalid.
func TestReregister(t *testing.T) {
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	key, err := m.Register(qp.Region{PD: 1, Data: make([]byte, 64), Addr: 0x1000, Access: qp.MWBind | qp.RemoteWrite})
	require.NoError(t, err)
	w, err := m.AllocWindow(1)
	require.NoError(t, err)
	w, err = m.Bind(qp.Binding{Window: w, Region: key, VA: 0x1000, Len: 8, Access: qp.RemoteWrite, QPN: 5})
	require.NoError(t, err)
	reaches := func(key uint32, va uint64, right qp.Access) bool {
		_, ok := m.Remote(qp.RemoteAccess{PD: 1, QPN: 5, RKey: key, VA: va, Len: 8, Right: right})
		return ok
	}
	require.True(t, reaches(w, 0x1000, qp.RemoteWrite))
	require.ErrorIs(t, m.Reregister(w, qp.Region{}), qp.ErrNoRegion)
	require.ErrorIs(t, m.Reregister(key, qp.Region{Data: make([]byte, 2), Addr: 1<<64 - 1}), qp.ErrRange)
	require.True(t, reaches(key, 0x1000, qp.RemoteWrite))
	require.NoError(t, m.Reregister(key, qp.Region{PD: 1, Data: make([]byte, 8), Addr: 0x2000, Access: qp.RemoteRead | qp.MWBind}))
	require.False(t, reaches(key, 0x1000, qp.RemoteWrite) || reaches(key, 0x2000, qp.RemoteWrite) || reaches(w, 0x1000, qp.RemoteWrite))
	require.True(t, reaches(key, 0x2000, qp.RemoteRead))
}

// What SGEs name is sent and received without an allocation.
func TestKeyedNoAllocation(t *testing.T) {
	if testenv.Allocates {
		t.Skip("the race detector and the checks of invariants allocate")
	}
	q, _, key, _ := keyedQP(t, qp.UC)
	sges := []qp.SGE{{Addr: 0x1000, Len: 3, LKey: key}, {Addr: 0x1008, Len: 5, LKey: key}}
	send, recv := &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, SGEs: sges}, &qp.RecvWR{SGEs: sges}
	p := request(bth.SendOnly, 0)
	p.Opcode = bth.UC.Opcode(bth.SendOnly)
	p.SetPayload([]byte("hello"))
	var out qp.Outgoing
	var c qp.Completion
	require.Zero(t, testenv.Mallocs(func() {
		for range 100 {
			_ = q.PostSend(epoch, send)
			_ = q.PostRecv(recv)
			q.NextPacket(epoch, &out)
			q.HandlePacket(epoch, p, nil)
			p.PSN++
			for q.NextCompletion(&c) {
			}
		}
	}))
	require.Equal(t, qp.Success, c.Status)
	require.NotZero(t, q.Counters().TxPackets)
}
