package simnet_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
	"github.com/roce-go/roce/qp/softnic"
)

// pairOf is two hosts on one link and a queue pair on each.
type pairOf struct {
	n    *simnet.Network
	a, b *simnet.Host
	l    *simnet.Link
	qa   *softnic.QP
	qb   *softnic.QP
}

func newPair(t testing.TB, cfg simnet.Config, lc simnet.LinkConfig, cc simnet.ConnConfig) *pairOf {
	p := &pairOf{n: simnet.New(cfg)}
	var err error
	p.a, err = p.n.AddHost(simnet.HostConfig{Name: "a"})
	require.NoError(t, err)
	p.b, err = p.n.AddHost(simnet.HostConfig{Name: "b"})
	require.NoError(t, err)
	p.l, err = p.n.Connect(p.a, p.b, lc)
	require.NoError(t, err)
	p.qa, p.qb, err = p.n.ConnectQPs(p.a, p.b, cc)
	require.NoError(t, err)
	return p
}

func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

var gigabit100 = simnet.LinkConfig{Rate: 100e9, Delay: 2 * time.Microsecond}

// mixed posts one of each operation and checks the outcome.
func (p *pairOf) mixed(t testing.TB, size int) {
	msg := pattern(size)
	got, mem, back := make([]byte, size), make([]byte, size), make([]byte, size)
	va, key, err := p.b.Register(mem, qp.RemoteWrite|qp.RemoteRead)
	require.NoError(t, err)
	counter := make([]byte, 8)
	cva, ckey, err := p.b.Register(counter, qp.RemoteAtomic)
	require.NoError(t, err)
	require.NoError(t, p.qb.PostRecv(&qp.RecvWR{ID: 9, Local: got}))
	old := make([]byte, 8)
	now := p.n.Now()
	for _, wr := range []qp.SendWR{
		{ID: 1, Op: qp.OpSend, Flags: qp.Signaled, Local: msg},
		{ID: 2, Op: qp.OpWrite, Flags: qp.Signaled, Local: msg, RemoteAddr: va, RKey: key},
		{ID: 3, Op: qp.OpRead, Flags: qp.Signaled | qp.Fence, Local: back, RemoteAddr: va, RKey: key},
		{ID: 4, Op: qp.OpFetchAdd, Flags: qp.Signaled, Local: old, RemoteAddr: cva, RKey: ckey, CompareAdd: 5},
		{ID: 5, Op: qp.OpCmpSwap, Flags: qp.Signaled, Local: old, RemoteAddr: cva, RKey: ckey, CompareAdd: 5, Swap: 77},
	} {
		require.NoError(t, p.qa.PostSend(now, &wr))
	}
	idle, err := p.n.RunUntilIdle(time.Minute)
	require.NoError(t, err)
	require.True(t, idle)
	var wc qp.Completion
	for id := uint64(1); id <= 5; id++ {
		require.True(t, p.a.CQ.Poll(&wc), id)
		require.Equal(t, id, wc.ID)
		require.Equal(t, qp.Success, wc.Status)
	}
	require.True(t, p.b.CQ.Poll(&wc))
	require.EqualValues(t, 9, wc.ID)
	require.True(t, bytes.Equal(msg, got) && bytes.Equal(msg, mem) && bytes.Equal(msg, back))
	require.EqualValues(t, 77, counter[0])
	require.EqualValues(t, 5, old[0])
}

var hostile = simnet.Faults{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.02, Jitter: 300}

func TestMixedWorkOverBadLink(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		for seed := range uint64(5) {
			t.Run(fmt.Sprint(carry, seed), func(t *testing.T) {
				p := newPair(t, simnet.Config{Seed: seed, Carry: carry}, gigabit100, simnet.ConnConfig{MTU: 1024, RetryForever: true})
				p.l.AB().SetFaults(hostile)
				p.l.BA().SetFaults(hostile)
				p.mixed(t, 100_000)
			})
		}
	}
}

