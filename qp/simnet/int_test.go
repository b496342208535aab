package simnet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// With HPCC each switch leaves a record in each packet of data, 8 bytes each, and the
// acknowledgement brings them back: after two packets that follow each other at the rate
// of the link their records give that rate, and the queue is what waited.
func TestTelemetry(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared},
		Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Clos(2, 1, 2)
	require.NoError(t, err)
	_, err = f.AddFlow(write(f.Hosts()[0], f.Hosts()[2], 40_000))
	require.NoError(t, err)
	sizes := make(map[string]int)
	f.Observe(func(e *simnet.PacketEvent) {
		if len(e.Frame.Packet.Payload) == 4096 && sizes[e.Direction.From().Name()] == 0 {
			sizes[e.Direction.From().Name()] = e.Size
		}
	})
	idle, err := f.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	at := sizes["h0.0"]
	require.NotZero(t, at)
	require.Equal(t, map[string]int{"h0.0": at, "leaf0": at + 8, "spine0": at + 16, "leaf1": at + 24}, sizes)
	require.Equal(t, 4096+62+16+2, at, "headers with RETH, FCS, and 2 bytes of telemetry without a record")
}
