package rocelayers_test

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

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

// TestNoAllocation holds that a DecodingLayerParser takes no memory for any
// frame that decodes, and SerializeLayers none for any packet.
func TestNoAllocation(t *testing.T) {
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	var udp layers.UDP
	var l rocelayers.Layers
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &udp)
	for _, d := range l.DecodingLayers() {
		parser.AddDecodingLayer(d)
	}
	types := make([]gopacket.LayerType, 0, 16)
	buf := gopacket.NewSerializeBufferExpectedSize(256, 8192)
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	seen := map[string]bool{}
	for _, s := range samples(t) {
		var f frame.Frame
		if f.Decode(frame.Ethernet, s.data) != nil || f.VLANs > 0 {
			continue
		}
		key := f.Packet.Opcode.String() + f.Net.String()
		if seen[key] {
			continue
		}
		seen[key] = true
		network := map[frame.Net]gopacket.Layer{frame.IPv4: &ip4, frame.IPv6: &ip6, frame.GRH: &l.GRH}[f.Net]
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := parser.DecodeLayers(s.data, &types); err != nil {
				t.Fatal(err)
			}
			if rocelayers.CheckICRC(network) == frame.ICRCUnchecked {
				t.Fatal("unchecked")
			}
		}), "%s: decode", s.name)

		if f.Net == frame.IPv4 {
			// gopacket's own UDP checksum allocates for its pseudo-header.
			all := []gopacket.SerializableLayer{&l.BTH}
			byType := map[gopacket.LayerType]gopacket.SerializableLayer{gopacket.LayerTypePayload: &l.Payload}
			for _, d := range l.DecodingLayers() {
				if s, ok := d.(gopacket.SerializableLayer); ok {
					byType[s.LayerType()] = s
				}
			}
			for i, typ := range types {
				if typ == rocelayers.LayerTypeBTH {
					for _, typ := range types[i+1:] {
						all = append(all, byType[typ])
					}
				}
			}
			require.NoError(t, l.BTH.SetNetworkLayerForICRC(&ip4, &udp))
			require.Zero(t, testing.AllocsPerRun(10, func() {
				if err := gopacket.SerializeLayers(buf, opts, all...); err != nil {
					t.Fatal(err)
				}
			}), "%s: serialize", s.name)
		}
	}
	require.Greater(t, len(seen), 30)
}

// TestNoAllocationBad has packets that cannot be decoded.
func TestNoAllocationBad(t *testing.T) {
	var b rocelayers.BTH
	var r rocelayers.RETH
	var g rocelayers.GRH
	data := make([]byte, 16)
	data[0] = 0x0c // READ request without RETH
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if b.DecodeFromBytes(data, gopacket.NilDecodeFeedback) == nil || b.DecodeFromBytes(data[:15], gopacket.NilDecodeFeedback) == nil ||
			r.DecodeFromBytes(data[:15], gopacket.NilDecodeFeedback) == nil || g.DecodeFromBytes(data, gopacket.NilDecodeFeedback) == nil {
			t.Fatal("decoded")
		}
	}))
}
