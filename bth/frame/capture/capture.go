// Package capture reads and writes captured frames, the input of a [frame.Finder]:
// pcap and pcapng files as streams, and network interfaces (on Linux).
//
// Files may have either byte order, microsecond and nanosecond variants, any
// timestamp resolution of pcapng, several sections and interfaces with link types
// of their own, and gzip around all of it. No more than a fixed buffer is held,
// whatever the input claims; nothing is allocated per record.
//
// gopacket's pcapgo 1.1.19 is not used, because it refuses records longer than
// the snapshot length, allocates what a file claims, panics on short pcapng
// options, and reports a file that ends between a record's header and its bytes
// as a good end.
package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

var (
	// ErrTruncated means that the input ends in the middle of a record.
	ErrTruncated = fmt.Errorf("the file ends in the middle of a record: %w", io.ErrUnexpectedEOF)
	// ErrFormat means that the input is no capture file that can be read.
	ErrFormat = errors.New("not a pcap or pcapng file")
	// ErrCorrupt means that a record contradicts the format, so that the position of
	// the next record is not known.
	ErrCorrupt = errors.New("broken capture file")
)

// MaxData is the largest number of bytes of one frame that a capture may hold. It is
// libpcap's limit; the longest RoCE frame is a quarter of it.
const MaxData = 256 << 10

// Record is one captured frame. WireLen may be less than len(Data) where the file
// says so.
type Record struct {
	Number  int        // in its file, from 1
	Link    frame.Link // link type of the interface
	Iface   int        // interface, from 0 in each section; 0 in pcap
	HasTime bool       // false for pcapng's simple packets, which have none
	Time    time.Time  // UTC
	WireLen int        // length in bytes that the frame had on the wire
	Data    []byte     // what was captured of it; valid until the next call of Next
}

// Reader reads the records of one file.
type Reader struct {
	src    source
	number int
	err    error // sticky

	ng       bool
	big      bool
	link     frame.Link // pcap
	nano     bool       // pcap
	ifaces   []iface    // pcapng, of this section
	leftover int64      // bytes of the last block that were not looked at
}

// NewReader reads the file header from r and returns a Reader of what follows,
// or ErrFormat, ErrTruncated, ErrCorrupt or an error of r.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{src: newSource(r)}
	head, err := d.src.peek(4)
	if err == nil && head[0] == 0x1f && head[1] == 0x8b {
		packed := d.src
		var z *gzip.Reader
		if z, err = gzip.NewReader(&packed); err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		d.src = newSource(z)
		head, err = d.src.peek(4)
	}
	switch {
	case err == io.EOF:
		return nil, fmt.Errorf("%w: it is empty", ErrFormat)
	case errors.Is(err, ErrTruncated):
		return nil, fmt.Errorf("%w: it is too short", ErrFormat)
	case err != nil:
		return nil, err
	}
	le := binary.LittleEndian.Uint32(head)
	be := binary.BigEndian.Uint32(head)
	switch {
	case le == ngSectionHeader:
		d.ng = true
		err = d.sectionHeader()
	case le == magicMicro || le == magicNano:
		err = d.pcapHeader(binary.LittleEndian, le == magicNano)
	case be == magicMicro || be == magicNano:
		err = d.pcapHeader(binary.BigEndian, be == magicNano)
	default:
		err = fmt.Errorf("%w: it begins with % x%s", ErrFormat, head, hint(be))
	}
	if err == io.EOF {
		err = ErrTruncated
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// hint returns advice for files of other formats that users pass as captures.
func hint(magic uint32) string {
	switch magic {
	case 0x28b52ffd:
		return " (zstd: decompress it with zstd -d)"
	case 0xfd377a58:
		return " (xz: decompress it with xz -d)"
	case 0x04224d18:
		return " (lz4: decompress it with lz4 -d)"
	case 0x504b0304:
		return " (zip: unpack it)"
	}
	return " (editcap -F pcapng IN OUT converts other formats)"
}

// Next reads the next record into rec. At the end it returns io.EOF; when the
// file stops in the middle of a record, ErrTruncated; else ErrCorrupt or an
// error of the underlying reader. All of them are final.
func (d *Reader) Next(rec *Record) error {
	if d.err != nil {
		return d.err
	}
	if d.ng {
		d.err = d.nextBlock(rec)
	} else {
		d.err = d.nextPcap(rec)
	}
	if d.err == nil {
		d.number++
		rec.Number = d.number
	}
	return d.err
}

// Buffered returns how many bytes were read ahead. At 0 the next call of Next has
// to read, and may have to wait for a live source.
func (d *Reader) Buffered() int { return d.src.j - d.src.i }

func (d *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrCorrupt, d.src.offset(), fmt.Sprintf(format, args...))
}

