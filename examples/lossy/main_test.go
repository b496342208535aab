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
	require.Len(t, ps, 9) // three curves: 4.2 ms and the two other timeouts
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
