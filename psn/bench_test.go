//go:build !race

package psn_test

import (
	"testing"

	"github.com/roce-go/roce/psn"
)

func BenchmarkUnwrap(b *testing.B) {
	n := uint64(1 << 24)
	b.ReportAllocs()
	for b.Loop() {
		n = psn.Unwrap(n, psn.Wrap(n+1))
	}
}

func TestNoAllocations(t *testing.T) {
	p, q, sum := psn.PSN(3), psn.PSN(0xfffffe), 0
	if n := testing.AllocsPerRun(100, func() {
		sum += p.Diff(q)
		p = p.Add(1)
		if p.Before(q) && p.In(q, 7) {
			sum++
		}
		sum += int(psn.Unwrap(1<<24, p) & 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
