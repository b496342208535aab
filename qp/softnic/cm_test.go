package softnic_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// wired is two ports on a wire, driven in virtual time, with their events.
type wired struct {
	t      *testing.T
	now    time.Time
	ports  [2]*softnic.Port
	events [2][]string
	on     func(i int, c *softnic.Call, e *cm.Event)
	drop   func(i int, f *frame.Frame) bool
	frames int
}

const service = cm.ServiceID(0x01061c06)

func newWired(t *testing.T, more func(i int, c *softnic.Config), addrs ...string) *wired {
	if len(addrs) == 0 {
		addrs = []string{"192.0.2.1", "192.0.2.2"}
	}
	w := &wired{t: t, now: start}
	for i := range w.ports {
		cfg := softnic.Config{CM: &cm.Config{}}
		if more != nil {
			more(i, &cfg)
		}
		w.ports[i] = onePort(t, byte(i+1), cfg, addrs[i])
	}
	return w
}

func (w *wired) settle() {
	for busy := true; busy; {
		busy = false
		for i, p := range w.ports {
			var e cm.Event
			for {
				c, ok := p.NextCMEvent(w.now, &e)
				if !ok {
					break
				}
				busy = true
				w.events[i] = append(w.events[i], e.Kind.String())
				if w.on != nil {
					w.on(i, c, &e)
				}
			}
			for {
				b, ok := p.NextFrame(w.now, nil)
				if !ok {
					break
				}
				busy = true
				w.frames++
				if w.drop != nil {
					var f frame.Frame
					if (frame.Finder{}).Decode(frame.Ethernet, b, len(b), &f) == nil && w.drop(i, &f) {
						continue
					}
				}
				w.ports[1-i].HandleFrame(w.now, b)
			}
		}
	}
}

func (w *wired) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		w.settle()
		next := end
		for _, p := range w.ports {
			if t, ok := p.Deadline(); ok && t.Before(next) {
				next = t
			}
		}
		w.now = next
		for _, p := range w.ports {
			p.Tick(w.now)
		}
		if !next.Before(end) {
			w.settle()
			return
		}
	}
}

func rcQP(t testing.TB, p *softnic.Port, typ qp.Type) (*softnic.QP, *softnic.CQ) {
	cq := softnic.NewCQ()
	q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: typ, PD: 1, MaxSendWR: 64, MaxRecvWR: 64, MaxRdAtomic: 4, MaxDestRdAtomic: 4}, SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	return q, cq
}

var full = softnic.ConnAttr{Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic, MaxRdAtomic: 4, MaxDestRdAtomic: 4, RetryCnt: 7, RNRRetry: 7}

// A connection from call to timewait, with data both ways, over IPv4 and IPv6, RC
// and UC, whether the RTU comes or not (rules CM-6, CM-12, CM-13).
func TestCallConnect(t *testing.T) {
	for name, addrs := range map[string][]string{"IPv4": {"192.0.2.1", "192.0.2.2"}, "IPv6": {"2001:db8::1", "2001:db8::2"}} {
		for _, typ := range []qp.Type{qp.RC, qp.UC} {
			for _, lost := range []bool{false, true} {
				t.Run(name+" "+typ.String(), func(t *testing.T) {
					seed := [32]byte{7}
					w := newWired(t, func(i int, c *softnic.Config) {
						if i == 0 {
							c.Seed = &seed
						}
					}, addrs...)
					if lost {
						w.drop = func(_ int, f *frame.Frame) bool {
							return f.Packet.DestQP == 1 && f.Packet.Payload[17] == byte(cm.AttrRTU)
						}
					}
					require.NoError(t, w.ports[1].Listen(service, 0))
					a, acq := rcQP(t, w.ports[0], typ)
					b, bcq := rcQP(t, w.ports[1], typ)
					var at, bt *softnic.Call
					in := make([]byte, 64)
					w.on = func(i int, c *softnic.Call, e *cm.Event) {
						if e.Kind == cm.EventRequest {
							require.Equal(t, "hello", string(e.PrivateData[:5]))
							bt = c
							require.NoError(t, b.Modify(w.now, &qp.Attr{State: qp.Init, PKey: 0xffff, Access: full.Access}, qp.AttrState|qp.AttrPKey|qp.AttrAccess))
							require.NoError(t, b.PostRecv(&qp.RecvWR{Local: in}))
							at := full
							at.PrivateData = []byte("welcome")
							require.NoError(t, w.ports[1].Accept(w.now, c, b, at))
						}
						if i == 0 && e.Kind == cm.EventEstablished {
							require.Equal(t, "welcome", string(e.PrivateData[:7]))
						}
					}
					call := full
					call.PrivateData = []byte("hello")
					var err error
					at, err = w.ports[0].Connect(w.now, a, netip.MustParseAddr(addrs[1]), service, call)
					require.NoError(t, err)
					w.run(time.Second)
					require.Equal(t, []string{"established"}, w.events[0])
					require.Equal(t, qp.RTS, a.State())
					require.Equal(t, qp.RTS, b.State())
					if lost {
						require.Equal(t, []string{"request"}, w.events[1])
					}
					require.NoError(t, a.PostSend(w.now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, Local: []byte("data")}))
					w.run(time.Second)
					require.Equal(t, []string{"request", "established"}, w.events[1])
					wc := poll(t, acq)
					require.Equal(t, qp.Success, wc.Status)
					require.Equal(t, uint32(4), poll(t, bcq).ByteLen)
					require.Equal(t, "data", string(in[:4]))

					require.NoError(t, w.ports[0].Disconnect(w.now, at, nil))
					require.Equal(t, qp.Error, a.State(), "at once")
					w.run(time.Second)
					require.Equal(t, []string{"established", "disconnected", "timewait exit"}, w.events[0])
					require.Equal(t, []string{"request", "established", "disconnected", "timewait exit"}, w.events[1])
					require.Equal(t, qp.Error, a.State())
					require.Equal(t, qp.Error, b.State())
					require.ErrorIs(t, w.ports[1].Disconnect(w.now, bt, nil), cm.ErrCall)
					for _, p := range w.ports {
						all, _ := p.Calls()
						require.Zero(t, all)
					}
				})
			}
		}
	}
}

