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
		reason, _ := c.last["incomplete_details"].(map[string]any)
		if len(c.open) > 0 || c.last["status"] != "incomplete" || reason["reason"] != "max_output_tokens" || c.last["error"] != nil || len(output) != items || n > 0 && c.last["metadata"] == nil {
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

// What ends an item ends what is open in it, and repeats what the client knows already.
func TestR1_EachEndOfAnItem(t *testing.T) {
	var r lifecycle.Response
	for _, data := range []string{
		`{"type":"response.queued","sequence_number":5,"response":{"id":"resp_1"}}`,
		`{"type":"response.output_item.added","output_index":0,"item":{"id":"rs_1"}}`,
		`{"type":"response.reasoning_summary_part.added","output_index":0,"summary_index":0,"part":{"type":"summary_text"}}`,
		`{"type":"response.content_part.added","output_index":0,"content_index":0,"part":{"type":"reasoning_text"}}`,
		`{"type":"response.reasoning_summary_text.delta","output_index":0,"item_id":"rs_1","summary_index":0,"delta":"hm"}`,
		`{"type":"response.reasoning_text.delta","output_index":0,"item_id":"rs_1","content_index":1,"delta":"so"}`, // has no part
		`{"type":"response.output_item.added","output_index":1,"item":{"id":"msg_1"}}`,
		`{"type":"response.content_part.added","output_index":1,"content_index":0,"part":{"type":"output_text","text":""}}`,
		`{"type":"response.output_text.delta","output_index":1,"item_id":"msg_1","content_index":0,"delta":"a"}`,
		`{"type":"response.output_text.done","output_index":1,"item_id":"msg_1","content_index":0,"text":"ab"}`,
		`{"type":"response.content_part.done","output_index":1,"content_index":0,"part":{"type":"output_text","text":"ab"}}`,
		`{"type":"response.content_part.added","output_index":1,"content_index":1,"part":{"type":"output_text","text":""}}`,
		`{"type":"response.output_text.delta","output_index":1,"item_id":"msg_1","content_index":1,"delta":"c"}`,
		`{"type":"response.content_part.added","output_index":1,"content_index":2,"part":{"type":"output_text","text":""}}`,
		`{"type":"response.output_text.delta","output_index":1,"item_id":"msg_1","content_index":2,"delta":"d"}`,
		`{"type":"response.output_text.done","output_index":1,"item_id":"msg_1","content_index":2}`,
		`{"type":"response.output_item.added","output_index":2,"item":{"id":"fc_1"}}`,
		`{"type":"response.function_call_arguments.delta","output_index":2,"item_id":"fc_1","delta":"{"}`,
		`{"type":"response.output_item.added","output_index":5,"item":{"id":"ct_1"}}`,
		`{"type":"response.custom_tool_call_input.delta","output_index":5,"item_id":"ct_1","delta":"x"}`,
		`{"type":"response.custom_tool_call_input.done","output_index":5,"item_id":"ct_1","input":"xy"}`,
		`{"type":"response.output_item.added","output_index":3,"item":{"id":"msg_2"}}`,
		`{"type":"response.output_item.done","output_index":3,"item":{"id":"msg_2","content":[]}}`,
		`{"type":"response.output_text.delta","output_index":3,"content_index":0,"delta":"after the end"}`,
		`{"type":"response.output_text.delta","output_index":9,"item_id":"msg_9","content_index":0,"delta":"of no item"}`,
		`{"type":"response.unknown.delta","output_index":1,"content_index":0,"delta":"of no kind"}`,
		`{"type":"response.output_item.done","output_index":1,"item":null}`,
		`{"type":"response.output_item.added","output_index":4,"item":null}`,
		`{"type":"response.content_part.added","output_index":1,"content_index":3,"part":null}`,
		`{"type":"response.output_text.delta","output_index":1,"content_index":1,"delta":"no JSON"}}`,
		`{"type":"output_text.delta","output_index":1,"content_index":1,"delta":"no event"}`,
		`{"type":"error"}`, `[]`,
	} {
		r.See([]byte(data))
	}
	var got []string
	for _, e := range r.Events(lifecycle.End{Status: "failed", Error: []byte(`{"code":"x"}`)}) {
		got = append(got, string(e.Data))
	}
	const summary = `[{"text":"hm","type":"summary_text"}]`
	const content = `[{"type":"output_text","text":"ab"},{"text":"c","type":"output_text"},{"text":"d","type":"output_text"}]`
	want := []string{
		`{"content_index":1,"item_id":"rs_1","output_index":0,"sequence_number":38,"text":"so","type":"response.reasoning_text.done"}`,
		`{"item_id":"rs_1","output_index":0,"sequence_number":39,"summary_index":0,"text":"hm","type":"response.reasoning_summary_text.done"}`,
		`{"item_id":"rs_1","output_index":0,"part":{"text":"hm","type":"summary_text"},"sequence_number":40,"summary_index":0,"type":"response.reasoning_summary_part.done"}`,
		`{"content_index":0,"item_id":"rs_1","output_index":0,"part":{"type":"reasoning_text"},"sequence_number":41,"type":"response.content_part.done"}`,
		`{"item":{"content":[{"type":"reasoning_text"}],"id":"rs_1","status":"incomplete","summary":` + summary + `},"output_index":0,"sequence_number":42,"type":"response.output_item.done"}`,
		`{"content_index":1,"item_id":"msg_1","logprobs":[],"output_index":1,"sequence_number":43,"text":"c","type":"response.output_text.done"}`,
		`{"content_index":1,"item_id":"msg_1","output_index":1,"part":{"text":"c","type":"output_text"},"sequence_number":44,"type":"response.content_part.done"}`,
		`{"content_index":2,"item_id":"msg_1","output_index":1,"part":{"text":"d","type":"output_text"},"sequence_number":45,"type":"response.content_part.done"}`,
		`{"item":{"content":` + content + `,"id":"msg_1","status":"incomplete"},"output_index":1,"sequence_number":46,"type":"response.output_item.done"}`,
		`{"arguments":"{","item_id":"fc_1","output_index":2,"sequence_number":47,"type":"response.function_call_arguments.done"}`,
		`{"item":{"arguments":"{","id":"fc_1","status":"incomplete"},"output_index":2,"sequence_number":48,"type":"response.output_item.done"}`,
		`{"item":{"id":"ct_1","input":"xy","status":"incomplete"},"output_index":5,"sequence_number":49,"type":"response.output_item.done"}`,
		`{"response":{"error":{"code":"x"},"id":"resp_1","output":[{"content":[{"type":"reasoning_text"}],"id":"rs_1","status":"incomplete","summary":` + summary + `},` +
			`{"content":` + content + `,"id":"msg_1","status":"incomplete"},{"arguments":"{","id":"fc_1","status":"incomplete"},{"id":"ct_1","input":"xy","status":"incomplete"},` +
			`{"id":"msg_2","content":[]}],"status":"failed","usage":null},"sequence_number":50,"type":"response.failed"}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A response that the engine has ended needs no end.
func TestR1_EndedByTheEngine(t *testing.T) {
	for _, status := range []string{"completed", "incomplete", "failed"} {
		var r lifecycle.Response
		r.See([]byte(`{"type":"response.` + status + `","response":{"id":"resp_1"}}`))
		r.See([]byte(whole[8]))
		if events := r.Events(lifecycle.End{Status: "failed"}); events != nil || r.Kept() != 0 {
			t.Errorf("%s: %d bytes kept, and then %v", status, r.Kept(), events)
		}
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
	r.See([]byte(whole[19]))
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
