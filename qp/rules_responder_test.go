package qp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/reth"
)

// receiver returns a responder with attributes of RTR.
func receiver(t rapid.TB, cfg qp.Config, set func(*qp.Attr)) *qp.Responder {
	r, err := qp.NewResponder(cfg)
	require.NoError(t, err)
	a := good(qp.RTR)
	a.Access = 0xff
	set(a)
	require.NoError(t, r.Connect(a))
	return r
}

func request(op bth.Operation, p psn.PSN) *bth.Packet {
	return &bth.Packet{Header: bth.Header{Opcode: bth.RC.Opcode(op), PKey: 0xffff, DestQP: 1, PSN: p}}
}

// memory returns a table with one region at 0x1000.
func memory(t rapid.TB, n int) (*qp.Regions, []byte, uint32) {
	m, err := qp.NewRegions(4)
	require.NoError(t, err)
	b := make([]byte, n)
	key, err := m.Register(qp.Region{PD: 1, Data: b, Addr: 0x1000, Access: 0xff &^ qp.ZeroBased})
	require.NoError(t, err)
	return m, b, key
}

// Rule RS-02: the pairs of a public fault report.
func TestPKeys(t *testing.T) {
	for _, c := range []struct {
		mine, theirs uint16
		match        bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0xffff, true}, {0x7fff, 0x7fff, false},
		{0x8000, 0x8000, false}, {0x0000, 0x8000, false}, {0x8001, 0x0001, true}, {0x8001, 0x8002, false},
	} {
		r := receiver(t, base(qp.RC), func(a *qp.Attr) { a.PKey = c.mine })
		p := request(bth.WriteOnly, 10)
		p.PKey = c.theirs
		v := r.HandlePacket(p, nil)
		var out qp.Outgoing
		if c.match {
			require.Equal(t, qp.Accepted, v, "%04x %04x", c.mine, c.theirs)
			continue
		}
		require.Equal(t, qp.Invalid, v, "%04x %04x", c.mine, c.theirs)
		require.False(t, r.NextPacket(&out))
		require.Equal(t, uint64(1), r.Counters().Invalid)
	}
}

// Rule RS-03: the region of a PSN by its distance, all around the circle.
func TestPSNRegions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := psn.PSN(rapid.Uint32Range(0, psn.Mask).Draw(t, "epsn"))
		d := rapid.OneOf(rapid.SampledFrom([]int{0, 1, 2, psn.Half - 1, psn.Half, psn.Half + 1, psn.Mask, psn.Mask - 1}),
			rapid.IntRange(0, psn.Mask)).Draw(t, "distance")
		r := receiver(t, base(qp.RC), func(a *qp.Attr) { a.RQPSN = e })
		p := request(bth.WriteOnly, e.Add(d))
		p.AckReq = true
		v := r.HandlePacket(p, nil)
		var out qp.Outgoing
		require.True(t, r.NextPacket(&out))
		switch a := &out.Packet.AETH; {
		case d == 0:
			require.Equal(t, qp.Accepted, v)
			require.Equal(t, e, out.Packet.PSN)
			require.Equal(t, uint32(1), a.MSN)
		case d < psn.Half:
			require.Equal(t, qp.OutOfSequence, v)
			require.Equal(t, aeth.Syndrome(0x60), a.Syndrome)
			require.Equal(t, e, out.Packet.PSN)
		default:
			require.Equal(t, qp.Duplicate, v)
			require.Equal(t, aeth.Ack, a.Syndrome.Kind())
			require.Equal(t, e.Add(-1), out.Packet.PSN)
			require.Zero(t, a.MSN)
		}
		require.False(t, r.NextPacket(&out))
	})
}

