package main

import (
	"bytes"
	stdhex "encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
)

// check runs the program on a capture.
func check(t *testing.T, b []byte, args ...string) (code int, out, errs string) {
	name := filepath.Join(t.TempDir(), "a.pcap")
	require.NoError(t, os.WriteFile(name, b, 0o600))
	return call(t, append(args, name)...)
}

// mrcCapture has a WRITE of three packets over two paths, one of them marked, a
// SACK for it, and one packet sent again, with the rtx bit if rtx says so.
func mrcCapture(t *testing.T, rtx bool) []byte {
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.Ethernet)
	require.NoError(t, err)
	n := 0
	add := func(p mrc.Packet, toResponder bool, ev uint32, tc frame.ECN) {
		f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: netip.MustParseAddr("192.0.2.1"),
			Dst: netip.MustParseAddr("192.0.2.2"), TrafficClass: uint8(tc), MRC: &p}
		if !toResponder {
			f.Src, f.Dst = f.Dst, f.Src
		}
		f.SrcPort, f.FlowLabel = mrc.LowInPort.Split(ev)
		n++
		require.NoError(t, w.Write(time.Unix(1_800_000_000, int64(n)*1000), f.AppendTo(nil)))
	}
	var packets [3]mrc.Packet
	for i := range packets {
		p := &packets[i]
		p.Opcode, p.PKey, p.DestQP, p.PSN = mrc.WriteFirst, 0xffff, 0xdef, psn.PSN(100+i)
		if i > 0 {
			p.Opcode = mrc.WriteMiddle
		}
		p.METH.MSN = 7
		p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x10000+uint64(256*i), 0x55, 600
		p.SetPayload(make([]byte, 256))
	}
	packets[2].Opcode = mrc.WriteLast
	packets[2].SetPayload(make([]byte, 600-512))
	add(packets[0], true, 0xc000, frame.ECT0)
	add(packets[1], true, 0xc001, frame.CE)
	add(packets[2], true, 0xc000, frame.ECT0)
	var sack mrc.Packet
	sack.Opcode, sack.PKey, sack.DestQP, sack.PSN = mrc.SACK, 0xffff, 0xabc, 101
	sack.SETH.CumPSN, sack.SETH.SACKOffset, sack.SETH.Entropy, sack.SETH.M = 101, 1, 0xc001, mrc.PathSkip
	add(sack, false, 0xd000, frame.NotECT)
	mrc.SetRtx(&packets[2].Header, rtx)
	add(packets[2], true, 0xc000, frame.ECT0)
	if !rtx { // over another path, so that it is no copy
		add(packets[2], true, 0xc002, frame.ECT0)
	}
	return file.Bytes()
}

func TestMRC(t *testing.T) {
	code, out, errs := check(t, mrcCapture(t, true), "-mrc")
	require.Empty(t, errs)
	require.Equal(t, exitGood, code, out)
	for _, s := range []string{
		"  5 packets, 1 flow: no rule is broken\n",
		"192.0.2.1 -> 192.0.2.2 QP 0x000def: 4 WRITE packets, 600 bytes of payload, 1 message\n",
		"      sent again 1, holes 0, out of order 0, copies 0, trimmed 0\n",
		"      1 SACKs (skip once 1, skip always 0), 0 NACKs, 0 ACKs, 0 NAKs, 0 of 0 probes had a response\n",
		"      2 paths in use, congestion experienced 25.0 %\n",
		"        ev 0x0000c001: 1 packets, congestion experienced 100.0 %, sent again 0\n",
		"MRC-RETRANSMIT",
	} {
		require.Contains(t, out, s)
	}
	require.NotContains(t, out, "No RoCE packet")

	code, out, _ = check(t, mrcCapture(t, false), "-mrc")
	require.Equal(t, exitWrong, code)
	require.Contains(t, out, "rules are broken, 1 time")
	require.Contains(t, out, "MRC-RTX            1 x  192.0.2.1 -> 192.0.2.2 QP 0x000def  frame 6\n      PSN 102 is retransmitted without the rtx bit\n")
}

