package softnic_test

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/softnic"
)

// spy is a controller that allows what the test sets, and records its calls.
type spy struct {
	needs  congestion.Needs
	window int64
	rate   uint64
	action congestion.Action
	flows  []*spyFlow
}

type spyFlow struct {
	*spy
	sent, acked int64 // bytes
	resent      int
	rtts        []int64
	acks        int
	ecn, cnps   int
	hops        []congestion.Hop
	lost        [3]int
	resets      int
	due         int64
	ticks       int
}

func (s *spy) NewPort(uint64) (congestion.Port, error) { return s, nil }
func (s *spy) Needs() congestion.Needs                 { return s.needs }
func (s *spy) Receiver() congestion.Receiver           { return s }
func (s *spy) Received(_ int64, a *congestion.Arrival) congestion.Action {
	return s.action
}

func (s *spy) Flow() congestion.Flow {
	f := &spyFlow{spy: s}
	s.flows = append(s.flows, f)
	return f
}

func (f *spyFlow) Sent(_ int64, s *congestion.Send) {
	f.sent += int64(s.Bytes)
	if s.Again {
		f.resent++
	}
}

func (f *spyFlow) Acked(_ int64, a *congestion.Ack) {
	f.acks++
	f.acked += a.Bytes
	if a.RTT != 0 {
		f.rtts = append(f.rtts, a.RTT)
	}
	if a.ECN {
		f.ecn++
	}
	if a.INT != nil {
		f.hops = append(f.hops, a.INT.Records()...)
	}
}
func (f *spyFlow) CNP(int64)                           { f.cnps++ }
func (f *spyFlow) Lost(_ int64, k congestion.LossKind) { f.lost[k]++ }
func (f *spyFlow) Tick(int64)                          { f.due, f.ticks = 0, f.ticks+1 }
func (f *spyFlow) Reset()                              { f.resets++ }
func (f *spyFlow) Due() int64                          { return f.due }
func (f *spyFlow) Rate() uint64                        { return f.rate }
func (f *spyFlow) Window() int64                       { return f.window }

// cable joins two ports of decoded packets; each takes 5 us.
type cable struct {
	t     testing.TB
	now   time.Time
	ports [2]*softnic.Port
	qps   [2]*softnic.QP
	cqs   [2]*softnic.CQ
	key   uint32
	mem   []byte
	fly   []flying
	cur   flying
	out   frame.Frame
	free  [][]byte
	pass  func(f *frame.Frame, t *congestion.INT) bool // false: lost
	most  int                                          // packets of data in flight at once
	data  int
}

type flying struct {
	at  time.Time
	to  int
	f   frame.Frame
	tel congestion.INT
	b   []byte
}

func newCable(t testing.TB, cfg softnic.Config, more func(i int, c *softnic.QPConfig, a *qp.Attr)) *cable {
	c := &cable{t: t, now: start, mem: make([]byte, 1<<20), pass: func(*frame.Frame, *congestion.INT) bool { return true }}
	regs, err := qp.NewRegions(4)
	require.NoError(t, err)
	c.key, err = regs.Register(qp.Region{Data: c.mem, Access: qp.RemoteRead | qp.RemoteWrite})
	require.NoError(t, err)
	cfg.Regions = regs
	addrs := []string{"192.0.2.1", "192.0.2.2"}
	for i := range 2 {
		c.ports[i] = onePort(t, byte(i+1), cfg, addrs[i])
	}
	for i := range 2 {
		c.qps[i], c.cqs[i] = qpOf(t, c.ports[i], c.now, qp.RC, qp.AHAttr{GID: gidOf(addrs[1-i]), MAC: c.ports[1-i].MAC()}, func(q *softnic.QPConfig, a *qp.Attr) {
			if more != nil {
				more(i, q, a)
			}
		})
	}
	return c
}

