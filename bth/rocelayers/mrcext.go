package rocelayers

import (
	"github.com/google/gopacket"

	"github.com/roce-go/roce/bth/mrc"
)

// The layers of MRC's headers. Their fields, and how sure these are, are in
// package mrc.

// METH is the layer of the message extended transport header; the fields
// are [mrc.METH]'s.
type METH struct {
	ext
	mrc.METH
}

// LayerType returns LayerTypeMETH.
func (h *METH) LayerType() gopacket.LayerType { return LayerTypeMETH }

// CanDecode returns LayerTypeMETH.
func (h *METH) CanDecode() gopacket.LayerClass { return LayerTypeMETH }

// NextLayerType returns what the packet has after this header.
func (h *METH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeMETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *METH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.METH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.METHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *METH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.METH, mrc.METHSize)
}

// TSETH is the layer of the timestamp extended transport header; the fields
// are [mrc.TSETH]'s.
type TSETH struct {
	ext
	mrc.TSETH
}

// LayerType returns LayerTypeTSETH.
func (h *TSETH) LayerType() gopacket.LayerType { return LayerTypeTSETH }

// CanDecode returns LayerTypeTSETH.
func (h *TSETH) CanDecode() gopacket.LayerClass { return LayerTypeTSETH }

// NextLayerType returns what the packet has after this header.
func (h *TSETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeTSETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *TSETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.TSETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.TSETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *TSETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.TSETH, mrc.TSETHSize)
}

// SETH is the layer of the selective acknowledgement extended transport header; the fields
// are [mrc.SETH]'s.
type SETH struct {
	ext
	mrc.SETH
}

// LayerType returns LayerTypeSETH.
func (h *SETH) LayerType() gopacket.LayerType { return LayerTypeSETH }

// CanDecode returns LayerTypeSETH.
func (h *SETH) CanDecode() gopacket.LayerClass { return LayerTypeSETH }

// NextLayerType returns what the packet has after this header.
func (h *SETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeSETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *SETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.SETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.SETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *SETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.SETH, mrc.SETHSize)
}

// CCState is the layer of the congestion control state behind a SETH; the fields
// are [mrc.CCState]'s.
type CCState struct {
	ext
	mrc.CCState
}

// LayerType returns LayerTypeCCState.
func (h *CCState) LayerType() gopacket.LayerType { return LayerTypeCCState }

// CanDecode returns LayerTypeCCState.
func (h *CCState) CanDecode() gopacket.LayerClass { return LayerTypeCCState }

// NextLayerType returns what the packet has after this header.
func (h *CCState) NextLayerType() gopacket.LayerType { return h.next(LayerTypeCCState) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *CCState) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.CCState.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.CCStateSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *CCState) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.CCState, mrc.CCStateSize)
}

// NETH is the layer of the negative acknowledgement extended transport header; the fields
// are [mrc.NETH]'s.
type NETH struct {
	ext
	mrc.NETH
}

// LayerType returns LayerTypeNETH.
func (h *NETH) LayerType() gopacket.LayerType { return LayerTypeNETH }

// CanDecode returns LayerTypeNETH.
func (h *NETH) CanDecode() gopacket.LayerClass { return LayerTypeNETH }

// NextLayerType returns what the packet has after this header.
func (h *NETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeNETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *NETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.NETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.NETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *NETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.NETH, mrc.NETHSize)
}

// PETH is the layer of the probe extended transport header; the fields
// are [mrc.PETH]'s.
type PETH struct {
	ext
	mrc.PETH
}

// LayerType returns LayerTypePETH.
func (h *PETH) LayerType() gopacket.LayerType { return LayerTypePETH }

// CanDecode returns LayerTypePETH.
func (h *PETH) CanDecode() gopacket.LayerClass { return LayerTypePETH }

// NextLayerType returns what the packet has after this header.
func (h *PETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypePETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *PETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.PETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.PETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *PETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.PETH, mrc.PETHSize)
}

// ERTH is the layer of the header of an endpoint request; the fields
// are [mrc.ERTH]'s.
type ERTH struct {
	ext
	mrc.ERTH
}

// LayerType returns LayerTypeERTH.
func (h *ERTH) LayerType() gopacket.LayerType { return LayerTypeERTH }

// CanDecode returns LayerTypeERTH.
func (h *ERTH) CanDecode() gopacket.LayerClass { return LayerTypeERTH }

// NextLayerType returns what the packet has after this header.
func (h *ERTH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeERTH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *ERTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.ERTH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.ERTHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *ERTH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.ERTH, mrc.ERTHSize)
}

// EETH is the layer of the header of an endpoint response; the fields
// are [mrc.EETH]'s.
type EETH struct {
	ext
	mrc.EETH
}

// LayerType returns LayerTypeEETH.
func (h *EETH) LayerType() gopacket.LayerType { return LayerTypeEETH }

// CanDecode returns LayerTypeEETH.
func (h *EETH) CanDecode() gopacket.LayerClass { return LayerTypeEETH }

// NextLayerType returns what the packet has after this header.
func (h *EETH) NextLayerType() gopacket.LayerType { return h.next(LayerTypeEETH) }

// DecodeFromBytes implements gopacket.DecodingLayer. When it fails, h is
// unchanged.
func (h *EETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.EETH.Decode(data); err != nil {
		df.SetTruncated()
		return err
	}
	h.split(data, mrc.EETHSize)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *EETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, &h.EETH, mrc.EETHSize)
}
