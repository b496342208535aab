package conform

import (
	"math/bits"

	"github.com/roce-go/roce/bth"
)

// alone judges a request by itself, without others.
func (w *Watcher) alone(s *stream, payload int, unreliable bool) {
	p := &w.f.Packet
	op := p.Opcode
	if unreliable && p.AckReq {
		w.report(s, UnreliableAckReq, 0, uint64(op), 0)
	}
	if p.SE && !solicitable(op) {
		w.report(s, SolicitedMisplaced, 0, uint64(op), 0)
	}
	w.size(s, payload)
	if !w.full {
		return
	}
	if op.Ext()&bth.HasRETH != 0 {
		if p.RETH.DMALen > 1<<31 {
			w.report(s, SizeAboveLimit, 1<<31, uint64(p.RETH.DMALen), 0)
		}
		if _, carry := bits.Add64(p.RETH.VA, uint64(max(p.RETH.DMALen, 1))-1, 0); carry != 0 {
			w.report(s, AddressWraps, p.RETH.VA, uint64(p.RETH.DMALen), 0)
		}
	}
	switch op.Operation() {
	case bth.WriteOnly, bth.WriteOnlyImm, bth.AtomicWrite:
		if int(p.RETH.DMALen) != payload {
			w.report(s, DMALengthOnly, uint64(p.RETH.DMALen), uint64(payload), 0)
		}
	case bth.WriteFirst:
		if int(p.RETH.DMALen) <= payload {
			w.report(s, DMALengthFirst, uint64(p.RETH.DMALen), uint64(payload), 0)
		}
	}
	if va := p.AtomicETH.VA | p.RETH.VA; (op.Ext()&bth.HasAtomicETH != 0 || op.Operation() == bth.AtomicWrite) && va%8 != 0 {
		w.report(s, AtomicMisaligned, 0, va, 0)
	}
}

// solicitable: rule RQ-06.
func solicitable(op bth.Opcode) bool {
	switch op.Operation() {
	case bth.SendLast, bth.SendLastImm, bth.SendLastInv, bth.SendOnly, bth.SendOnlyImm, bth.SendOnlyInv,
		bth.WriteLastImm, bth.WriteOnlyImm:
		return true
	}
	return false
}

// size judges payload against the path MTU. Rule RS-06.
func (w *Watcher) size(s *stream, payload int) {
	if w.short {
		return
	}
	switch w.f.Packet.Opcode.Payload() {
	case bth.ExactlyMTU:
		legal := payload >= 256 && payload <= 4096 && payload&(payload-1) == 0
		switch {
		case s.mtu == 0 && !legal:
			w.report(s, SizeNoMTU, 0, uint64(payload), 0)
		case s.mtu == 0 || !s.mtuFirm && legal:
			w.learnMTU(s, payload, true)
		case payload != s.mtu:
			w.report(s, SizeNotMTU, uint64(s.mtu), uint64(payload), 0)
		}
	case bth.OneToMTU, bth.UpToMTU:
		limit := 4096
		if s.mtu != 0 && s.mtuFirm {
			limit = s.mtu
		}
		if payload > limit {
			w.report(s, SizeOverMTU, uint64(limit), uint64(payload), 0)
		} else if payload == 0 && w.f.Packet.Opcode.Payload() == bth.OneToMTU {
			w.report(s, SizeEmptyLast, 0, 0, 0)
		}
	}
}
