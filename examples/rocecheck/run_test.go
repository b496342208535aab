package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/psn"
)

const captures = "../../fuzz/captures/"

func call(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	code, out, errs := call(t, "-h")
	require.Equal(t, exitGood, code)
	require.Equal(t, usage, out)
	require.Empty(t, errs)
	for _, l := range strings.Split(usage, "\n") {
		require.LessOrEqual(t, len(l), 82, l)
	}
	good := captures + "rc-send.pcap"
	for _, bad := range [][]string{
		nil, {"-json"}, {"-nonsense", good}, {"-port", "0", good}, {"-port", "65536", good}, {"-rate", "fast", good},
		{"-rate", "-1G", good}, {"-timeout", "-1s", good}, {"-timeout", "soon", good}, {"-qp", "0x11,", good}, {"-host", "here", good}, {"-from", "noon", good},
		{"-write", "x", "-"}, {"-follow", good, good}, {"-i", "lo", good}, {"-interval", "0s", good}, {"-columns", "20", good}, {"-baseline", "run_test.go", good},
		{"-baseline", captures + "pingpong-xsrq.pcap", good}, {"-write", "/does/not/exist/bad.pcapng", good},
		{"-html", "x", "-qp", "0x11,zz", good}, {"-html", "x", good, good}, {"/does/not/exist"}, {t.TempDir()}, {"run_test.go"},
		{"-html", "/does/not/exist/page.html", good},
	} {
		code, _, errs := call(t, bad...)
		require.Equal(t, exitUsage, code, "%v", bad)
		require.True(t, strings.HasPrefix(errs, "rocecheck: "), "%v: %s", bad, errs)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
}

func TestRate(t *testing.T) {
	for s, want := range map[string]uint64{"100G": 100e9, "25g": 25e9, "1.6T": 1600e9, "400000000000": 400e9, "10M": 10e6, "64k": 64000} {
		v, err := parseRate(s)
		require.NoError(t, err, s)
		require.Equal(t, want, v, s)
	}
	for _, s := range []string{"", "G", "1GG", "0", "-5", "1e300T", "NaN"} {
		_, err := parseRate(s)
		require.Error(t, err, s)
	}
}

// Exit codes: 1 only where a rule is broken.
func TestExitCodes(t *testing.T) {
	broken := map[string]bool{"rc-local-drop-read": true, "probe-requester": true, "probe-responder": true}
	files, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".pcap")
		code, out, errs := call(t, f)
		require.Empty(t, errs, name)
		if name == "pingpong-xsrq" { // the driver has no XRC
			require.Equal(t, exitNone, code, name)
			require.True(t, strings.HasPrefix(out, "There is nothing to judge."), name)
			continue
		}
		if broken[name] {
			require.Equal(t, exitWrong, code, name)
			require.Contains(t, out, "\nBroken rules\n", name)
		} else {
			require.Equal(t, exitGood, code, name)
			require.True(t, strings.HasPrefix(out, "No rule is broken"), name)
		}
	}
}

func TestText(t *testing.T) {
	_, out, _ := call(t, captures+"rc-local-drop-read.pcap")
	for _, want := range []string{
		"2 rules are broken, 3 times.\n21 frames, 14 of them RoCE, 2 flows",
		"RS-15       read-opcode         1 x  192.0.2.1 -> 192.0.2.2 QP 0x000011  frame 19\n" +
			"      rule: READ responses follow the PSNs of the request, each of the right size\n" +
			"      wireshark: ip.src == 192.0.2.1 && ip.dst == 192.0.2.2 && infiniband.bth.destqp == 0x000011 && infiniband.bth.psn == 6636326\n" +
			"      the response at PSN 6636326 should be RC_RDMA_READ_RESPONSE_FIRST, is RC_RDMA_READ_RESPONSE_MIDDLE\n",
		"RS-09       rnr-answered        2 x  192.0.2.1 -> 192.0.2.2 QP 0x000011  frame 12, 21\n",
		"What to look at\n  - READ responses",
		"\nCost: 1 time-out took 77.3ms, of 2.66s captured.\n",
		"\nWorst connections\n  192.0.2.1 > 192.0.2.2 QP 0x000011: 3 breaches\n",
		"      wireshark: ip.src == 192.0.2.1 && ip.dst == 192.0.2.2 && infiniband.bth.destqp == 0x000011 && infiniband.bth.psn == 6636326\n",
	} {
		require.Contains(t, out, want)
	}
	// Worst first.
	require.Less(t, strings.Index(out, "Broken rules"), strings.Index(out, "\nNotes"))
	require.Less(t, strings.Index(out, "\nNotes"), strings.Index(out, "\nEvents"))
	require.NotContains(t, out, "\x1b")

	_, out, _ = call(t, captures+"pingpong-xsrq.pcap")
	require.Contains(t, out, "No RoCE packet was found.")
}

