package capture_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/seeds"
)

// got is a record that stays.
type got struct {
	link  frame.Link
	iface int
	time  string
	wire  int
	data  string
}

const stamp = "2006-01-02T15:04:05.000000000Z07:00"

func readAll(r io.Reader) (recs []got, err error) {
	d, err := capture.NewReader(r)
	if err != nil {
		return nil, err
	}
	var rec capture.Record
	for {
		if err := d.Next(&rec); err != nil {
			return recs, err
		}
		g := got{rec.Link, rec.Iface, "", rec.WireLen, string(rec.Data)}
		if rec.HasTime {
			g.time = rec.Time.Format(stamp)
		}
		recs = append(recs, g)
		if rec.Number != len(recs) {
			return nil, errors.New("records are not counted")
		}
	}
}

// pcapFile writes a file of one layout by hand: two records, of which the
// second was cut by the snapshot length.
func pcapFile(o binary.AppendByteOrder, magic uint32, frac uint32) []byte {
	b := o.AppendUint32(nil, magic)
	b = o.AppendUint16(b, 2)
	b = o.AppendUint16(b, 4)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = o.AppendUint32(b, 5)            // snapshot length, which a record exceeds
	b = o.AppendUint32(b, 0x24000000|1) // FCS length in the upper bits
	for i, data := range []string{"abcdefgh", "xyz"} {
		b = o.AppendUint32(b, 4_000_000_000+uint32(i))
		b = o.AppendUint32(b, frac)
		b = o.AppendUint32(b, uint32(len(data)))
		b = o.AppendUint32(b, 8)
		b = append(b, data...)
	}
	return b
}

func TestPcap(t *testing.T) {
	for _, c := range []struct {
		name  string
		order binary.AppendByteOrder
		magic uint32
		frac  uint32
		nanos string
	}{
		{"little-endian, microseconds", binary.LittleEndian, 0xa1b2c3d4, 999_999, "999999000"},
		{"big-endian, microseconds", binary.BigEndian, 0xa1b2c3d4, 7, "000007000"},
		{"little-endian, nanoseconds", binary.LittleEndian, 0xa1b23c4d, 999_999_999, "999999999"},
		{"big-endian, nanoseconds", binary.BigEndian, 0xa1b23c4d, 7, "000000007"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := pcapFile(c.order, c.magic, c.frac)
			want := []got{
				{frame.Ethernet, 0, "2096-10-02T07:06:40." + c.nanos + "Z", 8, "abcdefgh"},
				{frame.Ethernet, 0, "2096-10-02T07:06:41." + c.nanos + "Z", 8, "xyz"},
			}
			checkFile(t, file, want, []int{24, 48})
		})
	}
}

