package softnic_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

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
