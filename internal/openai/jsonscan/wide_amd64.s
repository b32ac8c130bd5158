#include "textflag.h"

// The bytes that end a short escape, " \ / b f n r t, by their low and by their high four bits. The
// two entries of such a byte have a bit in common, those of every other byte have none.
DATA shortLow<>+0(SB)/8, $0x00040008000d0000
DATA shortLow<>+8(SB)/8, $0x0104000200000000
GLOBL shortLow<>(SB), RODATA|NOPTR, $16
DATA shortHigh<>+0(SB)/8, $0x0804020000010000
DATA shortHigh<>+8(SB)/8, $0
GLOBL shortHigh<>(SB), RODATA|NOPTR, $16

// func wideText(b *byte, n int) (end int, escapes, beyond uint64)
//
// DX is the offset of a block of 64 bytes in Y0 and Y1. R8 is not 0 if an escape was skipped. R9
// is 1 if the last byte before the block is a backslash that escapes the block's first byte. Y8 has
// the bits of all bytes that were read.
TEXT ·wideText(SB), NOSPLIT, $0-40
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ DX, DX
	XORQ R8, R8
	XORQ R9, R9
	MOVL $0x22, AX
	VMOVD AX, X10
	VPBROADCASTB X10, Y10 // quotes
	MOVL $0x5c, AX
	VMOVD AX, X11
	VPBROADCASTB X11, Y11 // backslashes
	MOVL $0x1f, AX
	VMOVD AX, X12
	VPBROADCASTB X12, Y12 // the last control character
	MOVL $0x0f, AX
	VMOVD AX, X13
	VPBROADCASTB X13, Y13 // four bits
	VBROADCASTI128 shortLow<>(SB), Y14
	VBROADCASTI128 shortHigh<>(SB), Y15
	VPXOR Y9, Y9, Y9
	VPXOR Y8, Y8, Y8
	SUBQ $64, CX

block:
	CMPQ DX, CX
	JGT rest
	VMOVDQU (SI)(DX*1), Y0
	VMOVDQU 32(SI)(DX*1), Y1
	VPOR Y0, Y8, Y8
	VPOR Y1, Y8, Y8
	VPCMPEQB Y10, Y0, Y2
	VPCMPEQB Y10, Y1, Y3
	VPMINUB Y12, Y0, Y4
	VPMINUB Y12, Y1, Y5
	VPCMPEQB Y0, Y4, Y4
	VPCMPEQB Y1, Y5, Y5
	VPOR Y4, Y2, Y2 // Y2 and Y3: quotes and control characters
	VPOR Y5, Y3, Y3
	VPCMPEQB Y11, Y0, Y4 // Y4 and Y5: backslashes
	VPCMPEQB Y11, Y1, Y5
	VPOR Y4, Y2, Y6
	VPOR Y5, Y3, Y7
	VPOR Y6, Y7, Y6
	VPTEST Y6, Y6
	JNZ found
	TESTQ R9, R9
	JNZ found
	ADDQ $64, DX
	JMP block

found:
	VPMOVMSKB Y2, R10
	VPMOVMSKB Y3, AX
	SHLQ $32, AX
	ORQ AX, R10 // R10: quotes and control characters
	VPMOVMSKB Y4, R11
	VPMOVMSKB Y5, AX
	SHLQ $32, AX
	ORQ AX, R11 // R11: backslashes
	MOVQ R11, DI
	ORQ R9, DI
	JNZ escapes
	TZCNTQ R10, R10
	ADDQ R10, DX
	JMP done

