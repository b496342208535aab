package psn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

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
// is told from what was and from what will be; with 2^23 no longer.
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
