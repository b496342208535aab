package aeth_test

import (
	"encoding"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/fuzz/seeds"
)

var (
	_ encoding.BinaryAppender    = (*aeth.Header)(nil)
	_ encoding.BinaryUnmarshaler = (*aeth.Header)(nil)
	_ encoding.BinaryAppender    = (*aeth.AtomicAckETH)(nil)
	_ encoding.BinaryUnmarshaler = (*aeth.AtomicAckETH)(nil)
)

// Rule WI-11.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		want  aeth.Header
		kind  aeth.Kind
		value uint8
		text  string
	}{
		// fuzz/captures/rc-write.pcap, frame 10
		{[]byte{0x1f, 0, 0, 1}, aeth.Header{Syndrome: 0x1f, MSN: 1}, aeth.Ack, 31, "ack"},
		// probe-requester.pcap, frame 23
		{[]byte{0x00, 0, 0, 1}, aeth.Header{Syndrome: 0, MSN: 1}, aeth.Ack, 0, "ack credits 0"},
		// rc-rnr.pcap, frame 13: min_rnr_timer 18 is 5.12 ms
		{[]byte{0x32, 0, 0, 0}, aeth.Header{Syndrome: 0x32}, aeth.RNR, 18, "rnr 5.12ms"},
		// rc-loss-request.pcap, frame 26
		{[]byte{0x60, 0, 0, 1}, aeth.Header{Syndrome: 0x60, MSN: 1}, aeth.Nak, 0, "nak PSN sequence error"},
		// probe-requester.pcap, frames 124, 122, 120 and 93
		{[]byte{0x61, 0, 0, 0}, aeth.Header{Syndrome: 0x61}, aeth.Nak, 1, "nak invalid request"},
		{[]byte{0x63, 0, 0, 0}, aeth.Header{Syndrome: 0x63}, aeth.Nak, 3, "nak remote operational error"},
		{[]byte{0x64, 0, 0, 0}, aeth.Header{Syndrome: 0x64}, aeth.Nak, 4, "nak invalid RD request"},
		{[]byte{0x40, 0, 0, 1}, aeth.Header{Syndrome: 0x40, MSN: 1}, aeth.Reserved, 0, "reserved 0x40"},
		// rc-nak-rkey-write.pcap, frame 12
		{[]byte{0x62, 0, 0, 0}, aeth.Header{Syndrome: 0x62}, aeth.Nak, 2, "nak remote access error"},
		// V97 of bth/frame/testdata/vectors.json: bit 7 makes no NAK
		{[]byte{0xe0, 0xff, 0xff, 0xfe}, aeth.Header{Syndrome: 0xe0, MSN: 0xfffffe}, aeth.Reserved, 0, "reserved 0xe0"},
	} {
		var h aeth.Header
		require.NoError(t, h.Decode(c.bytes))
		require.Equal(t, c.want, h)
		require.Equal(t, c.bytes, h.AppendTo(nil))
		require.Equal(t, c.kind, h.Syndrome.Kind())
		require.Equal(t, c.value, h.Syndrome.Value())
		require.Equal(t, c.text, h.Syndrome.String())
	}

	// rc-atomic.pcap, frame 12
	b := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	var a aeth.AtomicAckETH
	require.NoError(t, a.Decode(b))
	require.Equal(t, aeth.AtomicAckETH{Orig: 0x0102030405060708}, a)
	require.Equal(t, b, a.AppendTo(nil))
}

// TestMSNMask holds that an MSN beyond 24 bits does not reach the syndrome.
func TestMSNMask(t *testing.T) {
	h := aeth.Header{Syndrome: 0, MSN: 0xff000001}
	require.Equal(t, []byte{0, 0, 0, 1}, h.AppendTo(nil))
	require.ErrorIs(t, h.Validate(), aeth.ErrRange)
}

// credits is the code table of InfiniBand Architecture Volume 1, clause
// 9.7.7.2.5.2, written out again.
var credits = []int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Rule WI-13.
func TestCredits(t *testing.T) {
	require.Len(t, credits, 31)
	for code, want := range credits {
		c := aeth.CreditCode(code)
		n, ok := c.Count()
		require.True(t, ok)
		require.Equal(t, want, n)
		require.Equal(t, c, aeth.CreditsFor(want), "%d credits", want)
		require.Equal(t, aeth.Syndrome(code), aeth.AckSyndrome(c))
		require.Equal(t, c, aeth.AckSyndrome(c).Credit())
		if code > 0 {
			require.Equal(t, c-1, aeth.CreditsFor(want-1), "%d credits: never more than there are", want-1)
		}
	}
	_, ok := aeth.NoCredits.Count()
	require.False(t, ok)
	_, ok = aeth.CreditCode(0xff).Count()
	require.False(t, ok, "five bits count")
	require.EqualValues(t, 30, aeth.CreditsFor(math.MaxInt), "never the code without flow control")
	require.EqualValues(t, 0, aeth.CreditsFor(-1))
	require.EqualValues(t, 0, aeth.CreditsFor(math.MinInt))
	require.Equal(t, aeth.Syndrome(0x1f), aeth.AckSyndrome(0xff), "a wide code does not spill")
}

// timers has the RNR timers in milliseconds, by code, as the manual page of
// ibv_modify_qp lists them.
var timers = []float64{
	655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
	2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76,
	327.68, 491.52,
}

