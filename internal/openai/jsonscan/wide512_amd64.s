#include "textflag.h"

// The functions of this file are those of wide_amd64.s on processors with AVX-512, where a mask of
// 64 bytes takes one instruction.

// The bytes that end a short escape, each at its own place, for VPERMI2B. What is read at any other
// byte's place is not that byte: VPERMI2B reads seven bits of it, so 0 has a 1.
DATA ends<>+0(SB)/8, $0x0000000000000001
DATA ends<>+8(SB)/8, $0
DATA ends<>+16(SB)/8, $0
DATA ends<>+24(SB)/8, $0
DATA ends<>+32(SB)/8, $0x0000000000220000
DATA ends<>+40(SB)/8, $0x2f00000000000000
DATA ends<>+48(SB)/8, $0
DATA ends<>+56(SB)/8, $0
DATA ends<>+64(SB)/8, $0
DATA ends<>+72(SB)/8, $0
DATA ends<>+80(SB)/8, $0
DATA ends<>+88(SB)/8, $0x0000005c00000000
DATA ends<>+96(SB)/8, $0x0066000000620000
DATA ends<>+104(SB)/8, $0x006e000000000000
DATA ends<>+112(SB)/8, $0x0000007400720000
DATA ends<>+120(SB)/8, $0
GLOBL ends<>(SB), RODATA|NOPTR, $128

// MASKS reads the block: Z0 is the block, K1 quotes and control characters, K3 backslashes. Z13 has
// the bits of all bytes that were read.
#define MASKS \
	VMOVDQU64 (SI)(DX*1), Z0 \
	VPORQ Z0, Z13, Z13       \
	VPXORQ Z10, Z0, Z1       \
	VPCMPUB $2, Z12, Z1, K1  \
	VPCMPEQB Z11, Z0, K3

// func wideText512(b *byte, n int) (end int, escapes, beyond uint64)
//
// It is wideText, with the same registers but for Z0 and those from R12. It has two loops, because
// a processor cannot predict which blocks have an escape in a text of short lines. R12 is where the
// first loop was left. R14 is where the second one, for such texts, looks back. R13 is not 0 if
// that has skipped an escape since.
TEXT ·wideText512(SB), NOSPLIT, $0-40
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ DX, DX
	XORQ R8, R8
	XORQ R9, R9
	XORQ R13, R13
	MOVQ $-256, R12
	MOVL $0x02, AX
	VPBROADCASTB AX, Z10 // what moves the quote, 0x22, next to the control characters
	MOVL $0x5c, AX
	VPBROADCASTB AX, Z11 // backslashes
	MOVL $0x20, AX
	VPBROADCASTB AX, Z12 // the quote, moved
	VMOVDQU64 ends<>(SB), Z14
	VMOVDQU64 ends<>+64(SB), Z15
	VPXORQ Z13, Z13, Z13
	MOVQ $0xaaaaaaaaaaaaaaaa, BX
	SUBQ $64, CX

plain:
	CMPQ DX, CX
	JGT rest
	MASKS
	KORTESTQ K1, K3
	JNZ found
	ADDQ $64, DX
	JMP plain

found:
	ORQ R13, R8
	XORQ R13, R13
	MOVQ DX, AX
	SUBQ R12, AX
	MOVQ DX, R12
	MOVQ DX, R14
	CMPQ AX, $256
	JGE escapes

near:
	LEAQ 1024(DX), R14
	CMPQ R14, CX
	CMOVQGT CX, R14
	JMP escapes

next:
	MASKS

escapes:
	KMOVQ K1, R10 // R10: quotes and control characters
	KMOVQ K3, R11 // R11: backslashes
	MOVQ R11, AX
	SHRQ $63, AX
	ORQ R9, AX
	JNZ carry

	// As in wideText, when nothing is carried into the block or out of it.
	LEAQ (R11)(R11*1), DI
	ORQ BX, DI
	SUBQ R11, DI
	XORQ BX, DI
	XORQ R11, DI // DI: escaped bytes

short:
	VMOVDQA64 Z0, Z6
	VPERMI2B Z15, Z14, Z6
	VPCMPUB $4, Z6, Z0, K4
	KMOVQ K4, AX // AX: bytes that end no short escape
	ANDNQ R10, DI, R10
	ANDQ DI, AX
	ORQ AX, R10 // R10: bytes that end the run
	JNZ stop
	ORQ DI, R13
	ADDQ $64, DX
	CMPQ DX, R14
	JLE next

	CMPQ DX, CX
	JGT rest
	MASKS
	POPCNTQ R13, AX
	ORQ R13, R8
	XORQ R13, R13
	CMPQ AX, $4
	JGE near
	TESTQ R9, R9
	JNZ found
	KORTESTQ K1, K3
	JNZ found
	ADDQ $64, DX
	JMP plain

