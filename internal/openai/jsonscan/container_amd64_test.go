package jsonscan

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// naiveBlock is wideBlocks for one block, byte by byte.
func naiveBlock(b []byte, c *carried) (m block) {
	for i, x := range b {
		bit := uint64(1) << i
		set := func(to *uint64, is bool) {
			if is {
				*to |= bit
			}
		}
		escaped := c.escaped != 0
		c.escaped = 0
		quote := x == '"' && !escaped
		if quote {
			c.text = ^c.text
		}
		if x == '\\' && !escaped {
			c.escaped = 1
		}
		in := c.text != 0
		set(&m.text, in)
		set(&m.opening, in && quote)
		set(&m.control, in && x < 0x20)
		set(&m.long, in && escaped && !strings.ContainsRune(`"\/bfnrt`, rune(x)))
		set(&m.curly, x&0x20 != 0)
		if in || quote {
			continue
		}
		switch x {
		case '{', '[':
			m.open |= bit
		case '}', ']':
			m.closing |= bit
		case ':':
			m.colon |= bit
		case ',':
			m.comma |= bit
		case ' ', '\n', '\r', '\t':
			m.space |= bit
		default:
			m.scalar |= bit
		}
	}
	return m
}

func checkBlocks(t *testing.T, b []byte) {
	t.Helper()
	for _, start := range []carried{{}, {text: ^uint64(0)}} {
		c, naive := start, start
		got := make([]block, len(b)/wideBlock)
		wideBlocks(&b[0], len(got), &c, &got[0])
		for k := range got {
			want := naiveBlock(b[k*wideBlock:][:wideBlock], &naive)
			if diff := cmp.Diff(want, got[k], cmp.AllowUnexported(block{})); diff != "" {
				t.Fatalf("%q, block %d (-want +got):\n%s", b, k, diff)
			}
		}
		if c != naive {
			t.Fatalf("%q: carried %v, want %v", b, c, naive)
		}
	}
}

func TestWideBlocks(t *testing.T) {
	t.Parallel()
	if !wideBits() {
		t.Skip("this processor has no such instructions")
	}
	b := bytes.Repeat([]byte("a"), 2*wideBlock)
	for _, at := range []int{0, 31, 32, 62, 63, 64, 127} {
		for c := range 256 {
			b[at] = byte(c)
			checkBlocks(t, b)
			if at > 0 {
				b[at-1] = '\\'
				checkBlocks(t, b)
				b[at-1] = 'a'
			}
		}
		b[at] = 'a'
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		for i := range b {
			b[i] = "\\\\\\\"\"{}[]:, \n\tanu\x01\x80"[rng.IntN(19)]
		}
		checkBlocks(t, b)
	}
}

func TestWideDigits(t *testing.T) {
	t.Parallel()
	if !wideBits() {
		t.Skip("this processor has no such instructions")
	}
	rng := rand.New(rand.NewPCG(7, 8))
	b := make([]byte, wideBlock)
	for range 2000 {
		var digits, zeros uint64
		for i := range b {
			b[i] = []byte{'0', '9', '5', '/', ':', byte(rng.IntN(256))}[rng.IntN(6)]
			if '0' <= b[i] && b[i] <= '9' {
				digits |= 1 << i
			}
			if b[i] == '0' {
				zeros |= 1 << i
			}
		}
		if d, z := wideDigits(&b[0]); d != digits || z != zeros {
			t.Fatalf("%q: %b and %b, want %b and %b", b, d, z, digits, zeros)
		}
	}
}

// The blocks take what they are for: the grammar does not read it again.
func TestContainersAreReadByBlocks(t *testing.T) {
	t.Parallel()
	if !wideBits() {
		t.Skip("this processor has no such instructions")
	}
	for _, data := range []string{
		`[{"type":"function","function":{"name":"f","parameters":{"type":["string","null"],"default":-1.5,"enum":[]}}},{}]`,
		`{"text":"` + strings.Repeat("a", 1000) + `\n` + strings.Repeat("\\u00e9\u00e9", 1000) + `"}`,
		"{\n  \"a\" : [ true , null ,\r\n\t\t" + strings.Repeat(" ", 300) + "{ } ] }",
		"[" + strings.Repeat("128000,17,true,1.5,-4093,", 40) + "0]",
		strings.Repeat("[", 64) + strings.Repeat("]", 64),
	} {
		var r Reader
		r.Reset([]byte(data))
		if end := r.container(0, 1); end != len(data) {
			t.Errorf("%.40q: ends at %d, want %d", data, end, len(data))
		}
	}
}