// checkFile reads the file in several ways, and every prefix of it. The ends
// are where a file may stop without loss.
func checkFile(t *testing.T, file []byte, want []got, ends []int) {
	t.Helper()
	recs, err := readAll(bytes.NewReader(file))
	require.Equal(t, io.EOF, err)
	require.Equal(t, want, recs)
	recs, err = readAll(iotest.OneByteReader(bytes.NewReader(file)))
	require.Equal(t, io.EOF, err)
	require.Equal(t, want, recs)
	recs, err = readAll(iotest.DataErrReader(bytes.NewReader(file)))
	require.Equal(t, io.EOF, err)
	require.Equal(t, want, recs)

	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(file)
	w.Close()
	recs, err = readAll(&z)
	require.Equal(t, io.EOF, err)
	require.Equal(t, want, recs)

	clean := map[int]bool{len(file): true}
	for _, e := range ends {
		clean[e] = true
	}
	for n := range file {
		recs, err := readAll(bytes.NewReader(file[:n]))
		require.Equal(t, want[:len(recs)], append([]got{}, recs...), "prefix of %d", n)
		switch {
		case clean[n]:
			require.Equal(t, io.EOF, err, "prefix of %d", n)
		case n < 4:
			require.ErrorIs(t, err, capture.ErrFormat, "prefix of %d", n)
		default:
			require.ErrorIs(t, err, capture.ErrTruncated, "prefix of %d", n)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
}

// blocks writes pcapng.
type blocks struct {
	o    binary.AppendByteOrder
	b    []byte
	ends []int
}

func (w *blocks) block(typ uint32, body []byte) {
	for len(body)%4 != 0 {
		body = append(body, 0xee)
	}
	n := uint32(len(body) + 12)
	w.b = w.o.AppendUint32(w.b, typ)
	w.b = w.o.AppendUint32(w.b, n)
	w.b = append(w.b, body...)
	w.b = w.o.AppendUint32(w.b, n)
	w.ends = append(w.ends, len(w.b))
}

func (w *blocks) option(b []byte, code uint16, value []byte) []byte {
	b = w.o.AppendUint16(b, code)
	b = w.o.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func (w *blocks) section() {
	b := w.o.AppendUint32(nil, 0x1a2b3c4d)
	b = w.o.AppendUint16(b, 1)
	b = w.o.AppendUint16(b, 0)
	b = w.o.AppendUint64(b, ^uint64(0))
	b = w.option(b, 4, []byte("by hand"))
	w.block(0x0a0d0d0a, w.option(b, 0, nil))
}

func (w *blocks) iface(link uint16, snap uint32, opts []byte) {
	b := w.o.AppendUint16(nil, link)
	b = w.o.AppendUint16(b, 0)
	b = w.o.AppendUint32(b, snap)
	w.block(1, append(b, opts...))
}

func (w *blocks) packet(iface uint32, ts uint64, wire int, data string) {
	b := w.o.AppendUint32(nil, iface)
	b = w.o.AppendUint32(b, uint32(ts>>32))
	b = w.o.AppendUint32(b, uint32(ts))
	b = w.o.AppendUint32(b, uint32(len(data)))
	b = w.o.AppendUint32(b, uint32(wire))
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	w.block(6, w.option(w.option(b, 1, []byte("a comment")), 0, nil))
}

func (w *blocks) oldPacket(iface uint16, ts uint64, wire int, data string) {
	b := w.o.AppendUint16(nil, iface)
	b = w.o.AppendUint16(b, 0xffff) // drops
	b = w.o.AppendUint32(b, uint32(ts>>32))
	b = w.o.AppendUint32(b, uint32(ts))
	b = w.o.AppendUint32(b, uint32(len(data)))
	b = w.o.AppendUint32(b, uint32(wire))
	w.block(2, append(b, data...))
}

func (w *blocks) simple(wire int, data string) {
	w.block(3, append(w.o.AppendUint32(nil, uint32(wire)), data...))
}

// TestPcapng has two sections, interfaces of several link types and resolutions,
// all three kinds of packet, and blocks that say nothing to us.
func TestPcapng(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second binary.AppendByteOrder
	}{
		{"little-endian", binary.LittleEndian, binary.LittleEndian},
		{"big-endian", binary.BigEndian, binary.BigEndian},
		{"mixed", binary.BigEndian, binary.LittleEndian},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &blocks{o: c.first}
			w.section()
			w.iface(1, 6, nil)
			w.block(0x80000bad, []byte("a custom block"))
			nano := w.option(nil, 2, []byte("eth1"))
			nano = w.option(nano, 9, []byte{9})
			w.iface(276, 0, w.option(nano, 0, nil))
			off := w.option(nil, 9, []byte{0x8a}) // 2^-10 s
			w.iface(101, 0, w.option(off, 14, c.first.AppendUint64(nil, ^uint64(9))))
			w.packet(0, 1_000_000_000_123_456, 9, "abcde")
			w.packet(1, 1_000_000_000_123_456_789, 8, "12345678")
			w.block(5, make([]byte, 12)) // statistics
			w.packet(2, 1_000_000_000<<10|0x3ff, 3, "raw")
			w.simple(9, "simplexx") // cut by the snapshot length
			w.simple(5, "fivexx")   // padded
			w.oldPacket(1, 1, 4, "old")
			w.o = c.second
			w.section()
			w.iface(113, 0, w.option(nil, 9, []byte{0})) // whole seconds
			w.packet(0, 1_000_000_000, 2, "\x00\xff")
			checkFile(t, w.b, []got{
				{frame.Ethernet, 0, "2001-09-09T01:46:40.123456000Z", 9, "abcde"},
				{frame.LinuxSLL2, 1, "2001-09-09T01:46:40.123456789Z", 8, "12345678"},
				{frame.RawIP, 2, "2001-09-09T01:46:30.999023437Z", 3, "raw"},
				{frame.Ethernet, 0, "", 9, "simple"},
				{frame.Ethernet, 0, "", 5, "fivex"},
				{frame.LinuxSLL2, 1, "1970-01-01T00:00:00.000000001Z", 4, "old"},
				{frame.LinuxSLL, 0, "2001-09-09T01:46:40.000000000Z", 2, "\x00\xff"},
			}, w.ends)
		})
	}
}

