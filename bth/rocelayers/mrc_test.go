package rocelayers_test

import (
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/bth/rocelayers"
)

type mrcVector struct {
	ID, Hex  string
	Expected struct {
		OK    bool
		Error string
	}
}

func mrcVectors(t testing.TB) (v []mrcVector) {
	b, err := os.ReadFile("../mrc/testdata/vectors.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &v))
	require.NotEmpty(t, v)
	return v
}

// registerMRC does so for one test.
func registerMRC(t testing.TB) {
	rocelayers.RegisterMRC(4971)
	t.Cleanup(rocelayers.ForgetMRC)
}

// mrcPacket puts the layers of a decoded packet together as package mrc has them.
func mrcPacket(t require.TestingT, all []gopacket.Layer) (p mrc.Packet, types []gopacket.LayerType) {
	for _, l := range all {
		types = append(types, l.LayerType())
		switch v := l.(type) {
		case *rocelayers.BTH:
			p.Header, p.Pad, p.ICRC = v.Header, v.Pad, v.ICRC
		case *rocelayers.METH:
			p.METH = v.METH
		case *rocelayers.TSETH:
			p.TSETH = v.TSETH
		case *rocelayers.RETH:
			p.RETH = v.Header
		case *rocelayers.ImmDt:
			p.ImmDt = v.ImmDt
		case *rocelayers.AETH:
			p.AETH = v.Header
		case *rocelayers.SETH:
			p.SETH = v.SETH
		case *rocelayers.CCState:
			p.CCState = v.CCState
		case *rocelayers.NETH:
			p.NETH = v.NETH
		case *rocelayers.PETH:
			p.PETH = v.PETH
		case *rocelayers.ERTH:
			p.ERTH = v.ERTH
		case *rocelayers.EETH:
			p.EETH = v.EETH
		case *gopacket.Payload:
			p.Payload = *v
		case gopacket.Payload:
			p.Payload = v
		}
	}
	return p, types
}

// mrcStack is what each opcode has, by hand.
func mrcStack(op bth.Opcode, ts, payload bool) []gopacket.LayerType {
	out := []gopacket.LayerType{rocelayers.LayerTypeBTH}
	switch {
	case op <= 0xcb:
		out = append(out, rocelayers.LayerTypeMETH)
		if ts {
			out = append(out, rocelayers.LayerTypeTSETH)
		}
		out = append(out, rocelayers.LayerTypeRETH)
		if op == 0xc9 || op == 0xcb {
			out = append(out, rocelayers.LayerTypeImmDt)
		}
	case op == 0xd1:
		out = append(out, rocelayers.LayerTypeAETH)
	case op == 0xd8:
		out = append(out, rocelayers.LayerTypeERTH)
	case op == 0xd9:
		out = append(out, rocelayers.LayerTypeEETH)
	case op == 0xdc:
		out = append(out, rocelayers.LayerTypeSETH, rocelayers.LayerTypeCCState)
	case op == 0xdd:
		out = append(out, rocelayers.LayerTypeNETH)
	case op == 0xde:
		out = append(out, rocelayers.LayerTypePETH)
	}
	if payload {
		out = append(out, gopacket.LayerTypePayload)
	}
	return out
}

// TestMRCVectors decodes every vector of package mrc in both of gopacket's ways.
func TestMRCVectors(t *testing.T) {
	registerMRC(t)
	var l rocelayers.Layers
	l.BTH.MRC = true
	var ip layers.IPv4
	var udp layers.UDP
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &ip, &udp)
	for _, d := range l.DecodingLayers() {
		parser.AddDecodingLayer(d)
	}
	for _, v := range mrcVectors(t) {
		raw, err := hex.DecodeString(v.Hex)
		require.NoError(t, err)
		p := gopacket.NewPacket(raw, layers.LayerTypeIPv4, gopacket.Default)
		var types []gopacket.LayerType
		parseErr := parser.DecodeLayers(raw, &types)
		if !v.Expected.OK && v.Expected.Error == "length" {
			require.NotNil(t, p.ErrorLayer(), v.ID)
			require.ErrorIs(t, p.ErrorLayer().Error(), bth.ErrLength, v.ID)
			require.ErrorIs(t, parseErr, bth.ErrLength, v.ID)
			continue
		}
		require.Nil(t, p.ErrorLayer(), v.ID)
		require.NoError(t, parseErr, v.ID)
		got, seen := mrcPacket(t, p.Layers()[2:])
		require.Equal(t, seen, types[2:], v.ID)
		var want mrc.Packet
		switch v.Expected.Error {
		case "unknown_opcode":
			require.Equal(t, []gopacket.LayerType{rocelayers.LayerTypeBTH, gopacket.LayerTypePayload}, seen)
			continue
		case "trimmed":
			require.NoError(t, want.DecodeTrimmed(raw[28:]))
			want.Trimmed = false
			require.True(t, p.Metadata().Truncated)
		default:
			require.NoError(t, want.Decode(raw[28:]))
		}
		require.Equal(t, mrcStack(want.Opcode, mrc.TS(&want.Header), len(want.Payload) > 0), seen, v.ID)
		if len(want.Payload) == 0 {
			want.Payload = nil
		}
		require.Equal(t, want, got, v.ID)
		state := frame.ICRCGood
		switch v.Expected.Error {
		case "bad_icrc":
			state = frame.ICRCBad
		case "trimmed":
			continue
		}
		require.Equal(t, state, rocelayers.CheckICRC(p.NetworkLayer()), v.ID)
	}
}

