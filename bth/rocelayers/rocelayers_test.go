package rocelayers_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/bth/rocelayers"
)

func TestMain(m *testing.M) {
	rocelayers.Register()
	os.Exit(m.Run())
}

// sample is a frame of a capture or a vector.
type sample struct {
	name string
	link gopacket.Decoder
	data []byte
}

// samples returns all frames of the captures and vectors that the decoders of
// package frame are held against, which this package is held against in turn.
func samples(t testing.TB) []sample {
	t.Helper()
	var all []sample
	paths, err := filepath.Glob("../../fuzz/captures/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		records, err := capture.ReadFile(path)
		require.NoError(t, err)
		for _, r := range records {
			all = append(all, sample{filepath.Base(path), layers.LinkTypeEthernet, r.Data})
		}
	}
	require.Greater(t, len(all), 1500)
	b, err := os.ReadFile("../frame/testdata/vectors.json")
	require.NoError(t, err)
	var vectors []struct {
		ID       string `json:"id"`
		LinkType string `json:"link_type"`
		Hex      string `json:"hex"`
	}
	require.NoError(t, json.Unmarshal(b, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		if v.LinkType != "ethernet" {
			continue
		}
		data, err := hex.DecodeString(v.Hex)
		require.NoError(t, err)
		all = append(all, sample{v.ID, layers.LinkTypeEthernet, data})
	}
	return all
}

// same compares what gopacket decoded with what package frame did.
func same(t *testing.T, name string, want *frame.Frame, got *rocelayers.Layers, types []gopacket.LayerType) {
	t.Helper()
	p := &want.Packet
	for len(types) > 0 && types[0] != rocelayers.LayerTypeBTH {
		types = types[1:]
	}
	var expect []gopacket.LayerType
	expect = append(expect, rocelayers.LayerTypeBTH)
	for i := range 10 {
		if p.Opcode.Ext()>>i&1 != 0 {
			expect = append(expect, rocelayers.LayerTypeRDETH+gopacket.LayerType(i))
		}
	}
	if len(p.Payload) > 0 {
		expect = append(expect, gopacket.LayerTypePayload)
	}
	require.Equal(t, expect, types, name)
	require.Equal(t, p.Header, got.BTH.Header, name)
	require.Equal(t, p.Pad, got.BTH.Pad, name)
	require.Equal(t, p.ICRC, got.BTH.ICRC, name)
	require.False(t, got.BTH.Truncated, name)
	has := func(e bth.Ext) bool { return p.Opcode.Ext()&e != 0 }
	eq := func(e bth.Ext, want, got any) {
		t.Helper()
		if has(e) {
			require.Equal(t, want, got, name)
		}
	}
	eq(bth.HasRDETH, p.RDETH, got.RDETH.RDETH)
	eq(bth.HasDETH, p.DETH, got.DETH.DETH)
	eq(bth.HasXRCETH, p.XRCETH, got.XRCETH.XRCETH)
	eq(bth.HasFETH, p.FETH, got.FETH.FETH)
	eq(bth.HasRETH, p.RETH, got.RETH.Header)
	eq(bth.HasAtomicETH, p.AtomicETH, got.AtomicETH.AtomicETH)
	eq(bth.HasAETH, p.AETH, got.AETH.Header)
	eq(bth.HasAtomicAckETH, p.AtomicAckETH, got.AtomicAckETH.AtomicAckETH)
	eq(bth.HasImmDt, p.ImmDt, got.ImmDt.ImmDt)
	eq(bth.HasIETH, p.IETH, got.IETH.IETH)
	if len(p.Payload) > 0 {
		require.Equal(t, p.Payload, []byte(got.Payload), name)
	}
}

// collect brings the layers of a packet into one struct.
func collect(p gopacket.Packet) (l rocelayers.Layers, types []gopacket.LayerType) {
	for _, layer := range p.Layers() {
		types = append(types, layer.LayerType())
		switch v := layer.(type) {
		case *rocelayers.GRH:
			l.GRH = *v
		case *rocelayers.BTH:
			l.BTH = *v
		case *rocelayers.RDETH:
			l.RDETH = *v
		case *rocelayers.DETH:
			l.DETH = *v
		case *rocelayers.XRCETH:
			l.XRCETH = *v
		case *rocelayers.FETH:
			l.FETH = *v
		case *rocelayers.RETH:
			l.RETH = *v
		case *rocelayers.AtomicETH:
			l.AtomicETH = *v
		case *rocelayers.AETH:
			l.AETH = *v
		case *rocelayers.AtomicAckETH:
			l.AtomicAckETH = *v
		case *rocelayers.ImmDt:
			l.ImmDt = *v
		case *rocelayers.IETH:
			l.IETH = *v
		case *gopacket.Payload:
			l.Payload = *v
		}
	}
	return l, types
}

// TestNewPacket decodes all frames in gopacket's three ways.
func TestNewPacket(t *testing.T) {
	packets, grh, bad := 0, 0, 0
	for _, s := range samples(t) {
		var want frame.Frame
		wantErr := want.Decode(frame.Ethernet, s.data)
		for _, o := range []gopacket.DecodeOptions{gopacket.Default, gopacket.NoCopy, gopacket.Lazy} {
			p := gopacket.NewPacket(s.data, s.link, o)
			got, types := collect(p)
			if wantErr != nil {
				if wantErr == bth.ErrOpcode || wantErr == bth.ErrVersion {
					require.NotNil(t, p.Layer(rocelayers.LayerTypeBTH), s.name)
				}
				continue
			}
			require.Nil(t, p.ErrorLayer(), s.name)
			same(t, s.name, &want, &got, types)
			require.Equal(t, want.CheckICRC(), rocelayers.CheckICRC(p.NetworkLayer()), s.name)
			if want.Net == frame.GRH {
				grh++
				require.Equal(t, []any{want.TrafficClass, want.FlowLabel, want.HopLimit, want.Src, want.Dst, uint8(0x1b)},
					[]any{got.GRH.TrafficClass, got.GRH.FlowLabel, got.GRH.HopLimit, got.GRH.SrcGID, got.GRH.DstGID, got.GRH.NextHeader}, s.name)
				src := want.Src.As16()
				require.Equal(t, src[:], p.NetworkLayer().NetworkFlow().Src().Raw())
			}
			if want.CheckICRC() == frame.ICRCBad {
				bad++
			}
			packets++
		}
	}
	require.Greater(t, packets, 3*1400)
	require.NotZero(t, grh)
	require.GreaterOrEqual(t, bad, 6)
}

// TestParser decodes them with a DecodingLayerParser.
func TestParser(t *testing.T) {
	var eth layers.Ethernet
	var tag layers.Dot1Q
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	var udp layers.UDP
	var got rocelayers.Layers
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &tag, &ip4, &ip6, &udp)
	for _, l := range got.DecodingLayers() {
		parser.AddDecodingLayer(l)
	}
	parser.IgnoreUnsupported = true
	var types []gopacket.LayerType
	n := 0
	for _, s := range samples(t) {
		var want frame.Frame
		if want.Decode(frame.Ethernet, s.data) != nil {
			parser.DecodeLayers(s.data, &types)
			continue
		}
		require.NoError(t, parser.DecodeLayers(s.data, &types), s.name)
		same(t, s.name, &want, &got, types)
		network := map[frame.Net]gopacket.Layer{frame.IPv4: &ip4, frame.IPv6: &ip6, frame.GRH: &got.GRH}[want.Net]
		require.Equal(t, want.CheckICRC(), rocelayers.CheckICRC(network), s.name)
		n++
	}
	require.Greater(t, n, 1400)
}

