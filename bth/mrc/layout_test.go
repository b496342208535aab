package mrc_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/psn"
)

// place is where a field stands.
type place struct {
	name       string
	bit, width int // from the most significant bit of the first byte
}

type layoutOf struct {
	size   int
	places []place
}

// layouts reads testdata/layout.txt.
func layouts(t testing.TB) map[string]*layoutOf {
	t.Helper()
	f, err := os.Open("testdata/layout.txt")
	require.NoError(t, err)
	defer f.Close()
	all := map[string]*layoutOf{}
	var l *layoutOf
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		var name string
		var octet, bit, width, size int
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		default:
			if _, err := fmt.Sscanf(line, "%d.%d %d %s", &octet, &bit, &width, &name); err == nil {
				l.places = append(l.places, place{name, octet*8 + 7 - bit, width})
				continue
			}
			_, err := fmt.Sscanf(line, "%s %d", &name, &size)
			require.NoError(t, err, line)
			l = &layoutOf{size: size}
			all[name] = l
		}
	}
	return all
}

// put writes v at p, bit by bit.
func (p place) put(b []byte, v uint64) {
	for i := range p.width {
		at := p.bit + p.width - 1 - i
		mask := byte(0x80) >> (at & 7)
		b[at/8] &^= mask
		if v>>i&1 != 0 {
			b[at/8] |= mask
		}
	}
}

// header is a codec and its fields by the names of layout.txt: pointers.
type header struct {
	name   string
	codec  codectest.Header
	fields map[string]any
}

func timeFields(t *mrc.TSETH, reserved string) map[string]any {
	return map[string]any{"tx_timestamp": &t.TxTimestamp, "tsr": &t.TSR, reserved: &t.Resv11, "ftype": &t.FType}
}

func with(m, n map[string]any) map[string]any {
	for k, v := range n {
		m[k] = v
	}
	return m
}

// headers returns a zero header of each kind.
func headers() []header {
	meth, tseth, seth, cc := new(mrc.METH), new(mrc.TSETH), new(mrc.SETH), new(mrc.CCState)
	neth, peth, erth, eeth := new(mrc.NETH), new(mrc.PETH), new(mrc.ERTH), new(mrc.EETH)
	return []header{
		{"METH", meth, map[string]any{"rqmsn": &meth.RQMSN, "msn": &meth.MSN}},
		{"TSETH", tseth, timeFields(tseth, "reserved")},
		{"SETH", seth, map[string]any{"type": &seth.Type, "next": &seth.Next, "m": (*uint8)(&seth.M), "reserved3": &seth.Resv3,
			"pr": &seth.PR, "reserved1": &seth.Resv1, "cause": &seth.Cause, "entropy": &seth.Entropy, "spdcid": &seth.SPDCID,
			"dpdcid": &seth.DPDCID, "reserved8": &seth.Resv8, "cack_psn": &seth.CumPSN, "cc_type": &seth.CCType,
			"cc_flags": &seth.CCFlags, "mpr": &seth.MPR, "sack_offset": &seth.SACKOffset, "sack_bitmap": &seth.SACKBitmap}},
		{"CC_STATE", cc, map[string]any{"tx_timestamp": &cc.TxTimestamp, "reserved1": &cc.Resv1, "ooo_count": &cc.OOOCount,
			"restore_cwnd": &cc.RestoreCwnd, "rcv_cwnd_pen": &cc.RcvCwndPen, "rcvd_bytes": &cc.RcvdBytes}},
		{"NETH", neth, map[string]any{"type": &neth.Type, "next": &neth.Next, "reserved7": &neth.Resv7,
			"reason": (*uint8)(&neth.Reason), "vendor_info": &neth.VendorInfo, "entropy": &neth.Entropy, "spdcid": &neth.SPDCID,
			"dpdcid": &neth.DPDCID, "reserved8": &neth.Resv8, "nack_psn": &neth.PSN, "cc_type": &neth.CCType,
			"cc_flags": &neth.CCFlags, "cc_reserved8": &neth.CCResv8, "tx_timestamp": &neth.TxTimestamp}},
		{"PETH", peth, with(timeFields(&peth.Time, "reserved11"), map[string]any{"type": &peth.Type, "next": &peth.Next,
			"reserved7": &peth.Resv7, "reserved8": &peth.Resv8, "vendor_info": &peth.VendorInfo, "probe_id": &peth.ProbeID,
			"reserved16": &peth.Resv16, "spdcid": &peth.SPDCID, "dpdcid": &peth.DPDCID})},
		{"ERTH", erth, with(timeFields(&erth.Time, "reserved11"), map[string]any{"type": &erth.Type, "next": &erth.Next,
			"reserved5": &erth.Resv5, "op": (*uint8)(&erth.Op), "reserved8": &erth.Resv8, "vendor_info": &erth.VendorInfo,
			"port_status_mask": &erth.PortStatus, "reserved32": &erth.Resv32})},
		{"EETH", eeth, map[string]any{"type": &eeth.Type, "next": &eeth.Next, "reserved3": &eeth.Resv3, "op": (*uint8)(&eeth.Op),
			"reserved2": &eeth.Resv2, "reserved16": &eeth.Resv16, "tx_timestamp": &eeth.TxTimestamp,
			"time_reserved16": &eeth.TimeResv16, "reserved32": &eeth.Resv32}},
	}
}

