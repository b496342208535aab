package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

var opcodes = func() (ops []bth.Opcode) {
	for i := range 256 {
		if bth.Opcode(i).Known() {
			ops = append(ops, bth.Opcode(i))
		}
	}
	return ops
}()

// anyFrame draws frames that AppendTo loses nothing of.
func anyFrame(t *rapid.T) *frame.Frame {
	f := &frame.Frame{
		Link:         rapid.SampledFrom([]frame.Link{frame.Ethernet, frame.Ethernet, frame.RawIP}).Draw(t, "link"),
		Net:          rapid.SampledFrom([]frame.Net{frame.IPv4, frame.IPv4, frame.IPv6, frame.GRH}).Draw(t, "net"),
		TrafficClass: rapid.Byte().Draw(t, "class"),
		HopLimit:     rapid.SampledFrom([]uint8{0, 1, 64, 255}).Draw(t, "hops"),
	}
	if f.Net == frame.GRH {
		f.Link = frame.Ethernet // no link of IP packets carries it
	}
	if f.Link == frame.Ethernet {
		f.DstMAC, f.SrcMAC = rapid.Make[frame.MAC]().Draw(t, "dmac"), rapid.Make[frame.MAC]().Draw(t, "smac")
		f.VLANs = rapid.SampledFrom([]uint8{0, 0, 1, 2, 3}).Draw(t, "vlans")
		for i := range f.VLANs {
			f.VLAN[i] = frame.VLAN{
				TPID: rapid.SampledFrom([]uint16{frame.EtherTypeVLAN, frame.EtherTypeQinQ, frame.EtherTypeOldQinQ}).Draw(t, "tpid"),
				TCI:  rapid.Uint16().Draw(t, "tci"),
			}
		}
	}
	if f.Net == frame.IPv4 {
		f.Src = netip.AddrFrom4(rapid.Make[[4]byte]().Draw(t, "src"))
		f.Dst = netip.AddrFrom4(rapid.Make[[4]byte]().Draw(t, "dst"))
		f.ID = rapid.Uint16().Draw(t, "id")
		f.DF, f.ReservedFlag = rapid.Bool().Draw(t, "df"), rapid.Bool().Draw(t, "rf")
		if words := rapid.SampledFrom([]int{0, 0, 0, 1, 3, 10}).Draw(t, "option words"); words > 0 {
			f.Options = rapid.SliceOfN(rapid.Byte(), 4*words, 4*words).Draw(t, "options")
		}
	} else {
		f.Src = netip.AddrFrom16(rapid.Make[[16]byte]().Draw(t, "src"))
		f.Dst = netip.AddrFrom16(rapid.Make[[16]byte]().Draw(t, "dst"))
		f.FlowLabel = rapid.Uint32Range(0, 1<<20-1).Draw(t, "label")
	}
	if f.Net != frame.GRH {
		f.SrcPort = rapid.SampledFrom([]uint16{0, 69, frame.Port, 0xffff}).Draw(t, "sport")
		f.DstPort = rapid.SampledFrom([]uint16{frame.Port, frame.Port, 0, 1, 0xffff}).Draw(t, "dport")
		f.UDPChecksum = rapid.Uint16().Draw(t, "sum")
	}

	p := &f.Packet
	op := rapid.SampledFrom(opcodes).Draw(t, "opcode")
	p.Header = bth.Header{Opcode: op, SE: rapid.Bool().Draw(t, "se"), M: rapid.Bool().Draw(t, "m"),
		PKey: rapid.Uint16().Draw(t, "pkey"), FECN: rapid.Bool().Draw(t, "fecn"), Resv6: rapid.ByteMax(0x3f).Draw(t, "resv"),
		DestQP: draw24(t, "qp"), AckReq: rapid.Bool().Draw(t, "ack"), PSN: psn.PSN(draw24(t, "psn")),
		BECN: rapid.Bool().Draw(t, "becn"), Resv7: rapid.ByteMax(0x7f).Draw(t, "resv7")}
	anyExt(t, op.Ext(), p)
	switch op.Payload() {
	case bth.NoPayload:
	case bth.EightBytes:
		p.SetPayload([]byte("abcdefgh"))
	case bth.SixteenZero:
		p.SetPayload(make([]byte, 16))
	default:
		p.SetPayload(rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload"))
		copy(p.Pad[:p.PadCnt], rapid.SliceOfN(rapid.Byte(), 3, 3).Draw(t, "pad"))
	}
	return f
}

// draw24 draws a number of 24 bits.
func draw24(t *rapid.T, name string) uint32 { return rapid.Uint32Range(0, 1<<24-1).Draw(t, name) }

// anyExt draws all fields of the extended headers in e.
func anyExt(t *rapid.T, e bth.Ext, p *bth.Packet) {
	if e&bth.HasRDETH != 0 {
		p.RDETH = bth.RDETH{Resv8: rapid.Byte().Draw(t, "rdeth"), EE: draw24(t, "ee")}
	}
	if e&bth.HasDETH != 0 {
		p.DETH = bth.DETH{QKey: rapid.Uint32().Draw(t, "qkey"), Resv8: rapid.Byte().Draw(t, "deth"), SrcQP: draw24(t, "srcqp")}
	}
	if e&bth.HasXRCETH != 0 {
		p.XRCETH = bth.XRCETH{Resv8: rapid.Byte().Draw(t, "xrceth"), SRQ: draw24(t, "srq")}
	}
	if e&bth.HasFETH != 0 {
		p.FETH = reth.FETH{Resv26: rapid.Uint32Range(0, 1<<26-1).Draw(t, "feth"),
			Sel: reth.Selectivity(rapid.ByteMax(3).Draw(t, "sel")), Placement: reth.Placement(rapid.ByteMax(15).Draw(t, "plt"))}
	}
	if e&bth.HasRETH != 0 {
		p.RETH = rapid.Make[reth.Header]().Draw(t, "reth")
	}
	if e&bth.HasAtomicETH != 0 {
		p.AtomicETH = rapid.Make[reth.AtomicETH]().Draw(t, "atomiceth")
	}
	if e&bth.HasAETH != 0 {
		p.AETH = aeth.Header{Syndrome: aeth.Syndrome(rapid.Byte().Draw(t, "syndrome")), MSN: draw24(t, "msn")}
	}
	if e&bth.HasAtomicAckETH != 0 {
		p.AtomicAckETH = aeth.AtomicAckETH{Orig: rapid.Uint64().Draw(t, "orig")}
	}
	if e&bth.HasImmDt != 0 {
		p.ImmDt = reth.ImmDt{Imm: rapid.Uint32().Draw(t, "imm")}
	}
	if e&bth.HasIETH != 0 {
		p.IETH = reth.IETH{RKey: rapid.Uint32().Draw(t, "inv")}
	}
}

// withoutViews returns f without what Decode sets beside the fields. Whether a
// slice of no bytes is nil does not matter.
func withoutViews(f *frame.Frame) *frame.Frame {
	g := *f
	g.NetPacket, g.Transport, g.Trailer, g.TransportLen, g.Packet.ICRC = nil, nil, nil, 0, 0
	if len(g.Options) == 0 {
		g.Options = nil
	}
	if len(g.Packet.Payload) == 0 {
		g.Packet.Payload = nil
	}
	return &g
}

// dirty is a frame with something in every field, to see what is left of it.
func dirty(t require.TestingT) *frame.Frame {
	f := &frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DstMAC: frame.MAC{1, 2, 3, 4, 5, 6}, SrcMAC: frame.MAC{7, 8, 9, 10, 11, 12},
		VLANs: 2, VLAN: [frame.MaxVLANs]frame.VLAN{{TPID: 0x88a8, TCI: 5}, {TPID: 0x8100, TCI: 6}},
		Src: netip.MustParseAddr("203.0.113.1"), Dst: netip.MustParseAddr("203.0.113.2"), TrafficClass: 0xff,
		HopLimit: 9, FlowLabel: 0xabcde, ID: 77, DF: true, ReservedFlag: true, Options: []byte{1, 1, 1, 1},
		SrcPort: 1, DstPort: 2, UDPChecksum: 3,
		Decoded: frame.Decoded{NetPacket: []byte{1}, Trailer: []byte{2}, Transport: []byte{3}, TransportLen: 4},
	}
	p := &f.Packet
	p.Header = bth.Header{Opcode: 0xff, SE: true, M: true, PadCnt: 3, TVer: 5, PKey: 7, FECN: true, BECN: true, Resv6: 8,
		DestQP: 9, AckReq: true, Resv7: 10, PSN: 11}
	p.RDETH.EE, p.DETH.QKey, p.XRCETH.SRQ, p.FETH.Sel, p.RETH.VA, p.AtomicETH.Compare = 1, 2, 3, 1, 4, 5
	p.AETH.MSN, p.AtomicAckETH.Orig, p.ImmDt.Imm, p.IETH.RKey = 6, 7, 8, 9
	p.Payload, p.Pad, p.ICRC = []byte{4}, [3]byte{1, 2, 3}, 12
	return f
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFrame(t)
		require.NoError(t, f.Validate())

		prefix := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "prefix")
		buf := bytes.Repeat([]byte{0xa5}, len(prefix)+frame.MaxHeaderSize+80)
		copy(buf, prefix)
		out := f.AppendTo(buf[:len(prefix)])
		fresh := f.AppendTo(nil)
		require.Equal(t, append(bytes.Clone(prefix), fresh...), out)
		for _, c := range buf[len(out):] {
			require.EqualValues(t, 0xa5, c, "bytes behind")
		}
		checked, err := f.AppendBinary(bytes.Clone(prefix))
		require.NoError(t, err)
		require.Equal(t, out, checked)
		require.LessOrEqual(t, len(fresh)-len(f.Packet.Payload)-int(f.Packet.PadCnt), frame.MaxHeaderSize)

		trailer := rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(t, "trailer")
		b := append(bytes.Clone(fresh), trailer...)
		in := bytes.Clone(b)
		got := dirty(t)
		finder := frame.Finder{UDPPort: f.DstPort}
		require.NoError(t, finder.Decode(f.Link, b, len(b), got))
		want := withoutViews(f)
		if want.Net != frame.GRH && want.DstPort == 0 {
			want.DstPort = frame.Port // AppendTo's one exception
		}
		require.Equal(t, want, withoutViews(got))
		require.Equal(t, len(fresh), f.Size())
		require.Equal(t, frame.ICRCGood, got.CheckICRC())
		require.True(t, bytes.Equal(trailer, got.Trailer))
		require.Equal(t, len(f.Packet.Payload), got.PayloadLen())
		require.False(t, got.Truncated())
		require.Equal(t, len(got.Transport), got.TransportLen)
		require.True(t, bytes.HasSuffix(fresh, got.Transport))
		require.True(t, bytes.HasSuffix(fresh, got.NetPacket))
		for _, s := range [][]byte{got.Options, got.NetPacket, got.Transport, got.Trailer, got.Packet.Payload} {
			require.Equal(t, len(s), cap(s), "a slice reaches beyond its end")
		}
		require.Equal(t, fresh, got.AppendTo(nil), "encode after decode")
		require.Equal(t, in, b, "the input was written to")

		// Find sets the same and does not change the packet.
		found := dirty(t)
		all := *got
		all.Packet = found.Packet
		require.NoError(t, finder.Find(f.Link, b, len(b), found))
		require.Equal(t, &all, found)

		// Another link around the same network packet.
		if f.Net != frame.GRH {
			others := []frame.Link{frame.RawIP, frame.LinuxSLL, frame.LinuxSLL2}
			checkOtherLink(t, rapid.SampledFrom(others).Draw(t, "other"), got)
		}
	})
}

