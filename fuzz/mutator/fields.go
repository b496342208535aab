package mutator

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
)

// base is the header from which a field's offset is counted.
type base uint8

const (
	baseBTH base = iota
	baseExt      // the header ext
	baseIPv4
	baseIPv6 // GRH too
	baseUDP
	baseMRC // the BTH of an MRC packet
)

// field is a number in a header: width bytes, big-endian, of which bits bits
// above shift belong to it.
type field struct {
	kind        Kind
	base        base
	ext         headers
	off, width  uint8
	shift, bits uint8
	pick        func(m *Mutator, old uint64) uint64
	set         Kinds // the set of kind only
}

var fields = [...]field{
	{kind: Solicited, off: 1, width: 1, shift: 7, bits: 1},
	{kind: Migration, off: 1, width: 1, shift: 6, bits: 1},
	{kind: PadCnt, off: 1, width: 1, shift: 4, bits: 2},
	{kind: TVer, off: 1, width: 1, bits: 4},
	{kind: PKey, off: 2, width: 2, bits: 16},
	{kind: FECN, off: 4, width: 1, shift: 7, bits: 1},
	{kind: BECN, off: 4, width: 1, shift: 6, bits: 1},
	{kind: Reserved6, off: 4, width: 1, bits: 6},
	{kind: DestQP, off: 5, width: 3, bits: 24},
	{kind: AckReq, off: 8, width: 1, shift: 7, bits: 1},
	{kind: Reserved7, off: 8, width: 1, bits: 7},
	{kind: PSN, off: 9, width: 3, bits: 24, pick: pickSequence},

	{kind: RETHAddress, base: baseExt, ext: hasRETH, width: 8, bits: 64, pick: pickAddress},
	{kind: RETHRKey, base: baseExt, ext: hasRETH, off: 8, width: 4, bits: 32},
	{kind: RETHLength, base: baseExt, ext: hasRETH, off: 12, width: 4, bits: 32, pick: pickLength},
	{kind: AETHSyndrome, base: baseExt, ext: hasAETH, width: 1, bits: 8, pick: pickSyndrome},
	{kind: AETHMSN, base: baseExt, ext: hasAETH, off: 1, width: 3, bits: 24, pick: pickSequence},
	{kind: AtomicAddress, base: baseExt, ext: hasAtomicETH, width: 8, bits: 64, pick: pickAddress},
	{kind: AtomicRKey, base: baseExt, ext: hasAtomicETH, off: 8, width: 4, bits: 32},
	{kind: AtomicSwap, base: baseExt, ext: hasAtomicETH, off: 12, width: 8, bits: 64},
	{kind: AtomicCompare, base: baseExt, ext: hasAtomicETH, off: 20, width: 8, bits: 64},
	{kind: AtomicAck, base: baseExt, ext: hasAtomicAckETH, width: 8, bits: 64},
	{kind: Immediate, base: baseExt, ext: hasImmDt, width: 4, bits: 32},
	{kind: IETHRKey, base: baseExt, ext: hasIETH, width: 4, bits: 32},
	{kind: DETHQKey, base: baseExt, ext: hasDETH, width: 4, bits: 32},
	{kind: DETHReserved, base: baseExt, ext: hasDETH, off: 4, width: 1, bits: 8},
	{kind: DETHSource, base: baseExt, ext: hasDETH, off: 5, width: 3, bits: 24},
	{kind: RDETH, base: baseExt, ext: hasRDETH, width: 4, bits: 32},
	{kind: XRCETH, base: baseExt, ext: hasXRCETH, width: 4, bits: 32},
	{kind: FETH, base: baseExt, ext: hasFETH, width: 4, bits: 32},

	// MRC. A field that several headers have is one kind.
	{kind: MRCRetransmission, base: baseMRC, off: 8, width: 1, shift: 5, bits: 1},
	{kind: METHRQMSN, base: baseExt, ext: hasMETH, width: 2, bits: 16},
	{kind: METHMSN, base: baseExt, ext: hasMETH, off: 2, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasTSETH, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasCCState, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasNETH, off: 18, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasPETH, off: 12, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasERTH, off: 12, width: 2, bits: 16},
	{kind: MRCTimestamp, base: baseExt, ext: hasEETH, off: 28, width: 2, bits: 16},
	{kind: MRCTimeFormat, base: baseExt, ext: hasTSETH, off: 2, width: 2, bits: 16},
	{kind: MRCTimeFormat, base: baseExt, ext: hasPETH, off: 14, width: 2, bits: 16},
	{kind: MRCTimeFormat, base: baseExt, ext: hasERTH, off: 14, width: 2, bits: 16},
	{kind: MRCType, base: baseExt, ext: hasSETH, width: 2, shift: 7, bits: 9},
	{kind: MRCType, base: baseExt, ext: hasNETH, width: 2, shift: 7, bits: 9},
	{kind: MRCType, base: baseExt, ext: hasPETH, width: 2, shift: 7, bits: 9},
	{kind: MRCType, base: baseExt, ext: hasERTH, width: 2, shift: 7, bits: 9},
	{kind: MRCType, base: baseExt, ext: hasEETH, width: 2, shift: 7, bits: 9},
	{kind: MRCReserved, base: baseExt, ext: hasSETH, off: 12, width: 1, bits: 8},
	{kind: MRCReserved, base: baseExt, ext: hasNETH, off: 12, width: 1, bits: 8},
	{kind: MRCReserved, base: baseExt, ext: hasPETH, off: 6, width: 2, bits: 16},
	{kind: MRCReserved, base: baseExt, ext: hasERTH, off: 8, width: 4, bits: 32},
	{kind: MRCReserved, base: baseExt, ext: hasEETH, off: 32, width: 4, bits: 32},
	{kind: MRCVendor, base: baseExt, ext: hasNETH, off: 3, width: 1, bits: 8},
	{kind: MRCVendor, base: baseExt, ext: hasPETH, off: 3, width: 1, bits: 8},
	{kind: MRCVendor, base: baseExt, ext: hasERTH, off: 3, width: 1, bits: 8},
	{kind: MRCEntropy, base: baseExt, ext: hasSETH, off: 4, width: 4, bits: 32},
	{kind: MRCEntropy, base: baseExt, ext: hasNETH, off: 4, width: 4, bits: 32},
	{kind: MRCContext, base: baseExt, ext: hasSETH, off: 8, width: 4, bits: 32},
	{kind: MRCContext, base: baseExt, ext: hasNETH, off: 8, width: 4, bits: 32},
	{kind: MRCContext, base: baseExt, ext: hasPETH, off: 8, width: 4, bits: 32},
	{kind: MRCCongestionType, base: baseExt, ext: hasSETH, off: 16, width: 1, bits: 8},
	{kind: MRCCongestionType, base: baseExt, ext: hasNETH, off: 16, width: 1, bits: 8},
	{kind: SETHVerdict, base: baseExt, ext: hasSETH, off: 1, width: 1, shift: 5, bits: 2},
	{kind: SETHProbe, base: baseExt, ext: hasSETH, off: 1, width: 1, shift: 1, bits: 1},
	{kind: SETHCause, base: baseExt, ext: hasSETH, off: 2, width: 2, bits: 16},
	{kind: SETHCumulative, base: baseExt, ext: hasSETH, off: 13, width: 3, bits: 24, pick: pickSequence},
	{kind: SETHWindow, base: baseExt, ext: hasSETH, off: 17, width: 1, bits: 8},
	{kind: SETHOffset, base: baseExt, ext: hasSETH, off: 18, width: 2, bits: 16},
	{kind: SETHBitmap, base: baseExt, ext: hasSETH, off: 20, width: 8, bits: 64},
	{kind: CCOutOfOrder, base: baseExt, ext: hasCCState, off: 2, width: 2, bits: 16},
	{kind: CCPenalty, base: baseExt, ext: hasCCState, off: 4, width: 1, bits: 8},
	{kind: CCReceived, base: baseExt, ext: hasCCState, off: 5, width: 3, bits: 24, pick: pickSequence},
	{kind: NETHReason, base: baseExt, ext: hasNETH, off: 2, width: 1, bits: 8, pick: pickReason},
	{kind: NETHSequence, base: baseExt, ext: hasNETH, off: 13, width: 3, bits: 24, pick: pickSequence},
	{kind: PETHID, base: baseExt, ext: hasPETH, off: 4, width: 2, bits: 16},
	{kind: EndpointOp, base: baseExt, ext: hasERTH, off: 1, width: 1, bits: 2},
	{kind: EndpointOp, base: baseExt, ext: hasEETH, off: 1, width: 1, shift: 2, bits: 2},
	{kind: ERTHPorts, base: baseExt, ext: hasERTH, off: 4, width: 4, bits: 32},

	{kind: ECN, base: baseIPv4, off: 1, width: 1, bits: 2},
	{kind: DSCP, base: baseIPv4, off: 1, width: 1, shift: 2, bits: 6},
	{kind: IPID, base: baseIPv4, off: 4, width: 2, bits: 16},
	{kind: DontFragment, base: baseIPv4, off: 6, width: 1, shift: 6, bits: 1},
	{kind: Fragment, base: baseIPv4, off: 6, width: 2, bits: 14, pick: pickFragment},
	{kind: TTL, base: baseIPv4, off: 8, width: 1, bits: 8},
	{kind: Protocol, base: baseIPv4, off: 9, width: 1, bits: 8},
	{kind: IPVersion, base: baseIPv4, width: 1, shift: 4, bits: 4},

	{kind: ECN, base: baseIPv6, off: 1, width: 1, shift: 4, bits: 2},
	{kind: DSCP, base: baseIPv6, width: 2, shift: 6, bits: 6},
	{kind: FlowLabel, base: baseIPv6, width: 4, bits: 20},
	{kind: TTL, base: baseIPv6, off: 7, width: 1, bits: 8},
	{kind: Protocol, base: baseIPv6, off: 6, width: 1, bits: 8},
	{kind: IPVersion, base: baseIPv6, width: 1, shift: 4, bits: 4},

	{kind: SourcePort, base: baseUDP, width: 2, bits: 16},
	{kind: DestPort, base: baseUDP, off: 2, width: 2, bits: 16},
	{kind: UDPChecksum, base: baseUDP, off: 6, width: 2, bits: 16},
}

