package simnet_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

func write(from, to *simnet.Host, size int) simnet.FlowConfig {
	return simnet.FlowConfig{From: from, To: to, Op: qp.OpWrite, Size: size, Count: 1,
		Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true}}
}

// The switch of the DCQCN paper (Zhu et al., SIGCOMM 2015, section 4): 12 MB, 32 ports, 8
// priorities, 22.4 KB of headroom each, beta 8. With t_ECN below 21.75 KB, which the
// paper derives, a packet is marked before any pause, at every degree of incast. With
// the static threshold of 24.47 KB it would have to be below 0.85 KB.
func TestMarkBeforePause(t *testing.T) {
	first := func(degree int, ecn uint32, s simnet.SwitchConfig) (mark, pause time.Duration) {
		s.Lossless, s.Headroom, s.Buffer = 0xff, 22_400, 12_000_000
		s.ECN = &cnp.CongestionParams{Kmin: ecn, Kmax: ecn, Pmax: 1_000_000}
		f, err := lab.Topology{
			Network: simnet.Config{Carry: simnet.Shared}, Rate: 40e9, Switch: s,
			// ECN-capable, without a reaction: only the thresholds matter.
			Host: simnet.HostConfig{MaxQPs: 64},
		}.Star(32)
		require.NoError(t, err)
		mark, pause = -1, -1
		f.Observe(func(e *simnet.PacketEvent) {
			switch {
			case e.PFC != nil && pause < 0:
				pause = e.At
			case e.Frame != nil && mark < 0 && e.Direction.Counters().Marked != 0:
				mark = e.At
			}
		})
		for i := range degree {
			c := write(f.Hosts()[i+1], f.Hosts()[0], 2_000_000)
			c.Conn.MTU = 1024
			c.Conn.Attr = func(_ int, a *qp.Attr) { a.AH.TrafficClass |= 2 }
			_, err := f.AddFlow(c)
			require.NoError(t, err)
		}
		require.NoError(t, f.Run(3*time.Millisecond))
		return mark, pause
	}
	for degree := 2; degree < 32; degree++ {
		if testing.Short() && degree%10 != 2 {
			continue
		}
		mark, pause := first(degree, 21_700, simnet.SwitchConfig{Dynamic: &simnet.Dynamic{Alpha: 1}})
		require.GreaterOrEqual(t, mark, time.Duration(0), degree)
		require.True(t, pause < 0 || mark < pause, "degree %d: marked at %v, paused at %v", degree, mark, pause)
	}
	// The static share of the paper's arithmetic, and a marking threshold fit for the
	// dynamic one: pauses come first.
	mark, pause := first(4, 150_000, simnet.SwitchConfig{XOFF: 24_470})
	require.True(t, pause >= 0 && (mark < 0 || pause < mark), "%v %v", mark, pause)
}

