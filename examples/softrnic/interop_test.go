//go:build interop

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
)

// TestInterop boots one guest and tries everything against its driver.
func TestInterop(t *testing.T) {
	l := newLab(t)
	t.Logf("guest: %v", l.guest.Info.Words)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"matrix", l.testMatrix}, {"faults", l.testFaults}, {"wrap", l.testWrap}, {"rnr", l.testRNR}, {"refusals", l.testRefusals},
		{"rebuild", l.testRebuild}, {"many", l.testMany}, {"multicast", l.testMulticast}, {"trouble", l.testTrouble},
		{"tools", l.testTools}, {"cm", l.testCM}, {"rcopy", l.testRcopy}, {"mckey", l.testMckey}, {"not there", l.testNotThere},
		{"gone", l.testCMFaults}, {"socket", l.testSocket}, {"qperf", l.testQperfs},
	} {
		t.Run(part.name, part.run)
		if *update { // a run that is ended leaves what it tried
			require.NoError(t, os.WriteFile("INTEROP.md", []byte(l.results.table(l.guest)), 0o644))
		}
	}
	t.Log("\n" + l.results.table(l.guest))
}

// testMatrix tries every operation in both roles over every network.
func (l *lab) testMatrix(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, mtu := range []int{256, 1024, 4096} {
			for _, kind := range []qp.Type{qp.RC, qp.UC, qp.UD} {
				k := link{kind: kind, v6: v6, mtu: mtu, sqPSN: 0x1234, guestPSN: 0x654321}
				t.Run(k.String(), func(t *testing.T) { l.testLink(t, k) })
			}
		}
	}
}

type message struct {
	op    string // in the agent's words
	ours  qp.Op
	name  string
	sizes func(mtu int) []int
}

func allSizes(m int) []int  { return []int{0, 1, m - 1, m, m + 1, 3 * m, 1 << 20} }
func onePacket(m int) []int { return []int{0, 1, m - 1, m} }
func eight(int) []int       { return []int{8} }

var messages = map[qp.Type][]message{
	qp.RC: {
		{"send", qp.OpSend, "RC SEND", allSizes},
		{"send_imm", qp.OpSendImm, "RC SEND with immediate", allSizes},
		{"send_inv", qp.OpSendInv, "RC SEND with invalidate", allSizes},
		{"write", qp.OpWrite, "RC WRITE", allSizes},
		{"write_imm", qp.OpWriteImm, "RC WRITE with immediate", allSizes},
		{"read", qp.OpRead, "RC READ", allSizes},
		{"cswap", qp.OpCmpSwap, "RC CmpSwap", eight},
		{"fadd", qp.OpFetchAdd, "RC FetchAdd", eight},
		{"flush", qp.OpFlush, "RC FLUSH", allSizes},
		{"atomic_write", qp.OpAtomicWrite, "RC ATOMIC WRITE", eight},
	},
	qp.UC: {
		{"send", qp.OpSend, "UC SEND", allSizes},
		{"send_imm", qp.OpSendImm, "UC SEND with immediate", allSizes},
		{"write", qp.OpWrite, "UC WRITE", allSizes},
		{"write_imm", qp.OpWriteImm, "UC WRITE with immediate", allSizes},
	},
	qp.UD: {
		{"send", qp.OpSend, "UD SEND", onePacket},
		{"send_imm", qp.OpSendImm, "UD SEND with immediate", onePacket},
	},
}

func (l *lab) testLink(t *testing.T, k link) {
	for _, m := range messages[k.kind] {
		if m.ours == qp.OpFlush && l.guest.Info.Num("flush") == 0 ||
			m.ours == qp.OpAtomicWrite && l.guest.Info.Num("atomic_write") == 0 {
			continue
		}
		for role, by := range []string{"ours", "theirs"} {
			t.Run(m.op+"/"+by, func(t *testing.T) {
				c := l.connect(t, k)
				for _, size := range m.sizes(k.mtu) {
					ok := t.Run(strconv.Itoa(size), func(t *testing.T) {
						l.results.record(t, m.name, role)
						c.exchange(t, m, role, size)
					})
					if !ok {
						break // the connection is of no use any more
					}
				}
			})
		}
	}
}

