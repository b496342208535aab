package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// Each frame of this file, of 43, has the same RoCE packet in another tunnel; two
// have only tags. The package frame holds it against tshark.
const tunnels = "../../bth/frame/testdata/tunnels.pcap"

// only returns a capture of the records of that file that are named by their
// places in it.
func only(t *testing.T, places ...int) *bytes.Reader {
	recs, err := capture.ReadFile(tunnels)
	require.NoError(t, err)
	var frames [][]byte
	for _, i := range places {
		frames = append(frames, recs[i].Data)
	}
	return bytes.NewReader(pcap(t, frame.Ethernet, frames...))
}

func TestTunnels(t *testing.T) {
	code, out, errs := exec(nil, "-json", tunnels)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	got := objects(t, out)
	require.Equal(t, 43, len(got))
	for _, o := range got {
		require.Equal(t, 100, *o.BTH.PSN)
		require.Equal(t, "good", o.ICRCState)
	}
	vx := got[3].Outer[0]
	require.Equal(t, "vxlan", vx.Kind)
	require.Equal(t, 0xabcdef, *vx.ID)
	require.Equal(t, []int{77}, vx.VLAN)
	require.Equal(t, []string{"ipv6", "2001:db8:ff::1", "2001:db8:ff::2"}, []string{vx.Net, vx.Src, vx.Dst})
	require.Equal(t, "192.0.2.1", got[3].Src)
	require.Nil(t, got[0].Outer[0].ID)
	require.Equal(t, 2, len(got[40].Outer))
	require.Empty(t, got[41].Outer)
	require.Equal(t, []int{100, 101, 102}, got[41].VLAN)

	_, out, _ = exec(nil, tunnels)
	lines := strings.Split(out, "\n")
	require.True(t, strings.HasSuffix(lines[40], " in vxlan 5004 203.0.113.1 > 203.0.113.2 in erspan2 1 198.51.100.1 > 198.51.100.2"), lines[40])

	_, out, _ = exec(nil, "-summary", tunnels)
	require.Contains(t, out, "in tunnels: vxlan 7, vxlan-gpe 2, geneve 4, gre 4, gretap 2, erspan1 1, erspan2 3, erspan3 2, mirror 2, mpls 7, ipip 5, srv6 3, ether-in-ip 1\n")
	_, out, _ = exec(nil, "-summary", "-json", tunnels)
	require.Equal(t, "vxlan", summaries(t, out)[0].Tunnels[0].Kind)
}

// TestNamed: what is not looked into is named, alone and beside RoCE, in every
// form of output.
func TestNamed(t *testing.T) {
	file := func(places ...int) []byte {
		var b bytes.Buffer
		_, err := b.ReadFrom(only(t, places...))
		require.NoError(t, err)
		return b.Bytes()
	}
	// ERSPAN I and VXLAN; and with a frame that has only tags.
	code, out, errs := exec(file(0, 2), "-tunnels=false", "-")
	require.Zero(t, code)
	require.Empty(t, out)
	require.Contains(t, errs, "no RoCE packet among 2 frames")
	require.Contains(t, errs, "1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)")

	_, out, errs = exec(file(0, 2, 41), "-tunnels=false", "-")
	require.Equal(t, 1, strings.Count(out, "\n"))
	require.Contains(t, errs, "not looked into, and RoCE packets may be in it: 1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)")

	_, out, errs = exec(file(0, 2, 41), "-tunnels=false", "-summary", "-")
	require.Empty(t, errs)
	require.Contains(t, out, "other frames: 1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)\n")
	require.Contains(t, out, "RoCE packets may be in what was not looked into: 1 UDP 4789")
	_, out, _ = exec(file(0, 2, 41), "-tunnels=false", "-summary", "-json", "-")
	require.Equal(t, "UDP 4789 (VXLAN)", summaries(t, out)[0].Protocols[0].Protocol)

	_, out, _ = exec(file(0, 2), "-tunnels=false", "-json", "-all", "-")
	require.Equal(t, "frame: not RoCE: GRE 0x88be (ERSPAN)", objects(t, out)[0].Skipped)

	// VXLAN on another port, not told and told.
	vx := file(2)
	vx[24+16+36], vx[24+16+37] = 0x11, 0x5c // 4444
	_, out, errs = exec(vx, "-")
	require.Empty(t, out)
	require.Contains(t, errs, "UDP 4444")
	for _, flag := range []string{"-vxlan=4444", "-vxlan=1,4444"} {
		_, out, errs = exec(vx, flag, "-")
		require.Empty(t, errs)
		require.Contains(t, out, "in vxlan 5000")
	}
	for _, flag := range []string{"-vxlan=0", "-vxlan=x", "-vxlan=1,,2", "-vxlan=65536"} {
		code, _, errs = exec(vx, flag, "-")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "no UDP port")
	}
}

