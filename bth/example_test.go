package bth_test

import (
	"encoding/hex"
	"fmt"

	"github.com/roce-go/roce/bth"
)

// The payload of a UDP datagram to port 4791 is a packet.
func ExamplePacket_Decode() {
	datagram, _ := hex.DecodeString("1100ffff000000110065432c" + "60000001" + "34174482")
	var p bth.Packet // one for all packets: nothing is allocated
	if err := p.Decode(datagram); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Opcode, "to QP", p.DestQP, "PSN", p.PSN)
	if p.Opcode.Ext()&bth.HasAETH != 0 {
		fmt.Println(p.AETH.Syndrome, "after", p.AETH.MSN, "messages")
	}
	// Output:
	// RC_ACKNOWLEDGE to QP 17 PSN 6636332
	// nak PSN sequence error after 1 messages
}

// A packet from its fields. The ICRC covers the network header too, and is computed
// by package frame.
func ExamplePacket_AppendHeadersTo() {
	p := bth.Packet{Header: bth.Header{Opcode: bth.RCWriteOnly, PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: 7}}
	p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x1000, 0x55, 5
	p.SetPayload([]byte("hello"))
	fmt.Printf("%x pad %d\n", p.AppendHeadersTo(nil), p.PadCnt)
	// Output: 0a30ffff000000118000000700000000000010000000005500000005 pad 3
}

// An opcode knows its name, who sends it and which headers follow.
func ExampleOpcode() {
	for _, op := range []bth.Opcode{bth.RCReadRequest, bth.XRC.Opcode(bth.SendOnly), bth.CNP, 0x1f} {
		fmt.Printf("%#02x %v: %v, headers of %d bytes\n", uint8(op), op, op.Class(), op.HeaderSize())
	}
	// Output:
	// 0x0c RC_RDMA_READ_REQUEST: request, headers of 28 bytes
	// 0xa4 XRC_SEND_ONLY: request, headers of 16 bytes
	// 0x81 CNP: notification, headers of 12 bytes
	// 0x1f RESERVED_0x1f: reserved, headers of 0 bytes
}

// A switch marks a packet where it lies. The ICRC does not cover this byte.
func ExampleViewOf() {
	packet, _ := hex.DecodeString("0400ffff0000001180000007" + "00000000")
	v, err := bth.ViewOf(packet)
	if err != nil {
		fmt.Println(err)
		return
	}
	v.SetBECN(true)
	fmt.Printf("%v %x\n", v.PSN(), packet)
	// Output: 7 0400ffff400000118000000700000000
}
