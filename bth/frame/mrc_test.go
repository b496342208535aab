package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/reth"
)

type mrcVector struct {
	ID, Hex  string
	Expected struct {
		OK      bool
		Error   string
		SrcPort uint16 `json:"udp_src_port"`
		Payload string `json:"payload_hex"`
	}
}

// mrcVectors has package mrc's, which says where they are from.
func mrcVectors(t testing.TB) (v []mrcVector) {
	b, err := os.ReadFile("../mrc/testdata/vectors.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &v))
	require.NotEmpty(t, v)
	return v
}

const dscp9 = 1 << 9 // the value that the trimmed vector has

func TestMRCVectors(t *testing.T) {
	for _, v := range mrcVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			raw, err := hex.DecodeString(v.Hex)
			require.NoError(t, err)
			d := frame.Finder{}
			f := frame.Frame{MRC: new(mrc.Packet)}
			if v.ID == "M32" {
				require.ErrorIs(t, d.Decode(frame.RawIP, raw, len(raw), &f), frame.ErrNotRoCE, "no other port is set")
				d.UDPPort = 4971
			}
			if v.Expected.Error == "trimmed" {
				require.ErrorIs(t, d.Decode(frame.RawIP, raw, len(raw), &f), frame.ErrLength, "no DSCP is set")
				d.TrimmedDSCP = dscp9
			}
			err = d.Decode(frame.RawIP, raw, len(raw), &f)
			want := map[string]error{"length": bth.ErrLength, "unknown_opcode": bth.ErrOpcode}[v.Expected.Error]
			require.ErrorIs(t, err, want)
			if want != nil {
				require.Equal(t, frame.Frame{MRC: new(mrc.Packet)}, f)
				return
			}
			require.True(t, f.IsMRC())
			require.Equal(t, bth.Packet{Header: f.MRC.Header}, f.Packet)
			require.Equal(t, raw[28:], f.MRC.AppendTo(nil))
			require.Len(t, f.MRC.Payload, f.PayloadLen())
			switch v.Expected.Error {
			case "":
				require.Equal(t, frame.ICRCGood, f.CheckICRC())
				require.Equal(t, v.Expected.SrcPort, f.SrcPort)
				require.Equal(t, v.Expected.Payload, hex.EncodeToString(f.MRC.Payload))
				require.Equal(t, raw, f.AppendTo(nil), "encoded again")
				b, err := f.AppendBinary(nil)
				require.NoError(t, err)
				require.Equal(t, raw, b)
			case "bad_icrc":
				require.Equal(t, frame.ICRCBad, f.CheckICRC())
			case "trimmed":
				require.True(t, f.Trimmed)
				require.False(t, f.Truncated())
				require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
			}

			// Without MRC, nothing is guessed.
			plain := frame.Frame{}
			require.ErrorIs(t, d.Decode(frame.RawIP, raw, len(raw), &plain), bth.ErrOpcode)
			require.Zero(t, plain)
		})
	}
}

