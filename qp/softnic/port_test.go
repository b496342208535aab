package softnic_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// pair is two ports on one wire in virtual time.
type pair struct {
	t     testing.TB
	now   time.Time
	ports [2]*softnic.Port
	regs  [2]*qp.Regions
	lose  func(b []byte) bool
	buf   []byte
}

func newPair(t testing.TB, gids [2]softnic.GID) *pair {
	p := &pair{t: t, now: time.Unix(1_800_000_000, 0)}
	for i := range p.ports {
		var err error
		p.regs[i], err = qp.NewRegions(16)
		require.NoError(t, err)
		p.ports[i], err = softnic.New(softnic.Config{
			MAC: frame.MAC{2, 0, 0, 0, 0, byte(i + 1)}, GIDs: []softnic.GID{gids[i]}, Regions: p.regs[i],
		})
		require.NoError(t, err)
	}
	return p
}

// run carries frames and fires timers until nothing is left, or until.
func (p *pair) run(until time.Duration) {
	end := p.now.Add(until)
	for {
		moved := false
		for i, port := range p.ports {
			for {
				b, ok := port.NextFrame(p.now, p.buf[:0])
				p.buf = b
				if !ok {
					break
				}
				moved = true
				if p.lose != nil && p.lose(b) {
					continue
				}
				p.ports[1-i].HandleFrame(p.now, b)
			}
		}
		if moved {
			p.now = p.now.Add(time.Microsecond)
			continue
		}
		var due time.Time
		for _, port := range p.ports {
			if d, ok := port.Deadline(); ok && (due.IsZero() || d.Before(due)) {
				due = d
			}
		}
		if due.IsZero() || due.After(end) {
			p.now = end
			return
		}
		p.now = due
		for _, port := range p.ports {
			port.Tick(p.now)
			if d, ok := port.Deadline(); ok {
				require.True(p.t, d.After(p.now), "after Tick the deadline is later than now")
			}
		}
	}
}

func (p *pair) connect(i int, q *softnic.QP, destQPN uint32) {
	dst, _ := p.ports[1-i].GID(0)
	a := qp.Attr{
		PKey: 0xffff, QKey: 0x1111, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic, PathMTU: 1024,
		DestQPN: destQPN, AH: qp.AHAttr{GID: dst}, RQPSN: 5, SQPSN: 5,
		MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 12, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
	}
	steps := []qp.AttrMask{
		qp.AttrPKey | qp.AttrAccess,
		qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
		qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic,
	}
	for s, m := range steps {
		a.State = qp.Init + qp.State(s)
		require.NoError(p.t, q.Modify(p.now, &a, m|qp.AttrState))
	}
}

func addr(s string) softnic.GID { return softnic.GID{Addr: netip.MustParseAddr(s)} }

func TestReliableOverEveryNetwork(t *testing.T) {
	for name, gids := range map[string][2]softnic.GID{
		"ipv4":      {addr("192.0.2.1"), addr("192.0.2.2")},
		"ipv6":      {addr("2001:db8::1"), addr("2001:db8::2")},
		"grh":       {{Addr: netip.MustParseAddr("fe80::1"), Type: softnic.RoCEv1}, {Addr: netip.MustParseAddr("fe80::2"), Type: softnic.RoCEv1}},
		"grh, ipv4": {{Addr: netip.MustParseAddr("192.0.2.1"), Type: softnic.RoCEv1}, {Addr: netip.MustParseAddr("192.0.2.2"), Type: softnic.RoCEv1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, gids)
			if gids[0].Type == softnic.RoCEv1 {
				// RoCE v1 over IPv4 GIDs has the MAC from elsewhere.
				for i := range 2 {
					p.ports[i].AddNeighbor(gids[1-i].Addr, p.ports[1-i].MAC())
				}
			}
			rng := rand.New(rand.NewPCG(1, 2))
			p.lose = func([]byte) bool { return rng.IntN(10) == 0 }
			var cqs [2]*softnic.CQ
			var qps [2]*softnic.QP
			for i := range 2 {
				cqs[i] = softnic.NewCQ()
				var err error
				qps[i], err = p.ports[i].CreateQP(softnic.QPConfig{
					Config: qp.Config{MaxSendWR: 8, MaxRecvWR: 8, MaxRdAtomic: 4, MaxDestRdAtomic: 4},
					SendCQ: cqs[i], RecvCQ: cqs[i],
				})
				require.NoError(t, err)
			}
			p.connect(0, qps[0], qps[1].Num())
			p.connect(1, qps[1], qps[0].Num())

			msg := make([]byte, 100_000)
			for i := range msg {
				msg[i] = byte(rng.Uint32())
			}
			got := make([]byte, len(msg))
			mem := make([]byte, len(msg))
			back := make([]byte, len(msg))
			key, err := p.regs[1].Register(qp.Region{Data: mem, Addr: 0x1000, Access: qp.RemoteWrite | qp.RemoteRead})
			require.NoError(t, err)
			require.NoError(t, qps[1].PostRecv(&qp.RecvWR{ID: 7, Local: got}))
			for _, wr := range []qp.SendWR{
				{ID: 1, Op: qp.OpSend, Flags: qp.Signaled, Local: msg},
				{ID: 2, Op: qp.OpWrite, Flags: qp.Signaled, Local: msg, RemoteAddr: 0x1000, RKey: key},
				{ID: 3, Op: qp.OpRead, Flags: qp.Signaled, Local: back, RemoteAddr: 0x1000, RKey: key},
			} {
				require.NoError(t, qps[0].PostSend(p.now, &wr))
			}
			p.run(time.Minute)

			var wc qp.Completion
			for id := uint64(1); id <= 3; id++ {
				require.True(t, cqs[0].Poll(&wc), id)
				require.Equal(t, id, wc.ID)
				require.Equal(t, qp.Success, wc.Status)
			}
			require.False(t, cqs[0].Poll(&wc))
			require.True(t, cqs[1].Poll(&wc))
			require.EqualValues(t, 7, wc.ID)
			require.True(t, bytes.Equal(msg, got))
			require.True(t, bytes.Equal(msg, mem))
			require.True(t, bytes.Equal(msg, back))
		})
	}
}

