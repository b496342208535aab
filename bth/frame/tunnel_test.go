package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// tunnelled is a frame of testdata/tunnels.pcap, with its dissection by tshark
// 4.0.17: tshark was configured so that port 8472 is VXLAN and which labels are
// pseudowires, and knows nothing of GRE 0x8949.
//
// The outer headers were built with Scapy 2.5, but for those that it does not
// have (VXLAN-GPE, ERSPAN III, routing headers), which were written by hand after
// their specifications; the first three frames are from a field report. The
// packets inside have an ICRC by zlib's CRC.
type tunnelled struct {
	name string
	b    []byte
	row  map[string]string
}

func loadTunnels(t testing.TB) (all []tunnelled) {
	t.Helper()
	b, err := os.ReadFile("testdata/tunnels.tshark.tsv")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	recs, err := capture.ReadFile("testdata/tunnels.pcap")
	require.NoError(t, err)
	require.Equal(t, len(lines)-1, len(recs))
	for i, line := range lines[1:] {
		x := tunnelled{b: recs[i].Data, row: map[string]string{}}
		for j, v := range strings.Split(line, "\t") {
			x.row[names[j]] = v
		}
		x.name = x.row["name"]
		all = append(all, x)
	}
	require.Equal(t, 43, len(all))
	return all
}

var intoTunnels = frame.Finder{Tunnels: true}

// kindsOf are the tunnels of each frame, outermost first, by the names of the
// frames.
func kindsOf(name string) []frame.TunnelKind {
	first, rest, _ := strings.Cut(name, "-")
	switch {
	case name == "three-tags", name == "old-qinq":
		return nil
	case name == "vxlan-in-erspan2":
		return []frame.TunnelKind{frame.ERSPAN2, frame.VXLAN}
	case name == "gre-mpls":
		return []frame.TunnelKind{frame.GRE, frame.MPLS}
	case rest == "mpls":
		return []frame.TunnelKind{frame.MPLS}
	case first == "ip4", first == "ip6":
		return []frame.TunnelKind{frame.IPinIP}
	case strings.HasPrefix(name, "vxlan-gpe"):
		return []frame.TunnelKind{frame.VXLANGPE}
	case first == "ether":
		return []frame.TunnelKind{frame.EtherInIP}
	}
	return []frame.TunnelKind{map[string]frame.TunnelKind{"vxlan": frame.VXLAN, "geneve": frame.Geneve, "gre": frame.GRE,
		"gretap": frame.GRETAP, "erspan1": frame.ERSPAN1, "erspan2": frame.ERSPAN2, "erspan3": frame.ERSPAN3,
		"mirror": frame.Mirror, "mpls": frame.MPLS, "srv6": frame.SRv6}[first]}
}

