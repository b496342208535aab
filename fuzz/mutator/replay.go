package mutator

import (
	"context"
	"time"
)

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
