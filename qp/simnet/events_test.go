package simnet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The queue gives events in the order of time, then of what they are, whatever is pushed,
// moved and popped in between: few events far apart, many in one nanosecond, and all
// between, so that the length of slots changes.
func TestQueuesAgainstSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	shifts := make(map[uint]bool)
	for round := range 60 {
		q := newEventQueue(1000, round%8 == 7)
		var want []event
		seq, now, most := uint64(0), int64(1000), 1+rng.IntN(400)
		near := int64(1) << rng.IntN(14)
		for range 6000 {
			shifts[q.shift] = true
			switch n := rng.IntN(100); {
			case n == 0:
				near, most = int64(1)<<rng.IntN(14), 1+rng.IntN(400)
			case n == 1:
				q.first() // a look that takes nothing, before earlier events come
			case len(want) == 0 || len(want) < most && n < 60:
				seq++
				at := now + rng.Int64N(near)
				if rng.IntN(16) == 0 {
					at = now + rng.Int64N(1<<rng.IntN(26))
				}
				e := newEvent(stamp{at, rng.Uint32N(3)}, class(rng.IntN(8)), int32(seq))
				if rng.IntN(2) == 0 {
					q.push(e)
				} else {
					q.pushLane(rng.UintN(lanes), e)
				}
				i, _ := slices.BinarySearchFunc(want, e, func(a, b event) int {
					if a.before(&b) {
						return -1
					}
					return 1
				})
				want = slices.Insert(want, i, e)
			default:
				require.Equal(t, want[0], *q.first())
				now = want[0].at
				q.drop(q.least())
				want = want[1:]
			}
			require.Equal(t, len(want), q.len())
		}
		list := q.drain(nil)
		slices.SortFunc(list, func(a, b event) int {
			if a.before(&b) {
				return -1
			}
			return 1
		})
		require.Equal(t, want, list[:len(want):len(want)])
		require.Zero(t, q.len())
	}
	require.Greater(t, len(shifts), 5, "slots of many lengths were used: %v", shifts)
}

// A host's timer fires at its deadline, however often that has moved, to earlier times and
// to later ones; of the events that this takes only a few wait at a time.
func TestTimerFiresAtDeadline(t *testing.T) {
	n := New(Config{})
	h, err := n.AddHost(HostConfig{}) // its port waits for nothing: timer does nothing else
	require.NoError(t, err)
	rng, e, now, most := rand.New(rand.NewPCG(3, 4)), n.engines[0], int64(0), 0
	for range 20_000 {
		due := int64(0)
		for range 1 + rng.IntN(8) {
			due = now + 1 + rng.Int64N(1<<rng.IntN(24))
			h.setTimer(due)
		}
		for {
			ev := e.queue.first()
			require.NotNil(t, ev)
			require.LessOrEqual(t, ev.at, due)
			require.GreaterOrEqual(t, ev.at, now)
			now = ev.at
			e.queue.drop(e.queue.least())
			k := h.timers.n
			fires := k != 0 && h.timers.at[k-1] == now
			h.timer(now)
			most = max(most, e.queue.len())
			require.Equal(t, e.queue.len(), e.timers)
			if fires && now == due {
				break
			}
			if fires {
				h.setTimer(due)
			}
		}
	}
	require.Less(t, most, 20)
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

// A gate that is opened lets one wait pass, whether the other side looks, sleeps or is about
// to: none is lost, and none passes early.
func TestGate(t *testing.T) {
	rounds := 100_000
	if testing.Short() {
		rounds = 10_000
	}
	for _, looks := range []int{0, 1, 30, 100, 300, gateLooks} {
		there, back, n := newGate(), newGate(), 0
		go func() {
			for range rounds {
				there.wait(looks)
				n++ // the race detector sees whether a gate orders this
				back.open()
			}
		}()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range rounds {
				if n != i {
					t.Errorf("round %d: %d passed", i, n)
					return
				}
				there.open()
				back.wait(looks)
			}
		}()
		select {
		case <-done:
			require.Equal(t, rounds, n)
		case <-time.After(time.Minute):
			t.Fatalf("looks %d: asleep for ever", looks)
		}
	}
}