carry:
	MOVQ R11, DI
	ORQ R9, DI
	ANDNQ R11, R9, R11
	LEAQ (R11)(R11*1), AX
	ORQ BX, AX
	SUBQ R11, AX
	XORQ BX, AX
	XORQ AX, DI
	ANDQ R11, AX
	SHRQ $63, AX
	MOVQ AX, R9
	JMP short

stop:
	LEAQ -1(R10), R12
	ANDNQ R12, R10, R12 // R12: the bytes before the stop
	ANDQ DI, R12
	ORQ R12, R8
	TZCNTQ R10, R10
	ADDQ R10, DX
	BTQ R10, DI
	JCC done
	DECQ DX // to the backslash of the escape
	JMP done

rest:
	SUBQ R9, DX // a backslash that ends the last block is not read

done:
	ORQ R13, R8
	VPMOVB2M Z13, K1
	KMOVQ K1, AX
	VZEROUPPER
	MOVQ DX, end+16(FP)
	MOVQ R8, escapes+24(FP)
	MOVQ AX, beyond+32(FP)
	RET

// What the short escapes stand for, by the byte that ends them, for VPERMI2B; 0 elsewhere.
DATA values<>+0(SB)/8, $0
DATA values<>+8(SB)/8, $0
DATA values<>+16(SB)/8, $0
DATA values<>+24(SB)/8, $0
DATA values<>+32(SB)/8, $0x0000000000220000
DATA values<>+40(SB)/8, $0x2f00000000000000
DATA values<>+48(SB)/8, $0
DATA values<>+56(SB)/8, $0
DATA values<>+64(SB)/8, $0
DATA values<>+72(SB)/8, $0
DATA values<>+80(SB)/8, $0
DATA values<>+88(SB)/8, $0x0000005c00000000
DATA values<>+96(SB)/8, $0x000c000000080000
DATA values<>+104(SB)/8, $0x000a000000000000
DATA values<>+112(SB)/8, $0x00000009000d0000
DATA values<>+120(SB)/8, $0
GLOBL values<>(SB), RODATA|NOPTR, $128

// func wideUnescape512(to, from *byte, n int) (read, written int)
//
// DX is how many bytes are read, CX where the last block begins, DI the place of the next byte that
// is written. VPERMI2B reads seven bits of a byte: no byte beyond ASCII ends an escape.
TEXT ·wideUnescape512(SB), NOSPLIT, $0-40
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ DX, DX
	MOVL $0x5c, AX
	VPBROADCASTB AX, Z11 // backslashes
	VMOVDQU64 values<>(SB), Z14
	VMOVDQU64 values<>+64(SB), Z15
	MOVQ $0xaaaaaaaaaaaaaaaa, BX
	SUBQ $64, CX

unescape:
	CMPQ DX, CX
	JGT unescaped
	VMOVDQU64 (SI)(DX*1), Z0
	VPCMPEQB Z11, Z0, K3
	VMOVDQA64 Z0, Z6
	VPERMI2B Z15, Z14, Z6
	VPTESTNMB Z6, Z6, K4
	KMOVQ K3, R11 // R11: backslashes
	KMOVQ K4, AX  // AX: bytes that end no short escape
	LEAQ (R11)(R11*1), R8
	ORQ BX, R8
	SUBQ R11, R8
	XORQ BX, R8
	XORQ R11, R8 // R8: escaped bytes, as in wideText
	TESTQ R8, AX
	JNZ unescaped
	KMOVQ R8, K1
	VMOVDQU8 Z6, K1, Z0
	ANDNQ R11, R8, R11 // R11: backslashes that begin an escape
	MOVQ R11, AX
	NOTQ AX
	KMOVQ AX, K2
	VPCOMPRESSB.Z Z0, K2, Z1
	VMOVDQU64 Z1, (DI)
	POPCNTQ AX, AX
	ADDQ AX, DI
	SHRQ $63, R11 // an escape that goes on behind the block is left to the next one
	ADDQ $64, DX
	SUBQ R11, DX
	JMP unescape

unescaped:
	VZEROUPPER
	MOVQ DX, read+24(FP)
	SUBQ to+0(FP), DI
	MOVQ DI, written+32(FP)
	RET
