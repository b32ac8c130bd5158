package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

// Every special byte at every place of a run is found, and nothing else is.
func TestPlain(t *testing.T) {
	t.Parallel()
	for length := range 80 {
		b := bytes.Repeat([]byte{'a'}, length)
		if got := plain(b, 0); got != length {
			t.Fatalf("%d plain bytes: stopped at %d", length, got)
		}
		for at := range length {
			for c := range 256 {
				b[at] = byte(c)
				want := length
				if c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
					want = at
				}
				if got := plain(b, 0); got != want {
					t.Fatalf("%#x at %d of %d: stopped at %d", c, at, length, got)
				}
			}
			b[at] = 'a'
		}
	}
}

// A byte that a borrow may mark falsely stands behind each special one.
func TestPlainBorrow(t *testing.T) {
	t.Parallel()
	for first := range 256 {
		for second := range 256 {
			b := []byte{byte(first), byte(second), 'a', 'a', 'a', 'a', 'a', 'a', 'a'}
			want := 0
			for want < len(b) && b[want] >= 0x20 && b[want] < 0x80 && b[want] != '"' && b[want] != '\\' {
				want++
			}
			if got := plain(b, 0); got != want {
				t.Fatalf("% x: stopped at %d; want %d", b, got, want)
			}
		}
	}
}

// All sequences that begin like a character of three bytes, and many others, against unicode/utf8.
func TestBeyondASCII(t *testing.T) {
	t.Parallel()
	check := func(b []byte) {
		i := 0
		for i < len(b) && b[i] >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && size == 1 {
				i = ^i
				break
			}
			i += size
		}
		if got := beyondASCII(b, 0); got != i {
			t.Fatalf("% x: %d; want %d", b, got, i)
		}
	}
	for w := uint32(0x800000); w < 1<<24; w++ {
		if w < 0xe00000 || w >= 0xf00000 {
			w += 13 // no lead of three bytes
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], w<<8|'a')
		check(b[:])  // the fast way
		check(b[:3]) // the end of the body
	}
	for w := uint32(0xf0000000); w < 0xf8000000; w += 61 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], w)
		check(b[:])
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
		got, _ := unescape(raw)
		if string(got) != want || unescapedLen(raw) != len(want) {
			t.Fatalf("%q: %q (%d bytes); want %q", raw, got, unescapedLen(raw), want)
		}
	}
	for raw, want := range map[string]bool{`\ud83d\ude00`: true, `\ufffd`: true, `\ud83d`: false, `\ude00x`: false, `a\n`: true} {
		if _, whole := unescape([]byte(raw)); whole != want {
			t.Errorf("%q: whole %v; want %v", raw, whole, want)
		}
	}
}
