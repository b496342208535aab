package frame

import (
	"encoding/binary"
	"net/netip"
)

// Finder finds RoCE packets in frames. The zero value accepts what a network adapter
// accepts as RoCE, on the standard port. The options are for captures.
type Finder struct {
	// UDPPort is the UDP destination port of RoCE v2; 0 means Port.
	UDPPort uint16
	// Tunnels: also find packets inside up to MaxTunnels tunnels of the kinds listed
	// at TunnelKind. Frame.Outer then describes the tunnels.
	Tunnels bool
	// VXLANPorts are UDP destination ports of VXLAN beside 4789 and 8472.
	VXLANPorts []uint16
	// Sliced: a frame that is shorter on the wire than its headers say counts as
	// truncated. Switches truncate the copies that they mirror, and a capture of such
	// a copy has no other sign of it. A sender that writes wrong lengths looks the
	// same. Without Sliced such a frame is ErrLength.
	Sliced bool
	// TrimmedDSCP is the set of DSCP values of MRC packets that the network's switches have
	// trimmed, which no other field shows: bit n for value n. Such a packet may have
	// lengths that disagree.
	TrimmedDSCP uint64
}

func (d *Finder) port() uint16 {
	if d.UDPPort == 0 {
		return Port
	}
	return d.UDPPort
}

// span says where the parts of a frame lie, as offsets.
type span struct {
	net       Net
	vlans     uint8
	link      Link // of the innermost frame
	start     int  // where that frame starts
	netOff    int  // network header
	transport int  // BTH
	end       int  // after the ICRC, as the headers say
	limit     int  // where the innermost frame ends at the latest
	trimmed   bool // MRC: cut by a switch

	// For a frame that is not RoCE: what it is, where the header of that protocol
	// begins, or 0, and whether an IPv6 segment routing header stands before it.
	what     Protocol
	after    int
	segments bool

	layers layers
}

// Decode reads the frame b of the standard port: what is around the packet and
// the packet itself. On an error, one of this package's or bth's, f is
// unchanged.
func (f *Frame) Decode(link Link, b []byte) error { return standard.decodePlain(link, b, len(b), f) }

// standard is the zero Finder.
var standard Finder

// Decode reads a frame of which a capture kept b, and that had wireLen bytes on
// the wire. Where headers were kept but not all of the packet, the frame is
// decoded, Truncated reports true and the ICRC can't be checked. On an error,
// one of this package's or bth's, f is unchanged. A packet with several faults
// reports the outermost.
func (d Finder) Decode(link Link, b []byte, wireLen int, f *Frame) error {
	return d.decodePlain(link, b, wireLen, f)
}

func (d *Finder) decode(link Link, b []byte, wireLen int, f *Frame) error {
	s, err := d.locate(link, b, wireLen)
	if err != nil {
		return err
	}
	end := min(s.end, s.limit, len(b))
	if f.MRC == nil {
		err = f.Packet.DecodePrefix(b[s.transport:end], s.end-s.transport)
	} else {
		err = f.decodeEither(b[s.transport:end], s.end-s.transport, s.net, s.trimmed)
	}
	if err != nil {
		return err
	}
	f.fill(link, b, &s)
	return nil
}

// Find is Decode without the packet: it sets all fields but f.Packet. It gives the
// addresses and the Transport bytes of a packet that cannot be decoded.
func (d Finder) Find(link Link, b []byte, wireLen int, f *Frame) error {
	s, err := d.locate(link, b, wireLen)
	if err != nil {
		return err
	}
	f.fill(link, b, &s)
	return nil
}

