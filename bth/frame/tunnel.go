package frame

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
)

// MaxTunnels is how many tunnels around a packet a Finder looks into.
const MaxTunnels = 4

// TunnelKind is a way to carry a packet or a frame in another packet.
type TunnelKind uint8

// Kinds of tunnels. ERSPAN and Mirror are those of switches that send copies of
// what they forward; see [TunnelKind.Mirrors].
const (
	VXLAN     TunnelKind = iota + 1 // RFC 7348
	VXLANGPE                        // draft-ietf-nvo3-vxlan-gpe
	Geneve                          // RFC 8926
	GRE                             // RFC 2784, 2890: IP or MPLS inside
	GRETAP                          // the same with Ethernet inside; NVGRE, RFC 7637
	ERSPAN1                         // draft-foschiano-erspan, type I: GRE 0x88be without sequence number
	ERSPAN2                         // type II: GRE 0x88be
	ERSPAN3                         // type III: GRE 0x22eb
	Mirror                          // GRE 0x8949 of NVIDIA (Mellanox) switches
	MPLS                            // RFC 3032; after it IP or a pseudowire, RFC 4448
	IPinIP                          // RFC 2003, 2473, 4213
	SRv6                            // RFC 8986: IPv6 with a segment routing header around a whole packet
	EtherInIP                       // next header 143 of RFC 8986
)

var tunnelNames = [...]string{"none", "vxlan", "vxlan-gpe", "geneve", "gre", "gretap", "erspan1", "erspan2", "erspan3",
	"mirror", "mpls", "ipip", "srv6", "ether-in-ip"}

// String returns a short name in lower case, "none" for the zero value and the number of a
// kind that is not defined.
func (k TunnelKind) String() string {
	if int(k) < len(tunnelNames) {
		return tunnelNames[k]
	}
	return strconv.Itoa(int(k))
}

// Mirrors reports whether tunnels of this kind carry copies that a switch sends to a
// monitor, rather than traffic between the tunnel's ends.
func (k TunnelKind) Mirrors() bool { return k >= ERSPAN1 && k <= Mirror }

// Tunnel is one tunnel around a packet.
type Tunnel struct {
	Kind TunnelKind
	// ID is the VNI of VXLAN and Geneve (24 bits), the key of GRE, the session of
	// ERSPAN (10 bits), the last label of MPLS (20 bits). Without HasID the header has
	// no such field.
	ID    uint32
	HasID bool
	// Net, Src and Dst are of the network header before the tunnel's own header;
	// zero if there is no such header, as with MPLS directly on Ethernet.
	Net      Net
	Src, Dst netip.Addr
	// The tags before that network header, outermost first.
	VLANs uint8
	VLAN  [MaxVLANs]VLAN
}

// AppendTo appends a line such as "vxlan 5000 198.51.100.1 > 198.51.100.2".
func (t *Tunnel) AppendTo(b []byte) []byte {
	b = append(b, t.Kind.String()...)
	if t.HasID {
		b = strconv.AppendUint(append(b, ' '), uint64(t.ID), 10)
	}
	for _, v := range t.VLAN[:t.VLANs] {
		b = strconv.AppendUint(append(b, " vlan "...), uint64(v.ID()), 10)
	}
	if t.Net != 0 {
		b = t.Src.AppendTo(append(b, ' '))
		b = t.Dst.AppendTo(append(b, " > "...))
	}
	return b
}

// String returns what AppendTo appends.
func (t *Tunnel) String() string { return string(t.AppendTo(nil)) }

// Outer is what was around a frame that was found inside others. The zero value is that of
// a frame in no tunnel.
type Outer struct {
	// Link is the link type of the captured frame: Frame.Link is that of what the innermost
	// tunnel carries.
	Link Link
	// Headers is the captured frame up to where the innermost frame or packet
	// begins. It aliases the input.
	Headers []byte

	layers layers
}

// layers say where the tunnels of a frame are, outermost first.
type layers struct {
	n   uint8
	all [MaxTunnels]layer
}