// run carries packets until nothing is left to do.
func (c *cable) run() {
	for range 1_000_000 {
		for i, p := range c.ports {
			for f := &c.out; p.NextDecoded(c.now, f); {
				x := flying{at: c.now.Add(5 * time.Microsecond), to: 1 - i, f: *f}
				if n := len(c.free); n != 0 {
					x.b, c.free = c.free[n-1], c.free[:n-1]
				}
				x.b = append(x.b[:0], f.Packet.Payload...)
				x.f.Packet.Payload = x.b
				if t := p.Telemetry(); t != nil {
					x.tel = *t
				}
				if len(x.b) != 0 {
					c.data++
					c.most = max(c.most, c.data)
				}
				c.fly = append(c.fly, x)
			}
		}
		next := time.Time{}
		if len(c.fly) != 0 {
			next = c.fly[0].at
		}
		for _, p := range c.ports {
			if d, ok := p.Deadline(); ok && (next.IsZero() || d.Before(next)) {
				next = d
			}
		}
		if next.IsZero() {
			return
		}
		c.now = next
		for _, p := range c.ports {
			p.Tick(c.now)
		}
		if len(c.fly) != 0 && !c.fly[0].at.After(c.now) { // one, and its acknowledgement
			c.cur = c.fly[0]
			x := &c.cur
			copy(c.fly, c.fly[1:])
			c.fly = c.fly[:len(c.fly)-1]
			c.free = append(c.free, x.b)
			if len(x.b) != 0 {
				c.data--
			}
			if !c.pass(&x.f, &x.tel) {
				continue
			}
			if x.tel.Mode != congestion.INTNone {
				c.ports[x.to].HandleTelemetry(c.now, &x.f, &x.tel)
			} else {
				c.ports[x.to].HandleDecoded(c.now, &x.f)
			}
		}
	}
	c.t.Fatal("no end")
}

func (c *cable) write(n int) {
	must(c.t, c.qps[0].PostSend(c.now, &qp.SendWR{Op: qp.OpWrite, Flags: qp.Signaled, Local: c.mem[:n], RKey: c.key}))
}

func (c *cable) done(n int) {
	c.t.Helper()
	var wc qp.Completion
	for range n {
		require.True(c.t, c.cqs[0].Poll(&wc))
		require.Equal(c.t, qp.Success, wc.Status)
	}
	require.False(c.t, c.cqs[0].Poll(&wc))
}

// Never more than the window is in flight, and whatever the window and however
// rarely acknowledgements are asked for, the QP does not come to a standstill.
func TestWindow(t *testing.T) {
	for _, every := range []int{0, 64} {
		for _, window := range []int64{1, 1000, 2000, 5000, 20_000, 0} {
			s := &spy{needs: congestion.NeedRTT, window: window}
			c := newCable(t, softnic.Config{Control: s, AckEvery: every}, nil)
			asked := 0
			c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
				if f.Packet.AckReq {
					asked++
				}
				return true
			}
			for range 8 {
				c.write(30_000)
			}
			c.run()
			c.done(8)
			frame := int64(1024 + 82 - 20) // Ethernet, IPv4, UDP, BTH, ICRC, FCS
			if window != 0 {
				require.LessOrEqual(t, int64(c.most), (window+frame-1)/frame+1)
			} else {
				require.Equal(t, 240, c.most)
			}
			if window == 0 && every == 64 {
				require.Equal(t, 8, asked, "without a window only the last packet of each message asks for an acknowledgement")
			}
			f := s.flows[0]
			require.Equal(t, f.sent, f.acked)
			require.GreaterOrEqual(t, f.sent, int64(8*30_000))
			for _, rtt := range f.rtts {
				require.EqualValues(t, 10_000, rtt, "window %d", window)
			}
			_, left := c.qps[0].Window()
			require.Zero(t, left)
			require.Zero(t, f.resent)
		}
	}
}

