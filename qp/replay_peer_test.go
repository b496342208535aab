package qp_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
)

// The program at both ends of the captures has one buffer of four areas: target
// of WRITEs and source of requests; source of READs; target of atomics;
// receives. Byte i of message k is replayByte(k, i). Message number n goes to the
// n-th slot of its area; a SEND's k counts the receives used up, a READ's is
// 1000. Its words, with their defaults: op=send size=64 count=1 burst=1 mtu=1024
// area=0x80000 timeout=14 retry=7 rnr=7 min_rnr=12 rd_atomic=4 recvs=64
// recv_size=area/64 access=rwa qpaccess=rwa; srq=1 a shared receive queue; mw=1 a
// memory window over the first area, mw=2 that requests use; rkey_xor= spoils the
// R_Key.
func replayByte(k, i uint32) byte { return byte(7*i + 13*(i>>8) + 31*k + 5) }

func replayFill(b []byte, k uint32) {
	for i := range b {
		b[i] = replayByte(k, uint32(i))
	}
}

const replayAtomic = 0x0102030405060708 // what the target of atomics holds at first

// replayMemory has the recorded keys and addresses.
type replayMemory struct {
	buf    []byte
	addr   uint64
	area   uint64
	rkey   uint32 // of the region
	window uint32 // key of a window over the first area, 0 for none
	access qp.Access
}

func (m *replayMemory) Remote(a qp.RemoteAccess) ([]byte, bool) {
	size, access := uint64(len(m.buf)), m.access
	switch {
	case m.window != 0 && a.RKey == m.window:
		size, access = m.area, qp.RemoteRead|qp.RemoteWrite
	case a.RKey != m.rkey:
		return nil, false
	}
	off, n := a.VA-m.addr, uint64(a.Len)
	if access&a.Right != a.Right || a.VA < m.addr || n > size || off > size-n {
		return nil, false
	}
	return m.buf[off : off+n : off+n], true
}

func (m *replayMemory) Invalidate(a qp.RemoteAccess) bool {
	if m.window == 0 || a.RKey != m.window {
		return false
	}
	m.window = 0
	return true
}

// playResponder feeds the recorded requests to our responder and compares what it
// responses with those of the driver: PSN, opcode, syndrome, MSN, payload.
func (c *replayConn) playResponder(t *testing.T) {
	area := c.num("area", 0x80000)
	mem := &replayMemory{buf: make([]byte, 4*area), addr: c.server.addr, area: area, rkey: c.server.rkey, access: rights(c.word("access", "rwa"))}
	replayFill(mem.buf[area:2*area], 1000)
	binary.LittleEndian.PutUint64(mem.buf[2*area:], replayAtomic)
	if c.num("mw", 0) != 0 {
		mem.window = c.server.irkey
		if c.num("mw", 0) == 2 {
			mem.rkey = ^c.server.irkey // not known to the peer
		}
	}
	var srq *qp.SRQ
	if c.num("srq", 0) != 0 {
		srq, _ = qp.NewSRQ(1, 128)
	}
	q := c.bringUp(t, &c.server, &c.client, mem, srq)
	slot := area / 64
	receives := func() {
		for k := range c.num("recvs", 64) {
			at := 3*area + k*slot
			wr := qp.RecvWR{ID: k, Local: mem.buf[at : at+c.num("recv_size", slot)]}
			if srq != nil {
				require.NoError(t, srq.PostRecv(&wr))
			} else {
				require.NoError(t, q.PostRecv(&wr))
			}
		}
	}
	if c.late == 0 {
		receives()
	}

	var theirs []*replayFrame
	for i := range c.frames {
		if !c.frames[i].request {
			theirs = append(theirs, &c.frames[i])
		}
	}
	var out qp.Outgoing
	n, requests, received := 0, 0, uint32(0)
	for i := range c.frames {
		f := &c.frames[i]
		if !f.request {
			continue
		}
		requests++
		if c.lostIn != 0 && requests%c.lostIn == 0 {
			continue
		}
		if c.late != 0 && requests == c.late {
			receives()
		}
		q.HandlePacket(f.at, &f.p, nil)
		for q.NextPacket(f.at, &out) {
			if out.Packet.Opcode.Class() == bth.Request {
				t.Fatalf("%v: our responder's QP sent a request", f)
			}
			require.Less(t, n, len(theirs), "%v: ours also sends %v PSN %v", f, out.Packet.Opcode, out.Packet.PSN)
			c.compareResponse(t, theirs[n], f, &out.Packet)
			n++
		}
		var done qp.Completion
		for q.NextCompletion(&done) {
			if done.Status != qp.Success {
				continue
			}
			if done.Op == qp.OpRecv {
				data := mem.buf[3*area+done.ID*slot:][:done.ByteLen]
				for i, b := range data {
					require.Equal(t, replayByte(received, uint32(i)), b, "received message %d, byte %d", received, i)
				}
			}
			received++
		}
	}
	require.Equal(t, len(theirs), n, "the driver sent more responses than ours")
}