// locate finds a packet in the frame, or in the tunnels in it.
func (d *Finder) locate(link Link, b []byte, wireLen int) (s span, err error) {
	s.limit = max(wireLen, len(b))
	s.link = link
	err = d.locateLink(b, &s)
	for d.Tunnels && err == ErrNotRoCE && int(s.layers.n) < MaxTunnels {
		in, ok := d.enter(b, &s)
		if !ok || in.off > min(s.limit, s.end, 0xffff) { // a packet that ends before what it carries
			break
		}
		s.layers.all[s.layers.n] = layer{in.kind, s.net, s.vlans, s.link == LinuxSLL2 && s.start == 0, uint16(s.netOff), uint16(s.after)}
		s.layers.n++
		s = span{layers: s.layers, start: in.off, netOff: in.off, limit: min(s.limit, s.end), what: Protocol{In: in.kind}}
		b = b[:min(len(b), s.limit)]
		if in.etherType == inEthernet {
			s.link = Ethernet
			err = d.locateLink(b, &s)
		} else {
			s.link = RawIP
			err = d.locateNet(b, &s, uint16(in.etherType))
		}
	}
	return s, err
}

// locateLink reads the link header at s.start, tags, and what follows.
func (d *Finder) locateLink(b []byte, s *span) error {
	s.what.Kind, s.what.Number = LinkType, uint16(s.link)
	etherType, off, vlans, err := linkHeader(s.link, b[s.start:])
	if err != nil {
		return err
	}
	s.netOff, s.vlans = s.start+off, vlans
	return d.locateNet(b, s, etherType)
}

// NetworkOffset returns the offset of the network header of frame b, after the link header
// and up to MaxVLANs tags; its Ethertype; and the number of tags, which end there. It fails
// with ErrTruncated; with ErrLink; or with ErrNotRoCE for what is no IP packet on a link of
// IP packets.
func NetworkOffset(link Link, b []byte) (etherType uint16, off, vlans int, err error) {
	etherType, off, n, err := linkHeader(link, b)
	return etherType, off, int(n), err
}

func linkHeader(link Link, h []byte) (etherType uint16, off int, vlans uint8, err error) {
	switch link {
	case Ethernet:
		if len(h) < ethernetSize {
			return 0, 0, 0, ErrTruncated
		}
		off = ethernetSize
		etherType = binary.BigEndian.Uint16(h[ethernetTypeOffset:])
	case RawIP, RawIPv4, RawIPv6:
		if len(h) == 0 {
			return 0, 0, 0, ErrTruncated
		}
		switch {
		case h[0]>>4 == 4 && link != RawIPv6:
			etherType = EtherTypeIPv4
		case h[0]>>4 == 6 && link != RawIPv4:
			etherType = EtherTypeIPv6
		default:
			return 0, 0, 0, ErrNotRoCE
		}
	case LinuxSLL:
		if len(h) < sllSize {
			return 0, 0, 0, ErrTruncated
		}
		off = sllSize
		etherType = binary.BigEndian.Uint16(h[14:])
	case LinuxSLL2:
		if len(h) < sll2Size {
			return 0, 0, 0, ErrTruncated
		}
		off = sll2Size
		etherType = binary.BigEndian.Uint16(h)
	default:
		return 0, 0, 0, ErrLink
	}
	for isTag(etherType) && vlans < MaxVLANs {
		if len(h) < off+4 {
			return 0, 0, 0, ErrTruncated
		}
		etherType = binary.BigEndian.Uint16(h[off+2:])
		off += 4
		vlans++
	}
	return etherType, off, vlans, nil
}

// isTag reports whether Ethertype t is that of a VLAN tag.
func isTag(t uint16) bool {
	return t == EtherTypeVLAN || t == EtherTypeQinQ || t == EtherTypeOldQinQ
}

// locateNet reads the network header at s.netOff.
func (d *Finder) locateNet(b []byte, s *span, etherType uint16) error {
	s.what.Kind, s.what.Number = EtherType, etherType
	switch etherType {
	case EtherTypeIPv4:
		return d.locateIPv4(b, s)
	case EtherTypeIPv6:
		return d.locateIPv6(b, s)
	case EtherTypeRoCE:
		return d.locateGRH(b, s)
	}
	s.after, s.end = s.netOff, s.limit
	return ErrNotRoCE
}