// serializable returns the layers of a packet, the BTH tied to its network.
func serializable(t *testing.T, p gopacket.Packet) []gopacket.SerializableLayer {
	t.Helper()
	var all []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		all = append(all, l.(gopacket.SerializableLayer))
	}
	b := p.Layer(rocelayers.LayerTypeBTH).(*rocelayers.BTH)
	udp, _ := p.TransportLayer().(*layers.UDP)
	require.NoError(t, b.SetNetworkLayerForICRC(p.NetworkLayer(), udp))
	if udp != nil {
		require.NoError(t, udp.SetNetworkLayerForChecksum(p.NetworkLayer()))
	}
	return all
}

// TestSerialize writes all packets again: once as they stand, which must give
// the bytes received from the wire, and once with lengths, pad and ICRC built
// again, from layers in which these were spoilt. The ICRC must be that of the
// Linux driver.
func TestSerialize(t *testing.T) {
	n := 0
	buf := gopacket.NewSerializeBuffer()
	for _, s := range samples(t) {
		var want frame.Frame
		if want.Decode(frame.Ethernet, s.data) != nil || want.CheckICRC() != frame.ICRCGood || len(want.Options) > 0 {
			continue
		}
		n++
		wire := s.data[:len(s.data)-len(want.Trailer)]
		p := gopacket.NewPacket(s.data, s.link, gopacket.Default)
		require.NoError(t, gopacket.SerializePacket(buf, gopacket.SerializeOptions{}, p), s.name)
		require.Equal(t, wire, buf.Bytes()[:len(wire)], s.name)
		require.Empty(t, bytes.Trim(buf.Bytes()[len(wire):], "\x00"), "Ethernet padding")

		b := p.Layer(rocelayers.LayerTypeBTH).(*rocelayers.BTH)
		all := serializable(t, p)
		pad := b.Pad
		b.ICRC, b.PadCnt, b.Pad = 0xdeadbeef, 3, [3]byte{1, 2, 3}
		switch l := p.NetworkLayer().(type) {
		case *layers.IPv4:
			l.Length, l.IHL, l.Checksum = 1, 2, 3
		case *layers.IPv6:
			l.Length = 1
		case *rocelayers.GRH:
			l.Length, l.NextHeader = 1, 0
		}
		if udp, ok := p.TransportLayer().(*layers.UDP); ok {
			udp.Length = 1
		}
		opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		require.NoError(t, gopacket.SerializeLayers(buf, opts, all...), s.name)
		var got frame.Frame
		require.NoError(t, got.Decode(frame.Ethernet, buf.Bytes()), s.name)
		require.Equal(t, frame.ICRCGood, got.CheckICRC(), s.name)
		if pad == [3]byte{} && want.Packet.PadCnt == got.Packet.PadCnt {
			require.Equal(t, want.Packet, got.Packet, s.name)
		}
		require.Equal(t, got.Packet.ICRC, b.ICRC, "the field is set")
	}
	require.Greater(t, n, 1300)
}

