package qp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/qp"
)

// hostilePlan describes a network: two hosts, some connections between them, what
// the link does to packets, and what the applications post. With Seed it
// determines everything that happens.
type hostilePlan struct {
	Seed uint64

	Pairs    int // connections
	XRC      bool
	MTU      int
	Window   int
	AckEvery int
	MaxRd    [2]int // READs and ATOMICs that host i may have outstanding
	SendWR   int
	RecvWR   int
	Credits  [2]bool
	SRQ      [2]bool // host i's connections share a receive queue
	Sel      [2]qp.Selective
	All      bool // every send is signalled
	FirstPSN [2]uint32

	Forever  bool // retries without end
	RetryCnt uint8
	RNRRetry uint8
	Timeout  uint8
	RNRTimer aeth.RNRTimer

	// The link, probabilities in thousandths.
	Loss, Dup, Corrupt int
	Burst              int   // packets that go with a lost one
	Delay, Jitter      int64 // ns; packets overtake each other within Jitter
	Gap                int64 // ns between packets of a sender; 0: as fast as they come

	LateRecv bool // receives are posted late and few
	Lazy     bool // completions are taken late
	Windows  bool // memory windows, with SEND with invalidate
	Drain    int64
	Revoke   int64 // ns: when a region goes away; 0: never
	Reset    int64 // ns: when a connection is taken down and brought up again; 0: never
	Short    bool  // some receives are too small

	Work []hostileWork
}

// hostileWork is one request that an application posts.
type hostileWork struct {
	Pair, Side int
	Op         qp.Op
	Len, Off   int
	Flags      qp.Flags
	Pieces     int   // slices of the gather list, 0 for none
	Wait       int64 // ns after the one before
}

// mayFail reports whether errors belong to the plan.
func (p *hostilePlan) mayFail() bool {
	return !p.Forever || p.RNRRetry != 7 || p.Revoke != 0 || p.Short
}

func (p *hostilePlan) String() string {
	var b strings.Builder
	q := *p
	q.Work = nil
	fmt.Fprintf(&b, "plan %+v\n", q)
	for i, w := range p.Work {
		fmt.Fprintf(&b, "  work %d: %+v\n", i, w)
	}
	return b.String()
}

// picker chooses a number in 0 .. n-1.
type picker func(n int) int

func randPicker(seed uint64) picker {
	return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)).IntN
}

func rapidPicker(t *rapid.T) picker {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
}

func of[T any](pick picker, v ...T) T { return v[pick(len(v))] }

