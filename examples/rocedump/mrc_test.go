package main

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
)

type mrcVector struct {
	ID, Hex  string
	Expected map[string]any
}

// mrcVectors has package mrc's, which says where they are from.
func mrcVectors(t testing.TB) (v []mrcVector) {
	b, err := os.ReadFile("../../bth/mrc/testdata/vectors.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &v))
	require.NotEmpty(t, v)
	return v
}

func (v *mrcVector) raw(t testing.TB) []byte {
	b, err := hex.DecodeString(v.Hex)
	require.NoError(t, err)
	return b
}

// mrcObject is a JSON line with what -mrc adds.
func mrcObject(t *testing.T, line string) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &o), line)
	return o
}

// mrcHeaders are the keys that the vectors and the JSON lines share.
var mrcHeaders = []string{"meth", "tseth", "seth", "cc_state", "neth", "peth", "erth", "eeth"}

// TestMRCVectors: each vector as a capture of its own gives the headers with the
// keys and values that the vector expects, and no others.
func TestMRCVectors(t *testing.T) {
	for _, v := range mrcVectors(t) {
		args := []string{"-mrc", "-json", "-"}
		switch v.ID {
		case "M32":
			args = append([]string{"-port", "4971"}, args...)
		case "M45":
			args = append([]string{"-mrc-trimmed", "9"}, args...)
		}
		code, out, errs := exec(pcap(t, frame.RawIP, v.raw(t)), args...)
		require.Empty(t, errs, v.ID)
		o := mrcObject(t, out)
		e := v.Expected
		switch e["error"] {
		case "length":
			require.Equal(t, "bth: length does not fit the opcode", o["error"], v.ID)
			require.Equal(t, exitWrong, code)
			continue
		case "unknown_opcode":
			require.Equal(t, "bth: opcode without a known layout", o["error"], v.ID)
			require.Equal(t, exitWrong, code)
			continue
		case "bad_icrc":
			require.Equal(t, "bad", o["icrc_state"])
			require.Equal(t, exitWrong, code)
		case "trimmed":
			require.Equal(t, "unchecked", o["icrc_state"])
			require.Equal(t, true, o["trimmed"])
			require.NotContains(t, o, "icrc")
			require.Equal(t, exitGood, code)
		default:
			require.Equal(t, "good", o["icrc_state"], v.ID)
			require.Equal(t, e["icrc_wire_hex"], o["icrc"], v.ID)
			require.Equal(t, exitGood, code)
			require.EqualValues(t, len(e["payload_hex"].(string))/2, o["payload"], v.ID)
			require.Equal(t, e["udp_src_port"], o["sport"], v.ID)
		}

		bth, want, bits := o["bth"].(map[string]any), e["bth"].(map[string]any), e["mrc"].(map[string]any)
		require.Equal(t, want["opcode"], bth["opcode"], v.ID)
		require.Equal(t, want["opcode_name"], bth["name"], v.ID)
		require.Equal(t, want["psn"], bth["psn"], v.ID)
		require.Equal(t, want["dest_qp"], bth["dest_qp"], v.ID)
		require.Equal(t, bits["rtx"] == 1.0, bth["rtx"], v.ID)
		require.Equal(t, bits["ts"] == 1.0, bth["ts"], v.ID)
		for _, h := range mrcHeaders {
			if e[h] == nil {
				if e["error"] == nil { // vectors of refusals have only what matters
					require.NotContains(t, o, h, v.ID)
				}
				continue
			}
			want := e[h].(map[string]any)
			for _, k := range []string{"sack_bitmap", "port_status_mask"} {
				if s, ok := want[k].(string); ok {
					want[k] = "0x" + s
				}
			}
			require.Equal(t, want, o[h], "%s: %s", v.ID, h)
		}
		if r, ok := e["reth"].(map[string]any); ok {
			require.Equal(t, r["dma_len"], o["reth"].(map[string]any)["dma_len"], v.ID)
		}
		if a, ok := e["aeth"].(map[string]any); ok {
			require.Equal(t, a["syndrome"], o["aeth"].(map[string]any)["syndrome"], v.ID)
			require.Equal(t, a["type"], o["aeth"].(map[string]any)["kind"], v.ID)
		}
		if i, ok := e["immdt"].(map[string]any); ok {
			require.Equal(t, "0x"+i["imm_hex"].(string), o["imm"], v.ID)
		}
	}
}

// TestMRCIsOptIn: without -mrc such packets cannot be decoded, and without a word
// about the DSCP a trimmed packet has lengths that disagree, but no bad ICRC.
func TestMRCIsOptIn(t *testing.T) {
	for _, v := range mrcVectors(t) {
		code, out, _ := exec(pcap(t, frame.RawIP, v.raw(t)), "-json", "-")
		if v.ID == "M32" { // another port
			require.Zero(t, code)
			continue
		}
		require.Equal(t, exitWrong, code, v.ID)
		require.Contains(t, out, `"error":`, v.ID)
		require.NotContains(t, out, "meth")
		if v.ID == "M45" {
			_, out, _ = exec(pcap(t, frame.RawIP, v.raw(t)), "-json", "-mrc", "-")
			require.Equal(t, "frame: lengths disagree", mrcObject(t, out)["error"])
		}
	}
}

