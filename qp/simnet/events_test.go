package simnet

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Both queues give events in the order of time, then of what they are, whatever is pushed,
// moved and popped in between.
func TestQueuesAgainstSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var q eventQueue
		var want []event
		seq := uint64(0)
		for range 300 {
			if len(want) == 0 || rng.IntN(3) != 0 {
				seq++
				at := q.base + rng.Int64N(20)
				if rng.IntN(4) == 0 {
					at = q.base + rng.Int64N(3*wheelSize)
				}
				e := newEvent(stamp{at, rng.Uint32N(3)}, class(rng.IntN(8)), int32(seq))
				q.push(e)
				i, _ := slices.BinarySearchFunc(want, e, func(a, b event) int {
					if a.before(&b) {
						return -1
					}
					return 1
				})
				want = slices.Insert(want, i, e)
			} else {
				first, ok := q.first()
				require.True(t, ok)
				require.Equal(t, want[0], first)
				q.pop()
				want = want[1:]
				require.Equal(t, len(want), q.len())
			}
		}
	}
	for range 50 {
		var q timerQueue
		hosts := make([]*Host, 40)
		for i := range hosts {
			hosts[i] = &Host{id: int32(i)}
		}
		for range 400 {
			if rng.IntN(4) != 0 || len(q.h) == 0 {
				q.set(hosts[rng.IntN(len(hosts))], rng.Int64N(30))
			} else {
				first := q.h[0]
				for _, x := range q.h {
					require.False(t, x.before(&first))
				}
				q.remove()
				require.Zero(t, first.host.timerIn)
			}
			for i, x := range q.h {
				require.Equal(t, i+1, x.host.timerIn)
				require.Equal(t, x.at, x.host.timerAt)
			}
		}
	}
}

func TestChance(t *testing.T) {
	require.Zero(t, newChance(0))
	require.Zero(t, newChance(-1))
	r := newRNG(1, 2)
	for range 1000 {
		require.True(t, r.hit(newChance(1)))
		require.False(t, r.hit(newChance(0)))
	}
	hits := 0
	for range 100_000 {
		if r.hit(newChance(0.25)) {
			hits++
		}
	}
	require.InDelta(t, 25_000, hits, 1000)
}
