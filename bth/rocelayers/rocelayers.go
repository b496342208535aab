// Package rocelayers makes RoCE known to gopacket: a layer for each header, to
// decode and to serialize.
//
// Call [Register] once at the start of the program. From then on
// gopacket.NewPacket goes on after UDP port 4791 and Ethertype 0x8915:
//
//	Ethernet, IPv4, UDP, BTH, RETH, Payload      RoCE v2
//	Ethernet, GRH, BTH, AETH                     RoCE v1
//
// The BTH layer takes pad and ICRC off the end of the packet, so that Payload is
// what the application sent. [CheckICRC] checks the ICRC.
//
// # Fast decoding
//
// What follows an extended header depends on the opcode in the BTH. [Layers]
// holds one layer of each kind, tied together, for gopacket.DecodingLayerParser;
// nothing is allocated per packet. The parser's own map of layers takes most of
// the time; gopacket.DecodingLayerSparse is faster. An extended header's layer
// that stands alone has no BTH to ask: it takes all that follows for payload.
//
// # Serializing
//
// gopacket.SerializeLayers writes the innermost layer first, so the BTH layer
// computes the ICRC before the headers that it covers exist. As for UDP with its
// pseudo-header, the caller has to name these headers first: see
// [BTH.SetNetworkLayerForICRC].
//
// # Layer types
//
// The layer types are the numbers 1470 to 1481, and with MRC 1489, from
// gopacket's range for applications. If another package of your program uses one
// of them, Register or RegisterMRC panics.
//
// # MRC
//
// Opcodes C0 to DF are any manufacturer's. [RegisterMRC] makes them those of MRC
// (package mrc, experimental), with a layer for each of its headers:
//
//	Ethernet, IPv4, UDP, BTH, METH, TSETH, RETH, Payload
//	Ethernet, IPv4, UDP, BTH, SETH, CCState
//
// Of a packet that a switch trimmed, where the lengths of IP and UDP disagree,
// gopacket says that it is cut, and the headers that are left become layers.
package rocelayers

import (
	"sync"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth/frame"
)

// Layer types. They are known to gopacket after [Register].
const (
	LayerTypeGRH gopacket.LayerType = 1470 + iota
	LayerTypeBTH
	LayerTypeRDETH // from here in the order of the bits of bth.Ext
	LayerTypeDETH
	LayerTypeXRCETH
	LayerTypeFETH
	LayerTypeRETH
	LayerTypeAtomicETH
	LayerTypeAETH
	LayerTypeAtomicAckETH
	LayerTypeImmDt
	LayerTypeIETH
)

var register sync.Once

// Register registers the layer types in gopacket, and that BTH follows UDP port 4791
// and GRH follows Ethertype 0x8915. Calls after the first do nothing.
//
// gopacket keeps all this in tables without a lock: call Register before any
// goroutine decodes packets, best at the start of main.
//
// gopacket looks at the UDP destination port first and then at the source port,
// so it decodes a packet from port 4791 to an unknown port as RoCE too.
func Register() {
	register.Do(func() {
		for typ, meta := range map[gopacket.LayerType]gopacket.LayerTypeMetadata{
			LayerTypeGRH:          {Name: "GRH", Decoder: gopacket.DecodeFunc(decodeGRH)},
			LayerTypeBTH:          {Name: "BTH", Decoder: gopacket.DecodeFunc(decodeBTH)},
			LayerTypeRDETH:        {Name: "RDETH", Decoder: after{nil, LayerTypeRDETH}},
			LayerTypeDETH:         {Name: "DETH", Decoder: after{nil, LayerTypeDETH}},
			LayerTypeXRCETH:       {Name: "XRCETH", Decoder: after{nil, LayerTypeXRCETH}},
			LayerTypeFETH:         {Name: "FETH", Decoder: after{nil, LayerTypeFETH}},
			LayerTypeRETH:         {Name: "RETH", Decoder: after{nil, LayerTypeRETH}},
			LayerTypeAtomicETH:    {Name: "AtomicETH", Decoder: after{nil, LayerTypeAtomicETH}},
			LayerTypeAETH:         {Name: "AETH", Decoder: after{nil, LayerTypeAETH}},
			LayerTypeAtomicAckETH: {Name: "AtomicAckETH", Decoder: after{nil, LayerTypeAtomicAckETH}},
			LayerTypeImmDt:        {Name: "ImmDt", Decoder: after{nil, LayerTypeImmDt}},
			LayerTypeIETH:         {Name: "IETH", Decoder: after{nil, LayerTypeIETH}},
		} {
			gopacket.RegisterLayerType(int(typ), meta)
		}
		layers.RegisterUDPPortLayerType(frame.Port, LayerTypeBTH)
		layers.EthernetTypeMetadata[EthernetTypeRoCE] = layers.EnumMetadata{
			DecodeWith: LayerTypeGRH, Name: "RoCE", LayerType: LayerTypeGRH,
		}
	})
}

// Layers holds a layer of each kind for gopacket.DecodingLayerParser. The zero
// value is ready for use; a Layers must not be copied after DecodingLayers.
type Layers struct {
	GRH          GRH
	BTH          BTH
	RDETH        RDETH
	DETH         DETH
	XRCETH       XRCETH
	FETH         FETH
	RETH         RETH
	AtomicETH    AtomicETH
	AETH         AETH
	AtomicAckETH AtomicAckETH
	ImmDt        ImmDt
	IETH         IETH
	Payload      gopacket.Payload

	MRC MRCLayers // of MRC, where BTH.MRC is set
}

// MRCLayers holds a layer of each of MRC's own headers.
type MRCLayers struct {
	METH    METH
	TSETH   TSETH
	SETH    SETH
	CCState CCState
	NETH    NETH
	PETH    PETH
	ERTH    ERTH
	EETH    EETH
}

// DecodingLayers ties the layers of l together and returns them, to be given to
// gopacket.NewDecodingLayerParser beside those for Ethernet, IP and UDP. Register
// has to be called as well, or UDP does not know what follows it. Those of MRC are
// among them where BTH.MRC is set already.
func (l *Layers) DecodingLayers() []gopacket.DecodingLayer {
	b := &l.BTH
	l.RDETH.bth, l.DETH.bth, l.XRCETH.bth, l.FETH.bth, l.RETH.bth = b, b, b, b, b
	l.AtomicETH.bth, l.AETH.bth, l.AtomicAckETH.bth, l.ImmDt.bth, l.IETH.bth = b, b, b, b, b
	all := []gopacket.DecodingLayer{&l.GRH, b, &l.RDETH, &l.DETH, &l.XRCETH, &l.FETH, &l.RETH,
		&l.AtomicETH, &l.AETH, &l.AtomicAckETH, &l.ImmDt, &l.IETH, &l.Payload}
	if b.MRC {
		m := &l.MRC
		m.METH.bth, m.TSETH.bth, m.SETH.bth, m.CCState.bth = b, b, b, b
		m.NETH.bth, m.PETH.bth, m.ERTH.bth, m.EETH.bth = b, b, b, b
		all = append(all, &m.METH, &m.TSETH, &m.SETH, &m.CCState, &m.NETH, &m.PETH, &m.ERTH, &m.EETH)
	}
	return all
}