// vectorBytes returns some vectors.
func vectorBytes(t testing.TB, ids ...string) (out [][]byte) {
	for _, v := range mrcVectors(t) {
		if slices.Contains(ids, v.ID) {
			out = append(out, v.raw(t))
		}
	}
	require.Len(t, out, len(ids))
	return out
}

// TestMRCMatchedOp: the op of a response is that of its request, wherever the
// response has it; of a response without its request it is the field.
func TestMRCMatchedOp(t *testing.T) {
	b := vectorBytes(t, "M25", "M28")
	request, response := b[0], b[1]
	request = slices.Clone(request)
	request[28+12+1] = 1                       // ev_probe
	copy(request[28+9:], response[28+9:28+12]) // the id
	op := func(frames ...[]byte) any {
		_, out, _ := exec(pcap(t, frame.RawIP, frames...), "-mrc", "-json", "-")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return mrcObject(t, lines[len(lines)-1])["eeth"].(map[string]any)["op"]
	}
	require.Equal(t, 1.0, op(response))
	other := slices.Clone(response)
	other[28+12+1] = 0x10 // the other place
	require.Equal(t, 0.0, op(other))
	require.Equal(t, 1.0, op(request, other))
	request[28+12+1] = 0
	require.Equal(t, 0.0, op(request, response))
	request[28+11]++
	require.Equal(t, 1.0, op(request, response), "another id")
}

// TestMRCKeys has the keys that depend on a field: the id of a probe in place of
// a PSN, a CC_STATE of another kind, names of what is not defined.
func TestMRCKeys(t *testing.T) {
	keys := func(id, header string, change func(b []byte)) []string {
		b := slices.Clone(vectorBytes(t, id)[0])
		change(b[28+12:])
		_, out, _ := exec(pcap(t, frame.RawIP, b), "-mrc", "-json", "-")
		o := mrcObject(t, out)
		if o[header] == nil {
			return nil
		}
		return slices.Sorted(maps.Keys(o[header].(map[string]any)))
	}
	common := []string{"cack_psn", "cc_flags", "cc_type", "dpdcid", "entropy", "m", "mpr", "mpr_packets", "next", "pr",
		"sack_base_psn", "sack_bitmap", "sack_offset", "spdcid", "type"}
	same := func([]byte) {}
	probe := func(b []byte) { b[1] |= 2 }
	require.Equal(t, slices.Sorted(slices.Values(append([]string{"ack_psn", "ack_psn_offset"}, common...))), keys("M11", "seth", same))
	require.Equal(t, slices.Sorted(slices.Values(append([]string{"probe_id"}, common...))), keys("M11", "seth", probe))
	require.NotNil(t, keys("M11", "cc_state", same))
	require.Nil(t, keys("M11", "cc_state", func(b []byte) { b[16] |= 0x10 }), "cc_type 1")
	require.Contains(t, keys("M16", "neth", same), "reason_name")
	require.NotContains(t, keys("M16", "neth", func(b []byte) { b[2] = 3 }), "reason_name")
	require.Contains(t, keys("M25", "erth", same), "op_name")
	require.NotContains(t, keys("M25", "erth", func(b []byte) { b[1] = 2 }), "op_name")
	require.NotContains(t, keys("M27", "eeth", func(b []byte) { b[1] = 3 << 2 }), "op_name")
}

