package bth_test

import (
	"encoding"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/fuzz/seeds"
)

var (
	_ encoding.BinaryAppender    = (*bth.Header)(nil)
	_ encoding.BinaryUnmarshaler = (*bth.Header)(nil)
	_ encoding.BinaryAppender    = (*bth.DETH)(nil)
	_ encoding.BinaryUnmarshaler = (*bth.DETH)(nil)
	_ encoding.BinaryAppender    = (*bth.RDETH)(nil)
	_ encoding.BinaryUnmarshaler = (*bth.RDETH)(nil)
	_ encoding.BinaryAppender    = (*bth.XRCETH)(nil)
	_ encoding.BinaryUnmarshaler = (*bth.XRCETH)(nil)
	_ encoding.BinaryAppender    = (*bth.Packet)(nil)
	_ encoding.BinaryUnmarshaler = (*bth.Packet)(nil)
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

// Rules WI-8, WI-11.
func TestGolden(t *testing.T) {
	// fuzz/captures: rc-write.pcap, frames 9 and 30; ud.pcap, frame 11
	golden(t, "0a00ffff 00000011 80654321",
		bth.Header{Opcode: bth.RCWriteOnly, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 6636321})
	golden(t, "0830ffff 00000016 80654322",
		bth.Header{Opcode: bth.RCWriteLast, PadCnt: 3, PKey: 0xffff, DestQP: 0x16, AckReq: true, PSN: 6636322})
	golden(t, "11111111 00000011", bth.DETH{QKey: 0x11111111, SrcQP: 0x11})
	// K01 of frame/testdata/vectors.json: a ConnectX-4 Lx
	golden(t, "8100ffff 40000118 00000000", bth.Header{Opcode: bth.CNP, PKey: 0xffff, BECN: true, DestQP: 0x118})
	// V79 of the same: all reserved bits set
	golden(t, "1140ffff 3f000011 7f000003", bth.Header{Opcode: bth.RCAcknowledge, M: true, PKey: 0xffff,
		Resv6: 0x3f, DestQP: 0x11, Resv7: 0x7f, PSN: 3})
	// By the layouts in InfiniBand Architecture Volume 1, clauses 9.2, 9.3.1, 9.3.2 and Annex A14.
	golden(t, "648f1234 80abcdef 00fedcba", bth.Header{Opcode: bth.UDSendOnly, SE: true, TVer: 15, PKey: 0x1234,
		FECN: true, DestQP: 0xabcdef, PSN: 0xfedcba})
	golden(t, "ffffffff ff000001", bth.DETH{QKey: 0xffffffff, Resv8: 0xff, SrcQP: 1})
	golden(t, "01abcdef", bth.RDETH{Resv8: 1, EE: 0xabcdef})
	golden(t, "01abcdef", bth.XRCETH{Resv8: 1, SRQ: 0xabcdef})
}

// TestMasks holds that no field spills into its neighbour.
func TestMasks(t *testing.T) {
	zero := strings.Repeat("00", bth.Size)
	for _, c := range []struct {
		h    bth.Header
		want string
	}{
		{bth.Header{PadCnt: 4}, zero},
		{bth.Header{PadCnt: 0xff}, "00300000 00000000 00000000"},
		{bth.Header{TVer: 16}, zero},
		{bth.Header{TVer: 0xff}, "000f0000 00000000 00000000"},
		{bth.Header{Resv6: 0x40}, zero},
		{bth.Header{Resv6: 0xff}, "00000000 3f000000 00000000"},
		{bth.Header{DestQP: 1 << 24}, zero},
		{bth.Header{DestQP: 0xffffffff}, "00000000 00ffffff 00000000"},
		{bth.Header{Resv7: 0x80}, zero},
		{bth.Header{Resv7: 0xff}, "00000000 00000000 7f000000"},
		{bth.Header{PSN: 1 << 24}, zero},
		{bth.Header{PSN: 0xffffffff}, "00000000 00000000 00ffffff"},
	} {
		require.Equal(t, unhex(t, c.want), c.h.AppendTo(nil), "%+v", c.h)
		require.ErrorIs(t, c.h.Validate(), bth.ErrRange, "%+v", c.h)
		v := reflect.ValueOf(c.h)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				require.ErrorContains(t, c.h.Validate(), v.Type().Field(i).Name+" exceeds ")
			}
		}
	}
	require.Equal(t, unhex(t, "00000000 00ffffff"), (&bth.DETH{SrcQP: 0xffffffff}).AppendTo(nil))
	require.Equal(t, unhex(t, "00ffffff"), (&bth.RDETH{EE: 0xffffffff}).AppendTo(nil))
	require.Equal(t, unhex(t, "00ffffff"), (&bth.XRCETH{SRQ: 0xffffffff}).AppendTo(nil))
}

// TestPKeyMatch: full and limited members of a partition. Rule RS-02.
func TestPKeyMatch(t *testing.T) {
	for _, c := range []struct {
		a, b uint16
		want bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0xffff, true}, {0x7fff, 0x7fff, false},
		{0x8000, 0x8000, false}, {0x0000, 0x8000, false}, {0x8001, 0x0001, true}, {0x8001, 0x8002, false},
	} {
		require.Equal(t, c.want, bth.PKeyMatch(c.a, c.b), "%04x, %04x", c.a, c.b)
		require.Equal(t, c.want, bth.PKeyMatch(c.b, c.a), "%04x, %04x", c.b, c.a)
	}
}

