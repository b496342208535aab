package bth_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/reth"
)

func knownOpcodes(t testing.TB) (ops []bth.Opcode) {
	for op := range opcodeTable(t) {
		ops = append(ops, op)
	}
	sort.Slice(ops, func(i, j int) bool { return ops[i] < ops[j] })
	return ops
}

// full returns a packet in which every header and every byte of pad is set.
func full(op bth.Opcode) *bth.Packet {
	return &bth.Packet{
		Header: bth.Header{Opcode: op, SE: true, M: true, PadCnt: 3, PKey: 0xffff, FECN: true, BECN: true, Resv6: 0x3f,
			DestQP: 0xabcdef, AckReq: true, Resv7: 0x7f, PSN: 0xfedcba},
		RDETH:        bth.RDETH{Resv8: 0xa0, EE: 0x010203},
		DETH:         bth.DETH{QKey: 0x11223344, Resv8: 0xa1, SrcQP: 0x040506},
		XRCETH:       bth.XRCETH{Resv8: 0xa2, SRQ: 0x070809},
		FETH:         reth.FETH{Resv26: 0x3abcdef, Sel: 3, Placement: 9},
		RETH:         reth.Header{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 0x15161718},
		AtomicETH:    reth.AtomicETH{VA: 0x2122232425262728, RKey: 0x31323334, SwapAdd: 0x4142434445464748, Compare: 0x5152535455565758},
		AETH:         aeth.Header{Syndrome: 0x61, MSN: 0x717273},
		AtomicAckETH: aeth.AtomicAckETH{Orig: 0x8182838485868788},
		ImmDt:        reth.ImmDt{Imm: 0x91929394},
		IETH:         reth.IETH{RKey: 0x95969798},
		Pad:          [3]byte{0xe1, 0xe2, 0xe3},
		ICRC:         0xc4c3c2c1,
	}
}

// fit sets payload and pad as the opcode of p requires.
func fit(p *bth.Packet, payload []byte) {
	p.PadCnt = uint8(-len(payload) & 3)
	switch p.Opcode.Payload() {
	case bth.NoPayload:
		payload, p.PadCnt = nil, 0
	case bth.EightBytes:
		payload, p.PadCnt = bytes.Repeat([]byte{0xd8}, 8), 0
	case bth.SixteenZero:
		payload, p.PadCnt = make([]byte, 16), 0
	}
	p.Payload = payload
	clear(p.Pad[p.PadCnt:])
}

// only returns p without the headers that its opcode does not have.
func only(p *bth.Packet) *bth.Packet {
	q := *p
	e := p.Opcode.Ext()
	zero := func(bit bth.Ext, f func()) {
		if e&bit == 0 {
			f()
		}
	}
	zero(bth.HasRDETH, func() { q.RDETH = bth.RDETH{} })
	zero(bth.HasDETH, func() { q.DETH = bth.DETH{} })
	zero(bth.HasXRCETH, func() { q.XRCETH = bth.XRCETH{} })
	zero(bth.HasFETH, func() { q.FETH = reth.FETH{} })
	zero(bth.HasRETH, func() { q.RETH = reth.Header{} })
	zero(bth.HasAtomicETH, func() { q.AtomicETH = reth.AtomicETH{} })
	zero(bth.HasAETH, func() { q.AETH = aeth.Header{} })
	zero(bth.HasAtomicAckETH, func() { q.AtomicAckETH = aeth.AtomicAckETH{} })
	zero(bth.HasImmDt, func() { q.ImmDt = reth.ImmDt{} })
	zero(bth.HasIETH, func() { q.IETH = reth.IETH{} })
	return &q
}

// requirePacket compares packets; a payload of no bytes equals none.
func requirePacket(t require.TestingT, want, got *bth.Packet, msg ...any) {
	w, g := *want, *got
	require.True(t, bytes.Equal(w.Payload, g.Payload), msg...)
	w.Payload, g.Payload = nil, nil
	require.Equal(t, w, g, msg...)
}

