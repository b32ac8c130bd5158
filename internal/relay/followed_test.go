package relay

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/memory"
)

func responseEvents(length int) []string {
	return []string{
		`data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","output":[]}}` + "\n\n",
		`data: {"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"type":"message","id":"msg_1","content":[]}}` + "\n\n",
		`data: {"type":"response.output_text.delta","sequence_number":2,"output_index":0,"content_index":0,"item_id":"msg_1","delta":"` + strings.Repeat("x", length) + `"}` + "\n\n",
	}
}

// A response that the engine breaks off ends with its own events and the error, and leaves nothing
// in the budget. A response that is too large to be kept ends without done events.
func TestR1_BrokenOffResponse(t *testing.T) {
	for name, c := range map[string]struct {
		length, limit int
		done          int
		// marked says that the engine sends an end marker, which ends chats.
		marked bool
	}{
		"short":     {length: 10, done: 2},
		"marked":    {length: 10, done: 2, marked: true},
		"long":      {length: maxFollowedBytes + 1},
		"no memory": {length: 200 << 10, limit: 320 << 10},
	} {
		budget := memory.NewBudget(int64(c.limit))
		events := responseEvents(c.length)
		if c.marked {
			events = append(events, doneEvent)
		}
		h := newHarness(t, options{handler: engineThatSends(events...), memory: budget})
		_, text := h.post("/v1/responses")
		if done := strings.Count(text, ".done\""); done != c.done || strings.Count(text, `"type":"response.failed"`) != 1 || endingOf(text) != "error" {
			t.Errorf("%s: %d done events: %s", name, done, text[max(0, len(text)-1000):])
		}
		var last struct {
			Type, Message  string
			SequenceNumber int `json:"sequence_number"`
			Error          struct{ Code string }
		}
		event, data, _ := strings.Cut(text[strings.LastIndex(text, "event: "):], "\ndata: ")
		if err := json.Unmarshal([]byte(data), &last); err != nil || event != "event: error" || last.Type != "error" || last.Message == "" ||
			last.Error.Code != "upstream_truncated" || last.SequenceNumber != strings.Count(text, "\ndata: ")+strings.Count(text[:6], "data: ")-1 {
			t.Errorf("%s: %v: the last event is no error of the Responses API: %s %s", name, err, event, data)
		}
		h.waitIdle()
		if n := budget.Used(memory.Replays); n != 0 {
			t.Errorf("%s: %d bytes stay reserved", name, n)
		}
	}
}

// A managed response of the Responses API has a finish reason, streamed or whole, and so has a
// whole chat.
func TestR3_ManagedResponsesHaveAFinishReason(t *testing.T) {
	end := func(status, details string) string {
		return `data: {"type":"response.` + status + `","response":{"id":"resp_1","status":"` + status + `","incomplete_details":` + details + `}}` + "\n\n"
	}
	for name, c := range map[string]struct {
		path, answer, want string
		stream             bool
	}{
		"completed":  {"/v1/responses", end("completed", "null"), "stop", true},
		"too long":   {"/v1/responses", end("incomplete", `{"reason":"max_output_tokens"}`), "length", true},
		"filtered":   {"/v1/responses", end("incomplete", `{"reason":"content_filter"}`), "content_filter", true},
		"whole":      {"/v1/responses", `{"object":"response","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}`, "length", false},
		"whole chat": {"/v1/chat/completions", `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"tool_calls"}]}`, "tool_calls", false},
	} {
		engine := engineThatSends(append(responseEvents(10), c.answer)...)
		if !c.stream {
			engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("content-type", "application/json")
				_, _ = io.WriteString(w, c.answer)
			})
		}
		h := newHarness(t, options{handler: engine})
		h.postFor(c.path, c.stream)
		if r := h.result(1); r.Fault != nil || r.Finish != c.want {
			t.Errorf("%s: finish %q, fault %v; want %q", name, r.Finish, r.Fault, c.want)
		}
	}
}

// An engine's error reaches a client of the Responses API as an event with a type, before and after
// the first token. An error that has a type stays as it is.
func TestR1_ErrorOfEngineHasAType(t *testing.T) {
	const untyped = `{"error":{"message":"out of memory","type":"server_error","code":400}}`
	const typed = `{"type":"error","code":"server_error","message":"out of memory","param":null,"sequence_number":3}`
	for name, c := range map[string]struct {
		events []string
		want   string
	}{
		"after the first token":  {append(responseEvents(10), "data: "+untyped+"\n\n"), `"sequence_number":3`},
		"before the first token": {[]string{responseEvents(10)[0], "data: " + untyped + "\n\n"}, `"message":"out of memory"`},
		"older form":             {append(responseEvents(10), `data: {"object":"error","message":"out of memory","type":"X","code":400}`+"\n\n"), `"sequence_number":3`},
		"with a type":            {append(responseEvents(10), "event: error\ndata: "+typed+"\n\n"), typed},
	} {
		h := newHarness(t, options{handler: engineThatSends(c.events...)})
		_, text := h.post("/v1/responses")
		begin, last := text[:strings.LastIndex(text, "event: ")], text[strings.LastIndex(text, "event: "):]
		event, data, _ := strings.Cut(strings.TrimSpace(last), "\ndata: ")
		var read struct{ Type, Message string }
		if err := json.Unmarshal([]byte(data), &read); err != nil || event != "event: error" || read.Type != "error" || read.Message != "out of memory" ||
			!strings.Contains(data, c.want) || strings.Contains(begin, "out of memory") {
			t.Errorf("%s: %v: %s", name, err, text)
		}
	}
}