// Whatever comes and goes, the pools of a dynamic buffer are never overdrawn and empty
// in the end, a lossless packet finds room as long as its peer obeys, and a port that is
// without others gets more than one of many.
func TestBufferAccounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := simnet.SwitchConfig{
			Lossless: rapid.SampledFrom([]uint8{0, 1 << 3, 0xff}).Draw(t, "lossless"),
			Buffer:   rapid.SampledFrom([]int{8_000_000, 16_000_000}).Draw(t, "buffer"),
			Dynamic: &simnet.Dynamic{
				Alpha:      rapid.SampledFrom([]float64{0, 1. / 64, 0.25, 1, 8, 64}).Draw(t, "alpha"),
				LossyAlpha: rapid.SampledFrom([]float64{0, 1. / 64, 1, 64}).Draw(t, "lossy"),
				Reserved:   rapid.SampledFrom([]int{0, 2000, 10_000}).Draw(t, "reserved"),
			},
			Trim: rapid.Bool().Draw(t, "trim"), TrimDSCP: 46,
		}
		if rapid.Bool().Draw(t, "spray") {
			top.Router = simnet.Spray
		}
		f, err := lab.Topology{
			Network: simnet.Config{Carry: rapid.SampledFrom([]simnet.Carry{simnet.Decoded, simnet.Shared}).Draw(t, "carry"),
				Seed: rapid.Uint64().Draw(t, "seed")},
			Rate: rapid.SampledFrom([]uint64{10e9, 100e9, 400e9}).Draw(t, "rate"), Switch: top,
		}.Clos(2, 2, 4)
		require.NoError(t, err)
		for _, l := range f.Links() {
			require.NoError(t, l.AB().SetFaults(simnet.Faults{Jitter: time.Duration(rapid.IntRange(0, 3000).Draw(t, "jitter"))}))
			break
		}
		for i := range rapid.IntRange(1, 10).Draw(t, "flows") {
			n := len(f.Hosts())
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			c := write(f.Hosts()[from], f.Hosts()[(from+1+i%(n-1))%n], rapid.SampledFrom([]int{100, 10_000, 400_000}).Draw(t, "size"))
			c.Conn.Timeout, c.Conn.DSCP = 8, uint8(rapid.IntRange(0, 63).Draw(t, "dscp"))
			_, err := f.AddFlow(c)
			require.NoError(t, err)
		}
		idle, err := f.RunUntilIdle(10 * time.Second)
		if errors.Is(err, simnet.ErrConfig) {
			t.Skip("refused: the headroom of fast lossless ports leaves nothing to share")
		}
		require.NoError(t, err)
		require.True(t, idle)
		for _, s := range f.Switches() {
			now, most := s.Buffered()
			require.Zero(t, now)
			require.LessOrEqual(t, most, top.Buffer)
			require.NoError(t, s.CheckBuffer())
		}
		for d := range f.Directions() {
			if c := d.Counters(); top.Lossless == 0xff {
				require.Zero(t, c.Dropped)
				require.Zero(t, c.Trimmed)
			}
		}
	})
}

// A dynamic buffer gives the only busy port most of it, where a static one gives it
// its part.
func TestDynamicGivesMoreToOne(t *testing.T) {
	pauses := func(s simnet.SwitchConfig) uint64 {
		s.Lossless, s.Buffer = 1<<3, 12_000_000
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Switch: s}.Star(33)
		require.NoError(t, err)
		for i := range 2 {
			_, err := f.AddFlow(write(f.Hosts()[i+1], f.Hosts()[0], 4_000_000))
			require.NoError(t, err)
		}
		idle, err := f.RunUntilIdle(time.Second)
		require.True(t, idle && err == nil)
		return totals(f.Network).PauseSent
	}
	require.Zero(t, pauses(simnet.SwitchConfig{Dynamic: &simnet.Dynamic{Alpha: 8}}))
	require.NotZero(t, pauses(simnet.SwitchConfig{}))
}

// ECN thresholds are scaled by the rate of the output's link.
func TestECNByRate(t *testing.T) {
	queue := func(rate uint64) int {
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Rate: rate,
			Switch: simnet.SwitchConfig{ECN: &cnp.CongestionParams{Kmin: 50_000, Kmax: 50_000, Pmax: 1}, ECNRate: 25e9}}.Star(5)
		require.NoError(t, err)
		first := 0
		f.Observe(func(e *simnet.PacketEvent) {
			if first == 0 && f.Bottleneck.Counters().Marked != 0 {
				first = f.Bottleneck.Queue()
			}
		})
		for i := range 4 {
			c := write(f.Hosts()[i+1], f.Hosts()[0], 4_000_000)
			c.Conn.Attr = func(_ int, a *qp.Attr) { a.AH.TrafficClass |= 2 }
			_, err := f.AddFlow(c)
			require.NoError(t, err)
		}
		require.NoError(t, f.Run(2*time.Millisecond))
		return first
	}
	require.InDelta(t, 50_000, queue(25e9), 20_000)
	require.InDelta(t, 200_000, queue(100e9), 20_000)
	require.InDelta(t, 20_000, queue(10e9), 20_000)
}

