package softnic_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

var peerMAC = [6]byte{0x52, 0x54, 0, 0, 0, 2}

func toPeer() qp.AHAttr { return qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: peerMAC} }

func TestConfig(t *testing.T) {
	good := softnic.Config{GIDs: []softnic.GID{addr("192.0.2.1")}}
	for name, f := range map[string]func(*softnic.Config){
		"no GID":       func(c *softnic.Config) { c.GIDs = nil },
		"257 GIDs":     func(c *softnic.Config) { c.GIDs = make([]softnic.GID, 257) },
		"invalid GID":  func(c *softnic.Config) { c.GIDs = []softnic.GID{{}} },
		"GID type":     func(c *softnic.Config) { c.GIDs = []softnic.GID{{Addr: netip.MustParseAddr("::1"), Type: 2}} },
		"QPs":          func(c *softnic.Config) { c.MaxQPs = 1<<23 + 1 },
		"negative QPs": func(c *softnic.Config) { c.MaxQPs = -1 },
		"neighbours":   func(c *softnic.Config) { c.MaxNeighbors = -1 },
	} {
		c := good
		f(&c)
		_, err := softnic.New(c)
		require.ErrorIs(t, err, softnic.ErrConfig, name)
	}
	c := good
	c.Control = cnp.Controller(cnp.Params{})
	_, err := softnic.New(c)
	require.ErrorIs(t, err, cnp.ErrParams)
}

func TestPKeyTable(t *testing.T) {
	p := onePort(t, 1, softnic.Config{PKeys: []uint16{0x8001, 0x0002}}, "192.0.2.1")
	q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{MaxSendWR: 1}})
	require.NoError(t, err)
	set := func(k uint16) error {
		return q.Modify(start, &qp.Attr{State: qp.Init, PKey: k}, qp.AttrState|qp.AttrPKey|qp.AttrAccess)
	}
	for _, k := range []uint16{0x8003, 0xffff, 0x0001, 0x8002, 0, 0x8000} {
		require.ErrorIs(t, set(k), softnic.ErrPKey, "%#x", k)
		require.Equal(t, qp.Reset, q.State())
	}
	// A QP has an entry of the table, full or limited member as it is there.
	for _, k := range []uint16{0x8001, 0x0002} {
		require.NoError(t, set(k), "%#x", k)
	}
	// A packet of another partition is dropped by the QP.
	got, _ := qpOf(t, p, start, qp.RC, toPeer(), func(_ *softnic.QPConfig, a *qp.Attr) { a.PKey = 0x8001 })
	f := request(got)
	f.Packet.PKey = 0x8002
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, f.AppendTo(nil)))
	require.EqualValues(t, 1, got.Counters().Invalid)
	require.Empty(t, drain(p, start))
	f.Packet.PKey = 0x0001
	p.HandleFrame(start, f.AppendTo(nil))
	require.Len(t, drain(p, start), 1)
}

// request returns a zero-length WRITE to q, from its peer.
func request(q *softnic.QP) *frame.Frame {
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: frame.MAC{0x52, 0x54, 0, 0, 0, 1}, SrcMAC: peerMAC,
		Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1"), DF: true, HopLimit: 64, SrcPort: 0xc000, DstPort: frame.Port}
	f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.RC.Opcode(bth.WriteOnly), M: true, PKey: q.Attr().PKey, DestQP: q.Num(), AckReq: true, PSN: q.Attr().RQPSN}}
	return f
}