// TestMRCIsOptIn: without RegisterMRC such a packet is a manufacturer's, of which
// nothing is known.
func TestMRCIsOptIn(t *testing.T) {
	rocelayers.Register()
	raw, err := hex.DecodeString(mrcVectors(t)[0].Hex)
	require.NoError(t, err)
	p := gopacket.NewPacket(raw, layers.LayerTypeIPv4, gopacket.Default)
	_, types := mrcPacket(t, p.Layers()[2:])
	require.Equal(t, []gopacket.LayerType{rocelayers.LayerTypeBTH, gopacket.LayerTypePayload}, types)
}

// TestMRCBuild serializes packets of all opcodes; package mrc decodes them to the
// same values, and the ICRC is good.
func TestMRCBuild(t *testing.T) {
	registerMRC(t)
	ops := []bth.Opcode{0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xd1, 0xd8, 0xd9, 0xdc, 0xdd, 0xde}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SliceOfN(rapid.Byte(), 64, 64).Draw(t, "headers")
		bits[0], bits[1] = byte(rapid.SampledFrom(ops).Draw(t, "opcode")), bits[1]&0xc0
		var l rocelayers.Layers
		b := &l.BTH
		require.NoError(t, b.Header.Decode(bits))
		rest, m := bits[12:], &l.MRC
		all := []gopacket.SerializableLayer{b}
		payload := false
		for _, typ := range mrcStack(b.Opcode, b.Resv7&0x10 != 0, false)[1:] {
			h := map[gopacket.LayerType]interface {
				gopacket.SerializableLayer
				DecodeFromBytes([]byte, gopacket.DecodeFeedback) error
			}{
				rocelayers.LayerTypeMETH: &m.METH, rocelayers.LayerTypeTSETH: &m.TSETH, rocelayers.LayerTypeRETH: &l.RETH,
				rocelayers.LayerTypeImmDt: &l.ImmDt, rocelayers.LayerTypeAETH: &l.AETH, rocelayers.LayerTypeSETH: &m.SETH,
				rocelayers.LayerTypeCCState: &m.CCState, rocelayers.LayerTypeNETH: &m.NETH, rocelayers.LayerTypePETH: &m.PETH,
				rocelayers.LayerTypeERTH: &m.ERTH, rocelayers.LayerTypeEETH: &m.EETH,
			}[typ]
			require.NoError(t, h.DecodeFromBytes(rest, gopacket.NilDecodeFeedback))
			rest = rest[len(h.(gopacket.Layer).LayerContents()):]
			all = append(all, h)
			payload = payload || typ == rocelayers.LayerTypeRETH
		}
		var data []byte
		if payload {
			data = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload")
		}
		all = append(all, gopacket.Payload(data))
		udp := &layers.UDP{SrcPort: 50000, DstPort: 4791}
		ip := &layers.IPv4{Version: 4, TTL: 3, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
		require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
		require.NoError(t, b.SetNetworkLayerForICRC(ip, udp))
		require.NoError(t, gopacket.SerializeLayers(buf, opts, append([]gopacket.SerializableLayer{ip, udp}, all...)...))
		out := buf.Bytes()

		var want mrc.Packet
		require.NoError(t, want.Decode(out[28:]))
		headers := mrc.HeaderSize(want.Opcode, mrc.TS(&want.Header))
		require.Equal(t, bits[12:headers], want.AppendHeadersTo(nil)[12:])
		require.Equal(t, append([]byte{}, data...), append([]byte{}, want.Payload...))

		p := gopacket.NewPacket(out, layers.LayerTypeIPv4, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
		got, _ := mrcPacket(t, p.Layers()[2:])
		if len(want.Payload) == 0 {
			want.Payload = nil
		}
		require.Equal(t, want, got)
		require.Equal(t, frame.ICRCGood, rocelayers.CheckICRC(p.NetworkLayer()))
	})
}

// TestMRCRefusals: a field beyond its width, and a header cut short.
func TestMRCRefusals(t *testing.T) {
	buf := gopacket.NewSerializeBuffer()
	for _, l := range []gopacket.SerializableLayer{
		&rocelayers.TSETH{TSETH: mrc.TSETH{FType: 16}}, &rocelayers.SETH{SETH: mrc.SETH{M: 4}},
		&rocelayers.CCState{CCState: mrc.CCState{RcvdBytes: 1 << 24}}, &rocelayers.NETH{NETH: mrc.NETH{Type: 16}},
		&rocelayers.PETH{PETH: mrc.PETH{Next: 32}}, &rocelayers.ERTH{ERTH: mrc.ERTH{Op: 4}}, &rocelayers.EETH{EETH: mrc.EETH{Op: 4}},
	} {
		require.ErrorIs(t, l.SerializeTo(buf, gopacket.SerializeOptions{}), bth.ErrRange, "%v", l.LayerType())
	}
	rocelayers.RegisterMRC()
	defer rocelayers.ForgetMRC()
	for typ := rocelayers.LayerTypeMETH; typ <= rocelayers.LayerTypeEETH; typ++ {
		p := gopacket.NewPacket([]byte{1, 2, 3}, typ, gopacket.Default)
		require.NotNil(t, p.ErrorLayer(), "%v", typ)
		require.ErrorIs(t, p.ErrorLayer().Error(), bth.ErrTruncated)
		p = gopacket.NewPacket(make([]byte, 50), typ, gopacket.Default) // by itself: all that follows is payload
		require.Len(t, p.Layers(), 2)
		require.Equal(t, typ, p.Layers()[0].LayerType())
	}
}
