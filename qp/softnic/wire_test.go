package softnic_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

var update = flag.Bool("update", false, "write testdata/*.pcap, and their dissection where tshark is installed")

// The Linux driver has neither XRC nor RoCE v1. The two are tried against
// ourselves, and their bytes against the dissector: testdata/NAME.pcap is what the
// ports send, NAME.tshark.tsv its dissection by tshark 4.0.17. -update writes both;
// the tests compare the frames with the one and their meaning with the other. tshark
// 4.0.17 knows XRC's opcodes, but nothing behind the BTH of such packets.
var fields = []string{"frame.number", "vlan.id", "vlan.etype", "ip.src", "ip.dst", "ip.dsfield", "ip.ttl",
	"infiniband.grh.ipver", "infiniband.grh.tclass", "infiniband.grh.flowlabel", "infiniband.grh.paylen", "infiniband.grh.nxthdr",
	"infiniband.grh.hoplmt", "infiniband.grh.sgid", "infiniband.grh.dgid", "udp.dstport",
	"infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.m", "infiniband.bth.padcnt", "infiniband.bth.p_key",
	"infiniband.bth.destqp", "infiniband.bth.a", "infiniband.bth.psn",
	"infiniband.deth.q_key", "infiniband.deth.srcqp",
	"infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen", "infiniband.atomiceth.swapdt", "infiniband.atomiceth.cmpdt",
	"infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.immdt", "infiniband.ieth", "infiniband.invariant.crc"}

// recorded carries frames between the ports of p and keeps them.
func (p *pair) recorded() *[][]byte {
	all := new([][]byte)
	p.lose = func(b []byte) bool {
		*all = append(*all, bytes.Clone(b))
		return false
	}
	return all
}

// dissected compares frames with testdata, and returns tshark's rows by field.
func dissected(t *testing.T, name string, frames [][]byte) []map[string]string {
	path := "testdata/" + name
	if *update {
		b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
		b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0)
		for i, f := range frames {
			for _, v := range []uint32{uint32(start.Unix()), uint32(i), uint32(len(f)), uint32(len(f))} {
				b = binary.LittleEndian.AppendUint32(b, v)
			}
			b = append(b, f...)
		}
		require.NoError(t, os.WriteFile(path+".pcap", b, 0o644))
		args := []string{"-r", path + ".pcap", "-T", "fields", "-E", "header=y"}
		for _, f := range fields {
			args = append(args, "-e", f)
		}
		out, err := exec.Command("tshark", args...).Output()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path+".tshark.tsv", out, 0o644))
	}
	want := readPcap(t, path+".pcap")
	require.Equal(t, len(want), len(frames))
	for i := range want {
		require.Equal(t, fmt.Sprintf("%x", want[i]), fmt.Sprintf("%x", frames[i]), "frame %d", i+1)
	}
	text, err := os.ReadFile(path + ".tshark.tsv")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	head := strings.Split(lines[0], "\t")
	var rows []map[string]string
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, v := range strings.Split(line, "\t") {
			row[head[i]] = v
		}
		rows = append(rows, row)
	}
	require.Equal(t, len(frames), len(rows))
	for i, row := range rows {
		compare(t, decode(t, frames[i]), row)
	}
	return rows
}

