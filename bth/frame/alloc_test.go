//go:build !race

package frame_test

import (
	"encoding/hex"
	"testing"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
)

func TestNoAllocations(t *testing.T) {
	never := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	var f frame.Frame
	buf := make([]byte, 0, 512)

	// Good and bad input: all vectors, each at every length.
	for _, v := range loadVectors(t) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		link := frame.RawIP
		if v.LinkType == "ethernet" {
			link = frame.Ethernet
		}
		never(v.ID, func() {
			_ = f.Decode(link, raw)
			_ = f.CheckICRC()
			_ = frame.Finder{}.Find(link, raw, len(raw), &f)
			for n := range raw {
				_ = frame.Finder{}.Decode(link, raw[:n], len(raw), &f)
			}
		})
	}
	for _, v := range mrcVectors(t) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		m := frame.Frame{MRC: new(mrc.Packet)}
		d := frame.Finder{TrimmedDSCP: 1 << 9}
		never(v.ID, func() {
			for n := range len(raw) + 1 {
				_ = d.Decode(frame.RawIP, raw[:n], len(raw), &m)
			}
			_, _ = m.CheckICRC(), m.PayloadLen()
			buf = m.AppendTo(buf[:0])
			buf, _ = m.AppendBinary(buf[:0])
		})
	}
	for _, net := range nets {
		for name, c := range links(net) {
			never(name, func() {
				_ = f.Decode(c.link, c.b)
				_ = f.CheckICRC()
				_ = f.PayloadLen() + int(f.DSCP()) + int(f.ECN())
			})
		}
		g := sample(net)
		g.VLANs = 2
		never("AppendTo", func() { buf = g.AppendTo(buf[:0]) })
		never("AppendBinary", func() { buf, _ = g.AppendBinary(buf[:0]) })
		g.Packet.Pad[0] = 1 // pad that is not zero takes another way
		never("AppendTo", func() { buf = g.AppendTo(buf[:0]) })
		g.VLANs = 4
		never("refusal", func() { buf, _ = g.AppendBinary(buf[:0]) })
	}
	for _, x := range loadTunnels(t) {
		never(x.name, func() {
			for n := range len(x.b) + 1 {
				_ = captured.Decode(frame.Ethernet, x.b[:n], len(x.b), &f)
				_ = captured.Protocol(frame.Ethernet, x.b[:n], len(x.b))
			}
			_ = f.Segment()
			for i := range f.Outer.Len() {
				u := f.Outer.Tunnel(i)
				buf = u.AppendTo(buf[:0])
			}
		})
	}
	for _, text := range withUDPChecksum {
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		room := make([]byte, 0, 512)
		never("edits and checks", func() {
			_ = f.Decode(frame.Ethernet, raw)
			_, _ = f.CheckIPv4(), f.CheckUDP()
			_ = f.SetPSN(7)
			_ = f.Patch(1, 3)
			_ = f.Patch(0, 0)
			g, b := f.Clone(room[:0])
			buf = g.AppendNetworkTo(buf[:0])
			_ = g.Size() + len(b)
			_, _, _, _ = frame.NetworkOffset(frame.Ethernet, raw)
		})
	}
	never("entropy", func() { _ = frame.SourcePort(frame.FlowLabel(0x11, 0x12)) })
	never("names", func() { _, _ = frame.IPv4.String(), frame.ICRCBad.String() })
}
