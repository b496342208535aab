package frame

import (
	"encoding/binary"
	"net/netip"

	"github.com/roce-go/roce/bth"
)

// Finder finds packets. The zero value looks for the standard port.
type Finder struct {
	// UDPPort is the UDP destination port of RoCE v2; 0 means Port.
	UDPPort uint16
}

// span says where the parts of a frame lie.
type span struct {
	net       Net
	vlans     uint8
	netOff    int // network header
	transport int // BTH
	end       int // after the ICRC, as the headers say
}

// Decode reads the frame b of the standard port: what is around the packet and
// the packet itself. On an error, one of this package's or bth's, f is
// unchanged.
func (f *Frame) Decode(link Link, b []byte) error { return Finder{}.Decode(link, b, len(b), f) }

// Decode reads a frame of which a capture kept b, and that had wireLen bytes on
// the wire. Where headers were kept but not all of the packet, the frame is
// decoded, Truncated reports true and the ICRC can't be checked. On an error,
// one of this package's or bth's, f is unchanged. A packet with several faults
// reports the outermost.
func (d Finder) Decode(link Link, b []byte, wireLen int, f *Frame) error {
	if link != Ethernet || len(b) < plainSize {
		return d.decode(link, b, wireLen, f)
	}
	h := (*[plainSize]byte)(b)
	total := int(binary.BigEndian.Uint16(h[16:]))
	end := ethernetSize + total
	if !d.plain(h, uint32(total)) || total < ipv4Size+udpSize+bth.MinSize || end > len(b) {
		return d.decode(link, b, wireLen, f)
	}
	if err := f.Packet.Decode(b[plainSize:end:end]); err != nil {
		return err
	}
	f.DstMAC = MAC(h[0:6])
	f.SrcMAC = MAC(h[6:12])
	f.Link = Ethernet
	f.Net = IPv4
	f.VLANs = 0
	f.VLAN = [2]VLAN{}
	f.TrafficClass = h[15]
	f.HopLimit = h[22]
	f.FlowLabel = 0
	id := binary.BigEndian.Uint32(h[18:])
	f.ID = uint16(id >> 16)
	f.DF = id&0x4000 != 0
	f.ReservedFlag = id&0x8000 != 0
	ports := binary.BigEndian.Uint32(h[34:])
	f.SrcPort = uint16(ports >> 16)
	f.DstPort = uint16(ports)
	f.UDPChecksum = binary.BigEndian.Uint16(h[40:])
	f.TransportLen = end - plainSize
	// All stores of pointers stand together, after all loads, so that there is
	// one look at whether the collector runs.
	src, dst := netip.AddrFrom4([4]byte(h[26:30])), netip.AddrFrom4([4]byte(h[30:34]))
	netPacket, transport := b[ethernetSize:end:end], b[plainSize:end:end]
	var trailer []byte
	if len(b) > end {
		trailer = b[end:len(b):len(b)]
	}
	f.Src = src
	f.Dst = dst
	f.Options = nil
	f.NetPacket = netPacket
	f.Trailer = trailer
	f.Transport = transport
	return nil
}

func (d Finder) decode(link Link, b []byte, wireLen int, f *Frame) error {
	s, err := d.locate(link, b, wireLen)
	if err != nil {
		return err
	}
	if err := f.Packet.DecodePrefix(b[s.transport:min(s.end, len(b))], s.end-s.transport); err != nil {
		return err
	}
	f.fill(link, b, &s)
	return nil
}

// plainSize is the length of the headers before the BTH of nearly all frames:
// Ethernet without tags, IPv4 without options, UDP.
const plainSize = ethernetSize + ipv4Size + udpSize

// plain reports whether h are such headers with a UDP length that agrees.
// What it refuses is looked at again by locate: a short cut, not a second
// opinion.
func (d Finder) plain(h *[plainSize]byte, total uint32) bool {
	port := uint32(d.UDPPort)
	if port == 0 {
		port = Port
	}
	return binary.BigEndian.Uint32(h[12:])>>8 == EtherTypeIPv4<<8|0x45 &&
		binary.BigEndian.Uint32(h[20:])&0x3fff00ff == protocolUDP &&
		binary.BigEndian.Uint32(h[36:]) == port<<16+total-ipv4Size
}

