package qp_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// pacedEnd is a QP whose packets are taken one at a time, whenever a pacer likes.
type pacedEnd struct {
	q      *qp.QP
	mem    []byte
	want   []byte // what mem should hold in the end
	adds   uint64
	rkey   uint32
	inbox  []bth.Packet
	sent   []qp.SendWR
	done   int
	recvs  int // completed
	expect int // receives that the peer uses up
}

const (
	pacedWork = 40
	pacedAddr = 0x1000
	// Where atomics, ATOMIC WRITEs and READs go.
	pacedCounter, pacedCell, pacedRead = 0x8000, 0x8008, 0xa000
)

func newPacedEnd(t *testing.T, qpn, window, rd int, sq, rq psn.PSN) *pacedEnd {
	e := &pacedEnd{mem: make([]byte, 1<<16), want: make([]byte, 1<<16)}
	regs, err := qp.NewRegions(1)
	require.NoError(t, err)
	e.rkey, err = regs.Register(qp.Region{Data: e.mem, Addr: pacedAddr,
		Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic | qp.FlushGlobal})
	require.NoError(t, err)
	e.q, err = qp.New(qp.Config{QPN: uint32(qpn), Memory: regs, MaxSendWR: 16, MaxRecvWR: 4, MaxRdAtomic: rd,
		MaxDestRdAtomic: rd, Window: window, AckEvery: 5, LinuxRetryForever: true})
	require.NoError(t, err)
	a := qp.Attr{PKey: 0xffff, Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic | qp.FlushGlobal,
		PathMTU: 256, DestQPN: uint32(3 - qpn), RQPSN: rq, MaxDestRdAtomic: rd, MinRNRTimer: 1,
		SQPSN: sq, Timeout: 8, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: rd}
	for _, m := range []qp.AttrMask{
		qp.AttrPKey | qp.AttrAccess,
		qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
		qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic,
	} {
		a.State++
		require.NoError(t, e.q.Modify(epoch, &a, qp.AttrState|m))
	}
	return e
}

func (e *pacedEnd) post(t *testing.T, now time.Time, rng *rand.Rand, peer *pacedEnd) {
	ops := []qp.Op{qp.OpSend, qp.OpSendImm, qp.OpWrite, qp.OpWriteImm, qp.OpRead, qp.OpFetchAdd, qp.OpAtomicWrite, qp.OpFlush}
	wr := qp.SendWR{ID: uint64(len(e.sent)), Op: ops[rng.IntN(len(ops))], RKey: peer.rkey}
	wr.Flags = qp.Flags(rng.IntN(2))*qp.Signaled | qp.Flags(rng.IntN(6)/5)*qp.Fence
	n := rng.IntN(1500) * rng.IntN(4) / 3
	off := rng.IntN(4096)
	wr.RemoteAddr = pacedAddr + uint64(off)
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	wr.Local = data
	switch wr.Op {
	case qp.OpFetchAdd:
		wr.RemoteAddr, wr.CompareAdd, wr.Local = pacedAddr+pacedCounter, 1, make([]byte, 8)
	case qp.OpAtomicWrite:
		wr.RemoteAddr, wr.Local = pacedAddr+pacedCell, binary.BigEndian.AppendUint64(nil, rng.Uint64())
	case qp.OpRead:
		wr.RemoteAddr = pacedAddr + pacedRead
	case qp.OpFlush:
		wr.Local, wr.Length = nil, uint32(n)
	default:
		if rng.IntN(3) == 0 {
			k := rng.IntN(n + 1)
			wr.Gather = [][]byte{data[:k], nil, data[k:]}
		}
	}
	if err := e.q.PostSend(now, &wr); err != nil {
		require.ErrorIs(t, err, qp.ErrQueueFull)
		return
	}
	e.sent = append(e.sent, wr)
	switch wr.Op {
	case qp.OpSend, qp.OpSendImm:
		peer.expect++
	case qp.OpWriteImm:
		peer.expect++
		copy(peer.want[off:], data)
	case qp.OpWrite:
		copy(peer.want[off:], data)
	case qp.OpFetchAdd:
		peer.adds++
		binary.LittleEndian.PutUint64(peer.want[pacedCounter:], peer.adds)
	case qp.OpAtomicWrite:
		copy(peer.want[pacedCell:], wr.Local)
	}
}

// complete takes completions and checks that they come in order.
func (e *pacedEnd) complete(t *testing.T, recvs bool) {
	var c qp.Completion
	for e.q.NextSendCompletion(&c) {
		require.Equal(t, qp.Success, c.Status)
		for ; e.sent[e.done].ID != c.ID; e.done++ {
			require.Zero(t, e.sent[e.done].Flags&qp.Signaled)
		}
		e.done++
	}
	for recvs && e.q.NextRecvCompletion(&c) {
		require.Equal(t, qp.Success, c.Status)
		e.recvs++
	}
}

