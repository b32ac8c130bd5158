package sim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestResponseEvents checks the order of events, which OpenAI's clients depend on.
func TestResponseEvents(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	opening := []string{"response.created", "response.in_progress", "response.output_item.added"}
	tests := []struct {
		name, body string
		want       []string
	}{
		{"text", `{"input":"hi","stream":true}`, append(opening[:3:3], "response.content_part.added", "response.output_text.delta",
			"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed")},
		{"cut short", `{"input":"hi","stream":true,"max_output_tokens":1}`, append(opening[:3:3], "response.content_part.added",
			"response.output_text.delta", "response.output_text.done", "response.content_part.done", "response.output_item.done",
			"response.incomplete")},
		{"two calls", `{"input":"f, g","stream":true,"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]}`,
			append(opening[:3:3], "response.function_call_arguments.delta", "response.function_call_arguments.done",
				"response.output_item.done", "response.output_item.added", "response.function_call_arguments.delta",
				"response.function_call_arguments.done", "response.output_item.done", "response.completed")},
	}
	for _, tt := range tests {
		events, err := s.events("/v1/responses", tt.body)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		var said strings.Builder
		items, id := -1.0, any(nil) // the open output item
		for i, e := range events {
			v := decode(t, e)
			if lookup(v, "sequence_number") != float64(i) {
				t.Errorf("%s: event %d has number %v", tt.name, i, lookup(v, "sequence_number"))
			}
			name := lookup(v, "type").(string)
			if len(got) == 0 || got[len(got)-1] != name {
				got = append(got, name)
			}
			if name == "response.output_item.added" {
				items++
				id = lookup(v, "item", "id")
			}
			if index := lookup(v, "output_index"); index != nil && index != items {
				t.Errorf("%s: %s for item %v, open is %v", tt.name, name, index, items)
			}
			if of := lookup(v, "item_id"); of != nil && of != id {
				t.Errorf("%s: %s for item %v, open is %v", tt.name, name, of, id)
			}
			if delta, ok := lookup(v, "delta").(string); ok && lookup(v, "content_index") != nil {
				said.WriteString(delta)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
		last := decode(t, events[len(events)-1])
		whole := s.object("/v1/responses", strings.Replace(tt.body, `"stream":true`, `"stream":false`, 1))
		text, _ := lookup(whole, "output", 0, "content", 0, "text").(string)
		if text != said.String() || lookup(last, "response", "status") != lookup(whole, "status") {
			t.Errorf("%s: streamed %q, want %q", tt.name, said.String(), text)
		}
		if diff := cmp.Diff(withoutIDs(lookup(whole, "output")), withoutIDs(lookup(last, "response", "output"))); diff != "" {
			t.Errorf("%s: the streamed response has another output\n%s", tt.name, diff)
		}
	}
}

// withoutIDs removes the ids, which differ from response to response.
func withoutIDs(v any) any {
	items, _ := v.([]any)
	for _, item := range items {
		delete(item.(map[string]any), "id")
	}
	return items
}

func TestResponse(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Name: "x"})
	v := s.object("/v1/responses", `{"input":"hi there","instructions":"be brief","metadata":{"a":"b"},"max_output_tokens":3}`)
	if lookup(v, "object") != "response" || lookup(v, "instructions") != "be brief" || lookup(v, "metadata", "a") != "b" {
		t.Errorf("unexpected response: %v", v)
	}
	if lookup(v, "status") != "incomplete" || lookup(v, "incomplete_details", "reason") != "max_output_tokens" {
		t.Errorf("unexpected response: %v", v)
	}
	prompt := float64(textPrompt("<|system|>\nbe brief\n<|user|>\nhi there\n<|assistant|>\n").tokens)
	if lookup(v, "usage", "input_tokens") != prompt || lookup(v, "usage", "output_tokens") != 3.0 || lookup(v, "usage", "total_tokens") != prompt+3 {
		t.Errorf("%v, want %v prompt tokens", lookup(v, "usage"), prompt)
	}
	v = s.object("/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"parts"}]},
		{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"forty-two"}]}`)
	if text := lookup(v, "output", 0, "content", 0, "text").(string); !strings.Contains(text, "“forty-two”") {
		t.Errorf("after a tool's result: %s", text)
	}
	v = s.object("/v1/responses", `{"input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"forty-"},{"type":"input_text","text":"three"}]}]}`)
	if text := lookup(v, "output", 0, "content", 0, "text").(string); !strings.Contains(text, "“forty-three”") {
		t.Errorf("after a tool's result in parts: %s", text)
	}
	v = s.object("/v1/responses", `{"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object","properties":{"a":{"type":"integer"}}}}}}`)
	if text := lookup(v, "output", 0, "content", 0, "text"); text != `{"a": 1}` {
		t.Errorf("structured: %v", text)
	}
}

func TestSampleJSON(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{}`:                 `"w"`,
		`true`:               `null`,
		`{"type":"object"}`:  `{}`,
		`{"const":[1]}`:      `[1]`,
		`{"enum":["a","b"]}`: `"a"`,
		`{"type":["null","integer"],"minimum":5}`:                                      `5`,
		`{"type":"number","maximum":0.5}`:                                              `0.5`,
		`{"type":"boolean"}`:                                                           `true`,
		`{"type":"null"}`:                                                              `null`,
		`{"type":"string","format":"date"}`:                                            `"2030-01-01"`,
		`{"type":"array","items":{"type":"integer"},"minItems":2}`:                     `[1, 1]`,
		`{"anyOf":[{"type":"boolean"},{"type":"null"}]}`:                               `true`,
		`{"properties":{"b":{"type":"null"},"a":{"type":"integer"}}}`:                  `{"a": 1, "b": null}`,
		`{"properties":{"b":{"type":"null"},"a":{"type":"integer"}},"required":["b"]}`: `{"b": null}`,
		`{"$ref":"#/$defs/x~1y","$defs":{"x/y":{"type":"integer"}}}`:                   `1`,
		`{"$ref":"#/nowhere"}`:                                                         `null`,
		`{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"],"additionalProperties":0}`: "",
	} {
		got := string(sampleJSON(lookup(decode(t, `{"s":`+schema+`}`), "s"), "w"))
		if want == "" { // a schema that contains itself: any document will do
			decode(t, got)
		} else if got != want {
			t.Errorf("%s: %s, want %s", schema, got, want)
		}
	}
}
