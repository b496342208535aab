//go:build interop

package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
)

// testFaults moves messages of all kinds over a bad link.
func (l *lab) testFaults(t *testing.T) {
	for _, f := range []struct {
		name string
		faults
	}{
		{"Loss of 1 %", faults{lose: 10}},
		{"Loss of 10 %", faults{lose: 100}},
		{"Duplication of 20 %", faults{double: 200}},
		{"Reordering of 10 %", faults{swap: 100}},
		{"Loss, duplication and reordering of 3 % each", faults{30, 30, 30}},
	} {
		for dir, in := range map[string]bool{"received": true, "sent": false, "both": true} {
			name := "RC, " + f.name
			t.Run(f.name+"/"+dir, func(t *testing.T) {
				for role, by := range []string{"ours", "theirs"} {
					t.Run(by, func(t *testing.T) {
						l.results.record(t, name, role)
						c := l.connect(t, link{kind: qp.RC, mtu: 1024, v6: dir == "sent", sqPSN: 0xffff00, guestPSN: 0xfffff0,
							timeout: 12, forever: true})
						var w [2]faults
						if in {
							w[0] = f.faults
						}
						if dir != "received" {
							w[1] = f.faults
						}
						l.wire.set(w[0], w[1], uint64(len(f.name)))
						defer l.wire.set(faults{}, faults{}, 0)
						for range 20 * *rounds {
							if c.mixed(t, role); l.wire.met() >= 20**rounds {
								break
							}
						}
						t.Logf("%d frames had a fault", l.wire.met())
						require.GreaterOrEqual(t, l.wire.met(), 10)
					})
				}
			})
		}
	}
}

// mixed does some of everything in one role.
func (c *conn) mixed(t *testing.T, role int) {
	sizes := []int{0, 100, 3000, 50_000}
	for _, m := range messages[qp.RC] {
		switch m.ours {
		case qp.OpSend, qp.OpSendImm, qp.OpWrite, qp.OpWriteImm, qp.OpRead:
			for _, size := range sizes {
				if m.ours == qp.OpRead && size == 0 && role == asks {
					continue // the driver responds to it once: a lost response is lost for ever
				}
				c.exchange(t, m, role, size)
			}
		case qp.OpCmpSwap:
			c.exchange(t, m, role, 8)
		}
	}
	// Each FetchAdd happens once.
	const n = 30
	le := binary.LittleEndian
	if role == asks {
		c.guest.Do(t, "poke mr=%d hex=0000000000000000", c.mr)
		var old [n][8]byte
		for i := range old {
			c.post(t, qp.SendWR{ID: uint64(i), Op: qp.OpFetchAdd, Local: old[i][:], RemoteAddr: c.gva, RKey: uint32(c.gkey), CompareAdd: 1})
		}
		for i := range old {
			c.requireSent(t, uint64(i))
			require.EqualValues(t, i, le.Uint64(old[i][:]))
		}
		require.Equal(t, fmt.Sprintf("%02x00000000000000", n), c.guest.Do(t, "peek mr=%d len=8", c.mr).Words["hex"])
		return
	}
	c.do(func(time.Time) { clear(c.mem[:8]) })
	c.guest.Do(t, "post qp=%d op=fadd mr=%d len=8 n=%d raddr=%#x rkey=%#x rstride=0 add=1", c.gqp, c.mr, n, ourVA, c.rkey)
	for _, wc := range c.guest.Poll(t, c.gqp, n) {
		requireGuest(t, wc, "FETCH_ADD", -1)
	}
	c.do(func(time.Time) { require.EqualValues(t, n, le.Uint64(c.mem)) })
	for i := range n {
		require.Equal(t, fmt.Sprintf("%02x00000000000000", i), c.guest.Do(t, "peek mr=%d off=%d len=8", c.mr, 8*i).Words["hex"])
	}
}

// testWrap crosses the end of the PSN circle in the middle of messages.
func (l *lab) testWrap(t *testing.T) {
	for role, by := range []string{"ours", "theirs"} {
		for _, m := range messages[qp.RC] {
			if m.ours == qp.OpFlush || m.ours == qp.OpSendInv {
				continue
			}
			t.Run(m.op+"/"+by, func(t *testing.T) {
				l.results.record(t, "RC, PSN wrap", role)
				c := l.connect(t, link{kind: qp.RC, mtu: 256, sqPSN: 0xfffffe, guestPSN: 0xfffffd})
				size := 8
				if m.ours != qp.OpCmpSwap && m.ours != qp.OpFetchAdd && m.ours != qp.OpAtomicWrite {
					size = 5 * 256
				}
				for range 4 {
					c.exchange(t, m, role, size)
				}
			})
		}
	}
}