// checkOtherLink decodes the network packet of f in a frame of another link.
func checkOtherLink(t require.TestingT, link frame.Link, f *frame.Frame) {
	etherType := uint16(frame.EtherTypeIPv4)
	if f.Net == frame.IPv6 {
		etherType = frame.EtherTypeIPv6
	}
	var b []byte
	switch link {
	case frame.LinuxSLL:
		b = binary.BigEndian.AppendUint16(make([]byte, 14), etherType)
	case frame.LinuxSLL2:
		b = append(binary.BigEndian.AppendUint16(nil, etherType), make([]byte, 18)...)
	}
	b = append(b, f.NetPacket...)
	got := dirty(t)
	require.NoError(t, frame.Finder{UDPPort: f.DstPort}.Decode(link, b, len(b), got))
	want := *f
	want.Link, want.DstMAC, want.SrcMAC, want.VLANs, want.VLAN, want.Trailer = link, frame.MAC{}, frame.MAC{}, 0, [frame.MaxVLANs]frame.VLAN{}, nil
	require.Equal(t, &want, got)
	require.Equal(t, frame.ICRCGood, got.CheckICRC())
}

// checkBytes holds what must be true of any input.
func checkBytes(t require.TestingT, link frame.Link, b []byte, wireLen int, d frame.Finder) {
	in := bytes.Clone(b)
	f, before := dirty(t), dirty(t)
	err := d.Decode(link, b, wireLen, f)
	found := dirty(t)
	findErr := d.Find(link, b, wireLen, found)
	require.Equal(t, before.Packet, found.Packet, "Find does not change the packet")
	if findErr != nil {
		require.Equal(t, before, found)
		require.Equal(t, findErr, err, "what cannot be found cannot be decoded, for the same reason")
	}
	if err != nil {
		require.Equal(t, before, f)
	} else {
		state := f.CheckICRC()
		require.Equal(t, f.Truncated(), state == frame.ICRCUnchecked)
		require.LessOrEqual(t, len(f.Packet.Payload), f.PayloadLen())
		if !f.Truncated() {
			require.Len(t, f.Packet.Payload, f.PayloadLen())
		}
		g := *f
		g.Packet = found.Packet
		require.Equal(t, &g, found)
		_ = f.AppendTo(nil)
		_ = f.Segment()
	}
	require.NotEmpty(t, d.Protocol(link, b, wireLen).String())
	require.Equal(t, in, b, "the input was written to")
	if wireLen < len(b) { // a capture that says less than it holds
		g := dirty(t)
		require.Equal(t, err, d.Decode(link, b, len(b), g))
		require.Equal(t, f, g)
	}

	// The short cuts for plain frames and the long way agree: the network packet
	// by itself takes the slow path.
	if link == frame.Ethernet && len(b) > 14 &&
		(binary.BigEndian.Uint16(b[12:]) == 0x0800 && b[14]>>4 == 4 || binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[14]>>4 == 6) {
		g := dirty(t)
		require.Equal(t, err, d.Decode(frame.RawIP, b[14:], max(wireLen-14, 0), g))
		if err == nil {
			if g.Outer.Len() > 0 {
				g.Outer = f.Outer
			} else {
				g.Link, g.DstMAC, g.SrcMAC = f.Link, f.DstMAC, f.SrcMAC
			}
			require.Equal(t, f, g)
		}
	}
}

