package softnic_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Each frame that is dropped is told once, with the reason: by the port, or by the QP.
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
