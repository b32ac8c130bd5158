package relay

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/memory"
)

// responseEvents are the first events of a response with a text of this length.
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
	}{
		"short":     {length: 10, done: 2},
		"long":      {length: maxFollowedBytes + 1},
		"no memory": {length: 200 << 10, limit: 320 << 10},
	} {
		budget := memory.NewBudget(int64(c.limit))
		h := newHarness(t, options{handler: engineThatSends(responseEvents(c.length)...), memory: budget})
		_, text := h.post("/v1/responses")
		if done := strings.Count(text, ".done\""); done != c.done || strings.Count(text, `"type":"response.failed"`) != 1 || endingOf(text) != "error" {
			t.Errorf("%s: %d done events: %s", name, done, text[max(0, len(text)-1000):])
		}
		h.waitIdle()
		if n := budget.Used(memory.Replays); n != 0 {
			t.Errorf("%s: %d bytes stay reserved", name, n)
		}
	}
}
