package softnic_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// A paused priority makes no packets, others do, and its own go on in their order
// when the pause is over.
func TestSetPaused(t *testing.T) {
	p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
	now := p.now
	port := p.ports[0]
	port.AddNeighbor(netip.MustParseAddr("192.0.2.2"), p.ports[1].MAC())
	dst, _ := p.ports[1].GID(0)
	var qs [2]*softnic.QP
	for i := range qs {
		var err error
		qs[i], err = port.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: 4}})
		require.NoError(t, err)
		a := qp.Attr{PKey: 0xffff, QKey: 1, SQPSN: 1}
		for s, m := range []qp.AttrMask{qp.AttrPKey | qp.AttrQKey, 0, qp.AttrSQPSN} {
			a.State = qp.Init + qp.State(s)
			require.NoError(t, qs[i].Modify(now, &a, m|qp.AttrState))
		}
		for range 2 {
			require.NoError(t, qs[i].PostSend(now, &qp.SendWR{Local: []byte{1}, RemoteQPN: uint32(100 + i),
				AH: qp.NewAddressHandle(qp.AHAttr{GID: dst, TrafficClass: uint8(i) << 5})}))
		}
	}
	next := func() uint32 {
		var f frame.Frame
		if !port.NextDecoded(now, &f) {
			return 0
		}
		return f.Packet.DestQP
	}
	port.SetPaused(1 << 1)
	require.EqualValues(t, 100, next())
	require.False(t, port.Idle())
	require.EqualValues(t, 100, next())
	require.Zero(t, next())
	require.True(t, port.Idle())
	now = now.Add(time.Second)
	port.Tick(now)
	require.Zero(t, next())
	port.SetPaused(0)
	require.False(t, port.Idle())
	require.EqualValues(t, 101, next())
	require.EqualValues(t, 101, next())
	require.Zero(t, next())
	require.EqualValues(t, 6, softnic.Priority(48<<2, false, 0))
	require.EqualValues(t, 5, softnic.Priority(48<<2, true, 5<<13|1))
}