// A request for which nobody listens is refused, with and without a machine; so are calls
// on a port without connection management.
func TestConnectRefused(t *testing.T) {
	for _, machine := range []bool{true, false} {
		w := newWired(t, func(i int, c *softnic.Config) {
			if i == 1 && !machine {
				c.CM = nil
			}
		})
		q, _ := rcQP(t, w.ports[0], qp.RC)
		var reason cm.Reason
		w.on = func(_ int, _ *softnic.Call, e *cm.Event) { reason = e.Reason }
		_, err := w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
		w.run(time.Second)
		require.Equal(t, []string{"rejected"}, w.events[0])
		require.Equal(t, cm.ReasonInvalidServiceID, reason)
		require.Equal(t, qp.Error, q.State())
		if !machine {
			require.ErrorIs(t, w.ports[1].Listen(service, 0), softnic.ErrConfig)
			_, err := w.ports[1].Connect(w.now, q, netip.MustParseAddr("192.0.2.1"), service, full)
			require.ErrorIs(t, err, softnic.ErrConfig)
		}
	}
}

// A peer without an address, and one that does not respond.
func TestConnectUnreachable(t *testing.T) {
	w := newWired(t, nil)
	q, _ := rcQP(t, w.ports[0], qp.RC)
	_, err := w.ports[0].Connect(w.now, q, netip.MustParseAddr("2001:db8::9"), service, full)
	require.ErrorIs(t, err, softnic.ErrAddress)
	_, err = w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.77"), service, full)
	require.NoError(t, err)
	w.run(2 * time.Minute)
	require.Equal(t, []string{"unreachable"}, w.events[0])
	ud, _ := rcQP(t, w.ports[0], qp.UD)
	_, err = w.ports[0].Connect(w.now, ud, netip.MustParseAddr("192.0.2.2"), service, full)
	require.ErrorIs(t, err, qp.ErrOp)
}

// SIDR: the QP of a datagram service (rule CM-18).
func TestResolveSIDR(t *testing.T) {
	w := newWired(t, nil)
	svc := cm.IPServiceID(cm.ProtocolUDP, 7174)
	require.NoError(t, w.ports[1].Listen(svc, 0))
	var got cm.Attr
	w.on = func(i int, c *softnic.Call, e *cm.Event) {
		if e.Kind == cm.EventSIDRRequest {
			require.NoError(t, w.ports[1].ReplySIDR(w.now, c, &cm.SIDRReply{QPN: 0x77, QKey: 0x1234567}))
		}
		got = e.Attr
	}
	_, err := w.ports[0].ResolveSIDR(w.now, netip.MustParseAddr("192.0.2.2"), svc, softnic.ConnAttr{})
	require.NoError(t, err)
	w.run(time.Second)
	require.Equal(t, []string{"SIDR reply"}, w.events[0])
	require.Equal(t, []uint32{0x77, 0x1234567}, []uint32{got.DestQPN, got.QKey})
}

