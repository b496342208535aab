//go:build !purego

package crc

// A kernel is a way to compute. Each wants the CPU features named beside it.
type kernel uint8

const (
	kernelGeneric kernel = iota
	kernelCRC32          // CRC32
	kernelPMULL          // CRC32, PMULL
)

var kernelNames = [...]string{kernelGeneric: "generic", kernelCRC32: "crc32", kernelPMULL: "pmull"}

var current = best()

// kernels lists what this CPU can run.
func kernels() []kernel {
	k := []kernel{kernelGeneric}
	for i := kernelCRC32; i <= best(); i++ {
		k = append(k, i)
	}
	return k
}

// use forces a kernel, in tests, and returns the one before.
func use(k kernel) kernel {
	before := current
	current = k
	return before
}

// best reads the CPU's features.
func best() kernel {
	switch crc32, pmull := features(); {
	case crc32 && pmull:
		return kernelPMULL
	case crc32:
		return kernelCRC32
	}
	return kernelGeneric
}

// The kernels in assembly. They read exactly the bytes that they are given, at
// any alignment. Registers come and go uncomplemented.

// sumCRC32 wants n >= 8*words. The first words of the message are ORed with mask.
//
//go:noescape
func sumCRC32(mask *uint64, words int, p *byte, n int) uint32

//go:noescape
func updateCRC32(r uint32, p *byte, n int) uint32

//go:noescape
func copyUpdateCRC32(r uint32, dst, src *byte, n int) uint32

// updatePMULL reads blocks of 3*laneSize bytes, one at least.
//
//go:noescape
func updatePMULL(r uint32, p *byte, blocks int) uint32

//go:noescape
func copyUpdatePMULL(r uint32, dst, src *byte, blocks int) uint32

// laneSize is the length in bytes of each of the three stretches that updatePMULL
// runs side by side, since the next CRC32 instruction waits for the one before:
// three of them are just under 1 KiB.
const (
	laneSize  = 336
	blockSize = 3 * laneSize
)

// laneShift moves a register by two lanes and by one: x^(8·2·laneSize-33) and
// x^(8·laneSize-33) mod P. The 33 are what the reduction brings: CRC32X of a product
// multiplies by x^32, and the product of reflected factors lies one bit low.
var laneShift = [2]uint64{
	uint64(shift(1<<(31-7), 2*laneSize-5)),
	uint64(shift(1<<(31-7), laneSize-5)),
}

func sum(pkt []byte) uint32 {
	if len(pkt) < minForm || current == kernelGeneric {
		return sumGeneric(pkt)
	}
	f := formOf(pkt)
	if f == formOptions {
		r, rest := headerSlow(f, pkt)
		return ^update(r, rest)
	}
	m := &maskWords[f]
	n := 8 * m.n
	if len(pkt) < n {
		return sumGeneric(pkt)
	}
	if current == kernelPMULL && len(pkt) >= n+blockSize {
		return ^update(sumCRC32(&m.w[0], m.n, &pkt[0], n), pkt[n:])
	}
	return ^sumCRC32(&m.w[0], m.n, &pkt[0], len(pkt))
}

func update(r uint32, p []byte) uint32 {
	if len(p) == 0 || current == kernelGeneric {
		return updateGeneric(r, p)
	}
	if k := len(p) / blockSize; k > 0 && current == kernelPMULL {
		r = updatePMULL(r, &p[0], k)
		if p = p[k*blockSize:]; len(p) == 0 {
			return r
		}
	}
	return updateCRC32(r, &p[0], len(p))
}

// copyUpdate copies src to dst, as long, and runs the register over it.
func copyUpdate(r uint32, dst, src []byte) uint32 {
	if len(src) == 0 || len(dst) < len(src) || current == kernelGeneric {
		return copyGeneric(r, dst, src)
	}
	if k := len(src) / blockSize; k > 0 && current == kernelPMULL {
		r = copyUpdatePMULL(r, &dst[0], &src[0], k)
		if src = src[k*blockSize:]; len(src) == 0 {
			return r
		}
		dst = dst[k*blockSize:]
	}
	return copyUpdateCRC32(r, &dst[0], &src[0], len(src))
}

func mulmod(a, b uint32) uint32 { return mulmodGeneric(a, b) }
