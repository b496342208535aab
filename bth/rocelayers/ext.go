package rocelayers

import (
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/reth"
)

// ext is what the layers of all extended headers have.
type ext struct {
	layers.BaseLayer
	bth *BTH // the packet's, whose opcode says what follows; nil in a layer by itself
}

func (e *ext) next(t gopacket.LayerType) gopacket.LayerType {
	if e.bth == nil {
		return gopacket.LayerTypePayload
	}
	return e.bth.next(t)
}

func (e *ext) split(data []byte, n int) {
	e.Contents = data[:n:n]
	e.Payload = data[n:len(data):len(data)]
}

// header is the codec of an extended header.
type header interface {
	Validate() error
	AppendTo(dst []byte) []byte
}

// prepend writes a header of n bytes.
func prepend(buf gopacket.SerializeBuffer, h header, n int) error {
	if err := h.Validate(); err != nil {
		return err
	}
	b, err := buf.PrependBytes(n)
	if err != nil {
		return err
	}
	h.AppendTo(b[:0])
	return nil
}

// after decodes the extended header typ of the packet that begins with bth.
type after struct {
	bth *BTH
	typ gopacket.LayerType
}

// Decode implements gopacket.Decoder.
func (a after) Decode(data []byte, p gopacket.PacketBuilder) error {
	var l interface {
		gopacket.Layer
		gopacket.DecodingLayer
	}
	e := ext{bth: a.bth}
	switch a.typ {
	case LayerTypeRDETH:
		l = &RDETH{ext: e}
	case LayerTypeDETH:
		l = &DETH{ext: e}
	case LayerTypeXRCETH:
		l = &XRCETH{ext: e}
	case LayerTypeFETH:
		l = &FETH{ext: e}
	case LayerTypeRETH:
		l = &RETH{ext: e}
	case LayerTypeAtomicETH:
		l = &AtomicETH{ext: e}
	case LayerTypeAETH:
		l = &AETH{ext: e}
	case LayerTypeAtomicAckETH:
		l = &AtomicAckETH{ext: e}
	case LayerTypeImmDt:
		l = &ImmDt{ext: e}
	case LayerTypeIETH:
		l = &IETH{ext: e}
	case LayerTypeMETH:
		l = &METH{ext: e}
	case LayerTypeTSETH:
		l = &TSETH{ext: e}
	case LayerTypeSETH:
		l = &SETH{ext: e}
	case LayerTypeCCState:
		l = &CCState{ext: e}
	case LayerTypeNETH:
		l = &NETH{ext: e}
	case LayerTypePETH:
		l = &PETH{ext: e}
	case LayerTypeERTH:
		l = &ERTH{ext: e}
	case LayerTypeEETH:
		l = &EETH{ext: e}
	}
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	if a.bth == nil {
		return p.NextDecoder(gopacket.LayerTypePayload)
	}
	return a.bth.nextDecoder(a.typ, p)
}

// RDETH is the layer of the reliable datagram extended transport header; the fields are
// [bth.RDETH]'s.
type RDETH struct {
	ext
	bth.RDETH
}

// LayerType returns LayerTypeRDETH.
func (h *RDETH) LayerType() gopacket.LayerType { return LayerTypeRDETH }

// CanDecode returns LayerTypeRDETH.
func (h *RDETH) CanDecode() gopacket.LayerClass { return LayerTypeRDETH }

// NextLayerType returns what the opcode has after this header.
func (h *RDETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeRDETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *RDETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.RDETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, bth.RDETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *RDETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.RDETH, bth.RDETHSize)
}

// DETH is the layer of the datagram extended transport header; the fields are
// [bth.DETH]'s.
type DETH struct {
	ext
	bth.DETH
}

// LayerType returns LayerTypeDETH.
func (h *DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// CanDecode returns LayerTypeDETH.
func (h *DETH) CanDecode() gopacket.LayerClass { return LayerTypeDETH }

// NextLayerType returns what the opcode has after this header.
func (h *DETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeDETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *DETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.DETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, bth.DETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *DETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.DETH, bth.DETHSize)
}

// XRCETH is the layer of the extended reliable connection header; the fields are
// [bth.XRCETH]'s.
type XRCETH struct {
	ext
	bth.XRCETH
}

