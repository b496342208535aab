package capture

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// The file header of pcap, in the writer's byte order:
//
//	bytes  field
//	4      magic: a1b2c3d4 (microseconds) or a1b23c4d (nanoseconds)
//	2, 2   version 2.4
//	8      zone and accuracy, unused
//	4      snapshot length
//	4      link type in the low 16 bits, FCS length in the upper ones
//
// and that of each record: seconds, their fraction, captured length, length on
// the wire, four bytes each.
const (
	magicMicro     = 0xa1b2c3d4
	magicNano      = 0xa1b23c4d
	pcapHeaderSize = 24
	pcapRecordSize = 16
)

func (d *Reader) pcapHeader(order binary.ByteOrder, nano bool) error {
	h, err := d.src.peek(pcapHeaderSize)
	if err != nil {
		return err
	}
	if v := order.Uint16(h[4:]); v != 2 {
		return fmt.Errorf("%w: pcap version %d.%d, can read 2.4", ErrFormat, v, order.Uint16(h[6:]))
	}
	d.big, d.nano = order == binary.BigEndian, nano
	d.link = frame.Link(order.Uint32(h[20:]))
	return d.src.skip(pcapHeaderSize)
}

func (d *Reader) u16(b []byte) uint16 {
	if d.big {
		return binary.BigEndian.Uint16(b)
	}
	return binary.LittleEndian.Uint16(b)
}

func (d *Reader) u32(b []byte) uint32 {
	if d.big {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func (d *Reader) nextPcap(rec *Record) error {
	h, err := d.src.peek(pcapRecordSize)
	if err != nil {
		return err
	}
	n := d.u32(h[8:])
	if n > MaxData {
		return d.corrupt("a record of %d bytes, more than %d", n, MaxData)
	}
	wire := d.u32(h[12:])
	if wire > 1<<30 {
		return d.corrupt("a frame of %d bytes", wire)
	}
	sec, frac := int64(d.u32(h)), int64(d.u32(h[4:]))
	if !d.nano {
		frac *= 1000
	}
	b, err := d.src.peek(pcapRecordSize + int(n))
	if err != nil {
		return err
	}
	d.src.i += len(b)
	rec.Link = d.link
	rec.Iface = 0
	rec.HasTime = true
	rec.Time = time.Unix(sec, frac).UTC()
	rec.WireLen = int(wire)
	rec.Data = b[pcapRecordSize:]
	return nil
}
