package main

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/reth"
)

// textLine writes text lines. Columns grow to the widest value so far.
type textLine struct {
	colour bool
	addr   int // width of an address
	time   clock
	names  *[256]string // of opcodes
}

func (t *textLine) start() { t.addr = 11 }

// shortNames are opcode names that fit a column of nameWidth.
var shortNames = func() (names [256]string) {
	r := strings.NewReplacer("RDMA_", "", "WITH_IMMEDIATE", "IMM", "WITH_INVALIDATE", "INV")
	for i := range names {
		names[i] = r.Replace(bth.Opcode(i).String())
	}
	return names
}()

// syndromes are the texts of all syndromes, computed once.
var syndromes = func() (texts [256]string) {
	for i := range texts {
		texts[i] = aeth.Syndrome(i).String()
	}
	return texts
}()

const (
	frameWidth = 6
	timeWidth  = len("15:04:05.000000000")
	nameWidth  = len("XRC_READ_RESPONSE_MIDDLE")
)

func (t *textLine) append(b []byte, d *dumper, v verdict, icrc frame.ICRCState, why error) []byte {
	b = right(b, uint64(d.rec.Number), frameWidth)
	b = append(b, ' ')
	if mark := len(b); d.rec.HasTime {
		b = t.time.append(b, d.rec.Time)
		b = append(b[:mark], b[len(b)-timeWidth-1:len(b)-1]...) // the time of day
	} else {
		b = pad(append(b, '-'), mark, timeWidth)
	}
	b = append(b, ' ')
	switch v {
	case isError:
		// The addresses are often known even if the packet cannot be decoded.
		if d.finder.Find(d.rec.Link, d.rec.Data, d.rec.WireLen, &d.frame) == nil {
			b = t.address(b, d.frame.Src)
			b = append(b, " > "...)
			b = t.address(b, d.frame.Dst)
			b = append(b, ' ')
			b = t.paint(b, term.Red)
			if v, err := bth.ViewOf(d.frame.Transport); err == nil {
				mark := len(b)
				b = append(b, t.names[v.Opcode()]...)
				b = pad(b, mark, nameWidth)
				b = append(b, " qp 0x"...)
				b = strconv.AppendUint(b, uint64(v.DestQP()), 16)
				b = append(b, ' ')
			}
		} else {
			b = t.paint(b, term.Red)
		}
		b = append(b, "cannot be decoded: "...)
		b = append(b, why.Error()...)
		return t.end(b)
	case isOther:
		b = t.paint(b, term.Dim)
		b = d.appendOther(b, why)
		return t.end(b)
	case isPause:
		return t.end(pauseText(t.paint(b, term.Yellow), &d.pause))
	}
	f := &d.frame
	p := &f.Packet
	b = t.address(b, f.Src)
	b = append(b, " > "...)
	b = t.address(b, f.Dst)
	b = append(b, ' ')

	colour := opcodeColour(p)
	if f.IsMRC() {
		colour = mrcColour(f.MRC)
	}
	b = t.paint(b, colour)
	mark := len(b)
	b = append(b, t.names[p.Opcode]...)
	b = pad(b, mark, nameWidth)
	b = t.reset(b)
	b = append(b, " qp 0x"...)
	b = appendHex(b, uint64(p.DestQP), 6)
	b = append(b, " psn "...)
	b = right(b, uint64(p.PSN), 8)
	b = append(b, ' ')
	b = letter(b, p.AckReq, 'A')
	b = letter(b, p.SE, 'S')
	b = letter(b, f.ECN() == frame.CE, 'C')
	b = letter(b, p.BECN, 'B')
	if d.mrc.On {
		b = letter(b, f.IsMRC() && mrc.Rtx(&p.Header), 'R')
	}
	b = right(b, uint64(max(0, f.PayloadLen())), 6)
	b = append(b, " B icrc "...)
	switch icrc {
	case frame.ICRCGood:
		b = append(b, "good"...)
	case frame.ICRCBad:
		b = append(t.paint(b, term.Red), "bad"...)
		b = append(t.reset(b), ' ')
	default:
		b = append(b, "?   "...)
	}
	if d.badSum {
		b = t.reset(append(t.paint(b, term.Red), " IPv4 header checksum bad"...))
	}
	b = details(b, f)
	if f.IsMRC() {
		b = mrcDetails(b, f, d.mrc.Halves)
	}
	for len(b) > 0 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return append(b, '\n')
}

func opcodeColour(p *bth.Packet) string {
	switch {
	case p.Opcode == bth.CNP:
		return term.Magenta
	case p.Opcode.Ext()&bth.HasAETH != 0 && p.AETH.Syndrome.Kind() != aeth.Ack:
		return term.Yellow
	case p.Opcode.Class() == bth.Response:
		return term.Green
	}
	return term.Cyan
}