// Rule RS-05: every operation inside every kind of message.
func TestOpcodeSequence(t *testing.T) {
	m, _, key := memory(t, 8192)
	payload := make([]byte, 1024)
	for state, opener := range map[string]bth.Operation{"outside": 0xff, "in SEND": bth.SendFirst, "in WRITE": bth.WriteFirst} {
		for i := range 32 {
			op := bth.Operation(i)
			code := bth.RC.Opcode(op)
			if code.Class() != bth.Request {
				continue
			}
			cfg := base(qp.RC)
			cfg.Memory = m
			r := receiver(t, cfg, func(*qp.Attr) {})
			require.NoError(t, r.PostRecv(&qp.RecvWR{Local: make([]byte, 4096)}))
			next := psn.PSN(10)
			if opener != 0xff {
				p := request(opener, next)
				p.SetPayload(payload)
				p.RETH = reth.Header{VA: 0x1000, RKey: key, DMALen: 2048}
				require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
				next++
			}
			p := request(op, next)
			p.RETH = reth.Header{VA: 0x1000, RKey: key, DMALen: 8}
			p.AtomicETH = reth.AtomicETH{VA: 0x1000, RKey: key}
			p.FETH.Placement = 1
			switch code.Payload() {
			case bth.ExactlyMTU:
				p.RETH.DMALen = 4096
				p.SetPayload(payload)
			case bth.EightBytes:
				p.SetPayload(payload[:8])
			case bth.OneToMTU:
				p.SetPayload(payload)
			case bth.UpToMTU:
				p.SetPayload(payload[:8])
			}
			want := false
			switch state {
			case "outside":
				want = !code.Middle() && !code.Last()
			case "in SEND":
				want = code.Send() && (code.Middle() || code.Last())
			case "in WRITE":
				// A Middle here fills the WRITE up, which rule RS-07 allows.
				want = code.Write() && (code.Middle() || code.Last())
			}
			if op == bth.SendLastInv && state == "in SEND" || op == bth.SendOnlyInv && state == "outside" {
				continue // the key 0 may not be invalidated
			}
			v := r.HandlePacket(p, nil)
			require.Equal(t, want, v == qp.Accepted, "%v %v: %v", state, code, v)
			if !want {
				require.Equal(t, qp.Refused, v)
				require.True(t, r.Err())
				var out qp.Outgoing
				require.True(t, r.NextPacket(&out))
				require.Equal(t, bth.RCAcknowledge, out.Packet.Opcode)
				require.Equal(t, aeth.Syndrome(0x61), out.Packet.AETH.Syndrome)
				require.Equal(t, next, out.Packet.PSN)
			}
		}
	}
}

// Rule RS-13: the MSN wraps after 2^24 messages.
func TestMSNWraps(t *testing.T) {
	if testing.Short() {
		t.Skip("16 million packets")
	}
	r := receiver(t, base(qp.RC), func(a *qp.Attr) { a.RQPSN = 0 })
	p := request(bth.WriteOnly, 0)
	for i := range uint32(1<<24 - 1) {
		p.PSN = psn.PSN(i)
		if v := r.HandlePacket(p, nil); v != qp.Accepted {
			t.Fatal(i, v)
		}
	}
	var out qp.Outgoing
	for _, want := range []uint32{0, 1} {
		p.PSN, p.AckReq = psn.PSN(0xffffff+want)&psn.Mask, true
		require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
		require.True(t, r.NextPacket(&out))
		require.Equal(t, want, out.Packet.AETH.MSN)
	}
}

