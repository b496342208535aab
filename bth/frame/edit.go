package frame

import (
	"encoding/binary"
	"slices"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/psn"
)

// Clone returns a copy of f whose bytes are copied too, so that it stays valid when the
// frame that f was decoded from is overwritten. The bytes are appended to buf, which is
// returned; it allocates only if buf has no room, and for a packet of MRC. Slices within
// NetPacket are within the copy's NetPacket.
func (f *Frame) Clone(buf []byte) (Frame, []byte) {
	g := *f
	t := len(f.NetPacket) - len(f.Transport)
	type view struct {
		from []byte
		to   *[]byte
		off  int // in NetPacket, where it is a part of that
	}
	views := [...]view{
		{f.NetPacket, &g.NetPacket, -1},
		{f.Trailer, &g.Trailer, -1},
		{f.Outer.Headers, &g.Outer.Headers, -1},
		{f.Transport, &g.Transport, t},
		{f.Options, &g.Options, ipv4Size},
		{f.Packet.Payload, &g.Packet.Payload, t + f.Packet.Opcode.HeaderSize()},
		{nil, nil, -1},
	}
	if f.IsMRC() {
		m := *f.MRC
		g.MRC = &m
		views[len(views)-1] = view{m.Payload, &g.MRC.Payload, t + bth.Size + m.Ext().Size()}
	}
	need := 0
	for i := range views {
		v := &views[i]
		n := len(v.from)
		if v.off < 0 || n == 0 || v.off+n > len(f.NetPacket) || &v.from[0] != &f.NetPacket[v.off] {
			v.off = -1
			need += n
		}
	}
	buf = slices.Grow(buf, need)
	for _, v := range views {
		switch n := len(v.from); {
		case n == 0:
		case v.off >= 0:
			*v.to = g.NetPacket[v.off : v.off+n : v.off+n]
		default:
			buf = append(buf, v.from...)
			*v.to = buf[len(buf)-n : len(buf) : len(buf)]
		}
	}
	return g, buf
}

// SetPSN is Patch of the PSN.
func (f *Frame) SetPSN(p psn.PSN) error {
	v := uint32(p)
	return f.Patch(len(f.NetPacket)-len(f.Transport)+9, byte(v>>16), byte(v>>8), byte(v))
}

// Patch replaces the bytes of NetPacket from off on by with, in place, in the bytes that f
// was decoded from, and decodes f anew. off counts from the network header. Lengths, and
// every field that decides one, must stay the same. Addresses, the traffic class, ports,
// all other fields of the packet's headers, payload and pad may change.
//
// IPv4 header checksum, UDP checksum and ICRC are updated: one that was right is right
// again, one that was wrong stays wrong. For a change after the first five bytes of the BTH
// the ICRC is updated without reading the payload.
//
// It fails with ErrRange beyond the pad, and for bytes that would change the layout of the
// packet; with ErrTruncated where not all of the packet was captured; and with the error of
// decoding what it would become. Nothing is changed then. off and the bytes must not
// overlap the ICRC: to break one, write to it.
func (f *Frame) Patch(off int, with ...byte) error {
	pkt := f.NetPacket
	body := len(pkt) - bth.ICRCSize
	transport := len(pkt) - len(f.Transport)
	switch {
	case len(f.Transport) < bth.MinSize || f.Truncated() || f.Trimmed:
		return ErrTruncated
	case off < 0 || off > body || len(with) > body-off:
		return ErrRange
	}
	if err := f.tryPatch(transport, off, with); err != nil {
		return err
	}
	ipv4, udp := f.CheckIPv4() == ChecksumGood, f.CheckUDP() == ChecksumGood
	region := pkt[off : off+len(with)]
	icrc := crc.Stored(pkt)
	if off >= transport+5 { // no masked byte is among them
		icrc = crc.Patch(icrc, body-off-len(with), region, with)
		copy(region, with)
	} else {
		was := crc.Sum(pkt[:body])
		copy(region, with)
		icrc ^= was ^ crc.Sum(pkt[:body])
	}
	crc.AppendValue(pkt[:body], icrc)
	if ipv4 {
		h := pkt[:transport-udpSize]
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], ^OnesSum(0, h))
	}
	if udp {
		f.setUDPChecksum(pkt, transport-udpSize)
	}
	f.fillNet(pkt[:transport:transport], f.Net)
	if f.MRC != nil {
		return f.decodeEither(f.Transport, f.TransportLen, f.Net, false)
	}
	return f.Packet.Decode(f.Transport)
}

// tryPatch patches the headers, returns why they cannot be decoded, or ErrRange where their
// layout differs, and then restores what was there.
func (f *Frame) tryPatch(transport, off int, with []byte) error {
	size := f.headerSize()
	headers := transport + max(size, bth.Size)
	if off >= headers {
		return nil
	}
	head := f.NetPacket[off:min(headers, len(f.NetPacket))]
	var was [ipv4Size + maxIPv4Options + udpSize + bth.MaxHeaderSize]byte
	n := copy(was[:], head[:min(len(head), len(with))])
	copy(head, with)
	defer func() { copy(head, was[:n]) }()

	var d Finder
	if f.Net != GRH {
		d.UDPPort = binary.BigEndian.Uint16(f.NetPacket[transport-udpSize+2:])
	}
	s := span{limit: len(f.NetPacket)}
	if err := d.locateNet(f.NetPacket, &s, f.Net.etherType()); err != nil {
		return err
	}
	if n := f.headerSize(); s.transport != transport || s.end != len(f.NetPacket) || n != size && n != 0 {
		return ErrRange
	}
	if f.IsMRC() {
		var p mrc.Packet
		return p.Decode(f.Transport)
	}
	var p bth.Packet
	return p.Decode(f.Transport)
}

// headerSize returns the length of BTH and extended headers by the opcode in the BTH, 0 for
// an opcode that is not known.
func (f *Frame) headerSize() int {
	if op := bth.Opcode(f.Transport[0]); !f.IsMRC() {
		return op.HeaderSize()
	} else if mrc.Known(op) {
		m := mrc.Packet{Header: bth.Header{Opcode: op}}
		return bth.Size + m.Ext().Size()
	}
	return 0
}

// setUDPChecksum computes the checksum of the UDP datagram at pkt[u:].
func (f *Frame) setUDPChecksum(pkt []byte, u int) {
	pkt[u+6], pkt[u+7] = 0, 0
	sum := ^OnesSum(f.pseudoSum(), pkt[u:])
	if sum == 0 {
		sum = 0xffff // 0 means that there is no checksum
	}
	binary.BigEndian.PutUint16(pkt[u+6:], sum)
}
