package frame_test

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/reth"
)

var _ encoding.BinaryAppender = (*frame.Frame)(nil)

// sample returns a frame of a RDMA WRITE Only of five bytes and three of pad.
func sample(net frame.Net) *frame.Frame {
	f := &frame.Frame{
		Link: frame.Ethernet, Net: net, DstMAC: frame.MAC{2, 0, 0, 0, 0, 2}, SrcMAC: frame.MAC{2, 0, 0, 0, 0, 1},
		Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"),
		TrafficClass: 0x6a, HopLimit: 63, FlowLabel: 0x12345,
		Packet: bth.Packet{
			Header: bth.Header{Opcode: bth.RCWriteOnly, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 7},
			RETH:   reth.Header{VA: 0x1000, RKey: 0x55, DMALen: 5},
		},
	}
	if net == frame.IPv4 {
		f.Src, f.Dst = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		f.FlowLabel, f.DF, f.ID = 0, true, 0x1234
	}
	if net != frame.GRH {
		f.SrcPort, f.DstPort = 0xc001, frame.Port
	}
	f.Packet.SetPayload([]byte("hello"))
	return f
}

var nets = []frame.Net{frame.IPv4, frame.IPv6, frame.GRH}

// TestLayout holds offsets and values of what AppendTo builds byte by byte.
func TestLayout(t *testing.T) {
	transport := "0a30ffff0000001180000007" + "00000000000010000000005500000005" + "68656c6c6f000000"
	for _, c := range []struct {
		f    *frame.Frame
		want string
	}{
		{sample(frame.IPv4), "020000000002020000000001" + "0800" +
			"456a0044" + "12344000" + "3f11" + "a507" + "c0000201c0000202" + "c00112b700300000" + transport},
		{sample(frame.IPv6), "020000000002020000000001" + "86dd" +
			"66a12345" + "0030113f" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" +
			"c00112b700300000" + transport},
		{sample(frame.GRH), "020000000002020000000001" + "8915" +
			"66a12345" + "00281b3f" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" + transport},
	} {
		b := c.f.AppendTo(nil)
		require.Equal(t, c.want, hexOf(b[:len(b)-4]), c.f.Net)
		require.NoError(t, c.f.Validate())
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s []byte
	for _, c := range b {
		s = append(s, digits[c>>4], digits[c&15])
	}
	return string(s)
}

// TestKnownAnswer holds the ICRC of a frame that was built with two independent
// implementations, zlib's CRC over a masked copy and Scapy 2.5's own.
// Rule WI-15.
func TestKnownAnswer(t *testing.T) {
	f := frame.Frame{
		Link: frame.RawIP, Net: frame.IPv4, TrafficClass: 2, DF: true, HopLimit: 64,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xc001,
		Packet: bth.Packet{
			Header: bth.Header{Opcode: bth.RCWriteFirst, M: true, PKey: 0xffff, DestQP: 0x11, PSN: 0xfffff0},
			RETH:   reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096},
		},
	}
	payload := make([]byte, 1024)
	for i := range payload {
		payload[i] = byte(i)
	}
	f.Packet.SetPayload(payload)
	b := f.AppendTo(nil)
	require.Equal(t, "29e892c9", hexOf(b[len(b)-4:]))
}

// TestGopacketReads has another decoder read what AppendTo builds.
func TestGopacketReads(t *testing.T) {
	for _, net := range nets[:2] {
		for vlans := range uint8(3) {
			f := sample(net)
			f.VLANs, f.VLAN = vlans, [frame.MaxVLANs]frame.VLAN{{TPID: frame.EtherTypeQinQ, TCI: 0xa064}, {TPID: frame.EtherTypeVLAN, TCI: 0x0065}}
			if vlans == 1 {
				f.VLAN[0].TPID = frame.EtherTypeVLAN
			}
			if net == frame.IPv4 {
				f.Options = []byte{7, 7, 4, 0, 0, 0, 0, 0} // record route
			}
			p := gopacket.NewPacket(f.AppendTo(nil), layers.LayerTypeEthernet, gopacket.Default)
			require.Nil(t, p.ErrorLayer())
			eth := p.LinkLayer().(*layers.Ethernet)
			require.Equal(t, f.DstMAC[:], []byte(eth.DstMAC))
			require.Equal(t, f.SrcMAC[:], []byte(eth.SrcMAC))
			tags := 0
			for _, l := range p.Layers() {
				if tag, ok := l.(*layers.Dot1Q); ok {
					require.Equal(t, f.VLAN[tags].ID(), tag.VLANIdentifier)
					require.EqualValues(t, f.VLAN[tags].TCI>>13, tag.Priority)
					tags++
				}
			}
			require.EqualValues(t, vlans, tags)
			if ip, ok := p.NetworkLayer().(*layers.IPv4); ok {
				require.Equal(t, f.Src.AsSlice(), []byte(ip.SrcIP))
				require.Equal(t, f.Dst.AsSlice(), []byte(ip.DstIP))
				require.Equal(t, f.TrafficClass, ip.TOS)
				require.Equal(t, f.HopLimit, ip.TTL)
				require.Equal(t, f.ID, ip.Id)
				require.Equal(t, layers.IPv4DontFragment, ip.Flags)
				require.Len(t, ip.Options, 2) // the route, and the end of the list
				require.Equal(t, ip.Length, uint16(len(ip.Contents)+len(ip.Payload)))
				// With the right checksum the sum of the header is all ones.
				var sum uint32
				for i := 0; i < len(ip.Contents); i += 2 {
					sum += uint32(binary.BigEndian.Uint16(ip.Contents[i:]))
				}
				require.EqualValues(t, 0xffff, sum&0xffff+sum>>16)
			} else {
				ip := p.NetworkLayer().(*layers.IPv6)
				require.Equal(t, f.Src.AsSlice(), []byte(ip.SrcIP))
				require.Equal(t, f.Dst.AsSlice(), []byte(ip.DstIP))
				require.Equal(t, f.TrafficClass, ip.TrafficClass)
				require.Equal(t, f.FlowLabel, ip.FlowLabel)
				require.Equal(t, f.HopLimit, ip.HopLimit)
			}
			udp := p.TransportLayer().(*layers.UDP)
			require.EqualValues(t, f.SrcPort, udp.SrcPort)
			require.EqualValues(t, frame.Port, udp.DstPort)
			require.Equal(t, f.Packet.AppendHeadersTo(nil), udp.Payload[:28])
			require.Equal(t, 28+8+4, len(udp.Payload))
		}
	}
}

// TestDefaults holds what AppendTo writes for fields that were not set.
func TestDefaults(t *testing.T) {
	f := sample(frame.IPv4)
	f.DstPort, f.HopLimit = 0, 0
	require.NoError(t, f.Validate())
	var got frame.Frame
	require.NoError(t, got.Decode(frame.Ethernet, f.AppendTo(nil)))
	require.EqualValues(t, 4791, got.DstPort)
	require.Zero(t, got.HopLimit)
	require.NoError(t, got.Validate())

	// It never fails: no address is all zeros, no network is IPv6.
	require.NotPanics(t, func() {
		b := (&frame.Frame{}).AppendTo(nil)
		require.NoError(t, got.Decode(frame.RawIP, b))
		require.Equal(t, frame.IPv6, got.Net)
		require.Equal(t, netip.IPv6Unspecified(), got.Src)
		b = (&frame.Frame{Net: frame.IPv4, Src: netip.IPv6Unspecified(), Options: make([]byte, 99), VLANs: 9}).AppendTo(nil)
		require.NoError(t, got.Decode(frame.RawIP, b))
		require.Equal(t, netip.IPv4Unspecified(), got.Src)
		require.Len(t, got.Options, 40)
	})
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		net    frame.Net
		change func(*frame.Frame)
		want   error
	}{
		"ipv4":              {frame.IPv4, func(f *frame.Frame) {}, nil},
		"ipv6":              {frame.IPv6, func(f *frame.Frame) {}, nil},
		"grh":               {frame.GRH, func(f *frame.Frame) {}, nil},
		"port 0":            {frame.IPv4, func(f *frame.Frame) { f.DstPort = 0 }, nil},
		"hop limit 0":       {frame.IPv4, func(f *frame.Frame) { f.HopLimit = 0 }, nil},
		"no network":        {frame.IPv4, func(f *frame.Frame) { f.Net = 0 }, frame.ErrRange},
		"no address":        {frame.IPv4, func(f *frame.Frame) { f.Src = netip.Addr{} }, frame.ErrRange},
		"IPv6 in IPv4":      {frame.IPv4, func(f *frame.Frame) { f.Dst = netip.IPv6Unspecified() }, frame.ErrRange},
		"IPv4 in IPv6":      {frame.IPv6, func(f *frame.Frame) { f.Dst = netip.IPv4Unspecified() }, frame.ErrRange},
		"IPv4 in GRH":       {frame.GRH, func(f *frame.Frame) { f.Src = netip.IPv4Unspecified() }, frame.ErrRange},
		"zone":              {frame.IPv6, func(f *frame.Frame) { f.Src = netip.MustParseAddr("fe80::1%eth0") }, frame.ErrRange},
		"flow label":        {frame.IPv6, func(f *frame.Frame) { f.FlowLabel = 1 << 20 }, frame.ErrRange},
		"options":           {frame.IPv4, func(f *frame.Frame) { f.Options = make([]byte, 44) }, frame.ErrRange},
		"options, odd":      {frame.IPv4, func(f *frame.Frame) { f.Options = make([]byte, 3) }, frame.ErrRange},
		"options, all":      {frame.IPv4, func(f *frame.Frame) { f.Options = make([]byte, 40) }, nil},
		"tags":              {frame.IPv4, func(f *frame.Frame) { f.VLANs = 4 }, frame.ErrRange},
		"tag, no TPID":      {frame.IPv4, func(f *frame.Frame) { f.VLANs, f.VLAN[0] = 1, frame.VLAN{TCI: 5} }, frame.ErrRange},
		"tag":               {frame.IPv4, func(f *frame.Frame) { f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: 0x8100, TCI: 5} }, nil},
		"QP":                {frame.IPv4, func(f *frame.Frame) { f.Packet.DestQP = 1 << 24 }, bth.ErrRange},
		"packet":            {frame.IPv4, func(f *frame.Frame) { f.Packet.Opcode = 0xff }, bth.ErrOpcode},
		"longest of IPv4":   {frame.IPv4, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65532-20-8-32)) }, nil},
		"too long for IPv4": {frame.IPv4, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65536-20-8-32)) }, frame.ErrRange},
		"longest of IPv6":   {frame.IPv6, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65532-8-32)) }, nil},
		"too long for IPv6": {frame.IPv6, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65536-8-32)) }, frame.ErrRange},
		"longest of GRH":    {frame.GRH, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65532-32)) }, nil},
		"too long for GRH":  {frame.GRH, func(f *frame.Frame) { f.Packet.SetPayload(make([]byte, 65536-32)) }, frame.ErrRange},
	} {
		f := sample(c.net)
		c.change(f)
		require.ErrorIs(t, f.Validate(), c.want, name)
		b, err := f.AppendBinary([]byte("dst"))
		require.ErrorIs(t, err, c.want, name)
		if c.want != nil {
			require.True(t, c.want != frame.ErrRange || err.Error() != c.want.Error(), "the field is not named: %v", err)
			require.Equal(t, "dst", string(b), name)
			continue
		}
		var got frame.Frame
		require.NoError(t, got.Decode(frame.Ethernet, b[3:]), name)
		require.Equal(t, len(f.Packet.Payload), got.PayloadLen(), name)
		require.Equal(t, frame.ICRCGood, got.CheckICRC(), name)
	}
}

