package jsonscan

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// valid reports whether a Reader takes the text. It reads the text twice: by Skip, and member by
// member as the readers of messages do. Both must agree.
func valid(t *testing.T, data []byte, requireUTF8 bool) bool {
	t.Helper()
	skipped := Reader{RequireUTF8: requireUTF8}
	skipped.Reset(data)
	skipped.Skip()
	walked := Reader{RequireUTF8: requireUTF8}
	walked.Reset(data)
	walk(&walked)
	got := skipped.Valid()
	if walked.Valid() != got {
		t.Fatalf("%q: Skip reports valid %v, member by member it is %v", data, got, !got)
	}
	reason, offset := skipped.Fault()
	walkedReason, walkedOffset := walked.Fault()
	if got != (reason == NoFault) || reason != walkedReason || offset != walkedOffset {
		t.Fatalf("%q: valid %v, fault %v at %d, member by member %v at %d",
			data, got, reason, offset, walkedReason, walkedOffset)
	}
	return got
}

// walk reads a value member by member.
func walk(r *Reader) {
	switch r.Kind() {
	case '{':
		for more := r.Open('{'); more; more = r.More('{') {
			r.Name()
			walk(r)
		}
	case '[':
		for more := r.Open('['); more; more = r.More('[') {
			walk(r)
		}
	case '"':
		r.Text()
	case 't', 'f':
		r.Bool()
	case 'n':
		r.Null()
	default:
		r.Int()
	}
}

var texts = []string{
	`{}`, `[]`, `[[],{}]`, ` { "a" : [ 1 , -0.5e+10 , "x\"\\\u00e9" , true,false,null ] } `,
	`"` + strings.Repeat("long ", 20) + `"`, `"\ud83d"`, "\"\xff\"", "\"é€😀 and some more\"", "\"1234567\xe2\x82\"", "\"1234567890\xc3\"",
	`0`, `-0`, `1e9`, `12.50`,
	``, ` `, `{`, `}`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `[1 2]`, `01`, `1.`, `.5`, `-`, `1e`, `+1`, `nul`,
	`nulll`, `"`, `"\`, `"\x"`, `"\u12g4"`, "\"a\nb\"", "\"1234567\x1f\"", `[}`, `{]`, `{"a":1]`, `1 2`, "\x00", "1\x00",
	`"` + strings.Repeat(`a \"word\" and one more\n#!`, 20) + `"`, `"` + strings.Repeat(`\\`, 70) + `"`, `"` + strings.Repeat(`\\`, 70) + `\"`,
	`"` + strings.Repeat(`a\\`, 70) + "\x01" + strings.Repeat(`a\n`, 70) + `"`, `"` + strings.Repeat(`é\\`, 70) + `\x` + strings.Repeat(`a\n`, 70) + `"`,
	`"` + strings.Repeat(`a\n`, 70) + "\xff" + strings.Repeat(`a\n`, 70) + `"`,
	"\v1", `"a"b`, "{\x01}", "{\"a\":\x01}", "[,1]", "[1\x02]", strings.Repeat("[", 200) + strings.Repeat("]", 200),
}

// FuzzValid compares the grammar with encoding/json, which looks at no UTF-8.
func FuzzValid(f *testing.F) {
	for _, t := range texts {
		f.Add([]byte(t))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Count(string(data), "[")+strings.Count(string(data), "{") >= MaxDepth {
			return
		}
		want := json.Valid(data)
		if got := valid(t, data, false); got != want {
			t.Fatalf("%q is valid: %v, encoding/json says %v", data, got, want)
		}
		want = want && utf8.Valid(data)
		if got := valid(t, data, true); got != want {
			t.Fatalf("%q is valid and UTF-8: %v, encoding/json and unicode/utf8 say %v", data, got, want)
		}
		for _, before := range []int{0, 20, 40, 60} { // containers of more than a block
			longer := []byte("[" + strings.Repeat(" ", before) + string(data) + strings.Repeat(" ", 64) + "]")
			want := json.Valid(longer) // "1,2" is valid in a list
			if got := valid(t, longer, false); got != want {
				t.Fatalf("%q is valid: %v, encoding/json says %v", longer, got, want)
			}
			want = want && utf8.Valid(longer)
			if got := valid(t, longer, true); got != want {
				t.Fatalf("%q is valid and UTF-8: %v, encoding/json and unicode/utf8 say %v", longer, got, want)
			}
		}
	})
}

