package mrc_test

import (
	"encoding/hex"
	"fmt"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
)

func ExamplePacket_Decode() {
	// A SACK behind its UDP header: 0 to 11 were sent, 5 and 8 have not come.
	b, _ := hex.DecodeString("dc00ffff00000abc00000004000000070000c0010def0abc00000004" +
		"0000000100000000000000761234000500000016c335f4fd")
	var p mrc.Packet
	if err := p.Decode(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mrc.Name(p.Opcode), "all up to", p.SETH.CumPSN)
	for i := range 7 {
		if p.SETH.SACKBitmap>>i&1 == 0 {
			fmt.Println("missing", p.SETH.SACKBase().Add(i))
		}
	}
	fmt.Println(p.CCState.OOOCount, "held above")
	// Output:
	// MRC_SACK all up to 4
	// missing 5
	// missing 8
	// 5 held above
}

func ExamplePacket_AppendTo() {
	var p mrc.Packet
	p.Header = bth.Header{Opcode: mrc.WriteOnly, PKey: 0xffff, DestQP: 0xdef}
	p.METH.MSN = 9
	p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x7f0012340000, 0x11223344, 3
	p.SetPayload([]byte{0, 1, 2})
	fmt.Printf("%x\n", p.AppendTo(nil)) // package frame computes the ICRC
	// Output: ca10ffff00000def000000000000000900007f001234000011223344000000030001020000000000
}
