package mrc_test

import (
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/reth"
)

var (
	_ encoding.BinaryAppender    = (*mrc.Packet)(nil)
	_ encoding.BinaryUnmarshaler = (*mrc.Packet)(nil)
)

// vector is one packet of testdata/vectors.json. They were built by an encoder
// written only for that purpose, from the tables that doc.go names; an emulator
// of an end host and a dissector, both by others, read the same values from them,
// and Scapy computes the same ICRCs.
type vector struct {
	ID, Description string
	Hex             string
	Expected        struct {
		OK         bool
		Error      string
		BTH        map[string]any
		MRC        map[string]any
		METH       map[string]any
		TSETH      map[string]any
		RETH       map[string]any
		ImmDt      map[string]any
		AETH       map[string]any
		SETH       map[string]any
		CCState    map[string]any `json:"cc_state"`
		NETH       map[string]any
		PETH       map[string]any
		ERTH       map[string]any
		EETH       map[string]any
		PayloadHex *string `json:"payload_hex"`
		PadHex     string  `json:"pad_hex"`
		ICRCWire   string  `json:"icrc_wire_hex"`
		SrcPort    *uint16 `json:"udp_src_port"`
	}
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var v []vector
	require.NoError(t, json.Unmarshal(b, &v))
	require.Len(t, v, 33)
	return v
}

// find returns the frame around the packet of a vector.
func (v *vector) find(t testing.TB) (f frame.Frame) {
	t.Helper()
	raw, err := hex.DecodeString(v.Hex)
	require.NoError(t, err)
	port := uint16(0)
	if v.ID == "M32" {
		port = 4971
	}
	err = frame.Finder{UDPPort: port}.Find(frame.RawIP, raw, len(raw), &f)
	if v.ID == "M45" { // trimmed: the lengths of IP and UDP disagree
		require.ErrorIs(t, err, frame.ErrLength)
		f.Transport = raw[28:]
		return f
	}
	require.NoError(t, err)
	return f
}

var refusals = map[string]error{
	"bad_icrc":       nil, // decoded; the ICRC is the frame's business
	"trimmed":        bth.ErrLength,
	"length":         bth.ErrLength,
	"unknown_opcode": bth.ErrOpcode,
	"bad_tver":       bth.ErrVersion,
}

func TestVectors(t *testing.T) {
	seen := map[bth.Opcode]bool{}
	for _, v := range loadVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			t.Log(v.Description)
			f := v.find(t)
			e := &v.Expected
			want, known := refusals[e.Error]
			require.True(t, known || e.OK, e.Error)
			var p mrc.Packet
			err := p.Decode(f.Transport)
			require.ErrorIs(t, err, want)
			if want != nil {
				require.Equal(t, mrc.Packet{}, p)
				require.NoError(t, p.Header.Decode(f.Transport))
			}
			if e.Error == "trimmed" {
				require.NoError(t, p.DecodeTrimmed(f.Transport))
				require.Equal(t, hex.EncodeToString(f.Transport), hex.EncodeToString(p.AppendTo(nil)))
				want = nil
			}
			v.headers(t, &p, want == nil)
			if !e.OK {
				return
			}
			seen[p.Opcode] = true
			require.Equal(t, *e.PayloadHex, hex.EncodeToString(p.Payload))
			require.Equal(t, e.PadHex, hex.EncodeToString(p.Pad[:p.PadCnt]))
			require.Equal(t, e.ICRCWire, hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, p.ICRC)))
			require.Equal(t, frame.ICRCGood, f.CheckICRC())
			require.Equal(t, hex.EncodeToString(f.Transport), hex.EncodeToString(p.AppendTo(nil)), "encoded again")
		})
	}
	require.Len(t, seen, len(stack), "an opcode without a vector")
}

