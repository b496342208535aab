package mrc_test

import (
	"net/netip"
	"testing"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/reth"
)

var addrA, addrB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// BenchmarkDecode has a RC WRITE First as its reference: BTH, RETH and the same
// payload.
func BenchmarkDecode(b *testing.B) {
	payload := make([]byte, 1024)
	rc := bth.Packet{Header: bth.Header{Opcode: bth.RCWriteFirst, PKey: 0xffff, DestQP: 0x11, PSN: 0xfffff0},
		RETH: reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096}}
	rc.SetPayload(payload)
	b.Run("rc-write", func(b *testing.B) {
		raw := rc.AppendTo(nil)
		var q bth.Packet
		b.ReportAllocs()
		for b.Loop() {
			if err := q.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, c := range []struct {
		name string
		op   bth.Opcode
		ts   bool
	}{{"write", mrc.WriteFirst, false}, {"write-ts", mrc.WriteFirst, true}, {"sack", mrc.SACK, false}, {"nack", mrc.NACK, false}} {
		b.Run(c.name, func(b *testing.B) {
			p := mrc.Packet{Header: rc.Header, RETH: rc.RETH, Payload: rc.Payload}
			p.Opcode = c.op
			mrc.SetTS(&p.Header, c.ts)
			if c.op != mrc.WriteFirst {
				p.Payload = nil
			}
			raw := p.AppendTo(nil)
			var q mrc.Packet
			b.ReportAllocs()
			for b.Loop() {
				if err := q.Decode(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncode has the same reference.
func BenchmarkEncode(b *testing.B) {
	buf := make([]byte, 0, 2048)
	rc := bth.Packet{Header: bth.Header{Opcode: bth.RCWriteFirst}}
	rc.SetPayload(make([]byte, 1024))
	b.Run("rc-write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = rc.AppendTo(buf[:0])
		}
	})
	b.Run("write", func(b *testing.B) {
		p := mrc.Packet{Header: rc.Header, RETH: rc.RETH, Payload: rc.Payload}
		p.Opcode = mrc.WriteFirst
		b.ReportAllocs()
		for b.Loop() {
			buf = p.AppendTo(buf[:0])
		}
	})
}

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
	allocates[mrc.METH](t, "METH", mrc.METHSize)
	allocates[mrc.TSETH](t, "TSETH", mrc.TSETHSize)
	allocates[mrc.SETH](t, "SETH", mrc.SETHSize)
	allocates[mrc.CCState](t, "CC_STATE", mrc.CCStateSize)
	allocates[mrc.NETH](t, "NETH", mrc.NETHSize)
	allocates[mrc.PETH](t, "PETH", mrc.PETHSize)
	allocates[mrc.ERTH](t, "ERTH", mrc.ERTHSize)
	allocates[mrc.EETH](t, "EETH", mrc.EETHSize)

	buf := make([]byte, 0, 256)
	for op := range stack {
		var p, q mrc.Packet
		p.Opcode = op
		if isWrite(op) {
			p.SetPayload([]byte("hello"))
		}
		raw := p.AppendTo(nil)
		bad := append([]byte(nil), raw...)
		bad[1] |= 1
		wide := p
		wide.DestQP = 1 << 24
		for what, f := range map[string]func(){
			"Decode":            func() { _ = q.Decode(raw) },
			"Decode, short":     func() { _ = q.Decode(raw[:15]) },
			"Decode, bad":       func() { _ = q.Decode(bad) },
			"DecodePrefix":      func() { _ = q.DecodePrefix(raw, len(raw)) },
			"DecodePrefix, cut": func() { _ = q.DecodePrefix(raw[:len(raw)-5], len(raw)) },
			"DecodeTrimmed":     func() { _ = q.DecodeTrimmed(raw) },
			"DecodeTrimmed, no": func() { _ = q.DecodeTrimmed(bad[:11]) },
			"UnmarshalBinary":   func() { _ = q.UnmarshalBinary(raw) },
			"AppendTo":          func() { buf = p.AppendTo(buf[:0]) },
			"AppendHeadersTo":   func() { buf = p.AppendHeadersTo(buf[:0]) },
			"AppendBinary":      func() { buf, _ = p.AppendBinary(buf[:0]) },
			"refusal":           func() { buf, _ = wide.AppendBinary(buf[:0]) },
			"Size, Validate":    func() { _, _ = p.Size(), p.Validate() },
			"of an opcode":      func() { _, _, _ = mrc.Name(op), mrc.Class(op), mrc.HeaderSize(op, true) },
		} {
			if n := testing.AllocsPerRun(10, f); n != 0 {
				t.Errorf("%s: %s: %v allocations", mrc.Name(op), what, n)
			}
		}
	}
	var r mrc.Requests
	var h bth.Header
	if n := testing.AllocsPerRun(10, func() {
		r.Seen(addrA, addrB, 1, mrc.EVProbe)
		_, _ = r.Op(addrB, addrA, 1)
		mrc.SetTS(&h, !mrc.TS(&h))
		mrc.SetRtx(&h, !mrc.Rtx(&h))
		port, label := mrc.LowInPort.Split(7)
		_ = mrc.LowInPort.Entropy(port, label)
	}); n != 0 {
		t.Errorf("Requests: %v allocations", n)
	}
}
