package qp_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	hostileLong = flag.Duration("long", 0, "run hostile networks for this long")
	hostileSeed = flag.Uint64("hostile", 0, "run and print the hostile network of this seed alone")
)

// hostileNetworks is how many seeds a plain go test runs.
const hostileNetworks = 5000

// runHostile runs a plan, and when it fails runs it again for its trace.
func runHostile(t testing.TB, p *hostilePlan) *hostileWorld {
	w := newHostileWorld(p, false)
	err := w.run()
	if err == nil {
		return w
	}
	again := newHostileWorld(p, true)
	_ = again.run()
	script := p.String() + again.trace.String()
	file := filepath.Join(os.TempDir(), "hostile-network.txt")
	_ = os.WriteFile(file, []byte(script), 0o644)
	if len(script) > 20000 {
		script = p.String() + "...\n" + script[len(script)-15000:]
	}
	t.Logf("%s\nthe whole is in %s", script, file)
	return w
}

func seedPlan(seed uint64) *hostilePlan { return makePlan(randPicker(seed), seed) }

// TestHostileNetworks runs random work over random links. Rules EE-1, EE-2, EE-3,
// EE-5; and RQ-09, RQ-12, RQ-16, RQ-27, RQ-33 on the way.
func TestHostileNetworks(t *testing.T) {
	if *hostileSeed != 0 {
		w := newHostileWorld(seedPlan(*hostileSeed), true)
		err := w.run()
		t.Logf("%v%v%v", w.plan, w.trace, err)
		if err != nil {
			t.FailNow()
		}
		return
	}
	var packets, events, failed, resets int
	n := hostileNetworks
	switch {
	case testing.Short():
		n = 200
	case raceEnabled:
		n /= 8
	}
	start := time.Now()
	for seed := uint64(1); int(seed) <= n || time.Since(start) < *hostileLong; seed++ {
		w := runHostile(t, seedPlan(seed))
		if w.err != nil {
			t.Fatalf("%v\nrun it alone: go test ./qp -run TestHostileNetworks -v -hostile=%d", w.err, seed)
		}
		packets, events, failed, resets = packets+w.packets, events+w.events, failed+w.failed, resets+w.resets
	}
	t.Logf("%d packets, %d events, %d connections down, %d of them up again", packets, events, failed, resets)
}

// TestHostileRapid is the same with plans that shrink.
func TestHostileRapid(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		p := makePlan(rapidPicker(rt), seed)
		w := newHostileWorld(p, false)
		if err := w.run(); err != nil {
			again := newHostileWorld(p, true)
			_ = again.run()
			rt.Fatalf("%v\n%v%v", err, p, again.trace)
		}
	})
}

// Rule EE-4: the same seed gives the same trace.
func TestHostileSameTrace(t *testing.T) {
	hashes := map[uint64]bool{}
	for seed := uint64(1); seed <= 100; seed++ {
		a, b := newHostileWorld(seedPlan(seed), true), newHostileWorld(seedPlan(seed), true)
		_, _ = a.run(), b.run()
		if a.hash != b.hash || a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d: two runs differ", seed)
		}
		hashes[a.hash] = true
	}
	if len(hashes) < 95 {
		t.Fatalf("%d different traces of 100 seeds", len(hashes))
	}
}
