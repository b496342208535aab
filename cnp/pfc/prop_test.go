package pfc_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/fuzz/seeds"
)

func genFrame(t *rapid.T) pfc.Frame {
	f := pfc.Frame{
		Dst:    [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "dst")),
		Src:    [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "src")),
		Opcode: rapid.SampledFrom([]pfc.Opcode{pfc.Pause, pfc.PFC}).Draw(t, "opcode"),
	}
	f.Quanta[0] = rapid.Uint16().Draw(t, "quanta")
	if f.Opcode == pfc.PFC {
		f.Enable = rapid.Uint16().Draw(t, "enable")
		for i := range f.Quanta {
			f.Quanta[i] = rapid.Uint16().Draw(t, "quanta")
		}
	}
	return f
}

func TestPropRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFrame(t)
		b, err := f.AppendBinary(nil)
		require.NoError(t, err)
		var g pfc.Frame
		require.NoError(t, g.UnmarshalBinary(b))
		require.Equal(t, f, g)
		b = f.AppendFrame(nil)
		require.Len(t, b, pfc.MinFrame)
		require.NoError(t, g.Decode(b))
		require.Equal(t, f, g)
	})
}

// Quanta is the least number that lasts long enough, and Duration its length.
func TestPropQuanta(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Uint64Range(1e6, 1e13).Draw(t, "rate")
		q := rapid.Uint16().Draw(t, "quanta")
		d := pfc.Duration(q, rate)
		back := pfc.Quanta(d, rate)
		require.GreaterOrEqual(t, back, q)
		if rate <= 512*uint64(time.Second) { // a quantum is at least a nanosecond
			require.LessOrEqual(t, uint32(back), uint32(q)+1)
		}
	})
}

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