// Spraying uses all paths at once and reorders; flowlets change paths only at pauses; a
// function pins the flows that it chooses; ECMP keeps a flow on one.
func TestRouters(t *testing.T) {
	run := func(r func() simnet.Router, interval time.Duration) (ways int, out uint64) {
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared, Seed: 3},
			Switch: simnet.SwitchConfig{Router: r}}.Clos(2, 4, 2)
		require.NoError(t, err)
		c := write(f.Hosts()[0], f.Hosts()[2], 40_000)
		c.Count, c.Interval = 20, interval
		if interval == 0 {
			c.Depth = 4
		}
		flow, err := f.AddFlow(c)
		require.NoError(t, err)
		used := make(map[string]bool)
		f.Observe(func(e *simnet.PacketEvent) {
			if e.Direction.From().Name() == "leaf0" && e.Direction.To().Name()[0] == 's' {
				used[e.Direction.To().Name()] = true
			}
		})
		require.NoError(t, f.Run(2*time.Millisecond))
		require.True(t, flow.Done())
		_, to := flow.QPs()
		return len(used), to.Counters().OutOfSequence
	}
	ways, out := run(nil, 0)
	require.Equal(t, 1, ways)
	require.Zero(t, out)
	ways, _ = run(simnet.Spray, 0)
	require.Equal(t, 4, ways)
	flowlets := func() simnet.Router { return simnet.Flowlets(10 * time.Microsecond) }
	ways, out = run(flowlets, 0)
	require.Equal(t, 1, ways, "a flow without pauses")
	require.Zero(t, out)
	_, out = run(flowlets, 50*time.Microsecond)
	require.Zero(t, out)
	pinned := func() simnet.Router {
		return simnet.RouterFunc(func(r *simnet.RouteInfo, ways []*simnet.Direction) int {
			src, dst := r.Flow()
			if src.Port() != 0 && dst.Port() == frame.Port && r.To.Name() == "h1.0" {
				return 2
			}
			return 0
		})
	}
	ways, out = run(pinned, 0)
	require.Equal(t, 1, ways)
	require.Zero(t, out)
}

// A duplicate of a trimmed packet has no payload either, in a network that
// carries payloads of their own.
func TestTrimmedCopy(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Decoded},
		Switch: simnet.SwitchConfig{Buffer: 300_000, Trim: true, TrimDSCP: 46}}.Star(9)
	require.NoError(t, err)
	f.Bottleneck.SetFaults(simnet.Faults{Duplicate: 1})
	heard := 0
	f.Hosts()[0].OnTrimmed = func(fr *frame.Frame) {
		require.Zero(t, len(fr.Packet.Payload))
		heard++
	}
	for i := range 8 {
		from := f.Hosts()[i+1]
		q, r, err := f.ConnectQPs(from, f.Hosts()[0], simnet.ConnConfig{})
		require.NoError(t, err)
		require.NoError(t, r.PostRecv(&qp.RecvWR{Local: make([]byte, 200_000)}))
		require.NoError(t, q.PostSend(f.Now(), &qp.SendWR{Local: make([]byte, 200_000)}))
	}
	require.NoError(t, f.Run(time.Millisecond))
	require.Greater(t, heard, 10)
}

