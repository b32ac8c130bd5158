package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomValue writes a JSON value. Strings have the characters that mean something outside of them.
func randomValue(rng *rand.Rand, b *bytes.Buffer, depth int) {
	space := func() {
		b.WriteString([]string{"", "", "", " ", "\n\t", strings.Repeat(" ", 70)}[min(rng.IntN(60), 5)])
	}
	text := func() {
		b.WriteByte('"')
		for range rng.IntN(4) {
			b.WriteString([]string{"a", "{", "]", ",", ":", `\"`, `\\`, `\n`, `\u00e9`, "é", " plain text of some length ",
				strings.Repeat("long ", 40), strings.Repeat(`\\`, 40)}[rng.IntN(13)])
		}
		b.WriteByte('"')
	}
	space()
	switch kind := rng.IntN(6 + depth); {
	case kind < 4 && depth < 8:
		closing := "}"
		if kind < 2 {
			closing = "]"
		}
		b.WriteByte(closing[0] - 2)
		for i := range rng.IntN(5) {
			if i > 0 {
				b.WriteByte(',')
			}
			if closing == "}" {
				space()
				text()
				space()
				b.WriteByte(':')
			}
			randomValue(rng, b, depth+1)
		}
		space()
		b.WriteString(closing)
	case kind%2 == 0:
		text()
	default:
		b.WriteString([]string{"true", "false", "null", "0", "-1.5e+3", "128000"}[rng.IntN(6)])
	}
	space()
}

// Values that are skipped by blocks are valid if encoding/json and the grammar say so, and the
// fault is the one that the grammar finds.
func TestContainersAndTheirMutants(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"{", "}", "[", "]", ",", ":", `"`, `\`, " ", "1", "a", "true", `"a"`, `"a":`, "[]", "{}", "\x01", "\xff", "-", ",,", "[,"}
	count := map[bool]int{}
	for range 20_000 {
		var b bytes.Buffer
		b.WriteString("[" + strings.Repeat(" ", rng.IntN(64)))
		randomValue(rng, &b, 0)
		b.WriteString("," + strings.Repeat(" ", rng.IntN(100)))
		randomValue(rng, &b, 0)
		b.WriteString("]")
		data := b.Bytes()
		for range rng.IntN(3) {
			at := rng.IntN(len(data))
			gone := min(rng.IntN(3), len(data)-at)
			data = slices.Replace(data, at, at+gone, []byte(pieces[rng.IntN(len(pieces))])...)
		}
		want := json.Valid(data)
		if got := valid(t, data, false); got != want {
			t.Fatalf("%q is valid: %v, encoding/json says %v", data, got, want)
		}
		valid(t, data, true)
		count[want]++
	}
	if count[true] < 5000 || count[false] < 5000 { // else little was tested
		t.Errorf("valid and invalid: %v", count)
	}
}

// Every sequence of up to six tokens, at the end of a block and before it.
func TestContainersOfFewTokens(t *testing.T) {
	t.Parallel()
	tokens := []string{"{", "}", "[", "]", ",", ":", `"a"`, "1"}
	var each func(text string, left int)
	each = func(text string, left int) {
		for _, before := range []int{0, 59} {
			data := []byte("[" + strings.Repeat(" ", before) + text + "]" + strings.Repeat(" ", 70))
			want := json.Valid(data)
			if got := valid(t, data, false); got != want {
				t.Fatalf("%q is valid: %v, encoding/json says %v", data, got, want)
			}
		}
		if left == 0 {
			return
		}
		for _, token := range tokens {
			each(text+token, left-1)
		}
	}
	each("", 4)
	for _, start := range []string{`{"a":1,`, `{"a":[`, `[{},`, `{"a":{}`, `{"a"`} {
		each(start, 4)
	}
}

func TestContainersOfManyLevels(t *testing.T) {
	t.Parallel()
	for n := 1; n < MaxDepth; n++ {
		for _, kind := range []string{"[]", `{}`} {
			open := strings.Replace(kind[:1], "{", `{"a":`, 1)
			data := strings.Repeat(open, n) + "1" + strings.Repeat(kind[1:], n) + strings.Repeat(" ", 64)
			if !valid(t, []byte(data), true) || valid(t, []byte(strings.Replace(data, kind[1:], "", 1)), true) {
				t.Fatal(fmt.Sprint(n, " levels of ", kind))
			}
		}
	}
	var r Reader // a container that begins far inside
	r.Reset([]byte(strings.Repeat("[", 200) + strings.Repeat("[", 60) + strings.Repeat("]", 260)))
	for range 200 {
		r.Open('[')
	}
	r.Skip()
	if reason, at := r.Fault(); reason != TooDeep || at != MaxDepth {
		t.Errorf("%v at %d", reason, at)
	}
}

// Scalars at every place of a block, and over its end.
func TestContainersOfScalars(t *testing.T) {
	t.Parallel()
	for _, scalar := range []string{"0", "7", "128000", "-1.5e+3", "true", "false", "null", "1234567890123", "00", "01", "12x", "1.", "truex", "fals", "nul",
		"1-", "true\x00", "null\x00\x00", "false\x00", "0\x00", "trueｅ", "\x80", "\x7f", "a", "-", "/1", ":"} {
		for before := range 70 {
			alone := "[" + strings.Repeat(" ", before) + scalar + strings.Repeat(" ", before%2) + "]" + strings.Repeat(" ", 70)
			among := "[1" + strings.Repeat("0", before%7) + strings.Repeat(",2", before/2) + "," + scalar + strings.Repeat(",304", 40) + "]"
			for _, data := range [][]byte{[]byte(alone), []byte(among)} {
				if got, want := valid(t, data, false), json.Valid(data); got != want {
					t.Fatalf("%q is valid: %v, encoding/json says %v", data, got, want)
				}
			}
		}
	}
}
