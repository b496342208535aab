package mrcwatch_test

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/conform/mrcwatch"
)

var (
	requestor  = netip.MustParseAddr("192.0.2.1")
	responder  = netip.MustParseAddr("192.0.2.2")
	requestor6 = netip.MustParseAddr("2001:db8::1")
	responder6 = netip.MustParseAddr("2001:db8::2")
)

const (
	requestorQP = 0xabc
	responderQP = 0xdef
)

// captured is a frame with its time.
type captured struct {
	at time.Duration
	b  []byte
}

// build returns a frame from one end to the other; v6 says over what.
func build(p *mrc.Packet, toResponder, v6 bool, ev uint32, ce bool) []byte {
	f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DF: true, Src: requestor, Dst: responder, MRC: p}
	if v6 {
		f.Net, f.Src, f.Dst = frame.IPv6, requestor6, responder6
	}
	if !toResponder {
		f.Src, f.Dst = f.Dst, f.Src
	}
	f.SrcPort, f.FlowLabel = mrc.LowInPort.Split(ev)
	f.TrafficClass = uint8(frame.ECT0)
	if ce {
		f.TrafficClass = uint8(frame.CE)
	}
	return f.AppendTo(nil)
}

// writePackets returns the packets of a WRITE of n bytes, from PSN p on.
func writePackets(n, mtu int, msn, rqmsn uint16, p psn.PSN, va uint64, imm bool) (out []mrc.Packet) {
	for off := 0; off < n || off == 0; off += mtu {
		var q mrc.Packet
		first, last := off == 0, off+mtu >= n
		switch {
		case first && last && imm:
			q.Opcode = mrc.WriteOnlyImm
		case first && last:
			q.Opcode = mrc.WriteOnly
		case first:
			q.Opcode = mrc.WriteFirst
		case last && imm:
			q.Opcode = mrc.WriteLastImm
		case last:
			q.Opcode = mrc.WriteLast
		default:
			q.Opcode = mrc.WriteMiddle
		}
		q.PKey, q.DestQP, q.PSN = 0xffff, responderQP, p.Add(len(out))
		q.METH.MSN = msn
		if imm {
			q.METH.RQMSN = rqmsn
		}
		q.RETH.VA, q.RETH.RKey, q.RETH.DMALen = va+uint64(off), 0x1234, uint32(n)
		q.SetPayload(make([]byte, min(mtu, n-off)))
		out = append(out, q)
	}
	return out
}

// network is one connection through a network with faults, and what a tap sees of
// it.
type network struct {
	rng       *rand.Rand
	v6        bool
	tap       []captured
	now       time.Duration
	unseen    float64 // share of frames that take a link without a tap
	loss      float64 // before and behind the tap, each
	copies    float64
	trim      float64
	ce        float64
	sent      []mrc.Packet
	came      map[int]bool
	cum       int // all below have come
	first     psn.PSN
	truth     truth
	ackEvery  int
	timestamp bool
}

// truth is what happened at the tap.
type truth struct{ packets, rtx, ce, sacks, nacks, probes uint64 }

func (n *network) happens(p float64) bool { return n.rng.Float64() < p }

// pass sends a frame past the tap and reports whether it arrives.
func (n *network) pass(p *mrc.Packet, toResponder bool, ev uint32, ce bool) bool {
	n.now += time.Duration(200+n.rng.IntN(500)) * time.Nanosecond
	if n.happens(n.loss) {
		return false
	}
	if !n.happens(n.unseen) {
		b := build(p, toResponder, n.v6, ev, ce)
		n.tap = append(n.tap, captured{n.now, b})
		if n.happens(n.copies) {
			n.tap = append(n.tap, captured{n.now + 50*time.Nanosecond, b})
		} else {
			switch {
			case mrc.IsWrite(p.Opcode):
				n.truth.packets++
				if mrc.Rtx(&p.Header) {
					n.truth.rtx++
				}
				if ce {
					n.truth.ce++
				}
			case p.Opcode == mrc.SACK:
				n.truth.sacks++
			case p.Opcode == mrc.NACK:
				n.truth.nacks++
			case p.Opcode == mrc.Probe:
				n.truth.probes++
			}
		}
	}
	return !n.happens(n.loss)
}

func (n *network) ev() uint32 {
	if n.v6 {
		return n.rng.Uint32N(2)<<16 | 0xc000 + n.rng.Uint32N(16)
	}
	return 0xc000 + n.rng.Uint32N(32)
}

// transmit sends packet i.
func (n *network) transmit(i int, rtx bool) {
	p := n.sent[i]
	mrc.SetRtx(&p.Header, rtx)
	if n.timestamp && n.happens(0.5) {
		mrc.SetTS(&p.Header, true)
		p.TSETH.TxTimestamp, p.TSETH.FType = uint16(n.now/mrc.TimestampUnit), 1
	}
	ev, ce := n.ev(), n.happens(n.ce)
	if !n.pass(&p, true, ev, ce) {
		return
	}
	if n.happens(n.trim) {
		n.nack(i, ev)
		return
	}
	n.came[i] = true
	for n.came[n.cum] {
		n.cum++
	}
	if ce || rtx || i%n.ackEvery == 0 {
		n.sack(i, -1, ev, ce)
	}
}

