package cnp_test

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
)

// Behind the seam a flow does what a reaction point does on its own.
func TestPropControllerIsReactionPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, line := genParams(t)
		port, err := cnp.NewReactionPort(p, line)
		require.NoError(t, err)
		r := port.ReactionPoint()
		c, err := cnp.Controller(p).NewPort(line)
		require.NoError(t, err)
		f := c.Flow()
		now := t0
		clock := port.ReactionPoint()
		clock.HandleCNP(now) // the port's time 1
		for i, s := range genSteps(t, p) {
			now = now.Add(time.Duration(s.wait))
			ns := 1 + int64(now.Sub(t0))
			do(&r, s, now)
			switch s.kind {
			case 0:
				f.CNP(ns)
			case 1:
				f.Sent(ns, &congestion.Send{Bytes: s.bytes})
			default:
				f.Tick(ns)
			}
			want := uint64(0)
			if r.Limited() {
				want = r.Rate()
			}
			require.Equal(t, want, f.Rate(), i)
			d, ok := r.Deadline()
			require.Equal(t, ok, f.Due() != 0, i)
			if ok {
				require.Equal(t, d.Sub(t0), time.Duration(f.Due()-1), i)
			}
			require.Zero(t, f.Window())
		}
	})
}

// Behind the seam the receiver does what a notification point does on its own.
func TestPropControllerIsNotificationPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := cnp.Paper()
		p.CnpScope = rapid.SampledFrom([]cnp.Scope{cnp.ScopeQP, cnp.ScopeAddressPair, cnp.ScopeDestination, cnp.ScopePort}).Draw(t, "scope")
		np, err := cnp.NewNotificationPoint(p, 0)
		require.NoError(t, err)
		c, err := cnp.Controller(p).NewPort(40 * gig)
		require.NoError(t, err)
		r := c.Receiver()
		var gates [3]cnp.Gate
		var words [3]int64
		now := t0
		np.HandlePacket(now, &cnp.Arrival{}, nil) // time 1
		for range rapid.IntRange(1, 100).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40_000).Draw(t, "wait")))
			q := rapid.IntRange(0, 2).Draw(t, "qp")
			a := cnp.Arrival{
				Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 2).Draw(t, "src"))}),
				Dst: netip.AddrFrom4([4]byte{10, 0, 1, byte(rapid.IntRange(1, 2).Draw(t, "dst"))}),
				ECN: uint8(rapid.IntRange(0, 3).Draw(t, "ecn")), Opcode: rapid.SampledFrom([]bth.Opcode{bth.RCWriteMiddle, bth.RCAcknowledge}).Draw(t, "op"),
			}
			b := congestion.Arrival{Src: a.Src, Dst: a.Dst, CE: a.ECN == cnp.CE, Data: a.Opcode.Write(), Gate: &words[q]}
			require.Equal(t, np.HandlePacket(now, &a, &gates[q]), r.Received(1+int64(now.Sub(t0)), &b) == congestion.SendCNP)
		}
	})
}

func TestControllerEcho(t *testing.T) {
	c, err := cnp.Controller(cnp.NS3(100 * gig)).NewPort(100 * gig)
	require.NoError(t, err)
	require.Equal(t, congestion.NeedECT|congestion.NeedAcks, c.Needs())
	var gate int64
	for range 3 { // without a gap
		require.Equal(t, congestion.EchoECN, c.Receiver().Received(1, &congestion.Arrival{CE: true, Data: true, Gate: &gate}))
	}
	require.Zero(t, c.Receiver().Received(1, &congestion.Arrival{CE: true, Gate: &gate}), "no data")
	f := c.Flow()
	f.Acked(1, &congestion.Ack{})
	f.Tick(10_000)
	require.Zero(t, f.Rate())
	f.Acked(10_000, &congestion.Ack{ECN: true})
	f.Tick(14_000)
	require.NotZero(t, f.Rate(), "not limited")
	require.Less(t, f.Rate(), 51*gig)

	// CNPs are what the others go by.
	c, err = cnp.Controller(cnp.Paper()).NewPort(100 * gig)
	require.NoError(t, err)
	require.Equal(t, congestion.NeedECT, c.Needs())
	f = c.Flow()
	f.Acked(1, &congestion.Ack{ECN: true})
	require.Zero(t, f.Rate())
	f.CNP(1)
	require.EqualValues(t, 50*gig, f.Rate())

	_, err = cnp.Controller(cnp.Params{}).NewPort(100 * gig)
	require.ErrorIs(t, err, cnp.ErrParams)
	_, err = cnp.Controller(cnp.Paper()).NewPort(math.MaxUint64)
	require.ErrorIs(t, err, cnp.ErrParams)
}

