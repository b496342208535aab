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

var small = []string{"-mtu", "1024", "-size", "16K", "-loss", "0,0.01,1", "-packets", "4000", "-timeout", "10", "-error", "40", "-most", "20000"}

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
	require.Len(t, ps, 9) // three curves: 4.2 ms and the two other timeouts
	require.Greater(t, ps[0].Goodput, 90.0)
	require.Less(t, ps[2].Goodput, ps[0].Goodput/2)
	require.Zero(t, ps[0].Lost)
	require.NotZero(t, ps[2].Timeouts)
}

// Go-back-N against loss: the formula within 5 %.
func TestFormula(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	for _, loss := range []float64{0, 0.0001, 0.001, 0.005, 0.01, 0.02, 0.05} {
		p := point{MTU: 4096, Size: 1 << 20, Loss: loss, Timeout: 4.096 * 64, code: 6}
		require.NoError(t, p.measure(&options{packets: 100_000, most: 5_000_000, err: 0.015, seed: 1}))
		t.Logf("loss %g %%: %.3f Gb/s, formula %.3f (%+.1f %%), error %.1f %%, %d packets", loss*100, p.Goodput, p.Model,
			100*(p.Goodput/p.Model-1), 100*p.Error, p.Packets)
		require.LessOrEqual(t, p.Error, 0.015)
		require.InEpsilon(t, p.Model, p.Goodput, 0.05)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-mtu", "1000"}, {"-size", ""}, {"-size", "1KM"}, {"-size", "x"}, {"-loss", "11"}, {"-loss", "NaN"}, {"-timeout", "0"},
		{"-packets", "1"}, {"-most", "5"}, {"-error", "0"}, {"x"}, {"-nonsense"}, {"-o", "/nonexistent/x.svg"},
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
