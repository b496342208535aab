package simnet_test

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// Random fabrics, flows and faults: every message completes with success, nothing
// is lost but by the faults and by switches that may drop, what was sent is what
// arrived, was lost, or was dropped, and buffers are empty in the end.
func TestRandomNetworks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lossless := rapid.SampledFrom([]uint8{0, 1 << 3, 0xff}).Draw(t, "lossless")
		top := lab.Topology{
			Network: simnet.Config{
				Seed:  rapid.Uint64().Draw(t, "seed"),
				Carry: rapid.SampledFrom([]simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared}).Draw(t, "carry"),
			},
			Switch: simnet.SwitchConfig{Lossless: lossless, Buffer: rapid.SampledFrom([]int{6_000_000, 12_000_000}).Draw(t, "buffer")},
			Rate:   rapid.SampledFrom([]uint64{10e9, 40e9, 100e9}).Draw(t, "rate"),
			Delay:  time.Duration(rapid.IntRange(1, 3000).Draw(t, "delay")),
		}
		if rapid.Bool().Draw(t, "dcqcn") {
			p := cnp.Paper()
			if rapid.Bool().Draw(t, "nvidia") {
				p = cnp.NVIDIA()
			}
			top.Host.Control = cnp.Controller(p)
			top.Switch.ECN = &cnp.CongestionParams{Kmin: 10_000, Kmax: 100_000, Pmax: 100_000}
		}
		if rapid.Bool().Draw(t, "weighted") {
			top.Switch.Weights = [8]int{1, 2, 3, 4, 5, 6, 7}
		}
		var f *lab.Fabric
		var err error
		switch rapid.IntRange(0, 2).Draw(t, "fabric") {
		case 0:
			f, err = top.Star(rapid.IntRange(2, 5).Draw(t, "hosts"))
		case 1:
			f, err = top.Dumbbell(rapid.IntRange(1, 3).Draw(t, "hosts"))
		default:
			f, err = top.Clos(2, 2, 2)
		}
		require.NoError(t, err)
		faulty := rapid.IntRange(0, 2).Draw(t, "faulty") == 0
		if faulty {
			for _, l := range f.Links() {
				l.AB().SetFaults(simnet.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01, Jitter: 100})
			}
		}
		var flows []*simnet.Flow
		for range rapid.IntRange(1, 8).Draw(t, "flows") {
			n := len(f.Hosts())
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			to := (from + rapid.IntRange(1, n-1).Draw(t, "to")) % n
			fl, err := f.AddFlow(simnet.FlowConfig{
				From: f.Hosts()[from], To: f.Hosts()[to],
				Op:    rapid.SampledFrom([]qp.Op{qp.OpSend, qp.OpWrite, qp.OpRead}).Draw(t, "op"),
				Size:  rapid.SampledFrom([]int{0, 1, 1000, 4096, 100_000, 300_000}).Draw(t, "size"),
				Count: rapid.IntRange(1, 5).Draw(t, "count"),
				Depth: rapid.IntRange(1, 4).Draw(t, "depth"),
				Conn: simnet.ConnConfig{
					MTU:     rapid.SampledFrom([]int{256, 1024, 4096}).Draw(t, "mtu"),
					DSCP:    uint8(rapid.IntRange(0, 63).Draw(t, "dscp")),
					Timeout: 10, RetryForever: true,
				},
			})
			require.NoError(t, err)
			flows = append(flows, fl)
		}
		idle, err := f.RunUntilIdle(time.Minute)
		require.NoError(t, err)
		require.True(t, idle)
		for _, fl := range flows {
			require.True(t, fl.Done(), fl.Name())
			require.Equal(t, qp.Success, fl.Status())
		}
		for _, s := range f.Switches() {
			now, _ := s.Buffered()
			require.Zero(t, now)
		}
		var arrived uint64
		for _, l := range f.Links() {
			for _, d := range []*simnet.Direction{l.AB(), l.BA()} {
				c := d.Counters()
				arrived += c.Packets - c.Lost + c.Duplicated
				require.Zero(t, d.Queue())
				if lossless == 0xff && !faulty { // a pause that is lost, or late, stops nothing
					require.Zero(t, c.Dropped)
				}
			}
		}
		require.Equal(t, f.Hops(), arrived)
	})
}

// The same draws, twice: the same trace.
func TestRandomNetworksRepeat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		carry := rapid.SampledFrom([]simnet.Carry{simnet.Bytes, simnet.Decoded}).Draw(t, "carry")
		once := func() []byte {
			p := cnp.NVIDIA()
			f, err := lab.Topology{
				Network: simnet.Config{Seed: seed, Carry: carry},
				Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 50_000, ECN: &cnp.CongestionParams{Kmin: 5_000, Kmax: 50_000, Pmax: 500_000}},
				Host:    simnet.HostConfig{Control: cnp.Controller(p)},
			}.Clos(2, 2, 2)
			require.NoError(t, err)
			for _, l := range f.Links() {
				l.BA().SetFaults(simnet.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01, Jitter: 100})
			}
			for i := range 4 {
				_, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[i], To: f.Hosts()[(i+2)%4], Op: qp.OpWrite, Size: 50_000, Count: 2,
					Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}})
				require.NoError(t, err)
			}
			var out bytes.Buffer
			f.Trace(&out)
			_, err = f.RunUntilIdle(time.Second)
			require.NoError(t, err)
			return out.Bytes()
		}
		require.True(t, bytes.Equal(once(), once()))
	})
}
