package crc

import (
	"encoding/binary"
	"math/bits"
)

// poly is x^32 + 0x04C11DB7, reflected: bit 31 is x^0, x^32 is left out.
const poly = 0xedb88320

// slicing[k][b] is the register that byte b, followed by k bytes of zero, leaves
// behind: b·x^(8k+32) mod P.
var slicing = makeSlicing()

func makeSlicing() (t [8][256]uint32) {
	for b := range t[0] {
		r := uint32(b)
		for range 8 {
			r = r>>1 ^ poly&-(r&1)
		}
		t[0][b] = r
	}
	for k := 1; k < 8; k++ {
		for b, r := range t[k-1] {
			t[k][b] = r>>8 ^ t[0][r&0xff]
		}
	}
	return t
}

// step8 advances the register by eight message bytes, the first in the lowest bits.
func step8(r uint32, w uint64) uint32 {
	w ^= uint64(r)
	return slicing[7][w&0xff] ^ slicing[6][w>>8&0xff] ^ slicing[5][w>>16&0xff] ^ slicing[4][w>>24&0xff] ^
		slicing[3][w>>32&0xff] ^ slicing[2][w>>40&0xff] ^ slicing[1][w>>48&0xff] ^ slicing[0][w>>56]
}

// step4 advances it by four.
func step4(r, w uint32) uint32 {
	w ^= r
	return slicing[3][w&0xff] ^ slicing[2][w>>8&0xff] ^ slicing[1][w>>16&0xff] ^ slicing[0][w>>24]
}

// step1 advances it by one.
func step1(r uint32, b byte) uint32 {
	return r>>8 ^ slicing[0][byte(r)^b]
}

// carried returns what the words 2 to 5 before a word of a message add to it:
// 1 + x^-145 + x^-183 + x^-211 + x^-300 is 0 mod P, so that a bit of the message may be moved
// to the places 145, 183, 211 and 300 bits behind it. (Computing a CRC in this way, without
// tables: Russell, Chorba, arXiv 2412.16398.)
func carried(w2, w3, w4, w5 uint64) uint64 {
	return w2<<17 ^ w2<<55 ^ w3>>47 ^ w3>>9 ^ w3<<19 ^ w4>>45 ^ w4<<44 ^ w5>>20
}

// minCarried is the length in bytes from which that is faster: the last five words take the
// tables.
const minCarried = 128

// updateCarried runs register r over most of p, which has minCarried bytes or more. It
// returns what is left.
func updateCarried(r uint32, p []byte) (uint32, []byte) {
	le := binary.LittleEndian
	a, b, c, d, e := uint64(0), uint64(0), uint64(0), uint64(0), uint64(0) // the last five words, the latest first
	for w := uint64(r); len(p) >= 80; w, p = 0, p[40:] {
		e = le.Uint64(p) ^ w ^ carried(b, c, d, e)
		d = le.Uint64(p[8:]) ^ carried(a, b, c, d)
		c = le.Uint64(p[16:]) ^ carried(e, a, b, c)
		b = le.Uint64(p[24:]) ^ carried(d, e, a, b)
		a = le.Uint64(p[32:]) ^ carried(c, d, e, a)
	}
	r = step8(0, le.Uint64(p)^carried(b, c, d, e))
	r = step8(r, le.Uint64(p[8:])^carried(a, b, c, d))
	r = step8(r, le.Uint64(p[16:])^carried(0, a, b, c))
	r = step8(r, le.Uint64(p[24:])^carried(0, 0, a, b))
	r = step8(r, le.Uint64(p[32:])^carried(0, 0, 0, a))
	return r, p[40:]
}

// updateGeneric runs register r over the covered bytes p.
func updateGeneric(r uint32, p []byte) uint32 {
	if bits.UintSize == 64 && len(p) >= minCarried {
		r, p = updateCarried(r, p)
	}
	for len(p) >= 8 {
		r = step8(r, binary.LittleEndian.Uint64(p))
		p = p[8:]
	}
	if len(p) >= 4 {
		r = step4(r, binary.LittleEndian.Uint32(p))
		p = p[4:]
	}
	for _, b := range p {
		r = step1(r, b)
	}
	return r
}

// copyGeneric copies src to dst, as long, and runs register r over it. It copies in pieces:
// for more than 2 KiB Go uses an instruction (REP MOVSQ) on processors without AVX and ERMS
// that emulated ones execute word by word, and slowly. So dst and src must not overlap in part.
func copyGeneric(r uint32, dst, src []byte) uint32 {
	const piece = 2048
	for rest := src; len(rest) != 0; rest = rest[min(piece, len(rest)):] {
		dst = dst[copy(dst, rest[:min(piece, len(rest))]):]
	}
	return updateGeneric(r, src)
}

// maskWords holds, for each form, the ones to set in the first bytes of a packet
// as little-endian words; what lies behind them is not masked.
var maskWords = [...]struct {
	n int
	w [7]uint64
}{
	formIPv4: {5, [7]uint64{0xff00, 0xffff00ff, 0, 0xffff0000, 0xff}},
	formIPv6: {7, [7]uint64{0: 0xff000000ffffff0f, 5: 0xffff000000000000, 6: 0xff00000000}},
	formGRH:  {6, [7]uint64{0: 0xff000000ffffff0f, 5: 0xff00000000}},
}

// headerGeneric starts a register and runs it over the masked words of pkt. It
// returns the bytes that follow them. Other forms, and packets that end within
// those words, go through headerSlow.
func headerGeneric(pkt []byte) (r uint32, rest []byte) {
	if len(pkt) < minForm {
		return headerSlow(formOptions, pkt)
	}
	f := formOf(pkt)
	if f == formOptions || len(pkt) < 8*maskWords[f].n {
		return headerSlow(f, pkt)
	}
	m := &maskWords[f]
	r = start
	for _, w := range m.w[:m.n] {
		r = step8(r, binary.LittleEndian.Uint64(pkt)|w)
		pkt = pkt[8:]
	}
	return r, pkt
}

// maxMasked is where the masked bytes end at the latest: an IPv4 header of 60
// bytes, UDP, and BTH up to its byte 4.
const maxMasked = 60 + 8 + 5

// headerSlow is headerGeneric for any form and length, by way of a masked copy.
func headerSlow(f form, pkt []byte) (r uint32, rest []byte) {
	var h [maxMasked]byte
	n := copy(h[:], pkt)
	bth := 40
	switch f {
	case formIPv4, formOptions:
		h[1] = 0xff
		h[8] = 0xff
		h[10], h[11] = 0xff, 0xff
		bth = 4*max(int(h[0]&0xf), 5) + 8
	case formIPv6, formGRH:
		h[0] |= 0x0f
		h[1], h[2], h[3] = 0xff, 0xff, 0xff
		h[7] = 0xff
		if f == formIPv6 {
			bth = 48
		}
	}
	if f != formGRH {
		h[bth-2], h[bth-1] = 0xff, 0xff
	}
	h[bth+4] = 0xff
	n = min(n, bth+5)
	return updateGeneric(start, h[:n]), pkt[n:]
}

func sumGeneric(pkt []byte) uint32 {
	r, rest := headerGeneric(pkt)
	return ^updateGeneric(r, rest)
}
