// Package frame holds what is around a RoCE transport packet: Ethernet with VLAN
// tags, IPv4, IPv6 and UDP (RoCE v2), or the GRH (RoCE v1), and tunnels around all
// of them. It finds the packet in a frame and reports why there is none, checks
// ICRC and checksums, edits packets in place, and builds whole frames.
//
// Nothing here allocates, writes to its input or panics on any bytes.
package frame

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/crc"
)

var (
	// ErrNotRoCE means that the frame is something else: another Ethertype,
	// protocol or UDP destination port.
	ErrNotRoCE = errors.New("frame: not RoCE")
	// ErrFragment means the first IPv4 fragment of a datagram to the RoCE port;
	// RoCE is never fragmented. Later fragments have no port and are ErrNotRoCE.
	ErrFragment = errors.New("frame: IPv4 fragment")
	// ErrLength means that the lengths of frame, IP, GRH and UDP disagree.
	ErrLength = errors.New("frame: lengths disagree")
	// ErrTruncated means that the captured bytes end before the headers do.
	ErrTruncated = fmt.Errorf("frame: headers truncated: %w", io.ErrUnexpectedEOF)
	// ErrLink means a link type that this package cannot read.
	ErrLink = errors.New("frame: unknown link type")
	// ErrRange means that a field or a length does not fit its width on the wire.
	ErrRange = errors.New("frame: field out of range")
)

// Port is the UDP destination port of RoCE v2.
const Port = 4791

// Ethertypes.
const (
	EtherTypeIPv4    = 0x0800
	EtherTypeIPv6    = 0x86dd
	EtherTypeRoCE    = 0x8915 // RoCE v1
	EtherTypeVLAN    = 0x8100 // 802.1Q
	EtherTypeQinQ    = 0x88a8 // 802.1ad
	EtherTypeOldQinQ = 0x9100 // before 802.1ad

	ethernetSize   = 14
	sllSize        = 16
	sll2Size       = 20
	ipv4Size       = 20
	ipv6Size       = 40
	udpSize        = 8
	protocolUDP    = 17
	nextHeaderBTH  = 0x1b // a GRH's next header: InfiniBand transport
	maxIPv4Options = 40
)

// Link is a link-layer type with its number in pcap and pcapng files.
type Link uint16

// Link types that can be read.
const (
	Ethernet  Link = 1
	RawIP     Link = 101 // IPv4 or IPv6, by the version
	LinuxSLL  Link = 113 // cooked, version 1
	RawIPv4   Link = 228
	RawIPv6   Link = 229
	LinuxSLL2 Link = 276 // cooked, version 2
)

// Net is the kind of network header.
type Net uint8

// Network headers.
const (
	IPv4 Net = iota + 1 // RoCE v2
	IPv6                // RoCE v2
	GRH                 // RoCE v1
)

// String returns "ipv4", "ipv6" or "grh", and "none" for anything else.
func (n Net) String() string {
	switch n {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	case GRH:
		return "grh"
	}
	return "none"
}

// ECN is the congestion field of an IP header, the low two bits of its traffic
// class.
type ECN uint8

// ECN codepoints, RFC 3168.
const (
	NotECT ECN = 0
	ECT1   ECN = 1
	ECT0   ECN = 2
	CE     ECN = 3 // congestion experienced
)

// MAC is an Ethernet address.
type MAC [6]byte

// MaxVLANs is how many tags a frame may have.
const MaxVLANs = 3

// VLAN is one tag.
type VLAN struct {
	TPID uint16 // EtherTypeVLAN, EtherTypeQinQ or EtherTypeOldQinQ
	TCI  uint16 // priority 3 bits, drop eligible 1, VLAN id 12
}

// ID returns the VLAN id, 0..4095.
func (v VLAN) ID() uint16 { return v.TCI & 0xfff }

