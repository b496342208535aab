package cm_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/internal/testenv"
)

// connected returns a world with an established call, and its number at a.
func connected(t testing.TB) (w *world, id uint32) {
	w = newWorld(t)
	id, err := w.a.m.Connect(w.now, request())
	require.NoError(t, err)
	w.run(time.Second)
	require.Equal(t, cm.Established, w.a.m.State(id))
	require.Equal(t, cm.Established, w.b.m.State(w.b.ids[0]))
	w.log = nil
	return w, id
}

// Rule CM-5: a queue pair that has another call.
func TestMachineStale(t *testing.T) {
	t.Run("REQ", func(t *testing.T) {
		w, old := connected(t)
		// The peer has forgotten its connection, as after a restart.
		again := newSide(t, "a", addrA, cm.Config{CAGUID: 0xa})
		again.now, again.on = w.a.now, obliging
		first := w.a
		w.a = again
		r := request()
		_, err := again.m.Connect(w.now, r)
		require.NoError(t, err)
		_ = old
		// The same communication ID, for the new machine counts from 1 too: a
		// duplicate, which gets nothing.
		w.run(time.Second)
		require.Empty(t, again.events)
		_, err = again.m.Connect(w.now, r)
		require.NoError(t, err)
		w.run(time.Second)
		require.Equal(t, cm.ReasonStaleConnection, again.event(cm.EventRejected).Reason)
		require.Equal(t, []string{"request", "established", "disconnected", "timewait exit"}, w.b.events,
			"a DREQ on the old connection, and DREP from who knows nothing of it")
		require.NotZero(t, first.m.Calls())
		_, err = again.m.Connect(w.now, r)
		require.NoError(t, err)
		w.run(time.Second)
		require.Equal(t, "reply", again.events[len(again.events)-1])
		w.over()
	})
	t.Run("REP", func(t *testing.T) {
		w, _ := connected(t)
		r := request()
		r.QPN = 0x12
		_, err := w.a.m.Connect(w.now, r)
		require.NoError(t, err) // b accepts with QP 0x21 again
		w.run(10 * time.Second)
		require.Contains(t, w.a.events, "rejected")
		require.Equal(t, cm.ReasonStaleConnection, w.b.event(cm.EventRejected).Reason)
		require.Equal(t, cm.RejectedREP, w.b.event(cm.EventRejected).Rejected)
		w.over()
	})
	t.Run("REQ in timewait", func(t *testing.T) {
		w, id := connected(t)
		var req []byte
		w.fate = nil
		require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
		w.run(10 * time.Millisecond)
		m := cm.Message{Header: cm.NewHeader(cm.AttrREQ, 7)}
		m.REQ = cm.REQ{LocalCommID: id, LocalCAGUID: 0xa, LocalQPN: 0x11, ServiceID: svc, PathPacketPayloadMTU: 3}
		req = m.AppendTo(nil)
		w.b.m.HandleMAD(w.now, cm.Address{Local: addrB, Remote: addrA}, req)
		rej := next(t, w.b.m)
		require.Equal(t, cm.ReasonStaleConnection, rej.REJ.Reason)
		w.over()
	})
}

// next returns the next datagram of a machine.
func next(t testing.TB, m *cm.Machine) *cm.Message {
	t.Helper()
	b, _, ok := m.NextMAD(nil)
	require.True(t, ok, "nothing to send")
	var d cm.Message
	require.NoError(t, d.Decode(b))
	return &d
}

func quiet(t testing.TB, m *cm.Machine) {
	t.Helper()
	b, _, ok := m.NextMAD(nil)
	if ok {
		t.Fatalf("%v sent", attribute(b))
	}
}

// Rule CM-7.
func TestMachineDREQ(t *testing.T) {
	dreq := func(local, remote, qpn uint32) []byte {
		m := cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 0x77)}
		m.DREQ = cm.DREQ{LocalCommID: local, RemoteCommID: remote, RemoteQPNEECN: qpn}
		return m.AppendTo(nil)
	}
	from := cm.Address{Local: addrB, Remote: addrA}
	t.Run("of an unknown call", func(t *testing.T) {
		w := newWorld(t)
		w.b.m.HandleMAD(w.now, from, dreq(5, 6, 7))
		d := next(t, w.b.m)
		require.Equal(t, cm.AttrDREP, d.Header.AttributeID)
		require.Equal(t, uint64(0x77), d.Header.TransactionID, "CM-10: DREP repeats the DREQ's")
		require.Equal(t, []uint32{6, 5}, []uint32{d.DREP.LocalCommID, d.DREP.RemoteCommID})
	})
	t.Run("of another queue pair", func(t *testing.T) {
		w, id := connected(t)
		w.b.m.HandleMAD(w.now, from, dreq(id, w.b.ids[0], 0x22))
		quiet(t, w.b.m)
		require.Equal(t, cm.Established, w.b.m.State(w.b.ids[0]))
		w.over()
	})
	t.Run("duplicates", func(t *testing.T) {
		w, id := connected(t)
		w.b.on = nil
		b := w.b.ids[0]
		w.b.m.HandleMAD(w.now, from, dreq(id, b, 0x21))
		require.Equal(t, cm.DreqReceived, w.b.m.State(b))
		w.b.m.HandleMAD(w.now, from, dreq(id, b, 0x21))
		quiet(t, w.b.m)
		w.b.poll()
		require.NoError(t, w.b.m.Disconnect(w.now, b, []byte("drep")))
		require.Equal(t, "drep", string(next(t, w.b.m).DREP.PrivateData[:4]))
		quiet(t, w.b.m)
		w.b.m.HandleMAD(w.now, from, dreq(id, b, 0x21))
		require.Equal(t, cm.AttrDREP, next(t, w.b.m).Header.AttributeID, "in timewait: DREP again")
		require.Equal(t, []string{"request", "established", "disconnected"}, w.b.events)
		w.over()
	})
	t.Run("both at once", func(t *testing.T) {
		w, id := connected(t)
		require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
		require.NoError(t, w.b.m.Disconnect(w.now, w.b.ids[0], nil))
		w.run(100 * time.Millisecond)
		require.Equal(t, []string{"1000 a DREQ", "1000 b DREQ", "1001 b DREP", "1001 a DREP"}, w.log)
		require.Equal(t, "disconnected", w.a.events[len(w.a.events)-1])
		require.Equal(t, "disconnected", w.b.events[len(w.b.events)-1])
		w.over()
	})
	t.Run("while an event waits to be polled", func(t *testing.T) {
		w := newWorld(t)
		id, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		pass := func(from, to *side) {
			mad, _, ok := from.m.NextMAD(nil)
			require.True(t, ok)
			require.True(t, to.m.HandleMAD(w.now, cm.Address{Local: to.addr, Remote: from.addr}, mad))
		}
		pass(w.a, w.b) // REQ
		w.b.poll()
		pass(w.b, w.a) // REP
		w.a.poll()
		pass(w.a, w.b) // RTU
		require.NoError(t, w.a.m.Disconnect(w.now, id, []byte("dreq")))
		pass(w.a, w.b)
		require.Equal(t, cm.DreqReceived, w.b.m.State(w.b.ids[0]), "its peer may not send it again")
		w.b.poll()
		require.Equal(t, []string{"request", "established", "disconnected"}, w.b.events)
		require.Equal(t, "rtu", string(w.b.all[1].PrivateData[:3]))
		require.Equal(t, "dreq", string(w.b.all[2].PrivateData[:4]))
		w.over()
	})
	t.Run("before the RTU", func(t *testing.T) {
		w := newWorld(t)
		w.fate = func(_ *side, id cm.AttributeID, _ int) (int, time.Duration) {
			if id == cm.AttrRTU {
				return 0, 0
			}
			return 1, 0
		}
		id, _ := w.a.m.Connect(w.now, request())
		w.run(time.Second)
		require.Equal(t, cm.RepSent, w.b.m.State(w.b.ids[0]))
		require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
		w.run(time.Second)
		require.Equal(t, []string{"request", "disconnected", "timewait exit"}, w.b.events)
		w.over()
	})
}

