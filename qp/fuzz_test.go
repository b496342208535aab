package qp_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/reth"
)

const (
	fuzzMTU    = 256
	fuzzRegion = 1024 // bytes of each region and local buffer
	fuzzQueue  = 32   // packets that the link holds in each direction
	fuzzWindow = 32
	fuzzSends  = 8
	fuzzRds    = 4
	fuzzAddr   = 0x10000

	// The most packets that one call may cause: the window, or all that a send
	// queue of UC holds, and every response remembered, and an acknowledgement.
	fuzzBurst = max(fuzzWindow, fuzzSends*4*fuzzRegion/fuzzMTU) + fuzzRds*(fuzzRegion/fuzzMTU+1) + 2
)

// Regions of a fuzzed host, in the order of its slab.
const (
	fuzzRW = iota
	fuzzRO // only RemoteRead
	fuzzWO // only RemoteWrite
	fuzzNo // no rights
	fuzzLocal
	fuzzRecv
	fuzzParts
)

// fuzzHost is a QP, what its peer may reach, and guards around everything.
type fuzzHost struct {
	q     *qp.QP
	srq   *qp.SRQ
	regs  *qp.Regions
	slab  []byte
	part  [fuzzParts][]byte
	keys  [fuzzNo + 1]uint32
	gone  [fuzzNo + 1][]byte // what a region held when its key was taken away
	typ   qp.Type
	last  psn.PSN // newest PSN of its requests
	posts int
	recvs int

	queue      [fuzzQueue]fuzzPacket // to the peer
	head, tail int
}

type fuzzPacket struct {
	p   bth.Packet
	buf [2 * fuzzMTU]byte
}

func (f *fuzzPacket) set(p *bth.Packet) {
	f.p = *p
	f.p.Payload = f.buf[:copy(f.buf[:], p.Payload)]
}

// fuzzer reads a script of bytes.
type fuzzer struct {
	t     testing.TB
	in    []byte
	hosts [2]fuzzHost
	now   time.Time
	out   qp.Outgoing
	made  fuzzPacket
	frag  [2][]byte
	ah    qp.AddressHandle
	grh   [qp.GRHSize]byte
}

func (f *fuzzer) byte() byte {
	if len(f.in) == 0 {
		return 0
	}
	b := f.in[0]
	f.in = f.in[1:]
	return b
}

func (f *fuzzer) pick(n int) int { return int(f.byte()) % n }

func (f *fuzzer) u32() uint32 {
	return uint32(f.byte())<<24 | uint32(f.byte())<<16 | uint32(f.byte())<<8 | uint32(f.byte())
}

// newFuzzer allocates all the memory that there will be.
func newFuzzer(t testing.TB, in []byte) *fuzzer {
	f := &fuzzer{t: t, in: in, now: time.Unix(5000, 0)}
	mode := f.pick(5)
	flags := f.byte()
	types := [][2]qp.Type{{qp.RC, qp.RC}, {qp.RC, qp.RC}, {qp.UC, qp.UC}, {qp.UD, qp.UD}, {qp.XRCSend, qp.XRCRecv}}[mode]
	for i := range f.hosts {
		h := &f.hosts[i]
		h.typ = types[i]
		h.slab = make([]byte, fuzzParts*(fuzzRegion+hostileGuards)+hostileGuards)
		for k := range h.slab {
			h.slab[k] = hostileGuard
		}
		for k := range h.part {
			at := hostileGuards + k*(fuzzRegion+hostileGuards)
			h.part[k] = h.slab[at : at+fuzzRegion : at+fuzzRegion]
			for j := range h.part[k] {
				h.part[k][j] = byte(k*16 + j)
			}
		}
		h.regs, _ = qp.NewRegions(8)
		for k, a := range [...]qp.Access{qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal, qp.RemoteRead, qp.RemoteWrite, 0} {
			h.keys[k], _ = h.regs.Register(qp.Region{PD: 1, Data: h.part[k], Addr: fuzzAddr, Access: a})
			h.gone[k] = make([]byte, 0, fuzzRegion)
		}
		h.srq, _ = qp.NewSRQ(5, 16)
		cfg := qp.Config{Type: h.typ, QPN: uint32(i + 1), PD: 1, Memory: h.regs, MaxSendWR: fuzzSends, MaxRecvWR: 8, MaxInline: 32,
			MaxRdAtomic: fuzzRds, MaxDestRdAtomic: fuzzRds, Window: fuzzWindow, AckEvery: 1 + int(flags&3),
			SignalAll: flags&4 != 0, NoCredits: flags&8 != 0, LinuxRetryForever: flags&16 != 0}
		switch {
		case h.typ == qp.XRCRecv:
			cfg.XRCSRQs = oneSRQ{h.srq}
		case h.typ == qp.RC && mode == 1:
			cfg.SRQ = h.srq
		}
		var err error
		if h.q, err = qp.New(cfg); err != nil {
			t.Fatal(err)
		}
	}
	for i := range f.hosts {
		f.bringUp(i)
	}
	f.frag[0], f.frag[1] = make([]byte, 0), make([]byte, 0)
	return f
}