// exchange does one operation and checks the outcome at both ends.
func (c *conn) exchange(t *testing.T, m message, role, size int) {
	switch m.ours {
	case qp.OpSend, qp.OpSendImm, qp.OpSendInv:
		if role == asks {
			c.sendOurs(t, m, size)
		} else {
			c.sendTheirs(t, m, size)
		}
	case qp.OpWrite, qp.OpWriteImm:
		if role == asks {
			c.writeOurs(t, m, size)
		} else {
			c.writeTheirs(t, m, size)
		}
	case qp.OpRead:
		if role == asks {
			c.readOurs(t, size)
		} else {
			c.readTheirs(t, size)
		}
	case qp.OpFlush:
		c.flush(t, role, size)
	default:
		c.atomic(t, m, role)
	}
}

// filled returns n bytes of a pattern, and its number.
func (c *conn) filled(n int) ([]byte, uint32) {
	seed := c.nextSeed()
	b := make([]byte, n)
	pattern(b, seed, 0)
	return b, seed
}

// wipe writes 0xee over what a message is to fill and a little more.
func wipe(b []byte) []byte {
	for i := range b {
		b[i] = 0xee
	}
	return b
}

// requireFilled checks that b has n bytes of a pattern and wiped ones behind.
func requireFilled(t testing.TB, b []byte, n int, seed uint32) {
	t.Helper()
	want := wipe(make([]byte, len(b)))
	pattern(want[:n], seed, 0)
	if string(want) == string(b) {
		return
	}
	for i := range b {
		if b[i] != want[i] {
			t.Fatalf("our memory: byte %d of %d is %#x, not %#x", i, n, b[i], want[i])
		}
	}
}

// requireGuestFilled is requireFilled for the guest's memory, from its beginning.
func (c *conn) requireGuestFilled(t testing.TB, off, n int, seed uint32) {
	t.Helper()
	if n != 0 {
		a := c.guest.Do(t, "check mr=%d off=%d len=%d seed=%d", c.mr, off, n, seed)
		require.Equal(t, "1", a.Words["match"], "the guest's memory: %v", a.Words)
	}
	a := c.guest.Do(t, "check mr=%d off=%d len=%d byte=0xee", c.mr, off+n, guard)
	require.Equal(t, "1", a.Words["match"], "the guest's memory behind the message: %v", a.Words)
}

func (c *conn) wipeGuest(t testing.TB, n int) {
	c.guest.Do(t, "fill mr=%d len=%d byte=0xee", c.mr, n+guard)
}

const imm = 0x89abcdef

func (c *conn) requireSent(t testing.TB, id uint64) {
	t.Helper()
	wc := c.completion(t, c.cq)
	require.Equal(t, qp.Success, wc.Status, "our send")
	require.Equal(t, id, wc.ID)
}

func requireGuest(t testing.TB, wc map[string]string, op string, size int) {
	t.Helper()
	require.Equal(t, "SUCCESS", wc["status"], "the guest's completion: %v", wc)
	require.Equal(t, op, wc["op"])
	if size >= 0 {
		require.Equal(t, strconv.Itoa(size), wc["len"])
	}
}

func (c *conn) sendOurs(t *testing.T, m message, size int) {
	grh := 0
	if c.kind == qp.UD {
		grh = qp.GRHSize
	}
	data, seed := c.filled(size)
	c.wipeGuest(t, grh+size)
	wr := qp.SendWR{ID: uint64(size) + 5, Op: m.ours, Local: data, Imm: imm}
	if m.ours == qp.OpSendInv {
		w := c.guest.Do(t, "mw qp=%d mr=%d len=4096 access=rw", c.gqp, c.mr)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "BIND_MW", -1)
		defer c.guest.Do(t, "destroy mw=%d", w.Num("mw"))
		wr.RKey = uint32(w.Num("rkey"))
	}
	c.guest.Do(t, "recv qp=%d mr=%d len=%d id=77", c.gqp, c.mr, grh+size+guard)
	wc := c.untilArrived(t, func() {
		c.post(t, wr)
		c.requireSent(t, wr.ID)
	})
	requireGuest(t, wc, "RECV", grh+size)
	require.Equal(t, "77", wc["id"])
	if m.ours == qp.OpSendImm {
		n, err := strconv.ParseUint(wc["imm"], 0, 64)
		require.NoError(t, err)
		require.EqualValues(t, imm, n)
	} else {
		require.NotContains(t, wc, "imm")
	}
	if c.kind == qp.UD {
		n, _ := strconv.ParseUint(wc["src_qp"], 0, 64)
		require.EqualValues(t, c.qp.Num(), n)
	}
	c.requireGuestFilled(t, grh, size, seed)
}