// Each frame that is dropped is traced once, with the reason: by the port, or by the QP.
func TestTrace(t *testing.T) {
	var frames []softnic.Trace
	var packets []qp.Trace
	p := onePort(t, 1, softnic.Config{
		Trace:   func(tr softnic.Trace) { frames = append(frames, tr) },
		TraceQP: func(tr qp.Trace) { packets = append(packets, tr) },
	}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	for _, c := range []struct {
		change func(*frame.Frame)
		want   softnic.Result
	}{
		{func(f *frame.Frame) { f.Src = netip.MustParseAddr("192.0.2.3") }, softnic.WrongAddress},
		{func(f *frame.Frame) { f.Packet.DestQP = 0x123456 }, softnic.NoQP},
		{func(f *frame.Frame) { f.Packet.Opcode = 0xff }, softnic.Malformed},
		{func(f *frame.Frame) { f.Packet.PSN = f.Packet.PSN.Add(5) }, softnic.Delivered},
	} {
		frames, packets = nil, nil
		f := request(q)
		c.change(f)
		require.Equal(t, c.want, p.HandleFrame(start, f.AppendTo(nil)))
		switch c.want {
		case softnic.Delivered:
			require.Empty(t, frames)
			require.Equal(t, []qp.Trace{{QPN: q.Num(), Verdict: qp.OutOfSequence, Reason: qp.WhyGap, Opcode: f.Packet.Opcode,
				PSN: f.Packet.PSN, Expected: uint32(q.Attr().RQPSN)}}, packets)
		case softnic.Malformed:
			require.Equal(t, []softnic.Trace{{Result: c.want}}, frames)
		default:
			require.Equal(t, []softnic.Trace{{Result: c.want, Src: f.Src, Dst: f.Dst, QPN: f.Packet.DestQP, Opcode: f.Packet.Opcode, PSN: f.Packet.PSN}}, frames)
			require.Empty(t, packets)
		}
	}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("dropped", "frame", softnic.Trace{Result: softnic.NoQP, QPN: 7})
	require.Contains(t, b.String(), `frame.result="no QP"`)
	require.Contains(t, b.String(), "frame.qpn=7")
}

// Rule EE-3 over two ports, with a link that takes one frame of each side at a time:
// a peer that always has two READs outstanding, or WRITEs that are acknowledged one
// by one, does not keep our SEND back.
func TestTurns(t *testing.T) {
	for _, op := range []qp.Op{qp.OpRead, qp.OpWrite} {
		p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
		var qs [2]*softnic.QP
		var cqs [2]*softnic.CQ
		for i := range qs {
			g, _ := p.ports[1-i].GID(0)
			qs[i], cqs[i] = qpOf(t, p.ports[i], p.now, qp.RC, qp.AHAttr{GID: g, MAC: p.ports[1-i].MAC()}, nil)
		}
		mem := make([]byte, 16<<10)
		key, err := p.ports[0].Regions().Register(qp.Region{Data: mem, Access: qp.RemoteRead | qp.RemoteWrite})
		require.NoError(t, err)
		require.NoError(t, qs[1].PostRecv(&qp.RecvWR{Local: make([]byte, 8)}))

		local := make([]byte, 16<<10)
		if op == qp.OpWrite {
			local = local[:8]
		}
		outstanding, served := 0, 0
		var wc qp.Completion
		for step := 0; ; step++ {
			require.Less(t, step, 1000, "%v: the SEND was never received, %d done", op, served)
			for outstanding < 2+14*int(min(1, 1024/uint(len(local)))) {
				require.NoError(t, qs[1].PostSend(p.now, &qp.SendWR{Op: op, Flags: qp.Signaled, Local: local, RKey: key}))
				outstanding++
			}
			if step == 100 {
				require.NoError(t, qs[0].PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Local: []byte("through")}))
			}
			for i, port := range p.ports {
				if b, ok := port.NextFrame(p.now, nil); ok {
					p.ports[1-i].HandleFrame(p.now, b)
				}
			}
			p.now = p.now.Add(100 * time.Nanosecond)
			got := false
			for cqs[1].Poll(&wc) {
				require.Equal(t, qp.Success, wc.Status)
				if wc.Op == qp.OpRecv {
					got = true
					continue
				}
				outstanding--
				served++
			}
			if got {
				require.Less(t, step, 110, op)
				break
			}
		}
		require.Positive(t, served)
	}
}

