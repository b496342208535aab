package qp_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// A requester without a QP, with a test bench in the place of the card under test: the
// bench refuses the first packet with an RNR NAK, loses the second, and then accepts it.
func ExampleRequester() {
	now := time.Unix(0, 0)
	r, err := qp.NewRequester(qp.Config{QPN: 1, MaxSendWR: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = r.Connect(&qp.Attr{PKey: 0xffff, PathMTU: 1024, DestQPN: 2, SQPSN: 100, Timeout: 14, RetryCnt: 7, RNRRetry: 7})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := r.PostSend(now, &qp.SendWR{ID: 7, Flags: qp.Signaled, Local: []byte("hello")}); err != nil {
		fmt.Println(err)
	}
	response := func(s aeth.Syndrome) *bth.Packet {
		p := &bth.Packet{AETH: aeth.Header{Syndrome: s}}
		p.Opcode, p.PKey, p.DestQP, p.PSN = bth.RCAcknowledge, 0xffff, 1, 100
		return p
	}
	var out qp.Outgoing
	var c qp.Completion
	for try := 1; !r.NextCompletion(&c); try++ {
		for r.NextPacket(now, &out) {
			fmt.Println("sent", out.Packet.Opcode, out.Packet.PSN, "again:", out.Retransmission)
			switch try {
			case 1:
				fmt.Println("refused:", r.HandlePacket(now, response(aeth.RNRSyndrome(12))))
			case 3:
				fmt.Println("acknowledged:", r.HandlePacket(now, response(aeth.AckSyndrome(aeth.NoCredits))))
			}
		}
		if d, ok := r.Deadline(); ok {
			now = d
			r.Tick(now)
		}
	}
	fmt.Println(c.ID, c.Status)
	// Output:
	// sent RC_SEND_ONLY 100 again: false
	// refused: retried
	// sent RC_SEND_ONLY 100 again: true
	// sent RC_SEND_ONLY 100 again: true
	// acknowledged: accepted
	// 7 success
}

// A responder without a QP, fed with requests from a capture or a test bench: what
// would a conforming card have said?
func ExampleResponder() {
	regions, _ := qp.NewRegions(1)
	memory := []byte("0123456789abcdef")
	rkey, _ := regions.Register(qp.Region{Data: memory, Addr: 0x1000, Access: qp.RemoteRead})
	r, err := qp.NewResponder(qp.Config{QPN: 2, Memory: regions, MaxRecvWR: 1, MaxDestRdAtomic: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = r.Connect(&qp.Attr{PKey: 0xffff, PathMTU: 1024, DestQPN: 1, RQPSN: 100, Access: qp.RemoteRead, MaxDestRdAtomic: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	read := &bth.Packet{}
	read.Opcode, read.PKey, read.DestQP, read.PSN = bth.RC.Opcode(bth.ReadRequest), 0xffff, 2, 100
	read.RETH.VA, read.RETH.RKey, read.RETH.DMALen = 0x1004, rkey, 6
	fmt.Println(r.HandlePacket(read, nil))
	var out qp.Outgoing
	for r.NextPacket(&out) {
		fmt.Printf("%v PSN %v MSN %d %q\n", out.Packet.Opcode, out.Packet.PSN, out.Packet.AETH.MSN, out.Packet.Payload)
	}
	send := &bth.Packet{}
	send.Opcode, send.PKey, send.DestQP, send.PSN = bth.RC.Opcode(bth.SendOnly), 0xffff, 2, 101
	fmt.Println(r.HandlePacket(send, nil)) // no receive is posted
	for r.NextPacket(&out) {
		fmt.Println(out.Packet.Opcode, out.Packet.PSN, out.Packet.AETH.Syndrome.Kind())
	}
	// Output:
	// accepted
	// RC_RDMA_READ_RESPONSE_ONLY PSN 100 MSN 1 "456789"
	// not ready
	// RC_ACKNOWLEDGE 101 rnr
}

// A responder by itself drops everything before Connect (rule RS-19) and in Error
// (RS-18), and says so.
func TestResponderAlone(t *testing.T) {
	cfg := base(qp.RC)
	r, err := qp.NewResponder(cfg)
	require.NoError(t, err)
	require.NoError(t, r.PostRecv(&qp.RecvWR{ID: 5, Local: make([]byte, 8)}))
	a := good(qp.RTR)
	a.RQPSN = 10
	p := request(bth.SendOnly, 10)
	p.PKey = 0xffff
	// Before Connect there is no P_Key that could match.
	require.Equal(t, qp.Invalid, r.HandlePacket(p, nil))
	var out qp.Outgoing
	var c qp.Completion
	require.False(t, r.NextPacket(&out))
	require.False(t, r.NextCompletion(&c))
	require.NoError(t, r.Connect(a))
	require.ErrorIs(t, r.Connect(a), qp.ErrState)
	bad := request(bth.SendMiddle, 10)
	require.Equal(t, qp.Refused, r.HandlePacket(bad, nil))
	require.True(t, r.Err())
	require.True(t, r.NextPacket(&out))
	require.Equal(t, aeth.NakSyndrome(aeth.NakInvalidRequest), out.Packet.AETH.Syndrome)
	require.False(t, r.NextPacket(&out))
	require.Equal(t, qp.Inactive, r.HandlePacket(p, nil))
	require.False(t, r.NextPacket(&out), "silence after the NAK")
	require.True(t, r.NextCompletion(&c))
	require.Equal(t, qp.WRFlushErr, c.Status)
	require.EqualValues(t, 5, c.ID)
	require.False(t, r.NextCompletion(&c))
	require.EqualValues(t, 1, r.Counters().Inactive)
}

// A requester by itself drops responses in Error, and nothing completes twice (rule
// RQ-33).
func TestRequesterAloneInError(t *testing.T) {
	r, err := qp.NewRequester(base(qp.RC))
	require.NoError(t, err)
	a := good(qp.RTS)
	require.NoError(t, r.Connect(a))
	require.NoError(t, r.PostSend(epoch, &qp.SendWR{Op: qp.OpSend, Local: []byte{1}, Flags: qp.Signaled}))
	var out qp.Outgoing
	require.True(t, r.NextPacket(epoch, &out))
	nak := &bth.Packet{}
	nak.Opcode, nak.DestQP, nak.PKey, nak.PSN = bth.RC.Opcode(bth.Acknowledge), base(qp.RC).QPN, a.PKey, out.Packet.PSN
	nak.AETH.Syndrome = aeth.NakSyndrome(aeth.NakInvalidRequest)
	require.Equal(t, qp.Failed, r.HandlePacket(epoch, nak))
	require.Equal(t, qp.Inactive, r.HandlePacket(epoch, nak))
	var c qp.Completion
	require.True(t, r.NextCompletion(&c))
	require.Equal(t, qp.RemoteInvalidReqErr, c.Status)
	require.False(t, r.NextCompletion(&c))
}

// Rule RS-19: a responder of a QP in Init drops with verdict Inactive.
func TestResponderInInit(t *testing.T) {
	q := in(t, base(qp.RC), qp.Init)
	require.Equal(t, qp.Inactive, q.HandlePacket(epoch, request(bth.SendOnly, 0), nil))
	require.EqualValues(t, 1, q.Counters().Inactive)
}

// Rules UC-2, UD-1: nothing of UC and UD is ever outstanding, so that a message
// longer than the window goes out in one piece.
func TestUnreliableHasNoWindow(t *testing.T) {
	cfg := base(qp.UC)
	cfg.Window = 4
	uc := in(t, cfg, qp.RTS)
	require.NoError(t, uc.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 20*uc.Attr().PathMTU)}))
	require.NoError(t, uc.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 20*uc.Attr().PathMTU)}))
	var out qp.Outgoing
	n := 0
	for uc.NextPacket(epoch, &out) {
		una, next := uc.Flight()
		require.Equal(t, una, next)
		n++
	}
	require.Equal(t, 40, n)
	cfg = base(qp.UD)
	cfg.Window, cfg.MaxSendWR = 4, 16
	ud := in(t, cfg, qp.RTS)
	for range 16 {
		require.NoError(t, ud.PostSend(epoch, &qp.SendWR{AH: qp.NewAddressHandle(qp.AHAttr{})}))
	}
	for n = 0; ud.NextPacket(epoch, &out); n++ {
	}
	require.Equal(t, 16, n)
}