// Rules RS-16, RS-22: whatever duplicates arrive, each FETCH ADD is executed once, the
// last max_dest_rd_atomic get the value of the first time, older ones
// not at all.
func TestAtomicsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, b, key := memory(t, 8)
		cfg := base(qp.RC)
		cfg.Memory = m
		cfg.MaxDestRdAtomic = rapid.IntRange(1, 128).Draw(t, "ring")
		r := receiver(t, cfg, func(a *qp.Attr) { a.MaxDestRdAtomic, a.RQPSN = cfg.MaxDestRdAtomic, 0xfffff0 })
		first := psn.PSN(0xfffff0)
		executed := 0
		var out qp.Outgoing
		send := func(i int) qp.Verdict {
			p := request(bth.FetchAdd, first.Add(i))
			p.AtomicETH = reth.AtomicETH{VA: 0x1000, RKey: key, SwapAdd: 1 << (i % 60)}
			return r.HandlePacket(p, nil)
		}
		var orig []uint64
		sum := uint64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if executed == 0 || rapid.Bool().Draw(t, "new") {
				require.Equal(t, qp.Accepted, send(executed))
				orig = append(orig, sum)
				sum += 1 << (executed % 60)
				require.True(t, r.NextPacket(&out))
				require.Equal(t, orig[executed], out.Packet.AtomicAckETH.Orig)
				executed++
			} else {
				i := rapid.IntRange(0, executed-1).Draw(t, "duplicate")
				require.Equal(t, qp.Duplicate, send(i))
				require.Equal(t, i >= executed-cfg.MaxDestRdAtomic, r.NextPacket(&out))
				if i >= executed-cfg.MaxDestRdAtomic {
					require.Equal(t, bth.RCAtomicAcknowledge, out.Packet.Opcode)
					require.Equal(t, first.Add(i), out.Packet.PSN)
					require.Equal(t, orig[i], out.Packet.AtomicAckETH.Orig)
					require.Equal(t, uint32(i+1), out.Packet.AETH.MSN)
				}
			}
			require.False(t, r.NextPacket(&out))
			require.Equal(t, sum, binary.LittleEndian.Uint64(b))
		}
	})
}

// Rule RS-21: a duplicate READ has a response only where it lies within the original one.
func TestDuplicateReadRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, b, key := memory(t, 8192)
		for i := range b {
			b[i] = byte(i*11 + i>>8)
		}
		cfg := base(qp.RC)
		cfg.Memory = m
		n := rapid.IntRange(1, 4000).Draw(t, "length")
		r := receiver(t, cfg, func(a *qp.Attr) { a.PathMTU, a.RQPSN = 256, 0xffffff })
		p := request(bth.ReadRequest, 0xffffff)
		p.RETH = reth.Header{VA: 0x1100, RKey: key, DMALen: uint32(n)}
		require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
		var out qp.Outgoing
		for range (n + 255) / 256 {
			require.True(t, r.NextPacket(&out))
		}
		require.False(t, r.NextPacket(&out))

		skip := rapid.IntRange(0, 16).Draw(t, "skip")
		m2 := rapid.IntRange(0, 4100).Draw(t, "again")
		p.PSN = psn.PSN(0xffffff).Add(skip)
		p.RETH.VA += uint64(256 * skip)
		p.RETH.DMALen = uint32(m2)
		inside := 256*skip < n && m2 > 0 && 256*skip+m2 <= n
		if 256*skip >= n {
			// Not requested yet: a new READ, or beyond.
			return
		}
		require.Equal(t, qp.Duplicate, r.HandlePacket(p, nil))
		var got []byte
		for i := 0; r.NextPacket(&out); i++ {
			require.Equal(t, p.PSN.Add(i), out.Packet.PSN)
			got = append(got, out.Packet.Payload...)
		}
		if !inside {
			require.Empty(t, got)
			return
		}
		require.Equal(t, b[0x100+256*skip:][:m2], got)
	})
}

// creditTable is what the credit codes mean (rule WI-13).
var creditTable = []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
	3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}

// Rule RS-24: the code for every number of receives posted.
func TestCredits(t *testing.T) {
	cfg := base(qp.RC)
	cfg.MaxRecvWR = 40000
	r := receiver(t, cfg, func(a *qp.Attr) { a.RQPSN = 0 })
	code := 0
	var out qp.Outgoing
	for n := range 40000 {
		if code+1 < len(creditTable) && creditTable[code+1] <= n {
			code++
		}
		p := request(bth.WriteOnly, psn.PSN(n))
		p.AckReq = true
		require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
		require.True(t, r.NextPacket(&out))
		if s := out.Packet.AETH.Syndrome; s != aeth.Syndrome(code) {
			t.Fatalf("%d receives: syndrome %#x, want code %d", n, s, code)
		}
		require.NoError(t, r.PostRecv(&qp.RecvWR{}))
	}
	require.ErrorIs(t, r.PostRecv(&qp.RecvWR{}), qp.ErrQueueFull)
	require.Equal(t, len(creditTable)-1, code)
}