// A paused priority sends no packets, others do, and its own continue in order after
// the pause.
func TestSetPaused(t *testing.T) {
	p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
	now := p.now
	port := p.ports[0]
	port.AddNeighbor(netip.MustParseAddr("192.0.2.2"), p.ports[1].MAC())
	dst, _ := p.ports[1].GID(0)
	var qs [2]*softnic.QP
	for i := range qs {
		var err error
		qs[i], err = port.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: 4}})
		require.NoError(t, err)
		a := qp.Attr{PKey: 0xffff, QKey: 1, SQPSN: 1}
		for s, m := range []qp.AttrMask{qp.AttrPKey | qp.AttrQKey, 0, qp.AttrSQPSN} {
			a.State = qp.Init + qp.State(s)
			require.NoError(t, qs[i].Modify(now, &a, m|qp.AttrState))
		}
		for range 2 {
			require.NoError(t, qs[i].PostSend(now, &qp.SendWR{Local: []byte{1}, RemoteQPN: uint32(100 + i),
				AH: qp.NewAddressHandle(qp.AHAttr{GID: dst, TrafficClass: uint8(i) << 5})}))
		}
	}
	next := func() uint32 {
		var f frame.Frame
		if !port.NextDecoded(now, &f) {
			return 0
		}
		return f.Packet.DestQP
	}
	port.SetPaused(1 << 1)
	require.EqualValues(t, 100, next())
	require.False(t, port.Idle())
	require.EqualValues(t, 100, next())
	require.Zero(t, next())
	require.True(t, port.Idle())
	now = now.Add(time.Second)
	port.Tick(now)
	require.Zero(t, next())
	port.SetPaused(0)
	require.False(t, port.Idle())
	require.EqualValues(t, 101, next())
	require.EqualValues(t, 101, next())
	require.Zero(t, next())
	require.EqualValues(t, 6, softnic.Priority(48<<2, false, 0))
	require.EqualValues(t, 5, softnic.Priority(48<<2, true, 5<<13|1))
}

