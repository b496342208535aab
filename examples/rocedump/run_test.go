package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/reth"
)

func TestUsage(t *testing.T) {
	code, out, errs := exec(nil, "-h")
	require.Equal(t, exitGood, code)
	require.Empty(t, errs)
	for _, s := range []string{"-json", "-all", "-summary", "-port N", "Exit code:", "Examples:", "standard input"} {
		require.Contains(t, out, s)
	}
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 81)
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "x.txt")
	require.NoError(t, os.WriteFile(text, []byte("hello, world"), 0o600))
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "give capture files"},
		{[]string{"-json"}, "give capture files"},
		{[]string{"-nonsense", "x"}, "rocedump -h"},
		{[]string{"-port", "0", "x"}, "1 to 65535"},
		{[]string{"-port", "65536", "x"}, "1 to 65535"},
		{[]string{"-port", "x", "x"}, "rocedump -h"},
		{[]string{filepath.Join(dir, "none.pcap")}, "check the path"},
		{[]string{dir}, "directory"},
		{[]string{text}, "not a pcap or pcapng file"},
		{[]string{"-"}, "standard input: not a pcap or pcapng file: it is empty"},
		{[]string{"--", "-json"}, "check the path"},
	} {
		code, out, errs := exec(nil, c.args...)
		require.Equal(t, exitUsage, code, c.args)
		require.Empty(t, out, c.args)
		require.Contains(t, errs, c.says)
		require.True(t, strings.HasPrefix(errs, "rocedump: "), errs)
	}
}

// TestSources has the same capture in all forms.
func TestSources(t *testing.T) {
	const file = captures + "rc-atomic.pcap"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	_, want, _ := exec(nil, file)
	require.Equal(t, 16, strings.Count(want, "\n"))

	code, out, errs := exec(raw, "-")
	require.Zero(t, code)
	require.Empty(t, errs)
	require.Equal(t, want, out)

	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(raw)
	w.Close()
	name := filepath.Join(t.TempDir(), "x.pcap.gz")
	require.NoError(t, os.WriteFile(name, z.Bytes(), 0o600))
	code, out, errs = exec(nil, name)
	require.Zero(t, code)
	require.Empty(t, errs)
	require.Equal(t, want, out)

	// Options may follow; each file begins with its name.
	code, out, _ = exec(nil, file, name, "-all")
	require.Zero(t, code)
	require.Equal(t, 2*26+2, strings.Count(out, "\n"))
	require.True(t, strings.HasPrefix(out, file+":\n"))
	require.Contains(t, out, "\n"+name+":\n")

	_, out, _ = exec(nil, "../../bth/frame/capture/testdata/atomic.pcapng")
	lines := strings.SplitAfter(want, "\n")[:6]
	for i := range lines { // editcap numbered them again
		lines[i] = "     " + string(rune('1'+i)) + lines[i][6:]
	}
	require.Equal(t, strings.Join(lines, ""), out)

	// Of a file that cannot be read nothing comes; the others are.
	code, out, errs = exec(nil, "none.pcap", file)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "none.pcap")
	require.Equal(t, file+":\n"+want, out)
}

func TestTruncated(t *testing.T) {
	raw, err := os.ReadFile(captures + "rc-atomic.pcap")
	require.NoError(t, err)
	code, out, errs := exec(raw[:len(raw)-1], "-json", "-")
	require.Equal(t, exitWrong, code)
	require.Len(t, objects(t, out), 15)
	require.Contains(t, errs, "-: warning: the file ends in the middle of a record, after 25 whole ones")

	code, out, _ = exec(raw[:len(raw)-1], "-json", "-summary", "-")
	require.Equal(t, exitWrong, code)
	require.False(t, summaries(t, out)[0].Complete)
	code, out, _ = exec(raw[:len(raw)-1], "-summary", "-")
	require.Equal(t, exitWrong, code)
	require.Contains(t, out, "(not read to its end)")

	copy(raw[40:], "\xff\xff\xff\xff") // the second word of lengths
	copy(raw[32:], "\xff\xff\xff\xff")
	code, out, errs = exec(raw, "-json", "-")
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errs, "broken capture file")
}