// Rule RS-20: with AckReq or without, one acknowledgement.
func TestDuplicateAckReq(t *testing.T) {
	for _, asks := range []bool{false, true} {
		for _, op := range []bth.Operation{bth.SendFirst, bth.SendMiddle, bth.SendLast, bth.SendLastImm, bth.SendOnly, bth.SendOnlyImm,
			bth.SendLastInv, bth.SendOnlyInv, bth.WriteFirst, bth.WriteMiddle, bth.WriteLast, bth.WriteLastImm, bth.WriteOnly, bth.WriteOnlyImm} {
			r := receiver(t, base(qp.RC), func(*qp.Attr) {})
			require.NoError(t, r.PostRecv(&qp.RecvWR{}))
			p := request(op, 9)
			p.AckReq = asks
			require.Equal(t, qp.Duplicate, r.HandlePacket(p, nil))
			var out qp.Outgoing
			require.True(t, r.NextPacket(&out), op)
			require.Equal(t, bth.RCAcknowledge, out.Packet.Opcode)
			require.Equal(t, psn.PSN(9), out.Packet.PSN)
			require.Equal(t, aeth.AckSyndrome(1), out.Packet.AETH.Syndrome, "the receive is still there")
			require.False(t, r.NextPacket(&out))
		}
	}
}

// Rule RS-08: every length around that of the receive, with scatter lists.
func TestReceiveLength(t *testing.T) {
	for n := range 12 {
		r := receiver(t, base(qp.RC), func(*qp.Attr) {})
		list := [][]byte{make([]byte, 3), nil, make([]byte, 4), make([]byte, 1)}
		require.NoError(t, r.PostRecv(&qp.RecvWR{Scatter: list}))
		p := request(bth.SendOnly, 10)
		p.SetPayload([]byte("abcdefghijkl")[:n])
		v := r.HandlePacket(p, nil)
		var c qp.Completion
		require.True(t, r.NextCompletion(&c))
		if n > 8 {
			require.Equal(t, qp.Refused, v)
			require.Equal(t, qp.LocalLengthErr, c.Status)
			require.Equal(t, "\x00\x00\x00", string(list[0]))
			continue
		}
		require.Equal(t, qp.Accepted, v)
		require.Equal(t, uint32(n), c.ByteLen)
		require.Equal(t, "abcdefgh"[:n], fmt.Sprintf("%s%s%s", list[0], list[2], list[3])[:n])
	}
}

// Rule RS-14: a NAK follows the responses to a READ, those to a duplicate too.
func TestNakAfterResponses(t *testing.T) {
	m, _, key := memory(t, 8192)
	r := receiver(t, qp.Config{QPN: 1, PD: 1, Memory: m, MaxRecvWR: 4, MaxDestRdAtomic: 2}, func(a *qp.Attr) {
		a.RQPSN, a.MaxDestRdAtomic, a.PathMTU = 10, 2, 1024
	})
	read := request(bth.ReadRequest, 10)
	read.RETH = reth.Header{VA: 0x1000, RKey: key, DMALen: 3000}
	for _, duplicate := range []bool{false, true} {
		if duplicate {
			r = receiver(t, qp.Config{QPN: 1, PD: 1, Memory: m, MaxRecvWR: 4, MaxDestRdAtomic: 2}, func(a *qp.Attr) {
				a.RQPSN, a.MaxDestRdAtomic, a.PathMTU = 10, 2, 1024
			})
			r.HandlePacket(read, nil)
			for out := (qp.Outgoing{}); r.NextPacket(&out); {
			}
		}
		require.Less(t, r.HandlePacket(read, nil), qp.Invalid)
		r.HandlePacket(request(bth.SendOnly, psn.PSN(20)), nil)
		var got []bth.Operation
		var out qp.Outgoing
		for r.NextPacket(&out) {
			got = append(got, out.Packet.Opcode.Operation())
		}
		require.Equal(t, []bth.Operation{bth.ReadResponseFirst, bth.ReadResponseMiddle, bth.ReadResponseLast, bth.Acknowledge}, got)
		require.Equal(t, aeth.NakSyndrome(aeth.NakPSNSequenceError), out.Packet.AETH.Syndrome)
	}
}

