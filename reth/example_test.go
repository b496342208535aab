package reth_test

import (
	"fmt"

	"github.com/roce-go/roce/reth"
)

func ExampleHeader_Decode() {
	b := []byte{0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0x07, 0xc4, 0, 0, 0x04, 0x01}
	var h reth.Header
	if err := h.Decode(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes at %#x, key %#x\n", h.DMALen, h.VA, h.RKey)
	fmt.Println(h.Decode(b[:15]))
	// Output:
	// 1025 bytes at 0x123456780000, key 0x7c4
	// reth: header truncated: unexpected EOF
}

func ExampleHeader_AppendTo() {
	h := reth.Header{VA: 0x1000, RKey: 0x55, DMALen: 64}
	buf := make([]byte, 0, 64) // used again and again: nothing is allocated
	fmt.Printf("% x\n", h.AppendTo(buf))
	// Output: 00 00 00 00 00 00 10 00 00 00 00 55 00 00 00 40
}

func ExampleFETH() {
	h := reth.FETH{Sel: reth.MemoryRegion, Placement: reth.Persistence}
	fmt.Printf("% x, %v\n", h.AppendTo(nil), h.Sel)
	// Output: 00 00 00 12, memory region
}