// Each acknowledgement of a packet that was sent once gives a round trip time, one
// that was sent again none; a loss is reported once, with its cause.
func TestLossesAreTold(t *testing.T) {
	s := &spy{needs: congestion.NeedRTT, window: 40_000}
	c := newCable(t, softnic.Config{Control: s}, nil)
	f := s.flows[0]
	c.write(30_000)
	c.run()
	require.Len(t, f.rtts, 30)
	require.Equal(t, 30, f.acks)

	n := 0
	c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
		n += min(len(f.Packet.Payload), 1)
		return n != 5 || len(f.Packet.Payload) == 0
	}
	c.write(30_000) // the fifth is lost: NAK, the rest again
	c.run()
	require.Equal(t, [3]int{congestion.LossNAK: 1}, f.lost)
	require.Equal(t, 26, f.resent)
	require.Len(t, f.rtts, 34)
	require.Equal(t, f.sent-26*1086-(30_000-29*1024+62-1086), f.acked)

	lose := true
	c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
		was := lose
		lose = lose && len(f.Packet.Payload) == 0
		return !was || len(f.Packet.Payload) == 0
	}
	c.write(500) // the only one is lost
	c.run()
	require.Equal(t, [3]int{congestion.LossNAK: 1, congestion.LossTimeout: 1}, f.lost)
	require.Len(t, f.rtts, 34)
	_, left := c.qps[0].Window()
	require.Zero(t, left)
	c.done(3)

	require.NoError(t, c.qps[0].Modify(c.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	require.Equal(t, 1, f.resets)
}

// A lost READ response is reported as LossImplied; a flow whose deadline has passed is
// ticked before the next packet, and not earlier.
func TestImpliedLossIsTold(t *testing.T) {
	s := &spy{needs: congestion.NeedAcks}
	c := newCable(t, softnic.Config{Control: s}, nil)
	n := 0
	c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
		if f.Packet.Opcode.ReadResponse() {
			n++
		}
		return n != 2 || !f.Packet.Opcode.ReadResponse()
	}
	read := func() {
		must(t, c.qps[0].PostSend(c.now, &qp.SendWR{Op: qp.OpRead, Flags: qp.Signaled, Local: make([]byte, 4000), RKey: c.key}))
		c.run()
		c.done(1)
	}
	read()
	require.Equal(t, [3]int{congestion.LossImplied: 1}, s.flows[0].lost)
	require.Equal(t, 1, s.flows[0].resent)

	s.flows[0].due = 1 // of the port's clock
	read()
	require.Equal(t, 1, s.flows[0].ticks)
	s.flows[0].due = 1 << 60
	must(t, c.qps[0].PostSend(c.now, &qp.SendWR{Op: qp.OpRead, Local: make([]byte, 4), RKey: c.key}))
	require.True(t, c.ports[0].NextDecoded(c.now, &c.out))
	require.Equal(t, 1, s.flows[0].ticks)
}

// With selective repeat what is sent again is in flight once, and acknowledgements that
// may have waited for what was lost give no round trip time.
func TestFlightOfSelectiveRepeat(t *testing.T) {
	s := &spy{needs: congestion.NeedRTT, window: 1 << 20}
	c := newCable(t, softnic.Config{Control: s}, func(_ int, q *softnic.QPConfig, _ *qp.Attr) {
		q.Selective = qp.Selective{Packets: 64}
	})
	f, n := s.flows[0], 0
	c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
		n += min(len(f.Packet.Payload), 1)
		return n != 5 || len(f.Packet.Payload) == 0
	}
	c.write(20 * 1024)
	c.run()
	c.done(1)
	require.Equal(t, 1, f.resent)
	require.Equal(t, f.sent-1086, f.acked, "each byte that arrived once, but for what was sent twice")
	for _, rtt := range f.rtts {
		require.EqualValues(t, 10_000, rtt, "5 us each way")
	}
	_, left := c.qps[0].Window()
	require.Zero(t, left)
}

