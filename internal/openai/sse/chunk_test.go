package sse_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

func TestChunk(t *testing.T) {
	choice := func(rest string) string { return `{"choices":[{"index":2,` + rest + `}]}` }
	one := func(token bool, finish string) sse.Chunk {
		return sse.Chunk{Token: token, Choices: []sse.Choice{{Index: 2, Token: token, Finish: []byte(finish)}}}
	}
	for data, want := range map[string]sse.Chunk{
		choice(`"delta":{"role":"assistant"}`):                                                            one(false, ""),
		choice(`"delta":{"role":"assistant","content":""}`):                                               one(false, ""),
		choice(`"delta":{"content":null,"tool_calls":null}`):                                              one(false, ""),
		choice(`"delta":{"tool_calls":[]}`):                                                               one(false, ""),
		choice(`"delta":null,"finish_reason":""`):                                                         one(false, ""),
		choice(`"delta":{"content":"\u0020"}`):                                                            one(true, ""),
		choice(`"delta":{"content":[{"type":"text","text":"x"}]}`):                                        one(true, ""),
		choice(`"delta":{"reasoning_content":"x","content":null}`):                                        one(true, ""),
		choice(`"delta":{"reasoning":"x"}`):                                                               one(true, ""),
		choice(`"delta":{"refusal":"x"}`):                                                                 one(true, ""),
		choice(`"delta":{"tool_calls":[{"index":0}]}`):                                                    one(true, ""),
		choice(`"delta":{"function_call":{"name":"f"}}`):                                                  one(true, ""),
		choice(`"text":"x"`):                                                                              one(true, ""),
		choice(`"text":"","finish_reason":"stop"`):                                                        one(false, "stop"),
		choice(`"delta":{"content":"x"},"finish_reason":"length"`):                                        one(true, "length"),
		`{"choices":[{"index":1.5}]}`:                                                                     {Choices: []sse.Choice{{Index: -1}}},
		`{"choices":[{"text":""},{"text":"x"},7,{"index":9}]}`:                                            {Token: true, Choices: []sse.Choice{{}, {Index: 1, Token: true}, {Index: 9}}},
		`{"choices":null,"usage":null,"error":null}`:                                                      {},
		`{"choices":{},"usage":[],"response":3,"delta":"x","type":4}`:                                     {},
		`{"usage":{"prompt_tokens":3,"completion_tokens":4}}`:                                             {HasUsage: true, Told: true, Usage: sse.Usage{Prompt: 3, Completion: 4}},
		`{"usage":{"prompt_tokens":3,"input_tokens":0,"completion_tokens":0,"output_tokens":4}}`:          {HasUsage: true, Told: true, Usage: sse.Usage{Prompt: 3, Completion: 4}},
		`{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":null}}}`:                    {HasUsage: true, Told: true, Usage: sse.Usage{Prompt: 3}},
		`{"usage":{"prompt_tokens":3,"completion_tokens":1e3}}`:                                           {HasUsage: true, Usage: sse.Usage{Prompt: 3}},
		`{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":"2"}}}`:                     {HasUsage: true, Usage: sse.Usage{Prompt: 3}},
		`{"usage":{"prompt_tokens":9999999999999}}`:                                                       {HasUsage: true},
		`{"usage":{"total_tokens":3}}`:                                                                    {HasUsage: true},
		`{"usage":{"prompt_tokens":-3,"prompt_tokens_details":null}}`:                                     {HasUsage: true},
		`{"error":{"message":"x"}}`:                                                                       {Error: true},
		`{"error":"x","choices":[]}`:                                                                      {Error: true},
		`{"object":"error","message":"x"}`:                                                                {Error: true},
		`{"type":"error","code":"x"}`:                                                                     {Error: true},
		`{"type":"response.failed","response":{"usage":{"input_tokens":1}}}`:                              {Error: true, HasUsage: true, Told: true, Usage: sse.Usage{Prompt: 1}},
		`{"type":"response.incomplete"}`:                                                                  {Last: true, Finish: "length"},
		`{"response":{"incomplete_details":{"reason":"max_output_tokens"}},"type":"response.incomplete"}`: {Last: true, Finish: "length"},
		`{"type":"response.incomplete","response":{"incomplete_details":{"reason":"content_filter"}}}`:    {Last: true, Finish: "content_filter"},
		`{"type":"response.completed","response":{"status":"completed","incomplete_details":null}}`:       {Last: true, Finish: "stop"},
		`{"type":"response.in_progress","response":{"status":"in_progress"}}`:                             {},
		`{"object":"response","status":"completed","incomplete_details":null}`:                            {Finish: "stop"},
		`{"status":"incomplete","object":"response","incomplete_details":{"reason":"content_filter"}}`:    {Finish: "content_filter"},
		`{"object":"response","status":"queued"}`:                                                         {},
		`{"object":"other","status":"completed"}`:                                                         {},
		`{"delta":"x","type":"response.output_text.delta"}`:                                               {Token: true},
		`{"delta":"","type":"response.output_text.delta"}`:                                                {},
		`{"delta":"x","type":"other.delta"}`:                                                              {},
	} {
		var c sse.Chunk
		c.Read([]byte(`{"choices":[{"index":5,"text":"y"}],"error":1,"type":"response.completed","object":"response","status":"completed","incomplete_details":{"reason":"content_filter"},"usage":{"prompt_tokens":8}}`))
		if !c.Read([]byte(data)) {
			t.Errorf("%s: not read", data)
		}
		if d := cmp.Diff(want, c, cmpopts.IgnoreUnexported(sse.Chunk{}), cmpopts.IgnoreFields(sse.Chunk{}, "UsageAt"), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: %s", data, d)
		}
	}
}