// compare compares what we read in a frame with what tshark does.
func compare(t *testing.T, f *frame.Frame, row map[string]string) {
	p := &f.Packet
	same := func(field, format string, v any) {
		require.Equal(t, fmt.Sprintf(format, v), row[field], "frame %s %s", row["frame.number"], field)
	}
	bit := map[bool]string{false: "0", true: "1"}
	same("infiniband.bth.opcode", "%d", p.Opcode)
	same("infiniband.bth.se", "%s", bit[p.SE])
	same("infiniband.bth.m", "%s", bit[p.M])
	same("infiniband.bth.padcnt", "%d", p.PadCnt)
	same("infiniband.bth.p_key", "%d", p.PKey)
	same("infiniband.bth.destqp", "0x%06x", p.DestQP)
	same("infiniband.bth.a", "%s", bit[p.AckReq])
	same("infiniband.bth.psn", "%d", p.PSN)
	if f.Net == frame.GRH {
		same("vlan.etype", "0x%04x", frame.EtherTypeRoCE)
		same("infiniband.grh.ipver", "%d", 6)
		same("infiniband.grh.tclass", "%d", f.TrafficClass)
		same("infiniband.grh.flowlabel", "%d", f.FlowLabel)
		same("infiniband.grh.hoplmt", "%d", f.HopLimit)
		same("infiniband.grh.nxthdr", "%d", 0x1b)
		same("infiniband.grh.paylen", "%d", f.TransportLen)
		same("infiniband.grh.sgid", "%s", f.Src)
		same("infiniband.grh.dgid", "%s", f.Dst)
	} else {
		same("udp.dstport", "%d", 4791)
		same("ip.src", "%s", f.Src)
		same("ip.dst", "%s", f.Dst)
	}
	ext := p.Opcode.Ext()
	if p.Opcode.Service() == bth.XRC {
		return // tshark 4.0.17 reads no more of XRC than the BTH
	}
	if ext&bth.HasRETH != 0 {
		same("infiniband.reth.va", "0x%016x", p.RETH.VA)
		same("infiniband.reth.r_key", "0x%08x", p.RETH.RKey)
		same("infiniband.reth.dmalen", "%d", p.RETH.DMALen)
	}
	if ext&bth.HasAETH != 0 {
		same("infiniband.aeth.msn", "%d", p.AETH.MSN)
	}
	if ext&bth.HasDETH != 0 {
		same("infiniband.deth.srcqp", "0x%08x", p.DETH.SrcQP)
	}
}

