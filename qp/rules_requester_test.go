package qp_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// sender returns a requester with attributes of RTS.
func sender(t rapid.TB, cfg qp.Config, set func(*qp.Attr)) *qp.Requester {
	r, err := qp.NewRequester(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	set(a)
	require.NoError(t, r.Connect(a))
	return r
}

func ackPacket(op bth.Operation, s aeth.Syndrome, p psn.PSN) *bth.Packet {
	h := bth.Header{Opcode: bth.RC.Opcode(op), PKey: 0xffff, DestQP: 1, PSN: p}
	return &bth.Packet{Header: h, AETH: aeth.Header{Syndrome: s}}
}

const plainAck = aeth.Syndrome(0x1f)

// Rule PS-1: both tie-breaks, and that order is not transitive.
func TestPSNDistance(t *testing.T) {
	for _, c := range []struct {
		a, b psn.PSN
		d    int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1},
		{0x7fffff, 0, 0x7fffff}, {0x800000, 0, -0x800000}, {0, 0x800000, -0x800000},
		{0x800001, 0, -0x7fffff}, {5, 0x800005, -0x800000}, {0x800005, 5, -0x800000},
	} {
		require.Equal(t, c.d, c.a.Diff(c.b), "%v %v", c.a, c.b)
		require.Equal(t, c.d < 0, c.a.Before(c.b))
	}
	a, b, c := psn.PSN(0), psn.PSN(0x500000), psn.PSN(0xa00000)
	require.True(t, a.Before(b) && b.Before(c) && c.Before(a))
}

// Rule PS-2: a READ of nearly half the circle starts when nothing else is outstanding, and one of
// half the circle is refused; a window never has more outstanding.
func TestOutstandingPSNs(t *testing.T) {
	cfg := base(qp.RC)
	cfg.Window = psn.Half - 1
	r := sender(t, cfg, func(a *qp.Attr) { a.PathMTU, a.SQPSN, a.MaxRdAtomic = 256, 0, 4 })
	var out qp.Outgoing
	chunk := make([]byte, 1<<20)
	most := make([][]byte, 2048)
	for i := range most {
		most[i] = chunk
	}
	require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpRead, Gather: most}), qp.ErrLength)
	most[0] = chunk[256:]
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpRead, Gather: most}))
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpRead, Local: chunk[:1]}))
	require.True(t, r.NextPacket(epoch, &out))
	require.Equal(t, uint32(1<<31-256), out.Packet.RETH.DMALen)
	require.False(t, r.NextPacket(epoch, &out), "2^23 PSNs outstanding")

	// A READ that needs more than the window waits until nothing else is outstanding.
	cfg.Window = 2
	r = sender(t, cfg, func(a *qp.Attr) { a.PathMTU, a.SQPSN = 256, 0 })
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpRead, Local: chunk[:2000]}))
	require.True(t, r.NextPacket(epoch, &out))
	require.False(t, r.NextPacket(epoch, &out))
	require.Equal(t, qp.Accepted, r.HandlePacket(epoch, ackPacket(bth.Acknowledge, plainAck, 0)))
	require.True(t, r.NextPacket(epoch, &out))
	require.Equal(t, uint32(2000), out.Packet.RETH.DMALen)
}

// Rule RQ-01: 2^31 bytes are accepted, one more is refused, for every operation.
func TestLongestMessage(t *testing.T) {
	r := sender(t, base(qp.RC), func(a *qp.Attr) { a.PathMTU = 4096 })
	chunk := make([]byte, 1<<20)
	list := make([][]byte, 2048, 2049)
	for i := range list {
		list[i] = chunk
	}
	for _, op := range []qp.Op{qp.OpSend, qp.OpSendImm, qp.OpSendInv, qp.OpWrite, qp.OpWriteImm, qp.OpRead} {
		require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{Op: op, Gather: append(list, chunk[:1])}), qp.ErrLength, op)
		require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: op, Gather: list}), op)
	}
	require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpFlush, Length: 1<<31 + 1}), qp.ErrLength)
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpFlush, Length: 1 << 31}))
	require.Equal(t, 7, r.Outstanding())
}