func (f *fuzzer) bringUp(i int) {
	h := &f.hosts[i]
	a := qp.Attr{PKey: 0xffff, QKey: 7, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal, PathMTU: fuzzMTU,
		DestQPN: uint32(2 - i), RQPSN: 0xfffffa, SQPSN: 0xfffffa, MaxDestRdAtomic: fuzzRds, MaxRdAtomic: fuzzRds, MinRNRTimer: 1,
		Timeout: 2, RetryCnt: 3, RNRRetry: 3}
	if err := h.q.Connect(f.now, &a); err != nil {
		f.t.Fatal(err)
	}
	if h.typ == qp.UD {
		return
	}
	h.last = a.SQPSN
	h.posts, h.recvs = 0, 0
}

// run plays the script. Nothing in it allocates.
func (f *fuzzer) run() {
	for len(f.in) > 0 {
		i := f.pick(2)
		h := &f.hosts[i]
		peer := &f.hosts[1-i]
		switch f.pick(32) {
		case 0, 1, 2, 3:
			f.postSend(h, peer)
		case 4, 5, 6:
			f.postRecv(h)
		case 7: // loses
			if h.head != h.tail {
				h.head++
			}
		case 8: // repeats one, or delivers it early or long after
			f.deliver(1-i, &h.queue[f.pick(fuzzQueue)].p)
		case 9: // one is changed by an attacker who can compute an ICRC
			f.made.set(&h.queue[f.pick(fuzzQueue)].p)
			f.change(&f.made.p)
			f.deliver(1-i, &f.made.p)
		case 10:
			f.forge(h)
			f.deliver(1-i, &f.made.p)
		case 11: // bytes
			n := min(f.pick(80), len(f.in))
			if f.made.p.Decode(f.in[:n]) == nil {
				f.deliver(1-i, &f.made.p)
			}
			f.in = f.in[n:]
		case 12, 13:
			f.tick(i)
		case 14, 15:
			f.completions(h)
		case 16:
			if f.byte()&3 == 0 {
				f.keys(h)
			}
		case 17:
			if f.byte()&3 == 0 || h.q.State() == qp.Error {
				f.modify(i)
			}
		default: // the link delivers
			for n := f.pick(4); n >= 0 && h.head != h.tail; n-- {
				f.deliver(1-i, &h.queue[h.head%fuzzQueue].p)
				h.head++
			}
		}
	}
}

// drain sends the packets that a call caused.
func (f *fuzzer) drain(i int) {
	h := &f.hosts[i]
	for n := 0; h.q.NextPacket(f.now, &f.out); n++ {
		if n > fuzzBurst {
			f.t.Fatalf("more than %d packets from one call", fuzzBurst)
		}
		p := &f.out.Packet
		if p.Opcode.Class() == bth.Response && len(p.Payload) > 0 && !h.readable(p.Payload) {
			f.t.Fatalf("%v PSN %v holds what its reader has no right to", p.Opcode, p.PSN)
		}
		if p.Opcode.Class() == bth.Request {
			h.last = p.PSN
		}
		if h.tail-h.head == fuzzQueue {
			h.head++
		}
		h.queue[h.tail%fuzzQueue].set(p)
		h.tail++
	}
}

// readable reports whether b lies in a region that may be read now.
func (h *fuzzHost) readable(b []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, k := range [...]int{fuzzRW, fuzzRO} {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(h.part[k])))
		if h.keys[k] != 0 && at >= start && at+uintptr(len(b)) <= start+fuzzRegion {
			return true
		}
	}
	return false
}

func (f *fuzzer) deliver(i int, p *bth.Packet) {
	q := f.hosts[i].q
	q.HandlePacket(f.now, p, &f.grh)
	f.drain(i)
}

