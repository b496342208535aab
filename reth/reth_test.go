package reth_test

import (
	"bytes"
	"encoding"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/reth"
)

var (
	_ encoding.BinaryAppender    = (*reth.Header)(nil)
	_ encoding.BinaryUnmarshaler = (*reth.Header)(nil)
	_ encoding.BinaryAppender    = (*reth.AtomicETH)(nil)
	_ encoding.BinaryUnmarshaler = (*reth.AtomicETH)(nil)
	_ encoding.BinaryAppender    = (*reth.ImmDt)(nil)
	_ encoding.BinaryUnmarshaler = (*reth.ImmDt)(nil)
	_ encoding.BinaryAppender    = (*reth.IETH)(nil)
	_ encoding.BinaryUnmarshaler = (*reth.IETH)(nil)
	_ encoding.BinaryAppender    = (*reth.FETH)(nil)
	_ encoding.BinaryUnmarshaler = (*reth.FETH)(nil)
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// golden holds bytes against the value they stand for, both ways.
func golden[T any, P interface {
	*T
	Decode([]byte) error
	AppendTo([]byte) []byte
}](t *testing.T, bytes string, want T) {
	t.Helper()
	b := unhex(t, bytes)
	var got T
	require.NoError(t, P(&got).Decode(b))
	require.Equal(t, want, got)
	require.Equal(t, b, P(&want).AppendTo(nil))
}

// Rule WI-11.
func TestGolden(t *testing.T) {
	// fuzz/captures/rc-write.pcap, frame 29
	golden(t, "0000123456780000 000007c4 00000401", reth.Header{VA: 0x123456780000, RKey: 0x7c4, DMALen: 1025})
	// rc-atomic.pcap, frames 11 (FetchAdd) and 19 (CmpSwap: swap first, then compare)
	golden(t, "0000123456880000 00000291 1000000000000001 0000000000000000",
		reth.AtomicETH{VA: 0x123456880000, RKey: 0x291, SwapAdd: 0x1000000000000001})
	golden(t, "0000123456880000 00000291 a0b0c0d0e0f00004 410203040506070c",
		reth.AtomicETH{VA: 0x123456880000, RKey: 0x291, SwapAdd: 0xa0b0c0d0e0f00004, Compare: 0x410203040506070c})
	// rc-write.pcap, frame 33
	golden(t, "11220001", reth.ImmDt{Imm: 0x11220001})
	// rc-send-inv.pcap, frame 7
	golden(t, "080001bc", reth.IETH{RKey: 0x080001bc})
	// By the layout in InfiniBand Architecture Volume 1, Annex A19; no device was seen to send one.
	golden(t, "00000001", reth.FETH{Placement: reth.GlobalVisibility})
	golden(t, "00000013", reth.FETH{Sel: reth.MemoryRegion, Placement: reth.GlobalVisibility | reth.Persistence})
	golden(t, "80000060", reth.FETH{Resv26: 0x2000001, Sel: 2})
	golden(t, "ffffffff", reth.FETH{Resv26: 1<<26 - 1, Sel: 3, Placement: 15})
}

// InfiniBand Architecture Volume 1, clause 9.7.4: messages are 2 GiB at most.
func TestMaxDMALen(t *testing.T) { require.Equal(t, uint64(1<<31), uint64(reth.MaxDMALen)) }

// TestFETHMasks holds that no field spills into its neighbour.
func TestFETHMasks(t *testing.T) {
	for _, c := range []struct {
		h    reth.FETH
		want string
	}{
		{reth.FETH{Placement: 0x10}, "00000000"},
		{reth.FETH{Placement: 0xff}, "0000000f"},
		{reth.FETH{Sel: 4}, "00000000"},
		{reth.FETH{Sel: 0xff}, "00000030"},
		{reth.FETH{Resv26: 1 << 26}, "00000000"},
		{reth.FETH{Resv26: 0xffffffff}, "ffffffc0"},
	} {
		require.Equal(t, unhex(t, c.want), c.h.AppendTo(nil), "%+v", c.h)
		require.ErrorIs(t, c.h.Validate(), reth.ErrRange, "%+v", c.h)
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "memory range", reth.MemoryRange.String())
	require.Equal(t, "memory region", reth.MemoryRegion.String())
	for i := range 256 {
		require.NotEmpty(t, reth.Selectivity(i).String())
	}
	require.Equal(t, "2", reth.Selectivity(2).String())
}

// Rule WI-16.
func TestProperties(t *testing.T) {
	checkCodec[reth.Header](t, "RETH", reth.Size)
	checkCodec[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize)
	checkCodec[reth.ImmDt](t, "ImmDt", reth.ImmDtSize)
	checkCodec[reth.IETH](t, "IETH", reth.IETHSize)
	checkCodec[reth.FETH](t, "FETH", reth.FETHSize)
}

// codec is what all headers have.
type codec interface {
	Decode(b []byte) error
	AppendTo(dst []byte) []byte
	Validate() error
	AppendBinary(dst []byte) ([]byte, error)
	UnmarshalBinary(b []byte) error
}

// pointer is a *T with the methods of a codec.
type pointer[T any] interface {
	*T
	codec
}

// checkValues holds what must be true of any value, too wide ones as well.
func checkValues[T comparable, P pointer[T]](t *testing.T, size int) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Make[T]().Draw(t, "value")
		fresh := P(&v).AppendTo(nil)
		require.Len(t, fresh, size)

		// Into a dirty buffer, behind a prefix, with room behind.
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "prefix")
		buf := bytes.Repeat([]byte{0xa5}, len(prefix)+size+7)
		copy(buf, prefix)
		out := P(&v).AppendTo(buf[:len(prefix)])
		require.Equal(t, append(bytes.Clone(prefix), fresh...), out)
		require.Equal(t, bytes.Repeat([]byte{0xa5}, 7), buf[len(out):], "bytes behind")

		var got T
		require.NoError(t, P(&got).Decode(fresh))
		require.NoError(t, P(&got).Validate(), "what was decoded fits")
		checked, err := P(&v).AppendBinary(bytes.Clone(prefix))
		if P(&v).Validate() != nil {
			require.NotEqual(t, v, got, "Validate said that something is lost")
			require.ErrorIs(t, err, reth.ErrRange)
			require.Equal(t, prefix, checked)
			return
		}
		require.Equal(t, v, got, "decode after encode")
		require.NoError(t, err)
		require.Equal(t, out, checked)
	})
}