// Find is Decode without the packet: it fills all but f.Packet, which is left
// alone, and so tells addresses and Transport bytes of a packet that cannot be
// decoded.
func (d Finder) Find(link Link, b []byte, wireLen int, f *Frame) error {
	s, err := d.locate(link, b, wireLen)
	if err != nil {
		return err
	}
	f.fill(link, b, &s)
	return nil
}

func (d Finder) locate(link Link, b []byte, wireLen int) (s span, err error) {
	port := d.UDPPort
	if port == 0 {
		port = Port
	}
	wireLen = max(wireLen, len(b))
	var etherType uint16
	switch link {
	case Ethernet:
		if len(b) < ethernetSize {
			return s, ErrTruncated
		}
		s.netOff = ethernetSize
		etherType = binary.BigEndian.Uint16(b[12:])
	case RawIP, RawIPv4, RawIPv6:
		if len(b) == 0 {
			return s, ErrTruncated
		}
		switch {
		case b[0]>>4 == 4 && link != RawIPv6:
			etherType = EtherTypeIPv4
		case b[0]>>4 == 6 && link != RawIPv4:
			etherType = EtherTypeIPv6
		}
	case LinuxSLL:
		if len(b) < sllSize {
			return s, ErrTruncated
		}
		s.netOff = sllSize
		etherType = binary.BigEndian.Uint16(b[14:])
	case LinuxSLL2:
		if len(b) < sll2Size {
			return s, ErrTruncated
		}
		s.netOff = sll2Size
		etherType = binary.BigEndian.Uint16(b)
	default:
		return s, ErrLink
	}
	for (etherType == EtherTypeVLAN || etherType == EtherTypeQinQ) && s.vlans < 2 {
		if len(b) < s.netOff+4 {
			return s, ErrTruncated
		}
		etherType = binary.BigEndian.Uint16(b[s.netOff+2:])
		s.netOff += 4
		s.vlans++
	}
	switch etherType {
	case EtherTypeIPv4:
		return s, s.locateIPv4(b, wireLen, port)
	case EtherTypeIPv6:
		return s, s.locateIPv6(b, wireLen, port)
	case EtherTypeRoCE:
		return s, s.locateGRH(b, wireLen)
	}
	return s, ErrNotRoCE
}

func (s *span) locateIPv4(b []byte, wireLen int, port uint16) error {
	h := b[s.netOff:]
	if len(h) < ipv4Size {
		return ErrTruncated
	}
	if h[0]>>4 != 4 || h[9] != protocolUDP {
		return ErrNotRoCE
	}
	ihl := int(h[0]&0xf) * 4
	if ihl < ipv4Size {
		return ErrLength
	}
	frag := binary.BigEndian.Uint16(h[6:])
	if frag&0x1fff != 0 {
		return ErrFragment
	}
	if len(h) < ihl+udpSize {
		return ErrTruncated
	}
	if binary.BigEndian.Uint16(h[ihl+2:]) != port {
		return ErrNotRoCE
	}
	if frag&0x2000 != 0 {
		return ErrFragment
	}
	total := int(binary.BigEndian.Uint16(h[2:]))
	if int(binary.BigEndian.Uint16(h[ihl+4:])) != total-ihl {
		return ErrLength
	}
	s.net = IPv4
	return s.lengths(wireLen, ihl+udpSize, total)
}

func (s *span) locateIPv6(b []byte, wireLen int, port uint16) error {
	h := b[s.netOff:]
	if len(h) < ipv6Size {
		return ErrTruncated
	}
	// An extension header before the UDP header is never a RNIC's.
	if h[0]>>4 != 6 || h[6] != protocolUDP {
		return ErrNotRoCE
	}
	if len(h) < ipv6Size+udpSize {
		return ErrTruncated
	}
	if binary.BigEndian.Uint16(h[ipv6Size+2:]) != port {
		return ErrNotRoCE
	}
	n := int(binary.BigEndian.Uint16(h[4:]))
	if int(binary.BigEndian.Uint16(h[ipv6Size+4:])) != n {
		return ErrLength
	}
	s.net = IPv6
	return s.lengths(wireLen, ipv6Size+udpSize, ipv6Size+n)
}