// Where the options leave nothing, nothing was judged, and the report says so.
func TestNothingLeft(t *testing.T) {
	f := captures + "rc-mixed.pcap"
	for want, args := range map[string][]string{
		"The capture has 2 flows, and none that -qp and -host name":       {"-qp", "0x99"},
		"The capture has 2 flows, and none":                               {"-host", "203.0.113.9"},
		"No RoCE packet is between -from and -to: the capture is from 20": {"-from", "2099-01-01T00:00:00Z"},
		"No RoCE packet is between -from and -to":                         {"-from", "1h"},
	} {
		code, out, errs := call(t, append(args, f)...)
		require.Equal(t, exitNone, code, want)
		require.Empty(t, errs)
		require.True(t, strings.HasPrefix(out, "There is nothing to judge."), out)
		require.Contains(t, out, want)
		code, _, _ = call(t, append(args, "-json", f)...)
		require.Equal(t, exitNone, code, want)
	}
	code, out, _ := call(t, "-qp", "0x11", f)
	require.Equal(t, exitGood, code)
	require.True(t, strings.HasPrefix(out, "No rule is broken."), out)

	for want, args := range map[string][]string{
		"-from is after -to":               {"-from", "5s", "-to", "1s"},
		"-from is after -to: ":             {"-from", "2026-01-02T00:00:00Z", "-to", "2026-01-01T00:00:00Z"},
		"give -mrc too":                    {"-mrc-trimmed", "9"},
		"no QP number; give numbers of 24": {"-qp", "0x1000000"},
	} {
		code, _, errs := call(t, append(args, f)...)
		require.Equal(t, exitUsage, code, want)
		require.Contains(t, errs, want)
	}
}

// Several files are judged apart, or with -join as one.
func TestFiles(t *testing.T) {
	a, b := captures+"rc-send.pcap", captures+"rc-local-drop-read.pcap"
	code, out, _ := call(t, a, b)
	require.Equal(t, exitWrong, code)
	require.True(t, strings.HasPrefix(out, a+":\nNo rule is broken."))
	require.Contains(t, out, "\n"+b+":\n2 rules are broken, 3 times.\n")

	// A capture cut in two gives the same findings as the whole.
	whole := captures + "rc-loss-request.pcap"
	data, err := os.ReadFile(whole)
	require.NoError(t, err)
	cut := 24
	for range 50 {
		cut += 16 + int(data[cut+8]) + int(data[cut+9])<<8
	}
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1.pcap"), filepath.Join(dir, "2.pcap")
	require.NoError(t, os.WriteFile(one, data[:cut], 0o600))
	require.NoError(t, os.WriteFile(two, append(append([]byte(nil), data[:24]...), data[cut:]...), 0o600))
	code, got, errs := call(t, "-json", "-join", one, two)
	require.Equal(t, exitGood, code, errs)
	_, want, _ := call(t, "-json", whole)
	wl, gl := lines(t, want), lines(t, got)
	require.Len(t, gl, len(wl))
	for i := range wl {
		if f, ok := wl[i]["frame"].(float64); ok && f > 50 {
			require.Equal(t, two, gl[i]["file"])
			require.Equal(t, f-50, gl[i]["frame"])
		}
		for _, k := range []string{"file", "frame", "files", "earlier"} {
			delete(wl[i], k)
			delete(gl[i], k)
		}
		require.Equal(t, wl[i], gl[i])
	}
}