// Rule CM-8: a REJ of an established connection, as of a passive side that gave up
// waiting for the RTU, leads to timewait.
func TestMachineRejectEstablished(t *testing.T) {
	w, id := connected(t)
	m := cm.Message{Header: cm.NewHeader(cm.AttrREJ, 1)}
	m.REJ = cm.REJ{LocalCommID: w.b.ids[0], RemoteCommID: id, MessageRejected: cm.RejectedOther, Reason: cm.ReasonTimeout}
	w.a.m.HandleMAD(w.now, cm.Address{Local: addrA, Remote: addrB}, m.AppendTo(nil))
	w.a.poll()
	e := w.a.event(cm.EventRejected)
	require.False(t, e.Last)
	require.Equal(t, cm.Timewait, w.a.m.State(id))
	w.run(time.Second)
	require.Equal(t, []string{"reply", "rejected", "timewait exit"}, w.a.events)
	w.over()
}

// Rule CM-8: a REJ is not sent again, so it takes the place of an event that was not
// polled; an owner that had no event of the call has none now.
func TestMachineRejectUnpolled(t *testing.T) {
	rej := func(w *world, from *side, id uint32) []byte {
		require.NoError(t, from.m.Disconnect(w.now, id, nil))
		mad, _, ok := from.m.NextMAD(nil)
		require.True(t, ok)
		require.Equal(t, cm.AttrREJ, attribute(mad))
		return mad
	}
	to := func(w *world, s, from *side, mad []byte) {
		require.True(t, s.m.HandleMAD(w.now, cm.Address{Local: s.addr, Remote: from.addr}, mad))
	}
	for _, polled := range []bool{false, true} {
		w := newWorld(t)
		w.b.on = nil
		id, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		req, _, ok := w.a.m.NextMAD(nil)
		require.True(t, ok)
		to(w, w.b, w.a, req)
		if polled {
			w.b.poll()
		}
		to(w, w.b, w.a, rej(w, w.a, id))
		w.b.poll()
		if polled {
			require.Equal(t, []string{"request", "rejected"}, w.b.events)
		} else {
			require.Empty(t, w.b.events)
		}
		require.Zero(t, w.b.m.Calls())
		require.Zero(t, w.b.m.HalfOpen())
	}

	w := newWorld(t)
	id, err := w.a.m.Connect(w.now, request())
	require.NoError(t, err)
	req, _, _ := w.a.m.NextMAD(nil)
	to(w, w.b, w.a, req)
	w.b.poll()
	rep, _, ok := w.b.m.NextMAD(nil)
	require.True(t, ok)
	to(w, w.a, w.b, rep) // the reply is not polled
	to(w, w.a, w.b, rej(w, w.b, w.b.ids[0]))
	w.a.poll()
	require.Equal(t, []string{"rejected"}, w.a.events)
	require.Equal(t, cm.Idle, w.a.m.State(id))
	w.over()
}

// Rule CM-10: what belongs to a REQ repeats its transaction ID; a DREQ has its own.
func TestMachineTransactionIDs(t *testing.T) {
	w := newWorld(t)
	tids := map[cm.AttributeID]uint64{}
	w.a.on, w.b.on = nil, nil
	id, _ := w.a.m.Connect(w.now, request())
	pass := func(from, to *side) {
		for {
			mad, _, ok := from.m.NextMAD(nil)
			if !ok {
				break
			}
			tids[attribute(mad)] = binary.BigEndian.Uint64(mad[8:])
			to.m.HandleMAD(w.now, cm.Address{Local: to.addr, Remote: from.addr}, mad)
		}
		to.poll()
	}
	pass(w.a, w.b)
	w.now = w.now.Add(5 * time.Second)
	w.a.m.Tick(w.now)
	pass(w.a, w.b)
	pass(w.b, w.a)
	require.NotZero(t, tids[cm.AttrMRA])
	_, err := w.b.m.Accept(w.now, w.b.ids[0], &cm.Reply{QPN: 0x21})
	require.NoError(t, err)
	pass(w.b, w.a)
	require.NoError(t, w.a.m.Ready(id, nil))
	pass(w.a, w.b)
	require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
	pass(w.a, w.b)
	require.NoError(t, w.b.m.Disconnect(w.now, w.b.ids[0], nil))
	pass(w.b, w.a)
	req := tids[cm.AttrREQ]
	require.Equal(t, []uint64{req, req, req}, []uint64{tids[cm.AttrREP], tids[cm.AttrRTU], tids[cm.AttrMRA]})
	require.NotEqual(t, req, tids[cm.AttrDREQ])
	require.Equal(t, tids[cm.AttrDREQ], tids[cm.AttrDREP])
	w.over()
}

// Rule CM-14, with values worked out by hand from the driver's method: the lifetime's
// code plus one, or the target's delay, whichever is greater, and one more when the
// other is within one of it.
func TestMachineAckTimeout(t *testing.T) {
	for _, c := range []struct{ life, delay, want uint8 }{
		{16, 15, 17}, {16, 16, 18}, {18, 15, 19}, {14, 20, 20}, {18, 20, 21}, {16, 18, 19}, {16, 17, 18}, {23, 31, 31},
	} {
		w := newWorld(t)
		w.a = newSide(t, "a", addrA, cm.Config{CAGUID: 0xa, PacketLifetime: c.life})
		w.b = newSide(t, "b", addrB, cm.Config{CAGUID: 0xb, AckDelay: c.delay})
		w.a.now = func() time.Time { return w.now }
		w.b.now = w.a.now
		w.a.on, w.b.on = obliging, obliging
		require.NoError(t, w.b.m.Listen(svc, 0))
		_, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		w.run(time.Second)
		require.Equal(t, c.want, w.a.event(cm.EventReply).Attr.Timeout, "lifetime %d, delay %d", c.life, c.delay)
	}
}