func (s *span) locateGRH(b []byte, wireLen int) error {
	h := b[s.netOff:]
	if len(h) < ipv6Size {
		return ErrTruncated
	}
	if h[0]>>4 != 6 || h[6] != nextHeaderBTH {
		return ErrNotRoCE
	}
	s.net = GRH
	return s.lengths(wireLen, ipv6Size, ipv6Size+int(binary.BigEndian.Uint16(h[4:])))
}

// lengths takes the lengths of the headers and of the network packet.
func (s *span) lengths(wireLen, headers, total int) error {
	if total < headers || s.netOff+total > wireLen {
		return ErrLength
	}
	s.transport = s.netOff + headers
	s.end = s.netOff + total
	return nil
}

// fill sets all but the packet. The lengths were checked by locate.
func (f *Frame) fill(link Link, b []byte, s *span) {
	f.Link = link
	f.VLANs = s.vlans
	f.VLAN = [2]VLAN{}
	if link == Ethernet {
		f.DstMAC = MAC(b[0:6])
		f.SrcMAC = MAC(b[6:12])
	} else {
		f.DstMAC, f.SrcMAC = MAC{}, MAC{}
	}
	for i := range s.vlans {
		// The tags end where the network header begins. A TPID stands before
		// its tag, but that of the first in a cooked header, version 2, at its
		// start.
		tci := s.netOff - 4*int(s.vlans-i)
		tpid := tci - 2
		if link == LinuxSLL2 && i == 0 {
			tpid = 0
		}
		f.VLAN[i] = VLAN{binary.BigEndian.Uint16(b[tpid:]), binary.BigEndian.Uint16(b[tci:])}
	}

	h := b[s.netOff:s.transport:s.transport]
	f.Net = s.net
	f.SrcPort, f.DstPort, f.UDPChecksum = 0, 0, 0
	if s.net == IPv4 {
		f.TrafficClass = h[1]
		f.HopLimit = h[8]
		f.FlowLabel = 0
		f.ID = binary.BigEndian.Uint16(h[4:])
		f.DF = h[6]&0x40 != 0
		f.ReservedFlag = h[6]&0x80 != 0
		f.Src = netip.AddrFrom4([4]byte(h[12:16]))
		f.Dst = netip.AddrFrom4([4]byte(h[16:20]))
		f.Options = nil
		u := len(h) - udpSize
		if u > ipv4Size {
			f.Options = h[ipv4Size:u:u]
		}
		f.udp(h[u:])
	} else {
		v := binary.BigEndian.Uint32(h)
		f.TrafficClass = uint8(v >> 20)
		f.FlowLabel = v & 0xfffff
		f.HopLimit = h[7]
		f.ID, f.DF, f.ReservedFlag, f.Options = 0, false, false, nil
		f.Src = netip.AddrFrom16([16]byte(h[8:24]))
		f.Dst = netip.AddrFrom16([16]byte(h[24:40]))
		if s.net == IPv6 {
			f.udp(h[ipv6Size:])
		}
	}

	end := min(s.end, len(b))
	f.NetPacket = b[s.netOff:end:end]
	f.Transport = b[min(s.transport, end):end:end]
	f.TransportLen = s.end - s.transport
	f.Trailer = nil
	if len(b) > end {
		f.Trailer = b[end:len(b):len(b)]
	}
}

func (f *Frame) udp(u []byte) {
	_ = u[udpSize-1]
	f.SrcPort = binary.BigEndian.Uint16(u)
	f.DstPort = binary.BigEndian.Uint16(u[2:])
	f.UDPChecksum = binary.BigEndian.Uint16(u[6:])
}