// TestSnapped has packets whose ICRC was not captured.
func TestSnapped(t *testing.T) {
	code, out, errs := exec(nil, "-json", "../../bth/frame/capture/testdata/atomic-snap60.pcapng")
	require.Equal(t, exitWrong, code, "the atomic headers are cut")
	require.Empty(t, errs)
	got := objects(t, out)
	require.Len(t, got, 6)
	require.Contains(t, got[0].Error, "truncated")

	_, packet := build(bth.RCWriteOnly, frame.IPv4, make([]byte, 100))
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.Ethernet)
	require.NoError(t, err)
	require.NoError(t, w.Write(time.Unix(0, 0), packet))
	b := file.Bytes()
	b = b[:len(b)-50]
	b[32] -= 50
	code, out, errs = exec(b, "-json", "-")
	require.Equal(t, exitGood, code)
	require.Empty(t, errs)
	o := objects(t, out)[0]
	require.Equal(t, "unchecked", o.ICRCState)
	require.Nil(t, o.ICRC)
	require.Equal(t, 100, *o.Payload, "as on the wire")
	_, out, _ = exec(b, "-")
	require.Contains(t, out, "icrc ?")
	_, out, _ = exec(b, "-summary", "-json", "-")
	require.Equal(t, 1, summaries(t, out)[0].ICRC.Unchecked)
}

func build(op bth.Opcode, net frame.Net, payload []byte) (*frame.Frame, []byte) {
	f := &frame.Frame{
		Link: frame.Ethernet, Net: net,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		SrcPort: 0xc001, TrafficClass: 26<<2 | 3, HopLimit: 7,
		Packet: bth.Packet{
			Header:    bth.Header{Opcode: op, PKey: 0x8001, DestQP: 0xabcdef, PSN: 0xfffffe, SE: true, M: true},
			RETH:      reth.Header{VA: 1, RKey: 2, DMALen: 3},
			FETH:      reth.FETH{Sel: 1, Placement: 2},
			RDETH:     bth.RDETH{EE: 4},
			DETH:      bth.DETH{QKey: 5, SrcQP: 6},
			XRCETH:    bth.XRCETH{SRQ: 7},
			ImmDt:     reth.ImmDt{Imm: 8},
			AtomicETH: reth.AtomicETH{VA: 9, RKey: 10, SwapAdd: 11, Compare: 12},
			AETH:      aeth.Header{Syndrome: aeth.NakSyndrome(aeth.NakRemoteAccessError), MSN: 13},
		},
	}
	if net != frame.IPv4 {
		f.Src, f.Dst = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
	}
	f.Packet.SetPayload(payload)
	return f, f.AppendTo(nil)
}

// pcap puts frames into a file.
func pcap(t testing.TB, link frame.Link, frames ...[]byte) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, link)
	require.NoError(t, err)
	for _, f := range frames {
		require.NoError(t, w.Write(time.Unix(1_000_000_000, 5), f))
	}
	return file.Bytes()
}

