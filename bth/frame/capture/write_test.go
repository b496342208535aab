package capture_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}

// TestWriterRange: what the reader refuses, or would read as another time, is not
// written.
func TestWriterRange(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, frame.Ethernet)
	require.NoError(t, err)
	head := b.Len()
	for _, c := range []struct {
		at   string
		n    int
		wire int
		want error
	}{
		{"1969-12-31T23:59:59.999999999Z", 1, 1, capture.ErrTime},
		{"0001-01-01T00:00:00Z", 1, 1, capture.ErrTime},
		{"2106-02-07T06:28:16Z", 1, 1, capture.ErrTime},
		{"2026-01-01T00:00:00Z", capture.MaxData + 1, capture.MaxData + 1, capture.ErrSize},
		{"2026-01-01T00:00:00Z", 1, 1<<30 + 1, capture.ErrSize},
		{"2026-01-01T00:00:00Z", 1, -1, capture.ErrSize},
	} {
		require.ErrorIs(t, w.WriteCut(at(c.at), make([]byte, c.n), c.wire), c.want)
		require.Equal(t, head, b.Len(), "something was written")
	}
	times := []string{"1970-01-01T00:00:00Z", "2106-02-07T06:28:15.999999999Z"}
	for _, s := range times {
		require.NoError(t, w.WriteCut(at(s), make([]byte, capture.MaxData), 1<<30))
	}
	recs, err := readAll(&b)
	require.ErrorContains(t, err, "EOF")
	require.Len(t, recs, 2)
	for i, s := range times {
		require.Equal(t, at(s).Format(stamp), recs[i].time)
		require.Equal(t, 1<<30, recs[i].wire)
		require.Equal(t, capture.MaxData, len(recs[i].data))
	}
}

// TestNGWriterBytes holds a file byte by byte against the format's description
// (draft-ietf-opsawg-pcapng, sections 4.1 to 4.3).
func TestNGWriterBytes(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewNGWriter(&b, "roce")
	require.NoError(t, err)
	i, err := w.AddInterface(capture.Interface{Link: frame.Ethernet, Name: "eth0", Description: "to A", SnapLen: 0x100})
	require.NoError(t, err)
	require.Zero(t, i)
	require.NoError(t, w.Write(&capture.Record{HasTime: true, Time: time.Unix(0, 0x1_0000_0002), WireLen: 9, Data: []byte("abcde")}, "hello"))
	require.Equal(t, "0a0d0d0a"+"28000000"+"4d3c2b1a"+"01000000"+"ffffffffffffffff"+"04000400726f6365"+"00000000"+"28000000"+
		"01000000"+"30000000"+"01000000"+"00010000"+"0200040065746830"+"03000400746f2041"+"0900010009000000"+"00000000"+"30000000"+
		"06000000"+"38000000"+"00000000"+"01000000"+"02000000"+"05000000"+"09000000"+"6162636465000000"+
		"0100050068656c6c6f000000"+"00000000"+"38000000", fmt.Sprintf("%x", b.Bytes()))
}

// sampleNG writes frames of two interfaces, with comments.
func sampleNG(t *testing.T, w interface{ Write([]byte) (int, error) }) []capture.Record {
	n, err := capture.NewNGWriter(w, "")
	require.NoError(t, err)
	for _, i := range []capture.Interface{{Link: frame.Ethernet, Name: "mlx5_0"}, {Link: frame.RawIP, Name: "tun0", SnapLen: 128}} {
		_, err := n.AddInterface(i)
		require.NoError(t, err)
	}
	recs := []capture.Record{
		{Iface: 0, HasTime: true, Time: at("2026-11-29T15:44:11.322808001Z"), WireLen: 60, Data: make([]byte, 60)},
		{Iface: 1, HasTime: true, Time: at("1970-01-01T00:00:00Z"), WireLen: 1400, Data: append([]byte{0x45}, make([]byte, 120)...)},
		{Iface: 0, HasTime: true, Time: at("2554-07-21T23:34:33.709551615Z"), WireLen: 61, Data: make([]byte, 61)},
		{Iface: 0, WireLen: 62, Data: make([]byte, 62)},
	}
	for i := range recs {
		var comments []string
		for range i {
			comments = append(comments, fmt.Sprintf("RS-13 msn of frame %d: should be 6 → is 4", i+1))
		}
		require.NoError(t, n.Write(&recs[i], comments...))
	}
	return recs
}

func TestNGWriter(t *testing.T) {
	var b bytes.Buffer
	want := sampleNG(t, &b)
	got, err := readAll(&b)
	require.ErrorContains(t, err, "EOF")
	require.Len(t, got, len(want))
	for i, g := range got {
		require.Equal(t, want[i].Iface, g.iface)
		require.Equal(t, []frame.Link{frame.Ethernet, frame.RawIP}[g.iface], g.link)
		require.Equal(t, want[i].WireLen, g.wire)
		require.Equal(t, string(want[i].Data), g.data)
		if !want[i].HasTime {
			want[i].Time = time.Unix(0, 0).UTC()
		}
		require.Equal(t, want[i].Time.Format(stamp), g.time)
	}
}