// TestRefusals changes a good frame, and holds why it is refused.
// Rules WI-4, WI-5.
func TestRefusals(t *testing.T) {
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
	}
	put8 := func(at int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = v; return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }
	const ip, udp4, udp6 = 14, 34, 54
	for name, c := range map[string]struct {
		net    frame.Net
		change func([]byte) []byte
		want   error
	}{
		"unchanged":               {frame.IPv4, func(b []byte) []byte { return b }, nil},
		"ARP":                     {frame.IPv4, put16(12, 0x0806), frame.ErrNotRoCE},
		"802.3 length":            {frame.IPv4, put16(12, 68), frame.ErrNotRoCE},
		"version 6 in IPv4":       {frame.IPv4, put8(ip, 0x65), frame.ErrNotRoCE},
		"header of 16 bytes":      {frame.IPv4, put8(ip, 0x44), frame.ErrLength},
		"header of 60 bytes":      {frame.IPv4, put8(ip, 0x4f), frame.ErrNotRoCE}, // another port there
		"TCP":                     {frame.IPv4, put8(ip+9, 6), frame.ErrNotRoCE},
		"first fragment":          {frame.IPv4, put16(ip+6, 0x2000), frame.ErrFragment},
		"later fragment":          {frame.IPv4, put16(ip+6, 0x0001), frame.ErrNotRoCE},
		"last fragment":           {frame.IPv4, put16(ip+6, 0x1fff), frame.ErrNotRoCE},
		"fragment with DF":        {frame.IPv4, put16(ip+6, 0x6000), frame.ErrFragment},
		"reserved flag":           {frame.IPv4, put16(ip+6, 0x8000), nil},
		"another port":            {frame.IPv4, put16(udp4+2, 4792), frame.ErrNotRoCE},
		"source port 4791":        {frame.IPv4, put16(udp4, 4791), nil},
		"source port of TFTP":     {frame.IPv4, put16(udp4, 69), nil},
		"source port 0":           {frame.IPv4, put16(udp4, 0), nil},
		"UDP shorter than IP":     {frame.IPv4, put16(udp4+4, 47), frame.ErrLength},
		"UDP longer than IP":      {frame.IPv4, put16(udp4+4, 49), frame.ErrLength},
		"IP longer than frame":    {frame.IPv4, put16(ip+2, 69), frame.ErrLength},
		"IP without room for UDP": {frame.IPv4, put16(ip+2, 27), frame.ErrLength},
		"IP shorter than itself":  {frame.IPv4, put16(ip+2, 19), frame.ErrLength},
		"IP of length 0":          {frame.IPv4, put16(ip+2, 0), frame.ErrLength},
		"both longer than frame": {frame.IPv4, func(b []byte) []byte {
			return put16(udp4+4, 49)(put16(ip+2, 69)(b))
		}, frame.ErrLength},
		"both too short for BTH": {frame.IPv4, func(b []byte) []byte {
			return put16(udp4+4, 8+15)(put16(ip+2, 20+8+15)(b))
		}, bth.ErrTruncated},
		"frame shorter than IP": {frame.IPv4, cut(1), frame.ErrLength},
		"opcode":                {frame.IPv4, put8(42, 0xff), bth.ErrOpcode},
		"transport version":     {frame.IPv4, put8(43, 0x31), bth.ErrVersion},
		// Of several faults the outermost is reported.
		"length before opcode":   {frame.IPv4, func(b []byte) []byte { b[42] = 0xff; return put16(udp4+4, 47)(b) }, frame.ErrLength},
		"port before length":     {frame.IPv4, func(b []byte) []byte { b[udp4+3] ^= 1; return put16(udp4+4, 47)(b) }, frame.ErrNotRoCE},
		"fragment before length": {frame.IPv4, func(b []byte) []byte { b[ip+6] = 0x20; return put16(udp4+4, 47)(b) }, frame.ErrFragment},
		"version before opcode":  {frame.IPv4, func(b []byte) []byte { b[42], b[43] = 0xff, 1; return b }, bth.ErrVersion},
		"opcode before bad ICRC": {frame.IPv4, func(b []byte) []byte { b[42] = 0xff; b[len(b)-1] ^= 1; return b }, bth.ErrOpcode},
		"bad ICRC is no refusal": {frame.IPv4, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, nil},
		"headers over the end":   {frame.IPv4, put8(42, byte(bth.RCCmpSwap)), bth.ErrLength},

		"version 4 in IPv6":       {frame.IPv6, put8(ip, 0x46), frame.ErrNotRoCE},
		"extension header":        {frame.IPv6, put8(ip+6, 0), frame.ErrNotRoCE},
		"fragment header":         {frame.IPv6, put8(ip+6, 44), frame.ErrNotRoCE},
		"another port, IPv6":      {frame.IPv6, put16(udp6+2, 4792), frame.ErrNotRoCE},
		"UDP shorter than IPv6":   {frame.IPv6, put16(udp6+4, 47), frame.ErrLength},
		"IPv6 longer than frame":  {frame.IPv6, put16(ip+4, 49), frame.ErrLength},
		"jumbogram":               {frame.IPv6, put16(ip+4, 0), frame.ErrLength},
		"IPv6 in RoCE v1":         {frame.IPv6, put16(12, frame.EtherTypeRoCE), frame.ErrNotRoCE},
		"version 4 in GRH":        {frame.GRH, put8(ip, 0x46), frame.ErrNotRoCE},
		"GRH announcing UDP":      {frame.GRH, put8(ip+6, 17), frame.ErrNotRoCE},
		"GRH longer than frame":   {frame.GRH, put16(ip+4, 41), frame.ErrLength},
		"GRH too short for a BTH": {frame.GRH, put16(ip+4, 15), bth.ErrTruncated},
		"GRH in IPv6":             {frame.GRH, put16(12, frame.EtherTypeIPv6), frame.ErrNotRoCE},
	} {
		b := c.change(sample(c.net).AppendTo(nil))
		f, before := dirty(t), dirty(t)
		err := f.Decode(frame.Ethernet, b)
		require.ErrorIs(t, err, c.want, name)
		if c.want != nil {
			require.Equal(t, before, f, name)
			require.Equal(t, errors.Is(c.want, bth.ErrTruncated), errors.Is(err, io.ErrUnexpectedEOF), name)
		}
		checkBytes(t, frame.Ethernet, b, len(b), frame.Finder{})
	}
	var f frame.Frame
	require.ErrorIs(t, f.Decode(0, make([]byte, 100)), frame.ErrLink)
	require.ErrorIs(t, f.Decode(147, make([]byte, 100)), frame.ErrLink)
	require.ErrorIs(t, f.Decode(frame.RawIPv4, sample(frame.IPv6).AppendTo(nil)[14:]), frame.ErrNotRoCE)
	require.ErrorIs(t, f.Decode(frame.RawIPv6, sample(frame.IPv4).AppendTo(nil)[14:]), frame.ErrNotRoCE)
	require.NoError(t, f.Decode(frame.RawIPv4, sample(frame.IPv4).AppendTo(nil)[14:]))
	require.NoError(t, f.Decode(frame.RawIPv6, sample(frame.IPv6).AppendTo(nil)[14:]))
}

