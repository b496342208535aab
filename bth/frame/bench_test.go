package frame_test

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/reth"
)

// writeFrame returns an Ethernet frame of a RDMA WRITE First with 1 KiB.
func writeFrame() (*frame.Frame, []byte) {
	f := &frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DF: true,
		Src: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 2}),
		SrcPort: 0xc001,
		Packet: bth.Packet{
			Header: bth.Header{Opcode: bth.RCWriteFirst, PKey: 0xffff, DestQP: 0x11},
			RETH:   reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096},
		},
	}
	f.Packet.SetPayload(make([]byte, 1024))
	return f, f.AppendTo(nil)
}

// BenchmarkFrame has gopacket's decoder of Ethernet, IPv4 and UDP beside ours
// of all that and BTH, RETH and payload.
func BenchmarkFrame(b *testing.B) {
	f, raw := writeFrame()
	b.Run("gopacket-eth-ipv4-udp", func(b *testing.B) {
		var eth layers.Ethernet
		var ip layers.IPv4
		var udp layers.UDP
		p := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp)
		p.IgnoreUnsupported = true
		var got []gopacket.LayerType
		b.ReportAllocs()
		for b.Loop() {
			if err := p.DecodeLayers(raw, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		var got frame.Frame
		b.ReportAllocs()
		for b.Loop() {
			if err := got.Decode(frame.Ethernet, raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("find", func(b *testing.B) {
		var got frame.Frame
		b.ReportAllocs()
		for b.Loop() {
			if err := (frame.Finder{}).Find(frame.Ethernet, raw, len(raw), &got); err != nil {
				b.Fatal(err)
			}
		}
	})
	// An acknowledgement over IPv6, and the same of gopacket, which stops at UDP.
	ack := sample(frame.IPv6)
	ack.Packet = bth.Packet{Header: bth.Header{Opcode: bth.RCAcknowledge}}
	rawAck := ack.AppendTo(nil)
	b.Run("gopacket-eth-ipv6-udp", func(b *testing.B) {
		var eth layers.Ethernet
		var ip layers.IPv6
		var udp layers.UDP
		p := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp)
		p.IgnoreUnsupported = true
		var got []gopacket.LayerType
		b.ReportAllocs()
		for b.Loop() {
			if err := p.DecodeLayers(rawAck, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode-ipv6-ack", func(b *testing.B) {
		var got frame.Frame
		b.ReportAllocs()
		for b.Loop() {
			if err := got.Decode(frame.Ethernet, rawAck); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("build", func(b *testing.B) {
		buf := make([]byte, 0, 2048)
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			buf = f.AppendTo(buf[:0])
		}
	})
	b.Run("icrc-check", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if !crc.Check(raw[14:]) {
				b.Fatal("bad")
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		buf := make([]byte, len(raw))
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			copy(buf, raw)
		}
	})
}

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