// TestTunnels compares all that Find reports of each frame with tshark.
func TestTunnels(t *testing.T) {
	for _, x := range loadTunnels(t) {
		t.Run(x.name, func(t *testing.T) {
			f := dirty(t)
			require.NoError(t, intoTunnels.Decode(frame.Ethernet, x.b, len(x.b), f))
			require.Equal(t, frame.ICRCGood, f.CheckICRC())
			var kinds []frame.TunnelKind
			got := map[string][]string{}
			add := func(k, format string, v ...any) { got[k] = append(got[k], fmt.Sprintf(format, v...)) }
			tags := func(vlans []frame.VLAN) {
				for _, v := range vlans {
					if v.TPID == frame.EtherTypeQinQ {
						add("ieee8021ad.id", "%d", v.ID())
					} else {
						add("vlan.id", "%d", v.ID())
					}
				}
			}
			addresses := func(net frame.Net, src, dst netip.Addr) {
				switch net {
				case frame.IPv4:
					add("ip.src", "%s", src)
					add("ip.dst", "%s", dst)
				case frame.IPv6:
					add("ipv6.src", "%s", src)
					add("ipv6.dst", "%s", dst)
				}
			}
			for i := range f.Outer.Len() {
				u := f.Outer.Tunnel(i)
				kinds = append(kinds, u.Kind)
				tags(u.VLAN[:u.VLANs])
				addresses(u.Net, u.Src, u.Dst)
				if u.HasID {
					switch u.Kind {
					case frame.VXLAN, frame.VXLANGPE:
						add("vxlan.vni", "%d", u.ID)
					case frame.Geneve:
						add("geneve.vni", "0x%06x", u.ID)
					case frame.GRE, frame.GRETAP:
						add("gre.key", "0x%08x", u.ID)
					case frame.ERSPAN2, frame.ERSPAN3:
						add("erspan.spanid", "%d", u.ID)
					case frame.MPLS:
						add("mpls.label", "%d", u.ID)
					}
				}
			}
			require.Equal(t, kindsOf(x.name), kinds)
			tags(f.VLAN[:f.VLANs])
			addresses(f.Net, f.Src, f.Dst)
			add("infiniband.bth.destqp", "0x%06x", f.Packet.DestQP)
			add("infiniband.bth.psn", "%d", f.Packet.PSN)
			add("infiniband.invariant.crc", "0x%x", binary.LittleEndian.AppendUint32(nil, f.Packet.ICRC))
			if strings.HasPrefix(x.name, "mirror") { // which tshark does not read
				require.Equal(t, "eth:ethertype:ip:gre:data", x.row["frame.protocols"])
				require.Equal(t, []string{"0xb0a45b6f"}, got["infiniband.invariant.crc"])
				require.Equal(t, []string{"198.51.100.1", "192.0.2.1"}, got["ip.src"])
				return
			}
			macs := strings.Split(x.row["eth.src"], ",")
			if f.Link == frame.Ethernet {
				s := hexOf(f.SrcMAC[:])
				require.Equal(t, strings.ReplaceAll(macs[len(macs)-1], ":", ""), s)
			} else {
				require.Len(t, macs, 1)
				require.Zero(t, f.SrcMAC)
			}
			ports := strings.Split(x.row["udp.dstport"], ",")
			if f.Net != frame.GRH {
				require.Equal(t, ports[len(ports)-1], strconv.Itoa(int(f.DstPort)))
			}
			for k, w := range x.row {
				switch k {
				case "name", "frame.protocols", "eth.src", "udp.dstport":
				case "mpls.label":
					labels := strings.Split(w, ",")
					require.Equal(t, labels[len(labels)-1], strings.Join(got[k], ","), k)
				default:
					require.Equal(t, w, strings.Join(got[k], ","), k)
				}
			}
			checkBytes(t, frame.Ethernet, x.b, len(x.b), intoTunnels)

			// What the packet is around, it is by itself.
			if f.Outer.Len() > 0 {
				require.Equal(t, frame.Ethernet, f.Outer.Link)
				n := len(f.Outer.Headers)
				require.True(t, bytes.HasPrefix(x.b, f.Outer.Headers))
				require.Equal(t, n, cap(f.Outer.Headers))
				var g frame.Frame
				require.NoError(t, g.Decode(f.Link, x.b[n:]))
				require.Zero(t, g.Outer)
				g.Outer = f.Outer
				require.Equal(t, g, *f)
				require.ErrorIs(t, g.Decode(frame.Ethernet, x.b), frame.ErrNotRoCE, "only as an option")
			}
			require.Equal(t, x.b[len(f.Outer.Headers):], f.AppendTo(nil))
		})
	}
}

// TestTunnelsCut cuts each frame at every length. As long as the headers of the
// packet are there it is found, and cut rather than bad.
func TestTunnelsCut(t *testing.T) {
	for _, x := range loadTunnels(t) {
		headers := len(x.b) - 20 // payload and ICRC
		for n := range len(x.b) {
			f, before := dirty(t), dirty(t)
			err := intoTunnels.Decode(frame.Ethernet, x.b[:n:n], len(x.b), f)
			if n < headers {
				require.Error(t, err, "%s, %d", x.name, n)
				require.Equal(t, before, f)
				intoTunnels.Protocol(frame.Ethernet, x.b[:n:n], len(x.b))
				continue
			}
			require.NoError(t, err, "%s, %d", x.name, n)
			require.True(t, f.Truncated())
			require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
			require.EqualValues(t, 100, f.Packet.PSN)

			// The same, where the rest of it was never on the wire.
			err = intoTunnels.Decode(frame.Ethernet, x.b[:n:n], n, f)
			require.ErrorIs(t, err, frame.ErrLength, "%s, %d", x.name, n)
			g := dirty(t)
			require.NoError(t, frame.Finder{Tunnels: true, Sliced: true}.Decode(frame.Ethernet, x.b[:n:n], n, g))
			require.Equal(t, f, g)
		}
	}
}