// Two QPs of one port, and calls to oneself.
func TestLoopback(t *testing.T) {
	p := onePort(t, 1, softnic.Config{CM: &cm.Config{}}, "192.0.2.1")
	now := start
	a, acq := qpOf(t, p, now, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.1")}, func(c *softnic.QPConfig, at *qp.Attr) { at.DestQPN = 0x12; c.PD = 1 })
	_, _ = qpOf(t, p, now, qp.RC, qp.AHAttr{GID: gidOf("192.0.2.1")}, func(c *softnic.QPConfig, at *qp.Attr) { at.DestQPN = 0x11; c.PD = 1 })
	mem := make([]byte, 1<<20)
	key, err := p.Regions().Register(qp.Region{PD: 1, Data: mem, Addr: 0x1000, Access: qp.RemoteWrite | qp.RemoteRead})
	require.NoError(t, err)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	require.NoError(t, a.PostSend(now, &qp.SendWR{Op: qp.OpWrite, Flags: qp.Signaled, Local: data, RemoteAddr: 0x1000, RKey: key}))
	// 1024 packets: the port pauses in between, so that others have their turn.
	pauses := 0
	for !p.Idle() || pauses == 0 {
		require.Empty(t, drain(p, now), "nothing goes out")
		d, ok := p.Deadline()
		if !ok || d.Sub(now) > time.Microsecond {
			break
		}
		pauses++
		now = d
		p.Tick(now)
	}
	require.Positive(t, pauses)
	require.Equal(t, qp.Success, poll(t, acq).Status)
	require.Equal(t, data, mem)
	require.Equal(t, p.Counters().TxFrames, uint64(0))

	require.NoError(t, p.Listen(service, 0))
	x, _ := rcQP(t, p, qp.RC)
	y, _ := rcQP(t, p, qp.RC)
	_, err = p.Connect(now, x, netip.MustParseAddr("192.0.2.1"), service, full)
	require.NoError(t, err)
	var kinds []string
	for range 10 {
		var e cm.Event
		for {
			c, ok := p.NextCMEvent(now, &e)
			if !ok {
				break
			}
			kinds = append(kinds, e.Kind.String())
			if e.Kind == cm.EventRequest {
				require.NoError(t, p.Accept(now, c, y, full))
			}
		}
		require.Empty(t, drain(p, now))
		now = now.Add(time.Microsecond)
		p.Tick(now)
	}
	require.Equal(t, []string{"request", "established", "established"}, kinds)
	require.Equal(t, qp.RTS, x.State())
	require.Equal(t, qp.RTS, y.State())
}

// Multicast reaches the other members on the sender's port, the sender never, and
// the network once; nor does a frame that comes back.
func TestMulticastOnPort(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	now := start
	group := netip.MustParseAddr("239.1.1.1")
	none := func(c *softnic.QPConfig, a *qp.Attr) {}
	a, acq := qpOf(t, p, now, qp.UD, qp.AHAttr{}, none)
	b, bcq := qpOf(t, p, now, qp.UD, qp.AHAttr{}, none)
	for _, q := range []*softnic.QP{a, b} {
		require.NoError(t, q.AttachMulticast(group))
		require.NoError(t, q.PostRecv(&qp.RecvWR{Local: make([]byte, 100)}))
	}
	ah, err := p.CreateAH(qp.AHAttr{GID: group.As16()})
	require.NoError(t, err)
	require.NoError(t, a.PostSend(now, &qp.SendWR{Op: qp.OpSend, Flags: qp.Signaled, Local: []byte("hello"), AH: ah, RemoteQPN: qp.MulticastQPN, RemoteQKey: 0x1111}))
	frames := drain(p, now)
	require.Len(t, frames, 1)
	require.Equal(t, qp.OpSend, poll(t, acq).Op)
	wc := poll(t, bcq)
	require.Equal(t, uint32(qp.GRHSize+5), wc.ByteLen)
	require.Equal(t, a.Num(), wc.SrcQP)
	require.Equal(t, softnic.WrongAddress, p.HandleFrame(now, frames[0]))
	nothing(t, acq)
	nothing(t, bcq)

	// What goes to a group without members here is sent, and counts as nothing received.
	before := p.Counters()
	other, err := p.CreateAH(qp.AHAttr{GID: gidOf("239.1.1.2")})
	require.NoError(t, err)
	require.NoError(t, a.PostSend(now, &qp.SendWR{Op: qp.OpSend, Local: []byte("hello"), AH: other, RemoteQPN: qp.MulticastQPN, RemoteQKey: 0x1111}))
	require.Len(t, drain(p, now), 1)
	before.TxFrames++
	require.Equal(t, before, p.Counters())
}

func nothing(t testing.TB, cq *softnic.CQ) {
	t.Helper()
	var wc qp.Completion
	require.False(t, cq.Poll(&wc), "%+v", wc)
}

// QP numbers and starting PSNs: in order without a seed, not to be guessed with one.
func TestSeed(t *testing.T) {
	numbers := func(seed *[32]byte) (v []uint32) {
		p := onePort(t, 1, softnic.Config{MaxQPs: 500, Seed: seed}, "192.0.2.1")
		for range 500 {
			q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC}})
			require.NoError(t, err)
			require.Same(t, q, p.QP(q.Num()))
			v = append(v, q.Num(), uint32(p.NewPSN()))
		}
		_, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC}})
		require.ErrorIs(t, err, softnic.ErrNoQP)
		return v
	}
	require.Equal(t, []uint32{0x11, 0, 0x12, 0, 0x13, 0}, numbers(nil)[:6])
	seed := [32]byte{5}
	v := numbers(&seed)
	require.Equal(t, v, numbers(&seed))
	for k, name := range []string{"QP number", "PSN"} {
		var ones [24]int
		seen := map[uint32]bool{}
		for i := k; i < len(v); i += 2 {
			require.False(t, seen[v[i]] && k == 0)
			seen[v[i]] = true
			require.Less(t, v[i], uint32(1<<24))
			for b := range ones {
				ones[b] += int(v[i] >> b & 1)
			}
		}
		for b, n := range ones {
			require.InDelta(t, 250, n, 67, "%s, bit %d", name, b) // six standard deviations
		}
	}
}

// Config's zero values, and malformed frames.
func TestDefaults(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.Regions().Register(qp.Region{Data: make([]byte, 8)})
	require.NoError(t, err)
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	require.Equal(t, uint64(1), p.Counters().RxNotRoCE)
}

