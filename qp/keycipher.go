package qp

import "math/rand/v2"

// keyCipher hides what a memory key tells: slot and turn. It is a permutation of the
// 32-bit numbers, a Feistel network whose round functions come from a seed. The zero
// value leaves keys as they are.
type keyCipher struct {
	rounds [6]struct{ mul, add uint64 }
	on     bool
}

func (c *keyCipher) init(seed [32]byte) {
	rng := rand.NewChaCha8(seed)
	for i := range c.rounds {
		c.rounds[i].mul, c.rounds[i].add = rng.Uint64()|1, rng.Uint64()
	}
	c.on = true
}

// round mixes a half.
func (c *keyCipher) round(i int, half uint32) uint32 {
	x := (uint64(half) + c.rounds[i].add) * c.rounds[i].mul
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	return uint32(x>>40) & 0xffff
}

func (c *keyCipher) seal(k uint32) uint32 {
	if !c.on {
		return k
	}
	l, r := k>>16, k&0xffff
	for i := range c.rounds {
		l, r = r, l^c.round(i, r)
	}
	return l<<16 | r
}

func (c *keyCipher) open(k uint32) uint32 {
	if !c.on {
		return k
	}
	l, r := k>>16, k&0xffff
	for i := len(c.rounds) - 1; i >= 0; i-- {
		l, r = r^c.round(i, l), l
	}
	return l<<16 | r
}
