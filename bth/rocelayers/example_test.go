package rocelayers_test

import (
	"encoding/hex"
	"fmt"
	"net"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/rocelayers"
)

// A CNP that a ConnectX-4 Lx sent.
const cnp = "020000000002020000000001080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a"

func Example() {
	rocelayers.Register()
	data, _ := hex.DecodeString(cnp)
	packet := gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.Default)
	for _, l := range packet.Layers() {
		fmt.Println(l.LayerType())
	}
	b := packet.Layer(rocelayers.LayerTypeBTH).(*rocelayers.BTH)
	fmt.Println(b.Opcode, "to QP", b.DestQP, "BECN", b.BECN)
	fmt.Println("ICRC", rocelayers.CheckICRC(packet.NetworkLayer()))
	// Output:
	// Ethernet
	// IPv4
	// UDP
	// BTH
	// Payload
	// CNP to QP 280 BECN true
	// ICRC good
}

// Decoding many packets without allocation.
func ExampleLayers() {
	rocelayers.Register()
	var eth layers.Ethernet
	var ip layers.IPv4
	var udp layers.UDP
	var roce rocelayers.Layers
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp)
	for _, l := range roce.DecodingLayers() {
		parser.AddDecodingLayer(l)
	}
	data, _ := hex.DecodeString(cnp)
	var decoded []gopacket.LayerType
	if err := parser.DecodeLayers(data, &decoded); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(decoded)
	fmt.Println(roce.BTH.Opcode, rocelayers.CheckICRC(&ip))
	// Output:
	// [Ethernet IPv4 UDP BTH Payload]
	// CNP good
}

// Building a RDMA WRITE: lengths, pad, checksums and ICRC are computed.
func ExampleBTH_SetNetworkLayerForICRC() {
	rocelayers.Register()
	eth := &layers.Ethernet{
		SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4,
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment,
		SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
	udp := &layers.UDP{SrcPort: 0xc001, DstPort: 4791}
	transport := &rocelayers.BTH{Header: bth.Header{Opcode: bth.RCWriteOnly, PKey: 0xffff, DestQP: 0x11, AckReq: true}}
	where := new(rocelayers.RETH)
	where.VA, where.RKey, where.DMALen = 0x7f0000000000, 0x1234, 5

	udp.SetNetworkLayerForChecksum(ip)
	transport.SetNetworkLayerForICRC(ip, udp)
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, eth, ip, udp, transport, where, gopacket.Payload("hello")); err != nil {
		fmt.Println(err)
		return
	}
	packet := gopacket.NewPacket(buf.Bytes(), layers.LinkTypeEthernet, gopacket.Default)
	fmt.Println(len(buf.Bytes()), "bytes, ICRC", rocelayers.CheckICRC(packet.NetworkLayer()))
	fmt.Printf("%q\n", packet.ApplicationLayer().Payload())
	// Output:
	// 82 bytes, ICRC good
	// "hello"
}