escapes:
	// Which bytes are escaped, as simdjson finds them (json_escape_scanner.h): a subtraction
	// carries through each run of backslashes.
	MOVQ $0xaaaaaaaaaaaaaaaa, BX
	ANDNQ R11, R9, R12
	LEAQ (R12)(R12*1), R13
	ORQ BX, R13
	SUBQ R12, R13
	XORQ BX, R13
	XORQ R13, DI // DI: escaped bytes
	ANDQ R11, R13
	SHRQ $63, R13
	MOVQ R13, R9

	VPSRLW $4, Y0, Y6
	VPAND Y13, Y6, Y6
	VPSHUFB Y6, Y15, Y6
	VPSHUFB Y0, Y14, Y7
	VPAND Y7, Y6, Y6
	VPCMPEQB Y9, Y6, Y6
	VPMOVMSKB Y6, AX
	VPSRLW $4, Y1, Y6
	VPAND Y13, Y6, Y6
	VPSHUFB Y6, Y15, Y6
	VPSHUFB Y1, Y14, Y7
	VPAND Y7, Y6, Y6
	VPCMPEQB Y9, Y6, Y6
	VPMOVMSKB Y6, BX
	SHLQ $32, BX
	ORQ BX, AX // AX: bytes that end no short escape

	ANDNQ R10, DI, R10
	ANDQ DI, AX
	ORQ AX, R10 // R10: bytes that end the run
	JNZ stop
	ORQ DI, R8
	ADDQ $64, DX
	JMP block

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
	VPMOVMSKB Y8, AX
	VZEROUPPER
	MOVQ DX, end+16(FP)
	MOVQ R8, escapes+24(FP)
	MOVQ AX, beyond+32(FP)
	RET

// The tables of "Validating UTF-8 In Less Than One Instruction Per Byte" (Keiser and Lemire, 2020).
// They have the faults that a byte may have a part in. Two tables are by its high and low four bits
// as the first byte of two, one is by its high four bits as the second one.
DATA firstHigh<>+0(SB)/8, $0x0202020202020202
DATA firstHigh<>+8(SB)/8, $0x4915012180808080
GLOBL firstHigh<>(SB), RODATA|NOPTR, $16
DATA firstLow<>+0(SB)/8, $0xcbcbcb8b8383a3e7
DATA firstLow<>+8(SB)/8, $0xcbcbdbcbcbcbcbcb
GLOBL firstLow<>(SB), RODATA|NOPTR, $16
DATA secondHigh<>+0(SB)/8, $0x0101010101010101
DATA secondHigh<>+8(SB)/8, $0x01010101babaaee6
GLOBL secondHigh<>(SB), RODATA|NOPTR, $16

// CHECK adds to Y8 the faults of the 32 bytes at offset(SI)(DX*1), which are in Y0.
#define CHECK(offset) \
	VMOVDQU (offset-1)(SI)(DX*1), Y1 \
	VMOVDQU (offset-2)(SI)(DX*1), Y2 \
	VMOVDQU (offset-3)(SI)(DX*1), Y3 \
	VPSRLW $4, Y1, Y4                \
	VPAND Y13, Y4, Y4                \
	VPSHUFB Y4, Y10, Y4              \
	VPAND Y13, Y1, Y1                \
	VPSHUFB Y1, Y11, Y1              \
	VPAND Y1, Y4, Y4                 \
	VPSRLW $4, Y0, Y1                \
	VPAND Y13, Y1, Y1                \
	VPSHUFB Y1, Y12, Y1              \
	VPAND Y1, Y4, Y4                 \
	VPSUBUSB Y14, Y2, Y2             \
	VPSUBUSB Y15, Y3, Y3             \
	VPOR Y3, Y2, Y2                  \
	VPAND Y9, Y2, Y2                 \
	VPXOR Y2, Y4, Y4                 \
	VPOR Y4, Y8, Y8

// func wideUTF8(b *byte, n int) (fault bool)
//
// R10 is not 0 if one of the last three bytes before the block is beyond ASCII.
TEXT ·wideUTF8(SB), NOSPLIT, $0-17
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ DX, DX
	XORQ R10, R10
	VPXOR Y8, Y8, Y8
	VBROADCASTI128 firstHigh<>(SB), Y10
	VBROADCASTI128 firstLow<>(SB), Y11
	VBROADCASTI128 secondHigh<>(SB), Y12
	MOVL $0x0f, AX
	VMOVD AX, X13
	VPBROADCASTB X13, Y13
	MOVL $0x60, AX
	VMOVD AX, X14
	VPBROADCASTB X14, Y14 // what makes 0xe0 and above, the first of three bytes, 0x80 and above
	MOVL $0x70, AX
	VMOVD AX, X15
	VPBROADCASTB X15, Y15 // what makes 0xf0 and above, the first of four bytes, 0x80 and above
	MOVL $0x80, AX
	VMOVD AX, X9
	VPBROADCASTB X9, Y9