// TestTunnelFragmented: the first fragment of a tunnel's packet has the headers of the
// packet inside; it is cut. Later fragments are named.
func TestTunnelFragmented(t *testing.T) {
	b := bytes.Clone(loadTunnels(t)[14].b) // GRE
	n := 80                                // of 100 bytes of the outer packet
	binary.BigEndian.PutUint16(b[16:], uint16(n))
	b[20] = 0x20 // more fragments
	b = b[:14+n]
	var f frame.Frame
	require.ErrorIs(t, intoTunnels.Decode(frame.Ethernet, b, len(b), &f), frame.ErrLength)
	require.NoError(t, captured.Decode(frame.Ethernet, b, len(b), &f))
	require.True(t, f.Truncated())
	require.EqualValues(t, 100, f.Packet.PSN)
	b[20], b[21] = 0, 9
	require.ErrorIs(t, captured.Decode(frame.Ethernet, b, len(b), &f), frame.ErrNotRoCE)
	require.Equal(t, "IP fragment of protocol 47 (GRE)", captured.Protocol(frame.Ethernet, b, len(b)).String())
}

// TestTunnelBytes changes any bytes of frames with tunnels.
func TestTunnelBytes(t *testing.T) {
	all := loadTunnels(t)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(rapid.SampledFrom(all).Draw(t, "frame").b)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			i := rapid.IntRange(12, len(b)-1).Draw(t, "at")
			b[i] = rapid.Byte().Draw(t, "byte")
		}
		b = b[:rapid.IntRange(len(b)/2, len(b)).Draw(t, "kept")]
		wire := len(b) + rapid.SampledFrom([]int{0, 0, 9, 200}).Draw(t, "wire")
		checkBytes(t, frame.Ethernet, b, wire, captured)
	})
}

// TestW3Sliced is a packet of 1084 bytes of which a switch sent 96, in a capture
// that calls them the whole.
func TestW3Sliced(t *testing.T) {
	b, err := hex.DecodeString("02000000000202000000000108004502043c000040004011b2abc0000201c0000202c00112b7042800000600ffff000000120000006400000000000010000000007700001000" + strings.Repeat("0", 54))
	require.NoError(t, err)
	b = b[:96:96]
	var f frame.Frame
	require.ErrorIs(t, f.Decode(frame.Ethernet, b), frame.ErrLength)
	require.NoError(t, frame.Finder{Sliced: true}.Decode(frame.Ethernet, b, 96, &f))
	require.True(t, f.Truncated())
	require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
	require.Equal(t, 1024, f.PayloadLen())
	require.Len(t, f.Packet.Payload, 96-14-20-8-12-16)
	require.EqualValues(t, 100, f.Packet.PSN)
}

// TestVXLANPorts: VXLAN on another port is found where VXLANPorts has it.
func TestVXLANPorts(t *testing.T) {
	b := bytes.Clone(loadTunnels(t)[2].b)
	binary.BigEndian.PutUint16(b[36:], 4444)
	var f frame.Frame
	require.ErrorIs(t, intoTunnels.Decode(frame.Ethernet, b, len(b), &f), frame.ErrNotRoCE)
	require.Equal(t, "UDP 4444", intoTunnels.Protocol(frame.Ethernet, b, len(b)).String())
	told := frame.Finder{Tunnels: true, VXLANPorts: []uint16{1, 4444}}
	require.NoError(t, told.Decode(frame.Ethernet, b, len(b), &f))
	require.Equal(t, frame.VXLAN, f.Outer.Tunnel(0).Kind)
	require.Panics(t, func() { f.Outer.Tunnel(1) })
	// The packet's port, in a tunnel too, is the Finder's.
	told.UDPPort = 4792
	require.ErrorIs(t, told.Decode(frame.Ethernet, b, len(b), &f), frame.ErrNotRoCE)
	require.Equal(t, "UDP 4791 (RoCE v2) in vxlan", told.Protocol(frame.Ethernet, b, len(b)).String())
}

