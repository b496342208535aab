package main

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Lines that ibv_rc_pingpong of rdma-core 44 and ib_send_bw, ib_read_bw of
// perftest 4.5+0.17 sent, the latter in front of 9 bytes of MTU and the like.
const (
	pingpongSent = "0000:000022:49462e:00000000000000000000ffffc0000202\x00"
	perftestSent = "0000:0080:000015:d601a2:000007e8:00007f29142c7000:00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:02:00000000:\x00"
	openingSent  = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x10\x00" + "\x00\x00\x00@" + "5\x00"
)

func TestLines(t *testing.T) {
	gid := netip.MustParseAddr("::ffff:192.0.2.2").As16()
	p, err := parsePingpong([]byte(pingpongSent))
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x22, psn: 0x49462e, gid: gid}, p)
	require.Equal(t, pingpongSent, string(pingpongLine(p)))

	p, err = parsePerftest([]byte(perftestSent))
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x15, psn: 0xd601a2, gid: gid, rkey: 0x7e8, va: 0x7f29142c7000, reads: 128}, p)
	require.Equal(t, perftestSent, string(perftestLine(p)))

	for _, bad := range []string{"", "x", "0000:000022", pingpongSent[:30], "0000:000022:49462e:" + string(bytes.Repeat([]byte("0"), 32))} {
		_, err := parsePingpong([]byte(bad))
		require.Error(t, err, bad)
	}
	_, err = parsePerftest([]byte(perftestSent[:80]))
	require.Error(t, err)
}

func TestPeerFlag(t *testing.T) {
	p, err := parsePeer("11:00abcd:[2001:db8::2]:00000101:700000000000")
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x11, psn: 0xabcd, gid: netip.MustParseAddr("2001:db8::2").As16(), rkey: 0x101, va: regionVA, reads: rdAtomic}, p)
	p, err = parsePeer("11:5:192.0.2.2")
	require.NoError(t, err)
	require.EqualValues(t, 5, p.psn)
	for _, bad := range []string{"", "11", "11:5", "11:5:host", "11:5:192.0.2.2:zz", "zz:5:192.0.2.2"} {
		_, err := parsePeer(bad)
		require.Error(t, err, bad)
	}
}

func TestOpening(t *testing.T) {
	for _, server := range []bool{true, false} {
		a, b := net.Pipe()
		heard := make(chan string, 1)
		go func() {
			var got bytes.Buffer
			for i, n := range []int{16, 4, 4, 2} {
				at := []int{0, 16, 20, 24}[i]
				if server {
					io.WriteString(b, openingSent[at:at+n])
				}
				io.CopyN(&got, b, int64(n))
				if !server {
					io.WriteString(b, openingSent[at:at+n])
				}
			}
			heard <- got.String()
		}()
		mtu, err := perftestOpening(a, server, 1024)
		require.NoError(t, err)
		require.Equal(t, 1024, mtu, "the lesser")
		require.Equal(t, openingSent[:24]+"3\x00", <-heard)
	}
}
