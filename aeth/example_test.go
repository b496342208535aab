package aeth_test

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/aeth"
)

func ExampleHeader_Decode() {
	for _, b := range [][]byte{{0x0d, 0, 0, 7}, {0x60, 0, 0, 7}, {0x32, 0, 0, 7}, {0xe0, 0, 0, 7}} {
		var h aeth.Header
		if err := h.Decode(b); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("MSN %d: %v\n", h.MSN, h.Syndrome)
	}
	// Output:
	// MSN 7: ack credits 96
	// MSN 7: nak PSN sequence error
	// MSN 7: rnr 5.12ms
	// MSN 7: reserved 0xe0
}

// A responder that has 100 receives posted may promise 96, one that intends to be
// undisturbed for 2 ms chooses 2.56.
func ExampleCreditsFor() {
	n, _ := aeth.CreditsFor(100).Count()
	wait := aeth.RNRTimerFor(2 * time.Millisecond).Duration()
	fmt.Println(n, wait)
	// Output: 96 2.56ms
}
