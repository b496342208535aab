package script_test

import (
	"fmt"

	"github.com/roce-go/roce/qp/script"
)

// A script plays the peer and the clock, and says what must come out.
func ExampleRun() {
	err := script.Run(`
qp rc sq_psn=20 timeout=14
        post SEND id=1 data=a[0:10]
        > SEND_ONLY 20 ackreq data=a[0:10]
66ms    -
66ms..268ms > SEND_ONLY 20 retx            # the acknowledgement was lost
        < NAK 20 syndrome=0x63 => failed
        done SEND id=1 status=rem_op_err
        state RTS
`)
	fmt.Println(err)
	// Output:
	// line 9: state RTS: got ERR
}