// Rules RQ-01, RQ-02, RQ-03, RQ-04: the packets of any message, joined, are the
// message.
func TestSegmentation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mtu := rapid.SampledFrom([]int{256, 512, 1024, 2048, 4096}).Draw(t, "mtu")
		n := max(0, rapid.IntRange(0, 5).Draw(t, "packets")*mtu+rapid.IntRange(-2, 2).Draw(t, "off"))
		first := psn.PSN(rapid.SampledFrom([]uint32{0, 0x7fffff, 0xfffffd, 0xffffff}).Draw(t, "psn"))
		op := rapid.SampledFrom([]qp.Op{qp.OpSend, qp.OpSendImm, qp.OpSendInv, qp.OpWrite, qp.OpWriteImm}).Draw(t, "op")
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		wr := qp.SendWR{Op: op, Local: data}
		if rapid.Bool().Draw(t, "gather") {
			wr.Local, wr.Gather = nil, [][]byte{}
			for rest := data; len(rest) > 0; {
				k := rapid.IntRange(0, len(rest)).Draw(t, "piece")
				wr.Gather = append(wr.Gather, rest[:k])
				rest = rest[k:]
			}
		}
		r := sender(t, base(qp.RC), func(a *qp.Attr) { a.PathMTU, a.SQPSN = mtu, first })
		require.NoError(t, r.PostSend(epoch, &wr))
		var got []byte
		var out qp.Outgoing
		count := max(1, (n+mtu-1)/mtu)
		for i := range count {
			require.True(t, r.NextPacket(epoch, &out))
			p := &out.Packet
			require.Equal(t, first.Add(i), p.PSN)
			require.Equal(t, i == 0 && count > 1, p.Opcode.First())
			require.Equal(t, i > 0 && i == count-1, p.Opcode.Last())
			require.Equal(t, i > 0 && i < count-1, p.Opcode.Middle())
			require.Equal(t, op == qp.OpWrite || op == qp.OpWriteImm, p.Opcode.Write())
			if i < count-1 {
				require.Len(t, p.Payload, mtu)
			}
			require.Equal(t, uint8(-len(p.Payload)&3), p.PadCnt)
			require.Equal(t, [3]byte{}, p.Pad)
			require.Equal(t, i == 0 && p.Opcode.Write(), p.Opcode.Ext()&bth.HasRETH != 0)
			if i == 0 && p.Opcode.Write() {
				require.Equal(t, uint32(n), p.RETH.DMALen)
			}
			require.Equal(t, i == count-1, p.AckReq)
			got = append(got, p.Payload...)
		}
		require.False(t, r.NextPacket(epoch, &out))
		require.True(t, bytes.Equal(data, got))
	})
}

// Rule RQ-05: whatever is posted and sent, when the sender stops, the last packet
// sent has AckReq, so that there is a deadline.
func TestAlwaysAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := base(qp.RC)
		cfg.Window = rapid.IntRange(1, 9).Draw(t, "window")
		cfg.AckEvery = rapid.IntRange(1, 9).Draw(t, "every")
		r := sender(t, cfg, func(a *qp.Attr) { a.PathMTU, a.MaxRdAtomic, a.SQPSN = 256, 1, 0 })
		buf := make([]byte, 2000)
		var out qp.Outgoing
		since := 0
		for range rapid.IntRange(1, 8).Draw(t, "posts") {
			op := rapid.SampledFrom([]qp.Op{qp.OpSend, qp.OpWrite, qp.OpRead, qp.OpFetchAdd}).Draw(t, "op")
			wr := qp.SendWR{Op: op, Local: buf[:max(8, rapid.IntRange(0, len(buf)).Draw(t, "len"))],
				Flags: qp.Flags(rapid.IntRange(0, 3).Draw(t, "flags"))}
			require.NoError(t, r.PostSend(epoch, &wr))
			if rapid.Bool().Draw(t, "drain") {
				for r.NextPacket(epoch, &out) {
					if since++; out.Packet.AckReq {
						since = 0
					}
					require.Less(t, since, cfg.AckEvery)
				}
				require.Zero(t, since, "stopped after a packet that did not ask")
				_, ok := r.Deadline()
				require.True(t, ok)
			}
		}
	})
}

