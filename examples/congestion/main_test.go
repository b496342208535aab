package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func command(args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

func TestTablesAndPictures(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-control", "all", "-ms", "1", "-n", "4", "-o", filepath.Join(dir, "p.svg")}
	names := controlNames()
	if testing.Short() {
		names = []string{"off", "hpcc"}
		args[1], args[3] = "off,hpcc", "0.2"
	}
	code, out, errs := command(args...)
	require.Equal(t, 0, code, errs)
	for _, s := range append([]string{"Incast", "Two flows", "bursts", "Parking", "beside the receiver", "victim", "all-reduce", "Web search"}, names...) {
		require.Contains(t, out, s)
	}
	for _, s := range scenarioNames() {
		b, err := os.ReadFile(filepath.Join(dir, "p-"+s+".svg"))
		require.NoError(t, err)
		for _, name := range names {
			require.Contains(t, string(b), controlOf(name).title)
		}
		require.NotContains(t, string(b), "NaN")
		d := xml.NewDecoder(bytes.NewReader(b))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else {
				require.NoError(t, err)
			}
		}
	}
	_, again, _ := command(args...)
	require.Equal(t, out, again)
}

func results(t *testing.T, args ...string) []experiment {
	code, out, errs := command(append(args, "-json")...)
	require.Equal(t, 0, code, errs)
	var es []experiment
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		var e experiment
		require.NoError(t, json.Unmarshal([]byte(l), &e), l)
		es = append(es, e)
	}
	return es
}

// With PFC the victim suffers, with DCQCN as well it does not; without either the
// incast drops and sends again.
func TestVictim(t *testing.T) {
	// Of two inputs that are paused alike the one with one flow gets half.
	unfair := results(t, "-scenario", "unfair", "-control", "off,dcqcn", "-ms", "20", "-n", "3")
	require.InDelta(t, 18.5, unfair[0].Flows[0].Goodput, 1)
	require.InDelta(t, 6.2, unfair[0].Flows[1].Goodput, 0.5)
	require.InDelta(t, 0.75, unfair[0].Jain, 0.01)
	require.Greater(t, unfair[1].Jain, 0.97)
	if testing.Short() {
		t.Skip("long")
	}
	es := results(t, "-scenario", "victim", "-control", "off,dcqcn", "-ms", "40")
	require.Len(t, es, 2)
	require.Less(t, es[0].Flows[0].Goodput, 10.0)
	require.Greater(t, es[1].Flows[0].Goodput, 35.0)
	require.Zero(t, es[0].Drops+es[1].Drops)
	require.Greater(t, es[0].PausedFor, 20*es[1].PausedFor)

	lossy := results(t, "-scenario", "incast", "-control", "off", "-pfc=false", "-ms", "20")
	require.NotZero(t, lossy[0].Drops)
	require.NotZero(t, lossy[0].Again)
	require.Zero(t, lossy[0].Pauses)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-scenario", "x"}, {"-control", "x"}, {"-n", "0"}, {"-mtu", "1000"}, {"-rate", "0.5"}, {"-ms", "-1"}, {"-kmin", "9", "-kmax", "8"},
		{"-pmax", "101"}, {"x"}, {"-shard", "2/2", "-json"}, {"-shard", "0/2"}, {"-shard", "0/2", "-json", "-o", "x.svg"}, {"-nonsense"}, {"-o", "/nonexistent/x.svg"},
	} {
		code, _, errs := command(args...)
		require.Equal(t, 2, code, args)
		require.NotEmpty(t, errs)
	}
	code, out, _ := command("-h")
	require.Equal(t, 0, code)
	require.Contains(t, out, "usage:")
	code, _, errs := command("-scenario", "incast", "-n", "256", "-rate", "800")
	require.Equal(t, 2, code, "the buffer is too small for PFC on so many ports")
	require.Contains(t, errs, "bytes of buffer")
}

// The lines of all shards, in the order of their points, are those of a run of all; an
// all-reduce, a web search and a mix are among them.
func TestShards(t *testing.T) {
	args := []string{"-scenario", "incast,allreduce,websearch,mixed", "-control", "off,hpcc", "-ms", "1.5", "-n", "4", "-json"}
	if testing.Short() {
		args[5] = "0.5"
	}
	_, whole, errs := command(args...)
	require.Empty(t, errs)
	var lines []string
	for _, shard := range []string{"2/3", "0/3", "1/3"} {
		_, out, errs := command(append(args, "-shard", shard)...)
		require.Empty(t, errs)
		lines = append(lines, strings.SplitAfter(strings.TrimSuffix(out, "\n"), "\n")...)
	}
	require.Len(t, lines, 8)
	point := func(l string) (p int) {
		var e experiment
		require.NoError(t, json.Unmarshal([]byte(l), &e))
		return e.Point
	}
	slices.SortFunc(lines, func(a, b string) int { return point(a) - point(b) })
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\n") + "\n"
	}
	require.Equal(t, whole, strings.Join(lines, ""))
}
