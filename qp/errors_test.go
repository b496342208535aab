package qp_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// Errors name the field, its value and the range, or the call and the state.
func TestErrorTexts(t *testing.T) {
	_, err := qp.New(qp.Config{MaxSendWR: 1<<20 + 1})
	require.ErrorIs(t, err, qp.ErrConfig)
	require.EqualError(t, err, "qp: MaxSendWR is 1048577, want 0 to 1048576")
	_, err = qp.New(qp.Config{Type: qp.UC, SRQ: new(qp.SRQ)})
	require.ErrorIs(t, err, qp.ErrConfig)
	require.EqualError(t, err, "qp: a QP of type UC has no SRQ")
	_, err = qp.New(qp.Config{Type: qp.XRCRecv})
	require.ErrorIs(t, err, qp.ErrConfig)
	// On 32 bits the product was once negative.
	_, err = qp.New(qp.Config{MaxSendWR: 1 << 20, MaxInline: 4096})
	require.ErrorIs(t, err, qp.ErrConfig)
	require.EqualError(t, err, "qp: MaxSendWR x MaxInline is 4294967296, want 0 to 1073741824")
	_, err = qp.New(qp.Config{Selective: qp.Selective{Packets: 8, RTOLow: 999}})
	require.ErrorIs(t, err, qp.ErrConfig)
	require.EqualError(t, err, "qp: Selective.RTOLow is 999, want 1000 to 1000000000")

	q, err := qp.New(base(qp.RC))
	require.NoError(t, err)
	require.EqualError(t, q.PostRecv(&qp.RecvWR{}), "qp: PostRecv in RESET")
	require.EqualError(t, in(t, base(qp.RC), qp.Init).PostSend(epoch, &qp.SendWR{}), "qp: PostSend in INIT")
	a := *good(qp.RTS)
	a.PathMTU, a.RetryCnt = 1000, 8
	err = q.Connect(epoch, &a)
	require.EqualError(t, err, "qp: INIT to RTR: path_mtu is 1000, want 256, 512, 1024, 2048 or 4096")
	require.Equal(t, qp.Reset, q.State())
	a.PathMTU = 1024
	require.EqualError(t, q.Connect(epoch, &a), "qp: RTR to RTS: retry_cnt is 8, want 0 to 7")
	require.Equal(t, qp.Reset, q.State())
}

// Connect is the ladder of three calls in one, for every type.
func TestQPConnect(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.UC, qp.UD, qp.XRCSend, qp.XRCRecv} {
		ladder := in(t, base(typ), qp.RTS)
		q, err := qp.New(base(typ))
		require.NoError(t, err)
		a := good(qp.Reset)
		a.PathMTU = ladder.Attr().PathMTU // UD may leave it out
		require.NoError(t, q.Connect(epoch, a), typ)
		require.Equal(t, ladder.Attr(), q.Attr(), typ)
		var e *qp.TransitionError
		require.ErrorAs(t, q.Connect(epoch, good(qp.Reset)), &e)
		require.Equal(t, qp.TransitionError{From: qp.RTS, To: qp.RTS}, *e)
	}
	q, err := qp.New(base(qp.RC))
	require.NoError(t, err)
	a := good(qp.Reset)
	a.PKey = 0
	require.NoError(t, q.Connect(epoch, a))
	require.Equal(t, uint16(0xffff), q.Attr().PKey)
	require.Zero(t, a.PKey, "the caller's stays as it is")
}

