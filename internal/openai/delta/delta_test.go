package delta_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// said is a delta in a form that can be compared.
type said struct {
	Choice   int
	Kind     delta.Kind
	Text     string
	Tool     int
	ID, Name string
}

func read(r *delta.Reader, data string) (out []said, ok bool) {
	deltas, ok := r.Read([]byte(data))
	for _, d := range deltas {
		out = append(out, said{d.Choice, d.Kind, string(d.Text), d.Tool, string(d.ID), string(d.Name)})
	}
	return out, ok
}

func chat(choice string) string {
	return `{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[` + choice + `],"usage":null}`
}

var samples = map[string]struct {
	data string
	want []said
}{
	"openai, first": {chat(`{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}`), nil},
	"openai": {chat(`{"index":0,"delta":{"content":"H\u00e9 \ud83d\ude00\n"},"logprobs":null,"finish_reason":null}`),
		[]said{{Text: "Hé 😀\n"}}},
	"openai, last": {chat(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}`), nil},
	"openai, tool": {chat(`{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":1,"id":"call_1","type":"function",` +
		`"function":{"name":"f","arguments":""}}],"refusal":null},"logprobs":null,"finish_reason":null}`),
		[]said{{Kind: delta.ToolCall, Tool: 1, ID: "call_1", Name: "f"}}},
	"openai, arguments": {chat(`{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\":\""}}]},"finish_reason":null}`),
		[]said{{Kind: delta.ToolCall, Tool: 1, Text: `{"a":"`}}},
	"openai, old function": {chat(`{"index":0,"delta":{"function_call":{"name":"f","arguments":"{"}},"finish_reason":null}`),
		[]said{{Kind: delta.ToolCall, Name: "f", Text: "{"}}},
	"openai, custom tool": {chat(`{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","type":"custom","custom":{"name":"f","input":"in"}}]}}`),
		[]said{{Kind: delta.ToolCall, ID: "x", Name: "f", Text: "in"}}},
	"vllm, reasoning": {chat(`{"index":0,"delta":{"reasoning_content":"hm","content":null},"logprobs":null,"finish_reason":null,"token_ids":null}`),
		[]said{{Kind: delta.Reasoning, Text: "hm"}}},
	"vllm, reasoning of today": {chat(`{"index":0,"delta":{"reasoning":"hm"},"logprobs":null,"finish_reason":"length","stop_reason":null}`),
		[]said{{Kind: delta.Reasoning, Text: "hm"}}},
	"vllm, reasoning by both names": {chat(`{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm"},"logprobs":null,"finish_reason":null}`),
		[]said{{Kind: delta.Reasoning, Text: "hm"}}},
	"reasoning by one name, and nothing by the other": {chat(`{"index":0,"delta":{"reasoning_content":null,"content":"","reasoning":"hm"}}`),
		[]said{{Kind: delta.Reasoning, Text: "hm"}}},
	"llama.cpp, index last": {chat(`{"finish_reason":null,"delta":{"content":" one"},"index":3}`), []said{{Choice: 3, Text: " one"}}},
	"refusal":               {chat(`{"index":1,"delta":{"role":"assistant","refusal":"No"},"finish_reason":null}`), []said{{Choice: 1, Kind: delta.Refusal, Text: "No"}}},
	"parts": {chat(`{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"x"}]}}`),
		[]said{{Kind: delta.Reasoning, Text: "hm"}, {Text: "x"}}},
	"two choices": {chat(`{"index":1,"delta":{"content":"b"},"finish_reason":null},{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}`),
		[]said{{Choice: 1, Text: "b"}, {Text: "a"}}},
	"no index":         {chat(`{"delta":{"content":"a"}},{"delta":{"content":"b"}}`), []said{{Text: "a"}, {Choice: 1, Text: "b"}}},
	"odd index":        {chat(`{"index":"x","delta":{"content":"a"}}`), []said{{Choice: -1, Text: "a"}}},
	"completion":       {`{"object":"text_completion","choices":[{"text":" x","index":2,"logprobs":null,"finish_reason":null}]}`, []said{{Choice: 2, Text: " x"}}},
	"lone halves":      {chat(`{"index":0,"delta":{"content":"\ud83d \ude00\ud83d\u0041\ud83d"}}`), []said{{Text: "\ufffd \ufffd\ufffdA\ufffd"}}},
	"half a character": {chat("{\"index\":0,\"delta\":{\"content\":\"\xc3\"}}"), []said{{Text: "\xc3"}}},
	"escaped name":     {chat(`{"index":0,"delta":{"con\u0074ent":"x"}}`), []said{{Text: "x"}}},
	"usage":            {`{"choices":[],"usage":{"prompt_tokens":1}}`, nil},
	"odd":              {`{"choices":[1,{"delta":1},{"delta":{"content":1,"tool_calls":[1,{"function":2}]}}],"type":7,"delta":{}}`, nil},
	"responses, text": {`{"type":"response.output_text.delta","item_id":"msg","output_index":1,"content_index":0,"delta":"In","sequence_number":4,"logprobs":[]}`,
		[]said{{Text: "In"}}},
	"responses, type last": {`{"delta":"In","type":"response.output_text.delta"}`, []said{{Text: "In"}}},
	"responses, reasoning": {`{"type":"response.reasoning_text.delta","delta":"hm"}`, []said{{Kind: delta.Reasoning, Text: "hm"}}},
	"responses, summary":   {`{"type":"response.reasoning_summary_text.delta","delta":"hm"}`, []said{{Kind: delta.Reasoning, Text: "hm"}}},
	"responses, refusal":   {`{"type":"response.refusal.delta","delta":"No"}`, []said{{Kind: delta.Refusal, Text: "No"}}},
	"responses, tool": {`{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc","call_id":"call_1","name":"f","arguments":""}}`,
		[]said{{Kind: delta.ToolCall, Tool: 2, ID: "call_1", Name: "f"}}},
	"responses, arguments": {`{"type":"response.function_call_arguments.delta","item_id":"fc","output_index":2,"delta":"{\"a\""}`,
		[]said{{Kind: delta.ToolCall, Tool: 2, Text: `{"a"`}}},
	"responses, message":    {`{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg","content":[]}}`, nil},
	"responses, whole text": {`{"type":"response.output_text.done","text":"In all"}`, nil},
	"responses, end":        {`{"type":"response.completed","response":{"status":"completed"}}`, nil},
	"empty":                 {`{}`, nil},
}

