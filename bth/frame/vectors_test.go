package frame_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

// vector is one packet of testdata/vectors.json: captures of several vendors'
// adapters and hand-made packets with their ICRC from two other implementations.
type vector struct {
	ID, Description string
	LinkType        string `json:"link_type"`
	Hex             string
	Expected        struct {
		OK         bool
		Error      string
		Transport  string
		PayloadHex *string `json:"payload_hex"`
		PadHex     string  `json:"pad_hex"`
		ICRCWire   string  `json:"icrc_wire_hex"`
		ICRCWant   string  `json:"icrc_expected_wire_hex"`
		ICRCValue  *uint32 `json:"icrc_value"`
		ICRCValid  *bool   `json:"icrc_valid"`
		Trailing   *int    `json:"trailing_bytes"`
		VLANTags   *uint8  `json:"vlan_tags"`

		BTH       map[string]any
		RETH      map[string]any
		AETH      map[string]any
		DETH      map[string]any
		CNP       map[string]any
		ImmDt     map[string]any
		AtomicETH map[string]any `json:"atomic_eth"`
	}
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var v []vector
	require.NoError(t, json.Unmarshal(b, &v))
	require.Len(t, v, 57)
	return v
}

// refusals maps the error names of vectors.json to ours. "length" is the
// frame's where the headers around the packet disagree (V36), else the packet's.
// A bad ICRC and a cut capture are states of a decoded frame, not errors.
var refusals = map[string]error{
	"bad_icrc":          nil,
	"truncated_capture": nil,
	"not_roce":          frame.ErrNotRoCE,
	"ip_fragment":       frame.ErrFragment,
	"length":            bth.ErrLength,
	"truncated":         bth.ErrTruncated,
	"unknown_opcode":    bth.ErrOpcode,
	"bad_tver":          bth.ErrVersion,
}

