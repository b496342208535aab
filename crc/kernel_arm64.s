//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// The CRC32 instructions run a register over 8, 4, 2 or 1 message bytes, least
// significant byte first, for the polynomial of Ethernet. Loads may be unaligned.
//
// R0 register   R1 next byte   R2 bytes left   R3 where the copy goes

// func sumCRC32(mask *uint64, words int, p *byte, n int) uint32
TEXT ·sumCRC32(SB), NOSPLIT, $0-36
	MOVD mask+0(FP), R5
	MOVD words+8(FP), R6
	MOVD p+16(FP), R1
	MOVD n+24(FP), R2
	MOVD $const_start, R0
	SUB  R6<<3, R2, R2

header:
	MOVD.P 8(R1), R4
	MOVD.P 8(R5), R7
	ORR    R7, R4, R4
	CRC32X R4, R0
	SUBS   $1, R6, R6
	BNE    header
	SUBS   $16, R2, R2
	BLT    tail

next:
	LDP.P  16(R1), (R4, R5)
	CRC32X R4, R0
	CRC32X R5, R0
	SUBS   $16, R2, R2
	BGE    next

tail:
	TBZ     $3, R2, tail4 // the low bits of R2 are those of what is left
	MOVD.P  8(R1), R4
	CRC32X  R4, R0

tail4:
	TBZ     $2, R2, tail2
	MOVWU.P 4(R1), R4
	CRC32W  R4, R0

tail2:
	TBZ     $1, R2, tail1
	MOVHU.P 2(R1), R4
	CRC32H  R4, R0

tail1:
	TBZ    $0, R2, done
	MOVBU  (R1), R4
	CRC32B R4, R0

done:
	MOVW R0, ret+32(FP)
	RET

// func updateCRC32(r uint32, p *byte, n int) uint32
TEXT ·updateCRC32(SB), NOSPLIT, $0-28
	MOVWU r+0(FP), R0
	MOVD  p+8(FP), R1
	MOVD  n+16(FP), R2
	SUBS  $16, R2, R2
	BLT   tail

next:
	LDP.P  16(R1), (R4, R5)
	CRC32X R4, R0
	CRC32X R5, R0
	SUBS   $16, R2, R2
	BGE    next

tail:
	TBZ     $3, R2, tail4
	MOVD.P  8(R1), R4
	CRC32X  R4, R0

tail4:
	TBZ     $2, R2, tail2
	MOVWU.P 4(R1), R4
	CRC32W  R4, R0

tail2:
	TBZ     $1, R2, tail1
	MOVHU.P 2(R1), R4
	CRC32H  R4, R0

tail1:
	TBZ    $0, R2, done
	MOVBU  (R1), R4
	CRC32B R4, R0

done:
	MOVW R0, ret+24(FP)
	RET

// func copyUpdateCRC32(r uint32, dst, src *byte, n int) uint32
TEXT ·copyUpdateCRC32(SB), NOSPLIT, $0-36
	MOVWU r+0(FP), R0
	MOVD  dst+8(FP), R3
	MOVD  src+16(FP), R1
	MOVD  n+24(FP), R2
	SUBS  $16, R2, R2
	BLT   tail

next:
	LDP.P  16(R1), (R4, R5)
	CRC32X R4, R0
	STP.P  (R4, R5), 16(R3)
	CRC32X R5, R0
	SUBS   $16, R2, R2
	BGE    next

tail:
	TBZ     $3, R2, tail4
	MOVD.P  8(R1), R4
	MOVD.P  R4, 8(R3)
	CRC32X  R4, R0

tail4:
	TBZ     $2, R2, tail2
	MOVWU.P 4(R1), R4
	MOVW.P  R4, 4(R3)
	CRC32W  R4, R0

tail2:
	TBZ     $1, R2, tail1
	MOVHU.P 2(R1), R4
	MOVH.P  R4, 2(R3)
	CRC32H  R4, R0

tail1:
	TBZ    $0, R2, done
	MOVBU  (R1), R4
	MOVB   R4, (R3)
	CRC32B R4, R0

done:
	MOVW R0, ret+32(FP)
	RET

// LANES joins the registers R0, R6 and R7 of three lanes into R0: the first two,
// times what moves them to the end of the third, are 64-bit products; their sum is
// reduced as if it were message.
#define LANES \
	VMOV   R0, V0.D[0]          \
	VMOV   R6, V1.D[0]          \
	VPMULL V0.D1, V2.D1, V0.Q1  \
	VPMULL V1.D1, V3.D1, V1.Q1  \
	VEOR   V0.B16, V1.B16, V0.B16 \
	VMOV   V0.D[0], R4          \
	MOVW   ZR, R0               \
	CRC32X R4, R0               \
	EORW   R7, R0, R0

// func updatePMULL(r uint32, p *byte, blocks int) uint32
TEXT ·updatePMULL(SB), NOSPLIT, $0-28
	MOVWU r+0(FP), R0
	MOVD  p+8(FP), R1
	MOVD  blocks+16(FP), R2
	MOVD  ·laneShift+0(SB), R4
	MOVD  ·laneShift+8(SB), R5
	VMOV  R4, V2.D[0]
	VMOV  R5, V3.D[0]

block:
	ADD  $const_laneSize, R1, R8
	ADD  $(2*const_laneSize), R1, R9
	MOVW ZR, R6
	MOVW ZR, R7
	MOVD $(const_laneSize/16), R10

next:
	LDP.P  16(R1), (R4, R5)
	LDP.P  16(R8), (R11, R12)
	LDP.P  16(R9), (R13, R14)
	CRC32X R4, R0
	CRC32X R11, R6
	CRC32X R13, R7
	CRC32X R5, R0
	CRC32X R12, R6
	CRC32X R14, R7
	SUBS   $1, R10, R10
	BNE    next
	LANES
	MOVD   R9, R1
	SUBS   $1, R2, R2
	BNE    block
	MOVW   R0, ret+24(FP)
	RET

// func copyUpdatePMULL(r uint32, dst, src *byte, blocks int) uint32
TEXT ·copyUpdatePMULL(SB), NOSPLIT, $0-36
	MOVWU r+0(FP), R0
	MOVD  dst+8(FP), R3
	MOVD  src+16(FP), R1
	MOVD  blocks+24(FP), R2
	MOVD  ·laneShift+0(SB), R4
	MOVD  ·laneShift+8(SB), R5
	VMOV  R4, V2.D[0]
	VMOV  R5, V3.D[0]

block:
	ADD  $const_laneSize, R1, R8
	ADD  $(2*const_laneSize), R1, R9
	ADD  $const_laneSize, R3, R15
	ADD  $(2*const_laneSize), R3, R16
	MOVW ZR, R6
	MOVW ZR, R7
	MOVD $(const_laneSize/16), R10

next:
	LDP.P  16(R1), (R4, R5)
	LDP.P  16(R8), (R11, R12)
	LDP.P  16(R9), (R13, R14)
	STP.P  (R4, R5), 16(R3)
	STP.P  (R11, R12), 16(R15)
	STP.P  (R13, R14), 16(R16)
	CRC32X R4, R0
	CRC32X R11, R6
	CRC32X R13, R7
	CRC32X R5, R0
	CRC32X R12, R6
	CRC32X R14, R7
	SUBS   $1, R10, R10
	BNE    next
	LANES
	MOVD   R9, R1
	MOVD   R16, R3
	SUBS   $1, R2, R2
	BNE    block
	MOVW   R0, ret+32(FP)
	RET
