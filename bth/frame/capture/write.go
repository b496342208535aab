package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

var (
	// ErrTime means a time that the format cannot hold.
	ErrTime = errors.New("capture: time out of range")
	// ErrSize means a frame, or a comment, that is longer than readers accept.
	ErrSize = errors.New("capture: record too long")
	// ErrInterface means a record of an interface that was not added.
	ErrInterface = errors.New("capture: no such interface")
)

// maxWire is the longest frame that the Reader accepts.
const maxWire = 1 << 30

// checkSizes refuses the sizes that a Reader refuses.
func checkSizes(captured, wire int) error {
	switch {
	case captured > MaxData:
		return fmt.Errorf("%w: %d bytes captured, at most %d can be read again", ErrSize, captured, MaxData)
	case wire < 0 || wire > maxWire:
		return fmt.Errorf("%w: a frame of %d bytes, want 0 to %d", ErrSize, wire, maxWire)
	}
	return nil
}

// Writer writes a pcap file of one link type with nanosecond timestamps,
// little-endian.
type Writer struct {
	w   io.Writer
	hdr []byte
}

// NewWriter writes the file header to w. Give it a buffered writer.
func NewWriter(w io.Writer, link frame.Link) (*Writer, error) {
	var h []byte
	h = binary.LittleEndian.AppendUint32(h, magicNano)
	h = binary.LittleEndian.AppendUint16(h, 2)
	h = binary.LittleEndian.AppendUint16(h, 4)
	h = append(h, make([]byte, 8)...)
	h = binary.LittleEndian.AppendUint32(h, MaxData)
	h = binary.LittleEndian.AppendUint32(h, uint32(link))
	_, err := w.Write(h)
	return &Writer{w: w, hdr: make([]byte, 0, pcapRecordSize)}, err
}

// Write writes one whole frame.
func (w *Writer) Write(at time.Time, data []byte) error { return w.WriteCut(at, data, len(data)) }

// WriteCut writes a frame that had wireLen bytes, of which data was captured. It
// fails with ErrTime for times before 1970 or after 7 February 2106, 06:28:15
// UTC, whose seconds exceed 32 bits, and with ErrSize for more than MaxData bytes
// of data; nothing is written then.
func (w *Writer) WriteCut(at time.Time, data []byte, wireLen int) error {
	if s := at.Unix(); s < 0 || s > math.MaxUint32 {
		return fmt.Errorf("%w: %s; pcap holds 1970 to February 2106", ErrTime, at.UTC().Format(time.RFC3339))
	}
	if err := checkSizes(len(data), wireLen); err != nil {
		return err
	}
	h := w.hdr[:0]
	h = binary.LittleEndian.AppendUint32(h, uint32(at.Unix()))
	h = binary.LittleEndian.AppendUint32(h, uint32(at.Nanosecond()))
	h = binary.LittleEndian.AppendUint32(h, uint32(len(data)))
	h = binary.LittleEndian.AppendUint32(h, uint32(wireLen))
	if _, err := w.w.Write(h); err != nil {
		return err
	}
	_, err := w.w.Write(data)
	return err
}

// Interface is where frames of a pcapng file were captured.
type Interface struct {
	Link        frame.Link
	Name        string // such as eth0; empty where it is not known
	Description string
	SnapLen     uint32 // the most that was captured of a frame; 0 means all
}

// NGWriter writes a pcapng file of one section, little-endian, with nanosecond
// timestamps, names of interfaces, and comments on packets, which Wireshark shows.
type NGWriter struct {
	w      io.Writer
	buf    []byte
	ifaces int
}

// NewNGWriter writes the section header to w, with the name of the program that
// writes, if any. Give it a buffered writer. Interfaces are added with
// AddInterface before the first record of each.
func NewNGWriter(w io.Writer, application string) (*NGWriter, error) {
	n := &NGWriter{w: w}
	if len(application) > math.MaxUint16 {
		return nil, fmt.Errorf("%w: a name of %d bytes", ErrSize, len(application))
	}
	n.begin(ngSectionHeader)
	n.buf = binary.LittleEndian.AppendUint32(n.buf, ngByteOrder)
	n.buf = binary.LittleEndian.AppendUint16(n.buf, 1) // version 1.0
	n.buf = binary.LittleEndian.AppendUint16(n.buf, 0)
	n.buf = binary.LittleEndian.AppendUint64(n.buf, math.MaxUint64) // length of the section: not known
	if application != "" {
		n.option(optApplication, application)
		n.endOptions()
	}
	return n, n.end()
}