// headers holds BTH and headers against what is expected. Without all only the
// BTH was decoded.
func (v *vector) headers(t *testing.T, p *mrc.Packet, all bool) {
	e := &v.Expected
	name := any(mrc.Name(p.Opcode))
	if e.BTH["opcode_name"] == nil {
		name = nil
	}
	requireFields(t, e.BTH, map[string]any{
		"opcode": p.Opcode, "opcode_name": name, "se": p.SE, "migreq": p.M, "pad_count": p.PadCnt, "tver": p.TVer, "pkey": p.PKey,
		"fecn": p.FECN, "becn": p.BECN, "resv6": p.Resv6, "dest_qp": p.DestQP, "ack_req": p.AckReq, "resv7": p.Resv7, "psn": p.PSN})
	b := p.Header.AppendTo(nil)
	requireFields(t, e.MRC, map[string]any{"r": p.Resv7 >> 6, "rtx": mrc.Rtx(&p.Header), "ts": mrc.TS(&p.Header),
		"inv_res": p.Resv7 & 0xf, "var_res": b[4]})
	if !all {
		return
	}
	has := p.Ext()
	for _, h := range []struct {
		bit  mrc.Ext
		want map[string]any
		got  func() map[string]any
	}{
		{mrc.HasMETH, e.METH, func() map[string]any { return map[string]any{"rqmsn": p.METH.RQMSN, "msn": p.METH.MSN} }},
		{mrc.HasTSETH, e.TSETH, func() map[string]any { return timeValues(&p.TSETH) }},
		{mrc.HasRETH, e.RETH, func() map[string]any {
			return map[string]any{"va": fmt.Sprintf("%#x", p.RETH.VA), "rkey": p.RETH.RKey, "dma_len": p.RETH.DMALen}
		}},
		{mrc.HasImmDt, e.ImmDt, func() map[string]any { return map[string]any{"imm_hex": fmt.Sprintf("%08x", p.ImmDt.Imm)} }},
		{mrc.HasAETH, e.AETH, func() map[string]any {
			return map[string]any{"syndrome": p.AETH.Syndrome, "msn": p.AETH.MSN, "type": p.AETH.Syndrome.Kind().String(),
				"code": p.AETH.Syndrome.Value(), "credits": "invalid"}
		}},
		{mrc.HasSETH, e.SETH, func() map[string]any { return sethValues(&p.SETH) }},
		{mrc.HasCCState, e.CCState, func() map[string]any {
			c := &p.CCState
			return map[string]any{"tx_timestamp": c.TxTimestamp, "ooo_count": c.OOOCount, "restore_cwnd": c.RestoreCwnd,
				"rcv_cwnd_pen": c.RcvCwndPen, "rcvd_bytes": c.RcvdBytes, "rcvd_bytes_value": uint64(c.RcvdBytes) * mrc.RcvdBytesUnit}
		}},
		{mrc.HasNETH, e.NETH, func() map[string]any {
			n := &p.NETH
			m := map[string]any{"type": n.Type, "next": n.Next, "reason": uint8(n.Reason), "vendor_info": n.VendorInfo, "entropy": n.Entropy,
				"spdcid": n.SPDCID, "dpdcid": n.DPDCID, "nack_psn": n.PSN, "cc_type": n.CCType, "cc_flags": n.CCFlags,
				"tx_timestamp": n.TxTimestamp}
			if n.Reason.Known() {
				m["reason_name"] = n.Reason.String()
			}
			return m
		}},
		{mrc.HasPETH, e.PETH, func() map[string]any {
			h := &p.PETH
			return with(timeValues(&h.Time), map[string]any{"type": h.Type, "next": h.Next, "vendor_info": h.VendorInfo,
				"probe_id": h.ProbeID, "spdcid": h.SPDCID, "dpdcid": h.DPDCID})
		}},
		{mrc.HasERTH, e.ERTH, func() map[string]any {
			h := &p.ERTH
			return with(timeValues(&h.Time), map[string]any{"type": h.Type, "next": h.Next, "op": uint8(h.Op), "op_name": h.Op.String(),
				"vendor_info": h.VendorInfo, "port_status_mask": fmt.Sprintf("%08x", h.PortStatus)})
		}},
		{mrc.HasEETH, e.EETH, func() map[string]any {
			h := &p.EETH
			return map[string]any{"type": h.Type, "next": h.Next, "op": uint8(h.Op), "op_name": h.Op.String(), "tx_timestamp": h.TxTimestamp}
		}},
	} {
		require.Equal(t, h.want != nil, has&h.bit != 0, "%b", h.bit)
		if h.want != nil {
			requireFields(t, h.want, h.got())
		}
	}
}