// TestMRCText holds the lines of some vectors; their values are the vectors'.
func TestMRCText(t *testing.T) {
	b := vectorBytes(t, "M03", "M04", "M09", "M11", "M16", "M24", "M25", "M28")
	_, out, errs := exec(pcap(t, frame.RawIP, b...), "-mrc", "-")
	require.Empty(t, errs)
	want := []string{
		"MRC_WRITE_LAST           qp 0x000def psn      258 A----     5 B icrc good msn 7 va 0x00007f0012340200 rkey 0x11223344 len 517 ev 0x0000c003",
		"MRC_WRITE_LAST_IMM       qp 0x000def psn 16777215 A----     8 B icrc good msn 8 rqmsn 3 ts 65535 va 0x00007f0012340100 rkey 0x11223344 len 264 imm 0xdeadbeef ev 0x0000c004",
		"MRC_ACKNOWLEDGE          qp 0x000abc psn      258 -----     0 B icrc good ack msn 10 ev 0x0000c000",
		"MRC_SACK                 qp 0x000abc psn        4 -----     0 B icrc good all to 4 from 5 bitmap 0x0000000000000076 caused by 11 m 0 of ev 0x0000c001 held 5 received 5632 ev 0x0000c000",
		"MRC_NACK                 qp 0x000abc psn      512 -----     0 B icrc good trimmed psn 512 of ev 0x0000c100 ev 0x0000c000",
		"MRC_PROBE                qp 0x000def psn        0 -----     0 B icrc good probe 0 ev 0x0000c0df",
		"MRC_ENDPOINT_REQUEST     qp 0x000002 psn     4660 -----     0 B icrc good port_status_update ports 0x000000a5 ev 0x0000c000",
		"MRC_ENDPOINT_RESPONSE    qp 0x000002 psn    65535 -----     0 B icrc good ev_probe ev 0x0000c000",
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(want))
	for i, l := range lines {
		_, l, _ = strings.Cut(l, "MRC_")
		require.Equal(t, want[i], "MRC_"+l)
	}

	// The rtx bit, the other order of the halves, a trimmed packet.
	rtx := slices.Clone(b[0])
	rtx[28+8] |= 0x20
	_, out, _ = exec(pcap(t, frame.RawIP, rtx), "-mrc", "-mrc-port-half", "high", "-")
	require.Contains(t, out, "A---R")
	require.Contains(t, out, "ev 0xc0030000")
	_, out, _ = exec(pcap(t, frame.RawIP, vectorBytes(t, "M45")...), "-mrc", "-mrc-trimmed", "8,9", "-")
	require.Contains(t, out, "len 517 trimmed ev 0x0000c002")
}

func TestMRCSummary(t *testing.T) {
	var all [][]byte
	for _, v := range mrcVectors(t) {
		all = append(all, v.raw(t))
	}
	rtx := slices.Clone(all[0])
	rtx[28+8] |= 0x20 // which makes the ICRC wrong too
	all = append(all, rtx)
	file := pcap(t, frame.RawIP, all...)
	code, out, _ := exec(file, "-mrc", "-mrc-trimmed", "9", "-summary", "-json", "-")
	require.Equal(t, exitWrong, code)
	o := mrcObject(t, out)
	opcodes := map[string]any{}
	for _, e := range o["opcodes"].([]any) {
		opcodes[e.(map[string]any)["name"].(string)] = e.(map[string]any)["packets"]
	}
	require.Equal(t, map[string]any{"MRC_WRITE_FIRST": 2.0, "MRC_WRITE_MIDDLE": 2.0, "MRC_WRITE_LAST": 1.0, "MRC_WRITE_LAST_IMM": 1.0,
		"MRC_WRITE_ONLY": 3.0, "MRC_WRITE_ONLY_IMM": 1.0, "MRC_ACKNOWLEDGE": 2.0, "MRC_SACK": 2.0, "MRC_NACK": 6.0, "MRC_PROBE": 2.0,
		"MRC_ENDPOINT_REQUEST": 1.0, "MRC_ENDPOINT_RESPONSE": 2.0}, opcodes)
	require.Equal(t, "MRC", o["services"].([]any)[0].(map[string]any)["service"])
	m := o["mrc"].(map[string]any)
	require.Equal(t, []string{"nacks", "packets", "probe_responses", "rtx", "sack_m", "trimmed"}, slices.Sorted(maps.Keys(m)))
	require.Equal(t, []any{25.0, 1.0, 1.0, 0.0}, []any{m["packets"], m["rtx"], m["trimmed"], m["probe_responses"]})
	require.Equal(t, []any{1.0, 0.0, 1.0, 0.0}, m["sack_m"])
	require.Len(t, m["nacks"], 6)
	require.Equal(t, map[string]any{"reason": 1.0, "reason_name": "trimmed", "packets": 1.0}, m["nacks"].([]any)[0])
	require.Equal(t, map[string]any{"reason": 85.0, "packets": 1.0}, m["nacks"].([]any)[5])

	_, out, _ = exec(file, "-mrc", "-mrc-trimmed", "9", "-summary", "-")
	require.Contains(t, out, "  MRC: 25 packets, sent again 1, trimmed 1, probe responses 0\n")
	require.Contains(t, out, "  SACKs: path good 1, to skip once 0, to skip always 1, undefined 0\n")
	require.Contains(t, out, "  NACKs: trimmed 1, trimmed_last_hop 1, no_bitmap 1, no_packet_buffer 1, psn_out_of_window 1, 85 1\n")
	require.Contains(t, out, "0xc6 MRC_WRITE_FIRST\n")
	_, out, _ = exec(file, "-summary", "-json", "-")
	require.NotContains(t, out, "mrc")
}

func TestMRCUsage(t *testing.T) {
	for _, args := range [][]string{{"-mrc-trimmed", "64", "-"}, {"-mrc-trimmed", "x", "-"}, {"-mrc-port-half", "middle", "-"},
		{"-mrc-trimmed", "9", "-"}, {"-mrc-port-half", "high", "-"}} {
		code, _, errs := exec(nil, args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, args[0])
	}
}
