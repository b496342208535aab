package frame_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// TestClone: a clone outlives the frame that it is a copy of, and its views lie where
// those of the original do.
func TestClone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFrame(t)
		b := append(f.AppendTo(nil), rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "trailer")...)
		var got, want frame.Frame
		require.NoError(t, frame.Finder{UDPPort: f.DstPort}.Decode(f.Link, b, len(b), &got))
		require.NoError(t, frame.Finder{UDPPort: f.DstPort}.Decode(f.Link, bytes.Clone(b), len(b), &want))
		room := make([]byte, 3, 3+len(b))
		c, buf := got.Clone(room)
		require.Same(t, &room[0], &buf[0], "there was room")
		for i := range b {
			b[i] ^= 0xff
		}
		require.Equal(t, &want, &c)
		for _, s := range [][]byte{c.Options, c.NetPacket, c.Transport, c.Trailer, c.Packet.Payload} {
			require.Equal(t, len(s), cap(s))
		}
		if len(c.Packet.Payload) > 0 {
			require.NoError(t, c.Patch(len(c.NetPacket)-4-int(c.Packet.PadCnt)-1, 0x5a), "in place, so in all views")
			require.EqualValues(t, 0x5a, c.Packet.Payload[len(c.Packet.Payload)-1])
			require.Equal(t, frame.ICRCGood, c.CheckICRC())
		}
	})
	// Tunnels, and views that are no part of the packet.
	x := loadTunnels(t)[40].b
	var f frame.Frame
	require.NoError(t, intoTunnels.Decode(frame.Ethernet, x, len(x), &f))
	f.Packet.Payload, f.Options = []byte("other"), []byte{1, 1, 1, 1}
	c, _ := f.Clone(nil)
	require.Equal(t, &f, &c)
	outer := f.Outer.Tunnel(0)
	clear(x)
	clear(f.Packet.Payload)
	require.Equal(t, outer, c.Outer.Tunnel(0))
	require.Equal(t, "other", string(c.Packet.Payload))
	empty, buf := (&frame.Frame{}).Clone(nil)
	require.Zero(t, empty)
	require.Empty(t, buf)
}

// TestPatch changes any bytes that may be changed, and compares with the frame that
// is decoded and built again.
func TestPatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFrame(t)
		b := f.AppendTo(nil)
		d := frame.Finder{UDPPort: f.DstPort}
		var got frame.Frame
		require.NoError(t, d.Decode(f.Link, b, len(b), &got))
		head := len(b) - len(got.NetPacket)
		if f.Net != frame.GRH && rapid.Bool().Draw(t, "with UDP checksum") {
			fixUDP(&got)
			require.NoError(t, d.Decode(f.Link, b, len(b), &got))
			require.Equal(t, frame.ChecksumGood, got.CheckUDP())
		}
		broken := rapid.IntRange(0, 4).Draw(t, "ICRC broken") == 0
		if broken {
			b[len(b)-1] ^= 0x80
			require.NoError(t, d.Decode(f.Link, b, len(b), &got))
		}
		udp := got.CheckUDP()
		before, wasFrame := bytes.Clone(b), got
		bthAt := len(got.NetPacket) - len(got.Transport)
		off := rapid.OneOf(rapid.IntRange(0, len(got.NetPacket)-4),
			rapid.SampledFrom([]int{bthAt - 1, bthAt + 3, bthAt + 4, bthAt + 5, bthAt + 9})).Draw(t, "off")
		with := rapid.SliceOfN(rapid.Byte(), 0, min(40, len(got.NetPacket)-4-off)).Draw(t, "with")

		err := got.Patch(off, with...)
		if err != nil {
			require.Equal(t, before, b, "nothing was changed")
			require.Equal(t, wasFrame, got)
			return
		}
		// Only what was given, checksums and ICRC changed.
		u := head + len(got.NetPacket) - len(got.Transport) - 8
		for i := range b {
			in := i >= head+off && i < head+off+len(with)
			sums := f.Net == frame.IPv4 && (i == head+10 || i == head+11) || f.Net != frame.GRH && (i == u+6 || i == u+7) || i >= len(b)-4
			switch {
			case sums:
			case in:
				require.Equal(t, with[i-head-off], b[i])
			default:
				require.Equal(t, before[i], b[i], "byte %d", i)
			}
		}
		var again frame.Frame
		require.NoError(t, frame.Finder{UDPPort: got.DstPort}.Decode(f.Link, b, len(b), &again))
		require.Equal(t, again, got)
		want := frame.ICRCGood
		if broken {
			want = frame.ICRCBad
		}
		require.Equal(t, want, got.CheckICRC(), "right stays right, wrong stays wrong")
		if f.Net == frame.IPv4 {
			require.Equal(t, frame.ChecksumGood, got.CheckIPv4())
		}
		if udp == frame.ChecksumGood && !broken {
			require.Equal(t, frame.ChecksumGood, got.CheckUDP())
		}
		if !broken {
			require.Equal(t, b[head:], rawOf(&got), "as built anew")
		}
	})
}