// What finds no room is cut to its headers and arrives, marked, so that the receiver
// is notified of the loss at once. With bytes the headers' lengths and checksum are right.
func TestTrimming(t *testing.T) {
	for _, carry := range []simnet.Carry{simnet.Bytes, simnet.Decoded, simnet.Shared} {
		f, err := lab.Topology{Network: simnet.Config{Carry: carry},
			Switch: simnet.SwitchConfig{Buffer: 300_000, Trim: true, TrimDSCP: 46}}.Star(9)
		require.NoError(t, err)
		heard := 0
		f.Hosts()[0].OnTrimmed = func(fr *frame.Frame) {
			require.EqualValues(t, 46, fr.DSCP())
			require.Empty(t, fr.Packet.Payload)
			require.True(t, fr.Packet.Opcode.Write())
			heard++
		}
		cut := 0
		f.Observe(func(e *simnet.PacketEvent) {
			if b := e.Raw; carry == simnet.Bytes && e.Fate == simnet.Sent && e.Direction == f.Bottleneck && len(b) > 15 && b[15]>>2 == 46 {
				cut++
				require.Contains(t, []int{14 + 20 + 8 + 12, 14 + 20 + 8 + 12 + 16}, len(b), "BTH, and RETH in the first packet")
				require.EqualValues(t, len(b)-14, binary.BigEndian.Uint16(b[16:]))
				require.EqualValues(t, len(b)-34, binary.BigEndian.Uint16(b[38:]))
				sum := uint32(0)
				for i := 14; i < 34; i += 2 {
					sum += uint32(binary.BigEndian.Uint16(b[i:]))
				}
				require.EqualValues(t, 0xffff, sum>>16+sum&0xffff)
			}
		})
		for i := range 8 {
			_, err := f.AddFlow(write(f.Hosts()[i+1], f.Hosts()[0], 200_000))
			require.NoError(t, err)
		}
		idle, err := f.RunUntilIdle(10 * time.Second)
		require.True(t, idle && err == nil)
		require.NotZero(t, heard)
		require.EqualValues(t, heard, f.Bottleneck.Counters().Trimmed)
		require.EqualValues(t, heard, f.Hosts()[0].Broken())
		if carry == simnet.Bytes {
			require.Equal(t, heard, cut)
			c := f.Hosts()[0].Port.Counters()
			require.EqualValues(t, heard, c.RxMalformed+c.RxICRCEncapsulated)
		}
	}
}

// Frames of link control, such as PFC, go no further than the other end of a link; a
// host that injects one is obeyed.
func TestInjectedPFC(t *testing.T) {
	f, err := lab.Topology{Switch: simnet.SwitchConfig{Lossless: 1 << 3}}.Star(3)
	require.NoError(t, err)
	h := f.Hosts()
	flow, err := f.AddFlow(write(h[0], h[1], 1_000_000))
	require.NoError(t, err)
	require.NoError(t, f.Run(20*time.Microsecond))
	k := pfc.New([6]byte(h[1].Port.MAC()))
	k.Set(3, 0xffff)
	require.NoError(t, h[1].Inject(k.AppendFrame(nil)))
	lldp := make([]byte, 60)
	copy(lldp, []byte{0x01, 0x80, 0xc2, 0, 0, 0x0e})
	require.NoError(t, h[1].Inject(lldp))
	others := uint64(0)
	f.Observe(func(e *simnet.PacketEvent) {
		if e.Direction.To() == h[2] {
			others++
		}
	})
	require.NoError(t, f.Run(10*time.Microsecond))
	got := flow.Received()
	require.NoError(t, f.Run(300*time.Microsecond))
	require.Equal(t, got, flow.Received(), "it stands still for 65,535 quanta, 335 us")
	idle, err := f.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil && flow.Done())
	require.Zero(t, others)
	require.Greater(t, f.Switches()[0].Outputs()[1].Counters().PausedFor[3], 330*time.Microsecond)
}

// A host that reads at 10 Gb/s on a link of 100 asks for pauses and loses nothing; when
// it may not, it loses.
func TestSlowReceiver(t *testing.T) {
	for _, lossless := range []uint8{1 << 3, 0} {
		top := lab.Topology{Switch: simnet.SwitchConfig{Lossless: 1 << 3}, Network: simnet.Config{Carry: simnet.Decoded}}
		top.Host.Receive = &simnet.ReceiveConfig{Rate: 10e9, Buffer: 200_000, XOFF: 60_000, Lossless: lossless}
		f, err := top.Star(2)
		require.NoError(t, err)
		flow, err := f.AddFlow(write(f.Hosts()[1], f.Hosts()[0], 2_000_000))
		require.NoError(t, err)
		idle, err := f.RunUntilIdle(10 * time.Second)
		require.True(t, idle && err == nil && flow.Done())
		if lossless != 0 {
			require.Zero(t, f.Hosts()[0].Dropped())
			require.NotZero(t, f.Hosts()[0].Out().Counters().PauseSent)
			bits := 2_000_000. / 4096 * 4162 * 8
			require.InEpsilon(t, bits/10, float64(flow.Duration()), 0.02, "at the rate of the receiver")
		} else {
			require.NotZero(t, f.Hosts()[0].Dropped())
		}
	}
}

