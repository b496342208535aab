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
