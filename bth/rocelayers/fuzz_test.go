package rocelayers_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/rocelayers"
	"github.com/roce-go/roce/fuzz/seeds"
)

// FuzzBTH holds our layers against bth.Packet on any transport packet: both take
// it or both refuse it, and what was decoded serializes to the same bytes.
func FuzzBTH(f *testing.F) {
	seen := map[byte]bool{}
	for _, s := range samples(f) {
		if len(s.data) > 42 && !seen[s.data[42]] {
			seen[s.data[42]] = true
			f.Add(s.data[42:])
		}
	}
	seeds.Into(f).Packets(func(s *seeds.Frame) []any { return []any{s.Frame.Transport} })
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		var want bth.Packet
		err := want.Decode(data)
		p := gopacket.NewPacket(data, rocelayers.LayerTypeBTH, gopacket.NoCopy)
		if !bytes.Equal(data, before) {
			t.Fatal("the input was written to")
		}
		if p.ErrorLayer() != nil {
			if err == nil {
				t.Fatalf("refused: %v", p.ErrorLayer().Error())
			}
			return
		}
		if err != nil && err != bth.ErrOpcode && err != bth.ErrVersion {
			t.Fatalf("accepted, in spite of %v", err)
		}
		got, _ := collect(p)
		if err == nil && (got.BTH.Header != want.Header || !bytes.Equal(got.Payload, want.Payload) ||
			got.BTH.ICRC != want.ICRC || got.BTH.Pad != want.Pad) {
			t.Fatalf("%+v, want %+v", got, want)
		}
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializePacket(buf, gopacket.SerializeOptions{}, p); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf.Bytes(), data) {
			t.Fatalf("%x became %x", data, buf.Bytes())
		}
	})
}

// FuzzFrame holds that no frame makes the layers panic in any way of decoding,
// and that the parser agrees with NewPacket on the layers.
func FuzzFrame(f *testing.F) {
	seen := map[int]bool{}
	for _, s := range samples(f) {
		if !seen[len(s.data)/8] {
			seen[len(s.data)/8] = true
			f.Add(s.data)
		}
	}
	var eth layers.Ethernet
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	var udp layers.UDP
	var l rocelayers.Layers
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &udp)
	for _, d := range l.DecodingLayers() {
		parser.AddDecodingLayer(d)
	}
	seeds.Into(f).Each(func(s *seeds.Frame) []any {
		if s.Link != frame.Ethernet {
			return nil
		}
		return []any{s.Data}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.NoCopy)
		rocelayers.CheckICRC(p.NetworkLayer())
		_, types := collect(p)
		var parsed []gopacket.LayerType
		if parser.DecodeLayers(data, &parsed) != nil || p.ErrorLayer() != nil {
			return
		}
		// gopacket's IPv6 decodes hop-by-hop options itself; NewPacket tells of them
		// as a layer, its parser does not.
		types = slices.DeleteFunc(types, func(l gopacket.LayerType) bool { return l == layers.LayerTypeIPv6HopByHop })
		for i := range parsed {
			if i >= len(types) || parsed[i] != types[i] {
				t.Fatalf("%v, with the parser %v", types, parsed)
			}
		}
	})
}
