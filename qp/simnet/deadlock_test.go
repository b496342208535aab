package simnet

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/qp"
)

// stuckForEver is the plain search with which findDeadlock is compared: over the whole
// network, adding up the packets that wait.
func stuckForEver(n *Network, prio int) map[*Direction]bool {
	heldBy := func(q *egress, port int) (b int) {
		for p := range q.q[prio].all {
			if int(p.ingress) == port {
				b += int(p.size)
			}
		}
		return b
	}
	stuck := make(map[*Direction]bool)
	for _, d := range n.dirs {
		if d.q != nil && d.to.sw != nil && d.q.paused>>prio&1 != 0 && d.q.q[prio].bytes != 0 && d.to.sw.xoff[d.to.port]>>prio&1 != 0 {
			stuck[d] = true
		}
	}
	for again := true; again; {
		again = false
		for _, d := range n.dirs {
			if !stuck[d] {
				continue
			}
			held := 0
			for _, p := range d.to.sw.ports {
				if stuck[p.end.out] {
					held += heldBy(p.end.out.q, d.to.port)
				}
			}
			if held <= int(d.to.sw.buffer.(*staticBuffer).xon) {
				delete(stuck, d)
				again = true
			}
		}
	}
	return stuck
}

// checkHeld compares the counts of who holds whom with the packets.
func checkHeld(t require.TestingT, n *Network) {
	for _, s := range n.switches {
		for _, p := range s.ports {
			for prio := range p.end.out.q.q {
				q := &p.end.out.q.q[prio]
				if s.lossless>>prio&1 == 0 {
					require.Empty(t, q.held)
					continue
				}
				want := make([]int32, len(s.ports))
				for k := range q.all {
					want[k.ingress] += k.size
				}
				require.Equal(t, want, q.held)
			}
		}
	}
}

// Random networks of switches with links in both directions, flows on random paths: a deadlock
// is found when the plain search finds one, at the latest when its members repeat
// their pauses, and the cycle is one of the plain search's.
func TestDeadlocksAgainstPlainSearch(t *testing.T) {
	found, free := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		n := New(Config{Seed: rapid.Uint64().Draw(t, "seed"), Carry: Shared})
		switches := rapid.IntRange(3, 6).Draw(t, "switches")
		for range switches {
			_, err := n.AddSwitch(SwitchConfig{Lossless: 1 << 3, Buffer: 2_000_000, XOFF: 30_000})
			require.NoError(t, err)
			h, err := n.AddHost(HostConfig{})
			require.NoError(t, err)
			_, err = n.Connect(h, n.switches[len(n.switches)-1], LinkConfig{Rate: 100e9, Delay: time.Microsecond})
			require.NoError(t, err)
		}
		next := make([][]*Direction, switches)
		chords := rapid.IntRange(0, 3).Draw(t, "chords")
		link := func(a, b int) {
			l, err := n.Connect(n.switches[a], n.switches[b], LinkConfig{Rate: 100e9, Delay: time.Microsecond})
			require.NoError(t, err)
			next[a], next[b] = append(next[a], l.AB()), append(next[b], l.BA())
		}
		for i := range switches {
			link(i, (i+1)%switches)
		}
		for range chords {
			a := rapid.IntRange(0, switches-1).Draw(t, "a")
			link(a, (a+rapid.IntRange(1, switches-1).Draw(t, "b"))%switches)
		}
		// Paths to a host follow the cycle and end there, except some.
		for to := range switches {
			for at := range switches {
				if at != to && rapid.IntRange(0, 9).Draw(t, "round") != 0 {
					require.NoError(t, n.switches[at].SetRoute(n.hosts[to], next[at][0]))
				}
			}
		}
		for range rapid.IntRange(3, 12).Draw(t, "flows") {
			from := rapid.IntRange(0, switches-1).Draw(t, "from")
			_, err := n.AddFlow(FlowConfig{From: n.hosts[from],
				To: n.hosts[(from+rapid.IntRange(1, switches-1).Draw(t, "to"))%switches],
				Op: qp.OpWrite, Size: 1 << 20, Depth: 4, Conn: ConnConfig{DSCP: 26, RetryForever: true}})
			require.NoError(t, err)
		}
		for range 12 {
			if n.Run(200*time.Microsecond) != nil {
				break
			}
			checkHeld(t, n)
		}
		if d := n.Deadlock(); d != nil {
			found++
			stuck := stuckForEver(n, 3)
			for _, x := range d.Cycle {
				require.True(t, stuck[x], "%v", d)
			}
			return
		}
		if stuck := stuckForEver(n, 3); len(stuck) != 0 {
			require.ErrorIs(t, n.Run(400*time.Microsecond), ErrDeadlock, "%d directions are stuck", len(stuck))
			found++
			return
		}
		free++
	})
	require.NotZero(t, found)
	require.NotZero(t, free)
}

