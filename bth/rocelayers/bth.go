package rocelayers

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/crc"
)

var (
	// ErrNoNetworkLayer means that checksums are to be computed but
	// SetNetworkLayerForICRC was not called.
	ErrNoNetworkLayer = errors.New("rocelayers: the ICRC cannot be computed without network layer: call SetNetworkLayerForICRC")
	// ErrNetworkLayer means a network layer that does not carry RoCE.
	ErrNetworkLayer = errors.New("rocelayers: network layer is not IPv4 or IPv6 with UDP, or GRH without")
)

// BTH is the layer of a base transport header, and of the pad and the ICRC at the end of
// the packet. Its contents are the 12 bytes of the header, its payload is the bytes between
// header and pad.
type BTH struct {
	layers.BaseLayer
	bth.Header

	// Pad holds the bytes before the ICRC, of which the first PadCnt count.
	Pad [3]byte
	// ICRC is the number whose least significant byte is first on the wire.
	ICRC uint32
	// Truncated means that gopacket has found the packet cut by the capture before this
	// layer. Pad and ICRC are then unknown: what was captured of them cannot be
	// distinguished from payload and is part of it.
	Truncated bool
	// MRC makes opcodes C0 to DF those of MRC. It is set before decoding; in packets
	// of gopacket.NewPacket it is after RegisterMRC.
	MRC bool

	network gopacket.NetworkLayer
	udp     *layers.UDP
}

// LayerType returns LayerTypeBTH.
func (b *BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode returns LayerTypeBTH.
func (b *BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType returns the type of the first extended header of the opcode, or
// gopacket.LayerTypePayload where it has none or is not known.
func (b *BTH) NextLayerType() gopacket.LayerType { return b.next(LayerTypeBTH) }

// next returns what follows the layer t in packets with b's opcode.
func (b *BTH) next(t gopacket.LayerType) gopacket.LayerType {
	if b.isMRC(&b.Header) {
		return b.nextMRC(t)
	}
	if !b.Opcode.Known() || b.TVer != 0 {
		return gopacket.LayerTypePayload
	}
	left := uint(b.Opcode.Ext()) >> (t - LayerTypeBTH)
	if left == 0 {
		return gopacket.LayerTypePayload
	}
	return t + 1 + gopacket.LayerType(bits.TrailingZeros(left))
}

// DecodeFromBytes reads a transport packet that fills data from BTH to ICRC. It
// fails with bth.ErrTruncated, or bth.ErrLength when the length does not fit the
// opcode, and leaves b unchanged then. Opcodes and versions without a known
// layout are no error: all between BTH and pad is payload then.
func (b *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	cut := truncated(df)
	if len(data) < bth.Size || (!cut && len(data) < bth.MinSize) {
		df.SetTruncated()
		return bth.ErrTruncated
	}
	var h bth.Header
	_ = h.Decode(data)
	end := len(data)
	var pad [3]byte
	var icrc uint32
	if !cut {
		end -= bth.ICRCSize
		icrc = binary.LittleEndian.Uint32(data[end:])
		n, rule := b.layout(&h)
		if !fits(rule, end-n-int(h.PadCnt), h.PadCnt) {
			return bth.ErrLength
		}
		copy(pad[:h.PadCnt], data[end-int(h.PadCnt):])
		end -= int(h.PadCnt)
	}
	b.Header, b.Pad, b.ICRC, b.Truncated = h, pad, icrc, cut
	b.Contents = data[:bth.Size:bth.Size]
	b.Payload = data[bth.Size:end:end]
	return nil
}

// fits reports whether n bytes of payload, and pad, may stand in a packet.
func fits(rule bth.PayloadRule, n int, pad uint8) bool {
	switch rule {
	case bth.NoPayload:
		return n == 0 && pad == 0
	case bth.EightBytes:
		return n == 8 && pad == 0
	case bth.SixteenZero:
		return n == bth.CNPReserved && pad == 0
	}
	return n >= 0
}

// truncated reports whether a layer before this one found the packet cut.
func truncated(df gopacket.DecodeFeedback) bool {
	switch p := df.(type) {
	case *gopacket.DecodingLayerParser:
		return p.Truncated
	case gopacket.Packet:
		return p.Metadata().Truncated
	}
	return false
}

func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	b := &BTH{MRC: mrcWanted}
	if err := b.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(b)
	return b.nextDecoder(LayerTypeBTH, p)
}

func (b *BTH) nextDecoder(t gopacket.LayerType, p gopacket.PacketBuilder) error {
	next := b.next(t)
	if next == gopacket.LayerTypePayload {
		return p.NextDecoder(next)
	}
	return p.NextDecoder(after{b, next})
}

// SetNetworkLayerForICRC sets the layers below this one, whose fields the ICRC covers: a
// *layers.IPv4 or *layers.IPv6 with the UDP layer, or a *GRH and nil. They are read when b
// is serialized, so that fields may still be changed. It fails with ErrNetworkLayer.
//
// Type of service, hop limit, flow label and checksums are not covered.
func (b *BTH) SetNetworkLayerForICRC(network gopacket.NetworkLayer, udp *layers.UDP) error {
	switch network.(type) {
	case *layers.IPv4, *layers.IPv6:
		if udp == nil {
			return ErrNetworkLayer
		}
	case *GRH:
		if udp != nil {
			return ErrNetworkLayer
		}
	default:
		return ErrNetworkLayer
	}
	b.network, b.udp = network, udp
	return nil
}

// SerializeTo implements gopacket.SerializableLayer: it puts the BTH before what
// is in buf, extended headers and payload, and pad and ICRC after it.
//
// With opts.FixLengths PadCnt becomes what the length asks for, and Pad zero. With
// opts.ComputeChecksums the ICRC is computed, which needs a call of SetNetworkLayerForICRC
// before; else the field ICRC is written as it stands. It fails before writing anything,
// with bth.ErrRange where a field exceeds its width or the packet is too long,
// ErrNoNetworkLayer, or ErrNetworkLayer where the network layer's addresses or options
// cannot be written.
//
// With opts.ComputeChecksums gopacket's UDP layer computes its own checksum too,
// where RoCE cards send 0; both are right.
func (b *BTH) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	n := len(buf.Bytes())
	if opts.FixLengths {
		b.PadCnt = uint8(-n & 3)
		b.Pad = [3]byte{}
	}
	if err := b.Validate(); err != nil {
		return err
	}
	pad := int(b.PadCnt)
	var hdr [maxNetwork + bth.Size]byte
	covered := hdr[:0]
	if opts.ComputeChecksums {
		var err error
		if covered, err = b.appendNetwork(covered, bth.Size+n+pad+bth.ICRCSize, opts.FixLengths); err != nil {
			return err
		}
		covered = b.Header.AppendTo(covered)
	}

	tail, err := buf.AppendBytes(pad + bth.ICRCSize)
	if err != nil {
		return err
	}
	copy(tail, b.Pad[:pad])
	if opts.ComputeChecksums {
		all := buf.Bytes()
		b.ICRC = crc.Start(covered).Update(all[:n+pad]).Sum()
	}
	binary.LittleEndian.PutUint32(tail[pad:], b.ICRC)
	head, err := buf.PrependBytes(bth.Size)
	if err != nil {
		return err
	}
	b.Header.AppendTo(head[:0])
	return nil
}
