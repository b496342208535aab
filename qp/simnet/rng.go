package simnet

import "math"

// rng is splitmix64. Each direction and each switch has its own, so that a link
// more or less changes nobody else's luck.
type rng uint64

func newRNG(seed uint64, stream uint64) rng {
	r := rng(seed)
	return rng(r.next() ^ (stream+1)*0xd1342543de82ef95)
}

func (r *rng) next() uint64 {
	z := finalize(uint64(*r))
	*r += 0x9e3779b97f4a7c15
	return z
}

// below returns a number of 0 .. n-1; n must not be 0. Its bias is below n/2^64.
func (r *rng) below(n uint64) uint64 { return r.next() % n }

// chance is a probability as the first numbers of all 2^64.
type chance uint64

func newChance(p float64) chance {
	switch {
	case !(p > 0):
		return 0
	case p >= 1:
		return math.MaxUint64
	}
	return chance(p * (1 << 63) * 2)
}

// hit draws once, unless the chance is none.
func (r *rng) hit(c chance) bool { return c != 0 && r.next() <= uint64(c) }