// links has a network packet in a frame of each link type, with up to two tags
// where there may be tags, as a capture has them.
func links(net frame.Net) map[string]struct {
	link  frame.Link
	b     []byte
	vlans []frame.VLAN
} {
	type entry = struct {
		link  frame.Link
		b     []byte
		vlans []frame.VLAN
	}
	packet := sample(net).AppendTo(nil)[14:]
	etherType := map[frame.Net]uint16{frame.IPv4: 0x0800, frame.IPv6: 0x86dd, frame.GRH: 0x8915}[net]
	be := binary.BigEndian
	out := map[string]entry{}
	tags := []frame.VLAN{{TPID: 0x88a8, TCI: 0xa064}, {TPID: 0x8100, TCI: 0x0065}}
	for n := range 3 {
		use := tags[2-n:]
		suffix := [...]string{"", ", one tag", ", two tags"}[n]
		// Ethernet and cooked v1 have the Ethertype last, and tags after that.
		chain := func(head []byte) []byte {
			for _, v := range use {
				head = be.AppendUint16(be.AppendUint16(head, v.TPID), v.TCI)
			}
			return append(be.AppendUint16(head, etherType), packet...)
		}
		out["ethernet"+suffix] = entry{frame.Ethernet, chain(make([]byte, 12)), use}
		out["cooked v1"+suffix] = entry{frame.LinuxSLL, chain(make([]byte, 14)), use}
		// Cooked v2 has it first, 18 bytes ahead of tags.
		types := []uint16{etherType}
		for i := len(use) - 1; i >= 0; i-- {
			types = append([]uint16{use[i].TPID}, types...)
		}
		b := append(be.AppendUint16(nil, types[0]), make([]byte, 18)...)
		for i, v := range use {
			b = be.AppendUint16(be.AppendUint16(b, v.TCI), types[i+1])
		}
		out["cooked v2"+suffix] = entry{frame.LinuxSLL2, append(b, packet...), use}
	}
	if net != frame.GRH {
		out["raw"] = entry{frame.RawIP, packet, nil}
	}
	return out
}

