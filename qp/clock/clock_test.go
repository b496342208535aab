package clock_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/clock"
)

var starts = map[string]time.Time{
	"zero":        {},
	"before 1970": time.Date(1815, 6, 18, 12, 0, 0, 0, time.UTC),
	"1970":        time.Unix(0, 0),
	"2030":        time.Unix(1_893_456_000, 0).UTC(),
	"far":         time.Date(2241, 1, 1, 0, 0, 0, 0, time.UTC),
	"farther":     time.Date(5000, 1, 1, 0, 0, 0, 0, time.UTC),
	"monotonic":   time.Now(),
}

// The first time is 1, whatever it is, and a deadline that lies d after it comes
// back as just that.
func TestStart(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			var c clock.Clock
			require.Zero(t, c.Last())
			require.EqualValues(t, 1, c.At(start))
			require.EqualValues(t, 1, c.At(start))
			require.EqualValues(t, 1_000_001, c.At(start.Add(time.Millisecond)))
			require.EqualValues(t, 1_000_001, c.At(start), "time stands still")
			require.EqualValues(t, 1_000_001, c.Last())
			at, ok := c.Deadline(5_000_001)
			require.True(t, ok)
			require.Equal(t, 5*time.Millisecond, at.Sub(start))
			_, ok = c.Deadline(0)
			require.False(t, ok)
		})
	}
}

// Times that no int64 can count stand still at the end, and a period added to that
// does not overflow.
func TestFar(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			var c clock.Clock
			c.At(start)
			far := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
			end := c.At(far)
			require.Equal(t, int64(1<<62), end)
			require.Equal(t, end, c.At(far.AddDate(1000, 0, 0)))
			require.Equal(t, end, c.At(start))
			require.True(t, c.Time(end+int64(time.Hour)).After(c.Time(end)))
			require.Less(t, end, int64(math.MaxInt64)-int64(1000*time.Hour))
		})
	}
}

// Time undoes At.
func TestPropRoundTrip(t *testing.T) {
	names := []string{"zero", "before 1970", "1970", "2030", "far", "farther"}
	rapid.Check(t, func(t *rapid.T) {
		start := starts[rapid.SampledFrom(names).Draw(t, "start")]
		var c clock.Clock
		c.At(start)
		now, last := start, int64(1)
		for range rapid.IntRange(1, 20).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "d")))
			at := c.At(now)
			require.GreaterOrEqual(t, at, last)
			if at > last {
				require.True(t, c.Time(at).Equal(now))
			}
			last = at
		}
	})
}
