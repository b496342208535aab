package reth_test

import (
	"encoding"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/codectest"
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

// golden compares bytes with their value, decoding and encoding.
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
	codectest.Check[reth.Header](t, "RETH", reth.Size, codecErrors)
	codectest.Check[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize, codecErrors)
	codectest.Check[reth.ImmDt](t, "ImmDt", reth.ImmDtSize, codecErrors)
	codectest.Check[reth.IETH](t, "IETH", reth.IETHSize, codecErrors)
	codectest.Check[reth.FETH](t, "FETH", reth.FETHSize, codecErrors)
}

var codecErrors = codectest.Errors{Range: reth.ErrRange, Truncated: reth.ErrTruncated, Length: reth.ErrLength}

func FuzzReth(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "0000123456780000 000007c4 00000401"))                                     // RETH
	f.Add(unhex(f, "0000123456880000 00000291 a0b0c0d0e0f00004 410203040506070c 0000000013")) // AtomicETH, more
	seeds.Into(f).Headers(bth.HasRETH | bth.HasAtomicETH | bth.HasImmDt | bth.HasIETH | bth.HasFETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.Bytes[reth.Header](t, reth.Size, codecErrors, b)
		codectest.Bytes[reth.AtomicETH](t, reth.AtomicETHSize, codecErrors, b)
		codectest.Bytes[reth.ImmDt](t, reth.ImmDtSize, codecErrors, b)
		codectest.Bytes[reth.IETH](t, reth.IETHSize, codecErrors, b)
		codectest.Bytes[reth.FETH](t, reth.FETHSize, codecErrors, b)
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

func TestNoAllocations(t *testing.T) {
	codectest.Allocates[reth.Header](t, "RETH", reth.Size)
	codectest.Allocates[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize)
	codectest.Allocates[reth.ImmDt](t, "ImmDt", reth.ImmDtSize)
	codectest.Allocates[reth.IETH](t, "IETH", reth.IETHSize)
	codectest.Allocates[reth.FETH](t, "FETH", reth.FETHSize)
	tooWide, buf := reth.FETH{Sel: 4}, make([]byte, 0, 8)
	if n := testing.AllocsPerRun(100, func() { buf, _ = tooWide.AppendBinary(buf[:0]) }); n != 0 {
		t.Errorf("refusal: %v allocations", n)
	}
}
