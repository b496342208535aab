// Package records packs several frames into the bytes of one fuzz input: for each
// two bytes of length, big-endian, one byte that the target gives a meaning, and
// the frame.
package records

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/mutator"
)

// Append appends a frame, of which at most 65535 bytes are kept.
func Append(dst []byte, mode byte, frame []byte) []byte {
	frame = frame[:min(len(frame), 0xffff)]
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(frame)))
	dst = append(dst, mode)
	return append(dst, frame...)
}

// Next takes the first frame off b. A length beyond the end takes the rest. It
// reports false when not even a header is left.
func Next(b []byte) (mode byte, frame, rest []byte, ok bool) {
	if len(b) < 3 {
		return 0, nil, nil, false
	}
	end := 3 + min(int(binary.BigEndian.Uint16(b)), len(b)-3)
	return b[2], b[3:end:end], b[end:], true
}

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