// AddInterface adds an interface and returns its number, 0, 1, ..., for
// Record.Iface.
func (w *NGWriter) AddInterface(i Interface) (int, error) {
	if max(len(i.Name), len(i.Description)) > math.MaxUint16 {
		return 0, fmt.Errorf("%w: an interface name of %d bytes", ErrSize, max(len(i.Name), len(i.Description)))
	}
	if w.ifaces == ngMaxInterfaces {
		return 0, fmt.Errorf("%w: there are %d already", ErrInterface, w.ifaces)
	}
	w.begin(ngInterface)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(i.Link))
	w.buf = binary.LittleEndian.AppendUint16(w.buf, 0)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, i.SnapLen)
	if i.Name != "" {
		w.option(optName, i.Name)
	}
	if i.Description != "" {
		w.option(optDescription, i.Description)
	}
	w.option(optTSResol, "\x09") // 10^-9 s
	w.endOptions()
	if err := w.end(); err != nil {
		return 0, err
	}
	w.ifaces++
	return w.ifaces - 1, nil
}

// Write writes a record of interface rec.Iface with comments, of which each has at most
// 65535 bytes of UTF-8. Number and Link are ignored, and a record without a time gets
// 1970-01-01 00:00 UTC. It fails with ErrInterface; with ErrTime for times before 1970 or
// after July 2554, whose nanoseconds exceed 64 bits; with ErrSize for more than MaxData
// bytes of data or a comment that is too long. Nothing is written then.
func (w *NGWriter) Write(rec *Record, comments ...string) error {
	if rec.Iface < 0 || rec.Iface >= w.ifaces {
		return fmt.Errorf("%w: %d of %d", ErrInterface, rec.Iface, w.ifaces)
	}
	if err := checkSizes(len(rec.Data), rec.WireLen); err != nil {
		return err
	}
	for _, c := range comments {
		if len(c) > math.MaxUint16 {
			return fmt.Errorf("%w: a comment of %d bytes, at most %d", ErrSize, len(c), math.MaxUint16)
		}
	}
	var ts uint64
	if rec.HasTime {
		s, ns := rec.Time.Unix(), uint64(rec.Time.Nanosecond())
		if s < 0 || uint64(s) > (math.MaxUint64-ns)/1e9 {
			return fmt.Errorf("%w: %s; nanoseconds of pcapng hold 1970 to July 2554", ErrTime, rec.Time.UTC().Format(time.RFC3339))
		}
		ts = uint64(s)*1e9 + ns
	}
	w.begin(ngEnhancedPacket)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(rec.Iface))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(ts>>32))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(ts))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(rec.Data)))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(rec.WireLen))
	w.buf = append(w.buf, rec.Data...)
	w.pad()
	for _, c := range comments {
		w.option(optComment, c)
	}
	if len(comments) > 0 {
		w.endOptions()
	}
	return w.end()
}

func (w *NGWriter) begin(typ uint32) {
	w.buf = binary.LittleEndian.AppendUint32(w.buf[:0], typ)
	w.buf = append(w.buf, 0, 0, 0, 0) // end fills in the length
}

func (w *NGWriter) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *NGWriter) option(code uint16, value string) {
	w.buf = binary.LittleEndian.AppendUint16(w.buf, code)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(len(value)))
	w.buf = append(w.buf, value...)
	w.pad()
}

func (w *NGWriter) endOptions() { w.option(optEnd, "") }

func (w *NGWriter) end() error {
	n := uint32(len(w.buf) + 4)
	binary.LittleEndian.PutUint32(w.buf[4:], n)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, n)
	_, err := w.w.Write(w.buf)
	return err
}
