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
// of the link their records give that rate, and the queue is what waited. With bytes the
// records stand behind the IP packet.
func TestTelemetry(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		t.Run(carryNames[carry], func(t *testing.T) { telemetry(t, carry) })
	}
}

func telemetry(t *testing.T, carry simnet.Carry) {
	f, err := lab.Topology{Network: simnet.Config{Carry: carry},
		Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Clos(2, 1, 2)
	require.NoError(t, err)
	_, err = f.AddFlow(write(f.Hosts()[0], f.Hosts()[2], 40_000))
	require.NoError(t, err)
	sizes := make(map[string]int)
	var tail []byte
	f.Observe(func(e *simnet.PacketEvent) {
		if n := len(e.Raw); n > 4096 && e.Direction.From().Name() == "leaf1" {
			tail = append([]byte(nil), e.Raw[n-26:]...)
		}
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
	if carry == simnet.Bytes {
		// Mode 1, three records; the first is of an output of 100 Gb/s (code 2), whose time
		// comes from the network's clock.
		require.Equal(t, []byte{1<<6 | 3, 0}, tail[:2])
		require.EqualValues(t, 2, tail[9]&7)
	}
}

// HPCC does the same whatever networks carry: the records that senders get back are those
// of the bytes.
func TestTelemetryOfAllCarries(t *testing.T) {
	run := func(carry simnet.Carry) (got []uint64, queue int) {
		f, err := lab.Topology{Network: simnet.Config{Carry: carry}, Host: simnet.HostConfig{Control: hpcc.Controller(hpcc.Defaults())}}.Star(5)
		require.NoError(t, err)
		var flows []*simnet.Flow
		for _, h := range f.Hosts()[1:] {
			w := write(h, f.Hosts()[0], 64<<10)
			w.Count = 0
			flow, err := f.AddFlow(w)
			require.NoError(t, err)
			flows = append(flows, flow)
		}
		require.NoError(t, f.Run(300*time.Microsecond))
		for _, x := range flows {
			got = append(got, x.Received())
		}
		return got, f.Bottleneck.Counters().MaxQueue
	}
	want, queue := run(simnet.Shared)
	require.NotZero(t, want[0])
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded} {
		got, q := run(carry)
		require.Equal(t, want, got)
		require.Equal(t, queue, q)
	}
}