func TestVectors(t *testing.T) {
	for _, v := range loadVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			t.Log(v.Description)
			raw, err := hex.DecodeString(v.Hex)
			require.NoError(t, err)
			e := v.Expected
			wantErr, known := refusals[e.Error]
			require.True(t, known || e.OK, e.Error)
			if v.ID == "V36" {
				wantErr = frame.ErrLength
			}

			if v.LinkType == "udp-payload" {
				var p, zero bth.Packet
				require.ErrorIs(t, p.Decode(raw), wantErr)
				require.Equal(t, zero, p)
				return
			}
			link := map[string]frame.Link{"ethernet": frame.Ethernet, "ip": frame.RawIP}[v.LinkType]
			wireLen := len(raw)
			if v.ID == "V33" {
				wireLen = 1082 // as its note says
			}
			var f, zero frame.Frame
			err = frame.Finder{}.Decode(link, raw, wireLen, &f)
			if wantErr != nil {
				require.ErrorIs(t, err, wantErr)
				require.Equal(t, zero, f)
				if e.BTH == nil {
					return
				}
				require.NoError(t, frame.Finder{}.Find(link, raw, wireLen, &f))
				require.NoError(t, f.Packet.Header.Decode(f.Transport))
			} else {
				require.NoError(t, err)
			}

			p := &f.Packet
			if e.Transport != "" {
				require.Equal(t, map[string]frame.Net{"rocev1": frame.GRH, "rocev2-ipv4": frame.IPv4,
					"rocev2-ipv6": frame.IPv6}[e.Transport], f.Net)
			}
			name := strings.ReplaceAll(strings.ReplaceAll(p.Opcode.String(), "RDMA_", ""), "WITH_IMMEDIATE", "IMM")
			requireFields(t, e.BTH, map[string]any{
				"opcode": p.Opcode, "opcode_name": name, "se": p.SE, "migreq": p.M, "pad_count": p.PadCnt,
				"tver": p.TVer, "pkey": p.PKey, "fecn": p.FECN, "becn": p.BECN, "resv6": p.Resv6,
				"dest_qp": p.DestQP, "ack_req": p.AckReq, "resv7": p.Resv7, "psn": uint32(p.PSN),
			})
			if wantErr != nil {
				return
			}
			ext := p.Opcode.Ext()
			require.Equal(t, e.RETH != nil, ext&bth.HasRETH != 0)
			requireFields(t, e.RETH, map[string]any{
				"va": fmt.Sprintf("0x%x", p.RETH.VA), "rkey": p.RETH.RKey, "dma_len": p.RETH.DMALen})
			require.Equal(t, e.DETH != nil, ext&bth.HasDETH != 0)
			requireFields(t, e.DETH, map[string]any{"qkey": p.DETH.QKey, "src_qp": p.DETH.SrcQP})
			require.Equal(t, e.AtomicETH != nil, ext&bth.HasAtomicETH != 0)
			requireFields(t, e.AtomicETH, map[string]any{
				"va": fmt.Sprintf("0x%x", p.AtomicETH.VA), "rkey": p.AtomicETH.RKey,
				"swap_add": fmt.Sprintf("0x%x", p.AtomicETH.SwapAdd), "compare": fmt.Sprintf("0x%x", p.AtomicETH.Compare)})
			require.Equal(t, e.ImmDt != nil, ext&bth.HasImmDt != 0)
			requireFields(t, e.ImmDt, map[string]any{"imm_hex": fmt.Sprintf("%08x", p.ImmDt.Imm)})
			require.Equal(t, e.AETH != nil, ext&bth.HasAETH != 0)
			requireFields(t, e.AETH, aethFields(p.AETH))
			require.Equal(t, e.CNP != nil, p.Opcode == bth.CNP)
			requireFields(t, e.CNP, map[string]any{"reserved_hex": hex.EncodeToString(p.Payload)})

			if e.PayloadHex != nil && e.CNP == nil {
				require.Equal(t, *e.PayloadHex, hex.EncodeToString(p.Payload))
				require.Equal(t, len(*e.PayloadHex)/2, f.PayloadLen())
				require.Equal(t, e.PadHex, hex.EncodeToString(p.Pad[:p.PadCnt]))
			}
			if e.Trailing != nil {
				require.Len(t, f.Trailer, *e.Trailing)
			}
			if e.VLANTags != nil {
				require.Equal(t, *e.VLANTags, f.VLANs)
			}
			if e.Error == "truncated_capture" {
				require.True(t, f.Truncated())
				require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
				require.Equal(t, 1024, f.PayloadLen())
				require.Len(t, p.Payload, 42)
				require.Zero(t, p.ICRC)
				return
			}
			require.Equal(t, e.ICRCWire, hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, p.ICRC)))
			if e.Error == "bad_icrc" {
				require.Equal(t, frame.ICRCBad, f.CheckICRC())
				sum := crc.Sum(f.NetPacket[:len(f.NetPacket)-crc.Size])
				require.Equal(t, e.ICRCWant, hex.EncodeToString(crc.AppendValue(nil, sum)))
				return
			}
			require.True(t, *e.ICRCValid)
			require.Equal(t, frame.ICRCGood, f.CheckICRC())
			require.Equal(t, *e.ICRCValue, p.ICRC)
			require.Equal(t, v.Hex, hex.EncodeToString(f.AppendTo(nil)), "encoded again")
		})
	}
}

func aethFields(h aeth.Header) map[string]any {
	m := map[string]any{"syndrome": uint8(h.Syndrome), "msn": h.MSN, "type": h.Syndrome.Kind().String()}
	switch h.Syndrome.Kind() {
	case aeth.Ack:
		m["credits"] = "invalid"
		if n, ok := h.Syndrome.Credit().Count(); ok {
			m["credits"] = n
		}
	case aeth.RNR:
		m["type"] = "rnr_nak"
		m["timer_code"] = uint8(h.Syndrome.RNRTimer())
		m["timer_ns"] = h.Syndrome.RNRTimer().Duration().Nanoseconds()
	case aeth.Nak:
		m["nak_code"] = uint8(h.Syndrome.Nak())
		m["nak_name"] = strings.ToLower(strings.ReplaceAll(h.Syndrome.Nak().String(), " ", "_"))
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
		if b, isBool := g.(bool); isBool {
			g = 0
			if b {
				g = 1
			}
		}
		if s, isString := g.(string); isString {
			require.Equal(t, w, s, k)
			continue
		}
		require.EqualValues(t, w, toFloat(t, g), k)
	}
}

func toFloat(t *testing.T, v any) float64 {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	var f float64
	require.NoError(t, json.Unmarshal(b, &f), string(b))
	return f
}
