//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// AVX-512 kernels. They assume AVX-512 F, BW, DQ, VL and VBMI, VPCLMULQDQ and BMI2.
// Only Z16 to Z31 are used: these have no SSE counterpart, so that the SSE code
// around pays nothing and no VZEROUPPER is needed.
//
// The message is cut into blocks of 64 bytes from its end. The first block may be
// short: its 1 <= r <= 64 bytes go to the end of a register, with zeros in front,
// which change nothing (the CRC register comes in by XOR with the first four bytes
// of the message). No load under a mask does this: one that touches an absent page
// with its masked-out bytes does not fault, but costs a hundred nanoseconds.
//
// DX  start of the message        SI  end of the message
// BX  its length n                AX  offset of the next block from SI, -64m .. 0
// R10 end of the lanes            so (R10)(AX*1) are the constants of that block

// The load at n mod 64 is the permutation that moves the bytes of a register n
// places down and around, which is 64-r up.
DATA turn<>+0(SB)/8, $0x0706050403020100
DATA turn<>+8(SB)/8, $0x0f0e0d0c0b0a0908
DATA turn<>+16(SB)/8, $0x1716151413121110
DATA turn<>+24(SB)/8, $0x1f1e1d1c1b1a1918
DATA turn<>+32(SB)/8, $0x2726252423222120
DATA turn<>+40(SB)/8, $0x2f2e2d2c2b2a2928
DATA turn<>+48(SB)/8, $0x3736353433323130
DATA turn<>+56(SB)/8, $0x3f3e3d3c3b3a3938
DATA turn<>+64(SB)/8, $0x0706050403020100
DATA turn<>+72(SB)/8, $0x0f0e0d0c0b0a0908
DATA turn<>+80(SB)/8, $0x1716151413121110
DATA turn<>+88(SB)/8, $0x1f1e1d1c1b1a1918
DATA turn<>+96(SB)/8, $0x2726252423222120
DATA turn<>+104(SB)/8, $0x2f2e2d2c2b2a2928
DATA turn<>+112(SB)/8, $0x3736353433323130
DATA turn<>+120(SB)/8, $0x3f3e3d3c3b3a3938
GLOBL turn<>(SB), RODATA|NOPTR, $128

// Barrett reduction: mu = floor(x^96/P) without its x^0, x^(64-k) at bit k, and P,
// x^l at bit 32-l.
DATA barrett<>+0(SB)/8, $0xb4e5b025f7011641
DATA barrett<>+8(SB)/8, $0x00000001db710641
GLOBL barrett<>(SB), RODATA|NOPTR, $16

// Folding by 256 bytes: x^(2048+63) and x^(2048-1) mod P, bit 63 is x^0. The one
// missing in the exponents is the bit that a product of reflected factors is off.
DATA fold256<>+0(SB)/8, $0x7cc8e1e700000000
DATA fold256<>+8(SB)/8, $0x03f9f86300000000
GLOBL fold256<>(SB), RODATA|NOPTR, $16

// SPLIT takes DX and BX, sets SI, AX = -64*blocks, R8 = -n, K1 = the last r bytes
// of a register, Z31 = the permutation.
#define SPLIT \
	MOVQ  BX, R8             \
	MOVQ  BX, CX             \
	NEGQ  R8                 \
	MOVQ  $-1, R9            \
	ANDL  $63, CX            \
	MOVQ  R8, AX             \
	SHLXQ R8, R9, R9         \
	LEAQ  turn<>(SB), R12    \
	KMOVQ R9, K1             \
	ANDQ  $-64, AX           \
	LEAQ  (DX)(BX*1), SI     \
	VMOVDQU64 (R12)(CX*1), Z31

// FIRST loads the first block of a message of 64 bytes or more.
#define FIRST(V) \
	VPERMB.Z (DX), Z31, K1, V

// ONLY loads a message of 32 to 63 bytes: its first 32, moved up, and its last 32.
#define ONLY(Y, V) \
	VMOVDQU64     (DX), Y              \
	VPERMB.Z      Y, Y31, K1, Y        \
	VINSERTI64X4  $1, -32(SI), V, V

// LANES multiplies each half lane of Z by its constant into A and B.
#define LANES(Z, A, B) \
	VMOVDQU64   (R10)(AX*1), Z31 \
	VPCLMULQDQ  $0x00, Z31, Z, A \
	VPCLMULQDQ  $0x11, Z31, Z, B

// ADDLANES does the same and adds the products to Z20.
#define ADDLANES(Z) \
	LANES(Z, Z29, Z30) \
	VPTERNLOGQ  $0x96, Z29, Z30, Z20

