package simnet_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// bulk posts one WRITE of n bytes.
func (p *pairOf) bulk(t testing.TB, n int) {
	mem := make([]byte, n)
	va, key, err := p.b.Register(mem, qp.RemoteWrite)
	require.NoError(t, err)
	require.NoError(t, p.qa.PostSend(p.n.Now(), &qp.SendWR{Op: qp.OpWrite, Flags: qp.Signaled, Local: pattern(n), RemoteAddr: va, RKey: key}))
	_, err = p.n.RunUntilIdle(10 * time.Second)
	require.NoError(t, err)
	var wc qp.Completion
	require.True(t, p.a.CQ.Poll(&wc))
	require.Equal(t, qp.Success, wc.Status)
	require.Equal(t, pattern(n), mem)
}

// Every corrupted packet fails the ICRC check, or cannot even be decoded; a decoded
// network drops as many.
func TestCorruptionIsCaught(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		p := newPair(t, simnet.Config{Seed: 2, Carry: carry}, gigabit100, simnet.ConnConfig{MTU: 256, Timeout: 4, RetryForever: true})
		p.l.AB().SetFaults(simnet.Faults{Corrupt: 0.2})
		p.bulk(t, 200_000)
		corrupted := p.l.AB().Counters().Corrupted
		require.Greater(t, corrupted, uint64(200))
		c := p.b.Port.Counters()
		require.Equal(t, corrupted, c.RxICRCEncapsulated+c.RxMalformed+c.RxNotRoCE+p.b.Broken())
		if carry == simnet.Bytes {
			require.Greater(t, c.RxICRCEncapsulated, corrupted*9/10)
		}
	}
}

func TestLossList(t *testing.T) {
	p := newPair(t, simnet.Config{}, gigabit100, simnet.ConnConfig{MTU: 256})
	p.l.AB().SetFaults(simnet.Faults{LossList: []uint64{7, 3, 3}})
	var lost []uint64
	n := uint64(0)
	p.n.Observe(func(e *simnet.PacketEvent) {
		if e.Direction == p.l.AB() {
			if e.Fate == simnet.Lost {
				lost = append(lost, n)
			}
			n++
		}
	})
	p.bulk(t, 5000)
	require.Equal(t, []uint64{3, 7}, lost)
	require.EqualValues(t, 2, p.l.AB().Counters().Lost)
}

// Jitter never changes the order; reordering does, and duplicates come twice.
func TestJitterReorderDuplicate(t *testing.T) {
	p := newPair(t, simnet.Config{Seed: 1}, gigabit100, simnet.ConnConfig{MTU: 256})
	p.l.AB().SetFaults(simnet.Faults{Jitter: 20 * time.Microsecond})
	last := time.Duration(0)
	p.n.Observe(func(e *simnet.PacketEvent) {
		require.GreaterOrEqual(t, e.At, last, "time never goes back")
		last = e.At
	})
	p.l.BA().SetFaults(simnet.Faults{Jitter: 20 * time.Microsecond})
	p.bulk(t, 100_000)
	require.Zero(t, p.qb.Counters().OutOfSequence)
	require.Zero(t, p.qb.Counters().DuplicateRequest)

	p.l.AB().SetFaults(simnet.Faults{Duplicate: 1})
	p.bulk(t, 256*100)
	require.EqualValues(t, 100, p.l.AB().Counters().Duplicated)
	require.EqualValues(t, 100, p.qb.Counters().DuplicateRequest)

	p.l.AB().SetFaults(simnet.Faults{Reorder: 0.05})
	p.bulk(t, 256*400)
	require.NotZero(t, p.l.AB().Counters().Reordered)
	require.NotZero(t, p.qb.Counters().OutOfSequence)
}

// The link sends at its rate: time on the wire counts preamble, gap and FCS.
func TestRate(t *testing.T) {
	p := newPair(t, simnet.Config{}, simnet.LinkConfig{Rate: 7e9, Delay: time.Microsecond}, simnet.ConnConfig{MTU: 4096})
	p.bulk(t, 4096*1000)
	c := p.l.AB().Counters()
	require.EqualValues(t, 1000, c.Packets)
	// Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, and a RETH of 16 once.
	require.EqualValues(t, 1000*(4096+62)+16, c.Bytes)
	want := time.Duration((float64(c.Bytes) + 20*1000) * 8 / 7)
	const ack = time.Duration((66 + 20) * 8 / 7)
	const gaps = 2 * 12 * 8 / 7. // a packet has arrived before the gap that follows it
	require.InDelta(t, float64(want+ack+2*time.Microsecond)-gaps, float64(p.n.Elapsed()), 3)
	require.InDelta(t, 1, simnet.Utilization(c.Packets, c.Bytes, 7e9, want), 1e-6)
}

