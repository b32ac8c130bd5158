package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Values, and whether they are JSON. After JSONTestSuite by Nicolas Seriot, which collects where
// parsers differ.
var values = map[string]bool{
	`0`: true, `-0`: true, `1`: true, `-1`: true, `10`: true, `0.5`: true, `-0.0`: true, `1e1`: true, `1E+1`: true,
	`1e-01`: true, `0e0`: true, `123.456e789`: true, `-9223372036854775809`: true, strings.Repeat("9", 500): true,
	`01`: false, `-`: false, `-01`: false, `+1`: false, `.5`: false, `1.`: false, `1.e1`: false, `1e`: false, `1e+`: false,
	`0x1`: false, `1_0`: false, `NaN`: false, `Infinity`: false, `-Infinity`: false, `1 2`: false, `--1`: false, `1a`: false,
	`00`: false, `1.2.3`: false, `1e1.5`: false, `１`: false,

	`true`: true, `false`: true, `null`: true,
	`True`: false, `tru`: false, `truee`: false, `nul`: false, `fals`: false, `undefined`: false, `'a'`: false, `t`: false,

	`""`: true, `"a"`: true, `"\"\\\/\b\f\n\r\t"`: true, `"\u0000"`: true, `"\uABCD\uabcd\u00e9"`: true, `"\ud83d\ude00"`: true,
	`"\ud800"`: true, `"\udc00\ud800"`: true, "\"\x7f\"": true, `"é€😀"`: true, "\"\u2028\ufeff\ufffd\"": true,
	`"`: false, `"\"`: false, `"\a"`: false, `"\u"`: false, `"\u12"`: false, `"\u12G4"`: false, `"\U0041"`: false, `"\x41"`: false,
	`"\u 123"`: false, "\"\n\"": false, "\"\t\"": false, "\"\x00\"": false, "\"\x1f\"": false, `"\`: false, "\"\\\n\"": false,
	`"\é"`: false, `"a"b`: false, `"12345678\`: false,
	"\"\xff\"": false, "\"\x80\"": false, "\"\xc3\"": false, "\"\xc0\xaf\"": false, "\"\xe0\x80\xaf\"": false,
	"\"\xed\xa0\x80\"": false, "\"\xf4\x90\x80\x80\"": false, "\"\xf0\x80\x80\x80\"": false, "\"\xe2\x82\"": false,
	"\"aaaaaaaa\xe2\x82": false, "\xff": false,

	`[]`: true, `[ ]`: true, `[1]`: true, `[1,2]`: true, "[\t1 ,\n2\r]": true, `[[],{},[[]]]`: true, `[null,""]`: true,
	`[`: false, `]`: false, `[1,]`: false, `[,1]`: false, `[,]`: false, `[1 2]`: false, `[1,,2]`: false, `[1}`: false, `[1`: false,
	`[1,`: false, `[[]`: false, `[]]`: false, "[1,\f2]": false, "[\u00a01]": false, "[\ufeff1]": false, `[1;2]`: false,

	`{}`: true, `{ }`: true, `{"":0}`: true, `{"a":{"b":[{}]}}`: true, `{"a":1,"a":2}`: true, "{\n\"a\" :\r1\t,\"b\":2 }": true,
	`{`: false, `}`: false, `{"a"}`: false, `{"a":}`: false, `{"a":1,}`: false, `{,}`: false, `{"a":1 "b":2}`: false,
	`{"a" 1}`: false, `{a:1}`: false, `{1:1}`: false, `{'a':1}`: false, `{"a":1`: false, `{"a":1]`: false, `{"a"::1}`: false,
	`{"a":1,,"b":2}`: false, `{null:1}`: false, `{"a":1}}`: false, `{"a`: false, `{"a":/**/1}`: false, `{"a":1 // x`: false, ``: false,
}

// frames are the places of a body where a value is read by different code.
func frames() map[string]Endpoint {
	return map[string]Endpoint{
		`{"model":"m","x":%s}`:                                                  Completions,
		`{"x":%s,"model":"m"}`:                                                  Completions,
		`{"model":"m","x":[{"y":%s}]}`:                                          Completions,
		`{"model":"m","messages":%s}`:                                           Chat,
		`{"model":"m","messages":[null,%s]}`:                                    Chat,
		`{"model":"m","messages":[{"content":%s}]}`:                             Chat,
		`{"model":"m","messages":[{"content":[null,%s]}]}`:                      Chat,
		`{"model":"m","messages":[{"content":[{"type":%s}]}]}`:                  Chat,
		`{"model":"m","messages":[{"content":[{"text":%s,"x":0}]}]}`:            Chat,
		`{"model":"m","messages":[{"role":%s,"name":"x"}]}`:                     Chat,
		`{"model":"m","stream_options":{"x":%s}}`:                               Chat,
		`{"model":"m","input":%s}`:                                              Responses,
		`{"model":"m","input":[{"role":"user","content":%s}]}`:                  Responses,
		`{"model":"m","instructions":%s,"x":1}`:                                 Responses,
		`{"model":"m","input":[1,{"content":[0,%s]},{"role":"user"}]}`:          Responses,
		`{"model":"m","y":[[[[[[[[null,%s]]]]]]]],"z":"` + `12345678901` + `"}`: Embeddings,
	}
}

