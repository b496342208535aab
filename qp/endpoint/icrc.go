package endpoint

import (
	"encoding/binary"
	"math/bits"

	"github.com/roce-go/roce/crc"
)

// idFinder finds the IPv4 identification with which a packet's ICRC is right, for
// wires that do not show it.
type idFinder struct {
	strict bool // identification 0 only
	spaces map[int]*idSpace
}

// find returns the identification that makes the ICRC of the IP packet pkt right, where pkt
// has 0. A corrupt packet has none, except with probability 2^-16.
func (f *idFinder) find(pkt []byte) (uint16, bool) {
	n := len(pkt) - crc.Size
	diff := crc.Sum(pkt[:n]) ^ crc.Stored(pkt)
	if diff == 0 {
		return 0, true
	}
	if f.strict || pkt[0]>>4 != 4 {
		return 0, false
	}
	// The bytes after the identification that the ICRC covers.
	tail := n - 6
	s := f.spaces[tail]
	if s == nil {
		s = newIDSpace(tail)
		f.spaces[tail] = s
	}
	v, id := s.reduce(16, diff, 0)
	return id, v == 0
}

// idSpace holds the changes of an ICRC that identifications cause, for a number of covered
// bytes after them. A CRC is linear: each bit of the identification flips its own set of
// the ICRC's bits, so that the changes by 65536 identifications are a vector space of 16
// dimensions. It is held in echelon form, each vector with the identification that causes
// it.
type idSpace struct {
	vec [16]uint32
	id  [16]uint16
}

func newIDSpace(tail int) *idSpace {
	s := new(idSpace)
	n := 0
	for bit := range 16 {
		id := uint16(1) << bit
		v := crc.Patch(0, tail, []byte{0, 0}, binary.BigEndian.AppendUint16(nil, id))
		v, id = s.reduce(n, v, id)
		// A CRC of 32 bits differs for any two identifications, so v is not 0.
		s.vec[n], s.id[n] = v, id
		n++
	}
	return s
}

// reduce adds to v those of the first n vectors whose highest bit it has.
func (s *idSpace) reduce(n int, v uint32, id uint16) (uint32, uint16) {
	for again := true; again; {
		again = false
		for i := range n {
			if x := v ^ s.vec[i]; x < v && bits.Len32(v) == bits.Len32(s.vec[i]) {
				v, id, again = x, id^s.id[i], true
			}
		}
	}
	return v, id
}