func (c *conn) sendTheirs(t *testing.T, m message, size int) {
	grh := 0
	if c.kind == qp.UD {
		grh = qp.GRHSize
	}
	seed := c.nextSeed()
	if size != 0 {
		c.guest.Do(t, "fill mr=%d len=%d seed=%d", c.mr, size, seed)
	}
	buf := wipe(make([]byte, grh+size+guard))
	c.recv(t, 78, buf)
	more := ""
	var window uint32
	switch {
	case m.ours == qp.OpSendImm:
		more = fmt.Sprintf(" imm=%#x", imm)
	case m.ours == qp.OpSendInv:
		c.do(func(time.Time) {
			w, err := c.regs.AllocWindow(c.pd)
			require.NoError(t, err)
			window, err = c.regs.Bind(qp.Binding{Window: w, Region: c.rkey, VA: ourVA, Len: 4096, Access: qp.RemoteRead | qp.RemoteWrite, QPN: c.qp.Num()})
			require.NoError(t, err)
		})
		more = fmt.Sprintf(" inv=%#x", window)
	}
	if c.kind == qp.UD {
		ours, _, _ := c.addrs()
		more += fmt.Sprintf(" dgid=%v dqpn=%#x qkey=%#x", ours, c.qp.Num(), qkey)
	}
	c.guest.Do(t, "post qp=%d op=%s mr=%d len=%d id=9%s", c.gqp, m.op, c.mr, size, more)
	wc := c.completion(t, c.rcq)
	require.Equal(t, qp.Success, wc.Status)
	require.EqualValues(t, 78, wc.ID)
	require.Equal(t, qp.OpRecv, wc.Op)
	require.EqualValues(t, grh+size, wc.ByteLen)
	require.Equal(t, m.ours == qp.OpSendImm, wc.HasImm)
	if wc.HasImm {
		require.EqualValues(t, imm, wc.Imm)
	}
	require.Equal(t, m.ours == qp.OpSendInv, wc.HasInv)
	if wc.HasInv {
		require.Equal(t, window, wc.InvRKey)
		c.do(func(time.Time) {
			_, ok := c.regs.Remote(qp.RemoteAccess{PD: c.pd, QPN: c.qp.Num(), RKey: window, VA: ourVA, Len: 1, Right: qp.RemoteRead})
			require.False(t, ok, "the window is no longer valid")
			require.NoError(t, c.regs.Deregister(window))
		})
	}
	if c.kind == qp.UD {
		require.Equal(t, c.gqpn, wc.SrcQP)
		_, guests, _ := c.addrs()
		if guests.Is4() {
			// 20 unspecified bytes, then the IPv4 header: version, source.
			require.EqualValues(t, 0x45, buf[20])
			require.Equal(t, guests.AsSlice(), buf[32:36])
		} else {
			require.EqualValues(t, 6, buf[0]>>4)
			require.Equal(t, guests.AsSlice(), buf[8:24])
		}
	}
	requireFilled(t, buf[grh:], size, seed)
	requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "SEND", -1)
}

func (c *conn) writeOurs(t *testing.T, m message, size int) {
	data, seed := c.filled(size)
	c.wipeGuest(t, size)
	if m.ours == qp.OpWriteImm {
		c.guest.Do(t, "recv qp=%d mr=%d len=0 id=77", c.gqp, c.mr)
	}
	send := func() {
		c.post(t, qp.SendWR{ID: 6, Op: m.ours, Local: data, RemoteAddr: c.gva, RKey: uint32(c.gkey), Imm: imm})
		c.requireSent(t, 6)
	}
	if m.ours == qp.OpWrite {
		send()
	}
	switch {
	case m.ours == qp.OpWriteImm:
		wc := c.untilArrived(t, send)
		requireGuest(t, wc, "RECV_WRITE_IMM", size)
		n, _ := strconv.ParseUint(wc["imm"], 0, 64)
		require.EqualValues(t, imm, n)
	case c.kind == qp.UC:
		for range 5 {
			c.afterUC(t)
			if size == 0 || c.guest.Do(t, "check mr=%d len=%d seed=%d", c.mr, size, seed).Words["match"] == "1" {
				break
			}
			send()
		}
	}
	c.requireGuestFilled(t, 0, size, seed)
}

