package mutator

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/reth"
)

// headers is a set of the headers that follow a BTH, those of RoCE v2 and those
// of MRC, in their order on the wire.
type headers uint32

const (
	hasRDETH headers = 1 << iota
	hasDETH
	hasXRCETH
	hasFETH
	hasMETH
	hasTSETH
	hasRETH
	hasAtomicETH
	hasAETH
	hasAtomicAckETH
	hasImmDt
	hasIETH
	hasSETH
	hasCCState
	hasNETH
	hasPETH
	hasERTH
	hasEETH
)

var headerSizes = [...]int{bth.RDETHSize, bth.DETHSize, bth.XRCETHSize, reth.FETHSize, mrc.METHSize, mrc.TSETHSize,
	reth.Size, reth.AtomicETHSize, aeth.Size, aeth.AtomicAckETHSize, reth.ImmDtSize, reth.IETHSize,
	mrc.SETHSize, mrc.CCStateSize, mrc.NETHSize, mrc.PETHSize, mrc.ERTHSize, mrc.EETHSize}

// ofBTH and ofMRC have the headers of each bit of bth.Ext and mrc.Ext.
var (
	ofBTH = [...]headers{hasRDETH, hasDETH, hasXRCETH, hasFETH, hasRETH, hasAtomicETH, hasAETH, hasAtomicAckETH, hasImmDt, hasIETH}
	ofMRC = [...]headers{hasMETH, hasTSETH, hasRETH, hasImmDt, hasAETH, hasSETH, hasCCState, hasNETH, hasPETH, hasERTH, hasEETH}
)

// size returns the length in bytes of the headers in h.
func (h headers) size() int {
	n := 0
	for i, size := range headerSizes {
		if h>>i&1 != 0 {
			n += size
		}
	}
	return n
}

// before returns how many bytes of h are before the header one.
func (h headers) before(one headers) int { return (h & (one - 1)).size() }

// stack is the layout of a packet after its BTH.
type stack struct {
	known   bool
	headers headers
	size    int // of them, bytes
	payload bth.PayloadRule
}

// stacks are the layouts of RoCE v2; mrcStacks those of MRC without and with the ts bit.
var stacks, mrcStacks = func() (roce [256]stack, mrcs [2][256]stack) {
	for i := range 256 {
		op := bth.Opcode(i)
		s := &roce[i]
		s.known, s.payload = op.Known(), op.Payload()
		for bit, h := range ofBTH {
			if op.Ext()>>bit&1 != 0 {
				s.headers |= h
			}
		}
		s.size = s.headers.size()
		for ts := range mrcs {
			m := &mrcs[ts][i]
			if *m = *s; !mrc.Known(op) {
				continue
			}
			*m = stack{known: true, payload: bth.NoPayload}
			if mrc.IsWrite(op) {
				m.payload = bth.UpToMTU
			}
			for bit, h := range ofMRC {
				if mrc.ExtOf(op, ts == 1)>>bit&1 != 0 {
					m.headers |= h
				}
			}
			m.size = m.headers.size()
		}
	}
	return roce, mrcs
}()

// stackOf returns the layout of packets with opcode op, with the ts bit of the current
// packet.
func (w *work) stackOf(op bth.Opcode) *stack {
	if !w.mrc {
		return &stacks[op]
	}
	return &mrcStacks[w.b[w.t+8]>>4&1][op]
}

// isMRC reports whether the packet is one of MRC.
func (w *work) isMRC() bool { return w.mrc && mrc.Known(w.op()) }

// opcodeLists are the opcodes with a layout, and those without.
type opcodeLists struct{ known, reserved []bth.Opcode }

// opcodes has the lists without MRC and with it.
var opcodes = func() (l [2]opcodeLists) {
	for on := range l {
		for i := range 256 {
			op := bth.Opcode(i)
			if op.Known() || on == 1 && mrc.Known(op) {
				l[on].known = append(l[on].known, op)
			} else {
				l[on].reserved = append(l[on].reserved, op)
			}
		}
	}
	return l
}()

func (w *work) opcodes() *opcodeLists {
	if w.mrc {
		return &opcodes[1]
	}
	return &opcodes[0]
}
