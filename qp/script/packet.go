package script

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

// field is a field of a packet that scripts name.
type field struct {
	name string
	bits int // 1 is a flag
	ext  bth.Ext
	get  func(*bth.Packet) uint64
	set  func(*bth.Packet, uint64)
}

func flag(f func(*bth.Packet) *bool) (func(*bth.Packet) uint64, func(*bth.Packet, uint64)) {
	return func(p *bth.Packet) uint64 {
			if *f(p) {
				return 1
			}
			return 0
		}, func(p *bth.Packet, v uint64) {
			*f(p) = v != 0
		}
}

func value[T ~uint8 | ~uint16 | ~uint32 | ~uint64](f func(*bth.Packet) *T) (func(*bth.Packet) uint64, func(*bth.Packet, uint64)) {
	return func(p *bth.Packet) uint64 { return uint64(*f(p)) },
		func(p *bth.Packet, v uint64) { *f(p) = T(v) }
}

// va and rkey are in two headers, of which a packet carries one.
func va(p *bth.Packet) *uint64 {
	if p.Opcode.Ext()&bth.HasAtomicETH != 0 {
		return &p.AtomicETH.VA
	}
	return &p.RETH.VA
}

func rkey(p *bth.Packet) *uint32 {
	if p.Opcode.Ext()&bth.HasAtomicETH != 0 {
		return &p.AtomicETH.RKey
	}
	return &p.RETH.RKey
}

var fields = func() []field {
	var fs []field
	add := func(name string, bits int, ext bth.Ext) func(func(*bth.Packet) uint64, func(*bth.Packet, uint64)) {
		return func(get func(*bth.Packet) uint64, set func(*bth.Packet, uint64)) {
			fs = append(fs, field{name, bits, ext, get, set})
		}
	}
	const remote = bth.HasRETH | bth.HasAtomicETH
	add("se", 1, 0)(flag(func(p *bth.Packet) *bool { return &p.SE }))
	add("m", 1, 0)(flag(func(p *bth.Packet) *bool { return &p.M }))
	add("ackreq", 1, 0)(flag(func(p *bth.Packet) *bool { return &p.AckReq }))
	add("fecn", 1, 0)(flag(func(p *bth.Packet) *bool { return &p.FECN }))
	add("becn", 1, 0)(flag(func(p *bth.Packet) *bool { return &p.BECN }))
	add("qpn", 24, 0)(value(func(p *bth.Packet) *uint32 { return &p.DestQP }))
	add("pkey", 16, 0)(value(func(p *bth.Packet) *uint16 { return &p.PKey }))
	add("psn", 24, 0)(value(func(p *bth.Packet) *psn.PSN { return &p.PSN }))
	add("tver", 4, 0)(value(func(p *bth.Packet) *uint8 { return &p.TVer }))
	add("pad", 2, 0)(value(func(p *bth.Packet) *uint8 { return &p.PadCnt }))
	add("va", 64, remote)(value(va))
	add("rkey", 32, remote)(value(rkey))
	add("dmalen", 32, bth.HasRETH)(value(func(p *bth.Packet) *uint32 { return &p.RETH.DMALen }))
	add("add", 64, bth.HasAtomicETH)(value(func(p *bth.Packet) *uint64 { return &p.AtomicETH.SwapAdd }))
	add("swap", 64, bth.HasAtomicETH)(value(func(p *bth.Packet) *uint64 { return &p.AtomicETH.SwapAdd }))
	add("compare", 64, bth.HasAtomicETH)(value(func(p *bth.Packet) *uint64 { return &p.AtomicETH.Compare }))
	add("orig", 64, bth.HasAtomicAckETH)(value(func(p *bth.Packet) *uint64 { return &p.AtomicAckETH.Orig }))
	add("syndrome", 8, bth.HasAETH)(value(func(p *bth.Packet) *aeth.Syndrome { return &p.AETH.Syndrome }))
	add("msn", 24, bth.HasAETH)(value(func(p *bth.Packet) *uint32 { return &p.AETH.MSN }))
	add("imm", 32, bth.HasImmDt)(value(func(p *bth.Packet) *uint32 { return &p.ImmDt.Imm }))
	add("inv_rkey", 32, bth.HasIETH)(value(func(p *bth.Packet) *uint32 { return &p.IETH.RKey }))
	add("qkey", 32, bth.HasDETH)(value(func(p *bth.Packet) *uint32 { return &p.DETH.QKey }))
	add("src_qp", 24, bth.HasDETH)(value(func(p *bth.Packet) *uint32 { return &p.DETH.SrcQP }))
	add("srq", 24, bth.HasXRCETH)(value(func(p *bth.Packet) *uint32 { return &p.XRCETH.SRQ }))
	add("sel", 2, bth.HasFETH)(value(func(p *bth.Packet) *reth.Selectivity { return &p.FETH.Sel }))
	add("plt", 4, bth.HasFETH)(value(func(p *bth.Packet) *reth.Placement { return &p.FETH.Placement }))
	return fs
}()