func (d *Finder) locateIPv4(b []byte, s *span) error {
	h := b[s.netOff:]
	if len(h) < ipv4Size {
		return ErrTruncated
	}
	if h[0]>>4 != 4 {
		return ErrNotRoCE
	}
	s.what.Kind, s.what.Number = IPProtocol, uint16(h[9])
	ihl := int(h[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(h[2:]))
	s.net = IPv4
	s.end = s.netOff + total
	frag := binary.BigEndian.Uint16(h[6:])
	switch {
	case frag&0x1fff != 0: // only the first fragment has the port
		s.what.Kind = IPFragment
		return ErrNotRoCE
	case h[9] != protocolUDP:
		if ihl >= ipv4Size && total > ihl {
			s.after = s.netOff + ihl
		}
		return ErrNotRoCE
	case ihl < ipv4Size:
		return ErrLength
	case len(h) < ihl+udpSize:
		if len(h) >= ihl+4 {
			s.what.Kind, s.what.Number = UDPPort, binary.BigEndian.Uint16(h[ihl+2:])
		}
		return ErrTruncated
	}
	s.what.Kind, s.what.Number = UDPPort, binary.BigEndian.Uint16(h[ihl+2:])
	switch {
	case s.what.Number != d.port():
		s.udpPayload(h[ihl:], s.netOff+ihl)
		return ErrNotRoCE
	case frag&0x2000 != 0:
		return ErrFragment
	case d.TrimmedDSCP != 0 && d.trimmedBehind(s, h, ihl+udpSize, h[1], s.end):
		return nil
	case int(binary.BigEndian.Uint16(h[ihl+4:])) != total-ihl:
		return ErrLength
	}
	return d.lengths(s, ihl+udpSize)
}

// udpPayload sets where the payload of the datagram begins and ends, whose UDP
// header h is at offset at. A length below that of the header is ignored.
func (s *span) udpPayload(h []byte, at int) {
	if n := int(binary.BigEndian.Uint16(h[4:])); n >= udpSize {
		s.after = at + udpSize
		s.end = min(s.end, at+n)
	}
}

func (d *Finder) locateIPv6(b []byte, s *span) error {
	h := b[s.netOff:]
	if len(h) < ipv6Size {
		return ErrTruncated
	}
	if h[0]>>4 != 6 {
		return ErrNotRoCE
	}
	n := int(binary.BigEndian.Uint16(h[4:]))
	s.net = IPv6
	s.end = s.netOff + ipv6Size + n
	s.what.Kind, s.what.Number = IPProtocol, uint16(h[6])
	if h[6] != protocolUDP {
		s.extensions(h)
		return ErrNotRoCE
	}
	if len(h) < ipv6Size+udpSize {
		if len(h) >= ipv6Size+4 {
			s.what.Kind, s.what.Number = UDPPort, binary.BigEndian.Uint16(h[ipv6Size+2:])
		}
		return ErrTruncated
	}
	s.what.Kind, s.what.Number = UDPPort, binary.BigEndian.Uint16(h[ipv6Size+2:])
	if s.what.Number != d.port() {
		s.udpPayload(h[ipv6Size:], s.netOff+ipv6Size)
		return ErrNotRoCE
	}
	if d.TrimmedDSCP != 0 && d.trimmedBehind(s, h, ipv6Size+udpSize, uint8(binary.BigEndian.Uint16(h)>>4), s.end) {
		return nil
	}
	if int(binary.BigEndian.Uint16(h[ipv6Size+4:])) != n {
		return ErrLength
	}
	return d.lengths(s, ipv6Size+udpSize)
}

// extensions skips the extension headers of the IPv6 packet h to find what it carries. A
// UDP header behind one is never a RNIC's: that packet keeps the name of its first
// extension header.
func (s *span) extensions(h []byte) {
	next, off := h[6], ipv6Size
	for range maxExtensions {
		switch next {
		case extHopByHop, extRouting, extFragment, extDestination:
		case protocolUDP:
			return
		default:
			s.what.Number, s.after = uint16(next), s.netOff+off
			return
		}
		if len(h) < off+8 {
			return
		}
		size := 8 + 8*int(h[off+1])
		switch {
		case next == extRouting && h[off+2] == routingSegment:
			s.segments = true
		case next == extFragment:
			size = 8
			if binary.BigEndian.Uint16(h[off+2:])&0xfff8 != 0 {
				s.what.Kind, s.what.Number = IPFragment, uint16(h[off])
				return
			}
		}
		next = h[off]
		off += size
	}
}

func (d *Finder) locateGRH(b []byte, s *span) error {
	h := b[s.netOff:]
	if len(h) < ipv6Size {
		return ErrTruncated
	}
	if h[0]>>4 != 6 || h[6] != nextHeaderBTH {
		return ErrNotRoCE
	}
	s.net = GRH
	s.end = s.netOff + ipv6Size + int(binary.BigEndian.Uint16(h[4:]))
	return d.lengths(s, ipv6Size)
}

// lengths checks s.end, given the length of the headers before the BTH.
func (d *Finder) lengths(s *span, headers int) error {
	s.transport = s.netOff + headers
	if s.end < s.transport || s.end > s.limit && !d.Sliced {
		return ErrLength
	}
	return nil
}

// readTags reads the len(tags) tags that end at offset end of frame b. A TPID
// stands before its tag, but that of the first in a cooked header, version 2, at
// the start of the frame.
func readTags(b []byte, end int, v2 bool, tags []VLAN) {
	for i := range tags {
		tci := end - 4*(len(tags)-i)
		tpid := tci - 2
		if v2 && i == 0 {
			tpid = 0
		}
		tags[i] = VLAN{binary.BigEndian.Uint16(b[tpid:]), binary.BigEndian.Uint16(b[tci:])}
	}
}

// fill sets all but the packet. The lengths were checked by locate.
func (f *Frame) fill(link Link, b []byte, s *span) {
	b = b[:min(len(b), s.limit)]
	f.Link = s.link
	f.Outer = Outer{}
	if s.layers.n > 0 {
		f.Outer = Outer{link, b[:s.start:s.start], s.layers}
	}
	f.VLANs = s.vlans
	f.VLAN = [MaxVLANs]VLAN{}
	if s.link == Ethernet {
		f.DstMAC = MAC(b[s.start:])
		f.SrcMAC = MAC(b[s.start+6:])
	} else {
		f.DstMAC, f.SrcMAC = MAC{}, MAC{}
	}
	readTags(b, s.netOff, s.link == LinuxSLL2, f.VLAN[:s.vlans])

	f.fillNet(b[s.netOff:s.transport:s.transport], s.net)
	end := min(s.end, len(b))
	f.NetPacket = b[s.netOff:end:end]
	f.Transport = b[min(s.transport, end):end:end]
	f.TransportLen = s.end - s.transport
	f.Trimmed = s.trimmed
	f.Trailer = nil
	if len(b) > end {
		f.Trailer = b[end:len(b):len(b)]
	}
}

// fillNet sets the fields of the network header, and UDP, from h.
func (f *Frame) fillNet(h []byte, net Net) {
	f.Net = net
	f.SrcPort, f.DstPort, f.UDPChecksum = 0, 0, 0
	if net == IPv4 {
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
		if net == IPv6 {
			f.udp(h[ipv6Size:])
		}
	}
}

func (f *Frame) udp(u []byte) {
	_ = u[udpSize-1]
	f.SrcPort = binary.BigEndian.Uint16(u)
	f.DstPort = binary.BigEndian.Uint16(u[2:])
	f.UDPChecksum = binary.BigEndian.Uint16(u[6:])
}
