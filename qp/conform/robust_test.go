package conform_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

func v6(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

func names(t testing.TB) []string {
	files, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".pcap")
	}
	return files
}

func breaches(all []conform.Finding) map[conform.Check]int {
	m := map[conform.Check]int{}
	for _, f := range all {
		if f.Severity == conform.Breach {
			m[f.Check]++
		}
	}
	return m
}

// noNewBreach requires that a spoilt capture shows no breach that the whole one
// does not show, be it by another name for the same frame.
func noNewBreach(t *testing.T, whole, spoilt []conform.Finding, what string) {
	t.Helper()
	was := breaches(whole)
	at := map[int64]bool{}
	for _, f := range whole {
		if f.Severity == conform.Breach {
			at[f.Time.UnixNano()] = true
		}
	}
	for _, f := range spoilt {
		if f.Severity == conform.Breach && was[f.Check] == 0 && !at[f.Time.UnixNano()] {
			t.Errorf("%s: frame %d: %s %s: %s", what, f.Frame, f.Rule(), f.Check, f.String())
		}
	}
}

// TestSpoilt: what a capture lacks makes no breach.
func TestSpoilt(t *testing.T) {
	seeds, step := 30, 1
	if testing.Short() {
		seeds, step = 2, 9
	}
	for _, name := range names(t) {
		recs := load(t, name)
		_, whole := watch(t, conform.Config{}, recs)
		if strings.HasPrefix(name, "probe") {
			// What the script does wrong on purpose shows by itself where less is
			// left that makes it look like something else.
			_, all := watch(t, conform.Config{Complete: true}, recs)
			whole = append(whole, all...)
		}
		t.Run(name, func(t *testing.T) {
			for i := 0; i < len(recs); i += step {
				if name == "probe-responder" && i >= 60 && i < 66 {
					continue // begins with a READ that is wrong on purpose, and so its right one looks wrong
				}
				_, all := watch(t, conform.Config{}, recs[i:])
				noNewBreach(t, whole, all, fmt.Sprintf("from frame %d", i+1))
			}
			for i := step / 2; i < len(recs); i += step {
				one := slices.Delete(slices.Clone(recs), i, i+1)
				_, all := watch(t, conform.Config{}, one)
				noNewBreach(t, whole, all, fmt.Sprintf("without frame %d", i+1))
			}
			for _, len := range []int{34, 54, 58, 62, 64, 70, 96, 128, 256} {
				_, all := watch(t, conform.Config{}, snap(recs, len))
				noNewBreach(t, whole, all, fmt.Sprintf("snaplen %d", len))
			}
			for _, from := range []byte{1, 2} {
				_, all := watch(t, conform.Config{}, oneWay(recs, from))
				noNewBreach(t, whole, all, fmt.Sprintf("one direction %d", from))
			}
			for _, percent := range []int{1, 5, 10} {
				if strings.HasPrefix(name, "probe") && percent > 1 {
					break // too little is left to see what is wrong on purpose
				}
				for seed := range uint64(seeds) {
					rng := rand.New(rand.NewPCG(seed, 7))
					some := slices.DeleteFunc(slices.Clone(recs), func(rec) bool { return rng.IntN(100) < percent })
					_, all := watch(t, conform.Config{}, some)
					noNewBreach(t, whole, all, fmt.Sprintf("%d %% missing, seed %d", percent, seed))
				}
			}
		})
	}
}

func snap(recs []rec, n int) []rec {
	out := slices.Clone(recs)
	for i := range out {
		out[i].data = out[i].data[:min(n, len(out[i].data))]
	}
	return out
}

// oneWay keeps the frames that one of the two guests sent.
func oneWay(recs []rec, from byte) []rec {
	return slices.DeleteFunc(slices.Clone(recs), func(r rec) bool { return r.data[11] != from })
}