// captured is a Finder with all options.
var captured = frame.Finder{Tunnels: true, VXLANPorts: []uint16{0xc001}, Sliced: true}

// Rule WI-16.
func TestBytes(t *testing.T) {
	links := []frame.Link{frame.Ethernet, frame.RawIP, frame.RawIPv4, frame.RawIPv6, frame.LinuxSLL, frame.LinuxSLL2, 0}
	rapid.Check(t, func(t *rapid.T) {
		f := anyFrame(t)
		b := f.AppendTo(nil)
		link := f.Link
		if rapid.IntRange(0, 9).Draw(t, "wrong link") == 0 {
			link = rapid.SampledFrom(links).Draw(t, "link of another")
		}
		wire := len(b) + rapid.SampledFrom([]int{0, 0, 4, -1, 100}).Draw(t, "wire")
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			// Most of what decides is in the headers.
			i := rapid.IntRange(0, min(len(b), 70)-1).Draw(t, "at")
			b[i] = rapid.Byte().Draw(t, "byte")
		}
		if rapid.Bool().Draw(t, "cut") {
			b = b[:rapid.IntRange(0, len(b)).Draw(t, "kept")]
		}
		checkBytes(t, link, bytes.Clone(b), wire, frame.Finder{})
		checkBytes(t, link, bytes.Clone(b), wire, captured)
	})
}

