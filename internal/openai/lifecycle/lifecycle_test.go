package lifecycle_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/lifecycle"
)

// whole is a stream with one item of each kind, without sequence numbers.
var whole = []string{
	`{"type":"response.created","response":{"id":"resp_1","object":"response","created_at":7,"model":"m","status":"in_progress","output":[],"metadata":{"a":"b"}}}`,
	`{"type":"response.in_progress","response":{"id":"resp_1","object":"response","created_at":7,"model":"m","status":"in_progress","output":[],"metadata":{"a":"b"}}}`,
	`{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}`,
	`{"type":"response.reasoning_summary_part.added","output_index":0,"item_id":"rs_1","summary_index":0,"part":{"type":"summary_text","text":""}}`,
	`{"type":"response.reasoning_summary_text.delta","output_index":0,"item_id":"rs_1","summary_index":0,"delta":"hm"}`,
	`{"type":"response.reasoning_summary_text.done","output_index":0,"item_id":"rs_1","summary_index":0,"text":"hm"}`,
	`{"type":"response.reasoning_summary_part.done","output_index":0,"item_id":"rs_1","summary_index":0,"part":{"type":"summary_text","text":"hm"}}`,
	`{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]}}`,
	`{"type":"response.output_item.added","output_index":1,"item":{"type":"message","id":"msg_1","role":"assistant","status":"in_progress","content":[]}}`,
	`{"type":"response.content_part.added","output_index":1,"item_id":"msg_1","content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}`,
	`{"type":"response.output_text.delta","output_index":1,"item_id":"msg_1","content_index":0,"delta":"say \"hi\" \ud83d"}`,
	`{"output_index":1,"item_id":"msg_1","content_index":0,"delta":"\ude00","type":"response.output_text.delta"}`,
	`{"type":"response.output_text.done","output_index":1,"item_id":"msg_1","content_index":0,"text":"say \"hi\" 😀"}`,
	`{"type":"response.content_part.done","output_index":1,"item_id":"msg_1","content_index":0,"part":{"type":"output_text","text":"say \"hi\" 😀","annotations":[]}}`,
	`{"type":"response.content_part.added","output_index":1,"item_id":"msg_1","content_index":1,"part":{"type":"refusal","refusal":""}}`,
	`{"type":"response.refusal.delta","output_index":1,"item_id":"msg_1","content_index":1,"delta":"No."}`,
	`{"type":"response.refusal.done","output_index":1,"item_id":"msg_1","content_index":1,"refusal":"No."}`,
	`{"type":"response.content_part.done","output_index":1,"item_id":"msg_1","content_index":1,"part":{"type":"refusal","refusal":"No."}}`,
	`{"type":"response.output_item.done","output_index":1,"item":{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[]}}`,
	`{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"","status":"in_progress"}}`,
	`{"type":"response.function_call_arguments.delta","output_index":2,"item_id":"fc_1","delta":"{\"a\":"}`,
	`{"type":"response.function_call_arguments.delta","output_index":2,"item_id":"fc_1","delta":"1}"}`,
	`{"type":"response.function_call_arguments.done","output_index":2,"item_id":"fc_1","arguments":"{\"a\":1}"}`,
	`{"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{\"a\":1}","status":"completed"}}`,
}

// client builds a response from events, as OpenAI's clients do, and fails where they fail.
type client struct {
	t     *testing.T
	id    string
	next  int64
	open  map[string]bool
	texts map[string]string
	last  map[string]any
	items int
}

func (c *client) receive(data string) {
	c.t.Helper()
	var e map[string]any
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		c.t.Fatalf("%v: %s", err, data)
	}
	if got := int64(e["sequence_number"].(float64)); got != c.next {
		c.t.Errorf("sequence number %d, want %d: %s", got, c.next, data)
	}
	c.next++
	kind := strings.TrimPrefix(e["type"].(string), "response.")
	subject, change, _ := strings.Cut(kind, ".")
	if r, ok := e["response"].(map[string]any); ok {
		if c.id == "" && kind == "created" {
			c.id = r["id"].(string)
		}
		if r["id"] != c.id || c.last != nil {
			c.t.Errorf("lifecycle response identity changed: %s", data)
		}
		if kind == "incomplete" || kind == "failed" {
			c.last = r
		}
		return
	}
	place := fmt.Sprint(subject, e["output_index"], e["content_index"], e["summary_index"])
	switch change {
	case "added":
		c.open[place] = true
		c.items++
	case "delta":
		c.open[place] = true
		c.texts[place] += e["delta"].(string)
	case "done":
		delete(c.open, place)
		for _, member := range []string{"text", "refusal", "arguments"} {
			if text, ok := e[member].(string); ok && strings.ToValidUTF8(text, "\ufffd") != c.texts[place] && !strings.Contains(c.texts[place], "\ufffd") {
				c.t.Errorf("%s ends with %q, its deltas were %q", place, text, c.texts[place])
			}
		}
	}
}

