package cm_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/cm"
)

var (
	addrA = netip.MustParseAddr("192.0.2.2")
	addrB = netip.MustParseAddr("192.0.2.1")
	svc   = cm.IPServiceID(cm.ProtocolTCP, 7174)
	start = time.Unix(1_800_000_000, 0)
)

// tb is what a testing.T and a rapid.T have.
type tb interface {
	require.TestingT
	Fatalf(format string, args ...any)
}

// side is a machine with its owner, who responds as the script says, and keeps the
// events.
type side struct {
	t      tb
	name   string
	m      *cm.Machine
	addr   netip.Addr
	now    func() time.Time
	events []string
	all    []cm.Event
	last   map[uint32]int // last events of a call
	ids    []uint32       // calls in the order of their first events
	// on responds to an event; nil does nothing.
	on func(s *side, e *cm.Event)
}

func newSide(t tb, name string, addr netip.Addr, cfg cm.Config) *side {
	m, err := cm.NewMachine(cfg)
	require.NoError(t, err)
	return &side{t: t, name: name, m: m, addr: addr, last: map[uint32]int{}}
}

func (s *side) poll() {
	var e cm.Event
	for s.m.NextEvent(&e) {
		s.events = append(s.events, e.Kind.String())
		e.PrivateData = append([]byte(nil), e.PrivateData...)
		e.Info = append([]byte(nil), e.Info...)
		s.all = append(s.all, e)
		if len(s.ids) == 0 || s.ids[len(s.ids)-1] != e.ID {
			s.ids = append(s.ids, e.ID)
		}
		if s.last[e.ID] != 0 {
			s.t.Fatalf("%s: call %#x: %v after its last event (rule CM-20)", s.name, e.ID, e.Kind)
		}
		if e.Last {
			s.last[e.ID]++
		}
		if s.on != nil {
			s.on(s, &e)
		}
	}
}

// obliging does what a server and a client do: accepts, gets ready, ends.
func obliging(s *side, e *cm.Event) {
	switch e.Kind {
	case cm.EventRequest:
		_, err := s.m.Accept(s.now(), e.ID, &cm.Reply{QPN: 0x21, StartingPSN: 2000, ResponderResources: 4, InitiatorDepth: 4, RNRRetry: 7, PrivateData: []byte("from b")})
		require.NoError(s.t, err)
	case cm.EventReply:
		require.NoError(s.t, s.m.Ready(e.ID, []byte("rtu")))
	case cm.EventDisconnected:
		require.NoError(s.t, s.m.Disconnect(s.now(), e.ID, nil))
	case cm.EventSIDRRequest:
		require.NoError(s.t, s.m.ReplySIDR(e.ID, &cm.SIDRReply{QPN: 0x31, QKey: 0x1234567}))
	}
}

func request() *cm.Request {
	h, _ := cm.NewCMAHeader(netip.AddrPortFrom(addrA, 40000), addrB)
	return &cm.Request{Addr: cm.Address{Local: addrA, Remote: addrB}, Service: svc, CMA: &h, PrivateData: []byte("from a"),
		QPN: 0x11, StartingPSN: 1000, PKey: 0xffff, PathMTU: cm.MTU1024, ResponderResources: 4, InitiatorDepth: 4,
		RetryCnt: 7, RNRRetry: 7}
}

// world is two sides and the datagrams in flight between them, in virtual time.
type world struct {
	t     tb
	now   time.Time
	a, b  *side
	delay time.Duration
	air   []flight
	log   []string
	sent  map[string]int
	// lostREJ: a REJ did not arrive.
	lostREJ bool
	// fate says how many copies of the n-th message of a kind arrive, and how much
	// later than others; nil: one, at once.
	fate func(from *side, id cm.AttributeID, n int) (copies int, late time.Duration)
}

type flight struct {
	at  time.Time
	to  *side
	src cm.Address
	mad []byte
}

func newWorld(t tb) *world {
	w := &world{t: t, now: start, delay: time.Millisecond, sent: map[string]int{}}
	w.a = newSide(t, "a", addrA, cm.Config{CAGUID: 0xa})
	w.b = newSide(t, "b", addrB, cm.Config{CAGUID: 0xb})
	w.a.now = func() time.Time { return w.now }
	w.b.now = w.a.now
	w.a.m.Tick(start)
	w.b.m.Tick(start)
	w.a.on, w.b.on = obliging, obliging
	require.NoError(t, w.b.m.Listen(svc, 0))
	return w
}

