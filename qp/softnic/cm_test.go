package softnic_test

import (
	"net/netip"
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

// A request that nobody wants is refused, with and without a machine; so are calls
// to a port that cannot make any.
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

// A peer without an address, and one that does not answer.
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

// Config's zero values, and frames that are none.
func TestDefaults(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.Regions().Register(qp.Region{Data: make([]byte, 8)})
	require.NoError(t, err)
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	require.Equal(t, uint64(1), p.Counters().RxNotRoCE)
}

// Datagrams to QP 1 that are none of its own.
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