func (c *replayConn) compareResponse(t *testing.T, theirs, to *replayFrame, ours *bth.Packet) {
	t.Helper()
	want := theirs.p
	if s, ok := c.syndrome[theirs.n]; ok {
		want.AETH.Syndrome = s
	}
	require.Equal(t, describe(&want), describe(ours), "%v, response to %v", theirs, to)
}

// replayWork is the list of requests that the program posts.
type replayWork struct {
	wr   qp.SendWR
	last bool // of its operation: all are awaited
}

func (c *replayConn) work() (out []replayWork) {
	area := c.num("area", 0x80000)
	size := uint64(c.size)
	stride := (size + 63) &^ 63
	slots := uint64(1)
	if stride != 0 {
		slots = area / stride
	}
	buf := make([]byte, area)
	far := &c.server
	rkey := far.rkey ^ uint32(c.num("rkey_xor", 0))
	count := c.num("count", 1)
	n, received := uint64(0), uint32(0)
	atomic := uint64(replayAtomic)
	for _, op := range strings.Split(c.word("op", "send"), ",") {
		for i := range count {
			at := n % slots * stride
			local := buf[at : at+size : at+size]
			k := uint32(n)
			wr := qp.SendWR{ID: n, Flags: qp.Signaled, Local: local, RKey: rkey, Imm: uint32(0x11220000 + n)}
			if c.num("solicited", 0) != 0 {
				wr.Flags |= qp.Solicited
			}
			switch op {
			case "send", "send_imm", "send_inv":
				wr.Op = map[string]qp.Op{"send": qp.OpSend, "send_imm": qp.OpSendImm, "send_inv": qp.OpSendInv}[op]
				if op == "send_inv" {
					wr.RKey = far.irkey
				}
				k = received
				received++
			case "write", "write_imm":
				wr.Op, wr.RemoteAddr = qp.OpWrite, far.addr+at
				if op == "write_imm" {
					wr.Op = qp.OpWriteImm
					received++
				}
			case "read":
				wr.Op, wr.RemoteAddr = qp.OpRead, far.addr+area
				wr.Local = make([]byte, size)
			case "fadd":
				wr.Op, wr.RemoteAddr, wr.CompareAdd = qp.OpFetchAdd, far.addr+2*area, 0x1000000000000001
				wr.Local = make([]byte, 8)
				atomic += wr.CompareAdd
			case "cswap":
				wr.Op, wr.RemoteAddr, wr.Swap = qp.OpCmpSwap, far.addr+2*area, 0xa0b0c0d0e0f00000+n
				wr.CompareAdd = atomic + i&1 // every second one is not equal
				wr.Local = make([]byte, 8)
				if i&1 == 0 {
					atomic = wr.Swap
				}
			}
			if wr.Op <= qp.OpWriteImm {
				replayFill(local, k)
			}
			out = append(out, replayWork{wr, i+1 == count})
			n++
		}
	}
	return out
}