// testRNR sends to receivers that are not ready.
func (l *lab) testRNR(t *testing.T) {
	k := link{kind: qp.RC, mtu: 1024, noRecvWait: 14}
	const size = 3000
	t.Run("wait/ours", func(t *testing.T) {
		l.results.record(t, "RC, receiver not ready", asks)
		c := l.connect(t, k)
		data, seed := c.filled(size)
		c.wipeGuest(t, size)
		c.post(t, qp.SendWR{ID: 1, Op: qp.OpSend, Local: data})
		require.True(t, c.wait(pollWait, func(time.Time) bool { return c.qp.Counters().RNRNakReceived >= 3 }))
		c.guest.Do(t, "recv qp=%d mr=%d len=%d", c.gqp, c.mr, size)
		c.requireSent(t, 1)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "RECV", size)
		c.requireGuestFilled(t, 0, size, seed)
	})
	t.Run("wait/theirs", func(t *testing.T) {
		l.results.record(t, "RC, receiver not ready", answers)
		c := l.connect(t, k)
		seed := c.nextSeed()
		c.guest.Do(t, "fill mr=%d len=%d seed=%d", c.mr, size, seed)
		c.guest.Do(t, "post qp=%d op=send mr=%d len=%d", c.gqp, c.mr, size)
		require.True(t, c.wait(pollWait, func(time.Time) bool { return c.qp.Counters().OutOfBuffer >= 3 }))
		buf := wipe(make([]byte, size+guard))
		c.recv(t, 4, buf)
		require.Equal(t, qp.Success, c.completion(t, c.rcq).Status)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "SEND", -1)
		requireFilled(t, buf, size, seed)
	})
	t.Run("late/ours", func(t *testing.T) { l.testLate(t, asks) })
	t.Run("late/theirs", func(t *testing.T) { l.testLate(t, answers) })
	k.rnr = 2
	t.Run("exceeded/ours", func(t *testing.T) {
		l.results.record(t, "RC, RNR retries exceeded", asks)
		c := l.connect(t, k)
		c.post(t, qp.SendWR{ID: 1, Op: qp.OpSend})
		require.Equal(t, qp.RNRRetryExcErr, c.completion(t, c.cq).Status)
		require.EqualValues(t, 3, c.qp.Counters().RNRNakReceived)
		require.Equal(t, qp.Error, c.qp.State())
	})
	t.Run("exceeded/theirs", func(t *testing.T) {
		l.results.record(t, "RC, RNR retries exceeded", answers)
		c := l.connect(t, k)
		c.guest.Do(t, "post qp=%d op=send len=0", c.gqp)
		require.Equal(t, "RNR_RETRY_EXC_ERR", c.guest.Poll(t, c.gqp, 1)[0]["status"])
	})
}

// testLate sends messages to receivers that are ready 0.3 to 2 s late, two receives at
// a time. None of the connections may end.
func (l *lab) testLate(t *testing.T, role int) {
	const messages, size = 8, 15_000
	late := []time.Duration{300, 600, 900, 1200, 1600, 2000} // milliseconds
	var conns []*conn
	for range late {
		c := l.connect(t, link{kind: qp.RC, mtu: 1024, noRecvWait: 12})
		conns = append(conns, c)
		for range messages {
			if role == asks {
				data, _ := c.filled(size)
				c.post(t, qp.SendWR{Op: qp.OpSend, Local: data})
			} else {
				c.guest.Do(t, "post qp=%d op=send mr=%d len=%d", c.gqp, c.mr, size)
			}
		}
	}
	start := time.Now()
	for i, c := range conns {
		time.Sleep(time.Until(start.Add(late[i] * time.Millisecond)))
		for done := 0; done < messages; done += 2 {
			for range 2 {
				if role == asks {
					c.guest.Do(t, "recv qp=%d mr=%d len=%d", c.gqp, c.mr, size)
				} else {
					c.recv(t, 1, make([]byte, size))
				}
			}
			for range 2 {
				if role == asks {
					requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "RECV", size)
					require.Equal(t, qp.Success, c.completion(t, c.cq).Status)
				} else {
					require.Equal(t, qp.Success, c.completion(t, c.rcq).Status)
					requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "SEND", -1)
				}
			}
		}
		l.results.count("RC, receives posted 0.3 to 2 s late", role, true)
		n := c.qp.Counters()
		t.Logf("late by %v: RNR NAKs received %d, sent %d; NAKs received %d, packets sent again %d of %d", late[i]*time.Millisecond,
			n.RNRNakReceived, n.OutOfBuffer, n.PacketSeqErr, n.Retransmitted, n.TxPackets)
	}
}