// opcode finds the opcode of a service by its operation's name.
func opcode(s bth.Service, word string) (bth.Opcode, bool) {
	switch word {
	case "ACK", "NAK":
		word = "ACKNOWLEDGE"
	case "CNP":
		return bth.CNP, true
	}
	if b, ok := strings.CutPrefix(word, "0x"); ok {
		if n, err := hex.DecodeString(b); err == nil && len(n) == 1 {
			return bth.Opcode(n[0]), true
		}
	}
	for i := range 256 {
		op := bth.Opcode(i)
		if op.Known() && (op.String() == s.String()+"_"+word || op.String() == word) {
			return op, true
		}
	}
	return 0, false
}

// given is a field that a statement names, and its value.
type given struct {
	*field
	v uint64
}

// packetFields reads the packet fields of a statement: the PSN first, then those
// with names. Flags that are not there are not given.
func (r *runner) packetFields(a *args, op bth.Opcode) []given {
	var gs []given
	for i := range fields {
		f := &fields[i]
		s, ok := "", false
		switch {
		case f.bits > 1:
			s, ok = a.str(f.name)
		case a.flag(f.name):
			s, ok = "1", true
		case a.flag("!" + f.name):
			s, ok = "0", true
		}
		if f.name == "psn" && !ok && op != bth.CNP {
			s, ok = a.next("the PSN"), true
		}
		if !ok {
			continue
		}
		if f.ext != 0 && op.Ext()&f.ext == 0 {
			a.fail("%v has no %s", op, f.name)
		}
		if key, ok := r.keys[s]; ok && (f.name == "rkey" || f.name == "inv_rkey") {
			gs = append(gs, given{f, uint64(key)})
			continue
		}
		v := a.number(s, f.name, max(f.bits, 8))
		if f.bits < 64 && v>>f.bits != 0 {
			a.fail("%s=%s has more than %d bits", f.name, s, f.bits)
		}
		gs = append(gs, given{f, v})
	}
	return gs
}

// describe is a packet in the words of a script.
func describe(p *bth.Packet, retx bool) string {
	var b strings.Builder
	_, name, _ := strings.Cut(p.Opcode.String(), "_")
	if p.Opcode == bth.CNP {
		name = "CNP"
	}
	fmt.Fprintf(&b, "%s %d", name, p.PSN)
	for i := range fields {
		f := &fields[i]
		v := f.get(p)
		switch {
		case f.ext != 0 && p.Opcode.Ext()&f.ext == 0, f.name == "psn", f.name == "m", f.name == "swap":
		case f.bits == 1 && v != 0:
			fmt.Fprintf(&b, " %s", f.name)
		case f.bits == 1, f.ext == 0 && v == 0, f.name == "qpn", f.name == "pkey" && v == 0xffff:
		case f.bits >= 32 && f.name != "dmalen", f.name == "syndrome":
			fmt.Fprintf(&b, " %s=0x%x", f.name, v)
		default:
			fmt.Fprintf(&b, " %s=%d", f.name, v)
		}
	}
	if len(p.Payload) != 0 {
		fmt.Fprintf(&b, " payload %d bytes %s", len(p.Payload), short(p.Payload))
	}
	if retx {
		b.WriteString(" retx")
	}
	return b.String()
}

