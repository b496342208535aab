package qp_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
)

// BenchmarkMachines joins two QPs back to back without bytes, on one core:
// 64-byte RDMA WRITEs, 64 posted at a time. packets/s counts what NextPacket built
// and HandlePacket handled: requests and acknowledgements. "coalesced" signals one
// WRITE in 64, which is acknowledged with those before it; "acked" signals each,
// and each has an acknowledgement of its own.
func BenchmarkMachines(b *testing.B) {
	for _, c := range []struct {
		name  string
		every int
	}{{"coalesced", 64}, {"acked", 1}} {
		b.Run("write64/"+c.name, func(b *testing.B) {
			j := newJoined(b, joinedConfig(), 1024, 4096)
			wr := qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 64), RemoteAddr: joinedAddr, RKey: j.keys[1]}
			b.ReportAllocs()
			posts := 0
			for b.Loop() {
				for range 64 {
					posts++
					wr.Flags = 0
					if posts%c.every == 0 {
						wr.Flags = qp.Signaled
					}
					if err := j.q[0].PostSend(j.now, &wr); err != nil {
						b.Fatal(err)
					}
				}
				for j.carry(0) {
					if c.every == 1 {
						j.carry(1)
					}
				}
				for j.carry(1) {
				}
				if _, bad := j.completions(); bad != 0 || j.q[0].Outstanding() != 0 {
					b.Fatal("not complete")
				}
			}
			b.ReportMetric(float64(j.packets)/b.Elapsed().Seconds(), "packets/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(j.packets), "ns/packet")
		})
	}
}

// BenchmarkBytes moves 1 MiB messages at a path MTU of 4096 between two QPs on
// one core, through frames: each packet is encoded with its ICRC, decoded, and
// its ICRC checked. Between any two messages it does what no way of doing that
// can do without: the same bytes copied into frames and out of them, and two
// passes of ICRC over them. "%limit" is that time in hundredths of ours, and
// "limit-MB/s" its rate.
func BenchmarkBytes(b *testing.B) {
	const size, mtu = 1 << 20, 4096
	for _, c := range []struct {
		name string
		op   qp.Op
	}{{"write1MiB", qp.OpWrite}, {"read1MiB", qp.OpRead}} {
		b.Run(c.name, func(b *testing.B) {
			j := newJoined(b, joinedConfig(), mtu, size)
			j.bytes = true
			wr := qp.SendWR{Op: c.op, Flags: qp.Signaled, Local: make([]byte, size), RemoteAddr: joinedAddr, RKey: j.keys[1]}

			ref := newJoined(b, joinedConfig(), mtu, size)
			ref.f.Packet = bth.Packet{Header: bth.Header{Opcode: 7, PKey: 0xffff, DestQP: 1}, Payload: make([]byte, mtu)}
			pkt := ref.f.AppendTo(nil)[14:]
			payload := pkt[len(pkt)-bth.ICRCSize-mtu:][:mtu]
			src, dst := make([]byte, size), make([]byte, size)

			var limit, ours time.Duration
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				for off := 0; off < size; off += mtu {
					copy(payload, src[off:])
					if made, checked := crc.Sum(pkt), crc.Sum(pkt); made != checked {
						b.Fatal()
					}
					copy(dst[off:], payload)
				}
				middle := time.Now()
				if err := j.q[0].PostSend(j.now, &wr); err != nil {
					b.Fatal(err)
				}
				j.settle()
				if n, bad := j.completions(); n != 1 || bad != 0 {
					b.Fatal("not complete")
				}
				limit += middle.Sub(start)
				ours += time.Since(middle)
				n++
			}
			b.ReportMetric(100*float64(limit)/float64(ours), "%limit")
			b.ReportMetric(float64(n)*size/1e6/ours.Seconds(), "MB/s")
			b.ReportMetric(float64(n)*size/1e6/limit.Seconds(), "limit-MB/s")
		})
	}
}

