package softnic_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// TestAnswersAsLinux gives the port the questions of a Linux host in the captures,
// and wants the answers that another one gave, byte for byte.
func TestAnswersAsLinux(t *testing.T) {
	isARP := func(b []byte, op uint16) bool {
		return binary.BigEndian.Uint16(b[12:]) == 0x0806 && binary.BigEndian.Uint16(b[20:]) == op
	}
	isND := func(b []byte, typ byte) bool {
		return binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[20] == 58 && b[54] == typ
	}
	arps, nds := 0, 0
	for _, name := range []string{"pingpong-rc", "cm-rping", "cm-rping-ipv6", "rc-ipv6", "rc-send"} {
		frames := readPcap(t, name)
		for i, b := range frames {
			var answer []byte
			for _, r := range frames[i+1:] {
				// The answer that goes where the question came from.
				if isARP(b, 1) && isARP(r, 2) && string(r[32:42]) == string(b[22:32]) && string(r[28:32]) == string(b[38:42]) ||
					isND(b, 135) && isND(r, 136) && string(r[:6]) == string(b[6:12]) && string(r[62:78]) == string(b[62:78]) {
					answer = r
					break
				}
			}
			if answer == nil {
				continue
			}
			var p *softnic.Port
			if isARP(b, 1) {
				p = onePort(t, answer[11], softnic.Config{}, netip.AddrFrom4([4]byte(b[38:42])).String())
				arps++
			} else {
				p = onePort(t, answer[11], softnic.Config{}, netip.AddrFrom16([16]byte(b[62:78])).String())
				nds++
			}
			require.Equal(t, softnic.Answered, p.HandleFrame(start, b), name)
			got := drain(p, start)
			require.Len(t, got, 1)
			require.Equal(t, fmt.Sprintf("%x", answer), fmt.Sprintf("%x", got[0]), "%s frame %d", name, i+1)
		}
	}
	require.Greater(t, arps, 2)
	require.Greater(t, nds, 1)
}

// TestAsksAsLinux: the port's own questions are those of the captures, and the
// answers there give it the address.
func TestAsksAsLinux(t *testing.T) {
	for _, c := range []struct {
		capture, from, to string
		mac               byte
	}{
		{"pingpong-rc", "192.0.2.1", "192.0.2.2", 1},
		{"cm-rping", "192.0.2.2", "192.0.2.1", 2},
		{"cm-rping-ipv6", "fe80::5054:ff:fe00:2", "2001:db8::1", 2},
	} {
		p := onePort(t, c.mac, softnic.Config{}, c.from)
		q, _ := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: gidOf(c.to)}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
		asked := drain(p, start)
		require.Len(t, asked, 1)
		found := false
		for _, b := range readPcap(t, c.capture) {
			if found = found || string(b) == string(asked[0]); found && b[6+5] != c.mac && binary.BigEndian.Uint16(b[12:]) != 0x0800 {
				p.HandleFrame(start, b)
			}
		}
		require.True(t, found, "%s: %x", c.capture, asked[0])
		sent := drain(p, start)
		require.Len(t, sent, 1, c.capture)
		f := decode(t, sent[0])
		require.Equal(t, frame.MAC{0x52, 0x54, 0, 0, 0, 3 - c.mac}, f.DstMAC)
	}
}

