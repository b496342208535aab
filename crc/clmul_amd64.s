//go:build !purego

#include "textflag.h"

// PCLMULQDQ kernels. They assume SSE2, SSSE3 (PSHUFB), SSE4.1 (PEXTRD) and
// PCLMULQDQ. The plan is that of avx512_amd64.s with blocks of 16 bytes: cut from
// the end, the first one moved right by a shuffle, each multiplied by its lane.

// Barrett reduction, as in avx512_amd64.s.
DATA barrett16<>+0(SB)/8, $0xb4e5b025f7011641
DATA barrett16<>+8(SB)/8, $0x00000001db710641
GLOBL barrett16<>(SB), RODATA|NOPTR, $16

// Folding by 128 bytes: x^(1024+63) and x^(1024-1) mod P, bit 63 is x^0.
DATA fold128<>+0(SB)/8, $0x7d657a1000000000
DATA fold128<>+8(SB)/8, $0x7406fa9500000000
GLOBL fold128<>(SB), RODATA|NOPTR, $16

// The load at r is a shuffle that moves the first r bytes of a register to its
// end, with zeros before; the load at 16+r one that moves all but the first r
// bytes to its start, with zeros behind.
DATA slide<>+0(SB)/8, $0x8080808080808080
DATA slide<>+8(SB)/8, $0x8080808080808080
DATA slide<>+16(SB)/8, $0x0706050403020100
DATA slide<>+24(SB)/8, $0x0f0e0d0c0b0a0908
DATA slide<>+32(SB)/8, $0x8080808080808080
DATA slide<>+40(SB)/8, $0x8080808080808080
GLOBL slide<>(SB), RODATA|NOPTR, $48

// Split n (BX) into blocks: AX = -16*blocks, CX = r, 1 <= r <= 16.
#define SPLIT \
	MOVQ BX, AX         \
	NEGQ AX             \
	ANDQ $-16, AX       \
	LEAQ 16(BX)(AX*1), CX

// ADDLANES adds X times its lanes to X8.
#define ADDLANES(X) \
	MOVOU     (R10)(AX*1), X10 \
	MOVOA     X, X11           \
	PCLMULQDQ $0x00, X10, X    \
	PCLMULQDQ $0x11, X10, X11  \
	PXOR      X, X8            \
	PXOR      X11, X8

// REDUCE returns X8 mod P in AX; the steps are those of avx512_amd64.s.
#define REDUCE \
	MOVOU     barrett16<>(SB), X10 \
	MOVOA     X8, X0               \
	PCLMULQDQ $0x00, X10, X0       \
	PCLMULQDQ $0x10, X10, X0       \
	PXOR      X0, X8               \
	PEXTRD    $2, X8, AX

// MASKED applies mask and register of window offset OFF to X.
#define MASKED(OFF, X) \
	MOVOU OFF(DI), X10       \
	MOVOU (192+OFF)(DI), X11 \
	POR   X10, X             \
	PXOR  X11, X

// FOLD moves X on by 128 bytes and adds the block at OFF.
#define FOLD(OFF, X) \
	MOVOA     X, X10            \
	MOVOU     OFF(SI)(AX*1), X11 \
	PCLMULQDQ $0x00, X9, X      \
	PCLMULQDQ $0x11, X9, X10    \
	PXOR      X11, X            \
	PXOR      X10, X

// FINISH multiplies the eight blocks X0 to X7 before AX by their lanes and adds.
#define FINISH \
	SUBQ $128, AX \
	PXOR X8, X8   \
	ADDLANES(X0)  \
	ADDQ $16, AX  \
	ADDLANES(X1)  \
	ADDQ $16, AX  \
	ADDLANES(X2)  \
	ADDQ $16, AX  \
	ADDLANES(X3)  \
	ADDQ $16, AX  \
	ADDLANES(X4)  \
	ADDQ $16, AX  \
	ADDLANES(X5)  \
	ADDQ $16, AX  \
	ADDLANES(X6)  \
	ADDQ $16, AX  \
	ADDLANES(X7)  \
	ADDQ $16, AX

