package crc

import "encoding/binary"

// Patch returns the ICRC of a packet whose covered bytes changed from old to new,
// from its ICRC before. tail is the number of bytes between the last changed one
// and the ICRC. No other byte of the packet is needed, and the time grows with
// the logarithm of tail. Changes in several places are patched one by one.
//
// Masked fields are not covered: changing them changes no ICRC, and their bytes
// must not be given. In the byte of an IPv6 or GRH header that holds the version,
// only the high nibble is covered.
//
// Patch panics if old and new differ in length or tail is negative.
//
// A wrong ICRC stays wrong, so a packet need not be checked before it is patched.
func Patch(icrc uint32, tail int, old, new []byte) uint32 {
	if len(old) != len(new) {
		panic("crc: Patch: old and new differ in length")
	}
	if tail < 0 {
		panic("crc: Patch: negative tail")
	}
	var r uint32
	for len(old) >= 8 && len(new) >= 8 {
		r = step8(r, binary.LittleEndian.Uint64(old)^binary.LittleEndian.Uint64(new))
		old, new = old[8:], new[8:]
	}
	for i, b := range old {
		r = step1(r, b^new[i])
	}
	return icrc ^ shift(r, tail)
}

// shift returns r·x^8n mod P: the register r after n bytes of zero.
func shift(r uint32, n int) uint32 {
	for k := 0; n != 0; k, n = k+1, n>>4 {
		if d := n & 15; d != 0 {
			r = mulmod(r, shifts[k&7][d])
		}
	}
	return r
}

// shifts[k][d] is x^(8·d·16^k) mod P, reflected. The order of x divides 2^32-1,
// so that 16^(k+8) and 16^k give the same power: 8 rows serve every length.
var shifts = makeShifts()

func makeShifts() (t [8][16]uint32) {
	c := uint32(1) << (31 - 8) // x^8
	for k := range t {
		t[k][0] = 1 << 31
		for d := 1; d < 16; d++ {
			t[k][d] = mulmodGeneric(t[k][d-1], c)
		}
		c = mulmodGeneric(t[k][15], c)
	}
	return t
}

// mulmodGeneric returns a·b mod P, all reflected (bit 31 is x^0).
func mulmodGeneric(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
	}
	return p
}
