package realtime

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArrange(t *testing.T) {
	const (
		user   = `{"role":"user","content":"hi"}`
		text   = `{"role":"assistant","content":"hello"}`
		calls  = `{"role":"assistant","content":"well","tool_calls":[{"id":"a"},{"id":"b"}]}`
		callA  = `{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}`
		callB  = `{"role":"assistant","content":null,"tool_calls":[{"id":"b"}]}`
		answer = `{"role":"tool","tool_call_id":"a","content":"1"}`
		second = `{"role":"tool","tool_call_id":"b","content":"2"}`
	)
	for name, c := range map[string]struct{ messages, want []string }{
		"in order":                  {[]string{user, calls, answer, second, user}, []string{user, calls, answer, second, user}},
		"answers in another order":  {[]string{calls, second, answer}, []string{calls, answer, second}},
		"a message before answers":  {[]string{calls, user, answer, text, second}, []string{calls, answer, second, user, text}},
		"one message for each call": {[]string{callA, callB, answer, second}, []string{callA, answer, callB, second}},
		"an answer is missing":      {[]string{calls, second, user}, []string{`{"content":"well","role":"assistant","tool_calls":[{"id":"b"}]}`, second, user}},
		"all answers are missing":   {[]string{calls, user}, []string{`{"content":"well","role":"assistant"}`, user}},
		"nothing is left":           {[]string{user, callA, user}, []string{user, user}},
		"an id that comes again":    {[]string{callA, answer, user, callA, answer}, []string{callA, answer, user, callA, answer}},
		"an answer without a call":  {[]string{answer, user, `[]`}, []string{answer, user, `[]`}},
	} {
		var messages []json.RawMessage
		for _, m := range c.messages {
			messages = append(messages, json.RawMessage(m))
		}
		var got []string
		for _, m := range arrange(messages) {
			got = append(got, string(m))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestToolsThatAnswerLate: the user writes before a tool has answered, and asks although another
// tool does not answer. Engines refuse the messages in that order.
func TestToolsThatAnswerLate(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"model":"m"}}`)
	c.send(userItem)
	c.send(newAnswer)
	r := g.engine.next(t)
	r.delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}`)
	r.finish("tool_calls")
	c.seen("response.done")
	c.send(userItem)
	c.send(`{"type":"conversation.item.create","item":{"type":"function_call_output","call_id":"a","output":"sunny"}}`)
	c.send(newAnswer)
	want := []string{`{"content":"hi","role":"user"}`,
		`{"content":null,"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		`{"content":"sunny","role":"tool","tool_call_id":"a"}`, `{"content":"hi","role":"user"}`}
	r = g.engine.next(t)
	if diff := cmp.Diff(want, strings.Split(r.conversation(), "\n")); diff != "" {
		t.Error(diff)
	}
	r.finish("stop")
	c.seen("response.done")
	c.send(`{"type":"conversation.item.create","item":{"type":"function_call_output","call_id":"b","output":"late"}}`)
	c.send(newAnswer)
	r = g.engine.next(t)
	if said := r.conversation(); !strings.Contains(said, `"tool_call_id":"a"}`+"\n"+`{"content":"late","role":"tool","tool_call_id":"b"}`) || !strings.Contains(said, `"id":"b"`) {
		t.Error(said)
	}
	r.finish("stop")
	c.seen("response.done")
}