// reader is a responder with a region that counts up, at 0.
func reader(t *testing.T, rd int) (*qp.Responder, *qp.Regions, uint32) {
	t.Helper()
	regions, err := qp.NewRegions(2)
	require.NoError(t, err)
	mem := make([]byte, 16<<10)
	for i := range mem {
		mem[i] = byte(i >> 8)
	}
	key, err := regions.Register(qp.Region{Data: mem, Access: qp.RemoteRead})
	require.NoError(t, err)
	r, err := qp.NewResponder(qp.Config{QPN: 1, Memory: regions, MaxDestRdAtomic: rd})
	require.NoError(t, err)
	require.NoError(t, r.Connect(&qp.Attr{PKey: 0xffff, PathMTU: 256, DestQPN: 2, Access: qp.RemoteRead, MaxDestRdAtomic: rd}))
	return r, regions, key
}

func readOf(key uint32, n psn.PSN, packets uint32) *bth.Packet {
	p := request(bth.ReadRequest, n)
	p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = uint64(n)*256, key, packets*256
	return p
}

// Rules RS-14, RS-21: an earlier READ that is asked for again while a later one is
// being responded to goes first, and the later one continues where it was.
func TestReplayBeforeLaterResponse(t *testing.T) {
	r, _, key := reader(t, 3)
	var out qp.Outgoing
	psns := func() (all []psn.PSN) {
		for r.NextPacket(&out) {
			all = append(all, out.Packet.PSN)
		}
		return all
	}
	require.Equal(t, qp.Accepted, r.HandlePacket(readOf(key, 0, 2), nil))
	require.Equal(t, qp.Accepted, r.HandlePacket(readOf(key, 2, 2), nil))
	require.Equal(t, []psn.PSN{0, 1, 2, 3}, psns())
	require.Equal(t, qp.Accepted, r.HandlePacket(readOf(key, 4, 3), nil))
	require.True(t, r.NextPacket(&out))
	require.EqualValues(t, 4, out.Packet.PSN)
	require.Equal(t, qp.Duplicate, r.HandlePacket(readOf(key, 2, 2), nil))
	require.Equal(t, []psn.PSN{2, 3, 5, 6}, psns())
	require.Equal(t, qp.Duplicate, r.HandlePacket(readOf(key, 0, 2), nil))
	require.Equal(t, []psn.PSN{0, 1}, psns())
}

