package realtime

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

const hello = `{"type":"start","request_id":"abc","model":"m","messages":[{"role":"user","content":"hi"}]}`

func TestATurn(t *testing.T) {
	g := newGateway(t, nil)
	header := handshake()
	header.Set(headers.Priority, "batch")
	header.Set("traceparent", "00-1-2-01")
	header.Set("cookie", "a=b")
	c := g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: header})
	c.send(`{"type":"start","request_id":"abc","model":"m","messages":[{"role":"user","content":"hi"}],
		"params":{"top_p":0.5,"temperature":0.7,"timeout_ms":5000,"mine":{"a":[1]},"n":1},"tools":[{"type":"function"}]}`)
	r := g.engine.next(t)
	want := `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},` +
		`"tools":[{"type":"function"}],"request_id":"abc","mine":{"a":[1]},"n":1,"temperature":0.7,"timeout_ms":5000,"top_p":0.5}`
	if diff := cmp.Diff(want, string(r.call.Body)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(http.Header{"Traceparent": {"00-1-2-01"}}, r.call.Header); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	if !r.call.Patient || !r.call.OnConnection || r.call.Tenant.Name != "acme" || r.call.Priority != admission.Batch || r.call.Scan.RequestID != "abc" ||
		r.call.Scan.Timeout != 5*time.Second || r.call.RequestID != "r1.1" || r.call.Received.IsZero() {
		t.Errorf("call: %+v", r.call)
	}
	within(t, r.later(func(s relay.Sink) error {
		return s.Heartbeat(relay.Progress{Phase: relay.Starting, Position: 2, Waited: 1500 * time.Millisecond, Note: "loading"})
	}))
	beat := c.expect("heartbeat")
	if want := `{"type":"heartbeat","request_id":"abc","phase":"starting","position":2,"waited_ms":1500,"note":"loading"}`; beat.raw != want {
		t.Errorf("heartbeat %s", beat.raw)
	}
	r.delta(`{"role":"assistant","content":""}`) // no message
	r.delta(`{"reasoning_content":"hm <"}`)
	if m := c.expect("token"); m.raw != `{"type":"token","request_id":"abc","delta":"hm <","kind":"reasoning"}` {
		t.Errorf("reasoning %s", m.raw)
	}
	r.say("Hel", "lo\n")
	if m := c.expect("token"); m.raw != `{"type":"token","request_id":"abc","delta":"Hel"}` {
		t.Errorf("token %s", m.raw)
	}
	c.tokens("lo\n")
	r.finish("stop")
	if m := c.final("stop"); m.raw != `{"type":"final","request_id":"abc","finish_reason":"stop","usage":{"prompt_tokens":7,`+
		`"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":2}}}` {
		t.Errorf("final %s", m.raw)
	}
}

// Every turn of a WebSocket belongs to the session that its handshake names.
func TestB2_SessionOfAWebSocket(t *testing.T) {
	g := newGateway(t, nil)
	header := handshake()
	header.Set(headers.SessionID, "chat-7")
	c := g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: header})
	c.send(hello)
	r := g.engine.next(t)
	if got := r.call.Scan.Session(); got != "header:chat-7" {
		t.Errorf("the session is %q", got)
	}
	r.finish("stop")
	c.final("stop")
}

