package lab

import (
	"slices"
	"time"
)

// Percentile returns the value below which the part p (0..1) of d lies, by the
// nearest rank, or 0 for none. d is left as it is.
func Percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	i := int(p*float64(len(d))+0.9999999) - 1
	return d[min(max(i, 0), len(d)-1)]
}

// Jain returns Jain's index of fairness of the shares x: 1 when all are equal,
// 1/n when one has all. Of no shares, or of nothing, it is 1.
func Jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
}
