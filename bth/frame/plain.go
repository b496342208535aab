package frame

import (
	"encoding/binary"
	"net/netip"

	"github.com/roce-go/roce/bth"
)

// decodePlain is Decode with a short cut for the most common layouts.
func (d *Finder) decodePlain(link Link, b []byte, wireLen int, f *Frame) error {
	if link != Ethernet || len(b) < plainSize {
		return d.decode(link, b, wireLen, f)
	}
	h := (*[plainSize]byte)(b)
	if h[12] == EtherTypeIPv6>>8 && len(b) >= plainSize6 && d.TrimmedDSCP == 0 {
		h := (*[plainSize6]byte)(b)
		n := int(binary.BigEndian.Uint16(h[18:]))
		end := ethernetSize + ipv6Size + n
		if d.plain6(h, uint32(n)) && n >= udpSize+bth.MinSize && end <= len(b) {
			if f.MRC == nil {
				if err := f.Packet.Decode(b[plainSize6:end:end]); err != nil {
					return err
				}
			} else if err := f.decodeEither(b[plainSize6:end:end], end-plainSize6, IPv6, false); err != nil {
				return err
			}
			f.plainLink((*[ethernetSize]byte)(h[:]), IPv6, end-plainSize6)
			v := binary.BigEndian.Uint32(h[14:])
			f.TrafficClass = uint8(v >> 20)
			f.HopLimit = h[21]
			f.FlowLabel = v & 0xfffff
			f.ID, f.DF, f.ReservedFlag = 0, false, false
			f.SrcPort = binary.BigEndian.Uint16(h[54:])
			f.DstPort = binary.BigEndian.Uint16(h[56:])
			f.UDPChecksum = binary.BigEndian.Uint16(h[60:])
			src, dst := netip.AddrFrom16([16]byte(h[22:38])), netip.AddrFrom16([16]byte(h[38:54]))
			netPacket, transport := b[ethernetSize:end:end], b[plainSize6:end:end]
			f.Src = src
			f.Dst = dst
			f.Options = nil
			f.NetPacket = netPacket
			f.Trailer = behind(b, end)
			f.Transport = transport
			return nil
		}
	}
	total := int(binary.BigEndian.Uint16(h[16:]))
	end := ethernetSize + total
	if !d.plain(h, uint32(total)) || total < ipv4Size+udpSize+bth.MinSize || end > len(b) ||
		d.TrimmedDSCP>>(h[15]>>2)&1 != 0 {
		return d.decode(link, b, wireLen, f)
	}
	if f.MRC == nil {
		if err := f.Packet.Decode(b[plainSize:end:end]); err != nil {
			return err
		}
	} else if err := f.decodeEither(b[plainSize:end:end], total-ipv4Size-udpSize, IPv4, false); err != nil {
		return err
	}
	f.plainLink((*[ethernetSize]byte)(h[:]), IPv4, end-plainSize)
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
	// All stores of pointers are together, after all loads, so that the write barrier is
	// tested for once.
	src, dst := netip.AddrFrom4([4]byte(h[26:30])), netip.AddrFrom4([4]byte(h[30:34]))
	netPacket, transport := b[ethernetSize:end:end], b[plainSize:end:end]
	f.Src = src
	f.Dst = dst
	f.Options = nil
	f.NetPacket = netPacket
	f.Trailer = behind(b, end)
	f.Transport = transport
	return nil
}

// plainLink sets what all plain frames have in common; h is the Ethernet header. It is
// inlined. To share the stores of pointers too would cost a call: 3 of the 20 ns that a
// frame takes.
func (f *Frame) plainLink(h *[ethernetSize]byte, n Net, transportLen int) {
	f.DstMAC = MAC(h[0:6])
	f.SrcMAC = MAC(h[6:12])
	f.Link = Ethernet
	f.Net = n
	f.VLANs = 0
	f.VLAN = [MaxVLANs]VLAN{}
	f.TransportLen = transportLen
	f.Trimmed = false
	if f.Outer.layers.n != 0 {
		f.Outer = Outer{}
	}
}

// behind returns what of b is after end, or nil.
func behind(b []byte, end int) []byte {
	if len(b) == end {
		return nil
	}
	return b[end:len(b):len(b)]
}

// plainSize is the length of the headers before the BTH of nearly all frames:
// Ethernet without tags, IPv4 without options, UDP.
const plainSize = ethernetSize + ipv4Size + udpSize

// plain reports whether h are such headers with a UDP length that agrees.
// It only decides whether the short cut applies; locate decides all other cases.
func (d *Finder) plain(h *[plainSize]byte, total uint32) bool {
	return binary.BigEndian.Uint32(h[12:])>>8 == EtherTypeIPv4<<8|0x45 &&
		binary.BigEndian.Uint32(h[20:])&0x3fff00ff == protocolUDP &&
		binary.BigEndian.Uint32(h[36:]) == uint32(d.port())<<16+total-ipv4Size
}

// plainSize6 is the length of Ethernet without tags, IPv6 and UDP.
const plainSize6 = ethernetSize + ipv6Size + udpSize

// plain6 is plain for such headers, of which n is the payload length of IPv6.
func (d *Finder) plain6(h *[plainSize6]byte, n uint32) bool {
	return binary.BigEndian.Uint32(h[12:])>>12 == EtherTypeIPv6<<4|6 &&
		h[20] == protocolUDP &&
		binary.BigEndian.Uint32(h[56:]) == uint32(d.port())<<16+n
}
