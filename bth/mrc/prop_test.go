package mrc_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/fuzz/codectest"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

func TestProperties(t *testing.T) {
	codectest.Check[mrc.METH](t, "METH", mrc.METHSize, codecErrors)
	codectest.Check[mrc.TSETH](t, "TSETH", mrc.TSETHSize, codecErrors)
	codectest.Check[mrc.SETH](t, "SETH", mrc.SETHSize, codecErrors)
	codectest.Check[mrc.CCState](t, "CC_STATE", mrc.CCStateSize, codecErrors)
	codectest.Check[mrc.NETH](t, "NETH", mrc.NETHSize, codecErrors)
	codectest.Check[mrc.PETH](t, "PETH", mrc.PETHSize, codecErrors)
	codectest.Check[mrc.ERTH](t, "ERTH", mrc.ERTHSize, codecErrors)
	codectest.Check[mrc.EETH](t, "EETH", mrc.EETHSize, codecErrors)
}

var codecErrors = codectest.Errors{Range: bth.ErrRange, Truncated: bth.ErrTruncated, Length: bth.ErrLength}

// stack is the package's table of opcodes, written a second time by hand: bytes
// of headers behind the BTH, without TSETH.
var stack = map[bth.Opcode]struct {
	name  string
	ext   mrc.Ext
	bytes int
}{
	0xc6: {"MRC_WRITE_FIRST", mrc.HasMETH | mrc.HasRETH, 20},
	0xc7: {"MRC_WRITE_MIDDLE", mrc.HasMETH | mrc.HasRETH, 20},
	0xc8: {"MRC_WRITE_LAST", mrc.HasMETH | mrc.HasRETH, 20},
	0xc9: {"MRC_WRITE_LAST_IMM", mrc.HasMETH | mrc.HasRETH | mrc.HasImmDt, 24},
	0xca: {"MRC_WRITE_ONLY", mrc.HasMETH | mrc.HasRETH, 20},
	0xcb: {"MRC_WRITE_ONLY_IMM", mrc.HasMETH | mrc.HasRETH | mrc.HasImmDt, 24},
	0xd1: {"MRC_ACKNOWLEDGE", mrc.HasAETH, 4},
	0xd8: {"MRC_ENDPOINT_REQUEST", mrc.HasERTH, 16},
	0xd9: {"MRC_ENDPOINT_RESPONSE", mrc.HasEETH, 36},
	0xdc: {"MRC_SACK", mrc.HasSETH | mrc.HasCCState, 36},
	0xdd: {"MRC_NACK", mrc.HasNETH, 20},
	0xde: {"MRC_PROBE", mrc.HasPETH, 16},
}

func isWrite(op bth.Opcode) bool { return op >= 0xc6 && op <= 0xcb }

func TestOpcodes(t *testing.T) {
	for i := range 256 {
		op := bth.Opcode(i)
		want, ok := stack[op]
		require.Equal(t, ok, mrc.Known(op), "%#x", i)
		require.Equal(t, isWrite(op), mrc.IsWrite(op), "%#x", i)
		for _, ts := range []bool{false, true} {
			if !ok {
				require.Zero(t, mrc.ExtOf(op, ts), "%#x", i)
				require.Zero(t, mrc.HeaderSize(op, ts), "%#x", i)
				require.Equal(t, op.String(), mrc.Name(op))
				require.Equal(t, bth.Unknown, mrc.Class(op))
				continue
			}
			e, n := want.ext, 12+want.bytes
			if ts && isWrite(op) {
				e |= mrc.HasTSETH
				n += 4
			}
			require.Equal(t, e, mrc.ExtOf(op, ts), "%#x", i)
			require.Equal(t, n, mrc.HeaderSize(op, ts), "%#x", i)
			require.Equal(t, n, 12+e.Size(), "%#x", i)
			require.Equal(t, want.name, mrc.Name(op))
			require.LessOrEqual(t, n, mrc.MaxHeaderSize)
			class := bth.Request
			if op == 0xd1 || op == 0xd9 || op == 0xdc || op == 0xdd {
				class = bth.Response
			}
			require.Equal(t, class, mrc.Class(op), "%#x", i)
		}
	}
}