// TestTunnelsRefused changes a frame so that it cannot be decoded any more,
// and holds what it is called then.
func TestTunnelsRefused(t *testing.T) {
	byName := map[string][]byte{}
	for _, x := range loadTunnels(t) {
		byName[x.name] = x.b
	}
	put := func(at int, v ...byte) func([]byte) { return func(b []byte) { copy(b[at:], v) } }
	const ip, udp, own = 14, 34, 42
	for _, c := range []struct {
		of     string
		change func([]byte)
		want   string
	}{
		{"vxlan", put(own, 0), "UDP 4789 (VXLAN)"},
		{"vxlan", put(udp+4, 0, 7), "UDP 4789 (VXLAN)"},
		{"vxlan", put(ip+6, 0x20, 1), "IP fragment of protocol 17 (UDP)"},
		{"vxlan", put(own+8+12, 8, 6), "Ethertype 0x0806 (ARP) in vxlan"},
		{"vxlan", put(own+8+14+9, 6), "TCP in vxlan"},
		{"vxlan", put(own+8+14+22, 0, 53), "UDP 53 (DNS) in vxlan"},
		{"vxlan-gpe-ipv4", put(own+3, 9), "UDP 4790 (VXLAN-GPE)"},
		{"vxlan-gpe-ipv4", put(own, 8), "UDP 4790 (VXLAN-GPE)"},
		{"geneve-options", put(own, 0x80), "UDP 6081 (Geneve)"},
		{"geneve-options", put(own, 0x3f), "UDP 6081 (Geneve)"},
		{"geneve-options", put(own+2, 8, 6), "UDP 6081 (Geneve)"},
		{"gre-ipv4", put(udp, 0x40), "IP protocol 47 (GRE)"},
		{"gre-ipv4", put(udp+1, 1), "IP protocol 47 (GRE)"},
		{"gre-ipv4", put(udp+2, 8, 6), "GRE 0x0806"},
		{"erspan2", put(udp+8, 0x20), "GRE 0x88be (ERSPAN)"},
		{"erspan3", put(udp+8, 0x10), "GRE 0x22eb (ERSPAN III)"},
		{"erspan3", put(udp+8+10, 4), "GRE 0x22eb (ERSPAN III)"},
		{"ip4-in-ip4", put(ip, 0x40), "IP protocol 4 (IPv4 in IP)"},
		{"ip4-in-ip4", put(ip+9, 50), "IP protocol 50 (ESP)"},
		{"srv6-ipv4", put(ip+40, 17), "IP protocol 43 (IPv6 routing header)"},
		{"srv6-ipv4", put(ip+40, 58), "IP protocol 58 (ICMPv6)"},
		{"mpls-ipv4", put(14+6, 0x00), "Ethertype 0x8847 (MPLS)"}, // no last label
		{"mpls-ipv4", put(14+8, 0x50), "Ethertype 0x8847 (MPLS)"},
		{"three-tags", put(12+12, 0x81, 0), "Ethertype 0x8100"}, // a fourth
		{"three-tags", put(12+12, 0, 60), "IEEE 802.3"},
	} {
		b := bytes.Clone(byName[c.of])
		c.change(b)
		var f frame.Frame
		require.ErrorIs(t, intoTunnels.Decode(frame.Ethernet, b, len(b), &f), frame.ErrNotRoCE, "%s: %s", c.of, c.want)
		p := intoTunnels.Protocol(frame.Ethernet, b, len(b))
		require.Equal(t, c.want, p.String(), c.of)
		require.False(t, intoTunnels.IsRoCE(p))
		checkBytes(t, frame.Ethernet, b, len(b), intoTunnels)
	}
	// Without the option no tunnel is decoded, and all are named.
	for name, want := range map[string]string{"erspan1": "GRE 0x88be (ERSPAN)", "vxlan": "UDP 4789 (VXLAN)", "mirror-22": "GRE 0x8949 (NVIDIA mirror)",
		"mpls-pw": "Ethertype 0x8847 (MPLS)", "ip6-in-ip4": "IP protocol 41 (IPv6 in IP)", "three-tags": "UDP 4791 (RoCE v2)"} {
		p := frame.Finder{}.Protocol(frame.Ethernet, byName[name], len(byName[name]))
		require.Equal(t, want, p.String())
		require.Equal(t, name == "three-tags", frame.Finder{}.IsRoCE(p))
	}
	// Encryption and the tunnels that no Finder looks into may hide RoCE packets.
	for p, want := range map[frame.Protocol]string{
		{Kind: frame.EtherType, Number: 0x22f3}: "Ethertype 0x22f3 (TRILL)", {Kind: frame.EtherType, Number: 0x88e5}: "Ethertype 0x88e5 (MACsec)",
		{Kind: frame.EtherType, Number: 0x88e7}: "Ethertype 0x88e7 (802.1ah)", {Kind: frame.EtherType, Number: 0x894f}: "Ethertype 0x894f (NSH)",
		{Kind: frame.IPProtocol, Number: 51}: "IP protocol 51 (AH)", {Kind: frame.IPProtocol, Number: 115}: "IP protocol 115 (L2TP)",
		{Kind: frame.UDPPort, Number: 1701}: "UDP 1701 (L2TP)", {Kind: frame.UDPPort, Number: 51820}: "UDP 51820 (WireGuard)",
	} {
		require.Equal(t, want, p.String())
		require.True(t, p.MayHide(), want)
	}
	require.False(t, frame.Protocol{Kind: frame.EtherType, Number: 0x0806}.MayHide())
	require.Equal(t, "link type 147", frame.Finder{}.Protocol(147, byName["vxlan"], 99).String())
	require.True(t, frame.Finder{}.IsRoCE(frame.Finder{}.Protocol(frame.Ethernet, append(make([]byte, 12), 0x89, 0x15), 14)))
}

