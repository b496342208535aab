package simnet_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// totals adds up the counters of all links.
func totals(n *simnet.Network) (c simnet.LinkCounters) {
	for _, l := range n.Links() {
		for _, d := range []*simnet.Direction{l.AB(), l.BA()} {
			x := d.Counters()
			c.Dropped += x.Dropped
			c.Marked += x.Marked
			c.PauseSent += x.PauseSent
			c.ResumeSent += x.ResumeSent
			c.Pauses += x.Pauses
		}
	}
	return c
}

// starIncast is senders hosts with a message each to h0, over a switch of little
// buffer.
func starIncast(t *testing.T, lossless uint8, dcqcn congestion.Controller, senders, size int, carry simnet.Carry) (*lab.Fabric, []*simnet.Flow) {
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 3, Carry: carry},
		Switch: simnet.SwitchConfig{Buffer: 2_000_000, Lossless: lossless,
			ECN: &cnp.CongestionParams{Kmin: 50_000, Kmax: 200_000, Pmax: 100_000}},
		Host: simnet.HostConfig{Control: dcqcn},
	}.Star(senders + 1)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for i := range senders {
		fl, err := f.AddFlow(simnet.FlowConfig{
			From: f.Hosts()[i+1], To: f.Hosts()[0], Op: qp.OpWrite, Size: size, Count: 4, Depth: 4,
			Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true},
		})
		require.NoError(t, err)
		flows = append(flows, fl)
	}
	return f, flows
}

func finish(t *testing.T, f *lab.Fabric, flows []*simnet.Flow, limit time.Duration) (last time.Duration) {
	_, err := f.RunUntilIdle(limit)
	require.NoError(t, err)
	for _, fl := range flows {
		require.Equal(t, qp.Success, fl.Status())
		last = max(last, fl.Duration())
	}
	return last
}

// Nothing is dropped with PFC; without PFC and DCQCN the same
// incast drops, and going back to what was lost makes it collapse.
func TestPFCKeepsAllAndItsAbsenceCollapses(t *testing.T) {
	const senders, size = 16, 1 << 20
	f, flows := starIncast(t, 1<<3, nil, senders, size, simnet.Decoded)
	with := finish(t, f, flows, time.Second)
	c := totals(f.Network)
	require.Zero(t, c.Dropped)
	require.NotZero(t, c.PauseSent)
	require.NotZero(t, c.ResumeSent)
	require.NotZero(t, c.Pauses)
	for _, fl := range flows {
		require.True(t, fl.Done())
		q, _ := fl.QPs()
		require.Zero(t, q.Counters().Retransmitted)
	}
	ideal := time.Duration(senders * size * 4 / 4096 * 4178 * 8 / 100)
	require.Less(t, with, ideal*105/100, "the receiver's link is busy all the time")

	f, flows = starIncast(t, 0, nil, senders, size, simnet.Decoded)
	without := finish(t, f, flows, 10*time.Second)
	require.NotZero(t, totals(f.Network).Dropped)
	require.Zero(t, totals(f.Network).PauseSent)
	require.Greater(t, without, 3*with, "go-back-N collapses")

	// DCQCN without PFC drops for a while, then settles.
	p := cnp.Paper()
	f, flows = starIncast(t, 1<<3, cnp.Controller(p), senders, size, simnet.Decoded)
	finish(t, f, flows, time.Second)
	require.Zero(t, totals(f.Network).Dropped)
	require.NotZero(t, totals(f.Network).Marked)
	require.NotZero(t, f.Hosts()[0].Port.Counters().NpCnpSent)
	var handled uint64
	for _, h := range f.Hosts() {
		handled += h.Port.Counters().RpCnpHandled
	}
	require.Equal(t, f.Hosts()[0].Port.Counters().NpCnpSent, handled)
}

// Bytes and decoded packets give the same course of events.
func TestCarryMakesNoDifference(t *testing.T) {
	run := func(c simnet.Carry) string {
		p := cnp.Paper()
		f, flows := starIncast(t, 1<<3, cnp.Controller(p), 8, 256<<10, c)
		var trace bytes.Buffer
		f.Trace(&trace)
		finish(t, f, flows, time.Second)
		return trace.String()
	}
	a := run(simnet.Bytes)
	require.Contains(t, a, "PFC prio 3: 65535 quanta")
	require.Contains(t, a, "CNP")
	require.Equal(t, a, run(simnet.Decoded))
	require.Equal(t, a, run(simnet.Shared))
}