// TestOther has the headers and frames that no capture has.
func TestOther(t *testing.T) {
	tagged, _ := build(bth.CNP, frame.IPv4, make([]byte, 16))
	tagged.VLANs = 2
	tagged.VLAN = [frame.MaxVLANs]frame.VLAN{{TPID: 0x88a8, TCI: 3<<13 | 100}, {TPID: 0x8100, TCI: 200}}
	tagged.Packet.BECN = true
	_, flush := build(bth.RCFlush, frame.IPv6, nil)
	_, v1 := build(bth.XRC.Opcode(bth.SendOnlyImm), frame.GRH, []byte("abcde"))
	_, rd := build(bth.RD.Opcode(bth.CmpSwap), frame.IPv4, nil)
	_, nak := build(bth.RCAcknowledge, frame.IPv4, nil)
	stop := pfc.New([6]byte{2})
	stop.Set(3, 0xffff)
	stop.Set(5, 0)
	pause := pfc.NewPause([6]byte{2}, 7)
	file := pcap(t, frame.Ethernet, tagged.AppendTo(nil), flush, v1, rd, nak, stop.AppendFrame(nil), pause.AppendFrame(nil), make([]byte, 60))

	code, out, errs := exec(file, "-json", "-all", "-")
	require.Zero(t, code)
	require.Empty(t, errs)
	got := objects(t, out)
	require.Len(t, got, 8)
	for _, o := range got[:5] {
		require.Equal(t, "good", o.ICRCState)
		require.Equal(t, "2001-09-09T01:46:40.000000005Z", *o.Time)
		require.Equal(t, []int{26, 3, 7}, []int{*o.DSCP, *o.ECN, *o.TTL})
		require.Equal(t, "0x8001", o.BTH.PKey)
		require.Equal(t, []int{0xabcdef, 0xfffffe}, []int{*o.BTH.DestQP, *o.BTH.PSN})
		require.True(t, *o.BTH.SE && *o.BTH.M)
	}
	require.Equal(t, []int{100, 200}, got[0].VLAN)
	require.Equal(t, "CNP", got[0].BTH.Name)
	require.True(t, *got[0].BTH.BECN)
	require.Equal(t, 16, *got[0].Payload)

	require.Equal(t, "ipv6", got[1].Net)
	require.Equal(t, []int{1, 2}, []int{*got[1].FETH.Sel, *got[1].FETH.Plt})
	require.Equal(t, "0x0000000000000001", got[1].RETH.VA)

	require.Equal(t, "grh", got[2].Net)
	require.Nil(t, got[2].Sport)
	require.Equal(t, "fe80::1", got[2].Src)
	require.Equal(t, 7, *got[2].XRCETH.SRQ)
	require.Equal(t, "0x00000008", *got[2].Imm)
	require.Equal(t, []int{5, 3}, []int{*got[2].Payload, *got[2].BTH.Pad})

	require.Equal(t, []int{4, 6}, []int{*got[3].RDETH.EE, *got[3].DETH.SrcQP})
	require.Equal(t, "0x00000005", got[3].DETH.QKey)
	require.Equal(t, "0x000000000000000c", got[3].AtomicETH.Compare)
	require.Equal(t, "nak", got[4].AETH.Kind)
	require.Equal(t, 2, *got[4].AETH.Value)

	require.NotEmpty(t, got[5].Time)
	require.Equal(t, "02:00:00:00:00:00", got[5].PFC.Src)
	require.Equal(t, []int{3, 5}, got[5].PFC.Enable)
	require.Equal(t, []int{0, 0, 0, 0xffff, 0, 0, 0, 0}, got[5].PFC.Quanta)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, got[6].PFC.Enable)
	require.Equal(t, []int{7, 7, 7, 7, 7, 7, 7, 7}, got[6].PFC.Quanta)
	require.Equal(t, "frame: not RoCE: IEEE 802.3", got[7].Skipped)
	require.Nil(t, got[7].BTH)

	_, out, _ = exec(file, "-json", "-")
	require.Len(t, objects(t, out), 5, "without -all only RoCE")

	_, out, _ = exec(file, "-all", "-")
	require.Equal(t, `     1 01:46:40.000000005 192.0.2.1   > 192.0.2.2   CNP                      qp 0xabcdef psn 16777214 -SCB    16 B icrc good vlan 100 vlan 200
     2 01:46:40.000000005 fe80::1     > fe80::2     RC_FLUSH                 qp 0xabcdef psn 16777214 -SC-     0 B icrc good flush memory region placement 2 va 0x0000000000000001 rkey 0x00000002 len 3
     3 01:46:40.000000005 fe80::1     > fe80::2     XRC_SEND_ONLY_IMM        qp 0xabcdef psn 16777214 -SC-     5 B icrc good srq 0x000007 imm 0x00000008 v1
     4 01:46:40.000000005 192.0.2.1   > 192.0.2.2   RD_COMPARE_SWAP          qp 0xabcdef psn 16777214 -SC-     0 B icrc good ee 0x000004 qkey 0x00000005 src 0x000006 va 0x0000000000000009 rkey 0x0000000a compare 0x000000000000000c swap 0x000000000000000b
     5 01:46:40.000000005 192.0.2.1   > 192.0.2.2   RC_ACKNOWLEDGE           qp 0xabcdef psn 16777214 -SC-     0 B icrc good nak remote access error msn 13
     6 01:46:40.000000005 PFC from 02:00:00:00:00:00 priority 3 quanta 65535 priority 5 quanta 0
     7 01:46:40.000000005 PAUSE from 02:00:00:00:00:00 quanta 7
     8 01:46:40.000000005 frame: not RoCE: IEEE 802.3
`, out)

	code, out, _ = exec(file, "-summary", "-json", "-")
	require.Zero(t, code)
	s := summaries(t, out)[0]
	require.Equal(t, []int{8, 5, 0, 2, 1, 5}, []int{s.Frames, s.RoCE, s.Undecodable, s.PFC, s.Other, s.CE})
}