// Rule RQ-11: data is read when the packet is built.
func TestDataReadWhenMade(t *testing.T) {
	r := sender(t, base(qp.RC), func(a *qp.Attr) { a.PathMTU = 256 })
	data := bytes.Repeat([]byte{1}, 300)
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Local: data}))
	var out qp.Outgoing
	data[0] = 2
	require.True(t, r.NextPacket(epoch, &out))
	require.Equal(t, byte(2), out.Packet.Payload[0])
	data[256] = 3
	require.True(t, r.NextPacket(epoch, &out))
	require.Equal(t, byte(3), out.Packet.Payload[0])
}

// Rule RQ-12: inline data is copied when posted, from one slice or many, also for a
// retransmission.
func TestInlineCopies(t *testing.T) {
	cfg := base(qp.RC)
	cfg.MaxInline = 8
	r := sender(t, cfg, func(a *qp.Attr) { a.SQPSN = 0 })
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	want := bytes.Clone(data)
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Flags: qp.Inline, Local: data}))
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Flags: qp.Inline, Gather: [][]byte{data[:3], nil, data[3:]}}))
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpAtomicWrite, Flags: qp.Inline, Local: data}))
	clear(data)
	var out qp.Outgoing
	for range 2 {
		for range 3 {
			require.True(t, r.NextPacket(epoch, &out))
			require.Equal(t, want, out.Packet.Payload)
		}
		r.HandlePacket(epoch, ackPacket(bth.Acknowledge, 0x60, 0))
	}
	require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{Flags: qp.Inline, Local: make([]byte, 9)}), qp.ErrInline)
}

// Rule RQ-13: a refused post changes nothing.
func TestQueueBound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 16} {
		cfg := base(qp.RC)
		cfg.MaxSendWR = n
		r := sender(t, cfg, func(*qp.Attr) {})
		for i := range n {
			require.NoError(t, r.PostSend(epoch, &qp.SendWR{Imm: uint32(i), Op: qp.OpSendImm}))
		}
		require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpSendImm, Imm: 999}), qp.ErrQueueFull)
		require.Equal(t, n, r.Outstanding())
		var out qp.Outgoing
		for i := range n {
			require.True(t, r.NextPacket(epoch, &out))
			require.Equal(t, uint32(i), out.Packet.ImmDt.Imm)
		}
		require.False(t, r.NextPacket(epoch, &out))
	}
}

// rnrTimes are the RNR timer codes in milliseconds (rule WI-14).
var rnrTimes = [32]float64{655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
	2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52}