func (f *fuzzer) tick(i int) {
	q := f.hosts[i].q
	f.now = f.now.Add(time.Duration(f.byte()) * time.Microsecond)
	if d, ok := q.Deadline(); ok && f.byte()&1 == 0 && d.After(f.now) {
		f.now = d
	}
	q.Tick(f.now)
	if d, ok := q.Deadline(); ok && !d.After(f.now) {
		f.t.Fatal("after Tick the deadline is not later than now")
	}
	f.drain(i)
}

func (f *fuzzer) postSend(h, peer *fuzzHost) {
	wr := qp.SendWR{Op: qp.Op(f.pick(int(qp.OpFlush) + 3)), Flags: qp.Flags(f.pick(16)), SRQ: 5, RemoteQPN: peer.q.Num(), RemoteQKey: 7, AH: &f.ah}
	n := f.length()
	wr.Local = h.part[fuzzLocal][:n:n]
	if f.byte()&3 == 0 {
		k := f.pick(n + 1)
		f.frag[0], f.frag[1] = wr.Local[:k:k], wr.Local[k:]
		wr.Gather = f.frag[:]
	}
	wr.RemoteAddr = fuzzAddr + uint64(f.length())&^7
	wr.RKey, wr.Length = peer.keys[f.pick(len(peer.keys))], uint32(n)
	wr.CompareAdd, wr.Swap = uint64(f.byte()), uint64(f.byte())
	if h.q.PostSend(f.now, &wr) == nil {
		h.posts++
	}
	f.drain(int(h.q.Num() - 1))
}

func (f *fuzzer) length() int {
	return [...]int{0, 1, 8, fuzzMTU - 1, fuzzMTU, fuzzMTU + 1, 2 * fuzzMTU, fuzzRegion}[f.pick(8)]
}

func (f *fuzzer) postRecv(h *fuzzHost) {
	n := f.length()
	wr := qp.RecvWR{Local: h.part[fuzzRecv][:n:n]}
	if h.typ == qp.XRCRecv || h.q.PostRecv(&wr) == qp.ErrSRQ {
		if h.srq.PostRecv(&wr) == nil {
			h.recvs++
		}
		return
	}
	h.recvs++
}

func (f *fuzzer) completions(h *fuzzHost) {
	var c qp.Completion
	for h.q.NextCompletion(&c) {
		if c.Op >= qp.OpRecv {
			if h.recvs--; h.recvs < 0 {
				f.t.Fatal("more receives complete than were posted")
			}
		} else if h.posts--; h.posts < 0 {
			f.t.Fatal("more requests complete than were posted")
		}
	}
	var e qp.Event
	for n := 0; h.q.NextEvent(&e); n++ {
		if n > 8 {
			f.t.Fatal("events without end")
		}
	}
}

// keys deregisters a region, or gives it a new key.
func (f *fuzzer) keys(h *fuzzHost) {
	k := f.pick(len(h.keys))
	if h.keys[k] != 0 {
		_ = h.regs.Deregister(h.keys[k])
		h.keys[k] = 0
		h.gone[k] = append(h.gone[k][:0], h.part[k]...)
		return
	}
	h.untouched(f.t, k)
	a := [...]qp.Access{qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal, qp.RemoteRead, qp.RemoteWrite, 0}[k]
	h.keys[k], _ = h.regs.Register(qp.Region{PD: 1, Data: h.part[k], Addr: fuzzAddr, Access: a})
}

func (h *fuzzHost) untouched(t testing.TB, k int) {
	if h.keys[k] == 0 && !bytes.Equal(h.gone[k], h.part[k]) {
		t.Fatalf("region %d was written after its key was taken away", k)
	}
}

func (f *fuzzer) modify(i int) {
	h := &f.hosts[i]
	a := qp.Attr{}
	switch s := h.q.State(); {
	case s == qp.RTS && f.byte()&1 == 0:
		a.State = qp.SQD
	case s == qp.SQD || s == qp.SQE:
		a.State = qp.RTS
	case s == qp.RTS && f.byte()&3 != 0:
		return
	case s == qp.Error || s == qp.RTS:
		a.State = qp.Reset
	default:
		a.State = qp.Error
	}
	if err := h.q.Modify(f.now, &a, qp.AttrState); err != nil {
		f.t.Fatal(err)
	}
	f.drain(i)
	if a.State == qp.Reset {
		recvs := h.recvs
		f.bringUp(i)
		if h.srq.Len() > 0 {
			h.recvs = recvs
		}
	}
}

