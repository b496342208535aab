package mrcwatch

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
)

// write handles a packet of a WRITE.
func (w *Watcher) write() {
	m := &w.m
	f := w.flowOf(key{w.f.Src, w.f.Dst, m.DestQP})
	f.touch(w.now)
	p := packet{frame: w.n, va: m.RETH.VA, rkey: m.RETH.RKey, dmaLen: m.RETH.DMALen, icrc: m.ICRC, payload: int32(w.f.PayloadLen()),
		entropy: w.cfg.Halves.Entropy(w.f.SrcPort, w.f.FlowLabel), msn: m.METH.MSN, rqmsn: m.METH.RQMSN, op: m.Opcode,
		headers: m.Ext()&mrc.HasRETH != 0, plain: !mrc.Rtx(&m.Header)}
	if w.f.Trimmed {
		f.Trimmed++
		p.payload = -1
		w.report(TrimmedByNetwork, 0, 0, 0)
		if m.Ext()&mrc.HasMETH == 0 {
			return
		}
	}
	f.Packets++
	f.PayloadBytes += uint64(max(p.payload, 0))
	path := f.path(p.entropy, w.cfg.MaxPaths)
	if path != nil {
		path.Packets++
	}
	if w.f.ECN() == frame.CE {
		f.CE++
		if path != nil {
			path.CE++
		}
	}
	rtx := mrc.Rtx(&m.Header)
	if rtx {
		f.Retransmitted++
		if path != nil {
			path.Retransmitted++
		}
		w.report(Retransmission, 0, 0, 0)
	}

	if f.next == 0 {
		f.restart(m.PSN)
	}
	p.seq = psn.Unwrap(f.next, m.PSN)
	if p.seq >= f.next+near || p.seq+near < f.next {
		f.restart(m.PSN) // another connection
		p.seq = f.next
	}
	old := f.at(p.seq)
	switch {
	case p.seq >= f.next:
		if p.seq > f.next && p.seq > f.start {
			w.report(Gap, uint64(psn.Wrap(f.next)), p.seq-f.next, 0)
		}
		f.advance(p.seq + 1)
	case p.seq < f.oldest():
		return // too old to be judged
	case old != nil:
		if !w.again(f, old, &p, rtx) {
			return
		}
	case !rtx:
		f.OutOfOrder++
		w.report(OutOfOrder, uint64(psn.Wrap(f.next-1)), 0, 0)
	}
	f.GoodBytes += uint64(max(p.payload, 0))
	if last(p.op) {
		f.Messages++
	}
	f.sent[p.seq&uint64(len(f.sent)-1)] = p
	w.neighbours(f, &p)
}

// restart makes the flow one that starts at PSN p.
func (f *flow) restart(p psn.PSN) {
	clear(f.sent)
	f.start = firstRound + uint64(p)
	f.next = f.start
}

// advance makes next the PSN above the highest seen. A PSN that leaves the window without
// having been seen is a hole.
func (f *flow) advance(next uint64) {
	n := uint64(len(f.sent))
	for s := f.next; s < next; s++ {
		if s >= f.start+n && f.at(s-n) == nil {
			f.Holes++
		}
	}
	f.next = next
}

// again handles a packet whose PSN was seen before, in old, and reports whether it replaces
// that.
func (w *Watcher) again(f *flow, old, p *packet, rtx bool) bool {
	known := old.headers && p.headers
	differs := known && (old.op != p.op || old.msn != p.msn || old.va != p.va || old.rkey != p.rkey || old.dmaLen != p.dmaLen ||
		old.payload >= 0 && p.payload >= 0 && old.payload != p.payload)
	cut := old.payload < 0 || p.payload < 0 || w.f.Truncated()
	switch {
	case differs && rtx:
		w.report(ResentDiffers, old.va, p.va, old.frame)
	case differs:
		// Not sent again at all: the QP number belongs to another connection.
		f.restart(w.m.PSN)
		p.seq = f.next
		f.advance(f.next + 1)
		return true
	case rtx && (old.icrc != p.icrc || cut):
	case old.icrc == p.icrc && old.entropy == p.entropy, cut:
		f.Copies++
		w.report(Duplicate, 0, 0, old.frame)
	case !rtx && !old.plain: // the first, late
		f.OutOfOrder++
		w.report(OutOfOrder, uint64(psn.Wrap(f.next-1)), 0, old.frame)
		old.icrc, old.entropy = p.icrc, p.entropy // for its copies
	case !rtx:
		f.Retransmitted++
		w.report(ResentUnmarked, 0, 0, old.frame)
	}
	old.plain = old.plain || p.plain
	if old.payload < 0 && p.payload >= 0 { // the whole packet, after a trimmed one
		p.plain = old.plain
		*old = *p
		f.GoodBytes += uint64(p.payload)
		w.neighbours(f, old)
	}
	return false
}