// TestAddressVector: what the address handle says is on the wire, and what comes
// back to the QP does not change it.
func TestAddressVector(t *testing.T) {
	p := onePort(t, 1, softnic.Config{ECT: true}, "192.0.2.1", "2001:db8::1")
	ah := qp.AHAttr{GID: gidOf("2001:db8::2"), SGIDIndex: 1, MAC: peerMAC, TrafficClass: 26 << 2, HopLimit: 7, FlowLabel: 0xabcde, HasVLAN: true, VLAN: 3<<13 | 100}
	q, _ := qpOf(t, p, start, qp.UC, ah, nil)
	plain, _ := qpOf(t, p, start, qp.UC, toPeer(), nil)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	require.NoError(t, plain.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	sent := drain(p, start)
	require.Len(t, sent, 2)

	f := decode(t, sent[0])
	require.EqualValues(t, 26, f.DSCP())
	require.Equal(t, frame.ECT0, f.ECN())
	require.EqualValues(t, 7, f.HopLimit)
	require.EqualValues(t, 0xabcde, f.FlowLabel)
	require.EqualValues(t, frame.SourcePort(0xabcde), f.SrcPort)
	require.EqualValues(t, 1, f.VLANs)
	require.EqualValues(t, 3<<13|100, f.VLAN[0].TCI)
	require.Equal(t, netip.MustParseAddr("2001:db8::1"), f.Src)

	f = decode(t, sent[1])
	require.EqualValues(t, 0, f.VLANs)
	require.EqualValues(t, 2, f.TrafficClass)
	require.EqualValues(t, 64, f.HopLimit)
	require.EqualValues(t, frame.SourcePort(frame.FlowLabel(plain.Num(), 0x11)), f.SrcPort)
	require.True(t, f.DF)
	require.Zero(t, f.ID)
}

// TestTrafficClass: of all traffic classes the handle's are on the wire; where its two bits
// of ECN are clear and the port marks its packets, they are ECT(0).
func TestTrafficClass(t *testing.T) {
	for _, ect := range []bool{false, true} {
		p := onePort(t, 1, softnic.Config{ECT: ect, MaxQPs: 256}, "192.0.2.1")
		for tc := range 256 {
			ah := toPeer()
			ah.TrafficClass = uint8(tc)
			q, _ := qpOf(t, p, start, qp.UC, ah, nil)
			require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
			want := uint8(tc)
			if ect && tc%4 == 0 {
				want += 2 // RFC 3168: ECT(0) is 10
			}
			require.Equal(t, want, decode(t, drain(p, start)[0]).TrafficClass)
		}
	}
}

// TestDecodedIsWhole: a decoded packet has all fields of the frame that is sent for it,
// whatever stood in it before.
func TestDecodedIsWhole(t *testing.T) {
	for _, udpPort := range []uint16{0, 4792} {
		for _, gid := range []softnic.GID{addr("192.0.2.1"), addr("2001:db8::1"), {Addr: netip.MustParseAddr("2001:db8::1"), Type: softnic.RoCEv1}} {
			for _, tagged := range []bool{false, true} {
				p, err := softnic.New(softnic.Config{MAC: frame.MAC{2, 1}, GIDs: []softnic.GID{gid}, UDPPort: udpPort})
				require.NoError(t, err)
				ah := qp.AHAttr{GID: gidOf("2001:db8::2"), MAC: peerMAC, TrafficClass: 0x6b, FlowLabel: 0x12345, HasVLAN: tagged, VLAN: 5<<13 | 7}
				if gid.Addr.Is4() {
					ah.GID, ah.FlowLabel = gidOf("192.0.2.2"), 0
				}
				rc, _ := qpOf(t, p, start, qp.RC, ah, nil)
				ud, _ := qpOf(t, p, start, qp.UD, ah, nil)
				must(t, rc.PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: []byte("abcd")}))
				must(t, ud.PostSend(start, &qp.SendWR{Local: []byte("efg"), AH: qp.NewAddressHandle(ah), RemoteQPN: 9}))
				in := request(rc)
				in.Net, in.Src, in.Dst, in.TrafficClass = frame.IPv6, netip.MustParseAddr("2001:db8::2"), gid.Addr, 3
				switch {
				case gid.Type == softnic.RoCEv1:
					in.Net = frame.GRH
				case gid.Addr.Is4():
					in.Net, in.Src = frame.IPv4, netip.MustParseAddr("192.0.2.2")
				}
				in.Packet.AckReq = true
				must(t, rc.PostRecv(&qp.RecvWR{Local: make([]byte, 10)}))
				require.Equal(t, softnic.Delivered, p.HandleDecoded(start, in))
				n := 0
				for f := garbage(); p.NextDecoded(start, &f); f = garbage() {
					n++
					got, b := new(frame.Frame), f.AppendTo(nil)
					require.NoError(t, frame.Finder{UDPPort: udpPort}.Decode(frame.Ethernet, b, len(b), got))
					require.Equal(t, frame.ICRCGood, got.CheckICRC())
					require.EqualValues(t, peerMAC, got.DstMAC)
					require.Equal(t, p.MAC(), got.SrcMAC)
					require.Equal(t, tagged, got.VLANs == 1)
					require.Equal(t, gid.Addr, got.Src)
					if gid.Type != softnic.RoCEv1 {
						require.Equal(t, max(4791, udpPort), f.DstPort)
						require.Equal(t, got.DstPort, f.DstPort)
						require.Equal(t, got.SrcPort, f.SrcPort)
						require.GreaterOrEqual(t, f.SrcPort, uint16(0xc000))
					}
					f.Decoded, got.Decoded = frame.Decoded{}, frame.Decoded{}
					f.SrcPort, f.DstPort, got.SrcPort, got.DstPort = 0, 0, 0, 0
					f.Packet, got.Packet = bth.Packet{Header: f.Packet.Header}, bth.Packet{Header: got.Packet.Header}
					require.Equal(t, *got, f)
				}
				require.GreaterOrEqual(t, n, 3, "a WRITE, a datagram and an acknowledgement")
			}
		}
	}
}

// TestLoopbackIntoUsedFrame: the network header before a datagram from the port to itself is
// its own, whatever stood in the frame that the caller lends.
func TestLoopbackIntoUsedFrame(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	ah := qp.AHAttr{GID: gidOf("192.0.2.1"), TrafficClass: 0x1c}
	q, cq := qpOf(t, p, start, qp.UD, ah, nil)
	buf := make([]byte, qp.GRHSize+4)
	must(t, q.PostRecv(&qp.RecvWR{Local: buf}))
	must(t, q.PostSend(start, &qp.SendWR{Local: []byte("abcd"), AH: qp.NewAddressHandle(ah), RemoteQPN: q.Num(), RemoteQKey: 0x1111}))
	f := garbage()
	f.NetPacket = slices.Repeat([]byte{0x5a}, 60)
	require.False(t, p.NextDecoded(start, &f), "nothing for the network")
	require.EqualValues(t, qp.GRHSize+4, poll(t, cq).ByteLen)
	require.Equal(t, "abcd", string(buf[qp.GRHSize:]))
	require.Equal(t, []byte{0x45, 0x1c, 0, 20 + 8 + 12 + 8 + 4 + 4}, buf[20:24], "RFC 791: version, type of service, length")
	require.Equal(t, []byte{192, 0, 2, 1, 192, 0, 2, 1}, buf[32:40])
}

