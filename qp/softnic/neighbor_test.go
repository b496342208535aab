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

// TestAnswersAsLinux gives the port the requests of a Linux host in the captures, and
// expects the replies that another one sent, byte for byte.
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
				// The reply that goes to the sender of the request.
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

// TestHeardBeforeAsked: a queue pair whose peer's address has not had its turn to be asked
// for sends when a frame of it is received.
func TestHeardBeforeAsked(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	for i := range 64 {
		q, _ := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}).As16()}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	}
	q, cq := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled}))
	require.Len(t, drain(p, start), 64, "questions, and none for the last")
	mac := frame.MAC{2, 0, 0, 0, 0, 2}
	p.HandleFrame(start, arp(1, mac, "192.0.2.1"))
	sent := 0
	for _, b := range drain(p, start) {
		if b[12] == 8 && b[13] == 0 {
			require.Equal(t, mac, frame.MAC(b[:6]))
			sent++
		}
	}
	require.Equal(t, 1, sent)
	none(t, cq)
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
// those that were not requested).
func arp(op byte, mac frame.MAC, target string) []byte { return arpOf(op, mac, "192.0.2.2", target) }

func arpOf(op byte, mac frame.MAC, sender, target string) []byte {
	src, dst := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac[:]...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, op)
	b = append(append(b, mac[:]...), src[:]...)
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
		// There are no replies any more: a request a second while the queue pair waits, and the
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
	t.Run("given, no age", func(t *testing.T) {
		for _, heard := range []bool{false, true} { // frames of it were received before
			p := onePort(t, 1, softnic.Config{NeighborAge: time.Minute}, "192.0.2.1")
			if heard {
				p.HandleFrame(start, arp(2, old, "192.0.2.1"))
			}
			p.AddNeighbor(netip.MustParseAddr("192.0.2.2"), old)
			q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
			for _, now := range []time.Time{start, start.Add(time.Hour)} {
				require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpSend}))
				frames := drain(p, now)
				require.Len(t, frames, 1, "no question")
				require.Equal(t, old, frame.MAC(frames[0][:6]))
			}
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
	require.GreaterOrEqual(t, answers, 99, "and has responses")
}

// ndFrame is a neighbour discovery message (RFC 4861) as this test builds it.
type ndFrame struct {
	typ, code, hops byte
	src, dst        string
	target          string
	flags           uint32
	options         []byte
	length          int  // of the ICMPv6 message in the IPv6 header, where it is not right
	sum             byte // added to the checksum
}

var ndMAC = frame.MAC{0x52, 0x54, 0, 0, 0, 0x22} // of the host that sends them

func (n ndFrame) bytes() []byte {
	m := []byte{n.typ, n.code, 0, 0}
	m = binary.BigEndian.AppendUint32(m, n.flags)
	target := netip.MustParseAddr(n.target).As16()
	m = append(append(m, target[:]...), n.options...)
	src, dst := netip.MustParseAddr(n.src).As16(), netip.MustParseAddr(n.dst).As16()
	if n.length == 0 {
		n.length = len(m)
	}
	sum := uint32(58 + n.length) // of the pseudo-header, RFC 8200 8.1
	for _, part := range [][]byte{src[:], dst[:], m} {
		for i := range part[:len(part)/2*2] {
			if i%2 == 0 {
				sum += uint32(part[i])<<8 | uint32(part[i+1])
			}
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum)+uint16(n.sum))
	if n.hops == 0 {
		n.hops = 255
	}
	b := append([]byte{0x33, 0x33, 0xff, 0, 0, 1}, ndMAC[:]...)
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, byte(n.length>>8), byte(n.length), 58, n.hops)
	return append(append(append(b, src[:]...), dst[:]...), m...)
}

// linkOption is a link-layer address option: type 1 of a source, 2 of a target.
func linkOption(typ byte, mac frame.MAC) []byte { return append([]byte{typ, 1}, mac[:]...) }

