package psn_test

import (
	"testing"

	"github.com/roce-go/roce/psn"
)

func FuzzPSN(f *testing.F) {
	f.Add(uint32(0), uint32(1<<23), uint64(1<<24))
	f.Add(uint32(1<<24-1), uint32(0), uint64(1<<40))
	f.Fuzz(func(t *testing.T, a, b uint32, ref uint64) {
		p, q := psn.PSN(a), psn.PSN(b)
		if q.Add(p.Diff(q)) != p&psn.Mask {
			t.Errorf("%v + (%v - %v) is not %v", q, p, q, p)
		}
		if psn.Wrap(psn.Unwrap(ref, p)) != p&psn.Mask {
			t.Errorf("%v near %d", p, ref)
		}
	})
}
