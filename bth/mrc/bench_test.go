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
