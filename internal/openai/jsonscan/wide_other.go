//go:build !amd64

package jsonscan

import "unicode/utf8"

// skipText is plainText. ascii says whether what it has skipped is ASCII.
func skipText(b []byte, i int) (end int, escaped, ascii bool) {
	end, escaped = plainText(b, i)
	return end, escaped, isASCII(b[i:end])
}

// validUTF8 is utf8.Valid.
func validUTF8(b []byte) bool { return utf8.Valid(b) }

// container leaves every value to the grammar.
func (r *Reader) container(i, depth int) int { return -1 }

func copyText(out, raw []byte, n, i int) (nextRaw, nextOut int) {
	return copyUnescaped(out, raw, n, i)
}
