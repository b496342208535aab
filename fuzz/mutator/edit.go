package mutator

import (
	"bytes"
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// Lengths in bytes, and offsets in link headers.
const (
	udpSize  = 8
	ipv4Size = 20
	ipv6Size = 40
	sllSize  = 16
	sll2Size = 20
)

// apply makes a change of kind k, which is applicable.
func (m *Mutator) apply(k Kind, rep *Report) {
	switch k {
	case OpcodeService, OpcodeOther:
		m.opcode(k, rep)
	case OpcodeReserved, Relabel:
		m.relabel(k, rep)
	case PayloadTruncate, PayloadExtend, PayloadMTU:
		m.payload(k, rep)
	case PayloadFlip:
		from, to := m.w.payload()
		m.flip(k, from, to, rep)
	case Flip:
		m.flip(k, m.w.start, len(m.w.b), rep)
	case Cut:
		m.cut(rep)
	case MRCTimestampHeader:
		m.timestamp(rep)
	case AddressSwap, AddressFlip:
		m.addresses(k, rep)
	case VLANAdd, VLANRemove, VLANTag:
		m.vlan(k, rep)
	case IPv4Options:
		m.options(rep)
	case Trailing:
		n := 1 + m.rng.IntN(64)
		if m.rng.IntN(2) == 0 {
			n = 4 // the length of a frame check sequence
		}
		for range n {
			m.w.b = append(m.w.b, byte(m.rng.Uint32()))
		}
		rep.add(k, 0, uint64(n))
	default:
		m.change(k, rep)
	}
}

func (m *Mutator) relabel(k Kind, rep *Report) {
	w := &m.w
	old := w.op()
	list := w.opcodes()
	op := list.reserved[m.rng.IntN(len(list.reserved))]
	if k == Relabel {
		op = bth.Opcode(m.rng.Uint32())
		if m.rng.IntN(2) == 0 { // half of the time an opcode with a layout
			op = list.known[m.rng.IntN(len(list.known))]
		}
	}
	if op == old {
		op ^= 1
	}
	w.view().SetOpcode(op)
	rep.add(k, uint64(old), uint64(op))
}

// opcode changes the opcode, and gives the packet the headers and the payload
// that the new one has. Headers that both have are kept; new ones get values at
// the edges.
func (m *Mutator) opcode(k Kind, rep *Report) {
	w := &m.w
	old := w.op()
	known := w.opcodes().known
	i := m.rng.IntN(len(known))
	op := known[i]
	// A service may have only one opcode: then another service's is used.
	for n := 0; op == old || (op.Service() == old.Service()) != (k == OpcodeService) && n < len(known); n++ {
		i = (i + 1) % len(known)
		op = known[i]
	}
	m.become(op)
	rep.add(k, uint64(old), uint64(op))
}

// become changes the packet to opcode op, with its headers and payload; the ts bit stays as
// it is.
func (m *Mutator) become(op bth.Opcode) { m.restack(op, m.w.stackOf(m.w.op()), m.w.stackOf(op)) }

// restack does that, from one stack of headers to another.
func (m *Mutator) restack(op bth.Opcode, was, is *stack) {
	w := &m.w

	// Old headers are copied before the packet is resized.
	var from [bth.MaxHeaderSize]byte
	old := headers(0)
	if w.headers() > bth.Size {
		old = was.headers
	}
	at := w.t + bth.Size
	oldSize := old.size()
	copy(from[:], w.b[at:at+oldSize])
	// A packet that was too short for its opcode may also be too short for its pad.
	if p0, p1 := w.payload(); p1-p0+int(w.view().PadCnt())+bth.ICRCSize != w.end-p0 {
		w.view().SetPadCnt(0)
	}
	w.splice(at, oldSize, is.size)
	b := w.b[at : at+is.size]
	for one := headers(1); one <= is.headers; one <<= 1 {
		if is.headers&one == 0 {
			continue
		}
		n := one.size()
		if old&one != 0 {
			o := old.before(one)
			copy(b[:n], from[o:o+n])
		} else {
			for i := 0; i < n; i += 4 {
				binary.BigEndian.PutUint32(b[i:], uint32(m.edge(0x1000, 1<<32-1)))
			}
		}
		b = b[n:]
	}
	w.view().SetOpcode(op)
	switch is.payload {
	case bth.NoPayload:
		m.resize(0)
	case bth.EightBytes:
		m.resize(8)
	case bth.SixteenZero:
		m.resize(0)
		m.resize(bth.CNPReserved)
	}
}

// timestamp adds a TSETH to an MRC packet, or removes it.
func (m *Mutator) timestamp(rep *Report) {
	w := &m.w
	op := w.op()
	old := w.b[w.t+8] >> 4 & 1
	m.restack(op, &mrcStacks[old][op], &mrcStacks[old^1][op])
	w.b[w.t+8] ^= 1 << 4
	rep.add(MRCTimestampHeader, uint64(old), uint64(old^1))
}

// resize gives the packet a payload of n bytes and the pad that this needs. New
// bytes are zero.
func (m *Mutator) resize(n int) {
	w := &m.w
	from, to := w.payload()
	if pad := w.end - bth.ICRCSize - to; pad > 0 {
		w.splice(to, pad, 0)
	}
	if d := n - (to - from); d > 0 {
		w.splice(to, 0, d)
	} else {
		w.splice(from+n, -d, 0)
	}
	pad := -n & 3
	w.view().SetPadCnt(uint8(pad))
	w.splice(from+n, 0, pad)
}

func (m *Mutator) payload(k Kind, rep *Report) {
	w := &m.w
	from, to := w.payload()
	old := to - from
	most := max(0, w.max-(len(w.b)-w.start)+old-3)
	n := 0
	switch k {
	case PayloadTruncate:
		n = m.rng.IntN(old)
		if m.rng.IntN(3) == 0 {
			n = old - 1
		}
	case PayloadExtend:
		n = old + 1
		if m.rng.IntN(3) > 0 {
			n = old + m.rng.IntN(4096)
		}
	default:
		n = 256<<m.rng.IntN(5) + []int{-4, -1, 0, 1, 4}[m.rng.IntN(5)]
	}
	if n = min(n, most); n == old {
		return
	}
	m.resize(n)
	if n > old {
		for i := from + old; i < from+n; i++ {
			w.b[i] = byte(i - from)
		}
	}
	rep.add(k, uint64(old), uint64(n))
}

// flip inverts an odd number of bits of b[from:to], so that they cannot cancel each other.
func (m *Mutator) flip(k Kind, from, to int, rep *Report) {
	n := 1 + 2*m.rng.IntN(4)
	for range n {
		i := m.rng.IntN((to - from) * 8)
		m.w.b[from+i/8] ^= 1 << (i & 7)
	}
	rep.add(k, 0, uint64(n))
}

// cut removes bytes before the ICRC, headers too.
func (m *Mutator) cut(rep *Report) {
	w := &m.w
	old := w.end - w.t
	n := bth.MinSize + m.rng.IntN(old-bth.MinSize)
	w.splice(w.t+n-bth.ICRCSize, old-n, 0)
	rep.add(Cut, uint64(old), uint64(n))
}

func (m *Mutator) addresses(k Kind, rep *Report) {
	w := &m.w
	at, n := w.net+8, 16
	if w.kind == frame.IPv4 {
		at, n = w.net+12, 4
	}
	src, dst := w.b[at:at+n], w.b[at+n:at+2*n]
	if k == AddressSwap {
		if bytes.Equal(src, dst) {
			return
		}
		for i := range src {
			src[i], dst[i] = dst[i], src[i]
		}
		rep.add(k, 0, 1)
		return
	}
	i := m.rng.IntN(2 * n * 8)
	w.b[at+i/8] ^= 1 << (i & 7)
	rep.add(k, 0, uint64(i))
}

// options removes IPv4 options, or adds some.
func (m *Mutator) options(rep *Report) {
	w := &m.w
	at := w.net + ipv4Size
	old := w.udp - at
	n := 0
	if old == 0 || m.rng.IntN(2) == 0 {
		n = 4 * (1 + m.rng.IntN(10))
	}
	if n == old {
		n = 0
	}
	w.splice(at, old, n)
	for i := 0; i < n; i += 4 {
		// No-operation, or router alert, which is four bytes long.
		v := uint32(0x01010101)
		if m.rng.IntN(4) == 0 {
			v = 0x94040000
		}
		binary.BigEndian.PutUint32(w.b[at+i:], v)
	}
	w.b[w.net] = w.b[w.net]&0xf0 | byte(5+n/4)
	rep.add(IPv4Options, uint64(old), uint64(n))
}

// tagsAt returns the offsets of the first tag's TPID and TCI in the frame, and of the next
// header's type; ok is false if the link type has no place for tags.
func tagsAt(link frame.Link) (tpid, tci int, ok bool) {
	switch link {
	case frame.Ethernet:
		return 12, 14, true
	case frame.LinuxSLL:
		return sllSize - 2, sllSize, true
	case frame.LinuxSLL2: // the type comes first, the header that it describes later
		return 0, sll2Size, true
	}
	return 0, 0, false
}

// countTags returns the number of tags of frame b, 0 for a runt.
func countTags(link frame.Link, b []byte) int {
	_, _, n, _ := frame.NetworkOffset(link, b)
	return n
}

func (w *work) taggable() bool {
	tpid, tci, ok := tagsAt(w.link)
	return ok && len(w.b)-w.start >= max(tpid+2, tci)
}

func (m *Mutator) vlan(k Kind, rep *Report) {
	w := &m.w
	tpid, tci, _ := tagsAt(w.link)
	tpid, tci = w.start+tpid, w.start+tci
	tag := func() uint64 {
		return uint64(binary.BigEndian.Uint16(w.b[tpid:]))<<16 | uint64(binary.BigEndian.Uint16(w.b[tci:]))
	}
	switch k {
	case VLANAdd:
		typ := uint16(frame.EtherTypeVLAN)
		if w.vlans == 1 || m.rng.IntN(4) == 0 {
			typ = frame.EtherTypeQinQ
		}
		next := binary.BigEndian.Uint16(w.b[tpid:])
		w.splice(tci, 0, 4)
		binary.BigEndian.PutUint16(w.b[tpid:], typ)
		binary.BigEndian.PutUint16(w.b[tci:], uint16(m.edge(100, 0xffff)))
		binary.BigEndian.PutUint16(w.b[tci+2:], next)
		w.vlans++
		rep.add(k, 0, tag())
	case VLANRemove:
		old := tag()
		next := binary.BigEndian.Uint16(w.b[tci+2:])
		w.splice(tci, 4, 0)
		binary.BigEndian.PutUint16(w.b[tpid:], next)
		w.vlans--
		rep.add(k, old, 0)
	default:
		old := tag()
		tci16 := m.edge(old&0xffff, 0xffff)
		if tci16 == old&0xffff {
			tci16 ^= 1
		}
		store(w.b[tci:tci+2], tci16)
		rep.add(k, old, tag())
	}
}