// testRefusals asks for what must be refused.
func (l *lab) testRefusals(t *testing.T) {
	var ours struct{ other, readOnly, writeOnly uint32 }
	small := make([]byte, 4096)
	l.do(func(time.Time) {
		reg := func(r qp.Region) uint32 {
			key, err := l.regs.Register(r)
			require.NoError(t, err)
			return key
		}
		all := qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic
		ours.other = reg(qp.Region{Data: small, Addr: ourVA, PD: l.pd + 1, Access: all})
		ours.readOnly = reg(qp.Region{Data: small, Addr: ourVA, Access: qp.RemoteRead})
		ours.writeOnly = reg(qp.Region{Data: small, Addr: ourVA, Access: qp.RemoteWrite})
	})
	mr := func(args string) (key, va uint64) {
		a := l.guest.Do(t, "mr size=4096 %s", args)
		return a.Num("rkey"), a.Num("addr")
	}
	otherKey, otherVA := mr("access=rwa pd=1")
	roKey, roVA := mr("access=r")
	woKey, woVA := mr("access=w")
	const access, invalid = "REM_ACCESS_ERR", "REM_INV_REQ_ERR"

	for _, r := range []struct {
		name   string
		op     string
		ours   qp.Op
		va     uint64 // at the guest
		key    uint64
		ourVA  uint64
		ourKey uint32
		size   int
		want   string
	}{
		{"bad R_Key", "write", qp.OpWrite, l.gva, l.gkey ^ 0x55, ourVA, l.rkey ^ 0x55, 100, access},
		{"bad R_Key", "read", qp.OpRead, l.gva, l.gkey ^ 0x55, ourVA, l.rkey ^ 0x55, 100, access},
		{"bad R_Key", "fadd", qp.OpFetchAdd, l.gva, l.gkey ^ 0x55, ourVA, l.rkey ^ 0x55, 8, access},
		{"bad R_Key", "cswap", qp.OpCmpSwap, l.gva, l.gkey ^ 0x55, ourVA, l.rkey ^ 0x55, 8, access},
		{"out of bounds", "write", qp.OpWrite, l.gva + memSize - 4000, l.gkey, ourVA + memSize - 4000, l.rkey, 4001, access},
		{"out of bounds", "read", qp.OpRead, l.gva + memSize - 4000, l.gkey, ourVA + memSize - 4000, l.rkey, 4001, access},
		{"out of bounds", "fadd", qp.OpFetchAdd, l.gva + memSize, l.gkey, ourVA + memSize, l.rkey, 8, access},
		{"before the region", "write", qp.OpWrite, l.gva - 1, l.gkey, ourVA - 1, l.rkey, 2, access},
		{"before the region", "read", qp.OpRead, l.gva - 1, l.gkey, ourVA - 1, l.rkey, 2, access},
		{"another protection domain", "write", qp.OpWrite, otherVA, otherKey, ourVA, ours.other, 100, access},
		{"another protection domain", "read", qp.OpRead, otherVA, otherKey, ourVA, ours.other, 100, access},
		{"right not granted", "write", qp.OpWrite, roVA, roKey, ourVA, ours.readOnly, 100, access},
		{"right not granted", "read", qp.OpRead, woVA, woKey, ourVA, ours.writeOnly, 100, access},
		{"right not granted", "fadd", qp.OpFetchAdd, woVA, woKey, ourVA, ours.writeOnly, 8, access},
		{"receive too short", "send", qp.OpSend, 0, 0, 0, 0, 2000, invalid},
	} {
		t.Run(r.name+"/"+r.op+"/ours", func(t *testing.T) {
			l.results.record(t, "RC, "+r.name, asks)
			c := l.connect(t, link{kind: qp.RC, mtu: 1024})
			if r.ours == qp.OpSend {
				c.guest.Do(t, "recv qp=%d mr=%d len=1999", c.gqp, c.mr)
			}
			c.post(t, qp.SendWR{ID: 1, Op: r.ours, Local: make([]byte, r.size), RemoteAddr: r.va, RKey: uint32(r.key)})
			c.post(t, qp.SendWR{ID: 2, Op: qp.OpWrite})
			wc := c.completion(t, c.cq)
			// The driver calls a receive that is too short a remote operational error.
			want := map[string]qp.Status{access: qp.RemoteAccessErr, invalid: qp.RemoteOpErr}[r.want]
			require.Equal(t, want, wc.Status)
			require.EqualValues(t, 1, wc.ID)
			require.Equal(t, qp.WRFlushErr, c.completion(t, c.cq).Status)
			require.Equal(t, qp.Error, c.qp.State())
			if r.ours == qp.OpSend {
				require.Equal(t, "LOC_QP_OP_ERR", c.guest.Poll(t, c.gqp, 1)[0]["status"])
			}
			require.Equal(t, "err", c.guest.Do(t, "query qp=%d", c.gqp).Words["state"])
		})
		t.Run(r.name+"/"+r.op+"/theirs", func(t *testing.T) {
			l.results.record(t, "RC, "+r.name, answers)
			c := l.connect(t, link{kind: qp.RC, mtu: 1024})
			if r.ours == qp.OpSend {
				c.recv(t, 5, make([]byte, 1999))
			}
			c.guest.Do(t, "post qp=%d op=%s mr=%d len=%d raddr=%#x rkey=%#x id=1", c.gqp, r.op, c.mr, r.size, r.ourVA, r.ourKey)
			require.Equal(t, r.want, c.guest.Poll(t, c.gqp, 1)[0]["status"])
			c.do(func(time.Time) { require.Equal(t, qp.Error, c.qp.State()) })
			if r.ours == qp.OpSend {
				require.Equal(t, qp.LocalLengthErr, c.completion(t, c.rcq).Status)
			}
		})
	}
	t.Run("window taken back/ours", func(t *testing.T) {
		l.results.record(t, "RC, window taken back", asks)
		c := l.connect(t, link{kind: qp.RC, mtu: 1024})
		w := c.guest.Do(t, "mw qp=%d mr=%d len=4096 access=rw", c.gqp, c.mr)
		requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "BIND_MW", -1)
		key := uint32(w.Num("rkey"))
		c.guest.Do(t, "recv qp=%d mr=%d len=0 n=2", c.gqp, c.mr)
		c.post(t, qp.SendWR{ID: 1, Op: qp.OpWrite, Local: []byte("x"), RemoteAddr: w.Num("addr"), RKey: key})
		c.post(t, qp.SendWR{ID: 2, Op: qp.OpSendInv, RKey: key})
		c.post(t, qp.SendWR{ID: 3, Op: qp.OpWrite, Local: []byte("x"), RemoteAddr: w.Num("addr"), RKey: key})
		c.requireSent(t, 1)
		c.requireSent(t, 2)
		require.Equal(t, qp.RemoteAccessErr, c.completion(t, c.cq).Status)
	})
	t.Run("window taken back/theirs", func(t *testing.T) {
		l.results.record(t, "RC, window taken back", answers)
		c := l.connect(t, link{kind: qp.RC, mtu: 1024})
		var window uint32
		c.do(func(time.Time) {
			w, err := c.regs.AllocWindow(c.pd)
			require.NoError(t, err)
			window, err = c.regs.Bind(qp.Binding{Window: w, Region: c.rkey, VA: ourVA, Len: 4096, Access: qp.RemoteWrite, QPN: c.qp.Num()})
			require.NoError(t, err)
		})
		c.recv(t, 1, nil)
		write := func(id int) {
			c.guest.Do(t, "post qp=%d op=write mr=%d len=10 raddr=%#x rkey=%#x id=%d", c.gqp, c.mr, ourVA, window, id)
		}
		write(1)
		c.guest.Do(t, "post qp=%d op=send_inv inv=%#x len=0 id=2", c.gqp, window)
		write(3)
		got := c.guest.Poll(t, c.gqp, 3)
		require.Equal(t, []string{"SUCCESS", "SUCCESS", access}, []string{got[0]["status"], got[1]["status"], got[2]["status"]})
	})
}

