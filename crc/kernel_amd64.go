//go:build !purego

//lint:file-ignore U1000 The assembly uses the lanes.

package crc

import (
	"encoding/binary"
	"unsafe"
)

// A kernel is a way to compute. Each wants the CPU features named beside it.
type kernel uint8

const (
	kernelGeneric kernel = iota
	kernelCLMUL          // SSE2, SSSE3, SSE4.1, PCLMULQDQ
	kernelAVX2           // AVX2, VPCLMULQDQ, and those
	kernelAVX512         // AVX-512 F, BW, DQ, VL, VBMI; BMI2, and those
)

var kernelNames = [...]string{kernelGeneric: "generic", kernelCLMUL: "clmul", kernelAVX2: "avx2", kernelAVX512: "avx512"}

var current = best()

// kernels lists what this CPU can run.
func kernels() []kernel {
	k := []kernel{kernelGeneric}
	for i := kernelCLMUL; i <= best(); i++ {
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

// cpuid and xgetbv are the instructions of those names.
//
//go:noescape
func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

//go:noescape
func xgetbv() (eax, edx uint32)

// best reads the CPU's features (Intel 64 manual: volume 2A, CPUID; volume 1, 14.3
// and 15.2 for AVX, whose wider registers the operating system has to save as well).
func best() kernel {
	const (
		// Leaf 1, ECX.
		clmul = 1<<1 | 1<<9 | 1<<19 // PCLMULQDQ, SSSE3, SSE4.1
		avx   = 1<<27 | 1<<28       // OSXSAVE, AVX
		// Leaf 7, EBX.
		avx2   = 1 << 5
		avx512 = 1<<8 | 1<<16 | 1<<17 | 1<<30 | 1<<31 // BMI2; AVX-512 F, DQ, BW, VL
		// Leaf 7, ECX.
		vbmi    = 1 << 1
		vpclmul = 1 << 10
		// XCR0: what is saved.
		ymm = 1<<1 | 1<<2
		zmm = ymm | 1<<5 | 1<<6 | 1<<7 // mask registers, halves and rest of ZMM
	)
	top, _, _, _ := cpuid(0, 0)
	_, _, c1, _ := cpuid(1, 0)
	if c1&clmul != clmul {
		return kernelGeneric
	}
	if c1&avx != avx || top < 7 {
		return kernelCLMUL
	}
	xcr0, _ := xgetbv()
	_, b7, c7, _ := cpuid(7, 0)
	if xcr0&ymm != ymm || b7&avx2 == 0 || c7&vpclmul == 0 {
		return kernelCLMUL
	}
	if xcr0&zmm != zmm || b7&avx512 != avx512 || c7&vbmi == 0 {
		return kernelAVX2
	}
	return kernelAVX512
}

// direct is the length in bytes up to which each 64-bit piece of a message is
// multiplied by its own constant; longer messages are folded first.
const direct = 1024

// The lane of a 64-bit piece behind which q pieces and k bytes follow is
// x^(64q+8k+32) mod P, q from direct/8-1 down to 0: reflected, one bit up: bit 32
// is x^0. In this place the product of piece and constant, a polynomial of degree
// below 96, has x^m at bit 95-m of a 128-bit register, as the reduction wants it.
// The lanes of each k, 0 to 7, end where a cache line does, so that few loads span
// two lines. Messages cut into pieces from their end have k = 0.
var (
	laneSpace [8][direct/8 + 8]uint64
	laneEnds  = makeLanes() // just behind the last lane, by k
	laneEnd   = laneEnds[0]
)

func makeLanes() (ends [8]*byte) {
	for k := range ends {
		skip := -uintptr(unsafe.Pointer(&laneSpace[k])) / 8 & 7
		c := uint32(poly) // x^32
		for range k {
			c = step1(c, 0)
		}
		for i := int(skip) + direct/8 - 1; i >= int(skip); i-- {
			laneSpace[k][i] = uint64(c) << 1
			c = step8(c, 0)
		}
		ends[k] = (*byte)(unsafe.Add(unsafe.Pointer(&laneSpace[k]), (skip+direct/8)*8))
	}
	return ends
}

// A window holds the mask and the starting register of one form, so that the
// load at offset r of either gives what belongs to a block of 64 bytes that ends
// r bytes into the packet, and the load 64 bytes on what belongs to the next.
// A block ^= of the register follows the |= of the mask.
type window struct {
	mask, reg [3 * 64]byte
}

var windows = makeWindows()

// noWindow masks nothing and starts from nothing.
var noWindow window

func makeWindows() (w [3]window) {
	for f := range w {
		m := &maskWords[f]
		for i, v := range m.w[:m.n] {
			binary.LittleEndian.PutUint64(w[f].mask[64+8*i:], v)
		}
		binary.LittleEndian.PutUint32(w[f].reg[64:], start)
	}
	return w
}

// The kernels in assembly. The messages are pointers and lengths in bytes; they
// read exactly these bytes, at any alignment. Results are registers, not complemented.

// sumAVX512 and updateAVX512 want n >= 32.
//
//go:noescape
func sumAVX512(w *window, p *byte, n int) uint32

//go:noescape
func updateAVX512(r uint32, p *byte, n int) uint32

// copyUpdateAVX512 is updateAVX512 and copies the bytes to dst. It wants n >= 64.
//
//go:noescape
func copyUpdateAVX512(r uint32, dst, src *byte, n int) uint32

// sumCLMUL and updateCLMUL want n >= 16.
//
//go:noescape
func sumCLMUL(w *window, p *byte, n int) uint32

//go:noescape
func updateCLMUL(r uint32, p *byte, n int) uint32

// copyUpdateCLMUL is updateCLMUL and copies the bytes to dst.
//
//go:noescape
func copyUpdateCLMUL(r uint32, dst, src *byte, n int) uint32

// shortAVX2 starts from r, and the register of w, and wants lanes = laneEnds[n%8] and
// 64 <= n <= direct, and that a mask of w ends before 64 bytes.
//
//go:noescape
func shortAVX2(w *window, r uint32, lanes *byte, p *byte, n int) uint32

// updateAVX2 and copyUpdateAVX2 want blocks of 128 bytes, one at least.
//
//go:noescape
func updateAVX2(r uint32, p *byte, blocks int) uint32

//go:noescape
func copyUpdateAVX2(r uint32, dst, src *byte, blocks int) uint32

// mulmodCLMUL returns a·b mod P.
//
//go:noescape
func mulmodCLMUL(a, b uint32) uint32

// What the kernels want at least, in bytes. As many bytes show which of the three forms a packet has.
const (
	minCLMUL  = 16
	minAVX512 = 32
	minCopy   = 64
)

// minShort is where shortAVX2 overtakes the CLMUL kernel; it wants as much.
const minShort = 64

// minAVX2 is where the AVX2 kernel overtakes when it also copies.
const minAVX2 = 512

// head returns how many of n bytes come before the whole blocks of the AVX2
// kernel: 80 to 207, which spans all masked fields of the forms with a window.
func head(n int) int { return (n-80)%128 + 80 }

func sum(pkt []byte) uint32 {
	if len(pkt) < minCLMUL || current == kernelGeneric {
		return sumGeneric(pkt)
	}
	f := formOf(pkt)
	if f == formOptions {
		r, rest := headerSlow(f, pkt)
		return ^update(r, rest)
	}
	switch n := len(pkt); {
	case n >= minAVX512 && current == kernelAVX512:
		return ^sumAVX512(&windows[f], &pkt[0], n)
	case n >= minShort && current == kernelAVX2:
		if n <= direct {
			return ^shortAVX2(&windows[f], 0, laneEnds[n&7], &pkt[0], n)
		}
		return ^longAVX2(&windows[f], 0, pkt)
	default:
		return ^sumCLMUL(&windows[f], &pkt[0], n)
	}
}

func update(r uint32, p []byte) uint32 {
	switch n := len(p); {
	case n < minCLMUL || current == kernelGeneric:
		return updateGeneric(r, p)
	case n >= minAVX512 && current == kernelAVX512:
		return updateAVX512(r, &p[0], n)
	case n >= minShort && current == kernelAVX2:
		if n <= direct {
			return shortAVX2(&noWindow, r, laneEnds[n&7], &p[0], n)
		}
		return longAVX2(&noWindow, r, p)
	default:
		return updateCLMUL(r, &p[0], n)
	}
}

// longAVX2 runs r, and the register of w, over p, which is longer than direct.
func longAVX2(w *window, r uint32, p []byte) uint32 {
	h := head(len(p))
	return updateAVX2(shortAVX2(w, r, laneEnds[h&7], &p[0], h), &p[h], (len(p)-h)/128)
}

// copyUpdate copies src to dst, as long, and runs the register over it.
func copyUpdate(r uint32, dst, src []byte) uint32 {
	switch n := len(src); {
	case current == kernelGeneric:
		return copyGeneric(r, dst, src)
	case n < minCopy || len(dst) < n:
		copy(dst, src)
		return update(r, src)
	case current == kernelAVX512:
		return copyUpdateAVX512(r, &dst[0], &src[0], n)
	case n >= minAVX2 && current == kernelAVX2:
		h := head(n)
		r = copyUpdateCLMUL(r, &dst[0], &src[0], h)
		return copyUpdateAVX2(r, &dst[h], &src[h], (n-h)/128)
	default:
		return copyUpdateCLMUL(r, &dst[0], &src[0], n)
	}
}

func mulmod(a, b uint32) uint32 {
	if current != kernelGeneric {
		return mulmodCLMUL(a, b)
	}
	return mulmodGeneric(a, b)
}
