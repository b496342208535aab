package mrc

import (
	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/reth"
)

// Opcodes of MRC. The low five bits are RC's where RC has the operation.
const (
	WriteFirst       bth.Opcode = 0xc6
	WriteMiddle      bth.Opcode = 0xc7
	WriteLast        bth.Opcode = 0xc8
	WriteLastImm     bth.Opcode = 0xc9
	WriteOnly        bth.Opcode = 0xca
	WriteOnlyImm     bth.Opcode = 0xcb
	Acknowledge      bth.Opcode = 0xd1 // transport ACK or NAK
	EndpointRequest  bth.Opcode = 0xd8
	EndpointResponse bth.Opcode = 0xd9
	SACK             bth.Opcode = 0xdc
	NACK             bth.Opcode = 0xdd
	Probe            bth.Opcode = 0xde // reliability probe
)

// EndpointQP is the destination QP number of endpoint requests and responses.
const EndpointQP = 2

// Ext is a set of the headers that may follow the BTH of an MRC packet.
type Ext uint16

// Headers, in their order on the wire.
const (
	HasMETH Ext = 1 << iota
	HasTSETH
	HasRETH
	HasImmDt
	HasAETH
	HasSETH
	HasCCState
	HasNETH
	HasPETH
	HasERTH
	HasEETH
)

var extSizes = [...]int{METHSize, TSETHSize, reth.Size, reth.ImmDtSize, aeth.Size,
	SETHSize, CCStateSize, NETHSize, PETHSize, ERTHSize, EETHSize}

// Size returns the length in bytes of the headers in e.
func (e Ext) Size() int {
	n := 0
	for i, size := range extSizes {
		if e>>i&1 != 0 {
			n += size
		}
	}
	return n
}

type opcodeInfo struct {
	name  string
	ext   Ext // without TSETH
	class bth.Class
	size  uint8 // BTH and headers, bytes; without TSETH
}

// opcodes is indexed by the low five bits.
var opcodes = func() (t [32]opcodeInfo) {
	const write = HasMETH | HasRETH
	for op, e := range map[bth.Opcode]opcodeInfo{
		WriteFirst:       {name: "MRC_WRITE_FIRST", class: bth.Request, ext: write},
		WriteMiddle:      {name: "MRC_WRITE_MIDDLE", class: bth.Request, ext: write},
		WriteLast:        {name: "MRC_WRITE_LAST", class: bth.Request, ext: write},
		WriteLastImm:     {name: "MRC_WRITE_LAST_IMM", class: bth.Request, ext: write | HasImmDt},
		WriteOnly:        {name: "MRC_WRITE_ONLY", class: bth.Request, ext: write},
		WriteOnlyImm:     {name: "MRC_WRITE_ONLY_IMM", class: bth.Request, ext: write | HasImmDt},
		Acknowledge:      {name: "MRC_ACKNOWLEDGE", class: bth.Response, ext: HasAETH},
		EndpointRequest:  {name: "MRC_ENDPOINT_REQUEST", class: bth.Request, ext: HasERTH},
		EndpointResponse: {name: "MRC_ENDPOINT_RESPONSE", class: bth.Response, ext: HasEETH},
		SACK:             {name: "MRC_SACK", class: bth.Response, ext: HasSETH | HasCCState},
		NACK:             {name: "MRC_NACK", class: bth.Response, ext: HasNETH},
		Probe:            {name: "MRC_PROBE", class: bth.Request, ext: HasPETH},
	} {
		e.size = uint8(bth.Size + e.ext.Size())
		t[op.Operation()] = e
	}
	return t
}()

func info(op bth.Opcode) *opcodeInfo {
	if op.Service() != bth.Manufacturer6 {
		return &opcodes[0] // an entry without a layout
	}
	return &opcodes[op.Operation()]
}

// Known reports whether op is one of MRC's.
func Known(op bth.Opcode) bool { return info(op).size != 0 }

// IsWrite reports whether op belongs to a WRITE, the only packets that carry
// payload and take a PSN.
func IsWrite(op bth.Opcode) bool { return info(op).ext&HasMETH != 0 }

// Class returns which side sends op: bth.Request, bth.Response, or bth.Unknown for an
// opcode that is not MRC's.
func Class(op bth.Opcode) bth.Class { return info(op).class }

// ExtOf returns the headers of a packet with opcode op and, in its BTH, the ts
// bit as given.
func ExtOf(op bth.Opcode, ts bool) Ext {
	e := info(op).ext
	if ts && e&HasMETH != 0 {
		e |= HasTSETH
	}
	return e
}

// HeaderSize returns the length in bytes of BTH and headers of such a packet,
// and 0 when op is not MRC's.
func HeaderSize(op bth.Opcode, ts bool) int {
	i := info(op)
	if ts && i.ext&HasMETH != 0 {
		return int(i.size) + TSETHSize
	}
	return int(i.size)
}

// Name returns the name of op, for example "MRC_WRITE_LAST_IMM", and that of
// package bth for what is not MRC's.
func Name(op bth.Opcode) string {
	if i := info(op); i.size != 0 {
		return i.name
	}
	return op.String()
}

// Bits of byte 8 of the BTH, which package bth keeps in Resv7: a reserved bit,
// rtx, ts, and four bits that are reserved and covered by the ICRC.
const (
	rtxBit = 1 << 5
	tsBit  = 1 << 4
)

// Rtx reports whether a packet says that it was sent before.
func Rtx(h *bth.Header) bool { return h.Resv7&rtxBit != 0 }

// TS reports whether a TSETH follows the METH. It has no meaning in packets that
// are no WRITE.
func TS(h *bth.Header) bool { return h.Resv7&tsBit != 0 }

// SetRtx replaces the rtx bit.
func SetRtx(h *bth.Header, on bool) { h.Resv7 = setBit(h.Resv7, rtxBit, on) }

// SetTS replaces the ts bit.
func SetTS(h *bth.Header, on bool) { h.Resv7 = setBit(h.Resv7, tsBit, on) }

func setBit(b, mask uint8, on bool) uint8 {
	if on {
		return b | mask
	}
	return b &^ mask
}