// TestKnownICRC builds the known ICRC of IPv4 (computed with zlib's CRC over a
// masked copy, and with Scapy) with SerializeLayers.
func TestKnownICRC(t *testing.T) {
	payload := make([]byte, 1024)
	for i := range payload {
		payload[i] = byte(i)
	}
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TOS: 2, Flags: layers.IPv4DontFragment, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2)} // 16 bytes long each
	udp := &layers.UDP{SrcPort: 0xc001, DstPort: 4791}
	b := &rocelayers.BTH{Header: bth.Header{Opcode: bth.RCWriteFirst, M: true, PKey: 0xffff, DestQP: 0x11, PSN: 0xfffff0}}
	r := new(rocelayers.RETH)
	r.VA, r.RKey, r.DMALen = 0x7f0000000000, 0x1234, 4096
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	require.NoError(t, b.SetNetworkLayerForICRC(ip, udp))
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	require.NoError(t, gopacket.SerializeLayers(buf, opts, eth, ip, udp, b, r, gopacket.Payload(payload)))
	out := buf.Bytes()
	require.Equal(t, "29e892c9", hex.EncodeToString(out[len(out)-4:]))

	// Masked fields change nothing, others do.
	ip.TOS, ip.TTL, b.BECN = 255, 1, true
	require.NoError(t, gopacket.SerializeLayers(buf, opts, eth, ip, udp, b, r, gopacket.Payload(payload)))
	out = buf.Bytes()
	require.Equal(t, "29e892c9", hex.EncodeToString(out[len(out)-4:]))
	ip.Id++
	require.NoError(t, gopacket.SerializeLayers(buf, opts, eth, ip, udp, b, r, gopacket.Payload(payload)))
	require.NotEqual(t, "29e892c9", hex.EncodeToString(buf.Bytes()[len(out)-4:]))
	require.Equal(t, frame.ICRCGood, rocelayers.CheckICRC(gopacket.NewPacket(buf.Bytes(), layers.LinkTypeEthernet, gopacket.Default).NetworkLayer()))
}

