package simnet_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// TestRunForEver: the longest duration does not wrap, and time never goes back.
func TestRunForEver(t *testing.T) {
	n := simnet.New(simnet.Config{})
	require.NoError(t, n.Run(time.Second))
	fired := false
	n.After(time.Second, func() { fired = true })
	idle, err := n.RunUntilIdle(math.MaxInt64)
	require.NoError(t, err)
	require.True(t, idle && fired)
	require.NoError(t, n.Run(-time.Second))
	require.Equal(t, 2*time.Second, n.Elapsed())
	for range 3 {
		require.NoError(t, n.Run(math.MaxInt64))
		require.Equal(t, 2260, n.Now().Year())
	}
}

// TestFailedCallsLeaveNothing: what returned an error did not do half of its work.
func TestFailedCallsLeaveNothing(t *testing.T) {
	n := simnet.New(simnet.Config{})
	link := simnet.LinkConfig{Rate: 1e9}
	var h [3]*simnet.Host
	for i := range h {
		h[i], _ = n.AddHost(simnet.HostConfig{})
	}
	s, err := n.AddSwitch(simnet.SwitchConfig{Lossless: 1})
	require.NoError(t, err)
	_, err = n.Connect(h[0], h[1], link)
	require.NoError(t, err)
	for _, nd := range []simnet.Node{h[2], s} {
		_, err = n.Connect(nd, nd, link)
		require.ErrorIs(t, err, simnet.ErrConfig)
		_, err = n.Connect(nd, nil, link)
		require.ErrorIs(t, err, simnet.ErrConfig)
	}
	require.Nil(t, h[2].Link())
	require.Empty(t, s.Outputs())
	require.NoError(t, n.Run(time.Second))
	_, err = n.Connect(h[2], s, link)
	require.NoError(t, err)

	_, err = n.AddHost(simnet.HostConfig{Name: "x", MaxQPs: -1})
	require.Error(t, err)
	_, err = n.AddSwitch(simnet.SwitchConfig{Name: "x", Weights: [8]int{-1}})
	require.Error(t, err)
	_, err = n.AddHost(simnet.HostConfig{Name: "x"})
	require.NoError(t, err)
}

// TestCorruptShortFrames: a frame without a whole Ethernet header has bits to
// change as well, if any.
func TestCorruptShortFrames(t *testing.T) {
	for size := range 16 {
		n := simnet.New(simnet.Config{})
		a, _ := n.AddHost(simnet.HostConfig{})
		b, _ := n.AddHost(simnet.HostConfig{})
		l, err := n.Connect(a, b, simnet.LinkConfig{Rate: 1e9})
		require.NoError(t, err)
		l.AB().SetFaults(simnet.Faults{Corrupt: 1})
		require.NoError(t, a.Inject(make([]byte, size)))
		idle, err := n.RunUntilIdle(time.Second)
		require.True(t, idle && err == nil)
		require.EqualValues(t, 1, b.Port.Counters().RxFrames)
	}
}

// TestPostToAnotherHost: a completion's function posts to a queue pair of a host
// that nothing else would wake.
func TestPostToAnotherHost(t *testing.T) {
	n := simnet.New(simnet.Config{})
	var h [4]*simnet.Host
	for i := range h {
		h[i], _ = n.AddHost(simnet.HostConfig{})
	}
	var q [4]interface {
		PostSend(time.Time, *qp.SendWR) error
		PostRecv(*qp.RecvWR) error
	}
	for i := 0; i < 4; i += 2 {
		_, err := n.Connect(h[i], h[i+1], simnet.LinkConfig{Rate: 1e9})
		require.NoError(t, err)
		q[i], q[i+1], err = n.ConnectQPs(h[i], h[i+1], simnet.ConnConfig{})
		require.NoError(t, err)
		require.NoError(t, q[i+1].PostRecv(&qp.RecvWR{}))
	}
	send := &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled}
	h[0].OnCompletion = func(*qp.Completion) {
		require.NoError(t, q[2].PostSend(n.Now(), send))
	}
	require.NoError(t, q[0].PostSend(n.Now(), send))
	idle, err := n.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	var wc qp.Completion
	require.True(t, h[2].CQ.Poll(&wc))
	require.Equal(t, qp.Success, wc.Status)
}