// Parts in the wrong order are reported, and not treated as one connection.
func TestOrder(t *testing.T) {
	code, out, errs := call(t, "-join", captures+"rc-local-drop-read.pcap", captures+"rc-rnr.pcap")
	require.Equal(t, exitWrong, code)
	require.Contains(t, errs, "rc-rnr.pcap: begins 45.012s before")
	require.Contains(t, out, "2 rules are broken, 3 times.\n")
}

func lines(t *testing.T, s string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, l := range strings.Split(strings.TrimSpace(s), "\n") {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &m), l)
		out = append(out, m)
	}
	return out
}

func TestJSON(t *testing.T) {
	code, out, _ := call(t, "-json", captures+"rc-rnr.pcap")
	require.Equal(t, exitGood, code)
	types := map[string]int{}
	for _, m := range lines(t, out) {
		types[m["type"].(string)]++
		switch m["type"] {
		case "finding":
			for _, k := range []string{"severity", "rule", "check", "file", "frame", "time", "src", "dst", "qp", "psn", "text"} {
				require.Contains(t, m, k)
			}
		case "flow":
			require.Contains(t, m, "latency_p999")
			require.Contains(t, m, "flow_completion_time_average")
			require.Contains(t, m, "data_frames_retransmitted")
		case "qp":
			if m["addr"] == "192.0.2.2" { // the sender
				require.EqualValues(t, 8, m["data_frames_tx"])
				require.EqualValues(t, 0, m["data_frames_rx"])
				require.EqualValues(t, 6, m["data_frames_retransmitted"])
				require.EqualValues(t, 3, m["ack_rx"])
				require.EqualValues(t, 5, m["rnr_nak_rx"])
				require.EqualValues(t, 2, m["message_tx"])
			} else {
				require.EqualValues(t, 8, m["data_frames_rx"])
				require.EqualValues(t, 3, m["ack_tx"])
				require.EqualValues(t, 2, m["message_complete_rx"])
			}
		case "total":
			require.EqualValues(t, 11, m["events"])
			require.EqualValues(t, 0, m["breaches"])
			require.EqualValues(t, 5, m["rnr_nak"])
			require.EqualValues(t, 16, m["roce_frames"])
			require.EqualValues(t, 27, m["all_frames"])
			require.EqualValues(t, 2, m["message_complete"])
		}
	}
	require.Equal(t, map[string]int{"finding": 11, "flow": 2, "qp": 2, "total": 1}, types)
}

// A file that ends in a record is reported, and what came before is judged.
func TestTruncated(t *testing.T) {
	data, err := os.ReadFile(captures + "rc-send.pcap")
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "cut.pcap")
	require.NoError(t, os.WriteFile(name, data[:len(data)-5], 0o600))
	code, out, errs := call(t, name)
	require.Equal(t, exitWrong, code)
	require.Contains(t, errs, "ends in the middle of a record, after 61 whole ones")
	require.Contains(t, out, "61 frames, 55 of them RoCE")
}

func TestWriteError(t *testing.T) {
	var e bytes.Buffer
	code := run([]string{captures + "rc-send.pcap"}, strings.NewReader(""), badWriter{}, &e)
	require.Equal(t, exitUsage, code)
	require.Contains(t, e.String(), "rocecheck: cannot write the output: full\n")
}

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

// What -complete makes a breach.
func TestComplete(t *testing.T) {
	code, out, _ := call(t, captures+"probe-requester.pcap")
	require.Equal(t, exitWrong, code)
	require.NotContains(t, out, "RQ-22")
	code, out, _ = call(t, "-complete", captures+"probe-requester.pcap")
	require.Equal(t, exitWrong, code)
	require.Contains(t, out, "RQ-22       ack-never-sent      1 x")
	require.Contains(t, out, "it is 999")
}