// Rule CM-18: every status, and the events at both ends.
func TestMachineSIDR(t *testing.T) {
	for st := cm.SIDRValid; st <= cm.SIDRUnsupportedVersion; st++ {
		w := newWorld(t)
		w.b.on = func(s *side, e *cm.Event) {
			require.True(t, e.Last)
			require.Equal(t, "from a", string(e.PrivateData[:6]))
			require.Len(t, e.PrivateData, 180)
			require.NoError(t, s.m.ReplySIDR(e.ID, &cm.SIDRReply{Status: st, QPN: 5, QKey: 6, Info: []byte{9}, PrivateData: []byte("here")}))
		}
		_, err := w.a.m.ResolveSIDR(w.now, request())
		require.NoError(t, err)
		w.run(time.Second)
		e := w.a.event(cm.EventSIDRReply)
		require.True(t, e.Last)
		require.Equal(t, st, e.Status)
		require.Equal(t, []byte{9}, e.Info)
		require.Equal(t, append([]byte("here"), make([]byte, 132)...), e.PrivateData)
		w.over()
	}
	w := newWorld(t)
	w.b.m.Unlisten(svc)
	_, err := w.a.m.ResolveSIDR(w.now, request())
	require.NoError(t, err)
	w.run(time.Second)
	require.Equal(t, cm.SIDRUnsupportedService, w.a.event(cm.EventSIDRReply).Status)
	w.over()

	// An owner that never responds keeps no call busy.
	w = newWorld(t)
	w.b.on = nil
	_, err = w.a.m.ResolveSIDR(w.now, request())
	require.NoError(t, err)
	w.run(16 * 4096 * time.Millisecond) // as long as its peer asks: once, and 15 times again
	require.Equal(t, 1, w.b.m.HalfOpen())
	w.run(2 * time.Millisecond)
	require.Equal(t, 1, len(w.b.events), "duplicates are dropped")
	require.Zero(t, w.b.m.HalfOpen())
	require.ErrorIs(t, w.b.m.ReplySIDR(w.b.ids[0], &cm.SIDRReply{}), cm.ErrCall)
	w.over()
}

// Rule CM-19: a flood of REQs gets silence; what is established stays, and so do
// others' chances, where peers have a bound of their own.
func TestMachineFlood(t *testing.T) {
	m, err := cm.NewMachine(cm.Config{CAGUID: 0xb, MaxHalfOpen: 32, MaxHalfOpenPeer: 8, MaxCalls: 64})
	require.NoError(t, err)
	require.NoError(t, m.Listen(svc, 0))
	req := func(from netip.Addr, id uint32) {
		h, _ := cm.NewCMAHeader(netip.AddrPortFrom(from, 1), addrB)
		d := cm.Message{Header: cm.NewHeader(cm.AttrREQ, uint64(id))}
		d.REQ = cm.REQ{LocalCommID: id, LocalCAGUID: 1, LocalQPN: id, ServiceID: svc, PathPacketPayloadMTU: 3, PrivateData: h.AppendTo(nil)}
		m.HandleMAD(start, cm.Address{Local: addrB, Remote: from}, d.AppendTo(nil))
	}
	for i := range uint32(10000) {
		req(addrA, i+1)
	}
	require.Equal(t, 8, m.HalfOpen())
	other := netip.MustParseAddr("192.0.2.77")
	req(other, 20000)
	require.Equal(t, 9, m.HalfOpen())
	for i := range uint32(10000) {
		req(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 30000+i)
	}
	require.Equal(t, 32, m.HalfOpen())
	require.Equal(t, uint64(20001-32), m.Counters().HalfOpenFull)
	quiet(t, m)
	var e cm.Event
	for m.NextEvent(&e) {
		if e.Kind == cm.EventRequest {
			require.NoError(t, m.Reject(e.ID, cm.ReasonConsumer, nil, nil))
		}
	}
	for range 32 {
		require.Equal(t, cm.AttrREJ, next(t, m).Header.AttributeID)
	}
	quiet(t, m)
	require.Zero(t, m.Calls())
}

// Rule CM-21.
func TestMachineLAP(t *testing.T) {
	w, id := connected(t)
	m := cm.Message{Header: cm.NewHeader(cm.AttrLAP, 0x99)}
	m.LAP = cm.LAP{LocalCommID: id, RemoteCommID: w.b.ids[0]}
	from := cm.Address{Local: addrB, Remote: addrA}
	w.b.m.HandleMAD(w.now, from, m.AppendTo(nil))
	d := next(t, w.b.m)
	require.Equal(t, cm.APUnsupported, d.APR.APStatus)
	require.Equal(t, uint64(0x99), d.Header.TransactionID)
	w.b.poll()
	require.Equal(t, "alternate path", w.b.events[len(w.b.events)-1])
	m.LAP.RemoteCommID++
	w.b.m.HandleMAD(w.now, from, m.AppendTo(nil))
	require.Equal(t, cm.APInvalidCommID, next(t, w.b.m).APR.APStatus)
	w.over()
}

// Rule CM-22: other management datagrams are the caller's, and malformed ones
// of no call.
func TestMachineNotCM(t *testing.T) {
	w := newWorld(t)
	b := make([]byte, cm.Size)
	b[0], b[1], b[2], b[3] = 1, 0x04, 1, 1 // performance management, Get
	require.False(t, w.b.m.HandleMAD(w.now, cm.Address{Remote: addrA}, b))
	for _, change := range []func([]byte){
		func(b []byte) { b[0] = 2 }, func(b []byte) { b[2] = 1 }, func(b []byte) { b[3] = 1 }, func(b []byte) { b[17] = 0x30 },
	} {
		m := cm.Message{Header: cm.NewHeader(cm.AttrREQ, 1), REQ: cm.REQ{LocalCommID: 1, ServiceID: svc}}
		mad := m.AppendTo(nil)
		change(mad)
		require.True(t, w.b.m.HandleMAD(w.now, cm.Address{Remote: addrA}, mad))
	}
	require.True(t, w.b.m.HandleMAD(w.now, cm.Address{Remote: addrA}, nil))
	c := w.b.m.Counters()
	require.Equal(t, []uint64{1, 5}, []uint64{c.NotCM, c.Malformed})
	quiet(t, w.b.m)
}

// Rule CM-24: with a seed, communication IDs are as good as random; without, they
// count.
func TestMachineIDs(t *testing.T) {
	seed := [32]byte{1, 2, 3}
	ids := func(s *[32]byte) (v []uint32) {
		m, err := cm.NewMachine(cm.Config{Seed: s})
		require.NoError(t, err)
		for range 1000 {
			id, err := m.Connect(start, request())
			require.NoError(t, err)
			v = append(v, id)
		}
		return v
	}
	counted := ids(nil)
	require.Equal(t, []uint32{1, 2, 3}, counted[:3])
	random := ids(&seed)
	require.Equal(t, random, ids(&seed), "the same seed, the same IDs")
	var ones [32]int
	seen := map[uint32]bool{}
	for _, id := range random {
		require.False(t, seen[id])
		seen[id] = true
		for b := range ones {
			ones[b] += int(id >> b & 1)
		}
	}
	for b, n := range ones {
		require.InDelta(t, 500, n, 100, "bit %d", b) // six standard deviations
	}
}