// TestOptions has IPv4 options, which the ICRC covers.
func TestOptions(t *testing.T) {
	ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2)}
	udp := &layers.UDP{SrcPort: 1, DstPort: 4791}
	b := &rocelayers.BTH{Header: bth.Header{Opcode: bth.RCSendOnly}}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	require.NoError(t, b.SetNetworkLayerForICRC(ip, udp))
	buf := gopacket.NewSerializeBuffer()
	write := func(opts gopacket.SerializeOptions) error {
		return gopacket.SerializeLayers(buf, opts, ip, udp, b, gopacket.Payload("abcde"))
	}
	check := func() frame.ICRCState {
		var f frame.Frame
		require.NoError(t, f.Decode(frame.RawIP, buf.Bytes()))
		return f.CheckICRC()
	}
	both := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}},
		{OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	require.NoError(t, write(both))
	require.Equal(t, frame.ICRCGood, check())
	require.NoError(t, write(gopacket.SerializeOptions{ComputeChecksums: true}), "lengths as they stand now")
	require.Equal(t, frame.ICRCGood, check())
	for _, bad := range [][]layers.IPv4Option{
		{{OptionType: 1}}, // gopacket would leave the rest of the word undefined
		{{OptionType: 148, OptionLength: 1}},
		{{OptionType: 148, OptionLength: 8, OptionData: []byte{0, 0}}},
		{{OptionType: 148, OptionLength: 44, OptionData: make([]byte, 42)}},
	} {
		ip.Options = bad
		require.ErrorIs(t, write(both), rocelayers.ErrNetworkLayer)
	}
}