// testRebuild kills QPs in the middle of a message, and creates them again.
func (l *lab) testRebuild(t *testing.T) {
	again := func(t *testing.T, c *conn, psn uint32) {
		t.Helper()
		c.sqPSN, c.guestPSN = psn, psn+77
		c.guest.Do(t, "modify qp=%d state=reset", c.gqp)
		c.guest.Do(t, "modify qp=%d state=init", c.gqp)
		for len(c.guest.Do(t, "poll qp=%d n=100 ms=0", c.gqp).Groups) != 0 {
		}
		c.do(func(time.Time) { c.qp.Destroy() })
		c.makeQP(t)
		c.connectGuest(t)
		for _, m := range messages[qp.RC][:6] {
			c.exchange(t, m, asks, 5000)
			c.exchange(t, m, answers, 5000)
		}
	}
	t.Run("ours", func(t *testing.T) {
		l.results.record(t, "RC, QP killed and made anew", asks)
		c := l.connect(t, link{kind: qp.RC, mtu: 1024, sqPSN: 5, guestPSN: 6})
		for i := range 3 {
			data, _ := c.filled(1 << 20)
			c.post(t, qp.SendWR{ID: 1, Op: qp.OpWrite, Local: data, RemoteAddr: c.gva, RKey: uint32(c.gkey)})
			c.post(t, qp.SendWR{ID: 2, Op: qp.OpRead, Local: data, RemoteAddr: c.gva, RKey: uint32(c.gkey)})
			require.True(t, c.wait(pollWait, func(time.Time) bool { return c.qp.Counters().TxPackets > 100 }))
			c.do(func(now time.Time) {
				require.NoError(t, c.qp.Modify(now, &qp.Attr{State: qp.Error}, qp.AttrState))
			})
			require.Equal(t, qp.WRFlushErr, c.completion(t, c.cq).Status)
			require.Equal(t, qp.WRFlushErr, c.completion(t, c.cq).Status)
			again(t, c, 0x1000*uint32(i))
		}
	})
	t.Run("theirs", func(t *testing.T) {
		l.results.record(t, "RC, QP killed and made anew", answers)
		c := l.connect(t, link{kind: qp.RC, mtu: 1024, sqPSN: 5, guestPSN: 6})
		for i := range 3 {
			c.guest.Do(t, "post qp=%d op=write mr=%d len=1048576 raddr=%#x rkey=%#x", c.gqp, c.mr, ourVA, c.rkey)
			require.True(t, c.wait(pollWait, func(time.Time) bool { return c.qp.Counters().RxPackets > 100 }))
			if i == 0 {
				c.guest.Do(t, "modify qp=%d state=err", c.gqp)
				require.Contains(t, []string{"WR_FLUSH_ERR", "SUCCESS"}, c.guest.Poll(t, c.gqp, 1)[0]["status"])
			}
			again(t, c, 0x2000*uint32(i))
		}
	})
	t.Run("late packets", func(t *testing.T) {
		l.results.record(t, "RC, packets to a QP that is gone", answers)
		c := l.connect(t, link{kind: qp.RC, mtu: 1024})
		before := l.port.Counters().RxNoQP
		c.do(func(time.Time) { c.qp.Destroy() })
		c.guest.Do(t, "post qp=%d op=send len=0", c.gqp)
		require.True(t, c.wait(pollWait, func(time.Time) bool { return l.port.Counters().RxNoQP > before }))
		c.guest.Do(t, "modify qp=%d state=err", c.gqp)
		c.makeQP(t)
	})
}

