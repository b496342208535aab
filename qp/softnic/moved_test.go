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
	t.Run("strangers", func(t *testing.T) {
		p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
		require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, arp(1, moved, "192.0.2.2")), "who is not known is not kept")
	})
}
