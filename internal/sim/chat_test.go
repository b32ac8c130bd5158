package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai"
)

func contentOf(v map[string]any) string {
	text, _ := lookup(v, "choices", 0, "message", "content").(string)
	return text
}

func TestChat(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "the test"})
	v := s.object("/v1/chat/completions", chatBody("Tell me a story about the sea.", ""))
	text := contentOf(v)
	if !strings.HasPrefix(text, "Hello from the test. You said: “Tell me a story about the sea”. ") || !strings.Contains(text, "“story”") {
		t.Errorf("answer: %s", text)
	}
	if lookup(v, "object") != "chat.completion" || lookup(v, "model") != "sim" || lookup(v, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("unexpected response: %v", v)
	}
	again := s.object("/v1/chat/completions", chatBody("Tell me a story about the sea.", ""))
	if contentOf(again) != text {
		t.Errorf("the same question got another answer: %s", contentOf(again))
	}
	two := s.object("/v1/chat/completions", `{"messages":[{"role":"system","content":"x"},{"role":"user","content":"one"},
		{"role":"assistant","content":"two"},{"role":"user","content":[{"type":"text","text":"three"},{"type":"image_url","image_url":{"url":"data:"}}]}]}`)
	if got := contentOf(two); !strings.Contains(got, "turn 2") || !strings.Contains(got, "three") {
		t.Errorf("second turn: %s", got)
	}
}

// TestUsage checks the counts of tokens in a conversation of three turns.
func TestUsage(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	conversation := ""
	before := 0 // tokens of the last prompt and its answer
	for turn := 1; turn <= 3; turn++ {
		conversation += fmt.Sprintf(`{"role":"user","content":"This is what I say in turn %d"}`, turn)
		v := s.object("/v1/chat/completions", `{"messages":[`+conversation+`]}`)
		number := func(path ...any) int { return int(lookup(v, path...).(float64)) }
		prompt, completion := number("usage", "prompt_tokens"), number("usage", "completion_tokens")
		if got := len(tokenize(contentOf(v))); got != completion {
			t.Errorf("turn %d: the answer has %d tokens, usage says %d", turn, got, completion)
		}
		if number("usage", "total_tokens") != prompt+completion {
			t.Errorf("turn %d: %v does not add up", turn, lookup(v, "usage"))
		}
		// The whole prompt of the last turn and its answer are cached, up to the last full block.
		if got, want := number("usage", "prompt_tokens_details", "cached_tokens"), before/blockSize*blockSize; got != want {
			t.Errorf("turn %d: %d tokens cached, want %d", turn, got, want)
		}
		before = prompt + completion
		conversation += fmt.Sprintf(`,{"role":"assistant","content":%s},`, openai.Encode(contentOf(v)))
	}
}

func TestLengths(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	natural := int(lookup(s.object("/v1/chat/completions", chatBody("hi", "")), "usage", "completion_tokens").(float64))
	for more, want := range map[string]struct {
		tokens int
		finish string
	}{
		`,"max_tokens":5`: {5, "length"},
		`,"max_completion_tokens":6,"max_tokens":5`:      {6, "length"},
		`,"max_tokens":100000`:                           {natural, "stop"},
		`,"max_tokens":` + fmt.Sprint(natural):           {natural, "stop"},
		`,"max_tokens":500,"ignore_eos":true`:            {500, "length"},
		`,"ignore_eos":true`:                             {natural, "stop"},
		`,"min_tokens":200`:                              {200, "stop"},
		`,"min_tokens":200,"max_tokens":200`:             {200, "stop"},
		`,"min_tokens":2`:                                {natural, "stop"},
		`,"n":3,"max_tokens":4`:                          {12, "length"},
		`,"stream_options":null,"n":null,"max_tokens":1`: {1, "length"},
	} {
		v := s.object("/v1/chat/completions", chatBody("hi", more))
		got, finish := lookup(v, "usage", "completion_tokens"), lookup(v, "choices", 0, "finish_reason")
		if got != float64(want.tokens) || finish != want.finish {
			t.Errorf("%s: %v tokens, %v; want %+v", more, got, finish, want)
		}
		if n := len(tokenize(contentOf(v))) * len(lookup(v, "choices").([]any)); n != want.tokens {
			t.Errorf("%s: %d tokens of text", more, n)
		}
	}
}