// testMany runs 64 QPs at once, in both roles.
func (l *lab) testMany(t *testing.T) {
	const n, size = 64, memSize / 2 / 64
	conns := make([]*conn, n)
	for i := range conns {
		conns[i] = l.connect(t, link{kind: qp.RC, mtu: 1024, v6: i%2 == 1, sqPSN: uint32(i) * 1000, guestPSN: uint32(i) * 2000, timeout: 18})
	}
	t.Run("ours", func(t *testing.T) {
		l.results.record(t, "RC, 64 QPs at once", asks)
		bufs, seeds := make([][]byte, n), make([]uint32, n)
		for i, c := range conns {
			bufs[i], seeds[i] = c.filled(size)
			c.post(t, qp.SendWR{ID: 1, Op: qp.OpWrite, Local: bufs[i], RemoteAddr: c.gva + uint64(i*size), RKey: uint32(c.gkey)})
		}
		back := make([][]byte, n)
		for i, c := range conns {
			back[i] = make([]byte, size)
			c.post(t, qp.SendWR{ID: 2, Op: qp.OpRead, Local: back[i], RemoteAddr: c.gva + uint64(i*size), RKey: uint32(c.gkey)})
		}
		for i, c := range conns {
			c.requireSent(t, 1)
			c.requireSent(t, 2)
			requireFilled(t, back[i], size, seeds[i])
			a := l.guest.Do(t, "check mr=%d off=%d len=%d seed=%d", l.mr, i*size, size, seeds[i])
			require.Equal(t, "1", a.Words["match"])
		}
	})
	t.Run("theirs", func(t *testing.T) {
		l.results.record(t, "RC, 64 QPs at once", answers)
		first := l.seed
		for i, c := range conns {
			l.guest.Do(t, "fill mr=%d off=%d len=%d seed=%d", l.mr, i*size, size, c.nextSeed())
		}
		for i, c := range conns {
			l.guest.Do(t, "post qp=%d op=write mr=%d off=%d len=%d raddr=%#x rkey=%#x", c.gqp, l.mr, i*size, size, ourVA+i*size, l.rkey)
			l.guest.Do(t, "post qp=%d op=read mr=%d off=%d len=%d raddr=%#x rkey=%#x", c.gqp, l.mr, memSize/2+i*size, size, ourVA+i*size, l.rkey)
		}
		for i, c := range conns {
			got := l.guest.Poll(t, c.gqp, 2)
			requireGuest(t, got[0], "WRITE", -1)
			requireGuest(t, got[1], "READ", -1)
			seed := first + 1 + uint32(i)
			l.do(func(time.Time) { requireFilled(t, l.mem[i*size:(i+1)*size], size, seed) })
			a := l.guest.Do(t, "check mr=%d off=%d len=%d seed=%s", l.mr, memSize/2+i*size, size, strconv.Itoa(int(seed)))
			require.Equal(t, "1", a.Words["match"])
		}
	})
}

