package rocelayers

import (
	"encoding/binary"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

const (
	ipv4Size       = 20
	ipv6Size       = 40
	udpSize        = 8
	maxIPv4Options = 40
	maxNetwork     = ipv4Size + maxIPv4Options + udpSize // the longest, before a BTH
)

// appendNetwork appends the headers before the BTH as their layers will write
// them around n bytes of transport packet. Fields that the ICRC masks are zero.
func (b *BTH) appendNetwork(dst []byte, n int, fix bool) ([]byte, error) {
	switch ip := b.network.(type) {
	case *layers.IPv4:
		return b.appendIPv4(dst, ip, n, fix)
	case *layers.IPv6:
		src, to := ip.SrcIP.To16(), ip.DstIP.To16()
		if ip.HopByHop != nil || src == nil || to == nil {
			return dst, ErrNetworkLayer
		}
		if udpSize+n > 0xffff {
			return dst, bth.ErrRange
		}
		length := ip.Length
		if fix {
			length = uint16(udpSize + n)
		}
		dst = append(dst, ip.Version<<4, 0, 0, 0)
		dst = binary.BigEndian.AppendUint16(dst, length)
		dst = append(dst, byte(ip.NextHeader), 0)
		dst = append(dst, src...)
		return b.appendUDP(append(dst, to...), n, fix), nil
	case *GRH:
		return ip.appendTo(dst, n, fix)
	}
	return dst, ErrNoNetworkLayer
}

func (b *BTH) appendIPv4(dst []byte, ip *layers.IPv4, n int, fix bool) ([]byte, error) {
	src, to := ip.SrcIP.To4(), ip.DstIP.To4()
	if src == nil || to == nil {
		return dst, ErrNetworkLayer
	}
	options := 0
	for i := range ip.Options {
		o := &ip.Options[i]
		switch {
		case o.OptionType <= 1:
			options++
		case o.OptionLength < 2 || len(o.OptionData) != int(o.OptionLength)-2:
			return dst, ErrNetworkLayer
		default:
			options += int(o.OptionLength)
		}
	}
	// gopacket does not initialise the bytes after the last option, so their values
	// are not known yet.
	if options%4 != 0 || options > maxIPv4Options {
		return dst, ErrNetworkLayer
	}
	total := ipv4Size + options + udpSize + n
	if total > 0xffff {
		return dst, bth.ErrRange
	}
	ihl, length := ip.IHL, ip.Length
	if fix {
		ihl, length = uint8(ipv4Size+options)/4, uint16(total)
	}
	dst = append(dst, ip.Version<<4|ihl, 0)
	dst = binary.BigEndian.AppendUint16(dst, length)
	dst = binary.BigEndian.AppendUint16(dst, ip.Id)
	dst = binary.BigEndian.AppendUint16(dst, uint16(ip.Flags)<<13|ip.FragOffset)
	dst = append(dst, 0, byte(ip.Protocol), 0, 0)
	dst = append(dst, src...)
	dst = append(dst, to...)
	for i := range ip.Options {
		o := &ip.Options[i]
		dst = append(dst, o.OptionType)
		if o.OptionType > 1 {
			dst = append(append(dst, o.OptionLength), o.OptionData...)
		}
	}
	return b.appendUDP(dst, n, fix), nil
}

func (b *BTH) appendUDP(dst []byte, n int, fix bool) []byte {
	length := b.udp.Length
	if fix {
		length = uint16(udpSize + n)
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(b.udp.SrcPort))
	dst = binary.BigEndian.AppendUint16(dst, uint16(b.udp.DstPort))
	dst = binary.BigEndian.AppendUint16(dst, length)
	return append(dst, 0, 0)
}

// CheckICRC computes the ICRC of a decoded RoCE packet and compares it with the ICRC
// in the packet. The argument is the network layer, a *layers.IPv4, *layers.IPv6 or
// *GRH, for example the result of packet.NetworkLayer. If it carries a tunnel, the
// RoCE packet inside is checked. The result is frame.ICRCUnchecked for everything
// that is not RoCE (TCP, DNS, a fragment, another layer) and for packets that the
// capture has truncated.
//
// RoCE v2 is recognised by the UDP destination port: 4791, or another port that was
// registered in gopacket with LayerTypeBTH. The layer must alias the packet it was
// decoded from, as gopacket's layers do.
func CheckICRC(network gopacket.Layer) frame.ICRCState {
	switch l := network.(type) {
	case *layers.IPv4:
		return checkIP(whole(l.Contents, l.Payload), 4*int(l.IHL))
	case *layers.IPv6:
		return checkIP(whole(l.Contents, l.Payload), ipv6Size)
	case *GRH:
		switch {
		case l.NextHeader != NextHeaderBTH || len(l.packet) != ipv6Size+int(l.Length):
		case crc.Check(l.packet):
			return frame.ICRCGood
		default:
			return frame.ICRCBad
		}
	}
	return frame.ICRCUnchecked
}

// checkIP checks the RoCE packet in the IP packet pkt, whose UDP header, if it has
// one, is at offset udp.
func checkIP(pkt []byte, udp int) frame.ICRCState {
	find := frame.Finder{Tunnels: true}
	if len(pkt) >= udp+udpSize {
		if port := binary.BigEndian.Uint16(pkt[udp+2:]); layers.UDPPort(port).LayerType() == LayerTypeBTH {
			find.UDPPort = port
		}
	}
	var declared int // gopacket leaves out what the capture has cut
	switch {
	case len(pkt) < ipv4Size:
		return frame.ICRCUnchecked
	case pkt[0]>>4 == 4:
		declared = int(binary.BigEndian.Uint16(pkt[2:]))
	case len(pkt) >= ipv6Size:
		declared = ipv6Size + int(binary.BigEndian.Uint16(pkt[4:]))
	}
	var f frame.Frame
	if find.Find(frame.RawIP, pkt, declared, &f) != nil {
		return frame.ICRCUnchecked
	}
	return f.CheckICRC()
}

// whole joins two adjacent slices, or returns nil.
func whole(contents, payload []byte) []byte {
	n := len(contents) + len(payload)
	if len(payload) == 0 || cap(contents) < n {
		return nil
	}
	pkt := contents[:n:n]
	if &pkt[len(contents)] != &payload[0] {
		return nil
	}
	return pkt
}