// func sumCLMUL(w *window, p *byte, n int) uint32
TEXT ·sumCLMUL(SB), NOSPLIT, $0-28
	MOVQ  w+0(FP), DI
	MOVQ  p+8(FP), SI
	MOVQ  n+16(FP), BX
	MOVQ  ·laneEnd(SB), R10
	SPLIT
	MOVOU (SI), X0
	LEAQ  slide<>(SB), R8
	MOVOU (R8)(CX*1), X10
	PSHUFB X10, X0
	ADDQ  BX, SI
	ADDQ  CX, DI
	MASKED(48, X0) // a window of 64 bytes ends where ours of 16 does
	CMPQ  AX, $-256
	JLT   far
	PXOR  X8, X8
	ADDLANES(X0)
	ADDQ  $16, AX
	JEQ   done

	// Masks can reach into four more blocks.
	MOVOU (SI)(AX*1), X0
	MASKED(64, X0)
	ADDLANES(X0)
	ADDQ  $16, AX
	JEQ   done
	MOVOU (SI)(AX*1), X0
	MASKED(80, X0)
	ADDLANES(X0)
	ADDQ  $16, AX
	JEQ   done
	MOVOU (SI)(AX*1), X0
	MASKED(96, X0)
	ADDLANES(X0)
	ADDQ  $16, AX
	JEQ   done
	MOVOU (SI)(AX*1), X0
	MASKED(112, X0)
	ADDLANES(X0)
	ADDQ  $16, AX
	JEQ   done

next:
	MOVOU (SI)(AX*1), X0
	ADDLANES(X0)
	ADDQ  $16, AX
	JNE   next

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

far:
	MOVOU 16(SI)(AX*1), X1
	MASKED(64, X1)
	MOVOU 32(SI)(AX*1), X2
	MASKED(80, X2)
	MOVOU 48(SI)(AX*1), X3
	MASKED(96, X3)
	MOVOU 64(SI)(AX*1), X4
	MASKED(112, X4)
	MOVOU 80(SI)(AX*1), X5
	MOVOU 96(SI)(AX*1), X6
	MOVOU 112(SI)(AX*1), X7
	MOVOU fold128<>(SB), X9
	ADDQ  $128, AX

fold:
	FOLD(0, X0)
	FOLD(16, X1)
	FOLD(32, X2)
	FOLD(48, X3)
	FOLD(64, X4)
	FOLD(80, X5)
	FOLD(96, X6)
	FOLD(112, X7)
	ADDQ $128, AX
	CMPQ AX, $-128
	JLE  fold

	FINISH
	JNE  next
	JMP  done

// func updateCLMUL(r uint32, p *byte, n int) uint32
TEXT ·updateCLMUL(SB), NOSPLIT, $0-28
	MOVL  r+0(FP), X12
	MOVQ  p+8(FP), SI
	MOVQ  n+16(FP), BX
	MOVQ  ·laneEnd(SB), R10
	SPLIT

	// The register belongs to the first four bytes of the message. If r < 4 some of
	// them are in the second block.
	MOVOU  (SI), X0
	MOVOU  X12, X13
	PXOR   X12, X0
	LEAQ   slide<>(SB), R8
	MOVOU  (R8)(CX*1), X10
	PSHUFB X10, X0
	MOVOU  16(R8)(CX*1), X10
	PSHUFB X10, X13
	ADDQ   BX, SI
	CMPQ   AX, $-256
	JLT    far
	PXOR   X8, X8
	ADDLANES(X0)
	ADDQ   $16, AX
	JEQ    done
	MOVOU  (SI)(AX*1), X0
	PXOR   X13, X0
	ADDLANES(X0)
	ADDQ   $16, AX
	JEQ    done

next:
	MOVOU (SI)(AX*1), X0
	ADDLANES(X0)
	ADDQ  $16, AX
	JNE   next

done:
	REDUCE
	MOVL AX, ret+24(FP)
	RET

far:
	MOVOU 16(SI)(AX*1), X1
	PXOR  X13, X1
	MOVOU 32(SI)(AX*1), X2
	MOVOU 48(SI)(AX*1), X3
	MOVOU 64(SI)(AX*1), X4
	MOVOU 80(SI)(AX*1), X5
	MOVOU 96(SI)(AX*1), X6
	MOVOU 112(SI)(AX*1), X7
	MOVOU fold128<>(SB), X9
	ADDQ  $128, AX