func timeValues(h *mrc.TSETH) map[string]any {
	return map[string]any{"tx_timestamp": h.TxTimestamp, "tsr": h.TSR, "reserved": h.Resv11, "ftype": h.FType}
}

func sethValues(s *mrc.SETH) map[string]any {
	m := map[string]any{"type": s.Type, "next": s.Next, "m": uint8(s.M), "pr": s.PR, "entropy": s.Entropy, "spdcid": s.SPDCID,
		"dpdcid": s.DPDCID, "cack_psn": s.CumPSN, "cc_type": s.CCType, "cc_flags": s.CCFlags, "mpr": s.MPR,
		"mpr_packets": s.Window(), "sack_offset": s.SACKOffset, "sack_base_psn": s.SACKBase(),
		"sack_bitmap": fmt.Sprintf("%016x", s.SACKBitmap)}
	if s.PR {
		m["probe_id"] = s.ProbeID()
	} else {
		m["ack_psn_offset"], m["ack_psn"] = s.AckPSNOffset(), s.AckPSN()
	}
	return m
}

// requireFields holds each value of want against the one of got: flags are 0 and
// 1 in JSON, and all numbers are floats.
func requireFields(t *testing.T, want, got map[string]any) {
	t.Helper()
	for k, w := range want {
		g, ok := got[k]
		require.True(t, ok, k)
		switch v := g.(type) {
		case bool:
			g = 0
			if v {
				g = 1
			}
		case string:
			require.Equal(t, w, v, k)
			continue
		}
		require.Equal(t, fmt.Sprint(int64(w.(float64))), fmt.Sprintf("%d", g), k)
	}
}

func TestNames(t *testing.T) {
	for r, name := range map[mrc.Reason]string{0x01: "trimmed", 0x02: "trimmed_last_hop", 0x06: "no_bitmap",
		0x07: "no_packet_buffer", 0x0a: "no_resource", 0x0b: "psn_out_of_window", 0x19: "unexpected_event", 0x55: "85"} {
		require.Equal(t, name, r.String())
	}
	known := 0
	for i := range 256 {
		require.NotEmpty(t, mrc.Reason(i).String())
		require.NotEmpty(t, mrc.Op(i).String())
		require.NotEmpty(t, mrc.Name(bth.Opcode(i)))
		if mrc.Reason(i).Known() {
			known++
		}
	}
	require.Equal(t, 7, known)
	require.Equal(t, "port_status_update", mrc.PortStatusUpdate.String())
	require.Equal(t, "ev_probe", mrc.EVProbe.String())
	require.Equal(t, "2", mrc.Op(2).String())
	require.Equal(t, []mrc.PathVerdict{0, 1, 2}, []mrc.PathVerdict{mrc.PathGood, mrc.PathSkip, mrc.PathBad}, "table 7-15")
	require.True(t, mrc.Op(1).Known())
	require.False(t, mrc.Op(2).Known())
}

func TestSince(t *testing.T) {
	require.Equal(t, 128*time.Nanosecond, mrc.Since(0, 0xffff), "over the wrap")
	require.Equal(t, time.Duration(0x1234-0x34)*128, mrc.Since(0x1234, 0x34))
	require.Equal(t, 8388480*time.Nanosecond, mrc.Since(0, 1), "all but one unit of 8.39 ms")
}

