package conform_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/seeds"
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

// FuzzWatcher feeds the watcher frames cut out of the input: two bytes of length,
// one of time, then the frame. Most are given a right ICRC first, or nearly all
// would end there.
func FuzzWatcher(f *testing.F) {
	for _, name := range []string{"rc-mixed", "rc-loss-request", "rc-rnr", "rc-dup-request", "rc-local-drop-read", "rc-loss-atomic", "uc", "ud", "cm-rping", "rc-ipv6", "probe-responder"} {
		var b []byte
		for _, r := range load(f, name) {
			if len(b) > 8000 {
				break
			}
			b = binary.BigEndian.AppendUint16(b, uint16(len(r.data)))
			b = append(b, 7)
			b = append(b, r.data...)
		}
		f.Add(b)
	}
	seeds.Into(f).Flows(func(int) byte { return 7 }, func(b []byte) []any { return []any{b} })
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, cfg := range []conform.Config{{MaxFlows: 4, Window: 16}, {Complete: true, Window: 64}} {
			w, err := conform.New(cfg)
			require.NoError(t, err)
			now := time.Unix(1, 0)
			var fi conform.Finding
			n := uint64(0)
			for b := in; len(b) > 3; {
				size := min(int(binary.BigEndian.Uint16(b)), len(b)-3)
				now = now.Add(time.Duration(b[2])*50*time.Microsecond - time.Millisecond/8)
				d := append([]byte(nil), b[3:3+size]...)
				b = b[3+size:]
				var fr frame.Frame
				var fd frame.Finder
				if n%8 != 7 && fd.Find(frame.Ethernet, d, len(d), &fr) == nil && len(fr.NetPacket) > 4 && !fr.Truncated() {
					copy(fr.NetPacket[len(fr.NetPacket)-4:], crc.AppendValue(nil, crc.Sum(fr.NetPacket[:len(fr.NetPacket)-4])))
				}
				w.HandleFrame(now, frame.Ethernet, d, len(d)+int(n%3)*10)
				n++
				for w.NextFinding(&fi) {
					check(t, &fi, n)
				}
			}
			w.Finish()
			for w.NextFinding(&fi) {
				check(t, &fi, n)
			}
			require.Equal(t, n, w.Frames())
			total := w.Total()
			require.LessOrEqual(t, total.Frames, w.RoCEFrames())
			require.LessOrEqual(t, total.GoodBytes, total.PayloadBytes)
		}
	})
}

func check(t *testing.T, f *conform.Finding, frames uint64) {
	require.NotEmpty(t, f.String())
	require.NotContains(t, f.String(), "{")
	require.LessOrEqual(t, f.Frame, frames)
	require.LessOrEqual(t, f.Earlier, frames)
}