// goesTo returns the Ethernet address that a datagram to an address leaves with, or
// the zero one where the port asks for it.
func goesTo(t *testing.T, p *softnic.Port, now time.Time, to string) frame.MAC {
	q, _ := qpOf(t, p, now, qp.UC, qp.AHAttr{GID: gidOf(to)}, nil)
	defer q.Destroy()
	require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpSend}))
	for _, b := range drain(p, now) {
		var f frame.Frame
		if (frame.Finder{}).Decode(frame.Ethernet, b, len(b), &f) == nil {
			return f.DstMAC
		}
	}
	return frame.MAC{}
}

// TestNeighborDiscovery: what the port does with each kind of message of RFC 4861:
// whether it answers, with what, and what it learns.
func TestNeighborDiscovery(t *testing.T) {
	const us, peer = "2001:db8::1", "2001:db8::22"
	sol := ndFrame{typ: 135, src: peer, dst: "ff02::1:ff00:1", target: us, options: linkOption(1, ndMAC)}
	adv := ndFrame{typ: 136, src: peer, dst: us, target: peer, flags: 0x60000000, options: linkOption(2, ndMAC)}
	with := func(n ndFrame, f func(*ndFrame)) ndFrame { f(&n); return n }
	group := frame.MAC{0x33, 0x33, 0, 0, 0, 9}
	old := frame.MAC{2, 0, 0, 0, 0, 0x77}
	none := frame.MAC{}
	for _, c := range []struct {
		name    string
		frame   ndFrame
		known   bool // old is known before
		want    softnic.Result
		answers bool
		learns  frame.MAC // the peer's address afterwards
	}{
		{"a solicitation", sol, false, softnic.Answered, true, ndMAC},
		{"one of a peer that moved", sol, true, softnic.Answered, true, ndMAC},
		{"without an option", with(sol, func(n *ndFrame) { n.options = nil }), false, softnic.Answered, true, none},
		{"with the other option", with(sol, func(n *ndFrame) { n.options = linkOption(2, ndMAC) }), false, softnic.Answered, true, none},
		{"with an unknown option first", with(sol, func(n *ndFrame) {
			n.options = append([]byte{14, 2, 15: 0}, linkOption(1, ndMAC)...)
		}), false, softnic.Answered, true, ndMAC},
		{"with two", with(sol, func(n *ndFrame) { n.options = append(linkOption(1, ndMAC), linkOption(1, old)...) }), false, softnic.Answered, true, ndMAC},
		{"behind an option of no length", with(sol, func(n *ndFrame) {
			n.options = append([]byte{14, 0, 7: 0}, linkOption(1, ndMAC)...)
		}), false, softnic.Answered, true, none},
		{"with an option beyond the end", with(sol, func(n *ndFrame) { n.options = append([]byte{1, 2}, ndMAC[:]...) }), false, softnic.Answered, true, none},
		{"from a group's address", with(sol, func(n *ndFrame) { n.options = linkOption(1, group) }), false, softnic.Answered, true, none},
		{"for another host", with(sol, func(n *ndFrame) { n.target = "2001:db8::99" }), false, softnic.NotRoCE, false, none},
		{"routed", with(sol, func(n *ndFrame) { n.hops = 254 }), false, softnic.NotRoCE, false, none},
		{"of another code", with(sol, func(n *ndFrame) { n.code = 1 }), false, softnic.NotRoCE, false, none},
		{"of another type", with(sol, func(n *ndFrame) { n.typ = 134 }), false, softnic.NotRoCE, false, none},
		{"with a bad checksum", with(sol, func(n *ndFrame) { n.sum = 1 }), false, softnic.NotRoCE, false, none},
		{"shorter than its length", with(sol, func(n *ndFrame) { n.length = 33 }), false, softnic.NotRoCE, false, none},
		{"too short a message", with(sol, func(n *ndFrame) { n.length = 23 }), false, softnic.NotRoCE, false, none},

		{"an advertisement", adv, false, softnic.Answered, false, ndMAC},
		{"one that overrides", adv, true, softnic.Answered, false, ndMAC},
		{"one that does not, of an unknown peer", with(adv, func(n *ndFrame) { n.flags = 0x40000000 }), false, softnic.Answered, false, ndMAC},
		{"one that does not, of a known one", with(adv, func(n *ndFrame) { n.flags = 0x40000000 }), true, softnic.Answered, false, old},
		{"one of a group's address", with(adv, func(n *ndFrame) { n.options = linkOption(2, group) }), true, softnic.Answered, false, old},
		{"one without an option", with(adv, func(n *ndFrame) { n.options = nil }), true, softnic.Answered, false, old},
		{"one with the other option", with(adv, func(n *ndFrame) { n.options = linkOption(1, ndMAC) }), true, softnic.Answered, false, old},
		{"one of another code", with(adv, func(n *ndFrame) { n.code = 2 }), true, softnic.NotRoCE, false, old},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := onePort(t, 1, softnic.Config{}, us)
			if c.known {
				p.HandleFrame(start, with(adv, func(n *ndFrame) { n.options = linkOption(2, old) }).bytes())
			}
			require.Equal(t, c.want, p.HandleFrame(start, c.frame.bytes()))
			got := drain(p, start)
			if !c.answers {
				require.Empty(t, got)
			} else {
				require.Len(t, got, 1)
				b := got[0]
				require.Equal(t, "52540000002252540000000186dd6000000000203aff", fmt.Sprintf("%x", b[:22]), "to the host that asked, 32 bytes, hop limit 255")
				require.Equal(t, gidOf(us), [16]byte(b[22:38]))
				require.Equal(t, gidOf(peer), [16]byte(b[38:54]))
				require.Equal(t, []byte{136, 0}, b[54:56])
				require.Equal(t, uint32(0x60000000), binary.BigEndian.Uint32(b[58:]), "solicited, override")
				require.Equal(t, gidOf(us), [16]byte(b[62:78]))
				require.Equal(t, []byte{2, 1, 0x52, 0x54, 0, 0, 0, 1}, b[78:])
			}
			require.Equal(t, c.learns, goesTo(t, p, start, peer))
		})
	}

	// Duplicate address detection (RFC 4862 5.4): the sender has no address yet, and the
	// advertisement goes to all nodes.
	p := onePort(t, 1, softnic.Config{}, us)
	require.Equal(t, softnic.Answered, p.HandleFrame(start, with(sol, func(n *ndFrame) { n.src, n.options = "::", nil }).bytes()))
	got := drain(p, start)
	require.Len(t, got, 1)
	require.Equal(t, frame.MAC{0x33, 0x33, 0, 0, 0, 1}, frame.MAC(got[0][:6]))
	require.Equal(t, gidOf("ff02::1"), [16]byte(got[0][38:54]))
	require.Equal(t, uint32(0x20000000), binary.BigEndian.Uint32(got[0][58:]), "override")

	// A solicitation whose source MAC is that of a group gets no response.
	b := with(sol, func(n *ndFrame) { n.options = nil }).bytes()
	b[6] |= 1
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, b))
	require.Empty(t, drain(p, start))

	// An advertisement of this port's own address is not learned.
	require.Equal(t, softnic.Answered, p.HandleFrame(start, with(adv, func(n *ndFrame) { n.target = us }).bytes()))
	require.Equal(t, frame.MAC{0x52, 0x54, 0, 0, 0, 1}, loopMAC(t, p, us))
}

