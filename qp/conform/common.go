package conform

import (
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// multicastQP is the destination QP of multicast datagrams.
const multicastQP = 0xffffff

// common judges what concerns every packet. It returns false when a receiver
// drops the packet, so that it counts as not sent.
func (w *Watcher) common(s *stream) bool {
	p := &w.f.Packet
	ok := true
	if p.Opcode != bth.CNP {
		if s.serviceKnown && s.service.Service() != p.Opcode.Service() && s.Frames > 1 && w.now-s.before > int64(time.Second) {
			w.forget(s)
		}
		if !s.serviceKnown {
			s.service, s.serviceKnown = p.Opcode, true
		} else if s.service.Service() != p.Opcode.Service() && s.qp > 1 {
			w.report(s, OpcodeService, uint64(s.service), uint64(p.Opcode), 0)
			ok = false
		}
	}
	switch {
	case p.DestQP == 0:
		w.report(s, DestQPZero, 0, 0, 0)
		ok = false
	case (p.DestQP == 1 || p.DestQP == multicastQP) && p.Opcode.Service() != bth.UD:
		w.report(s, DestQPManagement, uint64(p.DestQP), uint64(p.Opcode), 0)
		ok = false
	}
	if !w.partition(s) {
		ok = false
	}
	if p.Resv6 != 0 || p.Resv7 != 0 {
		if s.first(ReservedBTH) {
			w.report(s, ReservedBTH, 0, uint64(p.Resv6)<<8|uint64(p.Resv7), 0)
		}
	}
	if w.full {
		if r := p.DETH.Resv8 | p.XRCETH.Resv8 | p.RDETH.Resv8; r != 0 && s.first(ReservedExt) {
			w.report(s, ReservedExt, 0, uint64(r), 0)
		}
	}
	if p.Opcode != bth.CNP && (p.FECN || p.BECN) && s.first(FECNSet) {
		w.report(s, FECNSet, 0, uint64(p.Opcode), 0)
	}
	w.network(s)
	w.pad(s)
	return ok
}

// partition judges the P_Key. Rule RS-02.
func (w *Watcher) partition(s *stream) bool {
	k := w.f.Packet.PKey
	if k&0x7fff == 0 {
		w.report(s, PKeyZero, 0, uint64(k), 0)
		return false
	}
	if s.peer >= 0 && w.flows.all[s.peer].pkeyKnown {
		if !w.samePartition(s) {
			return false
		}
	} else if s.pkeyKnown && (s.pkey^k)&0x7fff != 0 {
		w.report(s, PKeyMismatch, uint64(s.pkey), uint64(k), 0)
		return false
	}
	// The first P_Key is kept, so that one wrong packet does not make all others look
	// wrong. Of full and limited membership full is kept: it matches more.
	if !s.pkeyKnown || k&0x8000 != 0 {
		s.pkey, s.pkeyKnown = k, true
	}
	return true
}

// samePartition judges the P_Key of the current packet by that of the other direction,
// where both are known. Two connections of which each is in a partition of its own look the
// same where one direction of each was captured.
func (w *Watcher) samePartition(s *stream) bool {
	k, p := w.f.Packet.PKey, w.flows.all[s.peer]
	if !p.pkeyKnown || bth.PKeyMatch(k, p.pkey) {
		return true
	}
	if s.pairedBy == pairGuessed && s.hits < sureHits && !w.only(s) {
		w.leave(PKeyMismatch, ReasonUnpaired, 1)
		return true
	}
	w.report(s, PKeyMismatch, uint64(p.pkey), uint64(k), 0)
	return false
}

// network judges IP and UDP.
func (w *Watcher) network(s *stream) {
	f := &w.f
	if f.Net == frame.IPv4 {
		if len(f.Options) != 0 {
			w.report(s, IPv4Options, 0, uint64(20+len(f.Options)), 0)
		}
		if !f.DF && s.first(IPv4NoDF) {
			w.report(s, IPv4NoDF, 0, 0, 0)
		}
		// An offloaded checksum is left to the sender's card.
		if f.CheckIPv4() == frame.ChecksumBad {
			w.report(s, IPv4Checksum, 0, uint64(frame.OnesSum(0, f.NetPacket[:20+len(f.Options)])), 0)
		}
	}
	if f.Net == frame.GRH {
		return
	}
	if s.sport == 0 {
		s.sport = f.SrcPort
	} else if s.sport != f.SrcPort {
		w.report(s, SPortChanged, uint64(s.sport), uint64(f.SrcPort), 0)
		s.sport = f.SrcPort
		s.moved = true
	}
	if f.CheckUDP() == frame.ChecksumBad {
		w.report(s, UDPChecksum, 0, uint64(f.UDPChecksum), 0)
	}
}

// pad judges PadCnt and the pad bytes. Rules RQ-03, RS-06.
func (w *Watcher) pad(s *stream) {
	p := &w.f.Packet
	if p.Opcode.Payload() == bth.NoPayload || p.Opcode == bth.CNP {
		return
	}
	if n := w.f.TransportLen - p.Opcode.HeaderSize() - bth.ICRCSize; n%4 != 0 {
		w.report(s, PadAlignment, 0, uint64(n), 0)
		return
	}
	if w.full && !w.f.Truncated() && p.PadCnt != 0 {
		var v uint64
		for _, b := range p.Pad[:p.PadCnt&3] {
			v = v<<8 | uint64(b)
		}
		if v != 0 {
			w.report(s, PadNotZero, 0, v, 0)
		}
	}
}

// congestion judges a CNP.
func (w *Watcher) congestion(s *stream) {
	p := &w.f.Packet
	w.seen.Class = ClassCongestion
	s.CNPs++
	if w.full && !w.f.Truncated() {
		for _, b := range p.Payload {
			if b != 0 {
				w.report(s, CNPPayload, 0, 0, 0)
				break
			}
		}
	}
	if p.SE || p.AckReq || p.PSN != 0 {
		w.report(s, CNPFields, 0, 0, 0)
	}
	if !p.BECN {
		w.report(s, CNPWithoutBECN, 0, 0, 0)
	}
	// Time stamps of a microsecond may be off by that much.
	grain := max(1000, w.clock.grain)
	gap := w.now - s.lastCNP
	if s.lastCNP != 0 && w.cfg.MinCNPGap > 0 && gap >= 0 && gap+grain < int64(w.cfg.MinCNPGap) && !w.clock.still {
		// All CNPs of a flow are the same. Without an identification, one that
		// comes too soon may be a copy, if other packets of this sender have any.
		s.closeCNPs++
		if w.repeat >= 0 && (s.closeCNPs < often || s.Duplicates > uint64(s.closeCNPs)) {
			s.CNPs--
			w.copied(s)
			return
		}
		w.report(s, CNPTooOften, uint64(w.cfg.MinCNPGap), uint64(gap), s.lastFrame)
	}
	s.lastCNP = w.now
	s.lastFrame = w.frames
}

// datagram judges a UD packet.
func (w *Watcher) datagram(s *stream, payload int) {
	p := &w.f.Packet
	if w.repeat >= 0 {
		w.copied(s)
		return
	}
	w.seen.Class = ClassNew
	s.MessagesTx++
	w.good(s, payload)
	if limit := 4096; payload > limit {
		w.report(s, DatagramSize, uint64(limit), uint64(payload), 0)
	}
	switch group := w.f.Dst.Unmap().IsMulticast(); {
	case p.DestQP == multicastQP && !group:
		w.report(s, MulticastAddress, 0, 0, 0)
	case p.DestQP != multicastQP && group:
		w.report(s, MulticastQP, 0, uint64(p.DestQP), 0)
	}
	if p.DestQP != 1 {
		if s.qkeyKnown && w.full && p.DETH.QKey != s.qkey {
			w.report(s, DatagramQKey, uint64(s.qkey), uint64(p.DETH.QKey), 0)
		}
		if p.AckReq {
			w.report(s, UnreliableAckReq, 0, uint64(p.Opcode), 0)
		}
		return
	}
	w.seen.Class = ClassManagement
	if p.AckReq && s.first(ManagementAckReq) {
		w.report(s, ManagementAckReq, 0, 0, 0)
	}
	const qkey = 0x80010000
	if w.full && p.DETH.QKey != qkey {
		w.report(s, ManagementQKey, qkey, uint64(p.DETH.QKey), 0)
	}
	if w.full {
		w.manage()
	}
}
