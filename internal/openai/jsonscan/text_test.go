package jsonscan

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

// endsPlain reports whether a byte ends a run of plain text.
func endsPlain(c byte) bool { return c < 0x20 || c == '"' || c == '\\' }

// Every special byte at every place of a run is found, and nothing else is.
func TestPlain(t *testing.T) {
	t.Parallel()
	for length := range 80 {
		b := bytes.Repeat([]byte{'a'}, length)
		checkPlain(t, b)
		for at := range length {
			for c := range 256 {
				b[at] = byte(c)
				checkPlain(t, b)
			}
			b[at] = 'a'
		}
	}
}

// A borrow may mark the byte behind a special one falsely. A byte beyond ASCII must not borrow from
// the next byte.
func TestPlainBorrow(t *testing.T) {
	t.Parallel()
	for first := range 256 {
		for second := range 256 {
			checkPlain(t, []byte{byte(first), byte(second), 'a', 'a', 'a', 'a', 'a', 'a', 'a'})
			checkPlain(t, []byte{0xc3, 0xff, byte(first), byte(second), 0x80, 0xa9, 'a', '"', 'a'})
		}
	}
}

// checkPlain compares the search in words with a search byte by byte.
func checkPlain(t *testing.T, b []byte) {
	t.Helper()
	want := 0
	for want < len(b) && !endsPlain(b[want]) {
		want++
	}
	if got := plainBytes(b, 0); got != want {
		t.Fatalf("% x: plain text ends at %d; want %d", b, got, want)
	}
}

// The first byte that is not UTF-8 is found, wherever it stands.
func TestNotUTF8(t *testing.T) {
	t.Parallel()
	check := func(b []byte) {
		want := -1
		for i := 1; i < len(b); {
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && size == 1 {
				want = i
				break
			}
			i += size
		}
		if got := notUTF8(b, 1, len(b)); got != want {
			t.Fatalf("% x: %d; want %d", b, got, want)
		}
		if isASCII(b) != (bytes.IndexFunc(b, func(r rune) bool { return r >= 0x80 }) < 0) {
			t.Fatalf("% x is ASCII: %v", b, isASCII(b))
		}
	}
	for length := range 90 {
		b := append([]byte{'"'}, bytes.Repeat([]byte{'a'}, length)...)
		for at := 1; at < len(b); at++ {
			for _, piece := range []string{"é", "€", "😀", "\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80"} {
				check(append(append(bytes.Clone(b[:at]), piece...), b[at:]...))
			}
		}
	}
}

func TestUnescape(t *testing.T) {
	t.Parallel()
	pieces := []string{`a`, `é`, `😀`, `\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0000`, `\u0041`, `\u00e9`, `\uFFfd`,
		`\ud83d\ude00`, `\ud83d`, `\ude00`, `\ud83d\u0041`, `\ud83dx`, `\ud83d\n`, `plain text that is longer`}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var raw []byte
		for range rng.IntN(6) {
			raw = append(raw, pieces[rng.IntN(len(pieces))]...)
		}
		var want string
		if err := json.Unmarshal([]byte(`"`+string(raw)+`"`), &want); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		got, _ := Unescape(nil, raw)
		if string(got) != want || UnescapedLen(raw) != len(want) {
			t.Fatalf("%q: %q (%d bytes); want %q", raw, got, UnescapedLen(raw), want)
		}
	}
	for raw, want := range map[string]Halves{`\ud83d\ude00`: {}, `\ufffd`: {}, `a\n`: {}, `\ud83d`: {Any: true, High: 0xd83d},
		`\ude00x`: {Any: true, Low: 0xde00}, `\ude00\ud83d`: {Any: true, Low: 0xde00, High: 0xd83d}, `a\ude00`: {Any: true},
		`\ud83da`: {Any: true}, `\\ud83d`: {}, `\ud83d\ud83d`: {Any: true, High: 0xd83d}} {
		if _, halves := Unescape(nil, []byte(raw)); halves != want {
			t.Errorf("%q has the halves %+v; want %+v", raw, halves, want)
		}
	}
}