// source is a window of fixed size on a stream.
type source struct {
	r    io.Reader
	buf  []byte
	i, j int   // buf[i:j] is unread
	base int64 // bytes of the stream before buf[0]
	err  error // why no more can be read
}

// window fits any record that is read as a whole, with room to read ahead.
const window = MaxData + 64<<10

func newSource(r io.Reader) source { return source{r: r, buf: make([]byte, window)} }

func (s *source) offset() int64 { return s.base + int64(s.i) }

// peek returns the next n bytes, n <= window, without passing them. It returns
// io.EOF if there are no more bytes at all, ErrTruncated if there are fewer.
func (s *source) peek(n int) ([]byte, error) {
	if s.j-s.i < n {
		if err := s.fill(n); err != nil {
			return nil, err
		}
	}
	return s.buf[s.i : s.i+n : s.i+n], nil
}

func (s *source) fill(n int) error {
	copy(s.buf, s.buf[s.i:s.j])
	s.base += int64(s.i)
	s.j -= s.i
	s.i = 0
	for idle := 0; s.j < n && s.err == nil; {
		var m int
		m, s.err = s.r.Read(s.buf[s.j:])
		s.j += m
		if m > 0 {
			idle = 0
		} else if idle++; idle == 100 {
			s.err = io.ErrNoProgress
		}
	}
	switch {
	case s.j >= n:
		return nil
	case s.err == io.ErrUnexpectedEOF, s.err == io.EOF && s.j > 0:
		return ErrTruncated // also a gzip stream that was cut
	}
	return s.err
}

// skip passes n bytes; io.EOF comes only with the next peek.
func (s *source) skip(n int64) error {
	for n > int64(s.j-s.i) {
		n -= int64(s.j - s.i)
		s.i = s.j
		if _, err := s.peek(1); err == io.EOF {
			return ErrTruncated
		} else if err != nil {
			return err
		}
	}
	s.i += int(n)
	return nil
}

// Read and ReadByte make a source the input of a gzip reader.
func (s *source) Read(p []byte) (int, error) {
	if _, err := s.peek(1); err != nil {
		return 0, err
	}
	n := copy(p, s.buf[s.i:s.j])
	s.i += n
	return n, nil
}

func (s *source) ReadByte() (byte, error) {
	b, err := s.peek(1)
	if err != nil {
		return 0, err
	}
	s.i++
	return b[0], nil
}

// File is a Reader on an opened file.
type File struct {
	*Reader
	f    *os.File
	in   *counter
	size int64
}

// Open opens the named file, or reads stdin if name is "-".
func Open(name string, stdin io.Reader) (*File, error) {
	f := new(File)
	var r io.Reader = stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s: %w: it is a directory", name, ErrFormat)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		if info.Mode().IsRegular() {
			f.size = info.Size()
		}
		f.f, r = file, file
	}
	f.in = &counter{r: r}
	var err error
	if f.Reader, err = NewReader(f.in); err != nil {
		f.Close()
		if name == "-" {
			name = "standard input"
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// Progress returns how many bytes of the file, as it is stored, were read, and
// its size, or 0 where that is not known.
func (f *File) Progress() (read, size int64) { return f.in.n, f.size }

// Close closes what Open opened.
func (f *File) Close() error {
	if f.f == nil {
		return nil
	}
	return f.f.Close()
}

// ReadFile returns all records of the named file, with bytes of their own. Where
// it fails inside the file, it returns the error and the records before.
func ReadFile(name string) ([]Record, error) {
	f, err := Open(name, nil)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var recs []Record
	for {
		var rec Record
		switch err := f.Next(&rec); err {
		case nil:
			rec.Data = bytes.Clone(rec.Data)
			recs = append(recs, rec)
		case io.EOF:
			return recs, nil
		default:
			return recs, fmt.Errorf("%s: %w", name, err)
		}
	}
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
