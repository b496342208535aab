package simnet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// One flow over one link: the machines, the port and the event loop, without a
// switch.
func BenchmarkLink(b *testing.B) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		b.Run(fmt.Sprint([]string{"bytes", "decoded", "shared"}[carry]), func(b *testing.B) {
			n := simnet.New(simnet.Config{Carry: carry})
			x, err := n.AddHost(simnet.HostConfig{})
			require.NoError(b, err)
			y, err := n.AddHost(simnet.HostConfig{})
			require.NoError(b, err)
			_, err = n.Connect(x, y, gigabit100)
			require.NoError(b, err)
			f, err := n.AddFlow(simnet.FlowConfig{From: x, To: y, Op: qp.OpWrite, Size: 1 << 20})
			require.NoError(b, err)
			require.NoError(b, n.Run(time.Millisecond))
			start := f.Received()
			b.ReportAllocs()
			for b.Loop() {
				if err := n.Run(100 * time.Microsecond); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(f.Received()-start)/4096/b.Elapsed().Seconds(), "pkt/s")
		})
	}
}