func TestNGWriterRange(t *testing.T) {
	var b bytes.Buffer
	_, err := capture.NewNGWriter(&b, strings.Repeat("x", 1<<16))
	require.ErrorIs(t, err, capture.ErrSize)
	w, err := capture.NewNGWriter(&b, "")
	require.NoError(t, err)
	_, err = w.AddInterface(capture.Interface{Name: strings.Repeat("x", 1<<16)})
	require.ErrorIs(t, err, capture.ErrSize)
	require.ErrorIs(t, w.Write(&capture.Record{}), capture.ErrInterface)
	_, err = w.AddInterface(capture.Interface{Link: frame.Ethernet})
	require.NoError(t, err)
	n := b.Len()
	for _, c := range []struct {
		rec     capture.Record
		comment string
		want    error
	}{
		{capture.Record{Iface: 1}, "", capture.ErrInterface},
		{capture.Record{Iface: -1}, "", capture.ErrInterface},
		{capture.Record{HasTime: true}, "", capture.ErrTime},
		{capture.Record{HasTime: true, Time: at("1969-12-31T23:59:59.999999999Z")}, "", capture.ErrTime},
		{capture.Record{HasTime: true, Time: at("2554-07-21T23:34:33.709551616Z")}, "", capture.ErrTime},
		{capture.Record{HasTime: true, Time: at("9999-01-01T00:00:00Z")}, "", capture.ErrTime},
		{capture.Record{Data: make([]byte, capture.MaxData+1)}, "", capture.ErrSize},
		{capture.Record{WireLen: 1<<30 + 1}, "", capture.ErrSize},
		{capture.Record{}, strings.Repeat("x", 1<<16), capture.ErrSize},
	} {
		require.ErrorIs(t, w.Write(&c.rec, c.comment), c.want)
		require.Equal(t, n, b.Len())
	}
	require.NoError(t, w.Write(&capture.Record{Data: make([]byte, capture.MaxData)}, strings.Repeat("x", math.MaxUint16)))
	recs, err := readAll(&b)
	require.ErrorContains(t, err, "EOF")
	require.Equal(t, capture.MaxData, len(recs[0].data))
}

// TestNGWriterTools has tshark, capinfos and editcap read what NGWriter writes.
func TestNGWriterTools(t *testing.T) {
	for _, tool := range []string{"tshark", "capinfos", "editcap"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no ", tool)
		}
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "a.pcapng")
	f, err := os.Create(name)
	require.NoError(t, err)
	sampleNG(t, f)
	require.NoError(t, f.Close())
	run := func(tool string, args ...string) string {
		var errs bytes.Buffer
		c := exec.Command(tool, args...)
		c.Stderr = &errs
		out, err := c.Output()
		require.NoError(t, err, "%s: %s", tool, errs.String())
		return string(out)
	}
	out := run("tshark", "-r", name, "-T", "fields", "-E", "aggregator=|", "-e", "frame.time_epoch", "-e", "frame.interface_name",
		"-e", "frame.len", "-e", "frame.cap_len", "-e", "frame.comment", "-e", "frame.encap_type")
	c := func(n, times int) string {
		return strings.TrimSuffix(strings.Repeat(fmt.Sprintf("RS-13 msn of frame %d: should be 6 → is 4|", n), times), "|")
	}
	require.Equal(t, "1795967051.322808001\tmlx5_0\t60\t60\t\t1\n"+
		"0.000000000\ttun0\t1400\t121\t"+c(2, 1)+"\t7\n"+
		"18446744073.709551615\tmlx5_0\t61\t61\t"+c(3, 2)+"\t1\n"+
		"0.000000000\tmlx5_0\t62\t62\t"+c(4, 3)+"\t1\n", out)

	out = run("capinfos", "-M", name)
	require.Contains(t, out, "Number of packets:   4")
	require.Contains(t, out, "Name = mlx5_0")
	require.Contains(t, out, "Time precision = nanoseconds (9)")

	// Wireshark's own writer, from ours: the same records.
	again := filepath.Join(dir, "b.pcapng")
	run("editcap", name, again)
	ours, err := capture.ReadFile(name)
	require.NoError(t, err)
	theirs, err := capture.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, ours, theirs)
}

func TestNGWriterNoAllocation(t *testing.T) {
	var sink discard
	w, err := capture.NewNGWriter(&sink, "")
	require.NoError(t, err)
	_, err = w.AddInterface(capture.Interface{Link: frame.Ethernet})
	require.NoError(t, err)
	rec := capture.Record{HasTime: true, Time: time.Unix(1, 0), WireLen: 99, Data: make([]byte, 99)}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if w.Write(&rec) != nil || w.Write(&rec, "a comment") != nil {
			t.Fatal()
		}
	}))
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