func FuzzFrame(f *testing.F) {
	for _, v := range loadVectors(f) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		link := frame.RawIP
		if v.LinkType == "ethernet" {
			link = frame.Ethernet
		}
		f.Add(uint16(link), raw, len(raw), uint16(0))
	}
	for _, net := range nets {
		for _, c := range links(net) {
			f.Add(uint16(c.link), c.b, len(c.b), uint16(0))
			f.Add(uint16(c.link), c.b[:len(c.b)-7], len(c.b), uint16(0))
		}
	}
	for _, x := range loadTunnels(f) {
		f.Add(uint16(frame.Ethernet), x.b, len(x.b), uint16(0))
	}
	for _, v := range mrcVectors(f) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(frame.RawIP), raw, len(raw), uint16(0))
	}
	seeds.Into(f).Each(func(s *seeds.Frame) []any { return []any{uint16(s.Link), s.Data, s.WireLen, uint16(0)} })
	f.Fuzz(func(t *testing.T, link uint16, b []byte, wireLen int, port uint16) {
		d := frame.Finder{UDPPort: port}
		checkBytes(t, frame.Link(link), b, wireLen, d)
		checkMRC(t, frame.Link(link), b, wireLen, d)
		d.Tunnels, d.VXLANPorts, d.Sliced = true, []uint16{port + 1}, true
		checkBytes(t, frame.Link(link), b, wireLen, d)
		d.TrimmedDSCP = 0x5555555555555555
		checkMRC(t, frame.Link(link), b, wireLen, d)
	})
}