// A ring whose packets all go one way deadlocks with PFC: it is foreseen from the
// routes, found when it happens, and ends the run.
func TestRingDeadlock(t *testing.T) {
	ring := func(keep bool) *lab.Fabric {
		f, err := lab.Topology{
			Network: simnet.Config{Seed: 1, Carry: simnet.Decoded, KeepDeadlocked: keep},
			Switch:  simnet.SwitchConfig{Lossless: 1 << 3, Buffer: 3_000_000, XOFF: 60_000},
		}.Ring(4, 2)
		require.NoError(t, err)
		for i := range 8 {
			// To the switch opposite: two links of the ring are in its way.
			_, err := f.AddFlow(simnet.FlowConfig{
				From: f.Hosts()[i], To: f.Hosts()[(i+4)%8], Op: qp.OpWrite, Size: 1 << 20, Depth: 4,
				Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true},
			})
			require.NoError(t, err)
		}
		return f
	}
	f := ring(false)
	cycle, err := f.DependencyCycle()
	require.NoError(t, err)
	require.Len(t, cycle, 4)
	err = f.Run(20 * time.Millisecond)
	require.ErrorIs(t, err, simnet.ErrDeadlock)
	d := f.Deadlock()
	require.NotNil(t, d)
	require.Len(t, d.Cycle, 4)
	require.Equal(t, 3, d.Priority)
	require.Equal(t, "pause deadlock of priority 3 at "+d.At.String()+": s0 > s1 > s2 > s3 > s0", d.String())
	require.Equal(t, d.At, f.Elapsed())

	// When the run continues, nothing moves on the ring any more.
	f = ring(true)
	require.NoError(t, f.Run(20*time.Millisecond))
	require.NotNil(t, f.Deadlock())
	sent := func() (s uint64) {
		for _, x := range f.Deadlock().Cycle {
			s += x.Counters().Packets
		}
		return s
	}
	before := sent()
	require.NoError(t, f.Run(20*time.Millisecond))
	require.Equal(t, before, sent())
}

// No other topology has a cycle, and a congested one is not reported as a deadlock.
func TestNoDeadlockInATree(t *testing.T) {
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, Buffer: 2_000_000},
	}.Clos(4, 2, 4)
	require.NoError(t, err)
	cycle, err := f.DependencyCycle()
	require.NoError(t, err)
	require.Empty(t, cycle)
	var flows []*simnet.Flow
	for i := range 16 {
		for _, k := range []int{0, 5, 10} {
			if i != k {
				fl, err := f.AddFlow(simnet.FlowConfig{
					From: f.Hosts()[i], To: f.Hosts()[k], Op: qp.OpWrite, Size: 1 << 20, Count: 3,
					Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true},
				})
				require.NoError(t, err)
				flows = append(flows, fl)
			}
		}
	}
	finish(t, f, flows, time.Second)
	c := totals(f.Network)
	require.Zero(t, c.Dropped)
	require.NotZero(t, c.Pauses)
	require.Nil(t, f.Deadlock())
	for _, fl := range flows {
		require.True(t, fl.Done(), fl.Name())
	}
	for _, s := range f.Switches() {
		now, most := s.Buffered()
		require.Zero(t, now)
		require.NotZero(t, most)
	}
}

// A pause that has to last longer than a frame can say is asked for again, and is
// no deadlock while a host drains what it waits for.
func TestPauseIsRepeated(t *testing.T) {
	f, err := lab.Topology{
		Network: simnet.Config{Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 800_000, XON: 10_000, Buffer: 8_000_000},
		Rate:    10e9, Core: 100e9,
	}.Dumbbell(6)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for i := range 6 {
		fl, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[i], To: f.Hosts()[6], Op: qp.OpWrite, Size: 1 << 20, Count: 2,
			Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}})
		require.NoError(t, err)
		flows = append(flows, fl)
	}
	finish(t, f, flows, time.Second)
	require.True(t, flows[5].Done())
	require.Nil(t, f.Deadlock())
	require.Zero(t, totals(f.Network).Dropped)
	asked, paused := f.Links()[0].BA().Counters(), f.Links()[0].AB().Counters()
	require.Greater(t, asked.PauseSent, paused.Pauses)
	require.Equal(t, asked.ResumeSent, paused.Pauses)
	require.Greater(t, paused.PausedFor[3]/time.Duration(paused.Pauses), 335*time.Microsecond)
}

