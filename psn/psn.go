// Package psn holds 24-bit packet sequence numbers and their arithmetic.
//
// All arithmetic is modulo 2^24 (InfiniBand Architecture Volume 1, clause 9.7).
// Comparison is not transitive, so nothing may be sorted by it. State machines
// keep unwrapped numbers instead, see [Seq].
package psn

import "strconv"

const (
	// Bits is the width of a PSN.
	Bits = 24
	// Mask has the bits of a PSN set.
	Mask = 1<<Bits - 1
	// Half is half the circle. A requester never has this many PSNs
	// outstanding; to a responder the Half PSNs before the expected one are
	// duplicates.
	Half = 1 << (Bits - 1)
)

// PSN is a packet sequence number. Only the low 24 bits count: every method
// ignores the others, and every result has them clear.
type PSN uint32

// Add returns p moved by n, which may be negative, modulo 2^24.
func (p PSN) Add(n int) PSN { return PSN((uint32(p) + uint32(n)) & Mask) }

// Diff returns the signed distance from q to p: (p - q) mod 2^24, taken in
// -2^23 .. 2^23-1. At exactly half the circle it is -2^23 both ways.
func (p PSN) Diff(q PSN) int {
	return int(int32((uint32(p)-uint32(q))<<(32-Bits)) >> (32 - Bits))
}

// Before reports whether p comes before q, that is whether p.Diff(q) is
// negative. At exactly half the circle p and q are before each other: to a
// responder such a PSN is a duplicate, never a gap.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }

// In reports whether p is one of the n PSNs that begin with start. It holds
// for none when n is 0 and for all when n is 2^24 or more.
func (p PSN) In(start PSN, n uint32) bool {
	return (uint32(p)-uint32(start))&Mask < n
}

// Seq is an unwrapped packet sequence number: it goes on counting where a PSN wraps to 0.
// Its low 24 bits are the PSN, so that sums and differences of nearby ones hold for both.
// It is a type of its own so that it is not mixed up with indexes and counts.
type Seq uint64

// First returns the Seq at which a machine whose first PSN is p starts. It is 2^24 above p,
// so that PSNs before it do not wrap below zero.
func First(p PSN) Seq { return 1<<Bits | Seq(p&Mask) }

// PSN returns the low 24 bits of s, as they are on the wire.
func (s Seq) PSN() PSN { return PSN(s & Mask) }

// Near returns the Seq nearest to s whose PSN is p. A PSN half the circle away is
// taken as behind.
func (s Seq) Near(p PSN) Seq { return s + Seq(int64(p.Diff(s.PSN()))) }

// Wrap returns the PSN of an unwrapped count: Seq(n).PSN().
func Wrap(n uint64) PSN { return Seq(n).PSN() }

// Unwrap returns the count nearest to ref whose PSN is p: Seq(ref).Near(p).
//
// A result that would be negative wraps to the top of uint64; start unwrapped
// PSNs at 2^24 or above where that matters.
func Unwrap(ref uint64, p PSN) uint64 { return uint64(Seq(ref).Near(p)) }

// String returns p in decimal.
func (p PSN) String() string { return strconv.FormatUint(uint64(p&Mask), 10) }
