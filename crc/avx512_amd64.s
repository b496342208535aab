//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// AVX-512 kernels. They assume AVX-512 F, BW, DQ and VL, VPCLMULQDQ and BMI2.
// Only Z16 to Z31 are used: these have no SSE counterpart, so that the SSE code
// around pays nothing and no VZEROUPPER is needed.
//
// The message is cut into blocks of 64 bytes from its end. The first block may be
// short: it has 1 <= r <= 64 bytes and is loaded under a mask with zeros in front,
// which change nothing (the register comes in by XOR with the first four message
// bytes). Bytes masked out of a load are not read: the load cannot fault on them.
//
// SI  end of the message          AX  offset of the next block from SI, -64n .. 0
// R10 end of the lanes            so (R10)(AX*1) are the constants of that block

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

// Split n (BX) into blocks: AX = -64*blocks, K1 = the last r bytes of a block,
// R8 = -n.
#define SPLIT \
	MOVQ  BX, R8       \
	NEGQ  R8           \
	MOVQ  $-1, R9      \
	MOVQ  R8, AX       \
	SHLXQ R8, R9, R9   \
	ANDQ  $-64, AX     \
	KMOVQ R9, K1

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

// func sumAVX512(w *window, p *byte, n int) uint32
TEXT ·sumAVX512(SB), NOSPLIT, $0-28
	MOVQ w+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), BX
	MOVQ ·laneEnd(SB), R10
	SPLIT
	ADDQ BX, SI

	// DI+64+n+AX = the window's load at r.
	ADDQ        BX, DI
	VMOVDQU8.Z  (SI)(AX*1), K1, Z16
	VMOVDQU64   64(DI)(AX*1), Z17
	VPTERNLOGQ  $0x56, (64+192)(DI)(AX*1), Z17, Z16 // (data | mask) ^ register
	CMPQ        AX, $-const_direct
	JLT         far
	LANES(Z16, Z20, Z21)
	VPXORQ      Z21, Z20, Z20
	MOVQ        AX, R9
	ADDQ        $64, AX
	JEQ         done

	// Masks and register can reach into the second block, not further.
	VMOVDQU64   (SI)(AX*1), Z16
	VMOVDQU64   128(DI)(R9*1), Z17
	VPTERNLOGQ  $0x56, (128+192)(DI)(R9*1), Z17, Z16
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

	// The four blocks stand for those that end at AX.
	SUBQ       $256, AX
	LANES(Z16, Z20, Z21)
	VPXORQ     Z21, Z20, Z20
	ADDQ       $64, AX
	ADDLANES(Z17)
	ADDQ       $64, AX
	ADDLANES(Z18)
	ADDQ       $64, AX
	ADDLANES(Z19)
	ADDQ       $64, AX
	JNE        next
	JMP        done

// func updateAVX512(r uint32, p *byte, n int) uint32
TEXT ·updateAVX512(SB), NOSPLIT, $0-28
	MOVL r+0(FP), DX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), BX
	MOVQ ·laneEnd(SB), R10
	SPLIT
	ADDQ BX, SI

	// The register goes to bytes 64-r .. 67-r of the first two blocks. Turned by
	// (-r mod 4) bytes and repeated, it stands right there; K2 and K3 cut it out.
	MOVQ         R8, CX
	SHLQ         $3, CX
	ROLL         CX, DX          // the count is taken mod 32
	VPBROADCASTD DX, Z18
	MOVL         $15, R11
	SHLXQ        R8, R11, R12    // 15 << (64-r)
	KMOVQ        R12, K2
	LEAQ         -1(BX), CX      // r-1 mod 64
	SHRXQ        CX, R11, R12    // 15 >> r, in two steps: r may be 64
	SHRQ         $1, R12
	KMOVQ        R12, K3
	VMOVDQU8.Z   Z18, K2, Z19
	VMOVDQU8.Z   Z18, K3, Z18

	VMOVDQU8.Z (SI)(AX*1), K1, Z16
	VPXORQ     Z19, Z16, Z16
	CMPQ       AX, $-const_direct
	JLT        far
	LANES(Z16, Z20, Z21)
	VPXORQ     Z21, Z20, Z20
	ADDQ       $64, AX
	JEQ        done
	VPXORQ     (SI)(AX*1), Z18, Z16
	ADDLANES(Z16)
	ADDQ       $64, AX
	JEQ        done