// When the frame that ends a pause is lost, the pause ends by itself: at a host, and
// at a switch.
func TestLostResume(t *testing.T) {
	for _, place := range []string{"host", "switch"} {
		t.Run(place, func(t *testing.T) {
			build := func(lose []uint64) (*lab.Fabric, []*simnet.Flow, *simnet.Link) {
				f, err := lab.Topology{
					Network: simnet.Config{Carry: simnet.Decoded},
					Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 60_000},
					Core:    200e9,
				}.Dumbbell(2)
				require.NoError(t, err)
				// The senders are paused by their switch, or that by the other.
				l, senders := f.Links()[0], []int{0, 1}
				if place == "host" {
					l, senders = f.Hosts()[0].Link(), []int{0, 3}
					l.BA().SetFaults(simnet.Faults{LossList: lose})
				}
				l.BA().SetFaults(simnet.Faults{LossList: lose})
				var flows []*simnet.Flow
				for _, i := range senders {
					to := f.Hosts()[2]
					if place == "host" {
						to = f.Hosts()[1]
					}
					fl, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[i], To: to, Op: qp.OpWrite, Size: 1 << 19, Count: 2,
						Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}})
					require.NoError(t, err)
					flows = append(flows, fl)
				}
				return f, flows, l
			}
			f, flows, l := build(nil)
			var sent, resume uint64
			f.Observe(func(e *simnet.PacketEvent) {
				if e.Direction != l.BA() {
					return
				}
				if e.PFC != nil && resume == 0 {
					if q, ok := e.PFC.Time(3); ok && q == 0 {
						resume = sent
					}
				}
				sent++
			})
			finish(t, f, flows, time.Second)
			require.NotZero(t, resume)

			f, flows, l = build([]uint64{resume})
			finish(t, f, flows, time.Second)
			for _, fl := range flows {
				require.True(t, fl.Done())
			}
			c := l.AB().Counters()
			require.EqualValues(t, 1, l.BA().Counters().Lost)
			require.Greater(t, c.PausedFor[3], 100*time.Microsecond)
			require.Zero(t, totals(f.Network).Dropped)
		})
	}
}

// ECMP spreads flows over the spines, and keeps each on one.
func TestECMP(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Seed: 5, Carry: simnet.Decoded}}.Clos(2, 4, 8)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for i := range 64 {
		fl, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[i%8], To: f.Hosts()[8+i/8], Op: qp.OpSend, Size: 10_000, Count: 3})
		require.NoError(t, err)
		flows = append(flows, fl)
	}
	way := make(map[[2]uint32]string)
	f.Observe(func(e *simnet.PacketEvent) {
		from, to := e.Direction.From().Name(), e.Direction.To().Name()
		if from != "leaf0" || !strings.HasPrefix(to, "spine") {
			return
		}
		k := [2]uint32{uint32(e.Frame.Src.As4()[3])<<8 | uint32(e.Frame.Dst.As4()[3]), e.Frame.Packet.DestQP}
		if w := way[k]; w != "" {
			require.Equal(t, w, to)
		}
		way[k] = to
	})
	finish(t, f, flows, time.Second)
	n := make(map[string]int)
	for _, w := range way {
		n[w]++
	}
	require.Len(t, n, 4)
	for w, k := range n {
		require.Greater(t, k, 6, w)
	}
}

// A switch serves strict priorities first and others by weight.
func TestScheduling(t *testing.T) {
	f, err := lab.Topology{
		Network: simnet.Config{Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 0b1011, Weights: [8]int{1, 3, 0, 0, 0, 0, 0, 0}},
	}.Star(4)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for prio := range 2 {
		fl, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[prio+1], To: f.Hosts()[0], Op: qp.OpWrite, Size: 1 << 20, Depth: 4,
			Conn: simnet.ConnConfig{DSCP: uint8(prio << 3)}})
		require.NoError(t, err)
		flows = append(flows, fl)
	}
	require.NoError(t, f.Run(time.Millisecond))
	a, b := flows[0].Received(), flows[1].Received()
	require.NoError(t, f.Run(10*time.Millisecond))
	require.InEpsilon(t, 3, float64(flows[1].Received()-b)/float64(flows[0].Received()-a), 0.02)

	urgent, err := f.AddFlow(simnet.FlowConfig{From: f.Hosts()[3], To: f.Hosts()[0], Op: qp.OpWrite, Size: 1 << 20, Depth: 4,
		Conn: simnet.ConnConfig{DSCP: 3 << 3}})
	require.NoError(t, err)
	require.NoError(t, f.Run(time.Millisecond))
	a, b = flows[0].Received(), flows[1].Received()
	require.NoError(t, f.Run(time.Millisecond))
	require.Less(t, flows[0].Received()+flows[1].Received()-a-b, uint64(100_000))
	require.Greater(t, urgent.Received(), uint64(20e6))
}

