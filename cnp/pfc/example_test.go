package pfc_test

import (
	"fmt"

	"github.com/roce-go/roce/cnp/pfc"
)

func Example() {
	f := pfc.New([6]byte{2, 0, 0, 0, 0, 0xa})
	f.Set(3, 0xffff) // stop priority 3
	wire := f.AppendFrame(nil)

	var got pfc.Frame
	if err := got.Decode(wire); err != nil {
		fmt.Println(err)
		return
	}
	q, ok := got.Time(3)
	fmt.Println(len(wire), got.Opcode, q, ok, pfc.Duration(q, 100e9))
	// Output: 60 PFC 65535 true 335.54µs
}
