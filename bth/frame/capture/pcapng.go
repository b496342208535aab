package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// Block types of pcapng. A block is type, length, body, length again, all in
// the byte order of its section; the length, a multiple of four, counts all.
const (
	ngSectionHeader  = 0x0a0d0d0a // the same in both byte orders
	ngInterface      = 1
	ngPacket         = 2 // obsolete
	ngSimplePacket   = 3
	ngEnhancedPacket = 6

	ngByteOrder     = 0x1a2b3c4d
	ngBlockMin      = 12
	ngEnhancedSize  = 28 // up to the data, block header counted
	ngMaxInterfaces = 1 << 16

	optEnd         = 0
	optComment     = 1
	optName        = 2 // of an interface
	optDescription = 3
	optApplication = 4 // of a section
	optTSResol     = 9
	optTSOffset    = 14
)

type iface struct {
	link    frame.Link
	snaplen uint32
	perSec  uint64 // timestamp units in a second, 0 where 2^64 or more
	offset  int64  // seconds to add
}

// begin reads the block header; a section header gives the byte order first.
func (d *Reader) begin() (typ uint32, size int64, err error) {
	h, err := d.src.peek(8)
	if err != nil {
		return 0, 0, err
	}
	typ = d.u32(h)
	if typ == ngSectionHeader {
		if h, err = d.src.peek(12); err != nil {
			return 0, 0, err
		}
		switch {
		case binary.LittleEndian.Uint32(h[8:]) == ngByteOrder:
			d.big = false
		case binary.BigEndian.Uint32(h[8:]) == ngByteOrder:
			d.big = true
		default:
			return 0, 0, d.corrupt("a section header without byte order mark")
		}
	}
	size = int64(d.u32(h[4:]))
	if size < ngBlockMin || size%4 != 0 {
		return 0, 0, d.corrupt("a block of %d bytes", size)
	}
	return typ, size, nil
}

// end checks that a block whose first size-4 bytes were passed is closed.
func (d *Reader) end(size int64) error {
	b, err := d.src.peek(4)
	if err != nil {
		return insideBlock(err)
	}
	if got := int64(d.u32(b)); got != size {
		return d.corrupt("a block that begins with length %d ends with %d", size, got)
	}
	d.src.i += 4
	return nil
}

// insideBlock turns io.EOF into ErrTruncated: the block had begun.
func insideBlock(err error) error {
	if err == io.EOF {
		return ErrTruncated
	}
	return err
}

func (d *Reader) sectionHeader() error {
	_, size, err := d.begin()
	if err != nil {
		return err
	}
	if size < 28 {
		return d.corrupt("a section header of %d bytes", size)
	}
	b, err := d.src.peek(16)
	if err != nil {
		return err
	}
	if major := d.u16(b[12:]); major != 1 {
		return fmt.Errorf("%w: pcapng version %d.%d, can read 1.x", ErrFormat, major, d.u16(b[14:]))
	}
	d.ifaces = d.ifaces[:0]
	if err := d.src.skip(size - 4); err != nil {
		return err
	}
	return d.end(size)
}

func (d *Reader) nextBlock(rec *Record) error {
	for {
		if d.leftover > 0 {
			if err := d.src.skip(d.leftover); err != nil {
				return err
			}
			d.leftover = 0
		}
		typ, size, err := d.begin()
		if err != nil {
			return err
		}
		switch typ {
		case ngSectionHeader:
			err = d.sectionHeader()
		case ngInterface:
			err = d.interfaceBlock(size)
		case ngEnhancedPacket, ngPacket, ngSimplePacket:
			return d.packet(rec, typ, size)
		default:
			if err = d.src.skip(size - 4); err == nil {
				err = d.end(size)
			}
		}
		if err != nil {
			return insideBlock(err)
		}
	}
}

