package conform_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/conform"
)

// TestMetrics holds the counts against those that testdata/metrics.sh made with
// tshark's filters.
func TestMetrics(t *testing.T) {
	b, err := os.ReadFile("testdata/metrics.txt")
	require.NoError(t, err)
	want := map[string][]string{}
	for l := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(l, " ")
		want[name] = append(want[name], strings.TrimSpace(l))
	}
	require.Greater(t, len(want), 40)
	for _, name := range names(t) {
		if strings.HasPrefix(name, "probe") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var got []string
			var sum conform.Counters
			cfg := conform.Config{Closed: func(f *conform.Flow) {
				sum.Add(f.Counters)
				for n, v := range map[string]uint64{
					"frames": f.Frames, "bytes": f.Bytes, "data_frames": f.DataFrames + f.Duplicates, // tshark counts the copies of requests; no others are in these captures
					"ack": f.Acks, "nak": f.Naks,
					"nak_sequence": f.NakSequence, "rnr": f.RNRs, "cnp": f.CNPs, "ce": f.CE, "message_tx": f.MessagesTx,
					"duplicates": f.Duplicates, "data_frames_retransmitted": f.Retransmitted,
				} {
					if v != 0 {
						got = append(got, fmt.Sprintf("%s %v 0x%06x %s %d", name, f.Src, f.QP, n, v))
					}
				}
			}}
			w, _ := watch(t, cfg, load(t, name))
			slices.Sort(got)
			slices.Sort(want[name])
			require.Equal(t, want[name], got)
			require.Equal(t, sum, w.Total())
		})
	}
}

// The latencies of a capture, taken by hand from tshark's relative times: rc-mixed
// has 14 messages; the first SEND was acknowledged 7003 us after its last packet
// and 8781 us after its first, and the last atomic was answered after 346 us.
func TestLatency(t *testing.T) {
	w, _ := watch(t, conform.Config{}, load(t, "rc-mixed"))
	h := w.Latency()
	require.EqualValues(t, 14, h.Count())
	require.Equal(t, 7003*time.Microsecond, h.Max())
	require.Equal(t, 247*time.Microsecond, h.Min()) // frames 31 and 32
	c := w.Completion()
	require.EqualValues(t, 14, c.Count())
	require.Equal(t, 8781*time.Microsecond, c.Max())
	total := w.Total()
	require.EqualValues(t, 14, total.MessagesTx)
	require.EqualValues(t, 14, total.MessagesDone)
	require.Zero(t, total.MessagesFail)
	// 8 SENDs and WRITEs, 2 READs of 3000 bytes; an atomic has no payload.
	require.EqualValues(t, 10*3000, total.GoodBytes)
	require.Equal(t, total.PayloadBytes, total.GoodBytes)
	require.InDelta(t, 10*3000*8/(2.110760-2.056270), total.Goodput(), 1)
	require.InDelta(t, 30000/float64(total.Bytes), total.PayloadEfficiency(), 1e-9)
}

func TestRNRWait(t *testing.T) {
	w, _ := watch(t, conform.Config{}, load(t, "rc-rnr"))
	total := w.Total()
	require.EqualValues(t, 5, total.RNRs)
	require.Equal(t, 13338*us+11018*us+11500*us+11509*us+11616*us, total.RNRWait)
}

// Good bytes are those of the messages, however often their packets went out.
func TestGoodBytes(t *testing.T) {
	for name, want := range map[string]uint64{
		"rc-loss-request":         9 * 6000,
		"rc-loss-request-ingress": 9 * 3000,
		"rc-loss-ack":             12 * 2500,
		"rc-loss-read-request":    3 * 2500,
		"rc-dup-request":          9 * 2500,
		"rc-burst":                32 * 2000,
		"rc-timeout":              2500,
	} {
		w, _ := watch(t, conform.Config{}, load(t, name))
		total := w.Total()
		require.Equal(t, want, total.GoodBytes, name)
		require.LessOrEqual(t, want, total.PayloadBytes, name)
	}
}