// TestLinks reads each network packet behind each link, whole, with a trailer,
// and cut at every length.
// Rule WI-1.
func TestLinks(t *testing.T) {
	for _, net := range nets {
		for name, c := range links(net) {
			f := dirty(t)
			require.NoError(t, f.Decode(c.link, c.b), "%v %s", net, name)
			want := sample(net)
			want.Link = c.link
			want.VLANs = uint8(len(c.vlans))
			copy(want.VLAN[:], c.vlans)
			if c.link != frame.Ethernet {
				want.DstMAC, want.SrcMAC = frame.MAC{}, frame.MAC{}
			} else {
				want.DstMAC, want.SrcMAC = f.DstMAC, f.SrcMAC // the capture's are zero
				require.Zero(t, f.DstMAC)
			}
			require.Equal(t, withoutViews(want), withoutViews(f), "%v %s", net, name)
			require.Equal(t, frame.ICRCGood, f.CheckICRC())
			require.Nil(t, f.Trailer)
			if c.link == frame.Ethernet {
				require.Equal(t, c.b, f.AppendTo(nil), "%v %s", net, name)
			}

			for n := 1; n < 8; n++ { // an FCS is four
				b := append(bytes.Clone(c.b), bytes.Repeat([]byte{0xfc}, n)...)
				g := dirty(t)
				require.NoError(t, g.Decode(c.link, b))
				require.Equal(t, bytes.Repeat([]byte{0xfc}, n), g.Trailer)
				require.Equal(t, f.NetPacket, g.NetPacket)
				require.Equal(t, frame.ICRCGood, g.CheckICRC())
			}

			headers := len(c.b) - 12 // before payload, pad and ICRC
			for kept := range len(c.b) {
				b := c.b[:kept:kept]
				g, before := dirty(t), dirty(t)
				err := frame.Finder{}.Decode(c.link, b, len(c.b), g)
				if kept < headers {
					require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%v %s, %d of %d", net, name, kept, len(c.b))
					require.Equal(t, before, g)
					require.Error(t, before.Decode(c.link, b), "nor without the length")
					continue
				}
				require.NoError(t, err, "%v %s, %d of %d", net, name, kept, len(c.b))
				require.True(t, g.Truncated())
				require.Equal(t, frame.ICRCUnchecked, g.CheckICRC(), "cut is not bad")
				require.Equal(t, 5, g.PayloadLen())
				require.Equal(t, "hello"[:min(kept-headers, 5)], string(g.Packet.Payload))
				require.Equal(t, f.Packet.Header, g.Packet.Header)
				require.Equal(t, f.Packet.RETH, g.Packet.RETH)
				require.Equal(t, f.TransportLen, g.TransportLen)
				// Without the length on the wire it is a frame too short for its IP.
				require.ErrorIs(t, before.Decode(c.link, b), frame.ErrLength)
			}
		}
	}
}

