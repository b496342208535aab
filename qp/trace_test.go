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

// The trace hook tells of each packet that is not simply accepted why, and of no
// other; it tells the same of a QP and of a half that is used alone.
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

// No packet that is accepted is told, and every reason has a name.
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
	for r := qp.WhyNone + 1; r <= qp.WhyRNR; r++ {
		require.NotEmpty(t, r.String())
		require.NotRegexp(t, `^\d+$`, r.String())
	}
	require.Equal(t, "200", qp.Reason(200).String())
}
