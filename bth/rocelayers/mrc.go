package rocelayers

import (
	"math/bits"
	"sync"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
)

// Layer types of MRC's headers. They are known to gopacket after [RegisterMRC].
const (
	LayerTypeMETH gopacket.LayerType = LayerTypeIETH + 1 + iota
	LayerTypeTSETH
	LayerTypeSETH
	LayerTypeCCState
	LayerTypeNETH
	LayerTypePETH
	LayerTypeERTH
	LayerTypeEETH
)

// mrcLayers has the layer types in the order of the bits of mrc.Ext.
var mrcLayers = [...]gopacket.LayerType{LayerTypeMETH, LayerTypeTSETH, LayerTypeRETH, LayerTypeImmDt, LayerTypeAETH,
	LayerTypeSETH, LayerTypeCCState, LayerTypeNETH, LayerTypePETH, LayerTypeERTH, LayerTypeEETH}

var (
	registerMRC sync.Once
	mrcWanted   bool
)

// RegisterMRC is [Register], and makes gopacket.NewPacket decode opcodes C0 to DF, which
// any manufacturer may use, as MRC's: see package mrc, which is experimental. ports are UDP
// destination ports that MRC uses besides 4791. For gopacket.DecodingLayerParser set
// BTH.MRC of a [Layers] as well.
//
// Like Register, it must be called before any goroutine decodes packets.
func RegisterMRC(ports ...uint16) {
	Register()
	registerMRC.Do(func() {
		for typ, name := range map[gopacket.LayerType]string{
			LayerTypeMETH: "METH", LayerTypeTSETH: "TSETH", LayerTypeSETH: "SETH", LayerTypeCCState: "CC_STATE",
			LayerTypeNETH: "NETH", LayerTypePETH: "PETH", LayerTypeERTH: "ERTH", LayerTypeEETH: "EETH",
		} {
			gopacket.RegisterLayerType(int(typ), gopacket.LayerTypeMetadata{Name: name, Decoder: after{nil, typ}})
		}
	})
	mrcWanted = true
	for _, p := range ports {
		layers.RegisterUDPPortLayerType(layers.UDPPort(p), LayerTypeBTH)
	}
}

// nextMRC returns what follows the layer t in the MRC packet that begins with b.
func (b *BTH) nextMRC(t gopacket.LayerType) gopacket.LayerType {
	left := uint(mrc.ExtOf(b.Opcode, mrc.TS(&b.Header)))
	at := 0
	if t != LayerTypeBTH {
		for i, l := range mrcLayers {
			if l == t {
				at = i + 1
			}
		}
	}
	if left >>= at; left == 0 {
		return gopacket.LayerTypePayload
	}
	return mrcLayers[at+bits.TrailingZeros(left)]
}

// isMRC reports whether h begins a packet of MRC.
func (b *BTH) isMRC(h *bth.Header) bool { return b.MRC && mrc.Known(h.Opcode) && h.TVer == 0 }

// layout returns how many bytes of headers a packet that begins with h has, and
// what payload.
func (b *BTH) layout(h *bth.Header) (int, bth.PayloadRule) {
	switch {
	case b.isMRC(h):
		rule := bth.NoPayload
		if mrc.IsWrite(h.Opcode) {
			rule = bth.UpToMTU
		}
		return mrc.HeaderSize(h.Opcode, mrc.TS(h)), rule
	case h.Opcode.Known() && h.TVer == 0:
		return h.Opcode.HeaderSize(), h.Opcode.Payload()
	}
	return bth.Size, bth.UpToMTU
}