// untilArrived sends until the guest has a completion: a UC message of many
// packets may be lost on the way.
func (c *conn) untilArrived(t *testing.T, send func()) map[string]string {
	t.Helper()
	for range 5 {
		send()
		if c.kind != qp.UC {
			break
		}
		if a := c.guest.Do(t, "poll qp=%d ms=500", c.gqp); len(a.Groups) == 1 {
			return a.Groups[0]
		}
	}
	return c.guest.Poll(t, c.gqp, 1)[0]
}

// afterUC sends a message after one whose arrival nothing confirms.
func (c *conn) afterUC(t *testing.T) {
	c.guest.Do(t, "recv qp=%d mr=%d off=%d len=0", c.gqp, c.mr, memSize-4096)
	c.post(t, qp.SendWR{ID: 7, Op: qp.OpSend})
	c.requireSent(t, 7)
	requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "RECV", 0)
}

func (c *conn) writeTheirs(t *testing.T, m message, size int) {
	seed := c.nextSeed()
	if size != 0 {
		c.guest.Do(t, "fill mr=%d len=%d seed=%d", c.mr, size, seed)
	}
	c.do(func(time.Time) { wipe(c.mem[:size+guard]) })
	if m.ours == qp.OpWriteImm || c.kind == qp.UC {
		c.recv(t, 79, nil)
	}
	c.guest.Do(t, "post qp=%d op=%s mr=%d len=%d raddr=%#x rkey=%#x imm=%#x", c.gqp, m.op, c.mr, size, ourVA, c.rkey, imm)
	if c.kind == qp.UC && m.ours == qp.OpWrite {
		c.guest.Do(t, "post qp=%d op=send len=0", c.gqp)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "WRITE", -1)
	}
	if m.ours == qp.OpWriteImm || c.kind == qp.UC {
		wc := c.completion(t, c.rcq)
		require.Equal(t, qp.Success, wc.Status)
		if m.ours == qp.OpWriteImm {
			require.Equal(t, qp.OpRecvWrite, wc.Op)
			require.EqualValues(t, size, wc.ByteLen)
			require.EqualValues(t, imm, wc.Imm)
		}
	}
	requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], map[bool]string{true: "SEND", false: "WRITE"}[c.kind == qp.UC && m.ours == qp.OpWrite], -1)
	c.do(func(time.Time) { requireFilled(t, c.mem[:size+guard], size, seed) })
}

func (c *conn) readOurs(t *testing.T, size int) {
	seed := c.nextSeed()
	if size != 0 {
		c.guest.Do(t, "fill mr=%d len=%d seed=%d", c.mr, size, seed)
	}
	buf := wipe(make([]byte, size+guard))
	c.post(t, qp.SendWR{ID: 8, Op: qp.OpRead, Local: buf[:size], RemoteAddr: c.gva, RKey: uint32(c.gkey)})
	wc := c.completion(t, c.cq)
	require.Equal(t, qp.Success, wc.Status)
	require.EqualValues(t, size, wc.ByteLen)
	requireFilled(t, buf, size, seed)
}

func (c *conn) readTheirs(t *testing.T, size int) {
	seed := c.nextSeed()
	c.do(func(time.Time) { pattern(c.mem[:size], seed, 0) })
	c.wipeGuest(t, size)
	c.guest.Do(t, "post qp=%d op=read mr=%d len=%d raddr=%#x rkey=%#x", c.gqp, c.mr, size, ourVA, c.rkey)
	requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "READ", -1)
	c.requireGuestFilled(t, 0, size, seed)
}

