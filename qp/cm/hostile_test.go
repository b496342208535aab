package cm_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/cm"
)

// hostile has a world's links lose, duplicate and delay.
func (w *world) hostile(rng *rand.Rand, loss, dup float64, late time.Duration) {
	w.fate = func(*side, cm.AttributeID, int) (int, time.Duration) {
		n := 1
		if rng.Float64() < loss {
			n = 0
		} else if rng.Float64() < dup {
			n = 2
		}
		return n, time.Duration(rng.Int64N(int64(late) + 1))
	}
}

// agreed checks that no call is established at only one side, once no message is in flight.
// One case only data can show: the REJ with which the passive side gave
// up was lost, as all before it.
func (w *world) agreed() {
	if w.lostREJ {
		return
	}
	for _, id := range w.a.ids {
		if w.a.m.State(id) != cm.Established {
			continue
		}
		e := w.a.of(id, cm.EventReply)
		found := false
		for _, b := range w.b.ids {
			found = found || w.b.m.State(b) == cm.Established && w.b.of(b, cm.EventRequest).Attr.DestQPN == e.Attr.QPN
		}
		require.True(w.t, found, "call %#x is established only at a: %q", id, w.log)
	}
}

func (s *side) of(id uint32, k cm.EventKind) *cm.Event {
	for i := range s.all {
		if s.all[i].ID == id && s.all[i].Kind == k {
			return &s.all[i]
		}
	}
	s.t.Fatalf("%s: no event %v of call %#x", s.name, k, id)
	return nil
}

// Rules CM-3, CM-20: however bad the links, both sides agree in the end or both
// give up, each call has one last event, and nothing is left.
func TestPropHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		w := newWorld(t)
		qpn := uint32(0x100)
		accept := func(s *side, e *cm.Event) {
			if e.Kind == cm.EventRequest && rng.IntN(8) == 0 {
				require.NoError(s.t, s.m.Reject(e.ID, cm.ReasonConsumer, nil, nil))
				return
			}
			if e.Kind == cm.EventRequest {
				qpn++
				_, err := s.m.Accept(s.now(), e.ID, &cm.Reply{QPN: qpn})
				require.NoError(s.t, err)
				return
			}
			obliging(s, e)
		}
		w.b.on = accept
		w.hostile(rng, rapid.Float64Range(0, 0.3).Draw(t, "loss"), rapid.Float64Range(0, 0.5).Draw(t, "dup"),
			time.Duration(rapid.IntRange(0, 6000).Draw(t, "late ms"))*time.Millisecond)
		for i := range rapid.IntRange(1, 8).Draw(t, "calls") {
			r := request()
			r.QPN = uint32(0x10 + i)
			if rng.IntN(8) == 0 {
				_, err := w.a.m.ResolveSIDR(w.now, r)
				require.NoError(w.t, err)
			} else {
				id, err := w.a.m.Connect(w.now, r)
				require.NoError(w.t, err)
				if rng.IntN(6) == 0 {
					w.run(time.Duration(rng.Int64N(10000)) * time.Millisecond)
					_ = w.a.m.Disconnect(w.now, id, nil)
				}
			}
			w.run(time.Duration(rng.Int64N(3000)) * time.Millisecond)
		}
		w.run(10 * time.Minute)
		w.agreed()
		ends := []*side{w.a, w.b}
		for _, s := range ends {
			for _, id := range s.ids {
				if rng.IntN(2) == 0 {
					_ = s.m.Disconnect(w.now, id, nil)
				}
			}
		}
		w.run(10 * time.Minute)
		w.agreed()
		w.over()
	})
}