// loopMAC returns where a datagram to the port's own address goes, which never
// reaches the wire: where it is looped the table says nothing.
func loopMAC(t *testing.T, p *softnic.Port, us string) frame.MAC {
	before := p.Counters().Looped
	if mac := goesTo(t, p, start, us); mac != (frame.MAC{}) {
		return mac
	}
	require.Equal(t, before+1, p.Counters().Looped)
	return p.MAC()
}

// TestARPKinds: whether the port responds to an ARP packet (RFC 826), and what it learns.
func TestARPKinds(t *testing.T) {
	host, group := frame.MAC{0x52, 0x54, 0, 0, 0, 0x22}, frame.MAC{1, 0, 0x5e, 0, 0, 1}
	none := frame.MAC{}
	for _, c := range []struct {
		name     string
		op       byte
		mac      frame.MAC
		src, dst string
		change   func([]byte) []byte
		want     softnic.Result
		answers  bool
		learns   frame.MAC // the address of 192.0.2.2 afterwards
	}{
		{"a request", 1, host, "192.0.2.2", "192.0.2.1", nil, softnic.Answered, true, host},
		{"a reply", 2, host, "192.0.2.2", "192.0.2.1", nil, softnic.Answered, false, host},
		{"a probe, of a host that has no address yet", 1, host, "0.0.0.0", "192.0.2.1", nil, softnic.Answered, true, none},
		{"from a group's address", 1, group, "192.0.2.2", "192.0.2.1", nil, softnic.NotRoCE, false, none},
		{"for another host", 1, host, "192.0.2.2", "192.0.2.9", nil, softnic.NotRoCE, false, none},
		{"of one that says it is this port", 1, host, "192.0.2.1", "192.0.2.1", nil, softnic.NotRoCE, false, none},
		{"of other hardware", 1, host, "192.0.2.2", "192.0.2.1", func(b []byte) []byte { b[15] = 6; return b }, softnic.NotRoCE, false, none},
		{"of longer addresses", 1, host, "192.0.2.2", "192.0.2.1", func(b []byte) []byte { b[19] = 16; return b }, softnic.NotRoCE, false, none},
		{"a byte short", 1, host, "192.0.2.2", "192.0.2.1", func(b []byte) []byte { return b[:41] }, softnic.NotRoCE, false, none},
		{"without padding", 1, host, "192.0.2.2", "192.0.2.1", func(b []byte) []byte { return b[:42] }, softnic.Answered, true, host},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
			b := arp(c.op, c.mac, c.dst)
			src := netip.MustParseAddr(c.src).As4()
			copy(b[28:], src[:])
			if c.change != nil {
				b = c.change(b)
			}
			require.Equal(t, c.want, p.HandleFrame(start, b))
			got := drain(p, start)
			if !c.answers {
				require.Empty(t, got)
			} else {
				require.Len(t, got, 1)
				want := append(append([]byte{}, c.mac[:]...), 0x52, 0x54, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 192, 0, 2, 1)
				require.Equal(t, append(append(want, c.mac[:]...), src[:]...), got[0])
			}
			require.Equal(t, c.learns, goesTo(t, p, start, "192.0.2.2"))
		})
	}
}