// A link that goes down ends its pauses, which are counted up to then.
func TestPauseOfLinkThatGoesDown(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}, Switch: simnet.SwitchConfig{Lossless: 1 << 3}}.Star(2)
	require.NoError(t, err)
	l := f.Hosts()[0].Link()
	f.Hosts()[0].PauseStorm(1<<3, time.Millisecond)
	require.NoError(t, f.Run(50*time.Microsecond))
	l.SetUp(false)
	require.NoError(t, f.Run(50*time.Microsecond))
	for d := range f.Directions() {
		if d.To() == f.Hosts()[0] {
			require.InDelta(t, 49*time.Microsecond, d.Counters().PausedFor[3], float64(time.Microsecond))
		}
	}
}

// A card that pauses for ever stops a whole network; a watchdog keeps it to itself.
func TestPauseStormAndWatchdog(t *testing.T) {
	for _, watchdog := range []time.Duration{0, 200 * time.Microsecond} {
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared},
			Switch: simnet.SwitchConfig{Lossless: 1 << 3, Buffer: 2_000_000, Watchdog: watchdog}}.Clos(2, 1, 4)
		require.NoError(t, err)
		h := f.Hosts()
		h[4].PauseStorm(1<<3, 20*time.Millisecond)
		bad := write(h[0], h[4], 10_000_000)
		bad.Conn.Timeout = 20
		_, err = f.AddFlow(bad)
		require.NoError(t, err)
		good, err := f.AddFlow(write(h[1], h[5], 10_000_000))
		require.NoError(t, err)
		require.NoError(t, f.Run(10*time.Millisecond))
		var gave uint64
		for d := range f.Directions() {
			gave += d.Counters().Watchdog
		}
		if watchdog == 0 {
			require.False(t, good.Done(), "the victim stands still with the bad card")
			require.Zero(t, gave)
		} else {
			require.True(t, good.Done())
			require.NotZero(t, gave)
		}
	}
}

// Headroom counts jitter: with it nothing is lost where a fixed headroom without it is
// too little.
func TestHeadroomCountsJitter(t *testing.T) {
	for _, head := range []int{0, 40_000} {
		f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared, Seed: 2},
			Switch: simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 20_000, Headroom: head}}.Star(9)
		require.NoError(t, err)
		for _, l := range f.Links() {
			for _, d := range []*simnet.Direction{l.AB(), l.BA()} {
				require.NoError(t, d.SetFaults(simnet.Faults{Jitter: 10 * time.Microsecond}))
			}
		}
		for i := range 8 {
			_, err := f.AddFlow(write(f.Hosts()[i+1], f.Hosts()[0], 1_000_000))
			require.NoError(t, err)
		}
		idle, err := f.RunUntilIdle(10 * time.Second)
		require.True(t, idle && err == nil)
		if head == 0 {
			require.Zero(t, totals(f.Network).Dropped)
		} else {
			require.NotZero(t, totals(f.Network).Dropped)
		}
	}
}

// When a spine's link fails, flows go by the others after a retransmission; when all
// links of a host fail, its flows end in an error.
func TestLinksFail(t *testing.T) {
	f, err := lab.Topology{Network: simnet.Config{Carry: simnet.Shared}}.Clos(2, 2, 2)
	require.NoError(t, err)
	var flows []*simnet.Flow
	for range 8 {
		c := write(f.Hosts()[0], f.Hosts()[2], 1_000_000)
		c.Conn.Timeout = 8
		flow, err := f.AddFlow(c)
		require.NoError(t, err)
		flows = append(flows, flow)
	}
	down := f.Links()[2] // leaf0 to spine0
	require.Equal(t, "spine0", down.AB().To().Name())
	f.After(20*time.Microsecond, func() { down.SetUp(false) })
	require.NoError(t, f.Run(30*time.Microsecond))
	require.False(t, down.Up())
	at := down.AB().Counters().Packets
	idle, err := f.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	require.NotZero(t, at)
	require.Equal(t, at, down.AB().Counters().Packets, "nothing more goes that way")
	for _, x := range flows {
		require.True(t, x.Done())
	}
	down.SetUp(true)
	f.Hosts()[2].Link().SetUp(false)
	c := write(f.Hosts()[0], f.Hosts()[2], 1000)
	c.Conn.Timeout, c.Conn.RetryForever = 8, false
	flow, err := f.AddFlow(c)
	require.NoError(t, err)
	idle, err = f.RunUntilIdle(time.Minute)
	require.True(t, idle && err == nil)
	require.Equal(t, qp.RetryExcErr, flow.Status())
}

