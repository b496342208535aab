package softnic_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// arpReply builds the reply to an ARP request, tagged or not.
func arpReply(b []byte) []byte {
	r := append([]byte(nil), b...)
	mac := []byte{2, 0, 0, 0, 0, 9}
	copy(r, b[6:12])
	copy(r[6:], mac)
	h, q := r[len(r)-28:], b[len(b)-28:]
	h[7] = 2
	copy(h[8:], mac)
	copy(h[14:], q[24:28])
	copy(h[18:], q[8:18])
	return r
}

// TestAddressComesWhileDraining: when the reply is received there is nothing to send, and
// what is posted is sent after the drain.
func TestAddressComesWhileDraining(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	ah := qp.AHAttr{GID: gidOf("192.0.2.9")}
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend, AH: qp.NewAddressHandle(ah), RemoteQPN: 5}))
	asked := drain(p, start)
	require.Len(t, asked, 1)
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD}, qp.AttrState))
	require.Equal(t, softnic.Answered, p.HandleFrame(start, arpReply(asked[0])))
	require.Empty(t, drain(p, start))
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.RTS}, qp.AttrState))
	require.Len(t, drain(p, start), 1)
}

// TestPriorityChangesWhilePaused: a QP that was held back continues when it gets
// another priority, without a change of the pause.
func TestPriorityChangesWhilePaused(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	p.SetPaused(1)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	require.Empty(t, drain(p, start))
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD}, qp.AttrState))
	ah := toPeer()
	ah.TrafficClass = 3 << 5
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD, AH: ah}, qp.AttrState|qp.AttrAH))
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.RTS}, qp.AttrState))
	require.Len(t, drain(p, start), 1)
}

// TestAcknowledgeWaitsForAddress: a paced QP that has lost its peer's hardware
// address to a new path keeps the acknowledgement until it has it again.
func TestAcknowledgeWaitsForAddress(t *testing.T) {
	params := cnp.Paper()
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	f := request(q)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	p.HandleFrame(start, f.AppendTo(nil))
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 1024)}))
	require.Len(t, drain(p, start), 1) // the pacer is shut now
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD}, qp.AttrState))
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.SQD, AH: qp.AHAttr{GID: gidOf("192.0.2.2")}}, qp.AttrState|qp.AttrAH))
	p.HandleFrame(start, request(q).AppendTo(nil))
	asked := drain(p, start)
	require.Len(t, asked, 1)
	p.HandleFrame(start, arpReply(asked[0]))
	sent := drain(p, start)
	require.Len(t, sent, 1)
	require.Equal(t, bth.Acknowledge, decode(t, sent[0]).Packet.Opcode.Operation())
}

// TestStrangersMakeRoom: hosts that only asked for this one do not keep out a
// peer's address, nor does making room cost a peer its place.
func TestStrangersMakeRoom(t *testing.T) {
	p := onePort(t, 1, softnic.Config{MaxNeighbors: 4}, "192.0.2.1")
	p.AddNeighbor(netip.MustParseAddr("192.0.2.2"), frame.MAC{2, 2})
	for i := range 100 {
		b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1,
			2, 0, 0, 0, 0, 7, 10, 0, 0, byte(i), 0, 0, 0, 0, 0, 0, 192, 0, 2, 1}
		require.Equal(t, softnic.Answered, p.HandleFrame(start, b))
		drain(p, start)
	}
	for i := range 3 {
		gid := netip.AddrFrom4([4]byte{192, 0, 2, byte(9 + i)}).As16()
		q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gid}, nil)
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
		asked := drain(p, start)
		require.Len(t, asked, 1)
		p.HandleFrame(start, arpReply(asked[0]))
		require.Len(t, drain(p, start), 1, i)
	}
	q, _ := qpOf(t, p, start, qp.UC, qp.AHAttr{GID: gidOf("192.0.2.2")}, nil)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	require.Equal(t, frame.MAC{2, 2}, decode(t, drain(p, start)[0]).DstMAC)
}

// TestNeighborsInVLAN: a QP with a VLAN tag asks inside its VLAN, and questions
// from there are answered there, ARP and neighbour discovery.
func TestNeighborsInVLAN(t *testing.T) {
	const tci = 3<<13 | 100
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
	ah := qp.AHAttr{GID: gidOf("192.0.2.9"), HasVLAN: true, VLAN: tci}
	q, _ := qpOf(t, p, start, qp.UC, ah, nil)
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	asked := drain(p, start)
	require.Len(t, asked, 1)
	require.Equal(t, uint32(0x8100<<16|tci), binary.BigEndian.Uint32(asked[0][12:]))
	require.Equal(t, softnic.Answered, p.HandleFrame(start, arpReply(asked[0])))
	f := decode(t, drain(p, start)[0])
	require.Equal(t, frame.MAC{2, 0, 0, 0, 0, 9}, f.DstMAC)
	require.EqualValues(t, tci, f.VLAN[0].TCI)

	questions := 0
	for _, b := range readPcap(t, "cm-rping-ipv6") {
		nd := binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[20] == 58 && b[54] == 135
		if arp := binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 1; !nd && !arp {
			continue
		}
		plain := onePort(t, 1, softnic.Config{}, "192.0.2.1", "2001:db8::1")
		if plain.HandleFrame(start, b) != softnic.Answered {
			continue
		}
		questions++
		want := drain(plain, start)[0]
		tag := []byte{0x81, 0, tci >> 8, tci & 0xff}
		tagged := append(append(append([]byte(nil), b[:12]...), tag...), b[12:]...)
		require.Equal(t, softnic.Answered, p.HandleFrame(start, tagged))
		got := drain(p, start)
		require.Len(t, got, 1)
		require.Equal(t, tag, got[0][12:16])
		require.Equal(t, want, append(append([]byte(nil), got[0][:12]...), got[0][16:]...))
	}
	require.NotZero(t, questions)
}

