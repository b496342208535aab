package rocelayers_test

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/rocelayers"
)

// BenchmarkDecode decodes a RDMA WRITE First of a capture: with gopacket down to
// UDP alone, with our layers to the payload, and with package frame.
func BenchmarkDecode(b *testing.B) {
	var data []byte
	var f frame.Frame
	for _, s := range samples(b) {
		if s.name == "rc-write.pcap" && f.Decode(frame.Ethernet, s.data) == nil && f.Packet.Opcode.First() {
			data = s.data
		}
	}
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var udp layers.UDP
	var l rocelayers.Layers
	run := func(b *testing.B, dlc gopacket.DecodingLayerContainer, more []gopacket.DecodingLayer) {
		for _, d := range append([]gopacket.DecodingLayer{&eth, &ip4, &udp}, more...) {
			dlc = dlc.Put(d)
		}
		p := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet)
		p.SetDecodingLayerContainer(dlc)
		p.IgnoreUnsupported = true
		var types []gopacket.LayerType
		b.ReportAllocs()
		for b.Loop() {
			if err := p.DecodeLayers(data, &types); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("gopacket-to-udp", func(b *testing.B) { run(b, gopacket.DecodingLayerMap(nil), nil) })
	b.Run("parser", func(b *testing.B) { run(b, gopacket.DecodingLayerMap(nil), l.DecodingLayers()) })
	b.Run("parser-sparse", func(b *testing.B) { run(b, gopacket.DecodingLayerSparse(nil), l.DecodingLayers()) })
	b.Run("new-packet", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.NoCopy)
		}
	})
	b.Run("frame", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := f.Decode(frame.Ethernet, data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
