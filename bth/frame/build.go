package frame

import (
	"encoding/binary"
	"fmt"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/crc"
)

// MaxHeaderSize is the most that a frame has besides payload and pad, in bytes:
// Ethernet with all tags, IPv4 with all options or IPv6, UDP, the longest
// transport headers, and the ICRC.
const MaxHeaderSize = ethernetSize + 4*MaxVLANs + ipv4Size + maxIPv4Options + udpSize + bth.MaxHeaderSize + bth.ICRCSize

// AppendTo appends the frame to dst: an Ethernet header if Link is Ethernet, the
// network header that Net names (IPv6 if Net is not set), UDP except behind a GRH,
// and the packet. It computes the lengths, the IPv4 header checksum and the ICRC.
// Everything else is written as the fields say, including a HopLimit of 0 and the
// UDP checksum (0 is valid for IPv4, and what RNICs send over IPv6). One exception:
// DstPort 0 means Port. The caller pads short Ethernet frames to 60 bytes.
//
// It never fails, and masks fields to their widths: see Validate. Payload and
// Options must not lie in the free capacity of dst: of a frame that was decoded
// from there and grows, the payload would be overwritten before it is copied.
func (f *Frame) AppendTo(dst []byte) []byte {
	if f.Link == Ethernet {
		dst = f.appendEthernet(dst)
	}
	start := len(dst)
	dst = f.AppendNetworkTo(dst)
	if f.Net != GRH {
		port := f.DstPort
		if port == 0 {
			port = Port
		}
		dst = binary.BigEndian.AppendUint32(dst, uint32(f.SrcPort)<<16|uint32(port))
		dst = binary.BigEndian.AppendUint32(dst, uint32(uint16(udpSize+f.packetSize()))<<16|uint32(f.UDPChecksum))
	}
	if f.IsMRC() {
		return f.appendMRC(dst, start)
	}
	dst = f.Packet.AppendHeadersTo(dst)
	pad := int(f.Packet.PadCnt & 3)
	if f.Packet.Pad == [3]byte{} {
		return crc.AppendPayload(dst, start, f.Packet.Payload, pad)
	}
	dst = append(dst, f.Packet.Payload...)
	dst = append(dst, f.Packet.Pad[:pad]...)
	return crc.Append(dst, start)
}

// Size returns the length in bytes of what AppendTo appends.
func (f *Frame) Size() int {
	n := ipv6Size + f.packetSize()
	if f.Net == IPv4 {
		n += ipv4Size - ipv6Size + len(f.options())
	}
	if f.Net != GRH {
		n += udpSize
	}
	if f.Link == Ethernet {
		n += ethernetSize + 4*int(min(f.VLANs, MaxVLANs))
	}
	return n
}

// AppendNetworkTo appends only the network header (IPv4: with its options), as
// AppendTo does. A UD receive has these bytes in front of the payload.
func (f *Frame) AppendNetworkTo(dst []byte) []byte {
	n := f.packetSize()
	if f.Net != GRH {
		n += udpSize
	}
	if f.Net == IPv4 {
		return f.appendIPv4(dst, n)
	}
	return f.appendIPv6(dst, n)
}

func (f *Frame) appendEthernet(dst []byte) []byte {
	dst = append(dst, f.DstMAC[:]...)
	dst = append(dst, f.SrcMAC[:]...)
	for _, v := range f.VLAN[:min(f.VLANs, MaxVLANs)] {
		dst = binary.BigEndian.AppendUint16(dst, v.TPID)
		dst = binary.BigEndian.AppendUint16(dst, v.TCI)
	}
	return binary.BigEndian.AppendUint16(dst, f.Net.etherType())
}

// etherType returns the Ethertype that announces the network header; that of IPv6
// if n is not set.
func (n Net) etherType() uint16 {
	switch n {
	case IPv4:
		return EtherTypeIPv4
	case GRH:
		return EtherTypeRoCE
	}
	return EtherTypeIPv6
}

// options returns the IPv4 options that fit.
func (f *Frame) options() []byte { return f.Options[:min(len(f.Options), maxIPv4Options)&^3] }