func TestBits(t *testing.T) {
	var h bth.Header
	for _, c := range []struct {
		rtx, ts bool
		resv7   uint8
	}{{false, false, 0x4f}, {true, false, 0x6f}, {false, true, 0x5f}, {true, true, 0x7f}} {
		h.Resv7 = 0x4f // other bits are not changed
		mrc.SetRtx(&h, c.rtx)
		mrc.SetTS(&h, c.ts)
		require.Equal(t, c.resv7, h.Resv7)
		require.Equal(t, c.rtx, mrc.Rtx(&h))
		require.Equal(t, c.ts, mrc.TS(&h))
	}
	mrc.SetRtx(&h, false)
	mrc.SetTS(&h, false)
	require.Equal(t, uint8(0x4f), h.Resv7)
	require.NoError(t, h.Validate())
}

// drawPacket draws any packet that is MRC's, with fields that may be too wide.
func drawPacket(t *rapid.T) *mrc.Packet {
	ops := make([]bth.Opcode, 0, len(stack))
	for i := range 256 {
		if _, ok := stack[bth.Opcode(i)]; ok {
			ops = append(ops, bth.Opcode(i))
		}
	}
	p := &mrc.Packet{}
	p.Header = rapid.Make[bth.Header]().Draw(t, "bth")
	p.Opcode = rapid.SampledFrom(ops).Draw(t, "opcode")
	p.TVer = 0
	p.RETH = rapid.Make[reth.Header]().Draw(t, "reth")
	p.ImmDt = rapid.Make[reth.ImmDt]().Draw(t, "immdt")
	p.AETH = rapid.Make[aeth.Header]().Draw(t, "aeth")
	p.METH = rapid.Make[mrc.METH]().Draw(t, "meth")
	p.TSETH = rapid.Make[mrc.TSETH]().Draw(t, "tseth")
	p.SETH = rapid.Make[mrc.SETH]().Draw(t, "seth")
	p.CCState = rapid.Make[mrc.CCState]().Draw(t, "cc_state")
	p.NETH = rapid.Make[mrc.NETH]().Draw(t, "neth")
	p.PETH = rapid.Make[mrc.PETH]().Draw(t, "peth")
	p.ERTH = rapid.Make[mrc.ERTH]().Draw(t, "erth")
	p.EETH = rapid.Make[mrc.EETH]().Draw(t, "eeth")
	p.ICRC = rapid.Uint32().Draw(t, "icrc")
	if isWrite(p.Opcode) {
		p.Payload = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload")
		p.Pad = [3]byte(rapid.SliceOfN(rapid.Byte(), 3, 3).Draw(t, "pad"))
	}
	return p
}

// narrow masks the fields of p to their widths, by way of each codec, and clears
// what the packet does not have.
func narrow(t require.TestingT, p *mrc.Packet) {
	if !isWrite(p.Opcode) {
		p.PadCnt = 0
	}
	require.NoError(t, p.Header.Decode(p.Header.AppendTo(nil)))
	e := stack[p.Opcode].ext
	if isWrite(p.Opcode) && p.Resv7&0x10 != 0 {
		e |= mrc.HasTSETH
	}
	q := mrc.Packet{}
	q.Header, q.Payload, q.ICRC = p.Header, p.Payload, p.ICRC
	copy(q.Pad[:p.PadCnt], p.Pad[:])
	for bit, c := range map[mrc.Ext][2]codectest.Header{
		mrc.HasMETH: {&p.METH, &q.METH}, mrc.HasTSETH: {&p.TSETH, &q.TSETH}, mrc.HasRETH: {&p.RETH, &q.RETH},
		mrc.HasImmDt: {&p.ImmDt, &q.ImmDt}, mrc.HasAETH: {&p.AETH, &q.AETH}, mrc.HasSETH: {&p.SETH, &q.SETH},
		mrc.HasCCState: {&p.CCState, &q.CCState}, mrc.HasNETH: {&p.NETH, &q.NETH}, mrc.HasPETH: {&p.PETH, &q.PETH},
		mrc.HasERTH: {&p.ERTH, &q.ERTH}, mrc.HasEETH: {&p.EETH, &q.EETH},
	} {
		if e&bit != 0 {
			require.NoError(t, c[1].Decode(c[0].AppendTo(nil)))
		}
	}
	*p = q
}

func equalPackets(t require.TestingT, want, got *mrc.Packet) {
	w, g := *want, *got
	require.True(t, bytes.Equal(w.Payload, g.Payload), "payload")
	w.Payload, g.Payload = nil, nil
	require.Equal(t, w, g)
}

// TestPacketValues: encoding masks, and what fits comes back; wherever the
// packet is cut, decoding fails or has all headers.
func TestPacketValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wide := drawPacket(t)
		p := *wide
		narrow(t, &p)
		require.NoError(t, p.Validate())
		b := p.AppendTo(nil)
		require.Len(t, b, p.Size())
		if isWrite(wide.Opcode) {
			require.Equal(t, b, wide.AppendTo(nil), "masked")
		}
		withPrefix, err := p.AppendBinary([]byte("prefix"))
		require.NoError(t, err)
		require.Equal(t, append([]byte("prefix"), b...), withPrefix)

		var got mrc.Packet
		require.NoError(t, got.UnmarshalBinary(b))
		equalPackets(t, &p, &got)
		require.Equal(t, cap(got.Payload), len(got.Payload))

		headers := mrc.HeaderSize(p.Opcode, mrc.TS(&p.Header))
		require.Equal(t, b[:headers], p.AppendHeadersTo(nil))
		for n := range b {
			before := *wide
			q := before
			err := q.Decode(b[:n:n])
			if isWrite(p.Opcode) && n >= headers+4+int(p.PadCnt) {
				require.NoError(t, err) // a shorter WRITE
			} else {
				require.Error(t, err, "%d of %d bytes", n, len(b))
				require.Equal(t, before, q)
			}
			q = before
			err = q.DecodePrefix(b[:n:n], len(b))
			if n < headers {
				require.ErrorIs(t, err, bth.ErrTruncated)
				require.Equal(t, before, q)
				continue
			}
			require.NoError(t, err)
			kept := max(0, min(n, len(b)-4-int(p.PadCnt))-headers)
			require.Equal(t, len(q.Payload), kept)
			require.Zero(t, q.ICRC)
		}
	})
}

// TestPacketRange: Validate finds each field that is too wide.
func TestPacketRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wide := drawPacket(t)
		p := *wide
		if !isWrite(p.Opcode) {
			p.PadCnt = 0
		}
		if rapid.Bool().Draw(t, "narrow bth") { // else its own fields hide the others
			require.NoError(t, p.Header.Decode(p.Header.AppendTo(nil)))
		}
		lost := false
		e := p.Ext()
		for bit, c := range map[mrc.Ext]codectest.Header{
			mrc.HasTSETH: &p.TSETH, mrc.HasAETH: &p.AETH, mrc.HasSETH: &p.SETH, mrc.HasCCState: &p.CCState,
			mrc.HasNETH: &p.NETH, mrc.HasPETH: &p.PETH, mrc.HasERTH: &p.ERTH, mrc.HasEETH: &p.EETH,
		} {
			lost = lost || e&bit != 0 && c.Validate() != nil
		}
		if err := p.Validate(); lost || p.Header.Validate() != nil {
			require.ErrorIs(t, err, bth.ErrRange)
		} else {
			require.NoError(t, err)
		}
	})
}

