package bth_test

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/reth"
)

// A RDMA WRITE First with 1 KiB in Ethernet, IPv4 and UDP: what the reference
// decodes is in front of what we decode.
var benchPacket = func() bth.Packet {
	p := bth.Packet{
		Header: bth.Header{Opcode: bth.RCWriteFirst, M: true, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 0xfffff0},
		RETH:   reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096},
	}
	p.SetPayload(make([]byte, 1024))
	return p
}()

// BenchmarkBTH has gopacket's decoder of Ethernet, IPv4 and UDP beside ours of
// what follows them.
func BenchmarkBTH(b *testing.B) {
	p := benchPacket
	raw := p.AppendTo(nil)
	b.Run("gopacket-eth-ipv4-udp", func(b *testing.B) {
		frame := append([]byte{
			2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
			0x45, 0, 4, 0x3c, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
			0xc0, 1, 0x12, 0xb7, 4, 0x28, 0, 0,
		}, raw...)
		var eth layers.Ethernet
		var ip layers.IPv4
		var udp layers.UDP
		p := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp)
		p.IgnoreUnsupported = true
		var got []gopacket.LayerType
		b.ReportAllocs()
		for b.Loop() {
			if err := p.DecodeLayers(frame, &got); err != nil || len(got) != 3 {
				b.Fatal(err, got)
			}
		}
	})
	b.Run("header-decode", func(b *testing.B) {
		var h bth.Header
		b.ReportAllocs()
		for b.Loop() {
			if err := h.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("header-encode", func(b *testing.B) {
		buf := make([]byte, 0, bth.Size)
		b.ReportAllocs()
		for b.Loop() {
			buf = p.Header.AppendTo(buf[:0])
		}
	})
	b.Run("view-read", func(b *testing.B) {
		var h bth.Header
		b.ReportAllocs()
		for b.Loop() {
			v, err := bth.ViewOf(raw)
			if err != nil {
				b.Fatal(err)
			}
			h.Opcode, h.PKey, h.DestQP, h.AckReq, h.PSN = v.Opcode(), v.PKey(), v.DestQP(), v.AckReq(), v.PSN()
			h.SE, h.M, h.PadCnt, h.TVer, h.FECN, h.BECN = v.SE(), v.M(), v.PadCnt(), v.TVer(), v.FECN(), v.BECN()
		}
	})
	b.Run("view-write", func(b *testing.B) {
		buf := append([]byte(nil), raw...)
		h := p.Header
		b.ReportAllocs()
		for b.Loop() {
			v, err := bth.ViewOf(buf)
			if err != nil {
				b.Fatal(err)
			}
			v.SetOpcode(h.Opcode)
			v.SetPKey(h.PKey)
			v.SetDestQP(h.DestQP)
			v.SetPSN(h.PSN)
			v.SetAckReq(h.AckReq)
			v.SetBECN(h.BECN)
		}
	})
	b.Run("packet-decode", func(b *testing.B) {
		var q bth.Packet
		b.ReportAllocs()
		for b.Loop() {
			if err := q.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("packet-encode", func(b *testing.B) {
		buf := make([]byte, 0, 2048)
		b.ReportAllocs()
		for b.Loop() {
			buf = p.AppendTo(buf[:0])
		}
	})
	b.Run("copy", func(b *testing.B) {
		buf := make([]byte, len(raw))
		for b.Loop() {
			copy(buf, raw)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	codectest.Allocates[bth.Header](t, "BTH", bth.Size)
	codectest.Allocates[bth.DETH](t, "DETH", bth.DETHSize)
	codectest.Allocates[bth.RDETH](t, "RDETH", bth.RDETHSize)
	codectest.Allocates[bth.XRCETH](t, "XRCETH", bth.XRCETHSize)

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