func TestChatStream(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	whole := s.object("/v1/chat/completions", chatBody("Quote \"this\" <b>“ünïcode”</b>", ""))
	events, err := s.events("/v1/chat/completions",
		chatBody("Quote \"this\" <b>“ünïcode”</b>", `,"stream":true,"stream_options":{"include_usage":true}`), "X-Request-Id", `a"b`)
	if err != nil || events[len(events)-1] != "[DONE]" {
		t.Fatalf("%v %q", err, events)
	}
	if got := joinDeltas(t, events, 0); got != contentOf(whole) {
		t.Errorf("streamed %q, want %q", got, contentOf(whole))
	}
	tokens := int(lookup(whole, "usage", "completion_tokens").(float64))
	if want := tokens + 4; len(events) != want { // role, finish_reason, usage, [DONE]
		t.Errorf("%d events, want %d", len(events), want)
	}
	first, end, usage := decode(t, events[0]), decode(t, events[len(events)-3]), decode(t, events[len(events)-2])
	if lookup(first, "choices", 0, "delta", "role") != "assistant" || lookup(first, "id") != `chatcmpl-a"b` {
		t.Errorf("first: %v", first)
	}
	if lookup(end, "choices", 0, "finish_reason") != "stop" || len(lookup(end, "choices", 0, "delta").(map[string]any)) != 0 {
		t.Errorf("end: %v", end)
	}
	if lookup(usage, "usage", "completion_tokens") != float64(tokens) || len(lookup(usage, "choices").([]any)) != 0 {
		t.Errorf("usage: %v", usage)
	}
	// Without the option no chunk has a usage; with continuous_usage_stats every chunk has one.
	events, _ = s.events("/v1/chat/completions", chatBody("hi", `,"stream":true`))
	if strings.Contains(strings.Join(events, ""), "usage") {
		t.Error("the stream has a usage without include_usage")
	}
	events, _ = s.events("/v1/chat/completions", chatBody("hi", `,"stream":true,"stream_options":{"continuous_usage_stats":true}`))
	if got := lookup(decode(t, events[3]), "usage", "completion_tokens"); got != 3.0 {
		t.Errorf("continuous usage after the third token: %v", got)
	}
}

func TestChoicesAdvanceTogether(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	events, err := s.events("/v1/chat/completions", chatBody("hi", `,"stream":true,"n":2,"max_tokens":3`))
	if err != nil {
		t.Fatal(err)
	}
	var order []float64
	for _, e := range events[:len(events)-1] {
		order = append(order, lookup(decode(t, e), "choices", 0, "index").(float64))
	}
	if diff := cmp.Diff([]float64{0, 0, 1, 1, 0, 1, 0, 0, 1, 1}, order); diff != "" {
		t.Errorf("unexpected result: -want +got\n%s", diff)
	}
}

const tools = `,"tools":[
	{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","required":["city","unit"],
		"properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]},"days":{"type":"integer"}}}}},
	{"type":"function","function":{"name":"get_time"}}]`

func TestToolCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	weather := []string{`get_weather {"city": "tool", "unit": "C"}`}
	tests := []struct {
		name, body string
		want       []string
	}{
		{"no word of tools", chatBody("hi", tools), nil},
		{"the word", chatBody("use a Tool", tools), []string{`get_weather {"city": "Tool", "unit": "C"}`}},
		{"switched off", chatBody("use a tool", tools+`,"tool_choice":"none"`), nil},
		{"required", chatBody("tool", tools+`,"tool_choice":"required"`), weather},
		{"named", chatBody("hi", tools+`,"tool_choice":{"type":"function","function":{"name":"get_time"}}`), []string{"get_time {}"}},
		{"both", chatBody("get_time and get_weather", tools), []string{`get_weather {"city": "get_weather", "unit": "C"}`, "get_time {}"}},
		{"one at a time", chatBody("get_time, get_weather", tools+`,"parallel_tool_calls":false`),
			[]string{`get_weather {"city": "get_weather", "unit": "C"}`}},
		{"the result", `{"messages":[{"role":"user","content":"tool"},{"role":"tool","content":"42"}]` + tools + `}`, nil},
	}
	for _, tt := range tests {
		v := s.object("/v1/chat/completions", tt.body)
		list, _ := lookup(v, "choices", 0, "message", "tool_calls").([]any)
		var got []string
		for _, c := range list {
			got = append(got, fmt.Sprint(lookup(c, "function", "name"), " ", lookup(c, "function", "arguments")))
		}
		finish := "stop"
		if tt.want != nil {
			finish = "tool_calls"
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || lookup(v, "choices", 0, "finish_reason") != finish {
			t.Errorf("%s: %v -want +got\n%s", tt.name, lookup(v, "choices", 0), diff)
		}
	}
}