// A storm of connects over bad links leaves nothing (rules CM-15, CM-19, CM-20),
// and costs a bounded number of datagrams.
func TestMachineStorm(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 1000
	}
	w := newWorld(t)
	rng := rand.New(rand.NewPCG(1, 2))
	qpn := uint32(0)
	w.b.on = func(s *side, e *cm.Event) {
		if e.Kind == cm.EventRequest {
			qpn++
			_, err := s.m.Accept(s.now(), e.ID, &cm.Reply{QPN: qpn})
			require.NoError(t, err)
			return
		}
		obliging(s, e)
	}
	w.hostile(rng, 0.05, 0.05, 5*time.Millisecond)
	began := 0
	var refused int
	open := []uint32{}
	for began < n {
		for range 50 {
			r := request()
			r.QPN = uint32(began + 1)
			id, err := w.a.m.Connect(w.now, r)
			if err != nil {
				require.ErrorIs(t, err, cm.ErrFull)
				refused++
				break
			}
			began++
			open = append(open, id)
		}
		w.run(500 * time.Millisecond)
		for len(open) > 100 {
			_ = w.a.m.Disconnect(w.now, open[0], nil)
			open = open[1:]
		}
		w.a.all, w.b.all, w.log = nil, nil, nil
	}
	for _, id := range open {
		_ = w.a.m.Disconnect(w.now, id, nil)
	}
	w.run(time.Hour)
	sent := 0
	for _, k := range w.sent {
		sent += k
	}
	require.Zero(t, w.a.m.Calls())
	require.Zero(t, w.b.m.Calls())
	require.Zero(t, w.a.m.HalfOpen()+w.b.m.HalfOpen())
	require.Less(t, sent, 8*n, "datagrams")
	ended := 0
	for _, k := range w.a.last {
		ended += k
	}
	require.Equal(t, n, ended, "last events")
	t.Logf("%d calls, %d datagrams, %d times full", n, sent, refused)
}

// Machines that take any datagrams, in any order with any calls, keep their
// promises: no panic, a later deadline after Tick, one last event a call, bounded
// output for what came in.
func FuzzMachine(f *testing.F) {
	for _, d := range captured(f) {
		f.Add(append([]byte{0}, d.mad...))
	}
	var all []byte
	for _, d := range captured(f) {
		all = append(append(all, 0), d.mad...)
		all = append(all, 1, 2, 3, 4)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newSide(t, "m", addrB, cm.Config{CAGUID: 0x505400fffe000001, MaxCalls: 8, MaxHalfOpen: 4})
		now := start
		s.now = func() time.Time { return now }
		require.NoError(t, s.m.Listen(svc, 2))
		require.NoError(t, s.m.Listen(cm.IPServiceID(cm.ProtocolUDP, 7174), 0))
		ids := []uint32{0}
		s.on = func(s *side, e *cm.Event) { ids = append(ids, e.ID) }
		from := cm.Address{Local: addrB, Remote: addrA}
		sent := 0
		for len(in) != 0 {
			op := in[0]
			in = in[1:]
			id := ids[int(op>>3)%len(ids)]
			got := 1
			switch op & 7 {
			case 0:
				n := min(len(in), cm.Size)
				b := in[:n]
				if n == cm.Size && op>>3 != 0 { // make it one of ours
					b = append([]byte(nil), b...)
					binary.BigEndian.PutUint32(b[28:], id)
				}
				s.m.HandleMAD(now, from, b)
				in = in[n:]
			case 1:
				_, _ = s.m.Connect(now, request())
			case 2:
				_, _ = s.m.Accept(now, id, &cm.Reply{QPN: uint32(op)})
			case 3:
				_ = s.m.Ready(id, nil)
			case 4:
				_ = s.m.Reject(id, cm.ReasonConsumer, nil, nil)
			case 5:
				_ = s.m.Disconnect(now, id, nil)
			case 6:
				_ = s.m.ReplySIDR(id, &cm.SIDRReply{})
				s.m.CommEst(id)
			case 7:
				now = now.Add(time.Duration(op>>3) * time.Second)
				s.m.Tick(now)
				if d, ok := s.m.Deadline(); ok && !d.After(now) {
					t.Fatal("deadline not after now")
				}
				got = 40 // timers
			}
			if op&8 != 0 {
				s.poll()
			}
			before := sent
			for {
				if _, _, ok := s.m.NextMAD(nil); !ok {
					break
				}
				sent++
			}
			if sent-before > 2*got+8 {
				t.Fatalf("%d datagrams at once", sent-before)
			}
			if s.m.HalfOpen() > 4 || s.m.Calls() > 8 {
				t.Fatal("bounds")
			}
		}
		s.on = nil
		for range 3 {
			s.poll()
			for _, e := range s.all {
				_ = s.m.Disconnect(now, e.ID, nil)
			}
			for range 40 {
				for {
					if _, _, ok := s.m.NextMAD(nil); !ok {
						break
					}
				}
				s.poll()
				now = now.Add(70 * time.Second)
				s.m.Tick(now)
			}
		}
		s.poll()
		if n := s.m.Calls(); n != 0 {
			t.Fatalf("%d calls left, %v", n, s.events)
		}
	})
}