// A QP after Destroy, and one that no port created: calls fail with an error.
func TestNoPort(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	gone, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	num := gone.Num()
	gone.Destroy()
	gone.Destroy()
	require.Equal(t, num, gone.Num())
	require.Equal(t, qp.RTS, gone.State())
	for _, q := range []*softnic.QP{gone, {}} {
		require.ErrorIs(t, q.PostSend(start, &qp.SendWR{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.PostRecv(&qp.RecvWR{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.Modify(start, &qp.Attr{}, qp.AttrState), softnic.ErrNoPort)
		require.ErrorIs(t, q.Connect(start, &qp.Attr{}), softnic.ErrNoPort)
		require.ErrorIs(t, q.AttachMulticast(netip.MustParseAddr("239.1.1.1")), softnic.ErrNoPort)
		q.DetachMulticast(netip.MustParseAddr("239.1.1.1"))
		rate, limited := q.Rate()
		require.Zero(t, rate)
		require.False(t, limited)
		q.Type()
		q.Attr()
		q.Counters()
		q.Outstanding()
		q.Destroy()
	}
}

func TestRefused(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC, QPN: softnic.GSIQPN}})
	require.ErrorIs(t, err, softnic.ErrNoQP, "QP 1 is for datagrams")
	rc, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	require.ErrorIs(t, rc.AttachMulticast(netip.MustParseAddr("239.1.1.1")), qp.ErrOp)
	require.ErrorIs(t, rc.PostSend(start, nil), qp.ErrNil)
	require.ErrorIs(t, rc.PostRecv(nil), qp.ErrNil)
	require.ErrorIs(t, rc.Modify(start, nil, qp.AttrAH), qp.ErrNil)
	_, err = p.CreateAH(qp.AHAttr{SGIDIndex: 1})
	require.ErrorIs(t, err, softnic.ErrAddress)
	h, err := p.CreateAH(qp.AHAttr{GID: gidOf("192.0.2.2")})
	require.NoError(t, err)
	require.Equal(t, gidOf("192.0.2.2"), h.Attr().GID)
}

// Connect checks what Modify checks, and changes nothing on an error.
func TestConnect(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{MaxSendWR: 1}})
	require.NoError(t, err)
	a := qp.Attr{PathMTU: 1024, DestQPN: 5, AH: toPeer()}
	bad := a
	bad.PKey = 0x1234
	require.ErrorIs(t, q.Connect(start, &bad), softnic.ErrPKey)
	bad = a
	bad.AH = qp.AHAttr{}
	require.ErrorIs(t, q.Connect(start, &bad), softnic.ErrAddress)
	require.Equal(t, qp.Reset, q.State())
	require.NoError(t, q.Connect(start, &a))
	require.NoError(t, q.PostSend(start, &qp.SendWR{}))
	frames := drain(p, start)
	require.Len(t, frames, 1)
	f := decode(t, frames[0])
	require.Equal(t, uint32(5), f.Packet.DestQP)
	require.Equal(t, "192.0.2.2", f.Dst.String())
	require.Equal(t, uint16(0xffff), f.Packet.PKey)
}

// An XRC target needs a domain other than 0, in which ordinary SRQs are.
func TestXRCDomain0(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	_, err := p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.XRCRecv}})
	require.ErrorIs(t, err, softnic.ErrConfig)
	_, err = p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.XRCRecv}, XRCD: 1})
	require.NoError(t, err)
}

// A UD QP that has nothing to send is not held back by the priority of an address
// handle that it has by the way: what it posts to another priority leaves at once.
func TestHeldWithoutDatagram(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.UD, qp.AHAttr{}, nil)
	p.SetPaused(1)
	f := request(q)
	f.Packet.Opcode, f.Packet.DETH.QKey = bth.UD.Opcode(bth.SendOnly), 0x1111
	p.HandleFrame(start, f.AppendTo(nil)) // touches q
	require.Empty(t, drain(p, start))
	h, err := p.CreateAH(qp.AHAttr{GID: gidOf("192.0.2.2"), MAC: peerMAC, TrafficClass: 3 << 5})
	require.NoError(t, err)
	require.NoError(t, q.PostSend(start, &qp.SendWR{AH: h, RemoteQPN: 5}))
	require.Len(t, drain(p, start), 1)
}

// TestHeaderChecksum: a flipped bit of the IPv4 header, which the ICRC does not cover
// in the type of service and the time to live, is found by the header's checksum.
func TestHeaderChecksum(t *testing.T) {
	p := onePort(t, 1, softnic.Config{ECT: true}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	for i, at := range []int{15, 22, 24} { // type of service, time to live, checksum
		b[at] ^= 3
		require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
		b[at] ^= 3
		require.EqualValues(t, i+1, p.Counters().RxHeaderChecksum)
	}
	sum := [2]byte(b[24:])
	b[24], b[25] = 0, 0 // as a host leaves it to its adapter: not from a wire
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	copy(b[24:], sum[:])
	require.Zero(t, p.Counters().RxMalformed)
	require.Zero(t, q.Counters().RxPackets)
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, b))
}

// TestRunts: a frame too short to be recognized as RoCE is not malformed RoCE.
func TestRunts(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	for n := range len(b) {
		want := softnic.NotRoCE
		if n >= 38 { // the UDP destination port
			want = softnic.Malformed
		}
		require.Equal(t, want, p.HandleFrame(start, b[:n]), n)
	}
	require.EqualValues(t, 1+38, p.Counters().RxNotRoCE)
	// Fragments: the first one is RoCE; of a later one the protocol is unknown.
	b[20] = 0x20
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	b[20], b[21] = 0, 1
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, b))
}