// Rule CP-1.
func TestRED(t *testing.T) {
	c, err := cnp.NewCongestionPoint(cnp.PaperCongestion())
	require.NoError(t, err)
	pmax := uint64(1<<32) * 10_000 / 1_000_000
	for _, x := range []struct {
		queue int
		want  uint64
	}{
		{-5, 0}, {0, 0}, {5000, 0}, {5001, pmax / 195_000}, {102_500, pmax / 2}, {200_000, pmax},
		{200_001, 1 << 32}, {math.MaxInt, 1 << 32},
	} {
		require.Equal(t, x.want, c.Threshold(x.queue), x.queue)
	}
	require.True(t, c.Mark(200_001, cnp.ECT0, math.MaxUint32))
	require.True(t, c.Mark(200_001, cnp.ECT1, math.MaxUint32))
	require.False(t, c.Mark(200_001, cnp.NotECT, 0), "not ECN-capable")
	require.False(t, c.Mark(200_001, cnp.CE, 0), "marked already")
	require.False(t, c.Mark(5000, cnp.ECT0, 0))
	require.True(t, c.Mark(200_000, cnp.ECT0, uint32(pmax)-1))
	require.False(t, c.Mark(200_000, cnp.ECT0, uint32(pmax)))
	require.True(t, c.Mark(200_001, 0xf0|cnp.ECT0, 7), "the low two bits count")

	// One threshold: a step, as in DCTCP.
	c, err = cnp.NewCongestionPoint(cnp.CongestionParams{Kmin: 9, Kmax: 9, Pmax: 500_000})
	require.NoError(t, err)
	require.Zero(t, c.Threshold(9))
	require.EqualValues(t, uint64(1<<32), c.Threshold(10))

	_, err = cnp.NewCongestionPoint(cnp.CongestionParams{Kmin: 2, Kmax: 1})
	require.EqualError(t, err, "cnp: bad parameter: Kmin is 2 bytes, above Kmax, 1 bytes")
	_, err = cnp.NewCongestionPoint(cnp.CongestionParams{Pmax: 1_000_001})
	require.ErrorIs(t, err, cnp.ErrParams)
}

// Probability against the formula, and never falling with the queue.
// Rule CP-1.
func TestPropRED(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := cnp.CongestionParams{
			Kmin: rapid.Uint32().Draw(t, "Kmin"),
			Pmax: rapid.Uint32Range(0, 1_000_000).Draw(t, "Pmax"),
		}
		p.Kmax = rapid.Uint32Range(p.Kmin, math.MaxUint32).Draw(t, "Kmax")
		c, err := cnp.NewCongestionPoint(p)
		require.NoError(t, err)
		q := int(rapid.Int32Range(0, math.MaxInt32).Draw(t, "queue"))
		want := 0.0
		switch {
		case uint64(q) > uint64(p.Kmax):
			want = 1
		case uint64(q) > uint64(p.Kmin):
			want = float64(p.Pmax) / 1e6 * (float64(q) - float64(p.Kmin)) / (float64(p.Kmax) - float64(p.Kmin))
		}
		require.InDelta(t, want, float64(c.Threshold(q))/(1<<32), 1e-9)
		if q > 0 {
			require.LessOrEqual(t, c.Threshold(q-1), c.Threshold(q))
		}
	})
}
