#include "textflag.h"

DATA growth<>+0(SB)/8, $0x9e3779b97f4a7c15
GLOBL growth<>(SB), RODATA|NOPTR, $8

// func wideTake(l *lanes, text *byte, stripes int)
//
// Y0 and Y1 are the sums, Y2 and Y3 the keys, of four lanes each.
TEXT ·wideTake(SB), NOSPLIT, $0-24
	MOVQ l+0(FP), DI
	MOVQ text+8(FP), SI
	MOVQ stripes+16(FP), CX
	VMOVDQU (DI), Y0
	VMOVDQU 32(DI), Y1
	VMOVDQU 64(DI), Y2
	VMOVDQU 96(DI), Y3
	VPBROADCASTQ growth<>(SB), Y4

next:
	VPXOR (SI), Y2, Y5
	VPXOR 32(SI), Y3, Y6
	VPSRLQ $32, Y5, Y7
	VPSRLQ $32, Y6, Y8
	VPMULUDQ Y5, Y7, Y5
	VPMULUDQ Y6, Y8, Y6
	VPADDQ Y5, Y0, Y0
	VPADDQ Y6, Y1, Y1
	VPSHUFD $0x4e, (SI), Y7 // the words of the lanes beside
	VPSHUFD $0x4e, 32(SI), Y8
	VPADDQ Y7, Y0, Y0
	VPADDQ Y8, Y1, Y1
	VPADDQ Y4, Y2, Y2
	VPADDQ Y4, Y3, Y3
	ADDQ $64, SI
	DECQ CX
	JNZ next
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	VZEROUPPER
	RET