// TestNobodyAnswers: three questions a second apart, then the send fails.
func TestNobodyAnswers(t *testing.T) {
	for _, c := range []struct {
		typ   qp.Type
		want  qp.Status
		state qp.State
	}{{qp.RC, qp.RetryExcErr, qp.Error}, {qp.UC, qp.LocalQPOpErr, qp.SQE}, {qp.UD, qp.LocalQPOpErr, qp.SQE}} {
		t.Run(c.typ.String(), func(t *testing.T) {
			p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
			ah := qp.AHAttr{GID: gidOf("192.0.2.9")}
			q, cq := qpOf(t, p, start, c.typ, ah, nil)
			wr := qp.SendWR{ID: 5, Op: qp.OpSend, Flags: qp.Signaled}
			if c.typ == qp.UD {
				wr.AH = qp.NewAddressHandle(ah)
			}
			require.NoError(t, q.PostSend(start, &wr))
			wr.ID = 6
			require.NoError(t, q.PostSend(start, &wr))
			now := start
			asked := drain(p, now)
			require.Len(t, asked, 1)
			for range 3 {
				d, ok := p.Deadline()
				require.True(t, ok)
				require.Equal(t, time.Second, d.Sub(now))
				now = d
				p.Tick(now)
				asked = append(asked, drain(p, now)...)
			}
			require.Len(t, asked, 3)
			require.Equal(t, asked[0], asked[1])
			require.Equal(t, c.want, poll(t, cq).Status)
			require.Equal(t, qp.WRFlushErr, poll(t, cq).Status)
			none(t, cq)
			require.Equal(t, c.state, q.State())
			require.EqualValues(t, 1, p.Counters().TxUnresolved)
			_, ok := p.Deadline()
			require.False(t, ok)
		})
	}
}

// TestManyUnresolved: more addresses than are asked for at once all have their turn.
func TestManyUnresolved(t *testing.T) {
	const n = 200
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	var cqs []*softnic.CQ
	for i := range n {
		q, cq := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}).As16()}, nil)
		cqs = append(cqs, cq)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled}))
	}
	reached := map[netip.Addr]bool{}
	now := start
	for range 400 {
		for _, b := range drain(p, now) {
			if binary.BigEndian.Uint16(b[12:]) != 0x0806 {
				reached[decode(t, b).Dst] = true
				continue
			}
			// Who has it? We have it.
			r := append([]byte(nil), b...)
			copy(r, b[6:12])
			copy(r[6:], []byte{2, 0, 0, 0, 0, 9})
			r[21] = 2
			copy(r[22:], []byte{2, 0, 0, 0, 0, 9})
			copy(r[28:], b[38:42])
			copy(r[32:], b[22:32])
			require.Equal(t, softnic.Answered, p.HandleFrame(now, r))
		}
		d, ok := p.Deadline()
		if len(reached) == n || !ok {
			break
		}
		if d.Before(now.Add(time.Millisecond)) {
			now = d
		} else {
			now = now.Add(time.Millisecond)
		}
		p.Tick(now)
	}
	require.Len(t, reached, n)
	for _, cq := range cqs {
		none(t, cq)
	}
}

// TestBadNeighbors: what is not for this port, or not right, changes nothing.
func TestBadNeighbors(t *testing.T) {
	var arp, ns []byte
	for _, b := range readPcap(t, "cm-rping-ipv6") {
		switch {
		case binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[54] == 135 && ns == nil:
			ns = b
		}
	}
	for _, b := range readPcap(t, "cm-rping") {
		if binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 1 && string(b[28:32]) != string(b[38:42]) && arp == nil {
			arp = b
		}
	}
	require.NotNil(t, arp)
	require.NotNil(t, ns)
	for _, good := range [][]byte{arp, ns} {
		p := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
		require.Equal(t, softnic.Answered, p.HandleFrame(start, good))
		require.Len(t, drain(p, start), 1)
		// Every shorter frame, and every frame with one byte changed behind the
		// Ethernet header: no panic, at most one answer, of at most a full frame.
		for n := range good {
			p.HandleFrame(start, good[:n])
			require.Empty(t, drain(p, start), n)
		}
		for i := range good {
			b := append([]byte(nil), good...)
			b[i] ^= 0xff
			p.HandleFrame(start, b)
			require.LessOrEqual(t, len(drain(p, start)), 1)
		}
	}
	// A checksum that is wrong, an address that is another's.
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
	b := append([]byte(nil), ns...)
	b[57] ^= 1
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, b))
	other := onePort(t, 1, softnic.Config{}, "192.0.2.77", "2001:db8::77")
	require.Equal(t, softnic.NotRoCE, other.HandleFrame(start, arp))
	require.Equal(t, softnic.NotRoCE, other.HandleFrame(start, ns))
	require.Empty(t, append(drain(p, start), drain(other, start)...))
}