// Nil arguments and QPs that New did not make get an error, or nothing happens.
func TestMisuse(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	require.ErrorIs(t, q.PostSend(epoch, nil), qp.ErrNil)
	require.ErrorIs(t, q.PostRecv(nil), qp.ErrNil)
	require.ErrorIs(t, q.Modify(epoch, nil, qp.AttrState), qp.ErrNil)
	require.ErrorIs(t, q.Connect(epoch, nil), qp.ErrNil)
	require.Equal(t, qp.Invalid, q.HandlePacket(epoch, nil, nil))
	srq, err := qp.NewSRQ(1, 1)
	require.NoError(t, err)
	require.ErrorIs(t, srq.PostRecv(nil), qp.ErrNil)

	var zero qp.QP
	var out qp.Outgoing
	var c qp.Completion
	var e qp.Event
	require.ErrorIs(t, zero.Modify(epoch, good(qp.Init), qp.AttrState), qp.ErrZero)
	require.ErrorIs(t, zero.Connect(epoch, good(qp.Init)), qp.ErrZero)
	require.ErrorIs(t, zero.PostSend(epoch, &qp.SendWR{}), qp.ErrState)
	require.ErrorIs(t, zero.PostRecv(&qp.RecvWR{}), qp.ErrState)
	require.Equal(t, qp.Invalid, zero.HandlePacket(epoch, request(0, 0), nil))
	require.False(t, zero.NextPacket(epoch, &out))
	require.False(t, zero.NextPacketOf(epoch, qp.PendingRequest, &out))
	require.False(t, zero.NextCompletion(&c))
	require.False(t, zero.NextEvent(&e))
	require.Zero(t, zero.Pending(^qp.Pending(0)))
	_, ok := zero.Deadline()
	require.False(t, ok)
	zero.Tick(epoch)
	zero.FailSend(qp.RemoteOpErr)
	require.Zero(t, zero.Outstanding())

	var r qp.Requester
	require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{}), qp.ErrState)
	require.ErrorIs(t, r.Connect(good(qp.RTS)), qp.ErrZero)
	var p qp.Responder
	require.ErrorIs(t, p.Connect(good(qp.RTR)), qp.ErrZero)
}

// QP and SRQ numbers have 24 bits; more is refused, never masked.
func TestWideNumbers(t *testing.T) {
	ud := in(t, base(qp.UD), qp.RTS)
	ah := qp.NewAddressHandle(qp.AHAttr{})
	require.ErrorIs(t, ud.PostSend(epoch, &qp.SendWR{AH: ah, RemoteQPN: 1 << 24}), qp.ErrRange)
	require.NoError(t, ud.PostSend(epoch, &qp.SendWR{AH: ah, RemoteQPN: 1<<24 - 1}))
	require.ErrorIs(t, ud.PostSend(epoch, &qp.SendWR{RemoteQPN: 1}), qp.ErrNoAH)
	xrc := in(t, base(qp.XRCSend), qp.RTS)
	require.ErrorIs(t, xrc.PostSend(epoch, &qp.SendWR{SRQ: 1 << 24}), qp.ErrRange)
	require.NoError(t, xrc.PostSend(epoch, &qp.SendWR{SRQ: 1<<24 - 1}))
}

// An address handle is of datagrams: it does not reroute what a connection sends.
func TestAHOfConnection(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{AH: qp.NewAddressHandle(qp.AHAttr{SGIDIndex: 200})}))
	var out qp.Outgoing
	require.True(t, q.NextPacket(epoch, &out))
	require.Nil(t, out.AH)
}

