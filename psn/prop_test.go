package psn_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/psn"
)

// anyPSN leans to the edges of the circle, and now and then sets bits that do
// not count.
func anyPSN(t *rapid.T, name string) psn.PSN {
	near := rapid.SampledFrom([]uint32{0, psn.Half, psn.Mask}).Draw(t, name+" near")
	return psn.PSN(rapid.OneOf(
		rapid.Uint32Range(0, psn.Mask),
		rapid.Map(rapid.Int32Range(-3, 3), func(d int32) uint32 { return (near + uint32(d)) & psn.Mask }),
		rapid.Uint32(),
	).Draw(t, name))
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := anyPSN(t, "p"), anyPSN(t, "q")
		n := rapid.Int().Draw(t, "n")
		d := p.Diff(q)

		require.LessOrEqual(t, -psn.Half, d)
		require.Less(t, d, psn.Half)
		require.Equal(t, p&psn.Mask, q.Add(d), "the distance leads from q to p")
		if d != -psn.Half {
			require.Equal(t, -d, q.Diff(p))
		} else {
			require.Equal(t, d, q.Diff(p))
		}
		require.Equal(t, p&psn.Mask, p.Add(n).Add(-n))
		require.Zero(t, p.Add(n)>>psn.Bits)
		require.Equal(t, d, (p | 0xff<<24).Diff(q))

		// Ahead, the same or before: one of three, but at half the circle.
		states := 0
		for _, is := range []bool{p.Before(q), q.Before(p), p&psn.Mask == q&psn.Mask} {
			if is {
				states++
			}
		}
		require.Equal(t, d == -psn.Half, states == 2)
		require.NotZero(t, states)
	})
}

func TestWindowProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := anyPSN(t, "start")
		n := rapid.Uint32Range(0, 1<<24+2).Draw(t, "n")
		i := rapid.Uint32Range(0, psn.Mask).Draw(t, "i")
		require.Equal(t, i < n, start.Add(int(i)).In(start, n))
	})
}

// TestUnwrapProperties holds that a count within half a circle of the reference
// comes back from its PSN.
func TestUnwrapProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ref := rapid.Uint64Range(psn.Half, 1<<60).Draw(t, "ref")
		d := rapid.Int64Range(-psn.Half, psn.Half-1).Draw(t, "distance")
		n := ref + uint64(d)
		require.Equal(t, n, psn.Unwrap(ref, psn.Wrap(n)))
		require.Equal(t, psn.Wrap(ref).Add(int(d)), psn.Wrap(n))
	})
}

func FuzzPSN(f *testing.F) {
	f.Add(uint32(0), uint32(1<<23), uint64(1<<24))
	f.Add(uint32(1<<24-1), uint32(0), uint64(1<<40))
	f.Fuzz(func(t *testing.T, a, b uint32, ref uint64) {
		p, q := psn.PSN(a), psn.PSN(b)
		if q.Add(p.Diff(q)) != p&psn.Mask {
			t.Errorf("%v + (%v - %v) is not %v", q, p, q, p)
		}
		if psn.Wrap(psn.Unwrap(ref, p)) != p&psn.Mask {
			t.Errorf("%v near %d", p, ref)
		}
	})
}