// Same seed, same trace and same capture, byte for byte (rule EE-4).
func TestSameSeedSameTrace(t *testing.T) {
	run := func(seed uint64, carry simnet.Carry) (string, []byte) {
		p := newPair(t, simnet.Config{Seed: seed, Carry: carry}, gigabit100, simnet.ConnConfig{MTU: 1024, RetryForever: true})
		p.l.AB().SetFaults(hostile)
		p.l.BA().SetFaults(hostile)
		var trace, pcap bytes.Buffer
		p.n.Trace(&trace)
		p.b.Capture(&pcap)
		p.mixed(t, 50_000)
		return trace.String(), pcap.Bytes()
	}
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		t1, p1 := run(7, carry)
		t2, p2 := run(7, carry)
		require.Equal(t, t1, t2)
		require.True(t, bytes.Equal(p1, p2))
		t3, _ := run(8, carry)
		require.NotEqual(t, t1, t3)
	}
}

// With HPCC each switch leaves a record in each packet of data, 8 bytes each, and the
// acknowledgement returns them: after two packets that follow each other at the rate
// of the link their records give that rate, and the queue is what waited. With bytes the
// records are behind the IP packet.
func TestTelemetry(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		t.Run(carryNames[carry], func(t *testing.T) { telemetry(t, carry) })
	}
}

func telemetry(t *testing.T, carry simnet.Carry) {
	f, err := lab.Topology{Network: simnet.Config{Carry: carry},
		Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Clos(2, 1, 2)
	require.NoError(t, err)
	_, err = f.AddFlow(write(f.Hosts()[0], f.Hosts()[2], 40_000))
	require.NoError(t, err)
	sizes := make(map[string]int)
	var tail []byte
	f.Observe(func(e *simnet.PacketEvent) {
		if n := len(e.Raw); n > 4096 && e.Direction.From().Name() == "leaf1" {
			tail = append([]byte(nil), e.Raw[n-26:]...)
		}
		if len(e.Frame.Packet.Payload) == 4096 && sizes[e.Direction.From().Name()] == 0 {
			sizes[e.Direction.From().Name()] = e.Size
		}
	})
	idle, err := f.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	at := sizes["h0.0"]
	require.NotZero(t, at)
	require.Equal(t, map[string]int{"h0.0": at, "leaf0": at + 8, "spine0": at + 16, "leaf1": at + 24}, sizes)
	require.Equal(t, 4096+62+16+2, at, "headers with RETH, FCS, and 2 bytes of telemetry without a record")
	if carry == simnet.Bytes {
		// Mode 1, three records; the first is of an output of 100 Gb/s (code 2), whose time
		// comes from the network's clock.
		require.Equal(t, []byte{1<<6 | 3, 0}, tail[:2])
		require.EqualValues(t, 2, tail[9]&7)
	}
}

// Behind the last record that there is room for, a packet does not grow, whatever
// networks carry.
func TestTelemetryBeyondMaxHops(t *testing.T) {
	run := func(carry simnet.Carry) uint64 {
		f, err := lab.Topology{Network: simnet.Config{Carry: carry}, Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Ring(congestion.MaxHops+3, 1)
		require.NoError(t, err)
		from, to := f.Hosts()[0], f.Hosts()[congestion.MaxHops+1]
		flow, err := f.AddFlow(write(from, to, 4096))
		require.NoError(t, err)
		require.NoError(t, f.Run(300*time.Microsecond))
		require.True(t, flow.Done())
		return to.Link().BA().Counters().Bytes + to.Link().AB().Counters().Bytes
	}
	want := run(simnet.Bytes)
	require.Equal(t, want, run(simnet.Decoded))
	require.Equal(t, want, run(simnet.Shared))
}

// HPCC does the same whatever networks carry: the records that senders get back are those
// of the bytes.
func TestTelemetryOfAllCarries(t *testing.T) {
	run := func(carry simnet.Carry) (got []uint64, queue int) {
		f, err := lab.Topology{Network: simnet.Config{Carry: carry}, Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Star(5)
		require.NoError(t, err)
		var flows []*simnet.Flow
		for _, h := range f.Hosts()[1:] {
			w := write(h, f.Hosts()[0], 64<<10)
			w.Count = 0
			flow, err := f.AddFlow(w)
			require.NoError(t, err)
			flows = append(flows, flow)
		}
		require.NoError(t, f.Run(300*time.Microsecond))
		for _, x := range flows {
			got = append(got, x.Received())
		}
		return got, f.Bottleneck.Counters().MaxQueue
	}
	want, queue := run(simnet.Shared)
	require.NotZero(t, want[0])
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		got, q := run(carry)
		require.Equal(t, want, got)
		require.Equal(t, queue, q)
	}
}