// What is no JSON object counts as nothing, whatever it begins with.
func TestOnlyTotal(t *testing.T) {
	for data, want := range map[string]int64{
		`{"usage":{"total_tokens":7}}`:                         7,
		`{"usage":{"total_tokens":7,"prompt_tokens":null}}`:    7,
		`{"usage":{"total_tokens":7,"prompt_tokens":7}}`:       0,
		`{"usage":{"total_tokens":7,"prompt_tokens":0}}`:       0,
		`{"usage":{"total_tokens":7,"completion_tokens":3}}`:   0,
		`{"usage":{"total_tokens":7,"prompt_tokens":"7"}}`:     0,
		`{"usage":{"total_tokens":"7"}}`:                       0,
		`{"usage":{"total_tokens":9999999999999}}`:             0,
		`{"usage":{"prompt_tokens":7,"total_tokens":"seven"}}`: 0,
		`{"total_tokens":7}`:                                   0,
	} {
		var c sse.Chunk
		c.Read([]byte(data))
		if got := c.OnlyTotal(); got != want {
			t.Errorf("%s: %d, want %d", data, got, want)
		}
		if told := strings.Contains(data, `"prompt_tokens":7`) || strings.Contains(data, `"prompt_tokens":0`); c.Told != told {
			t.Errorf("%s: told %t", data, c.Told)
		}
	}
}

func TestNotAChunk(t *testing.T) {
	full := `{"choices":[{"index":0,"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":1},"error":{}}`
	bad := []string{"", "x", "[]", `"a"`, "null", full + "x", full + full, `{"error":}`, `{"a":1,"error"}`}
	for i := range full {
		bad = append(bad, full[:i])
	}
	for _, data := range bad {
		var c sse.Chunk
		if c.Read([]byte(data)) || c.Token || c.Error || c.HasUsage || len(c.Choices) > 0 || c.Usage != (sse.Usage{}) {
			t.Errorf("%q counted: %+v", data, c)
		}
	}
}