// Frame is a packet and what is around it.
type Frame struct {
	// Ethernet. Zero for other links.
	DstMAC, SrcMAC MAC

	Link Link
	Net  Net // which network header

	VLANs uint8          // tags in use, 0..MaxVLANs
	VLAN  [MaxVLANs]VLAN // outermost first

	// Network header.
	Src, Dst     netip.Addr // IPv4, IPv6, or the GIDs of a GRH as IPv6
	TrafficClass uint8      // IPv4: type of service. DSCP 6 bits, ECN 2
	HopLimit     uint8      // IPv4: time to live. 0 is sent as 0; 64 is usual
	FlowLabel    uint32     // 20 bits; IPv6 and GRH
	ID           uint16     // identification; IPv4
	DF           bool       // don't fragment; IPv4
	ReservedFlag bool       // the flag before DF; IPv4
	Options      []byte     // IPv4, 0..40 bytes, a multiple of 4; aliases the input

	// UDP. Zero for a GRH.
	SrcPort, DstPort uint16
	UDPChecksum      uint16 // as on the wire; 0 means that there is no checksum

	// Decoded is set by Decode and Find, and ignored by AppendTo.
	Decoded

	// Packet is the packet. Of an MRC packet it has only the BTH, for reading: AppendTo
	// encodes MRC instead.
	Packet bth.Packet

	// MRC: where the caller sets it to a packet, opcodes C0 to DF, which any manufacturer
	// may use, are decoded as those of MRC. The packet is then stored there; it is zero
	// where the frame holds another. IsMRC reports which. Copies of the Frame share it.
	MRC *mrc.Packet
}

// Decoded is what decoding finds out about a frame besides its fields. Its slices
// alias the input.
type Decoded struct {
	// NetPacket is the captured part of the packet from network header to ICRC.
	// Trailer is what was captured after it: padding, an Ethernet FCS; or nil.
	NetPacket, Trailer []byte
	// Transport is the part of NetPacket that begins with the BTH.
	Transport []byte
	// TransportLen is the packet's length from BTH to ICRC as the headers say;
	// a capture may have kept less.
	TransportLen int
	// Trimmed says that a switch has cut the packet, by Finder.TrimmedDSCP: it has no
	// ICRC.
	Trimmed bool
	// Outer is what was around the frame, where a Finder looked into tunnels.
	Outer Outer
}

// ECN returns the congestion field.
func (f *Frame) ECN() ECN { return ECN(f.TrafficClass & 3) }

// DSCP returns the differentiated services codepoint, 0..63.
func (f *Frame) DSCP() uint8 { return f.TrafficClass >> 2 }

// Truncated reports whether the capture, or a switch before it, kept less than the
// whole packet.
func (f *Frame) Truncated() bool { return len(f.Transport) < f.TransportLen }

// PayloadLen returns the length in bytes that the packet's payload had on the
// wire, pad not counted. A capture may have kept less of it.
func (f *Frame) PayloadLen() int {
	switch {
	case f.IsMRC() && f.MRC.Trimmed:
		return f.TransportLen - bth.Size - f.MRC.Ext().Size()
	case f.IsMRC():
		return f.TransportLen - bth.Size - f.MRC.Ext().Size() - int(f.MRC.PadCnt) - bth.ICRCSize
	}
	return f.TransportLen - f.Packet.Opcode.HeaderSize() - int(f.Packet.PadCnt) - bth.ICRCSize
}

// ICRCState is the outcome of a check.
type ICRCState uint8

// Outcomes. The zero value is that of a packet that the capture or a switch has cut short,
// so that its ICRC cannot be checked.
const (
	ICRCUnchecked ICRCState = iota
	ICRCGood
	ICRCBad
)

// String returns "good", "bad" or "unchecked".
func (s ICRCState) String() string {
	switch s {
	case ICRCGood:
		return "good"
	case ICRCBad:
		return "bad"
	}
	return "unchecked"
}

// CheckICRC computes the ICRC of a frame that Decode or Find filled, and
// compares it with the packet's.
func (f *Frame) CheckICRC() ICRCState {
	switch {
	case f.Truncated() || f.Trimmed || len(f.NetPacket) == 0:
		return ICRCUnchecked
	case crc.Check(f.NetPacket):
		return ICRCGood
	}
	return ICRCBad
}

// FlowLabel computes a 20-bit flow label from the QP numbers at both ends. It is
// the same for both directions.
func FlowLabel(lqpn, rqpn uint32) uint32 {
	v := uint64(lqpn) * uint64(rqpn)
	v ^= v >> 20
	v ^= v >> 40
	return uint32(v & 0xfffff)
}

// SourcePort computes the UDP source port, 0xC000..0xFFFF, from a 20-bit flow label.
func SourcePort(flowLabel uint32) uint16 {
	return uint16(flowLabel&0x3fff^flowLabel>>14&0x3f) | 0xc000
}
