// Package records packs several frames into the bytes of one fuzz input: for each frame two
// bytes of length, big-endian, one byte whose meaning the target defines, and the frame.
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

// Next returns the first frame of b and the rest. If the length is beyond the end, the frame
// is what is left. It reports false when not even a header is left.
func Next(b []byte) (mode byte, frame, rest []byte, ok bool) {
	if len(b) < 3 {
		return 0, nil, nil, false
	}
	end := 3 + min(int(binary.BigEndian.Uint16(b)), len(b)-3)
	return b[2], b[3:end:end], b[end:], true
}

// Of returns a captured frame as a mutator.Record. A frame without a time gets a time in
// 1970; a frame longer than its original length in the capture gets its captured length.
func Of(rec *capture.Record) mutator.Record {
	r := mutator.Record{Time: rec.Time, Link: rec.Link, Data: rec.Data, WireLen: max(rec.WireLen, len(rec.Data))}
	if !rec.HasTime {
		r.Time = time.Unix(0, 0).UTC()
	}
	return r
}

// ReadFile returns all frames of a capture. If the file ends inside a record, the complete
// records are returned.
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
