package script

import (
	"bytes"
	"encoding/hex"
	"errors"
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

// Form is a packet as a statement names it: an opcode, some fields, and a payload.
type Form struct {
	Word   string // the opcode, as it was written
	Opcode bth.Opcode
	Data   []byte // the payload; nil where none is named

	given []given
}

// ParseForm removes from the words of a statement those of a packet: the opcode, the
// PSN (* for any), fields, and DATA or len=N. keys are the numbers that names may stand for in
// rkey and inv_rkey.
func ParseForm(s bth.Service, a *Words, keys map[string]uint32) *Form {
	f := &Form{Word: a.Next("the opcode")}
	var ok bool
	if f.Opcode, ok = opcode(s, f.Word); !ok {
		a.Fail("%v has no opcode %q", s, f.Word)
		return f
	}
	op := f.Opcode
	// The PSN comes first. Flags that are absent are not given.
	for i := range fields {
		d := &fields[i]
		s, ok := "", false
		switch {
		case d.bits > 1:
			s, ok = a.Str(d.name)
		case a.Flag(d.name):
			s, ok = "1", true
		case a.Flag("!" + d.name):
			s, ok = "0", true
		}
		if d.name == "psn" && !ok && op != bth.CNP {
			s, ok = a.Next("the PSN"), true
		}
		if !ok {
			continue
		}
		if d.ext != 0 && op.Ext()&d.ext == 0 {
			a.Fail("%v has no %s", op, d.name)
		}
		if d.name == "psn" && s == "*" {
			continue
		}
		if key, ok := keys[s]; ok && (d.name == "rkey" || d.name == "inv_rkey") {
			f.given = append(f.given, given{d, uint64(key)})
			continue
		}
		v := a.number(s, d.name, max(d.bits, 8))
		if d.bits < 64 && v>>d.bits != 0 {
			a.Fail("%s=%s has more than %d bits", d.name, s, d.bits)
		}
		f.given = append(f.given, given{d, v})
	}
	f.Data = a.Data()
	return f
}

// Fill gives p the opcode, the fields and the payload, with the DMA length that goes
// with it, and leaves what the statement does not name.
func (f *Form) Fill(p *bth.Packet) {
	p.Opcode = f.Opcode
	b := f.Data
	if f.Opcode == bth.CNP && b == nil {
		b = make([]byte, bth.CNPReserved)
	}
	p.SetPayload(b)
	p.RETH.DMALen = uint32(len(p.Payload))
	for _, g := range f.given {
		g.set(p, g.v)
	}
}

// Match returns the difference between p and the statement, or nil.
func (f *Form) Match(p *bth.Packet) error {
	isAck := p.Opcode.Operation() == bth.Acknowledge && p.AETH.Syndrome.Kind() == aeth.Ack
	if p.Opcode != f.Opcode || f.Word == "ACK" && !isAck || f.Word == "NAK" && isAck {
		return errOpcode
	}
	for _, g := range f.given {
		if v := g.get(p); v != g.v {
			return fmt.Errorf("want %s %d (0x%x)", g.name, g.v, g.v)
		}
	}
	if f.Data != nil {
		if err := differ(p.Payload, f.Data); err != nil {
			return fmt.Errorf("payload: %w", err)
		}
	}
	return nil
}

var errOpcode = errors.New("another opcode")

// Describe returns a packet in the words of a script.
func Describe(p *bth.Packet, retx bool) string {
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
func (r *runner) deliver(a *Words, verdict string) error {
	p := bth.Packet{}
	word := a.peek()
	if word == "raw" {
		a.take(0)
		b, ok := a.parseData(a.Next("the bytes"))
		if err := a.Done(); err != nil || !ok {
			return fmt.Errorf("no packet bytes: %v", err)
		}
		if err := p.Decode(b); err != nil {
			return err
		}
	} else {
		f := ParseForm(r.service, a, r.keys)
		op := f.Opcode
		p.M, p.PKey, p.DestQP = true, r.attr.PKey, r.qp.Num()
		if op.Ext()&bth.HasAETH != 0 {
			p.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
		}
		if op.Ext()&bth.HasDETH != 0 {
			p.DETH.QKey = r.attr.QKey
		}
		f.Fill(&p)
		if word == "NAK" && p.AETH.Syndrome.Kind() == aeth.Ack {
			a.Fail("NAK needs syndrome=")
		}
		if err := a.Done(); err != nil {
			return err
		}
	}
	r.logf("< %s", Describe(&p, false))
	got := r.qp.HandlePacket(r.at(), &p, &r.grh).String()
	if got != verdict {
		return fmt.Errorf("want verdict %s, got %s", verdict, got)
	}
	return nil
}

// compare checks a packet that the QP sent against "> OPCODE ...".
func (r *runner) compare(a *Words, it *item) error {
	if a.peek() == "raw" {
		a.take(0)
		want, ok := a.parseData(a.Next("the bytes"))
		if err := a.Done(); err != nil || !ok || len(want) < bth.MinSize {
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
	f := ParseForm(r.service, a, r.keys)
	retx, first := a.Flag("retx"), a.Flag("!retx")
	if err := a.Done(); err != nil {
		return err
	}
	var p bth.Packet
	if err := p.Decode(it.raw); err != nil {
		return fmt.Errorf("cannot be decoded: %w: %s", err, it.text)
	}
	err := f.Match(&p)
	if err == errOpcode {
		return fmt.Errorf("got %s", it.text)
	}
	if err != nil {
		return fmt.Errorf("%w, got %s", err, it.text)
	}
	if retx && !it.retx || first && it.retx {
		return fmt.Errorf("retransmission is %v: %s", it.retx, it.text)
	}
	return nil
}
