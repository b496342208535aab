package qp_test

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/qp"
)

// connect creates two queue pairs and connects them.
func connect(memory qp.Memory) (a, b *qp.QP) {
	now := time.Unix(0, 0)
	up := func(num, peer uint32) *qp.QP {
		q, err := qp.New(qp.Config{Type: qp.RC, QPN: num, PD: 1, Memory: memory,
			MaxSendWR: 16, MaxRecvWR: 16, MaxRdAtomic: 4, MaxDestRdAtomic: 4})
		if err != nil {
			panic(err)
		}
		attr := qp.Attr{PKey: 0xffff, Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic,
			PathMTU: 1024, DestQPN: peer, MaxDestRdAtomic: 4, MinRNRTimer: 12,
			Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4}
		if err := q.Connect(now, &attr); err != nil {
			panic(err)
		}
		return q
	}
	return up(1, 2), up(2, 1)
}

// exchange hands packets back and forth until neither side has any. What a network
// would do with them, drop says.
func exchange(now time.Time, a, b *qp.QP, drop func(*qp.Outgoing) bool) {
	var out qp.Outgoing
	for moved := true; moved; {
		moved = false
		for _, way := range [][2]*qp.QP{{a, b}, {b, a}} {
			for way[0].NextPacket(now, &out) {
				moved = true
				if drop == nil || !drop(&out) {
					way[1].HandlePacket(now, &out.Packet, nil)
				}
			}
		}
	}
}

// Two queue pairs, back to back: a message from one to the other.
func Example() {
	a, b := connect(nil)
	now := time.Unix(0, 0)

	buffer := make([]byte, 4096)
	if err := b.PostRecv(&qp.RecvWR{ID: 7, Local: buffer}); err != nil {
		panic(err)
	}
	if err := a.PostSend(now, &qp.SendWR{ID: 42, Op: qp.OpSend, Flags: qp.Signaled, Local: []byte("hello")}); err != nil {
		panic(err)
	}
	exchange(now, a, b, nil)

	var c qp.Completion
	for b.NextCompletion(&c) {
		fmt.Printf("b: %v %d: %v, %q\n", c.Op, c.ID, c.Status, buffer[:c.ByteLen])
	}
	for a.NextCompletion(&c) {
		fmt.Printf("a: %v %d: %v\n", c.Op, c.ID, c.Status)
	}
	// Output:
	// b: RECV 7: success, "hello"
	// a: SEND 42: success
}

// Remote memory: what the peer may reach is registered, and named by its key.
func Example_remoteMemory() {
	regions, err := qp.NewRegions(16)
	if err != nil {
		panic(err)
	}
	memory := make([]byte, 4096)
	key, err := regions.Register(qp.Region{PD: 1, Data: memory, Addr: 0x10000,
		Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic})
	if err != nil {
		panic(err)
	}
	a, b := connect(regions)
	now := time.Unix(0, 0)

	back, counter := make([]byte, 5), make([]byte, 8)
	for _, wr := range []qp.SendWR{
		{ID: 1, Op: qp.OpWrite, RemoteAddr: 0x10000, RKey: key, Local: []byte("write")},
		{ID: 2, Op: qp.OpRead, RemoteAddr: 0x10000, RKey: key, Local: back},
		{ID: 3, Op: qp.OpFetchAdd, RemoteAddr: 0x10008, RKey: key, CompareAdd: 5, Local: counter},
		{ID: 4, Op: qp.OpRead, RemoteAddr: 0x10ffe, RKey: key, Local: back[:3]}, // a byte too far
	} {
		wr.Flags = qp.Signaled
		if err := a.PostSend(now, &wr); err != nil {
			panic(err)
		}
	}
	exchange(now, a, b, nil)

	var c qp.Completion
	for a.NextCompletion(&c) {
		fmt.Printf("%d: %v: %v\n", c.ID, c.Op, c.Status)
	}
	fmt.Printf("read back %q, counter now %d, state %v\n", back, memory[8], a.State())
	// Output:
	// 1: RDMA_WRITE: success
	// 2: RDMA_READ: success
	// 3: ATOMIC_FETCH_AND_ADD: success
	// 4: RDMA_READ: remote access error
	// read back "write", counter now 5, state ERR
}

// Loss: the caller owns the only timer. Nobody sleeps here, time is a number.
func ExampleQP_Deadline() {
	a, b := connect(nil)
	now := time.Unix(0, 0)
	if err := b.PostRecv(&qp.RecvWR{Local: make([]byte, 16)}); err != nil {
		panic(err)
	}
	if err := a.PostSend(now, &qp.SendWR{Flags: qp.Signaled, Local: []byte("lost twice")}); err != nil {
		panic(err)
	}

	lose := 2
	drop := func(out *qp.Outgoing) bool {
		fmt.Printf("%9v %v PSN %v\n", now.Sub(time.Unix(0, 0)).Round(time.Microsecond), out.Packet.Opcode, out.Packet.PSN)
		lose--
		return lose >= 0
	}
	exchange(now, a, b, drop)
	for {
		next, ok := a.Deadline()
		if !ok {
			break
		}
		now = next
		a.Tick(now)
		exchange(now, a, b, drop)
	}
	var c qp.Completion
	for a.NextCompletion(&c) {
		fmt.Println(c.Op, c.Status, "after", a.Counters().LocalAckTimeoutErr, "timeouts")
	}
	// Output:
	//        0s RC_SEND_ONLY PSN 0
	//  67.109ms RC_SEND_ONLY PSN 0
	// 134.218ms RC_SEND_ONLY PSN 0
	// 134.218ms RC_ACKNOWLEDGE PSN 0
	// SEND success after 2 timeouts
}

// What a transition needs is said by its verbs names.
func ExampleQP_Modify() {
	q, err := qp.New(qp.Config{Type: qp.RC, QPN: 1})
	if err != nil {
		panic(err)
	}
	now := time.Unix(0, 0)
	fmt.Println(q.Modify(now, &qp.Attr{State: qp.RTS}, qp.AttrState))
	fmt.Println(q.Modify(now, &qp.Attr{State: qp.Init}, qp.AttrState|qp.AttrPathMTU))
	fmt.Println(q.State())
	// Output:
	// qp: no transition from RESET to RTS
	// qp: RESET to INIT: needs pkey,access; does not accept path_mtu; path_mtu is 0, want 256, 512, 1024, 2048 or 4096
	// RESET
}