// TestOtherAddressOfPort: a connected QP accepts only packets to its own address, in
// the version of RoCE that this speaks.
func TestOtherAddressOfPort(t *testing.T) {
	a := netip.MustParseAddr("2001:db8::1")
	p, err := softnic.New(softnic.Config{MAC: frame.MAC{0x52, 0x54, 0, 0, 0, 1}, GIDs: []softnic.GID{
		{Addr: a}, {Addr: a, Type: softnic.RoCEv1}, {Addr: netip.MustParseAddr("2001:db8::100")}}})
	require.NoError(t, err)
	for i, want := range []softnic.Result{softnic.Delivered, softnic.WrongAddress, softnic.WrongAddress} {
		q, _ := qpOf(t, p, start, qp.RC, qp.AHAttr{GID: gidOf("2001:db8::2"), MAC: peerMAC}, nil)
		f := request(q)
		f.Net, f.Src, f.Dst = frame.IPv6, netip.MustParseAddr("2001:db8::2"), a
		switch i {
		case 1:
			f.Net = frame.GRH
		case 2:
			f.Dst = netip.MustParseAddr("2001:db8::100")
		}
		require.Equal(t, want, p.HandleFrame(start, f.AppendTo(nil)), i)
	}
}

// TestMarkedStrangers: a packet that is not from the peer of a QP is counted, but causes
// no CNP; and a CNP before RTR is ignored.
func TestMarkedStrangers(t *testing.T) {
	params := cnp.Paper()
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9}, "192.0.2.1")
	ud, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	rc, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	other := request(rc)
	other.Packet.PKey = 0x8123
	for _, f := range []*frame.Frame{request(ud), other} {
		f.TrafficClass = uint8(frame.CE)
		require.Equal(t, softnic.Delivered, p.HandleFrame(start, f.AppendTo(nil)))
	}
	require.Empty(t, drain(p, start))
	require.EqualValues(t, 2, p.Counters().NpEcnMarkedRocePackets)

	early, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: 1}})
	require.NoError(t, err)
	f := request(early)
	f.Packet = bth.Packet{Header: cnp.New(early.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	p.HandleFrame(start, f.AppendTo(nil))
	_, limited := early.Rate()
	require.False(t, limited)
	require.Zero(t, p.Counters().RpCnpHandled)
}

// TestParkedThenReset: a QP that waited for its pacer waits for nothing in Reset.
func TestParkedThenReset(t *testing.T) {
	params := cnp.Paper()
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	f := request(q)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	p.HandleFrame(start, f.AppendTo(nil))
	require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 8192)}))
	require.Len(t, drain(p, start), 1)
	_, waits := p.Deadline()
	require.True(t, waits)
	require.NoError(t, q.Modify(start, &qp.Attr{State: qp.Reset}, qp.AttrState))
	_, waits = p.Deadline()
	require.False(t, waits)
	_, limited := q.Rate()
	require.False(t, limited)
	p.Tick(start.Add(time.Hour))
	require.Empty(t, drain(p, start.Add(time.Hour)))
}

// TestPausedCNPsLetOthersPass: a CNP of a paused priority does not hold up those of
// another.
func TestPausedCNPsLetOthersPass(t *testing.T) {
	params := cnp.Paper()
	params.CnpDscp = 0 // which is the priority without a tag
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9}, "192.0.2.1")
	p.SetPaused(1 << params.Cnp802pPrio)
	sent := func() (tagged []bool) {
		for _, b := range drain(p, start) {
			require.Equal(t, bth.CNP, decode(t, b).Packet.Opcode)
			tagged = append(tagged, decode(t, b).VLANs != 0)
		}
		return tagged
	}
	for i := range 4 {
		q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
		f := request(q)
		f.TrafficClass, f.Packet.AckReq = uint8(frame.CE), false
		if i < 2 {
			f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: 5}
		}
		p.HandleFrame(start, f.AppendTo(nil))
	}
	require.Equal(t, []bool{false, false}, sent())
	p.SetPaused(0)
	require.Equal(t, []bool{true, true}, sent())
}

// TestRequestsWithoutDataArePaced: a QP with a rate cannot flood its peer with
// messages of no bytes.
func TestRequestsWithoutDataArePaced(t *testing.T) {
	params := cnp.Paper()
	p := onePort(t, 1, softnic.Config{Control: cnp.Controller(params), LineRate: 10e9}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.UC, toPeer(), nil)
	f := request(q)
	f.Packet = bth.Packet{Header: cnp.New(q.Num(), 0xffff).BTH, Payload: make([]byte, 16)}
	p.HandleFrame(start, f.AppendTo(nil))
	rate, limited := q.Rate()
	require.True(t, limited)
	for range 10 {
		require.NoError(t, q.PostSend(start, &qp.SendWR{Op: qp.OpSend}))
	}
	sent := drain(p, start)
	require.Len(t, sent, 1)
	next, waits := p.Deadline()
	require.True(t, waits)
	bits := 8e9 * float64(len(sent[0])+4) // and the FCS
	require.InDelta(t, bits/float64(rate), float64(next.Sub(start)), 1)
	p.Tick(next.Add(1))
	require.Len(t, drain(p, next.Add(1)), 1)
}
