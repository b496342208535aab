package clock_test

import (
	"cmp"
	"math"
	"slices"
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

// A heap gives items by time, then by order, whatever is added, moved and taken off
// before, and items know their places.
func TestHeapAgainstSorting(t *testing.T) {
	type item struct {
		at    int64
		order uint64
		place int
	}
	rapid.Check(t, func(t *rapid.T) {
		q := clock.NewHeap(func(x *item, at int) { x.place = at })
		q.Grow(rapid.IntRange(0, 40).Draw(t, "room"))
		var all []*item
		least := func() *item {
			return slices.MinFunc(all, func(a, b *item) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order)) })
		}
		gone := func(x *item) {
			require.Equal(t, -1, x.place)
			all = slices.DeleteFunc(all, func(y *item) bool { return x == y })
		}
		any := rapid.Custom(func(t *rapid.T) *item { return all[rapid.IntRange(0, len(all)-1).Draw(t, "item")] })
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 5).Draw(t, "op"); {
			case op < 3 || len(all) == 0:
				x := &item{at: int64(rapid.IntRange(0, 20).Draw(t, "at")), order: uint64(len(all)) ^ 5}
				all = append(all, x)
				q.Push(x.at, x.order, x)
			case op == 3:
				x := any.Draw(t, "moved")
				x.at = int64(rapid.IntRange(0, 20).Draw(t, "at"))
				q.Set(x.place, x.at)
			case op == 4:
				x := any.Draw(t, "gone")
				q.Remove(x.place)
				gone(x)
			default:
				want := least()
				at, order, x := q.Pop()
				require.Equal(t, [2]uint64{uint64(want.at), want.order}, [2]uint64{uint64(at), order})
				gone(x)
			}
			require.Equal(t, len(all), q.Len())
			if len(all) == 0 {
				require.EqualValues(t, -7, q.Due(-7))
				continue
			}
			require.Equal(t, least().at, q.Due(-7))
			at, order, x := q.First()
			require.Equal(t, item{at, order, 0}, *x)
			places := make(map[int]bool)
			for _, x := range all {
				require.Less(t, x.place, len(all))
				places[x.place] = true
			}
			require.Len(t, places, len(all))
		}
		q.Clear(func(at int64, order uint64, x *item) {
			require.Equal(t, item{at, order, -1}, *x)
			gone(x)
		})
		require.Empty(t, all)
		require.Zero(t, q.Len())
	})
}

func TestHeapAllocatesNothing(t *testing.T) {
	var q clock.Heap[struct{}]
	q.Grow(100)
	n := uint64(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 100 {
			n++
			q.Push(int64(n*7919%101), n, struct{}{})
		}
		for q.Len() != 0 {
			q.Pop()
		}
	}))
}
