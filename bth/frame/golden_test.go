package frame_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/crc"
	realcaptures "github.com/roce-go/roce/fuzz/captures"
)

// The captures of the Linux kernel's driver, one copy for the whole module.
const captures = "../../fuzz/captures"

func captureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(captures, "*.pcap"))
	require.NoError(t, err)
	require.Len(t, files, 50)
	return files
}

// readTable returns the dissection beside a capture: a map of fields for each
// frame.
func readTable(t *testing.T, capture string) (out []map[string]string) {
	t.Helper()
	text := realcaptures.Dissection(strings.TrimSuffix(filepath.Base(capture), ".pcap"))
	require.NotEmpty(t, text)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	require.Len(t, names, 54)
	for _, line := range lines[1:] {
		values := strings.Split(line, "\t")
		require.Len(t, values, len(names))
		row := map[string]string{}
		for i, name := range names {
			row[name] = values[i]
		}
		out = append(out, row)
	}
	return out
}

// What the probes' script sends wrong on purpose, by file and frame number; the
// .txt beside the capture says so.
var (
	probeRefused = map[string]error{
		"probe-responder 36": bth.ErrVersion, // "transport version 1"
		"probe-responder 53": bth.ErrOpcode,  // "reserved opcode 0x1f"
	}
	probeBadICRC = []string{
		"probe-requester 77", // "first ACK with a bad ICRC"
		"probe-responder 32", // "bad ICRC"
	}
)

// TestGolden holds every field of every frame of the captures against the
// dissection by tshark.
// Rules WI-8, WI-11, WI-15.
func TestGolden(t *testing.T) {
	var roce, good, noCRC int
	var bad []string
	refused := map[string]error{}
	for _, path := range captureFiles(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		rows := readTable(t, path)
		records, err := capture.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, records, len(rows), name)
		for i, rec := range records {
			id := fmt.Sprintf("%s %d", name, i+1)
			want := rows[i]
			got := map[string]string{"frame.number": strconv.Itoa(i + 1), "frame.len": strconv.Itoa(rec.WireLen)}
			var f frame.Frame
			err := frame.Finder{}.Decode(frame.Ethernet, rec.Data, rec.WireLen, &f)
			if want["udp.dstport"] != "4791" {
				require.ErrorIs(t, err, frame.ErrNotRoCE, id)
				require.Equal(t, frame.Frame{}, f, id)
				continue
			}
			roce++
			if err != nil {
				refused[id] = err
				require.Equal(t, frame.Frame{}, f, id)
				require.NoError(t, frame.Finder{}.Find(frame.Ethernet, rec.Data, rec.WireLen, &f), id)
				require.NoError(t, f.Packet.Header.Decode(f.Transport), id)
				f.Packet.ICRC = binary.LittleEndian.Uint32(f.Transport[f.TransportLen-4:])
			}
			again := append(f.AppendTo(nil), f.Trailer...)
			switch f.CheckICRC() {
			case frame.ICRCGood:
				good++
				if err == nil {
					require.Equal(t, rec.Data, again, "%s encoded again", id)
				}
			case frame.ICRCBad:
				bad = append(bad, id)
				n := len(again) - bth.ICRCSize
				require.Equal(t, rec.Data[:n], again[:n], "%s encoded again", id)
			default:
				t.Error("not checked:", id)
			}
			describe(got, &f)
			for field, w := range want {
				switch {
				case field == "_ws.expert.message": // remarks, no field
				case field == "infiniband.invariant.crc" && w == "":
					// tshark dissects a SEND of few bytes as something else, and
					// has no ICRC for opcodes that it does not know.
					noCRC++
					op := f.Packet.Opcode
					require.True(t, len(f.Packet.Payload) <= 4 && op.Send() || op == bth.CNP || !op.Known(), id)
				default:
					require.Equal(t, w, got[field], "%s %s", id, field)
				}
				delete(got, field)
			}
			require.Empty(t, got, id)
		}
	}
	require.Equal(t, 1413, roce)
	require.Equal(t, 14, noCRC)
	require.Equal(t, probeBadICRC, bad)
	require.Equal(t, probeRefused, refused)
	require.Equal(t, roce-len(bad), good)
}

