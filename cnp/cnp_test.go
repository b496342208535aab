package cnp_test

import (
	"encoding"
	"encoding/hex"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/psn"
)

var (
	_ encoding.BinaryAppender    = (*cnp.Header)(nil)
	_ encoding.BinaryUnmarshaler = (*cnp.Header)(nil)
)

// k01 is a CNP that a ConnectX-4 Lx sent, as captured for Scapy's RoCE tests
// (test/contrib/roce.uts): Ethernet, IPv4 with DSCP 48, UDP from port 0, CNP, ICRC.
const k01 = "020000000002020000000001080045c2003c718c4000401191610a0011010a001201" +
	"000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a"

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(tb, err)
	return b
}

// k01Packet returns the CNP of k01 without what is around it.
func k01Packet(tb testing.TB) []byte { b := unhex(tb, k01); return b[14+20+8 : len(b)-4] }

// Rule CN-1.
func TestGoldenK01(t *testing.T) {
	wire := k01Packet(t)
	require.Len(t, wire, cnp.Size)
	var h cnp.Header
	require.NoError(t, h.Decode(wire))
	require.Equal(t, cnp.Header{BTH: bth.Header{Opcode: bth.CNP, PKey: 0xffff, BECN: true, DestQP: 280}}, h)
	require.Equal(t, cnp.New(280, 0xffff), h)
	require.NoError(t, h.Validate())
	require.Equal(t, wire, h.AppendTo(nil))
	out := h.AppendTo([]byte{0xa5, 0xa5})
	require.Equal(t, []byte{0xa5, 0xa5}, out[:2])
	require.Equal(t, wire, out[2:])
}

func TestDecodeRefusals(t *testing.T) {
	wire := k01Packet(t)
	before := cnp.New(7, 8)
	h := before
	for n := range wire {
		err := h.Decode(wire[:n])
		require.ErrorIs(t, err, cnp.ErrTruncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	wire[0] = 0x80 // InfiniBand's CNP
	require.ErrorIs(t, h.Decode(wire), cnp.ErrOpcode)
	wire[0] = 0x81
	require.ErrorIs(t, h.UnmarshalBinary(append(wire, 0)), cnp.ErrLength)
	require.Equal(t, before, h)
	require.NoError(t, h.UnmarshalBinary(wire))
	require.NotEqual(t, before, h)
}

func TestValidate(t *testing.T) {
	h := cnp.New(1<<24, 0xffff)
	_, err := h.AppendBinary(nil)
	require.ErrorIs(t, err, bth.ErrRange)
	require.Len(t, h.AppendTo(nil), cnp.Size)
	h = cnp.New(1, 0xffff)
	h.BTH.Opcode = bth.RCSendOnly
	require.ErrorIs(t, h.Validate(), cnp.ErrOpcode)
}

func TestPropCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), cnp.Size, cnp.Size).Draw(t, "bytes")
		b[0] = 0x81
		var h, g cnp.Header
		require.NoError(t, h.UnmarshalBinary(b))
		out, err := h.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b, out)

		h = cnp.New(rapid.Uint32Range(0, 1<<24-1).Draw(t, "qp"), rapid.Uint16().Draw(t, "pkey"))
		h.BTH.PSN = psn.PSN(rapid.SampledFrom([]uint32{0, 1 << 23, 1<<24 - 1}).Draw(t, "psn"))
		h.Reserved[rapid.IntRange(0, 15).Draw(t, "i")] = 0xff
		require.NoError(t, g.Decode(h.AppendTo(nil)))
		require.Equal(t, h, g)
	})
}