func TestErrors(t *testing.T) {
	ip4 := &layers.IPv4{SrcIP: net.IPv4(1, 2, 3, 4), DstIP: net.IPv4(1, 2, 3, 4)}
	ip6 := &layers.IPv6{SrcIP: net.IPv6loopback, DstIP: net.IPv6loopback}
	grh := &rocelayers.GRH{SrcGID: netip.IPv6Unspecified(), DstGID: netip.IPv6Unspecified()}
	udp := new(layers.UDP)
	b := &rocelayers.BTH{Header: bth.Header{Opcode: bth.RCSendOnly}}
	for _, n := range []gopacket.NetworkLayer{nil, ip4, ip6} {
		require.ErrorIs(t, b.SetNetworkLayerForICRC(n, nil), rocelayers.ErrNetworkLayer)
	}
	require.ErrorIs(t, b.SetNetworkLayerForICRC(grh, udp), rocelayers.ErrNetworkLayer)

	buf := gopacket.NewSerializeBuffer()
	compute := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	write := func(l ...gopacket.SerializableLayer) error {
		err := gopacket.SerializeLayers(buf, compute, l...)
		if err != nil && len(l) == 1 {
			require.Empty(t, buf.Bytes(), "nothing is written before an error")
		}
		return err
	}
	require.ErrorIs(t, write(b), rocelayers.ErrNoNetworkLayer)
	require.NoError(t, b.SetNetworkLayerForICRC(ip4, udp))
	require.NoError(t, write(b))
	require.ErrorIs(t, write(b, gopacket.Payload(make([]byte, 65500))), bth.ErrRange)
	require.NoError(t, b.SetNetworkLayerForICRC(ip6, udp))
	require.NoError(t, write(b))
	require.ErrorIs(t, write(b, gopacket.Payload(make([]byte, 65520))), bth.ErrRange)
	ip6.HopByHop = new(layers.IPv6HopByHop)
	require.ErrorIs(t, write(b), rocelayers.ErrNetworkLayer)
	ip6.HopByHop, ip6.SrcIP = nil, nil
	require.ErrorIs(t, write(b), rocelayers.ErrNetworkLayer)
	ip4.SrcIP = net.IPv6loopback
	require.NoError(t, b.SetNetworkLayerForICRC(ip4, udp))
	require.ErrorIs(t, write(b), rocelayers.ErrNetworkLayer)
	require.NoError(t, b.SetNetworkLayerForICRC(grh, nil))
	require.NoError(t, write(b))
	require.ErrorIs(t, write(b, gopacket.Payload(make([]byte, 65536))), bth.ErrRange)
	b.DestQP = 1 << 24
	require.ErrorIs(t, write(b), bth.ErrRange)
	grh.FlowLabel = 1 << 20
	require.ErrorIs(t, write(grh), bth.ErrRange)
	require.ErrorIs(t, write(&rocelayers.GRH{}), rocelayers.ErrNetworkLayer)
	d := new(rocelayers.DETH)
	d.SrcQP = 1 << 24
	require.ErrorIs(t, write(d), bth.ErrRange)

	// Decoding. What fails does not change the receiver.
	none := gopacket.NilDecodeFeedback
	good := buf.Bytes()
	_ = good
	for _, c := range []struct {
		name string
		data []byte
		err  error
	}{
		{"short", make([]byte, 15), bth.ErrTruncated},
		{"no room for RETH", append([]byte{0x06, 0, 255, 255}, make([]byte, 20)...), bth.ErrLength},
		{"no room for pad", append([]byte{0x04, 0x30, 255, 255}, make([]byte, 14)...), bth.ErrLength},
		{"payload of an acknowledgement", append([]byte{0x11, 0, 255, 255}, make([]byte, 20)...), bth.ErrLength},
		{"CNP of 12 bytes", append([]byte{0x81, 0, 255, 255}, make([]byte, 24)...), bth.ErrLength},
		{"ATOMIC WRITE of 4 bytes", append([]byte{0x1d, 0, 255, 255}, make([]byte, 32)...), bth.ErrLength},
	} {
		was := rocelayers.BTH{Header: bth.Header{PSN: 5}, ICRC: 7}
		got := was
		require.ErrorIs(t, got.DecodeFromBytes(c.data, none), c.err, c.name)
		require.Equal(t, was, got, c.name)
	}
	was := rocelayers.GRH{Length: 7}
	got := was
	require.ErrorIs(t, got.DecodeFromBytes(make([]byte, 39), none), rocelayers.ErrGRHTruncated)
	require.ErrorIs(t, got.DecodeFromBytes(make([]byte, 40), none), rocelayers.ErrGRHVersion)
	require.Equal(t, was, got)
}

// TestTruncated has frames that the capture cut.
func TestTruncated(t *testing.T) {
	f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, SrcPort: 0xc000,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		Packet: bth.Packet{Header: bth.Header{Opcode: bth.RCWriteOnlyImm, PKey: 0xffff}}}
	f.Packet.SetPayload([]byte("payload!!"))
	raw := f.AppendTo(nil)
	const headers = 14 + 20 + 8 + 12 + 16 + 4
	for n := range raw {
		p := gopacket.NewPacket(raw[:n], layers.LinkTypeEthernet, gopacket.Default)
		require.Equal(t, frame.ICRCUnchecked, rocelayers.CheckICRC(p.NetworkLayer()), n)
		l := p.Layer(rocelayers.LayerTypeBTH)
		if n < 14+20+8+12 {
			require.Nil(t, l, n)
			continue
		}
		require.True(t, l.(*rocelayers.BTH).Truncated, n)
		require.True(t, p.Metadata().Truncated, n)
		require.Equal(t, n >= headers-4, p.Layer(rocelayers.LayerTypeRETH) != nil, n)
		require.Equal(t, n >= headers, p.Layer(rocelayers.LayerTypeImmDt) != nil, n)
		if n > headers {
			require.Equal(t, raw[headers:n], p.ApplicationLayer().Payload(), n)
		}
	}
	f.Net = frame.GRH
	f.Src, f.Dst = netip.IPv6LinkLocalAllNodes(), netip.IPv6LinkLocalAllNodes()
	raw = f.AppendTo(nil)
	p := gopacket.NewPacket(raw[:len(raw)-1], layers.LinkTypeEthernet, gopacket.Default)
	require.True(t, p.Layer(rocelayers.LayerTypeBTH).(*rocelayers.BTH).Truncated)
	require.Equal(t, frame.ICRCUnchecked, rocelayers.CheckICRC(p.NetworkLayer()))
	require.Equal(t, frame.ICRCUnchecked, rocelayers.CheckICRC(p.LinkLayer()))
	require.Equal(t, frame.ICRCUnchecked, rocelayers.CheckICRC(&layers.IPv4{}))
	require.Equal(t, frame.ICRCUnchecked, rocelayers.CheckICRC(&rocelayers.GRH{}))

	// Ethernet padding and FCS are no part of it.
	p = gopacket.NewPacket(append(raw, 1, 2, 3, 4), layers.LinkTypeEthernet, gopacket.Default)
	require.Equal(t, frame.ICRCGood, rocelayers.CheckICRC(p.NetworkLayer()))
}

