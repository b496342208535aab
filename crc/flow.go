package crc

import "math/bits"

// Flow sums the small packets of an established flow, which differ from one
// another in a few covered bytes: an acknowledgement in its PSN and AETH, a READ
// request in its PSN and RETH. The constant bytes are summed once, in [NewFlow];
// an acknowledgement then takes eight table look-ups. A Flow belongs to packets of
// one length, as the lengths in their IP and UDP headers are covered: one Flow for
// the acknowledgements of a QP, one for its READ requests. A CNP has no varying
// byte at all.
//
// A Flow is a plain value of about 300 bytes that holds no reference to the
// template. Its methods other than SetID may be called concurrently.
type Flow struct {
	r    uint32 // register before the tail
	zero uint32 // the same for identification 0
	v4   bool
	id   [4][16]uint32 // what each half byte of the identification adds to zero
}

// NewFlow returns a Flow for a template, a network packet without its ICRC, of
// which the bytes from offset tail to the end may differ from packet to packet. No
// masked byte may be among these: the BTH may vary from its byte 5 on. It panics
// if tail is not in 0..len(pkt).
func NewFlow(pkt []byte, tail int) Flow {
	fixed := pkt[:tail]
	f := Flow{r: ^sum(fixed)}
	f.zero = f.r
	if tail >= minForm && fixed[0]>>4 == 4 {
		f.v4 = true
		for k := range f.id {
			// Half byte k, counted from the low end of a big-endian word in bytes 4 and 5.
			for v := range 16 {
				f.id[k][v] = shift(step1(0, byte(v)<<(k%2*4)), tail-(6-k/2))
			}
		}
		f.zero ^= f.idBits(uint16(fixed[4])<<8 | uint16(fixed[5]))
	}
	return f
}

func (f *Flow) idBits(id uint16) uint32 {
	return f.id[0][id&15] ^ f.id[1][id>>4&15] ^ f.id[2][id>>8&15] ^ f.id[3][id>>12]
}

// SetID sets the IPv4 identification of the packets to follow; NewFlow took it
// from the template. It does nothing for IPv6 and GRH.
func (f *Flow) SetID(id uint16) {
	if f.v4 {
		f.r = f.zero ^ f.idBits(id)
	}
}

// Sum returns the ICRC of the packet with the given tail, which must be as long
// as the template's was.
func (f *Flow) Sum(tail []byte) uint32 {
	if len(tail) < minFlowKernel {
		return ^updateGeneric(f.r, tail)
	}
	return ^update(f.r, tail)
}

// Ack is Sum for a tail of eight bytes, which are given as two big-endian words:
// in an acknowledgement the last word of the BTH (A bit, seven reserved bits, PSN)
// and the AETH.
func (f *Flow) Ack(psn, aeth uint32) uint32 {
	return ^step8(f.r, bits.ReverseBytes64(uint64(psn)<<32|uint64(aeth)))
}

// minFlowKernel is where the kernels begin to beat the tables, call included.
const minFlowKernel = 16
