package frame_test

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
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
