package cm_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/qp/cm"
)

// Any input: no panic, no change on error, the same bytes again, and no String
// that fails.
func FuzzMessage(f *testing.F) {
	for _, d := range captured(f) {
		f.Add(d.mad)
		f.Add(d.mad[:cm.Size-1])
		for id := cm.AttrREQ - 1; id <= cm.AttrAPR+1; id++ {
			b := bytes.Clone(d.mad)
			b[17] = byte(id)
			f.Add(b)
		}
	}
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		if p := &s.Frame.Packet; p.DestQP == 1 && len(p.Payload) == cm.Size {
			return []any{p.Payload}
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := cm.Message{Header: cm.NewHeader(cm.AttrREQ, 0x0123456789abcdef)}
		in := bytes.Clone(b)
		if err := m.Decode(b); err != nil {
			if m.Header != cm.NewHeader(cm.AttrREQ, 0x0123456789abcdef) {
				t.Fatal("header changed on error")
			}
			if len(b) >= cm.Size && cm.Class(b[1]) == cm.ClassCM && b[16] == 0 && b[17] >= 0x10 && b[17] <= 0x1a {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		got, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, in[:cm.Size]) {
			t.Fatalf("got  %x\nwant %x", got, in[:cm.Size])
		}
		var h cm.CMAHeader
		if consumer, ok := m.REQ.CMA(&h); ok {
			if again := append(h.AppendTo(nil), consumer...); !bytes.Equal(again, m.REQ.PrivateData) {
				t.Fatal("CMA header")
			}
			if !h.Src().IsValid() || !h.Dst().IsValid() {
				t.Fatal("CMA addresses")
			}
		}
		_ = fmt.Sprint(m)
	})
}