// TestTags holds that three tags are read, of any kind, and four are not.
func TestTags(t *testing.T) {
	b := links(frame.IPv4)["ethernet, two tags"].b
	b = append(b[:12:12], append([]byte{0x91, 0, 0, 1}, b[12:]...)...)
	f := dirty(t)
	require.NoError(t, f.Decode(frame.Ethernet, b))
	require.EqualValues(t, 3, f.VLANs)
	require.Equal(t, [3]frame.VLAN{{TPID: 0x9100, TCI: 1}, {TPID: 0x88a8, TCI: 0xa064}, {TPID: 0x8100, TCI: 0x65}}, f.VLAN)
	require.NoError(t, f.Validate())
	require.Equal(t, b, f.AppendTo(nil))
	b = append(b[:12:12], append([]byte{0x81, 0, 0, 1}, b[12:]...)...)
	require.ErrorIs(t, f.Decode(frame.Ethernet, b), frame.ErrNotRoCE)
}

// TestTagsCut: a frame that is cut within a tag is truncated, and one that is cut behind it
// is what the Ethertype there says.
func TestTagsCut(t *testing.T) {
	for n := 1; n <= 3; n++ {
		for etherType, want := range map[uint16]error{0x0806: frame.ErrNotRoCE, 0x0800: frame.ErrTruncated} {
			b := make([]byte, 12)
			for range n {
				b = append(b, 0x81, 0, 0, 7)
			}
			b = binary.BigEndian.AppendUint16(b, etherType)
			var f frame.Frame
			require.ErrorIs(t, f.Decode(frame.Ethernet, b), want, "%d tags", n)
			for cut := 1; cut <= 4*n+2; cut++ {
				require.ErrorIs(t, f.Decode(frame.Ethernet, b[:len(b)-cut]), frame.ErrTruncated, "%d tags, %d bytes less", n, cut)
			}
		}
	}
}

