package pfc_test

import (
	"bytes"
	"encoding"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/fuzz/seeds"
)

var (
	_ encoding.BinaryAppender    = (*pfc.Frame)(nil)
	_ encoding.BinaryUnmarshaler = (*pfc.Frame)(nil)
)

// golden are frames built by Scapy 2.5.0 (contrib mac_control), padded to 60
// bytes; Wireshark 4.0's MAC control dissector reads the same fields from them.
var golden = []struct {
	name, hex string
	want      pfc.Frame
}{
	{
		"XOFF of priority 3",
		"0180c2000001 02000000000a 8808 0101 0008 0000 0000 0000 ffff 0000 0000 0000 0000" + zeros(26),
		pfc.Frame{Dst: pfc.Dest, Src: [6]byte{2, 0, 0, 0, 0, 0xa}, Opcode: pfc.PFC, Enable: 0x08, Quanta: [8]uint16{3: 0xffff}},
	},
	{
		"XON of priority 3",
		"0180c2000001 02000000000a 8808 0101 0008 0000 0000 0000 0000 0000 0000 0000 0000" + zeros(26),
		pfc.Frame{Dst: pfc.Dest, Src: [6]byte{2, 0, 0, 0, 0, 0xa}, Opcode: pfc.PFC, Enable: 0x08},
	},
	{
		"priorities 0, 4, 7; a time without its bit",
		"0180c2000001 02000000000b 8808 0101 0091 0001 1111 0000 0000 1234 0000 0000 fedc" + zeros(26),
		pfc.Frame{Dst: pfc.Dest, Src: [6]byte{2, 0, 0, 0, 0, 0xb}, Opcode: pfc.PFC, Enable: 0x91,
			Quanta: [8]uint16{1, 0x1111, 0, 0, 0x1234, 0, 0, 0xfedc}},
	},
	{
		"PAUSE",
		"0180c2000001 02000000000c 8808 0001 00ff" + zeros(42),
		pfc.Frame{Dst: pfc.Dest, Src: [6]byte{2, 0, 0, 0, 0, 0xc}, Opcode: pfc.Pause, Quanta: [8]uint16{0xff}},
	},
}

func zeros(n int) string { return strings.Repeat("00", n) }

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(tb, err)
	return b
}

// Rule WI-17.
func TestGolden(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.hex)
			require.Len(t, b, pfc.MinFrame)
			got := pfc.Frame{Enable: 0xa5a5, Quanta: [8]uint16{7: 0xa5a5}}
			require.NoError(t, got.Decode(b))
			require.Equal(t, c.want, got)
			require.NoError(t, got.Validate())

			dirty := append(make([]byte, 0, 128), 0xa5, 0xa5)
			for i := range dirty[:cap(dirty)] {
				dirty[:cap(dirty)][i] = 0xa5
			}
			out := c.want.AppendFrame(dirty)
			require.Equal(t, []byte{0xa5, 0xa5}, out[:2])
			require.Equal(t, b, out[2:])
			require.Equal(t, b[:c.want.Size()], c.want.AppendTo(nil))
		})
	}
}

func TestDecodeRefusals(t *testing.T) {
	full := unhex(t, golden[0].hex)[:pfc.Size]
	pause := unhex(t, golden[3].hex)[:pfc.PauseSize]
	before := pfc.Frame{Src: [6]byte{1, 2, 3}, Enable: 0x55, Quanta: [8]uint16{9, 8}}
	for _, frame := range [][]byte{full, pause} {
		for n := range frame {
			f := before
			err := f.Decode(frame[:n])
			require.ErrorIs(t, err, pfc.ErrTruncated, n)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
			require.Equal(t, before, f, n)
		}
	}
	f := before
	b := append([]byte(nil), full...)
	b[12] = 0x08
	b[13] = 0x00
	require.ErrorIs(t, f.Decode(b), pfc.ErrEthertype)
	b = append([]byte(nil), full...)
	b[14], b[15] = 0x00, 0x02
	require.ErrorIs(t, f.Decode(b), pfc.ErrOpcode)
	require.ErrorIs(t, f.UnmarshalBinary(append(full, 0)), pfc.ErrLength)
	require.Equal(t, before, f)
	require.NoError(t, f.UnmarshalBinary(full))
	require.Equal(t, golden[0].want, f)
}