func (d *Reader) interfaceBlock(size int64) error {
	if size < 20 {
		return d.corrupt("an interface block of %d bytes", size)
	}
	if len(d.ifaces) == ngMaxInterfaces {
		return d.corrupt("more than %d interfaces", ngMaxInterfaces)
	}
	b, err := d.src.peek(16)
	if err != nil {
		return err
	}
	i := iface{link: frame.Link(d.u16(b[8:])), snaplen: d.u32(b[12:]), perSec: 1e6}
	d.src.i += 16
	left := size - 20
	for left >= 4 {
		if b, err = d.src.peek(4); err != nil {
			return err
		}
		code, n := d.u16(b), int64(d.u16(b[2:]))
		padded := 4 + (n+3)&^3
		if code == optEnd || padded > left {
			break // options that do not fit are ignored, as others do
		}
		if (code == optTSResol && n == 1) || (code == optTSOffset && n == 8) {
			if b, err = d.src.peek(4 + int(n)); err != nil {
				return err
			}
			if code == optTSResol {
				i.perSec = perSecond(b[4])
			} else if d.big {
				i.offset = int64(binary.BigEndian.Uint64(b[4:]))
			} else {
				i.offset = int64(binary.LittleEndian.Uint64(b[4:]))
			}
		}
		if err := d.src.skip(padded); err != nil {
			return err
		}
		left -= padded
	}
	d.ifaces = append(d.ifaces, i)
	if err := d.src.skip(left); err != nil {
		return err
	}
	return d.end(size)
}

// perSecond returns the units of an if_tsresol option: a power of 10, or of 2
// where the top bit is set. Units too small to count a second give 0.
func perSecond(resol byte) uint64 {
	if resol&0x80 != 0 {
		return 1 << (resol & 0x7f) // 0 from 64 on
	}
	if resol > 19 {
		return 0
	}
	n := uint64(1)
	for range resol {
		n *= 10
	}
	return n
}

func (i *iface) time(ts uint64) time.Time {
	var sec, frac, nsec uint64
	switch i.perSec {
	case 0:
	case 1e6:
		sec = ts / 1e6
		nsec = ts % 1e6 * 1e3
	case 1e9:
		sec, nsec = ts/1e9, ts%1e9
	default:
		sec, frac = ts/i.perSec, ts%i.perSec
		hi, lo := bits.Mul64(frac, 1e9)
		nsec, _ = bits.Div64(hi, lo, i.perSec) // below 1e9, as frac < perSec
	}
	return time.Unix(int64(sec)+i.offset, int64(nsec)).UTC()
}

func (d *Reader) packet(rec *Record, typ uint32, size int64) error {
	head := int64(ngEnhancedSize)
	if typ == ngSimplePacket {
		head = 12
	}
	if size < head+4 {
		return d.corrupt("a packet block of %d bytes", size)
	}
	b, err := d.src.peek(int(head))
	if err != nil {
		return insideBlock(err)
	}
	room := size - head - 4
	var id int
	var n int64
	switch typ {
	case ngSimplePacket:
		n = room // bounded by the frame's and the snapshot length below
	case ngPacket:
		id, n = int(d.u16(b[8:])), int64(d.u32(b[20:]))
	default:
		id, n = int(d.u32(b[8:])), int64(d.u32(b[20:]))
	}
	if id < 0 || id >= len(d.ifaces) {
		return d.corrupt("a packet of interface %d, which has no interface description block", id)
	}
	i := &d.ifaces[id]
	var wire int64
	rec.HasTime, rec.Time = false, time.Time{}
	if typ == ngSimplePacket {
		wire = int64(d.u32(b[8:]))
		n = min(n, wire)
		if i.snaplen != 0 {
			n = min(n, int64(i.snaplen))
		}
	} else {
		wire = int64(d.u32(b[24:]))
		rec.HasTime = true
		rec.Time = i.time(uint64(d.u32(b[12:]))<<32 | uint64(d.u32(b[16:])))
	}
	if n > room || n > MaxData || wire > 1<<30 {
		return d.corrupt("a frame of %d bytes, %d of them captured, in a block of %d", wire, n, size)
	}
	rec.Iface, rec.Link, rec.WireLen = id, i.link, int(wire)

	if size > window { // options of unusual length: leave them to the next call
		if b, err = d.src.peek(int(head + n)); err != nil {
			return insideBlock(err)
		}
		rec.Data = b[head:]
		d.src.i += len(b)
		d.leftover = size - head - n
		return nil
	}
	if b, err = d.src.peek(int(size)); err != nil {
		return insideBlock(err)
	}
	if got := int64(d.u32(b[size-4:])); got != size {
		return d.corrupt("a block that begins with length %d ends with %d", size, got)
	}
	rec.Data = b[head : head+n : head+n]
	d.src.i += int(size)
	return nil
}
