package crc_test

import "bytes"

// refCRC is CRC-32 a bit at a time, from the definition: polynomial 0x04C11DB7,
// bytes least significant bit first, initial value and final complement all ones.
func refCRC(p []byte) uint32 {
	r := ^uint32(0)
	for _, b := range p {
		r = refByte(r, b)
	}
	return ^r
}

func refByte(r uint32, b byte) uint32 {
	for i := range 8 {
		in := uint32(b) >> i & 1
		out := r & 1
		r >>= 1
		if in != out {
			r ^= 0xedb88320
		}
	}
	return r
}

// refMasked returns what the ICRC of pkt covers: eight bytes of ones and a masked
// copy, fields taken from the header layouts one by one.
func refMasked(pkt []byte) []byte {
	m := append(bytes.Repeat([]byte{0xff}, 8), pkt...)
	p := m[8:]
	set := func(i int, bits byte) {
		if i < len(p) {
			p[i] |= bits
		}
	}
	if len(p) == 0 {
		return m
	}
	v6, grh := p[0]>>4 == 6 && len(p) >= 7, false
	bth := 0
	if v6 {
		grh = p[6] == 0x1b
		set(0, 0x0f) // traffic class, high half
		set(1, 0xff) // traffic class, low half; flow label
		set(2, 0xff)
		set(3, 0xff)
		set(7, 0xff) // hop limit
		bth = 40
	} else {
		bth = max(int(p[0]&15)*4, 20)
		set(1, 0xff)  // type of service
		set(8, 0xff)  // time to live
		set(10, 0xff) // header checksum
		set(11, 0xff)
	}
	if !grh {
		set(bth+6, 0xff) // UDP checksum
		set(bth+7, 0xff)
		bth += 8
	}
	set(bth+4, 0xff) // FECN, BECN, reserved
	return m
}

func refSum(pkt []byte) uint32 { return refCRC(refMasked(pkt)) }