func first(op bth.Opcode) bool {
	return op == mrc.WriteFirst || op == mrc.WriteOnly || op == mrc.WriteOnlyImm
}

// last reports whether op ends a message.
func last(op bth.Opcode) bool { return op != mrc.WriteFirst && op != mrc.WriteMiddle }

// reach is how far to look for the next packet that was seen.
const reach = 64

// neighbours compares p with the nearest packets that were seen, below and above.
func (w *Watcher) neighbours(f *flow, p *packet) {
	if first(p.op) && last(p.op) && p.headers && p.payload >= 0 && uint32(p.payload) != p.dmaLen {
		w.report(MessageLength, p.va+uint64(p.dmaLen), p.va+uint64(p.payload), 0)
	}
	for seq := p.seq - 1; seq >= f.oldest() && seq+reach >= p.seq; seq-- {
		if a := f.at(seq); a != nil {
			w.pair(a, p)
			break
		}
	}
	for seq := p.seq + 1; seq < f.next && seq <= p.seq+reach; seq++ {
		if b := f.at(seq); b != nil {
			w.pair(p, b)
			break
		}
	}
	w.ending(f, p)
}

// pair compares b with a, which has a lower PSN, with none between that was seen.
func (w *Watcher) pair(a, b *packet) {
	adjacent := b.seq == a.seq+1
	within := !last(a.op) && !first(b.op) // of one message, if adjacent
	if !adjacent && a.msn != b.msn {
		return
	}
	if within != (!last(a.op) || !first(b.op)) || !adjacent && !within {
		w.report(MessageOrder, uint64(a.op), uint64(b.op), a.frame)
		return
	}
	if !within {
		return
	}
	if a.msn != b.msn {
		w.report(MSNChanged, uint64(a.msn), uint64(b.msn), a.frame)
		return
	}
	if b.op == mrc.WriteLastImm && a.rqmsn != b.rqmsn {
		w.report(RQMSNChanged, uint64(b.rqmsn), uint64(a.rqmsn), a.frame)
	}
	if !a.headers || !b.headers {
		return
	}
	if a.rkey != b.rkey {
		w.report(RKeyChanged, uint64(a.rkey), uint64(b.rkey), a.frame)
	}
	if a.dmaLen != b.dmaLen {
		w.report(DMALenChanged, uint64(a.dmaLen), uint64(b.dmaLen), a.frame)
	}
	if a.payload < 0 {
		return
	}
	if want := a.va + (b.seq-a.seq)*uint64(a.payload); b.va != want {
		w.report(AddressStep, want, b.va, a.frame)
	}
	if b.payload >= 0 && (b.payload > a.payload || !last(b.op) && b.payload != a.payload) {
		w.report(PayloadUnequal, uint64(a.payload), uint64(b.payload), a.frame)
	}
}

// ending compares the end of a message with its first packet, when p makes it possible: all
// packets between have been seen.
func (w *Watcher) ending(f *flow, p *packet) {
	a, b := p, p
	for !first(a.op) {
		if a = f.at(a.seq - 1); a == nil || last(a.op) || a.msn != p.msn {
			return
		}
	}
	for !last(b.op) {
		if b = f.at(b.seq + 1); b == nil || first(b.op) || b.msn != p.msn {
			return
		}
	}
	if a == b || !a.headers || !b.headers || b.payload < 0 || a.dmaLen != b.dmaLen {
		return
	}
	if want, got := a.va+uint64(a.dmaLen), b.va+uint64(b.payload); want != got {
		w.report(MessageLength, want, got, a.frame)
	}
}
