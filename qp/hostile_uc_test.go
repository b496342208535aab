package qp_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
)

// Rules UC-1, UC-2: over a link that loses packets, messages arrive whole and in
// order, or not at all; over one that also repeats and delays them, whole. What
// was lost holds up nothing, and each message that arrived used up one receive.
func TestHostileUC(t *testing.T) {
	const mtu, messages = 256, 60
	arrived := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		lossOnly := seed%2 == 0
		var qs [2]*qp.QP
		for i := range qs {
			var err error
			qs[i], err = qp.New(qp.Config{Type: qp.UC, QPN: uint32(i + 1), MaxSendWR: 4, MaxRecvWR: messages * 4, SignalAll: true})
			require.NoError(t, err)
			a := qp.Attr{PKey: 0xffff, PathMTU: mtu, DestQPN: uint32(2 - i), RQPSN: 0xfffff0, SQPSN: 0xfffff0}
			require.NoError(t, qs[i].Connect(foundStart, &a))
		}
		bufs := make([][]byte, messages*4)
		for i := range bufs {
			bufs[i] = make([]byte, 4*mtu+8)
			require.NoError(t, qs[1].PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]}))
		}
		var sent [][]byte
		var late []bth.Packet
		var out qp.Outgoing
		var c qp.Completion
		last, used := -1, 0
		take := func() {
			for qs[1].NextCompletion(&c) {
				require.Equal(t, qp.Success, c.Status)
				require.EqualValues(t, used, c.ID, "seed %d: receives are used in order, one for a message", seed)
				used++
				got := bufs[c.ID][:c.ByteLen]
				k := int(binary.LittleEndian.Uint32(got))
				require.Less(t, k, len(sent))
				require.True(t, bytes.Equal(sent[k], got), "seed %d: message %d arrived damaged", seed, k)
				if lossOnly {
					require.Greater(t, k, last, "seed %d: order", seed)
				}
				last = k
				arrived++
			}
		}
		for k := range messages {
			b := make([]byte, 4+rng.IntN(4*mtu))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			binary.LittleEndian.PutUint32(b, uint32(k))
			sent = append(sent, b)
			require.NoError(t, qs[0].PostSend(foundStart, &qp.SendWR{ID: uint64(k), Local: b}))
			for qs[0].NextPacket(foundStart, &out) {
				require.False(t, out.Packet.AckReq)
				switch n := rng.IntN(20); {
				case n < 2:
				case n < 4 && !lossOnly:
					p := out.Packet
					p.Payload = bytes.Clone(p.Payload)
					late = append(late, p)
				case n < 6 && !lossOnly:
					qs[1].HandlePacket(foundStart, &out.Packet, nil)
					fallthrough
				default:
					qs[1].HandlePacket(foundStart, &out.Packet, nil)
				}
				if len(late) > 0 && rng.IntN(3) == 0 {
					qs[1].HandlePacket(foundStart.Add(time.Second), &late[0], nil)
					late = late[1:]
				}
				take()
			}
			require.True(t, qs[0].NextCompletion(&c), "a send is complete when its last packet is out")
			require.EqualValues(t, k, c.ID)
			require.Equal(t, qp.Success, c.Status)
		}
		require.False(t, qs[1].NextPacket(foundStart, &out), "UC answers nothing")
		require.Equal(t, qp.RTS, qs[1].State())
	}
	require.Greater(t, arrived, 300*messages/3)
}
