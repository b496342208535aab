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
