package conform

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBuckets(t *testing.T) {
	// Every bucket begins where the one before ends, and is as narrow as promised.
	low := uint64(0)
	for i := range histBuckets {
		top := bucketTop(i)
		require.Equal(t, i, bucketOf(low))
		require.Equal(t, i, bucketOf(top))
		require.LessOrEqual(t, (top-low)*32, low, "bucket %d", i)
		low = top + 1
	}
	require.Equal(t, uint64(1)<<histMaxBits, low)
}

func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Histogram
		v := rapid.SliceOfN(rapid.Int64Range(0, 1<<39), 1, 300).Draw(t, "durations")
		sum := int64(0)
		for _, d := range v {
			h.add(d)
			sum += d
		}
		slices.Sort(v)
		require.EqualValues(t, v[0], h.Min())
		require.EqualValues(t, v[len(v)-1], h.Max())
		require.EqualValues(t, sum/int64(len(v)), h.Mean())
		for _, q := range []int{1, 500, 990, 999, 1000} {
			want := v[(len(v)*q+999)/1000-1]
			got := int64(h.Quantile(q))
			require.GreaterOrEqual(t, got, want)
			require.LessOrEqual(t, got, want+want/32)
		}
	})
	var none Histogram
	require.Zero(t, none.Quantile(500))
	require.Zero(t, none.Mean())
	var long Histogram
	long.add(int64(time.Hour))
	long.add(-5)
	require.Equal(t, time.Hour, long.Max())
	require.Zero(t, long.Min())
}

// The PSNs that were skipped are found again one by one, wherever a range is split, and more
// ranges than are kept forget only the oldest.
func TestSkips(t *testing.T) {
	w, err := New(Config{})
	require.NoError(t, err)
	var k skips
	for i := range uint64(len(k) + 1) {
		w.now = int64(i + 1)
		k.add(100*i+1, 100*i+4, w.now, i%2 == 1)
	}
	found, _ := k.take(w, 1)
	require.False(t, found, "the oldest")
	for i := range uint64(len(k)) {
		for _, u := range []uint64{3, 1, 2} { // the ends first: nothing is split
			found, again := k.take(w, 100*(i+1)+u)
			require.True(t, found)
			require.Equal(t, i%2 == 0, again)
			found, _ = k.take(w, 100*(i+1)+u)
			require.False(t, found)
		}
	}
	k.add(10, 13, 1, false)
	k.add(20, 23, 1, false)
	for _, u := range []uint64{11, 21, 10, 12, 20, 22} {
		found, _ := k.take(w, u)
		require.True(t, found, u)
	}
	require.Equal(t, -1, slices.IndexFunc(k[:], func(r skip) bool { return r.from < r.to }))
}

// A flow may insist on any number of checks at once.
func TestInsists(t *testing.T) {
	var s stream
	told := map[Check]int{}
	for range 4 {
		for c := PKeyZero; c < PKeyZero+9; c++ {
			if s.insists(c) {
				told[c]++
			}
		}
	}
	require.Len(t, told, 9)
}