// TestCarried: what carries a packet makes no difference to what is found.
func TestCarried(t *testing.T) {
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			_, whole := watch(t, conform.Config{}, load(t, name))

			tp := open(t, name)
			for i := range tp.recs {
				d := tp.recs[i].data
				d = slices.Concat(d[:12], []byte{0x81, 0, 0x60, 100}, d[12:])
				tp.recs[i].data, tp.recs[i].wire = d, len(d)
			}
			_, all := watch(t, conform.Config{}, tp.recs)
			require.Equal(t, table(whole), table(all), "VLAN")

			if strings.HasPrefix(name, "probe") {
				return // frames that cannot be built
			}
			tp = open(t, name).all(func(_ int, f *frame.Frame) bool { f.DstPort = 14791; return true })
			_, all = watch(t, conform.Config{UDPPort: 14791}, tp.recs)
			require.Equal(t, table(whole), table(all), "UDP port")

			// Every PSN wraps somewhere in the capture.
			for _, shift := range []int{-6636321 - 1, -6636321 - 2, -6636321 - 7, 1 << 23} {
				tp = open(t, name).all(func(_ int, f *frame.Frame) bool {
					p := &f.Packet
					if p.DestQP == 1 || p.Opcode == bth.CNP {
						return false
					}
					p.PSN = p.PSN.Add(shift)
					return true
				})
				if strings.HasPrefix(name, "cm-") {
					continue // connection management said another PSN
				}
				_, all = watch(t, conform.Config{}, tp.recs)
				require.Equal(t, table(whole), table(all), "PSNs moved by %d", shift)
			}

			v1 := open(t, name).all(func(_ int, f *frame.Frame) bool { asGRH(f); return true })
			_, all = watch(t, conform.Config{}, v1.recs)
			noNewBreach(t, whole, all, "RoCE v1")
			require.Equal(t, breaches(whole), breaches(all))
		})
	}
}

// TestOneAfterAnother plays all captures as one: the same addresses, QP numbers
// and PSNs, taken into use again and again after a pause.
func TestOneAfterAnother(t *testing.T) {
	var recs []rec
	var single []conform.Finding
	for _, name := range names(t) {
		if strings.HasPrefix(name, "probe") {
			continue
		}
		own := load(t, name)
		_, all := watch(t, conform.Config{}, own)
		single = append(single, all...)
		recs = then(recs, own, 11*time.Second)
	}
	_, all := watch(t, conform.Config{}, recs)
	noNewBreach(t, single, all, "one after another")
}

// What is found does not depend on when the capture says it was: clocks that were never
// set begin at 1970, and offsets of pcapng lead anywhere.
func TestAnyYear(t *testing.T) {
	for _, name := range []string{"rc-mixed", "rc-loss-ack", "rc-rnr", "rc-timeout", "rc-ecn", "probe-requester"} {
		recs := load(t, name)
		for _, complete := range []bool{false, true} {
			w, all := watch(t, conform.Config{Complete: complete}, recs)
			want, total := table(all), w.Total()
			for _, begin := range []time.Time{time.Unix(0, 0), time.Unix(-10, 0), time.Unix(-1, 999_000_000), time.Unix(-1<<31, 0),
				time.Unix(1<<33, 0), time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(30000, 1, 1, 0, 0, 0, 0, time.UTC)} {
				moved := slices.Clone(recs)
				for i := range moved {
					moved[i].ts = begin.Add(recs[i].ts.Sub(recs[0].ts))
				}
				w, all := watch(t, conform.Config{Complete: complete}, moved)
				require.Equal(t, want, table(all), "%s from %v", name, begin)
				got := w.Total()
				require.Equal(t, total.Duration(), got.Duration(), "%s from %v", name, begin)
				if y := begin.Year(); y > 1800 && y < 2200 {
					require.Equal(t, total.First-recs[0].ts.UnixNano(), got.First-moved[0].ts.UnixNano())
					for _, f := range all {
						require.False(t, f.Time.Before(begin.UTC()) || f.Time.Sub(begin) > total.Duration()+time.Minute, "%v", f.Time)
					}
				}
			}
		}
	}
}
