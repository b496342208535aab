package conform_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/simnet"
)

// TestLatencyTruth holds completion times against those that the requester has
// itself: a message at a time over a network that loses, duplicates and delays,
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