func TestGrammar(t *testing.T) {
	t.Parallel()
	for frame, e := range frames() {
		for value, valid := range values {
			body := fmt.Appendf(nil, frame, value)
			if _, fault := Scan(e, jsonType, body); (fault == nil) != valid {
				t.Errorf("%q: %v; want it valid: %v", body, fault, valid)
			}
		}
	}
}

// Every beginning of a valid body is a fault, and so is the body with a byte added.
func TestTruncated(t *testing.T) {
	t.Parallel()
	const body = `{"stream":true,"model":"m\u0041é😀","messages":[{"role":"user","content":[{"type":"text","text":"a\n"},` +
		`{"x":[1.5e3,-2,null,false]}]},{"role":"system","content":"b"}],"stream_options":{"include_usage":true},"max_tokens":10}`
	mustScan(t, Chat, body)
	for n := range len(body) {
		if r, fault := Scan(Chat, jsonType, []byte(body[:n])); fault == nil {
			t.Fatalf("%q was taken: %+v", body[:n], r)
		}
	}
	for _, more := range []string{"}", "{}", ",", "\x00", "x", "\ufeff", "1"} {
		_, fault := Scan(Chat, jsonType, []byte(body+more))
		want := fmt.Sprintf("The request body is not valid JSON: unexpected data after the value at byte %d.", len(body))
		if fault == nil || fault.Message != want {
			t.Errorf("with %q behind it: %v; want %s", more, fault, want)
		}
	}
}

func TestOffsets(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"model":"m"`:                   "unexpected end at byte 12",
		`{"model":`:                      "unexpected end at byte 9",
		`{"model"="m"}`:                  "expected ':' at byte 8",
		`{"model":"m" "x":1}`:            "expected ',' or '}' at byte 13",
		`{"model":"m","x":[1 2]}`:        "expected ',' or ']' at byte 20",
		`{"model":"m",}`:                 "expected a string at byte 13",
		`{"model":"m","x":tru}`:          "expected a value at byte 17",
		`{"model":"m","x":-}`:            "expected a digit at byte 18",
		`{"model":"m","x":1.}`:           "expected a digit at byte 19",
		`{"model":"m","x":"abc\qd"}`:     "bad escape at byte 21",
		"{\"model\":\"m\",\"x\":\"\n\"}": "control character in a string at byte 18",
		`{"model":"m","n":01}`:           "leading zero at byte 17",
	} {
		_, fault := Scan(Chat, jsonType, []byte(body))
		if want = "The request body is not valid JSON: " + want + "."; fault == nil || fault.Message != want {
			t.Errorf("%q: %v; want %s", body, fault, want)
		}
	}
	_, fault := Scan(Chat, jsonType, []byte("{\"model\":\"m\",\"x\":\"€\xe2\x82\"}"))
	if want := "The request body is not valid UTF-8 at byte 21."; fault == nil || fault.Message != want {
		t.Errorf("%v; want %s", fault, want)
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	for frame, e := range frames() {
		outer := strings.Count(frame, "{") + strings.Count(frame, "[")
		if strings.Contains(frame, "]},{") || strings.Contains(frame, `[1,{"content"`) {
			continue // brackets that are closed before the value
		}
		for _, nest := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
			n := jsonscan.MaxDepth - outer
			deep := func(n int) []byte {
				return fmt.Appendf(nil, frame, strings.Repeat(nest[0], n)+"0"+strings.Repeat(nest[1], n))
			}
			if _, fault := Scan(e, jsonType, deep(n)); fault != nil {
				t.Errorf("%s, %d levels of %s: %v", frame, jsonscan.MaxDepth, nest[0], fault)
			}
			_, fault := Scan(e, jsonType, deep(n+1))
			if fault == nil || !strings.HasPrefix(fault.Message, "The request body is nested deeper than 256 levels at byte") {
				t.Errorf("%s, %d levels of %s: %v", frame, jsonscan.MaxDepth+1, nest[0], fault)
			}
		}
	}
	for _, bomb := range []string{"[", `{"a":`, `[{"a":`} {
		body := `{"model":"m","messages":` + strings.Repeat(bomb, 1<<20)
		if _, fault := Scan(Chat, jsonType, []byte(body)); fault == nil {
			t.Errorf("a bomb of %s was taken", bomb)
		}
	}
}

// What is taken here is taken by encoding/json as well, whatever the table says.
func TestGrammarTable(t *testing.T) {
	t.Parallel()
	for value, valid := range values {
		if got := json.Valid([]byte(value)) && strings.ToValidUTF8(value, "") == value; got != valid {
			t.Errorf("%q: encoding/json says %v, the table %v", value, got, valid)
		}
	}
}
