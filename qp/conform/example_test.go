package conform_test

import (
	"fmt"
	"io"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/conform"
)

// A capture of SENDs to a receiver that is slow to post receives.
func Example() {
	in, err := capture.Open("../../fuzz/captures/rc-rnr.pcap", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer in.Close()
	w, err := conform.New(conform.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	counts := map[conform.Rule]int{}
	var f conform.Finding
	var rec capture.Record
	for err = in.Next(&rec); err == nil; err = in.Next(&rec) {
		w.HandleFrame(rec.Time, rec.Link, rec.Data, rec.WireLen)
		for w.NextFinding(&f) {
			if counts[f.Rule()]++; counts[f.Rule()] == 1 {
				fmt.Printf("frame %d: %v %v: %v\n", f.Frame, f.Severity, f.Rule(), f.String())
			}
		}
	}
	if err != io.EOF {
		fmt.Println(err)
	}
	total := w.Total()
	w.Finish()
	fmt.Println(total.RNRs, "RNR NAKs,", total.RNRWait, "waited,", total.Retransmitted, "of", total.DataFrames, "sent again")
	// Output:
	// frame 13: event RNR: RNR NAK for PSN 6636321, wait 5.12ms
	// frame 14: event RETRANSMIT: retransmits PSN 6636321, 13.338ms after its RNR NAK
	// frame 24: event TIMEOUT: goes back to PSN 6636321 without a NAK, 1.537ms after it was last sent
	// 5 RNR NAKs, 58.981ms waited, 6 of 8 sent again
}