// TestMaxHeaderSize: it is what the frame with the most headers has besides its payload.
func TestMaxHeaderSize(t *testing.T) {
	most := 0
	for op := range 256 {
		f := sample(frame.IPv4)
		f.Link, f.VLANs, f.Options = frame.Ethernet, 3, make([]byte, 40)
		f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.Opcode(op)}}
		if f.Packet.Opcode.Known() {
			most = max(most, len(f.AppendTo(nil)))
		}
	}
	require.Equal(t, frame.MaxHeaderSize, most)
}

// TestEthernetPadding holds that what fills a short frame up to 60 bytes is no
// ICRC.
// Rule WI-2.
func TestEthernetPadding(t *testing.T) {
	f := sample(frame.IPv4)
	f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.RCSendOnly, PKey: 0xffff}}
	b := f.AppendTo(nil)
	require.Len(t, b, 58)
	var got frame.Frame
	require.NoError(t, got.Decode(frame.Ethernet, append(b, 0, 0)))
	require.Equal(t, []byte{0, 0}, got.Trailer)
	require.Equal(t, frame.ICRCGood, got.CheckICRC())
	require.Zero(t, got.PayloadLen())
}

// Rule WI-3.
func TestCheckICRC(t *testing.T) {
	require.Equal(t, frame.ICRCUnchecked, (&frame.Frame{}).CheckICRC())
	for _, net := range nets {
		b := sample(net).AppendTo(nil)
		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, b))
		require.Equal(t, frame.ICRCGood, f.CheckICRC())
		b[len(b)-6] ^= 1 // a bit of pad
		require.Equal(t, frame.ICRCBad, f.CheckICRC())
		b[len(b)-6] ^= 1
		b[15] ^= 3 // congestion experienced: not covered
		require.Equal(t, frame.ICRCGood, f.CheckICRC())

		// Each bit from the BTH on, but for the byte of FECN and BECN.
		for i := range f.Transport {
			for bit := range 8 {
				f.Transport[i] ^= 1 << bit
				want := frame.ICRCBad
				if i == 4 {
					want = frame.ICRCGood
				}
				require.Equal(t, want, f.CheckICRC(), "%v, byte %d, bit %d", net, i, bit)
				f.Transport[i] ^= 1 << bit
			}
		}
	}
}