func TestValidate(t *testing.T) {
	p := pfc.NewPause([6]byte{}, 5)
	require.NoError(t, p.Validate())
	p.Enable = 1
	require.ErrorIs(t, p.Validate(), pfc.ErrRange)
	p.Enable = 0
	p.Quanta[7] = 1
	require.ErrorIs(t, p.Validate(), pfc.ErrRange)
	p.Opcode = 2
	require.ErrorIs(t, p.Validate(), pfc.ErrOpcode)
	out, err := p.AppendBinary([]byte{1})
	require.ErrorIs(t, err, pfc.ErrOpcode)
	require.Equal(t, []byte{1}, out)
}

func TestTime(t *testing.T) {
	f := pfc.New([6]byte{2})
	f.Set(3, 100)
	f.Set(0, 0)
	f.Quanta[5] = 77 // no bit: says nothing
	for prio, want := range map[int]struct {
		q  uint16
		ok bool
	}{0: {0, true}, 3: {100, true}, 5: {0, false}, 1: {0, false}, -1: {0, false}, 8: {0, false}} {
		q, ok := f.Time(prio)
		require.Equal(t, want.q, q, prio)
		require.Equal(t, want.ok, ok, prio)
	}
	p := pfc.NewPause([6]byte{2}, 9)
	for prio := range pfc.Priorities {
		q, ok := p.Time(prio)
		require.True(t, ok)
		require.EqualValues(t, 9, q)
	}
}

func TestOpcodeString(t *testing.T) {
	require.Equal(t, "PFC", pfc.PFC.String())
	require.Equal(t, "PAUSE", pfc.Pause.String())
	require.Equal(t, "0xffff", pfc.Opcode(0xffff).String())
}

// A quantum is 512 bit times: 51.2 ns at 10 Gb/s, 5.12 ns at 100 Gb/s.
func TestDuration(t *testing.T) {
	for _, c := range []struct {
		q    uint16
		rate uint64
		want time.Duration
	}{
		{0, 100e9, 0},
		{1, 100e9, 6},
		{100, 100e9, 512},
		{65535, 100e9, 335540}, // 335539.2
		{10, 10e9, 512},
		{65535, 1e9, 33553920},
		{65535, 1, 65535 * 512 * time.Second},
		{1, 0, 0},
	} {
		require.Equal(t, c.want, pfc.Duration(c.q, c.rate), c)
	}
	for _, c := range []struct {
		d    time.Duration
		rate uint64
		want uint16
	}{
		{0, 100e9, 0}, {-1, 100e9, 0}, {1, 100e9, 1}, {5, 100e9, 1}, {6, 100e9, 2},
		{512, 100e9, 100}, {513, 100e9, 101}, {time.Second, 100e9, 65535},
		{math.MaxInt64, math.MaxUint64, 65535}, {time.Hour, 0, 0},
	} {
		require.Equal(t, c.want, pfc.Quanta(c.d, c.rate), c)
	}
}

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

func BenchmarkDecode(b *testing.B) {
	in := unhex(b, golden[0].hex)
	var f pfc.Frame
	b.ReportAllocs()
	for b.Loop() {
		_ = f.Decode(in)
	}
}

func BenchmarkAppendFrame(b *testing.B) {
	f := golden[2].want
	buf := make([]byte, 0, pfc.MinFrame)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.AppendFrame(buf[:0])
	}
}

// BenchmarkCopy is the reference: 60 bytes moved and nothing else.
func BenchmarkCopy(b *testing.B) {
	in := unhex(b, golden[2].hex)
	buf := make([]byte, 0, pfc.MinFrame)
	b.ReportAllocs()
	for b.Loop() {
		buf = append(buf[:0], in...)
	}
}

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

func Example() {
	f := pfc.New([6]byte{2, 0, 0, 0, 0, 0xa})
	f.Set(3, 0xffff) // stop priority 3
	wire := f.AppendFrame(nil)

	var got pfc.Frame
	if err := got.Decode(wire); err != nil {
		fmt.Println(err)
		return
	}
	q, ok := got.Time(3)
	fmt.Println(len(wire), got.Opcode, q, ok, pfc.Duration(q, 100e9))
	// Output: 60 PFC 65535 true 335.54µs
}