// Calls that the API refuses change nothing.
func TestMachineMisuse(t *testing.T) {
	for _, c := range []cm.Config{
		{ResponseTimeout: 25}, {MaxRetries: 16}, {MaxCalls: -1}, {MaxCalls: 1<<20 + 1}, {MaxHalfOpen: -1}, {AckDelay: 32},
	} {
		_, err := cm.NewMachine(c)
		require.ErrorIs(t, err, cm.ErrConfig)
	}
	w, id := connected(t)
	m := w.a.m
	r := request()
	r.PrivateData = make([]byte, 57)
	_, err := m.Connect(w.now, r)
	require.ErrorIs(t, err, cm.ErrTooLong)
	r = request()
	r.QPN = 1 << 24
	_, err = m.Connect(w.now, r)
	require.ErrorIs(t, err, cm.ErrRange)
	r = request()
	r.PathMTU = 0
	_, err = m.Connect(w.now, r)
	require.ErrorIs(t, err, cm.ErrRange)
	_, err = m.Accept(w.now, id, &cm.Reply{})
	require.ErrorIs(t, err, cm.ErrState)
	require.ErrorIs(t, m.Ready(id, nil), cm.ErrState)
	require.ErrorIs(t, m.Ready(id+1, nil), cm.ErrCall)
	require.ErrorIs(t, m.Reject(id, cm.ReasonConsumer, nil, nil), cm.ErrState)
	require.ErrorIs(t, m.Disconnect(w.now, 0, nil), cm.ErrCall)
	require.ErrorIs(t, m.Disconnect(w.now, id, make([]byte, 221)), cm.ErrTooLong)
	require.ErrorIs(t, w.b.m.Listen(svc, 0), cm.ErrInUse)
	require.Equal(t, 1, m.Calls())
	small, err := cm.NewMachine(cm.Config{MaxCalls: 1})
	require.NoError(t, err)
	_, err = small.Connect(w.now, request())
	require.NoError(t, err)
	_, err = small.Connect(w.now, request())
	require.ErrorIs(t, err, cm.ErrFull)
	_, err = small.ResolveSIDR(w.now, request())
	require.ErrorIs(t, err, cm.ErrFull)
	require.NoError(t, m.Disconnect(w.now, id, make([]byte, 220)), "private data that just fits")
	w.over()

	// An RTU's private data is checked before anything changes.
	w = newWorld(t)
	w.a.on = func(s *side, e *cm.Event) {
		if e.Kind == cm.EventReply {
			require.ErrorIs(t, s.m.Ready(e.ID, make([]byte, 225)), cm.ErrTooLong)
			require.NoError(t, s.m.Ready(e.ID, make([]byte, 224)))
		}
	}
	_, err = w.a.m.Connect(w.now, request())
	require.NoError(t, err)
	w.run(time.Second)
	require.Len(t, w.b.event(cm.EventEstablished).PrivateData, 224)
}

// What Linux's RDMA-CM sends (captures of rping, udaddy and a refused call), and
// what the machine sends in its place: the same bytes but for communication and
// transaction IDs.
func TestMachineCaptured(t *testing.T) {
	clear := func(b []byte, at ...int) []byte {
		b = bytes.Clone(b)
		for _, i := range append(at, 8, 12) {
			copy(b[i:i+4], []byte{0, 0, 0, 0})
		}
		return b
	}
	for _, c := range []struct{ file, req, rep, rtu, dreq, drep string }{
		{"cm-rping", "10", "11", "12", "49", "50"}, {"cm-rping-ipv6", "10", "13", "14", "39", "40"},
	} {
		var q, p cm.Message
		require.NoError(t, q.Decode(find(t, c.file, c.req)))
		require.NoError(t, p.Decode(find(t, c.file, c.rep)))
		var h cm.CMAHeader
		private, ok := q.REQ.CMA(&h)
		require.True(t, ok)
		a, b := q.REQ.Primary.LocalPortGID.Addr(), q.REQ.Primary.RemotePortGID.Addr()
		toB := cm.Address{Local: a, Remote: b}
		// The captured kernel has 18 for the packet lifetime.
		active, err := cm.NewMachine(cm.Config{CAGUID: q.REQ.LocalCAGUID, PacketLifetime: 18})
		require.NoError(t, err)
		passive, err := cm.NewMachine(cm.Config{CAGUID: p.REP.LocalCAGUID})
		require.NoError(t, err)
		require.NoError(t, passive.Listen(q.REQ.ServiceID, 0))
		id, err := active.Connect(start, &cm.Request{Addr: toB, Service: q.REQ.ServiceID, CMA: &h, PrivateData: private, QPN: 0x11,
			StartingPSN: q.REQ.StartingPSN, PKey: 0xffff, PathMTU: cm.MTU1024, ResponderResources: 1, InitiatorDepth: 1,
			RetryCnt: 7, RNRRetry: 7, FlowLabel: q.REQ.Primary.FlowLabel})
		require.NoError(t, err)
		req, to, _ := active.NextMAD(nil)
		require.Equal(t, toB, to)
		require.Equal(t, clear(find(t, c.file, c.req), 24), clear(req, 24), "REQ")

		// Each machine against the kernel's own datagrams.
		ours := func(b []byte, at int) []byte { // with our communication ID in it
			b = bytes.Clone(b)
			binary.BigEndian.PutUint32(b[at:], id)
			return b
		}
		from := cm.Address{Local: a, Remote: b}
		active.HandleMAD(start, from, ours(find(t, c.file, c.rep), 28))
		var e cm.Event
		require.True(t, active.NextEvent(&e))
		require.Equal(t, cm.EventReply, e.Kind)
		require.Equal(t, []uint32{0x11, p.REP.StartingPSN}, []uint32{e.Attr.DestQPN, e.Attr.SQPSN})
		require.NoError(t, active.Ready(id, nil))
		rtu, _, _ := active.NextMAD(nil)
		require.Equal(t, clear(find(t, c.file, c.rtu), 24, 28), clear(rtu, 24, 28), "RTU")
		require.NoError(t, active.Disconnect(start, id, nil))
		dreq, _, _ := active.NextMAD(nil)
		require.Equal(t, clear(find(t, c.file, c.dreq), 24, 28), clear(dreq, 24, 28), "DREQ")
		active.HandleMAD(start, from, ours(find(t, c.file, c.drep), 28))
		require.True(t, active.NextEvent(&e))
		require.Equal(t, cm.EventDisconnected, e.Kind)

		back := cm.Address{Local: b, Remote: a}
		passive.HandleMAD(start, back, find(t, c.file, c.req))
		require.True(t, passive.NextEvent(&e))
		require.Equal(t, cm.EventRequest, e.Kind)
		pid := e.ID
		_, err = passive.Accept(start, e.ID, &cm.Reply{QPN: p.REP.LocalQPN, StartingPSN: p.REP.StartingPSN,
			ResponderResources: 1, InitiatorDepth: 1, RNRRetry: 7})
		require.NoError(t, err)
		rep, _, _ := passive.NextMAD(nil)
		require.Equal(t, clear(find(t, c.file, c.rep), 24), clear(rep, 24), "REP")
		require.Equal(t, find(t, c.file, c.rep)[8:16], rep[8:16], "CM-10: the REQ's transaction ID")
		theirs := func(b []byte) []byte {
			b = bytes.Clone(b)
			binary.BigEndian.PutUint32(b[28:], pid)
			return b
		}
		passive.HandleMAD(start, back, theirs(find(t, c.file, c.rtu)))
		require.True(t, passive.NextEvent(&e))
		require.Equal(t, cm.EventEstablished, e.Kind)
		passive.HandleMAD(start, back, theirs(find(t, c.file, c.dreq)))
		require.True(t, passive.NextEvent(&e))
		require.Equal(t, cm.EventDisconnected, e.Kind)
		require.NoError(t, passive.Disconnect(start, pid, nil))
		drep, _, _ := passive.NextMAD(nil)
		require.Equal(t, clear(find(t, c.file, c.drep), 24, 28), clear(drep, 24, 28), "DREP")
	}

	// A REQ for which nobody listens.
	m, err := cm.NewMachine(cm.Config{})
	require.NoError(t, err)
	m.HandleMAD(start, cm.Address{Local: addrB, Remote: addrA}, find(t, "cm-reject", "9"))
	rej, _, _ := m.NextMAD(nil)
	require.Equal(t, find(t, "cm-reject", "10"), rej, "REJ, to the byte")

	// udaddy's SIDR.
	var q cm.Message
	require.NoError(t, q.Decode(find(t, "cm-udaddy", "10")))
	require.NoError(t, m.Listen(q.SIDRREQ.ServiceID, 0))
	m.HandleMAD(start, cm.Address{Local: addrB, Remote: addrA}, find(t, "cm-udaddy", "10"))
	var e cm.Event
	require.True(t, m.NextEvent(&e))
	require.NoError(t, m.ReplySIDR(e.ID, &cm.SIDRReply{QPN: 0x11, QKey: 0x01234567}))
	rep, _, _ := m.NextMAD(nil)
	require.Equal(t, find(t, "cm-udaddy", "11"), rep, "SIDR_REP, to the byte")
	require.Zero(t, m.Calls())
}