// REDUCE brings the lanes of Z20 together, which gives V = bits 0..95 (x^m at bit
// 95-m), and returns V mod P in AX: T = floor(V/x^32) is the low half; q = floor(V/P)
// is the low half of T·mu; V + q·P has the remainder at bits 64..95.
#define REDUCE \
	VMOVDQU64     barrett<>(SB), X31   \
	VEXTRACTI64X4 $1, Z20, Y21         \
	VPXORQ        Y21, Y20, Y20        \
	VEXTRACTI64X2 $1, Y20, X21         \
	VPXORQ        X21, X20, X20        \
	VPCLMULQDQ    $0x00, X31, X20, X21 \
	VPCLMULQDQ    $0x10, X31, X21, X21 \
	VPXORQ        X21, X20, X20        \
	VPEXTRD       $2, X20, AX

// FOLD moves Z on by 256 bytes and adds the block D.
#define FOLD(Z, D) \
	VPCLMULQDQ $0x00, Z28, Z, Z29     \
	VPCLMULQDQ $0x11, Z28, Z, Z30     \
	VPTERNLOGQ $0x96, D, Z30, Z29 \
	VMOVDQA64  Z29, Z

// REGISTER sets Z19 and Z18 to what register R (32 bits) adds to the first and the
// second block: its bytes belong at 64-r .. 67-r. Turned by -n mod 4 bytes and
// repeated, it stands right there; K2 and K3 cut it out.
#define REGISTER(R) \
	MOVQ         R8, CX       \
	SHLL         $3, CX       \
	ROLL         CX, R        /* the count is taken mod 32 */ \
	VPBROADCASTD R, Z18       \
	MOVL         $15, R11     \
	SHLXQ        R8, R11, R12 /* 15 << (64-r) */ \
	KMOVQ        R12, K2      \
	LEAQ         -1(BX), CX   /* r-1, mod 64 */ \
	SHRXQ        CX, R11, R12 /* 15 >> r in two steps: r may be 64 */ \
	SHRQ         $1, R12      \
	KMOVQ        R12, K3      \
	VMOVDQU8.Z   Z18, K2, Z19 \
	VMOVDQU8.Z   Z18, K3, Z18

// FINISH multiplies the four blocks Z16 to Z19 before AX by their lanes and adds.
#define FINISH \
	SUBQ   $256, AX      \
	LANES(Z16, Z20, Z21) \
	VPXORQ Z21, Z20, Z20 \
	ADDQ   $64, AX       \
	ADDLANES(Z17)        \
	ADDQ   $64, AX       \
	ADDLANES(Z18)        \
	ADDQ   $64, AX       \
	ADDLANES(Z19)        \
	ADDQ   $64, AX

// func sumAVX512(w *window, p *byte, n int) uint32
TEXT ·sumAVX512(SB), NOSPLIT, $0-28
	MOVQ w+0(FP), DI
	MOVQ p+8(FP), DX
	MOVQ n+16(FP), BX
	MOVQ ·laneEnd(SB), R10
	SPLIT
	ADDQ BX, DI // so that DI+64+AX is the window's load at r
	CMPQ BX, $64
	JLT  only
	FIRST(Z16)
	VMOVDQU64  64(DI)(AX*1), Z17
	VPTERNLOGQ $0x56, (64+192)(DI)(AX*1), Z17, Z16 // (data | mask) ^ register
	CMPQ       AX, $-const_direct
	JLT        far
	LANES(Z16, Z20, Z21)
	VPXORQ     Z21, Z20, Z20
	ADDQ       $64, AX
	JEQ        done

	// Masks and register can reach into the second block, not further.
	VMOVDQU64   (SI)(AX*1), Z16
	VMOVDQU64   64(DI)(AX*1), Z17
	VPTERNLOGQ  $0x56, (64+192)(DI)(AX*1), Z17, Z16
	ADDLANES(Z16)
	ADDQ        $64, AX
	JEQ         done

next:
	VMOVDQU64   (SI)(AX*1), Z16
	ADDLANES(Z16)
	ADDQ        $64, AX
	JNE         next

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

only:
	ONLY(Y16, Z16)
	VMOVDQU64  (DI), Z17
	VPTERNLOGQ $0x56, 192(DI), Z17, Z16
	LANES(Z16, Z20, Z21)
	VPXORQ     Z21, Z20, Z20
	JMP        done

far:
	VMOVDQU64       64(SI)(AX*1), Z17
	VMOVDQU64       128(DI)(AX*1), Z18
	VPTERNLOGQ      $0x56, (128+192)(DI)(AX*1), Z18, Z17
	VMOVDQU64       128(SI)(AX*1), Z18
	VMOVDQU64       192(SI)(AX*1), Z19
	VBROADCASTI32X4 fold256<>(SB), Z28
	ADDQ            $256, AX

fold:
	FOLD(Z16, (SI)(AX*1))
	FOLD(Z17, 64(SI)(AX*1))
	FOLD(Z18, 128(SI)(AX*1))
	FOLD(Z19, 192(SI)(AX*1))
	ADDQ $256, AX
	CMPQ AX, $-256
	JLE  fold

	FINISH
	JNE  next
	JMP  done

