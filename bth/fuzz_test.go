package bth_test

import (
	"testing"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
)

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "8100ffff 40000118 00000000"))
	f.Add(unhex(f, "1140ffff 3f000011 7f000003 1f000001"))
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		b := s.Frame.Transport
		return []any{b[:min(len(b), 48)]}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[bth.Header](t, bth.Size, b)
		checkBytes[bth.DETH](t, bth.DETHSize, b)
		checkBytes[bth.RDETH](t, bth.RDETHSize, b)
		checkBytes[bth.XRCETH](t, bth.XRCETHSize, b)
		if v, err := bth.ViewOf(b); err == nil {
			var h bth.Header
			_ = h.Decode(b)
			if h.Opcode != v.Opcode() || h.PSN != v.PSN() || h.DestQP != v.DestQP() || h.AckReq != v.AckReq() {
				t.Errorf("view and header differ on %x", b)
			}
		}
	})
}

func FuzzPacket(f *testing.F) {
	for _, op := range knownOpcodes(f) {
		p := full(op)
		fit(p, []byte("hello"))
		f.Add(p.AppendTo(nil), 40)
	}
	f.Add([]byte{0xff, 0}, 16)
	seeds.Into(f).Packets(func(s *seeds.Frame) []any { return []any{s.Frame.Transport, len(s.Frame.Transport)} })
	f.Fuzz(checkFuzzedPacket)
}

func checkFuzzedPacket(t *testing.T, b []byte, n int) { checkPacketBytes(t, b, n) }