// ARP goes through switches over a tree, so that hosts find each other by asking.
func TestResolveThroughLoops(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Seed: 1}}.Clos(3, 3, 2)
	require.NoError(t, err)
	a, b := f.Hosts()[0], f.Hosts()[5]
	qa, qb, err := f.ConnectQPs(a, b, simnet.ConnConfig{Attr: func(i int, at *qp.Attr) { at.AH.MAC = [6]byte{} }, NoNeighbors: true})
	require.NoError(t, err)
	buf := make([]byte, 5000)
	require.NoError(t, qb.PostRecv(&qp.RecvWR{ID: 1, Local: buf}))
	require.NoError(t, qa.PostSend(f.Now(), &qp.SendWR{ID: 2, Flags: qp.Signaled, Local: pattern(5000)}))
	arp := 0
	f.Observe(func(e *simnet.PacketEvent) {
		if e.Frame == nil {
			arp++
		}
	})
	_, err = f.RunUntilIdle(time.Second)
	require.NoError(t, err)
	var wc qp.Completion
	require.True(t, b.CQ.Poll(&wc))
	require.Equal(t, pattern(5000), buf)
	require.Less(t, arp, 40)
	require.NotZero(t, arp)
}

func TestConfigErrors(t *testing.T) {
	_, err := lab.Topology{Switch: simnet.SwitchConfig{Lossless: 0xff, Buffer: 500_000}}.Star(8)
	require.NoError(t, err)
	f, _ := lab.Topology{Switch: simnet.SwitchConfig{Lossless: 0xff, Buffer: 500_000}}.Star(8)
	require.ErrorIs(t, f.Run(1), simnet.ErrConfig, "the buffer cannot hold what PFC promises")

	n := simnet.New(simnet.Config{})
	a, err := n.AddHost(simnet.HostConfig{Name: "a"})
	require.NoError(t, err)
	_, err = n.AddHost(simnet.HostConfig{Name: "a"})
	require.ErrorIs(t, err, simnet.ErrConfig)
	p := cnp.Paper()
	b, err := n.AddHost(simnet.HostConfig{Name: "b", Control: cnp.Controller(p), LineRate: 40e9})
	require.NoError(t, err)
	_, err = n.Connect(a, b, simnet.LinkConfig{Rate: 100e9})
	require.ErrorIs(t, err, simnet.ErrConfig)
	_, err = n.Connect(a, a, simnet.LinkConfig{})
	require.ErrorIs(t, err, simnet.ErrConfig)
	_, err = n.AddSwitch(simnet.SwitchConfig{XOFF: 1, XON: 2})
	require.ErrorIs(t, err, simnet.ErrConfig)
	_, err = n.AddSwitch(simnet.SwitchConfig{ECN: &cnp.CongestionParams{Kmin: 2, Kmax: 1}})
	require.ErrorIs(t, err, cnp.ErrParams)
	_, err = n.AddFlow(simnet.FlowConfig{})
	require.ErrorIs(t, err, simnet.ErrConfig)
	require.Equal(t, "dropped", simnet.Dropped.String())
	require.Equal(t, "9", fmt.Sprint(simnet.Fate(9)))
}

// Pauses that are not ended by a frame end when their time has passed, the second and the third as
// the first, at a switch and at a host.
func TestPausesEndByTime(t *testing.T) {
	for _, bySwitch := range []bool{true, false} {
		n := simnet.New(simnet.Config{})
		a, err := n.AddHost(simnet.HostConfig{})
		require.NoError(t, err)
		b, err := n.AddHost(simnet.HostConfig{})
		require.NoError(t, err)
		var paused *simnet.Direction
		if bySwitch {
			s, err := n.AddSwitch(simnet.SwitchConfig{})
			require.NoError(t, err)
			l, err := n.Connect(s, a, gigabit100)
			require.NoError(t, err)
			_, err = n.Connect(b, s, gigabit100)
			require.NoError(t, err)
			paused = l.AB()
		} else {
			l, err := n.Connect(b, a, gigabit100)
			require.NoError(t, err)
			paused = l.AB()
		}
		f, err := n.AddFlow(simnet.FlowConfig{From: b, To: a, Op: qp.OpWrite, Size: 1 << 20, Count: 1, Conn: simnet.ConnConfig{DSCP: 26}})
		require.NoError(t, err)
		for _, at := range []time.Duration{10, 30, 50} {
			n.After(at*time.Microsecond, func() {
				k := pfc.New([6]byte(a.Port.MAC()))
				k.Set(3, 200) // of 512 bits: 1.024 us
				require.NoError(t, a.Inject(k.AppendFrame(nil)))
			})
		}
		idle, err := n.RunUntilIdle(200 * time.Microsecond)
		require.NoError(t, err)
		require.True(t, idle && f.Done(), "by switch %v", bySwitch)
		require.EqualValues(t, 3, paused.Counters().Pauses)
		require.Equal(t, 3*1024*time.Nanosecond, paused.Counters().PausedFor[3])
	}
}
