package delta_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

func TestAnswer(t *testing.T) {
	type part struct {
		Said said
		At   string
		Of   int
	}
	type ending struct {
		Choice          int
		Finish, Details string
		Duplicates      []string
		Close           string
		Response        bool
	}
	for name, test := range map[string]struct {
		body    string
		parts   []part
		endings []ending
	}{
		"chat": {
			`{"model":"m","choices":[{"index":1,"message":{"role":"assistant","content":"a\n","reasoning_content":"hm","refusal":null,"audio":{"data":"x"},` +
				`"tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{}"}}]},"logprobs":null,"finish_reason":"stop"}]}`,
			[]part{{said{Choice: 1, Text: "a\n"}, `"a\n"`, 0}, {said{Choice: 1, Kind: delta.Reasoning, Text: "hm"}, `"hm"`, 0},
				{said{Choice: 1, Kind: delta.ToolCall, ID: "i", Name: "f", Text: "{}"}, `"{}"`, 0}},
			[]ending{{Choice: 1, Finish: `"stop"`, Duplicates: []string{`{"data":"x"}`, "null"}, Close: "}]}"}},
		},
		"completions": {
			`{"choices":[{"text":"a","finish_reason":null},{"text":""},{"text":"b","index":7}]}`,
			[]part{{said{Text: "a"}, `"a"`, 0}, {said{Choice: 7, Text: "b"}, `"b"`, 2}},
			[]ending{{Finish: "null", Close: `},{"text":""},{"text":"b","index":7}]}`}, {Choice: 1, Close: `},{"text":"b","index":7}]}`}, {Choice: 7, Close: "}]}"}},
		},
		"responses": {
			`{"output":[{"type":"reasoning","content":[{"text":"hm"}]},{"content":[{"text":"x","logprobs":[]},{"refusal":"No"}],"type":"message"},1,` +
				`{"type":"function_call","call_id":"i","name":"f","arguments":"{}"}],"status":"completed","incomplete_details":null}`,
			[]part{{said{Kind: delta.Reasoning, Text: "hm"}, `"hm"`, 0}, {said{Text: "x"}, `"x"`, 0}, {said{Kind: delta.Refusal, Text: "No"}, `"No"`, 0},
				{said{Kind: delta.ToolCall, Tool: 3, ID: "i", Name: "f", Text: "{}"}, `"{}"`, 0}},
			[]ending{{Finish: `"completed"`, Details: "null", Duplicates: []string{"[]"}, Close: "}", Response: true}},
		},
		"odd":   {`{"choices":[1,{"message":2}],"output":3}`, nil, []ending{{Choice: 1, Close: `}],"output":3}`}, {Close: "}", Response: true}}},
		"error": {`{"error":{"message":"x"}}`, nil, nil},
	} {
		var a delta.Answer
		if !a.Read([]byte(test.body)) {
			t.Errorf("%s: not understood", name)
		}
		in := func(s delta.Span) string { return test.body[s.From:s.To] }
		var parts []part
		for _, p := range a.Parts {
			parts = append(parts, part{said{p.Choice, p.Kind, string(p.Text), p.Tool, string(p.ID), string(p.Name)}, in(p.At), p.Of})
		}
		if d := cmp.Diff(test.parts, parts); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		var endings []ending
		for _, e := range a.Endings {
			got := ending{Choice: e.Choice, Finish: in(e.Finish), Details: in(e.Details), Close: test.body[e.Close:], Response: e.Response}
			for _, at := range e.Duplicates {
				got.Duplicates = append(got.Duplicates, in(at))
			}
			endings = append(endings, got)
		}
		if d := cmp.Diff(test.endings, endings); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	var a delta.Answer
	for _, body := range []string{"", "x", "[]", `{"choices":[{"text":"x"}]`} {
		if a.Read([]byte(body)) || len(a.Parts)+len(a.Endings) > 0 {
			t.Errorf("%q was read", body)
		}
	}
}

// Whatever is read, what stands where the answer says is there, and the reader ends.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":1,"message":{"content":"a\n"},"finish_reason":"stop"}],"model":"m"}`))
	f.Add([]byte(`{"output":[{"type":"reasoning","content":[{"text":"hm"}]},{"arguments":"{}"}],"status":"completed"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a delta.Answer
		if !a.Read(body) {
			return
		}
		for _, p := range a.Parts {
			if p.Of >= len(a.Endings) || p.Of < 0 || body[p.At.From] != '"' || body[p.At.To-1] != '"' || p.At.To-p.At.From < 3 {
				t.Fatalf("%+v", p)
			}
		}
		for _, e := range a.Endings {
			if body[e.Close] != '}' {
				t.Fatalf("%+v", e)
			}
		}
	})
}
