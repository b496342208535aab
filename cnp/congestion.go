package cnp

import (
	"fmt"
	"math/bits"
)

// CongestionParams say how a switch queue marks. Lengths are in bytes.
type CongestionParams struct {
	Kmin uint32 // up to this queue length nothing is marked
	Kmax uint32 // beyond this everything is marked; at least Kmin
	Pmax uint32 // probability of a mark at Kmax, in millionths: 0..10^6
}

// PaperCongestion returns the values of the SIGCOMM 2015 paper: 5 KB, 200 KB,
// 1 %. They go with 40 Gb/s links.
func PaperCongestion() CongestionParams {
	return CongestionParams{Kmin: 5_000, Kmax: 200_000, Pmax: 10_000}
}

// Validate returns an error that wraps ErrParams when Kmin is above Kmax or
// Pmax above a million.
func (p *CongestionParams) Validate() error {
	if p.Kmin > p.Kmax {
		return fmt.Errorf("%w: Kmin is %d bytes, above Kmax, %d bytes", ErrParams, p.Kmin, p.Kmax)
	}
	if p.Pmax > million {
		return fmt.Errorf("%w: Pmax is %d millionths, want 0..%d", ErrParams, p.Pmax, million)
	}
	return nil
}

const million = 1_000_000

// CongestionPoint marks the packets of one switch queue by random early detection on the
// queue's length at the moment. It keeps no state between packets and has no source of
// randomness: both are the caller's. The zero value has both thresholds at 0 and marks
// every ECN-capable packet that joins a queue of more than 0 bytes.
type CongestionPoint struct {
	kmin, kmax uint64
	pmax       uint64 // times 2^32
}

// NewCongestionPoint returns a congestion point; errors wrap ErrParams.
func NewCongestionPoint(p CongestionParams) (CongestionPoint, error) {
	if err := p.Validate(); err != nil {
		return CongestionPoint{}, err
	}
	return CongestionPoint{
		kmin: uint64(p.Kmin),
		kmax: uint64(p.Kmax),
		pmax: uint64(p.Pmax) << 32 / million,
	}, nil
}

// Threshold returns 2^32 times the probability that a packet is marked when it joins a
// queue of queueBytes bytes: 0 up to Kmin, rising linearly to Pmax at Kmax, and 2^32
// beyond.
func (c *CongestionPoint) Threshold(queueBytes int) uint64 {
	q := uint64(max(queueBytes, 0))
	switch {
	case q > c.kmax:
		return 1 << 32
	case q <= c.kmin:
		return 0
	}
	hi, lo := bits.Mul64(c.pmax, q-c.kmin)
	t, _ := bits.Div64(hi, lo, c.kmax-c.kmin) // at most pmax
	return t
}

// Mark reports whether a packet whose IP header has the given ECN field is to be marked
// congestion experienced as it joins a queue of queueBytes bytes. rnd is a uniformly
// distributed random number. Only ECT(0) and ECT(1) are ever marked: a packet that is
// marked already stays marked, one without ECN can only be dropped.
func (c *CongestionPoint) Mark(queueBytes int, ecn uint8, rnd uint32) bool {
	if ecn &= 3; ecn != ECT0 && ecn != ECT1 {
		return false
	}
	return uint64(rnd) < c.Threshold(queueBytes)
}