// garbage is a frame that was used before.
func garbage() frame.Frame {
	f := frame.Frame{Link: frame.RawIP, DstMAC: frame.MAC{9, 9}, SrcMAC: frame.MAC{9, 8}, VLANs: 2, TrafficClass: 77, FlowLabel: 0x77777, ID: 7, DF: true, HopLimit: 77,
		Options: []byte{1, 1, 1, 1}, SrcPort: 77, DstPort: 77, UDPChecksum: 7777}
	f.Trailer, f.TransportLen = []byte{7}, 7
	f.Packet.PSN, f.Packet.Payload = 0x777777, []byte("garbage!")
	return f
}

func TestAddressesThatCannotBe(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
	q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UC, MaxSendWR: 1}})
	require.NoError(t, err)
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.Init, PKey: 0xffff}, qp.AttrState|qp.AttrPKey|qp.AttrAccess))
	for _, ah := range []qp.AHAttr{
		{GID: gidOf("192.0.2.2"), SGIDIndex: 2},   // no such row
		{GID: gidOf("192.0.2.2"), SGIDIndex: 1},   // another family
		{GID: gidOf("2001:db8::2"), SGIDIndex: 0}, // another family
		{}, // nowhere
	} {
		a := qp.Attr{State: qp.RTR, PathMTU: 1024, AH: ah}
		require.ErrorIs(t, q.Modify(start, &a, qp.AttrState|qp.AttrAH|qp.AttrPathMTU|qp.AttrDestQPN|qp.AttrRQPSN), softnic.ErrAddress)
		require.Equal(t, qp.Init, q.State())
	}
	ud, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	require.ErrorIs(t, ud.PostSend(start, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(qp.AHAttr{})}), softnic.ErrAddress)
}

// TestLatePackets: those for a QP that was destroyed, or does not exist yet, are dropped, and
// its number is used again last.
func TestLatePackets(t *testing.T) {
	p := onePort(t, 1, softnic.Config{MaxQPs: 4}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	f := request(q).AppendTo(nil)
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, f))
	num := q.Num()
	q.Destroy() // with an acknowledgement still to be sent
	q.Destroy()
	require.Empty(t, drain(p, start))
	require.Equal(t, softnic.NoQP, p.HandleFrame(start, f))
	require.EqualValues(t, 1, p.Counters().RxNoQP)
	for range 3 {
		r, err := p.CreateQP(softnic.QPConfig{})
		require.NoError(t, err)
		require.NotEqual(t, num, r.Num())
	}
	last, err := p.CreateQP(softnic.QPConfig{})
	require.NoError(t, err)
	require.Equal(t, num, last.Num())
	// The old peer's packet to the new QP, which is in Reset.
	require.Equal(t, softnic.WrongAddress, p.HandleFrame(start, f))
	_, err = p.CreateQP(softnic.QPConfig{})
	require.ErrorIs(t, err, softnic.ErrNoQP)
	_, err = p.CreateQP(softnic.QPConfig{Config: qp.Config{QPN: num}})
	require.ErrorIs(t, err, softnic.ErrNoQP)
	_, err = p.CreateQP(softnic.QPConfig{Config: qp.Config{QPN: 0xffffff}})
	require.ErrorIs(t, err, softnic.ErrNoQP)
	require.Nil(t, p.QP(0xffffff))
}

// TestStrangers: packets that are not from the QP's peer, not to this port, to
// QP 0, or broken do nothing but count.
func TestStrangers(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	for name, x := range map[string]struct {
		change func(*frame.Frame)
		want   softnic.Result
		count  func(softnic.Counters) uint64
	}{
		"another source":      {func(f *frame.Frame) { f.Src = netip.MustParseAddr("192.0.2.3") }, softnic.WrongAddress, func(c softnic.Counters) uint64 { return c.RxWrongAddress }},
		"another destination": {func(f *frame.Frame) { f.Dst = netip.MustParseAddr("192.0.2.3") }, softnic.WrongAddress, func(c softnic.Counters) uint64 { return c.RxWrongAddress }},
		"another MAC":         {func(f *frame.Frame) { f.DstMAC[5] = 9 }, softnic.WrongAddress, func(c softnic.Counters) uint64 { return c.RxWrongAddress }},
		"QP 0":                {func(f *frame.Frame) { f.Packet.DestQP = 0 }, softnic.NoQP, func(c softnic.Counters) uint64 { return c.RxNoQP }},
		"no such QP":          {func(f *frame.Frame) { f.Packet.DestQP = 0x123456 }, softnic.NoQP, func(c softnic.Counters) uint64 { return c.RxNoQP }},
		"another port":        {func(f *frame.Frame) { f.DstPort++ }, softnic.NotRoCE, func(c softnic.Counters) uint64 { return c.RxNotRoCE }},
		"unknown opcode":      {func(f *frame.Frame) { f.Packet.Opcode = 0xff }, softnic.Malformed, func(c softnic.Counters) uint64 { return c.RxMalformed }},
	} {
		f := request(q)
		x.change(f)
		before := x.count(p.Counters())
		require.Equal(t, x.want, p.HandleFrame(start, f.AppendTo(nil)), name)
		require.Equal(t, before+1, x.count(p.Counters()), name)
		require.Empty(t, drain(p, start), name)
	}
	// RoCE v1 to an address of RoCE v2.
	f := request(q)
	f.Net, f.Src, f.Dst = frame.GRH, netip.AddrFrom16(f.Src.As16()), netip.AddrFrom16(f.Dst.As16())
	require.Equal(t, softnic.WrongAddress, p.HandleFrame(start, f.AppendTo(nil)))
	b := request(q).AppendTo(nil)
	b[len(b)-1] ^= 1
	require.Equal(t, softnic.BadICRC, p.HandleFrame(start, b))
	require.EqualValues(t, 1, p.Counters().RxICRCEncapsulated)
	require.Zero(t, q.Counters().RxPackets)
}

