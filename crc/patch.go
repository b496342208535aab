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
// A wrong ICRC stays wrong: a packet is patched without first being believed.
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
		r = r>>8 ^ slicing[0][byte(r)^b^new[i]]
	}
	return icrc ^ shift(r, tail)
}

// shift returns r·x^8n mod P: the register r after n bytes of zero.
func shift(r uint32, n int) uint32 {
	for ; n >= 8 && n < 64; n -= 8 {
		r = step8(r, 0)
	}
	for k := 0; n != 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			r = mulmod(r, shifts[k&31])
		}
	}
	return r
}

// shifts[k] is x^(8·2^k) mod P, reflected. The order of x divides 2^32-1, so
// that 2^(k+32) and 2^k are the same power: 32 entries serve every length.
var shifts = makeShifts()

func makeShifts() (t [32]uint32) {
	t[0] = 1 << (31 - 8)
	for k := 1; k < len(t); k++ {
		t[k] = mulmodGeneric(t[k-1], t[k-1])
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