func attribute(mad []byte) cm.AttributeID { return cm.AttributeID(mad[17]) }

// settle polls events and sends what is to be sent.
func (w *world) settle() {
	for _, s := range []*side{w.a, w.b} {
		s.poll()
		for {
			mad, to, ok := s.m.NextMAD(nil)
			if !ok {
				break
			}
			peer := w.a
			if s == w.a {
				peer = w.b
			}
			require.Equal(w.t, peer.addr, to.Remote)
			require.Len(w.t, mad, cm.Size)
			k := s.name + " " + attribute(mad).String()
			w.sent[k]++
			w.log = append(w.log, fmt.Sprintf("%d %s", w.now.Sub(start).Milliseconds(), k))
			copies, late := 1, time.Duration(0)
			if w.fate != nil {
				copies, late = w.fate(s, attribute(mad), w.sent[k])
			}
			w.lostREJ = w.lostREJ || copies == 0 && attribute(mad) == cm.AttrREJ
			for i := range copies {
				w.air = append(w.air, flight{w.now.Add(w.delay + late + time.Duration(i)*time.Millisecond), peer,
					cm.Address{Local: peer.addr, Remote: s.addr}, mad})
			}
		}
		s.poll()
	}
}

// step goes to the next thing that happens, no later than end.
func (w *world) step(end time.Time) bool {
	w.settle()
	next, which := end, -1
	for i, f := range w.air {
		if f.at.Before(next) {
			next, which = f.at, i
		}
	}
	for _, s := range []*side{w.a, w.b} {
		if d, ok := s.m.Deadline(); ok && d.Before(next) {
			next, which = d, -2
		}
	}
	if which == -1 {
		w.now = end
		return false
	}
	if next.After(w.now) {
		w.now = next
	}
	if which == -2 {
		for _, s := range []*side{w.a, w.b} {
			s.m.Tick(w.now)
			if d, ok := s.m.Deadline(); ok && !d.After(w.now) {
				w.t.Fatalf("%s: deadline %v not after now", s.name, d.Sub(w.now))
			}
		}
		return true
	}
	f := w.air[which]
	w.air = append(w.air[:which], w.air[which+1:]...)
	f.to.m.HandleMAD(w.now, f.src, f.mad)
	return true
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for w.step(end) {
	}
}

// over ends all calls and checks that nothing is left (rules CM-15, CM-20).
func (w *world) over() {
	w.fate = nil
	for range 2 {
		w.run(time.Hour)
		for _, s := range []*side{w.a, w.b} {
			for _, id := range s.ids {
				_ = s.m.Disconnect(w.now, id, nil)
			}
		}
	}
	w.run(time.Hour)
	for _, s := range []*side{w.a, w.b} {
		require.Zero(w.t, s.m.Calls(), "%s: calls left", s.name)
		require.Zero(w.t, s.m.HalfOpen(), "%s: half-open calls left", s.name)
		for _, id := range s.ids {
			require.Equal(w.t, 1, s.last[id], "%s: last events of call %#x", s.name, id)
		}
	}
}

func (s *side) event(k cm.EventKind) *cm.Event {
	for i := range s.all {
		if s.all[i].Kind == k {
			return &s.all[i]
		}
	}
	s.t.Fatalf("%s: no event %v among %v", s.name, k, s.events)
	return nil
}