// TestUnknown has opcodes without a layout: the BTH is there, the rest payload.
func TestUnknown(t *testing.T) {
	for _, head := range []string{"1f30ffff", "c030ffff", "0431ffff"} {
		data, _ := hex.DecodeString(head + "0000001200000007" + "0102030405" + "aabbccdd")
		p := gopacket.NewPacket(data, rocelayers.LayerTypeBTH, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
		require.Len(t, p.Layers(), 2)
		b := p.Layer(rocelayers.LayerTypeBTH).(*rocelayers.BTH)
		require.Equal(t, uint32(0xddccbbaa), b.ICRC)
		require.Equal(t, []byte{1, 2}, p.ApplicationLayer().Payload())
		require.Equal(t, [3]byte{3, 4, 5}, b.Pad)
		buf := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializePacket(buf, gopacket.SerializeOptions{}, p))
		require.Equal(t, data, buf.Bytes())
	}
}

// TestAlone decodes extended headers without a BTH.
func TestAlone(t *testing.T) {
	data := bytes.Repeat([]byte{0x5a}, 40)
	for typ := rocelayers.LayerTypeRDETH; typ <= rocelayers.LayerTypeIETH; typ++ {
		p := gopacket.NewPacket(data, typ, gopacket.Default)
		require.Nil(t, p.ErrorLayer(), typ)
		require.Len(t, p.Layers(), 2)
		l := p.Layers()[0]
		require.Equal(t, typ, l.LayerType())
		require.Equal(t, typ.String(), l.LayerType().String())
		require.Equal(t, 40, len(l.LayerContents())+len(l.LayerPayload()))
		require.Equal(t, gopacket.LayerTypePayload, l.(gopacket.DecodingLayer).NextLayerType())
		require.True(t, l.(gopacket.DecodingLayer).CanDecode().Contains(typ))
		p = gopacket.NewPacket(data[:3], typ, gopacket.Default)
		require.NotNil(t, p.ErrorLayer(), typ)
		require.True(t, p.Metadata().Truncated)
	}
}

func TestRegister(t *testing.T) {
	rocelayers.Register() // once more
	require.Equal(t, rocelayers.LayerTypeBTH, layers.UDPPort(4791).LayerType())
	require.Equal(t, rocelayers.LayerTypeGRH, rocelayers.EthernetTypeRoCE.LayerType())
	require.Equal(t, "RoCE", rocelayers.EthernetTypeRoCE.String())
	for typ, name := range map[gopacket.LayerType]string{
		rocelayers.LayerTypeGRH: "GRH", rocelayers.LayerTypeBTH: "BTH", rocelayers.LayerTypeRDETH: "RDETH",
		rocelayers.LayerTypeDETH: "DETH", rocelayers.LayerTypeXRCETH: "XRCETH", rocelayers.LayerTypeFETH: "FETH",
		rocelayers.LayerTypeRETH: "RETH", rocelayers.LayerTypeAtomicETH: "AtomicETH", rocelayers.LayerTypeAETH: "AETH",
		rocelayers.LayerTypeAtomicAckETH: "AtomicAckETH", rocelayers.LayerTypeImmDt: "ImmDt", rocelayers.LayerTypeIETH: "IETH",
	} {
		require.Equal(t, name, typ.String())
		require.Contains(t, gopacket.DecodersByLayerName, name)
	}
	require.Equal(t, gopacket.LayerType(1470), rocelayers.LayerTypeGRH)
	require.Equal(t, gopacket.LayerType(1481), rocelayers.LayerTypeIETH)
}

