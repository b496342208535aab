package rocelayers_test

import (
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/bth/rocelayers"
)

// TestCheckICRCOfOthers: what is not RoCE has no ICRC that could be bad; what is in
// a tunnel has its own.
func TestCheckICRCOfOthers(t *testing.T) {
	rocelayers.Register()
	check := func(b []byte) frame.ICRCState {
		return rocelayers.CheckICRC(gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).NetworkLayer())
	}
	// Whatever else a kernel sent beside RoCE.
	files, err := filepath.Glob("../../fuzz/captures/*.pcap")
	require.NoError(t, err)
	others := 0
	for _, name := range files {
		recs, err := capture.ReadFile(name)
		require.NoError(t, err)
		for _, r := range recs {
			p := frame.Finder{}.Protocol(r.Link, r.Data, r.WireLen)
			if !(frame.Finder{}).IsRoCE(p) {
				others++
				require.Equal(t, frame.ICRCUnchecked, check(r.Data), p.String())
			}
		}
	}
	require.Greater(t, others, 100)

	// TCP and DNS, serialized by gopacket.
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, 2}}
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
	tcp, udp := &layers.TCP{SrcPort: 1, DstPort: 4791}, &layers.UDP{SrcPort: 1, DstPort: 53}
	dns := &layers.DNS{ID: 7, QDCount: 1, Questions: []layers.DNSQuestion{{Name: []byte("roce.example"), Type: layers.DNSTypeA, Class: layers.DNSClassIN}}}
	for _, c := range []struct {
		protocol layers.IPProtocol
		rest     []gopacket.SerializableLayer
	}{
		{layers.IPProtocolTCP, []gopacket.SerializableLayer{tcp, gopacket.Payload("sixteen bytes and more")}},
		{layers.IPProtocolUDP, []gopacket.SerializableLayer{udp, dns}},
	} {
		ip.Protocol = c.protocol
		buf := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, append([]gopacket.SerializableLayer{eth, ip}, c.rest...)...))
		require.Equal(t, frame.ICRCUnchecked, check(buf.Bytes()))
	}

	// Tunnels: by the outer network layer.
	recs, err := capture.ReadFile("../frame/testdata/tunnels.pcap")
	require.NoError(t, err)
	for i, want := range map[int]frame.ICRCState{0: frame.ICRCGood, 2: frame.ICRCGood, 14: frame.ICRCGood, 36: frame.ICRCGood} {
		b := append([]byte(nil), recs[i].Data...)
		require.Equal(t, want, check(b), "frame %d", i)
		b[len(b)-1] ^= 1
		require.Equal(t, frame.ICRCBad, check(b), "frame %d", i)
		require.Equal(t, frame.ICRCUnchecked, check(b[:len(b)-1]), "frame %d", i)
	}

	// A fragment, and RoCE v1 with another next header.
	b := append([]byte(nil), recs[41].Data...)
	require.Equal(t, frame.ICRCGood, check(b))
	b[14+3*4+6] = 0x20
	require.Equal(t, frame.ICRCUnchecked, check(b))
	b = append([]byte(nil), recs[6].Data[50:]...)
	require.Equal(t, frame.ICRCGood, check(b))
	b[14+6] = 59
	require.Equal(t, frame.ICRCUnchecked, check(b))
}