func TestTheConversationGoesOn(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dialWith(t, g.url+"?model=m", nil)
	c.send(`{"type":"start","messages":[{"role":"user","content":"one"}]}`)
	r := g.engine.next(t)
	r.delta(`{"reasoning":"not kept"}`)
	r.say("a", "b")
	r.finish("stop")
	if m := c.expect("token"); m.RequestID != "r1.1" {
		t.Errorf("made-up id: %s", m.raw)
	}
	c.tokens("a", "b")
	c.final("stop")

	kept := `{"role":"user","content":"one"}` + "\n" + `{"role":"assistant","content":"ab"}`
	for _, end := range []func(r *running){ // none of these answers
		func(r *running) { r.end(relay.Result{Fault: openai.Errorf(openai.CodeQueueTimeout, "too long")}) },
		func(*running) { c.send(`{"type":"cancel"}`) },
	} {
		c.send(`{"type":"start","message":{"role":"user","content":"two"}}`)
		r = g.engine.next(t)
		if diff := cmp.Diff(kept+"\n"+`{"role":"user","content":"two"}`, r.conversation()); diff != "" {
			t.Errorf("conversation (-want +got):\n%s", diff)
		}
		end(r)
		if m, err := c.read(); err != nil || m.Type != "error" && m.Type != "final" || m.RequestID == "" {
			t.Errorf("got %s %v", m.raw, err)
		}
	}
	c.send(`{"type":"start","message":{"role":"user","content":"three"}}`)
	r = g.engine.next(t)
	if diff := cmp.Diff(kept+"\n"+`{"role":"user","content":"three"}`, r.conversation()); diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
	r.say("part of it")
	c.tokens("part of it")
	c.send(`{"type":"cancel"}`)
	c.final("cancelled")
	c.send(`{"type":"start"}`)
	r = g.engine.next(t)
	want := kept + "\n" + `{"role":"user","content":"three"}` + "\n" + `{"role":"assistant","content":"part of it"}`
	if diff := cmp.Diff(want, r.conversation()); diff != "" {
		t.Errorf("after a cancelled turn (-want +got):\n%s", diff)
	}
	r.finish("stop")
	c.final("stop")
	c.send(`{"type":"start","messages":[{"role":"user","content":"new"}]}`)
	if got := g.engine.next(t).conversation(); got != `{"role":"user","content":"new"}` {
		t.Errorf("new conversation: %s", got)
	}
}

func TestParametersStay(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"start","model":"m","messages":[{"role":"user","content":"1"}],"params":{"temperature":0.5},"tools":[{"a":1}]}`)
	r := g.engine.next(t)
	c.send(`{"type":"update","params":{"temperature":0.25}}`)
	c.send(`{"type":"update","params":{"timeout_ms":-1}}`)
	c.fault("invalid_request") // and the first one has been read
	if heat := r.body().Heat; heat == nil || *heat != 0.5 {
		t.Errorf("the running turn: %s", r.call.Body)
	}
	r.finish("stop")
	c.final("stop")
	c.send(`{"type":"start","message":{"role":"user","content":"2"}}`)
	r = g.engine.next(t)
	if b := r.body(); b.Heat == nil || *b.Heat != 0.25 || string(b.Tools) != `[{"a":1}]` {
		t.Errorf("the next turn: %s", r.call.Body)
	}
	r.finish("stop")
	c.final("stop")
	c.send(`{"type":"start","messages":[{"role":"user","content":"3"}],"params":{"temperature":null},"tools":[ ]}`)
	r = g.engine.next(t)
	if b := r.body(); b.Heat != nil || b.Tools != nil {
		t.Errorf("taken away: %s", r.call.Body)
	}
}

func TestToolCalls(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"start","request_id":"abc","model":"m","messages":[{"role":"user","content":"q"}],"tools":[{}],
		"params":{"tool_choice":"required","temperature":1}}`)
	r := g.engine.next(t)
	r.delta(`{"tool_calls":[{"index":0,"id":"c0","type":"function","function":{"name":"f","arguments":""}}]}`)
	r.delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]}`)
	r.delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`)
	r.delta(`{"tool_calls":[{"index":1,"function":{"name":"g","arguments":"{}"}}]}`) // without an id
	var got []string
	for range 4 {
		got = append(got, c.expect("tool_call").raw)
	}
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":"early"}`)
	c.send(`{"type":"update","params":{"temperature":0}}`)
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":"twice"}`)
	c.fault("invalid_request")
	r.finish("tool_calls")
	got = append(got, c.expect("tool_call").raw, c.expect("tool_call").raw)
	c.final("tool_calls")
	if diff := cmp.Diff([]string{
		`{"type":"tool_call","request_id":"abc","id":"c0","index":0,"name":"f","arguments":"","done":false}`,
		`{"type":"tool_call","request_id":"abc","id":"c0","index":0,"name":"f","arguments":"{\"a\":","done":false}`,
		`{"type":"tool_call","request_id":"abc","id":"c0","index":0,"name":"f","arguments":"1}","done":false}`,
		`{"type":"tool_call","request_id":"abc","id":"call_1","index":1,"name":"g","arguments":"{}","done":false}`,
		`{"type":"tool_call","request_id":"abc","id":"c0","index":0,"name":"f","arguments":"","done":true}`,
		`{"type":"tool_call","request_id":"abc","id":"call_1","index":1,"name":"g","arguments":"","done":true}`,
	}, got); diff != "" {
		t.Errorf("tool calls (-want +got):\n%s", diff)
	}
	c.send(`{"type":"tool_result","tool_call_id":"c2","content":"?"}`)
	if m := c.fault("invalid_request"); *m.Error.Param != "tool_call_id" {
		t.Errorf("unknown call: %s", m.raw)
	}
	c.send(`{"type":"start","message":{"role":"user","content":"not yet"}}`)
	c.fault("invalid_request")
	g.engine.none(t)
	c.send(`{"type":"tool_cancel","tool_call_id":"call_1"}`)

	r = g.engine.next(t)
	want := strings.Join([]string{`{"role":"user","content":"q"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},` +
			`{"id":"call_1","type":"function","function":{"name":"g","arguments":"{}"}}]}`,
		`{"role":"tool","tool_call_id":"c0","content":"early"}`,
		`{"role":"tool","tool_call_id":"call_1","content":"The user cancelled this tool call."}`}, "\n")
	if diff := cmp.Diff(want, r.conversation()); diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
	if b := r.body(); b.ToolChoice != nil || b.Heat == nil || *b.Heat != 0 || b.Tools == nil || r.call.Scan.RequestID != "" {
		t.Errorf("the turn after: %s", r.call.Body)
	}
	r.say("so")
	r.finish("stop")
	if m := c.expect("token"); m.RequestID != "abc" {
		t.Errorf("the turn after has another id: %s", m.raw)
	}
	c.final("stop")
}

