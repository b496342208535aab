package conform_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

// What happens in one connection has no bearing on what is found in another:
// captures of other addresses, mixed at random, give the findings of each.
func TestMixed(t *testing.T) {
	all := slices.DeleteFunc(names(t), func(n string) bool { return n[:2] != "rc" && n != "uc" && n != "ud" })
	rapid.Check(t, func(rt *rapid.T) {
		picked := rapid.SliceOfN(rapid.SampledFrom(all), 2, 5).Draw(rt, "captures")
		var mixed []rec
		want := map[string]int{}
		for i, name := range picked {
			net := byte(i)
			at := time.Unix(1_700_000_000, int64(rapid.IntRange(0, 2_000_000_000).Draw(rt, "start")))
			tp := open(t, name).all(func(_ int, f *frame.Frame) bool {
				f.Src, f.Dst = elsewhere(f.Src, net), elsewhere(f.Dst, net)
				return true
			})
			first := tp.recs[0].ts
			for j := range tp.recs {
				tp.recs[j].ts = at.Add(tp.recs[j].ts.Sub(first))
			}
			_, fs := watch(t, conform.Config{}, tp.recs)
			for _, f := range fs {
				want[describe(f)]++
			}
			mixed = append(mixed, tp.recs...)
		}
		slices.SortStableFunc(mixed, func(a, b rec) int { return a.ts.Compare(b.ts) })
		_, fs := watch(t, conform.Config{}, mixed)
		for _, f := range fs {
			want[describe(f)]--
		}
		for d, n := range want {
			if n != 0 {
				rt.Errorf("%v: %d times too few: %s", picked, n, d)
			}
		}
	})
}

func describe(f conform.Finding) string {
	return f.Src.String() + " " + f.Dst.String() + " " + f.Check.String() + " " + f.String()
}

func elsewhere(a netip.Addr, n byte) netip.Addr {
	b := a.AsSlice()
	b[len(b)-2] = n
	out, _ := netip.AddrFromSlice(b)
	return out
}
