package frame_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// TestOnesSum: the example of RFC 1071, section 3, and sums word by word.
func TestOnesSum(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	require.EqualValues(t, 0xddf2, frame.OnesSum(0, b))
	require.EqualValues(t, 0xddf2, frame.OnesSum(frame.OnesSum(0, b[:6]), b[6:]))
	require.Zero(t, frame.OnesSum(0, nil))
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		start := rapid.Uint16().Draw(t, "start")
		want := uint32(start)
		for i, c := range b {
			if i%2 == 0 {
				want += uint32(c) << 8
			} else {
				want += uint32(c)
			}
			if want > 0xffff {
				want = want - 0x10000 + 1
			}
		}
		require.EqualValues(t, want, frame.OnesSum(start, b))
	})
}

// The packet of testdata/tunnels.pcap with a UDP checksum by Scapy 2.5, which tshark
// 4.0 calls good.
var withUDPChecksum = []string{
	"02000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b70038c96f0a00ffff000000128000006400000000000010000000007700000010000102030405060708090a0b0c0d0e0fb0a45b6f",
	"02000000000202000000000186dd602123450038114020010db800000000000000000000000120010db8000000000000000000000002c00112b7003872420a00ffff000000128000006400000000000010000000007700000010000102030405060708090a0b0c0d0e0fac95df3a",
}

func TestCheckUDP(t *testing.T) {
	for _, s := range withUDPChecksum {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		var f frame.Frame
		require.NoError(t, f.Decode(frame.Ethernet, b))
		require.Equal(t, frame.ChecksumGood, f.CheckUDP())
		n := 8 // IPv4 addresses, and UDP up to the ICRC
		if f.Net == frame.IPv4 {
			n = 12
		}
		for i := n; i < len(f.NetPacket); i++ {
			f.NetPacket[i] ^= 4
			require.Equal(t, frame.ChecksumBad, f.CheckUDP(), i)
			f.NetPacket[i] ^= 4
		}
		// What Linux leaves to the adapter: the sum of addresses, protocol and length.
		var sum uint32
		for i := n; i < len(f.NetPacket)-len(f.Transport)-8; i += 2 {
			sum += uint32(f.NetPacket[i])<<8 | uint32(f.NetPacket[i+1])
		}
		sum += 17 + uint32(len(f.Transport)+8)
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		f.UDPChecksum = uint16(sum)
		u := f.NetPacket[len(f.NetPacket)-len(f.Transport)-2:]
		u[0], u[1] = byte(sum>>8), byte(sum)
		require.Equal(t, frame.ChecksumOffloaded, f.CheckUDP())
		f.UDPChecksum = 0
		require.Equal(t, frame.ChecksumUnchecked, f.CheckUDP())
		require.NoError(t, frame.Finder{}.Decode(frame.Ethernet, b[:len(b)-1], len(b), &f))
		require.Equal(t, frame.ChecksumUnchecked, f.CheckUDP())
	}
	require.Equal(t, frame.ChecksumUnchecked, (&frame.Frame{UDPChecksum: 5}).CheckUDP())
}

// TestCheckIPv4: headers that a kernel wrote are right, and each bit counts.
func TestCheckIPv4(t *testing.T) {
	n := 0
	for _, path := range captureFiles(t) {
		recs, err := capture.ReadFile(path)
		require.NoError(t, err)
		for _, r := range recs {
			var f frame.Frame
			if (frame.Finder{}).Find(r.Link, r.Data, r.WireLen, &f) != nil {
				continue
			}
			if f.Net != frame.IPv4 {
				require.Equal(t, frame.ChecksumUnchecked, f.CheckIPv4())
				continue
			}
			n++
			require.Equal(t, frame.ChecksumGood, f.CheckIPv4())
			h := f.NetPacket[:20]
			for bit := range 160 {
				h[bit/8] ^= 1 << (bit % 8)
				require.Equal(t, frame.ChecksumBad, f.CheckIPv4())
				h[bit/8] ^= 1 << (bit % 8)
			}
			h[10], h[11] = 0, 0
			require.Equal(t, frame.ChecksumOffloaded, f.CheckIPv4())
		}
	}
	require.Greater(t, n, 1000)
	require.Equal(t, frame.ChecksumUnchecked, (&frame.Frame{Net: frame.IPv4}).CheckIPv4())
	var names []string
	for s := range frame.ChecksumState(5) {
		names = append(names, s.String())
	}
	require.Equal(t, []string{"unchecked", "good", "bad", "offloaded", "unchecked"}, names)
}
