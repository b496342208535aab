package psn_test

import (
	"fmt"

	"github.com/roce-go/roce/psn"
)

// A responder sorts what arrives by its distance from the PSN it expects.
func ExamplePSN_Diff() {
	expected := psn.PSN(0xffffff)
	for _, got := range []psn.PSN{0xffffff, 0, 0xfffffe} {
		switch d := got.Diff(expected); {
		case d == 0:
			fmt.Println(got, "is next")
		case d > 0:
			fmt.Println(got, "leaves a gap of", d)
		default:
			fmt.Println(got, "is a duplicate")
		}
	}
	// Output:
	// 16777215 is next
	// 0 leaves a gap of 1
	// 16777214 is a duplicate
}

// A requester counts in 64 bits, where nothing wraps and < is right.
func ExampleUnwrap() {
	next := uint64(1<<24 + 0xffffff)
	acked := psn.Unwrap(next, 3)
	fmt.Println(acked-next, psn.Wrap(acked))
	// Output: 4 3
}
