package simnet

import (
	"bytes"
	"testing"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/fuzz/seeds"
)

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