// TestWrong has frames that say they are RoCE, and others with the same faults
// that do not.
func TestWrong(t *testing.T) {
	_, good := build(bth.RCSendOnly, frame.IPv4, make([]byte, 8))
	_, v6 := build(bth.RCSendOnly, frame.IPv6, make([]byte, 8))
	_, v1 := build(bth.RCSendOnly, frame.GRH, make([]byte, 8))
	tag := func(b []byte) []byte {
		return append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 1, 0x88, 0xa8, 0, 2), b[12:]...)
	}
	edit := func(b []byte, f func(b []byte)) []byte {
		b = bytes.Clone(b)
		f(b)
		return b
	}
	type c struct {
		name  string
		frame []byte
		err   string // of RoCE
		skip  string // of others
	}
	cases := []c{
		{"reserved opcode", edit(good, func(b []byte) { b[42] = 0x1f }), "opcode", ""},
		{"version", edit(good, func(b []byte) { b[43] |= 1 }), "version", ""},
		{"first fragment", edit(good, func(b []byte) { b[20] = 0x20 }), "fragment", ""},
		{"later fragment", edit(good, func(b []byte) { b[21] = 1 }), "", "fragment"},
		{"far fragment", edit(good, func(b []byte) { b[20] = 0x10 }), "", "fragment"},
		{"UDP length", edit(good, func(b []byte) { b[39]-- }), "lengths", ""},
		{"UDP length, other port", edit(good, func(b []byte) { b[36]--; b[39]-- }), "", "not RoCE"},
		{"IHL 4", edit(good, func(b []byte) { b[14] = 0x44 }), "", "lengths"},
		{"cut in UDP", good[:40], "truncated", ""},
		{"cut before the port", good[:37], "", "truncated"},
		{"cut in IPv4", good[:30], "", "truncated"},
		{"cut in Ethernet", good[:13], "", "truncated"},
		{"cut in IPv6 UDP", v6[:60], "truncated", ""},
		{"cut in IPv6", v6[:50], "", "truncated"},
		{"cut in GRH", v1[:50], "truncated", ""},
		{"no BTH after GRH", edit(v1, func(b []byte) { b[20] = 17 }), "no GRH", ""},
		{"tags", tag(edit(good, func(b []byte) { b[42] = 0x1f })), "opcode", ""},
		{"cut in a tag", tag(good)[:17], "", "truncated"},
	}
	for _, c := range cases {
		code, out, errs := exec(pcap(t, frame.Ethernet, c.frame), "-json", "-all", "-")
		require.Empty(t, errs)
		o := objects(t, out)[0]
		require.Nil(t, o.BTH, c.name)
		require.Equal(t, "-", o.File)
		require.Equal(t, 1, o.Frame)
		if c.err != "" {
			require.Equal(t, exitWrong, code, c.name)
			require.Contains(t, o.Error, c.err, c.name)
			_, text, _ := exec(pcap(t, frame.Ethernet, c.frame), "-")
			require.Contains(t, text, "cannot be decoded: "+o.Error)
		} else {
			require.Equal(t, exitGood, code, c.name)
			require.Contains(t, o.Skipped, c.skip, c.name)
			require.Empty(t, o.Error, c.name)
		}
	}
	// The other link types, at the faulty opcode.
	bad := edit(good, func(b []byte) { b[42] = 0x1f })[14:]
	bad6 := edit(v6, func(b []byte) { b[62] = 0x1f })[14:]
	sll := append(make([]byte, 14), 8, 0)
	sll2 := append([]byte{8, 0}, make([]byte, 18)...)
	for link, b := range map[frame.Link][]byte{
		frame.RawIP: bad, frame.RawIPv4: bad, frame.RawIPv6: bad6,
		frame.LinuxSLL: append(sll, bad...), frame.LinuxSLL2: append(sll2, bad...),
	} {
		code, out, _ := exec(pcap(t, link, b), "-json", "-")
		require.Equal(t, exitWrong, code, link)
		require.Contains(t, objects(t, out)[0].Error, "opcode", link)
		for n := range b { // no cut of it panics
			exec(pcap(t, link, b[:n]), "-json", "-all", "-")
		}
	}

	code, out, errs := exec(pcap(t, 147, good), "-json", "-all", "-")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "link type 147")
	require.Contains(t, objects(t, out)[0].Skipped, "link type")
}

