package cnp_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp"
)

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