func init() {
	for i := range fields {
		fields[i].set = KindsOf(fields[i].kind)
	}
}

// place returns the offset of the field, or false when the frame has no such field.
func (w *work) place(f *field) (int, bool) {
	switch f.base {
	case baseBTH:
		return w.t + int(f.off), true
	case baseExt:
		h := w.stackOf(w.op()).headers
		if h&f.ext == 0 || w.headers() == bth.Size {
			return 0, false
		}
		return w.t + bth.Size + h.before(f.ext) + int(f.off), true
	case baseMRC:
		return w.t + int(f.off), w.isMRC()
	case baseIPv4:
		return w.net + int(f.off), w.kind == frame.IPv4
	case baseIPv6:
		return w.net + int(f.off), w.kind != frame.IPv4
	}
	return w.udp + int(f.off), w.kind != frame.GRH
}

func load(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

func store(b []byte, v uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte(v)
		v >>= 8
	}
}

// change gives the field of kind k another value.
func (m *Mutator) change(k Kind, rep *Report) {
	w := &m.w
	for i := range fields {
		f := &fields[i]
		if f.kind != k {
			continue
		}
		at, ok := w.place(f)
		if !ok {
			continue
		}
		mask := ^uint64(0) >> (64 - f.bits)
		if k == Reserved7 && w.isMRC() {
			mask = 0xf // one of the other bits decides about the layout
		}
		b := w.b[at : at+int(f.width)]
		word := load(b)
		old := word >> f.shift & mask
		var v uint64
		if f.pick != nil {
			v = f.pick(m, old) & mask
		} else {
			v = m.edge(old, mask)
		}
		if v == old {
			v ^= 1
		}
		store(b, word&^(mask<<f.shift)|v<<f.shift)
		rep.add(k, old, v)
		w.keepChecksum = w.keepChecksum || k == UDPChecksum
		return
	}
}

