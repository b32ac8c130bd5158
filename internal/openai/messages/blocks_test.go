package messages

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// blocksOf reads the events of a message as clients do: one block after the other, with all of its
// deltas between its start and its stop.
func blocksOf(t *testing.T, events string) (blocks []string) {
	t.Helper()
	open := -1
	for line := range strings.SplitSeq(events, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type  string
			Index int
			Block struct{ Type, ID string } `json:"content_block"`
			Delta struct {
				Text    string
				Partial string `json:"partial_json"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case "content_block_start":
			if open >= 0 || e.Index != len(blocks) {
				t.Errorf("block %d starts while block %d is open:\n%s", e.Index, open, events)
			}
			open, blocks = e.Index, append(blocks, e.Block.Type+" "+e.Block.ID+": ")
		case "content_block_delta", "content_block_stop":
			if open != e.Index {
				t.Errorf("%s of block %d while block %d is open:\n%s", e.Type, e.Index, open, events)
			}
			blocks[e.Index] += e.Delta.Text + e.Delta.Partial
			if e.Type == "content_block_stop" {
				open = -1
			}
		}
	}
	if open >= 0 && strings.Contains(events, "message_stop") {
		t.Errorf("block %d is open at the end", open)
	}
	return blocks
}

func chunkOf(delta string) string { return `{"id":"1","choices":[{"index":0,"delta":` + delta + `}]}` }

// startOf is the first piece of a tool call, and pieceOf a later one.
func startOf(index int, arguments string) string {
	return chunkOf(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"t%d","function":{"name":"f","arguments":%s}}]}`, index, index, strconv.Quote(arguments)))
}

func pieceOf(index int, arguments string) string {
	return chunkOf(fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, index, strconv.Quote(arguments)))
}

// TestB9_ToolCallsThatTakeTurns: an engine may send the pieces of several tool calls in turns. The
// blocks of the Messages API come one after the other.
func TestB9_ToolCallsThatTakeTurns(t *testing.T) {
	t.Parallel()
	text := func(s string) string { return chunkOf(`{"content":"` + s + `"}`) }
	for name, c := range map[string]struct{ events, want []string }{
		"turns": {[]string{startOf(0, ""), startOf(1, ""), pieceOf(0, `{"a":`), pieceOf(1, `{"b":"}`), pieceOf(0, `[1]}`), pieceOf(1, `\""}`)},
			[]string{`tool_use t0: {"a":[1]}`, `tool_use t1: {"b":"}\""}`}},
		"three": {[]string{startOf(0, "{"), startOf(1, "{"), startOf(2, "{}"), pieceOf(1, "}"), pieceOf(0, "}"), pieceOf(2, " ")},
			[]string{`tool_use t0: {}`, `tool_use t1: {}`, `tool_use t2: {} `}},
		"the second stays open": {[]string{startOf(0, "{"), startOf(1, "{"), pieceOf(0, "}"), startOf(2, "{"), pieceOf(1, "}"), pieceOf(2, "}")},
			[]string{`tool_use t0: {}`, `tool_use t1: {}`, `tool_use t2: {}`}},
		"no arguments": {[]string{startOf(0, ""), startOf(1, "{}")}, []string{`tool_use t0: `, `tool_use t1: {}`}},
		"cut off":      {[]string{startOf(0, `{"a`), startOf(1, `{"b`), pieceOf(0, `":`)}, []string{`tool_use t0: {"a":`, `tool_use t1: {"b`}},
		"text between": {[]string{startOf(0, `{`), text("x"), text("y"), pieceOf(0, `}`), startOf(1, `{}`), text("z")},
			[]string{`tool_use t0: {}`, `text : xy`, `tool_use t1: {}`, `text : z`}},
		"more than whole": {[]string{startOf(0, `{}`), startOf(1, `{`), pieceOf(0, " "), pieceOf(1, `}`)}, []string{`tool_use t0: {}`, `tool_use t1: {}`}},
	} {
		for _, end := range []string{`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`, `{"choices":[]}`} {
			got := translateAll(Options{}, append(c.events, end, "[DONE]")...)
			if diff := cmp.Diff(c.want, blocksOf(t, got)); diff != "" {
				t.Errorf("%s: %s\n%s", name, diff, got)
			}
		}
		for i := range c.events { // a clone goes on as the stream does
			s := Stream{}
			var out []byte
			for j, e := range c.events {
				if out = s.Append(out, []byte("data: "+e+"\n\n")); j == i {
					clone := s.Clone()
					clone.Append(nil, []byte("data: "+pieceOf(1, "another")+"\n\n"))
				}
			}
			if diff := cmp.Diff(c.want, blocksOf(t, string(s.Append(out, []byte("data: [DONE]\n\n"))))); diff != "" {
				t.Errorf("%s, cloned after event %d: %s", name, i, diff)
			}
		}
	}
}