// TestFullTableKeepsNeighbors: strangers do not push out those who are known.
func TestFullTableKeepsNeighbors(t *testing.T) {
	p := onePort(t, 1, softnic.Config{MaxNeighbors: 2}, "192.0.2.1")
	p.AddNeighbor(netip.MustParseAddr("192.0.2.2"), frame.MAC{2, 2})
	for i := range 100 {
		p.AddNeighbor(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), frame.MAC{2, 3})
	}
	q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	require.Equal(t, frame.MAC{2, 2}, decode(t, drain(p, start)[0]).DstMAC)
}

// arp returns an ARP packet of 192.0.2.2 about itself (RFC 826, and RFC 5227 for
// those that nobody asked for).
func arp(op byte, mac frame.MAC, target string) []byte {
	dst := netip.MustParseAddr(target).As4()
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac[:]...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, op)
	b = append(append(b, mac[:]...), 192, 0, 2, 2)
	b = append(append(b, 0, 0, 0, 0, 0, 0), dst[:]...)
	return append(b, make([]byte, 18)...)
}

// A peer that changes its hardware address: connected queue pairs follow, unless they
// are not to.
func TestNeighborMoves(t *testing.T) {
	old, moved := frame.MAC{0x52, 0x54, 0, 0, 0, 2}, frame.MAC{0x52, 0x54, 0, 0, 0, 0x77}
	begin := func(t *testing.T, freeze bool) (*softnic.Port, *softnic.QP) {
		p := onePort(t, 1, softnic.Config{FreezeNeighbors: freeze}, "192.0.2.1")
		q, _ := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend, Local: []byte("x")}))
		require.Len(t, drain(p, start), 1, "a question")
		p.HandleFrame(start, arp(2, old, "192.0.2.1"))
		frames := drain(p, start)
		require.Len(t, frames, 1)
		require.Equal(t, old, frame.MAC(frames[0][:6]))
		return p, q
	}
	goes := func(t *testing.T, p *softnic.Port, q *softnic.QP, now time.Time) frame.MAC {
		require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpSend, Local: []byte("x")}))
		for _, b := range drain(p, now) {
			var f frame.Frame
			if (frame.Finder{}).Decode(frame.Ethernet, b, len(b), &f) == nil {
				return f.DstMAC
			}
		}
		t.Fatal("nothing sent")
		return frame.MAC{}
	}
	for name, news := range map[string][]byte{
		"gratuitous request":       arp(1, moved, "192.0.2.2"),
		"gratuitous reply":         arp(2, moved, "192.0.2.2"),
		"request for this port":    arp(1, moved, "192.0.2.1"),
		"request for another host": arp(1, moved, "192.0.2.9"),
	} {
		t.Run(name, func(t *testing.T) {
			p, q := begin(t, false)
			p.HandleFrame(start, news)
			require.Equal(t, moved, goes(t, p, q, start))
			require.Equal(t, uint64(1), p.Counters().NeighborsMoved)
			p, q = begin(t, true)
			p.HandleFrame(start, news)
			require.Equal(t, old, goes(t, p, q, start), "frozen")
		})
	}
	t.Run("no response", func(t *testing.T) {
		p, _ := begin(t, false)
		now := start.Add(time.Second)
		p.Tick(now)
		asked := false
		for _, b := range drain(p, now) {
			asked = asked || b[12] == 8 && b[13] == 6
		}
		require.True(t, asked, "the acknowledgement timer fired: the address is asked for again")
		p.HandleFrame(now, arp(2, moved, "192.0.2.1"))
		now = now.Add(time.Second)
		p.Tick(now)
		sent := 0
		for _, b := range drain(p, now) {
			if b[12] == 8 && b[13] == 0 {
				require.Equal(t, moved, frame.MAC(b[:6]))
				sent++
			}
		}
		require.Positive(t, sent)
	})
	ask := func(frames [][]byte) (n int) {
		for _, b := range frames {
			if b[12] == 8 && b[13] == 6 && b[21] == 1 {
				n++
			}
		}
		return n
	}
	t.Run("age", func(t *testing.T) {
		p, q := begin(t, false)
		send := func(now time.Time) [][]byte {
			require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpWrite}))
			return drain(p, now)
		}
		require.Zero(t, ask(send(start.Add(59*time.Second))), "not yet a minute")
		now := start.Add(61 * time.Second)
		require.Equal(t, 1, ask(send(now)))
		require.Zero(t, ask(send(now)), "once")
		p.HandleFrame(now, arp(2, old, "192.0.2.1"))
		require.Zero(t, ask(send(now.Add(59*time.Second))), "there was news")
		// Nobody answers any more: a question a second while the queue pair waits, and the
		// address is forgotten. The queue pair keeps its own, for it may be that only ARP is
		// lost.
		now = now.Add(2 * time.Minute)
		asked := ask(send(now))
		for range 5 {
			now = now.Add(time.Second)
			p.Tick(now)
			asked += ask(drain(p, now))
		}
		require.GreaterOrEqual(t, asked, 3)
		require.LessOrEqual(t, asked, 6)
		p.HandleFrame(now, arp(1, moved, "192.0.2.1"))
		require.Equal(t, moved, func() frame.MAC {
			for _, b := range send(now) {
				if b[12] == 8 && b[13] == 0 {
					return frame.MAC(b[:6])
				}
			}
			return frame.MAC{}
		}())
		for name, cfg := range map[string]softnic.Config{"frozen": {FreezeNeighbors: true}, "for ever": {NeighborAge: -1}} {
			p := onePort(t, 1, cfg, "192.0.2.1")
			q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
			require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
			drain(p, start)
			p.HandleFrame(start, arp(2, old, "192.0.2.1"))
			now := start.Add(time.Hour)
			require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpSend}))
			require.Zero(t, ask(drain(p, now)), name)
		}
	})
	t.Run("datagrams, age", func(t *testing.T) {
		p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
		q, cq := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
		ah := qp.NewAddressHandle(qp.AHAttr{GID: gidOf("192.0.2.2")})
		send := func(now time.Time) [][]byte {
			require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, AH: ah}))
			return drain(p, now)
		}
		send(start)
		p.HandleFrame(start, arp(2, old, "192.0.2.1"))
		require.Len(t, drain(p, start), 1)
		now := start.Add(2 * time.Minute)
		require.Equal(t, 1, ask(send(now)), "and the datagram leaves meanwhile")
		for range 5 {
			now = now.Add(time.Second)
			p.Tick(now)
			drain(p, now)
		}
		send(now)
		for range 5 {
			now = now.Add(time.Second)
			p.Tick(now)
			drain(p, now)
		}
		for _, want := range []qp.Status{qp.Success, qp.Success, qp.LocalQPOpErr} {
			require.Equal(t, want, poll(t, cq).Status, "nobody is there")
		}
	})
	t.Run("strangers", func(t *testing.T) {
		p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
		require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, arp(1, moved, "192.0.2.2")), "who is not known is not kept")
	})
}

// A flood of questions, as many as there is room for in front of each frame sent, takes
// every second turn at most.
func TestARPFlood(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.UC, toPeer(), nil)
	question := arp(1, frame.MAC{0x52, 0x54, 0, 0, 0, 9}, "192.0.2.1")
	answers := 0
	for data := 0; data < 100; {
		for range 3 {
			p.HandleFrame(start, question)
		}
		if q.Outstanding() < 8 {
			require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
		}
		b, ok := p.NextFrame(start, nil)
		require.True(t, ok)
		if b[13] == 6 {
			answers++
		} else {
			data++
		}
		require.LessOrEqual(t, answers, data+1)
	}
	require.GreaterOrEqual(t, answers, 99, "and has them")
}