// Rules UC-1 and UC-2: over a link that loses packets exactly the messages arrive of
// which nothing was lost, and the counters count what was: each place where
// something is missing is out of sequence once, each message that was begun and not
// ended is dropped once, and what is behind a loss in its message is dropped.
func TestUCLosses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := qp.NewResponder(base(qp.UC))
		require.NoError(t, err)
		first := psn.PSN(rapid.SampledFrom([]uint32{0, 5, psn.Mask - 3}).Draw(t, "first"))
		a := good(qp.RTR)
		a.PathMTU, a.RQPSN = 256, first
		require.NoError(t, m.Connect(a))
		var want []byte
		var bufs [][]byte
		var gaps, dropped uint64
		at, missing, begun := first, false, false
		for k := range byte(12) {
			n := rapid.IntRange(1, 4).Draw(t, "packets")
			lost := rapid.IntRange(0, 1<<n-1).Draw(t, "lost")
			if rapid.Bool().Draw(t, "whole") {
				lost = 0
			}
			bufs = append(bufs, make([]byte, 4*256))
			require.NoError(t, m.PostRecv(&qp.RecvWR{ID: uint64(k), Local: bufs[k]}))
			for i := range n {
				op := bth.SendMiddle
				switch {
				case n == 1:
					op = bth.SendOnly
				case i == 0:
					op = bth.SendFirst
				case i == n-1:
					op = bth.SendLast
				}
				p := &bth.Packet{Header: bth.Header{Opcode: bth.UC.Opcode(op), PKey: 0xffff, DestQP: 1, PSN: at}}
				p.SetPayload(bytes.Repeat([]byte{k}, 256))
				at = at.Add(1)
				if lost>>i&1 != 0 {
					missing = true
					continue
				}
				if missing {
					gaps++
					if begun {
						dropped++
					}
					missing, begun = false, false
				}
				v := m.HandlePacket(p, nil)
				begun = v == qp.Accepted && i < n-1
				require.Equal(t, dropped, m.Counters().UCMessagesDropped, "at once")
				if lost&(1<<i-1) == 0 {
					require.Equal(t, qp.Accepted, v, "message %d, packet %d of %d, lost %b", k, i, n, lost)
				} else {
					require.Equal(t, qp.OutOfSequence, v, "message %d, packet %d of %d, lost %b", k, i, n, lost)
				}
			}
			if lost == 0 {
				want = append(want, k)
			}
		}
		// A message that consumes no receive shows what is behind the last loss.
		p := &bth.Packet{Header: bth.Header{Opcode: bth.UC.Opcode(bth.SendOnly), PKey: 0xffff, DestQP: 1, PSN: at}}
		require.NoError(t, m.PostRecv(&qp.RecvWR{ID: 12, Local: make([]byte, 1)}))
		require.Equal(t, qp.Accepted, m.HandlePacket(p, nil))
		if missing {
			gaps++
			if begun {
				dropped++
			}
		}
		var got []byte
		var c qp.Completion
		for m.NextCompletion(&c) {
			require.Equal(t, qp.Success, c.Status)
			got = append(got, byte(c.ID))
		}
		require.Len(t, got, len(want)+1)
		for i, id := range got {
			require.EqualValues(t, i, id, "a message that was dropped leaves its receive to the next")
			if i < len(want) {
				require.Equal(t, want[i], bufs[i][0])
			}
		}
		require.Equal(t, gaps, m.Counters().OutOfSequence)
		require.Equal(t, dropped, m.Counters().UCMessagesDropped)
	})
}