// TestB9_ToolCallsOneAfterTheOther: each piece of such a call is passed on at once.
func TestB9_ToolCallsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var s Stream
	for _, e := range []string{startOf(0, ""), pieceOf(0, `{"a":1`), pieceOf(0, `}`), startOf(1, `{"a"`), pieceOf(1, `:2}`), startOf(2, `{}`)} {
		if got := s.Append(nil, []byte("data: "+e+"\n\n")); len(got) == 0 {
			t.Errorf("nothing comes of %s", e)
		}
	}
}

// TestB9_WaitingToolCallsAreBounded: what waits for the end of a tool call takes bounded memory.
func TestB9_WaitingToolCallsAreBounded(t *testing.T) {
	t.Parallel()
	var s Stream
	out := s.Append(nil, []byte("data: "+startOf(0, "{")+"\n\ndata: "+startOf(1, "{")+"\n\n"))
	piece := []byte("data: " + pieceOf(1, strings.Repeat("x", 64<<10)) + "\n\n")
	for range 2 * maxWaiting / (64 << 10) {
		out = s.Append(out, piece)
	}
	if text := string(out); !strings.Contains(text, "event: error\n") || len(s.waiting) > 0 {
		t.Errorf("%d blocks wait: %.300s", len(s.waiting), text)
	}
}

// TestCallsOfOneIndex: some engines give all tool calls the index 0. An id with a name begins
// another call. An id without a name does not, because some engines give each piece its own.
func TestCallsOfOneIndex(t *testing.T) {
	call := func(id, name, arguments string) string {
		return chunkOf(fmt.Sprintf(`{"tool_calls":[{"index":0,"id":%q,"function":{"name":%q,"arguments":%q}}]}`, id, name, arguments))
	}
	const end, done = `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`, "[DONE]"
	for name, c := range map[string]struct {
		chunks, want []string
	}{
		"whole calls": {
			[]string{call("a", "f", `{"x":1}`), call("b", "f", `{"x":2}`), call("c", "g", "{}")},
			[]string{`tool_use a: {"x":1}`, `tool_use b: {"x":2}`, "tool_use c: {}"},
		},
		"in pieces": {
			[]string{call("a", "f", ""), pieceOf(0, `{"x":`), pieceOf(0, "1}"), call("b", "f", ""), pieceOf(0, `{"x":`), pieceOf(0, "2}")},
			[]string{`tool_use a: {"x":1}`, `tool_use b: {"x":2}`},
		},
		"without arguments": {
			[]string{call("a", "f", ""), call("b", "g", ""), pieceOf(0, "{}")},
			[]string{"tool_use a: ", "tool_use b: {}"},
		},
		"in one chunk": {
			[]string{chunkOf(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":0,"id":"b","function":{"name":"f","arguments":"{}"}}]}`)},
			[]string{"tool_use a: {}", "tool_use b: {}"},
		},
		"a repeated id":   {[]string{call("a", "f", `{"x":`), call("a", "f", "1}")}, []string{`tool_use a: {"x":1}`}},
		"an id per piece": {[]string{call("a", "f", `{"x":`), call("b", "", "1}")}, []string{`tool_use a: {"x":1}`}},
	} {
		if diff := cmp.Diff(c.want, blocksOf(t, translateAll(Options{}, append(c.chunks, end, done)...))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