type layer struct {
	kind  TunnelKind
	net   Net
	vlans uint8
	v2    bool   // the first tag's TPID is the first field of a cooked header
	ip    uint16 // offset of the network header, where the tags end
	own   uint16 // offset of the tunnel's own header
}

// Len returns the number of tunnels, 0..MaxTunnels.
func (o *Outer) Len() int { return int(o.layers.n) }

// Tunnel returns tunnel i, 0 being the outermost. It panics if i is not in
// 0..Len()-1.
func (o *Outer) Tunnel(i int) (t Tunnel) {
	l := o.layers.all[:o.layers.n][i]
	b := o.Headers
	t.Kind, t.Net, t.VLANs = l.kind, l.net, l.vlans
	readTags(b, int(l.ip), l.v2, t.VLAN[:l.vlans])
	switch h := b[l.ip:]; l.net {
	case IPv4:
		t.Src, t.Dst = netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	case IPv6:
		t.Src, t.Dst = netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	}
	h := b[l.own:]
	t.HasID = true
	switch l.kind {
	case VXLAN, VXLANGPE, Geneve:
		t.ID = binary.BigEndian.Uint32(h[4:]) >> 8
	case ERSPAN2, ERSPAN3: // behind the GRE header
		t.ID = uint32(binary.BigEndian.Uint16(h[greSize(h)+2:]) & 0x3ff)
	case GRE, GRETAP:
		if t.HasID = h[0]&greKey != 0; t.HasID {
			at := 4
			if h[0]&greChecksum != 0 {
				at = 8
			}
			t.ID = binary.BigEndian.Uint32(h[at:])
		}
	case MPLS:
		for h[2]&1 == 0 {
			h = h[4:]
		}
		t.ID = binary.BigEndian.Uint32(h) >> 12
	default:
		t.HasID = false
	}
	return t
}

// Segment distinguishes networks that may use the same addresses, such as tenants:
// use it as a part of the key of a flow. Both directions of a flow have the same
// Segment, and so have mirrored copies of its packets.
type Segment struct {
	VLAN [MaxVLANs]uint16 // ids of the tags around the packet itself, outermost first
	Kind TunnelKind       // of the innermost tunnel that does not mirror
	ID   uint32           // of that tunnel
	// The ends of a tunnel that has no ID, the lower address first. Those of one
	// that has one may change from packet to packet, with the path.
	Ends [2]netip.Addr
}