// TestPacketRefusals has the faults of a packet that are no matter of width.
func TestPacketRefusals(t *testing.T) {
	ack := mrc.Packet{}
	ack.Opcode = mrc.Acknowledge
	sack := mrc.Packet{}
	sack.Opcode = mrc.SACK
	write := mrc.Packet{}
	write.Opcode = mrc.WriteOnly
	for _, c := range []struct {
		what   string
		base   mrc.Packet
		change func(*mrc.Packet)
		want   error
	}{
		{"version", write, func(p *mrc.Packet) { p.TVer = 1 }, bth.ErrVersion},
		{"opcode of RC", write, func(p *mrc.Packet) { p.Opcode = bth.RCWriteOnly }, bth.ErrOpcode},
		{"opcode that is not assigned", write, func(p *mrc.Packet) { p.Opcode = 0xd0 }, bth.ErrOpcode},
		{"opcode of the other range for manufacturers", write, func(p *mrc.Packet) { p.Opcode = 0xea }, bth.ErrOpcode},
		{"payload of an ACK", ack, func(p *mrc.Packet) { p.Payload = make([]byte, 4) }, bth.ErrLength},
		{"pad of an ACK", ack, func(p *mrc.Packet) { p.PadCnt = 1 }, bth.ErrLength},
		{"payload of a SACK", sack, func(p *mrc.Packet) { p.Payload = make([]byte, 1) }, bth.ErrLength},
	} {
		p := c.base
		require.NoError(t, p.Validate(), c.what)
		c.change(&p)
		require.ErrorIs(t, p.Validate(), c.want, c.what)
		_, err := p.AppendBinary(nil)
		require.ErrorIs(t, err, c.want, c.what)
		var q mrc.Packet
		require.ErrorIs(t, q.Decode(p.AppendTo(nil)), c.want, c.what)
		require.Zero(t, q, c.what)
	}
}

// checkPacket holds what must be true of any bytes.
func checkPacket(t require.TestingT, b []byte, n int) {
	in := bytes.Clone(b)
	before := mrc.Packet{}
	before.DestQP, before.SETH.MPR, before.Payload = 7, 9, []byte{1}
	p := before
	if err := p.DecodePrefix(b, n); err != nil {
		require.Equal(t, before, p)
	} else {
		require.NoError(t, p.Validate())
		require.True(t, mrc.Known(p.Opcode))
		if n <= len(b) {
			require.Equal(t, b[:n], p.AppendTo(nil), "encode after decode")
			require.Equal(t, n, p.Size())
		}
	}
	q := before
	if err := q.DecodeTrimmed(b); err != nil {
		require.Equal(t, before, q)
	} else {
		require.NoError(t, q.Validate())
		require.True(t, q.Trimmed)
		require.Equal(t, b, q.AppendTo(nil), "trimmed, encode after decode")
		require.Equal(t, len(b), q.Size())
	}
	require.Equal(t, in, b, "the input was written to")
}

// TestPacketBytes feeds packets at the edges of each opcode's length.
func TestPacketBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "bytes")
		if len(b) > 1 {
			if rapid.IntRange(0, 9).Draw(t, "keep") > 0 {
				b[0] = byte(drawPacket(t).Opcode)
				b[1] &= 0xf0
			}
		}
		checkPacket(t, b, len(b)+rapid.IntRange(-8, 60).Draw(t, "more"))
	})
}

// TestTrimmed cuts every WRITE at every byte.
func TestTrimmed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPacket(t)
		narrow(t, p)
		b := p.AppendTo(nil)
		b = b[:len(b)-4-int(p.PadCnt)]
		for n := range len(b) + 1 {
			q := mrc.Packet{}
			err := q.DecodeTrimmed(b[:n:n])
			if n < 12 {
				require.ErrorIs(t, err, bth.ErrTruncated)
				continue
			}
			if !isWrite(p.Opcode) {
				require.ErrorIs(t, err, bth.ErrOpcode)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, p.Header, q.Header)
			at, whole := 12, true
			for _, h := range []struct {
				bit       mrc.Ext
				size      int
				want, got any
			}{
				{mrc.HasMETH, 4, p.METH, q.METH}, {mrc.HasTSETH, 4, p.TSETH, q.TSETH},
				{mrc.HasRETH, 16, p.RETH, q.RETH}, {mrc.HasImmDt, 4, p.ImmDt, q.ImmDt},
			} {
				if mrc.ExtOf(p.Opcode, mrc.TS(&p.Header))&h.bit == 0 {
					require.Zero(t, q.Lost&h.bit)
					continue
				}
				if whole = whole && at+h.size <= n; whole {
					require.Equal(t, h.want, h.got)
					require.Zero(t, q.Lost&h.bit)
					at += h.size
					continue
				}
				require.Zero(t, h.got)
				require.NotZero(t, q.Lost&h.bit)
			}
			require.Equal(t, b[at:n], append([]byte{}, q.Payload...))
			require.Equal(t, b[:n], q.AppendTo(nil))
			require.Zero(t, q.ICRC)
		}
	})
}