func FuzzChunk(f *testing.F) {
	for _, g := range golden {
		for line := range strings.Lines(g.stream) {
			if _, data, ok := strings.Cut(line, "data:"); ok {
				f.Add([]byte(data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c sse.Chunk
		var members map[string]json.RawMessage
		object := json.Unmarshal(data, &members) == nil && members != nil
		if got := c.Read(data); got != object && strings.Count(string(data), "{")+strings.Count(string(data), "[") < 200 {
			t.Fatalf("%q is read: %v", data, got)
		}
	})
}

func track(t testing.TB, stream string) *sse.Tracker {
	var tr sse.Tracker
	var s sse.Scanner
	s.Feed([]byte(stream))
	for s.Next() {
		tr.See(s.Event())
	}
	s.End()
	for s.Next() {
		tr.See(s.Event())
	}
	return &tr
}

func TestGolden(t *testing.T) {
	for name, g := range golden {
		tr := track(t, g.stream)
		usage, used := tr.Usage()
		told := ""
		if used {
			told = fmt.Sprintf("%d/%d/%d", usage.Prompt, usage.Completion, usage.Cached)
		}
		if tr.Outcome() != sse.Complete || told != g.usage || tr.Tokens() != g.tokens || tr.Finish() != g.finish {
			t.Errorf("%s: %v, usage %s, %d tokens, %q", name, tr.Outcome(), told, tr.Tokens(), tr.Finish())
		}
	}
}

// A stream that stops before its end is truncated, wherever it stops.
func TestTruncated(t *testing.T) {
	for name, g := range golden {
		marker := strings.Index(g.stream, "data: [DONE]")
		finished := strings.LastIndex(g.stream, `"finish_reason":"`)
		if finished < 0 {
			finished = strings.Index(g.stream, "event: response.completed")
		}
		for i := range g.stream {
			rest := strings.TrimLeft(g.stream[i:], "\r\n")
			boundary := i > 0 && g.stream[i-1] == '\n' && strings.HasSuffix(strings.ReplaceAll(g.stream[:i], "\r", ""), "\n\n")
			want := sse.Truncated
			if rest == "" && marker >= 0 || strings.HasSuffix(g.stream[:i], "\r\n\r") && i > finished || boundary && i > finished {
				want = sse.Complete
			}
			if got := track(t, g.stream[:i]).Outcome(); got != want {
				t.Errorf("%s: cut after %q: %v", name, g.stream[max(0, i-40):i], got)
			}
		}
	}
}

func TestOutcome(t *testing.T) {
	finish := func(index int) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", index)
	}
	token := func(index int) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":{\"content\":\"x\"}}]}\n\n", index)
	}
	done := "data: [DONE]\n\n"
	for stream, want := range map[string]sse.Outcome{
		"":                                   sse.Truncated,
		": ping\n\n":                         sse.Truncated,
		done:                                 sse.Complete,
		token(0) + "data: [DONE]":            sse.Complete,
		token(0) + "data: [DONE":             sse.Truncated,
		token(0):                             sse.Truncated,
		token(0) + finish(0):                 sse.Complete,
		finish(0) + finish(0):                sse.Complete,
		token(0) + token(1) + finish(0):      sse.Truncated,
		finish(1) + token(0) + finish(0):     sse.Complete,
		finish(0) + finish(1<<20):            sse.Truncated,
		finish(0) + finish(1<<20) + done:     sse.Complete,
		finish(0) + "data: {\"usage\"":       sse.Truncated,
		"data: {\"error\":{}}\n\n" + done:    sse.Failed,
		"event: error\ndata: oh\n\n":         sse.Failed,
		"event: error\n\n" + done:            sse.Complete,
		"data: not json\n\n" + done:          sse.Complete,
		"data: {\"object\":\"error\"}\n\n":   sse.Failed,
		token(0) + "error: {\"code\":1}\n\n": sse.Truncated,
	} {
		if got := track(t, stream).Outcome(); got != want {
			t.Errorf("%q: %v, want %v", stream, got, want)
		}
	}
	tr := sse.Tracker{Choices: 2}
	tr.See(&scan(t, &sse.Scanner{}, []byte(finish(0)))[0])
	if tr.Outcome() != sse.Truncated {
		t.Error("one of two choices was enough")
	}
}
