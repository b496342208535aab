//go:build !race

package mrcwatch_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform/mrcwatch"
)

// TestNoAllocations: once its flows and paths are known, a capture is judged
// without allocations, good or bad.
func TestNoAllocations(t *testing.T) {
	n := &network{rng: rand.New(rand.NewPCG(1, 1)), v6: true, ackEvery: 2, loss: 0.05, copies: 0.05, trim: 0.05, ce: 0.1}
	n.run(12)
	short := n.tap[0].b[:50]
	w, err := mrcwatch.New(mrcwatch.Config{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1_800_000_000, 0)
	var f mrcwatch.Finding
	round := func() {
		for i, c := range n.tap {
			w.HandleFrame(uint64(i+1), start.Add(c.at), frame.Ethernet, c.b, len(c.b))
			w.HandleFrame(uint64(i+1), start.Add(c.at), frame.Ethernet, short, len(short))
			for w.NextFinding(&f) {
			}
		}
	}
	round()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > 10 { // the runtime has some of its own
		t.Errorf("%d allocations", n)
	}
}