// Datagrams to QP 1 that are no management datagrams of connections.
func TestGSIChecks(t *testing.T) {
	w := newWired(t, nil)
	mad := make([]byte, cm.Size)
	f := frame.Frame{Link: frame.Ethernet, DstMAC: w.ports[1].MAC(), SrcMAC: w.ports[0].MAC(), Net: frame.IPv4, DF: true, HopLimit: 64,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, DstPort: 4791,
		Packet: bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: 0xffff, DestQP: 1}, DETH: bth.DETH{QKey: softnic.GSIQKey, SrcQP: 1}, Payload: mad}}
	for name, c := range map[string]struct {
		change func(*frame.Frame)
		want   softnic.Result
	}{
		"good":         {func(*frame.Frame) {}, softnic.Delivered},
		"Q_Key":        {func(f *frame.Frame) { f.Packet.DETH.QKey = 1 }, softnic.NoQP},
		"partition":    {func(f *frame.Frame) { f.Packet.PKey = 0x1234 }, softnic.NoQP},
		"RC":           {func(f *frame.Frame) { f.Packet.Opcode = bth.RCSendOnly }, softnic.NoQP},
		"short":        {func(f *frame.Frame) { f.Packet.Payload = mad[:100] }, softnic.Delivered},
		"another port": {func(f *frame.Frame) { f.Dst = netip.MustParseAddr("192.0.2.9") }, softnic.WrongAddress},
	} {
		g := f
		c.change(&g)
		require.Equal(t, c.want, w.ports[1].HandleFrame(w.now, g.AppendTo(nil)), name)
	}
	require.Empty(t, drain(w.ports[1], w.now))
}

// TestCallServices: a request has the service type of its queue pair, and
// what else it was given.
func TestCallServices(t *testing.T) {
	for typ, want := range map[qp.Type][2]uint8{
		qp.RC: {uint8(cm.ServiceRC), 0}, qp.UC: {uint8(cm.ServiceUC), 0},
		qp.XRCSend: {uint8(cm.ServiceExtended), uint8(cm.ExtendedXRC)}, qp.XRCRecv: {uint8(cm.ServiceExtended), uint8(cm.ExtendedXRC)},
	} {
		for bytes, mtu := range map[int]cm.MTU{0: cm.MTU1024, 256: cm.MTU256, 512: cm.MTU512, 2048: cm.MTU2048, 4096: cm.MTU4096} {
			w := newWired(t, nil)
			require.NoError(t, w.ports[1].Listen(service, 0))
			q, err := w.ports[0].CreateQP(softnic.QPConfig{Config: qp.Config{Type: typ, PD: 1, MaxSendWR: 4, MaxRecvWR: 4, MaxRdAtomic: 4, MaxDestRdAtomic: 4}, XRCD: 1})
			require.NoError(t, err)
			var got *cm.Event
			w.on = func(i int, _ *softnic.Call, e *cm.Event) {
				if i == 1 && e.Kind == cm.EventRequest {
					x := *e
					got = &x
				}
			}
			a := full
			a.PathMTU, a.RetryCnt, a.RNRRetry, a.SRQ, a.VendorID, a.Options, a.MaxRdAtomic, a.MaxDestRdAtomic = bytes, 5, 3, true, 0x15b3, 7, 3, 300
			_, err = w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, a)
			require.NoError(t, err)
			w.settle()
			require.NotNil(t, got, typ)
			require.Equal(t, want, [2]uint8{uint8(got.Attr.Transport), uint8(got.Attr.ExtendedTransport)}, typ)
			require.Equal(t, []any{mtu, uint8(5), uint8(3), true, q.Num()},
				[]any{got.Attr.PathMTU, got.Attr.RetryCnt, got.Attr.RNRRetry, got.Attr.SRQ, got.Attr.DestQPN})
			require.Equal(t, []any{uint32(0x15b3), uint32(7)}, []any{got.Attr.VendorID, got.Attr.Options})
		}
	}
}

// TestWorkIsTold: OnWork is called after each call that has the port send
// something, and of datagrams that do.
func TestWorkIsTold(t *testing.T) {
	var told [2]int
	w := newWired(t, func(i int, c *softnic.Config) { c.OnWork = func() { told[i]++ } })
	did := func(i int, what string, f func()) {
		w.settle()
		before := told[i]
		f()
		require.Greater(t, told[i], before, what)
		require.False(t, w.ports[i].Idle(), what)
	}
	require.NoError(t, w.ports[1].Listen(service, 0))
	udp := cm.IPServiceID(cm.ProtocolUDP, 7174)
	require.NoError(t, w.ports[1].Listen(udp, 0))
	var calls [2][]*softnic.Call
	w.on = func(i int, c *softnic.Call, e *cm.Event) {
		if e.Kind == cm.EventRequest || e.Kind == cm.EventSIDRRequest {
			calls[i] = append(calls[i], c)
		}
	}
	peer := netip.MustParseAddr("192.0.2.2")
	connect := func() (c *softnic.Call) {
		q, _ := rcQP(t, w.ports[0], qp.RC)
		did(0, "Connect", func() {
			var err error
			c, err = w.ports[0].Connect(w.now, q, peer, service, full)
			require.NoError(t, err)
		})
		w.settle()
		return c
	}
	connect()
	did(1, "Reject", func() { require.NoError(t, w.ports[1].Reject(calls[1][0], cm.ReasonConsumer, nil, nil)) })
	c := connect()
	b, _ := rcQP(t, w.ports[1], qp.RC)
	did(1, "Accept", func() { require.NoError(t, w.ports[1].Accept(w.now, calls[1][1], b, full)) })
	w.settle()
	did(0, "Disconnect", func() { require.NoError(t, w.ports[0].Disconnect(w.now, c, nil)) })
	w.settle()
	did(0, "ResolveSIDR", func() {
		c, err := w.ports[0].ResolveSIDR(w.now, peer, udp, softnic.ConnAttr{})
		require.NoError(t, err)
		require.Equal(t, []any{true, peer}, []any{c.Active, c.Remote})
	})
	w.settle()
	require.Len(t, calls[1], 3)
	did(1, "ReplySIDR", func() {
		require.NoError(t, w.ports[1].ReplySIDR(w.now, calls[1][2], &cm.SIDRReply{QPN: 9, QKey: 1}))
	})
	// A SIDR_REQ for which nobody listens gets its SIDR_REP at once.
	_, err := w.ports[0].ResolveSIDR(w.now, peer, cm.IPServiceID(cm.ProtocolUDP, 99), softnic.ConnAttr{})
	require.NoError(t, err)
	w.settle()
	req, ok := w.ports[0].NextFrame(w.now, nil)
	require.False(t, ok, "%x", req)
	require.Equal(t, "SIDR reply", w.events[0][len(w.events[0])-1])
}