// TestNeighborTableBound: senders of requests fill the table up to its size, and the
// oldest of them is removed for one that the port itself requested.
func TestNeighborTableBound(t *testing.T) {
	p := onePort(t, 1, softnic.Config{MaxNeighbors: 3}, "192.0.2.1")
	for i := range byte(10) { // each sends twice, and was not requested still
		b := arp(1, frame.MAC{2, 0, 0, 0, 0, 10 + i%5}, "192.0.2.1")
		b[31] = 10 + i%5
		require.Equal(t, softnic.Answered, p.HandleFrame(start, b))
	}
	drain(p, start)
	known := func() (out []byte) {
		for i := byte(10); i < 15; i++ {
			if goesTo(t, p, start, netip.AddrFrom4([4]byte{192, 0, 2, i}).String()) == (frame.MAC{2, 0, 0, 0, 0, i}) {
				out = append(out, i)
			}
		}
		return out
	}
	require.Equal(t, []byte{10, 11, 12}, known(), "a full table takes no stranger")
	p.AddNeighbor(netip.MustParseAddr("192.0.2.77"), frame.MAC{2, 77})
	require.Equal(t, []byte{11, 12}, known(), "the oldest was removed")
	p.AddNeighbor(netip.MustParseAddr("::ffff:192.0.2.11"), frame.MAC{2, 0, 0, 0, 0, 11}) // no stranger any more
	p.AddNeighbor(netip.MustParseAddr("192.0.2.78"), frame.MAC{2, 78})
	require.Equal(t, []byte{11}, known())
	p.AddNeighbor(netip.MustParseAddr("192.0.2.79"), frame.MAC{2, 79})
	require.Equal(t, frame.MAC{}, goesTo(t, p, start, "192.0.2.79"), "all others were requested")
	require.Equal(t, frame.MAC{2, 78}, goesTo(t, p, start, "192.0.2.78"))
}

