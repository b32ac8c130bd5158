package jsonscan

import "golang.org/x/sys/cpu"

// wide512 reports whether this processor has the instructions of wide512_amd64.s, such as Intel's
// since Ice Lake and AMD's since Zen 4.
func wide512() bool { return cpu.X86.HasAVX512VBMI2 && wide() && cpu.X86.HasPOPCNT }

// wideText512 is wideText. It takes two thirds of the time for texts with many escapes.
//
//go:noescape
func wideText512(b *byte, n int) (end int, escapes, beyond uint64)

// wideUnescape512 copies text without its escapes. It stops at a block with any other than short
// escapes, and before a rest of less than a block. from must not be inside of an escape. It may
// write whole blocks, so to must have room for n bytes.
//
//go:noescape
func wideUnescape512(to, from *byte, n int) (read, written int)

// copyText copies raw from i to out from n, without short escapes. It stops at any other escape at
// the latest, and at the end. raw[i] is no backslash. It returns the offsets behind what it has
// copied, and may write more bytes.
func copyText(out, raw []byte, n, i int) (nextRaw, nextOut int) {
	if len(raw)-i >= wideBlock && wide512() {
		if read, written := wideUnescape512(&out[n], &raw[i], len(raw)-i); read > 0 {
			return i + read, n + written
		}
	}
	return copyUnescaped(out, raw, n, i)
}
