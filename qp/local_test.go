package qp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
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
