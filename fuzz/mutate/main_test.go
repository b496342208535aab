package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
)

const mixed = "../captures/rc-mixed.pcap"

func exec(stdin []byte, args ...string) (code int, stdout []byte, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, bytes.NewReader(stdin), &out, &errs)
	return code, out.Bytes(), errs.String()
}

// good runs the command, and returns the frames that it wrote and what it said.
func good(t *testing.T, stdin []byte, args ...string) ([]mutator.Record, string) {
	code, out, errs := exec(stdin, append(args, "-out", "-")...)
	require.Equal(t, exitGood, code, errs)
	return parsed(t, out), errs
}

func parsed(t *testing.T, b []byte) (recs []mutator.Record) {
	name := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(name, b, 0o600))
	recs, err := records.ReadFile(name)
	require.NoError(t, err)
	return recs
}

func input(t *testing.T) []mutator.Record {
	recs, err := records.ReadFile(mixed)
	require.NoError(t, err)
	return recs
}

func TestRoundTrip(t *testing.T) {
	in := input(t)
	out, errs := good(t, nil, "-in", mixed, "-keep", "100")
	require.Equal(t, in, out)
	require.Contains(t, errs, "56 frames in, 56 frames out")

	// Every frame is right already, so that repairing it changes nothing.
	out, _ = good(t, nil, "-in", mixed, "-kinds", "none")
	require.Equal(t, in, out)
}

func TestModes(t *testing.T) {
	in := input(t)
	count := func(recs []mutator.Record) (good, bad, length int) {
		for _, r := range recs {
			var f frame.Frame
			err := f.Decode(r.Link, r.Data)
			switch {
			case err == frame.ErrLength:
				length++
			case err == nil && f.CheckICRC() == frame.ICRCGood:
				good++
			case err == nil:
				bad++
			}
		}
		return good, bad, length
	}
	roce, bad, length := count(in)
	require.Equal(t, []int{48, 0, 0}, []int{roce, bad, length})
	out, _ := good(t, nil, "-in", mixed, "-kinds=-escape,-malform,-drop,-duplicate,-replay,-reorder,-delay", "-n", "560")
	roce, bad, length = count(out)
	require.Equal(t, []int{480, 0, 0}, []int{roce, bad, length})
	out, _ = good(t, nil, "-in", mixed, "-kinds", "none", "-icrc", "bad")
	roce, bad, length = count(out)
	require.Equal(t, []int{0, 48, 0}, []int{roce, bad, length})
	out, errs := good(t, nil, "-in", mixed, "-kinds", "none", "-lengths", "lie")
	roce, bad, length = count(out)
	require.Equal(t, []int{0, 0, 48}, []int{roce, bad, length})
	require.Contains(t, errs, "lie: udp-length")
	out, _ = good(t, nil, "-in", mixed, "-kinds", "psn", "-changes", "1", "-icrc", "keep")
	roce, bad, _ = count(out)
	require.Equal(t, []int{0, 48}, []int{roce, bad})
}

func TestRepeatable(t *testing.T) {
	_, a, _ := exec(nil, "-in", mixed, "-out", "-", "-n", "500", "-seed", "7")
	_, b, _ := exec(nil, "-in", mixed, "-out", "-", "-n", "500", "-seed", "7")
	_, c, _ := exec(nil, "-in", mixed, "-out", "-", "-n", "500", "-seed", "8")
	require.True(t, bytes.Equal(a, b))
	require.False(t, bytes.Equal(a, c))

	// Frames taken again are changed in other ways.
	out, _ := good(t, nil, "-in", mixed, "-n", "112", "-kinds", "fields")
	require.NotEqual(t, out[20].Data, out[76].Data)
}

func TestSpeed(t *testing.T) {
	in := input(t)
	first := in[0].Time
	for speed, want := range map[string]func(time.Duration) time.Duration{
		"recorded": func(d time.Duration) time.Duration { return d },
		"2":        func(d time.Duration) time.Duration { return d / 2 },
		"0.5":      func(d time.Duration) time.Duration { return 2 * d },
		"0":        func(time.Duration) time.Duration { return 0 },
	} {
		out, _ := good(t, nil, "-in", mixed, "-keep", "100", "-speed", speed)
		for i := range out {
			require.Equal(t, want(in[i].Time.Sub(first)), out[i].Time.Sub(first), speed)
		}
	}
	out, errs := good(t, nil, "-in", mixed, "-keep", "100", "-n", "200")
	require.Contains(t, errs, "the capture 4 times")
	for i := 1; i < len(out); i++ {
		require.False(t, out[i].Time.Before(out[i-1].Time))
	}
}

func TestLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	good(t, nil, "-in", mixed, "-kinds", "psn,drop", "-keep", "20", "-log", name)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, 56, bytes.Count(b, []byte("\n")))
	require.Contains(t, string(b), "psn 0x")
	require.Contains(t, string(b), " kept")
}