// Any frame through a switch that marks all: nothing panics, and a RoCE packet
// that had a good ICRC and header checksum has them still.
func FuzzSwitch(f *testing.F) {
	v4 := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DF: true, TrafficClass: 26<<2 | 2, HopLimit: 64, SrcPort: 0xc000,
		DstMAC: hostMAC(1), SrcMAC: hostMAC(0), Packet: bth.Packet{Header: bth.Header{Opcode: 4, DestQP: 17, PKey: 0xffff}, Payload: []byte("abcd")}}
	v4.Src, v4.Dst = addrOf([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}), addrOf([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2})
	f.Add(v4.AppendTo(nil))
	v6 := v4
	v6.Net, v6.Src, v6.Dst = frame.IPv6, addrOf([16]byte{0: 0x20, 15: 1}), addrOf([16]byte{0: 0x20, 15: 2})
	v6.VLANs, v6.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: 3<<13 | 5}
	f.Add(v6.AppendTo(nil))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 60))
	f.Add(append(append(bytes.Repeat([]byte{2}, 12), 0x81, 0), 0x88, 0xa8, 0x81))
	seeds.Into(f).Each(func(s *seeds.Frame) []any {
		if s.Link != frame.Ethernet {
			return nil
		}
		return []any{s.Data}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2000 {
			return
		}
		p := packet{body: &body{buf: bytes.Clone(b)}}
		if p.cut(46) {
			if p.f.Decode(frame.Ethernet, p.buf) == nil && p.f.CheckICRC() == frame.ICRCGood {
				t.Fatal("cut to its headers, it has a good ICRC still")
			}
		} else if !bytes.Equal(p.buf, b) {
			t.Fatal("changed, and not cut")
		}
		n := New(Config{})
		a, _ := n.AddHost(HostConfig{})
		c, _ := n.AddHost(HostConfig{})
		s, err := n.AddSwitch(SwitchConfig{Lossless: 0xff, ECN: &cnp.CongestionParams{}})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range []*Host{a, c} {
			if _, err := n.Connect(h, s, LinkConfig{Rate: 1e9, Delay: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.route(); err != nil {
			t.Fatal(err)
		}
		// The second of three equal frames finds a queue, and is marked.
		var before, after frame.Frame
		good := before.Decode(frame.Ethernet, b) == nil && before.CheckICRC() == frame.ICRCGood
		n.Observe(func(e *PacketEvent) {
			if e.Direction.From() != Node(s) || !good || e.Fate != Sent || e.PFC != nil {
				return
			}
			if err := after.Decode(frame.Ethernet, e.Raw); err != nil {
				t.Fatal(err)
			}
			if after.CheckICRC() != frame.ICRCGood {
				t.Fatal("ICRC")
			}
			if after.TrafficClass != before.TrafficClass && (before.ECN() == 0 || after.ECN() != frame.CE) {
				t.Fatalf("traffic class from %x to %x", before.TrafficClass, after.TrafficClass)
			}
		})
		for range 3 {
			if err := a.Inject(b); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.RunUntilIdle(time.Second); err != nil {
			t.Fatal(err)
		}
	})
}
