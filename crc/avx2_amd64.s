//go:build !purego

#include "textflag.h"

// AVX2 kernels, for CPUs that have VPCLMULQDQ but not AVX-512; they assume both.
// shortAVX2 multiplies each piece by its lane, as the kernels of clmul_amd64.s do.
// The others fold and take messages of whole blocks of 128 bytes: four accumulators
// of 32 bytes, each of which moves on by 128 bytes (two products) and takes in the
// 32 that lie there. Constants and last steps are those of clmul_amd64.s and
// avx512_amd64.s.

// Folding by 128 bytes, as in clmul_amd64.s.
DATA fold32<>+0(SB)/8, $0x7d657a1000000000
DATA fold32<>+8(SB)/8, $0x7406fa9500000000
GLOBL fold32<>(SB), RODATA|NOPTR, $16

// Barrett reduction, as in avx512_amd64.s.
DATA barrett32<>+0(SB)/8, $0xb4e5b025f7011641
DATA barrett32<>+8(SB)/8, $0x00000001db710641
GLOBL barrett32<>(SB), RODATA|NOPTR, $16

// FOLD moves Y on and adds the block D.
#define FOLD(Y, D) \
	VPCLMULQDQ $0x00, Y9, Y, Y10 \
	VPCLMULQDQ $0x11, Y9, Y, Y11 \
	VPXOR      D, Y10, Y10       \
	VPXOR      Y11, Y10, Y

// LANES multiplies each half lane of Y by its constant, found OFF bytes from the
// end of the lanes (R10), and leaves the sum in Y.
#define LANES(OFF, Y) \
	VMOVDQU    OFF(R10), Y10      \
	VPCLMULQDQ $0x00, Y10, Y, Y11 \
	VPCLMULQDQ $0x11, Y10, Y, Y   \
	VPXOR      Y11, Y, Y

// BARRETT returns the sum of the halves of Y0 mod P in AX.
#define BARRETT \
	VEXTRACTI128 $1, Y0, X1          \
	VPXOR        X1, X0, X0          \
	VMOVDQU      barrett32<>(SB), X2 \
	VPCLMULQDQ   $0x00, X2, X0, X1   \
	VPCLMULQDQ   $0x10, X2, X1, X1   \
	VPXOR        X1, X0, X0          \
	VPEXTRD      $2, X0, AX          \
	VZEROUPPER

// REDUCE returns what Y0 to Y3, the last 128 bytes, leave, in AX.
#define REDUCE \
	LANES(-128, Y0)    \
	LANES(-96, Y1)     \
	LANES(-64, Y2)     \
	LANES(-32, Y3)     \
	VPXOR  Y1, Y0, Y0  \
	VPXOR  Y3, Y2, Y2  \
	VPXOR  Y2, Y0, Y0  \
	BARRETT

// SHORT multiplies the lanes of Y by those of L and adds the products to A and B.
#define SHORT(L, Y, A, B) \
	VPCLMULQDQ $0x00, L, Y, Y11 \
	VPCLMULQDQ $0x11, L, Y, Y12 \
	VPXOR      Y11, A, A        \
	VPXOR      Y12, B, B

// The load at t is a mask of the last t of 32 bytes.
DATA last<>+0(SB)/8, $0
DATA last<>+8(SB)/8, $0
DATA last<>+16(SB)/8, $0
DATA last<>+24(SB)/8, $0
DATA last<>+32(SB)/8, $-1
DATA last<>+40(SB)/8, $-1
DATA last<>+48(SB)/8, $-1
DATA last<>+56(SB)/8, $-1
GLOBL last<>(SB), RODATA|NOPTR, $64