// TestCNPs: marked packets cause CNPs, at a limited rate, and a CNP lowers the rate.
func TestCNPs(t *testing.T) {
	params := cnp.Paper()
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9, ECT: true}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), func(_ *softnic.QPConfig, a *qp.Attr) { a.DestQPN = 0x4321 })
	cnps := 0
	now := start
	for i := range 100 {
		f := request(q)
		f.Packet.PSN = q.Attr().RQPSN
		f.TrafficClass = uint8(frame.CE)
		f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: 42}
		f.Packet.AckReq = false
		p.HandleFrame(now, f.AppendTo(nil))
		for _, b := range drain(p, now) {
			if g := decode(t, b); g.Packet.Opcode == bth.CNP {
				if cnps++; i == 0 {
					require.EqualValues(t, 0x4321, g.Packet.DestQP)
					require.True(t, g.Packet.BECN)
					require.Equal(t, params.CnpDscp, g.DSCP())
					require.EqualValues(t, 42, g.VLAN[0].ID())
					require.Equal(t, params.Cnp802pPrio, uint8(g.VLAN[0].TCI>>13))
					require.Len(t, g.Packet.Payload, 16)
				}
			}
		}
		now = now.Add(time.Microsecond)
	}
	require.Equal(t, 2, cnps, "100 us, one in 50 us")
	require.EqualValues(t, 100, p.Counters().NpEcnMarkedRocePackets)
	require.EqualValues(t, 2, p.Counters().NpCnpSent)

	rate, limited := q.Rate()
	require.False(t, limited)
	require.EqualValues(t, 10e9, rate)
	f := request(q)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	require.Equal(t, softnic.Delivered, p.HandleFrame(now, f.AppendTo(nil)))
	rate, limited = q.Rate()
	require.True(t, limited)
	require.EqualValues(t, 5e9, rate, "half, as the paper says")
	require.EqualValues(t, 1, p.Counters().RpCnpHandled)

	// Packets now keep their distance: 1024 bytes of payload at 5 Gb/s, at first.
	require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 32<<10)}))
	from, sent := now, 0
	for {
		sent += len(drain(p, now))
		d, ok := p.Deadline()
		if !ok || d.Sub(from) > 40*time.Microsecond {
			break
		}
		now = d
		p.Tick(now)
	}
	// 40 us at 5 Gb/s are 25000 bytes, of 1088 on the wire each.
	require.InDelta(t, 23, sent, 3)
}

func TestCNPWithoutDCQCN(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	f := request(q)
	f.TrafficClass = uint8(frame.CE)
	p.HandleFrame(start, f.AppendTo(nil))
	require.Len(t, drain(p, start), 1, "the acknowledgement")
	require.EqualValues(t, 1, p.Counters().NpEcnMarkedRocePackets)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	p.HandleFrame(start, f.AppendTo(nil))
	require.EqualValues(t, 1, p.Counters().RpCnpHandled)
	_, limited := q.Rate()
	require.False(t, limited)
}

// TestManagementDatagrams gives QP 1 the management datagrams of a capture, and
// sends one on as the capture has it.
func TestManagementDatagrams(t *testing.T) {
	for _, c := range []struct{ name, ours, theirs string }{{"cm-rping", "192.0.2.1", "192.0.2.2"}, {"cm-rping-ipv6", "2001:db8::1", "2001:db8::2"}} {
		p := onePort(t, 1, softnic.Config{}, c.ours)
		q, cq := qpOf(t, p, start, qp.UD, qp.AHAttr{}, func(c *softnic.QPConfig, a *qp.Attr) { c.QPN, a.QKey = softnic.GSIQPN, softnic.GSIQKey })
		require.EqualValues(t, softnic.GSIQPN, q.Num())
		n := 0
		for _, b := range readPcap(t, c.name) {
			f := new(frame.Frame)
			if (frame.Finder{}).Decode(frame.Ethernet, b, len(b), f) != nil || f.Packet.DestQP != 1 {
				continue
			}
			if f.Dst.String() == c.ours {
				buf := make([]byte, 40+256)
				require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 1, Local: buf}))
				require.Equal(t, softnic.Delivered, p.HandleFrame(start, b))
				wc := poll(t, cq)
				require.Equal(t, qp.Completion{ID: 1, Op: qp.OpRecv, QPN: 1, SrcQP: 1, ByteLen: 296, GRH: true}, wc)
				require.Equal(t, f.Packet.Payload, buf[40:])
				checkGRH(t, f, buf)
				n++
				continue
			}
			ah := qp.AHAttr{GID: gidOf(c.theirs), MAC: f.DstMAC, TrafficClass: f.TrafficClass, HopLimit: f.HopLimit, FlowLabel: f.FlowLabel}
			require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(ah), RemoteQPN: 1, RemoteQKey: softnic.GSIQKey, Local: f.Packet.Payload}))
			sent := drain(p, start)
			require.Len(t, sent, 1)
			g := decode(t, sent[0])
			// The driver counts its own PSNs, leaves M clear and asks for an
			// acknowledgement that no datagram has (rule UC-2).
			h, want := g.Packet, f.Packet
			h.PSN, h.M, h.AckReq = want.PSN, want.M, want.AckReq
			require.Equal(t, want.Header, h.Header)
			require.Equal(t, want.DETH, h.DETH)
			require.Equal(t, want.Payload, h.Payload)
		}
		require.Greater(t, n, 1)
	}
}