// A call from beginning to end: rules CM-10 to CM-16.
func TestMachineCall(t *testing.T) {
	w := newWorld(t)
	r := request()
	r.ResponderResources, r.InitiatorDepth = 3, 16
	r.VendorID, r.Options = 0xabcdef, 0x01020304
	id, err := w.a.m.Connect(w.now, r)
	require.NoError(t, err)
	w.run(time.Second)
	require.Equal(t, []string{"0 a REQ", "1 b REP", "2 a RTU"}, w.log)
	require.Equal(t, []string{"reply"}, w.a.events)
	require.Equal(t, []string{"request", "established"}, w.b.events)
	require.Equal(t, cm.Established, w.a.m.State(id))

	q := w.b.event(cm.EventRequest)
	require.Equal(t, uint32(0xabcdef), q.Attr.VendorID, "CM-23")
	require.Equal(t, uint32(0x01020304), q.Attr.Options, "CM-23")
	require.Equal(t, cm.MTU1024, q.Attr.PathMTU, "CM-11")
	require.True(t, q.HasCMA)
	require.Equal(t, uint16(40000), q.CMA.Port, "CM-17: the header's port is the source port")
	require.Equal(t, svc, q.Service)
	require.Equal(t, append([]byte("from a"), make([]byte, 50)...), q.PrivateData, "CM-16")
	p := w.a.event(cm.EventReply)
	require.Equal(t, svc, p.Service, "the call's, at either side")
	require.Equal(t, append([]byte("from b"), make([]byte, 190)...), p.PrivateData, "CM-16")
	require.Equal(t, append([]byte("rtu"), make([]byte, 221)...), w.b.event(cm.EventEstablished).PrivateData, "CM-16")
	// CM-12: each sends from the PSN that the other named.
	require.Equal(t, []uint32{0x21, 2000, 1000}, []uint32{p.Attr.DestQPN, p.Attr.SQPSN, p.Attr.RQPSN})
	b := w.b.event(cm.EventEstablished).Attr
	require.Equal(t, []uint32{0x11, 1000, 2000}, []uint32{b.DestQPN, b.SQPSN, b.RQPSN})
	// CM-13: depths swap ends, and each is the lesser.
	require.Equal(t, []uint8{3, 4}, []uint8{p.Attr.MaxDestRdAtomic, p.Attr.MaxRdAtomic})
	require.Equal(t, []uint8{4, 3}, []uint8{b.MaxDestRdAtomic, b.MaxRdAtomic})
	// CM-14: lifetime 16 and ACK delay 15 give 17.
	require.Equal(t, []uint8{17, 17}, []uint8{p.Attr.Timeout, b.Timeout})

	w.log = nil
	require.NoError(t, w.a.m.Disconnect(w.now, id, []byte("bye")))
	w.run(512 * time.Millisecond)
	require.Equal(t, []string{"1000 a DREQ", "1001 b DREP"}, w.log)
	require.Equal(t, "disconnected", w.a.events[len(w.a.events)-1])
	require.Equal(t, byte('b'), w.b.event(cm.EventDisconnected).PrivateData[0])
	require.Equal(t, cm.Timewait, w.a.m.State(id), "CM-15: 512 ms after the DREP")
	require.Equal(t, 1, w.b.m.Calls())
	w.run(10 * time.Millisecond)
	require.Equal(t, []string{"reply", "disconnected", "timewait exit"}, w.a.events)
	require.Equal(t, []string{"request", "established", "disconnected", "timewait exit"}, w.b.events)
	w.over()
}

// Rules CM-1 and CM-3: what has no response is sent 16 times, then refused.
func TestMachineTimes(t *testing.T) {
	lost := func(*side, cm.AttributeID, int) (int, time.Duration) { return 0, 0 }
	for _, c := range []struct {
		name  string
		every int // ms
		begin func(w *world) uint32
		kind  string
		rej   bool
	}{
		{"REQ", 4608, func(w *world) uint32 { id, _ := w.a.m.Connect(w.now, request()); return id }, "a REQ", true},
		{"SIDR_REQ", 4096, func(w *world) uint32 { id, _ := w.a.m.ResolveSIDR(w.now, request()); return id }, "a SIDR_REQ", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.fate = lost
			id := c.begin(w)
			w.run(time.Hour)
			var want []string
			for i := range 16 {
				want = append(want, fmt.Sprintf("%d %s", i*c.every, c.kind))
			}
			if c.rej {
				want = append(want, fmt.Sprintf("%d a REJ", 16*c.every))
			}
			require.Equal(t, want, w.log)
			require.Equal(t, []string{"unreachable"}, w.a.events)
			require.Equal(t, id, w.a.all[0].ID)
			w.over()
		})
	}
	t.Run("REP", func(t *testing.T) {
		w := newWorld(t)
		w.fate = func(s *side, id cm.AttributeID, n int) (int, time.Duration) {
			if id == cm.AttrREQ && n == 1 {
				return 1, 0
			}
			return 0, 0
		}
		_, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		w.run(66 * time.Second)
		require.Equal(t, 16, w.sent["b REP"])
		require.Contains(t, w.log, "4097 b REP")
		require.Contains(t, w.log, "65537 b REJ")
		require.Equal(t, []string{"request", "unreachable"}, w.b.events)
		w.over()
	})
	t.Run("DREQ", func(t *testing.T) {
		w := newWorld(t)
		id, _ := w.a.m.Connect(w.now, request())
		w.run(time.Second)
		w.fate = lost
		require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
		w.run(73 * time.Second)
		require.Equal(t, 16, w.sent["a DREQ"])
		require.Equal(t, cm.DreqSent, w.a.m.State(id))
		w.run(2 * time.Second)
		require.Equal(t, []string{"reply", "disconnected", "timewait exit"}, w.a.events)
		w.over()
	})
}

