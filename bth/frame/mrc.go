package frame

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/crc"
)

// IsMRC reports whether the packet is one of MRC, so that MRC has all of it.
func (f *Frame) IsMRC() bool { return f.MRC != nil && mrc.Known(f.MRC.Opcode) }

// decodeEither reads the packet of n bytes of which b was kept, into f.MRC where
// it is one of MRC. On an error nothing is changed.
func (f *Frame) decodeEither(b []byte, n int, net Net, trimmed bool) error {
	m := f.MRC
	var err error
	switch {
	case len(b) == 0 || bth.Opcode(b[0]).Service() != bth.Manufacturer6 || net == GRH:
		if err := f.Packet.DecodePrefix(b, n); err != nil {
			return err
		}
		*m = mrc.Packet{}
		return nil
	case trimmed:
		err = m.DecodeTrimmed(b)
	case len(b) == n:
		err = m.Decode(b)
	default:
		err = m.DecodePrefix(b, n)
	}
	if err != nil {
		return err
	}
	f.Packet = bth.Packet{}
	f.Packet.Header = m.Header
	return nil
}

// trimmedBehind reports whether the first n bytes of the network packet h, whose traffic
// class is tc, are followed by an MRC WRITE that a switch has trimmed, and if so sets where
// it ends: the lengths in the IP header, which says ipEnd, and in the UDP header may each
// be the old one or the new one.
func (d *Finder) trimmedBehind(s *span, h []byte, n int, tc uint8, ipEnd int) bool {
	if d.TrimmedDSCP>>(tc>>2)&1 == 0 || len(h) < n+bth.Size || !mrc.IsWrite(bth.Opcode(h[n])) {
		return false
	}
	udpEnd := s.netOff + n - udpSize + int(binary.BigEndian.Uint16(h[n-udpSize+4:]))
	s.transport = s.netOff + n
	s.end = s.limit
	for _, e := range [...]int{ipEnd, udpEnd} {
		if e >= s.transport+bth.Size {
			s.end = min(s.end, e)
		}
	}
	s.trimmed = s.end >= s.transport+bth.Size
	return s.trimmed
}

// appendMRC appends the MRC packet behind the network header that begins at
// start.
func (f *Frame) appendMRC(dst []byte, start int) []byte {
	m := f.MRC
	dst = m.AppendHeadersTo(dst)
	pad := int(m.PadCnt & 3)
	switch {
	case m.Trimmed:
		return append(dst, m.Payload...)
	case m.Pad == [3]byte{}:
		return crc.AppendPayload(dst, start, m.Payload, pad)
	}
	dst = append(dst, m.Payload...)
	dst = append(dst, m.Pad[:pad]...)
	return crc.Append(dst, start)
}