// Rule RQ-28: for every code, whatever is called meanwhile, nothing is sent before the
// time has passed; and at twice the time, with calls only at Deadline, it was sent.
func TestRNRWait(t *testing.T) {
	for code, ms := range rnrTimes {
		wait := time.Duration(ms*1e6 + 0.5)
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			for _, busy := range []bool{true, false} {
				r := sender(t, base(qp.RC), func(a *qp.Attr) { a.SQPSN, a.Timeout, a.RetryCnt = 0, 1, 1 })
				var out qp.Outgoing
				require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
				require.True(t, r.NextPacket(epoch, &out))
				start := epoch.Add(time.Microsecond)
				require.Equal(t, qp.Retried, r.HandlePacket(start, ackPacket(bth.Acknowledge, aeth.RNRSyndrome(aeth.RNRTimer(code)), 0)))
				d, ok := r.Deadline()
				require.True(t, ok)
				require.False(t, d.Before(start.Add(wait)))
				require.False(t, d.After(start.Add(2*wait)))
				if busy {
					for i := range 16 {
						now := start.Add(wait*time.Duration(i)/16 - 1)
						r.Tick(now)
						_ = r.PostSend(now, &qp.SendWR{})
						r.HandlePacket(now, ackPacket(bth.Acknowledge, 0x60, 0))
						r.HandlePacket(now, ackPacket(bth.Acknowledge, plainAck, 0xffffff))
						r.HandlePacket(now, ackPacket(bth.Acknowledge, aeth.RNRSyndrome(1), 0))
						require.False(t, r.NextPacket(now, &out), "sent after %v of %v", now.Sub(start), wait)
					}
					require.False(t, r.NextPacket(start.Add(wait-1), &out))
				}
				r.Tick(d)
				require.True(t, r.NextPacket(d, &out))
				require.Equal(t, psn.PSN(0), out.Packet.PSN)
				c := r.Counters()
				require.Equal(t, uint64(1), c.RNRNakReceived)
				require.Zero(t, c.LocalAckTimeoutErr+c.PacketSeqErr)
			}
		})
	}
}

// Rule RQ-31: for every code, the timer fires at 4.096 us x 2^timeout: never earlier,
// at most four times that.
func TestAckTimeout(t *testing.T) {
	for code := range 32 {
		r := sender(t, base(qp.RC), func(a *qp.Attr) { a.Timeout = uint8(code) })
		var out qp.Outgoing
		require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
		require.True(t, r.NextPacket(epoch, &out))
		d, ok := r.Deadline()
		if code == 0 {
			require.False(t, ok)
			continue
		}
		want := 4096 * time.Nanosecond << code
		require.True(t, ok)
		require.GreaterOrEqual(t, d.Sub(epoch), want)
		require.LessOrEqual(t, d.Sub(epoch), 4*want)
		for i := range time.Duration(8) {
			r.Tick(epoch.Add(want*(i+1)/8 - 1))
			require.False(t, r.NextPacket(epoch.Add(want*(i+1)/8-1), &out))
		}
		r.Tick(d)
		require.True(t, r.NextPacket(d, &out))
		require.True(t, out.Retransmission)
	}
}

// Rule RQ-32: every retry_cnt allows just so many retries of each kind of trigger, and
// 7 means without limit only with LinuxRetryForever.
func TestRetryCount(t *testing.T) {
	timeout := func(r *qp.Requester) time.Time {
		d, _ := r.Deadline()
		r.Tick(d)
		return d
	}
	for cnt := range uint8(8) {
		for _, forever := range []bool{false, true} {
			cfg := base(qp.RC)
			cfg.LinuxRetryForever = forever
			r := sender(t, cfg, func(a *qp.Attr) { a.RetryCnt, a.Timeout, a.SQPSN = cnt, 1, 0 })
			var out qp.Outgoing
			var c qp.Completion
			require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
			sent, now := 0, epoch
			for sent < 100 && r.NextPacket(now, &out) {
				sent++
				now = timeout(r)
			}
			if forever && cnt == 7 {
				require.Equal(t, 100, sent)
				require.False(t, r.Err())
				continue
			}
			require.Equal(t, int(cnt)+1, sent)
			require.True(t, r.NextCompletion(&c))
			require.Equal(t, qp.RetryExcErr, c.Status)

			// The first loss by NAK, the others by timeouts: as many in all. (A second
			// NAK would be for the same loss, rule RQ-34.)
			r = sender(t, cfg, func(a *qp.Attr) { a.RetryCnt, a.Timeout, a.SQPSN = cnt, 1, 0 })
			require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
			require.True(t, r.NextPacket(epoch, &out))
			r.HandlePacket(epoch, ackPacket(bth.Acknowledge, 0x60, 0))
			for sent, now = 1, epoch; r.NextPacket(now, &out); sent++ {
				now = timeout(r)
			}
			require.Equal(t, int(cnt)+1, sent)
		}
	}
}