// TestEditcap reads what another program wrote: editcap and mergecap 4.0.17, of
// frames 11 to 16 of fuzz/captures/rc-atomic.pcap.
//
//   - atomic.pcapng: editcap -F pcapng -r rc-atomic.pcap atomic.pcapng 11-16
//   - atomic-nsec.pcap: the same with -F nsecpcap
//   - atomic-snap60.pcapng: the same with -F pcapng -s 60
//   - two-interfaces.pcapng: mergecap of frames 11 and 12 (Ethernet, nanoseconds)
//     with 13 and 14 less their Ethernet header (-T rawip -C 0:14, microseconds)
//
// The option that names the machine's kernel was taken out of the section headers.
func TestEditcap(t *testing.T) {
	open := func(name string) []got {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		recs, err := readAll(bytes.NewReader(b))
		require.Equal(t, io.EOF, err)
		return recs
	}
	want := open("../../../fuzz/captures/rc-atomic.pcap")[10:16]
	require.Equal(t, want, open("testdata/atomic.pcapng"))
	require.Equal(t, want, open("testdata/atomic-nsec.pcap"))

	two := open("testdata/two-interfaces.pcapng")
	require.Len(t, two, 4)
	for i, g := range two {
		w := want[i]
		if i >= 2 {
			w.link, w.iface = frame.RawIP, 1
			w.data = w.data[14:] // editcap -C does not change the wire length
		}
		require.Equal(t, w, g, "record %d", i)
	}
	for i, g := range open("testdata/atomic-snap60.pcapng") {
		w := want[i]
		w.data = w.data[:60]
		require.Equal(t, w, g)
	}
}

func TestWriter(t *testing.T) {
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, frame.LinuxSLL2) // above 255
	require.NoError(t, err)
	require.NoError(t, w.Write(time.Unix(1_000_000_000, 5), []byte("frame")))
	require.NoError(t, w.WriteCut(time.Unix(1_000_000_001, 999_999_999), []byte("fra"), 9000))
	recs, err := readAll(&file)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []got{
		{frame.LinuxSLL2, 0, "2001-09-09T01:46:40.000000005Z", 5, "frame"},
		{frame.LinuxSLL2, 0, "2001-09-09T01:46:41.999999999Z", 9000, "fra"},
	}, recs)
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	_, err := capture.ReadFile(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)

	file := pcapFile(binary.BigEndian, 0xa1b2c3d4, 0)
	name := filepath.Join(dir, "x.pcap")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	recs, err := capture.ReadFile(name)
	require.NoError(t, err)
	require.Len(t, recs, 2)
	require.Equal(t, "abcdefgh", string(recs[0].Data))
	require.Equal(t, "xyz", string(recs[1].Data))
	require.Equal(t, 2, recs[1].Number)

	require.NoError(t, os.WriteFile(name, file[:len(file)-1], 0o600))
	recs, err = capture.ReadFile(name)
	require.ErrorIs(t, err, capture.ErrTruncated)
	require.Len(t, recs, 1)
}