// BenchmarkFile judges a capture of 96,000 frames of 800 bytes on average, from
// memory; sequential is for comparison, a copy of its bytes.
func BenchmarkFile(b *testing.B) {
	data, err := io.ReadAll(newEndless(b, 64<<20))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("judge", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if run([]string{"-json", "-"}, bytes.NewReader(data), io.Discard, io.Discard) != exitGood {
				b.Fatal("not good")
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		to := make([]byte, len(data))
		for b.Loop() {
			copy(to, data)
		}
	})
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		id, first, within string
	}{
		{"RS-13", "RS-13: the MSN counts completed request messages\n", "- Source: "},
		{"wi-9", "WI-9: the table of opcodes\n", "- Held by: bth/"},
		{"RP-2", "RP-2: ", "- Held by: cnp/"},
		{"timeout", "TIMEOUT: ", "time-out with the round trip"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitGood, run([]string{"-explain", c.id}, nil, &out, &errs), "%s: %s", c.id, &errs)
		require.True(t, strings.HasPrefix(out.String(), c.first), out.String())
		require.Contains(t, out.String(), c.within)
	}
	var out, errs bytes.Buffer
	require.Equal(t, exitUsage, run([]string{"-explain", "XX-1"}, nil, &out, &errs))
	require.Contains(t, errs.String(), "no such rule")
}

// endless is a capture that repeats another until n bytes were read: each round
// is later, and its PSNs go on where those of the round before ended, or it is of
// other QPs.
type endless struct {
	frames [][]byte // records with their headers
	fresh  bool     // each round is a connection of its own
	round  int
	next   int
	left   int64
	buf    []byte
	hold   []byte
}

func newEndless(t testing.TB, n int64) *endless {
	b, err := os.ReadFile(captures + "rc-burst.pcap")
	require.NoError(t, err)
	e := &endless{left: n, buf: append([]byte(nil), b[:24]...)}
	for b = b[24:]; len(b) > 0; {
		size := 16 + int(binary.LittleEndian.Uint32(b[8:]))
		var f frame.Frame
		if f.Decode(frame.Ethernet, b[16:size]) == nil {
			e.frames = append(e.frames, b[:size])
		}
		b = b[size:]
	}
	require.Len(t, e.frames, 96)
	return e
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.buf) == 0 {
		if e.left <= 0 && e.next == 0 {
			return 0, io.EOF
		}
		r := e.frames[e.next]
		e.hold = append(e.hold[:0], r...)
		binary.LittleEndian.PutUint32(e.hold, binary.LittleEndian.Uint32(r)+uint32(e.round))
		var f frame.Frame
		_ = f.Decode(frame.Ethernet, e.hold[16:])
		if e.fresh {
			f.Packet.DestQP += uint32(e.round)
			f.Packet.PSN = f.Packet.PSN.Add(70_001 * e.round & psn.Mask)
		} else {
			f.Packet.PSN = f.Packet.PSN.Add(64 * e.round)
			f.Packet.AETH.MSN = (f.Packet.AETH.MSN + uint32(32*e.round)) & 0xffffff
		}
		e.hold = f.AppendTo(e.hold[:16])
		e.buf = e.hold
		e.left -= int64(len(e.buf))
		if e.next++; e.next == len(e.frames) {
			e.next = 0
			e.round++
		}
	}
	n := copy(p, e.buf)
	e.buf = e.buf[n:]
	return n, nil
}

// TestStreams reads a capture from a pipe that is larger than memory may become: of
// one connection, and of a short one after another.
//
//	ROCECHECK_GB=10 go test ./examples/rocecheck -run TestStreams -v -timeout 1h
//
// Of 10 GB the latter are 150,000 connections.
func TestStreams(t *testing.T) {
	size := int64(48 << 20)
	if gb, err := strconv.Atoi(os.Getenv("ROCECHECK_GB")); err == nil {
		size = int64(gb) << 30
	} else if testing.Short() {
		size = 4 << 20
	}
	t.Run("one connection", func(t *testing.T) { stream(t, newEndless(t, size)) })
	in := newEndless(t, size)
	in.fresh = true
	t.Run("short connections", func(t *testing.T) { stream(t, in) })
}

