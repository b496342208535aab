package frame

import "strconv"

// ProtocolKind says by what a Protocol is named.
type ProtocolKind uint8

// Ways to name a protocol.
const (
	LinkType   ProtocolKind = iota // Protocol.Number is a link type
	EtherType                      // an Ethertype, or below 0x600 the length in an IEEE 802.3 header
	IPProtocol                     // a protocol of IPv4, or a next header of IPv6
	IPFragment                     // the same; the packet is a fragment and not the first
	UDPPort                        // a UDP destination port
	GREType                        // the protocol type of a GRE header
)

// Numbers that have a name below, and are not looked into.
const (
	etherTypeTRILL  = 0x22f3
	etherTypePPPoE  = 0x8864
	etherTypeMACsec = 0x88e5
	etherTypePBB    = 0x88e7
	etherTypeNSH    = 0x894f
	protocolESP     = 50
	protocolAH      = 51
	protocolL2TP    = 115
	portL2TP        = 1701
	portGTP         = 2152
	portESP         = 4500
	portWireGuard   = 51820
)

// Protocol names what a frame carries, as far as a Finder could follow it. It is
// comparable, so frames can be counted by it.
type Protocol struct {
	Kind   ProtocolKind
	Number uint16
	In     TunnelKind // the innermost tunnel around it, if any
}

var protocolNames = map[Protocol]string{
	{Kind: EtherType, Number: EtherTypeIPv4}:     "IPv4",
	{Kind: EtherType, Number: EtherTypeIPv6}:     "IPv6",
	{Kind: EtherType, Number: EtherTypeRoCE}:     "RoCE v1",
	{Kind: EtherType, Number: 0x0806}:            "ARP",
	{Kind: EtherType, Number: 0x8808}:            "MAC control",
	{Kind: EtherType, Number: 0x8809}:            "slow protocols",
	{Kind: EtherType, Number: etherTypeMPLS}:     "MPLS",
	{Kind: EtherType, Number: etherTypeMPLSUp}:   "MPLS",
	{Kind: EtherType, Number: 0x8863}:            "PPPoE",
	{Kind: EtherType, Number: etherTypePPPoE}:    "PPPoE",
	{Kind: EtherType, Number: 0x88cc}:            "LLDP",
	{Kind: EtherType, Number: etherTypeMACsec}:   "MACsec",
	{Kind: EtherType, Number: etherTypePBB}:      "802.1ah",
	{Kind: EtherType, Number: etherTypeNSH}:      "NSH",
	{Kind: EtherType, Number: etherTypeTRILL}:    "TRILL",
	{Kind: EtherType, Number: 0x88f7}:            "PTP",
	{Kind: EtherType, Number: 0x8906}:            "FCoE",
	{Kind: IPProtocol, Number: 1}:                "ICMP",
	{Kind: IPProtocol, Number: 2}:                "IGMP",
	{Kind: IPProtocol, Number: protocolIPv4}:     "IPv4 in IP",
	{Kind: IPProtocol, Number: protocolTCP}:      "TCP",
	{Kind: IPProtocol, Number: protocolUDP}:      "UDP",
	{Kind: IPProtocol, Number: protocolIPv6}:     "IPv6 in IP",
	{Kind: IPProtocol, Number: extHopByHop}:      "IPv6 hop-by-hop options",
	{Kind: IPProtocol, Number: extRouting}:       "IPv6 routing header",
	{Kind: IPProtocol, Number: extFragment}:      "IPv6 fragment header",
	{Kind: IPProtocol, Number: extDestination}:   "IPv6 destination options",
	{Kind: IPProtocol, Number: protocolGRE}:      "GRE",
	{Kind: IPProtocol, Number: protocolESP}:      "ESP",
	{Kind: IPProtocol, Number: protocolAH}:       "AH",
	{Kind: IPProtocol, Number: 58}:               "ICMPv6",
	{Kind: IPProtocol, Number: 89}:               "OSPF",
	{Kind: IPProtocol, Number: 112}:              "VRRP",
	{Kind: IPProtocol, Number: protocolL2TP}:     "L2TP",
	{Kind: IPProtocol, Number: protocolMPLS}:     "MPLS in IP",
	{Kind: IPProtocol, Number: protocolEthernet}: "Ethernet in IP",
	{Kind: UDPPort, Number: Port}:                "RoCE v2",
	{Kind: UDPPort, Number: portVXLAN}:           "VXLAN",
	{Kind: UDPPort, Number: portVXLANLinux}:      "VXLAN",
	{Kind: UDPPort, Number: portVXLANGPE}:        "VXLAN-GPE",
	{Kind: UDPPort, Number: portGeneve}:          "Geneve",
	{Kind: UDPPort, Number: portMPLS}:            "MPLS",
	{Kind: UDPPort, Number: 53}:                  "DNS",
	{Kind: UDPPort, Number: 443}:                 "QUIC",
	{Kind: UDPPort, Number: 500}:                 "IKE",
	{Kind: UDPPort, Number: portL2TP}:            "L2TP",
	{Kind: UDPPort, Number: portGTP}:             "GTP-U",
	{Kind: UDPPort, Number: portESP}:             "ESP",
	{Kind: UDPPort, Number: portWireGuard}:       "WireGuard",
	{Kind: GREType, Number: greTypeERSPAN}:       "ERSPAN",
	{Kind: GREType, Number: greTypeERSPAN3}:      "ERSPAN III",
	{Kind: GREType, Number: greTypeMirror}:       "NVIDIA mirror",
	{Kind: GREType, Number: etherTypeBridging}:   "Ethernet",
	{Kind: GREType, Number: EtherTypeIPv4}:       "IPv4",
	{Kind: GREType, Number: EtherTypeIPv6}:       "IPv6",
	{Kind: GREType, Number: etherTypeMPLS}:       "MPLS",
}

