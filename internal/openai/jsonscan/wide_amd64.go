package jsonscan

import (
	"unicode/utf8"

	"golang.org/x/sys/cpu"
)

// wideBlock is how many bytes the functions in assembly read at once.
const wideBlock = 64

// wide reports whether this processor has the instructions of the functions in assembly.
func wide() bool { return cpu.X86.HasAVX2 && cpu.X86.HasBMI1 }

// wideText is plainText for whole blocks. It stops before a rest of less than a block and one byte,
// too. escapes is not 0 if it has skipped an escape. beyond is not 0 if it has read a byte beyond
// ASCII, which may stand in the last block behind the end.
//
//go:noescape
func wideText(b *byte, n int) (end int, escapes, beyond uint64)

// wideUTF8 reports whether there is a fault in n bytes, a multiple of wideBlock. The three bytes
// before b must be ASCII, and are read. A character that goes on behind the n bytes is no fault.
//
//go:noescape
func wideUTF8(b *byte, n int) (fault bool)

// skipText is plainText, 64 bytes at a time. If it says that what it has skipped is ASCII, it is.
func skipText(b []byte, i int) (end int, escaped, ascii bool) {
	if len(b)-i < wideBlock || !wide() {
		end, escaped = plainText(b, i)
		return end, escaped, isASCII(b[i:end])
	}
	var n int
	var escapes, beyond uint64
	if wide512() {
		n, escapes, beyond = wideText512(&b[i], len(b)-i)
	} else {
		n, escapes, beyond = wideText(&b[i], len(b)-i)
	}
	i += n
	if len(b)-i > wideBlock { // a byte that is neither plain nor a short escape
		return i, escapes != 0, beyond == 0
	}
	end, escaped = plainText(b, i)
	return end, escaped || escapes != 0, beyond == 0 && isASCII(b[i:end])
}

// validUTF8 is utf8.Valid, 64 bytes at a time.
func validUTF8(b []byte) bool {
	if len(b) < wideBlock+3 || !wide() || b[0]|b[1]|b[2] >= utf8.RuneSelf {
		return utf8.Valid(b)
	}
	n := (len(b) - 3) &^ (wideBlock - 1)
	if wideUTF8(&b[3], n) {
		return false
	}
	rest := 3 + n
	for i := rest - 1; i > rest-utf8.UTFMax; i-- { // to the first byte of a character that goes on
		if utf8.RuneStart(b[i]) {
			rest = i
			break
		}
	}
	return utf8.Valid(b[rest:])
}