// makePlan draws a network. The lowest picks have the fewest faults.
func makePlan(pick picker, seed uint64) *hostilePlan {
	yes := func(in int) bool { return pick(in) == in-1 }
	p := &hostilePlan{
		Seed:     seed,
		Pairs:    of(pick, 1, 1, 2, 3),
		XRC:      yes(8),
		MTU:      of(pick, 256, 256, 512, 1024, 2048, 4096),
		Window:   of(pick, 0, 1, 2, 3, 7, 16, 64),
		AckEvery: of(pick, 0, 1, 2, 3, 5),
		MaxRd:    [2]int{of(pick, 1, 2, 4, 16), of(pick, 1, 2, 4, 16)},
		SendWR:   of(pick, 1, 2, 5, 16, 64),
		RecvWR:   of(pick, 1, 2, 4, 32),
		Credits:  [2]bool{yes(2), yes(2)},
		SRQ:      [2]bool{yes(3), yes(3)},
		All:      yes(2),
		FirstPSN: [2]uint32{of[uint32](pick, 0, 0xfffffe, 0xffffff, 0x7fffff, 0x800000, 0x123456), of[uint32](pick, 0, 0xfffff8, 0x7ffffe)},
		Forever:  true,
		RetryCnt: 7,
		RNRRetry: 7,
		Timeout:  of[uint8](pick, 4, 1, 2, 3, 6, 8),
		RNRTimer: of(pick, aeth.RNRTimer(1), 1, 2, 5, 12),
		Loss:     of(pick, 0, 0, 3, 10, 50, 100, 200, 350),
		Dup:      of(pick, 0, 0, 5, 50, 200),
		Corrupt:  of(pick, 0, 0, 5, 50),
		Burst:    of(pick, 0, 0, 0, 2, 8),
		Delay:    of(pick, int64(1000), 100, 5000, 20000),
		Jitter:   of(pick, int64(0), 0, 500, 5000, 100000),
		Gap:      of(pick, int64(0), 0, 50, 1000),
		LateRecv: yes(3),
		Lazy:     yes(4),
		Windows:  yes(4),
		Drain:    of(pick, int64(0), 0, 0, 5000, 100000),
		Reset:    of(pick, int64(0), 0, 0, 0, 2000, 20000, 300000),
	}
	if yes(4) {
		p.Forever = false
		p.RetryCnt = of[uint8](pick, 7, 0, 1, 2, 6)
		p.RNRRetry = of[uint8](pick, 7, 0, 1, 3)
	}
	if yes(6) {
		p.Revoke = of(pick, int64(1000), 10000, 50000, 300000)
	}
	p.Short = yes(12)
	if p.XRC {
		p.SRQ = [2]bool{}
	}
	if yes(3) {
		s := qp.Selective{Packets: of(pick, 16, 2, 3, 7, 64), Few: of(pick, 0, 0, 1, 8)}
		s.Reorder = of(pick, 0, 0, 1, s.Packets-1)
		s.RTOLow = of(pick, time.Duration(0), 5*time.Microsecond, 200*time.Microsecond)
		p.Sel = [2]qp.Selective{s, s}
		if yes(6) {
			// One end uses go-back-N: slow, and correct all the same (rule SR-1).
			p.Sel[pick(2)] = qp.Selective{}
		}
	}

	p.Work = make([]hostileWork, pick(80))
	for i := range p.Work {
		w := &p.Work[i]
		w.Pair, w.Side = pick(p.Pairs), pick(2)
		w.Op = qp.Op(pick(int(qp.OpFlush) + 1))
		if p.XRC {
			w.Side = 0
			w.Op %= qp.OpFetchAdd + 1
		}
		w.Len = of(pick, 0, 1, 7, p.MTU, p.MTU-1, p.MTU+1, 2*p.MTU, 3*p.MTU+5, pick(4*p.MTU))
		w.Off = pick(2 * p.MTU)
		w.Flags = qp.Flags(pick(8))
		w.Pieces = of(pick, 0, 0, 1, 3)
		w.Wait = of(pick, int64(0), 0, 100, 3000)
		switch w.Op {
		case qp.OpCmpSwap, qp.OpFetchAdd, qp.OpAtomicWrite:
			w.Len = 8
			w.Off = of(pick, 0, 0, 8, w.Off&^7)
		case qp.OpSendInv:
			// Requests with the key must be complete before it is invalidated.
			w.Flags |= qp.Fence
		}
		if w.Op != qp.OpRead && w.Op < qp.OpRead && w.Len <= hostileInline && yes(2) {
			w.Flags |= qp.Inline
		}
	}
	return p
}

// hostileModel is what an ideal link would do to one region: requests take effect
// in the order of their posts.
type hostileModel struct {
	now   []byte   // after all posts
	log   []change // what each of them changed
	first []byte   // before them
}

type change struct {
	op   int // number of the request
	off  int
	data []byte
}

func newModel(mem []byte) *hostileModel {
	return &hostileModel{now: bytes.Clone(mem), first: bytes.Clone(mem)}
}

func (m *hostileModel) write(op, off int, data []byte) {
	m.log = append(m.log, change{op, off, bytes.Clone(data)})
	copy(m.now[off:], data)
}

func (m *hostileModel) word(off int) uint64 { return binary.LittleEndian.Uint64(m.now[off:]) }

func (m *hostileModel) setWord(op, off int, v uint64) {
	m.write(op, off, binary.LittleEndian.AppendUint64(nil, v))
}

// after reports whether byte i may be v when requests from..to-1 may or may not
// have been executed and all before were, whose outcome is want.
func (m *hostileModel) after(i int, v, want byte, from, to int) bool {
	if v == want {
		return true
	}
	for _, c := range m.log {
		if c.op >= from && c.op < to && i >= c.off && i < c.off+len(c.data) && c.data[i-c.off] == v {
			return true
		}
	}
	return false
}

// checkPrefix compares memory with the model where only the first done requests
// are known to have been executed (rule EE-1: the others ended in error).
func (m *hostileModel) checkPrefix(mem []byte, done int) error {
	base := bytes.Clone(m.first)
	for _, c := range m.log {
		if c.op < done {
			copy(base[c.off:], c.data)
		}
	}
	for i, v := range mem {
		if !m.after(i, v, base[i], done, math.MaxInt) {
			return fmt.Errorf("memory at %d is %#x, which no order of the requests from %d on gives", i, v, done)
		}
	}
	return nil
}

// hostileSend is a request that was posted.
type hostileSend struct {
	n      int // number in this connection
	wr     qp.SendWR
	local  []byte // all of it, for results
	want   []byte // READ: what memory held in its turn
	orig   uint64 // ATOMIC: the same
	off    int
	signal bool
}

// hostileMessage is what a peer is to receive.
type hostileMessage struct {
	op        qp.Op
	data      []byte
	n         int
	imm       uint32
	hasImm    bool
	inv       uint32
	hasInv    bool
	solicited bool
}