// LayerType returns LayerTypeXRCETH.
func (h *XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// CanDecode returns LayerTypeXRCETH.
func (h *XRCETH) CanDecode() gopacket.LayerClass { return LayerTypeXRCETH }

// NextLayerType returns what the opcode has after this header.
func (h *XRCETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeXRCETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *XRCETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.XRCETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, bth.XRCETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *XRCETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.XRCETH, bth.XRCETHSize)
}

// FETH is the layer of the flush extended transport header; the fields are
// [reth.FETH]'s.
type FETH struct {
	ext
	reth.FETH
}

// LayerType returns LayerTypeFETH.
func (h *FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

// CanDecode returns LayerTypeFETH.
func (h *FETH) CanDecode() gopacket.LayerClass { return LayerTypeFETH }

// NextLayerType returns what the opcode has after this header.
func (h *FETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeFETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *FETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.FETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, reth.FETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *FETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.FETH, reth.FETHSize)
}

// RETH is the layer of the RDMA extended transport header; the fields are
// [reth.Header]'s.
type RETH struct {
	ext
	reth.Header
}

// LayerType returns LayerTypeRETH.
func (h *RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// CanDecode returns LayerTypeRETH.
func (h *RETH) CanDecode() gopacket.LayerClass { return LayerTypeRETH }

// NextLayerType returns what the opcode has after this header.
func (h *RETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeRETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *RETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.Header.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, reth.Size)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *RETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.Header, reth.Size)
}

// AtomicETH is the layer of the atomic extended transport header; the fields are
// [reth.AtomicETH]'s.
type AtomicETH struct {
	ext
	reth.AtomicETH
}

// LayerType returns LayerTypeAtomicETH.
func (h *AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// CanDecode returns LayerTypeAtomicETH.
func (h *AtomicETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicETH }

// NextLayerType returns what the opcode has after this header.
func (h *AtomicETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeAtomicETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *AtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.AtomicETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, reth.AtomicETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.AtomicETH, reth.AtomicETHSize)
}

// AETH is the layer of the acknowledge extended transport header; the fields are
// [aeth.Header]'s.
type AETH struct {
	ext
	aeth.Header
}

// LayerType returns LayerTypeAETH.
func (h *AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// CanDecode returns LayerTypeAETH.
func (h *AETH) CanDecode() gopacket.LayerClass { return LayerTypeAETH }

// NextLayerType returns what the opcode has after this header.
func (h *AETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeAETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *AETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.Header.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, aeth.Size)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.Header, aeth.Size)
}

// AtomicAckETH is the layer of the atomic acknowledge extended transport header; the fields are
// [aeth.AtomicAckETH]'s.
type AtomicAckETH struct {
	ext
	aeth.AtomicAckETH
}

// LayerType returns LayerTypeAtomicAckETH.
func (h *AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// CanDecode returns LayerTypeAtomicAckETH.
func (h *AtomicAckETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicAckETH }

// NextLayerType returns what the opcode has after this header.
func (h *AtomicAckETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeAtomicAckETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *AtomicAckETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.AtomicAckETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, aeth.AtomicAckETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicAckETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.AtomicAckETH, aeth.AtomicAckETHSize)
}

// ImmDt is the layer of the immediate data header; the fields are
// [reth.ImmDt]'s.
type ImmDt struct {
	ext
	reth.ImmDt
}

// LayerType returns LayerTypeImmDt.
func (h *ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// CanDecode returns LayerTypeImmDt.
func (h *ImmDt) CanDecode() gopacket.LayerClass { return LayerTypeImmDt }

// NextLayerType returns what the opcode has after this header.
func (h *ImmDt) NextLayerType() gopacket.LayerType { return h.next(LayerTypeImmDt) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *ImmDt) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.ImmDt.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, reth.ImmDtSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *ImmDt) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.ImmDt, reth.ImmDtSize)
}

// IETH is the layer of the invalidate extended transport header; the fields are
// [reth.IETH]'s.
type IETH struct {
	ext
	reth.IETH
}

// LayerType returns LayerTypeIETH.
func (h *IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// CanDecode returns LayerTypeIETH.
func (h *IETH) CanDecode() gopacket.LayerClass { return LayerTypeIETH }

// NextLayerType returns what the opcode has after this header.
func (h *IETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeIETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *IETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.IETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, reth.IETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *IETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.IETH, reth.IETHSize)
}
