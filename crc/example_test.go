package crc_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/roce-go/roce/crc"
)

// A congestion notification packet of a ConnectX-4 Lx, from its IPv4 header on.
const cnp = "45c2003c718c4000401191610a0011010a001201000012b700280000" +
	"8100ffff4000011800000000" + "00000000000000000000000000000000" + "82fd002a"

func ExampleCheck() {
	pkt, _ := hex.DecodeString(cnp)
	fmt.Println(crc.Check(pkt))
	pkt[1] |= 3 // a switch marks congestion: masked
	fmt.Println(crc.Check(pkt))
	pkt[39] ^= 1 // a bit of the PSN turns: covered
	fmt.Println(crc.Check(pkt))
	// Output:
	// true
	// true
	// false
}

func ExampleAppendPayload() {
	pkt, _ := hex.DecodeString(cnp)
	frame := make([]byte, 0, 128)
	frame = append(frame, "ethernet head."...)
	start := len(frame)
	frame = append(frame, pkt[:40]...) // IPv4, UDP, BTH
	frame = crc.AppendPayload(frame, start, pkt[40:56], 0)
	fmt.Printf("%x\n", frame[len(frame)-crc.Size:])
	// Output: 82fd002a
}

func ExamplePatch() {
	pkt, _ := hex.DecodeString(cnp)
	psn := pkt[37:40]
	tail := len(pkt) - crc.Size - 40 // covered bytes behind the PSN
	icrc := crc.Patch(crc.Stored(pkt), tail, psn, []byte{0, 0, 1})
	psn[2] = 1
	crc.AppendValue(pkt[:len(pkt)-crc.Size], icrc)
	fmt.Println(crc.Check(pkt))
	// Output: true
}

func ExampleState() {
	pkt, _ := hex.DecodeString(cnp)
	fixed := crc.Start(pkt[:36]) // the flow's headers, up to the PSN's word
	for psn := range 3 {
		fmt.Printf("%08x\n", fixed.Update([]byte{0, 0, 0, byte(psn)}).Update(pkt[40:56]).Sum())
	}
	// Output:
	// 2a00fd82
	// ada636c1
	// fe3c6d45
}

// Acknowledgements of one QP differ only in PSN, syndrome and MSN.
func ExampleFlow() {
	pkt, _ := hex.DecodeString("4500003000004000401100000a0000010a000002" + // IPv4
		"c00012b7001c0000" + "1100ffff00000011" + "0000000000000000") // UDP, BTH, AETH
	f := crc.NewFlow(pkt, len(pkt)-8)
	for psn := range uint32(2) {
		syndrome, msn := uint32(0x1f), psn+1
		icrc := f.Ack(psn, syndrome<<24|msn)

		binary.BigEndian.PutUint32(pkt[len(pkt)-8:], psn)
		binary.BigEndian.PutUint32(pkt[len(pkt)-4:], syndrome<<24|msn)
		fmt.Println(crc.Check(crc.AppendValue(pkt, icrc)))
	}
	// Output:
	// true
	// true
}