// Every message lost once, duplicated and delayed: both agree (rules CM-1, CM-4).
func TestMachineEachMessage(t *testing.T) {
	for _, id := range []cm.AttributeID{cm.AttrREQ, cm.AttrREP, cm.AttrRTU, cm.AttrDREQ, cm.AttrDREP, cm.AttrSIDRREQ, cm.AttrSIDRREP} {
		for what, f := range map[string]func() (int, time.Duration){
			"lost":      func() (int, time.Duration) { return 0, 0 },
			"duplicate": func() (int, time.Duration) { return 3, 0 },
			"late":      func() (int, time.Duration) { return 1, 10 * time.Second },
			"late copy": func() (int, time.Duration) { return 2, 200 * time.Millisecond },
		} {
			t.Run(id.String()+" "+what, func(t *testing.T) {
				w := newWorld(t)
				w.fate = func(_ *side, got cm.AttributeID, n int) (int, time.Duration) {
					if got == id && n == 1 {
						return f()
					}
					return 1, 0
				}
				if id == cm.AttrSIDRREQ || id == cm.AttrSIDRREP {
					_, err := w.a.m.ResolveSIDR(w.now, request())
					require.NoError(t, err)
					w.run(20 * time.Second)
					require.Equal(t, []string{"SIDR reply"}, w.a.events)
					require.Equal(t, []uint32{0x31, 0x1234567}, []uint32{w.a.all[0].Attr.DestQPN, w.a.all[0].Attr.QKey})
					w.over()
					return
				}
				call, err := w.a.m.Connect(w.now, request())
				require.NoError(t, err)
				w.run(20 * time.Second)
				require.Equal(t, cm.Established, w.a.m.State(call))
				require.Equal(t, []string{"reply"}, w.a.events)
				require.Equal(t, []string{"request", "established"}, w.b.events)
				require.Equal(t, append([]byte("rtu"), make([]byte, 221)...), w.b.event(cm.EventEstablished).PrivateData)
				require.NoError(t, w.a.m.Disconnect(w.now, call, nil))
				w.run(30 * time.Second)
				require.Equal(t, []string{"reply", "disconnected", "timewait exit"}, w.a.events)
				require.Equal(t, []string{"request", "established", "disconnected", "timewait exit"}, w.b.events)
				w.over()
			})
		}
	}
}

// Rule CM-2: an owner that takes its time costs no more than an MRA a duplicate.
func TestMachineMRA(t *testing.T) {
	t.Run("REQ", func(t *testing.T) {
		w := newWorld(t)
		w.b.on = nil
		id, _ := w.a.m.Connect(w.now, request())
		w.run(4 * time.Second)
		require.Zero(t, w.sent["b MRA"], "no MRA before a duplicate")
		w.run(time.Second)
		require.Equal(t, 1, w.sent["b MRA"])
		require.Equal(t, cm.MRAReqReceived, w.a.m.State(id))
		w.run(65 * time.Second)
		require.Equal(t, 2, w.sent["a REQ"], "service timeout 24: 65.5 s")
		w.run(2 * time.Second)
		require.Equal(t, 3, w.sent["a REQ"])
		w.b.on = obliging
		_, err := w.b.m.Accept(w.now, w.b.ids[0], &cm.Reply{QPN: 0x21})
		require.NoError(t, err)
		w.run(time.Second)
		require.Equal(t, cm.Established, w.a.m.State(id))
		w.over()
	})
	t.Run("REP", func(t *testing.T) {
		w := newWorld(t)
		w.a.on = nil
		id, _ := w.a.m.Connect(w.now, request())
		w.run(5 * time.Second)
		require.Equal(t, 1, w.sent["a MRA"])
		require.Equal(t, cm.MRARepSent, w.a.m.State(id))
		require.Equal(t, cm.MRARepReceived, w.b.m.State(w.b.ids[0]))
		require.NoError(t, w.a.m.Ready(id, nil))
		w.run(time.Second)
		require.Equal(t, []string{"request", "established"}, w.b.events)
		w.over()
	})
	t.Run("an owner that never responds", func(t *testing.T) {
		w := newWorld(t)
		w.b.on = nil
		w.a.m.Connect(w.now, request())
		w.run(time.Hour)
		require.Equal(t, []string{"unreachable"}, w.a.events)
		require.Equal(t, []string{"request", "rejected"}, w.b.events, "the peer's REJ 4 ends the call")
		require.Equal(t, cm.ReasonTimeout, w.b.event(cm.EventRejected).Reason)
		w.over()
	})
}