// TestPacketLayout holds the place of every header of every opcode, put together
// from the table and the headers' own codecs.
// Rule WI-10.
func TestPacketLayout(t *testing.T) {
	table := opcodeTable(t)
	for _, op := range knownOpcodes(t) {
		p := full(op)
		fit(p, []byte("hello"))
		headers := map[string]func([]byte) []byte{
			"RDETH": p.RDETH.AppendTo, "DETH": p.DETH.AppendTo, "XRCETH": p.XRCETH.AppendTo, "FETH": p.FETH.AppendTo,
			"RETH": p.RETH.AppendTo, "AtomicETH": p.AtomicETH.AppendTo, "AETH": p.AETH.AppendTo,
			"AtomicAckETH": p.AtomicAckETH.AppendTo, "ImmDt": p.ImmDt.AppendTo, "IETH": p.IETH.AppendTo,
		}
		want := p.Header.AppendTo(nil)
		for _, name := range table[op].headers {
			want = headers[name](want)
		}
		require.Equal(t, want, p.AppendHeadersTo(nil), op)
		want = append(want, p.Payload...)
		want = append(want, p.Pad[:p.PadCnt]...)
		want = append(want, 0xc1, 0xc2, 0xc3, 0xc4) // least significant byte first
		require.Equal(t, want, p.AppendTo(nil), op)
		require.Equal(t, len(want), p.Size(), op)
		require.NoError(t, p.Validate(), op)

		// Into a receiver full of other things: all absent headers are zero after.
		got := full(0xff)
		require.NoError(t, got.Decode(want), op)
		requirePacket(t, only(p), got, op)
		require.Equal(t, len(got.Payload), cap(got.Payload), op)
		got = full(0xff)
		require.NoError(t, got.DecodePrefix(append(want, 0xee, 0xee), len(want)), op)
		requirePacket(t, only(p), got, op)
	}
}

// TestPacketRefusals holds that what cannot be laid out is refused, and the
// receiver unchanged.
func TestPacketRefusals(t *testing.T) {
	packet := func(op bth.Opcode, pad uint8, tver uint8, after int) []byte {
		h := bth.Header{Opcode: op, PadCnt: pad, TVer: tver}
		return append(h.AppendTo(nil), make([]byte, after)...)
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":                     {nil, bth.ErrTruncated},
		"shortest but one":          {packet(bth.RCSendOnly, 0, 0, 3), bth.ErrTruncated},
		"shortest":                  {packet(bth.RCSendOnly, 0, 0, 4), nil},
		"pad without room":          {packet(bth.RCSendOnly, 1, 0, 4), bth.ErrLength},
		"only pad":                  {packet(bth.RCSendOnly, 3, 0, 4+3), nil},
		"RETH cut short":            {packet(bth.RCWriteOnly, 0, 0, 16+3), bth.ErrLength},
		"RETH, no payload":          {packet(bth.RCWriteOnly, 0, 0, 16+4), nil},
		"version 1":                 {packet(bth.RCSendOnly, 0, 1, 4), bth.ErrVersion},
		"version before opcode":     {packet(0xff, 0, 15, 4), bth.ErrVersion},
		"opcode reserved":           {packet(0x1f, 0, 0, 44), bth.ErrOpcode},
		"opcode a manufacturer's":   {packet(0xc0, 0, 0, 44), bth.ErrOpcode},
		"opcode before length":      {packet(0x1f, 3, 0, 4), bth.ErrOpcode},
		"payload of an ACK":         {packet(bth.RCAcknowledge, 0, 0, 4+4+4), bth.ErrLength},
		"pad of an ACK":             {packet(bth.RCAcknowledge, 1, 0, 4+1+4), bth.ErrLength},
		"atomic ack, no value":      {packet(bth.RCAtomicAcknowledge, 0, 0, 4+4), bth.ErrLength},
		"ATOMIC WRITE of 8":         {packet(bth.RCAtomicWrite, 0, 0, 16+8+4), nil},
		"ATOMIC WRITE of 4":         {packet(bth.RCAtomicWrite, 0, 0, 16+4+4), bth.ErrLength},
		"ATOMIC WRITE of 12":        {packet(bth.RCAtomicWrite, 0, 0, 16+12+4), bth.ErrLength},
		"ATOMIC WRITE of 7 and pad": {packet(bth.RCAtomicWrite, 1, 0, 16+8+4), bth.ErrLength},
		"ATOMIC WRITE of 8 and pad": {packet(bth.RCAtomicWrite, 1, 0, 16+9+4), bth.ErrLength},
		"CNP":                       {packet(bth.CNP, 0, 0, 16+4), nil},
		"CNP without its zeros":     {packet(bth.CNP, 0, 0, 4), bth.ErrLength},
		"CNP with pad":              {packet(bth.CNP, 2, 0, 18+4), bth.ErrLength},
	} {
		p, before := full(0xfe), full(0xfe)
		err := p.Decode(c.b)
		if c.want == nil {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, before, p, name)
		require.Equal(t, c.want == bth.ErrTruncated, errors.Is(err, io.ErrUnexpectedEOF), name)
	}
}

// TestDecodePrefix cuts packets at every length.
func TestDecodePrefix(t *testing.T) {
	for _, op := range knownOpcodes(t) {
		p := full(op)
		fit(p, []byte("seventeen letters"))
		whole := p.AppendTo(nil)
		n, hl := len(whole), op.HeaderSize()
		for kept := range n + 1 {
			got, before := full(0xfe), full(0xfe)
			err := got.DecodePrefix(whole[:kept:kept], n)
			if kept < hl {
				require.ErrorIs(t, err, bth.ErrTruncated, "%v, %d of %d", op, kept, n)
				require.Equal(t, before, got)
				continue
			}
			require.NoError(t, err, "%v, %d of %d", op, kept, n)
			want := only(p)
			rest := whole[hl:kept]
			if kept < n {
				want.ICRC = 0
			}
			want.Pad = [3]byte{}
			if len(rest) > len(p.Payload) {
				copy(want.Pad[:p.PadCnt], rest[len(p.Payload):])
				rest = rest[:len(p.Payload)]
			}
			want.Payload = rest
			requirePacket(t, want, got, "%v, %d of %d", op, kept, n)
			require.Equal(t, len(got.Payload), cap(got.Payload))
		}
	}
	var p bth.Packet
	require.ErrorIs(t, p.DecodePrefix(make([]byte, 64), 15), bth.ErrTruncated)
	require.ErrorIs(t, p.DecodePrefix(make([]byte, 64), -1), bth.ErrTruncated)
}

func TestPacketValidate(t *testing.T) {
	valid := func(op bth.Opcode) *bth.Packet {
		p := full(op)
		fit(p, []byte("abcd"))
		return p
	}
	for name, c := range map[string]struct {
		op     bth.Opcode
		change func(*bth.Packet)
		want   error
	}{
		"good":                       {bth.RCSendOnly, func(p *bth.Packet) {}, nil},
		"wide QP":                    {bth.RCSendOnly, func(p *bth.Packet) { p.DestQP = 1 << 24 }, bth.ErrRange},
		"version":                    {bth.RCSendOnly, func(p *bth.Packet) { p.TVer = 1 }, bth.ErrVersion},
		"opcode":                     {0x1f, func(p *bth.Packet) {}, bth.ErrOpcode},
		"payload of an ACK":          {bth.RCAcknowledge, func(p *bth.Packet) { p.Payload = make([]byte, 4) }, bth.ErrLength},
		"pad of an ACK":              {bth.RCAcknowledge, func(p *bth.Packet) { p.PadCnt = 1 }, bth.ErrLength},
		"ATOMIC WRITE of 7":          {bth.RCAtomicWrite, func(p *bth.Packet) { p.Payload = p.Payload[:7] }, bth.ErrLength},
		"ATOMIC WRITE with pad":      {bth.RCAtomicWrite, func(p *bth.Packet) { p.PadCnt = 1 }, bth.ErrLength},
		"CNP of 15":                  {bth.CNP, func(p *bth.Packet) { p.Payload = p.Payload[:15] }, bth.ErrLength},
		"wide MSN":                   {bth.RCAcknowledge, func(p *bth.Packet) { p.AETH.MSN = 1 << 24 }, bth.ErrRange},
		"wide MSN of no AETH":        {bth.RCSendOnly, func(p *bth.Packet) { p.AETH.MSN = 1 << 24 }, nil},
		"wide source QP":             {bth.UDSendOnly, func(p *bth.Packet) { p.DETH.SrcQP = 1 << 24 }, bth.ErrRange},
		"wide EE":                    {bth.RD.Opcode(bth.SendOnly), func(p *bth.Packet) { p.RDETH.EE = 1 << 24 }, bth.ErrRange},
		"wide SRQ":                   {bth.XRC.Opcode(bth.SendOnly), func(p *bth.Packet) { p.XRCETH.SRQ = 1 << 24 }, bth.ErrRange},
		"wide selectivity":           {bth.RCFlush, func(p *bth.Packet) { p.FETH.Sel = 4 }, bth.ErrRange},
		"wide selectivity elsewhere": {bth.RCWriteOnly, func(p *bth.Packet) { p.FETH.Sel = 4 }, nil},
	} {
		p := valid(c.op)
		c.change(p)
		require.ErrorIs(t, p.Validate(), c.want, name)
		out, err := p.AppendBinary([]byte("dst"))
		require.ErrorIs(t, err, c.want, name)
		if c.want != nil {
			require.True(t, c.want != bth.ErrRange || err.Error() != c.want.Error(), "the field is not named: %v", err)
			require.Equal(t, "dst", string(out), name)
		} else {
			require.Equal(t, p.AppendTo([]byte("dst")), out, name)
		}
	}
}

func TestSetPayload(t *testing.T) {
	for n := range 9 { // rule RQ-03
		p := full(bth.RCSendOnly)
		b := bytes.Repeat([]byte{7}, n)
		p.SetPayload(b)
		require.Equal(t, b, p.Payload)
		require.EqualValues(t, (4-n%4)%4, p.PadCnt)
		require.Zero(t, p.Pad)
		require.Zero(t, p.Size()%4)
		require.NoError(t, p.Validate())
	}
}

// anyPacket draws packets that fit, with all that their opcode may carry.
func anyPacket(t *rapid.T, ops []bth.Opcode) *bth.Packet {
	p := rapid.Make[bth.Packet]().Draw(t, "packet")
	p.Opcode = rapid.SampledFrom(ops).Draw(t, "opcode")
	p.TVer = 0
	// What does not fit loses its upper bits, and nothing else.
	_ = p.Header.Decode(p.Header.AppendTo(nil))
	_ = p.RDETH.Decode(p.RDETH.AppendTo(nil))
	_ = p.DETH.Decode(p.DETH.AppendTo(nil))
	_ = p.XRCETH.Decode(p.XRCETH.AppendTo(nil))
	_ = p.FETH.Decode(p.FETH.AppendTo(nil))
	_ = p.AETH.Decode(p.AETH.AppendTo(nil))
	fit(&p, rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload"))
	return &p
}

func TestPacketProperties(t *testing.T) {
	ops := knownOpcodes(t)
	rapid.Check(t, func(t *rapid.T) {
		p := anyPacket(t, ops)
		require.NoError(t, p.Validate())
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "prefix")
		buf := bytes.Repeat([]byte{0xa5}, 300)
		copy(buf, prefix)
		out := p.AppendTo(buf[:len(prefix)])
		require.Equal(t, append(bytes.Clone(prefix), p.AppendTo(nil)...), out)
		for _, c := range buf[len(out):] {
			require.EqualValues(t, 0xa5, c)
		}

		raw := out[len(prefix):]
		in := bytes.Clone(raw)
		got := anyPacket(t, ops)
		require.NoError(t, got.UnmarshalBinary(raw))
		requirePacket(t, only(p), got)
		require.Equal(t, in, raw, "the input was written to")
	})
}

// checkPacketBytes holds what must be true of any input.
func checkPacketBytes(t require.TestingT, b []byte, n int) {
	in := bytes.Clone(b)
	p, before := full(0xfe), full(0xfe)
	err := p.Decode(b)
	if err != nil {
		require.Equal(t, before, p)
	} else {
		require.Equal(t, b, p.AppendTo(nil), "encode after decode")
		require.Equal(t, len(b), p.Size())
		require.NoError(t, p.Validate())
	}

	// The two ways in agree.
	q := full(0xfe)
	require.Equal(t, err, q.DecodePrefix(b, len(b)))
	require.Equal(t, p, q)

	q = full(0xfe)
	if q.DecodePrefix(b, n) != nil {
		require.Equal(t, before, q)
	} else {
		require.LessOrEqual(t, len(q.Payload), n)
	}
	require.Equal(t, in, b, "the input was written to")
}

// Rule WI-16.
func TestPacketBytes(t *testing.T) {
	ops := knownOpcodes(t)
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "bytes")
		if len(b) >= 2 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
			b[0] = byte(rapid.SampledFrom(ops).Draw(t, "opcode"))
			b[1] &= 0xf0
		}
		checkPacketBytes(t, b, rapid.IntRange(-2, 200).Draw(t, "n"))
	})
}

// TestPacketBits turns each bit of the BTH that does not change the layout:
// with each opcode it comes through decoding and encoding. The payload has no
// room to grow into the ICRC.
func TestPacketBits(t *testing.T) {
	for _, op := range knownOpcodes(t) {
		for _, n := range []int{8, 5} {
			p := bth.Packet{Header: bth.Header{Opcode: op}}
			fit(&p, make([]byte, n))
			raw := p.AppendTo(nil)
			for bit := range 8 * bth.Size {
				if bit < 8 || bit >= 10 && bit < 16 {
					continue // opcode, PadCnt, TVer
				}
				b := bytes.Clone(raw)
				b[bit/8] ^= 0x80 >> (bit % 8)
				got := full(0xfe)
				require.NoError(t, got.Decode(b), "%v, bit %d", op, bit)
				require.Equal(t, b, got.AppendTo(nil), "%v, bit %d", op, bit)
				require.Equal(t, len(got.Payload), cap(got.Payload), "%v", op)
			}
		}
	}
}

// TestPacketShorter holds that each length below that of an opcode's headers,
// pad and ICRC is refused.
// Rule WI-4.
func TestPacketShorter(t *testing.T) {
	for _, op := range knownOpcodes(t) {
		for pad := range uint8(4) {
			h := bth.Header{Opcode: op, PadCnt: pad}
			b := append(h.AppendTo(nil), make([]byte, 100)...)
			for n := range op.HeaderSize() + int(pad) + bth.ICRCSize {
				p, before := full(0xfe), full(0xfe)
				require.Error(t, p.Decode(b[:n:n]), "%v, %d bytes", op, n)
				require.Equal(t, before, p)
			}
		}
	}
}

// TestICRCOrder holds that the ICRC, as the only field, is little-endian.
// Rule WI-15.
func TestICRCOrder(t *testing.T) {
	p := bth.Packet{Header: bth.Header{Opcode: bth.RCSendOnly}, ICRC: 0x01020304}
	b := p.AppendTo(nil)
	require.Equal(t, []byte{4, 3, 2, 1}, b[12:])
	require.EqualValues(t, p.ICRC, binary.LittleEndian.Uint32(b[12:]))
}