// TestTrimmedRefusals has values that no switch leaves.
func TestTrimmedRefusals(t *testing.T) {
	for what, change := range map[string]func(*mrc.Packet){
		"a header of another opcode lost": func(p *mrc.Packet) { p.Lost = mrc.HasSETH },
		"the first lost and not the last": func(p *mrc.Packet) { p.Lost = mrc.HasMETH },
		"more left than the lost header":  func(p *mrc.Packet) { p.Lost, p.Payload = mrc.HasRETH, make([]byte, 16) },
	} {
		p := mrc.Packet{}
		p.Opcode, p.Trimmed = mrc.WriteMiddle, true
		require.NoError(t, p.Validate())
		change(&p)
		require.ErrorIs(t, p.Validate(), bth.ErrLength, what)
	}
	p := mrc.Packet{}
	p.Opcode, p.Trimmed = mrc.SACK, true
	require.ErrorIs(t, p.Validate(), bth.ErrOpcode)
	p.Opcode, p.TVer = mrc.WriteOnly, 2
	require.ErrorIs(t, p.DecodeTrimmed(p.AppendTo(nil)), bth.ErrVersion)
}

// TestOffsets: PSNs of a SACK wrap both ways.
func TestOffsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := mrc.SETH{
			CumPSN:     psn.PSN(rapid.Uint32Max(psn.Mask).Draw(t, "cack_psn")),
			Cause:      rapid.Uint16().Draw(t, "cause"),
			SACKOffset: rapid.Int16().Draw(t, "sack_offset"),
			MPR:        rapid.Byte().Draw(t, "mpr"),
		}
		mod := func(d int16) psn.PSN { return psn.PSN((int64(h.CumPSN) + int64(d) + 1<<24) % (1 << 24)) }
		require.Equal(t, mod(int16(h.Cause)), h.AckPSN())
		require.Equal(t, mod(h.SACKOffset), h.SACKBase())
		require.Equal(t, h.Cause, h.ProbeID())
		require.Equal(t, int(h.MPR)*128, h.Window())
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	for _, v := range loadVectors(f) {
		b, _ := hex.DecodeString(v.Hex)
		f.Add(b[min(len(b), 28+12):])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.Bytes[mrc.METH](t, mrc.METHSize, codecErrors, b)
		codectest.Bytes[mrc.TSETH](t, mrc.TSETHSize, codecErrors, b)
		codectest.Bytes[mrc.SETH](t, mrc.SETHSize, codecErrors, b)
		codectest.Bytes[mrc.CCState](t, mrc.CCStateSize, codecErrors, b)
		codectest.Bytes[mrc.NETH](t, mrc.NETHSize, codecErrors, b)
		codectest.Bytes[mrc.PETH](t, mrc.PETHSize, codecErrors, b)
		codectest.Bytes[mrc.ERTH](t, mrc.ERTHSize, codecErrors, b)
		codectest.Bytes[mrc.EETH](t, mrc.EETHSize, codecErrors, b)
	})
}

func FuzzPacket(f *testing.F) {
	f.Add([]byte{}, 0)
	for _, v := range loadVectors(f) {
		b, _ := hex.DecodeString(v.Hex)
		b = b[min(len(b), 28):]
		f.Add(b, len(b))
		f.Add(b[:len(b)/2], len(b))
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) { checkPacket(t, b, n) })
}
