package jsonscan

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// readBehind is how many bytes behind its end skipText may look at.
const readBehind = 64

// naiveText is skipText, byte by byte.
func naiveText(b []byte, i int) (end int, escaped bool) {
	for ; i < len(b) && b[i] >= 0x20 && b[i] != '"'; i++ {
		if b[i] == '\\' {
			if i+1 == len(b) || !strings.ContainsRune(`"\/bfnrt`, rune(b[i+1])) {
				return i, escaped
			}
			escaped = true
			i++
		}
	}
	return i, escaped
}

// naiveUnescape is Unescape for short escapes, byte by byte.
func naiveUnescape(raw []byte) (text []byte) {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '\\' {
			i++
			c = "\"\\/\b\f\n\r\t"[strings.IndexByte(`"\/bfnrt`, raw[i])]
		}
		text = append(text, c)
	}
	return text
}

// checkWide compares the functions that may be in assembly with slow ones.
func checkWide(t *testing.T, b []byte, i int) {
	t.Helper()
	end, escaped, ascii := skipText(b, i)
	plainEnd, plainEscaped := plainText(b, i)
	want, wantEscaped := naiveText(b, i)
	if end != want || escaped != wantEscaped {
		t.Fatalf("%q from %d: the text ends at %d, escapes: %v; want %d, %v", b, i, end, escaped, want, wantEscaped)
	}
	if plainEnd != want || plainEscaped != wantEscaped {
		t.Fatalf("%q from %d: the plain way ends at %d, escapes: %v; want %d, %v", b, i, plainEnd, plainEscaped, want, wantEscaped)
	}
	if ascii && !isASCII(b[i:end]) || !ascii && isASCII(b[i:min(end+readBehind, len(b))]) {
		t.Fatalf("%q from %d to %d is ASCII: %v", b, i, end, ascii)
	}
	checkWays(t, b[i:])
	if text, _ := Unescape(nil, b[i:end]); string(text) != string(naiveUnescape(b[i:end])) {
		t.Fatalf("%q without escapes: %q", b[i:end], text)
	}
	if got := validUTF8(b[i:]); got != utf8.Valid(b[i:]) {
		t.Fatalf("%q is UTF-8: %v", b[i:], got)
	}
}

// Every byte, alone and behind a backslash, at every place of two blocks.
func TestWideEveryByte(t *testing.T) {
	t.Parallel()
	for _, fill := range []string{"a", `\\`, "€"} {
		plain := bytes.Repeat([]byte(fill), 140/len(fill))
		b := make([]byte, len(plain))
		for at := range len(plain) - 1 {
			for c := range 256 {
				copy(b, plain)
				b[at] = byte(c)
				checkWide(t, b, 0)
				b[at], b[at+1] = '\\', byte(c)
				checkWide(t, b, 0)
			}
		}
	}
}

// All sequences of two bytes and the ends of ranges of three and four, over the end of a block.
func TestWideUTF8(t *testing.T) {
	t.Parallel()
	edges := []byte{0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef,
		0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf7, 0xf8, 0xff}
	b := bytes.Repeat([]byte("a"), 3+2*64+20)
	check := func(at int, piece ...byte) {
		copy(b[at:], piece)
		if got, want := validUTF8(b), utf8.Valid(b); got != want {
			t.Fatalf("% x at %d is UTF-8: %v, want %v", piece, at, got, want)
		}
		copy(b[at:], "aaaa")
	}
	for at := 3 + 64 - 5; at < 3+64+2; at++ {
		for first := 0x80; first < 0x100; first++ {
			for second := range 256 {
				check(at, byte(first), byte(second))
			}
		}
	}
	for _, at := range []int{3 + 64 - 2, 3 + 2*64 - 3, len(b) - 4} {
		for _, first := range edges[4:] {
			for _, second := range edges {
				for _, third := range edges[:15] {
					check(at, first, second, third)
					for _, fourth := range edges[:11] {
						check(at, first, second, third, fourth)
					}
				}
			}
		}
	}
}

// Random texts of the pieces that matter.
func TestWideRandom(t *testing.T) {
	t.Parallel()
	pieces := []string{"a", "plain text of some length, ", `\n`, `\"`, `\\`, `\\\\\\\\\\\\\\\`, `\/`, `\u0041`, `\x`, `\`, "é", "€", "😀", "\xff",
		"\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3", "\x1f", "\x00", `"`, "\x7f"}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		var b []byte
		good := rng.IntN(2) == 0 // pieces that end no text are rare
		for size := rng.IntN(400); len(b) < size; {
			n := rng.IntN(len(pieces))
			if good && (n > 6 && n < 10 || n > 12) && rng.IntN(50) > 0 {
				continue
			}
			b = append(b, pieces[n]...)
		}
		checkWide(t, b, min(rng.IntN(4), len(b)))
	}
}

// FuzzWide compares the functions in assembly with slow ones.
func FuzzWide(f *testing.F) {
	for _, t := range texts {
		f.Add([]byte(t))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkWide(t, b, 0)
		checkWide(t, append(bytes.Repeat([]byte("a"), 61), b...), 0)
		checkWide(t, append(bytes.Repeat([]byte("a"), 61), append(b, bytes.Repeat([]byte("b"), 100)...)...), 0)
	})
}