// The trace hook is called for each packet that is not simply accepted, with the reason,
// and for no other; for a QP as for a half that is used by itself.
func TestTrace(t *testing.T) {
	mem, _, key := memory(t, 64)
	op := func(o bth.Operation, n psn.PSN, set func(*bth.Packet)) *bth.Packet {
		p := request(o, n)
		if set != nil {
			set(p)
		}
		return p
	}
	for name, c := range map[string]struct {
		p        *bth.Packet
		verdict  qp.Verdict
		why      qp.Reason
		expected uint32
	}{
		"tver":      {op(bth.SendOnly, 10, func(p *bth.Packet) { p.TVer = 1 }), qp.Invalid, qp.WhyTVer, 10},
		"qpn":       {op(bth.SendOnly, 10, func(p *bth.Packet) { p.DestQP = 9 }), qp.Invalid, qp.WhyQPN, 10},
		"opcode":    {op(bth.SendOnly, 10, func(p *bth.Packet) { p.Opcode = bth.UC.Opcode(bth.SendOnly) }), qp.Invalid, qp.WhyOpcode, 10},
		"pkey":      {op(bth.SendOnly, 10, func(p *bth.Packet) { p.PKey = 0x8001 }), qp.Invalid, qp.WhyPKey, 10},
		"gap":       {op(bth.SendOnly, 12, nil), qp.OutOfSequence, qp.WhyGap, 10},
		"old":       {op(bth.SendOnly, 9, nil), qp.Duplicate, qp.WhyOld, 10},
		"forgotten": {op(bth.ReadRequest, 9, nil), qp.Duplicate, qp.WhyForgotten, 10},
		"sequence":  {op(bth.SendLast, 10, func(p *bth.Packet) { p.SetPayload([]byte{1}) }), qp.Refused, qp.WhySequence, 10},
		"length":    {op(bth.SendFirst, 10, nil), qp.Refused, qp.WhyLength, 10},
		"receive":   {op(bth.SendOnly, 10, nil), qp.NotReady, qp.WhyNoReceive, 10},
		"rights": {op(bth.FetchAdd, 10, func(p *bth.Packet) { p.AtomicETH.VA, p.AtomicETH.RKey = 0x1000, key }),
			qp.Refused, qp.WhyRights, 10},
		"rkey": {op(bth.ReadRequest, 10, func(p *bth.Packet) { p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x1000, ^key, 8 }),
			qp.Refused, qp.WhyRKey, 10},
		"unsent":   {op(bth.Acknowledge, 20, nil), qp.Unsent, qp.WhyNeverSent, 20},
		"syndrome": {op(bth.Acknowledge, 18, func(p *bth.Packet) { p.AETH.Syndrome = 0x80 }), qp.Reserved, qp.WhySyndrome, 20},
	} {
		var got []qp.Trace
		cfg := base(qp.RC)
		cfg.Memory, cfg.Trace = mem, func(tr qp.Trace) { got = append(got, tr) }
		q, err := qp.New(cfg)
		require.NoError(t, err)
		a := good(qp.RTS)
		a.RQPSN, a.SQPSN, a.Access = 10, 20, qp.RemoteRead
		require.NoError(t, q.Connect(epoch, a))
		if name == "syndrome" {
			require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
			var out qp.Outgoing
			require.True(t, q.NextPacket(epoch, &out))
			c.p.PSN = 20
		}
		require.Equal(t, c.verdict, q.HandlePacket(epoch, c.p, nil), name)
		want := []qp.Trace{{QPN: 1, Verdict: c.verdict, Reason: c.why, Opcode: c.p.Opcode, PSN: c.p.PSN, Expected: c.expected}}
		require.Equal(t, want, got, name)

		if c.p.Opcode.Class() == bth.Request {
			got = nil
			r, err := qp.NewResponder(cfg)
			require.NoError(t, err)
			require.NoError(t, r.Connect(a))
			require.Equal(t, c.verdict, r.HandlePacket(c.p, nil), name)
			require.Equal(t, want, got, name)
		}
	}
}

// A Trace goes into a structured log as it is.
func TestTraceLog(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	cfg := base(qp.RC)
	cfg.Trace = func(tr qp.Trace) { log.Info("packet", "qp", tr) }
	q := in(t, cfg, qp.RTS)
	q.HandlePacket(epoch, request(bth.SendOnly, q.Attr().RQPSN+2), nil)
	require.Contains(t, b.String(), "qp.qpn=1")
	require.Contains(t, b.String(), `qp.reason="PSN gap"`)
	require.Contains(t, b.String(), `qp.verdict="out of sequence"`)
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
}

// No packet that is accepted is traced, and every reason has a name.
func TestTraceSilent(t *testing.T) {
	told := 0
	cfg := base(qp.RC)
	cfg.Trace = func(qp.Trace) { told++ }
	q := in(t, cfg, qp.RTS)
	require.NoError(t, q.PostRecv(&qp.RecvWR{}))
	require.Equal(t, qp.Accepted, q.HandlePacket(epoch, request(bth.SendOnly, q.Attr().RQPSN), nil))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
	var out qp.Outgoing
	for q.NextPacket(epoch, &out) {
	}
	ack := request(bth.Acknowledge, q.Attr().SQPSN)
	ack.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
	require.Equal(t, qp.Accepted, q.HandlePacket(epoch, ack, nil))
	require.Zero(t, told)
	for r := qp.WhyNone + 1; r <= qp.WhyLocal; r++ {
		require.NotEmpty(t, r.String())
		require.NotRegexp(t, `^\d+$`, r.String())
	}
	require.Equal(t, "200", qp.Reason(200).String())
}
