package mutator

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

// repair makes lengths, IPv4 checksum and ICRC right, or wrong as configured.
// Order matters: the ICRC covers the lengths, and the checksum covers one.
func (m *Mutator) repair(rep *Report) {
	w := &m.w
	w.fit()
	w.setLengths()
	if m.cfg.Lengths == LengthsLie {
		m.lie(rep)
	}
	if w.udp != w.t && !w.keepChecksum {
		binary.BigEndian.PutUint16(w.b[w.udp+6:], 0)
	}
	if w.kind == frame.IPv4 {
		h := w.b[w.net:w.udp]
		binary.BigEndian.PutUint16(h[10:], 0)
		binary.BigEndian.PutUint16(h[10:], ^frame.OnesSum(0, h))
	}
	if m.cfg.ICRC != ICRCKeep {
		crc.Append(w.b[:w.end-bth.ICRCSize], w.net)
		if m.cfg.ICRC == ICRCBad {
			w.b[w.end-bth.ICRCSize+m.rng.IntN(bth.ICRCSize)] ^= byte(1 + m.rng.IntN(255))
		}
	}
	if rep.Lie == LieMissing {
		w.b = w.b[:w.t+int(rep.LieNew)]
	}
}

// fit removes bytes before the ICRC of a packet that is too long for its length
// fields.
func (w *work) fit() {
	if over := w.end - w.net - 0xffff; over > 0 {
		w.splice(w.end-bth.ICRCSize-over, over, 0)
	}
}

func (w *work) setLengths() {
	switch w.kind {
	case frame.IPv4:
		binary.BigEndian.PutUint16(w.b[w.net+2:], uint16(w.end-w.net))
	default:
		binary.BigEndian.PutUint16(w.b[w.net+4:], uint16(w.end-w.net-ipv6Size))
	}
	if w.kind != frame.GRH {
		binary.BigEndian.PutUint16(w.b[w.udp+4:], uint16(w.end-w.udp))
	}
}

// lie makes one length wrong. Each lie is one that no receiver may accept: two lengths that
// disagree, or more than the frame holds.
func (m *Mutator) lie(rep *Report) {
	w := &m.w
	ip := w.b[w.net+2 : w.net+4]
	if w.kind != frame.IPv4 {
		ip = w.b[w.net+4 : w.net+6]
	}
	udp := w.b[w.udp+4 : w.udp+6]
	choices := [...]Lie{LieIP, LieUDP, LieBoth, LieMissing, LieIHL}
	n := len(choices)
	if w.kind != frame.IPv4 {
		n--
	}
	rep.Lie = choices[m.rng.IntN(n)]
	if w.kind == frame.GRH && rep.Lie != LieMissing {
		rep.Lie = LieGRH
	}
	// A larger length than the frame has bytes after its network header.
	more := func(have, most int) uint64 {
		return uint64(min(have+1+m.rng.IntN(64), most))
	}
	behind := len(w.b) - w.end
	switch rep.Lie {
	case LieIP:
		rep.LieOld, rep.LieNew = m.otherLength(ip)
	case LieUDP:
		rep.LieOld, rep.LieNew = m.otherLength(udp)
	case LieBoth:
		rep.LieOld = load(udp)
		head := load(ip) - rep.LieOld
		rep.LieNew = more(int(rep.LieOld)+behind, 0xffff-int(head))
		if m.rng.IntN(4) == 0 || rep.LieNew <= rep.LieOld+uint64(behind) {
			rep.LieNew = m.rng.Uint64N(udpSize)
		}
		store(udp, rep.LieNew)
		store(ip, rep.LieNew+head)
	case LieGRH:
		rep.LieOld = load(ip)
		rep.LieNew = more(int(rep.LieOld)+behind, 0xffff)
		store(ip, rep.LieNew)
	case LieIHL:
		rep.LieOld = uint64(w.b[w.net] & 0xf)
		rep.LieNew = m.rng.Uint64N(5)
		w.b[w.net] = w.b[w.net]&0xf0 | byte(rep.LieNew)
	case LieMissing:
		rep.LieOld = uint64(w.end - w.t)
		rep.LieNew = m.rng.Uint64N(rep.LieOld)
	}
}

func (m *Mutator) otherLength(b []byte) (old, v uint64) {
	old = load(b)
	switch m.rng.IntN(6) {
	case 0:
		v = old + 1
	case 1:
		v = old - 1
	case 2:
		v = old + 4
	case 3:
		v = old - 4
	default:
		v = m.edge(old, 0xffff)
	}
	if v &= 0xffff; v == old {
		v ^= 1
	}
	store(b, v)
	return old, v
}
