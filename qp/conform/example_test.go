package conform_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

// A capture of SENDs to a receiver that is slow to post receives.
func Example() {
	b, err := os.ReadFile("../../fuzz/captures/rc-rnr.pcap")
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := conform.New(conform.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	counts := map[conform.Rule]int{}
	var f conform.Finding
	for b = b[24:]; len(b) > 0; {
		le := binary.LittleEndian
		ts := time.Unix(int64(le.Uint32(b)), int64(le.Uint32(b[4:]))*1000)
		n := 16 + le.Uint32(b[8:])
		w.HandleFrame(ts, frame.Ethernet, b[16:n], int(le.Uint32(b[12:])))
		for w.NextFinding(&f) {
			if counts[f.Rule()]++; counts[f.Rule()] == 1 {
				fmt.Printf("frame %d: %v %v: %v\n", f.Frame, f.Severity, f.Rule(), f.String())
			}
		}
		b = b[n:]
	}
	total := w.Total()
	w.Finish()
	fmt.Println(total.RNRs, "RNR NAKs,", total.RNRWait, "waited,", total.Retransmitted, "of", total.DataFrames, "sent again")
	// Output:
	// frame 13: event RNR: RNR NAK for PSN 6636321, wait 5.12ms
	// frame 14: event RETRANSMIT: sends PSN 6636321 again, 13.338ms after its RNR NAK
	// frame 24: event TIMEOUT: goes back to PSN 6636321 without a NAK, 1.537ms after it was last sent
	// 5 RNR NAKs, 58.981ms waited, 6 of 8 sent again
}