func TestPort(t *testing.T) {
	f, std := build(bth.RCSendOnly, frame.IPv4, nil)
	f.DstPort = 1234
	file := pcap(t, frame.Ethernet, std, f.AppendTo(nil))
	_, out, _ := exec(file, "-json", "-")
	require.Equal(t, 1, objects(t, out)[0].Frame)
	_, out, _ = exec(file, "-json", "-port", "1234", "-")
	got := objects(t, out)
	require.Len(t, got, 1)
	require.Equal(t, 2, got[0].Frame)
}

func TestColour(t *testing.T) {
	_, good := build(bth.RCSendOnly, frame.IPv4, nil)
	bad := bytes.Clone(good)
	bad[len(bad)-1]++
	_, nak := build(bth.RCAcknowledge, frame.IPv4, nil)
	code, out, _ := exec(pcap(t, frame.Ethernet, good, bad, nak), "-")
	require.Equal(t, exitWrong, code)
	require.NotContains(t, out, "\x1b")

	var coloured bytes.Buffer
	d := newDumper(options{port: frame.Port, all: true}, &coloured)
	d.asText.colour = true
	name := filepath.Join(t.TempDir(), "x.pcap")
	require.NoError(t, os.WriteFile(name, pcap(t, frame.Ethernet, good, bad, nak, make([]byte, 60)), 0o600))
	require.Equal(t, exitWrong, d.file(name, nil))
	d.out.Flush()
	lines := strings.Split(coloured.String(), "\n")
	require.Contains(t, lines[0], term.Cyan+"RC_SEND_ONLY            "+term.Reset)
	require.Contains(t, lines[1], term.Red+"bad"+term.Reset)
	require.Contains(t, lines[2], term.Yellow+"RC_ACKNOWLEDGE")
	require.Contains(t, lines[3], term.Dim)
	plain := coloured.String()
	for _, s := range []string{term.Reset, term.Red, term.Cyan, term.Yellow, term.Dim} {
		plain = strings.ReplaceAll(plain, s, "")
	}
	require.True(t, strings.HasPrefix(plain, out), "colour changes no column")
}

// TestProgress has a terminal's progress on a file that takes long.
func TestProgress(t *testing.T) {
	_, one := build(bth.RCSendOnly, frame.IPv4, nil)
	frames := make([][]byte, 3000)
	for i := range frames {
		frames[i] = one
	}
	name := filepath.Join(t.TempDir(), "x.pcap")
	require.NoError(t, os.WriteFile(name, pcap(t, frame.Ethernet, frames...), 0o600))
	var now time.Time
	var shown bytes.Buffer
	d := newDumper(options{port: frame.Port, summary: true}, io.Discard)
	d.progress = term.NewProgress(&shown, func() time.Time { now = now.Add(time.Second); return now })
	require.Zero(t, d.file(name, nil))
	require.Contains(t, shown.String(), "1024 frames")
	require.Contains(t, shown.String(), "2048 frames")
	require.True(t, strings.HasSuffix(shown.String(), "\x1b[K"), "cleared at the end")
}

// lines hands on what is written.
type lines chan string

func (l lines) Write(b []byte) (int, error) { l <- string(b); return len(b), nil }

// TestLive has a source that waits: what was received is printed before it continues.
func TestLive(t *testing.T) {
	_, one := build(bth.RCSendOnly, frame.IPv4, nil)
	file := pcap(t, frame.Ethernet, one, one)
	r, w := io.Pipe()
	out := make(lines)
	code := make(chan int)
	go func() { code <- run([]string{"-json", "-"}, r, out, io.Discard) }()
	n := 24 + (len(file)-24)/2
	w.Write(file[:n])
	require.Equal(t, 1, objects(t, <-out)[0].Frame)
	w.Write(file[n:])
	require.Equal(t, 2, objects(t, <-out)[0].Frame)
	w.Close()
	require.Equal(t, exitGood, <-code)
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestFullDisk(t *testing.T) {
	var errs bytes.Buffer
	code := run([]string{"-json", captures + "rc-burst.pcap"}, nil, fullDisk{}, &errs)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs.String(), "cannot write the output: no space left")
}