// Without a marking of its own a CNP has DSCP 48, and in a VLAN priority 6.
func TestMarkingOfCNPs(t *testing.T) {
	for _, own := range []*softnic.Marking{nil, {DSCP: 11, Priority: 2}} {
		s := &spy{action: congestion.SendCNP}
		p := onePort(t, 1, softnic.Config{Control: s, CNP: own}, "192.0.2.1")
		ah := toPeer()
		ah.HasVLAN, ah.VLAN = true, 99
		q, _ := qpOf(t, p, start, qp.RC, ah, nil)
		f := request(q)
		f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: 4<<13 | 99}
		f.TrafficClass = 3
		require.Equal(t, softnic.Delivered, p.HandleFrame(start, f.AppendTo(nil)))
		got := decode(t, drain(p, start)[0])
		require.Equal(t, bth.CNP, got.Packet.Opcode)
		if own == nil {
			own = &softnic.Marking{DSCP: 48, Priority: 6}
		}
		require.EqualValues(t, own.DSCP<<2, got.TrafficClass)
		require.EqualValues(t, uint16(own.Priority)<<13|99, got.VLAN[0].TCI)
	}
}

// Data packets collect records, the acknowledgement returns them.
func TestTelemetry(t *testing.T) {
	s := &spy{needs: congestion.NeedINT, action: congestion.EchoINT}
	c := newCable(t, softnic.Config{Control: s}, nil)
	var want []congestion.Hop
	c.pass = func(f *frame.Frame, x *congestion.INT) bool {
		if len(f.Packet.Payload) != 0 {
			require.Equal(t, congestion.INTCollect, x.Mode)
			require.Zero(t, x.N)
			for range 3 {
				h := congestion.Hop(len(want))
				x.Stamp(h)
				want = append(want, h)
			}
		} else {
			require.Equal(t, congestion.INTEcho, x.Mode)
			require.EqualValues(t, 3, x.N)
		}
		return true
	}
	c.write(4000)
	c.run()
	c.done(1)
	require.Len(t, want, 12)
	require.Equal(t, want, s.flows[0].hops)
	require.Nil(t, c.ports[0].Telemetry())
	size := congestion.INT{Mode: congestion.INTCollect}
	require.EqualValues(t, 3*1086+1086-96+16+4*size.Size(), s.flows[0].sent, "with room for the telemetry's head; the first has a RETH")

	// The next acknowledgement does not return the same records.
	ask := request(c.qps[1])
	ask.Src, ask.Dst, ask.Packet.PSN, ask.Packet.AckReq = mustGID(c.ports[0]), mustGID(c.ports[1]), c.qps[1].Attr().RQPSN, true
	require.Equal(t, softnic.Delivered, c.ports[1].HandleDecoded(c.now, ask))
	var f frame.Frame
	require.True(t, c.ports[1].NextDecoded(c.now, &f))
	require.Equal(t, bth.Acknowledge, f.Packet.Opcode.Operation())
	require.Nil(t, c.ports[1].Telemetry())
}

func mustGID(p *softnic.Port) netip.Addr {
	g, _ := p.GID(0)
	return netip.AddrFrom16(g).Unmap()
}

// A full window holds back only requests, and a pacer also READ responses; an
// acknowledgement always leaves.
func TestFullWindowLetsResponsesPass(t *testing.T) {
	for _, paced := range []bool{false, true} {
		s := &spy{needs: congestion.NeedRTT, window: 1000}
		if paced {
			s.window, s.rate = 0, 8e6 // a microsecond for each byte
		}
		c := newCable(t, softnic.Config{Control: s}, nil)
		q, port, f := c.qps[0], c.ports[0], new(frame.Frame)
		next := func() string {
			if !port.NextDecoded(c.now, f) {
				return "nothing"
			}
			return f.Packet.Opcode.String()
		}
		n := 0
		arrives := func(p bth.Packet) {
			in := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: mustGID(c.ports[1]), Dst: mustGID(port), SrcMAC: c.ports[1].MAC(), HopLimit: 1, Packet: p}
			in.Packet.PKey, in.Packet.DestQP, in.Packet.PSN = 0xffff, q.Num(), q.Attr().RQPSN.Add(n)
			n++
			require.Equal(t, softnic.Delivered, port.HandleDecoded(c.now, &in))
		}
		c.write(8000)
		require.Equal(t, "RC_RDMA_WRITE_FIRST", next())
		require.Equal(t, "nothing", next())
		must(t, q.PostRecv(&qp.RecvWR{}))
		arrives(bth.Packet{Header: bth.Header{Opcode: bth.RCSendOnly, AckReq: true}})
		require.Equal(t, "RC_ACKNOWLEDGE", next())
		require.Equal(t, "nothing", next())
		read := bth.Packet{Header: bth.Header{Opcode: bth.RCReadRequest}}
		read.RETH.RKey, read.RETH.DMALen = c.key, 4
		arrives(read)
		if paced {
			require.Equal(t, "nothing", next())
			due, ok := port.Deadline()
			require.True(t, ok)
			require.Equal(t, 1102*time.Microsecond, due.Sub(c.now), "a path MTU, 74 bytes of headers and ICRC, and FCS, at 8 Mb/s")
			c.now = due
			port.Tick(c.now)
		}
		require.Equal(t, "RC_RDMA_READ_RESPONSE_ONLY", next())
		require.Equal(t, "nothing", next())
	}
}