// TestCallsThatWereAnsweredEarly: the next turn begins with the end of the turn, when nothing is
// left to be answered.
func TestCallsThatWereAnsweredEarly(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	r.delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":"{}"}}]}`)
	c.expect("tool_call")
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":[{"type":"text","text":"x"}]}`)
	c.send(`{"type":"tool_result","tool_call_id":"c0","content":"twice"}`)
	c.fault("invalid_request")
	r.finish("tool_calls")
	if got := g.engine.next(t).conversation(); !strings.HasSuffix(got, `"content":[{"type":"text","text":"x"}]}`) {
		t.Errorf("conversation %s", got)
	}
}

// TestCallsThatWereCutShort are not made: their arguments have no end.
func TestCallsThatWereCutShort(t *testing.T) {
	for _, finish := range []string{"length", "content_filter", "abort", "error"} {
		g := newGateway(t, nil)
		c := g.dial(t)
		c.send(hello)
		r := g.engine.next(t)
		r.say("well")
		r.delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":"{\"a"}}]}`)
		r.finish(finish)
		c.tokens("well")
		c.expect("tool_call")
		c.final(finish)
		c.send(`{"type":"start","message":{"role":"user","content":"on"}}`)
		want := `{"role":"user","content":"hi"}` + "\n" + `{"role":"assistant","content":"well"}` + "\n" + `{"role":"user","content":"on"}`
		if diff := cmp.Diff(want, g.engine.next(t).conversation()); diff != "" {
			t.Errorf("%s: conversation (-want +got):\n%s", finish, diff)
		}
	}
}

func TestEndsOfTurns(t *testing.T) {
	answer := func(status int, body string) func(*running) {
		return func(r *running) {
			header := http.Header{"Retry-After": {"7"}}
			r.later(func(s relay.Sink) error {
				return s.Answer(&relay.Answer{Status: status, Header: header, Body: []byte(body)})
			})
			r.end(relay.Result{})
		}
	}
	for name, test := range map[string]struct {
		end  func(*running)
		want []string
	}{
		"fault": {
			func(r *running) { r.end(relay.Result{Fault: openai.Errorf(openai.CodeQueueTimeout, "late")}) },
			[]string{`{"type":"error","request_id":"abc","error":{"message":"late","type":"server_error","code":"queue_timeout","param":null,` +
				`"retryable":true,"retry_after_ms":1000}}`}},
		"cancelled elsewhere": {
			func(r *running) { r.end(relay.Result{Fault: openai.Errorf(openai.CodeCancelled, "over")}) },
			[]string{`{"type":"final","request_id":"abc","finish_reason":"cancelled","usage":{"completion_tokens":0,"estimated":true}}`}},
		"nothing said": {
			func(r *running) { r.end(relay.Result{}) },
			[]string{`{"type":"final","request_id":"abc","finish_reason":null,"usage":{"completion_tokens":0,"estimated":true}}`}},
		"refusal": {
			answer(422, `{"error":{"message":"no such role","type":"x","param":"messages","code":"bad_role"}}`),
			[]string{`{"type":"error","request_id":"abc","error":{"message":"no such role","type":"invalid_request_error","code":"bad_role",` +
				`"param":"messages","retryable":false}}`}},
		"refusal in vLLM's older form": {
			answer(400, `{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`),
			[]string{`{"type":"error","request_id":"abc","error":{"message":"too long","type":"invalid_request_error","code":"invalid_request",` +
				`"param":null,"retryable":false}}`}},
		"refusal without words": {
			answer(503, `down`),
			[]string{`{"type":"error","request_id":"abc","error":{"message":"The engine answered with status 503: down","type":"server_error",` +
				`"code":"upstream_error","param":null,"retryable":true,"retry_after_ms":7000}}`}},
		"error in an event": {
			func(r *running) {
				r.event(`{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}`)
				r.end(relay.Result{Fault: openai.Errorf(openai.CodeUpstreamError, "It could not finish."), Told: true})
			},
			[]string{`{"type":"error","request_id":"abc","error":{"message":"too long","type":"invalid_request_error","code":"invalid_request",` +
				`"param":"messages","retryable":false}}`}},
		"error in an event, of the engine itself": {
			func(r *running) {
				r.event(`{"error":{"message":"out of memory","type":"InternalServerError","code":500}}`)
				r.end(relay.Result{Fault: openai.Errorf(openai.CodeUpstreamError, "It could not finish."), Told: true})
			},
			[]string{`{"type":"error","request_id":"abc","error":{"message":"out of memory","type":"server_error","code":"upstream_error",` +
				`"param":null,"retryable":true,"retry_after_ms":1000}}`}},
		"refusal because of too many requests": {
			answer(429, `{"error":{"message":"busy"}}`),
			[]string{`{"type":"error","request_id":"abc","error":{"message":"busy","type":"rate_limit_error","code":"rate_limited",` +
				`"param":null,"retryable":true,"retry_after_ms":7000}}`}},
		"whole": {
			answer(200, `{"choices":[{"index":0,"message":{"content":"all","tool_calls":[]},"finish_reason":"stop"}]}`),
			[]string{`{"type":"token","request_id":"abc","delta":"all"}`,
				`{"type":"final","request_id":"abc","finish_reason":"stop","usage":{"completion_tokens":1,"estimated":true}}`}},
		"whole, as other engines write it": {
			answer(200, `{"choices":[{"message":{"content":[{"type":"text","text":"all"}],"reasoning":"hm","refusal":null},"finish_reason":"stop"}]}`),
			[]string{`{"type":"token","request_id":"abc","delta":"hm","kind":"reasoning"}`, `{"type":"token","request_id":"abc","delta":"all"}`,
				`{"type":"final","request_id":"abc","finish_reason":"stop","usage":{"completion_tokens":2,"estimated":true}}`}},
		"whole, with arguments that are an object": {
			answer(200, `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a": 1}}}]},"finish_reason":"length"}]}`),
			[]string{`{"type":"tool_call","request_id":"abc","id":"c","index":0,"name":"f","arguments":"{\"a\": 1}","done":false}`,
				`{"type":"final","request_id":"abc","finish_reason":"length","usage":{"completion_tokens":1,"estimated":true}}`}},
		"whole nonsense": {
			answer(200, `{"choices":[]}`),
			[]string{`{"type":"error","request_id":"abc","error":{"message":"The engine's answer is no chat completion.","type":"server_error",` +
				`"code":"upstream_error","param":null,"retryable":true,"retry_after_ms":1000}}`}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, nil)
			c := g.dial(t)
			c.send(hello)
			test.end(g.engine.next(t))
			for _, want := range test.want {
				if m, err := c.read(); err != nil || m.raw != want {
					t.Errorf("got  %s %v\nwant %s", m.raw, err, want)
				}
			}
			c.send(hello) // the socket goes on
			g.engine.next(t)
		})
	}
}

func TestCharactersAreWhole(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	euro := "€"
	for _, part := range []string{"1" + euro[:1], euro[1:2], euro[2:] + "2"} {
		if err := within(t, r.event(chunk(`{"content":"`+part+`"}`))); err != nil {
			t.Fatal(err)
		}
	}
	c.tokens("1", "€2")
}

// An event of which the client gets nothing takes the place of no heartbeat.
func TestS2_EventsOfWhichTheClientGetsNothing(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	var passed []int64
	for _, data := range []string{`{"role":"assistant","content":""}`, `{"content":"a"}`, `{}`} {
		done := r.later(func(s relay.Sink) error {
			err := s.Event([]byte("data: "+chunk(data)+"\n\n"), 0)
			passed = append(passed, s.(relay.SelectiveSink).Passed())
			return err
		})
		if err := within(t, done); err != nil {
			t.Fatal(err)
		}
	}
	c.tokens("a")
	if want := []int64{0, 1, 1}; !slices.Equal(passed, want) {
		t.Errorf("%v, not %v", passed, want)
	}
}

func TestATurnWithoutEnd(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	r.steps <- func() { r.over = true }
	c.fault("gateway_unavailable")
	if code := c.closed(); code != websocket.StatusInternalError {
		t.Errorf("closed with %d", code)
	}
}

