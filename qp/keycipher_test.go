package qp_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp"
)

// Keys of a seeded table tell nothing of each other: no bit leans, no two follow each
// other, and each is found, until it is gone.
func TestSeededKeys(t *testing.T) {
	tab, err := qp.NewRegions(2000)
	require.NoError(t, err)
	require.True(t, tab.Seed([32]byte{9}))
	var keys []uint32
	var ones, flips [32]int
	seen := map[uint32]bool{}
	for i := range 2000 {
		k, err := tab.Register(qp.Region{PD: 1, Data: make([]byte, 8), Addr: uint64(i) << 12, Access: qp.RemoteRead})
		require.NoError(t, err)
		require.False(t, seen[k])
		seen[k] = true
		for b := range ones {
			ones[b] += int(k >> b & 1)
			if i > 0 {
				flips[b] += int((k ^ keys[i-1]) >> b & 1)
			}
		}
		keys = append(keys, k)
	}
	for b := range ones { // six standard deviations
		require.InDelta(t, 1000, ones[b], 135, "bit %d", b)
		require.InDelta(t, 1000, flips[b], 135, "bit %d from one key to the next", b)
	}
	require.False(t, tab.Seed([32]byte{}), "too late")
	for i, k := range keys {
		_, ok := tab.Remote(qp.RemoteAccess{PD: 1, RKey: k, VA: uint64(i) << 12, Len: 8, Right: qp.RemoteRead})
		require.True(t, ok)
		require.NoError(t, tab.Deregister(k))
		_, ok = tab.Remote(qp.RemoteAccess{PD: 1, RKey: k, VA: uint64(i) << 12, Len: 8, Right: qp.RemoteRead})
		require.False(t, ok)
	}
	require.Zero(t, tab.Len())
}

// Whoever knows no key finds none: a million guesses at a table of a thousand regions,
// of which 0.23 are right on average.
func TestGuessedKeys(t *testing.T) {
	tab, err := qp.NewRegions(1000)
	require.NoError(t, err)
	tab.Seed([32]byte{3})
	for range 1000 {
		_, err := tab.Register(qp.Region{PD: 1, Data: make([]byte, 8), Access: qp.RemoteRead})
		require.NoError(t, err)
	}
	found := 0
	for i := range uint32(1_000_000) {
		// Keys count up elsewhere: 0x100, 0x101, ..., and from slot to slot.
		if _, ok := tab.Remote(qp.RemoteAccess{PD: 1, RKey: i<<8 | i>>12, Right: qp.RemoteRead}); ok {
			found++
		}
	}
	require.LessOrEqual(t, found, 3)
}

// Windows under a seed behave as without one.
func TestPropSeededWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plain, _ := qp.NewRegions(16)
		seeded, _ := qp.NewRegions(16)
		seeded.Seed([32]byte{rapid.Byte().Draw(t, "seed")})
		type pair struct{ a, b uint32 }
		regions, windows := []pair{}, []pair{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			pick := func(v []pair) pair {
				if len(v) == 0 {
					return pair{1, 1}
				}
				return v[rapid.IntRange(0, len(v)-1).Draw(t, "which")]
			}
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				r := qp.Region{PD: 1, Data: make([]byte, 64), Access: qp.MWBind | qp.RemoteRead}
				a, err := plain.Register(r)
				b, err2 := seeded.Register(r)
				if (err == nil) != (err2 == nil) {
					t.Fatal(err, err2)
				}
				if err == nil {
					regions = append(regions, pair{a, b})
				}
			case 1:
				a, err := plain.AllocWindow(1)
				b, err2 := seeded.AllocWindow(1)
				if (err == nil) != (err2 == nil) {
					t.Fatal(err, err2)
				}
				if err == nil {
					windows = append(windows, pair{a, b})
				}
			case 2:
				w, r := pick(windows), pick(regions)
				x := qp.Binding{Len: 8, Access: qp.RemoteWrite, QPN: 5}
				x.Window, x.Region = w.a, r.a
				a, err := plain.Bind(x)
				x.Window, x.Region = w.b, r.b
				b, err2 := seeded.Bind(x)
				if (err == nil) != (err2 == nil) {
					t.Fatal(err, err2)
				}
				if err == nil {
					windows = append(windows, pair{a, b})
				}
			case 3:
				w := pick(windows)
				x := qp.RemoteAccess{PD: 1, QPN: 5, RKey: w.a}
				y := x
				y.RKey = w.b
				if plain.Invalidate(x) != seeded.Invalidate(y) {
					t.Fatal("invalidate")
				}
			case 4:
				w := pick(append(windows, regions...))
				if (plain.Deregister(w.a) == nil) != (seeded.Deregister(w.b) == nil) {
					t.Fatal("deregister")
				}
			}
			for _, w := range append(windows, regions...) {
				x := qp.RemoteAccess{PD: 1, QPN: 5, RKey: w.a, Len: 8, Right: qp.RemoteWrite}
				y := x
				y.RKey = w.b
				_, ok := plain.Remote(x)
				_, ok2 := seeded.Remote(y)
				if ok != ok2 {
					t.Fatal("remote")
				}
			}
		}
	})
}