// func updateAVX512(r uint32, p *byte, n int) uint32
TEXT ·updateAVX512(SB), NOSPLIT, $0-28
	MOVL   r+0(FP), DI
	MOVQ   p+8(FP), DX
	MOVQ   n+16(FP), BX
	MOVQ   ·laneEnd(SB), R10
	SPLIT
	REGISTER(DI)
	CMPQ   BX, $64
	JLT    only
	FIRST(Z16)
	VPXORQ Z19, Z16, Z16
	CMPQ   AX, $-const_direct
	JLT    far
	LANES(Z16, Z20, Z21)
	VPXORQ Z21, Z20, Z20
	ADDQ   $64, AX
	JEQ    done
	VPXORQ (SI)(AX*1), Z18, Z16
	ADDLANES(Z16)
	ADDQ   $64, AX
	JEQ    done

next:
	VMOVDQU64 (SI)(AX*1), Z16
	ADDLANES(Z16)
	ADDQ      $64, AX
	JNE       next

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

only:
	ONLY(Y16, Z16)
	VPXORQ Z19, Z16, Z16
	LANES(Z16, Z20, Z21)
	VPXORQ Z21, Z20, Z20
	JMP    done

far:
	VPXORQ          64(SI)(AX*1), Z18, Z17
	VMOVDQU64       128(SI)(AX*1), Z18
	VMOVDQU64       192(SI)(AX*1), Z19
	VBROADCASTI32X4 fold256<>(SB), Z28
	ADDQ            $256, AX

fold:
	FOLD(Z16, (SI)(AX*1))
	FOLD(Z17, 64(SI)(AX*1))
	FOLD(Z18, 128(SI)(AX*1))
	FOLD(Z19, 192(SI)(AX*1))
	ADDQ $256, AX
	CMPQ AX, $-256
	JLE  fold
	FINISH
	JNE  next
	JMP  done

// func copyUpdateAVX512(r uint32, dst, src *byte, n int) uint32
//
// R14 is the end of the copy. The first 64 bytes are stored as they come, the
// blocks overlap them.
TEXT ·copyUpdateAVX512(SB), NOSPLIT, $0-36
	MOVL   r+0(FP), DI
	MOVQ   dst+8(FP), R14
	MOVQ   src+16(FP), DX
	MOVQ   n+24(FP), BX
	MOVQ   ·laneEnd(SB), R10
	SPLIT
	VMOVDQU64 (DX), Z22
	VMOVDQU64 Z22, (R14)
	ADDQ   BX, R14
	REGISTER(DI)
	VPERMB.Z Z22, Z31, K1, Z16
	VPXORQ Z19, Z16, Z16
	CMPQ   AX, $-const_direct
	JLT    far
	LANES(Z16, Z20, Z21)
	VPXORQ Z21, Z20, Z20
	ADDQ   $64, AX
	JEQ    done
	VMOVDQU64 (SI)(AX*1), Z16
	VMOVDQU64 Z16, (R14)(AX*1)
	VPXORQ Z16, Z18, Z16
	ADDLANES(Z16)
	ADDQ   $64, AX
	JEQ    done

next:
	VMOVDQU64 (SI)(AX*1), Z16
	VMOVDQU64 Z16, (R14)(AX*1)
	ADDLANES(Z16)
	ADDQ      $64, AX
	JNE       next

done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET

far:
	VMOVDQU64       64(SI)(AX*1), Z17
	VMOVDQU64       Z17, 64(R14)(AX*1)
	VPXORQ          Z17, Z18, Z17
	VMOVDQU64       128(SI)(AX*1), Z18
	VMOVDQU64       Z18, 128(R14)(AX*1)
	VMOVDQU64       192(SI)(AX*1), Z19
	VMOVDQU64       Z19, 192(R14)(AX*1)
	VBROADCASTI32X4 fold256<>(SB), Z28
	ADDQ            $256, AX

fold:
	VMOVDQU64 (SI)(AX*1), Z24
	VMOVDQU64 64(SI)(AX*1), Z25
	VMOVDQU64 128(SI)(AX*1), Z26
	VMOVDQU64 192(SI)(AX*1), Z27
	VMOVDQU64 Z24, (R14)(AX*1)
	VMOVDQU64 Z25, 64(R14)(AX*1)
	VMOVDQU64 Z26, 128(R14)(AX*1)
	VMOVDQU64 Z27, 192(R14)(AX*1)
	FOLD(Z16, Z24)
	FOLD(Z17, Z25)
	FOLD(Z18, Z26)
	FOLD(Z19, Z27)
	ADDQ      $256, AX
	CMPQ      AX, $-256
	JLE       fold
	FINISH
	JNE       next
	JMP       done