// TestHostile has files whose claims are not to be believed.
func TestHostile(t *testing.T) {
	le := binary.LittleEndian
	header := pcapFile(le, 0xa1b2c3d4, 0)[:24]
	record := func(n, wire uint32) []byte {
		b := append(bytes.Clone(header), make([]byte, 8)...)
		return append(le.AppendUint32(le.AppendUint32(b, n), wire), make([]byte, 100)...)
	}
	ng := func(f func(w *blocks)) []byte {
		w := &blocks{o: le}
		w.section()
		f(w)
		return w.b
	}
	set := func(b []byte, at int, v uint32) []byte {
		if at < 0 {
			at += len(b)
		}
		le.PutUint32(b[at:], v)
		return b
	}
	for name, c := range map[string]struct {
		file []byte
		err  error
	}{
		"empty":                    {nil, capture.ErrFormat},
		"text":                     {[]byte("hello, world"), capture.ErrFormat},
		"zstd":                     {[]byte("\x28\xb5\x2f\xfd1234"), capture.ErrFormat},
		"gzip of nothing":          {[]byte("\x1f\x8b\x08\x00"), io.ErrUnexpectedEOF},
		"pcap version 3":           {append([]byte("\xd4\xc3\xb2\xa1\x03\x00"), make([]byte, 18)...), capture.ErrFormat},
		"a record of 4 GiB":        {record(^uint32(0), ^uint32(0)), capture.ErrCorrupt},
		"a record of 1 MiB":        {record(1<<20, 1<<20), capture.ErrCorrupt},
		"a frame of 4 GiB":         {record(5, ^uint32(0)), capture.ErrCorrupt},
		"a record beyond the end":  {record(200, 200), capture.ErrTruncated},
		"pcapng version 2":         {set(ng(func(*blocks) {}), 12, 2), capture.ErrFormat},
		"no byte order":            {set(ng(func(*blocks) {}), 8, 0), capture.ErrCorrupt},
		"a section of 13 bytes":    {set(ng(func(*blocks) {}), 4, 13), capture.ErrCorrupt},
		"a section of 12 bytes":    {set(ng(func(*blocks) {}), 4, 12), capture.ErrCorrupt},
		"lengths differ":           {set(ng(func(*blocks) {}), -4, 12), capture.ErrCorrupt},
		"a packet of no interface": {ng(func(w *blocks) { w.packet(0, 0, 1, "x") }), capture.ErrCorrupt},
		"a packet of interface -1": {ng(func(w *blocks) { w.iface(1, 0, nil); w.packet(^uint32(0), 0, 1, "x") }), capture.ErrCorrupt},
		"a simple packet of none":  {ng(func(w *blocks) { w.simple(1, "x") }), capture.ErrCorrupt},
		"a packet beyond its block": {ng(func(w *blocks) {
			w.iface(1, 0, nil)
			w.packet(0, 0, 1, "x")
			set(w.b, w.ends[1]+20, 100)
		}), capture.ErrCorrupt},
		"packet blocks differ": {ng(func(w *blocks) { w.iface(1, 0, nil); w.packet(0, 0, 1, "x"); set(w.b, -4, 8) }), capture.ErrCorrupt},
		"a short packet block": {ng(func(w *blocks) { w.iface(1, 0, nil); w.block(6, make([]byte, 16)) }), capture.ErrCorrupt},
		"a short interface":    {ng(func(w *blocks) { w.block(1, make([]byte, 4)) }), capture.ErrCorrupt},
		"a block of 4 GiB":     {set(ng(func(w *blocks) { w.block(77, nil) }), -8, 0xfffffffc), capture.ErrTruncated},
		"options beyond the interface": {ng(func(w *blocks) {
			w.iface(1, 0, []byte{9, 0, 200, 0})
			w.packet(0, 0, 1, "x")
		}), io.EOF},
		"resolution beyond any": {ng(func(w *blocks) {
			for _, r := range []byte{19, 20, 127, 0x80, 0xbf, 0xc0, 0xff} {
				w.iface(1, 0, w.option(nil, 9, []byte{r}))
				w.packet(uint32(len(w.ends)/2-1), ^uint64(0), 1, "x")
			}
		}), io.EOF},
		"too many interfaces": {ng(func(w *blocks) {
			for range 1<<16 + 1 {
				w.iface(1, 0, nil)
			}
		}), capture.ErrCorrupt},
	} {
		_, err := readAll(bytes.NewReader(c.file))
		require.ErrorIs(t, err, c.err, name)
	}
	broken := errors.New("disk on fire")
	_, err := readAll(io.MultiReader(bytes.NewReader(header), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	_, err = readAll(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(header))))
	require.ErrorIs(t, err, iotest.ErrTimeout)
}

// TestLongOptions has a packet block larger than the reader's buffer.
func TestLongOptions(t *testing.T) {
	w := &blocks{o: binary.LittleEndian}
	w.section()
	w.iface(1, 0, nil)
	b := make([]byte, 20, 1<<20)
	b[12], b[16] = 4, 4
	b = append(b, "data"...)
	for range 12 {
		b = w.option(b, 1, make([]byte, 60_000))
	}
	w.block(6, b)
	w.packet(0, 0, 4, "next")
	w.block(99, make([]byte, 1<<20))
	w.packet(0, 0, 4, "last")
	recs, err := readAll(bytes.NewReader(w.b))
	require.Equal(t, io.EOF, err)
	require.Len(t, recs, 3)
	for i, data := range []string{"data", "next", "last"} {
		require.Equal(t, data, recs[i].data)
	}
	recs, err = readAll(bytes.NewReader(w.b[:len(w.b)-1<<20-500_000]))
	require.ErrorIs(t, err, capture.ErrTruncated)
	require.Len(t, recs, 1)
}

