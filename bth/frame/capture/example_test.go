package capture_test

import (
	"fmt"
	"io"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// Count the RoCE frames of a capture.
func Example() {
	in, err := capture.Open("../../../fuzz/captures/rc-atomic.pcap", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer in.Close()
	var rec capture.Record
	var f frame.Frame
	roce := 0
	for err = in.Next(&rec); err == nil; err = in.Next(&rec) {
		if (frame.Finder{}).Decode(rec.Link, rec.Data, rec.WireLen, &f) == nil {
			roce++
		}
	}
	if err != io.EOF {
		fmt.Println(err)
	}
	fmt.Println(rec.Number, "frames,", roce, "of RoCE")
	// Output:
	// 26 frames, 16 of RoCE
}
