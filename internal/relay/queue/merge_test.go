package queue_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// chunk makes an event of a chat with what its only choice has, and what follows the choices.
func chunk(choice, rest string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{` + choice + `}]` + rest + "}\n\n"
}

func delta(members string) string { return chunk(`"index":0,"delta":{`+members+`}`, "") }

func TestMerge(t *testing.T) {
	for name, test := range map[string]struct{ a, b, want string }{
		"text":            {delta(`"content":"a\""`), delta(`"content":"\u0062"`), delta(`"content":"a\"\u0062"`)},
		"after the role":  {delta(`"role":"assistant","content":""`), delta(`"content":"b"`), delta(`"role":"assistant","content":"b"`)},
		"after a null":    {delta(`"role":"assistant","content":null`), delta(`"content":"b"`), delta(`"role":"assistant","content":"b"`)},
		"into nothing":    {delta(``), delta(`"role":"assistant","reasoning":"b"`), delta(`"reasoning":"b","role":"assistant"`)},
		"role repeated":   {delta(`"role":"assistant","content":"a"`), delta(`"role":"assistant","content":"b"`), delta(`"role":"assistant","content":"ab"`)},
		"nulls":           {delta(`"content":"a"`), delta(`"content":null,"tool_calls":null`), delta(`"content":"a"`)},
		"another choice":  {delta(`"content":"a"`), chunk(`"index":1,"delta":{"content":"b"}`, ""), chunk(`"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}`, "")},
		"white space":     {strings.ReplaceAll(delta(`"content":"a"`), `,`, ` , `), delta(`"content":"b"`), strings.ReplaceAll(delta(`"content":"ab"`), `,`, ` , `)},
		"half a pair, no": {delta(`"content":"\ud83d"`), delta(`"content":"x\ude00"`), delta(`"content":"\ud83dx\ude00"`)},
		"usage": {
			chunk(`"index":0,"delta":{}`, `,"usage":{"prompt_tokens":1}`), chunk(`"index":0,"delta":{}`, `,"usage":{"prompt_tokens":2}`),
			chunk(`"index":0,"delta":{}`, `,"usage":{"prompt_tokens":2}`),
		},
		"first usage": {delta(`"content":"a"`), chunk(`"index":0,"delta":{}`, `,"usage":{"n":1}`), chunk(`"index":0,"delta":{"content":"a"}`, `,"usage":{"n":1}`)},
		"usage kept":  {chunk(`"index":0,"delta":{}`, `,"usage":{"n":1}`), chunk(`"index":0,"delta":{}`, `,"usage":null`), chunk(`"index":0,"delta":{}`, `,"usage":{"n":1}`)},
		"logprobs": {
			chunk(`"index":0,"delta":{},"logprobs":{"content":[{"token":"a"}],"refusal":null}`, ""), chunk(`"index":0,"delta":{},"logprobs":{"content":[1, 2],"refusal":[]}`, ""),
			chunk(`"index":0,"delta":{},"logprobs":{"content":[{"token":"a"},1, 2],"refusal":[]}`, ""),
		},
		"first logprobs": {chunk(`"index":0,"delta":{},"logprobs":null`, ""), chunk(`"index":0,"delta":{},"logprobs":{"content":[]}`, ""), chunk(`"index":0,"delta":{},"logprobs":{"content":[]}`, "")},
		"completion": {
			`data:{"object":"text_completion","choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],"text_offset":[0]}}]}` + "\r\n\r\n",
			`data: {"object":"text_completion","choices":[{"index":0,"text":"b","logprobs":{"text_offset":[1],"tokens":["b"]},"stop_reason":null}]}` + "\n\n",
			`data:{"object":"text_completion","choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"text_offset":[0,1]}}]}` + "\r\n\r\n",
		},
		"call": {
			delta(`"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}]`), delta(`"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]`),
			delta(`"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":"{\""}}]`),
		},
		"call without arguments": {
			delta(`"tool_calls":[{"index":0,"id":"x","function":{"name":"f"}}]`), delta(`"tool_calls":[{"index":0,"id":null,"function":{"arguments":"{}"}}]`),
			delta(`"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":"{}"}}]`),
		},
		"next call": {
			delta(`"tool_calls":[{"index":0,"function":{"arguments":"}"}}]`), delta(`"tool_calls":[{"index":1,"id":"y","function":{"name":"g","arguments":""}},{"index":0,"function":{"arguments":" "}}]`),
			delta(`"tool_calls":[{"index":0,"function":{"arguments":"} "}},{"index":1,"id":"y","function":{"name":"g","arguments":""}}]`),
		},
	} {
		q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 2})
		push(t, q, test.a+test.b)
		got, _ := popAll(t, q)
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// What cannot be joined without loss stays as it is.
func TestNotMerged(t *testing.T) {
	a := delta(`"content":"a"`)
	call := delta(`"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}]`)
	for name, pair := range map[string][2]string{
		"finish":             {a, chunk(`"index":0,"delta":{},"finish_reason":"stop"`, "")},
		"after the finish":   {chunk(`"index":0,"delta":{},"finish_reason":"stop"`, ""), a},
		"end marker":         {a, done},
		"usage alone":        {a, strings.Replace(chunk("", `,"usage":{}`), "[{}]", "[]", 1)},
		"another id":         {a, strings.Replace(a, `"id":"c"`, `"id":"d"`, 1)},
		"no id":              {a, strings.Replace(a, `"id":"c",`, ``, 1)},
		"another time":       {a, strings.Replace(a, `:1,`, `:2,`, 1)},
		"unknown member":     {a, chunk(`"index":0,"delta":{}`, `,"timings":{}`)},
		"unknown in choice":  {a, chunk(`"index":0,"delta":{},"x":null`, "")},
		"unknown in delta":   {a, delta(`"content":"b","Content":null`)},
		"escaped name":       {a, delta(`"content":"b","c\u006fntent":null`)},
		"twice":              {a, delta(`"content":"b","content":"c"`)},
		"parts":              {a, delta(`"content":[]`)},
		"error":              {a, chunk(`"index":0,"delta":{"content":"b"}`, `,"error":{}`)},
		"another role":       {delta(`"role":"assistant"`), delta(`"role":"tool"`)},
		"text after thought": {delta(`"reasoning_content":"a"`), a},
		"call after text":    {a, call},
		"same call again":    {call, call},
		"call of other type": {call, delta(`"tool_calls":[{"index":0,"type":"custom","function":{"arguments":"x"}}]`)},
		"call no index":      {call, delta(`"tool_calls":[{"function":{"arguments":"x"}}]`)},
		"call twice":         {call, delta(`"tool_calls":[{"index":0,"function":{"arguments":"x"}},{"index":0,"function":{"arguments":"y"}}]`)},
		"call without function": {
			delta(`"tool_calls":[{"index":0,"id":"x","type":"function"}]`), delta(`"tool_calls":[{"index":0,"function":{"arguments":"x"}}]`),
		},
		"call is no object":   {call, delta(`"tool_calls":[1]`)},
		"function twice":      {call, delta(`"tool_calls":[{"index":0,"function":{"name":null},"function":{"arguments":"y"}}]`)},
		"function is text":    {call, delta(`"tool_calls":[{"index":0,"function":"x"}]`)},
		"calls twice":         {a, delta(`"tool_calls":[],"tool_calls":[]`)},
		"delta twice":         {a, chunk(`"index":0,"delta":{"content":"b"},"delta":{}`, "")},
		"delta is null":       {a, chunk(`"index":0,"delta":null`, "")},
		"delta and text":      {a, chunk(`"index":0,"delta":{},"text":""`, "")},
		"choice is no object": {a, strings.Replace(chunk("", ""), "[{}]", "[1]", 1)},
		"choices twice":       {a, chunk(`"index":0,"delta":{}`, `,"choices":[]`)},
		"usage twice":         {a, chunk(`"index":0,"delta":{}`, `,"usage":null,"usage":null`)},
		"logprobs twice":      {a, chunk(`"index":0,"delta":{},"logprobs":{},"logprobs":{}`, "")},
		"list twice":          {a, chunk(`"index":0,"delta":{},"logprobs":{"content":[],"content":[]}`, "")},
		"chat and completion": {
			strings.Replace(delta(""), "chat.completion.chunk", "text_completion", 1), strings.Replace(chunk(`"index":0,"text":"b"`, ""), "chat.completion.chunk", "text_completion", 1),
		},
		"more than JSON":     {a, strings.Replace(a, "}\n\n", "}}\n\n", 1)},
		"half a pair":        {delta(`"content":"\uD83D"`), delta(`"content":"\uDe00"`)},
		"half a character":   {delta("\"content\":\"\xf0\x9f\""), delta("\"content\":\"\x98\x80\"")},
		"no index":           {a, chunk(`"delta":{"content":"b"}`, "")},
		"choice twice":       {a, chunk(`"index":0,"delta":{"content":"b"}},{"index":0,"delta":{"content":"c"}`, "")},
		"logprobs unknown":   {a, chunk(`"index":0,"delta":{},"logprobs":{"x":[]}`, "")},
		"token ids":          {a, chunk(`"index":0,"delta":{},"token_ids":[1]`, "")},
		"not JSON":           {a, a[:40] + "\n\n"},
		"with an event line": {a, "event: x\n" + a},
		"with an id":         {"id: 1\n" + a, a},
		"two data lines":     {a, strings.Replace(a, `,"model"`, "\ndata: ,\"model\"", 1)},
		"responses": {
			`data: {"type":"response.output_text.delta","delta":"a"}` + "\n\n", `data: {"type":"response.output_text.delta","delta":"b"}` + "\n\n",
		},
		"another object": {strings.Replace(a, "chat.completion.chunk", "x", 1), strings.Replace(a, "chat.completion.chunk", "x", 1)},
	} {
		q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 2})
		push(t, q, pair[0]+pair[1])
		got, numbers := popAll(t, q)
		if d := cmp.Diff(pair[0]+pair[1], got); d != "" || len(numbers) != 2 {
			t.Errorf("%s: %d events, %s", name, len(numbers), d)
		}
	}
}