// TestPaced: whenever packets are taken, and whatever happens between two of them
// (work posted, SQD, other packets handed in), all completes. Rules RQ-05, RQ-09,
// RQ-14, EE-1 to EE-3. The hostile networks take all packets after each call.
func TestPaced(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		window, rd := []int{0, 1, 2, 7, 64}[rng.IntN(5)], 1+rng.IntN(4)
		p0, p1 := psn.PSN(rng.IntN(1<<24)), psn.PSN(psn.Mask-rng.IntN(40))
		ends := [2]*pacedEnd{newPacedEnd(t, 1, window, rd, p0, p1), newPacedEnd(t, 2, window, rd, p1, p0)}
		faults := rng.Float64() * 0.3 * float64(rng.IntN(2))
		now := epoch
		var out qp.Outgoing
		for step := 0; ; step++ {
			require.Less(t, step, 1_000_000, "seed %d: stuck", seed)
			e, peer := ends[step&1], ends[1-step&1]
			switch r := rng.IntN(40); {
			case r < 8:
				if len(e.sent) < pacedWork {
					e.post(t, now, rng, peer)
				}
			case r < 12:
				_ = e.q.PostRecv(&qp.RecvWR{Local: make([]byte, 1600)}) // full is fine
			case r < 24:
				if r == 12 && !e.q.NextPacketOf(now, qp.PendingAck, &out) || r != 12 && !e.q.NextPacket(now, &out) {
					break
				}
				p := out.Packet
				p.Payload = bytes.Clone(p.Payload)
				for rng.Float64() >= faults && len(peer.inbox) < 1000 {
					peer.inbox = append(peer.inbox, p)
					if rng.Float64() >= faults {
						break
					}
				}
			case r < 36:
				if n := len(e.inbox); n > 0 {
					k := 0
					if rng.Float64() < faults {
						k = rng.IntN(n)
					}
					e.q.HandlePacket(now, &e.inbox[k], nil)
					e.inbox = append(e.inbox[:k], e.inbox[k+1:]...)
				}
			case r < 39:
				now = now.Add(time.Duration(rng.IntN(300_000)))
				e.q.Tick(now)
				if d, ok := e.q.Deadline(); ok {
					require.True(t, d.After(now))
				}
			case e.q.State() == qp.RTS:
				require.NoError(t, e.q.Modify(now, &qp.Attr{State: qp.SQD}, qp.AttrState))
			}
			var ev qp.Event
			if e.q.NextEvent(&ev) && ev == qp.EventSQDrained {
				require.NoError(t, e.q.Modify(now, &qp.Attr{State: qp.RTS}, qp.AttrState))
			}
			e.complete(t, rng.IntN(3) == 0)
			if len(e.sent) == pacedWork && len(peer.sent) == pacedWork && e.q.Outstanding()+peer.q.Outstanding() == 0 {
				break
			}
		}
		for _, e := range ends {
			e.complete(t, true)
			require.True(t, bytes.Equal(e.want, e.mem), "seed %d: memory", seed)
			require.Equal(t, e.expect, e.recvs, "seed %d", seed)
		}
	}
}

func TestOutgoingClone(t *testing.T) {
	b := []byte{1, 2, 3}
	o := &qp.Outgoing{Packet: bth.Packet{Payload: b}, Retransmission: true}
	c := o.Clone()
	require.Equal(t, []byte{1, 2, 3}, c.Packet.Payload)
	require.True(t, c.Retransmission)
	b[0] = 9
	require.Equal(t, []byte{1, 2, 3}, c.Packet.Payload)
	require.Nil(t, (&qp.Outgoing{}).Clone().Packet.Payload)
	require.Len(t, (&qp.Outgoing{Packet: bth.Packet{Payload: make([]byte, 5000)}}).Clone().Packet.Payload, 5000)
}

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
		for int(next)-n <= 32 { // the READ before the last has its response
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

// feedWrites delivers a WRITE that asks for an acknowledgement before each packet.
func feedWrites() func(q *qp.QP, n int) {
	return func(q *qp.QP, n int) {
		p := request(bth.WriteOnly, psn.PSN(n))
		p.AckReq = true
		q.HandlePacket(epoch, p, nil)
	}
}

// Rule EE-3: a peer that keeps the responder busy for ever, with READs or with
// WRITEs that each ask for an acknowledgement, does not keep our requests from
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
