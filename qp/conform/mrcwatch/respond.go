package mrcwatch

import (
	"math/bits"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// unseen reports whether PSN p lies above what was seen of the flow's requests.
func (f *flow) unseen(p psn.PSN) bool { return f.next != 0 && psn.Unwrap(f.next, p) >= f.next }

// highest returns the highest PSN seen.
func (f *flow) highest() uint64 { return uint64(psn.Wrap(f.next - 1)) }

// sack handles a SACK.
func (w *Watcher) sack() {
	m, s := &w.m, &w.m.SETH
	if m.PSN != s.CumPSN {
		w.report(SACKSequence, uint64(s.CumPSN), uint64(m.PSN), 0)
	}
	if s.M > mrc.PathBad {
		w.report(SACKVerdict, 0, uint64(s.M), 0)
	}
	// The bitmap by itself. Bits at and below cack_psn say nothing new.
	above := 0
	highest := s.CumPSN
	for b := s.SACKBitmap; b != 0; b &= b - 1 {
		p := s.SACKBase().Add(bits.TrailingZeros64(b))
		switch d := p.Diff(s.CumPSN); {
		case d == 1:
			w.report(SACKContradicts, uint64(s.CumPSN), uint64(p), 0)
			fallthrough
		case d > 1:
			above++
			highest = p
		}
	}
	if s.CCType == 0 && above > int(m.CCState.OOOCount) {
		w.report(SACKCount, uint64(m.CCState.OOOCount), uint64(above), 0)
	}
	cause := s.AckPSN()
	if !s.PR {
		i := cause.Diff(s.SACKBase())
		if cause.Diff(s.CumPSN) > 0 && i >= 0 && i < 64 && s.SACKBitmap>>i&1 == 0 {
			w.report(SACKCauseMissing, 0, uint64(cause), 0)
		}
	}

	f := w.peer(s.CumPSN, s.SPDCID, s.DPDCID)
	if f == nil {
		return
	}
	f.SACKs++
	f.SACKVerdicts[s.M&3]++
	if path := f.seenPath(s.Entropy); path != nil {
		path.Verdicts[s.M&3]++
	}
	if s.PR {
		found, again := f.probes.answer(f.src, f.dst, s.ProbeID())
		if !found {
			w.doubt(SACKNoProbe, 0, uint64(s.ProbeID()))
		} else if !again {
			f.ProbesAnswered++
		}
	} else if cause.Diff(highest) > 0 {
		highest = cause
	}
	if f.unseen(highest) {
		w.doubt(SACKNeverSent, f.highest(), uint64(highest))
	}
}

// nack handles a NACK.
func (w *Watcher) nack() {
	m, n := &w.m, &w.m.NETH
	if m.PSN != n.PSN {
		w.report(NACKSequence, uint64(n.PSN), uint64(m.PSN), 0)
	}
	if !n.Reason.Known() {
		w.report(NACKReason, 0, uint64(n.Reason), 0)
	} else {
		w.report(NACKReceived, 0, uint64(n.Reason), 0)
	}
	if n.CCType != 2 {
		w.report(NACKType, 0, uint64(n.CCType), 0)
	}
	f := w.peer(n.PSN, n.SPDCID, n.DPDCID)
	if f == nil {
		return
	}
	f.NACKs++
	f.NACKReasons[n.Reason]++
	if path := f.seenPath(n.Entropy); path != nil {
		path.NACKs++
	}
	if f.unseen(n.PSN) {
		w.doubt(NACKNeverSent, f.highest(), uint64(n.PSN))
	}
}

// acknowledge handles a transport ACK or NAK.
func (w *Watcher) acknowledge() {
	m := &w.m
	s := m.AETH.Syndrome
	switch s.Kind() {
	case aeth.Ack:
		if s.Credit() != aeth.NoCredits {
			w.report(AckCredits, 0, uint64(s), 0)
		}
	case aeth.RNR:
		w.report(AckRNR, 0, uint64(s), 0)
	case aeth.Nak:
		w.report(AckNAK, 0, uint64(s), 0)
	default:
		w.report(AckReserved, 0, uint64(s), 0)
	}
	f := w.peer(m.PSN, 0, 0)
	if f == nil {
		return
	}
	if s.Kind() == aeth.Ack {
		f.Acks++
	} else {
		f.NAKs++
	}
	if f.unseen(m.PSN) {
		w.doubt(AckNeverSent, f.highest(), uint64(m.PSN))
	}
}

// probe handles a reliability probe.
func (w *Watcher) probe() {
	f := w.flowOf(key{w.f.Src, w.f.Dst, w.m.DestQP})
	f.touch(w.now)
	w.expireProbes(f, w.now)
	f.Probes++
	q := question{id: w.m.PETH.ProbeID, src: f.src, dst: f.dst, frame: w.n, at: w.now}
	if lost, ok := f.probes.ask(q); ok {
		w.unanswered(f, &lost)
	}
}

func (w *Watcher) expireProbes(f *flow, now int64) {
	f.probes.expire(now, int64(w.cfg.AnswerTime), func(q *question) { w.unanswered(f, q) })
}

func (w *Watcher) unanswered(f *flow, q *question) {
	w.reportAt(ProbeUnanswered, conform.Event, f.src, f.dst, f.qp, 0, 0, uint64(q.id), 0, q.frame, q.at)
}

// endpoint handles an endpoint request or response.
func (w *Watcher) endpoint() {
	m := &w.m
	if m.DestQP != mrc.EndpointQP {
		w.report(EndpointQP, 0, uint64(m.DestQP), 0)
	}
	if m.PSN > 0xffff {
		w.report(EndpointSequence, 0, uint64(m.PSN), 0)
	}
	id := uint16(m.PSN)
	lost := func(q *question) {
		w.reportAt(EndpointUnanswered, conform.Event, q.src, q.dst, mrc.EndpointQP, psn.PSN(q.id), 0, uint64(q.id), 0, q.frame, q.at)
	}
	w.requests.expire(w.now, int64(w.cfg.AnswerTime), lost)
	if m.Opcode == mrc.EndpointRequest {
		if q, ok := w.requests.ask(question{id: id, src: w.f.Src, dst: w.f.Dst, frame: w.n, at: w.now}); ok {
			lost(&q)
		}
	} else if found, _ := w.requests.answer(w.f.Dst, w.f.Src, id); !found {
		w.doubt(EndpointNoRequest, 0, uint64(id))
	}
}