// flush writes, flushes, and finds both done.
func (c *conn) flush(t *testing.T, role, size int) {
	const global = 1
	for _, region := range []bool{false, true} {
		if role == asks {
			data, seed := c.filled(size)
			c.wipeGuest(t, size)
			c.post(t, qp.SendWR{ID: 1, Op: qp.OpWrite, Local: data, RemoteAddr: c.gva, RKey: uint32(c.gkey)})
			c.post(t, qp.SendWR{ID: 2, Op: qp.OpFlush, Length: uint32(size), RemoteAddr: c.gva, RKey: uint32(c.gkey), FlushRegion: region})
			c.requireSent(t, 1)
			c.requireSent(t, 2)
			c.requireGuestFilled(t, 0, size, seed)
			continue
		}
		level := 0
		if region {
			level = 1
		}
		c.guest.Do(t, "post qp=%d op=flush raddr=%#x rkey=%#x len=%d type=%d level=%d", c.gqp, ourVA, c.rkey, size, global, level)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "FLUSH", -1)
	}
}

// atomic does CmpSwap that hits and that misses, FetchAdd that wraps, and ATOMIC
// WRITE.
func (c *conn) atomic(t *testing.T, m message, role int) {
	const off = 8
	le := binary.LittleEndian
	type step struct{ before, arg, swap, after uint64 }
	steps := []step{{0x1122334455667788, 0x1122334455667788, 0xa1a2a3a4a5a6a7a8, 0xa1a2a3a4a5a6a7a8},
		{0x1122334455667788, 0x1122334455667789, 0xa1a2a3a4a5a6a7a8, 0x1122334455667788}}
	switch m.ours {
	case qp.OpFetchAdd:
		steps = []step{{0xfffffffffffffff0, 0x21, 0, 0x11}, {1 << 40, 1, 0, 1<<40 + 1}}
	case qp.OpAtomicWrite:
		steps = []step{{0x1122334455667788, 0, 0xa1a2a3a4a5a6a7a8, 0xa1a2a3a4a5a6a7a8}}
	}
	hex := func(v uint64) string { return fmt.Sprintf("%x", le.AppendUint64(nil, v)) }
	for _, s := range steps {
		if role == asks {
			c.guest.Do(t, "poke mr=%d off=%d hex=%s", c.mr, off, hex(s.before))
			buf := make([]byte, 8)
			if m.ours == qp.OpAtomicWrite {
				le.PutUint64(buf, s.swap)
			}
			c.post(t, qp.SendWR{ID: 3, Op: m.ours, Local: buf, RemoteAddr: c.gva + off, RKey: uint32(c.gkey), CompareAdd: s.arg, Swap: s.swap})
			c.requireSent(t, 3)
			if m.ours != qp.OpAtomicWrite {
				require.Equal(t, s.before, le.Uint64(buf), "what was there before")
			}
			require.Equal(t, hex(s.after), c.guest.Do(t, "peek mr=%d off=%d len=8", c.mr, off).Words["hex"])
			continue
		}
		c.do(func(time.Time) { le.PutUint64(c.mem[off:], s.before) })
		arg := ""
		switch m.ours {
		case qp.OpCmpSwap:
			arg = fmt.Sprintf(" cmp=%#x swap=%#x", s.arg, s.swap)
		case qp.OpFetchAdd:
			arg = fmt.Sprintf(" add=%#x", s.arg)
		case qp.OpAtomicWrite:
			c.guest.Do(t, "poke mr=%d hex=%s", c.mr, hex(s.swap))
		}
		c.guest.Do(t, "post qp=%d op=%s mr=%d len=8 raddr=%#x rkey=%#x%s", c.gqp, m.op, c.mr, ourVA+off, c.rkey, arg)
		name := map[qp.Op]string{qp.OpCmpSwap: "CMP_SWAP", qp.OpFetchAdd: "FETCH_ADD", qp.OpAtomicWrite: "ATOMIC_WRITE"}[m.ours]
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], name, -1)
		if m.ours != qp.OpAtomicWrite {
			require.Equal(t, hex(s.before), c.guest.Do(t, "peek mr=%d len=8", c.mr).Words["hex"], "what was there before")
		}
		c.do(func(time.Time) { require.Equal(t, s.after, le.Uint64(c.mem[off:])) })
	}
}
