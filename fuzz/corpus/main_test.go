package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
)

func call(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

func TestFrames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "testdata/fuzz/FuzzMine")
	const capture = "../captures/rc-mixed.pcap"
	code, out, errs := call("-frames", dir, capture)
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, " seeds, ")
	names, err := filepath.Glob(dir + "/rc-mixed-*")
	require.NoError(t, err)
	require.Greater(t, len(names), 10)
	b, err := os.ReadFile(names[0])
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(b), "go test fuzz v1\n[]byte(\""), "%q", b)

	// What is there stays: the same again is no fault, something else is.
	code, _, errs = call("-frames", dir, capture)
	require.Equal(t, 0, code, errs)
	require.NoError(t, os.WriteFile(names[0], []byte("mine"), 0o666))
	code, _, errs = call("-frames", dir, capture)
	require.Equal(t, 2, code)
	require.Contains(t, errs, names[0]+" is there and differs")
	b, err = os.ReadFile(names[0])
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
}

func TestRawPackets(t *testing.T) {
	dir := t.TempDir()
	code, _, errs := call("-frames", dir, "-part", "packet", "-raw")
	require.Equal(t, 0, code, errs)
	names, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Greater(t, len(names), 80)
	decoded := 0
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		var p bth.Packet
		if p.Decode(b) == nil {
			decoded++
		}
	}
	require.Greater(t, decoded, len(names)*9/10)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-x"}, {"-frames", t.TempDir(), "-part", "x"}, {"-frames", t.TempDir(), "none.pcap"}, {"-frames", t.TempDir(), "main.go"},
	} {
		code, _, errs := call(args...)
		require.Equal(t, 2, code, "%v", args)
		require.True(t, strings.HasPrefix(errs, "corpus: "), "%v: %q", args, errs)
	}
	code, out, _ := call("-h")
	require.Equal(t, 0, code)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 82)
	}
}