// TestAllocsExchange counts over whole exchanges: every operation, posted,
// carried as packets or as bytes, with and without loss, completed.
func TestAllocsExchange(t *testing.T) {
	if testenv.Allocates {
		t.Skip("the race detector allocates")
	}
	for _, c := range []struct {
		name      string
		bytes     bool
		drop      int
		selective int
	}{{"packets", false, 0, 0}, {"bytes", true, 0, 0}, {"lossy packets", false, 7, 0}, {"lossy bytes", true, 11, 0}, {"selective repeat", false, 7, 64}} {
		t.Run(c.name, func(t *testing.T) {
			cfg := joinedConfig()
			cfg.LinuxRetryForever, cfg.Selective.Packets = true, c.selective
			j := newJoined(t, cfg, 1024, 8192)
			j.bytes, j.drop = c.bytes, c.drop
			local, recv := make([]byte, 5000), make([]byte, 5000)
			gather := [][]byte{local[:100], local[100:3000]}
			posted, bad := 0, 0
			exchange := func() {
				for round := range 300 {
					for _, q := range j.q {
						for q.PostRecv(&qp.RecvWR{Local: recv}) == nil {
						}
					}
					for op := qp.OpSend; op <= qp.OpFlush; op++ {
						for side, q := range j.q {
							wr := qp.SendWR{Op: op, Flags: qp.Flags(round % 8), Local: local[:round*16], RemoteAddr: joinedAddr, RKey: j.keys[1-side], Length: 64}
							switch op {
							case qp.OpSendInv:
								wr.Op, wr.Local, wr.Gather = qp.OpSend, nil, gather
							case qp.OpSendImm:
								wr.Local, wr.Flags = local[:64], wr.Flags|qp.Inline
							case qp.OpCmpSwap, qp.OpFetchAdd, qp.OpAtomicWrite:
								wr.Local = local[:8]
							}
							if q.PostSend(j.now, &wr) == nil {
								posted++
							}
						}
					}
					j.settle()
					_, n := j.completions()
					bad += n
				}
			}
			require.Zero(t, testenv.Mallocs(exchange))
			require.Zero(t, bad)
			require.Positive(t, posted)
			require.Zero(t, posted%(300*2*int(qp.OpFlush+1)), "all requests were taken")
			t.Logf("%d requests, %d packets", posted, j.packets)
			require.Equal(t, qp.RTS, j.q[0].State())
			require.Equal(t, qp.RTS, j.q[1].State())
		})
	}
}

// TestAllocsCalls has a line per exported method of the packet path, on good and
// on bad input.
func TestAllocsCalls(t *testing.T) {
	if testenv.Allocates {
		t.Skip("the race detector allocates")
	}
	j := newJoined(t, joinedConfig(), 1024, 8192)
	q := j.q[0]
	var out qp.Outgoing
	var c qp.Completion
	var e qp.Event
	bad := &bth.Packet{Header: bth.Header{Opcode: 0xff, PKey: 1}}
	ahead := &bth.Packet{Header: bth.Header{Opcode: 4, PKey: 0xffff, DestQP: 1, PSN: 100}}
	wr := qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 8)}
	odd := qp.SendWR{Op: qp.OpFetchAdd, RemoteAddr: 1}
	var grh [qp.GRHSize]byte
	a := qp.Attr{State: qp.SQD}
	back := qp.Attr{State: qp.RTS}
	for name, f := range map[string]func(){
		"PostSend":           func() { _ = q.PostSend(j.now, &wr) },
		"PostSend refused":   func() { _ = q.PostSend(j.now, &odd) },
		"PostRecv":           func() { _ = q.PostRecv(&qp.RecvWR{}) },
		"HandlePacket bad":   func() { q.HandlePacket(j.now, bad, nil) },
		"HandlePacket ahead": func() { q.HandlePacket(j.now, ahead, nil) },
		"HandlePacket of UD": func() { q.HandlePacket(j.now, bad, &grh) },
		"NextPacket":         func() { q.NextPacket(j.now, &out) },
		"NextCompletion":     func() { q.NextCompletion(&c) },
		"NextEvent":          func() { q.NextEvent(&e) },
		"Tick":               func() { q.Tick(j.now.Add(time.Hour)) },
		"Deadline":           func() { q.Deadline() },
		"Modify":             func() { _ = q.Modify(j.now, &a, qp.AttrState); _ = q.Modify(j.now, &back, qp.AttrState) },
		"Remote": func() {
			j.regs[0].Remote(qp.RemoteAccess{PD: 0, QPN: 1, RKey: j.keys[0], VA: joinedAddr, Len: 8, Right: qp.RemoteRead})
		},
		"Remote refused": func() {
			j.regs[0].Remote(qp.RemoteAccess{PD: 0, QPN: 1, RKey: 7, VA: joinedAddr, Len: 8, Right: qp.RemoteRead})
		},
		"Register": func() {
			k, _ := j.regs[0].Register(qp.Region{})
			_ = j.regs[0].Deregister(k)
		},
	} {
		if q.State() == qp.RTS { // a Modify that fails may allocate its error
			require.Zero(t, testenv.Mallocs(func() {
				for range 100 {
					f()
				}
			}), name)
		}
	}
}

// TestQPSize holds the memory of an idle QP besides its rings: at most 1 KiB.
func TestQPSize(t *testing.T) {
	t.Logf("QP %d bytes: Requester %d, Responder %d, Counters %d, Attr %d", unsafe.Sizeof(qp.QP{}), unsafe.Sizeof(qp.Requester{}),
		unsafe.Sizeof(qp.Responder{}), unsafe.Sizeof(qp.Counters{}), unsafe.Sizeof(qp.Attr{}))
	require.LessOrEqual(t, unsafe.Sizeof(qp.QP{}), uintptr(1024))
	if testenv.Allocates {
		return
	}
	// And what New really takes, with rings of no size.
	const n = 1000
	keep := make([]*qp.QP, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range keep {
		keep[i], _ = qp.New(qp.Config{})
	}
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/n, uint64(1024+16))
	runtime.KeepAlive(keep)
}