// checkBytes holds what must be true of any input.
func checkBytes[T comparable, P pointer[T]](t require.TestingT, size int, b []byte) {
	in := bytes.Clone(b)
	// A receiver with something in it, to see that it is left alone.
	var before T
	if err := P(&before).Decode(bytes.Repeat([]byte{0x5a}, size)); err != nil {
		t.Errorf("%v", err)
	}
	v := before
	err := P(&v).Decode(b)
	if len(b) < size {
		require.ErrorIs(t, err, reth.ErrTruncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, before, v)
		require.ErrorIs(t, P(&v).UnmarshalBinary(b), reth.ErrTruncated)
		require.Equal(t, before, v)
	} else {
		require.NoError(t, err)
		require.Equal(t, b[:size], P(&v).AppendTo(nil), "encode after decode")
		require.NoError(t, P(&v).Validate())
		w := before
		err := P(&w).UnmarshalBinary(b)
		if len(b) > size {
			require.ErrorIs(t, err, reth.ErrLength)
			require.Equal(t, before, w)
		} else {
			require.NoError(t, err)
			require.Equal(t, v, w)
		}
	}
	require.Equal(t, in, b, "the input was written to")
}

// checkCodec runs both, with every shorter input.
func checkCodec[T comparable, P pointer[T]](t *testing.T, name string, size int) {
	t.Run(name, func(t *testing.T) {
		checkValues[T, P](t, size)
		rapid.Check(t, func(t *rapid.T) {
			b := rapid.SliceOfN(rapid.Byte(), size, size+3).Draw(t, "bytes")
			for n := range len(b) + 1 {
				checkBytes[T, P](t, size, b[:n:n])
			}
		})
	})
}

func FuzzReth(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "0000123456780000 000007c4 00000401"))                                     // RETH
	f.Add(unhex(f, "0000123456880000 00000291 a0b0c0d0e0f00004 410203040506070c 0000000013")) // AtomicETH, more
	seeds.Into(f).Headers(bth.HasRETH | bth.HasAtomicETH | bth.HasImmDt | bth.HasIETH | bth.HasFETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[reth.Header](t, reth.Size, b)
		checkBytes[reth.AtomicETH](t, reth.AtomicETHSize, b)
		checkBytes[reth.ImmDt](t, reth.ImmDtSize, b)
		checkBytes[reth.IETH](t, reth.IETHSize, b)
		checkBytes[reth.FETH](t, reth.FETHSize, b)
	})
}

// BenchmarkRETH has a copy of the same bytes as its reference.
func BenchmarkRETH(b *testing.B) {
	h := reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096}
	raw := h.AppendTo(nil)
	buf := make([]byte, 0, reth.Size)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := h.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = h.AppendTo(buf[:0])
		}
	})
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			buf = append(buf[:0], raw...)
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
	allocates[reth.Header](t, "RETH", reth.Size)
	allocates[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize)
	allocates[reth.ImmDt](t, "ImmDt", reth.ImmDtSize)
	allocates[reth.IETH](t, "IETH", reth.IETHSize)
	allocates[reth.FETH](t, "FETH", reth.FETHSize)
	tooWide, buf := reth.FETH{Sel: 4}, make([]byte, 0, 8)
	if n := testing.AllocsPerRun(100, func() { buf, _ = tooWide.AppendBinary(buf[:0]) }); n != 0 {
		t.Errorf("refusal: %v allocations", n)
	}
}