func TestErrors(t *testing.T) {
	require.ErrorIs(t, bth.ErrTruncated, io.ErrUnexpectedEOF)
	all := []error{bth.ErrTruncated, bth.ErrLength, bth.ErrOpcode, bth.ErrVersion, bth.ErrRange}
	for i, a := range all {
		for j, b := range all {
			require.Equal(t, i == j, errors.Is(a, b))
		}
	}
}

// TestView holds each getter and setter against the field of a Header.
func TestView(t *testing.T) {
	_, err := bth.ViewOf(make([]byte, bth.Size-1))
	require.ErrorIs(t, err, bth.ErrTruncated)

	for _, fill := range []byte{0, 0xff, 0x5a} {
		for name, c := range map[string]struct {
			set   func(*bth.View)
			field func(*bth.Header)
		}{
			"opcode":   {func(v *bth.View) { v.SetOpcode(0x81) }, func(h *bth.Header) { h.Opcode = 0x81 }},
			"se":       {func(v *bth.View) { v.SetSE(true) }, func(h *bth.Header) { h.SE = true }},
			"no se":    {func(v *bth.View) { v.SetSE(false) }, func(h *bth.Header) { h.SE = false }},
			"m":        {func(v *bth.View) { v.SetM(true) }, func(h *bth.Header) { h.M = true }},
			"no m":     {func(v *bth.View) { v.SetM(false) }, func(h *bth.Header) { h.M = false }},
			"pad":      {func(v *bth.View) { v.SetPadCnt(2) }, func(h *bth.Header) { h.PadCnt = 2 }},
			"wide pad": {func(v *bth.View) { v.SetPadCnt(0xfd) }, func(h *bth.Header) { h.PadCnt = 1 }},
			"tver":     {func(v *bth.View) { v.SetTVer(9) }, func(h *bth.Header) { h.TVer = 9 }},
			"wide tv":  {func(v *bth.View) { v.SetTVer(0xf2) }, func(h *bth.Header) { h.TVer = 2 }},
			"pkey":     {func(v *bth.View) { v.SetPKey(0x1234) }, func(h *bth.Header) { h.PKey = 0x1234 }},
			"fecn":     {func(v *bth.View) { v.SetFECN(true) }, func(h *bth.Header) { h.FECN = true }},
			"no fecn":  {func(v *bth.View) { v.SetFECN(false) }, func(h *bth.Header) { h.FECN = false }},
			"becn":     {func(v *bth.View) { v.SetBECN(true) }, func(h *bth.Header) { h.BECN = true }},
			"no becn":  {func(v *bth.View) { v.SetBECN(false) }, func(h *bth.Header) { h.BECN = false }},
			"qp":       {func(v *bth.View) { v.SetDestQP(0xabcdef) }, func(h *bth.Header) { h.DestQP = 0xabcdef }},
			"wide qp":  {func(v *bth.View) { v.SetDestQP(0xff000001) }, func(h *bth.Header) { h.DestQP = 1 }},
			"ack":      {func(v *bth.View) { v.SetAckReq(true) }, func(h *bth.Header) { h.AckReq = true }},
			"no ack":   {func(v *bth.View) { v.SetAckReq(false) }, func(h *bth.Header) { h.AckReq = false }},
			"psn":      {func(v *bth.View) { v.SetPSN(0xabcdef) }, func(h *bth.Header) { h.PSN = 0xabcdef }},
			"wide psn": {func(v *bth.View) { v.SetPSN(0xff000001) }, func(h *bth.Header) { h.PSN = 1 }},
		} {
			b := make([]byte, bth.Size+1)
			for i := range b {
				b[i] = fill
			}
			var h bth.Header
			require.NoError(t, h.Decode(b))
			c.field(&h)
			v, err := bth.ViewOf(b)
			require.NoError(t, err)
			c.set(v)
			require.Equal(t, append(h.AppendTo(nil), fill), b, "%s over %#x", name, fill)

			require.Equal(t, h, bth.Header{Opcode: v.Opcode(), SE: v.SE(), M: v.M(), PadCnt: v.PadCnt(), TVer: v.TVer(),
				PKey: v.PKey(), FECN: v.FECN(), BECN: v.BECN(), Resv6: b[4] & 0x3f, DestQP: v.DestQP(),
				AckReq: v.AckReq(), Resv7: b[8] & 0x7f, PSN: v.PSN()}, name)
		}
	}
}

func TestProperties(t *testing.T) {
	codectest.Check[bth.Header](t, "BTH", bth.Size, codecErrors)
	codectest.Check[bth.DETH](t, "DETH", bth.DETHSize, codecErrors)
	codectest.Check[bth.RDETH](t, "RDETH", bth.RDETHSize, codecErrors)
	codectest.Check[bth.XRCETH](t, "XRCETH", bth.XRCETHSize, codecErrors)
}

var codecErrors = codectest.Errors{Range: bth.ErrRange, Truncated: bth.ErrTruncated, Length: bth.ErrLength}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "8100ffff 40000118 00000000"))
	f.Add(unhex(f, "1140ffff 3f000011 7f000003 1f000001"))
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		b := s.Frame.Transport
		return []any{b[:min(len(b), 48)]}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.Bytes[bth.Header](t, bth.Size, codecErrors, b)
		codectest.Bytes[bth.DETH](t, bth.DETHSize, codecErrors, b)
		codectest.Bytes[bth.RDETH](t, bth.RDETHSize, codecErrors, b)
		codectest.Bytes[bth.XRCETH](t, bth.XRCETHSize, codecErrors, b)
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