func TestToolCallStream(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	events, err := s.events("/v1/chat/completions", chatBody("get_time and get_weather", tools+`,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	names, arguments, ids := map[any]any{}, map[any]string{}, map[any]bool{}
	fragments := 0
	for _, e := range events[:len(events)-2] {
		c := lookup(decode(t, e), "choices", 0, "delta", "tool_calls", 0)
		if c == nil {
			continue
		}
		index := lookup(c, "index")
		if id := lookup(c, "id"); id != nil {
			names[index], ids[id] = lookup(c, "function", "name"), true
		}
		arguments[index] += lookup(c, "function", "arguments").(string)
		fragments++
	}
	if diff := cmp.Diff(map[any]any{0.0: "get_weather", 1.0: "get_time"}, names); diff != "" || len(ids) != 2 {
		t.Errorf("ids %v, names -want +got\n%s", ids, diff)
	}
	if diff := cmp.Diff(map[any]string{0.0: `{"city": "get_weather", "unit": "C"}`, 1.0: "{}"}, arguments); diff != "" || fragments < 8 {
		t.Errorf("%d fragments, -want +got\n%s", fragments, diff)
	}
	if got := lookup(decode(t, events[len(events)-2]), "choices", 0, "finish_reason"); got != "tool_calls" {
		t.Errorf("finish_reason %v", got)
	}
	v := s.object("/v1/chat/completions", chatBody("use a tool", tools+`,"max_tokens":4`))
	if got := lookup(v, "choices", 0, "message", "tool_calls", 0, "function", "arguments"); got != `{"city":` || lookup(v, "choices", 0, "finish_reason") != "length" {
		t.Errorf("a call that is cut short: %v", lookup(v, "choices", 0))
	}
}

func TestChatInJSON(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	for format, want := range map[string]string{
		`{"type":"text"}`:        "",
		`{"type":"json_object"}`: `{"simulated": true, "you_said": "hi"}`,
		`{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"type":"string"}}}}}`: `{"a": "hi"}`,
	} {
		got := contentOf(s.object("/v1/chat/completions", chatBody("hi", `,"response_format":`+format)))
		if want != "" && got != want || want == "" && !strings.HasPrefix(got, "Hello") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	v := s.object("/v1/completions", `{"prompt":["one","two"],"n":2,"max_tokens":12}`)
	var got []string
	for i := range 4 {
		if lookup(v, "choices", i, "index") != float64(i) || lookup(v, "choices", i, "finish_reason") != "length" {
			t.Errorf("choice %d: %v", i, lookup(v, "choices", i))
		}
		got = append(got, lookup(v, "choices", i, "text").(string))
	}
	if !strings.Contains(got[1], "one") || !strings.Contains(got[2], "two") || lookup(v, "object") != "text_completion" {
		t.Errorf("unexpected text: %q", got)
	}
	if lookup(v, "usage", "prompt_tokens") != 2.0 || lookup(v, "usage", "completion_tokens") != 48.0 {
		t.Errorf("unexpected usage: %v", lookup(v, "usage"))
	}
	if v := s.object("/v1/completions", `{"prompt":[[1,2,3],[4]]}`); lookup(v, "usage", "prompt_tokens") != 4.0 {
		t.Errorf("token ids: %v", lookup(v, "usage"))
	}
	events, err := s.events("/v1/completions", `{"prompt":"one","stream":true,"max_tokens":12,"stream_options":{"include_usage":true}}`)
	var text strings.Builder
	for _, e := range events[:len(events)-2] {
		text.WriteString(lookup(decode(t, e), "choices", 0, "text").(string))
	}
	if text.String() != got[0] || err != nil || len(events) != 12+3 {
		t.Errorf("%d events, %v: %s", len(events), err, text.String())
	}
}
