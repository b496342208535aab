package qp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/roce-go/roce/qp"
)

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

// after tells whether byte i may be v when requests from..to-1 may or may not
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
	orig   uint64 // ATOMIC: likewise
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

// post makes the work request of w for the peer's memory, tells the model of it
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

// checkResult looks at what a request that succeeded left in local memory (rule
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