// Two machines and a link that does what the input says.
func FuzzMachinePair(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add([]byte{255, 1, 0, 0, 130, 0, 17, 33, 64, 64, 64})
	// Found by the fuzzer.
	f.Add([]byte("00010011111111111111110"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 300 {
			in = in[:300]
		}
		w := newWorld(t)
		qpn := uint32(0x100)
		w.b.on = func(s *side, e *cm.Event) {
			if e.Kind == cm.EventRequest {
				qpn++
				_, err := s.m.Accept(s.now(), e.ID, &cm.Reply{QPN: qpn})
				require.NoError(t, err)
				return
			}
			obliging(s, e)
		}
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		w.fate = func(*side, cm.AttributeID, int) (int, time.Duration) {
			b := next()
			return []int{1, 0, 2, 1}[b&3], time.Duration(b>>2) * 200 * time.Millisecond
		}
		for i := range 1 + next()%4 {
			r := request()
			r.QPN = uint32(0x10 + i)
			_, err := w.a.m.Connect(w.now, r)
			require.NoError(t, err)
			w.run(time.Duration(next()) * 50 * time.Millisecond)
		}
		w.run(10 * time.Minute)
		w.agreed()
		w.over()
	})
}

func ExampleMachine() {
	server, _ := cm.NewMachine(cm.Config{CAGUID: 2})
	client, _ := cm.NewMachine(cm.Config{CAGUID: 1})
	_ = server.Listen(svc, 16)
	now := start
	id, _ := client.Connect(now, request())

	// carry hands the datagrams of one to the other: QP 1 to QP 1.
	carry := func(from, to *cm.Machine, src, dst cm.Address) {
		for {
			mad, _, ok := from.NextMAD(nil)
			if !ok {
				return
			}
			to.HandleMAD(now, cm.Address{Local: dst.Local, Remote: src.Local}, mad)
		}
	}
	a, b := cm.Address{Local: addrA, Remote: addrB}, cm.Address{Local: addrB, Remote: addrA}
	var e cm.Event

	carry(client, server, a, b)
	server.NextEvent(&e)
	fmt.Println("server:", e.Kind, "from QP", e.Attr.DestQPN)
	attr, _ := server.Accept(now, e.ID, &cm.Reply{QPN: 0x21, StartingPSN: 2000})
	fmt.Println("server: its QP sends from PSN", attr.SQPSN) // bring it to RTS here

	carry(server, client, b, a)
	client.NextEvent(&e)
	fmt.Println("client:", e.Kind, "from QP", e.Attr.DestQPN, "at path MTU", e.Attr.PathMTU) // and here
	_ = client.Ready(id, nil)

	carry(client, server, a, b)
	server.NextEvent(&e)
	fmt.Println("server:", e.Kind)
	// Output:
	// server: request from QP 17
	// server: its QP sends from PSN 1000
	// client: reply from QP 33 at path MTU 1024
	// server: established
}