// A host with two links uses both, and goes on with one.
func TestHostWithSeveralLinks(t *testing.T) {
	n := simnet.New(simnet.Config{Carry: simnet.Shared, Seed: 1})
	var s [2]*simnet.Switch
	var h [2]*simnet.Host
	var err error
	for i := range s {
		s[i], err = n.AddSwitch(simnet.SwitchConfig{Lossless: 1 << 3})
		require.NoError(t, err)
	}
	lc := simnet.LinkConfig{Rate: 100e9, Delay: time.Microsecond}
	for i := range h {
		h[i], err = n.AddHost(simnet.HostConfig{})
		require.NoError(t, err)
		for k := range s {
			_, err = n.Connect(h[i], s[k], lc)
			require.NoError(t, err)
		}
	}
	var flows []*simnet.Flow
	for range 16 {
		flow, err := n.AddFlow(write(h[0], h[1], 1_000_000))
		require.NoError(t, err)
		flows = append(flows, flow)
	}
	idle, err := n.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil)
	last := time.Duration(0)
	for _, x := range flows {
		require.True(t, x.Done())
		q, to := x.QPs()
		require.Zero(t, to.Counters().OutOfSequence)
		require.Zero(t, q.Counters().Retransmitted)
		last = max(last, x.Duration())
	}
	require.Less(t, last, 1100*time.Microsecond, "faster than one link, 1.3 ms")
	for _, l := range h[0].Links() {
		require.Greater(t, l.AB().Counters().Packets, uint64(1000))
	}
	h[0].Links()[0].SetUp(false)
	at := h[0].Links()[0].AB().Counters().Packets
	flow, err := n.AddFlow(write(h[0], h[1], 1_000_000))
	require.NoError(t, err)
	idle, err = n.RunUntilIdle(time.Second)
	require.True(t, idle && err == nil && flow.Done())
	require.Equal(t, at, h[0].Links()[0].AB().Counters().Packets)
}

// What is not possible is an error that says why.
func TestMisuse(t *testing.T) {
	n := simnet.New(simnet.Config{})
	a, err := n.AddHost(simnet.HostConfig{Name: "a"})
	require.NoError(t, err)
	b, err := n.AddHost(simnet.HostConfig{Name: "b"})
	require.NoError(t, err)
	require.Nil(t, a.Out())
	require.ErrorIs(t, a.Capture(nil), simnet.ErrConfig)
	_, err = n.AddFlow(write(a, b, 10))
	require.ErrorIs(t, err, simnet.ErrConfig)
	require.ErrorContains(t, err, "host a has no link")
	c, err := n.AddHost(simnet.HostConfig{Name: "c"})
	require.NoError(t, err)
	l, err := n.Connect(a, b, simnet.LinkConfig{Rate: 1e9})
	require.NoError(t, err)
	_, err = n.AddFlow(write(a, c, 10))
	require.ErrorIs(t, err, simnet.ErrConfig)
	require.ErrorContains(t, err, "host c has no link")
	for _, f := range []simnet.Faults{{Loss: 2}, {Loss: -0.1}, {Corrupt: 1.01}, {Jitter: -1}, {ReorderBy: 2 * time.Hour}} {
		require.ErrorIs(t, l.AB().SetFaults(f), simnet.ErrConfig, fmt.Sprint(f))
	}
	_, err = n.AddSwitch(simnet.SwitchConfig{Dynamic: &simnet.Dynamic{Alpha: 100}})
	require.ErrorIs(t, err, simnet.ErrConfig)
	_, err = n.AddHost(simnet.HostConfig{Receive: &simnet.ReceiveConfig{}})
	require.ErrorIs(t, err, simnet.ErrConfig)
}
