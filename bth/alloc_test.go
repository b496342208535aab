//go:build !race

package bth_test

import (
	"testing"

	"github.com/roce-go/roce/bth"
)

// allocates fails the test where the codec allocates, on bytes that are enough
// and on bytes that are too few.
func allocates[T any, P pointer[T]](t *testing.T, name string, size int) {
	buf := make([]byte, size, size+1)
	var v T
	var err error
	for what, f := range map[string]func(){
		"Decode":                func() { err = P(&v).Decode(buf) },
		"Decode, short":         func() { err = P(&v).Decode(buf[:size-1]) },
		"UnmarshalBinary":       func() { err = P(&v).UnmarshalBinary(buf) },
		"UnmarshalBinary, long": func() { err = P(&v).UnmarshalBinary(buf[:size+1]) },
		"AppendTo":              func() { buf = P(&v).AppendTo(buf[:0]) },
		"AppendBinary":          func() { buf, err = P(&v).AppendBinary(buf[:0]) },
		"Validate":              func() { err = P(&v).Validate() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %s: %v allocations", name, what, n)
		}
	}
	_ = err
}

func TestNoAllocations(t *testing.T) {
	allocates[bth.Header](t, "BTH", bth.Size)
	allocates[bth.DETH](t, "DETH", bth.DETHSize)
	allocates[bth.RDETH](t, "RDETH", bth.RDETHSize)
	allocates[bth.XRCETH](t, "XRCETH", bth.XRCETHSize)

	buf := make([]byte, 0, 256)
	for _, op := range knownOpcodes(t) {
		p, q := full(op), new(bth.Packet)
		fit(p, []byte("hello"))
		raw := p.AppendTo(nil)
		bad := append([]byte(nil), raw...)
		bad[1] |= 1
		for what, f := range map[string]func(){
			"Decode":             func() { _ = q.Decode(raw) },
			"Decode, short":      func() { _ = q.Decode(raw[:15]) },
			"Decode, bad":        func() { _ = q.Decode(bad) },
			"DecodePrefix":       func() { _ = q.DecodePrefix(raw, len(raw)) },
			"DecodePrefix, cut":  func() { _ = q.DecodePrefix(raw[:len(raw)-5], len(raw)) },
			"DecodePrefix, bad":  func() { _ = q.DecodePrefix(raw[:13], len(raw)) },
			"UnmarshalBinary":    func() { _ = q.UnmarshalBinary(raw) },
			"AppendTo":           func() { buf = p.AppendTo(buf[:0]) },
			"AppendHeadersTo":    func() { buf = p.AppendHeadersTo(buf[:0]) },
			"AppendBinary":       func() { buf, _ = p.AppendBinary(buf[:0]) },
			"Size, Validate":     func() { _, _ = p.Size(), p.Validate() },
			"names of an opcode": func() { _, _, _ = op.String(), op.Class().String(), op.Service().String() },
		} {
			if n := testing.AllocsPerRun(10, f); n != 0 {
				t.Errorf("%v: %s: %v allocations", op, what, n)
			}
		}
	}

	raw := make([]byte, bth.Size)
	h := bth.Header{DestQP: 1 << 24}
	var p bth.Packet
	for what, f := range map[string]func(){
		"refusal":    func() { buf, _ = h.AppendBinary(buf[:0]) },
		"SetPayload": func() { p.SetPayload(raw) },
		"PKeyMatch":  func() { _ = bth.PKeyMatch(0xffff, 0x7fff) },
		"View, short": func() {
			_, _ = bth.ViewOf(raw[:11])
		},
		"View": func() {
			v, _ := bth.ViewOf(raw)
			v.SetOpcode(v.Opcode() + 1)
			v.SetSE(!v.SE())
			v.SetM(!v.M())
			v.SetPadCnt(v.PadCnt() + 1)
			v.SetTVer(v.TVer() + 1)
			v.SetPKey(v.PKey() + 1)
			v.SetFECN(!v.FECN())
			v.SetBECN(!v.BECN())
			v.SetDestQP(v.DestQP() + 1)
			v.SetAckReq(!v.AckReq())
			v.SetPSN(v.PSN().Add(1))
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