func stream(t *testing.T, in *endless) {
	size := in.left
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var peak uint64
	go func() {
		buf := make([]byte, 1<<20)
		for i := 0; ; i++ {
			n, err := io.ReadFull(in, buf)
			if _, werr := w.Write(buf[:n]); werr != nil || err != nil {
				break
			}
			if i%16 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.Sys)
			}
		}
		w.Close()
	}()
	var out, errs bytes.Buffer
	html := t.TempDir() + "/page.html"
	code := run([]string{"-json", "-html", html, "-"}, r, &out, &errs)
	require.Equal(t, exitGood, code, errs.String())
	l := lines(t, out.String())
	total := l[len(l)-1]
	require.EqualValues(t, 96*in.round, total["all_frames"])
	require.EqualValues(t, 32*in.round, total["message_complete"])
	require.EqualValues(t, 0, total["breaches"])
	require.EqualValues(t, 0, total["events"])
	require.Less(t, peak, uint64(96<<20), "memory")
	page, err := os.Stat(html)
	require.NoError(t, err)
	require.Less(t, page.Size(), int64(1<<20))
	t.Logf("%d bytes, %d frames, %d rounds, %d MiB of memory at most", size, 96*in.round, in.round, peak>>20)
}

// Two tenants with the same addresses and QP numbers are two connections, which the report
// tells apart by their networks.
func TestTenants(t *testing.T) {
	recs, err := capture.ReadFile(captures + "rc-send.pcap")
	require.NoError(t, err)
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.Ethernet)
	require.NoError(t, err)
	for _, r := range recs {
		for vni := byte(5); vni < 7; vni++ {
			n := len(r.Data)
			b := slices.Concat([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0}, // RFC 7348
				[]byte{0x45, 0, byte((n + 36) >> 8), byte(n + 36), 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 51, 100, 1, 198, 51, 100, 2},
				[]byte{0xc0, 0, 0x12, 0xb5, byte((n + 16) >> 8), byte(n + 16), 0, 0}, []byte{8, 0, 0, 0, 0, 0, vni, 0}, r.Data)
			require.NoError(t, w.Write(r.Time.Add(time.Duration(vni)), b))
		}
	}
	code, out, _ := check(t, file.Bytes())
	require.Equal(t, exitGood, code, out)
	code, plain, _ := call(t, captures+"rc-send.pcap")
	require.Equal(t, exitGood, code)
	flows := strings.Count(plain, "192.0.2.2>192.0.2.1")
	require.Equal(t, flows, strings.Count(out, "192.0.2.2>192.0.2.1 (vxlan 5)"), out)
	require.Equal(t, flows, strings.Count(out, "192.0.2.2>192.0.2.1 (vxlan 6)"), out)
	_, out, _ = check(t, file.Bytes(), "-json")
	require.Contains(t, out, `"type":"flow","src":"192.0.2.2","dst":"192.0.2.1","network":"vxlan 6",`)
}

// Beside a router the directions of a connection are in different VLANs.
func TestVLANOfEachDirection(t *testing.T) {
	recs, err := capture.ReadFile(captures + "rc-send.pcap")
	require.NoError(t, err)
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.Ethernet)
	require.NoError(t, err)
	for _, r := range recs {
		vlan := byte(10)
		if r.Data[29] == 2 { // from 192.0.2.2
			vlan = 20
		}
		require.NoError(t, w.Write(r.Time, slices.Concat(r.Data[:12], []byte{0x81, 0, 0, vlan}, r.Data[12:])))
	}
	pairs := func(out string) (n int) {
		for line := range strings.Lines(out) {
			if strings.Contains(line, `"type":"qp"`) && strings.Contains(line, `"peer_qp":"0x`) && !strings.Contains(line, `"data_frames_tx":0,`) {
				n++
			}
		}
		return n
	}
	_, plain, _ := call(t, "-json", captures+"rc-send.pcap")
	require.Positive(t, pairs(plain), plain)
	_, out, _ := check(t, file.Bytes(), "-json")
	require.Contains(t, out, `"network":"vlan 10"`)
	require.Contains(t, out, `"network":"vlan 20"`)
	require.Equal(t, pairs(plain), pairs(out), out)
}