// checkGRH checks the 40 bytes before a datagram against the packet's own header.
func checkGRH(t testing.TB, f *frame.Frame, buf []byte) {
	if f.Net == frame.IPv4 {
		require.Equal(t, f.NetPacket[:20], buf[20:40])
		require.Equal(t, make([]byte, 20), buf[:20])
		return
	}
	require.Equal(t, f.NetPacket[:40], buf[:40])
}

// TestGRHWithoutBytes: a network that carries no bytes gives the same area.
func TestGRHWithoutBytes(t *testing.T) {
	for _, hops := range []uint8{0, 9} { // 0 means 64
		testGRHWithoutBytes(t, hops)
	}
}

func testGRHWithoutBytes(t *testing.T, hops uint8) {
	for _, net := range [][2]softnic.GID{
		{addr("192.0.2.1"), addr("192.0.2.2")}, {addr("2001:db8::1"), addr("2001:db8::2")},
		{{Addr: netip.MustParseAddr("fe80::1"), Type: softnic.RoCEv1}, {Addr: netip.MustParseAddr("fe80::2"), Type: softnic.RoCEv1}},
	} {
		p := newPair(t, net)
		var areas [2][]byte
		ah := qp.AHAttr{GID: net[1].Addr.As16(), MAC: p.ports[1].MAC(), TrafficClass: 0x29, HopLimit: hops, FlowLabel: 0x12345}
		from, _ := qpOf(t, p.ports[0], start, qp.UD, ah, nil)
		to, cq := qpOf(t, p.ports[1], start, qp.UD, ah, nil)
		for i := range areas {
			areas[i] = make([]byte, 60)
			require.NoError(t, to.PostRecv(&qp.RecvWR{Local: areas[i]}))
			require.NoError(t, from.PostSend(start, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(ah), RemoteQPN: to.Num(), RemoteQKey: 0x1111, Local: []byte("hello, datagram")}))
			var f frame.Frame
			require.True(t, p.ports[0].NextDecoded(start, &f))
			b := f.AppendTo(nil)
			if i == 0 {
				require.Equal(t, softnic.Delivered, p.ports[1].HandleDecoded(start, &f))
			} else {
				require.Equal(t, softnic.Delivered, p.ports[1].HandleFrame(start, b))
			}
			require.EqualValues(t, 55, poll(t, cq).ByteLen)
		}
		require.Equal(t, areas[1], areas[0])
	}
}

// TestMulticast: rule UD-4.
func TestMulticast(t *testing.T) {
	for _, a := range [][3]string{{"192.0.2.1", "192.0.2.2", "239.129.2.3"}, {"2001:db8::1", "2001:db8::2", "ff0e::1:2"}} {
		p := newPair(t, [2]softnic.GID{addr(a[0]), addr(a[1])})
		group := netip.MustParseAddr(a[2])
		ah := qp.AHAttr{GID: group.As16()}
		from, fcq := qpOf(t, p.ports[0], start, qp.UD, ah, nil)
		var qps []*softnic.QP
		var cqs []*softnic.CQ
		for i := range 4 {
			q, cq := qpOf(t, p.ports[1], start, qp.UD, ah, func(_ *softnic.QPConfig, at *qp.Attr) {
				if i == 2 {
					at.QKey = 0x9999
				}
			})
			require.NoError(t, q.PostRecv(&qp.RecvWR{Local: make([]byte, 100)}))
			require.NoError(t, q.PostRecv(&qp.RecvWR{Local: make([]byte, 100)}))
			if i != 3 {
				require.NoError(t, q.AttachMulticast(group))
				require.NoError(t, q.AttachMulticast(group), "twice is once")
			}
			qps, cqs = append(qps, q), append(cqs, cq)
		}
		require.ErrorIs(t, qps[0].AttachMulticast(netip.MustParseAddr(a[0])), softnic.ErrAddress)
		send := func() *frame.Frame {
			require.NoError(t, from.PostSend(start, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, AH: qp.NewAddressHandle(ah), RemoteQPN: qp.MulticastQPN, RemoteQKey: 0x1111, Local: []byte("all")}))
			b := drain(p.ports[0], start)
			require.Len(t, b, 1)
			require.Equal(t, qp.Success, poll(t, fcq).Status)
			p.ports[1].HandleFrame(start, b[0])
			return decode(t, b[0])
		}
		f := send()
		if group.Is4() {
			require.Equal(t, frame.MAC{0x01, 0x00, 0x5e, 1, 2, 3}, f.DstMAC) // RFC 1112: the low 23 bits
		} else {
			require.Equal(t, frame.MAC{0x33, 0x33, 0, 1, 0, 2}, f.DstMAC) // RFC 2464
		}
		for i, cq := range cqs {
			if i < 2 {
				require.EqualValues(t, 43, poll(t, cq).ByteLen)
			}
			none(t, cq)
		}
		qps[0].DetachMulticast(group)
		qps[2].Destroy()
		send()
		none(t, cqs[0])
		poll(t, cqs[1])
		// The multicast QP number with an address that is not multicast.
		f.Dst, f.DstMAC = netip.MustParseAddr(a[1]), p.ports[1].MAC()
		require.Equal(t, softnic.NoQP, p.ports[1].HandleFrame(start, f.AppendTo(nil)))
	}
}