next:
	VMOVDQU64 (SI)(AX*1), Z16
	ADDLANES(Z16)
	ADDQ      $64, AX
	JNE       next

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

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
	SUBQ       $256, AX
	LANES(Z16, Z20, Z21)
	VPXORQ     Z21, Z20, Z20
	ADDQ       $64, AX
	ADDLANES(Z17)
	ADDQ       $64, AX
	ADDLANES(Z18)
	ADDQ       $64, AX
	ADDLANES(Z19)
	ADDQ       $64, AX
	JNE        next
	JMP        done

// GATHER loads into Z the block at AX of a message whose first part, up to the
// payload, lies before R15 (its end: R15 is biased so that offsets agree) and whose
// payload ends at SI; and stores the payload's part of the block. R13 is the number
// of bytes from the block's start to the payload's, possibly negative or large.
#define GATHER(Z) \
	XORL       R12, R12            \
	TESTQ      R13, R13            \
	CMOVQGT    R13, R12            \
	MOVL       $64, R11            \
	CMPQ       R12, R11            \
	CMOVQGT    R11, R12            \
	MOVQ       $-1, R11            \
	BZHIQ      R12, R11, R11       \
	KMOVQ      R11, K2             \
	NOTQ       R11                 \
	KMOVQ      R11, K3

// func copySumAVX512(w *window, dst *byte, h int, src *byte, n int) uint32
TEXT ·copySumAVX512(SB), NOSPLIT, $0-44
	MOVQ w+0(FP), DI
	MOVQ dst+8(FP), R14
	MOVQ h+16(FP), DX
	MOVQ src+24(FP), SI
	MOVQ n+32(FP), BX
	MOVQ ·laneEnd(SB), R10
	ADDQ BX, SI              // end of the payload
	ADDQ BX, R14             // end of the message, in the frame
	NEGQ BX
	MOVQ BX, R13             // offset of the payload's start from either end
	NEGQ BX
	ADDQ DX, BX              // length of the message
	SPLIT
	ADDQ BX, DI
	SUBQ AX, R13             // the same from the start of the first block

	// Of the first three blocks, which hold at least 129 bytes, the header's part is
	// read where it lies, the payload's part from the source, and merged in the
	// register: a load of bytes just stored would wait.
	GATHER(Z16)
	KANDQ       K1, K2, K2
	VMOVDQU8.Z  (R14)(AX*1), K2, Z16
	KANDQ       K1, K3, K3
	VMOVDQU8    (SI)(AX*1), K3, Z16
	VMOVDQU8    Z16, K3, (R14)(AX*1)
	VMOVDQU64   64(DI)(AX*1), Z20
	VPTERNLOGQ  $0x56, (64+192)(DI)(AX*1), Z20, Z16
	SUBQ        $64, R13
	GATHER(Z17)
	VMOVDQU8.Z  64(R14)(AX*1), K2, Z17
	VMOVDQU8    64(SI)(AX*1), K3, Z17
	VMOVDQU8    Z17, K3, 64(R14)(AX*1)
	VMOVDQU64   128(DI)(AX*1), Z20
	VPTERNLOGQ  $0x56, (128+192)(DI)(AX*1), Z20, Z17
	SUBQ        $64, R13
	GATHER(Z18)
	VMOVDQU8.Z  128(R14)(AX*1), K2, Z18
	VMOVDQU8    128(SI)(AX*1), K3, Z18
	VMOVDQU8    Z18, K3, 128(R14)(AX*1)
	VMOVDQU64   192(SI)(AX*1), Z19
	VMOVDQU64   Z19, 192(R14)(AX*1)

	VBROADCASTI32X4 fold256<>(SB), Z28
	ADDQ            $256, AX
	CMPQ            AX, $-256
	JGT             short

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

short:
	SUBQ   $256, AX
	LANES(Z16, Z20, Z21)
	VPXORQ Z21, Z20, Z20
	ADDQ   $64, AX
	ADDLANES(Z17)
	ADDQ   $64, AX
	ADDLANES(Z18)
	ADDQ   $64, AX
	ADDLANES(Z19)
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
	MOVL AX, ret+40(FP)
	RET
