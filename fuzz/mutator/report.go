package mutator

import (
	"context"
	"strconv"
	"time"
)

// Change is one change. The meaning of Old and New depends on Kind: the values of a field;
// lengths in bytes for payload, Cut, Trailing, IPv4Options and Closed; the number of bits for
// Flip and PayloadFlip; VLAN tags as TPID and TCI; frame numbers for ReplayOld; nanoseconds
// for Delay; the number of frames it waited for Reorder.
type Change struct {
	Kind     Kind
	Old, New uint64
}

// Lie is a length field that is wrong on purpose.
type Lie uint8

// Lies.
const (
	NoLie      Lie = iota
	LieIP          // IPv4 total length or IPv6 payload length; the UDP length is right
	LieUDP         // UDP length; the IP length is right
	LieBoth        // both have the same value: more than there is, or less than a UDP header
	LieGRH         // GRH payload length: more than there is
	LieIHL         // IPv4 header length below 20
	LieMissing     // all lengths are right, but the frame ends early
	numLies
)

var lieNames = [numLies]string{"none", "ip-length", "udp-length", "ip-and-udp-length", "grh-length", "ihl", "missing-bytes"}

// String returns a short name, for example "udp-length", or the decimal
// value if it is not a defined lie.
func (l Lie) String() string {
	if l < numLies {
		return lieNames[l]
	}
	return strconv.Itoa(int(l))
}

// maxChanges bounds the changes of fields in a frame. A report has room for Closed
// and a change of order besides.
const maxChanges = 8

// Report says what was done to a frame.
type Report struct {
	Frame uint64 // the number given to Mutate
	// RoCE is false for a frame that was not recognised as RoCE and so not repaired.
	RoCE bool
	// Kept is set on a frame that was not changed because of Config.Keep.
	Kept    bool
	ICRC    ICRC // what was done to the ICRC of a RoCE frame that was not kept
	Lie     Lie
	LieOld  uint64 // the true length, in the units of the field; LieMissing: bytes
	LieNew  uint64
	n       uint8
	changes [maxChanges + 2]Change
}

// Changes returns the changes in order. The slice
// is the report's own.
func (r *Report) Changes() []Change { return r.changes[:r.n] }

// Has reports whether a change of one of the kinds was made.
func (r *Report) Has(s Kinds) bool {
	for _, c := range r.Changes() {
		if s.Has(c.Kind) {
			return true
		}
	}
	return false
}

func (r *Report) add(k Kind, old, new uint64) {
	if int(r.n) < len(r.changes) {
		r.changes[r.n] = Change{k, old, new}
		r.n++
	}
}

// String returns a line, for example
// "frame 7: psn 0x5 -> 0x6, reth-len 0x1000 -> 0x1001; icrc bad".
func (r *Report) String() string {
	b := strconv.AppendUint([]byte("frame "), r.Frame, 10)
	b = append(b, ':')
	if r.Kept {
		return string(append(b, " kept"...))
	}
	for i, c := range r.Changes() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, ' ')
		b = append(b, c.Kind.String()...)
		b = append(b, " 0x"...)
		b = strconv.AppendUint(b, c.Old, 16)
		b = append(b, " -> 0x"...)
		b = strconv.AppendUint(b, c.New, 16)
	}
	if r.n == 0 {
		b = append(b, " no change"...)
	}
	if !r.RoCE {
		return string(append(b, "; not RoCE"...))
	}
	if r.Lie != NoLie {
		b = append(b, "; lie "...)
		b = append(b, r.Lie.String()...)
		b = append(b, ' ')
		b = strconv.AppendUint(b, r.LieOld, 10)
		b = append(b, " -> "...)
		b = strconv.AppendUint(b, r.LieNew, 10)
	}
	b = append(b, "; icrc "...)
	return string(append(b, r.ICRC.String()...))
}

// Replay calls send with each record that next gives, at the time at which it
// was recorded, counted from the first and divided by speed: 1 is as recorded, 2
// twice as fast, 0 as fast as possible. When send takes longer than the gap to
// the next record, that is sent at once; the schedule is kept, not the gaps.
//
// It returns nil when next reports false, the error of send, or that of ctx when
// it is done. next may reuse its memory from call to call.
func Replay(ctx context.Context, speed float64, next func(*Record) bool, send func(*Record) error) error {
	var (
		rec         Record
		first, from time.Time
		timer       *time.Timer
	)
	for next(&rec) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if speed > 0 {
			if from.IsZero() {
				first, from = rec.Time, time.Now()
			}
			wait := time.Duration(float64(rec.Time.Sub(first))/speed) - time.Since(from)
			if wait > 0 {
				if timer == nil {
					timer = time.NewTimer(wait)
					defer timer.Stop()
				} else {
					timer.Reset(wait)
				}
				select {
				case <-timer.C:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		if err := send(&rec); err != nil {
			return err
		}
	}
	return nil
}