// rawOf builds the network packet of f.
func rawOf(f *frame.Frame) []byte {
	g := *f
	g.Link = frame.RawIP
	return g.AppendTo(nil)
}

// fixUDP gives f a right UDP checksum, by the definition.
func fixUDP(f *frame.Frame) {
	u := len(f.NetPacket) - len(f.Transport) - 8
	n := len(f.Transport) + 8
	pseudo := []byte{0, 17, byte(n >> 8), byte(n)}
	addresses := f.NetPacket[8:40]
	if f.Net == frame.IPv4 {
		addresses = f.NetPacket[12:20]
	}
	f.NetPacket[u+6], f.NetPacket[u+7] = 0, 0
	all := slices.Concat(addresses, pseudo, f.NetPacket[u:])
	var sum uint32
	for i, c := range all {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if sum = ^sum & 0xffff; sum == 0 {
		sum = 0xffff
	}
	f.NetPacket[u+6], f.NetPacket[u+7] = byte(sum>>8), byte(sum)
}

func TestSetPSN(t *testing.T) {
	for _, s := range withUDPChecksum {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, b))
		for _, p := range []psn.PSN{0, 1, 0xabcdef, 0xffffff, 100} {
			require.NoError(t, f.SetPSN(p))
			require.Equal(t, p, f.Packet.PSN)
			require.Equal(t, frame.ICRCGood, f.CheckICRC())
			require.Equal(t, frame.ChecksumGood, f.CheckUDP())
		}
		require.Equal(t, s, hex.EncodeToString(b), "and back")
	}
}

// A UDP checksum whose sum is 0 is sent as 0xffff (RFC 768).
func TestSetPSNChecksumZero(t *testing.T) {
	for _, s := range withUDPChecksum {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, b))
		zeros := 0
		for p := range psn.PSN(1 << 19) {
			require.NoError(t, f.SetPSN(p))
			if f.UDPChecksum == 0xffff {
				require.Equal(t, frame.ChecksumGood, f.CheckUDP())
				zeros++
			}
			if f.UDPChecksum == 0 {
				t.Fatal("no checksum: ", p)
			}
		}
		require.NotZero(t, zeros)
	}
}

// TestPatchRefused: what would make it another packet, or cannot be reached.
func TestPatchRefused(t *testing.T) {
	for name, c := range map[string]struct {
		off  int
		with []byte
		want error
	}{
		"before":                 {-1, []byte{1}, frame.ErrRange},
		"the ICRC":               {20 + 8 + 36, []byte{1}, frame.ErrRange},
		"into the ICRC":          {20 + 8 + 35, []byte{1, 2}, frame.ErrRange},
		"far beyond":             {1 << 30, []byte{1}, frame.ErrRange},
		"nothing at the end":     {20 + 8 + 36, nil, nil},
		"version":                {0, []byte{0x65}, frame.ErrNotRoCE},
		"header length":          {0, []byte{0x46}, frame.ErrNotRoCE},
		"total length":           {3, []byte{0x43}, frame.ErrLength},
		"protocol":               {9, []byte{6}, frame.ErrNotRoCE},
		"fragment":               {6, []byte{0x20}, frame.ErrFragment},
		"UDP length":             {20 + 5, []byte{0x2f}, frame.ErrLength},
		"port":                   {20 + 2, []byte{0x11, 0x5c}, nil},
		"port 0":                 {20 + 2, []byte{0, 0}, frame.ErrNotRoCE},
		"opcode, other headers":  {28, []byte{byte(bth.RCSendOnly)}, frame.ErrRange},
		"opcode, as many":        {28, []byte{byte(bth.RCWriteLast)}, frame.ErrRange},
		"opcode, same headers":   {28, []byte{byte(bth.UCWriteOnly)}, nil},
		"opcode, reserved":       {28, []byte{0x1f}, bth.ErrOpcode},
		"transport version":      {29, []byte{0x31}, bth.ErrVersion},
		"pad":                    {29, []byte{0x00}, nil},
		"time to live, and type": {0, []byte{0x45, 0xff, 0, 0x44, 0x12, 0x34, 0x40, 0, 0}, nil},
	} {
		b := sample(frame.IPv4).AppendTo(nil)
		before := bytes.Clone(b)
		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, b))
		was := f
		err := f.Patch(c.off, c.with...)
		if c.want != nil {
			require.ErrorIs(t, err, c.want, name)
			require.Equal(t, before, b, name)
			require.Equal(t, was, f, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, frame.ICRCGood, f.CheckICRC(), name)
		require.Equal(t, frame.ChecksumGood, f.CheckIPv4(), name)
	}
	var f frame.Frame
	require.ErrorIs(t, f.Patch(0, 1), frame.ErrTruncated)
	require.ErrorIs(t, f.SetPSN(1), frame.ErrTruncated)
	b := sample(frame.IPv4).AppendTo(nil)
	require.NoError(t, frame.Finder{}.Decode(frame.Ethernet, b[:len(b)-1], len(b), &f))
	require.ErrorIs(t, f.SetPSN(1), frame.ErrTruncated)
}
