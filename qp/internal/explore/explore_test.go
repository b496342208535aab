package explore

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type node struct {
	n     int
	next  *node
	seen  int64 // when
	due   time.Time
	every time.Duration
	count int // Ignored
	f     func()
}

type graph struct {
	buf   [8]byte
	now   int64
	a, b  *node
	part  []byte // of buf
	nodes []node
	inner *node // into nodes
	any   any
	m     map[string]*node
}

func classify(_ reflect.Type, field string) Kind {
	switch field {
	case "seen":
		return Instant
	case "count", "now":
		return Ignored
	}
	return Plain
}

func sample() *graph {
	w := &graph{a: &node{n: 1}, nodes: []node{{n: 5}, {n: 6}}, any: &node{n: 9}}
	w.m = map[string]*node{"a": w.a, "c": {n: 3}}
	w.b = &node{n: 2, next: w.a, f: func() {}}
	w.a.next = w.b // round in a circle
	w.part = w.buf[2:4]
	w.inner = &w.nodes[1]
	return w
}

func TestCopyKeepsWhatPointsWhere(t *testing.T) {
	g := Graph[graph]{Classify: classify}
	w := sample()
	var c Copy[graph]
	for range 3 { // the memory is used again
		g.CopyFrom(&c, w)
		k := c.W
		require.NotSame(t, w.a, k.a)
		require.Same(t, k.a, k.b.next)
		require.Same(t, k.b, k.a.next)
		require.Same(t, &k.nodes[1], k.inner)
		require.Same(t, k.a, k.m["a"])
		k.m["c"].n = 30
		require.Equal(t, 3, w.m["c"].n)
		k.part[0] = 7
		require.Equal(t, byte(7), k.buf[2])
		require.Zero(t, w.buf[2])
		k.inner.n = 60
		require.Equal(t, 6, w.nodes[1].n)
		k.any.(*node).n = 90
		require.Equal(t, 9, w.any.(*node).n)
	}
	g.CopyFrom(&c, w)
	require.Equal(t, g.Fingerprint(w, 0), g.Fingerprint(c.W, 0))
}

func TestFingerprint(t *testing.T) {
	g := Graph[graph]{Classify: classify}
	for _, tt := range []struct {
		name string
		f    func(*graph)
		same bool
	}{
		{"nothing", func(*graph) {}, true},
		{"a value", func(w *graph) { w.a.n++ }, false},
		{"a value behind an interface", func(w *graph) { w.any.(*node).n++ }, false},
		{"a value in a map", func(w *graph) { w.m["c"].n++ }, false},
		{"a key of a map", func(w *graph) { w.m["d"] = w.m["c"]; delete(w.m, "c") }, false},
		{"a byte of a buffer", func(w *graph) { w.buf[7]++ }, false},
		{"what a slice begins with", func(w *graph) { w.part = w.buf[3:4] }, false},
		{"what a pointer points to", func(w *graph) { w.inner = &w.nodes[0] }, false},
		{"a time", func(w *graph) { w.a.due = w.a.due.Add(1) }, false},
		{"a duration", func(w *graph) { w.a.every++ }, false},
		{"what is ignored", func(w *graph) { w.a.count++ }, true},
		{"only the clock", func(w *graph) { w.now += 5 }, false}, // seen is nearer now
		{"the clock and what is on it", func(w *graph) { w.now += 5; w.a.seen += 5; w.a.due = w.a.due.Add(5) }, true},
	} {
		w, v := sample(), sample()
		w.now, v.now, w.a.seen, v.a.seen = 10, 10, 20, 20
		w.a.due, v.a.due = time.Unix(0, 30), time.Unix(0, 30)
		tt.f(v)
		require.Equal(t, tt.same, g.Fingerprint(w, w.now) == g.Fingerprint(v, v.now), tt.name)
	}
}

// counter is a number that moves take up by 1 or 10.
type counter struct{ n, ones int }

func TestRun(t *testing.T) {
	bad := errors.New("bad")
	m := Model[counter]{
		Start: func() *counter { return new(counter) },
		Now:   func(*counter) int64 { return 0 },
		Moves: func(w *counter, to []Move) []Move {
			if w.n < 30 {
				to = append(to, 1, 10)
			}
			return to
		},
		Apply:  func(w *counter, m Move) error { w.n += int(m); return nil },
		Finish: func(*counter) error { return nil },
	}
	r, err := Run(&m, 1000)
	require.NoError(t, err)
	require.True(t, r.Whole)
	require.Equal(t, 40, r.States) // 0 to 39

	// Only the tens matter: the counterexample has no ones.
	m.Finish = func(w *counter) error {
		if w.n-w.ones == 20 && w.ones < 8 {
			return bad
		}
		return nil
	}
	m.Apply = func(w *counter, m Move) error {
		w.n += int(m)
		if m == 1 {
			w.ones++
		}
		return nil
	}
	_, err = Run(&m, 1000)
	require.ErrorIs(t, err, bad)
	var c *Counterexample
	require.ErrorAs(t, err, &c)
	require.Equal(t, []Move{10, 10}, c.Moves)
}