// TestFileName has a name that needs quoting.
func TestFileName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a \"b\"\n\xff é.pcap")
	_, one := build(bth.RCSendOnly, frame.IPv4, nil)
	if err := os.WriteFile(name, pcap(t, frame.Ethernet, one), 0o600); err != nil {
		t.Skip(err)
	}
	_, out, _ := exec(nil, "-json", name)
	require.True(t, json.Valid([]byte(out)))
	require.Equal(t, strings.ToValidUTF8(name, "\ufffd"), objects(t, out)[0].File)
}

// TestNoAllocation holds that a line costs none, whatever the frame.
func TestNoAllocation(t *testing.T) {
	d := newDumper(options{port: frame.Port}, io.Discard)
	d.asJSON.start("x.pcap")
	d.asText.start()
	d.sum = newSummary()
	d.out = bufio.NewWriter(io.Discard)
	for _, name := range names(t) {
		f, err := capture.Open(captures+name+".pcap", nil)
		require.NoError(t, err)
		for f.Next(&d.rec) == nil {
			one := func() {
				v, why := d.look()
				icrc := frame.ICRCUnchecked
				if v == isRoCE {
					icrc = d.frame.CheckICRC()
				}
				d.line = d.asJSON.append(d.line[:0], d, v, icrc, why)
				d.out.Write(d.line)
				d.line = d.asText.append(d.line[:0], d, v, icrc, why)
				d.out.Write(d.line)
				d.sum.add(d, v, icrc, why)
			}
			if n := testing.AllocsPerRun(2, one); n != 0 {
				t.Fatalf("%s, frame %d: %v allocations", name, d.rec.Number, n)
			}
		}
		f.Close()
	}
}

// FuzzDump holds that no file makes the program panic or print JSON that is
// none.
func FuzzDump(f *testing.F) {
	for _, name := range []string{"cm-reject", "rc-atomic", "rc-nak-rights"} {
		b, err := os.ReadFile(captures + name + ".pcap")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	b, err := os.ReadFile("../../bth/frame/capture/testdata/two-interfaces.pcapng")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	seeds.Into(f).Starts()
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, args := range [][]string{{"-json", "-all", "-"}, {"-json", "-summary", "-"}, {"-all", "-"}, {"-summary", "-"}} {
			code, out, errs := exec(b, args...)
			if code != exitGood && code != exitWrong && code != exitUsage {
				t.Fatalf("exit code %d", code)
			}
			if code == exitUsage && errs == "" {
				t.Fatal("no reason given")
			}
			if args[0] == "-json" {
				for line := range strings.Lines(out) {
					if !json.Valid([]byte(line)) {
						t.Fatalf("no JSON: %q", line)
					}
				}
			}
		}
	})
}

// A file without a RoCE packet says so, instead of printing nothing.
func TestNothingFound(t *testing.T) {
	code, out, errs := exec(nil, "../../fuzz/captures/pingpong-xsrq.pcap")
	require.Equal(t, exitGood, code)
	require.Empty(t, out)
	require.Contains(t, errs, "no RoCE packet among 7 frames")
}

// A packet that cannot be decoded is still shown with its addresses.
func TestWhose(t *testing.T) {
	_, out, _ := exec(nil, "../../fuzz/captures/probe-responder.pcap")
	require.Contains(t, out, "192.0.2.2   > 192.0.2.1   RESERVED_0x1f            qp 0x11 cannot be decoded")
}

// BenchmarkDump reads a capture of 1000 packets of 1 KiB from memory, checks
// every ICRC, and prints. The reference is a copy of the file.
// examples/internal/gencap/compare-tshark measures the whole program beside tshark.
func BenchmarkDump(b *testing.B) {
	_, one := build(bth.RCWriteOnly, frame.IPv4, make([]byte, 1024))
	frames := make([][]byte, 1000)
	for i := range frames {
		frames[i] = one
	}
	file := pcap(b, frame.Ethernet, frames...)
	for _, c := range []struct{ name, option string }{
		{"summary", "-summary"}, {"json", "-json"}, {"text", "-all"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if run([]string{c.option, "-"}, bytes.NewReader(file), io.Discard, io.Discard) != 0 {
					b.Fatal("failed")
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		buf := make([]byte, len(file))
		for b.Loop() {
			copy(buf, file)
		}
	})
}