// pcapng builds a file of two interfaces: link type 1 in microseconds, and 101 in
// nanoseconds.
func pcapng(o binary.AppendByteOrder, recs []mutator.Record) (out []byte) {
	block := func(typ uint32, body []byte) {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		n := uint32(len(body) + 12)
		out = o.AppendUint32(o.AppendUint32(out, typ), n)
		out = o.AppendUint32(append(out, body...), n)
	}
	version := o.AppendUint16(o.AppendUint16(o.AppendUint32(nil, 0x1a2b3c4d), 1), 0)
	block(0x0a0d0d0a, o.AppendUint64(version, ^uint64(0)))
	iface := func(link uint16) []byte { // no limit of length
		return o.AppendUint32(o.AppendUint16(o.AppendUint16(nil, link), 0), 0)
	}
	block(1, iface(1))
	nanoseconds := append(o.AppendUint16(o.AppendUint16(nil, 9), 1), 9, 0, 0, 0)
	block(1, o.AppendUint32(append(iface(101), nanoseconds...), 0))
	block(5, make([]byte, 12)) // statistics
	for i, r := range recs {
		ts := uint64(r.Time.UnixMicro())
		if i%2 == 1 {
			ts = uint64(r.Time.UnixNano())
			r.Data = r.Data[14:]
			r.WireLen -= 14
		}
		b := o.AppendUint32(o.AppendUint32(o.AppendUint32(nil, uint32(i%2)), uint32(ts>>32)), uint32(ts))
		b = o.AppendUint32(o.AppendUint32(b, uint32(len(r.Data))), uint32(r.WireLen))
		block(6, append(b, r.Data...))
	}
	return out
}

func TestPcapng(t *testing.T) {
	in := input(t)[8:20]
	for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		b := pcapng(o, in)
		recs := parsed(t, b)
		require.Len(t, recs, len(in))
		for i, r := range recs {
			require.Equal(t, in[i].Time, r.Time)
			var f frame.Frame
			require.NoError(t, f.Decode(r.Link, r.Data))
		}
		out, errs := good(t, b, "-in", "-", "-keep", "100")
		require.Contains(t, errs, "6 frames of another link type")
		require.Len(t, out, 6)
		for i, r := range out {
			require.Equal(t, in[2*i], r)
		}
	}
}

func TestGzip(t *testing.T) {
	b, err := os.ReadFile(mixed)
	require.NoError(t, err)
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(b)
	w.Close()
	out, _ := good(t, z.Bytes(), "-in", "-", "-keep", "100", "-n", "60")
	require.Len(t, out, 60)
}

func TestErrors(t *testing.T) {
	whole, err := os.ReadFile(mixed)
	require.NoError(t, err)
	dir := t.TempDir()
	same := filepath.Join(dir, "a.pcap")
	require.NoError(t, os.WriteFile(same, whole, 0o600))
	for _, c := range []struct {
		code  int
		stdin []byte
		args  string
		say   string
	}{
		{exitUsage, nil, "", "name a capture"},
		{exitUsage, nil, "-in a", "-out"},
		{exitUsage, nil, "-in a -out b c", `what is "c"?`},
		{exitUsage, nil, "-in a -out b -icrc good", "none of valid, bad and keep"},
		{exitUsage, nil, "-in a -out b -lengths bad", "none of repair and lie"},
		{exitUsage, nil, "-in a -out b -kinds psn,sn", `"sn"`},
		{exitUsage, nil, "-in a -out b -kinds psn,-bth", "leaves nothing"},
		{exitUsage, nil, "-in a -out b -keep 101", "0 to 100"},
		{exitUsage, nil, "-in a -out b -changes 9", "1 to 8"},
		{exitUsage, nil, "-in a -out b -speed fast", "factor"},
		{exitUsage, nil, "-in a -out b -speed NaN", "factor"},
		{exitUsage, nil, "-in a -out b -port 0", "1 to 65535"},
		{exitUsage, nil, "-in a -out b -x", "-x"},
		{exitUsage, nil, "-in nowhere.pcap -out " + dir + "/b", "check the path"},
		{exitUsage, nil, "-in - -out " + dir + "/b", "not a pcap"},
		{exitUsage, []byte("hello, this is a text"), "-in - -out " + dir + "/b", "not a pcap"},
		{exitUsage, whole[:24], "-in - -out " + dir + "/b", "no whole frame"},
		{exitUsage, whole, "-in - -out " + dir + "/none/b", "no such file"},
		{exitUsage, nil, "-in " + same + " -out " + same, "write to another file"},
		{exitWrong, whole[:2000], "-in - -out " + dir + "/b", "ends inside a frame"},
		{exitWrong, whole[:2000], "-n 100 -in - -out " + dir + "/b", "ends inside a frame"},
	} {
		code, _, errs := exec(c.stdin, strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, c.say, c.args)
	}
	b, err := os.ReadFile(same)
	require.NoError(t, err)
	require.True(t, bytes.Equal(whole, b), "the input was overwritten")

	code, out, errs := exec(nil, "-h")
	require.Equal(t, exitGood, code)
	require.Empty(t, errs)
	for k := range mutator.AllKinds.All {
		require.Contains(t, string(out), k.String())
	}
}