func (n *network) sack(cause, probe int, ev uint32, ce bool) {
	var p mrc.Packet
	p.Opcode, p.PKey, p.DestQP = mrc.SACK, 0xffff, requestorQP
	s := &p.SETH
	s.CumPSN = n.first.Add(n.cum - 1)
	p.PSN = s.CumPSN
	s.SPDCID, s.DPDCID, s.Entropy = responderQP, requestorQP, ev
	if ce {
		s.M = mrc.PathSkip
	}
	base := n.cum
	if cause-n.cum >= 64 { // a window of its own
		base = cause - 20
	}
	s.SACKOffset = int16(base - (n.cum - 1))
	for i := range 64 {
		if n.came[base+i] {
			s.SACKBitmap |= 1 << i
		}
	}
	for i := range n.came {
		if i >= n.cum {
			p.CCState.OOOCount++
		}
	}
	s.Cause = uint16(cause - (n.cum - 1))
	if probe >= 0 {
		s.PR, s.Cause = true, uint16(probe)
	}
	n.pass(&p, false, 0xc100, false)
}

func (n *network) nack(i int, ev uint32) {
	var p mrc.Packet
	p.Opcode, p.PKey, p.DestQP, p.PSN = mrc.NACK, 0xffff, requestorQP, n.sent[i].PSN
	p.NETH = mrc.NETH{Reason: mrc.Trimmed, PSN: p.PSN, CCType: 2, Entropy: ev, SPDCID: responderQP, DPDCID: requestorQP}
	n.pass(&p, false, 0xc100, false)
}

func (n *network) probe(id int) {
	var p mrc.Packet
	p.Opcode, p.PKey, p.DestQP = mrc.Probe, 0xffff, responderQP
	p.PETH.ProbeID, p.PETH.Time.FType = uint16(id), 1
	ev := n.ev()
	if n.pass(&p, true, ev, false) {
		n.sack(0, id, ev, false)
	}
}

// run writes messages until all has come, and acknowledges each.
func (n *network) run(messages int) {
	n.came = map[int]bool{}
	n.first = psn.PSN(n.rng.Uint32() & psn.Mask)
	if n.happens(0.3) {
		n.first = psn.Mask - 20
	}
	rqmsn := uint16(0)
	for i := range messages {
		imm := n.happens(0.3)
		if imm {
			rqmsn++
		}
		mtu := 256
		n.sent = append(n.sent, writePackets(1+n.rng.IntN(8*mtu), mtu, uint16(i), rqmsn, n.first.Add(len(n.sent)),
			n.rng.Uint64()>>1, imm)...)
	}
	next := 0
	for n.cum < len(n.sent) {
		for k := 0; k < 24 && next < len(n.sent); k++ {
			n.transmit(next, false)
			next++
		}
		if n.happens(0.2) {
			n.probe(n.rng.IntN(1 << 16))
		}
		for i := n.cum; i < next; i++ {
			if !n.came[i] {
				n.transmit(i, true)
			}
		}
	}
	var ack mrc.Packet
	ack.Opcode, ack.PKey, ack.DestQP, ack.PSN = mrc.Acknowledge, 0xffff, requestorQP, n.first.Add(n.cum-1)
	ack.AETH.Syndrome, ack.AETH.MSN = 0x1f, uint32(messages)
	n.pass(&ack, false, 0xc100, false)
}

// reorder moves frames to later places, as paths of different length do.
func (n *network) reorder(share float64, far int) {
	for i := range n.tap {
		if j := i + 1 + n.rng.IntN(far); n.happens(share) && j < len(n.tap) {
			n.tap[i].b, n.tap[j].b = n.tap[j].b, n.tap[i].b
		}
	}
}

// watch feeds frames to a watcher and returns what it found and its flows.
func watch(cfg mrcwatch.Config, frames []captured) (found []mrcwatch.Finding, flows []mrcwatch.Flow) {
	cfg.Closed = func(f *mrcwatch.Flow) {
		c := *f
		counters := *f.Counters
		c.Counters = &counters
		flows = append(flows, c)
	}
	w, err := mrcwatch.New(cfg)
	if err != nil {
		panic(err)
	}
	var f mrcwatch.Finding
	drain := func() {
		for w.NextFinding(&f) {
			found = append(found, f)
		}
	}
	start := time.Unix(1_800_000_000, 0)
	for i, c := range frames {
		w.HandleFrame(uint64(i+1), start.Add(c.at), frame.Ethernet, c.b, len(c.b))
		drain()
	}
	w.Finish()
	drain()
	return found, flows
}

func count(found []mrcwatch.Finding, s conform.Severity) (n int) {
	for _, f := range found {
		if f.Severity == s {
			n++
		}
	}
	return n
}