// TestTunnelDepth: at most MaxTunnels are decoded.
func TestTunnelDepth(t *testing.T) {
	packet := loadTunnels(t)[0].b[38+14:]
	const most = 4
	for n := range most + 2 {
		b := packet
		for range n {
			h := make([]byte, 20)
			h[0], h[8], h[9] = 0x45, 64, 4
			binary.BigEndian.PutUint16(h[2:], uint16(20+len(b)))
			b = append(h, b...)
		}
		var f frame.Frame
		err := intoTunnels.Decode(frame.RawIP, b, len(b), &f)
		if n > most {
			require.ErrorIs(t, err, frame.ErrNotRoCE)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, n, f.Outer.Len())
		require.Equal(t, frame.RawIP, f.Link)
	}
}

// TestTunnelsOfCookedFrames: the tunnels and tags of a frame are the same where a capture
// of all interfaces has a cooked header in the place of its Ethernet header.
func TestTunnelsOfCookedFrames(t *testing.T) {
	tagged := 0
	for _, x := range loadTunnels(t) {
		for _, tags := range []string{"", "\x81\x00\x60\x07", "\x88\xa8\x00\x09\x81\x00\x60\x07"} {
			b := slices.Concat(x.b[:12], []byte(tags), x.b[12:])
			cooked := slices.Concat(b[12:14], make([]byte, 18), b[14:])
			var f, g frame.Frame
			err := intoTunnels.Decode(frame.Ethernet, b, len(b), &f)
			require.Equal(t, err, intoTunnels.Decode(frame.LinuxSLL2, cooked, len(cooked), &g), x.name)
			if err != nil {
				continue
			}
			require.Equal(t, f.Outer.Len(), g.Outer.Len())
			for i := range f.Outer.Len() {
				require.Equal(t, f.Outer.Tunnel(i), g.Outer.Tunnel(i), "%s %q", x.name, tags)
				if i == 0 && len(tags) == 4 && f.Outer.Tunnel(i).VLANs == 1 {
					require.Equal(t, frame.VLAN{TPID: 0x8100, TCI: 0x6007}, g.Outer.Tunnel(i).VLAN[0])
					tagged++
				}
			}
		}
	}
	require.NotZero(t, tagged)
}

