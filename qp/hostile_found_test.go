package qp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/reth"
)

// What the hostile networks found, each as the few packets that it takes.

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
	require.False(t, r.NextPacket(foundStart, &out), "and no more without credits")
	r.HandlePacket(foundStart, foundAck(12, aeth.AckSyndrome(0), 1))
	require.True(t, r.NextPacket(foundStart, &out), "the message has its receive")
	require.EqualValues(t, 13, out.Packet.PSN)
}

// Rules RQ-05, RQ-14: SQD comes after a packet that did not ask for an
// acknowledgement, for another was to follow.
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

// Rules RS-12, RS-21: a late duplicate is being answered when the next request
// comes, which has the place to itself.
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

// Rules RS-15, RS-21: the region of an answered READ is gone, and the READ comes
// again. The NAK is all that happens; in the first answer it is the end.
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
	require.NoError(t, regs.Deregister(key)) // in the middle of the second answer
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