func (f *Frame) appendIPv4(dst []byte, payload int) []byte {
	start := len(dst)
	options := f.options()
	ihl := ipv4Size + len(options)
	flags := uint32(0)
	if f.DF {
		flags |= 0x4000
	}
	if f.ReservedFlag {
		flags |= 0x8000
	}
	dst = binary.BigEndian.AppendUint32(dst,
		uint32(0x40|ihl/4)<<24|uint32(f.TrafficClass)<<16|uint32(uint16(ihl+payload)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.ID)<<16|flags)
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.HopLimit)<<24|protocolUDP<<16)
	// An address that is not IPv4 is written as zero: AppendTo never fails.
	var src, dstAddr [4]byte
	if f.Src.Is4() || f.Src.Is4In6() {
		src = f.Src.As4()
	}
	if f.Dst.Is4() || f.Dst.Is4In6() {
		dstAddr = f.Dst.As4()
	}
	dst = append(dst, src[:]...)
	dst = append(dst, dstAddr[:]...)
	dst = append(dst, options...)
	binary.BigEndian.PutUint16(dst[start+10:], ^OnesSum(0, dst[start:]))
	return dst
}

func (f *Frame) appendIPv6(dst []byte, payload int) []byte {
	next := uint32(protocolUDP)
	if f.Net == GRH {
		next = nextHeaderBTH
	}
	dst = binary.BigEndian.AppendUint32(dst, 6<<28|uint32(f.TrafficClass)<<20|f.FlowLabel&0xfffff)
	dst = binary.BigEndian.AppendUint32(dst, uint32(uint16(payload))<<16|next<<8|uint32(f.HopLimit))
	src, dstAddr := f.Src.As16(), f.Dst.As16()
	dst = append(dst, src[:]...)
	return append(dst, dstAddr[:]...)
}

// Validate reports what AppendTo could not represent: ErrRange for a field or a
// length beyond its width, an address of the wrong family or with a zone, or a VLAN
// whose TPID is not one of the three; ErrLink for a link whose header AppendTo does
// not write (the zero value, and the cooked links); or the error of the packet's own
// Validate. A Finder of the frame's port decodes what Validate accepts to the same
// frame; DstPort 0 stands for Port.
func (f *Frame) Validate() error {
	switch f.Link {
	case Ethernet:
	case RawIP, RawIPv4, RawIPv6:
		if f.Net == GRH { // only an Ethertype announces it
			return ErrLink
		}
	default:
		return ErrLink
	}
	n := f.packetSize()
	switch f.Net {
	case IPv4:
		switch {
		case !f.Src.Is4() || !f.Dst.Is4():
			return errIPv4
		case len(f.Options) > maxIPv4Options || len(f.Options)%4 != 0:
			return errOptions
		}
		n += udpSize + ipv4Size + len(f.Options)
	case IPv6, GRH:
		switch {
		case f.IsMRC() && f.Net == GRH:
			return errMRC
		case !f.Src.Is6() || !f.Dst.Is6() || f.Src.Zone() != "" || f.Dst.Zone() != "":
			return errIPv6
		case f.FlowLabel > 0xfffff:
			return errFlowLabel
		case f.Net == IPv6:
			n += udpSize
		}
	default:
		return errNet
	}
	switch {
	case n > 0xffff:
		return errSize
	case f.VLANs > MaxVLANs:
		return errVLANs
	}
	for _, v := range f.VLAN[:f.VLANs] {
		if !isTag(v.TPID) {
			return errTPID
		}
	}
	if f.IsMRC() {
		return f.MRC.Validate()
	}
	return f.Packet.Validate()
}

// wide returns an ErrRange that says of what. Each is allocated once.
func wide(s string) error { return fmt.Errorf("%w: %s", ErrRange, s) }

var (
	errIPv4      = wide("Net is IPv4, and Src or Dst is not an IPv4 address")
	errIPv6      = wide("Net is IPv6 or GRH, and Src or Dst is not an IPv6 address, or has a zone")
	errOptions   = wide("Options has more than 40 bytes, or not a multiple of 4")
	errMRC       = wide("MRC has no packets behind a GRH")
	errFlowLabel = wide("FlowLabel exceeds 20 bits (0 to 0xfffff)")
	errNet       = wide("Net is none of IPv4, IPv6, GRH")
	errSize      = wide("the packet is longer than the 65535 bytes of an IP length")
	errVLANs     = wide("VLANs is more than 3")
	errTPID      = wide("the TPID of a VLAN is none of 0x8100, 0x88a8, 0x9100")
)

// packetSize returns the length of the transport packet that AppendTo builds.
func (f *Frame) packetSize() int {
	if f.IsMRC() {
		return f.MRC.Size()
	}
	return f.Packet.Size()
}

// AppendBinary implements [encoding.BinaryAppender].
func (f *Frame) AppendBinary(dst []byte) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return dst, err
	}
	return f.AppendTo(dst), nil
}