// The packet path allocates no memory.
func TestMachineAllocations(t *testing.T) {
	if testenv.Allocates {
		t.Skip("the race detector allocates")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, err := cm.NewMachine(cm.Config{CAGUID: 1})
	require.NoError(t, err)
	b, err := cm.NewMachine(cm.Config{CAGUID: 2})
	require.NoError(t, err)
	require.NoError(t, b.Listen(svc, 0))
	now := start
	r := request()
	r.CMA, r.PrivateData = nil, append(request().CMA.AppendTo(nil), "hello"...)
	rep := &cm.Reply{QPN: 0x21}
	buf := make([]byte, 0, cm.Size)
	var e cm.Event
	pass := func(from, to *cm.Machine, src, dst cm.Address) {
		for {
			mad, _, ok := from.NextMAD(buf)
			if !ok {
				return
			}
			to.HandleMAD(now, cm.Address{Local: dst.Local, Remote: src.Local}, mad)
		}
	}
	A, B := cm.Address{Local: addrA}, cm.Address{Local: addrB}
	junk := [][]byte{nil, make([]byte, cm.Size), find(t, "cm-rping", "11"), find(t, "cm-rping", "12"),
		find(t, "cm-reject", "10"), find(t, "cm-rping", "49"), find(t, "cm-udaddy", "10")}
	once := func() {
		id, _ := a.Connect(now, r)
		pass(a, b, A, B)
		for b.NextEvent(&e) {
			_, _ = b.Accept(now, e.ID, rep)
		}
		pass(b, a, B, A)
		for a.NextEvent(&e) {
			_ = a.Ready(e.ID, nil)
		}
		pass(a, b, A, B)
		for b.NextEvent(&e) {
		}
		_ = a.Disconnect(now, id, nil)
		pass(a, b, A, B)
		for b.NextEvent(&e) {
			_ = b.Disconnect(now, e.ID, nil)
		}
		pass(b, a, B, A)
		for _, j := range junk {
			b.HandleMAD(now, cm.Address{Local: addrB, Remote: addrA}, j)
			pass(b, a, B, A)
		}
		now = now.Add(time.Second)
		a.Tick(now)
		b.Tick(now)
		for a.NextEvent(&e) || b.NextEvent(&e) {
		}
	}
	once()
	require.Zero(t, testenv.Mallocs(func() {
		for range 300 {
			once()
		}
	}))
	require.Zero(t, a.Calls()+b.Calls())
}

// A datagram that changes nothing is counted, once, by what MachineCounters says of it,
// and is responded to where a rule says so.
func TestMachineCounters(t *testing.T) {
	w, id := connected(t)
	bID := w.b.ids[0]
	require.Equal(t, cm.MachineCounters{Rx: 1, Tx: 2}, w.a.m.Counters())
	require.Equal(t, cm.MachineCounters{Rx: 2, Tx: 1}, w.b.m.Counters())
	const stranger = 0x7fffffff
	req := func(id, qpn uint32, guid uint64, svc cm.ServiceID) cm.Message {
		r := cm.REQ{LocalCommID: id, LocalQPN: qpn, LocalCAGUID: guid, ServiceID: svc, PathPacketPayloadMTU: cm.MTU1024}
		return cm.Message{Header: cm.NewHeader(cm.AttrREQ, 1), REQ: r}
	}
	for _, c := range []struct {
		name  string
		toA   bool
		m     cm.Message
		n     cm.MachineCounters // besides Rx
		sends []cm.AttributeID
	}{
		{"APR", false, cm.Message{Header: cm.NewHeader(cm.AttrAPR, 1), APR: cm.APR{LocalCommID: id, RemoteCommID: bID}}, cm.MachineCounters{Unknown: 1}, nil},
		{"RTU of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrRTU, 1), RTU: cm.RTU{LocalCommID: id, RemoteCommID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"RTU of another", false, cm.Message{Header: cm.NewHeader(cm.AttrRTU, 1), RTU: cm.RTU{LocalCommID: stranger, RemoteCommID: bID}}, cm.MachineCounters{Unknown: 1}, nil},
		{"RTU again", false, cm.Message{Header: cm.NewHeader(cm.AttrRTU, 1), RTU: cm.RTU{LocalCommID: id, RemoteCommID: bID}}, cm.MachineCounters{Duplicates: 1}, nil},
		{"MRA of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrMRA, 1), MRA: cm.MRA{LocalCommID: id, RemoteCommID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"MRA of no REQ", true, cm.Message{Header: cm.NewHeader(cm.AttrMRA, 1), MRA: cm.MRA{LocalCommID: bID, RemoteCommID: id}}, cm.MachineCounters{Unknown: 1}, nil},
		{"MRA of no REP", false, cm.Message{Header: cm.NewHeader(cm.AttrMRA, 1), MRA: cm.MRA{LocalCommID: id, RemoteCommID: bID, MessageMRAed: cm.MRAedREP}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REJ of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrREJ, 1), REJ: cm.REJ{LocalCommID: id, RemoteCommID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REJ of another", false, cm.Message{Header: cm.NewHeader(cm.AttrREJ, 1), REJ: cm.REJ{LocalCommID: stranger, RemoteCommID: bID}}, cm.MachineCounters{Unknown: 1}, nil},
		{"DREQ of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 1), DREQ: cm.DREQ{LocalCommID: id, RemoteCommID: stranger, RemoteQPNEECN: 0x21}},
			cm.MachineCounters{Unknown: 1, Tx: 1}, []cm.AttributeID{cm.AttrDREP}},
		{"DREQ of another", false, cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 1), DREQ: cm.DREQ{LocalCommID: stranger, RemoteCommID: bID, RemoteQPNEECN: 0x21}},
			cm.MachineCounters{Unknown: 1, Tx: 1}, []cm.AttributeID{cm.AttrDREP}},
		{"DREQ of another queue pair", false, cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 1), DREQ: cm.DREQ{LocalCommID: id, RemoteCommID: bID, RemoteQPNEECN: 0x22}},
			cm.MachineCounters{Unknown: 1}, nil},
		{"DREP of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrDREP, 1), DREP: cm.DREP{LocalCommID: id, RemoteCommID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"DREP of no DREQ", false, cm.Message{Header: cm.NewHeader(cm.AttrDREP, 1), DREP: cm.DREP{LocalCommID: id, RemoteCommID: bID}}, cm.MachineCounters{Duplicates: 1}, nil},
		{"LAP of another", false, cm.Message{Header: cm.NewHeader(cm.AttrLAP, 1), LAP: cm.LAP{LocalCommID: stranger, RemoteCommID: bID}},
			cm.MachineCounters{Unknown: 1, Tx: 1}, []cm.AttributeID{cm.AttrAPR}},
		{"SIDR_REP of nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrSIDRREP, 1), SIDRREP: cm.SIDRREP{RequestID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"SIDR_REP of a connection", true, cm.Message{Header: cm.NewHeader(cm.AttrSIDRREP, 1), SIDRREP: cm.SIDRREP{RequestID: id}}, cm.MachineCounters{Unknown: 1}, nil},
		{"SIDR_REQ for nobody", false, cm.Message{Header: cm.NewHeader(cm.AttrSIDRREQ, 1), SIDRREQ: cm.SIDRREQ{RequestID: 5, ServiceID: 99}},
			cm.MachineCounters{NoListener: 1, Tx: 1}, []cm.AttributeID{cm.AttrSIDRREP}},
		{"REP of nobody", true, cm.Message{Header: cm.NewHeader(cm.AttrREP, 1), REP: cm.REP{LocalCommID: bID, RemoteCommID: stranger}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REP without an ID", true, cm.Message{Header: cm.NewHeader(cm.AttrREP, 1), REP: cm.REP{RemoteCommID: id}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REP of another", true, cm.Message{Header: cm.NewHeader(cm.AttrREP, 1), REP: cm.REP{LocalCommID: stranger, RemoteCommID: id}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REP to the passive side", false, cm.Message{Header: cm.NewHeader(cm.AttrREP, 1), REP: cm.REP{LocalCommID: id, RemoteCommID: bID}}, cm.MachineCounters{Unknown: 1}, nil},
		{"REP again", true, cm.Message{Header: cm.NewHeader(cm.AttrREP, 1), REP: cm.REP{LocalCommID: bID, RemoteCommID: id}},
			cm.MachineCounters{Duplicates: 1, Tx: 1}, []cm.AttributeID{cm.AttrRTU}},
		{"REQ without an ID", false, req(0, 0x12, 0xc, svc), cm.MachineCounters{Malformed: 1}, nil},
		{"REQ again", false, req(id, 0x11, 0xa, svc), cm.MachineCounters{Duplicates: 1}, nil},
		{"REQ for nobody", false, req(5, 0x12, 0xc, 99), cm.MachineCounters{NoListener: 1, Tx: 1}, []cm.AttributeID{cm.AttrREJ}},
		{"REQ of a queue pair that has a connection", false, req(5, 0x11, 0xa, svc), cm.MachineCounters{Stale: 1, Tx: 2}, []cm.AttributeID{cm.AttrREJ, cm.AttrDREQ}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, peer := w.b, w.a
			if c.toA {
				s, peer = w.a, w.b
			}
			want := s.m.Counters()
			require.True(t, s.m.HandleMAD(w.now, cm.Address{Local: s.addr, Remote: peer.addr}, c.m.AppendTo(nil)))
			for _, what := range c.sends {
				require.Equal(t, what, next(t, s.m).Header.AttributeID)
			}
			quiet(t, s.m)
			var e cm.Event
			require.False(t, s.m.NextEvent(&e), "%v", e.Kind)
			want.Rx++
			for _, f := range []struct{ to, by *uint64 }{{&want.Tx, &c.n.Tx}, {&want.Duplicates, &c.n.Duplicates}, {&want.Malformed, &c.n.Malformed},
				{&want.Unknown, &c.n.Unknown}, {&want.NoListener, &c.n.NoListener}, {&want.Stale, &c.n.Stale}} {
				*f.to += *f.by
			}
			require.Equal(t, want, s.m.Counters())
		})
	}
}

// Responses that belong to no call wait in a bounded place: those that find it full are
// counted, and those that wait are not lost to them.
func TestMachineRepliesLost(t *testing.T) {
	m, err := cm.NewMachine(cm.Config{})
	require.NoError(t, err)
	for i := range 1000 {
		d := cm.Message{Header: cm.NewHeader(cm.AttrDREQ, uint64(i)), DREQ: cm.DREQ{LocalCommID: 1, RemoteCommID: 2}}
		m.HandleMAD(start, cm.Address{Local: addrA, Remote: addrB}, d.AppendTo(nil))
	}
	lost := m.Counters().RepliesLost
	require.NotZero(t, lost)
	for i := range 1000 - int(lost) {
		require.Equal(t, uint64(i), next(t, m).Header.TransactionID)
	}
	quiet(t, m)
}

// What is sent again because no response arrived is counted, and so is the end of that.
func TestMachineCountsRetries(t *testing.T) {
	w := newWorld(t)
	w.fate = func(_ *side, id cm.AttributeID, n int) (int, time.Duration) {
		if id == cm.AttrREQ && n <= 2 {
			return 0, 0
		}
		return 1, 0
	}
	id, err := w.a.m.Connect(w.now, request())
	require.NoError(t, err)
	w.run(time.Minute)
	require.Equal(t, cm.Established, w.a.m.State(id))
	require.Equal(t, cm.MachineCounters{Rx: 1, Tx: 4, Retries: 2}, w.a.m.Counters())
	w.fate = func(*side, cm.AttributeID, int) (int, time.Duration) { return 0, 0 }
	require.NoError(t, w.a.m.Disconnect(w.now, id, nil))
	w.run(time.Hour)
	c := w.a.m.Counters()
	require.Equal(t, uint64(1), c.TimedOut)
	require.Equal(t, c.Tx, uint64(4+1)+c.Retries-2, "each retry is a DREQ")
}

// Calls begin and end in any order: each is found by its number as long as it lives, and
// not a moment longer, whatever else shares its place in the tables.
func TestMachineFindsCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "calls") // of 16 lists
		m, err := cm.NewMachine(cm.Config{MaxCalls: n})
		require.NoError(t, err)
		var alive, gone []uint32
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			if len(alive) == 0 || len(alive) < n && rapid.IntRange(0, 2).Draw(t, "begin") != 0 {
				id, err := m.Connect(start, request())
				require.NoError(t, err)
				alive = append(alive, id)
			} else {
				i := rapid.IntRange(0, len(alive)-1).Draw(t, "ends")
				rej := cm.Message{Header: cm.NewHeader(cm.AttrREJ, 1), REJ: cm.REJ{RemoteCommID: alive[i], Reason: cm.ReasonConsumer}}
				m.HandleMAD(start, cm.Address{Local: addrA, Remote: addrB}, rej.AppendTo(nil))
				var e cm.Event
				require.True(t, m.NextEvent(&e))
				require.Equal(t, alive[i], e.ID)
				require.True(t, e.Last)
				gone, alive = append(gone, alive[i]), slices.Delete(alive, i, i+1)
			}
			for _, id := range alive {
				require.Equal(t, cm.ReqSent, m.State(id))
			}
			for _, id := range gone {
				require.Equal(t, cm.Idle, m.State(id))
			}
			require.Equal(t, len(alive), m.Calls())
		}
	})
}