// Rule WI-14.
func TestRNRTimers(t *testing.T) {
	require.Len(t, timers, 32)
	for code, ms := range timers {
		c := aeth.RNRTimer(code)
		want := time.Duration(math.Round(ms*100)) * 10 * time.Microsecond
		require.Equal(t, want, c.Duration(), "code %d", code)
		require.Equal(t, want, aeth.RNRTimer(code|0xe0).Duration(), "five bits count")
		require.Equal(t, c, aeth.RNRTimerFor(want), "%v", want)
		require.Equal(t, c, aeth.RNRTimerFor(want-1), "never shorter than asked for")
		require.Equal(t, aeth.Syndrome(0x20|code), aeth.RNRSyndrome(c))
		require.Equal(t, c, aeth.RNRSyndrome(c).RNRTimer())
		require.Equal(t, aeth.RNR, aeth.RNRSyndrome(c).Kind())
		if code != 0 {
			require.Equal(t, (c+1)&0x1f, aeth.RNRTimerFor(want+1))
		}
	}
	require.EqualValues(t, 1, aeth.RNRTimerFor(0))
	require.EqualValues(t, 1, aeth.RNRTimerFor(-time.Second))
	require.EqualValues(t, 0, aeth.RNRTimerFor(time.Hour))
	require.Equal(t, aeth.Syndrome(0x3f), aeth.RNRSyndrome(0xff), "a wide code does not spill")
}

// Rule WI-12.
func TestNakCodes(t *testing.T) {
	for code := range 32 {
		s := aeth.NakSyndrome(aeth.NakCode(code))
		require.Equal(t, aeth.Syndrome(0x60|code), s)
		require.Equal(t, aeth.Nak, s.Kind())
		require.Equal(t, aeth.NakCode(code), s.Nak())
	}
	require.Equal(t, aeth.Syndrome(0x7f), aeth.NakSyndrome(0xff), "a wide code does not spill")
	require.Equal(t, "5", aeth.NakCode(5).String())
}

// TestSyndromeKinds holds the kind of all 256 syndromes against bits 7..5.
// Rule WI-12.
func TestSyndromeKinds(t *testing.T) {
	kinds := [8]aeth.Kind{aeth.Ack, aeth.RNR, aeth.Reserved, aeth.Nak, aeth.Reserved, aeth.Reserved, aeth.Reserved, aeth.Reserved}
	for i := range 256 {
		s := aeth.Syndrome(i)
		require.Equal(t, kinds[i>>5], s.Kind(), "%#x", i)
		require.EqualValues(t, i&0x1f, s.Value())
		require.NotEmpty(t, s.String())
		require.NotEmpty(t, aeth.Kind(i).String())
		require.NotEmpty(t, aeth.NakCode(i).String())
	}
	require.Equal(t, "9", aeth.Kind(9).String())
	require.Equal(t, []string{"ack", "rnr", "reserved", "nak"}, []string{
		aeth.Ack.String(), aeth.RNR.String(), aeth.Reserved.String(), aeth.Nak.String()})
}

// TestEdges has the values beside what is allowed.
func TestEdges(t *testing.T) {
	require.NoError(t, (&aeth.Header{MSN: 0xffffff}).Validate())
	require.ErrorIs(t, (&aeth.Header{MSN: 0x1000000}).Validate(), aeth.ErrRange)
	n, ok := aeth.NoCredits.Count()
	require.Zero(t, n)
	require.False(t, ok)
}

func TestProperties(t *testing.T) {
	codectest.Check[aeth.Header](t, "AETH", aeth.Size, codecErrors)
	codectest.Check[aeth.AtomicAckETH](t, "AtomicAckETH", aeth.AtomicAckETHSize, codecErrors)
}

var codecErrors = codectest.Errors{Range: aeth.ErrRange, Truncated: aeth.ErrTruncated, Length: aeth.ErrLength}

func FuzzAeth(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x60, 0, 0, 1})
	f.Add([]byte{0x1f, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8})
	seeds.Into(f).Headers(bth.HasAETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.Bytes[aeth.Header](t, aeth.Size, codecErrors, b)
		codectest.Bytes[aeth.AtomicAckETH](t, aeth.AtomicAckETHSize, codecErrors, b)
		for _, v := range b {
			if aeth.Syndrome(v).String() == "" {
				t.Errorf("syndrome %#x has no name", v)
			}
		}
	})
}

// BenchmarkAETH has a copy of the same bytes as its reference.
func BenchmarkAETH(b *testing.B) {
	h := aeth.Header{Syndrome: 0x1f, MSN: 0x123456}
	raw := h.AppendTo(nil)
	buf := make([]byte, 0, aeth.Size)
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
	b.Run("credits-for", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = n + 1 + int(aeth.CreditsFor(n&0xffff))
		}
	})
}

func TestNoAllocations(t *testing.T) {
	codectest.Allocates[aeth.Header](t, "AETH", aeth.Size)
	codectest.Allocates[aeth.AtomicAckETH](t, "AtomicAckETH", aeth.AtomicAckETHSize)
	tooWide, buf := aeth.Header{MSN: 1 << 24}, make([]byte, 0, 8)
	n := 0
	for what, f := range map[string]func(){
		"refusal":     func() { buf, _ = tooWide.AppendBinary(buf[:0]) },
		"CreditsFor":  func() { n += int(aeth.CreditsFor(n & 0xffff)) },
		"RNRTimerFor": func() { n += int(aeth.RNRTimerFor(time.Duration(n&0xfffff) * 100)) },
		"syndrome": func() {
			s := aeth.Syndrome(n)
			c, _ := s.Credit().Count()
			n += c + int(s.Kind()) + int(s.Nak()) + int(s.Value()) + int(s.RNRTimer().Duration())
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
