package moderation_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// TestX4_EveryShape has for each shape of an answer the events, and what of them is sent.
func TestX4_EveryShape(t *testing.T) {
	typed := func(typ, rest string) string { return `{"type":"` + typ + `"` + rest + `}` }
	const filtered = `"finish_reason":"content_filter"`
	for name, test := range map[string]struct{ events, want []string }{
		"clean text before the literal": {[]string{content("a fine text, then a secret of it")},
			[]string{`{"choices":[{"index":0,"delta":{"content":"a fine text, then a "},` + filtered + `}]}`}},
		"another choice goes on": {
			[]string{chunk(0, "content", "x"), chunk(1, "content", "a secret"), chunk(1, "content", "more"), chunk(0, "content", "y"), finish(1, "stop"), finish(0, "stop")},
			[]string{chunk(0, "content", "x"), `{"choices":[{"index":1,"delta":{"content":"a "},` + filtered + `}]}`, chunk(0, "content", "y"), finish(0, "stop")}},
		"several choices in an event": {
			[]string{`{"choices":[{"index":0,"delta":{"content":"secret"}},{"index":1,"delta":{"content":"x"}},{"index":2,"delta":{"content":"secret"}}]}`,
				`{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}},{"index":2,"delta":{"content":"c"}}]}`,
				`{"choices":[{"index":0,"delta":{}},{"index":2,"delta":{}}],"usage":{"total_tokens":1}}`},
			[]string{`{"choices":[{"index":0,"delta":{"content":""},` + filtered + `},{"index":1,"delta":{"content":"x"}},{"index":2,"delta":{"content":""},` + filtered + `}]}`,
				`{"choices":[{"index":1,"delta":{"content":"b"}}]}`, `{"choices":[],"usage":{"total_tokens":1}}`}},
		"an unknown field of a delta": {[]string{chunk(0, "musing", "a sec"), chunk(0, "musing", "ret")},
			[]string{`{"choices":[{"index":0,"delta":{"musing":"a "},` + filtered + `}]}`}},
		"thinking":          {[]string{chunk(0, "thinking", "secret")}, []string{`{"choices":[{"index":0,"delta":{"thinking":""},` + filtered + `}]}`}},
		"reasoning_details": {[]string{`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"t","text":"a secret"}]}}]}`}, []string{`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"t","text":"a "}]},` + filtered + `}]}`}},
		"a message in a stream": {[]string{`{"choices":[{"index":0,"message":{"role":"assistant","content":"a secret"},"finish_reason":"stop"}]}`},
			[]string{`{"choices":[{"index":0,"message":{"role":"assistant","content":"a "},` + filtered + `}]}`}},
		"the name of a tool": {[]string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"sec"}}]}}]}`, `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"ret"}}]}}]}`},
			[]string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":""}}]},` + filtered + `}]}`}},
		"the id of a tool call": {[]string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"secret"}]}}]}`}, []string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":""}]},` + filtered + `}]}`}},
		"escapes in arguments":  {[]string{arguments(0, `{"q":"\u0073ec`), arguments(0, `\u00`), arguments(0, `72et"}`)}, []string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]},` + filtered + `}]}`}},
		"escapes twice":         {[]string{arguments(0, `{"q":"{\"r\":\"\\u0073ecret\"}"}`)}, []string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]},` + filtered + `}]}`}},
		"arguments as objects":  {[]string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":{"secret":1}}}]}}]}`}, []string{`{"index":0,"delta":{},` + filtered + `}`}},
		"an error":              {[]string{content("x"), `{"error":{"message":"the secret"}}`}, []string{content("x")}},
		"a field at the top":    {[]string{content("x"), `{"choices":[{"index":0,"delta":{"content":"y"}}],"note":"secret"}`}, []string{content("x")}},
		"a member twice":        {[]string{`{"choices":[{"index":0,"delta":{"content":"sec","content":"ret"}}]}`}, nil},
		"names and echoes": {[]string{`{"id":"secret","model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}`, typed("response.created", `,"response":{"instructions":"keep the secret","output":[]}`)},
			[]string{`{"id":"","model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}`, typed("response.created", `,"response":{"instructions":"","output":[]}`)}},
		"audio": {[]string{`{"choices":[{"index":0,"delta":{"audio":{"data":"AAAA","transcript":"x"}}}]}`}, []string{`{"choices":[{"index":0,"delta":{"audio":{"data":null,"transcript":"x"}}}]}`}},
		"log probabilities": {[]string{`{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"x","top_logprobs":[{"token":"secret"}]}]}}]}`},
			[]string{`{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":null}]}`}},
		"completed without deltas": {[]string{typed("response.completed", `,"response":{"output":[{"content":[{"text":"secret"}]}]}`)}, nil},
		"done without deltas":      {[]string{typed("response.output_text.done", `,"text":"secret"`)}, nil},
		"an unknown event":         {[]string{typed("response.new", `,"part_of_it":"a sec"`), typed("response.new", `,"part_of_it":"ret"`)}, []string{typed("response.new", `,"part_of_it":"a "`)}},
		"a delta of a response": {[]string{typed("response.output_text.delta", `,"delta":"a "`), typed("response.output_text.delta", `,"delta":"b secret"`)},
			[]string{typed("response.output_text.delta", `,"delta":"a "`), typed("response.output_text.delta", `,"delta":"b "`)}},
		"a transcript": {[]string{typed("transcript.text.delta", `,"delta":"a sec"`), typed("transcript.text.delta", `,"delta":"ret"`)}, []string{typed("transcript.text.delta", `,"delta":"a "`)}},
	} {
		r := newRelay(literals("secret")).see(t, test.events...)
		if !r.blocked() && name != "audio" && name != "log probabilities" && name != "names and echoes" {
			t.Errorf("%s: not blocked", name)
		}
		if name == "arguments as objects" {
			test.want = []string{`{"choices":[` + test.want[0] + `]}`}
		}
		want := slices.Clone(test.want)
		for i := range want { // the finish_reason of chunk is null, and is replaced
			want[i] = strings.Replace(want[i], `,`+filtered+`,"finish_reason":null`, `,`+filtered, 1)
		}
		if d := cmp.Diff(want, r.sent); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestX4_WholeAnswers has for each answer that is no stream what is sent.
func TestX4_WholeAnswers(t *testing.T) {
	set := moderation.New([]moderation.Rule{literals("secret")})
	for name, test := range map[string]struct {
		body, want string
		action     moderation.Action
	}{
		"transcription":          {`{"text":"a secret"}`, "", moderation.Block},
		"verbose transcription":  {`{"text":"a","segments":[{"text":"sec"},{"text":"ret"}]}`, "", moderation.Block},
		"clean transcription":    {`{"text":"a"}`, `{"text":"a"}`, moderation.Pass},
		"embedding":              {`{"data":[{"embedding":"c2VjcmV0secret12","index":0}]}`, `{"data":[{"embedding":"c2VjcmV0secret12","index":0}]}`, moderation.Pass},
		"an embedding that says": {`{"data":[{"embedding":"a secret","index":0}]}`, "", moderation.Block},
		"rank":                   {`{"results":[{"index":0,"document":{"text":"a secret"}}]}`, `{"results":[{"index":0,"document":{"text":""}}]}`, moderation.Pass},
		"no object":              {`["secret"]`, "", moderation.Refuse},
		"other choice":           {`{"choices":[{"index":0,"text":"secret"},{"index":1,"text":"x"}]}`, `{"choices":[{"index":0,"text":"","finish_reason":"content_filter"},{"index":1,"text":"x"}]}`, moderation.Pass},
		"unknown field":          {`{"choices":[{"index":0,"message":{"content":"x","musing":"a secret"}}]}`, `{"choices":[{"index":0,"message":{"content":"x","musing":"a "},"finish_reason":"content_filter"}]}`, moderation.Pass},
		"parts":                  {`{"choices":[{"index":0,"message":{"content":[{"text":"a sec"},{"text":"ret"}]}}]}`, `{"choices":[{"index":0,"message":{"content":[{"text":"a "},{"text":""}]},"finish_reason":"content_filter"}]}`, moderation.Pass},
	} {
		got, v := set.CheckAnswer(t.Context(), "m", []byte(test.body))
		if string(got) != test.want || v.Action != test.action {
			t.Errorf("%s: %s, %+v", name, got, v)
		}
	}
	if v := set.CheckText(t.Context(), "m", []byte("1\n00:01 --> 00:02\na secret\n")); v.Action != moderation.Block {
		t.Errorf("text: %+v", v)
	}
}

// A hook hears a text once, although the last events of a response repeat it.
func TestHookRepetition(t *testing.T) {
	s := newService(t)
	newRelay(s.rule()).see(t, `{"type":"response.output_text.delta","delta":"01234567"}`, `{"type":"response.output_text.done","text":"01234567"}`,
		`{"type":"response.completed","response":{"output":[{"content":[{"text":"01234567"}]}]}}`).end(t)
	if len(s.asked) != 1 {
		t.Errorf("asked %s", s.asked)
	}
	r := newRelay(s.rule()).see(t, `{"type":"response.completed","response":{"output":[{"content":[{"text":"bad"}]}]}}`)
	if !r.blocked() || len(r.sent) != 0 {
		t.Errorf("%+v %s", r.last, r.sent)
	}
}

// shapes are the places where a text can be. Each has one %s for a piece of it.
var shapes = []string{
	`{"choices":[{"index":%[2]d,"delta":{"content":"%[1]s"},"finish_reason":null}]}`,
	`{"choices":[{"delta":{"reasoning_content":"%[1]s"},"index":%[2]d}]}`,
	`{"id":"c","model":"m","choices":[{"index":%[2]d,"delta":{"content":"%[1]s"}}]}`,
	`{"id":"c","model":"%[1]s","choices":[{"index":%[2]d,"delta":{"content":""}}]}`,
	`{"choices":[{"index":%[2]d,"delta":{"content":[{"type":"text","text":"%[1]s"}]}}]}`,
	`{"choices":[{"index":%[2]d,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"%[1]s"}}]}}]}`,
	`{"choices":[{"index":%[2]d,"delta":{"tool_calls":[{"id":"x","index":0,"function":{"name":"%[1]s"}}]}}]}`,
	`{"choices":[{"index":%[2]d,"delta":{"anything":{"else":["%[1]s"]}}}]}`,
	`{"choices":[{"index":%[2]d,"text":"%[1]s"}]}`,
	`{"choices":[{"index":%[2]d,"message":{"content":"%[1]s"}}]}`,
	`{"choices":[{"index":%[2]d,"delta":{},"note":"%[1]s"}]}`,
	`{"choices":[],"note":"%[1]s"}`,
	`{"choices":[{"index":%[2]d,"delta":{"content":""},"logprobs":{"content":[{"token":"%[1]s"}]}}]}`,
	`{"type":"response.output_text.delta","output_index":%[2]d,"delta":"%[1]s"}`,
	`{"delta":"%[1]s","type":"response.mcp_call_arguments.delta","output_index":%[2]d}`,
	`{"type":"response.anything","said":"%[1]s"}`,
	`{"type":"transcript.text.delta","delta":"%[1]s"}`,
}

// unknownEvent is a type of an event that the API does not have.
const unknownEvent = "response.anything"

// FuzzLeaves splits texts into pieces in any way, and writes the pieces with any escapes at any
// place of an answer. It puts what was sent together again, as clients do. No text has the literal.
func FuzzLeaves(f *testing.F) {
	f.Add("a secret text", "secret", uint64(1), false)
	f.Add(`{"q":"\u0073ecret"}`, "secret", uint64(2), true)
	f.Add("aéab😀", "é", uint64(3), false)
	f.Add("aabaab", "aab", uint64(4), true)
	f.Fuzz(func(t *testing.T, said, literal string, seed uint64, ignoreCase bool) {
		literal = string([]rune(literal))
		if literal == "" || len(literal) > 20 || len(said) > 500 || strings.Contains(unknownEvent, literal) || strings.ContainsAny(literal, `\x"`+"\ufffd") {
			return
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := newRelay(moderation.Rule{Literals: []string{literal}, IgnoreCase: ignoreCase})
		first, second := rnd.IntN(len(shapes)), rnd.IntN(len(shapes))
		if len(said) > 0 && rnd.IntN(2) == 0 { // the second text hides the literal by escapes of its own
			said = said[:len(said)/2] + escaped(literal, rnd) + said[len(said)/2:]
		}
		for _, part := range split(rnd, said) {
			shape := shapes[first]
			if rnd.IntN(4) == 0 {
				shape = shapes[second]
			}
			r.see(t, strings.ReplaceAll(fmt.Sprintf(shape, quoted(part, rnd), rnd.IntN(2)), "%!(EXTRA int=0)", ""))
		}
		if r.last.Action < moderation.Block {
			r.end(t)
		}
		for at, text := range joined(t, r.sent) {
			for range 3 {
				if text = string([]rune(text)); strings.Contains(text, literal) {
					t.Fatalf("%s is %q, with %q:\n%s", at, text, literal, strings.Join(r.sent, "\n"))
				}
				text = withoutEscapes(text)
			}
		}
	})
}

// escaped writes a text with escapes, one or two levels deep.
func escaped(text string, rnd *rand.Rand) (out string) {
	for _, u := range utf16.Encode([]rune(text)) {
		slash := `\`
		if rnd.IntN(3) == 0 {
			slash = `\\`
		}
		out += slash + fmt.Sprintf("u%04x", u)
	}
	return out
}

var escapes = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])`)

// withoutEscapes undoes the escapes of a text that need not be JSON.
func withoutEscapes(text string) string {
	return escapes.ReplaceAllStringFunc(text, func(e string) string {
		var s string
		if json.Unmarshal([]byte(`"`+e+`"`), &s) != nil {
			return e
		}
		return s
	})
}

// joined returns the texts of events by their place.
func joined(t *testing.T, events []string) map[string]string {
	texts := map[string]string{}
	for _, e := range events {
		var v map[string]any
		if e == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		join(texts, fmt.Sprint(v["type"], v["output_index"]), v)
	}
	return texts
}

func join(texts map[string]string, at string, v any) {
	switch v := v.(type) {
	case string:
		texts[at] += v
	case []any:
		for i, e := range v {
			name := "[]"
			if o, ok := e.(map[string]any); ok {
				if n, ok := o["index"].(float64); ok {
					name = "[" + strconv.Itoa(int(n)) + "]"
				} else if strings.HasSuffix(at, ".choices") {
					name = "[" + strconv.Itoa(i) + "]"
				}
			}
			join(texts, at+name, e)
		}
	case map[string]any:
		for name, e := range v {
			if text, ok := e.(string); ok && name != "type" && name != "finish_reason" {
				texts[at+"."+name+" alone "+text] = text
			}
			if name != "type" && name != "id" && name != "model" && name != "finish_reason" { // they are the same in every event
				join(texts, at+"."+name, e)
			}
		}
	}
}