// TestW3 is a frame that a switch cut: read as far as it goes, and no error.
func TestW3(t *testing.T) {
	_, b := build(0x06, frame.IPv4, make([]byte, 1024))
	code, out, errs := exec(pcap(t, frame.Ethernet, b[:96]), "-json", "-")
	require.Zero(t, code, errs)
	o := objects(t, out)[0]
	require.Equal(t, "unchecked", o.ICRCState)
	require.Equal(t, 1024, *o.Payload)
}

// TestHeaderChecksum: a bit that the ICRC does not cover, in the type of service.
func TestHeaderChecksum(t *testing.T) {
	_, b := build(0x04, frame.IPv4, make([]byte, 8))
	b[15] ^= 1
	code, out, errs := exec(pcap(t, frame.Ethernet, b), "-json", "-")
	require.Equal(t, exitWrong, code, errs)
	o := objects(t, out)[0]
	require.Equal(t, []string{"good", "bad"}, []string{o.ICRCState, o.IPChecksum})
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-")
	require.Contains(t, out, "IPv4 header checksum bad")
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-summary", "-")
	require.Contains(t, out, "IPv4 header checksum bad 1\n")
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-summary", "-json", "-")
	require.Equal(t, 1, summaries(t, out)[0].BadSums)
	b[24], b[25] = 0, 0
	code, out, _ = exec(pcap(t, frame.Ethernet, b), "-json", "-")
	require.Zero(t, code)
	require.Empty(t, objects(t, out)[0].IPChecksum)
}

// TestSegments: the same address and QP number of two tenants, or in two VLANs, are
// different QPs; a mirrored copy is of the same.
func TestSegments(t *testing.T) {
	_, out, _ := exec(nil, "-summary", "-json", tunnels, tunnels)
	all := summaries(t, out)
	require.Len(t, all, 2)
	at := map[string]int{}
	for _, q := range all[0].QPs {
		at[fmt.Sprintf("%s %v %s %d %v", q.Dst, q.VLAN, q.Tunnel, q.ID, q.Ends)] = q.Packets
	}
	require.Equal(t, 7, at["192.0.2.2 []  0 []"], "copies")
	require.Equal(t, 1, at["192.0.2.2 [] vxlan 5000 []"])
	require.Equal(t, 1, at["192.0.2.2 [100 101 102] vxlan 5001 []"])
	require.Equal(t, 1, at["192.0.2.2 [100 101 102]  0 []"])
	require.Equal(t, 1, at["192.0.2.2 [] ipip 0 [198.51.100.1 198.51.100.2]"])
	_, out, _ = exec(nil, "-summary", tunnels, tunnels)
	require.Contains(t, out, "192.0.2.2 0x000012 vlan 100 vlan 101 vlan 102 vxlan 5001\n")
	require.Contains(t, out, "2  "+strings.Repeat(" ", 11)+"32  192.0.2.2 0x000012 vxlan 5000\n", "the sum of both files")
}