// A mark comes back as BECN of the next acknowledgement where the receiver says so.
func TestEchoOfMarks(t *testing.T) {
	s := &spy{needs: congestion.NeedAcks, action: congestion.EchoECN}
	c := newCable(t, softnic.Config{Control: s}, nil)
	n := 0
	c.pass = func(f *frame.Frame, _ *congestion.INT) bool {
		if len(f.Packet.Payload) != 0 {
			if n++; n%3 == 0 {
				f.TrafficClass |= 3
			}
		}
		return true
	}
	c.write(9 * 1024)
	c.run()
	c.done(1)
	require.Equal(t, 3, s.flows[0].ecn)
	require.Equal(t, 9, s.flows[0].acks)
	require.EqualValues(t, 3, c.ports[1].Counters().NpEcnMarkedRocePackets)
}

// Rule CN-2: a CNP cuts the rate of the QP that it is for only with the QP's P_Key; it does not
// go through the QP, and is counted once.
func TestCNPOfAnotherPartition(t *testing.T) {
	c := newCable(t, softnic.Config{Control: cnp.Controller(cnp.Paper()), LineRate: 10e9}, nil)
	f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, SrcMAC: c.ports[1].MAC(), DstMAC: c.ports[0].MAC(),
		Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1"), HopLimit: 64, SrcPort: 50000, DstPort: 4791}
	before := c.qps[0].Counters()
	for _, key := range []uint16{0x8001, 0x7ffe, 0} {
		h := cnp.New(c.qps[0].Num(), key)
		f.Packet = bth.Packet{Header: h.BTH, Payload: make([]byte, 16)}
		require.Equal(t, softnic.Delivered, c.ports[0].HandleDecoded(c.now, &f))
	}
	_, limited := c.qps[0].Rate()
	require.False(t, limited)
	require.EqualValues(t, 3, c.ports[0].Counters().RpCnpIgnored)
	require.Zero(t, c.ports[0].Counters().RpCnpHandled)
	h := cnp.New(c.qps[0].Num(), 0x7fff) // a limited member of the same partition
	f.Packet = bth.Packet{Header: h.BTH, Payload: make([]byte, 16)}
	c.ports[0].HandleDecoded(c.now, &f)
	rate, limited := c.qps[0].Rate()
	require.True(t, limited)
	require.EqualValues(t, 5e9, rate)
	require.EqualValues(t, 1, c.ports[0].Counters().RpCnpHandled)
	require.Equal(t, before, c.qps[0].Counters())
}

// order posts a message of two packets on a QP of each priority and returns the
// priorities of the first n packets.
func order(t *testing.T, cfg softnic.Config, n int, prios ...uint8) (out []uint8) {
	port := onePort(t, 1, cfg, "192.0.2.1")
	mem := make([]byte, 1<<20)
	for _, prio := range prios {
		q, _ := qpOf(t, port, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: frame.MAC{2}, TrafficClass: prio << 5}, nil)
		must(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: mem[:n*1024]}))
	}
	var f frame.Frame
	for range n {
		require.True(t, port.NextDecoded(start, &f))
		out = append(out, f.TrafficClass>>5)
	}
	return out
}