func TestRead(t *testing.T) {
	var r delta.Reader
	for name, test := range samples {
		got, ok := read(&r, test.data)
		if !ok {
			t.Errorf("%s: not understood", name)
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestNoObject(t *testing.T) {
	var r delta.Reader
	for _, data := range []string{"", "[DONE]", "null", `"x"`, `{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]`, chat(`{"delta":{"content":"x"}}`) + "x"} {
		if got, ok := read(&r, data); ok || got != nil {
			t.Errorf("%q says %v, %v", data, got, ok)
		}
	}
}

// Texts with escapes share a buffer: one does not write into another.
func TestManyEscapes(t *testing.T) {
	var choices []string
	var want []said
	for i := range 200 {
		choices = append(choices, `{"delta":{"content":"\n`+strings.Repeat("x", i)+`\t"}}`)
		want = append(want, said{Choice: i, Text: "\n" + strings.Repeat("x", i) + "\t"})
	}
	got, _ := read(&delta.Reader{}, chat(strings.Join(choices, ",")))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

const chunk200 = `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama-3-8b",` +
	`"choices":[{"index":0,"delta":{"content":" token\n"},"logprobs":null,"finish_reason":null}]}`

func TestNoAllocations(t *testing.T) {
	var r delta.Reader
	data := []byte(chunk200)
	if allocs := testing.AllocsPerRun(100, func() { r.Read(data) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkRead(b *testing.B) {
	var r delta.Reader
	data := []byte(chunk200)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if deltas, _ := r.Read(data); len(deltas) != 1 {
			b.Fatal(deltas)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Count(string(data), "[")+strings.Count(string(data), "{") >= 256 {
			return
		}
		var r delta.Reader
		got, ok := read(&r, string(data))
		if object := json.Valid(data) && strings.HasPrefix(strings.TrimLeft(string(data), " \t\r\n"), "{"); ok != object {
			t.Fatalf("ok: %v, encoding/json: %v", ok, object)
		}
		if !ok {
			return
		}
		want := oracle(data)
		for i := range got { // encoding/json replaces what is no UTF-8
			got[i].Text, got[i].ID, got[i].Name = string([]rune(got[i].Text)), string([]rune(got[i].ID)), string([]rune(got[i].Name))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("said: %s", d)
		}
	})
}

func TestReadAnswer(t *testing.T) {
	const answer = `{"choices":[{"index":1,"message":{"content":"b"}},{"index":0,"finish_reason":"tool_calls","message":{"tool_calls":[` +
		`{"id":"c","function":{"name":"f","arguments":"{}"}},{"id":"d","function":{"name":"g","arguments":{"x": [1]}}}],` +
		`"content":[{"type":"text","text":"a"}],"reasoning":"hm"}}]}`
	var r delta.Reader
	deltas, ok := r.ReadAnswer([]byte(answer))
	var got []said
	for _, d := range deltas {
		got = append(got, said{d.Choice, d.Kind, string(d.Text), d.Tool, string(d.ID), string(d.Name)})
	}
	want := []said{{Kind: delta.Reasoning, Text: "hm"}, {Text: "a"}, {Kind: delta.ToolCall, Text: "{}", ID: "c", Name: "f"},
		{Kind: delta.ToolCall, Text: `{"x": [1]}`, Tool: 1, ID: "d", Name: "g"}, {Choice: 1, Text: "b"}}
	if d := cmp.Diff(want, got); d != "" || !ok {
		t.Error(d)
	}
	if got, _ := read(&r, answer); got != nil {
		t.Errorf("an event with messages says %v", got)
	}
}