// edge returns a value near the ends, the middle or the old value, or a random one.
func (m *Mutator) edge(old, mask uint64) uint64 {
	half := mask/2 + 1
	var v uint64
	switch m.rng.IntN(10) {
	case 0:
		v = 0
	case 1:
		v = mask
	case 2:
		v = half
	case 3:
		v = half - 1
	case 4:
		v = old + 1
	case 5:
		v = old - 1
	case 6:
		v = old + half
	case 7, 8:
		v = old ^ 1<<m.rng.IntN(64)
	default:
		v = m.rng.Uint64()
	}
	return v & mask
}

// pickSequence is for PSN and MSN: small steps, window sizes, and half the PSN range.
func pickSequence(m *Mutator, old uint64) uint64 {
	const half = 1 << 23
	switch m.rng.IntN(12) {
	case 0, 1:
		return old + 1
	case 2, 3:
		return old - 1
	case 4:
		return old + 2 + m.rng.Uint64N(62)
	case 5:
		return old - 2 - m.rng.Uint64N(62)
	case 6: // a window
		return old + 1<<(6+m.rng.IntN(10))
	case 7:
		return old - 1<<(6+m.rng.IntN(10))
	case 8:
		return old + half - 1 + m.rng.Uint64N(3)
	case 9:
		return []uint64{0, 1, half - 1, half, half + 1, 1<<24 - 2, 1<<24 - 1}[m.rng.IntN(7)]
	}
	return m.rng.Uint64()
}

