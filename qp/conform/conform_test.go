package conform_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/conform"
)

const captures = "../../fuzz/captures/"

// rec is a captured frame.
type rec struct {
	ts   time.Time
	data []byte
	wire int
}

func load(t testing.TB, name string) []rec {
	t.Helper()
	recs, err := capture.ReadFile(filepath.Join(captures, name+".pcap"))
	require.NoError(t, err)
	out := make([]rec, len(recs))
	for i, r := range recs {
		out[i] = rec{r.Time, r.Data, r.WireLen}
	}
	return out
}

func watch(t testing.TB, cfg conform.Config, recs []rec) (*conform.Watcher, []conform.Finding) {
	t.Helper()
	w, err := conform.New(cfg)
	require.NoError(t, err)
	var all []conform.Finding
	var f conform.Finding
	drain := func() {
		for w.NextFinding(&f) {
			all = append(all, f)
		}
	}
	for _, r := range recs {
		w.HandleFrame(r.ts, frame.Ethernet, r.data, r.wire)
		drain()
	}
	w.Finish()
	drain()
	return w, all
}

// TestCaptures holds the findings in every capture against a table.
func TestCaptures(t *testing.T) {
	want, err := os.ReadFile("testdata/findings.txt")
	require.NoError(t, err)
	expected := map[string][]string{}
	name := ""
	for l := range strings.Lines(string(want)) {
		l = strings.TrimRight(l, "\n")
		switch {
		case l == "" || l[0] == '#':
		case l[0] != ' ':
			name = l
			expected[name] = nil
		default:
			expected[name] = append(expected[name], strings.TrimSpace(l))
		}
	}
	files, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	require.Len(t, files, len(expected))
	for _, p := range files {
		name := strings.TrimSuffix(filepath.Base(p), ".pcap")
		t.Run(name, func(t *testing.T) {
			w, all := watch(t, conform.Config{}, load(t, name))
			require.Equal(t, expected[name], table(all))
			require.Zero(t, w.Evicted())
		})
	}
}

// table groups findings by check, in order of appearance.
func table(all []conform.Finding) []string {
	var out []string
	at := map[conform.Check]int{}
	for _, f := range all {
		if _, ok := at[f.Check]; !ok {
			at[f.Check] = len(out)
			out = append(out, f.Severity.String()+" "+f.Check.String())
		}
		out[at[f.Check]] += fmt.Sprintf(" %d", f.Frame)
	}
	return out
}

func TestDump(t *testing.T) {
	if os.Getenv("DUMP") == "" {
		t.Skip()
	}
	m, _ := filepath.Glob(captures + os.Getenv("DUMP") + ".pcap")
	for _, p := range m {
		name := filepath.Base(p[:len(p)-5])
		_, fs := watch(t, conform.Config{Complete: os.Getenv("COMPLETE") != ""}, load(t, name))
		fmt.Println("==", name)
		for _, f := range fs {
			fmt.Printf("  %4d %-7s %-10s %-20s qp %#x peer %#x: %s\n", f.Frame, f.Severity, f.Rule(), f.Check, f.QP, f.PeerQP, f.String())
		}
	}
}