// Rule RQ-28: every rnr_retry allows just so many waits; 7 is for ever.
func TestRNRRetryCount(t *testing.T) {
	for cnt := range uint8(8) {
		r := sender(t, base(qp.RC), func(a *qp.Attr) { a.RNRRetry, a.SQPSN = cnt, 0 })
		var out qp.Outgoing
		require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
		sent, now := 0, epoch
		for ; sent < 100 && r.NextPacket(now, &out); sent++ {
			r.HandlePacket(now, ackPacket(bth.Acknowledge, aeth.RNRSyndrome(1), 0))
			now = now.Add(10 * time.Microsecond)
		}
		if cnt == 7 {
			require.Equal(t, 100, sent)
			continue
		}
		require.Equal(t, int(cnt)+1, sent)
		var c qp.Completion
		require.True(t, r.NextCompletion(&c))
		require.Equal(t, qp.RNRRetryExcErr, c.Status)
	}
}

// Rules RQ-30, RQ-29: all 256 syndromes. Only those with a meaning do anything.
func TestAllSyndromes(t *testing.T) {
	for s := range 256 {
		r := sender(t, base(qp.RC), func(a *qp.Attr) { a.SQPSN = 0 })
		var out qp.Outgoing
		require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
		require.True(t, r.NextPacket(epoch, &out))
		v := r.HandlePacket(epoch, ackPacket(bth.Acknowledge, aeth.Syndrome(s), 0))
		switch {
		case s < 0x20:
			require.Equal(t, qp.Accepted, v)
			require.Zero(t, r.Outstanding())
		case s < 0x40, s == 0x60:
			require.Equal(t, qp.Retried, v, "%#x", s)
		case s >= 0x61 && s <= 0x63:
			require.Equal(t, qp.Failed, v, "%#x", s)
			require.True(t, r.Err())
		default:
			require.Equal(t, qp.Reserved, v, "%#x", s)
			require.Equal(t, 1, r.Outstanding())
			require.False(t, r.NextPacket(epoch, &out))
		}
		require.Equal(t, v == qp.Reserved, r.Counters().ReservedSyndrome == 1)
	}
}

// Rule RQ-35: each machine by itself drops what is for the other.
func TestWrongSide(t *testing.T) {
	r := sender(t, base(qp.RC), func(a *qp.Attr) { a.SQPSN = 0 })
	resp, err := qp.NewResponder(base(qp.RC))
	require.NoError(t, err)
	require.NoError(t, resp.Connect(good(qp.RTR)))
	var out qp.Outgoing
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
	require.True(t, r.NextPacket(epoch, &out))
	for i := range 32 {
		op := bth.RC.Opcode(bth.Operation(i))
		if !op.Known() {
			continue
		}
		p := &bth.Packet{Header: bth.Header{Opcode: op, PKey: 0xffff, DestQP: 1, PSN: 10}}
		if op.Class() == bth.Request {
			require.Equal(t, qp.WrongSide, r.HandlePacket(epoch, p), op)
		} else {
			require.Equal(t, qp.WrongSide, resp.HandlePacket(p, nil), op)
		}
		require.False(t, resp.NextPacket(&out))
		require.False(t, r.NextPacket(epoch, &out))
	}
	require.Equal(t, uint64(19), r.Counters().WrongSide)
	require.Equal(t, uint64(6), resp.Counters().WrongSide)
	require.Equal(t, 1, r.Outstanding())
}

// A time before the latest one counts as the latest.
func TestTimeGoesBack(t *testing.T) {
	r := sender(t, base(qp.RC), func(a *qp.Attr) { a.Timeout = 14 })
	var out qp.Outgoing
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{}))
	require.True(t, r.NextPacket(epoch, &out))
	d, _ := r.Deadline()
	r.Tick(epoch.Add(-time.Hour))
	again, ok := r.Deadline()
	require.True(t, ok)
	require.Equal(t, d, again)
}