// An event says in a line what happened, with whom, and who ended it.
func TestEventString(t *testing.T) {
	e := cm.Event{ID: 7, Addr: cm.Address{Remote: addrB}, Kind: cm.EventRejected, Rejected: cm.RejectedREP, Reason: cm.ReasonStaleConnection}
	require.Regexp(t, "^call 0x7 with 192.0.2.1: rejected by the peer: 10 of REP: ", e.String())
	e.Local = true
	require.Regexp(t, "^call 0x7 with 192.0.2.1: rejected here: 10 of REP: ", e.String())
	e = cm.Event{ID: 7, Addr: cm.Address{Remote: addrB}, Kind: cm.EventSIDRReply, Status: cm.SIDRUnsupportedService}
	require.Contains(t, e.String(), cm.SIDRUnsupportedService.String())
	e.Kind = cm.EventReply
	require.Equal(t, "call 0x7 with 192.0.2.1: reply", e.String())
}

// TestMachineConfig: each number of a Config at its ends, and beyond them; what is left out
// is what the Linux kernel has.
func TestMachineConfig(t *testing.T) {
	for _, f := range []struct {
		name  string
		most  int
		large bool // too large to be tried whole
		set   func(*cm.Config, int)
	}{
		{"ResponseTimeout", 24, false, func(c *cm.Config, n int) { c.ResponseTimeout = uint8(n) }},
		{"PacketLifetime", 24, false, func(c *cm.Config, n int) { c.PacketLifetime = uint8(n) }},
		{"ServiceTimeout", 24, false, func(c *cm.Config, n int) { c.ServiceTimeout = uint8(n) }},
		{"AckDelay", 31, false, func(c *cm.Config, n int) { c.AckDelay = uint8(n) }},
		{"MaxRetries", 15, false, func(c *cm.Config, n int) { c.MaxRetries = uint8(n) }},
		{"MaxCalls", 1 << 20, true, func(c *cm.Config, n int) { c.MaxCalls = n }},
		{"MaxHalfOpen", 1 << 20, false, func(c *cm.Config, n int) { c.MaxHalfOpen, c.MaxHalfOpenPeer = n, 1 }},
		{"MaxHalfOpenPeer", 1 << 20, false, func(c *cm.Config, n int) { c.MaxHalfOpenPeer = n }},
	} {
		for _, n := range []int{0, 1, f.most, f.most + 1, -1} {
			if n == f.most && f.large || n < 0 && f.most < 32 {
				continue
			}
			c := cm.Config{CAGUID: 1, MaxCalls: 2}
			f.set(&c, n)
			_, err := cm.NewMachine(c)
			if n >= 0 && n <= f.most {
				require.NoError(t, err, "%s %d", f.name, n)
				continue
			}
			require.ErrorIs(t, err, cm.ErrConfig)
			require.EqualError(t, err, fmt.Sprintf("cm: configuration value out of range: %s is %d, want 1 to %d", f.name, n, f.most))
		}
	}
}