// TestCheckICRCOfOthers: what is not RoCE has no ICRC that could be bad; what is in
// a tunnel has its own.
func TestCheckICRCOfOthers(t *testing.T) {
	rocelayers.Register()
	check := func(b []byte) frame.ICRCState {
		return rocelayers.CheckICRC(gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).NetworkLayer())
	}
	// Whatever else a kernel sent beside RoCE.
	files, err := filepath.Glob("../../fuzz/captures/*.pcap")
	require.NoError(t, err)
	others := 0
	for _, name := range files {
		recs, err := capture.ReadFile(name)
		require.NoError(t, err)
		for _, r := range recs {
			p := frame.Finder{}.Protocol(r.Link, r.Data, r.WireLen)
			if !(frame.Finder{}).IsRoCE(p) {
				others++
				require.Equal(t, frame.ICRCUnchecked, check(r.Data), p.String())
			}
		}
	}
	require.Greater(t, others, 100)

	// TCP and DNS, serialized by gopacket.
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, 2}}
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
	tcp, udp := &layers.TCP{SrcPort: 1, DstPort: 4791}, &layers.UDP{SrcPort: 1, DstPort: 53}
	dns := &layers.DNS{ID: 7, QDCount: 1, Questions: []layers.DNSQuestion{{Name: []byte("roce.example"), Type: layers.DNSTypeA, Class: layers.DNSClassIN}}}
	for _, c := range []struct {
		protocol layers.IPProtocol
		rest     []gopacket.SerializableLayer
	}{
		{layers.IPProtocolTCP, []gopacket.SerializableLayer{tcp, gopacket.Payload("sixteen bytes and more")}},
		{layers.IPProtocolUDP, []gopacket.SerializableLayer{udp, dns}},
	} {
		ip.Protocol = c.protocol
		buf := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, append([]gopacket.SerializableLayer{eth, ip}, c.rest...)...))
		require.Equal(t, frame.ICRCUnchecked, check(buf.Bytes()))
	}

	// Tunnels: by the outer network layer.
	recs, err := capture.ReadFile("../frame/testdata/tunnels.pcap")
	require.NoError(t, err)
	for i, want := range map[int]frame.ICRCState{0: frame.ICRCGood, 2: frame.ICRCGood, 14: frame.ICRCGood, 36: frame.ICRCGood} {
		b := append([]byte(nil), recs[i].Data...)
		require.Equal(t, want, check(b), "frame %d", i)
		b[len(b)-1] ^= 1
		require.Equal(t, frame.ICRCBad, check(b), "frame %d", i)
		require.Equal(t, frame.ICRCUnchecked, check(b[:len(b)-1]), "frame %d", i)
	}

	// A fragment, and RoCE v1 with another next header.
	b := append([]byte(nil), recs[41].Data...)
	require.Equal(t, frame.ICRCGood, check(b))
	b[14+3*4+6] = 0x20
	require.Equal(t, frame.ICRCUnchecked, check(b))
	b = append([]byte(nil), recs[6].Data[50:]...)
	require.Equal(t, frame.ICRCGood, check(b))
	b[14+6] = 59
	require.Equal(t, frame.ICRCUnchecked, check(b))
}

// BenchmarkDecode decodes a RDMA WRITE First of a capture: with gopacket down to
// UDP only, with our layers to the payload, and with package frame.
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
