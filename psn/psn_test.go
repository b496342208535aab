package psn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/psn"
)

// TestPS1Distance holds rule PS-1: the distance is taken in -2^23 .. 2^23-1, and
// at half the circle each PSN is before the other.
func TestPS1Distance(t *testing.T) {
	for _, c := range []struct {
		p, q psn.PSN
		want int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xffffff, 1},
		{0xffffff, 0, -1},
		{0x7fffff, 0, psn.Half - 1},
		{0x800000, 0, -psn.Half},
		{0, 0x800000, -psn.Half},
		{0x800001, 0, -psn.Half + 1},
		{0, 0x800001, psn.Half - 1},
		{0x000010, 0xfffff0, 0x20},
		{0xfffff0, 0x000010, -0x20},
		{0xff000005, 3, 2}, // bits above 24 do not count
		{5, 0xff000003, 2},
	} {
		require.Equal(t, c.want, c.p.Diff(c.q), "%#x - %#x", uint32(c.p), uint32(c.q))
		require.Equal(t, c.want < 0, c.p.Before(c.q), "%#x before %#x", uint32(c.p), uint32(c.q))
	}
}

// TestPS1NotTransitive shows why nothing may be sorted by Before.
func TestPS1NotTransitive(t *testing.T) {
	a, b, c := psn.PSN(0), psn.PSN(0x600000), psn.PSN(0xc00000)
	require.True(t, a.Before(b))
	require.True(t, b.Before(c))
	require.True(t, c.Before(a))
}

// TestPS1Regions: to a responder that expects 0, the farthest PSN
// ahead is a gap, and the next one the farthest duplicate.
func TestPS1Regions(t *testing.T) {
	const expected psn.PSN = 0
	require.False(t, psn.PSN(0x7fffff).Before(expected))
	require.True(t, psn.PSN(0x800000).Before(expected))
	require.True(t, psn.PSN(0xffffff).Before(expected))
}

// TestPS2Window holds rule PS-2: with fewer than 2^23 PSNs outstanding each one
// differs from those before and after them; with 2^23 no longer.
func TestPS2Window(t *testing.T) {
	for _, first := range []psn.PSN{0, 1, 0x7fffff, 0x800000, 0xfffff0, 0xffffff} {
		next := first.Add(psn.Half - 1) // one below the limit outstanding
		require.True(t, first.Before(next))
		require.True(t, first.In(first, psn.Half-1))
		require.False(t, next.In(first, psn.Half-1))
		next = first.Add(psn.Half)
		require.True(t, next.Before(first), "too many: the next PSN reads as an old one")
	}
}

func TestAdd(t *testing.T) {
	for _, c := range []struct {
		p    psn.PSN
		n    int
		want psn.PSN
	}{
		{0, 0, 0}, {0, 1, 1}, {0xffffff, 1, 0}, {0, -1, 0xffffff},
		{0xfffff0, 0x20, 0x10}, {0x10, -0x20, 0xfffff0},
		{5, 1 << 24, 5}, {5, -(1 << 24), 5}, {5, math.MaxInt32, 4}, {5, math.MinInt32, 5},
		{0xff000005, 1, 6},
	} {
		require.Equal(t, c.want, c.p.Add(c.n), "%#x + %d", uint32(c.p), c.n)
	}
}

func TestIn(t *testing.T) {
	for _, c := range []struct {
		p, start psn.PSN
		n        uint32
		want     bool
	}{
		{5, 5, 0, false}, {5, 5, 1, true}, {6, 5, 1, false}, {4, 5, 1, false},
		{0, 0xffffff, 2, true}, {1, 0xffffff, 2, false}, {0xffffff, 0xffffff, 2, true},
		{4, 5, 1<<24 - 1, false}, {4, 5, 1 << 24, true}, {4, 5, math.MaxUint32, true},
		{0x01000005, 5, 1, true}, {5, 0x01000005, 1, true},
	} {
		require.Equal(t, c.want, c.p.In(c.start, c.n), "%v in %v+%d", c.p, c.start, c.n)
	}
}

func TestUnwrap(t *testing.T) {
	const turn = 1 << 24
	for _, c := range []struct {
		ref  uint64
		p    psn.PSN
		want uint64
	}{
		{turn, 0, turn},
		{turn, 1, turn + 1},
		{turn, 0xffffff, turn - 1},
		{2*turn - 1, 0, 2 * turn},
		{turn, 0x7fffff, turn + psn.Half - 1},
		{turn, 0x800000, turn - psn.Half}, // half the circle away is behind
		{5 * turn, 0xff000001, 5*turn + 1},
		{0, 0xffffff, math.MaxUint64}, // documented: start at 2^24
	} {
		require.Equal(t, c.want, psn.Unwrap(c.ref, c.p), "%#x near %#x", uint32(c.p), c.ref)
	}
}

func TestString(t *testing.T) {
	require.Equal(t, "0", psn.PSN(0).String())
	require.Equal(t, "16777215", psn.PSN(0xffffff).String())
	require.Equal(t, "5", psn.PSN(0xff000005).String())
}

// Seq counts on where PSNs begin again: its PSN, its neighbours, and First, from which
// nothing behind it wraps.
func TestSeq(t *testing.T) {
	s := psn.First(0xfffffe)
	if s != 0x1fffffe || s.PSN() != 0xfffffe || (s+3).PSN() != 1 {
		t.Fatalf("%#x, PSN %v, three on %v", uint64(s), s.PSN(), (s + 3).PSN())
	}
	for _, c := range []struct {
		p    psn.PSN
		want psn.Seq
	}{
		{0xfffffe, s}, {0xffffff, s + 1}, {0, s + 2}, {5, s + 7}, {0xfffff0, s - 14},
		{0x7ffffe, s - psn.Half}, // half the circle away: behind
		{0x7ffffd, s + psn.Half - 1},
	} {
		if got := s.Near(c.p); got != c.want {
			t.Errorf("Near(%v) is %d on, want %d", c.p, int64(got-s), int64(c.want-s))
		}
	}
	if first := psn.First(3).Near(0xfffff0); first >= psn.First(3) || first.PSN() != 0xfffff0 {
		t.Errorf("behind the first: %#x", uint64(first))
	}
}

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

func BenchmarkUnwrap(b *testing.B) {
	n := uint64(1 << 24)
	b.ReportAllocs()
	for b.Loop() {
		n = psn.Unwrap(n, psn.Wrap(n+1))
	}
}

func TestNoAllocations(t *testing.T) {
	p, q, sum := psn.PSN(3), psn.PSN(0xfffffe), 0
	if n := testing.AllocsPerRun(100, func() {
		sum += p.Diff(q)
		p = p.Add(1)
		if p.Before(q) && p.In(q, 7) {
			sum++
		}
		sum += int(psn.Unwrap(1<<24, p) & 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
