package frame_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// A congestion notification packet that a ConnectX-4 Lx sent.
func ExampleFrame_Decode() {
	b, _ := hex.DecodeString("020000000002020000000001" + "0800" +
		"45c2003c718c4000401191610a0011010a001201" + "000012b700280000" +
		"8100ffff4000011800000000" + "00000000000000000000000000000000" + "82fd002a")
	var f frame.Frame // one for all frames: nothing is allocated
	if err := f.Decode(frame.Ethernet, b); err != nil {
		fmt.Println(err)
		return
	}
	p := &f.Packet
	fmt.Println(f.Src, "to", f.Dst, "DSCP", f.DSCP())
	fmt.Println(p.Opcode, "for QP", p.DestQP, "ICRC", f.CheckICRC())
	// Output:
	// 10.0.17.1 to 10.0.18.1 DSCP 48
	// CNP for QP 280 ICRC good
}

// A frame with lengths, checksums and ICRC from nothing but fields.
func ExampleFrame_AppendTo() {
	f := frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DF: true, HopLimit: 64,
		DstMAC: frame.MAC{2, 0, 0, 0, 0, 2}, SrcMAC: frame.MAC{2, 0, 0, 0, 0, 1},
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		SrcPort: frame.SourcePort(frame.FlowLabel(0x11, 0x12)),
		Packet: bth.Packet{Header: bth.Header{
			Opcode: bth.RCSendOnly, PKey: 0xffff, DestQP: 0x12, AckReq: true, PSN: 100}},
	}
	f.Packet.SetPayload([]byte("hello"))
	if err := f.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	b := f.AppendTo(make([]byte, 0, 2048)) // into room that is there

	var got frame.Frame
	err := got.Decode(frame.Ethernet, b)
	fmt.Println(len(b), got.SrcPort, string(got.Packet.Payload), got.CheckICRC(), err)
	// Output: 66 49458 hello good <nil>
}

// A congestion notification packet, from the card that saw marked packets.
func ExampleFrame_AppendBinary() {
	f := frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DF: true, HopLimit: 64, TrafficClass: 48 << 2,
		Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1"),
		Packet: bth.Packet{
			Header:  bth.Header{Opcode: bth.CNP, PKey: 0xffff, BECN: true, DestQP: 0x11},
			Payload: make([]byte, bth.CNPReserved), // without them AppendBinary refuses
		},
	}
	b, err := f.AppendBinary(nil)
	fmt.Println(len(b), err)
	// Output: 74 <nil>
}

// A capture holds other things, and RoCE packets cut short.
func ExampleFinder_Decode() {
	whole, _ := writeFrame()
	b := whole.AppendTo(nil)
	var f frame.Frame
	for _, kept := range []int{len(b), 128, 60} {
		err := frame.Finder{}.Decode(frame.Ethernet, b[:kept], len(b), &f)
		switch {
		case errors.Is(err, frame.ErrNotRoCE):
			fmt.Println("something else")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(f.Packet.Opcode, len(f.Packet.Payload), "of", f.PayloadLen(), "bytes, ICRC", f.CheckICRC())
		}
	}
	// Output:
	// RC_RDMA_WRITE_FIRST 1024 of 1024 bytes, ICRC good
	// RC_RDMA_WRITE_FIRST 58 of 1024 bytes, ICRC unchecked
	// bth: packet truncated: unexpected EOF
}
