// Package records packs several frames into the bytes of one fuzz input: for each
// two bytes of length, big-endian, one byte that the target gives a meaning, and
// the frame.
package records

import "encoding/binary"

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
