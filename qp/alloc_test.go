package qp_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
)

var raceEnabled bool // set where the race detector is on, which allocates

// mallocs returns the allocations of f, by the runtime's count, which unlike
// testing.AllocsPerRun is not rounded down. Something else in the process may
// allocate meanwhile, but not each time.
func mallocs(f func()) uint64 {
	least := ^uint64(0)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.Mallocs-before.Mallocs); least == 0 {
			break
		}
	}
	return least
}

// TestAllocsExchange counts over whole exchanges: every operation, posted,
// carried as packets or as bytes, with and without loss, completed.
func TestAllocsExchange(t *testing.T) {
	if raceEnabled {
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
			require.Zero(t, mallocs(exchange))
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
	if raceEnabled {
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
			require.Zero(t, mallocs(func() {
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
	if raceEnabled {
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