// seq returns n bytes 0, 1, 2, ...
func seq(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// TestXRC: an initiator and a target with two SRQs, every operation, over IPv4.
func TestXRC(t *testing.T) {
	p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
	for i := range 2 {
		p.ports[i].AddNeighbor(netip.AddrFrom4([4]byte{192, 0, 2, byte(2 - i)}), p.ports[1-i].MAC())
	}
	frames := p.recorded()
	const domain = 7
	var srqs [3]*softnic.SRQ
	for i := range srqs {
		var err error
		srqs[i], err = p.ports[1].CreateSRQ(8, domain)
		require.NoError(t, err)
	}
	foreign, err := p.ports[1].CreateSRQ(8, domain+1)
	require.NoError(t, err)
	mem := make([]byte, 8192)
	key, err := p.regs[1].Register(qp.Region{Data: mem, Addr: 0x10000, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic})
	require.NoError(t, err)

	make2 := func() (*softnic.QP, *softnic.CQ, *softnic.QP, *softnic.CQ) {
		to := func(i int) qp.AHAttr { g, _ := p.ports[i].GID(0); return qp.AHAttr{GID: g} }
		peer := func(n uint32) func(*softnic.QPConfig, *qp.Attr) {
			return func(c *softnic.QPConfig, a *qp.Attr) { c.QPN, a.DestQPN, c.XRCD = 0x20+n, 0x20+n, domain }
		}
		n := uint32(len(*frames))
		a, acq := qpOf(t, p.ports[0], p.now, qp.XRCSend, to(1), peer(n))
		b, bcq := qpOf(t, p.ports[1], p.now, qp.XRCRecv, to(0), peer(n))
		return a, acq, b, bcq
	}
	a, acq, b, bcq := make2()
	require.ErrorIs(t, b.PostRecv(&qp.RecvWR{}), qp.ErrSRQ)
	require.Error(t, b.PostSend(p.now, &qp.SendWR{Op: qp.OpSend}))

	bufs := [3][]byte{make([]byte, 4000), make([]byte, 4000), make([]byte, 4000)}
	for i, s := range srqs {
		require.NoError(t, s.PostRecv(&qp.RecvWR{ID: uint64(100 + i), Local: bufs[i]}))
	}
	back, old := make([]byte, 2500), make([]byte, 8)
	for i, wr := range []qp.SendWR{
		{Op: qp.OpSend, Local: seq(2500), SRQ: srqs[1].Num()},
		{Op: qp.OpSendImm, Local: seq(13), SRQ: srqs[0].Num(), Imm: 0xdeadbeef, Flags: qp.Solicited},
		{Op: qp.OpWrite, Local: seq(3000), RemoteAddr: 0x10000, RKey: key, SRQ: srqs[0].Num()},
		{Op: qp.OpWriteImm, Local: seq(5), RemoteAddr: 0x11000, RKey: key, SRQ: srqs[2].Num(), Imm: 0x01020304},
		{Op: qp.OpRead, Local: back, RemoteAddr: 0x10000, RKey: key, SRQ: srqs[0].Num()},
		{Op: qp.OpCmpSwap, Local: old, RemoteAddr: 0x10008, RKey: key, CompareAdd: 1, Swap: 2, SRQ: srqs[0].Num()},
		{Op: qp.OpFetchAdd, Local: old, RemoteAddr: 0x10010, RKey: key, CompareAdd: 0x1122, SRQ: srqs[0].Num()},
	} {
		wr.ID, wr.Flags = uint64(i), wr.Flags|qp.Signaled
		require.NoError(t, a.PostSend(p.now, &wr))
		p.run(10 * time.Millisecond)
		wc := poll(t, acq)
		require.Equal(t, qp.Success, wc.Status, wr.Op)
		require.EqualValues(t, i, wc.ID)
	}
	for _, want := range []qp.Completion{
		{ID: 101, Op: qp.OpRecv, SRQ: srqs[1].Num(), ByteLen: 2500},
		{ID: 100, Op: qp.OpRecv, SRQ: srqs[0].Num(), ByteLen: 13, HasImm: true, Imm: 0xdeadbeef, Solicited: true},
		{ID: 102, Op: qp.OpRecvWrite, SRQ: srqs[2].Num(), ByteLen: 5, HasImm: true, Imm: 0x01020304},
	} {
		want.QPN = b.Num()
		require.Equal(t, want, poll(t, bcq))
	}
	require.Equal(t, seq(2500), bufs[1][:2500])
	require.Equal(t, seq(13), bufs[0][:13])
	require.Equal(t, seq(2500), back)
	require.Equal(t, uint64(0x1716151413121110), binary.LittleEndian.Uint64(old))
	require.Equal(t, uint64(0x1716151413121110+0x1122), binary.LittleEndian.Uint64(mem[16:]))

	// An SRQ without receives: RNR NAK, and then it arrives (rule XR-3).
	require.NoError(t, a.PostSend(p.now, &qp.SendWR{ID: 50, Op: qp.OpSend, Flags: qp.Signaled, SRQ: srqs[1].Num()}))
	p.run(500 * time.Microsecond)
	none(t, acq)
	require.EqualValues(t, 1, a.Counters().RNRNakReceived)
	require.NoError(t, srqs[1].PostRecv(&qp.RecvWR{ID: 150}))
	p.run(10 * time.Millisecond)
	require.Equal(t, qp.Success, poll(t, acq).Status)
	require.EqualValues(t, 150, poll(t, bcq).ID)

	dissected(t, "xrc", *frames)
	// XRCETH, which tshark does not know: 8 reserved bits and the SRQ, right behind
	// the BTH of requests.
	requests := 0
	for _, f := range *frames {
		if h := decode(t, f).Transport; h[4+2]|h[5] == 0 && f[33] == 2 { // to the target
			require.EqualValues(t, 0, h[12])
			require.Contains(t, []uint32{srqs[0].Num(), srqs[1].Num(), srqs[2].Num()}, binary.BigEndian.Uint32(h[12:]))
			requests++
		}
	}
	require.Equal(t, 3+1+3+1+1+1+1+2, requests)

	// SRQs of another domain, and none: invalid request (rule XR-3).
	for _, num := range []uint32{foreign.Num(), 0x777} {
		a, acq, b, _ := make2()
		require.NoError(t, a.PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, SRQ: num}))
		p.run(10 * time.Millisecond)
		require.Equal(t, qp.RemoteInvalidReqErr, poll(t, acq).Status)
		require.Equal(t, qp.Error, b.State())
	}
	a, acq, _, _ = make2()
	srqs[2].Destroy()
	require.NoError(t, a.PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, SRQ: srqs[2].Num()}))
	p.run(10 * time.Millisecond)
	require.Equal(t, qp.RemoteInvalidReqErr, poll(t, acq).Status)
}