// Rule CM-6.
func TestMachineCommEst(t *testing.T) {
	w := newWorld(t)
	w.fate = func(_ *side, id cm.AttributeID, _ int) (int, time.Duration) {
		if id == cm.AttrRTU {
			return 0, 0
		}
		return 1, 0
	}
	w.a.m.Connect(w.now, request())
	w.run(time.Second)
	require.Equal(t, []string{"request"}, w.b.events)
	w.b.m.CommEst(w.b.ids[0])
	w.b.m.CommEst(w.b.ids[0])
	w.run(10 * time.Second)
	require.Equal(t, []string{"request", "established"}, w.b.events)
	require.Equal(t, 1, w.sent["b REP"], "no REP is sent again")
	w.over()
}

// Rules CM-8 and CM-9.
func TestMachineReject(t *testing.T) {
	t.Run("no listener", func(t *testing.T) {
		w := newWorld(t)
		w.b.m.Unlisten(svc)
		w.a.m.Connect(w.now, request())
		w.run(time.Second)
		e := w.a.event(cm.EventRejected)
		require.True(t, e.Last)
		require.False(t, e.Local)
		require.Equal(t, cm.ReasonInvalidServiceID, e.Reason)
		require.Equal(t, cm.RejectedREQ, e.Rejected)
		require.Contains(t, e.String(), "no listener")
		w.over()
	})
	for r := cm.Reason(1); r <= 35; r++ {
		t.Run(r.String(), func(t *testing.T) {
			w := newWorld(t)
			w.b.on = func(s *side, e *cm.Event) {
				if e.Kind == cm.EventRequest {
					require.NoError(t, s.m.Reject(e.ID, r, []byte{1, 2, 3}, []byte("why")))
				}
			}
			w.a.m.Connect(w.now, request())
			w.run(time.Minute)
			e := w.a.event(cm.EventRejected)
			require.Equal(t, r, e.Reason)
			require.Equal(t, []byte{1, 2, 3}, e.Info)
			require.Equal(t, "why", string(e.PrivateData[:3]))
			require.Equal(t, r != cm.ReasonStaleConnection, e.Last, "a stale connection has a timewait")
			require.True(t, w.b.event(cm.EventRejected).Local)
			require.NotEmpty(t, r.Sentence())
			w.over()
		})
	}
	t.Run("of a REP", func(t *testing.T) {
		w := newWorld(t)
		w.a.on = func(s *side, e *cm.Event) {
			if e.Kind == cm.EventReply {
				require.NoError(t, s.m.Reject(e.ID, cm.ReasonConsumer, nil, nil))
			}
		}
		w.a.m.Connect(w.now, request())
		w.run(time.Second)
		require.Equal(t, []string{"request", "rejected"}, w.b.events)
		require.Equal(t, cm.RejectedREP, w.b.event(cm.EventRejected).Rejected)
		w.over()
	})
	t.Run("given up before the response", func(t *testing.T) {
		w := newWorld(t)
		w.b.on = nil
		id, _ := w.a.m.Connect(w.now, request())
		w.run(time.Second)
		require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
		w.run(time.Second)
		require.Equal(t, cm.ReasonTimeout, w.b.event(cm.EventRejected).Reason)
		require.True(t, w.a.event(cm.EventRejected).Local)
		_, err := w.b.m.Accept(w.now, w.b.ids[0], &cm.Reply{})
		require.ErrorIs(t, err, cm.ErrCall)
		w.over()
	})
	t.Run("REQs that no listener is to see", func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(*cm.Request)
			want   cm.Reason
		}{
			"no addressing header": {func(r *cm.Request) { r.CMA = nil }, cm.ReasonConsumer},
			"major version":        {func(r *cm.Request) { r.CMA.MajorVersion = 1 }, cm.ReasonConsumer},
			"IP version":           {func(r *cm.Request) { r.CMA.IPVersion = 5 }, cm.ReasonConsumer},
			"RD":                   {func(r *cm.Request) { r.Transport = cm.ServiceRD }, cm.ReasonInvalidTransportServiceType},
		} {
			w := newWorld(t)
			r := request()
			c.change(r)
			_, err := w.a.m.Connect(w.now, r)
			require.NoError(t, err, name)
			w.run(time.Second)
			require.Equal(t, c.want, w.a.event(cm.EventRejected).Reason, name)
			require.Empty(t, w.b.events, name)
			w.over()
		}
	})
}
