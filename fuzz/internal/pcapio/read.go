// Package pcapio reads pcap and pcapng files and writes pcap files, for the
// commands below fuzz. What it keeps of a file is what a frame is: time, link
// type, bytes, length on the wire.
package pcapio

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
)

// ErrFormat means a file that is neither pcap nor pcapng, or a damaged one.
var ErrFormat = errors.New("not a pcap or pcapng file, or a damaged one")

// maxBlock bounds what a damaged length makes the reader take.
const maxBlock = 1 << 24

// Reader reads the frames of one file.
type Reader struct {
	r      *bufio.Reader
	order  binary.ByteOrder
	ng     bool
	nano   bool
	link   frame.Link
	ifaces []iface
	buf    []byte
}

type iface struct {
	link   frame.Link
	snap   uint32
	perSec uint64
	offset int64
}

// NewReader reads the header of a file, gzip'ed or not.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{r: bufio.NewReaderSize(in, 1<<16)}
	magic, err := r.r.Peek(4)
	if err != nil {
		return nil, ErrFormat
	}
	if magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r.r)
		if err != nil {
			return nil, err
		}
		r.r = bufio.NewReaderSize(z, 1<<16)
		if magic, err = r.r.Peek(4); err != nil {
			return nil, ErrFormat
		}
	}
	switch binary.BigEndian.Uint32(magic) {
	case 0x0a0d0d0a:
		r.ng = true
		return r, nil
	case 0xa1b2c3d4:
		r.order = binary.BigEndian
	case 0xa1b23c4d:
		r.order, r.nano = binary.BigEndian, true
	case 0xd4c3b2a1:
		r.order = binary.LittleEndian
	case 0x4d3cb2a1:
		r.order, r.nano = binary.LittleEndian, true
	default:
		return nil, ErrFormat
	}
	h, err := r.take(24)
	if err != nil {
		return nil, ErrFormat
	}
	r.link = frame.Link(r.order.Uint32(h[20:]))
	return r, nil
}

