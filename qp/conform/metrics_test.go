package conform_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/simnet"
)

// TestMetrics holds the counts against those that testdata/metrics.sh computed with
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
// and 8781 us after its first, and the response to the last ATOMIC came after 346 us.
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

// TestLatencyTruth holds completion times against those that the requester has
// itself: a message at a time over a network that loses packets, or loses none,
// with a tap where the requester is.
func TestLatencyTruth(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 21))
		n := simnet.New(simnet.Config{Seed: seed})
		ha, err := n.AddHost(simnet.HostConfig{Name: "a"})
		require.NoError(t, err)
		hb, err := n.AddHost(simnet.HostConfig{Name: "b"})
		require.NoError(t, err)
		l, err := n.Connect(ha, hb, simnet.LinkConfig{Rate: 100e9, Delay: 2 * us})
		require.NoError(t, err)
		f := simnet.Faults{Loss: []float64{0, 0.02, 0.05}[seed%3]}
		l.AB().SetFaults(f)
		l.BA().SetFaults(f)
		qa, qb, err := n.ConnectQPs(ha, hb, simnet.ConnConfig{MTU: 1024, RetryForever: true, RdAtomic: 4})
		require.NoError(t, err)
		var tape bytes.Buffer
		ha.Capture(&tape)
		va, key, err := hb.Register(make([]byte, 9000), qp.RemoteWrite|qp.RemoteRead)
		require.NoError(t, err)
		cva, ckey, err := hb.Register(make([]byte, 8), qp.RemoteAtomic)
		require.NoError(t, err)
		var posted time.Time
		var sum, least, most time.Duration
		done := 0
		post := func() {
			size := []int{64, 1000, 3000, 9000}[rng.IntN(4)]
			wr := qp.SendWR{ID: uint64(done), Flags: qp.Signaled, Local: make([]byte, size), RemoteAddr: va, RKey: key}
			switch rng.IntN(4) {
			case 0:
				wr.Op = qp.OpSend
				require.NoError(t, qb.PostRecv(&qp.RecvWR{Local: make([]byte, size)}))
			case 1:
				wr.Op = qp.OpWrite
			case 2:
				wr.Op = qp.OpRead
			default:
				wr.Op, wr.Local, wr.RemoteAddr, wr.RKey, wr.CompareAdd = qp.OpFetchAdd, make([]byte, 8), cva, ckey, 1
			}
			posted = n.Now()
			require.NoError(t, qa.PostSend(n.Now(), &wr))
		}
		ha.OnCompletion = func(*qp.Completion) {
			d := n.Now().Sub(posted)
			if done == 0 || d < least {
				least = d
			}
			most, sum = max(most, d), sum+d
			if done++; done < 200 {
				n.After(50*us, post)
			}
		}
		hb.OnCompletion = func(*qp.Completion) {}
		n.After(0, post)
		_, err = n.RunUntilIdle(time.Hour)
		require.NoError(t, err)
		require.Equal(t, 200, done)

		w, all := watch(t, conform.Config{}, records(t, tape.Bytes()))
		require.Empty(t, breaches(all))
		h := w.Completion()
		require.EqualValues(t, done, h.Count(), "seed %d", seed)
		require.Equal(t, most, h.Max(), "seed %d", seed)
		require.InDelta(t, float64(sum)/float64(done), float64(h.Mean()), float64(sum)/float64(done)/1000+1, "seed %d", seed)
		require.InDelta(t, float64(least), float64(h.Min()), float64(least)/32+1, "seed %d", seed)
	}
}