// post makes the work request of w for the peer's memory, adds it to the model
// and returns what is to be checked at its end. Nothing is done yet where the
// queue turns out to be full: see commit.
func (e *hostileEnd) prepare(w *hostileWork) (*hostileSend, func()) {
	p := e.peer
	s := &hostileSend{n: e.posted, off: w.Off}
	s.wr = qp.SendWR{ID: e.nextID, Op: w.Op, Flags: w.Flags, RemoteAddr: p.addr + uint64(w.Off), RKey: p.rkey, SRQ: hostileSRQ}
	s.signal = e.w.plan.All || w.Flags&qp.Signaled != 0
	if p.winKey != 0 && w.Op != qp.OpCmpSwap && w.Op != qp.OpFetchAdd {
		s.wr.RKey = p.winKey
	}
	if w.Op == qp.OpSendInv && p.winKey == 0 {
		s.wr.Op = qp.OpSend
	}
	buf := make([]byte, w.Len+8)
	for i := range buf[w.Len:] {
		buf[w.Len+i] = hostileGuard
	}
	local := buf[:w.Len]
	if w.Op != qp.OpRead && w.Op != qp.OpCmpSwap && w.Op != qp.OpFetchAdd {
		e.w.fill(local)
	}
	s.local = buf
	s.wr.Local = local
	if w.Pieces != 0 {
		s.wr.Gather = e.w.split(local, w.Pieces)
		s.wr.Local = nil
	}
	if w.Op == qp.OpFlush {
		s.wr.Local, s.wr.Gather, s.wr.Length = nil, nil, uint32(w.Len)
	}
	msg := hostileMessage{op: qp.OpRecv, data: local, n: w.Len, solicited: w.Flags&qp.Solicited != 0}
	if w.Flags&qp.Inline != 0 {
		msg.data = bytes.Clone(local)
	}
	s.wr.Imm = uint32(e.nextID) ^ 0x5a5a0000

	m := p.model
	switch s.wr.Op {
	case qp.OpSend:
		return s, func() { p.expect = append(p.expect, msg) }
	case qp.OpSendImm:
		msg.imm, msg.hasImm = s.wr.Imm, true
		return s, func() { p.expect = append(p.expect, msg) }
	case qp.OpSendInv:
		msg.inv, msg.hasInv = s.wr.RKey, true
		return s, func() { p.expect = append(p.expect, msg); p.winKey = 0 }
	case qp.OpWrite:
		return s, func() { m.write(s.n, w.Off, local) }
	case qp.OpWriteImm:
		msg.op, msg.data, msg.imm, msg.hasImm = qp.OpRecvWrite, nil, s.wr.Imm, true
		return s, func() { m.write(s.n, w.Off, local); p.expect = append(p.expect, msg) }
	case qp.OpRead:
		s.want = bytes.Clone(m.now[w.Off : w.Off+w.Len])
	case qp.OpFetchAdd:
		s.orig = m.word(w.Off)
		s.wr.CompareAdd = e.w.rng.Uint64()
		return s, func() { m.setWord(s.n, w.Off, s.orig+s.wr.CompareAdd) }
	case qp.OpCmpSwap:
		s.orig = m.word(w.Off)
		s.wr.CompareAdd, s.wr.Swap = s.orig, e.w.rng.Uint64()
		if e.w.rng.IntN(3) == 0 {
			s.wr.CompareAdd++
			return s, func() {}
		}
		return s, func() { m.setWord(s.n, w.Off, s.wr.Swap) }
	case qp.OpAtomicWrite:
		return s, func() { m.write(s.n, w.Off, local) }
	}
	return s, func() {}
}

// checkResult checks what a request that succeeded left in local memory (rule
// EE-2).
func (e *hostileEnd) checkResult(s *hostileSend) {
	n := len(s.local) - 8
	for _, b := range s.local[n:] {
		if b != hostileGuard {
			e.w.fail("%v: request %d wrote behind its local memory", e, s.n)
		}
	}
	switch s.wr.Op {
	case qp.OpFetchAdd, qp.OpCmpSwap:
		if got := binary.LittleEndian.Uint64(s.local); got != s.orig {
			e.w.fail("%v: %v %d returned %#x, want %#x", e, s.wr.Op, s.n, got, s.orig)
		}
	case qp.OpRead:
		// What a later request changes may be seen by a READ before it, unless a
		// fence is between them.
		to := s.n + 1
		for to < e.posted && !e.fences[to] {
			to++
		}
		for i, v := range s.local[:n] {
			if !e.peer.model.after(s.off+i, v, s.want[i], s.n+1, to) {
				e.w.fail("%v: READ %d returned %#x at %d, want %#x", e, s.n, v, i, s.want[i])
				return
			}
		}
	}
}