// FuzzText compares the text of a string with encoding/json, and the three ways to decode it.
func FuzzText(f *testing.F) {
	for _, raw := range []string{``, `plain`, `\"\\\/\b\f\n\r\t`, `\u0041\u00e9\u20ac`, `\ud83d\ude00`, `\ud83d`, `\ude00`,
		`\ude00 \ud83d`, `\ud83d\u0041`, `\\ud83d`, `\ud83d\ud83d\ude00`, "é\\n\xff"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		data := []byte(`"` + raw + `"`)
		var want string
		if !json.Valid(data) || json.Unmarshal(data, &want) != nil {
			return
		}
		var r Reader
		r.Reset(data)
		text := r.Text()
		if got := string([]rune(string(text))); got != want || !r.Valid() { // bytes that are no UTF-8 stay
			t.Fatalf("%q reads %q, encoding/json reads %q", raw, got, want)
		}
		r.Reset(data)
		if got, ok := r.RawText(); !ok || string(got) != raw || r.Escaped() != strings.Contains(raw, "\\") {
			t.Fatalf("%q has the raw text %q, escapes: %v", raw, got, r.Escaped())
		}
		if n := UnescapedLen([]byte(raw)); n != len(text) {
			t.Fatalf("%q: UnescapedLen is %d, the text has %d bytes", raw, n, len(text))
		}
		quoted := AppendQuoted(nil, text)
		if back, _ := Unescape(nil, quoted[1:len(quoted)-1]); string(back) != string(text) {
			t.Fatalf("%q is quoted as %s", text, quoted)
		}
		_, halves := Unescape(nil, []byte(raw))
		if halves.Any && !strings.Contains(string(text), "\ufffd") || !halves.Any && halves != (Halves{}) {
			t.Fatalf("%q has the halves %+v and reads %q", raw, halves, text)
		}
	})
}

func TestDepth(t *testing.T) {
	nest := func(n int) []byte { return []byte(strings.Repeat("[", n) + "1" + strings.Repeat("]", n)) }
	if !valid(t, nest(MaxDepth), false) || valid(t, nest(MaxDepth+1), false) || valid(t, nest(100_000), true) {
		t.Errorf("the limit is not at %d levels", MaxDepth)
	}
}

func TestFaultTellsReasonAndOffset(t *testing.T) {
	for data, want := range map[string]struct {
		reason Reason
		offset int
	}{
		`{"a":1}`:                             {NoFault, 0},
		`{"a":1`:                              {UnexpectedEnd, 6},
		`{"a":1]`:                             {ExpectedCommaOrBrace, 6},
		`[1}`:                                 {ExpectedCommaOrBracket, 2},
		`{"a" 1}`:                             {ExpectedColon, 5},
		`{a:1}`:                               {ExpectedString, 1},
		`{"a":x}`:                             {ExpectedValue, 5},
		`[-x]`:                                {ExpectedDigit, 2},
		`[01]`:                                {LeadingZero, 1},
		`["\x"]`:                              {BadEscape, 2},
		"[\"\n\"]":                            {ControlCharacter, 2},
		`{}{}`:                                {TrailingData, 2},
		"[\"\xff\"]":                          {NotUTF8, 2},
		strings.Repeat("[", MaxDepth+1) + "1": {TooDeep, MaxDepth},
	} {
		r := Reader{RequireUTF8: true}
		r.Reset([]byte(data))
		r.Skip()
		ok := r.Valid()
		if reason, offset := r.Fault(); reason != want.reason || offset != want.offset || ok != (reason == NoFault) {
			t.Errorf("%.40q: valid %v, %v at %d; want %v at %d", data, ok, reason, offset, want.reason, want.offset)
		}
	}
}

func TestReader(t *testing.T) {
	var r Reader
	data := []byte(`{"n": 12, "big": 1234567890123456, "neg": -1, "half": 0.5, "s": "a\"b", "z": null, "list": [ ], "\u0074": true }`)
	r.Reset(data)
	ints := map[string]int64{}
	for more := r.Open('{'); more; more = r.More('{') {
		switch name := string(r.Name()); name {
		case "s":
			at := r.Pos()
			if got := string(r.Text()); got != `a"b` {
				t.Errorf("text: %q", got)
			}
			r.Seek(at)
			if got, ok := r.RawText(); !ok || string(got) != `a\"b` || !r.Escaped() {
				t.Errorf("raw text: %q", got)
			}
		case "z":
			if !r.Null() {
				t.Error("null was not read")
			}
		case "t":
			if value, ok := r.Bool(); !value || !ok {
				t.Error("true was not read")
			}
		case "list":
			if r.Kind() != '[' || data[r.Pos()] != '[' || r.Open('[') || data[r.Pos()-1] != ']' {
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

// Every loop ends after a fault or Stop, whatever the caller asks for.
func TestNothingIsReadAfterTheEnd(t *testing.T) {
	var r Reader
	check := func(reason Reason) {
		t.Helper()
		if r.Valid() || r.Kind() != 0 || r.Null() || r.Open('{') || r.OpenOrSkip('{') || r.More('{') || r.Text() != nil || r.Name() != nil {
			t.Error("reading went on")
		}
		if got, _ := r.Fault(); got != reason {
			t.Errorf("fault: %v, want %v", got, reason)
		}
	}
	r.Reset([]byte(`{"a":[1,2`))
	for more := r.Open('{'); more; more = r.More('{') {
		r.Name()
		for more := r.Open('['); more; more = r.More('[') {
			r.Text()
		}
	}
	check(UnexpectedEnd)
	r.Reset([]byte(`{"a":1,"b":2}`))
	if r.Open('{') {
		r.Stop()
	}
	check(NoFault)
}