// TestQueuePairUsedAgain: a queue pair that has another connection before the number of
// the last one is free keeps this when the last event of that one comes.
func TestQueuePairUsedAgain(t *testing.T) {
	w := newWired(t, nil)
	require.NoError(t, w.ports[1].Listen(service, 0))
	b, _ := rcQP(t, w.ports[1], qp.RC)
	w.on = func(i int, c *softnic.Call, e *cm.Event) {
		if i == 1 && e.Kind == cm.EventRequest {
			require.NoError(t, w.ports[1].Accept(w.now, c, b, full))
		}
	}
	connect := func() (*softnic.QP, *softnic.Call) {
		q, _ := rcQP(t, w.ports[0], qp.RC)
		c, err := w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
		w.settle()
		return q, c
	}
	_, first := connect()
	require.NoError(t, w.ports[0].Disconnect(w.now, first, nil))
	w.settle()
	require.NoError(t, b.Modify(w.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	w.drop = func(_ int, f *frame.Frame) bool {
		return f.Packet.DestQP == 1 && f.Packet.Payload[17] == byte(cm.AttrRTU)
	}
	q, _ := connect()
	w.run(700 * time.Millisecond)
	require.Equal(t, []string{"request", "established", "disconnected", "request", "timewait exit"}, w.events[1])
	require.NoError(t, q.PostSend(w.now, &qp.SendWR{Op: qp.OpWrite}))
	w.settle()
	require.Equal(t, "established", w.events[1][len(w.events[1])-1], "its first packet says so, the RTU being lost")
}

// A call that has ended does not change its QP, which may have another by then.
func TestDisconnectWhenOver(t *testing.T) {
	w := newWired(t, nil)
	require.NoError(t, w.ports[1].Listen(service, 0))
	w.on = func(i int, c *softnic.Call, e *cm.Event) {
		if i == 1 && e.Kind == cm.EventRequest {
			q, _ := rcQP(t, w.ports[1], qp.RC)
			require.NoError(t, w.ports[1].Accept(w.now, c, q, full))
		}
	}
	q, _ := rcQP(t, w.ports[0], qp.RC)
	to := netip.MustParseAddr("192.0.2.2")
	first, err := w.ports[0].Connect(w.now, q, to, service, full)
	require.NoError(t, err)
	w.settle()
	require.NoError(t, w.ports[0].Disconnect(w.now, first, nil))
	w.run(time.Hour)
	require.Contains(t, w.events[0], "timewait exit")
	require.NoError(t, q.Modify(w.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
	_, err = w.ports[0].Connect(w.now, q, to, service, full)
	require.NoError(t, err)
	w.settle()
	require.Equal(t, qp.RTS, q.State())
	require.ErrorIs(t, w.ports[0].Disconnect(w.now, first, nil), cm.ErrCall)
	w.settle()
	require.Equal(t, qp.RTS, q.State())
}

// Datagrams that wait for the addresses of two peers are each sent once, when the address
// of theirs is known.
func TestCallsWaitForAddresses(t *testing.T) {
	p := onePort(t, 1, softnic.Config{CM: &cm.Config{}}, "192.0.2.1")
	to := []string{"192.0.2.2", "192.0.2.3", "192.0.2.4"}
	for _, a := range to {
		q, _ := rcQP(t, p, qp.RC)
		_, err := p.Connect(start, q, netip.MustParseAddr(a), service, full)
		require.NoError(t, err)
	}
	require.Len(t, drain(p, start), len(to), "questions")
	for _, i := range []int{1, 0, 2} {
		mac := frame.MAC{2, 0, 0, 0, 0, byte(i)}
		p.HandleFrame(start, arpOf(2, mac, to[i], "192.0.2.1"))
		frames := drain(p, start)
		require.Len(t, frames, 1)
		f := decode(t, frames[0])
		require.Equal(t, mac, f.DstMAC)
		require.Equal(t, to[i], f.Dst.String())
		require.Equal(t, byte(cm.AttrREQ), f.Packet.Payload[17])
	}
}

// A request that could not be accepted is still open; one that was accepted for a QP that
// cannot do what was agreed on is not.
func TestAcceptAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  func(*softnic.ConnAttr)
		open bool
	}{
		{"private data too long", func(a *softnic.ConnAttr) { a.PrivateData = make([]byte, 300) }, true},
		{"more READs than the QP can do", func(a *softnic.ConnAttr) { a.MaxRdAtomic = 5 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWired(t, nil)
			require.NoError(t, w.ports[1].Listen(service, 0))
			b, _ := rcQP(t, w.ports[1], qp.RC)
			w.on = func(i int, call *softnic.Call, e *cm.Event) {
				if i != 1 || e.Kind != cm.EventRequest {
					return
				}
				bad := full
				c.bad(&bad)
				require.Error(t, w.ports[1].Accept(w.now, call, b, bad))
				err := w.ports[1].Accept(w.now, call, b, full)
				if c.open {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
			}
			cq := softnic.NewCQ()
			q, err := w.ports[0].CreateQP(softnic.QPConfig{Config: qp.Config{PD: 1, MaxSendWR: 64, MaxRecvWR: 64, MaxRdAtomic: 16, MaxDestRdAtomic: 16}, SendCQ: cq, RecvCQ: cq})
			require.NoError(t, err)
			more := full
			more.MaxRdAtomic, more.MaxDestRdAtomic = 16, 16
			_, err = w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, more)
			require.NoError(t, err)
			w.settle()
			if c.open {
				require.Equal(t, []string{"established"}, w.events[0])
				require.Equal(t, qp.RTS, b.State())
			} else {
				require.Equal(t, []string{"rejected"}, w.events[0])
			}
		})
	}
}

// TestManagementInVLAN: a call in a VLAN sends its datagrams there with the priority of
// the tag, the responses come back in it, and calls without one have no tag.
func TestManagementInVLAN(t *testing.T) {
	for _, tagged := range []bool{true, false} {
		w := newWired(t, nil)
		require.NoError(t, w.ports[1].Listen(service, 0))
		var seen []uint16
		w.drop = func(_ int, f *frame.Frame) bool {
			if f.Packet.DestQP == 1 {
				tci := uint16(0)
				if f.VLANs != 0 {
					tci = f.VLAN[0].TCI
				}
				seen = append(seen, tci)
			}
			return false
		}
		q, _ := rcQP(t, w.ports[0], qp.RC)
		a := full
		want := uint16(0)
		if tagged {
			want = 3<<13 | 77
			a.HasVLAN, a.VLAN = true, want
		}
		b, _ := rcQP(t, w.ports[1], qp.RC)
		w.on = func(i int, c *softnic.Call, e *cm.Event) {
			if e.Kind == cm.EventRequest {
				require.NoError(t, w.ports[1].Accept(w.now, c, b, full))
			}
		}
		_, err := w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, a)
		require.NoError(t, err)
		w.settle()
		require.Equal(t, qp.RTS, b.State())
		require.GreaterOrEqual(t, len(seen), 3)
		for _, tci := range seen {
			require.Equal(t, want, tci)
		}
	}
}

// TestSeedOfCalls: the communication IDs come from the port's seed too, in a stream of its
// own, unless CM has one.
func TestSeedOfCalls(t *testing.T) {
	id := func(port, machine *[32]byte) uint32 {
		p := onePort(t, 1, softnic.Config{Seed: port, PeerMAC: frame.MAC{2, 9}, CM: &cm.Config{Seed: machine}}, "192.0.2.1")
		q, _ := rcQP(t, p, qp.RC)
		c, err := p.Connect(start, q, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
		return c.ID
	}
	one, two := &[32]byte{1}, &[32]byte{2}
	require.NotEqual(t, id(nil, nil), id(one, nil))
	require.NotEqual(t, id(one, nil), id(two, nil))
	require.Equal(t, id(one, nil), id(one, nil))
	require.Equal(t, id(one, two), id(nil, two))
	require.NotEqual(t, id(nil, one), id(one, nil), "another stream")
}

// TestPortGUID: a port's CM says that it is the EUI-64 of its Ethernet address, unless it
// was given a GUID. The address is that of the example in RFC 2464, section 4.
func TestPortGUID(t *testing.T) {
	for _, given := range []uint64{0, 0x1122334455667788} {
		p, err := softnic.New(softnic.Config{MAC: frame.MAC{0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde}, GIDs: []softnic.GID{addr("192.0.2.1")},
			PeerMAC: frame.MAC{2, 9}, CM: &cm.Config{CAGUID: given}})
		require.NoError(t, err)
		q, _ := rcQP(t, p, qp.RC)
		_, err = p.Connect(start, q, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
		var m cm.Message
		require.NoError(t, m.Decode(decode(t, drain(p, start)[0]).Packet.Payload))
		want := given
		if want == 0 {
			want = 0x365678fffe9abcde
		}
		require.Equal(t, want, m.REQ.LocalCAGUID)
	}
}

// TestAddressOfCalls: a call comes from the first address of the peer's family, for link-local
// and other peers of that scope where there is one.
func TestAddressOfCalls(t *testing.T) {
	const v4, global, local = "192.0.2.1", "2001:db8::1", "fe80::1"
	for _, test := range []struct {
		gids []string
		to   string
		from string // "": none
	}{
		{[]string{v4, global, local}, "192.0.2.9", v4},
		{[]string{global, local, v4}, "192.0.2.9", v4},
		{[]string{v4, global, local}, "2001:db8::9", global},
		{[]string{v4, local, global}, "2001:db8::9", global},
		{[]string{global, local}, "fe80::9", local},
		{[]string{local, global}, "fe80::9", local},
		{[]string{v4, local}, "2001:db8::9", local},
		{[]string{v4, global}, "fe80::9", global},
		{[]string{"v1 " + v4, global}, "2001:db8::9", global},
		{[]string{local, "v1 " + global}, "2001:db8::9", global},
		{[]string{global, local}, "192.0.2.9", ""},
		{[]string{v4}, "2001:db8::9", ""},
	} {
		cfg := softnic.Config{MAC: frame.MAC{2, 1}, PeerMAC: frame.MAC{2, 9}, CM: &cm.Config{}}
		for _, g := range test.gids {
			a, v1 := strings.CutPrefix(g, "v1 ")
			cfg.GIDs = append(cfg.GIDs, addr(a))
			if v1 {
				cfg.GIDs[len(cfg.GIDs)-1].Type = softnic.RoCEv1
			}
		}
		p, err := softnic.New(cfg)
		require.NoError(t, err)
		q, _ := rcQP(t, p, qp.RC)
		_, err = p.Connect(start, q, netip.MustParseAddr(test.to), service, full)
		if test.from == "" {
			require.ErrorIs(t, err, softnic.ErrAddress, "%v", test)
			continue
		}
		require.NoError(t, err)
		frames := drain(p, start)
		require.Equal(t, test.from, decode(t, frames[0]).Src.Unmap().String(), "%v", test)
	}
}

// TestCallToEachAddress: a connection is between the two addresses that were called and
// called from, whichever of its port's they are.
func TestCallToEachAddress(t *testing.T) {
	for _, to := range []string{"192.0.2.2", "192.0.2.3", "2001:db8::2", "fe80::2"} {
		w := newWired(t, func(i int, c *softnic.Config) {
			if i == 1 {
				c.GIDs = []softnic.GID{addr("2001:db8::2"), addr("192.0.2.3"), addr("fe80::2")}
			} else {
				c.GIDs = []softnic.GID{addr("fe80::1"), addr("2001:db8::1")}
			}
		})
		require.NoError(t, w.ports[1].Listen(service, 0))
		a, acq := rcQP(t, w.ports[0], qp.RC)
		b, _ := rcQP(t, w.ports[1], qp.RC)
		w.on = func(_ int, c *softnic.Call, e *cm.Event) {
			if e.Kind == cm.EventRequest {
				require.NoError(t, w.ports[1].Accept(w.now, c, b, full))
			}
		}
		_, err := w.ports[0].Connect(w.now, a, netip.MustParseAddr(to), service, full)
		require.NoError(t, err)
		w.run(time.Second)
		require.NoError(t, a.PostSend(w.now, &qp.SendWR{Op: qp.OpWrite, Flags: qp.Signaled}))
		w.run(time.Second)
		require.Equal(t, qp.Success, poll(t, acq).Status, to)
	}
}

// TestCallsThatCannotBe: a call that fails at once leaves no call behind, and says why.
func TestCallsThatCannotBe(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.2")
	for name, test := range map[string]struct {
		to     netip.Addr
		change func(a *softnic.ConnAttr)
		state  qp.State
		want   error
	}{
		"to all hosts":                 {to: netip.MustParseAddr("0.0.0.0"), want: softnic.ErrAddress},
		"to a group":                   {to: netip.MustParseAddr("239.1.1.1"), want: softnic.ErrAddress},
		"to nowhere":                   {want: softnic.ErrAddress},
		"of a partition not its own":   {to: peer, change: func(a *softnic.ConnAttr) { a.PKey = 0x1234 }, want: softnic.ErrPKey},
		"of a QP that is in Error":     {to: peer, state: qp.Error, want: new(qp.TransitionError)},
		"with a path MTU of 1000":      {to: peer, change: func(a *softnic.ConnAttr) { a.PathMTU = 1000 }, want: cm.ErrRange},
		"with too much to say at once": {to: peer, change: func(a *softnic.ConnAttr) { a.PrivateData = make([]byte, 93) }, want: cm.ErrTooLong},
	} {
		w := newWired(t, nil)
		q, _ := rcQP(t, w.ports[0], qp.RC)
		if test.state != qp.Reset {
			require.NoError(t, q.Modify(start, &qp.Attr{State: test.state}, qp.AttrState))
		}
		a := full
		if test.change != nil {
			test.change(&a)
		}
		_, err := w.ports[0].Connect(start, q, test.to, service, a)
		if _, ok := test.want.(*qp.TransitionError); ok {
			require.ErrorAs(t, err, new(*qp.TransitionError), name)
		} else {
			require.ErrorIs(t, err, test.want, name)
		}
		all, _ := w.ports[0].Calls()
		require.Zero(t, all, name)
		require.Empty(t, drain(w.ports[0], start), name)
		if test.want == softnic.ErrAddress {
			_, err = w.ports[0].ResolveSIDR(start, test.to, service, a)
			require.ErrorIs(t, err, test.want, name)
		}
	}
	p := onePort(t, 1, softnic.Config{CM: &cm.Config{MaxCalls: 1}}, "192.0.2.1")
	for i := range 2 {
		q, _ := rcQP(t, p, qp.RC)
		_, err := p.Connect(start, q, peer, service, full)
		_, err2 := p.ResolveSIDR(start, peer, service, full)
		require.ErrorIs(t, err2, cm.ErrFull)
		if i == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, cm.ErrFull)
		}
	}
	none := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := none.ResolveSIDR(start, peer, service, full)
	require.ErrorIs(t, err, softnic.ErrConfig)
}

// TestUnlisten: a service that is no longer listened for refuses calls, which both ends
// count.
func TestUnlisten(t *testing.T) {
	w := newWired(t, nil)
	require.NoError(t, w.ports[1].Listen(service, 0))
	w.ports[1].Unlisten(service)
	q, _ := rcQP(t, w.ports[0], qp.RC)
	_, err := w.ports[0].Connect(w.now, q, netip.MustParseAddr("192.0.2.2"), service, full)
	require.NoError(t, err)
	w.run(time.Second)
	require.Equal(t, []string{"rejected"}, w.events[0])
	require.EqualValues(t, 1, w.ports[0].CMCounters().Tx)
	require.EqualValues(t, 1, w.ports[1].CMCounters().Rx)
}

// TestRightsWithoutResources: rule CM-13: who keeps no resources for READs and ATOMICs
// grants no right to them; with resources all rights are as asked for.
func TestRightsWithoutResources(t *testing.T) {
	const all = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic
	for _, keeps := range []int{0, 1} {
		w := newWired(t, nil)
		require.NoError(t, w.ports[1].Listen(service, 0))
		a, _ := rcQP(t, w.ports[0], qp.RC)
		b, _ := rcQP(t, w.ports[1], qp.RC)
		attr := softnic.ConnAttr{Access: all, MaxRdAtomic: 4, MaxDestRdAtomic: keeps}
		w.on = func(_ int, c *softnic.Call, e *cm.Event) {
			if e.Kind == cm.EventRequest {
				require.NoError(t, w.ports[1].Accept(w.now, c, b, attr))
			}
		}
		_, err := w.ports[0].Connect(w.now, a, netip.MustParseAddr("192.0.2.2"), service, attr)
		require.NoError(t, err)
		w.run(time.Second)
		for _, q := range []*softnic.QP{a, b} {
			require.Equal(t, qp.RTS, q.State())
			want := all
			if keeps == 0 {
				want = qp.RemoteWrite
			}
			require.Equal(t, want, q.Attr().Access)
			require.Equal(t, keeps, q.Attr().MaxDestRdAtomic)
			require.Equal(t, keeps, q.Attr().MaxRdAtomic)
		}
	}
}

// TestCallWhoseQueuePairIsTaken: a reply for a queue pair that its owner took elsewhere
// meanwhile is rejected; a caller with queue pairs of its own has an event of the reply.
func TestCallWhoseQueuePairIsTaken(t *testing.T) {
	for _, own := range []bool{false, true} {
		w := newWired(t, nil)
		require.NoError(t, w.ports[1].Listen(service, 0))
		a, _ := rcQP(t, w.ports[0], qp.RC)
		b, _ := rcQP(t, w.ports[1], qp.RC)
		w.on = func(i int, c *softnic.Call, e *cm.Event) {
			if e.Kind == cm.EventRequest {
				require.NoError(t, w.ports[1].Accept(w.now, c, b, full))
			}
		}
		call, err := w.ports[0].Connect(w.now, a, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
		if own {
			call.QP = nil
		} else {
			require.NoError(t, a.Modify(w.now, &qp.Attr{State: qp.Error}, qp.AttrState))
		}
		w.settle()
		if own {
			require.Equal(t, []string{"reply"}, w.events[0])
			require.Equal(t, qp.Init, a.State())
			continue
		}
		require.Equal(t, []string{"rejected"}, w.events[0])
		require.Equal(t, "rejected", w.events[1][len(w.events[1])-1])
		require.Equal(t, qp.Error, b.State())
	}
}

// TestManyCallsWaitForAddresses: of management datagrams that wait for the hardware address
// of their peers at most 32 do; the others are counted, and sent again by their timers.
func TestManyCallsWaitForAddresses(t *testing.T) {
	p := onePort(t, 1, softnic.Config{CM: &cm.Config{}}, "192.0.2.1")
	for range 40 {
		q, _ := rcQP(t, p, qp.RC)
		_, err := p.Connect(start, q, netip.MustParseAddr("192.0.2.2"), service, full)
		require.NoError(t, err)
	}
	require.Len(t, drain(p, start), 1, "one ARP request")
	require.EqualValues(t, 40-32, p.Counters().TxUnresolved)
	require.True(t, p.Idle())
	p.AddNeighbor(netip.MustParseAddr("192.0.2.2"), frame.MAC{2, 2})
	p.SetPaused(1)
	require.Empty(t, drain(p, start), "management datagrams have priority 0")
	p.SetPaused(0xfe)
	require.Len(t, drain(p, start), 32)
}