// TestSegment: a flow's packets and their copies have one segment, both ways;
// tenants have their own.
func TestSegment(t *testing.T) {
	segment := func(name string) frame.Segment {
		for _, x := range loadTunnels(t) {
			if x.name == name {
				var f frame.Frame
				require.NoError(t, intoTunnels.Decode(frame.Ethernet, x.b, len(x.b), &f))
				return f.Segment()
			}
		}
		t.Fatal(name)
		return frame.Segment{}
	}
	require.Zero(t, segment("erspan1"), "a copy is no other network")
	require.Zero(t, segment("mirror-22"))
	require.Equal(t, frame.Segment{Kind: frame.VXLAN, ID: 5004}, segment("vxlan-in-erspan2"))
	require.Equal(t, frame.Segment{Kind: frame.VXLAN, ID: 5001, VLAN: [3]uint16{100, 101, 102}}, segment("vxlan-inner-tags"))
	require.Equal(t, frame.Segment{Kind: frame.MPLS, ID: 17}, segment("mpls-ipv4"))
	ends := [2]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")}
	require.Equal(t, frame.Segment{Kind: frame.IPinIP, Ends: ends}, segment("ip4-in-ip4"))
	require.Equal(t, frame.Segment{VLAN: [3]uint16{100, 101, 102}}, segment("three-tags"))

	b := bytes.Clone(loadTunnels(t)[31].b)
	for i := range 4 {
		b[26+i], b[30+i] = b[30+i], b[26+i]
	}
	var f frame.Frame
	require.NoError(t, intoTunnels.Decode(frame.Ethernet, b, len(b), &f))
	require.Equal(t, segment("ip4-in-ip4"), f.Segment(), "the other direction")
}

// A segment's text distinguishes it from others.
func TestSegmentText(t *testing.T) {
	a := [2]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")}
	for want, s := range map[string]frame.Segment{
		"":                               {},
		"vlan 7":                         {VLAN: [3]uint16{7}},
		"vlan 9.7.8":                     {VLAN: [3]uint16{9, 7, 8}},
		"vlan 0.7":                       {VLAN: [3]uint16{0, 7}},
		"vxlan 5000":                     {Kind: frame.VXLAN, ID: 5000},
		"vlan 7 in geneve 0":             {VLAN: [3]uint16{7}, Kind: frame.Geneve},
		"ipip 198.51.100.1-198.51.100.2": {Kind: frame.IPinIP, Ends: a},
	} {
		require.Equal(t, want, s.String())
	}
}

func TestTunnelText(t *testing.T) {
	var f frame.Frame
	want := map[string]string{
		"vxlan": "vxlan 5000 198.51.100.1 > 198.51.100.2", "vxlan-ipv6-vlan": "vxlan 11259375 vlan 77 2001:db8:ff::1 > 2001:db8:ff::2",
		"mpls-ipv4": "mpls 17", "erspan1": "erspan1 198.51.100.1 > 198.51.100.2",
	}
	for _, x := range loadTunnels(t) {
		if w := want[x.name]; w != "" {
			require.NoError(t, intoTunnels.Decode(frame.Ethernet, x.b, len(x.b), &f))
			u := f.Outer.Tunnel(0)
			require.Equal(t, w, u.String())
			delete(want, x.name)
		}
	}
	require.Empty(t, want)
	for i := range 256 {
		require.NotEmpty(t, frame.TunnelKind(i).String())
		for k := range 8 {
			require.NotEmpty(t, frame.Protocol{Kind: frame.ProtocolKind(k), Number: uint16(i), In: frame.TunnelKind(i)}.String())
		}
	}
}

// TestTunnelEndsEarly: a length of 0 in the outer header, before an extension
// header and the packet behind it.
func TestTunnelEndsEarly(t *testing.T) {
	for _, x := range loadTunnels(t) {
		if x.name != "ip4-in-ip6-options" {
			continue
		}
		b := bytes.Clone(x.b)
		b[18], b[19] = 0, 0 // payload length
		for n := range len(b) + 1 {
			checkBytes(t, frame.Ethernet, b[:n], n, captured)
		}
		return
	}
	t.Fatal("no such tunnel")
}