func TestPort(t *testing.T) {
	for _, net := range nets[:2] {
		f := sample(net)
		f.DstPort = 1021
		b := f.AppendTo(nil)
		var got frame.Frame
		require.ErrorIs(t, got.Decode(frame.Ethernet, b), frame.ErrNotRoCE)
		require.NoError(t, frame.Finder{UDPPort: 1021}.Decode(frame.Ethernet, b, len(b), &got))
		require.EqualValues(t, 1021, got.DstPort)
		require.NoError(t, frame.Finder{UDPPort: 1021}.Find(frame.Ethernet, b, len(b), &got))
		b = sample(net).AppendTo(nil)
		require.ErrorIs(t, frame.Finder{UDPPort: 1021}.Decode(frame.Ethernet, b, len(b), &got), frame.ErrNotRoCE)
	}
}

// Rule WI-7.
func TestECN(t *testing.T) {
	for tc := range 256 {
		f := frame.Frame{TrafficClass: uint8(tc)}
		require.EqualValues(t, tc&3, f.ECN())
		require.EqualValues(t, tc>>2, f.DSCP())
	}
	require.Equal(t, []frame.ECN{0, 1, 2, 3}, []frame.ECN{frame.NotECT, frame.ECT1, frame.ECT0, frame.CE})
	require.EqualValues(t, 100, frame.VLAN{TCI: 0xa064}.ID())
}