// details appends the fields that only some packets have.
func details(b []byte, f *frame.Frame) []byte {
	p := &f.Packet
	e := p.Opcode.Ext()
	if e&bth.HasRDETH != 0 {
		b = hexText(b, " ee 0x", uint64(p.RDETH.EE), 6)
	}
	if e&bth.HasDETH != 0 {
		b = hexText(b, " qkey 0x", uint64(p.DETH.QKey), 8)
		b = hexText(b, " src 0x", uint64(p.DETH.SrcQP), 6)
	}
	if e&bth.HasXRCETH != 0 {
		b = hexText(b, " srq 0x", uint64(p.XRCETH.SRQ), 6)
	}
	if e&bth.HasFETH != 0 {
		b = append(b, " flush "...)
		b = append(b, p.FETH.Sel.String()...)
		b = num(b, " placement ", uint64(p.FETH.Placement))
	}
	if e&bth.HasRETH != 0 {
		b = rethText(b, &p.RETH)
	}
	if e&bth.HasAtomicETH != 0 {
		b = hexText(b, " va 0x", p.AtomicETH.VA, 16)
		b = hexText(b, " rkey 0x", uint64(p.AtomicETH.RKey), 8)
		if p.Opcode.Operation() == bth.CmpSwap {
			b = hexText(b, " compare 0x", p.AtomicETH.Compare, 16)
			b = hexText(b, " swap 0x", p.AtomicETH.SwapAdd, 16)
		} else {
			b = hexText(b, " add 0x", p.AtomicETH.SwapAdd, 16)
		}
	}
	if e&bth.HasAETH != 0 {
		b = aethText(b, &p.AETH)
	}
	if e&bth.HasAtomicAckETH != 0 {
		b = hexText(b, " orig 0x", p.AtomicAckETH.Orig, 16)
	}
	if e&bth.HasImmDt != 0 {
		b = hexText(b, " imm 0x", uint64(p.ImmDt.Imm), 8)
	}
	if e&bth.HasIETH != 0 {
		b = hexText(b, " inv 0x", uint64(p.IETH.RKey), 8)
	}
	for _, v := range f.VLAN[:f.VLANs] {
		b = num(b, " vlan ", uint64(v.ID()))
	}
	for i := f.Outer.Len() - 1; i >= 0; i-- {
		u := f.Outer.Tunnel(i)
		b = u.AppendTo(append(b, " in "...))
	}
	if f.Net == frame.GRH {
		b = append(b, " v1"...)
	}
	return b
}

func rethText(b []byte, h *reth.Header) []byte {
	b = hexText(b, " va 0x", h.VA, 16)
	b = hexText(b, " rkey 0x", uint64(h.RKey), 8)
	return num(b, " len ", uint64(h.DMALen))
}

func aethText(b []byte, h *aeth.Header) []byte {
	b = append(append(b, ' '), syndromes[h.Syndrome]...)
	return num(b, " msn ", uint64(h.MSN))
}

func pauseText(b []byte, p *pfc.Frame) []byte {
	b = append(b, p.Opcode.String()...)
	b = appendMAC(append(b, " from "...), p.Src)
	if p.Opcode == pfc.Pause {
		return num(b, " quanta ", uint64(p.Quanta[0]))
	}
	for prio := range pfc.Priorities {
		if q, ok := p.Time(prio); ok {
			b = num(b, " priority ", uint64(prio))
			b = num(b, " quanta ", uint64(q))
		}
	}
	return b
}

func (t *textLine) address(b []byte, a netip.Addr) []byte {
	mark := len(b)
	b = appendAddr(b, a)
	t.addr = max(t.addr, len(b)-mark)
	return pad(b, mark, t.addr)
}

func (t *textLine) paint(b []byte, colour string) []byte {
	if t.colour {
		b = append(b, colour...)
	}
	return b
}

func (t *textLine) reset(b []byte) []byte { return t.paint(b, term.Reset) }

func (t *textLine) end(b []byte) []byte { return append(t.reset(b), '\n') }

func hexText(b []byte, key string, v uint64, digits int) []byte {
	return appendHex(append(b, key...), v, digits)
}

func letter(b []byte, on bool, c byte) []byte {
	if !on {
		c = '-'
	}
	return append(b, c)
}

// pad appends spaces until the text after mark is width bytes long.
func pad(b []byte, mark, width int) []byte {
	for len(b)-mark < width {
		b = append(b, ' ')
	}
	return b
}

// right appends v, right-aligned.
func right(b []byte, v uint64, width int) []byte {
	var tmp [20]byte
	s := strconv.AppendUint(tmp[:0], v, 10)
	for range width - len(s) {
		b = append(b, ' ')
	}
	return append(b, s...)
}