// trimmedWrite returns the first n transport bytes of a WRITE with the DSCP of a
// trimmed packet, in frames whose IP and UDP lengths are the old or the new ones.
func trimmedWrite(t require.TestingT, net frame.Net, n int, ipNew, udpNew bool) []byte {
	f := frame.Frame{Link: frame.Ethernet, Net: net, SrcPort: 0xc001, TrafficClass: 9 << 2, MRC: new(mrc.Packet),
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
	headers := 20
	if net == frame.IPv6 {
		f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		headers = 40
	}
	m := f.MRC
	m.Header = bth.Header{Opcode: mrc.WriteLastImm, DestQP: 7, PSN: 8, Resv7: 0x10}
	m.METH, m.TSETH = mrc.METH{RQMSN: 1, MSN: 2}, mrc.TSETH{TxTimestamp: 3, FType: 1}
	m.RETH, m.ImmDt = reth.Header{VA: 4, RKey: 5, DMALen: 100}, reth.ImmDt{Imm: 6}
	m.SetPayload(bytes.Repeat([]byte{9}, 100))
	b := f.AppendTo(nil)
	b = b[:14+headers+8+n]
	ip, add := b[16:], headers
	if net == frame.IPv6 {
		ip, add = b[18:], 0
	}
	if ipNew {
		binary.BigEndian.PutUint16(ip, uint16(add+8+n))
	}
	if udpNew {
		binary.BigEndian.PutUint16(b[14+headers+4:], uint16(8+n))
	}
	return b
}

// TestMRCTrimmed: whichever lengths a switch has corrected, the same packet.
func TestMRCTrimmed(t *testing.T) {
	for _, net := range []frame.Net{frame.IPv4, frame.IPv6} {
		for n := range 60 {
			for i := range 4 {
				b := trimmedWrite(t, net, n, i&1 != 0, i&2 != 0)
				f := frame.Frame{MRC: new(mrc.Packet)}
				d := frame.Finder{TrimmedDSCP: dscp9}
				err := d.Decode(frame.Ethernet, b, len(b), &f)
				if n < 12 {
					require.Error(t, err)
					require.Equal(t, frame.Frame{MRC: new(mrc.Packet)}, f)
					continue
				}
				require.NoError(t, err, "%v %d %d", net, n, i)
				require.True(t, f.Trimmed && f.MRC.Trimmed)
				require.Equal(t, n, f.TransportLen)
				require.Equal(t, b[len(b)-n:], f.MRC.AppendTo(nil))
				require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
				require.False(t, f.Truncated())
				require.Equal(t, n >= 16, f.MRC.METH.MSN == 2)
				require.Equal(t, n >= 20, f.MRC.TSETH.TxTimestamp == 3)
				require.Equal(t, n >= 36, f.MRC.RETH.DMALen == 100)
				require.Equal(t, n >= 40, f.MRC.ImmDt.Imm == 6)
				require.Equal(t, len(f.MRC.Payload), f.PayloadLen())
				require.NoError(t, f.Validate())
				again := f.AppendTo(nil)
				want := trimmedWrite(t, net, n, true, true)
				if net == frame.IPv4 { // whose header has a checksum
					copy(want[24:26], again[24:])
				}
				require.Equal(t, want, again, "with all lengths corrected")

				// A capture that cut the frame once more.
				if n > 20 {
					require.NoError(t, d.Decode(frame.Ethernet, b[:len(b)-3], len(b), &f))
					require.True(t, f.Truncated() && f.Trimmed)
					require.Equal(t, frame.ICRCUnchecked, f.CheckICRC())
				}
			}
		}
	}

	// Behind a packet whose length a header has, there may be padding or an Ethernet FCS.
	for _, net := range []frame.Net{frame.IPv4, frame.IPv6} {
		for _, n := range []int{12, 13, 36} { // 12: only a BTH
			for i := range 4 {
				b := append(trimmedWrite(t, net, n, i&1 != 0, i&2 != 0), 1, 2, 3, 4)
				f := frame.Frame{MRC: new(mrc.Packet)}
				require.NoError(t, frame.Finder{TrimmedDSCP: dscp9}.Decode(frame.Ethernet, b, len(b), &f))
				want := n
				if i == 0 { // no header has its length
					want = n + 4
				}
				require.Equal(t, want, f.TransportLen, "%v %d", net, i)
				require.Len(t, f.Trailer, n+4-want)
			}
		}
	}

	// What else has the DSCP is not trimmed: other opcodes, other services.
	for _, op := range []bth.Opcode{mrc.SACK, mrc.Probe, bth.RCWriteOnly, 0xd0} {
		b := trimmedWrite(t, frame.IPv4, 40, true, false)
		b[42] = byte(op)
		f := frame.Frame{MRC: new(mrc.Packet)}
		require.ErrorIs(t, frame.Finder{TrimmedDSCP: dscp9}.Decode(frame.Ethernet, b, len(b), &f), frame.ErrLength)
	}
	b := trimmedWrite(t, frame.IPv4, 40, true, false)
	b[15] = 10 << 2
	require.ErrorIs(t, frame.Finder{TrimmedDSCP: dscp9}.Decode(frame.Ethernet, b, len(b), &frame.Frame{MRC: new(mrc.Packet)}), frame.ErrLength)
}

// checkMRC holds what must be true of any bytes where MRC is asked for.
func checkMRC(t require.TestingT, link frame.Link, b []byte, wireLen int, d frame.Finder) {
	in := bytes.Clone(b)
	fresh := func() *frame.Frame {
		f := dirty(t)
		f.MRC = &mrc.Packet{Payload: []byte{1}}
		f.MRC.Opcode = mrc.SACK
		return f
	}
	f, before := fresh(), fresh()
	err := d.Decode(link, b, wireLen, f)
	plain := dirty(t)
	plainErr := d.Decode(link, b, wireLen, plain)
	switch {
	case err != nil:
		require.Equal(t, before, f)
		if plainErr != bth.ErrOpcode {
			require.Equal(t, plainErr, err)
		}
	case f.IsMRC():
		require.Error(t, plainErr)
		require.NoError(t, f.MRC.Validate())
		state := f.CheckICRC()
		require.Equal(t, f.Truncated() || f.Trimmed, state == frame.ICRCUnchecked)
		require.LessOrEqual(t, len(f.MRC.Payload), f.PayloadLen())
		if !f.Truncated() {
			require.Equal(t, f.Transport, f.MRC.AppendTo(nil), "encode after decode")
			require.Len(t, f.MRC.Payload, f.PayloadLen())
		}
		_ = f.AppendTo(nil)
	default:
		require.NoError(t, plainErr)
		require.Equal(t, mrc.Packet{}, *f.MRC, "one of RoCE v2 leaves nothing of an older one")
		f.MRC = nil
		require.Equal(t, plain, f)
	}
	require.Equal(t, in, b, "the input was written to")
	// The short cut and the long way agree.
	if link == frame.Ethernet && !d.Tunnels && len(b) > 14 && binary.BigEndian.Uint16(b[12:]) == 0x0800 && b[14]>>4 == 4 {
		g := fresh()
		require.Equal(t, err, d.Decode(frame.RawIP, b[14:], max(wireLen-14, 0), g))
		if err == nil && g.IsMRC() {
			require.Equal(t, f.MRC, g.MRC)
		}
	}
}

// TestMRCFrames builds MRC frames of all kinds, which decode to what they were
// built of, and then changes bytes of them.
func TestMRCFrames(t *testing.T) {
	ops := []bth.Opcode{0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xd1, 0xd8, 0xd9, 0xdc, 0xdd, 0xde}
	rapid.Check(t, func(t *rapid.T) {
		f := anyFrame(t)
		if f.Net == frame.GRH {
			f.Net = frame.IPv6
		}
		f.Packet = bth.Packet{}
		f.MRC = new(mrc.Packet)
		head := rapid.SliceOfN(rapid.Byte(), 64, 64).Draw(t, "headers")
		head[0], head[1] = byte(rapid.SampledFrom(ops).Draw(t, "opcode")), head[1]&0xc0
		size := mrc.HeaderSize(bth.Opcode(head[0]), head[8]&0x10 != 0)
		require.NoError(t, f.MRC.Decode(append(head[:size:size], 0, 0, 0, 0)))
		if mrc.IsWrite(f.MRC.Opcode) {
			f.MRC.SetPayload(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload"))
		}
		require.NoError(t, f.Validate())
		b := f.AppendTo(nil)

		got := frame.Frame{MRC: new(mrc.Packet)}
		d := frame.Finder{UDPPort: f.DstPort}
		require.NoError(t, d.Decode(f.Link, b, len(b), &got))
		require.Equal(t, frame.ICRCGood, got.CheckICRC())
		require.Equal(t, f.MRC.AppendHeadersTo(nil), got.MRC.AppendHeadersTo(nil))
		require.True(t, bytes.Equal(f.MRC.Payload, got.MRC.Payload))
		require.Equal(t, b, got.AppendTo(nil))

		d.TrimmedDSCP = rapid.SampledFrom([]uint64{0, 1 << got.DSCP()}).Draw(t, "trimmed")
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			b[rapid.IntRange(0, min(len(b), 80)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		wire := len(b) + rapid.SampledFrom([]int{0, 0, 4, -1, 100}).Draw(t, "wire")
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "kept")]
		checkMRC(t, f.Link, b, wire, d)
	})
}

// TestMRCValidate: what MRC has no way to send.
func TestMRCValidate(t *testing.T) {
	f := frame.Frame{Link: frame.Ethernet, Net: frame.GRH, Src: netip.IPv6Unspecified(), Dst: netip.IPv6Unspecified(), MRC: new(mrc.Packet)}
	require.NoError(t, f.Validate(), "an MRC packet with an opcode of no MRC packet is ignored")
	f.MRC.Opcode = mrc.Probe
	require.ErrorIs(t, f.Validate(), frame.ErrRange, "MRC is carried by UDP")
	f.Net = frame.IPv6
	require.NoError(t, f.Validate())
	f.MRC.PETH.Next = 32
	require.ErrorIs(t, f.Validate(), bth.ErrRange)
	f.MRC.PETH.Next, f.MRC.Payload = 0, make([]byte, 4)
	require.ErrorIs(t, f.Validate(), bth.ErrLength)
	f.MRC.Opcode, f.MRC.Payload = mrc.WriteOnly, make([]byte, 70000)
	require.ErrorIs(t, f.Validate(), frame.ErrRange)

	// RoCE v1 has no MRC, whatever the opcode.
	g := frame.Frame{Link: frame.Ethernet, Net: frame.GRH, Src: netip.IPv6Unspecified(), Dst: netip.IPv6Unspecified()}
	g.Packet.Opcode = 0xca
	b := append(g.AppendTo(nil), make([]byte, 60)...)
	binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
	require.ErrorIs(t, (&frame.Frame{MRC: new(mrc.Packet)}).Decode(frame.Ethernet, b), bth.ErrOpcode)
}

func ExampleFrame_mrc() {
	b, _ := hex.DecodeString("45b80040000040004011b5f1c0000202c0000201c00012b7002c0000" + // IPv4, UDP
		"dd00ffff00000abc00000200" + "00000100" + "0000c100" + "0def0abc" + "00000200" + "20003000" + "a9c6e865")
	f := frame.Frame{MRC: new(mrc.Packet)} // asks for MRC
	if err := f.Decode(frame.RawIP, b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mrc.Name(f.MRC.Opcode), f.MRC.NETH.Reason, f.MRC.NETH.PSN, f.CheckICRC())
	// Output: MRC_NACK trimmed 512 good
}
