package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// counts is what tshark counts in each capture: frames, RoCE packets, packets of
// each opcode in hexadecimal. All their ICRCs are right by an independent check.
var counts = []struct {
	name         string
	frames, roce int
	opcodes      string
}{
	{"cm-reject", 11, 2, "64:2"},
	{"cm-rping-ipv6", 40, 29, "04:8 0a:2 0c:2 10:2 11:10 64:5"},
	{"cm-rping", 50, 41, "04:12 0a:3 0c:3 10:3 11:15 64:5"},
	{"cm-udaddy", 15, 6, "64:2 65:4"},
	{"perftest-read", 29, 20, "0c:5 0d:5 0e:5 0f:5"},
	{"perftest-send", 30, 20, "00:5 01:5 02:5 11:5"},
	{"perftest-write", 51, 40, "06:5 07:5 08:5 0a:10 11:15"},
	{"pingpong-rc", 39, 30, "00:10 02:10 11:10"},
	{"pingpong-uc", 28, 20, "20:10 22:10"},
	{"pingpong-ud", 18, 10, "64:10"},
	{"pingpong-xsrq", 7, 0, ""},
	{"rc-atomic", 26, 16, "12:8 13:4 14:4"},
	{"rc-burst", 104, 96, "06:32 08:32 11:32"},
	{"rc-dup-request", 87, 78, "00:5 01:6 02:4 06:4 07:5 08:5 0c:5 0d:5 0e:5 0f:5 11:17 12:6 14:6"},
	{"rc-ecn", 30, 24, "00:2 01:2 02:2 06:2 07:2 08:2 0c:2 0d:2 0e:2 0f:2 11:4"},
	{"rc-ipv6", 29, 19, "00:2 02:1 03:1 06:2 08:1 09:1 0c:1 0d:1 0f:1 11:4 12:2 13:1 14:1"},
	{"rc-local-drop-read", 21, 14, "0c:4 0d:1 0e:5 0f:1 11:3"},
	{"rc-loss-ack", 81, 72, "00:5 01:5 02:5 06:11 07:11 08:5 09:6 11:24"},
	{"rc-loss-atomic", 30, 22, "12:11 13:6 14:5"},
	{"rc-loss-read-request", 31, 23, "0c:5 0d:3 0e:3 0f:3 12:3 14:6"},
	{"rc-loss-request-ingress", 77, 69, "00:4 01:4 02:4 06:12 07:15 08:7 09:8 11:15"},
	{"rc-loss-request", 104, 96, "00:4 01:19 02:5 06:7 07:34 08:6 09:3 11:18"},
	{"rc-mixed", 56, 48, "00:4 01:4 02:2 03:2 06:4 07:4 08:2 09:2 0c:2 0d:2 0e:2 0f:2 11:8 12:4 13:2 14:2"},
	{"rc-nak-qp-rights", 11, 2, "0a:1 11:1"},
	{"rc-nak-remote-op", 10, 2, "04:1 11:1"},
	{"rc-nak-rights", 12, 2, "0a:1 11:1"},
	{"rc-nak-rkey-atomic", 11, 2, "11:1 14:1"},
	{"rc-nak-rkey-read", 12, 2, "0c:1 11:1"},
	{"rc-nak-rkey-write", 12, 4, "06:1 07:1 08:1 11:1"},
	{"rc-nak-too-long", 12, 4, "00:1 01:1 02:1 11:1"},
	{"rc-psn-wrap", 44, 36, "00:2 01:2 02:2 06:4 07:4 08:2 09:2 0c:2 0d:2 0e:2 0f:2 11:6 12:2 14:2"},
	{"rc-read-mtu256", 18, 10, "0c:3 0d:2 0e:2 0f:2 10:1"},
	{"rc-read-mtu4096", 18, 9, "0c:3 0d:2 0e:1 0f:2 10:1"},
	{"rc-read", 34, 22, "0c:8 0d:3 0e:3 0f:3 10:5"},
	{"rc-rnr-exceeded", 14, 6, "04:3 11:3"},
	{"rc-rnr", 27, 16, "04:7 0b:1 11:8"},
	{"rc-send-inv", 12, 6, "00:1 01:1 11:2 16:1 17:1"},
	{"rc-send-mtu256", 30, 24, "00:4 01:4 02:2 03:2 04:2 05:2 11:8"},
	{"rc-send-mtu4096", 25, 18, "00:4 01:2 02:2 03:2 04:1 05:1 11:6"},
	{"rc-send-solicited", 18, 12, "00:2 01:2 02:1 03:1 06:1 07:1 09:1 11:3"},
	{"rc-send", 62, 56, "00:6 01:6 02:3 03:3 04:8 05:8 11:22"},
	{"rc-srq", 26, 18, "00:6 02:3 03:3 11:6"},
	{"rc-timeout", 21, 12, "06:4 07:4 08:4"},
	{"rc-window-stale", 13, 6, "0a:2 11:3 17:1"},
	{"rc-write-mtu256", 28, 20, "06:4 07:4 08:2 09:2 0a:1 0b:1 11:6"},
	{"rc-write", 46, 38, "06:4 07:6 08:2 09:2 0a:5 0b:5 11:14"},
	{"uc", 35, 28, "20:2 21:2 22:1 23:1 24:4 25:4 26:2 27:2 28:1 29:1 2a:4 2b:4"},
	{"ud", 28, 20, "64:10 65:10"},
}