// change alters one thing in a packet.
func (f *fuzzer) change(p *bth.Packet) {
	v := f.u32()
	switch f.pick(16) {
	case 0:
		p.Opcode = bth.Opcode(v)
	case 1:
		p.PSN = p.PSN.Add(int(int8(v)))
	case 2:
		p.PSN = psn.PSN(v) & psn.Mask
	case 3:
		p.SetPayload(f.made.buf[:v%uint32(len(f.made.buf)+1)])
	case 4:
		p.PadCnt = uint8(v & 3)
	case 5:
		p.RETH.VA += uint64(int64(int32(v)))
	case 6:
		p.RETH.DMALen = v
	case 7:
		p.RETH.RKey = v
	case 8:
		p.AETH.Syndrome = aeth.Syndrome(v)
	case 9:
		p.AETH.MSN = v & 0xffffff
	case 10:
		p.AtomicETH.VA += uint64(v)
	case 11:
		p.AckReq = !p.AckReq
	case 12:
		p.FETH = reth.FETH{Placement: reth.Placement(v & 15), Sel: reth.Selectivity(v >> 8 & 3)}
	case 13:
		p.IETH.RKey, p.XRCETH.SRQ = v, v&7
	case 14:
		p.PKey = uint16(v)
	case 15:
		p.DETH.QKey, p.DestQP = v&7, v>>8&3
	}
}

// forge builds a packet to h's peer that looks as if h had sent it.
func (f *fuzzer) forge(h *fuzzHost) {
	peer := &f.hosts[2-int(h.q.Num())]
	p := &f.made.p
	*p = bth.Packet{}
	base := bth.Opcode(0)
	switch h.typ {
	case qp.UC:
		base = 0x20
	case qp.UD:
		base = 0x60
	case qp.XRCSend, qp.XRCRecv:
		base = 0xa0
	}
	p.Opcode = base + bth.Opcode(f.byte()&0x1f)
	p.PKey, p.DestQP, p.AckReq = 0xffff, peer.q.Num(), true
	p.PSN = h.last.Add(int(int8(f.byte())) / 8)
	if p.Opcode.Class() == bth.Response {
		p.PSN = peer.last.Add(int(int8(f.byte())) / 8)
	}
	p.SetPayload(f.made.buf[:f.length()%(2*fuzzMTU+1)])
	p.RETH = reth.Header{VA: fuzzAddr + uint64(f.length()), RKey: peer.keys[f.pick(len(peer.keys))], DMALen: uint32(f.length())}
	p.AtomicETH = reth.AtomicETH{VA: p.RETH.VA, RKey: p.RETH.RKey, SwapAdd: uint64(f.byte())}
	p.AETH = aeth.Header{Syndrome: aeth.Syndrome(f.byte()), MSN: uint32(f.byte())}
	p.FETH = reth.FETH{Placement: reth.GlobalVisibility}
	p.IETH.RKey, p.XRCETH.SRQ, p.DETH.QKey = p.RETH.RKey, 5, 7
	if f.byte()&7 == 0 {
		f.change(p)
	}
}

// check checks the memory at the end.
func (f *fuzzer) check() {
	for i := range f.hosts {
		h := &f.hosts[i]
		for k := range fuzzParts + 1 {
			at := k * (fuzzRegion + hostileGuards)
			for _, b := range h.slab[at : at+hostileGuards] {
				if b != hostileGuard {
					f.t.Fatalf("host %d: written before part %d", i, k)
				}
			}
		}
		for _, k := range [...]int{fuzzRO, fuzzNo} {
			for j, b := range h.part[k] {
				if b != byte(k*16+j) {
					f.t.Fatalf("host %d: region %d was written, which nobody may", i, k)
				}
			}
		}
		for k := range h.keys {
			h.untouched(f.t, k)
		}
	}
}

// FuzzMachines reads bytes as a script of two QPs and a link, with packets from
// outside that are forged, malformed and stale. Rule EE-5: no panic, nothing
// written outside what may be written, nothing read without right, no
// allocation, bounded work.
func FuzzMachines(f *testing.F) {
	for seed := range byte(100) {
		in := make([]byte, 2000)
		x := uint32(seed)*2654435761 + 1
		for i := range in {
			x = x*1664525 + 1013904223
			in[i] = byte(x >> 24)
		}
		in[0] = seed
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		var before, after runtime.MemStats
		for try := 0; ; try++ {
			w := newFuzzer(t, in)
			runtime.ReadMemStats(&before)
			w.run()
			runtime.ReadMemStats(&after)
			w.check()
			// Something else in the process may have allocated: not every time.
			if after.Mallocs == before.Mallocs || testenv.Allocates {
				return
			}
			if try == 4 {
				t.Fatalf("%d allocations", after.Mallocs-before.Mallocs)
			}
		}
	})
}
