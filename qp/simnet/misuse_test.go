package simnet_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
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
		_, err = n.Connect(nd, h[1], link)
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
		h[2].Wake()
	}
	require.NoError(t, q[0].PostSend(n.Now(), send))
	idle, err := n.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	var wc qp.Completion
	require.True(t, h[2].CQ.Poll(&wc))
	require.Equal(t, qp.Success, wc.Status)
}
