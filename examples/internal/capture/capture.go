// Package capture is a second name of bth/frame/capture, until its last users
// here have changed their import.
package capture

import "github.com/roce-go/roce/bth/frame/capture"

// Record is capture.Record.
type Record = capture.Record

// Open is capture.Open.
var Open = capture.Open