// TestEntropy holds both readings of the order of the halves.
func TestEntropy(t *testing.T) {
	require.Equal(t, uint32(0xc001), mrc.LowInPort.Entropy(0xc001, 0), "IPv4, as in the vectors' SACK")
	require.Equal(t, uint32(0x2345c001), mrc.LowInPort.Entropy(0xc001, 0x12345), "upper bits of the label unused")
	require.Equal(t, uint32(0xc0012345), mrc.HighInPort.Entropy(0xc001, 0x12345))
	for _, ev := range []uint32{0, 1, 0xffff, 0x10000, 0x12345678, 0xffffffff} {
		for _, o := range []mrc.Halves{mrc.LowInPort, mrc.HighInPort} {
			port, label := o.Split(ev)
			require.Equal(t, ev, o.Entropy(port, label))
			require.LessOrEqual(t, label, uint32(0xffff))
		}
	}
	port, label := mrc.LowInPort.Split(0x12345678)
	require.Equal(t, []uint32{0x5678, 0x1234}, []uint32{uint32(port), label})
	port, label = mrc.HighInPort.Split(0x12345678)
	require.Equal(t, []uint32{0x1234, 0x5678}, []uint32{uint32(port), label})
}

// TestOpAt reads a response of each of the two kinds of implementation to an
// entropy value probe.
func TestOpAt(t *testing.T) {
	b := make([]byte, mrc.EETHSize)
	var h mrc.EETH
	b[1] = 0x04
	require.NoError(t, h.Decode(b))
	require.Equal(t, []mrc.Op{1, 0}, []mrc.Op{h.OpAt(mrc.OpBits32), h.OpAt(mrc.OpBits54)})
	b[1] = 0x10
	require.NoError(t, h.Decode(b))
	require.Equal(t, []mrc.Op{0, 1}, []mrc.Op{h.OpAt(mrc.OpBits32), h.OpAt(mrc.OpBits54)})
	b[1] = 0x40 // above both
	require.NoError(t, h.Decode(b))
	require.Equal(t, []mrc.Op{0, 0}, []mrc.Op{h.OpAt(mrc.OpBits32), h.OpAt(mrc.OpBits54)})
}

func TestRequests(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var r mrc.Requests
	for id := range 256 {
		_, ok := r.Op(b, a, uint16(id))
		require.False(t, ok)
	}
	r.Seen(a, b, 0x1234, mrc.EVProbe)
	r.Seen(a, b, 0x1235, mrc.PortStatusUpdate)
	op, ok := r.Op(b, a, 0x1234)
	require.True(t, ok)
	require.Equal(t, mrc.EVProbe, op)
	op, ok = r.Op(b, a, 0x1235)
	require.True(t, ok)
	require.Equal(t, mrc.PortStatusUpdate, op)
	_, ok = r.Op(a, b, 0x1234)
	require.False(t, ok, "the direction of the request")
	_, ok = r.Op(b, b, 0x1234)
	require.False(t, ok)
	_, ok = r.Op(b, a, 0x0034)
	require.False(t, ok, "another id in the same place")
	r.Seen(a, b, 0x0034, 3)
	_, ok = r.Op(b, a, 0x1234)
	require.False(t, ok, "the newer is remembered")
	op, ok = r.Op(b, a, 0x0034)
	require.True(t, ok)
	require.Equal(t, mrc.Op(3), op)
}

