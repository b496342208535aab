package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func lossy(args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

var small = []string{"-mtu", "1024", "-size", "16K", "-loss", "0,0.01,1", "-packets", "4000", "-timeout", "10"}

func TestTableAndPicture(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.svg")
	args := append(small, "-o", name)
	code, out, errs := lossy(args...)
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "Where it falls to half")
	pic, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(pic), "goodput, Gb/s")
	code, again, _ := lossy(args...)
	require.Equal(t, 0, code)
	require.Equal(t, out, again, "the same seed gives the same table, in whatever order points were measured")
}

func TestJSON(t *testing.T) {
	code, out, errs := lossy(append(small, "-json")...)
	require.Equal(t, 0, code, errs)
	var ps []point
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		var p point
		require.NoError(t, json.Unmarshal([]byte(l), &p))
		ps = append(ps, p)
	}
	require.Len(t, ps, 12) // four curves: 4.2 ms, selective repeat, the two other timeouts
	require.Greater(t, ps[0].Goodput, 90.0)
	require.Less(t, ps[2].Goodput, ps[0].Goodput/2)
	require.Zero(t, ps[0].Lost)
	require.NotZero(t, ps[2].Timeouts)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-mtu", "1000"}, {"-size", ""}, {"-size", "1KM"}, {"-size", "x"}, {"-loss", "11"}, {"-loss", "NaN"}, {"-timeout", "0"},
		{"-packets", "1"}, {"x"}, {"-nonsense"}, {"-o", "/nonexistent/x.svg"},
	} {
		code, _, errs := lossy(args...)
		require.Equal(t, 2, code, args)
		require.NotEmpty(t, errs)
	}
	code, out, _ := lossy("-h")
	require.Equal(t, 0, code)
	require.Contains(t, out, "usage:")
}

func TestCliff(t *testing.T) {
	c := curve{points: []point{{Loss: 0, Goodput: 100}, {Loss: 0.001, Goodput: 100}, {Loss: 0.1, Goodput: 0}}}
	l, ok := c.cliff()
	require.True(t, ok)
	require.InDelta(t, 0.01, l, 1e-9)
	_, ok = (&curve{points: []point{{Loss: 0, Goodput: 100}, {Loss: 0.1, Goodput: 90}}}).cliff()
	require.False(t, ok)
}

// What is measured is what the model says, which knows nothing of the machines: within
// 5 % where timeouts are many, and at any loss for selective repeat within 10 %, far
// above go-back-N.
func TestModel(t *testing.T) {
	for _, c := range []struct {
		loss    float64
		packets int
		long    bool
	}{{0.1, 60_000, false}, {0.05, 200_000, true}, {0.001, 40_000, false}} {
		if c.long && testing.Short() {
			continue
		}
		o := options{losses: []float64{c.loss}, mtus: []int{1024}, sizes: []int{256 << 10}, timeout: 6, packets: c.packets, seed: 3}
		curves := o.curves()[:2]
		require.NoError(t, measureAll(curves, &o, nil))
		back, selects := curves[0].points[0], curves[1].points[0]
		require.InEpsilon(t, back.Model, back.Goodput, 0.05, "%+v", back)
		require.InEpsilon(t, selects.Model, selects.Goodput, 0.1, "%+v", selects)
		if c.loss > 0.01 {
			require.Greater(t, selects.Goodput, 10*back.Goodput)
		}
		require.LessOrEqual(t, float64(selects.Again), 1.5*float64(selects.Lost), "what is not lost is hardly sent again")
	}
}