// func shortAVX2(w *window, r uint32, lanes *byte, p *byte, n int) uint32
//
// The message is cut into blocks of 32 bytes from its start, so that the masked
// bytes lie in the first two; each is multiplied by its lanes, whose constants
// depend on n mod 8. A rest of t bytes is loaded with the 32-t bytes before it,
// which are set to zero: they were summed already.
TEXT ·shortAVX2(SB), NOSPLIT, $0-44
	MOVQ       w+0(FP), DI
	MOVL       r+8(FP), AX
	VMOVD      AX, X4               // clears the rest of Y4
	MOVQ       lanes+16(FP), R10
	MOVQ       p+24(FP), SI
	MOVQ       n+32(FP), BX
	MOVQ       BX, CX
	ANDQ       $-8, CX
	SUBQ       CX, R10              // the first lane
	VMOVDQU    (SI), Y0
	VMOVDQU    32(SI), Y5
	VMOVDQU    (R10), Y10
	VMOVDQU    32(R10), Y9
	VPOR       64(DI), Y0, Y0
	VPXOR      256(DI), Y4, Y4
	VPOR       96(DI), Y5, Y5
	VPXOR      Y4, Y0, Y0
	VPCLMULQDQ $0x00, Y9, Y5, Y3
	VPCLMULQDQ $0x11, Y9, Y5, Y4
	VPCLMULQDQ $0x00, Y10, Y0, Y1
	VPCLMULQDQ $0x11, Y10, Y0, Y2
	ADDQ       $64, SI
	ADDQ       $64, R10
	SUBQ       $128, BX
	JLT        one

pair:
	VMOVDQU (SI), Y0
	VMOVDQU (R10), Y10
	VMOVDQU 32(SI), Y5
	VMOVDQU 32(R10), Y9
	SHORT(Y10, Y0, Y1, Y2)
	SHORT(Y9, Y5, Y3, Y4)
	ADDQ    $64, SI
	ADDQ    $64, R10
	SUBQ    $64, BX
	JGE     pair

one:
	ADDQ    $64, BX
	CMPQ    BX, $32
	JLT     rest
	VMOVDQU (SI), Y0
	VMOVDQU (R10), Y10
	SHORT(Y10, Y0, Y1, Y2)
	ADDQ    $32, SI
	SUBQ    $32, BX

rest:
	TESTQ   BX, BX
	JEQ     done
	LEAQ    last<>(SB), CX
	MOVQ    ·laneEnd(SB), R10
	VMOVDQU (CX)(BX*1), Y5
	VMOVDQU -32(R10), Y9
	VPAND   -32(SI)(BX*1), Y5, Y5
	SHORT(Y9, Y5, Y3, Y4)

done:
	VPXOR Y2, Y1, Y0
	VPXOR Y4, Y3, Y3
	VPXOR Y3, Y0, Y0
	BARRETT
	MOVL AX, ret+40(FP)
	RET

// func updateAVX2(r uint32, p *byte, blocks int) uint32
TEXT ·updateAVX2(SB), NOSPLIT, $0-28
	MOVL           r+0(FP), AX
	VMOVD          AX, X4 // clears the rest of Y4
	MOVQ           p+8(FP), SI
	MOVQ           blocks+16(FP), BX
	MOVQ           ·laneEnd(SB), R10
	VBROADCASTI128 fold32<>(SB), Y9
	VPXOR          (SI), Y4, Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	DECQ           BX
	JEQ            done

fold:
	ADDQ $128, SI
	FOLD(Y0, (SI))
	FOLD(Y1, 32(SI))
	FOLD(Y2, 64(SI))
	FOLD(Y3, 96(SI))
	DECQ BX
	JNE  fold

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

// func copyUpdateAVX2(r uint32, dst, src *byte, blocks int) uint32
TEXT ·copyUpdateAVX2(SB), NOSPLIT, $0-36
	MOVL           r+0(FP), AX
	VMOVD          AX, X4
	MOVQ           dst+8(FP), DI
	MOVQ           src+16(FP), SI
	MOVQ           blocks+24(FP), BX
	MOVQ           ·laneEnd(SB), R10
	VBROADCASTI128 fold32<>(SB), Y9
	VMOVDQU        (SI), Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	VMOVDQU        Y0, (DI)
	VMOVDQU        Y1, 32(DI)
	VMOVDQU        Y2, 64(DI)
	VMOVDQU        Y3, 96(DI)
	VPXOR          Y4, Y0, Y0
	DECQ           BX
	JEQ            done

fold:
	ADDQ    $128, SI
	ADDQ    $128, DI
	VMOVDQU (SI), Y5
	VMOVDQU 32(SI), Y6
	VMOVDQU 64(SI), Y7
	VMOVDQU 96(SI), Y8
	VMOVDQU Y5, (DI)
	VMOVDQU Y6, 32(DI)
	VMOVDQU Y7, 64(DI)
	VMOVDQU Y8, 96(DI)
	FOLD(Y0, Y5)
	FOLD(Y1, Y6)
	FOLD(Y2, Y7)
	FOLD(Y3, Y8)
	DECQ    BX
	JNE     fold

done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET
