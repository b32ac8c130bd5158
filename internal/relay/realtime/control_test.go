package realtime

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestRefusals: each is told, and the socket goes on as if nothing had been sent.
func TestRefusals(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Conversation = 300 })
	c := g.dial(t)
	for _, test := range []struct{ message, code, param string }{
		{``, "invalid_request", ""},
		{`{`, "invalid_request", ""},
		{`null`, "invalid_request", ""},
		{`[]`, "invalid_request", ""},
		{`{} {}`, "invalid_request", ""},
		{`{}`, "invalid_request", "type"},
		{`{"type":1}`, "invalid_request", "type"},
		{`{"type":"begin"}`, "invalid_request", "type"},
		{`{"type":"pause","credit":1}`, "invalid_request", "credit"},
		{`{"type":"start","model":7}`, "invalid_request", "model"},
		{`{"type":"start","Model":"m"}`, "invalid_request", "Model"},
		{`{"type":"start","model":"m"}`, "invalid_request", "messages"},
		{`{"type":"start","model":"m","messages":[]}`, "invalid_request", "messages"},
		{`{"type":"start","model":"m","messages":["hi"]}`, "invalid_request", "messages"},
		{`{"type":"start","model":"m","message":"hi"}`, "invalid_request", "message"},
		{`{"type":"start","model":"m","message":{},"messages":[{}]}`, "invalid_request", "message"},
		{`{"type":"start","model":"m","messages":[{}],"tools":{}}`, "invalid_request", "tools"},
		{`{"type":"start","model":"m","messages":[{}],"credit":-1}`, "invalid_request", "credit"},
		{`{"type":"start","model":"m","messages":[{}],"credit":1.5}`, "invalid_request", "credit"},
		{`{"type":"start","model":"m","messages":[{}],"params":[]}`, "invalid_request", "params"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"model":"x"}}`, "invalid_request", "params.model"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"messages":[]}}`, "invalid_request", "params.messages"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"stream":false}}`, "invalid_request", "params.stream"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"n":2}}`, "invalid_request", "params.n"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"Stream":false}}`, "invalid_request", "stream"},
		{`{"type":"start","model":"m","messages":[{}],"params":{"max_tokens":-2}}`, "invalid_request", "max_tokens"},
		{`{"type":"start","model":"m","messages":[{"a":"` + strings.Repeat("x", 300) + `"}]}`, "request_too_large", ""},
		{`{"type":"start","model":"m","messages":[{}],"request_id":"` + strings.Repeat("x", 257) + `"}`, "invalid_request", "request_id"},
		{`{"type":"pause"}`, "invalid_request", ""},
		{`{"type":"resume"}`, "invalid_request", ""},
		{`{"type":"cancel"}`, "invalid_request", ""},
		{`{"type":"update"}`, "invalid_request", "params"},
		{`{"type":"update","params":{"tools":[]}}`, "invalid_request", "params.tools"},
		{`{"type":"update","params":{"x":"` + strings.Repeat("x", 300) + `"}}`, "request_too_large", ""},
		{`{"type":"tool_result","content":"x"}`, "invalid_request", "tool_call_id"},
		{`{"type":"tool_result","tool_call_id":"x"}`, "invalid_request", "content"},
		{`{"type":"tool_result","tool_call_id":"x","content":{}}`, "invalid_request", "content"},
		{`{"type":"tool_result","tool_call_id":"x","content":"x"}`, "invalid_request", "tool_call_id"},
		{`{"type":"tool_cancel","tool_call_id":"x"}`, "invalid_request", "tool_call_id"},
		{`{"type":"credit","tokens":0}`, "invalid_request", "tokens"},
		{`{"type":"credit","tokens":4294967296}`, "invalid_request", "tokens"},
		{`{"type":"credit","tokens":1}`, "invalid_request", ""},
		{"{\"type\":\"start\",\"model\":\"m\",\"messages\":[{\"content\":\"\xff\"}]}", "invalid_request", ""},
	} {
		c.send(test.message)
		m := c.fault(test.code)
		param := ""
		if m.Error.Param != nil {
			param = *m.Error.Param
		}
		if param != test.param || m.RequestID != "" {
			t.Errorf("%s:\n got %s, want param %q", test.message, m.raw, test.param)
		}
	}
	g.engine.none(t)
	c.send(hello)
	g.engine.next(t).finish("stop")
	c.final("stop")
}

func TestASecondStart(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	c.send(hello)
	if m := c.fault("request_id_conflict"); m.RequestID != "" {
		t.Errorf("reads as the end of the first: %s", m.raw)
	}
	c.send(strings.Replace(hello, "abc", "def", 1))
	if m := c.fault("invalid_request"); m.RequestID != "def" {
		t.Errorf("which start? %s", m.raw)
	}
	for _, kind := range []string{"pause", "resume", "cancel"} {
		c.send(`{"type":"` + kind + `","request_id":"def"}`)
		if m := c.fault("invalid_request"); *m.Error.Param != "request_id" {
			t.Errorf("%s of another turn: %s", kind, m.raw)
		}
	}
	g.engine.none(t)
	r.say("a")
	r.finish("stop")
	c.tokens("a")
	c.final("stop")
}

// TestCredit: the server sends what was allowed and not one more.
func TestCredit(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Heartbeat = always(20 * time.Millisecond) })
	c := g.dial(t)
	c.send(`{"type":"start","request_id":"abc","model":"m","messages":[{}],"credit":2}`)
	r := g.engine.next(t)
	r.say("a", "b")
	c.tokens("a", "b")
	third := r.event(chunk(`{"content":"c"}`))
	for range 3 { // an uncredited token would come between these
		if m := c.expect("heartbeat"); m.Phase != "credit" || m.RequestID != "abc" {
			t.Errorf("got %s", m.raw)
		}
	}
	c.send(`{"type":"credit","tokens":3}`)
	if err := within(t, third); err != nil {
		t.Fatal(err)
	}
	r.delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":"{}"}}]}`) // takes one, too
	kinds := func(want ...string) {
		t.Helper()
		for _, kind := range want {
			m, err := c.read()
			for err == nil && m.Type == "heartbeat" {
				m, err = c.read()
			}
			if err != nil || m.Type != kind {
				t.Fatalf("got %s %v, want %s", m.raw, err, kind)
			}
		}
	}
	r.finish("tool_calls")
	kinds("token", "tool_call", "tool_call", "final")
	c.send(`{"type":"tool_cancel","tool_call_id":"c0"}`)
	r = g.engine.next(t)
	r.say("d") // the one that was left over
	fifth := r.event(chunk(`{"content":"e"}`))
	kinds("token")
	if m := c.expect("heartbeat"); m.Phase != "credit" {
		t.Errorf("got %s", m.raw)
	}
	c.send(`{"type":"cancel"}`)
	var fault *openai.Error
	if err := within(t, fifth); !errors.As(err, &fault) || fault.Code != openai.CodeCancelled {
		t.Errorf("the event that waited: %v", err)
	}
	kinds("final")
	c.send(hello) // without credit: nothing counts
	r = g.engine.next(t)
	r.say("1", "2", "3", "4", "5")
	kinds("token", "token", "token", "token", "token")
}

func TestPause(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Heartbeat = always(20 * time.Millisecond) })
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	c.send(`{"type":"pause"}`)
	c.send(`{"type":"pause","request_id":"abc"}`)
	c.send(`{"type":"?"}`)
	c.fault("invalid_request") // both have been read
	held := r.event(chunk(`{"content":"a"}`))
	for range 3 {
		if m := c.expect("heartbeat"); m.Phase != "paused" {
			t.Errorf("got %s", m.raw)
		}
	}
	c.send(`{"type":"resume"}`)
	c.send(`{"type":"resume"}`)
	c.send(`{"type":"?"}`)
	if err := within(t, held); err != nil {
		t.Fatal(err)
	}
	var text string
	for m := c.expectAny(); m.Type != "error"; m = c.expectAny() { // both have been read
		text += m.Delta
	}
	r.say("b")
	r.finish("stop")
	for m := c.expectAny(); m.Type != "final"; m = c.expectAny() {
		text += m.Delta
	}
	if text != "ab" {
		t.Errorf("text %q", text)
	}
	c.send(`{"type":"pause"}`) // of no turn
	c.fault("invalid_request")
	c.send(hello)
	r = g.engine.next(t)
	r.say("not paused")
	c.tokens("not paused")
}

func (c *client) expectAny() said {
	c.t.Helper()
	m, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// TestFinalOfAPausedTurn comes: only tokens are held back.
func TestFinalOfAPausedTurn(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	r.say("a")
	c.tokens("a")
	c.send(`{"type":"pause"}`)
	c.send(`{"type":"?"}`)
	c.fault("invalid_request")
	within(t, r.later(func(s relay.Sink) error { return s.Heartbeat(relay.Progress{Phase: relay.Decode}) }))
	c.expect("heartbeat")
	r.finish("stop")
	c.final("stop")
}

func TestHeldUpForTooLong(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Hold = 50 * time.Millisecond })
	c := g.dial(t)
	c.send(`{"type":"start","request_id":"abc","model":"m","messages":[{}],"credit":0}`)
	r := g.engine.next(t)
	err := within(t, r.event(chunk(`{"content":"a"}`)))
	var fault *openai.Error
	if !errors.As(err, &fault) || fault.Code != openai.CodeClientTooSlow {
		t.Errorf("error %v", err)
	}
	r.end(relay.Result{})
	if m := c.fault("client_too_slow"); m.RequestID != "abc" {
		t.Errorf("got %s", m.raw)
	}
	c.send(hello)
	g.engine.next(t)
}

func TestTheConversationIsBounded(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Conversation = 400 })
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	long := strings.Repeat("x", 500)
	r.say(long) // goes to the client, and is not kept
	c.tokens(long)
	r.finish("stop")
	c.final("stop")
	c.send(`{"type":"start","message":{}}`)
	c.fault("request_too_large")
	c.send(hello)
	r = g.engine.next(t)
	r.delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":"{}"}}]}`)
	c.expect("tool_call")
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":"` + long + `"}`)
	c.fault("request_too_large")
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":"short"}`)
	r.finish("tool_calls")
	c.expect("tool_call")
	c.final("tool_calls")
	g.engine.next(t)
}

// TestGateIsExact: takers and givers at once.
func TestGateIsExact(t *testing.T) {
	none := int64(0)
	g := newGate(&none)
	var taken atomic.Int64
	var takers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		takers.Go(func() {
			for {
				waits, changed := g.acquire()
				if waits == "" {
					taken.Add(1)
					continue
				}
				select {
				case <-changed:
				case <-stop:
					return
				}
			}
		})
	}
	var givers sync.WaitGroup
	for range 4 {
		givers.Go(func() {
			for i := range 500 {
				g.addCredit(int64(i%3 + 1))
				if i%7 == 0 {
					g.setPaused(i%2 == 0)
				}
			}
			g.setPaused(false)
		})
	}
	givers.Wait()
	const given = 4 * (167*1 + 167*2 + 166*3)
	testutil.Eventually(t, "all is taken", func() bool { return taken.Load() >= given })
	close(stop)
	takers.Wait()
	if taken.Load() != given {
		t.Errorf("%d taken of %d", taken.Load(), given)
	}
}

// TestAnswersAreBounded: what is too large for the conversation is not held either.
func TestAnswersAreBounded(t *testing.T) {
	turn := &turn{bytesLeft: 5}
	for range 100 {
		turn.record(&delta.Delta{Kind: delta.Text}, "abc")
		turn.record(&delta.Delta{Kind: delta.ToolCall}, "abc")
	}
	if text := len(turn.answer.text); !turn.tooLarge || text > 5 {
		t.Errorf("%d bytes kept, lost %v", text, turn.tooLarge)
	}
}

// TestX7_AnswersToOpenAIClientsAreBounded: the last events of a response repeat its text, so a
// response ends when it has become too large for the conversation.
func TestX7_AnswersToOpenAIClientsAreBounded(t *testing.T) {
	for _, choice := range []string{"0", "1"} { // the second one was not asked for
		g := newGateway(t, func(h *Handler) { h.Limits.Conversation = 400 })
		c := g.dial(t)
		c.send(userItem)
		c.seen("conversation.item.done")
		c.send(`{"type":"response.create","response":{"model":"m"}}`)
		r := g.engine.next(t)
		long := `{"choices":[{"index":` + choice + `,"delta":{"content":"` + strings.Repeat("x", 500) + `"}}]}`
		if err := within(t, r.event(long)); err == nil {
			t.Errorf("choice %s: the engine goes on", choice)
		}
		r.finish("stop")
		if _, done := c.seen("response.done"); !strings.Contains(done.raw, `"status":"failed"`) || !strings.Contains(done.raw, `"code":"request_too_large"`) {
			t.Errorf("choice %s: %s", choice, done.raw)
		}
	}
}

// TestX7_ToolCallsAreBounded: an engine that makes calls without end is left.
func TestX7_ToolCallsAreBounded(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	var err error
	for n := 0; err == nil && n <= maxCalls; n++ {
		event := r.event(chunk(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"f"}}]}`, n, n)))
		if n < maxCalls {
			c.expect("tool_call")
		}
		err = within(t, event)
	}
	if err == nil {
		t.Error("the engine goes on")
	}
	r.finish("stop")
	c.fault("upstream_error")
}

// TestR5_StartWithoutAModel: the request of the turn names none, and the relay names one.
func TestR5_StartWithoutAModel(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"start","request_id":"abc","messages":[{}]}`)
	r := g.engine.next(t)
	if r.call.Scan.Model != "" || strings.Contains(string(r.call.Body), "model") {
		t.Errorf("model %q, body %s", r.call.Scan.Model, r.call.Body)
	}
	r.finish("stop")
	c.final("stop")
}

// TestR11_ABadModelIsNotKept: the turn after one that has failed because of its model has the model
// of before.
func TestR11_ABadModelIsNotKept(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	r.say("a")
	c.tokens("a")
	r.finish("stop")
	c.final("stop")
	c.send(`{"type":"start","model":"bad","message":{}}`)
	g.engine.next(t).end(relay.Result{Fault: openai.ModelNotFound("model", "bad")})
	c.fault("model_not_found")
	c.send(`{"type":"start","message":{}}`)
	if r = g.engine.next(t); r.call.Scan.Model != "m" {
		t.Errorf("the next turn has model %q", r.call.Scan.Model)
	}
	r.finish("stop")
	c.final("stop")
}