// jsonSummary is the object of -summary -json.
type jsonSummary struct {
	File        string `json:"file"`
	Frames      int    `json:"frames"`
	RoCE        int    `json:"roce"`
	Undecodable int    `json:"undecodable"`
	PFC         int    `json:"pfc"`
	Other       int    `json:"other"`
	CE          int    `json:"ce"`
	BadSums     int    `json:"ip_checksum_bad"`
	First       string `json:"first"`
	Last        string `json:"last"`
	ICRC        struct {
		Good      int `json:"good"`
		Bad       int `json:"bad"`
		Unchecked int `json:"unchecked"`
	} `json:"icrc"`
	Opcodes []struct {
		Opcode  int    `json:"opcode"`
		Name    string `json:"name"`
		Packets int    `json:"packets"`
		Payload int    `json:"payload"`
	} `json:"opcodes"`
	Services []struct {
		Service string `json:"service"`
		Packets int    `json:"packets"`
		Payload int    `json:"payload"`
	} `json:"services"`
	QPs []struct {
		Dst     string   `json:"dst"`
		DestQP  int      `json:"dest_qp"`
		VLAN    []int    `json:"vlan"`
		Tunnel  string   `json:"tunnel"`
		ID      int      `json:"id"`
		Ends    []string `json:"ends"`
		Packets int      `json:"packets"`
		Payload int      `json:"payload"`
	} `json:"qps"`
	Errors []struct {
		Error  string `json:"error"`
		Frames int    `json:"frames"`
	} `json:"errors"`
	Tunnels []struct {
		Kind    string `json:"kind"`
		Packets int    `json:"packets"`
	} `json:"tunnels"`
	Protocols []struct {
		Protocol string `json:"protocol"`
		Frames   int    `json:"frames"`
	} `json:"protocols"`
	OtherQPs *struct {
		Packets int `json:"packets"`
		Payload int `json:"payload"`
	} `json:"other_qps"`
	Complete bool `json:"complete"`
}

func summaries(t *testing.T, out string) []jsonSummary {
	t.Helper()
	var all []jsonSummary
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	for d.More() {
		var s jsonSummary
		require.NoError(t, d.Decode(&s), out)
		all = append(all, s)
	}
	require.Equal(t, strings.Count(out, "\n"), len(all), "an object a line")
	return all
}

func TestSummary(t *testing.T) {
	args := []string{"-summary", "-json"}
	for _, c := range counts {
		args = append(args, captures+c.name+".pcap")
	}
	code, out, errs := exec(nil, args...)
	require.Zero(t, code)
	require.Empty(t, errs)
	all := summaries(t, out)
	require.Len(t, all, len(counts))
	roce := 0
	for i, s := range all {
		c := counts[i]
		roce += s.RoCE
		require.Equal(t, captures+c.name+".pcap", s.File)
		require.Equal(t, c.frames, s.Frames, c.name)
		require.Equal(t, c.roce, s.RoCE, c.name)
		require.Equal(t, c.roce, s.ICRC.Good, c.name)
		require.Zero(t, s.ICRC.Bad+s.ICRC.Unchecked+s.Undecodable+s.PFC, c.name)
		require.Equal(t, c.frames-c.roce, s.Other, c.name)
		require.True(t, s.Complete)
		var opcodes []string
		byOpcode, byService, byQP := 0, 0, 0
		for _, o := range s.Opcodes {
			opcodes = append(opcodes, fmt.Sprintf("%02x:%d", o.Opcode, o.Packets))
			byOpcode += o.Payload
		}
		require.Equal(t, c.opcodes, strings.Join(opcodes, " "), c.name)
		packets := 0
		for _, v := range s.Services {
			packets += v.Packets
			byService += v.Payload
		}
		require.Equal(t, c.roce, packets, c.name)
		packets = 0
		for _, q := range s.QPs {
			packets += q.Packets
			byQP += q.Payload
		}
		require.Equal(t, c.roce, packets, c.name)
		require.Equal(t, byOpcode, byService, c.name)
		require.Equal(t, byOpcode, byQP, c.name)
	}
	require.Equal(t, 1170, roce, "the sum of the captures")
}

// TestSummaryProbe has what the captures above lack: a bad ICRC and opcodes
// that cannot be decoded.
func TestSummaryProbe(t *testing.T) {
	code, out, errs := exec(nil, "-summary", "-json", captures+"probe-responder.pcap")
	require.Equal(t, exitWrong, code)
	require.Empty(t, errs)
	s := summaries(t, out)[0]
	require.Equal(t, 1, s.ICRC.Bad)
	require.Equal(t, 2, s.Undecodable)
	require.Equal(t, s.Frames, s.RoCE+s.Undecodable+s.Other)
	require.Len(t, s.Errors, 2)
	require.Equal(t, 1, s.CE)
	require.Equal(t, "2026-11-29T15:41:45.829091000Z", s.First)

	code, text, _ := exec(nil, "-summary", captures+"probe-responder.pcap", captures+"ud.pcap")
	require.Equal(t, exitWrong, code)
	require.Contains(t, text, "ICRC good 122, bad 1, unchecked 0")
	require.Contains(t, text, "0x64 UD_SEND_ONLY\n")
	require.Contains(t, text, "192.0.2.2 0x000077")
	require.Contains(t, text, "all 2 files\n  frames 169, RoCE 143, undecodable 2,")
	require.Contains(t, text, "ICRC good 142, bad 1, unchecked 0")
}

func TestSummaryBounds(t *testing.T) {
	s := newSummary()
	for i := range maxQPs + 10 {
		s.qp(qpKey{qp: uint32(i)}).add(tally{1, 2})
	}
	require.Len(t, s.qps, maxQPs)
	require.Equal(t, tally{10, 20}, s.moreQPs)
	total := newSummary()
	total.merge(s)
	total.merge(s)
	require.Equal(t, tally{20, 40}, total.moreQPs)
	require.Equal(t, tally{2, 4}, *total.qps[qpKey{qp: 5}])
	require.Len(t, summaries(t, string(s.appendJSON(nil, []byte(`"x"`)))), 1)
}
