package rocelayers_test

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/rocelayers"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/psn"
)

// TestBuild builds packets of all opcodes over all networks with SerializeLayers.
// Package frame decodes them to the same values and finds the ICRC good.
func TestBuild(t *testing.T) {
	var known []bth.Opcode
	for i := range 256 {
		if bth.Opcode(i).Known() {
			known = append(known, bth.Opcode(i))
		}
	}
	buf := gopacket.NewSerializeBuffer()
	rapid.Check(t, func(t *rapid.T) {
		op := rapid.SampledFrom(known).Draw(t, "opcode")
		var l rocelayers.Layers
		l.BTH.Header = bth.Header{
			Opcode: op, SE: rapid.Bool().Draw(t, "se"), M: rapid.Bool().Draw(t, "m"),
			PKey: rapid.Uint16().Draw(t, "pkey"), BECN: rapid.Bool().Draw(t, "becn"),
			Resv6:  rapid.Uint8Range(0, 63).Draw(t, "resv6"),
			DestQP: rapid.Uint32Range(0, 1<<24-1).Draw(t, "qp"), AckReq: rapid.Bool().Draw(t, "ack"),
			PSN: psn.PSN(rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn")),
		}
		u64, u32 := rapid.Uint64().Draw(t, "64 bits"), rapid.Uint32().Draw(t, "32 bits")
		u24 := u32 & 0xffffff
		l.RDETH.EE, l.DETH.QKey, l.DETH.SrcQP, l.XRCETH.SRQ = u24, u32, u24, u24
		l.FETH.Placement, l.FETH.Sel = 3, 1
		l.RETH.VA, l.RETH.RKey, l.RETH.DMALen = u64, u32, u32
		l.AtomicETH.VA, l.AtomicETH.SwapAdd, l.AtomicETH.Compare = u64, ^u64, u64<<1
		l.AETH.Syndrome, l.AETH.MSN, l.AtomicAckETH.Orig = 0x60, u24, u64
		l.ImmDt.Imm, l.IETH.RKey = u32, u32
		switch op.Payload() {
		case bth.NoPayload:
		case bth.EightBytes:
			l.Payload = make([]byte, 8)
		case bth.SixteenZero:
			l.Payload = make([]byte, bth.CNPReserved)
		default:
			l.Payload = rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload")
		}
		transport := []gopacket.SerializableLayer{&l.BTH}
		for i, h := range []gopacket.SerializableLayer{&l.RDETH, &l.DETH, &l.XRCETH, &l.FETH, &l.RETH, &l.AtomicETH,
			&l.AETH, &l.AtomicAckETH, &l.ImmDt, &l.IETH} {
			if op.Ext()>>i&1 != 0 {
				transport = append(transport, h)
			}
		}
		transport = append(transport, l.Payload)

		eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
		udp := &layers.UDP{SrcPort: layers.UDPPort(u32), DstPort: 4791}
		under := []gopacket.SerializableLayer{eth}
		kind := rapid.SampledFrom([]frame.Net{frame.IPv4, frame.IPv6, frame.GRH}).Draw(t, "net")
		switch kind {
		case frame.IPv4:
			ip := &layers.IPv4{Version: 4, Id: uint16(u64), TOS: uint8(u32), TTL: 3, Protocol: layers.IPProtocolUDP,
				Flags: layers.IPv4DontFragment, SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IP{192, 0, 2, 2}}
			require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
			require.NoError(t, l.BTH.SetNetworkLayerForICRC(ip, udp))
			under = append(under, ip, udp)
		case frame.IPv6:
			eth.EthernetType = layers.EthernetTypeIPv6
			ip := &layers.IPv6{Version: 6, TrafficClass: uint8(u32), FlowLabel: u32 & 0xfffff, NextHeader: layers.IPProtocolUDP,
				SrcIP: net.IPv6loopback, DstIP: net.IPv6linklocalallnodes}
			require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
			require.NoError(t, l.BTH.SetNetworkLayerForICRC(ip, udp))
			under = append(under, ip, udp)
		default:
			eth.EthernetType = rocelayers.EthernetTypeRoCE
			g := &rocelayers.GRH{TrafficClass: uint8(u32), FlowLabel: u32 & 0xfffff, HopLimit: 9}
			g.SrcGID, g.DstGID = addr(net.IPv6loopback), addr(net.IPv6linklocalallnodes)
			require.NoError(t, l.BTH.SetNetworkLayerForICRC(g, nil))
			under = append(under, g)
		}
		opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		require.NoError(t, gopacket.SerializeLayers(buf, opts, append(under, transport...)...))

		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, buf.Bytes()))
		require.Equal(t, frame.ICRCGood, f.CheckICRC())
		require.Equal(t, kind, f.Net)
		require.Equal(t, int(-len(l.Payload)&3), int(f.Packet.PadCnt))
		require.Equal(t, l.BTH.Header, f.Packet.Header)
		require.Equal(t, string(l.Payload), string(f.Packet.Payload))

		p := gopacket.NewPacket(buf.Bytes(), layers.LinkTypeEthernet, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
		got, _ := collect(p)
		require.Equal(t, f.Packet.Header, got.BTH.Header)
		require.Equal(t, frame.ICRCGood, rocelayers.CheckICRC(p.NetworkLayer()))
	})
}

func addr(ip net.IP) netip.Addr { return netip.AddrFrom16([16]byte(ip)) }

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
	// Found by the fuzzer: an IPv6 header with hop-by-hop options.
	f.Add([]byte("\xd2T\x00\x00\x00\x02RT\x00\x01\x00\x00\x86\xddf\x80\x02\x00\x80\x00\x00\x00 \x01\r\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01 \x01\r\xb8\x00\x00\x00\x00\x00\x00\x00\uf73aB;\x11\x02\x00A\x12\xb7u$\x00\x80\x00\x00\x00\x02\xe3A\x12\xb7u\x00@\x00\x12\x00\xff\xff\x00\x00\x06\x11\x00eC+\x1f\x00\x00\x00\x01\x02\x03\x04\x05\x06\a\b\xd0\x06tU"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.NoCopy)
		rocelayers.CheckICRC(p.NetworkLayer())
		_, types := collect(p)
		var parsed []gopacket.LayerType
		if parser.DecodeLayers(data, &parsed) != nil || p.ErrorLayer() != nil {
			return
		}
		// gopacket's IPv6 decodes hop-by-hop options itself; NewPacket reports them
		// as a layer, its parser does not.
		types = slices.DeleteFunc(types, func(l gopacket.LayerType) bool { return l == layers.LayerTypeIPv6HopByHop })
		for i := range parsed {
			if i >= len(types) || parsed[i] != types[i] {
				t.Fatalf("%v, with the parser %v", types, parsed)
			}
		}
	})
}