// TestTwoQuestions: the reply to one request leaves the other outstanding.
func TestTwoQuestions(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	for _, to := range []string{"192.0.2.8", "192.0.2.9"} {
		q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gidOf(to)}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	}
	asked := drain(p, start)
	require.Len(t, asked, 2)
	p.HandleFrame(start, arpReply(asked[1]))
	require.Equal(t, netip.MustParseAddr("192.0.2.9"), decode(t, drain(p, start)[0]).Dst)
	d, ok := p.Deadline()
	require.True(t, ok)
	require.Equal(t, time.Second, d.Sub(start))
	p.Tick(d)
	require.Equal(t, asked[:1], drain(p, d))
	p.HandleFrame(d, arpReply(asked[0]))
	require.Equal(t, netip.MustParseAddr("192.0.2.8"), decode(t, drain(p, d)[0]).Dst)
}

// TestDoubtOnceASecond: packets of a connected peer from another Ethernet address make
// the port request its address, a second apart, but not one that AddNeighbor set, and not
// with FreezeNeighbors.
func TestDoubtOnceASecond(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		p := onePort(t, 1, softnic.Config{FreezeNeighbors: frozen}, "192.0.2.1")
		q, _ := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite}))
		require.Len(t, drain(p, start), 1)
		p.HandleFrame(start, arp(2, frame.MAC{2, 0, 0, 0, 0, 2}, "192.0.2.1"))
		require.Len(t, drain(p, start), 1)
		asked := func(now time.Time) (n int) {
			f := request(q)
			f.SrcMAC = frame.MAC{2, 0, 0, 0, 0, 3}
			f.Packet.PSN = q.Attr().RQPSN // a duplicate after the first
			require.Equal(t, softnic.Delivered, p.HandleFrame(now, f.AppendTo(nil)))
			for _, b := range drain(p, now) {
				if binary.BigEndian.Uint16(b[12:]) == 0x0806 {
					n++
					p.HandleFrame(now, arp(2, frame.MAC{2, 0, 0, 0, 0, 2}, "192.0.2.1"))
				}
			}
			return n
		}
		got := []int{asked(start.Add(time.Second)), asked(start.Add(1500 * time.Millisecond)), asked(start.Add(1999 * time.Millisecond)), asked(start.Add(2 * time.Second))}
		if frozen {
			require.Equal(t, []int{0, 0, 0, 0}, got)
		} else {
			require.Equal(t, []int{1, 0, 0, 1}, got)
		}
	}
}

// TestQuestionsInBurst: of more requests than there is room for the first have a
// response each, and the others are dropped.
func TestQuestionsInBurst(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
	sol := ndFrame{typ: 135, src: "2001:db8::22", dst: "ff02::1:ff00:1", target: "2001:db8::1", options: linkOption(1, ndMAC)}
	for i := range byte(200) {
		b := arp(1, frame.MAC{2, 0, 0, 0, 0, i}, "192.0.2.1")
		if i >= 150 {
			b = sol.bytes()
		}
		require.Equal(t, softnic.Answered, p.HandleFrame(start, b))
	}
	got := drain(p, start)
	require.Len(t, got, 128)
	for i, b := range got {
		require.Equal(t, []byte{2, 0, 0, 0, 0, byte(i)}, b[:6])
	}
	require.Equal(t, softnic.Answered, p.HandleFrame(start, sol.bytes()))
	require.Len(t, drain(p, start), 1)
}