// describe fills in tshark's fields in tshark's manner.
func describe(m map[string]string, f *frame.Frame) {
	p := &f.Packet
	dec := func(k string, v uint64) { m[k] = strconv.FormatUint(v, 10) }
	hexa := func(k string, digits int, v uint64) { m[k] = fmt.Sprintf("0x%0*x", digits, v) }
	flag := func(k string, v bool) {
		m[k] = "0"
		if v {
			m[k] = "1"
		}
	}
	if f.Net == frame.IPv4 {
		hexa("eth.type", 4, frame.EtherTypeIPv4)
		m["ip.src"], m["ip.dst"] = f.Src.String(), f.Dst.String()
		hexa("ip.dsfield", 2, uint64(f.TrafficClass))
		dec("ip.ttl", uint64(f.HopLimit))
	} else {
		hexa("eth.type", 4, frame.EtherTypeIPv6)
		m["ipv6.src"], m["ipv6.dst"] = f.Src.String(), f.Dst.String()
		hexa("ipv6.tclass", 8, uint64(f.TrafficClass))
		hexa("ipv6.flow", 6, uint64(f.FlowLabel))
		dec("ipv6.hlim", uint64(f.HopLimit))
	}
	if f.VLANs > 0 {
		dec("vlan.id", uint64(f.VLAN[0].ID()))
	}
	dec("udp.srcport", uint64(f.SrcPort))
	dec("udp.dstport", uint64(f.DstPort))
	dec("udp.length", uint64(f.TransportLen)+8)
	hexa("udp.checksum", 4, uint64(f.UDPChecksum))

	dec("infiniband.bth.opcode", uint64(p.Opcode))
	flag("infiniband.bth.se", p.SE)
	flag("infiniband.bth.m", p.M)
	dec("infiniband.bth.padcnt", uint64(p.PadCnt))
	dec("infiniband.bth.tver", uint64(p.TVer))
	dec("infiniband.bth.p_key", uint64(p.PKey))
	hexa("infiniband.bth.destqp", 6, uint64(p.DestQP))
	flag("infiniband.bth.a", p.AckReq)
	dec("infiniband.bth.psn", uint64(p.PSN))
	e := p.Opcode.Ext()
	if e&bth.HasDETH != 0 {
		hexa("infiniband.deth.q_key", 16, uint64(p.DETH.QKey))
		hexa("infiniband.deth.srcqp", 8, uint64(p.DETH.SrcQP))
	}
	if e&bth.HasRETH != 0 {
		hexa("infiniband.reth.va", 16, p.RETH.VA)
		hexa("infiniband.reth.r_key", 8, uint64(p.RETH.RKey))
		dec("infiniband.reth.dmalen", uint64(p.RETH.DMALen))
	}
	if e&bth.HasAtomicETH != 0 {
		a := p.AtomicETH
		hexa("infiniband.reth.va", 16, a.VA)
		hexa("infiniband.reth.r_key", 8, uint64(a.RKey))
		m["infiniband.atomiceth"] = fmt.Sprintf("%016x%08x%016x%016x", a.VA, a.RKey, a.SwapAdd, a.Compare)
		dec("infiniband.atomiceth.swapdt", a.SwapAdd)
		dec("infiniband.atomiceth.cmpdt", a.Compare)
	}
	if e&bth.HasAETH != 0 {
		s := p.AETH.Syndrome
		dec("infiniband.aeth.syndrome", uint64(s))
		dec("infiniband.aeth.syndrome.opcode", uint64(s.Kind()))
		switch s.Kind() {
		case aeth.Ack:
			dec("infiniband.aeth.syndrome.credit_count", uint64(s.Credit()))
		case aeth.RNR:
			dec("infiniband.aeth.syndrome.timer", uint64(s.RNRTimer()))
		case aeth.Nak:
			dec("infiniband.aeth.syndrome.error_code", uint64(s.Nak()))
		}
		dec("infiniband.aeth.msn", uint64(p.AETH.MSN))
	}
	if e&bth.HasAtomicAckETH != 0 {
		dec("infiniband.atomicacketh.origremdt", p.AtomicAckETH.Orig)
	}
	if e&bth.HasImmDt != 0 {
		v := fmt.Sprintf("%08x", p.ImmDt.Imm)
		m["infiniband.immdt"] = v + "," + v
	}
	if e&bth.HasIETH != 0 {
		v := fmt.Sprintf("%08x", p.IETH.RKey)
		m["infiniband.ieth"] = v + "," + v
	}
	m["infiniband.invariant.crc"] = fmt.Sprintf("0x%x", binary.LittleEndian.AppendUint32(nil, p.ICRC))
	if e&bth.HasDETH != 0 && p.DestQP == 1 {
		describeMAD(m, p.Payload)
	}
}

// describeMAD reads the few fields of connection management that tshark's table
// has, as far as it takes to see that the payload is where it should be. The
// codec itself is in qp/cm.
func describeMAD(m map[string]string, b []byte) {
	attribute := binary.BigEndian.Uint16(b[16:])
	m["infiniband.mad.mgmtclass"] = fmt.Sprintf("0x%02x", b[1])
	m["infiniband.mad.method"] = fmt.Sprintf("0x%02x", b[3])
	m["infiniband.mad.attributeid"] = fmt.Sprintf("0x%04x", attribute)
	m["infiniband.mad.transactionid"] = fmt.Sprintf("0x%016x", binary.BigEndian.Uint64(b[8:]))
	switch attribute {
	case 0x10: // REQ
		m["infiniband.cm.req.localqpn"] = fmt.Sprintf("0x%x", b[56:59])
		m["infiniband.cm.req.startpsn"] = fmt.Sprintf("0x%x", b[68:71])
		m["infiniband.cm.req.pppmtu"] = fmt.Sprintf("0x%02x", b[74]>>4)
	case 0x13: // REP
		m["infiniband.cm.rep.localqpn"] = fmt.Sprintf("0x%x", b[36:39])
		m["infiniband.cm.rep.startpsn"] = fmt.Sprintf("0x%x", b[44:47])
	}
}

// vector is one packet of testdata/vectors.json: captures of several vendors'
// adapters and hand-built packets with their ICRC from two other implementations.
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