next:
	CMPQ DX, CX
	JGE end
	VMOVDQU (SI)(DX*1), Y0
	VMOVDQU 32(SI)(DX*1), Y5
	VPOR Y5, Y0, Y6
	VPMOVMSKB Y6, AX
	ORL R10, AX
	JZ ascii
	CHECK(0)
	VMOVDQA Y5, Y0
	CHECK(32)
	VPMOVMSKB Y5, R10
	SHRL $29, R10

ascii:
	ADDQ $64, DX
	JMP next

end:
	VPTEST Y8, Y8
	SETNE fault+16(FP)
	VZEROUPPER
	RET

// MASK sets reg to the bytes of the block in Y0 and Y1 that are those in Y.
#define MASK(Y, reg) \
	VPCMPEQB Y, Y0, Y2 \
	VPCMPEQB Y, Y1, Y3 \
	BITS(reg)

// BITS sets reg to the bytes of Y2 and Y3 whose highest bit is set.
#define BITS(reg) \
	VPMOVMSKB Y2, reg  \
	VPMOVMSKB Y3, AX   \
	SHLQ $32, AX       \
	ORQ AX, reg

// The bytes of white space at the places of their low four bits, and other bytes elsewhere.
DATA spaces<>+0(SB)/8, $0x0000000000000020
DATA spaces<>+8(SB)/8, $0x00000d00000a0900
GLOBL spaces<>(SB), RODATA|NOPTR, $16

#define EVERY(n, X, Y) \
	MOVL n, AX         \
	VMOVD AX, X        \
	VPBROADCASTB X, Y

// func wideBlocks(b *byte, n int, c *carried, blocks *block)
//
// R8 and R9 are the fields of carried.
TEXT ·wideBlocks(SB), NOSPLIT, $0-32
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ c+16(FP), R14
	MOVQ blocks+24(FP), DI
	MOVQ 0(R14), R8
	MOVQ 8(R14), R9
	EVERY($0x22, X6, Y6)
	EVERY($0x5c, X7, Y7)
	EVERY($0x3a, X8, Y8)
	EVERY($0x2c, X9, Y9)
	EVERY($0x1f, X10, Y10)
	VBROADCASTI128 spaces<>(SB), Y11
	EVERY($0x20, X12, Y12)
	EVERY($0x7b, X13, Y13)
	EVERY($0x7d, X14, Y14)
	VPCMPEQB Y15, Y15, Y15

fill:
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	MASK(Y6, R10) // quotes
	MASK(Y7, R11) // backslashes
	XORQ BX, BX
	MOVQ R11, DX
	ORQ R8, DX
	JNZ escaped