func TestMRCJSON(t *testing.T) {
	code, out, _ := check(t, mrcCapture(t, false), "-mrc", "-json")
	require.Equal(t, exitWrong, code)
	types := map[string]int{}
	for line := range strings.Lines(out) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		types[o["type"].(string)]++
		switch o["type"] {
		case "finding":
			if o["severity"] == "breach" {
				require.Equal(t, []any{"MRC-RTX", 6.0, 3.0, "0x000def", 102.0}, []any{o["rule"], o["frame"], o["earlier"], o["qp"], o["psn"]})
			}
		case "mrc_flow":
			require.Equal(t, []any{5.0, 1.0, 0.0, 1.0, 3.0}, []any{o["packets"], o["retransmitted"], o["holes"], o["ecn_ce"], o["paths_in_use"]})
			require.Equal(t, []any{0.0, 1.0, 0.0, 0.0}, o["sack_m"])
			require.Equal(t, "0x000abc", o["peer_qp"])
			p := o["paths"].([]any)[1].(map[string]any)
			require.Equal(t, []any{"0x0000c001", 1.0, 1.0}, []any{p["entropy"], p["packets"], p["ecn_ce_share"]})
		case "mrc_total":
			require.Equal(t, []any{6.0, 1.0, 1.0}, []any{o["packets"], o["breaches"], o["flows"]})
		}
	}
	require.Equal(t, 1, types["mrc_flow"])
	require.Equal(t, 1, types["mrc_total"])
}

// TestMRCVectors: refused vectors of package mrc are reported, with the frame that
// shows it; frames of RoCE v2 between them are judged as ever.
func TestMRCVectors(t *testing.T) {
	b, err := os.ReadFile("../../bth/mrc/testdata/vectors.json")
	require.NoError(t, err)
	var all []struct {
		Hex      string
		Expected struct{ Error string }
	}
	require.NoError(t, json.Unmarshal(b, &all))
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.RawIP)
	require.NoError(t, err)
	var wrong []any
	for i, v := range all {
		raw, err := stdhex.DecodeString(v.Hex)
		require.NoError(t, err)
		require.NoError(t, w.Write(time.Unix(int64(1_800_000_000+i), 0), raw))
		if v.Expected.Error == "length" {
			wrong = append(wrong, float64(i+1))
		}
	}
	code, out, _ := check(t, file.Bytes(), "-mrc", "-mrc-trimmed", "9", "-json")
	require.Equal(t, exitWrong, code)
	var told []any
	for line := range strings.Lines(out) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &o))
		if o["rule"] == "MRC-LENGTH" {
			told = append(told, o["frame"])
		}
		require.NotEqual(t, "OPCODE", o["rule"], line)
	}
	require.Equal(t, wrong, told)

	// Without -mrc they are unknown opcodes.
	code, out, _ = check(t, file.Bytes(), "-json")
	require.Equal(t, exitWrong, code)
	require.Contains(t, out, `"rule":"OPCODE"`)
	require.NotContains(t, out, `"mrc_`)
}

// -host and -qp select MRC connections, too; where they leave none, nothing was judged.
func TestMRCSelected(t *testing.T) {
	b := mrcCapture(t, true)
	for _, args := range [][]string{{"-qp", "0xdef"}, {"-host", "192.0.2.1"}} {
		code, out, _ := check(t, b, append(args, "-mrc")...)
		require.Equal(t, exitGood, code, out)
		require.Contains(t, out, "5 packets, 1 flow: no rule is broken")
	}
	for _, args := range [][]string{{"-qp", "0xdee"}, {"-host", "192.0.2.77"}} {
		code, out, _ := check(t, b, append(args, "-mrc")...)
		require.Equal(t, exitNone, code, out)
		require.Contains(t, out, "The capture has 1 MRC flow, and none that -qp and -host name.")
	}
}
