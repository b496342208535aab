package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame/capture"
)

func quickstart(args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

func TestRuns(t *testing.T) {
	code, out, errs := quickstart()
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "lost")
	require.Contains(t, out, "the counter was 42, is 7")
	_, again, _ := quickstart()
	require.Equal(t, out, again)
	for seed := range 20 {
		code, out, errs := quickstart("-q", "-seed", fmt.Sprint(seed), "-mtu", "256", "-loss", "0.2")
		require.Equal(t, 0, code, errs)
		require.Equal(t, 5, strings.Count(out, " success at "), out)
	}
}

func TestJSONAndPcap(t *testing.T) {
	name := filepath.Join(t.TempDir(), "q.pcap")
	code, out, _ := quickstart("-json", "-pcap", name)
	require.Equal(t, 0, code)
	work := 0
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &v), l)
		if v["right"] == true {
			work++
		}
	}
	require.Equal(t, 5, work)
	f, err := capture.Open(name, os.Stdin)
	require.NoError(t, err)
	defer f.Close()
	var rec capture.Record
	require.NoError(t, f.Next(&rec))
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-loss", "2"}, {"-mtu", "1000"}, {"x"}, {"-nonsense"}, {"-pcap", "/nonexistent/x"}} {
		code, _, errs := quickstart(args...)
		require.Equal(t, 2, code, args)
		require.NotEmpty(t, errs)
	}
	code, out, _ := quickstart("-h")
	require.Equal(t, 0, code)
	require.Contains(t, out, "usage:")
}

// A link that loses nearly all: the run says so and does not hang.
func TestWrong(t *testing.T) {
	code, _, errs := quickstart("-q", "-loss", "1")
	require.Equal(t, 1, code)
	require.NotEmpty(t, errs)
}