// pickAddress is for 64-bit addresses: the ends of the range, values next to the old one,
// values not aligned for atomics, a page further.
func pickAddress(m *Mutator, old uint64) uint64 {
	switch m.rng.IntN(8) {
	case 0:
		return ^m.rng.Uint64N(8192) // wraps when a length is added
	case 1:
		return m.rng.Uint64N(16)
	case 2:
		return old + 1 + m.rng.Uint64N(8)
	case 3:
		return old - 1 - m.rng.Uint64N(8)
	case 4:
		return old + 4096
	case 5:
		return old - 4096
	}
	return m.edge(old, ^uint64(0))
}

// pickLength is for the DMA length: zero, a byte more or less, multiples of a path MTU and
// values next to them, the maximum (2^31) and more.
func pickLength(m *Mutator, old uint64) uint64 {
	switch m.rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return old + 1
	case 2:
		return old - 1
	case 3:
		return 256<<m.rng.IntN(5)*(1+m.rng.Uint64N(8)) + m.rng.Uint64N(3) - 1
	case 4:
		return 1<<31 - 1 + m.rng.Uint64N(3)
	case 5:
		return 1<<32 - 1
	case 6:
		return old + 256<<m.rng.IntN(5)
	}
	return m.edge(old, 1<<32-1)
}

// pickSyndrome is for all kinds of acknowledgement: ACK, RNR NAK, NAK, and reserved values.
func pickSyndrome(m *Mutator, old uint64) uint64 {
	switch m.rng.IntN(6) {
	case 0:
		return m.rng.Uint64N(32)
	case 1:
		return 0x20 | m.rng.Uint64N(32)
	case 2, 3:
		return 0x60 | m.rng.Uint64N(6)
	case 4:
		return 0x40 | m.rng.Uint64N(64)
	}
	return m.rng.Uint64()
}

// pickReason is for NACKs: each of the reasons, and any other.
func pickReason(m *Mutator, old uint64) uint64 {
	reasons := [...]mrc.Reason{mrc.Trimmed, mrc.TrimmedLastHop, mrc.NoBitmap, mrc.NoPacketBuffer, mrc.NoResource,
		mrc.PSNOutOfWindow, mrc.UnexpectedEvent}
	if i := m.rng.IntN(2 * len(reasons)); i < len(reasons) {
		return uint64(reasons[i])
	}
	return m.rng.Uint64()
}

// pickFragment is for the more-fragments bit and the offset.
func pickFragment(m *Mutator, old uint64) uint64 {
	switch m.rng.IntN(3) {
	case 0:
		return 0x2000
	case 1:
		return 1 + m.rng.Uint64N(0x1fff)
	}
	return 0x2001 + m.rng.Uint64N(0x1fff)
}