// A higher priority goes first; weights share the port.
func TestPriorities(t *testing.T) {
	require.Equal(t, []uint8{5, 5, 5, 5}, order(t, softnic.Config{}, 4, 3, 5, 0))
	count := func(w [8]int, prios ...uint8) (n [8]int) {
		for _, p := range order(t, softnic.Config{Weights: w}, 400, prios...) {
			n[p]++
		}
		return n
	}
	n := count([8]int{1, 3}, 0, 1)
	require.InDelta(t, 100, n[0], 8)
	require.InDelta(t, 300, n[1], 8)
	n = count([8]int{1, 3}, 0, 1, 2)
	require.Equal(t, 400, n[2], "without a weight it goes before those with one")
	n = count([8]int{0, 0, 0, 1, 1000}, 3, 3, 3)
	require.Equal(t, 400, n[3])
	_, err := softnic.New(softnic.Config{GIDs: []softnic.GID{addr("192.0.2.1")}, Weights: [8]int{-1}})
	require.ErrorIs(t, err, softnic.ErrConfig)
	_, err = softnic.New(softnic.Config{GIDs: []softnic.GID{addr("192.0.2.1")}, Ack: &softnic.Marking{DSCP: 64}})
	require.ErrorIs(t, err, softnic.ErrConfig)
}

// Acknowledgements have a priority of their own: they overtake the data of another
// QP, pass a pause of the data's priority, and wait for one of theirs, while data
// goes on.
func TestAckPriority(t *testing.T) {
	port := onePort(t, 1, softnic.Config{Ack: &softnic.Marking{DSCP: 48}, CNP: &softnic.Marking{DSCP: 56}}, "192.0.2.1")
	mem := make([]byte, 1<<20)
	var qs [2]*softnic.QP
	for i := range qs {
		qs[i], _ = qpOf(t, port, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: frame.MAC{2}, TrafficClass: 3 << 5}, nil)
	}
	var f frame.Frame
	next := func() string {
		if !port.NextDecoded(start, &f) {
			return "nothing"
		}
		if f.Packet.Opcode == bth.RCAcknowledge {
			require.EqualValues(t, 48, f.DSCP())
			return "ack"
		}
		require.EqualValues(t, 3<<3, f.DSCP())
		return "data"
	}
	psn := 0
	asks := func(q *softnic.QP) {
		in := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1"), HopLimit: 1}
		in.Packet.Header = bth.Header{Opcode: bth.RCSendOnly, PKey: 0xffff, DestQP: q.Num(), AckReq: true}
		in.Packet.PSN = q.Attr().RQPSN.Add(psn)
		must(t, q.PostRecv(&qp.RecvWR{Local: mem[:10]}))
		require.Equal(t, softnic.Delivered, port.HandleDecoded(start, &in))
	}
	must(t, qs[0].PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: mem[:8000]}))
	require.Equal(t, "data", next())
	must(t, qs[1].PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: mem[:8000]}))
	asks(qs[1])
	require.Equal(t, "ack", next())
	require.Equal(t, "data", next())
	psn++
	asks(qs[1])
	port.SetPaused(1 << 3)
	require.Equal(t, "ack", next())
	require.Equal(t, "nothing", next())
	require.True(t, port.Idle())
	port.SetPaused(1 << 6)
	psn++
	asks(qs[1])
	for range 13 {
		require.Equal(t, "data", next())
	}
	require.Equal(t, "data", next())
	require.Equal(t, "nothing", next())
	port.SetPaused(0)
	require.Equal(t, "ack", next())
	require.Equal(t, "nothing", next())
}

