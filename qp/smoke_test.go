package qp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/roce-go/roce/bth"
)

func TestSmoke(t *testing.T) {
	t.Log(unsafe.Sizeof(QP{}), unsafe.Sizeof(Requester{}), unsafe.Sizeof(Responder{}), unsafe.Sizeof(Counters{}), unsafe.Sizeof(wqe{}), unsafe.Sizeof(bth.Packet{}), unsafe.Sizeof(Config{}))
	for seed := range uint64(3000) {
		smoke(t, seed)
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
}

type flight struct {
	at int64
	b  []byte
}

func smoke(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	now := time.Unix(1000, 0)
	mtu := []int{256, 512, 1024}[rng.IntN(3)]
	loss := []float64{0, 0.01, 0.1, 0.3}[rng.IntN(4)]
	reorder := rng.IntN(2) == 0
	var qs [2]*QP
	var mem [2][]byte
	var keys [2]uint32
	mrd := 1 + rng.IntN(4)
	for i := range qs {
		regs, _ := NewRegions(4)
		mem[i] = make([]byte, 65536)
		k, err := regs.Register(Region{PD: 1, Data: mem[i], Addr: 0x10000, Access: RemoteRead | RemoteWrite | RemoteAtomic | FlushGlobal})
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k
		q, err := New(Config{QPN: uint32(10 + i), PD: 1, Memory: regs, MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 64, MaxRdAtomic: mrd, MaxDestRdAtomic: mrd, SignalAll: rng.IntN(2) == 0, AckEvery: 1 + rng.IntN(10), Window: 4 + rng.IntN(64), NoCredits: rng.IntN(2) == 0, LinuxRetryForever: true})
		if err != nil {
			t.Fatal(err)
		}
		qs[i] = q
	}
	for i, q := range qs {
		a := Attr{State: Init, PKey: 0xffff, Access: RemoteRead | RemoteWrite | RemoteAtomic | FlushGlobal, PathMTU: mtu, DestQPN: uint32(10 + 1 - i), RQPSN: 0xfffff0, SQPSN: 0xfffff0, MaxDestRdAtomic: mrd, MaxRdAtomic: mrd, MinRNRTimer: 1, Timeout: 4, RetryCnt: 7, RNRRetry: 7}
		for _, st := range []struct {
			s State
			m AttrMask
		}{{Init, AttrPKey | AttrAccess}, {RTR, AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer}, {RTS, AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic}} {
			a.State = st.s
			if err := q.Modify(now, &a, AttrState|st.m); err != nil {
				t.Fatal(err)
			}
		}
	}
	// each side: model
	type op struct {
		wr   SendWR
		data []byte
	}
	var posted [2][]op
	var completed [2]int
	var expectRecv [2][][]byte // messages that side i should receive
	var gotRecv [2]int
	var recvPosted [2]int
	var atomSum [2]uint64
	recvBufs := [2]map[uint64][]byte{{}, {}}
	total := 30
	var wire []flight
	var out Outgoing
	t0 := now
	ns := func() int64 { return int64(now.Sub(t0)) }
	steps := 0
	for {
		steps++
		if steps > 200000 {
			t.Error("no end", completed, loss, ns())
			for i := range qs {
				t.Logf("%d %+v\n%+v", i, qs[i].counters, qs[i].req.una)
			}
			return
		}
		for i, q := range qs {
			for len(posted[i]) < total && rng.IntN(3) == 0 {
				j := len(posted[i])
				n := []int{0, 1, mtu, mtu + 1, 3*mtu - 1, rng.IntN(1500)}[rng.IntN(6)]
				d := make([]byte, n)
				for k := range d {
					d[k] = byte(rng.Uint32())
				}
				wr := SendWR{ID: uint64(j), Op: Op(rng.IntN(int(OpFlush) + 1)), Local: d, RKey: keys[1-i], Flags: Flags(rng.IntN(8))}
				switch wr.Op {
				case OpSendInv:
					wr.Op = OpSend
				case OpWrite, OpWriteImm:
					wr.RemoteAddr = 0x10000 + 4096*uint64(j%8)
				case OpRead:
					wr.RemoteAddr = 0x10000 + 40960
					wr.Local = make([]byte, n)
				case OpCmpSwap:
					wr.Op = OpFetchAdd
					fallthrough
				case OpFetchAdd:
					wr.RemoteAddr = 0x10000 + 0xf000
					wr.CompareAdd = 1
					wr.Local = make([]byte, 8)
				case OpAtomicWrite:
					wr.RemoteAddr = 0x10000 + 0xe000
					wr.Local = make([]byte, 8)
					d = wr.Local
				case OpFlush:
					wr.RemoteAddr = 0x10000
					wr.Length = 100
				}
				if err := q.PostSend(now, &wr); err != nil {
					if err != ErrQueueFull {
						t.Fatal(err)
					}
					break
				}
				if wr.Op == OpFetchAdd {
					atomSum[1-i]++
				}
				if wr.Op.takesReceive() {
					if wr.Op == OpWriteImm {
						d = nil
					}
					expectRecv[1-i] = append(expectRecv[1-i], d)
				}
				posted[i] = append(posted[i], op{wr, d})
			}
			for rng.IntN(20) == 0 {
				b := make([]byte, 5000)
				if q.PostRecv(&RecvWR{ID: uint64(recvPosted[i]), Local: b}) != nil {
					break
				}
				recvBufs[i][uint64(recvPosted[i])] = b
				recvPosted[i]++
			}
			for q.NextPacket(now, &out) {
				b := out.Packet.AppendTo(nil)
				if rng.Float64() < loss {
					continue
				}
				d := int64(1000)
				if reorder {
					d += rng.Int64N(3000)
				}
				wire = append(wire, flight{ns() + d, append([]byte{byte(1 - i)}, b...)})
				if rng.Float64() < loss/2 {
					wire = append(wire, flight{ns() + d + rng.Int64N(100000), append([]byte{byte(1 - i)}, b...)})
				}
			}
			var c Completion
			for q.NextCompletion(&c) {
				if c.Op == OpRecv || c.Op == OpRecvWrite {
					if c.Status != Success {
						t.Error("recv", c.Status)
						return
					}
					want := expectRecv[i][gotRecv[i]]
					if c.Op == OpRecv && !bytes.Equal(recvBufs[i][c.ID][:c.ByteLen], want) {
						t.Error("recv data")
					}
					gotRecv[i]++
				} else {
					if c.Status != Success {
						t.Error("send", c.Status, c.Op, loss)
						return
					}
					completed[i] = int(c.ID) + 1
				}
			}
		}
		if len(posted[0]) == total && len(posted[1]) == total && qs[0].Outstanding() == 0 && qs[1].Outstanding() == 0 && len(wire) == 0 {
			break
		}
		// advance
		best := -1
		for k, f := range wire {
			if best < 0 || f.at < wire[best].at {
				best = k
			}
		}
		var dl time.Time
		for _, q := range qs {
			if d, ok := q.Deadline(); ok && (dl.IsZero() || d.Before(dl)) {
				dl = d
			}
		}
		if best >= 0 && (dl.IsZero() || !dl.Before(t0.Add(time.Duration(wire[best].at)))) {
			f := wire[best]
			wire = append(wire[:best], wire[best+1:]...)
			if f.at > ns() {
				now = t0.Add(time.Duration(f.at))
			}
			var p bth.Packet
			if err := p.Decode(f.b[1:]); err != nil {
				t.Fatal(err)
			}
			qs[f.b[0]].HandlePacket(now, &p)
		} else if !dl.IsZero() {
			if dl.Before(now) {
				t.Fatal("deadline past")
			}
			now = dl
			for _, q := range qs {
				q.Tick(now)
				if d, ok := q.Deadline(); ok && !d.After(now) {
					t.Fatal("deadline not after tick")
				}
			}
		}
	}
	for i := range qs {
		if gotRecv[i] != len(expectRecv[i]) {
			t.Error("receives", gotRecv[i], len(expectRecv[i]))
		}
		if s := binary.LittleEndian.Uint64(mem[i][0xf000:]); s != atomSum[i] {
			t.Error("atomics", s, atomSum[i])
		}
		// last write to each slot
		for s := range 8 {
			for j := len(posted[1-i]) - 1; j >= 0; j-- {
				o := posted[1-i][j]
				if (o.wr.Op == OpWrite || o.wr.Op == OpWriteImm) && j%8 == s && len(o.wr.Local) > 0 {
					d := o.wr.Local
					if !bytes.Equal(mem[i][4096*s:4096*s+len(d)], d) {
						t.Error("write data", i, j, len(d), o.wr.Op, mtu)
						for k := range d {
							if d[k] != mem[i][4096*s+k] {
								t.Log("first diff", k)
								break
							}
						}
						for jj := range posted[1-i] {
							t.Log(jj, posted[1-i][jj].wr.Op, len(posted[1-i][jj].data))
						}
					}
					break
				}
			}
		}
	}
	_ = completed
}