// TestChangesWhileRunning: a host, a link and a route that are new take part at once.
func TestChangesWhileRunning(t *testing.T) {
	f, err := lab.Topology{}.Clos(2, 2, 1)
	require.NoError(t, err)
	var core []*simnet.Direction
	for _, d := range f.Switches()[0].Outputs() {
		if _, ok := d.To().(*simnet.Switch); ok {
			core = append(core, d)
		}
	}
	require.Len(t, core, 2)
	_, err = f.AddFlow(simnet.FlowConfig{From: f.Hosts()[0], To: f.Hosts()[1], Op: qp.OpWrite, Size: 100_000})
	require.NoError(t, err)
	require.NoError(t, f.Run(time.Millisecond))
	if core[0].Counters().Packets == 0 {
		core[0], core[1] = core[1], core[0]
	}
	require.Zero(t, core[1].Counters().Packets)
	var late *simnet.Flow
	f.After(time.Millisecond, func() {
		require.NoError(t, f.Switches()[0].SetRoute(f.Hosts()[1], core[1]))
		h, err := f.AddHost(simnet.HostConfig{})
		require.NoError(t, err)
		_, err = f.Connect(h, f.Switches()[1], simnet.LinkConfig{Rate: 100e9})
		require.NoError(t, err)
		late, err = f.AddFlow(simnet.FlowConfig{From: f.Hosts()[0], To: h, Op: qp.OpWrite, Size: 100, Count: 1})
		require.NoError(t, err)
	})
	require.NoError(t, f.Run(2*time.Millisecond))
	require.True(t, late.Done())
	require.NotZero(t, core[1].Counters().Packets)
}

// TestScenarioGoesOn: runs that are no multiple of the interval, flows and queues
// that come between them, all in one report.
func TestScenarioGoesOn(t *testing.T) {
	f, err := lab.Topology{}.Star(3)
	require.NoError(t, err)
	s := lab.NewScenario(f.Network, 10*time.Microsecond)
	flow := simnet.FlowConfig{From: f.Hosts()[1], To: f.Hosts()[0], Op: qp.OpWrite, Size: 10_000}
	s.Flow(flow)
	r, err := s.Run(1005 * time.Microsecond)
	require.NoError(t, err)
	require.Equal(t, 1005*time.Microsecond, f.Elapsed())
	require.Len(t, r.Flows[0].Bytes, 100)
	s.Watch(f.Bottleneck)
	flow.From = f.Hosts()[2]
	s.Flow(flow)
	r, err = s.Run(995 * time.Microsecond)
	require.NoError(t, err)
	require.Equal(t, 2*time.Millisecond, r.At(199))
	for _, x := range r.Flows {
		require.Len(t, x.Bytes, 200)
	}
	require.Len(t, r.Queues[0].Bytes, 200)
	require.Zero(t, r.Goodput(1, 0, time.Millisecond))
	require.Greater(t, r.Goodput(1, time.Millisecond, 2*time.Millisecond), 10e9)
	require.Greater(t, r.Goodput(0, 0, time.Millisecond), 10e9)
}

// TestFlowsOfManySizes: they share regions.
func TestFlowsOfManySizes(t *testing.T) {
	f, err := lab.Topology{Host: simnet.HostConfig{MaxRegions: 4}}.Star(2)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for i := range 100 {
		x, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[0], To: f.Hosts()[1], Op: qp.OpWrite, Size: 100 * i, Count: 1})
		require.NoError(t, err, i)
		flows = append(flows, x)
	}
	idle, err := f.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	for _, x := range flows {
		require.True(t, x.Done())
	}
}

// TestNoRoute: a flow between hosts that no links join fails, and a switch counts what
// it has no route for.
func TestNoRoute(t *testing.T) {
	f, err := lab.Topology{}.Star(1)
	require.NoError(t, err)
	alone, err := f.AddHost(simnet.HostConfig{})
	require.NoError(t, err)
	other, err := f.AddSwitch(simnet.SwitchConfig{})
	require.NoError(t, err)
	_, err = f.Connect(alone, other, simnet.LinkConfig{Rate: 1e9})
	require.NoError(t, err)
	flow, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[0], To: alone, Op: qp.OpWrite, Size: 10, Count: 1})
	require.NoError(t, err)
	idle, err := f.RunUntilIdle(time.Minute)
	require.True(t, idle && err == nil)
	require.Equal(t, qp.RetryExcErr, flow.Status())
	require.Equal(t, f.Hosts()[0].Out().Counters().Packets, f.Switches()[0].NoRoute())
}

// TestTopologyOfIPv6: the hosts of a ready network count up from an address.
func TestTopologyOfIPv6(t *testing.T) {
	f, err := lab.Topology{Host: simnet.HostConfig{Addr: netip.MustParseAddr("2001:db8::1")}}.Dumbbell(2)
	require.NoError(t, err)
	for i, h := range f.Hosts() {
		gid, _ := h.Port.GID(0)
		require.Equal(t, netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1)), netip.AddrFrom16(gid))
	}
	flow, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[0], To: f.Hosts()[3], Op: qp.OpWrite, Size: 10_000, Count: 1})
	require.NoError(t, err)
	idle, err := f.RunUntilIdle(time.Minute)
	require.True(t, idle && err == nil && flow.Done())
}
