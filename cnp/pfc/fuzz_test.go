package pfc_test

import (
	"bytes"
	"testing"

	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/fuzz/seeds"
)

func FuzzDecode(f *testing.F) {
	for _, c := range golden {
		f.Add(unhex(f, c.hex))
	}
	f.Add([]byte{})
	seeds.Into(f).Each(func(s *seeds.Frame) []any {
		if s.EtherType() != 0x8808 {
			return nil
		}
		return []any{s.Data}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		before := pfc.Frame{Enable: 0x1234}
		fr := before
		err := fr.Decode(b)
		if !bytes.Equal(in, b) {
			t.Fatal("input changed")
		}
		if err != nil {
			if fr != before {
				t.Fatal("receiver changed on error")
			}
			return
		}
		if err := fr.Validate(); err != nil {
			t.Fatal(err)
		}
		if out := fr.AppendTo(nil); !bytes.Equal(out, b[:fr.Size()]) {
			t.Fatalf("%x became %x", b[:fr.Size()], out)
		}
	})
}