func (r *Reader) take(n uint32) ([]byte, error) {
	if n > maxBlock {
		return nil, fmt.Errorf("%w: a record of %d bytes", ErrFormat, n)
	}
	if uint32(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	_, err := io.ReadFull(r.r, b)
	return b, err
}

// Next reads the next frame. Its Data is valid until the next call. At the end
// it returns io.EOF, and io.ErrUnexpectedEOF where that is inside a record.
func (r *Reader) Next(rec *mutator.Record) error {
	if r.ng {
		return r.nextBlock(rec)
	}
	h, err := r.take(16)
	if err != nil {
		return err
	}
	sec, frac := int64(r.order.Uint32(h)), int64(r.order.Uint32(h[4:]))
	if !r.nano {
		frac *= 1000
	}
	n, wire := r.order.Uint32(h[8:]), r.length(h[12:])
	b, err := r.take(n)
	if err != nil {
		return inside(err)
	}
	*rec = mutator.Record{Time: time.Unix(sec, frac), Link: r.link, Data: b, WireLen: max(wire, len(b))}
	return nil
}

// length reads a length on the wire, of which a damaged file may say anything.
func (r *Reader) length(b []byte) int { return int(min(r.order.Uint32(b), maxBlock)) }

func inside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// nextBlock reads pcapng blocks up to the next packet.
func (r *Reader) nextBlock(rec *mutator.Record) error {
	for {
		h, err := r.r.Peek(8)
		if err != nil {
			if len(h) > 0 {
				return inside(err)
			}
			return err
		}
		if binary.BigEndian.Uint32(h) == 0x0a0d0d0a {
			if h, err = r.r.Peek(12); err != nil {
				return inside(err)
			}
			switch binary.BigEndian.Uint32(h[8:]) {
			case 0x1a2b3c4d:
				r.order = binary.BigEndian
			case 0x4d3c2b1a:
				r.order = binary.LittleEndian
			default:
				return fmt.Errorf("%w: a section without byte order", ErrFormat)
			}
			r.ifaces = r.ifaces[:0]
		}
		typ, size := r.order.Uint32(h), r.order.Uint32(h[4:])
		if size < 12 || size%4 != 0 {
			return fmt.Errorf("%w: a block of %d bytes", ErrFormat, size)
		}
		b, err := r.take(size)
		if err != nil {
			return inside(err)
		}
		b = b[8 : size-4]
		switch {
		case typ == 1 && len(b) >= 8:
			r.ifaces = append(r.ifaces, r.iface(b))
		case typ == 6 && len(b) >= 20:
			id, n, wire := r.order.Uint32(b), r.order.Uint32(b[12:]), r.length(b[16:])
			if uint64(id) >= uint64(len(r.ifaces)) || uint64(n) > uint64(len(b)-20) {
				return fmt.Errorf("%w: a packet of no interface, or longer than its block", ErrFormat)
			}
			i := &r.ifaces[id]
			ts := uint64(r.order.Uint32(b[4:]))<<32 | uint64(r.order.Uint32(b[8:]))
			*rec = mutator.Record{Time: i.time(ts), Link: i.link, Data: b[20 : 20+n], WireLen: max(wire, int(n))}
			return nil
		case typ == 3 && len(b) >= 4 && len(r.ifaces) > 0:
			i := &r.ifaces[0]
			wire := r.length(b)
			n := min(wire, len(b)-4)
			if i.snap > 0 && uint32(n) > i.snap {
				n = int(i.snap)
			}
			*rec = mutator.Record{Link: i.link, Data: b[4 : 4+n], WireLen: wire, Time: time.Unix(0, 0)}
			return nil
		}
	}
}

func (r *Reader) iface(b []byte) iface {
	i := iface{link: frame.Link(r.order.Uint16(b)), snap: r.order.Uint32(b[4:]), perSec: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := r.order.Uint16(b), int(r.order.Uint16(b[2:]))
		if code == 0 || 4+n > len(b) {
			break
		}
		switch v := b[4 : 4+n]; {
		case code == 9 && n == 1 && v[0]&0x80 != 0:
			i.perSec = 1 << min(v[0]&0x7f, 63)
		case code == 9 && n == 1:
			i.perSec = 1
			for range min(v[0], 19) {
				i.perSec *= 10
			}
		case code == 14 && n == 8:
			i.offset = int64(r.order.Uint64(v))
		}
		b = b[min(4+(n+3)&^3, len(b)):]
	}
	return i
}

func (i *iface) time(ts uint64) time.Time {
	sec, frac := ts/i.perSec, ts%i.perSec
	ns := new(big.Int).Mul(new(big.Int).SetUint64(frac), big.NewInt(1e9))
	ns.Div(ns, new(big.Int).SetUint64(i.perSec))
	return time.Unix(int64(sec)+i.offset, ns.Int64())
}

// ReadFile returns all frames of a file. One that ends inside a record gives
// what came before.
func ReadFile(name string) ([]mutator.Record, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var recs []mutator.Record
	for {
		var rec mutator.Record
		if err := r.Next(&rec); err == io.EOF || err == io.ErrUnexpectedEOF {
			return recs, nil
		} else if err != nil {
			return recs, fmt.Errorf("%s: %w", name, err)
		}
		rec.Data = bytes.Clone(rec.Data)
		recs = append(recs, rec)
	}
}

// Writer writes a pcap file with times in nanoseconds.
type Writer struct {
	w io.Writer
	h [24]byte
}

// NewWriter writes the header of a file for frames of one link type.
func NewWriter(w io.Writer, link frame.Link) (*Writer, error) {
	p := &Writer{w: w}
	h := p.h[:0]
	h = binary.LittleEndian.AppendUint32(h, 0xa1b23c4d)
	h = binary.LittleEndian.AppendUint32(h, 4<<16|2) // version 2.4
	h = binary.LittleEndian.AppendUint64(h, 0)
	h = binary.LittleEndian.AppendUint32(h, 0x40000)
	h = binary.LittleEndian.AppendUint32(h, uint32(link))
	_, err := w.Write(h)
	return p, err
}

// Write writes a frame.
func (p *Writer) Write(rec *mutator.Record) error {
	h := p.h[:0]
	h = binary.LittleEndian.AppendUint32(h, uint32(rec.Time.Unix()))
	h = binary.LittleEndian.AppendUint32(h, uint32(rec.Time.Nanosecond()))
	h = binary.LittleEndian.AppendUint32(h, uint32(len(rec.Data)))
	h = binary.LittleEndian.AppendUint32(h, uint32(rec.WireLen))
	if _, err := p.w.Write(h); err != nil {
		return err
	}
	_, err := p.w.Write(rec.Data)
	return err
}