// An idle UD QP whose own priority is paused does not sleep through a datagram of
// another.
func TestIdleDatagramQPOfPausedPriority(t *testing.T) {
	port := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, err := port.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: 4, MaxRecvWR: 4}})
	require.NoError(t, err)
	port.SetPaused(1 << 0)
	require.NoError(t, q.Connect(start, &qp.Attr{PKey: 0xffff, QKey: 1, PathMTU: 1024})) // touched with nothing to send
	var f frame.Frame
	require.False(t, port.NextDecoded(start, &f))
	send := func(prio uint8) {
		must(t, q.PostSend(start, &qp.SendWR{Local: []byte{1}, RemoteQPN: uint32(prio) + 100,
			AH: qp.NewAddressHandle(qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: frame.MAC{2}, TrafficClass: prio << 5})}))
	}
	send(1)
	require.False(t, port.Idle())
	require.True(t, port.NextDecoded(start, &f))
	require.EqualValues(t, 101, f.Packet.DestQP)
	send(0)
	send(1)
	require.False(t, port.NextDecoded(start, &f), "datagrams of a QP keep their order")
	port.SetPaused(0)
	require.True(t, port.NextDecoded(start, &f))
	require.True(t, port.NextDecoded(start, &f))
	require.EqualValues(t, 101, f.Packet.DestQP)
}

// With a window, telemetry and losses nothing is allocated once things run.
func TestControlAllocs(t *testing.T) {
	if testenv.Allocates {
		t.Skip("allocations are not counted under -race")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := &spy{needs: congestion.NeedINT | congestion.NeedRTT, action: congestion.EchoINT | congestion.EchoECN, window: 9000, rate: 8e9}
	c := newCable(t, softnic.Config{Control: s, LineRate: 10e9, Ack: &softnic.Marking{DSCP: 48}}, nil)
	n := 0
	c.pass = func(f *frame.Frame, x *congestion.INT) bool {
		n++
		x.Stamp(1)
		f.TrafficClass |= 3
		return n%41 != 0
	}
	for _, f := range s.flows {
		f.rtts, f.hops = slices.Grow(f.rtts, 1e6), slices.Grow(f.hops, 1e6)
	}
	exchange := func() {
		for range 10 {
			c.write(100_000)
			c.run()
			c.done(1)
		}
	}
	exchange()
	require.Zero(t, testenv.Mallocs(exchange))
	require.NotZero(t, s.flows[0].lost[congestion.LossNAK])
}

// The CNPs of a datagram QP go to the QP that sent the datagram, from the address that it
// was sent to. When more are due than the port keeps, the others are counted.
func TestCNPsOfDatagrams(t *testing.T) {
	s := &spy{action: congestion.SendCNP}
	port := onePort(t, 1, softnic.Config{Control: s}, "192.0.2.1", "192.0.2.11")
	q, _ := qpOf(t, port, start, qp.UD, qp.AHAttr{}, nil)
	marked := func(src uint32) {
		in := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.11"),
			SrcMAC: frame.MAC{2, 2}, TrafficClass: uint8(frame.CE), HopLimit: 1}
		in.Packet = bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: 0xffff, DestQP: q.Num()}, DETH: bth.DETH{QKey: 0x1111, SrcQP: src}}
		require.Equal(t, softnic.Delivered, port.HandleDecoded(start, &in))
	}
	const kept = 256
	for i := range uint32(kept + 3) {
		marked(0x100 + i)
	}
	require.EqualValues(t, 3, port.Counters().NpCnpDropped)
	var f frame.Frame
	for i := range uint32(kept) {
		require.True(t, port.NextDecoded(start, &f))
		require.Equal(t, bth.CNP, f.Packet.Opcode)
		require.Equal(t, 0x100+i, f.Packet.DestQP)
		require.Equal(t, "192.0.2.11", f.Src.String())
		require.Equal(t, "192.0.2.2", f.Dst.String())
		require.Equal(t, frame.MAC{2, 2}, f.DstMAC)
		require.Equal(t, frame.SourcePort(frame.FlowLabel(q.Num(), 0x100+i)), f.SrcPort)
	}
	require.False(t, port.NextDecoded(start, &f))
	require.EqualValues(t, kept, port.Counters().NpCnpSent)
	marked(7)
	require.True(t, port.NextDecoded(start, &f), "there is room again")
}

