package mutator_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/fuzz/mutator"
)

var t0 = time.Unix(1_800_000_000, 0)

// run sends all records through a stream, and returns copies of what came out
// and the reports.
func run(t testing.TB, cfg mutator.Config, in []mutator.Record) (out []mutator.Record, reps []mutator.Report) {
	s, err := mutator.NewStream(cfg)
	require.NoError(t, err)
	drain := func() {
		var rec mutator.Record
		for s.Next(&rec) {
			rec.Data = bytes.Clone(rec.Data)
			out = append(out, rec)
		}
	}
	for i := range in {
		reps = append(reps, *s.Push(&in[i]))
		drain()
	}
	s.Flush()
	drain()
	return out, reps
}

func frames(t testing.TB, n int) []mutator.Record {
	recs := captured(t)[:n]
	for i := range recs {
		recs[i].Time = t0.Add(time.Duration(i) * 10 * time.Microsecond)
	}
	return recs
}

// TestOrder: with one kind of sequence change at a time, what comes out is what
// the reports say.
func TestOrder(t *testing.T) {
	in := frames(t, 400)
	for k := range mutator.SequenceKinds.All {
		t.Run(k.String(), func(t *testing.T) {
			out, reps := run(t, mutator.Config{Seed: 3, Kinds: mutator.KindsOf(k), Keep: 60}, in)
			seen := make(map[uint64]int)
			for i, r := range out {
				seen[r.Number]++
				require.Equal(t, in[r.Number].Data, r.Data, "no bytes changed but the order: %d", r.Number)
				if i > 0 {
					require.False(t, r.Time.Before(out[i-1].Time), "time goes back")
				}
			}
			want := make(map[uint64]int)
			changed := 0
			for n := range reps {
				want[uint64(n)]++
				for _, c := range reps[n].Changes() {
					changed++
					require.Equal(t, k, c.Kind)
					switch k {
					case mutator.Drop:
						want[uint64(n)]--
					case mutator.Duplicate:
						want[uint64(n)]++
					case mutator.ReplayOld:
						want[c.New]++
						require.Less(t, c.New, uint64(n))
					}
				}
			}
			for n, c := range want {
				require.Equal(t, c, seen[n], "frame %d", n)
			}
			require.Greater(t, changed, 40) // delays fill the places
			moved := 0
			for i := 1; i < len(out); i++ {
				if out[i].Number < out[i-1].Number && !out[i].Again {
					moved++
				}
			}
			require.Equal(t, k == mutator.Reorder || k == mutator.Delay, moved > 20)
		})
	}
}

// TestFrameAgain: frame n of a run is made by itself.
func TestFrameAgain(t *testing.T) {
	in := frames(t, 300)
	cfg := mutator.Config{Seed: 9, Keep: 10}
	out, reps := run(t, cfg, in)
	again, _ := run(t, cfg, in)
	require.Equal(t, again, out)
	cfg.Seed++
	other, _ := run(t, cfg, in)
	require.NotEqual(t, other, out)
	cfg.Seed--
	for _, r := range out {
		b, rep := mutate(t, cfg, r.Number, &in[r.Number])
		require.Equal(t, b, r.Data)
		require.Equal(t, rep.Kept, reps[r.Number].Kept)
	}
}

func TestReplay(t *testing.T) {
	in := frames(t, 50)
	source := func() func(*mutator.Record) bool {
		i := 0
		return func(r *mutator.Record) bool {
			if i == len(in) {
				return false
			}
			*r = in[i]
			i++
			return true
		}
	}
	for _, speed := range []float64{1, 0.5, 10, 0} {
		synctest.Test(t, func(t *testing.T) {
			start, n := time.Now(), 0
			err := mutator.Replay(t.Context(), speed, source(), func(r *mutator.Record) error {
				want := time.Duration(0)
				if speed > 0 {
					want = time.Duration(float64(n*10000) / speed)
				}
				require.Equal(t, want, time.Since(start))
				n++
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, len(in), n)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Microsecond)
		defer cancel()
		n := 0
		err := mutator.Replay(ctx, 1, source(), func(*mutator.Record) error { n++; return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10, n)
	})
	full := errors.New("full")
	require.ErrorIs(t, mutator.Replay(t.Context(), 0, source(), func(*mutator.Record) error { return full }), full)
}
