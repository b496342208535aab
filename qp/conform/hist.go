package conform

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets whose width grows with the value: 32 buckets for
// each doubling, so that a quantile is at most 1/32 (3.2 %) above the true value and never
// below it. Durations from 0 to 63 ns are exact; longer ones than 2^40 ns (18 minutes)
// count as 2^40 ns.
type Histogram struct {
	n        uint64
	sum      uint64
	min, max int64
	first    int      // bucket of buckets[0]
	buckets  []uint32 // as many as the durations span
}

const (
	histSub     = 5 // bits: 32 buckets a doubling
	histMaxBits = 40
	histBuckets = (histMaxBits - histSub + 1) << histSub
)

func bucketOf(v uint64) int {
	if v < 2<<histSub {
		return int(v)
	}
	exp := bits.Len64(v) - 1 - histSub
	return exp<<histSub + int(v>>exp)
}

// bucketTop returns the largest value of bucket i.
func bucketTop(i int) uint64 {
	if i < 2<<histSub {
		return uint64(i)
	}
	exp := i>>histSub - 1
	return (uint64(i&(1<<histSub-1)|1<<histSub)+1)<<exp - 1
}

func (h *Histogram) add(d int64) {
	if d < 0 {
		d = 0
	}
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
	h.sum += uint64(d)
	i := bucketOf(min(uint64(d), 1<<histMaxBits-1))
	if uint(i-h.first) >= uint(len(h.buckets)) {
		h.span(i)
	}
	h.buckets[i-h.first]++
}

// span allocates bucket i, and some near it.
func (h *Histogram) span(i int) {
	const step = 32
	from, to := i&^(step-1), i|(step-1)
	if len(h.buckets) > 0 {
		from, to = min(from, h.first), max(to, h.first+len(h.buckets)-1)
	}
	b := make([]uint32, min(to, histBuckets-1)-from+1)
	copy(b[max(0, h.first-from):], h.buckets)
	h.first, h.buckets = from, b
}

// remove takes back a duration that was added.
func (h *Histogram) remove(d int64) {
	d = max(d, 0)
	i := bucketOf(min(uint64(d), 1<<histMaxBits-1)) - h.first
	if uint(i) >= uint(len(h.buckets)) || h.buckets[i] == 0 {
		return
	}
	b := &h.buckets[i]
	*b--
	h.n--
	h.sum -= uint64(d)
	if h.n == 0 {
		*h = Histogram{}
		return
	}
	if d == h.max || d == h.min {
		h.bounds()
	}
}

// bounds computes the least and the greatest duration again, from the buckets.
func (h *Histogram) bounds() {
	low, high := -1, 0
	for i, c := range h.buckets {
		if c != 0 {
			if low < 0 {
				low = i
			}
			high = i
		}
	}
	h.max = min(h.max, int64(bucketTop(high+h.first)))
	h.min = max(h.min, int64(bucketTop(low+h.first)))
	h.min = min(h.min, h.max)
}

// Count returns how many durations were counted.
func (h *Histogram) Count() uint64 { return h.n }

// Min returns the least duration, 0 when there is none.
func (h *Histogram) Min() time.Duration { return time.Duration(h.min) }

// Max returns the greatest duration, 0 when there is none.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max) }

// Mean returns the average duration, rounded down, 0 when there is none.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / h.n)
}

// Quantile returns the duration that at least perMille/1000 of all durations do not exceed,
// 0 .. 1000: 500 is the median, 999 is P999. It is at most 1/32 too long.
func (h *Histogram) Quantile(perMille int) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := (h.n*uint64(min(max(perMille, 0), 1000)) + 999) / 1000
	var n uint64
	for i, c := range h.buckets {
		if n += uint64(c); c != 0 && n >= rank {
			return time.Duration(min(bucketTop(i+h.first), uint64(h.max)))
		}
	}
	return h.Max()
}