// playRequester gives our requester the recorded responses at their times, and
// asks it for a packet where the driver sent one, as a pacer would.
func (c *replayConn) playRequester(t *testing.T) {
	q := c.bringUp(t, &c.client, &c.server, nil, nil)
	work := c.work()
	burst := int(c.num("burst", 1))
	timeout := 4096 * time.Nanosecond << c.num("timeout", 14)
	now := c.start()
	var outcome []string
	next, pending := 0, 0
	failed, waits := false, false
	atomics := 0
	app := func() {
		for {
			var done qp.Completion
			for q.NextCompletion(&done) {
				pending--
				waits = waits && pending > 0
				outcome = append(outcome, replayStatus[done.Status])
				failed = failed || done.Status != qp.Success
				if done.Status == qp.Success {
					c.checkResult(t, &work[done.ID].wr, &atomics)
				}
			}
			if failed || waits || pending >= burst || next == len(work) {
				return
			}
			require.NoError(t, q.PostSend(now, &work[next].wr))
			waits = work[next].last
			pending++
			next++
		}
	}
	app()
	var out qp.Outgoing
	before := ""
	responses, lost, early := 0, 0, time.Duration(0)
	arrive := func(f *replayFrame) {
		responses++
		if c.lostBack == 0 || responses%c.lostBack != 0 {
			q.HandlePacket(now, &f.p, nil)
			app()
		}
	}
	var crossing *replayFrame
	left := 0 // requests until it arrives
	for i := range c.frames {
		f := &c.frames[i]
		for c.lostFirst && f.at.Sub(now) > timeout/2 && q.NextPacket(now, &out) {
			lost++ // the driver waits: it had sent all
		}
		for {
			d, ok := q.Deadline()
			if !ok || d.After(f.at) {
				break
			}
			now = d
			q.Tick(now)
			app()
		}
		now = f.at
		if !f.request {
			if left = c.crossed[f.n]; left != 0 {
				crossing = f
			} else {
				arrive(f)
			}
			continue
		}
		if c.extra[f.n] {
			continue
		}
		want := describe(&f.p)
		if c.repeated && before == want {
			continue // repeated by the link
		}
		before = want
		for {
			got := q.NextPacket(now, &out)
			if d, ok := q.Deadline(); !got && ok {
				// The wire is not where the driver's timer started.
				early = max(early, d.Sub(now))
				now = d
				q.Tick(now)
				got = q.NextPacket(now, &out)
			}
			require.True(t, got, "%v: ours sends nothing", f)
			if c.lostFirst && describe(&out.Packet) != want && lost < 40 {
				lost++
				continue
			}
			break
		}
		require.Equal(t, want, describe(&out.Packet), "%v", f)
		if left--; left == 0 {
			arrive(crossing)
		}
	}
	// The driver's timer is not restarted on progress as rule RQ-31 has it: it may
	// fire sooner than ours, but within one timeout.
	require.LessOrEqual(t, early, timeout/2)
	for q.Outstanding() > 0 {
		d, ok := q.Deadline()
		require.True(t, ok, "the recorded responses end, and requests are outstanding")
		now = d
		q.Tick(now)
		app()
		require.False(t, q.NextPacket(now, &out), "ours goes on to send %v PSN %v", out.Packet.Opcode, out.Packet.PSN)
	}
	app()
	want := c.outcome
	if c.want != nil {
		want = c.want
	}
	require.Equal(t, want, outcome, "statuses of the completions")
	require.Len(t, c.results, atomics)
	if lost > 0 {
		t.Logf("%d packets taken for lost", lost)
	}
}

// replayStatus are the numbers of enum ibv_wc_status.
var replayStatus = map[qp.Status]string{qp.Success: "0", qp.LocalLengthErr: "1", qp.LocalQPOpErr: "2", qp.LocalProtErr: "4",
	qp.WRFlushErr: "5", qp.BadRespErr: "7", qp.RemoteInvalidReqErr: "9", qp.RemoteAccessErr: "10", qp.RemoteOpErr: "11",
	qp.RetryExcErr: "12", qp.RNRRetryExcErr: "13"}

// describe lists every field of a packet that its opcode has, but the ICRC.
func describe(p *bth.Packet) string {
	return fmt.Sprintf("%v PSN %v to %#x, ack %v, headers % x, pad %d, %d bytes %08x", p.Opcode, p.PSN, p.DestQP, p.AckReq,
		p.AppendHeadersTo(nil), p.PadCnt, len(p.Payload), crc32.ChecksumIEEE(p.Payload))
}

// checkResult checks what a READ or an ATOMIC left in local memory.
func (c *replayConn) checkResult(t *testing.T, wr *qp.SendWR, atomics *int) {
	t.Helper()
	switch wr.Op {
	case qp.OpRead:
		for i, b := range wr.Local {
			require.Equal(t, replayByte(1000, uint32(i)), b, "READ %d, byte %d", wr.ID, i)
		}
	case qp.OpFetchAdd, qp.OpCmpSwap:
		got := "0x" + hex16(binary.LittleEndian.Uint64(wr.Local))
		require.Equal(t, c.results[*atomics], got, "atomic %d", wr.ID)
		*atomics++
	}
}

func hex16(v uint64) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 16)
	for i := range b {
		b[15-i] = digits[v>>(4*i)&15]
	}
	return string(b)
}