// String names it, such as "vlan 9.7" or "vxlan 5000"; it is "" for the zero value.
func (s Segment) String() string {
	var b []byte
	n := MaxVLANs
	for n > 0 && s.VLAN[n-1] == 0 {
		n--
	}
	for i, id := range s.VLAN[:n] {
		if i == 0 {
			b = append(b, "vlan "...)
		} else {
			b = append(b, '.')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	if s.Kind == 0 {
		return string(b)
	}
	if len(b) > 0 {
		b = append(b, " in "...)
	}
	b = append(b, s.Kind.String()...)
	b = append(b, ' ')
	if !s.Ends[1].IsValid() {
		return string(strconv.AppendUint(b, uint64(s.ID), 10))
	}
	b = s.Ends[0].AppendTo(b)
	b = append(b, '-')
	return string(s.Ends[1].AppendTo(b))
}

// Segment returns the zero value for a frame without tags and tunnels.
func (f *Frame) Segment() (s Segment) {
	for i, v := range f.VLAN[:f.VLANs] {
		s.VLAN[i] = v.ID()
	}
	for i := f.Outer.Len() - 1; i >= 0; i-- {
		t := f.Outer.Tunnel(i)
		if t.Kind.Mirrors() {
			continue
		}
		s.Kind, s.ID = t.Kind, t.ID
		if !t.HasID {
			s.Ends = [2]netip.Addr{t.Src, t.Dst}
			slices.SortFunc(s.Ends[:], netip.Addr.Compare)
		}
		break
	}
	return s
}

// Bits of the first byte of a GRE header.
const (
	greChecksum = 0x80
	greRouting  = 0x40 // RFC 1701; not read
	greKey      = 0x20
	greSequence = 0x10
)

// greSize returns the length in bytes of the GRE header h, of which there are two.
func greSize(h []byte) int {
	n := 4
	for _, bit := range []byte{greChecksum, greKey, greSequence} {
		if h[0]&bit != 0 {
			n += 4
		}
	}
	return n
}

// Protocols and types that carry frames or packets.
const (
	protocolIPv4     = 4
	protocolTCP      = 6
	protocolIPv6     = 41
	protocolGRE      = 47
	protocolMPLS     = 137
	protocolEthernet = 143

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extDestination = 60
	routingSegment = 4 // routing type of a segment routing header

	portVXLAN      = 4789
	portVXLANLinux = 8472 // the kernel's default, from before 4789 was assigned
	portVXLANGPE   = 4790
	portGeneve     = 6081
	portMPLS       = 6635 // RFC 7510

	etherTypeMPLS      = 0x8847
	etherTypeMPLSUp    = 0x8848 // upstream-assigned labels
	etherTypeBridging  = 0x6558 // transparent Ethernet bridging: Ethernet in GRE and Geneve
	greTypeERSPAN      = 0x88be
	greTypeERSPAN3     = 0x22eb
	greTypeMirror      = 0x8949
	mirrorHeaderSize   = 22 // behind the GRE header of greTypeMirror; its layout is not public
	erspan2Size        = 8
	erspan3Size        = 12
	erspan3Extra       = 8 // platform specific, where the last bit of the header says so
	maxMPLSLabels      = 16
	maxExtensions      = 8
	inEthernet         = -1 // inside.etherType: an Ethernet header
	inUnknown          = -2
	vxlanFlagID        = 0x08
	vxlanGPEFlagNext   = 0x04
	vxlanHeaderSize    = 8
	geneveHeaderSize   = 8
	mplsControlWord    = 4
	ethernetTypeOffset = 12
)

// inside is what a tunnel carries: its kind, where the carried frame or packet
// begins, and its Ethertype, or inEthernet.
type inside struct {
	kind      TunnelKind
	off       int
	etherType int
}

// enter reads the tunnel header at s.after; s.what says which protocol it is. It
// refines s.what to the type in a GRE header, and reports false if this is not a
// tunnel, or its contents cannot be read.
func (d *Finder) enter(b []byte, s *span) (in inside, ok bool) {
	if s.after <= 0 || s.after > len(b) {
		return in, false
	}
	h := b[s.after:]
	switch s.what.Kind {
	case EtherType:
		if n := s.what.Number; n == etherTypeMPLS || n == etherTypeMPLSUp {
			in = mpls(h)
		}
	case IPProtocol:
		switch s.what.Number {
		case protocolIPv4:
			in = inside{IPinIP, 0, EtherTypeIPv4}
		case protocolIPv6:
			in = inside{IPinIP, 0, EtherTypeIPv6}
		case protocolEthernet:
			in = inside{EtherInIP, 0, inEthernet}
		case protocolMPLS:
			in = mpls(h)
		case protocolGRE:
			in = s.gre(h)
		}
		if s.segments && in.kind >= IPinIP {
			in.kind = SRv6
		}
	case UDPPort:
		in = d.udpTunnel(h, s.what.Number)
	}
	in.off += s.after
	return in, in.kind != 0 && in.etherType != inUnknown && in.off <= len(b)
}

func (d *Finder) udpTunnel(h []byte, port uint16) (in inside) {
	if len(h) < vxlanHeaderSize { // Geneve's has the same size
		return in
	}
	switch {
	case port == portVXLAN, port == portVXLANLinux, slices.Contains(d.VXLANPorts, port):
		if h[0]&vxlanFlagID != 0 {
			return inside{VXLAN, vxlanHeaderSize, inEthernet}
		}
	case port == portVXLANGPE:
		next := [...]int{1: EtherTypeIPv4, 2: EtherTypeIPv6, 3: inEthernet}
		if n := int(h[3]); h[0]&(vxlanFlagID|vxlanGPEFlagNext) == vxlanFlagID|vxlanGPEFlagNext && n > 0 && n < len(next) {
			return inside{VXLANGPE, vxlanHeaderSize, next[n]}
		}
	case port == portGeneve:
		if h[0]>>6 == 0 {
			return inside{Geneve, geneveHeaderSize + int(h[0]&0x3f)*4, carried(binary.BigEndian.Uint16(h[2:]))}
		}
	case port == portMPLS:
		return mpls(h)
	}
	return in
}

// carried turns the protocol type of a GRE or Geneve header into inside.etherType.
func carried(t uint16) int {
	switch t {
	case etherTypeBridging:
		return inEthernet
	case EtherTypeIPv4, EtherTypeIPv6, etherTypeMPLS, etherTypeMPLSUp:
		return int(t)
	}
	return inUnknown
}

func (s *span) gre(h []byte) (in inside) {
	if len(h) < 4 || h[0]&greRouting != 0 || h[1]&7 != 0 {
		return in
	}
	n, typ := greSize(h), binary.BigEndian.Uint16(h[2:])
	s.what.Kind, s.what.Number = GREType, typ
	if len(h) < n {
		return in
	}
	p := h[n:]
	switch typ {
	case greTypeERSPAN:
		if h[0]&greSequence == 0 {
			return inside{ERSPAN1, n, inEthernet}
		}
		if len(p) >= erspan2Size && p[0]>>4 == 1 {
			return inside{ERSPAN2, n + erspan2Size, inEthernet}
		}
	case greTypeERSPAN3:
		if len(p) >= erspan3Size && p[0]>>4 == 2 {
			in = inside{ERSPAN3, n + erspan3Size, inUnknown}
			if p[11]&1 != 0 {
				in.off += erspan3Extra
			}
			switch p[10] >> 2 & 0x1f { // the frame type
			case 0:
				in.etherType = inEthernet
			case 2:
				in.etherType = version(h[min(in.off, len(h)):])
			}
		}
	case greTypeMirror:
		in = inside{Mirror, n + mirrorHeaderSize, inEthernet}
		if !ethernetAt(p, mirrorHeaderSize) && ethernetAt(p, 0) {
			in.off = n // and some have no such header
		}
	default:
		in = inside{GRE, n, carried(typ)}
		if in.etherType == inEthernet {
			in.kind = GRETAP
		}
	}
	return in
}

// version returns the Ethertype of an IP packet, or inUnknown.
func version(b []byte) int {
	if len(b) > 0 {
		switch b[0] >> 4 {
		case 4:
			return EtherTypeIPv4
		case 6:
			return EtherTypeIPv6
		}
	}
	return inUnknown
}

// mpls reads a label stack. No field says what follows it: an Ethernet header
// where its Ethertype and what follows agree, behind a control word or not, else
// IP as the first four bits say.
func mpls(h []byte) inside {
	n := 0
	for {
		if n += 4; n > 4*maxMPLSLabels || n > len(h) {
			return inside{}
		}
		if h[n-2]&1 != 0 {
			break
		}
	}
	in := inside{MPLS, n, inEthernet}
	p := h[n:]
	switch {
	case len(p) > 0 && p[0]>>4 == 0 && ethernetAt(p, mplsControlWord):
		in.off += mplsControlWord
	case ethernetAt(p, 0):
	default:
		in.etherType = version(p)
	}
	return in
}

// ethernetAt reports whether an Ethernet header seems to begin at b[at:]: its
// Ethertype is one that this package reads, and the version after it agrees.
func ethernetAt(b []byte, at int) bool {
	if len(b) < at+ethernetSize+1 {
		return false
	}
	v := b[at+ethernetSize] >> 4
	switch t := binary.BigEndian.Uint16(b[at+ethernetTypeOffset:]); t {
	case EtherTypeIPv4:
		return v == 4
	case EtherTypeIPv6, EtherTypeRoCE:
		return v == 6
	case etherTypeMPLS, etherTypeMPLSUp:
		return true
	default:
		return isTag(t)
	}
}
