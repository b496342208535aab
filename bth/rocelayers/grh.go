package rocelayers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// EthernetTypeRoCE is the Ethertype of RoCE v1, which a GRH follows.
const EthernetTypeRoCE layers.EthernetType = frame.EtherTypeRoCE

// NextHeaderBTH is the next header of a GRH before a BTH.
const NextHeaderBTH = 0x1b

var (
	// ErrGRHTruncated means that a GRH is cut short.
	ErrGRHTruncated = fmt.Errorf("rocelayers: GRH truncated: %w", io.ErrUnexpectedEOF)
	// ErrGRHVersion means that a GRH's version is not 6.
	ErrGRHVersion = errors.New("rocelayers: version of GRH is not 6")
)

// GRH is the layer of a global route header, RoCE v1's network header. It has
// the shape of an IPv6 header.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------------+---------------------------------------+
//	|   6   | traffic class |              flow label               |
//	+-------+---------------+-------+---------------+---------------+
//	|            length             |  next header  |   hop limit   |
//	+-------------------------------+---------------+---------------+
//	|                      source GID, 16 bytes                     |
//	+---------------------------------------------------------------+
//	|                   destination GID, 16 bytes                   |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 8.3, and Annex A16.
type GRH struct {
	layers.BaseLayer
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	Length       uint16 // bytes from BTH to ICRC
	NextHeader   uint8  // NextHeaderBTH
	HopLimit     uint8
	SrcGID       netip.Addr
	DstGID       netip.Addr

	packet []byte // from GRH to ICRC
}

// LayerType returns LayerTypeGRH.
func (g *GRH) LayerType() gopacket.LayerType { return LayerTypeGRH }

// CanDecode returns LayerTypeGRH.
func (g *GRH) CanDecode() gopacket.LayerClass { return LayerTypeGRH }

// NextLayerType returns LayerTypeBTH, or gopacket.LayerTypePayload where the
// next header is another.
func (g *GRH) NextLayerType() gopacket.LayerType {
	if g.NextHeader == NextHeaderBTH {
		return LayerTypeBTH
	}
	return gopacket.LayerTypePayload
}

// NetworkFlow returns the flow between the GIDs, as IPv6 addresses.
func (g *GRH) NetworkFlow() gopacket.Flow {
	src, dst := g.SrcGID.As16(), g.DstGID.As16()
	return gopacket.NewFlow(layers.EndpointIPv6, src[:], dst[:])
}

// DecodeFromBytes reads a GRH; its payload ends where the length says, which
// leaves Ethernet padding out. It fails with ErrGRHTruncated or ErrGRHVersion and
// leaves g unchanged then.
func (g *GRH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < ipv6Size {
		df.SetTruncated()
		return ErrGRHTruncated
	}
	v := binary.BigEndian.Uint32(data)
	if v>>28 != 6 {
		return ErrGRHVersion
	}
	g.TrafficClass = uint8(v >> 20)
	g.FlowLabel = v & 0xfffff
	g.Length = binary.BigEndian.Uint16(data[4:])
	g.NextHeader = data[6]
	g.HopLimit = data[7]
	g.SrcGID = netip.AddrFrom16([16]byte(data[8:24]))
	g.DstGID = netip.AddrFrom16([16]byte(data[24:40]))
	end := ipv6Size + int(g.Length)
	if end > len(data) {
		df.SetTruncated()
		end = len(data)
	}
	g.packet = data[:end:end]
	g.Contents = data[:ipv6Size:ipv6Size]
	g.Payload = data[ipv6Size:end:end]
	return nil
}

func decodeGRH(data []byte, p gopacket.PacketBuilder) error {
	g := new(GRH)
	if err := g.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(g)
	p.SetNetworkLayer(g)
	return p.NextDecoder(g.NextLayerType())
}

// SerializeTo implements gopacket.SerializableLayer. With opts.FixLengths Length
// becomes that of what is in buf, and a NextHeader of 0 NextHeaderBTH. It fails
// with bth.ErrRange where the flow label or the length exceeds its width, and
// ErrNetworkLayer where a GID is not valid.
func (g *GRH) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	n := len(buf.Bytes())
	var hdr [ipv6Size]byte
	all, err := g.appendTo(hdr[:0], n, opts.FixLengths)
	if err != nil {
		return err
	}
	if opts.FixLengths {
		g.Length = uint16(n)
		g.NextHeader = all[6]
	}
	head, err := buf.PrependBytes(ipv6Size)
	if err != nil {
		return err
	}
	copy(head, all)
	return nil
}

// appendTo appends the header before n bytes.
func (g *GRH) appendTo(dst []byte, n int, fix bool) ([]byte, error) {
	if g.FlowLabel > 0xfffff || n > 0xffff {
		return dst, bth.ErrRange
	}
	if !g.SrcGID.IsValid() || !g.DstGID.IsValid() {
		return dst, ErrNetworkLayer
	}
	length, next := g.Length, g.NextHeader
	if fix {
		length = uint16(n)
		if next == 0 {
			next = NextHeaderBTH
		}
	}
	src, to := g.SrcGID.As16(), g.DstGID.As16()
	dst = binary.BigEndian.AppendUint32(dst, 6<<28|uint32(g.TrafficClass)<<20|g.FlowLabel)
	dst = binary.BigEndian.AppendUint16(dst, length)
	dst = append(dst, next, g.HopLimit)
	dst = append(dst, src[:]...)
	return append(dst, to[:]...), nil
}
