package qp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// starved has a QP with a SEND queued whose peer keeps the responder busy: feed is
// called before each packet that the link takes. It returns the number of packets
// built before the SEND.
func starved(t *testing.T, cfg qp.Config, feed func(q *qp.QP, n int)) int {
	t.Helper()
	regions, err := qp.NewRegions(1)
	require.NoError(t, err)
	mem := make([]byte, 64<<10)
	_, err = regions.Register(qp.Region{Data: mem, Addr: 0, Access: qp.RemoteRead | qp.RemoteWrite})
	require.NoError(t, err)
	cfg.QPN, cfg.Memory, cfg.MaxSendWR, cfg.MaxRdAtomic, cfg.MaxDestRdAtomic = 1, regions, 64, 4, 4
	q, err := qp.New(cfg)
	require.NoError(t, err)
	require.NoError(t, q.Connect(epoch, &qp.Attr{Access: qp.RemoteRead | qp.RemoteWrite, PathMTU: 1024, DestQPN: 2,
		MaxDestRdAtomic: 2, MaxRdAtomic: 2, Timeout: 14, RetryCnt: 7}))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpSend}))
	var out qp.Outgoing
	for n := range 10_000 {
		feed(q, n)
		require.True(t, q.NextPacket(epoch, &out))
		if out.Packet.Opcode.Class() == bth.Request {
			return n
		}
	}
	return -1
}

// feedReads keeps two READs of 32 packets outstanding, as a peer at link rate does.
func feedReads() func(q *qp.QP, n int) {
	next := uint32(0)
	return func(q *qp.QP, n int) {
		for int(next)-n <= 32 { // the READ before the last is answered
			p := request(bth.ReadRequest, psn.PSN(next))
			p.RETH.RKey, p.RETH.DMALen = firstKey, 32<<10
			if q.HandlePacket(epoch, p, nil) != qp.Accepted {
				return
			}
			next += 32
		}
	}
}

// firstKey is the first key of a table of one slot.
const firstKey = 1<<8 | 1

// feedWrites brings a WRITE that asks for an acknowledgement before each packet.
func feedWrites() func(q *qp.QP, n int) {
	return func(q *qp.QP, n int) {
		p := request(bth.WriteOnly, psn.PSN(n))
		p.AckReq = true
		q.HandlePacket(epoch, p, nil)
	}
}

// Rule EE-3: a peer that keeps the responder busy for ever, with READs or with
// WRITEs of which each wants an acknowledgement, does not keep our requests from
// being sent.
func TestTurnsOfRequests(t *testing.T) {
	require.Equal(t, 1, starved(t, qp.Config{}, feedReads()))
	require.Equal(t, 1, starved(t, qp.Config{}, feedWrites()))
	require.Equal(t, 5, starved(t, qp.Config{ResponseWeight: 5}, feedReads()))
	require.Equal(t, 5, starved(t, qp.Config{ResponseWeight: 5}, feedWrites()))
}

// Rule EE-3, the other way: endless requests of ours do not keep the peer waiting,
// and both weights count.
func TestTurnsOfResponses(t *testing.T) {
	for _, w := range [][2]int{{1, 1}, {1, 4}, {3, 2}} {
		got := [2]int{}
		feed := feedReads()
		regions, err := qp.NewRegions(1)
		require.NoError(t, err)
		_, err = regions.Register(qp.Region{Data: make([]byte, 64<<10), Access: qp.RemoteRead})
		require.NoError(t, err)
		q, err := qp.New(qp.Config{QPN: 1, Memory: regions, MaxSendWR: 1, MaxDestRdAtomic: 4, ResponseWeight: w[0], RequestWeight: w[1]})
		require.NoError(t, err)
		require.NoError(t, q.Connect(epoch, &qp.Attr{Access: qp.RemoteRead, PathMTU: 1024, DestQPN: 2, MaxDestRdAtomic: 2, RetryCnt: 7}))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 4<<20)}))
		var out qp.Outgoing
		for range 1000 {
			feed(q, got[0])
			require.True(t, q.NextPacket(epoch, &out))
			if out.Packet.Opcode.Class() == bth.Request {
				got[1]++
			} else {
				got[0]++
			}
		}
		require.InDelta(t, 1000*w[0]/(w[0]+w[1]), got[0], 5, "weights %v: %v", w, got)
	}
}

// A half that waits for its turn in vain, since it has nothing after all, does not
// hold up the other.
func TestTurnsIdle(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	var out qp.Outgoing
	for range 3 {
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
		require.True(t, q.NextPacket(epoch, &out))
	}
	require.False(t, q.NextPacket(epoch.Add(time.Millisecond), &out))
}