// The capture is a pcap file with times in nanoseconds, whose frames decode and
// check, and which has what was sent and what arrived, not what was lost on the way
// here.
func TestCapture(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		p := newPair(t, simnet.Config{Seed: 1, Carry: carry}, gigabit100, simnet.ConnConfig{MTU: 256, RetryForever: true})
		p.l.AB().SetFaults(simnet.Faults{Loss: 0.1})
		p.l.BA().SetFaults(simnet.Faults{Loss: 0.1})
		var a, b bytes.Buffer
		p.a.Capture(&a)
		p.b.Capture(&b)
		p.bulk(t, 50_000)
		ab, ba := p.l.AB().Counters(), p.l.BA().Counters()
		for i, x := range []struct {
			buf  *bytes.Buffer
			want uint64
		}{{&a, ab.Packets + ba.Packets - ba.Lost}, {&b, ba.Packets + ab.Packets - ab.Lost}} {
			le := binary.LittleEndian
			head := x.buf.Next(24)
			require.Equal(t, uint32(0xa1b23c4d), le.Uint32(head))
			require.EqualValues(t, frame.Ethernet, le.Uint32(head[20:]))
			got := uint64(0)
			last := time.Time{}
			for x.buf.Len() != 0 {
				rec := x.buf.Next(16)
				at := time.Unix(int64(le.Uint32(rec)), int64(le.Uint32(rec[4:])))
				require.Equal(t, le.Uint32(rec[8:]), le.Uint32(rec[12:]))
				data := x.buf.Next(int(le.Uint32(rec[8:])))
				require.False(t, at.Before(last))
				last = at
				require.GreaterOrEqual(t, len(data), 60)
				var f frame.Frame
				require.NoError(t, f.Decode(frame.Ethernet, data))
				require.Equal(t, frame.ICRCGood, f.CheckICRC())
				got++
			}
			require.Equal(t, x.want, got, i)
			require.EqualValues(t, 2030, last.UTC().Year())
		}
		require.NoError(t, p.a.CaptureErr())
	}
}

// Forged and malformed frames do no harm.
func TestInject(t *testing.T) {
	p := newPair(t, simnet.Config{}, gigabit100, simnet.ConnConfig{})
	require.NoError(t, p.a.Inject([]byte{1, 2, 3}))
	require.NoError(t, p.a.Inject(bytes.Repeat([]byte{0xff}, 100)))
	p.bulk(t, 10_000)
	require.EqualValues(t, 2, p.b.Port.Counters().RxNotRoCE+p.b.Port.Counters().RxMalformed)
	d := newPair(t, simnet.Config{Carry: simnet.Decoded}, gigabit100, simnet.ConnConfig{})
	require.ErrorIs(t, d.a.Inject([]byte{1}), simnet.ErrConfig)
}

// A READ and an ATOMIC in the text trace, as an embedder's test would compare it.
func TestTraceText(t *testing.T) {
	p := newPair(t, simnet.Config{}, gigabit100, simnet.ConnConfig{MTU: 256})
	p.l.BA().SetFaults(simnet.Faults{LossList: []uint64{0}})
	mem := pattern(300)
	va, key, err := p.b.Register(mem, qp.RemoteRead)
	require.NoError(t, err)
	var out strings.Builder
	p.n.Trace(&out)
	require.NoError(t, p.qa.PostSend(p.n.Now(), &qp.SendWR{Op: qp.OpRead, Flags: qp.Signaled, Local: make([]byte, 300), RemoteAddr: va, RKey: key}))
	_, err = p.n.RunUntilIdle(time.Second)
	require.NoError(t, err)
	require.Equal(t, `       0.000 us  a > b  RC_RDMA_READ_REQUEST         qp 0x11 psn 0x011000 A va 0x20000000000 len 300
       2.006 us  b > a  RC_RDMA_READ_RESPONSE_FIRST  qp 0x11 psn 0x011000 msn 1 credits 0 256 B  lost
       2.034 us  b > a  RC_RDMA_READ_RESPONSE_LAST   qp 0x11 psn 0x011001 msn 1 credits 0 44 B
       4.043 us  a > b  RC_RDMA_READ_REQUEST         qp 0x11 psn 0x011000 A va 0x20000000000 len 300
       6.050 us  b > a  RC_RDMA_READ_RESPONSE_FIRST  qp 0x11 psn 0x011000 msn 1 credits 0 256 B
       6.077 us  b > a  RC_RDMA_READ_RESPONSE_LAST   qp 0x11 psn 0x011001 msn 1 credits 0 44 B
`, out.String())
}

// A function that sees packets decoded loses the second response of the second READ,
// once: nothing else is sent again.
func TestIntercept(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		p := newPair(t, simnet.Config{Carry: carry}, gigabit100, simnet.ConnConfig{MTU: 256})
		mem := pattern(1000)
		va, key, err := p.b.Register(mem, qp.RemoteRead)
		require.NoError(t, err)
		reads, hit := 0, 0
		p.l.BA().Intercept(func(e *simnet.PacketEvent) simnet.Fate {
			switch e.Frame.Packet.Opcode {
			case bth.RCReadResponseFirst:
				reads++
			case bth.RCReadResponseMiddle:
				if reads == 2 && hit == 0 {
					hit++
					return simnet.Lost
				}
			}
			return simnet.Sent
		})
		var got [2][1000]byte
		for i := range got {
			require.NoError(t, p.qa.PostSend(p.n.Now(), &qp.SendWR{Op: qp.OpRead, Flags: qp.Signaled, Local: got[i][:], RemoteAddr: va, RKey: key}))
		}
		idle, err := p.n.RunUntilIdle(time.Second)
		require.True(t, idle && err == nil)
		require.Equal(t, 1, hit)
		require.EqualValues(t, 1, p.l.BA().Counters().Lost)
		require.Equal(t, mem, got[0][:])
		require.Equal(t, mem, got[1][:])
	}
}
