package qp_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
)

// joined are two QPs back to back, for measurements: each packet that one makes
// is handed to the other at once.
type joined struct {
	q    [2]*qp.QP
	mem  [2][]byte
	regs [2]*qp.Regions
	keys [2]uint32
	now  time.Time
	out  qp.Outgoing

	packets int

	// With bytes: each packet becomes a frame, and is decoded and checked.
	bytes bool
	f, g  frame.Frame
	buf   []byte

	drop int // every so many-th packet is lost; 0: none
}

const joinedAddr = 0x7f0000000000

func newJoined(t testing.TB, cfg qp.Config, mtu, size int) *joined {
	j := &joined{now: time.Unix(1000, 0), buf: make([]byte, 0, mtu+frame.MaxHeaderSize)}
	access := qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal
	for i := range j.q {
		j.mem[i] = make([]byte, size)
		j.regs[i], _ = qp.NewRegions(4)
		var err error
		if j.keys[i], err = j.regs[i].Register(qp.Region{Data: j.mem[i], Addr: joinedAddr, Access: access}); err != nil {
			t.Fatal(err)
		}
		cfg.QPN, cfg.Memory = uint32(i+1), j.regs[i]
		if j.q[i], err = qp.New(cfg); err != nil {
			t.Fatal(err)
		}
		a := qp.Attr{PKey: 0xffff, Access: access, PathMTU: mtu, DestQPN: uint32(2 - i), MaxDestRdAtomic: cfg.MaxDestRdAtomic,
			MinRNRTimer: 1, Timeout: 4, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: cfg.MaxRdAtomic}
		if err := j.q[i].Connect(j.now, &a); err != nil {
			t.Fatal(err)
		}
	}
	j.f = frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DF: true, HopLimit: 64, SrcPort: 0xc001,
		Src: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 2})}
	return j
}

// lost counts a packet and reports whether it is lost: one in drop, at random, since
// a strict turn might hit the same packet of each retry.
func (j *joined) lost() bool {
	j.packets++
	return j.drop != 0 && uint32(j.packets)*2654435761>>16%uint32(j.drop) == 0
}

// carry takes one packet of side i to the other side, or reports false.
func (j *joined) carry(i int) bool {
	if !j.bytes {
		if !j.q[i].NextPacket(j.now, &j.out) {
			return false
		}
		if !j.lost() {
			j.q[1-i].HandlePacket(j.now, &j.out.Packet, nil)
		}
		return true
	}
	if !j.q[i].NextPacket(j.now, &j.out) {
		return false
	}
	j.f.Packet = j.out.Packet
	j.buf = j.f.AppendTo(j.buf[:0])
	if !j.lost() {
		if j.g.Decode(frame.Ethernet, j.buf) != nil || j.g.CheckICRC() != frame.ICRCGood {
			panic("a frame of our own is not good")
		}
		j.q[1-i].HandlePacket(j.now, &j.g.Packet, nil)
	}
	return true
}

// settle carries packets until both sides have none, some of side 0 at a time.
func (j *joined) settle() {
	for {
		n := 0
		for n < 64 && j.carry(0) {
			n++
		}
		for j.carry(1) {
			n++
		}
		if n != 0 {
			continue
		}
		if j.q[0].Outstanding()+j.q[1].Outstanding() == 0 {
			return
		}
		var due time.Time
		for _, q := range j.q {
			if d, ok := q.Deadline(); ok && (due.IsZero() || d.Before(due)) {
				due = d
			}
		}
		if due.IsZero() {
			panic("nothing is due")
		}
		j.now = due
		j.q[0].Tick(j.now)
		j.q[1].Tick(j.now)
	}
}

// completions takes those of both sides and returns how many failed.
func (j *joined) completions() (n, bad int) {
	var c qp.Completion
	for _, q := range j.q {
		for q.NextCompletion(&c) {
			n++
			if c.Status != qp.Success {
				bad++
			}
		}
	}
	return n, bad
}

func joinedConfig() qp.Config {
	return qp.Config{MaxSendWR: 128, MaxRecvWR: 128, MaxInline: 64, MaxRdAtomic: 16, MaxDestRdAtomic: 16}
}
