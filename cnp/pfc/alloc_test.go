//go:build !race

package pfc_test

import (
	"testing"

	"github.com/roce-go/roce/cnp/pfc"
)

func TestAllocs(t *testing.T) {
	good := unhex(t, golden[0].hex)
	bad := append([]byte(nil), good...)
	bad[14] = 0x77
	buf := make([]byte, 0, pfc.MinFrame)
	var f pfc.Frame
	for name, fn := range map[string]func(){
		"Decode":          func() { _ = f.Decode(good) },
		"Decode bad":      func() { _ = f.Decode(bad) },
		"Decode short":    func() { _ = f.Decode(good[:20]) },
		"UnmarshalBinary": func() { _ = f.UnmarshalBinary(good[:pfc.Size]) },
		"AppendTo":        func() { buf = f.AppendTo(buf[:0]) },
		"AppendFrame":     func() { buf = f.AppendFrame(buf[:0]) },
		"AppendBinary":    func() { buf, _ = f.AppendBinary(buf[:0]) },
		"Validate":        func() { _ = f.Validate() },
	} {
		if n := testing.AllocsPerRun(200, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