var addrA, addrB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// BenchmarkDecode has a RC WRITE First as its reference: BTH, RETH and the same
// payload.
func BenchmarkDecode(b *testing.B) {
	payload := make([]byte, 1024)
	rc := bth.Packet{Header: bth.Header{Opcode: bth.RCWriteFirst, PKey: 0xffff, DestQP: 0x11, PSN: 0xfffff0},
		RETH: reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: 4096}}
	rc.SetPayload(payload)
	b.Run("rc-write", func(b *testing.B) {
		raw := rc.AppendTo(nil)
		var q bth.Packet
		b.ReportAllocs()
		for b.Loop() {
			if err := q.Decode(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, c := range []struct {
		name string
		op   bth.Opcode
		ts   bool
	}{{"write", mrc.WriteFirst, false}, {"write-ts", mrc.WriteFirst, true}, {"sack", mrc.SACK, false}, {"nack", mrc.NACK, false}} {
		b.Run(c.name, func(b *testing.B) {
			p := mrc.Packet{Header: rc.Header, RETH: rc.RETH, Payload: rc.Payload}
			p.Opcode = c.op
			mrc.SetTS(&p.Header, c.ts)
			if c.op != mrc.WriteFirst {
				p.Payload = nil
			}
			raw := p.AppendTo(nil)
			var q mrc.Packet
			b.ReportAllocs()
			for b.Loop() {
				if err := q.Decode(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncode has the same reference.
func BenchmarkEncode(b *testing.B) {
	buf := make([]byte, 0, 2048)
	rc := bth.Packet{Header: bth.Header{Opcode: bth.RCWriteFirst}}
	rc.SetPayload(make([]byte, 1024))
	b.Run("rc-write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = rc.AppendTo(buf[:0])
		}
	})
	b.Run("write", func(b *testing.B) {
		p := mrc.Packet{Header: rc.Header, RETH: rc.RETH, Payload: rc.Payload}
		p.Opcode = mrc.WriteFirst
		b.ReportAllocs()
		for b.Loop() {
			buf = p.AppendTo(buf[:0])
		}
	})
}

func TestNoAllocations(t *testing.T) {
	codectest.Allocates[mrc.METH](t, "METH", mrc.METHSize)
	codectest.Allocates[mrc.TSETH](t, "TSETH", mrc.TSETHSize)
	codectest.Allocates[mrc.SETH](t, "SETH", mrc.SETHSize)
	codectest.Allocates[mrc.CCState](t, "CC_STATE", mrc.CCStateSize)
	codectest.Allocates[mrc.NETH](t, "NETH", mrc.NETHSize)
	codectest.Allocates[mrc.PETH](t, "PETH", mrc.PETHSize)
	codectest.Allocates[mrc.ERTH](t, "ERTH", mrc.ERTHSize)
	codectest.Allocates[mrc.EETH](t, "EETH", mrc.EETHSize)

	buf := make([]byte, 0, 256)
	for op := range stack {
		var p, q mrc.Packet
		p.Opcode = op
		if isWrite(op) {
			p.SetPayload([]byte("hello"))
		}
		raw := p.AppendTo(nil)
		bad := append([]byte(nil), raw...)
		bad[1] |= 1
		wide := p
		wide.DestQP = 1 << 24
		for what, f := range map[string]func(){
			"Decode":            func() { _ = q.Decode(raw) },
			"Decode, short":     func() { _ = q.Decode(raw[:15]) },
			"Decode, bad":       func() { _ = q.Decode(bad) },
			"DecodePrefix":      func() { _ = q.DecodePrefix(raw, len(raw)) },
			"DecodePrefix, cut": func() { _ = q.DecodePrefix(raw[:len(raw)-5], len(raw)) },
			"DecodeTrimmed":     func() { _ = q.DecodeTrimmed(raw) },
			"DecodeTrimmed, no": func() { _ = q.DecodeTrimmed(bad[:11]) },
			"UnmarshalBinary":   func() { _ = q.UnmarshalBinary(raw) },
			"AppendTo":          func() { buf = p.AppendTo(buf[:0]) },
			"AppendHeadersTo":   func() { buf = p.AppendHeadersTo(buf[:0]) },
			"AppendBinary":      func() { buf, _ = p.AppendBinary(buf[:0]) },
			"refusal":           func() { buf, _ = wide.AppendBinary(buf[:0]) },
			"Size, Validate":    func() { _, _ = p.Size(), p.Validate() },
			"of an opcode":      func() { _, _, _ = mrc.Name(op), mrc.Class(op), mrc.HeaderSize(op, true) },
		} {
			if n := testing.AllocsPerRun(10, f); n != 0 {
				t.Errorf("%s: %s: %v allocations", mrc.Name(op), what, n)
			}
		}
	}
	var r mrc.Requests
	var h bth.Header
	if n := testing.AllocsPerRun(10, func() {
		r.Seen(addrA, addrB, 1, mrc.EVProbe)
		_, _ = r.Op(addrB, addrA, 1)
		mrc.SetTS(&h, !mrc.TS(&h))
		mrc.SetRtx(&h, !mrc.Rtx(&h))
		port, label := mrc.LowInPort.Split(7)
		_ = mrc.LowInPort.Entropy(port, label)
	}); n != 0 {
		t.Errorf("Requests: %v allocations", n)
	}
}
