package simnet_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
	"github.com/roce-go/roce/qp/softnic"
)

// manyQPs connects n queue pairs of one host to others on other hosts.
func manyQPs(t testing.TB, n, others int, p congestion.Controller) (*lab.Fabric, []*softnic.QP, []*softnic.QP) {
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 1},
		Host:    simnet.HostConfig{MaxQPs: n, Control: p},
	}.Star(others + 1)
	require.NoError(t, err)
	qa, qb := make([]*softnic.QP, n), make([]*softnic.QP, n)
	cc := simnet.ConnConfig{SendDepth: 1, RecvDepth: 1, RdAtomic: 1, MTU: 1024}
	for i := range n {
		qa[i], qb[i], err = f.ConnectQPs(f.Hosts()[0], f.Hosts()[1+i%others], cc)
		require.NoError(t, err)
	}
	return f, qa, qb
}

// 100,000 queue pairs of one host pass traffic, and one that is
// idle takes at most 1 KiB beyond its rings. In bytes: qp.QP 1000, with the rings of
// one send, receive, completion, READ and answer some 450 more.
func TestHundredThousandQPs(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f, qa, qb := manyQPs(t, n, 4, nil)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perQP := float64(after.HeapAlloc-before.HeapAlloc) / float64(2*n)
	t.Logf("%.0f bytes a queue pair with its port's state and rings of one entry", perQP)
	require.Less(t, perQP, 2048.0)

	msg, got := pattern(1500), make([]byte, 1500)
	done := 0
	f.Hosts()[0].OnCompletion = func(wc *qp.Completion) {
		require.Equal(t, qp.Success, wc.Status)
		done++
	}
	for i := range qa {
		require.NoError(t, qb[i].PostRecv(&qp.RecvWR{Local: got}))
		require.NoError(t, qa[i].PostSend(f.Now(), &qp.SendWR{Flags: qp.Signaled, Local: msg}))
	}
	idle, err := f.RunUntilIdle(time.Second)
	require.NoError(t, err)
	require.True(t, idle)
	require.Equal(t, n, done)
	require.Equal(t, msg, got)
}

// Queue pairs that are idle cause no events, and cost a run of
// others nothing. The number of events is what is counted: time would be flaky.
func TestIdleQPsCauseNoEvents(t *testing.T) {
	events := func(idle int) uint64 {
		f, qa, qb := manyQPs(t, idle+1, 1, nil)
		q, r := qa[idle/2], qb[idle/2]
		got := make([]byte, 100_000)
		require.NoError(t, r.PostRecv(&qp.RecvWR{Local: got}))
		require.NoError(t, q.PostSend(f.Now(), &qp.SendWR{Flags: qp.Signaled, Local: pattern(100_000)}))
		_, err := f.RunUntilIdle(time.Hour)
		require.NoError(t, err)
		var wc qp.Completion
		require.True(t, f.Hosts()[0].CQ.Poll(&wc))
		return f.Events()
	}
	require.Equal(t, events(0), events(20_000))
}
