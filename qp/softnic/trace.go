package softnic

import (
	"log/slog"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// Trace says why the port dropped a frame, before any QP saw it. It is what
// [Config.Trace] gets, and a [slog.LogValuer]. Of a Malformed frame only Result is
// set.
type Trace struct {
	Result   Result
	Src, Dst netip.Addr
	QPN      uint32 // destination
	Opcode   bth.Opcode
	PSN      psn.PSN
}

// LogValue implements [slog.LogValuer].
func (t Trace) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("result", t.Result.String()),
		slog.String("src", t.Src.String()),
		slog.String("dst", t.Dst.String()),
		slog.Uint64("qpn", uint64(t.QPN)),
		slog.String("opcode", t.Opcode.String()),
		slog.Uint64("psn", uint64(t.PSN)),
	)
}

// trace tells that f, which was decoded unless r is Malformed, had the result r.
func (p *Port) trace(r Result, f *frame.Frame) {
	switch r {
	case Delivered, Answered, NotRoCE:
	case Malformed:
		p.cfg.Trace(Trace{Result: r})
	default:
		h := &f.Packet
		p.cfg.Trace(Trace{Result: r, Src: f.Src, Dst: f.Dst, QPN: h.DestQP, Opcode: h.Opcode, PSN: h.PSN})
	}
}