func short(b []byte) string {
	if len(b) > 8 {
		return hex.EncodeToString(b[:8]) + "..."
	}
	return hex.EncodeToString(b)
}

// differ says where two byte strings first differ.
func differ(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("want %d bytes, got %d", len(want), len(got))
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return fmt.Errorf("byte %d is 0x%02x, want 0x%02x (got %s, want %s)", i, got[i], want[i], short(got[i:]), short(want[i:]))
}

// deliver runs "< OPCODE ...".
func (r *runner) deliver(a *args, verdict string) error {
	p := bth.Packet{}
	word := a.next("the opcode")
	if word == "raw" {
		b, ok := a.parseData(a.next("the bytes"))
		if err := a.done(); err != nil || !ok {
			return fmt.Errorf("no packet bytes: %v", err)
		}
		if err := p.Decode(b); err != nil {
			return err
		}
	} else {
		op, ok := opcode(r.service, word)
		if !ok {
			return fmt.Errorf("%v has no opcode %q", r.service, word)
		}
		p.Opcode, p.M, p.PKey, p.DestQP = op, true, r.attr.PKey, r.qp.Num()
		if op.Ext()&bth.HasAETH != 0 {
			p.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
		}
		if op.Ext()&bth.HasDETH != 0 {
			p.DETH.QKey = r.attr.QKey
		}
		gs := r.packetFields(a, op)
		b := a.data()
		if op == bth.CNP && b == nil {
			b = make([]byte, bth.CNPReserved)
		}
		p.SetPayload(b)
		p.RETH.DMALen = uint32(len(p.Payload))
		for _, g := range gs {
			g.set(&p, g.v)
		}
		if word == "NAK" && p.AETH.Syndrome.Kind() == aeth.Ack {
			a.fail("NAK needs syndrome=")
		}
		if err := a.done(); err != nil {
			return err
		}
	}
	r.logf("< %s", describe(&p, false))
	got := r.qp.HandlePacket(r.at(), &p, &r.grh).String()
	if got != verdict {
		return fmt.Errorf("want verdict %s, got %s", verdict, got)
	}
	return nil
}

// compare checks a packet that came out against "> OPCODE ...".
func (r *runner) compare(a *args, it *item) error {
	word := a.next("the opcode")
	if word == "raw" {
		want, ok := a.parseData(a.next("the bytes"))
		if err := a.done(); err != nil || !ok || len(want) < bth.MinSize {
			return fmt.Errorf("no packet bytes: %v", err)
		}
		var p bth.Packet
		if err := p.Decode(want); err != nil {
			return err
		}
		n := len(want) - bth.ICRCSize
		if err := differ(it.raw[:len(it.raw)-bth.ICRCSize], want[:n]); err != nil {
			return fmt.Errorf("%w in %s", err, it.text)
		}
		return nil
	}
	op, ok := opcode(r.service, word)
	if !ok {
		return fmt.Errorf("%v has no opcode %q", r.service, word)
	}
	gs := r.packetFields(a, op)
	retx, first := a.flag("retx"), a.flag("!retx")
	want := a.data()
	if err := a.done(); err != nil {
		return err
	}
	var p bth.Packet
	if err := p.Decode(it.raw); err != nil {
		return fmt.Errorf("cannot be decoded: %w: %s", err, it.text)
	}
	isAck := p.Opcode.Operation() == bth.Acknowledge && p.AETH.Syndrome.Kind() == aeth.Ack
	if p.Opcode != op || word == "ACK" && !isAck || word == "NAK" && isAck {
		return fmt.Errorf("got %s", it.text)
	}
	for _, g := range gs {
		if v := g.get(&p); v != g.v {
			return fmt.Errorf("want %s %d (0x%x), got %s", g.name, g.v, g.v, it.text)
		}
	}
	if retx && !it.retx || first && it.retx {
		return fmt.Errorf("retransmission is %v: %s", it.retx, it.text)
	}
	if want != nil {
		if err := differ(p.Payload, want); err != nil {
			return fmt.Errorf("payload: %w in %s", err, it.text)
		}
	}
	return nil
}