// TestSRQ: receives shared by QPs, completions in each QP's queue.
func TestSRQ(t *testing.T) {
	p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
	srq, err := p.ports[1].CreateSRQ(8, 0)
	require.NoError(t, err)
	_, err = p.ports[1].CreateSRQ(0, 0)
	require.ErrorIs(t, err, qp.ErrConfig)
	cq := softnic.NewCQ()
	var from []*softnic.QP
	for range 3 {
		a, err := p.ports[0].CreateQP(softnic.QPConfig{Config: qp.Config{MaxSendWR: 4, MaxRdAtomic: 4, MaxDestRdAtomic: 4}})
		require.NoError(t, err)
		b, err := p.ports[1].CreateQP(softnic.QPConfig{Config: qp.Config{MaxRecvWR: 8, MaxRdAtomic: 4, MaxDestRdAtomic: 4}, SRQ: srq, RecvCQ: cq})
		require.NoError(t, err)
		p.connect(0, a, b.Num())
		p.connect(1, b, a.Num())
		require.ErrorIs(t, b.PostRecv(&qp.RecvWR{}), qp.ErrSRQ)
		from = append(from, a)
	}
	srq.Arm(2)
	bufs := make([][]byte, 4)
	for i := range bufs {
		bufs[i] = make([]byte, 10)
		require.NoError(t, srq.PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]}))
	}
	for i, q := range from {
		require.NoError(t, q.PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Local: []byte{byte(i)}}))
		p.run(time.Millisecond)
	}
	require.True(t, srq.LimitReached())
	for i := range from {
		wc := poll(t, cq)
		require.EqualValues(t, i, wc.ID, "in the order of arrival")
		require.EqualValues(t, i, bufs[wc.ID][0])
	}
	require.Equal(t, 1, srq.Len())
}

// TestCQ: one queue for many QPs keeps each work queue's order, loses nothing, and
// forgets QPs that are destroyed.
func TestCQ(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	cq := softnic.NewCQ()
	var qps []*softnic.QP
	for range 5 {
		q, _ := qpOf(t, p, start, qp.UC, toPeer(), func(c *softnic.QPConfig, _ *qp.Attr) { c.SendCQ, c.RecvCQ = cq, cq })
		qps = append(qps, q)
	}
	next := map[uint32]uint64{}
	for i := range 10 {
		for _, q := range qps {
			require.NoError(t, q.PostSend(start, &qp.SendWR{ID: uint64(i), Op: qp.OpSend, Flags: qp.Signaled}))
		}
	}
	drain(p, start)
	qps[1].Destroy()
	qps[4].Destroy()
	var wc qp.Completion
	n := 0
	for ; cq.Poll(&wc); n++ {
		require.Equal(t, next[wc.QPN], wc.ID)
		next[wc.QPN]++
	}
	require.Equal(t, 30, n)
	// Error flushes receives into the queue.
	require.NoError(t, qps[0].PostRecv(&qp.RecvWR{ID: 77}))
	require.NoError(t, qps[0].Modify(start, &qp.Attr{State: qp.Error}, qp.AttrState))
	require.NoError(t, qps[0].PostRecv(&qp.RecvWR{ID: 78}))
	for id := uint64(77); id < 79; id++ {
		wc := poll(t, cq)
		require.Equal(t, id, wc.ID)
		require.Equal(t, qp.WRFlushErr, wc.Status)
	}
	none(t, cq)
	var e softnic.Event
	for p.NextEvent(&e) {
		require.Equal(t, qps[0], e.QP)
	}
}

// TestResults: each fate of a frame has a name and a counter, whether the port decodes
// it or its caller counts it.
func TestResults(t *testing.T) {
	names := []string{"delivered", "answered", "not RoCE", "malformed", "bad ICRC", "wrong address", "no QP", "7"}
	for r, name := range names {
		require.Equal(t, name, softnic.Result(r).String())
	}
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	want := softnic.Counters{}
	for r := range names[:7] {
		p.CountDropped(softnic.Result(r))
		want.RxFrames++
	}
	want.RxNotRoCE, want.RxMalformed, want.RxICRCEncapsulated = 1, 1, 1
	p.CountReceived()
	want.RxFrames++
	require.Equal(t, want, p.Counters())

	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	group := netip.MustParseAddr("239.0.0.1")
	for _, c := range []struct {
		change func(*frame.Frame)
		result softnic.Result
		count  *uint64
	}{
		{func(*frame.Frame) {}, softnic.Delivered, &want.RxRoCE},
		{func(f *frame.Frame) { f.Dst = netip.MustParseAddr("192.0.2.9") }, softnic.WrongAddress, &want.RxWrongAddress},
		{func(f *frame.Frame) { f.Packet.DestQP, f.Dst = 0xffffff, group }, softnic.NoQP, &want.RxNoQP},
		{func(f *frame.Frame) {
			f.Packet.DestQP, f.Dst, f.Src = 0xffffff, group, netip.MustParseAddr("192.0.2.1")
		}, softnic.WrongAddress, &want.RxWrongAddress},
	} {
		f := request(q)
		c.change(f)
		require.Equal(t, c.result, p.HandleDecoded(start, f))
		*c.count++
		if c.count == &want.RxNoQP {
			want.RxRoCE++ // it came to a group, which is an address of all
		}
		require.Equal(t, want, p.Counters(), "RxFrames is the caller's")
	}
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	want.RxFrames++
	want.RxNotRoCE++
	require.Equal(t, want, p.Counters())
}

