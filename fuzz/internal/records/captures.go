package records

import (
	"errors"
	"time"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/mutator"
)

// Of returns a captured frame as a mutator.Record. One without a time is of
// 1970, and one that is longer than the capture says it was is as long as it is.
func Of(rec *capture.Record) mutator.Record {
	r := mutator.Record{Time: rec.Time, Link: rec.Link, Data: rec.Data, WireLen: max(rec.WireLen, len(rec.Data))}
	if !rec.HasTime {
		r.Time = time.Unix(0, 0).UTC()
	}
	return r
}

// ReadFile returns all frames of a capture. One that ends inside a record gives
// what came before.
func ReadFile(name string) ([]mutator.Record, error) {
	recs, err := capture.ReadFile(name)
	if errors.Is(err, capture.ErrTruncated) {
		err = nil
	}
	out := make([]mutator.Record, len(recs))
	for i := range recs {
		out[i] = Of(&recs[i])
	}
	return out, err
}