// testMulticast joins a group at either end.
func (l *lab) testMulticast(t *testing.T) {
	for _, group := range []string{"ff0e::4242", "239.1.2.3"} {
		k := link{kind: qp.UD, mtu: 1024, v6: group[0] == 'f'}
		t.Run(group+"/ours", func(t *testing.T) {
			l.results.record(t, "UD multicast", asks)
			// Attaching a QP does not have the guest's IP join the group.
			a := l.guest.Do(t, "sh -- ip addr add %s dev eth0 autojoin", group)
			require.Equal(t, "0", a.Words["status"], a.Words["out"])
			defer l.guest.Do(t, "sh -- ip addr del %s dev eth0", group)
			c := l.connect(t, k)
			c.guest.Do(t, "mcast qp=%d gid=%s", c.gqp, group)
			c.guest.Do(t, "recv qp=%d mr=%d len=1000", c.gqp, c.mr)
			_, _, sgid := c.addrs()
			data, seed := c.filled(500)
			c.do(func(now time.Time) {
				require.NoError(t, c.qp.PostSend(now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, Local: data,
					AH:        qp.NewAddressHandle(qp.AHAttr{GID: mustGID(group), SGIDIndex: sgid}),
					RemoteQPN: qp.MulticastQPN, RemoteQKey: qkey}))
			})
			c.requireSent(t, 0)
			requireGuest(t, c.guest.Poll(t, c.gqp, 1)[0], "RECV", 540)
			a = c.guest.Do(t, "check mr=%d off=40 len=500 seed=%d", c.mr, seed)
			require.Equal(t, "1", a.Words["match"])
		})
		t.Run(group+"/theirs", func(t *testing.T) {
			l.results.record(t, "UD multicast", answers)
			c := l.connect(t, k)
			buf := make([]byte, 540)
			c.recv(t, 1, buf)
			c.do(func(time.Time) { require.NoError(t, c.qp.AttachMulticast(mustAddr(group))) })
			seed := c.nextSeed()
			c.guest.Do(t, "fill mr=%d len=500 seed=%d", c.mr, seed)
			c.guest.Do(t, "post qp=%d op=send mr=%d len=500 dgid=%s dqpn=0xffffff qkey=%#x", c.gqp, c.mr, group, qkey)
			wc := c.completion(t, c.rcq)
			require.EqualValues(t, 540, wc.ByteLen)
			requireFilled(t, buf[40:], 500, seed)
		})
	}
}