// The events that end a stream after any of its events fit what the client has received.
func TestR1_EndsAfterEachEvent(t *testing.T) {
	for n := range len(whole) + 1 {
		c := &client{t: t, open: map[string]bool{}, texts: map[string]string{}}
		var r lifecycle.Response
		for i, data := range whole[:n] {
			data = fmt.Sprintf(`%s,"sequence_number":%d}`, strings.TrimSuffix(data, "}"), i)
			r.See([]byte(data))
			c.receive(data)
		}
		end := lifecycle.End{Status: "incomplete", Reason: "max_output_tokens", Usage: map[string]int{"input_tokens": 1}, ID: "resp_1", Model: "m"}
		for _, e := range r.Events(end) {
			c.receive(string(e.Data))
		}
		output, _ := c.last["output"].([]any)
		items := strings.Count(strings.Join(whole[:n], ""), "output_item.added")
		if len(c.open) > 0 || c.last["status"] != "incomplete" || len(output) != items || n > 0 && c.last["metadata"] == nil {
			t.Errorf("after %d events: open %v, response %v", n, c.open, c.last)
		}
		if again := r.Events(end); again != nil {
			t.Errorf("after %d events: a second end %v", n, again)
		}
	}
}

// An item that the end has closed has what was written of it, in the event and in the output.
func TestR1_WhatWasWritten(t *testing.T) {
	var r lifecycle.Response
	for _, data := range append(slices.Clone(whole[:11]), whole[19], whole[20]) {
		r.See([]byte(data))
	}
	events := r.Events(lifecycle.End{Status: "failed", Error: []byte(`{"code":"upstream_truncated"}`)})
	var last struct {
		Response struct{ Output []map[string]any }
	}
	if err := json.Unmarshal(events[len(events)-1].Data, &last); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"type": "reasoning", "id": "rs_1", "summary": []any{map[string]any{"type": "summary_text", "text": "hm"}}},
		{"type": "message", "id": "msg_1", "role": "assistant", "status": "incomplete",
			"content": []any{map[string]any{"type": "output_text", "text": "say \"hi\" \ufffd", "annotations": []any{}}}},
		{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": `{"a":`, "status": "incomplete"},
	}
	if d := cmp.Diff(want, last.Response.Output); d != "" {
		t.Error(d)
	}
}

// A response whose items were dropped ends without them: the client has them.
func TestR1_Forgotten(t *testing.T) {
	var r lifecycle.Response
	for _, data := range whole[:11] {
		r.See([]byte(data))
	}
	if r.Kept() < 100 {
		t.Errorf("%d bytes are kept", r.Kept())
	}
	r.Forget()
	r.See([]byte(whole[11]))
	events := r.Events(lifecycle.End{Status: "incomplete", Reason: "content_filter"})
	if len(events) != 1 || r.Kept() != 0 || strings.Contains(string(events[0].Data), `"output"`) || !strings.Contains(string(events[0].Data), `"sequence_number":12`) {
		t.Errorf("%d bytes kept, %d events: %s", r.Kept(), len(events), events[0].Data)
	}
}

func TestNoAllocationForADelta(t *testing.T) {
	var r lifecycle.Response
	for _, data := range whole[:10] {
		r.See([]byte(data))
	}
	data := []byte(whole[10])
	if allocs := testing.AllocsPerRun(1000, func() { r.See(data) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzSee(f *testing.F) {
	f.Add(strings.Join(whole, "\n"))
	f.Fuzz(func(t *testing.T, stream string) {
		var r lifecycle.Response
		for data := range strings.SplitSeq(stream, "\n") {
			r.See([]byte(data))
		}
		events := r.Events(lifecycle.End{Status: "failed"})
		for _, e := range events {
			if !json.Valid(e.Data) {
				t.Fatalf("%s", e.Data)
			}
		}
	})
}