// TestEntropy holds both ways to a source port, by worked numbers.
// Rule WI-6.
func TestEntropy(t *testing.T) {
	for label, port := range map[uint32]uint16{
		0: 0xc000, 1: 0xc001, 0x3fff: 0xffff, 0x4000: 0xc001, 0xfffff: 0xffc0, 0x12345: 0xe341,
		0xfff12345: 0xe341, // 20 bits count
	} {
		require.Equal(t, port, frame.SourcePort(label), "%#x", label)
	}
	for _, c := range []struct {
		l, r, label uint32
		port        uint16
	}{
		{0x11, 0x12, 0x00132, 0xc132}, {0x48, 0x45, 0x01368, 0xd368}, {0xabcdef, 0x123456, 0xac3e3, 0xc3c8},
		{0xffffff, 0xffffff, 0xfff1e, 0xff21}, {2, 3, 0x00006, 0xc006},
	} {
		require.Equal(t, c.label, frame.FlowLabel(c.l, c.r))
		require.Equal(t, c.label, frame.FlowLabel(c.r, c.l), "symmetric")
		require.Equal(t, c.port, frame.SourcePort(c.label))
	}
}

func TestNames(t *testing.T) {
	for i := range 256 {
		require.NotEmpty(t, frame.Net(i).String())
		require.NotEmpty(t, frame.ICRCState(i).String())
	}
	require.Equal(t, "none ipv4 ipv6 grh", frame.Net(0).String()+" "+frame.IPv4.String()+" "+frame.IPv6.String()+" "+frame.GRH.String())
	require.Equal(t, "unchecked good bad", frame.ICRCUnchecked.String()+" "+frame.ICRCGood.String()+" "+frame.ICRCBad.String())
}

// A frame whose link was forgotten, or is one that AppendTo makes no header of,
// does not validate; nor does a GRH without its Ethertype.
func TestValidateLink(t *testing.T) {
	f, _ := writeFrame()
	for link, want := range map[frame.Link]error{
		frame.Ethernet: nil, frame.RawIP: nil, frame.RawIPv4: nil, frame.RawIPv6: nil,
		0: frame.ErrLink, frame.LinuxSLL: frame.ErrLink, frame.LinuxSLL2: frame.ErrLink,
	} {
		f.Link = link
		require.Equal(t, want, f.Validate(), link)
	}
	f.Net, f.Link = frame.GRH, frame.RawIP
	require.Equal(t, frame.ErrLink, f.Validate())
}

// The numbers of pcap files, by tcpdump.org's list of link-layer types.
func TestLinkNumbers(t *testing.T) {
	require.Equal(t, [...]frame.Link{1, 101, 113, 228, 229, 276},
		[...]frame.Link{frame.Ethernet, frame.RawIP, frame.LinuxSLL, frame.RawIPv4, frame.RawIPv6, frame.LinuxSLL2})
}