// testTrouble has things happen to the guest in the middle of WRITEs: those that were
// completed are in its memory, and either all complete or the error is clear and in
// bounded time.
func (l *lab) testTrouble(t *testing.T) {
	qemu := func(s syscall.Signal) { _ = l.guest.Signal(s) }
	sh := func(t *testing.T, cmd string) {
		a := l.guest.Do(t, "sh ms=20000 -- %s", cmd)
		require.Equal(t, "0", a.Words["status"], a.Words["out"])
	}
	for _, c := range []struct {
		name     string
		survives bool
		cause    func(t *testing.T)
	}{
		{"ARP flushed", true, func(t *testing.T) { sh(t, "ip neigh flush all") }},
		// The driver's queue pairs do not survive it.
		{"hardware address changed", false, func(t *testing.T) { sh(t, "ip link set eth0 address 52:54:00:00:00:33") }},
		{"link down and up", true, func(t *testing.T) {
			sh(t, "ip link set eth0 down; sleep 1; ip link set eth0 up && ip addr add 2001:db8::2/64 dev eth0 nodad")
		}},
		{"frozen 2 s", true, func(*testing.T) { qemu(syscall.SIGSTOP); time.Sleep(2 * time.Second); qemu(syscall.SIGCONT) }},
		{"frozen 20 s", false, func(*testing.T) { qemu(syscall.SIGSTOP); time.Sleep(20 * time.Second); qemu(syscall.SIGCONT) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.results.record(t, "RC, "+c.name, asks)
			x := l.connect(t, link{kind: qp.RC, mtu: 1024, timeout: 17})
			x.wipeGuest(t, memSize-guard)
			const n, size = 400, 4000
			data, seed := x.filled(n * size)
			moved := x.port.Counters().NeighborsMoved
			done, start, failed := 0, time.Now(), time.Duration(0)
			finished, trouble, over := make(chan qp.Status, 1), make(chan struct{}), make(chan struct{})
			go func() {
				st := qp.Success
				for i := 0; i < n && st == qp.Success; i++ {
					x.do(func(now time.Time) {
						wr := qp.SendWR{ID: uint64(i), Op: qp.OpWrite, Flags: qp.Signaled, Local: data[i*size : (i+1)*size], RemoteAddr: x.gva + uint64(i*size), RKey: uint32(x.gkey)}
						if x.qp.PostSend(now, &wr) != nil {
							st = qp.LocalQPOpErr
						}
					})
					var wc qp.Completion
					if !x.wait(40*time.Second, func(time.Time) bool { return x.cq.Poll(&wc) }) {
						st = qp.LocalQPOpErr // nothing: not bounded
						break
					}
					if st = wc.Status; st == qp.Success {
						done++
					}
					switch {
					case i == n/4:
						close(trouble)
					case i == n-50:
						<-over // there are some to come afterwards
					case i > n/4:
						select {
						case <-over:
						case <-time.After(10 * time.Millisecond):
						}
					}
				}
				failed = time.Since(start)
				finished <- st
			}()
			<-trouble
			c.cause(t)
			close(over)
			st := <-finished
			t.Logf("%d of %d WRITEs complete, then %v, after %v; hardware addresses changed %d times; sent again %d", done, n, st, failed.Round(time.Millisecond),
				x.port.Counters().NeighborsMoved, x.qp.Counters().Retransmitted)
			if c.name == "hardware address changed" {
				require.Equal(t, moved+1, x.port.Counters().NeighborsMoved, "we follow")
			}
			if c.survives {
				require.Equal(t, qp.Success, st)
			} else {
				require.Equal(t, qp.RetryExcErr, st)
				require.Less(t, failed, 15*time.Second)
			}
			a := l.guest.Do(t, "check mr=%d off=0 len=%d seed=%d", x.mr, done*size, seed)
			require.Equal(t, "1", a.Words["match"], "what was completed is there: %v", a.Words)
		})
	}
	sh(t, "ip link set eth0 address 52:54:00:00:00:02")
	t.Run("and afterwards", func(t *testing.T) {
		x := l.connect(t, link{kind: qp.RC, mtu: 1024})
		x.exchange(t, messages[qp.RC][3], asks, 3000)
		x.exchange(t, messages[qp.RC][3], answers, 3000)
	})
}
