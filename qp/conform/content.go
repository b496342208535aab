package conform

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

// content stores in e the content of the current packet, whose ICRC is right.
func (c *current) content(e *content) {
	f := &c.f
	e.icrc, e.sport, e.ip = f.Packet.ICRC, f.SrcPort, 0
	if f.Net == frame.IPv4 {
		e.ip = binary.BigEndian.Uint32(f.NetPacket[4:])
	}
	e.bth = [4]byte{f.Transport[1], f.Transport[2], f.Transport[3], f.Transport[8]}
}

// sameContent reports whether the current packet has the content of e. It compares the
// ICRCs, after the fields that may differ were made equal.
func (c *current) sameContent(e *content) bool {
	f := &c.f
	var now content
	c.content(&now)
	const pad = 0x30
	if (now.bth[0]^e.bth[0])&pad != 0 {
		return false
	}
	covered := len(f.NetPacket) - crc.Size
	at := len(f.NetPacket) - len(f.Transport) // the BTH
	icrc := now.icrc
	if now.ip != e.ip {
		var a, b [4]byte
		binary.BigEndian.PutUint32(a[:], now.ip)
		binary.BigEndian.PutUint32(b[:], e.ip)
		icrc = crc.Patch(icrc, covered-8, a[:], b[:])
	}
	if now.sport != e.sport {
		var a, b [2]byte
		binary.BigEndian.PutUint16(a[:], now.sport)
		binary.BigEndian.PutUint16(b[:], e.sport)
		icrc = crc.Patch(icrc, covered-(at-6), a[:], b[:])
	}
	if [3]byte(now.bth[:3]) != [3]byte(e.bth[:3]) {
		icrc = crc.Patch(icrc, covered-(at+4), now.bth[:3], e.bth[:3])
	}
	if now.bth[3] != e.bth[3] {
		icrc = crc.Patch(icrc, covered-(at+9), now.bth[3:], e.bth[3:])
	}
	return icrc == e.icrc
}

// same judges whether a retransmission has the same content. Rules RQ-16, RQ-27.
func (w *Watcher) same(s *stream, e *entry, d *read) {
	p := &w.f.Packet
	if e.op != p.Opcode {
		w.report(s, ResendDiffers, uint64(e.op), uint64(p.Opcode), e.frame)
		return
	}
	if d != nil {
		return // askAgain judges it
	}
	if w.full && !w.f.Truncated() && e.flags&hasContent != 0 && !w.sameContent(&e.content) {
		w.report(s, ResendDiffers, uint64(e.op), uint64(p.Opcode), e.frame)
	}
}

// askAgain records that a READ or atomic is requested again, from PSN u on.
func (w *Watcher) askAgain(s *stream, x *exchange, u uint64) {
	p := &w.f.Packet
	d := x.read(u)
	if d == nil {
		return
	}
	d.flags = d.flags&^isPassed | isAgain
	if d.asks < 255 {
		d.asks++
	}
	d.lastT = w.now
	d.was, d.from, d.to = d.from, u, d.end
	d.pos = u
	d.whole = min(d.whole, u)
	if p.Opcode.Operation() != bth.ReadRequest || !w.full || !d.is(isKnown) || d.op != p.Opcode || s.mtu == 0 && u != d.start {
		return
	}
	skipped := uint32(0)
	if u != d.start {
		skipped = uint32(u-d.start) * uint32(s.mtu)
	}
	if p.RETH.RKey != d.rkey || p.RETH.VA != d.va+uint64(skipped) || p.RETH.DMALen > d.len-skipped {
		check, want := ResumeDiffers, uint64(d.len-skipped)
		if u == d.start {
			check, want = ResendDiffers, uint64(d.op)
		}
		got := uint64(p.RETH.DMALen)
		if u == d.start {
			got = uint64(p.Opcode)
		}
		w.report(s, check, want, got, 0)
		d.to = u // its responses are not judged
		return
	}
	if s.mtu != 0 {
		d.to = min(d.end, u+span(p.RETH.DMALen, s.mtu))
	}
}