// bitsOf returns a field as the bits that stand on the wire.
func bitsOf(t require.TestingT, field any) uint64 {
	switch v := field.(type) {
	case *bool:
		if *v {
			return 1
		}
		return 0
	case *uint8:
		return uint64(*v)
	case *uint16:
		return uint64(*v)
	case *int16:
		return uint64(uint16(*v))
	case *uint32:
		return uint64(*v)
	case *uint64:
		return *v
	case *psn.PSN:
		return uint64(*v)
	}
	require.Fail(t, "a field of another type", "%T", field)
	return 0
}

// TestLayout compares each codec with the table: what is at a field's place
// is that field and no other, both ways.
func TestLayout(t *testing.T) {
	all := layouts(t)
	require.Len(t, headers(), len(all))
	for _, h := range headers() {
		t.Run(h.name, func(t *testing.T) {
			l := all[h.name]
			require.NotNil(t, l)
			require.Len(t, h.fields, len(l.places))
			check := func(t require.TestingT, want map[string]uint64) {
				b := make([]byte, l.size)
				for _, p := range l.places {
					p.put(b, want[p.name])
				}
				require.NoError(t, h.codec.Decode(b))
				for _, p := range l.places {
					f, ok := h.fields[p.name]
					require.True(t, ok, p.name)
					require.Equal(t, want[p.name], bitsOf(t, f), p.name)
				}
				require.Equal(t, b, h.codec.AppendTo(nil))
			}
			for _, p := range l.places {
				ones := ^uint64(0) >> (64 - p.width)
				check(t, map[string]uint64{p.name: ones})
				check(t, map[string]uint64{p.name: 1})
				check(t, map[string]uint64{p.name: 1 << (p.width - 1)})
				others := map[string]uint64{}
				for _, q := range l.places {
					others[q.name] = ^uint64(0) >> (64 - q.width)
				}
				others[p.name] = 0
				check(t, others)
			}
			rapid.Check(t, func(t *rapid.T) {
				want := map[string]uint64{}
				for _, p := range l.places {
					want[p.name] = rapid.Uint64Max(^uint64(0)>>(64-p.width)).Draw(t, p.name)
				}
				check(t, want)
			})
		})
	}
}

// TestWidths: each field may have every value of its width, and the next one is
// refused.
func TestWidths(t *testing.T) {
	all := layouts(t)
	checked := 0
	for _, h := range headers() {
		for _, p := range all[h.name].places {
			set := func(v uint64) bool { // false where the Go type has no such value
				switch f := h.fields[p.name].(type) {
				case *uint8:
					*f = uint8(v)
				case *uint16:
					*f = uint16(v)
				case *uint32:
					*f = uint32(v)
				case *psn.PSN:
					*f = psn.PSN(v)
				default:
					return false
				}
				return bitsOf(t, h.fields[p.name]) == v
			}
			if set(1<<p.width - 1) {
				require.NoError(t, h.codec.Validate(), "%s %s", h.name, p.name)
			}
			if set(1 << p.width) {
				checked++
				require.ErrorIs(t, h.codec.Validate(), bth.ErrRange, "%s %s", h.name, p.name)
			}
			set(0)
		}
	}
	require.Equal(t, 34, checked)
}

// TestReservedMiddleOfEETH has the bytes that the table of fields leaves out.
func TestReservedMiddleOfEETH(t *testing.T) {
	b := make([]byte, mrc.EETHSize)
	for i := 4; i < 28; i++ {
		b[i] = byte(i)
	}
	var h mrc.EETH
	require.NoError(t, h.Decode(b))
	require.Equal(t, b[4:28], h.Resv24[:])
	require.Equal(t, b, h.AppendTo(nil))
}
