package softnic_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// A QP after Destroy, and one that no port made: calls fail with an error.
func TestNoPort(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	gone, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	num := gone.Num()
	gone.Destroy()
	gone.Destroy()
	require.Equal(t, num, gone.Num())
	require.Equal(t, qp.RTS, gone.State())
	for _, q := range []*softnic.QP{gone, {}} {
		require.ErrorIs(t, q.PostSend(start, &qp.SendWR{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.PostRecv(&qp.RecvWR{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.Modify(start, &qp.Attr{}, qp.AttrState), softnic.ErrNoPort)
		require.ErrorIs(t, q.Connect(start, &qp.Attr{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.AttachMulticast(netip.MustParseAddr("239.1.1.1")), softnic.ErrNoPort)
		q.DetachMulticast(netip.MustParseAddr("239.1.1.1"))
		rate, limited := q.Rate()
		require.Zero(t, rate)
		require.False(t, limited)
		q.Type()
		q.Attr()
		q.Counters()
		q.Outstanding()
		q.Destroy()
	}
}

func TestRefused(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC, QPN: softnic.GSIQPN}})
	require.ErrorIs(t, err, softnic.ErrNoQP, "QP 1 is for datagrams")
	rc, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	require.ErrorIs(t, rc.AttachMulticast(netip.MustParseAddr("239.1.1.1")), qp.ErrOp)
	require.ErrorIs(t, rc.PostSend(start, nil), qp.ErrNil)
	require.ErrorIs(t, rc.PostRecv(nil), qp.ErrNil)
	require.ErrorIs(t, rc.Modify(start, nil, qp.AttrAH), qp.ErrNil)
	_, err = p.CreateAH(qp.AHAttr{SGIDIndex: 1})
	require.ErrorIs(t, err, softnic.ErrAddress)
	h, err := p.CreateAH(qp.AHAttr{GID: gidOf("192.0.2.2")})
	require.NoError(t, err)
	require.Equal(t, gidOf("192.0.2.2"), h.Attr().GID)
}

// Connect checks what Modify checks, and changes nothing on an error.
func TestConnect(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{MaxSendWR: 1}})
	require.NoError(t, err)
	a := qp.Attr{PathMTU: 1024, DestQPN: 5, AH: toPeer()}
	bad := a
	bad.PKey = 0x1234
	require.ErrorIs(t, q.Connect(start, &bad), softnic.ErrPKey)
	bad = a
	bad.AH = qp.AHAttr{}
	require.ErrorIs(t, q.Connect(start, &bad), softnic.ErrAddress)
	require.Equal(t, qp.Reset, q.State())
	require.NoError(t, q.Connect(start, &a))
	require.NoError(t, q.PostSend(start, &qp.SendWR{}))
	frames := drain(p, start)
	require.Len(t, frames, 1)
	f := decode(t, frames[0])
	require.Equal(t, uint32(5), f.Packet.DestQP)
	require.Equal(t, "192.0.2.2", f.Dst.String())
	require.Equal(t, uint16(0xffff), f.Packet.PKey)
}

// An XRC target needs a domain, and 0 is none: ordinary SRQs are in it.
func TestXRCDomain0(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.XRCRecv}})
	require.ErrorIs(t, err, softnic.ErrConfig)
	_, err = p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.XRCRecv}, XRCD: 1})
	require.NoError(t, err)
}

// A UD QP that has nothing to send is not held back by the priority of an address
// handle that it has by the way: what it posts to another priority leaves at once.
func TestHeldWithoutDatagram(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	p.SetPaused(1)
	f := request(q)
	f.Packet.Opcode, f.Packet.DETH.QKey = bth.UD.Opcode(bth.SendOnly), 0x1111
	p.HandleFrame(start, f.AppendTo(nil)) // touches q
	require.Empty(t, drain(p, start))
	h, err := p.CreateAH(qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: peerMAC, TrafficClass: 3 << 5})
	require.NoError(t, err)
	require.NoError(t, q.PostSend(start, &qp.SendWR{AH: h, RemoteQPN: 5}))
	require.Len(t, drain(p, start), 1)
}

// TestHeaderChecksum: a flipped bit of the IPv4 header, which the ICRC does not cover
// in the type of service and the time to live, is found by the header's checksum.
func TestHeaderChecksum(t *testing.T) {
	p := onePort(t, 1, softnic.Config{ECT: true}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	for i, at := range []int{15, 22, 24} { // type of service, time to live, checksum
		b[at] ^= 3
		require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
		b[at] ^= 3
		require.EqualValues(t, i+1, p.Counters().RxHeaderChecksum)
	}
	sum := [2]byte(b[24:])
	b[24], b[25] = 0, 0 // as a host leaves it to its adapter: not from a wire
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	copy(b[24:], sum[:])
	require.Zero(t, p.Counters().RxMalformed)
	require.Zero(t, q.Counters().RxPackets)
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, b))
}

// TestRunts: what says nothing of RoCE is not malformed RoCE.
func TestRunts(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	for n := range len(b) {
		want := softnic.NotRoCE
		if n >= 38 { // the UDP destination port
			want = softnic.Malformed
		}
		require.Equal(t, want, p.HandleFrame(start, b[:n]), n)
	}
	require.EqualValues(t, 1+38, p.Counters().RxNotRoCE)
	// Fragments: the first one is RoCE's, whose a later one is nobody knows.
	b[20] = 0x20
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	b[20], b[21] = 0, 1
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, b))
}