// Telemetry is of the frame that it came with, and of no later one.
func TestTelemetryOfFrames(t *testing.T) {
	s := &spy{needs: congestion.NeedINT, action: congestion.EchoINT}
	c := newCable(t, softnic.Config{Control: s}, nil)
	require.Equal(t, congestion.NeedINT, c.ports[0].Needs())
	require.Zero(t, onePort(t, 1, softnic.Config{}, "192.0.2.1").Needs())
	ask := request(c.qps[1])
	ask.Src, ask.Dst, ask.DstMAC, ask.Packet.AckReq = mustGID(c.ports[0]), mustGID(c.ports[1]), c.ports[1].MAC(), true
	echoed := func() *congestion.INT {
		must(t, c.qps[1].PostRecv(&qp.RecvWR{}))
		_, ok := c.ports[1].NextFrame(c.now, nil)
		require.True(t, ok)
		return c.ports[1].Telemetry()
	}
	for i := range 3 {
		ask.Packet.PSN = c.qps[1].Attr().RQPSN.Add(i)
		must(t, c.qps[1].PostRecv(&qp.RecvWR{}))
		if i == 1 {
			require.Equal(t, softnic.Delivered, c.ports[1].HandleFrame(c.now, ask.AppendTo(nil)))
			require.Nil(t, echoed())
			continue
		}
		x := congestion.INT{Mode: congestion.INTCollect}
		x.Stamp(congestion.Hop(i + 1))
		require.Equal(t, softnic.Delivered, c.ports[1].HandleFrameTelemetry(c.now, ask.AppendTo(nil), &x))
		got := echoed()
		require.NotNil(t, got)
		require.Equal(t, congestion.INTEcho, got.Mode)
		require.Equal(t, []congestion.Hop{congestion.Hop(i + 1)}, got.Records())
	}
}

// hopsFlow depends on the length of its path.
type hopsFlow struct {
	*spyFlow
	hops *int
}

func (f hopsFlow) SetHops(n int) { *f.hops = n }

type hopsPort struct {
	*spy
	hops int
}

func (p *hopsPort) NewPort(uint64) (congestion.Port, error) { return p, nil }
func (p *hopsPort) Flow() congestion.Flow                   { return hopsFlow{p.spy.Flow().(*spyFlow), &p.hops} }

func TestHopsOfPath(t *testing.T) {
	p := &hopsPort{spy: &spy{}}
	q, _ := qpOf(t, onePort(t, 1, softnic.Config{Control: p}, "192.0.2.1"), start, qp.RC, toPeer(), nil)
	require.True(t, q.GoesByPath())
	q.SetHops(3)
	require.Equal(t, 3, p.hops)
	for _, cfg := range []softnic.Config{{}, {Control: &spy{}}} {
		q, _ := qpOf(t, onePort(t, 1, cfg, "192.0.2.1"), start, qp.RC, toPeer(), nil)
		require.False(t, q.GoesByPath())
		q.SetHops(3)
	}
}

// A port of weights shares its bytes, not its packets, whatever their sizes: each priority
// has its part of the bytes on the wire to within a turn.
func TestWeightsShareBytes(t *testing.T) {
	port := onePort(t, 1, softnic.Config{Weights: [8]int{0: 1, 1: 2, 2: 4}}, "192.0.2.1")
	mem := make([]byte, 4<<20)
	for prio, mtu := range []int{256, 1024, 4096} {
		q, _ := qpOf(t, port, start, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: frame.MAC{2}, TrafficClass: uint8(prio) << 5}, func(_ *softnic.QPConfig, a *qp.Attr) { a.PathMTU = mtu })
		must(t, q.PostSend(start, &qp.SendWR{Op: qp.OpWrite, Local: mem[:mtu<<10]}))
	}
	var f frame.Frame
	var bytes [3]float64
	for range 700 {
		require.True(t, port.NextDecoded(start, &f))
		bytes[f.TrafficClass>>5] += float64(f.Size() + 4)
	}
	all := bytes[0] + bytes[1] + bytes[2]
	for prio, share := range []float64{1. / 7, 2. / 7, 4. / 7} {
		require.InDelta(t, share*all, bytes[prio], 4*4300, "priority %d", prio)
	}
}