// Rule RS-15: a replay whose region is deregistered in the middle is given up, and only that:
// what was accepted after it is responded to, and the slot is used again.
func TestWithdrawReplay(t *testing.T) {
	r, regions, key := reader(t, 1)
	var out qp.Outgoing
	require.Equal(t, qp.Accepted, r.HandlePacket(readOf(key, 0, 3), nil))
	for range 3 {
		require.True(t, r.NextPacket(&out))
	}
	require.Equal(t, qp.Duplicate, r.HandlePacket(readOf(key, 0, 3), nil))
	require.True(t, r.NextPacket(&out))
	require.NoError(t, regions.Deregister(key))
	require.True(t, r.NextPacket(&out))
	require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteAccessError), out.Packet.AETH.Syndrome)
	require.EqualValues(t, 1, out.Packet.PSN)
	require.False(t, r.Err())
	require.False(t, r.NextPacket(&out), "nothing is under way any more")
	key, err := regions.Register(qp.Region{Data: make([]byte, 4096), Access: qp.RemoteRead})
	require.NoError(t, err)
	for n := psn.PSN(3); n < 9; n += 2 {
		require.Equal(t, qp.Accepted, r.HandlePacket(readOf(key, n, 2), nil))
		require.True(t, r.NextPacket(&out))
		require.True(t, r.NextPacket(&out))
		require.False(t, r.NextPacket(&out))
	}
}

// Rules RQ-28, RQ-34: an RNR NAK ends a recovery: what it refused has arrived, so that a
// sequence NAK for a packet lost after the wait is a new loss.
func TestRNREndsRecovery(t *testing.T) {
	q, err := qp.New(base(qp.RC))
	require.NoError(t, err)
	a := good(qp.RTS)
	a.SQPSN, a.RetryCnt, a.RNRRetry, a.Timeout = 10, 7, 7, 14
	require.NoError(t, q.Connect(epoch, a))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{Local: make([]byte, 3*a.PathMTU)}))
	var out qp.Outgoing
	drain := func() (n int) {
		for q.NextPacket(epoch, &out) {
			n++
		}
		return n
	}
	nak := func(s aeth.Syndrome) qp.Verdict {
		p := request(bth.Acknowledge, 10)
		p.AETH.Syndrome = s
		return q.HandlePacket(epoch, p, nil)
	}
	seq := aeth.NakSyndrome(aeth.NakPSNSequenceError)
	require.Equal(t, 3, drain())
	require.Equal(t, qp.Retried, nak(seq))
	require.Equal(t, 3, drain())
	require.Equal(t, qp.Stale, nak(seq), "the same loss")
	require.Equal(t, qp.Retried, nak(aeth.RNRSyndrome(1)))
	due, ok := q.Deadline()
	require.True(t, ok)
	q.Tick(due)
	epoch := due
	n := 0
	for q.NextPacket(epoch, &out) {
		n++
	}
	require.Equal(t, 3, n)
	p := request(bth.Acknowledge, 10)
	p.AETH.Syndrome = seq
	require.Equal(t, qp.Retried, q.HandlePacket(epoch, p, nil), "a loss after the wait")
}

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
