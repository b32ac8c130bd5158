package jsonscan

import (
	"encoding/json"
	"strings"
	"testing"
)

func valid(b []byte) bool {
	var r Reader
	r.Reset(b)
	r.Skip()
	return r.Valid()
}

var texts = []string{
	`{}`, `[]`, `[[],{}]`, ` { "a" : [ 1 , -0.5e+10 , "x\"\\\u00e9" , true,false,null ] } `, `"` + strings.Repeat("long ", 20) + `"`,
	`"\ud83d"`, "\"\xff\"", `0`, `-0`, `1e9`, `12.50`,
	``, ` `, `{`, `}`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `[1 2]`, `01`, `1.`, `.5`, `-`, `1e`, `+1`, `nul`, `nulll`, `"`, `"\`, `"\x"`, `"\u12g4"`,
	"\"a\nb\"", "\"1234567\x1f\"", `[}`, `{]`, `{"a":1]`, `1 2`, "\x00", "1\x00", "\v1", `"a"b`,
	strings.Repeat("[", 200) + strings.Repeat("]", 200),
}

func FuzzValid(f *testing.F) {
	for _, t := range texts {
		f.Add([]byte(t))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if strings.Count(string(b), "[")+strings.Count(string(b), "{") >= maxDepth {
			return
		}
		if got, want := valid(b), json.Valid(b); got != want {
			t.Fatalf("valid(%q) = %v, encoding/json says %v", b, got, want)
		}
	})
}

func TestDepth(t *testing.T) {
	nest := func(n int) []byte { return []byte(strings.Repeat("[", n) + "1" + strings.Repeat("]", n)) }
	if !valid(nest(maxDepth)) || valid(nest(maxDepth+1)) || valid(nest(1_000_000)) {
		t.Errorf("the limit is not at %d levels", maxDepth)
	}
}

func TestRead(t *testing.T) {
	var r Reader
	b := []byte(`{"n": 12, "big": 1234567890123456, "neg": -1, "half": 0.5, "s": "a\"b", "z": null, "list": [ ] }`)
	r.Reset(b)
	ints := map[string]int64{}
	for more := r.Open('{'); more; more = r.More('{') {
		switch name := string(r.Name()); name {
		case "s":
			if got := string(r.Text()); got != `a\"b` {
				t.Errorf("text: %q", got)
			}
		case "z":
			if !r.Null() {
				t.Error("null was not read")
			}
		case "list":
			if r.Kind() != '[' || b[r.Pos()] != '[' || r.Open('[') || b[r.Pos()-1] != ']' {
				t.Error("the empty list was not read as one")
			}
		default:
			if n, ok := r.Int(); ok {
				ints[name] = n
			}
		}
	}
	if !r.Valid() {
		t.Error("not valid")
	}
	if len(ints) != 1 || ints["n"] != 12 {
		t.Errorf("integers: %v", ints)
	}
}

// Every loop ends after a fault, whatever is asked for.
func TestFault(t *testing.T) {
	var r Reader
	r.Reset([]byte(`{"a":[1,2`))
	for more := r.Open('{'); more; more = r.More('{') {
		r.Name()
		for more := r.Open('['); more; more = r.More('[') {
			r.Text()
		}
	}
	if r.Valid() || r.Kind() != 0 || r.Null() {
		t.Error("the fault was forgotten")
	}
}