// TestOuterForgotten: a frame decoded into one that held a tunnelled packet has no
// tunnel, by the short cuts too.
func TestOuterForgotten(t *testing.T) {
	for _, net := range []frame.Net{frame.IPv4, frame.IPv6} {
		plain := sample(net).AppendTo(nil)
		for _, x := range loadTunnels(t) {
			var f, want frame.Frame
			if captured.Decode(frame.Ethernet, x.b, len(x.b), &f) != nil || f.Outer.Len() == 0 {
				continue
			}
			require.NoError(t, f.Decode(frame.Ethernet, plain))
			require.NoError(t, want.Decode(frame.Ethernet, plain))
			require.Equal(t, want, f, x.name)
		}
	}
}

// TestTunnelCut: a tunnel's header that is whole says what is in it, also where nothing of
// that is there; one byte less does not. What is behind an MPLS label is known from its
// Ethernet header and one byte more.
func TestTunnelCut(t *testing.T) {
	erspan := append([]byte{0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10}, make([]byte, 20)...) // GRE with a sequence number, ERSPAN II
	mpls := append([]byte{0, 0, 0x88, 0x47, 0, 0, 0x11, 64}, make([]byte, 30)...)        // GRE, a label
	mpls[8+12], mpls[8+14] = 8, 0x45
	for _, c := range []struct {
		gre   []byte
		whole int
		in    string
	}{{erspan, 8 + 8, "link type 1 in erspan2"}, {mpls, 8 + 15, "Ethertype 0x0800 (IPv4) in mpls"}} {
		for n := c.whole - 1; n <= c.whole+1; n++ {
			b := []byte{0x45, 0, 0, byte(20 + n), 0, 0, 0, 0, 64, 47, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
			b = append(b, c.gre[:n]...)
			d := frame.Finder{Tunnels: true}
			var f frame.Frame
			err := d.Decode(frame.RawIP, b, len(b), &f)
			if n < c.whole {
				require.ErrorIs(t, err, frame.ErrNotRoCE)
				continue
			}
			require.ErrorIs(t, err, frame.ErrTruncated)
			require.Equal(t, c.in, d.Protocol(frame.RawIP, b, len(b)).String())
		}
	}
}

// TestIPv6FragmentOffset: what has a fragment offset, whatever bit of it, is a later
// fragment; the bits beside it are not looked at.
func TestIPv6FragmentOffset(t *testing.T) {
	for bit := range 16 {
		b := make([]byte, 48, 60)
		b[0], b[5], b[6], b[40], b[46] = 0x60, 20, 44, 47, 0xff // GRE in fragments; an identification
		binary.BigEndian.PutUint16(b[42:], 1<<bit)
		b = append(b, 0, 0, 0x88, 0xbe, 0, 0, 0, 0, 0, 0, 0, 0)
		p := (frame.Finder{}).Protocol(frame.RawIP, b, len(b))
		require.Equal(t, bit >= 3, p.Kind == frame.IPFragment, "bit %d: %v", bit, p)
	}
}

// TestNetworkOffsetErrors: beside an error there is nothing else.
func TestNetworkOffsetErrors(t *testing.T) {
	refused := 0
	for _, link := range []frame.Link{frame.Ethernet, frame.RawIP, frame.RawIPv4, frame.RawIPv6, frame.LinuxSLL, frame.LinuxSLL2, 0} {
		for n := range 40 {
			for _, fill := range []byte{0, 0x45, 0x60, 0x81} {
				b := bytes.Repeat([]byte{fill}, n)
				if n >= 14 {
					copy(b[12:], []byte{0x81, 0})
				}
				typ, off, vlans, err := frame.NetworkOffset(link, b)
				if err != nil {
					require.Equal(t, []int{0, 0, 0}, []int{int(typ), off, vlans}, "link %v, %d bytes of %#x: %v", link, n, fill, err)
					refused++
				}
			}
		}
	}
	require.Greater(t, refused, 300)
}

// TestMPLSPort: labels are in packets to their UDP port, and to no other.
func TestMPLSPort(t *testing.T) {
	inner := sample(frame.IPv4).AppendTo(nil)[14:]
	for port, want := range map[uint16]error{6635: nil, 6634: frame.ErrNotRoCE, 6636: frame.ErrNotRoCE, 53: frame.ErrNotRoCE} {
		b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 64}
		b = append(b, inner...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[22:], port)
		binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
		var f frame.Frame
		require.ErrorIs(t, frame.Finder{Tunnels: true}.Decode(frame.RawIP, b, len(b), &f), want, port)
	}
}