// TestRoCEv1: RC and UD between GIDs of version 1, with a VLAN tag.
func TestRoCEv1(t *testing.T) {
	v1 := func(s string) softnic.GID { return softnic.GID{Addr: netip.MustParseAddr(s), Type: softnic.RoCEv1} }
	p := newPair(t, [2]softnic.GID{v1("fe80::5054:ff:fe00:1"), v1("fe80::5054:ff:fe00:2")})
	frames := p.recorded()
	mem := make([]byte, 8192)
	key, err := p.regs[1].Register(qp.Region{Data: mem, Addr: 0x7000, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic})
	require.NoError(t, err)
	to := func(i int) qp.AHAttr {
		g, _ := p.ports[i].GID(0)
		return qp.AHAttr{GID: g, MAC: p.ports[i].MAC(), TrafficClass: 0x68, HopLimit: 5, FlowLabel: 0x54321, HasVLAN: true, VLAN: 5<<13 | 33}
	}
	a, acq := qpOf(t, p.ports[0], p.now, qp.RC, to(1), nil)
	b, bcq := qpOf(t, p.ports[1], p.now, qp.RC, to(0), nil)
	require.Equal(t, a.Num(), b.Num())
	got, back, old := make([]byte, 1500), make([]byte, 1100), make([]byte, 8)
	require.NoError(t, b.PostRecv(&qp.RecvWR{ID: 9, Local: got}))
	for _, wr := range []qp.SendWR{
		{ID: 1, Op: qp.OpSendImm, Local: seq(1500), Imm: 7},
		{ID: 2, Op: qp.OpWrite, Local: seq(1027), RemoteAddr: 0x7000, RKey: key},
		{ID: 3, Op: qp.OpRead, Local: back, RemoteAddr: 0x7000, RKey: key},
		{ID: 4, Op: qp.OpFetchAdd, Local: old, RemoteAddr: 0x7000, RKey: key, CompareAdd: 1},
	} {
		wr.Flags = qp.Signaled
		require.NoError(t, a.PostSend(p.now, &wr))
		p.run(10 * time.Millisecond)
		require.Equal(t, qp.Success, poll(t, acq).Status)
	}
	require.EqualValues(t, 1500, poll(t, bcq).ByteLen)
	require.Equal(t, seq(1500), got)
	require.Equal(t, append(seq(1027), make([]byte, 73)...), back)

	u, _ := qpOf(t, p.ports[0], p.now, qp.UD, qp.AHAttr{}, nil)
	v, vcq := qpOf(t, p.ports[1], p.now, qp.UD, qp.AHAttr{}, nil)
	area := make([]byte, 60)
	require.NoError(t, v.PostRecv(&qp.RecvWR{Local: area}))
	ah := to(1)
	require.NoError(t, u.PostSend(p.now, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(ah), RemoteQPN: v.Num(), RemoteQKey: 0x1111, Local: seq(9)}))
	p.run(10 * time.Millisecond)
	require.EqualValues(t, 49, poll(t, vcq).ByteLen)
	require.Equal(t, seq(9), area[40:49])
	last := decode(t, (*frames)[len(*frames)-1])
	checkGRH(t, last, area)
	require.EqualValues(t, 0x1b, area[6])

	for _, row := range dissected(t, "rocev1", *frames) {
		require.Equal(t, "33", row["vlan.id"])
		require.Equal(t, "104", row["infiniband.grh.tclass"])
	}
	// Version 2 to an address of version 1.
	last.Net, last.Src, last.Dst = frame.IPv6, netip.MustParseAddr("fe80::5054:ff:fe00:1"), netip.MustParseAddr("fe80::5054:ff:fe00:2")
	last.DstPort = frame.Port
	require.Equal(t, softnic.WrongAddress, p.ports[1].HandleFrame(p.now, last.AppendTo(nil)))
}