fold:
	FOLD(0, X0)
	FOLD(16, X1)
	FOLD(32, X2)
	FOLD(48, X3)
	FOLD(64, X4)
	FOLD(80, X5)
	FOLD(96, X6)
	FOLD(112, X7)
	ADDQ $128, AX
	CMPQ AX, $-128
	JLE  fold

	FINISH
	JNE  next
	JMP  done

// COPYFOLD is FOLD and stores the block.
#define COPYFOLD(OFF, X) \
	MOVOA     X, X10             \
	MOVOU     OFF(SI)(AX*1), X11 \
	PCLMULQDQ $0x00, X9, X       \
	PCLMULQDQ $0x11, X9, X10     \
	MOVOU     X11, OFF(R14)(AX*1) \
	PXOR      X11, X             \
	PXOR      X10, X

// func copyUpdateCLMUL(r uint32, dst, src *byte, n int) uint32
TEXT ·copyUpdateCLMUL(SB), NOSPLIT, $0-36
	MOVL  r+0(FP), X12
	MOVQ  dst+8(FP), R14
	MOVQ  src+16(FP), SI
	MOVQ  n+24(FP), BX
	MOVQ  ·laneEnd(SB), R10
	SPLIT

	MOVOU  (SI), X0
	MOVOU  X0, (R14) // the blocks overlap it
	ADDQ   BX, R14
	MOVOU  X12, X13
	PXOR   X12, X0
	LEAQ   slide<>(SB), R8
	MOVOU  (R8)(CX*1), X10
	PSHUFB X10, X0
	MOVOU  16(R8)(CX*1), X10
	PSHUFB X10, X13
	ADDQ   BX, SI
	CMPQ   AX, $-256
	JLT    far
	PXOR   X8, X8
	ADDLANES(X0)
	ADDQ   $16, AX
	JEQ    done
	MOVOU  (SI)(AX*1), X0
	MOVOU  X0, (R14)(AX*1)
	PXOR   X13, X0
	ADDLANES(X0)
	ADDQ   $16, AX
	JEQ    done

next:
	MOVOU (SI)(AX*1), X0
	MOVOU X0, (R14)(AX*1)
	ADDLANES(X0)
	ADDQ  $16, AX
	JNE   next

done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET

far:
	MOVOU 16(SI)(AX*1), X1
	MOVOU X1, 16(R14)(AX*1)
	PXOR  X13, X1
	MOVOU 32(SI)(AX*1), X2
	MOVOU X2, 32(R14)(AX*1)
	MOVOU 48(SI)(AX*1), X3
	MOVOU X3, 48(R14)(AX*1)
	MOVOU 64(SI)(AX*1), X4
	MOVOU X4, 64(R14)(AX*1)
	MOVOU 80(SI)(AX*1), X5
	MOVOU X5, 80(R14)(AX*1)
	MOVOU 96(SI)(AX*1), X6
	MOVOU X6, 96(R14)(AX*1)
	MOVOU 112(SI)(AX*1), X7
	MOVOU X7, 112(R14)(AX*1)
	MOVOU fold128<>(SB), X9
	ADDQ  $128, AX

fold:
	COPYFOLD(0, X0)
	COPYFOLD(16, X1)
	COPYFOLD(32, X2)
	COPYFOLD(48, X3)
	COPYFOLD(64, X4)
	COPYFOLD(80, X5)
	COPYFOLD(96, X6)
	COPYFOLD(112, X7)
	ADDQ $128, AX
	CMPQ AX, $-128
	JLE  fold

	FINISH
	JNE  next
	JMP  done

// func mulmodCLMUL(a, b uint32) uint32
//
// With a at bits 32..63 and b at bits 1..32, the product has x^m at bit 95-m.
TEXT ·mulmodCLMUL(SB), NOSPLIT, $0-12
	MOVL      a+0(FP), AX
	MOVL      b+4(FP), CX
	SHLQ      $32, AX
	SHLQ      $1, CX
	MOVQ      AX, X8
	MOVQ      CX, X1
	PCLMULQDQ $0x00, X1, X8
	REDUCE
	MOVL      AX, ret+8(FP)
	RET