strings:
	VMOVQ R10, X2
	VPCLMULQDQ $0, X15, X2, X2 // each bit becomes the parity of the bits up to it
	VMOVQ X2, R12
	XORQ R9, R12
	MOVQ R12, 0(DI) // text
	MOVQ R12, R9
	SARQ $63, R9
	ANDQ R12, BX
	MOVQ BX, 24(DI) // long
	MOVQ R12, BX
	ORQ R10, BX
	NOTQ BX // BX: bytes outside of strings; then those that are not seen yet
	ANDQ R12, R10
	MOVQ R10, 8(DI) // opening
	VPMINUB Y10, Y0, Y2
	VPMINUB Y10, Y1, Y3
	VPCMPEQB Y0, Y2, Y2
	VPCMPEQB Y1, Y3, Y3
	BITS(R13)
	ANDQ R12, R13
	MOVQ R13, 16(DI) // control
	VPOR Y12, Y0, Y4
	VPOR Y12, Y1, Y5
	VPCMPEQB Y13, Y4, Y2
	VPCMPEQB Y13, Y5, Y3
	BITS(R10)
	ANDQ BX, R10
	XORQ R10, BX
	MOVQ R10, 32(DI) // open
	VPCMPEQB Y14, Y4, Y2
	VPCMPEQB Y14, Y5, Y3
	BITS(R11)
	ANDQ BX, R11
	XORQ R11, BX
	MOVQ R11, 40(DI) // closing
	VPSLLW $2, Y0, Y2
	VPSLLW $2, Y1, Y3
	BITS(R12)
	MOVQ R12, 48(DI) // curly
	MASK(Y8, R10)
	ANDQ BX, R10
	XORQ R10, BX
	MOVQ R10, 56(DI) // colon
	MASK(Y9, R11)
	ANDQ BX, R11
	XORQ R11, BX
	MOVQ R11, 64(DI) // comma
	VPSHUFB Y0, Y11, Y2
	VPSHUFB Y1, Y11, Y3
	VPCMPEQB Y0, Y2, Y2
	VPCMPEQB Y1, Y3, Y3
	BITS(R12)
	ANDQ BX, R12
	XORQ R12, BX
	MOVQ R12, 72(DI) // space
	MOVQ BX, 80(DI)  // scalar
	ADDQ $64, SI
	ADDQ $88, DI
	DECQ CX
	JNZ fill
	MOVQ R8, 0(R14)
	MOVQ R9, 8(R14)
	VZEROUPPER
	RET

escaped:
	// As in wideText. DX: escaped bytes.
	MOVQ $0xaaaaaaaaaaaaaaaa, BX
	ANDNQ R11, R8, R12
	LEAQ (R12)(R12*1), R13
	ORQ BX, R13
	SUBQ R12, R13
	XORQ BX, R13
	XORQ R13, DX
	ANDQ R11, R13
	SHRQ $63, R13
	MOVQ R13, R8
	ANDNQ R10, DX, R10 // quotes that are not escaped

	EVERY($0x0f, X4, Y4)
	VPSRLW $4, Y0, Y2
	VPAND Y4, Y2, Y2
	VPSRLW $4, Y1, Y3
	VPAND Y4, Y3, Y3
	VBROADCASTI128 shortHigh<>(SB), Y4
	VPSHUFB Y2, Y4, Y2
	VPSHUFB Y3, Y4, Y3
	VBROADCASTI128 shortLow<>(SB), Y4
	VPSHUFB Y0, Y4, Y5
	VPAND Y5, Y2, Y2
	VPSHUFB Y1, Y4, Y5
	VPAND Y5, Y3, Y3
	VPXOR Y5, Y5, Y5
	VPCMPEQB Y5, Y2, Y2
	VPCMPEQB Y5, Y3, Y3
	BITS(BX)
	ANDQ DX, BX // escaped bytes that end no short escape
	JMP strings

// func wideDigits(b *byte) (digits, zeros uint64)
TEXT ·wideDigits(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), SI
	MOVL $0x30, AX
	VMOVD AX, X10
	VPBROADCASTB X10, Y10 // zeros
	MOVL $9, AX
	VMOVD AX, X11
	VPBROADCASTB X11, Y11
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VPCMPEQB Y10, Y0, Y2
	VPCMPEQB Y10, Y1, Y3
	VPSUBB Y10, Y0, Y0 // the values of digits
	VPSUBB Y10, Y1, Y1
	VPMINUB Y11, Y0, Y4
	VPMINUB Y11, Y1, Y5
	VPCMPEQB Y0, Y4, Y4
	VPCMPEQB Y1, Y5, Y5
	VPMOVMSKB Y4, AX
	VPMOVMSKB Y5, BX
	VPMOVMSKB Y2, CX
	VPMOVMSKB Y3, DX
	VZEROUPPER
	SHLQ $32, BX
	ORQ BX, AX
	SHLQ $32, DX
	ORQ DX, CX
	MOVQ AX, digits+8(FP)
	MOVQ CX, zeros+16(FP)
	RET