// TestTimePassesWithFrames: the time of what arrives is the time of the port, so that what it
// learns then ages from then on.
func TestTimePassesWithFrames(t *testing.T) {
	p := onePort(t, 1, softnic.Config{NeighborAge: time.Minute}, "192.0.2.1")
	late := start.Add(10 * time.Minute)
	p.HandleFrame(start, arp(2, frame.MAC{2, 0, 0, 0, 0, 2}, "192.0.2.1"))
	p.HandleFrame(late, arp(2, frame.MAC{2, 0, 0, 0, 0, 2}, "192.0.2.1"))
	q, _ := qpOf(t, p, late, qp.UD, qp.AHAttr{}, nil)
	require.NoError(t, q.PostSend(late, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(qp.AHAttr{GID: gidOf("192.0.2.2")}), RemoteQPN: 5}))
	require.Len(t, drain(p, late), 1, "no question")
}

// TestEventsOfMany: events of several queue pairs all come, also those that come while
// others wait; and a receive that is posted in Error is flushed at once.
func TestEventsOfMany(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	var qs []*softnic.QP
	drained := func(q *softnic.QP) {
		require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD}, qp.AttrState))
	}
	for range 4 {
		q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
		qs = append(qs, q)
	}
	for _, q := range qs[:3] {
		drained(q)
	}
	var e softnic.Event
	for _, q := range qs[:2] {
		require.True(t, p.NextEvent(&e))
		require.Same(t, q, e.QP)
	}
	drained(qs[3])
	for _, q := range qs[2:] {
		require.True(t, p.NextEvent(&e))
		require.Same(t, q, e.QP)
		require.Equal(t, qp.EventSQDrained, e.Event)
	}
	require.False(t, p.NextEvent(&e))

	q, cq := qpOf(t, p, start, qp.RC, toPeer(), nil)
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.Error}, qp.AttrState))
	require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 9}))
	require.Equal(t, qp.WRFlushErr, poll(t, cq).Status)
}

// TestGroupByMappedAddress: ::ffff:239.0.0.1 and 239.0.0.1 are one group.
func TestGroupByMappedAddress(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, cq := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	require.NoError(t, q.AttachMulticast(netip.MustParseAddr("::ffff:239.0.0.1")))
	require.NoError(t, q.PostRecv(&qp.RecvWR{Local: make([]byte, 64)}))
	f := request(q)
	f.Dst, f.DstMAC = netip.MustParseAddr("239.0.0.1"), frame.MAC{1, 0, 0x5e, 0, 0, 1}
	f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: 0xffff, DestQP: 0xffffff}, DETH: bth.DETH{QKey: 0x1111, SrcQP: 9}}
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, f.AppendTo(nil)))
	require.Equal(t, qp.Success, poll(t, cq).Status)
	q.DetachMulticast(netip.MustParseAddr("::ffff:239.0.0.1"))
	require.Equal(t, softnic.NoQP, p.HandleFrame(start, f.AppendTo(nil)))
}

// TestNumbersFillThePort: with a seed and without, a port gives as many QP numbers as
// it may, none twice, none that is special, and those that are free again.
func TestNumbersFillThePort(t *testing.T) {
	for seed := range byte(40) {
		cfg := softnic.Config{MaxQPs: 15}
		if seed != 0 {
			cfg.Seed = &[32]byte{seed}
		}
		p := onePort(t, 1, cfg, "192.0.2.1")
		make1 := func() (*softnic.QP, error) {
			return p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC, MaxSendWR: 1}})
		}
		var qs []*softnic.QP
		for range 15 {
			q, err := make1()
			require.NoError(t, err)
			require.True(t, q.Num() >= 0x11 && q.Num() < 0xffffff, "%#x", q.Num())
			qs = append(qs, q)
		}
		_, err := make1()
		require.ErrorIs(t, err, softnic.ErrNoQP)
		seen := map[uint32]bool{}
		for _, q := range qs {
			require.Same(t, q, p.QP(q.Num()), "no other took its place")
			seen[q.Num()] = true
		}
		require.Len(t, seen, 15)
		if seed == 0 {
			require.EqualValues(t, 0x11, qs[0].Num())
			require.EqualValues(t, 0x1f, qs[14].Num())
		}
		qs[3].Destroy()
		require.Nil(t, p.QP(qs[3].Num()))
		q, err := make1()
		require.NoError(t, err)
		require.Same(t, q, p.QP(q.Num()))
		if seed == 0 {
			require.EqualValues(t, 0x14, q.Num())
		}
	}
}

// TestAcknowledgeInVLAN: an acknowledgement with a marking of its own has its
// priority in the tag, the VLAN of the data, and leaves the ECN bits as they are.
func TestAcknowledgeInVLAN(t *testing.T) {
	p := onePort(t, 1, softnic.Config{Ack: &softnic.Marking{DSCP: 40, Priority: 5}, ECT: true}, "192.0.2.1")
	ah := toPeer()
	ah.HasVLAN, ah.VLAN, ah.TrafficClass = true, 3<<13|0x123, 26<<2
	q, _ := qpOf(t, p, start, qp.RC, ah, nil)
	f := request(q)
	f.Packet.AckReq = true
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, f.AppendTo(nil)))
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite}))
	got := map[bth.Operation]*frame.Frame{}
	for _, b := range drain(p, start) {
		f := decode(t, b)
		got[f.Packet.Opcode.Operation()] = f
	}
	require.Len(t, got, 2)
	require.EqualValues(t, 5<<13|0x123, got[bth.Acknowledge].VLAN[0].TCI)
	require.EqualValues(t, 40<<2|2, got[bth.Acknowledge].TrafficClass)
	require.EqualValues(t, 3<<13|0x123, got[bth.WriteOnly].VLAN[0].TCI)
	require.EqualValues(t, 26<<2|2, got[bth.WriteOnly].TrafficClass)
}