// TestGzipCut has a gzip stream that stops between two records of the capture.
func TestGzipCut(t *testing.T) {
	file := pcapFile(binary.LittleEndian, 0xa1b2c3d4, 0)
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(file[:48])
	w.Flush()
	n := z.Len()
	w.Write(file[48:])
	w.Close()
	recs, err := readAll(bytes.NewReader(z.Bytes()[:n]))
	require.ErrorIs(t, err, capture.ErrTruncated)
	require.Len(t, recs, 1)
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	_, err := capture.Open(filepath.Join(dir, "none"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = capture.Open(dir, nil)
	require.ErrorIs(t, err, capture.ErrFormat)

	file := pcapFile(binary.BigEndian, 0xa1b2c3d4, 0)
	name := filepath.Join(dir, "x.pcap")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	f, err := capture.Open(name, nil)
	require.NoError(t, err)
	read, size := f.Progress()
	require.Equal(t, int64(len(file)), size)
	require.LessOrEqual(t, read, size)
	require.NoError(t, f.Close())

	f, err = capture.Open("-", bytes.NewReader(file))
	require.NoError(t, err)
	_, size = f.Progress()
	require.Zero(t, size)
	require.NoError(t, f.Close())
	_, err = capture.Open("-", bytes.NewReader(nil))
	require.ErrorContains(t, err, "standard input")
}

// TestNoAllocation holds that reading takes its memory once.
func TestNoAllocation(t *testing.T) {
	w := &blocks{o: binary.LittleEndian}
	w.section()
	w.iface(1, 0, nil)
	one := len(w.b)
	w.packet(0, 0, 1000, string(make([]byte, 1000)))
	packet := bytes.Clone(w.b[one:])
	for _, file := range [][]byte{
		append(w.b[:one:one], bytes.Repeat(packet, 2000)...),
		append(pcapFile(binary.LittleEndian, 0xa1b2c3d4, 0)[:24:24], bytes.Repeat(pcapFile(binary.LittleEndian, 0xa1b2c3d4, 0)[24:48], 2000)...),
	} {
		d, err := capture.NewReader(bytes.NewReader(file))
		require.NoError(t, err)
		var rec capture.Record
		require.Zero(t, testing.AllocsPerRun(1900, func() {
			if err := d.Next(&rec); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

// FuzzReader holds that no input makes the reader panic, hand out more than was
// there, or go on after an error.
func FuzzReader(f *testing.F) {
	f.Add(pcapFile(binary.LittleEndian, 0xa1b2c3d4, 0))
	f.Add(pcapFile(binary.BigEndian, 0xa1b23c4d, 0))
	w := &blocks{o: binary.BigEndian}
	w.section()
	w.iface(1, 6, w.option(nil, 9, []byte{9}))
	w.packet(0, 1, 2, "ab")
	w.simple(9, "simplexx")
	w.oldPacket(0, 1, 4, "old")
	f.Add(w.b)
	seeds.Into(f).Starts()
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		d, err := capture.NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		var rec capture.Record
		total := 0
		for {
			if err = d.Next(&rec); err != nil {
				break
			}
			total += len(rec.Data)
			_ = rec.Time.Format(stamp)
		}
		if b[0] != 0x1f && total > len(b) {
			t.Fatalf("%d bytes of frames in a file of %d", total, len(b))
		}
		if again := d.Next(&rec); again != err {
			t.Fatalf("%v, then %v", err, again)
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the input was written to")
		}
	})
}

// Count the RoCE frames of a capture.
func Example() {
	in, err := capture.Open("../../../fuzz/captures/rc-atomic.pcap", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer in.Close()
	var rec capture.Record
	var f frame.Frame
	roce := 0
	for err = in.Next(&rec); err == nil; err = in.Next(&rec) {
		if (frame.Finder{}).Decode(rec.Link, rec.Data, rec.WireLen, &f) == nil {
			roce++
		}
	}
	if err != io.EOF {
		fmt.Println(err)
	}
	fmt.Println(rec.Number, "frames,", roce, "of RoCE")
	// Output:
	// 26 frames, 16 of RoCE
}