// Rule CM-8: a REQ for a service, or with a path MTU, that there is not is refused for that
// reason; so is one of RDMA-CM's services without its header.
func TestMachineRefusesREQ(t *testing.T) {
	for name, test := range map[string]struct {
		change func(m *cm.Message)
		want   cm.Reason // 0: it is not refused
	}{
		"as it is":                   {func(*cm.Message) {}, 0},
		"RD":                         {func(m *cm.Message) { m.REQ.TransportServiceType = cm.ServiceRD }, cm.ReasonInvalidTransportServiceType},
		"extended, of no known kind": {func(m *cm.Message) { m.REQ.TransportServiceType = cm.ServiceExtended }, cm.ReasonInvalidTransportServiceType},
		"extended, of XRC": {func(m *cm.Message) {
			m.REQ.TransportServiceType, m.REQ.ExtendedTransportType = cm.ServiceExtended, cm.ExtendedXRC
		}, 0},
		"UC":                          {func(m *cm.Message) { m.REQ.TransportServiceType = cm.ServiceUC }, 0},
		"path MTU code 0":             {func(m *cm.Message) { m.REQ.PathPacketPayloadMTU = 0 }, cm.ReasonInvalidPathMTU},
		"path MTU code 6":             {func(m *cm.Message) { m.REQ.PathPacketPayloadMTU = 6 }, cm.ReasonInvalidPathMTU},
		"path MTU of 4096":            {func(m *cm.Message) { m.REQ.PathPacketPayloadMTU = cm.MTU4096 }, 0},
		"a header of another version": {func(m *cm.Message) { m.REQ.PrivateData = bytes.Repeat([]byte{0xff}, 92) }, cm.ReasonConsumer},
	} {
		w := newWorld(t)
		_, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		mad, to, ok := w.a.m.NextMAD(nil)
		require.True(t, ok)
		var m cm.Message
		require.NoError(t, m.Decode(mad))
		m.REQ.PrivateData = bytes.Clone(m.REQ.PrivateData)
		test.change(&m)
		w.b.m.HandleMAD(w.now, cm.Address{Local: to.Remote, Remote: to.Local}, m.AppendTo(nil))
		mad, _, ok = w.b.m.NextMAD(nil)
		require.Equal(t, test.want != 0, ok, name)
		if !ok {
			require.True(t, w.b.m.NextEvent(new(cm.Event)), name)
			continue
		}
		id := m.REQ.LocalCommID
		require.NoError(t, m.Decode(mad))
		require.Equal(t, []any{cm.AttrREJ, cm.RejectedREQ, test.want, id, uint32(0)},
			[]any{m.Header.AttributeID, m.REJ.MessageRejected, m.REJ.Reason, m.REJ.RemoteCommID, m.REJ.LocalCommID}, name)
		require.False(t, w.b.m.NextEvent(new(cm.Event)), name)
		require.Zero(t, w.b.m.Calls(), name)
	}
}