// TestWhatPortsAreAsked: what callers may ask of ports and QPs, also of those that are not
// connected, or was destroyed.
func TestWhatPortsAreAsked(t *testing.T) {
	p := onePort(t, 1, softnic.Config{LineRate: 7e9}, "192.0.2.1", "2001:db8::1")
	for i, want := range map[int]string{0: "::ffff:192.0.2.1", 1: "2001:db8::1"} {
		g, ok := p.GID(i)
		require.True(t, ok)
		require.Equal(t, want, netip.AddrFrom16(g).String())
	}
	for _, i := range []int{-1, 2} {
		_, ok := p.GID(i)
		require.False(t, ok)
	}
	require.Equal(t, p.AllocPD()+1, p.AllocPD())
	for _, n := range []int{0, 1<<20 + 1} {
		_, err := p.CreateSRQ(n, 0)
		require.ErrorIs(t, err, qp.ErrConfig)
	}
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	require.Zero(t, q.Executed())
	for range 2 { // once, and as a duplicate
		require.Equal(t, softnic.Delivered, p.HandleDecoded(start, request(q)))
		require.EqualValues(t, 1, q.Executed())
	}
	rate, limited := q.Rate()
	require.Equal(t, []any{uint64(7e9), false}, []any{rate, limited})
	most, bytes := q.Window()
	require.Equal(t, [2]int64{}, [2]int64{most, bytes})

	// The timer of a QP that is destroyed does not fire, and others keep theirs.
	other, _ := qpOf(t, p, start, qp.RC, toPeer(), func(_ *softnic.QPConfig, a *qp.Attr) { a.Timeout = 15 })
	for _, x := range []*softnic.QP{q, other} {
		must(t, x.PostSend(start, &qp.SendWR{Op: qp.OpWrite}))
	}
	drain(p, start)
	due, ok := p.Deadline()
	require.True(t, ok)
	require.Equal(t, 4096*time.Nanosecond<<14, due.Sub(start))
	q.Destroy()
	due, ok = p.Deadline()
	require.True(t, ok)
	require.Equal(t, 4096*time.Nanosecond<<15, due.Sub(start))
	p.Tick(due)
	require.EqualValues(t, 1, other.Counters().LocalAckTimeoutErr)
	require.Zero(t, q.Counters().LocalAckTimeoutErr)
	other.Destroy()
	_, ok = p.Deadline()
	require.False(t, ok)
	rate, limited = q.Rate()
	require.Equal(t, []any{uint64(0), false}, []any{rate, limited})
	require.Equal(t, qp.RTS, q.State())
}

// TestConfigBounds: each number of a Config at its ends, and beyond them.
func TestConfigBounds(t *testing.T) {
	for name, test := range map[string]struct {
		good, bad []int
		set       func(c *softnic.Config, n int)
	}{
		"GIDs":        {[]int{1, 256}, []int{0, 257}, func(c *softnic.Config, n int) { c.GIDs = slices.Repeat(c.GIDs, n) }},
		"MaxQPs":      {[]int{0, 1, 1 << 23}, []int{-1, 1<<23 + 1}, func(c *softnic.Config, n int) { c.MaxQPs = n }},
		"neighbors":   {[]int{0, 1}, []int{-1}, func(c *softnic.Config, n int) { c.MaxNeighbors = n }},
		"AckEvery":    {[]int{0, 1}, []int{-1}, func(c *softnic.Config, n int) { c.AckEvery = n }},
		"MaxInFlight": {[]int{0, 1, 1 << 23}, []int{-1, 1<<23 + 1}, func(c *softnic.Config, n int) { c.MaxInFlight = n }},
		"weights":     {[]int{0, 1, 1000}, []int{-1, 1001}, func(c *softnic.Config, n int) { c.Weights[7] = n }},
		"CNP":         {[]int{0, 63}, []int{64}, func(c *softnic.Config, n int) { c.CNP = &softnic.Marking{DSCP: uint8(n), Priority: 7} }},
		"Ack":         {[]int{0, 63}, []int{64}, func(c *softnic.Config, n int) { c.Ack = &softnic.Marking{DSCP: uint8(n), Priority: 7} }},
		"CNP's":       {[]int{0, 7}, []int{8}, func(c *softnic.Config, n int) { c.CNP = &softnic.Marking{Priority: uint8(n)} }},
		"Ack's":       {[]int{0, 7}, []int{8}, func(c *softnic.Config, n int) { c.Ack = &softnic.Marking{Priority: uint8(n)} }},
		"GID type":    {[]int{0, 1}, []int{2}, func(c *softnic.Config, n int) { c.GIDs[0].Type = softnic.GIDType(n) }},
	} {
		for _, n := range append(test.good, test.bad...) {
			c := softnic.Config{GIDs: []softnic.GID{addr("192.0.2.1")}}
			test.set(&c, n)
			_, err := softnic.New(c)
			if slices.Contains(test.bad, n) {
				require.ErrorIs(t, err, softnic.ErrConfig, "%s %d", name, n)
			} else {
				require.NoError(t, err, "%s %d", name, n)
			}
		}
	}
	_, err := softnic.New(softnic.Config{GIDs: []softnic.GID{{}}})
	require.ErrorIs(t, err, softnic.ErrConfig)
	_, err = softnic.New(softnic.Config{GIDs: []softnic.GID{addr("192.0.2.1")}, CM: &cm.Config{MaxCalls: -1}})
	require.ErrorIs(t, err, cm.ErrConfig)
}