// AppendTo appends for example "UDP 4789 (VXLAN)", "GRE 0x88be (ERSPAN)", "TCP in
// vxlan" or "Ethertype 0x88cc (LLDP)".
func (p Protocol) AppendTo(b []byte) []byte {
	key := Protocol{Kind: p.Kind, Number: p.Number}
	named := false // the name replaces the number
	switch p.Kind {
	case EtherType:
		if named = p.Number < 0x600; named {
			b = append(b, "IEEE 802.3"...)
		} else {
			b = appendHex(append(b, "Ethertype "...), p.Number)
		}
	case IPProtocol:
		if named = p.Number == protocolTCP || p.Number == protocolUDP; named {
			b = append(b, protocolNames[key]...)
		} else {
			b = strconv.AppendUint(append(b, "IP protocol "...), uint64(p.Number), 10)
		}
	case IPFragment:
		b = strconv.AppendUint(append(b, "IP fragment of protocol "...), uint64(p.Number), 10)
		key.Kind = IPProtocol
	case UDPPort:
		b = strconv.AppendUint(append(b, "UDP "...), uint64(p.Number), 10)
	case GREType:
		b = appendHex(append(b, "GRE "...), p.Number)
	default:
		b = strconv.AppendUint(append(b, "link type "...), uint64(p.Number), 10)
	}
	if name := protocolNames[key]; name != "" && !named {
		b = append(append(append(b, " ("...), name...), ')')
	}
	if p.In != 0 {
		b = append(append(b, " in "...), p.In.String()...)
	}
	return b
}

func appendHex(b []byte, v uint16) []byte {
	const digits = "0123456789abcdef"
	return append(b, '0', 'x', digits[v>>12], digits[v>>8&15], digits[v>>4&15], digits[v&15])
}

// String returns what AppendTo appends.
func (p Protocol) String() string { return string(p.AppendTo(nil)) }

// MayHide reports whether p is a tunnel or an encryption in which RoCE packets may
// be that were not looked at.
func (p Protocol) MayHide() bool {
	switch p.Kind {
	case EtherType:
		switch p.Number {
		case etherTypeMPLS, etherTypeMPLSUp, etherTypePPPoE, etherTypeMACsec, etherTypePBB, etherTypeNSH, etherTypeTRILL:
			return true
		}
	case IPProtocol, IPFragment:
		switch p.Number {
		case protocolIPv4, protocolIPv6, protocolGRE, protocolESP, protocolAH, protocolL2TP, protocolMPLS, protocolEthernet, extRouting:
			return true
		}
	case UDPPort:
		switch p.Number {
		case portVXLAN, portVXLANLinux, portVXLANGPE, portGeneve, portMPLS, portL2TP, portGTP, portESP, portWireGuard:
			return true
		}
	case GREType:
		return true
	}
	return false
}

// Protocol names what the frame carries: what Decode refuses with ErrNotRoCE can
// be reported by name. RoCE itself is UDPPort with the Finder's port, or
// EtherType with EtherTypeRoCE, also where the packet cannot be decoded:
// see [Finder.IsRoCE].
func (d Finder) Protocol(link Link, b []byte, wireLen int) Protocol {
	s, err := d.locate(link, b, wireLen)
	if err == ErrNotRoCE && !d.Tunnels {
		d.enter(b, &s) // which knows the type of a GRE header
	}
	return s.what
}

// IsRoCE reports whether p is RoCE by its Ethertype, or by its UDP destination
// port as d says.
func (d Finder) IsRoCE(p Protocol) bool {
	return p.Kind == EtherType && p.Number == EtherTypeRoCE || p.Kind == UDPPort && p.Number == d.port()
}