// What an owner asks for and does not fit is refused at once, and changes nothing.
func TestMachineTooLong(t *testing.T) {
	for _, n := range []int{0, 1} { // beyond what fits
		w := newWorld(t)
		w.b.on = func(s *side, e *cm.Event) {
			if e.Kind != cm.EventRequest {
				return
			}
			long := func(room int) []byte { return make([]byte, room+n) }
			require.ErrorIs(t, s.m.Reject(e.ID, cm.ReasonConsumer, make([]byte, 73), nil), cm.ErrTooLong)
			require.ErrorIs(t, s.m.Reject(e.ID, cm.ReasonConsumer, nil, make([]byte, 149)), cm.ErrTooLong)
			_, err := s.m.Accept(w.now, e.ID, &cm.Reply{QPN: 1 << 24})
			require.ErrorIs(t, err, cm.ErrRange)
			if _, err = s.m.Accept(w.now, e.ID, &cm.Reply{QPN: 1, PrivateData: long(196)}); n == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, cm.ErrTooLong)
			require.NoError(t, s.m.Reject(e.ID, cm.ReasonConsumer, make([]byte, 72), make([]byte, 148)))
		}
		_, err := w.a.m.Connect(w.now, request())
		require.NoError(t, err)
		w.run(time.Second)
		if n == 0 {
			require.Len(t, w.a.event(cm.EventReply).PrivateData, 196)
		} else {
			require.Equal(t, cm.ReasonConsumer, w.a.event(cm.EventRejected).Reason)
			require.Len(t, w.a.event(cm.EventRejected).PrivateData, 148)
			require.Len(t, w.a.event(cm.EventRejected).Info, 72)
		}
		w.over()

		w = newWorld(t)
		w.b.on = func(s *side, e *cm.Event) {
			require.ErrorIs(t, s.m.ReplySIDR(e.ID, &cm.SIDRReply{QPN: 1 << 24}), cm.ErrRange)
			require.ErrorIs(t, s.m.ReplySIDR(e.ID, &cm.SIDRReply{PrivateData: make([]byte, 137)}), cm.ErrTooLong)
			require.NoError(t, s.m.ReplySIDR(e.ID, &cm.SIDRReply{Info: make([]byte, 72), PrivateData: make([]byte, 136)}))
		}
		r := request()
		r.PrivateData = make([]byte, 216-cm.CMAHeaderSize+n)
		_, err = w.a.m.ResolveSIDR(w.now, r)
		if n != 0 {
			require.ErrorIs(t, err, cm.ErrTooLong)
			require.Zero(t, w.a.m.Calls())
			continue
		}
		require.NoError(t, err)
		w.run(time.Second)
		require.Len(t, w.a.event(cm.EventSIDRReply).Info, 72)
		w.over()
	}
}

// Names of states and kinds of events that have none are numbers.
func TestMachineNames(t *testing.T) {
	require.Equal(t, []string{"SIDR_REQ received", "15", "200"}, []string{cm.SIDRReqReceived.String(), cm.State(15).String(), cm.State(200).String()})
	require.Equal(t, []string{"SIDR reply", "10", "200"}, []string{cm.EventSIDRReply.String(), cm.EventKind(10).String(), cm.EventKind(200).String()})
}

// Rule CM-15: who receives a DREQ sends nothing more of the connection's beginning: a REP
// that its timer was to send again is dropped, and the DREP is next.
func TestMachineDREQBeforeREP(t *testing.T) {
	a, err := cm.NewMachine(cm.Config{CAGUID: 0xa})
	require.NoError(t, err)
	b, err := cm.NewMachine(cm.Config{CAGUID: 0xb})
	require.NoError(t, err)
	require.NoError(t, b.Listen(svc, 0))
	now := start
	next := func(m *cm.Machine) (cm.AttributeID, []byte) {
		mad, _, ok := m.NextMAD(nil)
		if !ok {
			return 0, nil
		}
		return attribute(mad), mad
	}
	event := func(m *cm.Machine, want cm.EventKind) uint32 {
		t.Helper()
		var e cm.Event
		require.True(t, m.NextEvent(&e))
		require.Equal(t, want, e.Kind)
		return e.ID
	}
	toA, toB := cm.Address{Local: addrA, Remote: addrB}, cm.Address{Local: addrB, Remote: addrA}
	id, err := a.Connect(now, request())
	require.NoError(t, err)
	_, mad := next(a)
	b.HandleMAD(now, toB, mad)
	call := event(b, cm.EventRequest)
	_, err = b.Accept(now, call, &cm.Reply{QPN: 0x22})
	require.NoError(t, err)
	kind, mad := next(b)
	require.Equal(t, cm.AttrREP, kind)
	a.HandleMAD(now, toA, mad)
	event(a, cm.EventReply)
	require.NoError(t, a.Ready(id, nil))
	kind, _ = next(a) // and is lost
	require.Equal(t, cm.AttrRTU, kind)
	require.NoError(t, a.Disconnect(now, id, nil))
	kind, mad = next(a)
	require.Equal(t, cm.AttrDREQ, kind)

	due, ok := b.Deadline()
	require.True(t, ok)
	now = due
	b.Tick(now) // the REP is to be sent again
	require.True(t, b.Pending())
	b.HandleMAD(now, toB, mad)
	require.False(t, b.Pending())
	kind, _ = next(b)
	require.Zero(t, kind)
	require.Equal(t, call, event(b, cm.EventDisconnected))
	require.NoError(t, b.Disconnect(now, call, nil))
	kind, _ = next(b)
	require.Equal(t, cm.AttrDREP, kind)
	kind, _ = next(b)
	require.Zero(t, kind)
}
