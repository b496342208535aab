package softnic_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/softnic"
)

// BenchmarkWrite moves WRITEs of 64 KiB between two ports, as frames with ICRC and
// decoded; beside it what no port can do without: copying the bytes, and making
// and checking the ICRC of each packet.
func BenchmarkWrite(b *testing.B) {
	const size, mtu = 64 << 10, 4096
	for _, qps := range []int{1, 100, 1000} {
		for _, way := range []string{"frames", "decoded"} {
			b.Run(fmt.Sprintf("%s/%d QPs", way, qps), func(b *testing.B) {
				p := newPair(b, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
				mem, msg := make([]byte, size), make([]byte, size)
				key, err := p.regs[1].Register(qp.Region{Data: mem, Access: qp.RemoteWrite})
				require.NoError(b, err)
				var from []*softnic.QP

				for range qps {
					var pair [2]*softnic.QP
					for i := range pair {
						g, _ := p.ports[1-i].GID(0)
						n := uint32(0x11 + len(from))
						pair[i], _ = qpOf(b, p.ports[i], p.now, qp.RC, qp.AHAttr{GID: g, MAC: p.ports[1-i].MAC()}, func(c *softnic.QPConfig, a *qp.Attr) {
							c.QPN, a.DestQPN, a.PathMTU, a.MaxDestRdAtomic = n, n, mtu, 4
						})
					}
					from = append(from, pair[0])
				}
				buf := make([]byte, 0, 9000)
				f := new(frame.Frame)
				b.SetBytes(size)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					q := from[i%len(from)]
					i++
					must(b, q.PostSend(p.now, &qp.SendWR{Op: qp.OpWrite, Local: msg, RKey: key}))
					for moved := true; moved; {
						moved = false
						for k, port := range p.ports {
							if way == "decoded" {
								for port.NextDecoded(p.now, f) {
									p.ports[1-k].HandleDecoded(p.now, f)
									moved = true
								}
								continue
							}
							for {
								fr, ok := port.NextFrame(p.now, buf)
								if !ok {
									break
								}
								p.ports[1-k].HandleFrame(p.now, fr)
								moved = true
							}
						}
					}
					if q.Outstanding() != 0 {
						b.Fatal("not done")
					}
					p.now = p.now.Add(time.Microsecond)
				}
			})
		}
	}
	src, dst := make([]byte, size), make([]byte, size)
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			copy(dst, src)
		}
	})
	b.Run("ICRC twice", func(b *testing.B) {
		b.SetBytes(size)
		pkt := make([]byte, 60+mtu)
		pkt[0] = 0x45
		for b.Loop() {
			for range 2 * size / mtu {
				crc.Sum(pkt)
			}
		}
	})
}

// TestAllocs counts the allocations of whole exchanges and of each kind of frame
// that is dropped.
func TestAllocs(t *testing.T) {
	if testenv.Allocates {
		t.Skip("allocations are not counted under -race")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
	p.buf = make([]byte, 0, 9000)
	for i := range 2 {
		p.ports[i].AddNeighbor(mustAddr(p, 1-i), p.ports[1-i].MAC())
	}
	var qps [2]*softnic.QP
	var cqs [2]*softnic.CQ
	for i := range 2 {
		g, _ := p.ports[1-i].GID(0)
		qps[i], cqs[i] = qpOf(t, p.ports[i], p.now, qp.RC, qp.AHAttr{GID: g}, nil)
	}
	mem := make([]byte, 1<<16)
	key, err := p.regs[1].Register(qp.Region{Data: mem, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic})
	require.NoError(t, err)
	msg, buf, old := make([]byte, 10_000), make([]byte, 10_000), make([]byte, 8)
	n := 0
	p.lose = func([]byte) bool { n++; return n%37 == 0 }
	exchange := func() {
		for range 50 {
			must(t, qps[1].PostRecv(&qp.RecvWR{Local: buf}))
			must(t, qps[0].PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Local: msg, Flags: qp.Signaled}))
			must(t, qps[0].PostSend(p.now, &qp.SendWR{Op: qp.OpWrite, Local: msg, RKey: key}))
			must(t, qps[0].PostSend(p.now, &qp.SendWR{Op: qp.OpRead, Local: buf, RKey: key, Flags: qp.Signaled}))
			must(t, qps[0].PostSend(p.now, &qp.SendWR{Op: qp.OpFetchAdd, Local: old, RKey: key, Flags: qp.Signaled}))
			p.run(time.Second)
			var wc qp.Completion
			for i := range cqs {
				for cqs[i].Poll(&wc) {
					if wc.Status != qp.Success {
						t.Fatal(wc.Status)
					}
				}
			}
		}
	}
	exchange()
	require.Zero(t, testenv.Mallocs(exchange), "reliable exchange with loss")

	params := cnp.Paper()
	port := onePort(t, 1, softnic.Config{Control: cnp.Controller(params)}, "192.0.2.1")
	q, _ := qpOf(t, port, start, qp.RC, toPeer(), nil)
	f := request(q)
	good := f.AppendTo(nil)
	f.TrafficClass = uint8(frame.CE)
	marked := f.AppendTo(nil)
	bad := append([]byte(nil), good...)
	bad[len(bad)-1] ^= 1
	f.Src = f.Dst
	stranger := f.AppendTo(nil)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	f.Src = request(q).Src
	notice := f.AppendTo(nil)
	var ask []byte
	for _, b := range readPcap(t, "pingpong-rc") {
		if b[12] == 8 && b[13] == 6 && b[21] == 1 && b[41] == 1 && b[31] == 2 {
			ask = b
		}
	}
	now := start
	for name, b := range map[string][]byte{"good": good, "marked": marked, "bad ICRC": bad, "stranger": stranger, "CNP": notice,
		"short": good[:30], "nothing": nil, "ARP": ask} {
		run := func() {
			for range 100 {
				port.HandleFrame(now, b)
				for {
					var ok bool
					if p.buf, ok = port.NextFrame(now, p.buf[:0]); !ok {
						break
					}
				}
				port.Tick(now)
				now = now.Add(10 * time.Microsecond)
			}
		}
		run()
		require.Zero(t, testenv.Mallocs(run), name)
	}

	ud := newPair(t, [2]softnic.GID{addr("2001:db8::1"), addr("2001:db8::2")})
	ud.buf = make([]byte, 0, 9000)
	ah := qp.AHAttr{GID: gidOf("2001:db8::2"), MAC: ud.ports[1].MAC()}
	u, ucq := qpOf(t, ud.ports[0], ud.now, qp.UD, ah, nil)
	w, wcq := qpOf(t, ud.ports[1], ud.now, qp.UD, ah, nil)
	to := qp.NewAddressHandle(ah)
	run := func() {
		for range 100 {
			must(t, w.PostRecv(&qp.RecvWR{Local: buf}))
			must(t, u.PostSend(ud.now, &qp.SendWR{Op: qp.OpSend, AH: to, RemoteQPN: w.Num(), RemoteQKey: 0x1111, Local: msg[:500], Flags: qp.Signaled}))
			ud.run(time.Microsecond)
			var wc qp.Completion
			if !ucq.Poll(&wc) || !wcq.Poll(&wc) {
				t.Fatal("a datagram was lost")
			}
		}
	}
	run()
	require.Zero(t, testenv.Mallocs(run), "datagrams")
}