func TestCancelSaysWhy(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	r.say("a")
	c.tokens("a")
	c.send(`{"type":"cancel","request_id":"abc"}`)
	var fault *openai.Error
	if err := r.left(); !errors.As(err, &fault) || fault.Code != openai.CodeCancelled {
		t.Errorf("cause %v", err)
	}
	if m := c.final("cancelled"); !strings.Contains(m.raw, `"completion_tokens":1`) {
		t.Errorf("usage: %s", m.raw)
	}
	if errors.Is(context.Cause(r.ctx), context.Canceled) {
		t.Error("looks like a client that left")
	}
}

// BenchmarkToken is the way of one event from the relay to a client on the same machine.
func BenchmarkToken(b *testing.B) {
	tokens := make(chan int)
	g := newGateway(b, func(h *Handler) { h.Generator = flood(tokens) })
	c := g.dial(b)
	c.send(hello)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for range b.N {
			if _, _, err := c.conn.Read(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	tokens <- b.N
	<-read
}

// flood says as many tokens as it is told.
type flood chan int

func (f flood) Generate(_ context.Context, _ *relay.Call, sink relay.Sink) {
	event := []byte("data: " + chunk(`{"content":"token"}`) + "\n\n")
	for range <-f {
		sink.Event(event, 0)
	}
	sink.Finish(relay.Result{Finish: "stop"})
}

// TestCallsOfOneIndex: some engines give all tool calls of an answer the index 0.
func TestCallsOfOneIndex(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	for _, piece := range []string{`"id":"a","function":{"name":"f","arguments":"{\"x\":"}`, `"function":{"arguments":"1}"}`,
		`"id":"b","function":{"name":"g","arguments":"{}"}`} {
		r.delta(`{"tool_calls":[{"index":0,` + piece + `}]}`)
	}
	r.finish("tool_calls")
	for _, want := range []said{{ID: "a", Name: "f", Arguments: `{"x":`}, {ID: "a", Name: "f", Arguments: "1}"},
		{ID: "b", Index: 1, Name: "g", Arguments: "{}"}, {ID: "a", Name: "f", Done: true}, {ID: "b", Index: 1, Name: "g", Done: true}} {
		m := c.expect("tool_call")
		if m.ID != want.ID || m.Index != want.Index || m.Name != want.Name || m.Arguments != want.Arguments || m.Done != want.Done {
			t.Errorf("got %s, want %+v", m.raw, want)
		}
	}
	c.final("tool_calls")
	c.send(`{"type":"tool_result","tool_call_id":"a","content":"1"}`)
	c.send(`{"type":"tool_result","tool_call_id":"b","content":"2"}`)
	const calls = `"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},` +
		`{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}`
	if text := g.engine.next(t).conversation(); !strings.Contains(text, calls) {
		t.Error(text)
	}
}
