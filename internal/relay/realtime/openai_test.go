package realtime

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// seen reads messages up to the first of a type. It returns their types, joined by spaces, and the
// last one.
func (c *client) seen(last string) (kinds string, m said) {
	c.t.Helper()
	for m.Type != last {
		var err error
		if m, err = c.read(); err != nil {
			c.t.Fatalf("after %s instead of %s: %v", kinds, last, err)
		}
		if !strings.Contains(m.raw, `"event_id":"event_`) {
			c.t.Errorf("no event_id: %s", m.raw)
		}
		kinds = strings.TrimSpace(kinds + " " + m.Type)
	}
	return kinds, m
}

const (
	userItem  = `{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}}`
	newAnswer = `{"type":"response.create"}`
)

// A conversation of OpenAI's protocol: settings, items, a text, and the next response after it.
func TestR8_Conversation(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"type":"realtime","model":"m","instructions":"Be brief.","temperature":0.5,"max_output_tokens":"inf"}}`)
	if kinds, m := c.seen("session.updated"); kinds != "session.created session.updated" || !strings.Contains(m.raw, `"instructions":"Be brief."`) {
		t.Fatalf("%s: %s", kinds, m.raw)
	}
	c.send(userItem)
	c.seen("conversation.item.done")
	c.send(newAnswer)
	r := g.engine.next(t)
	if b := r.body(); b.Model != "m" || *b.Heat != 0.5 || r.conversation() != `{"content":"Be brief.","role":"system"}`+"\n"+`{"content":"hi","role":"user"}` {
		t.Errorf("%s", r.call.Body)
	}
	r.say("Hel", "lo")
	r.delta(`{"reasoning_content":"hm"}`)
	r.finish("stop")
	kinds, done := c.seen("response.done")
	want := "response.created response.output_item.added conversation.item.added response.content_part.added response.output_text.delta " +
		"response.output_text.delta response.output_text.done response.content_part.done conversation.item.done response.output_item.done response.done"
	if kinds != want || !strings.Contains(done.raw, `"text":"Hello"`) || !strings.Contains(done.raw, `"status":"completed"`) || !strings.Contains(done.raw, `"cached_tokens":2`) {
		t.Errorf("%s: %s", kinds, done.raw)
	}
	c.send(userItem)
	c.send(newAnswer)
	if r = g.engine.next(t); !strings.Contains(r.conversation(), `{"role":"assistant","content":"Hello"}`+"\n") {
		t.Errorf("%s", r.conversation())
	}
	r.finish("length")
	if _, done = c.seen("response.done"); !strings.Contains(done.raw, `"reason":"max_output_tokens"`) {
		t.Errorf("%s", done.raw)
	}
	c.send(newAnswer)
	g.engine.next(t).finish("abort") // the engine has broken it off
	if _, done = c.seen("response.done"); !strings.Contains(done.raw, `"status":"failed"`) || !strings.Contains(done.raw, `"code":"upstream_error"`) {
		t.Errorf("%s", done.raw)
	}
}

// A tool call is answered by an item, and the client itself begins the next response. An item that
// comes while a response runs joins the conversation behind it.
func TestR8_Tools(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"tool_choice":{"type":"function","name":"f"}}}`)
	c.send(userItem)
	c.send(newAnswer)
	r := g.engine.next(t)
	if b := r.body(); !strings.Contains(string(b.Tools), `"function":{`) || string(b.ToolChoice) != `{"function":{"name":"f"},"type":"function"}` {
		t.Errorf("%s", r.call.Body)
	}
	r.delta(`{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\":"}}]}`)
	r.delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`)
	c.send(userItem)
	c.seen("conversation.item.done")
	r.finish("tool_calls")
	kinds, done := c.seen("response.done")
	if !strings.Contains(kinds, "response.function_call_arguments.done conversation.item.done response.output_item.done") || !strings.Contains(done.raw, `"arguments":"{\"a\":1}"`) {
		t.Errorf("%s: %s", kinds, done.raw)
	}
	c.send(`{"type":"conversation.item.create","item":{"type":"function_call_output","call_id":"call_1","output":"sunny"}}`)
	c.seen("conversation.item.done")
	g.engine.none(t)
	c.send(`{"type":"response.create","response":{"tool_choice":"none","instructions":"Now answer."}}`)
	r = g.engine.next(t)
	if said := r.conversation(); string(r.body().ToolChoice) != `"none"` || !strings.Contains(said, `"Now answer."`) ||
		!strings.HasSuffix(said, `{"content":"sunny","role":"tool","tool_call_id":"call_1"}`+"\n"+`{"content":"hi","role":"user"}`) {
		t.Errorf("%s", said)
	}
	r.say("Sunny.")
	r.finish("stop")
	c.seen("response.done")
}

// The tool_choice of a session holds for all of its responses, and that of a response for it alone.
// A setting that is null is none.
func TestR8_ToolChoiceOfASession(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"tools":[{"type":"function","name":"f"}],"tool_choice":"required"}}`)
	c.send(userItem)
	for i, response := range []struct{ settings, want string }{{`{}`, `"required"`}, {`{"input":null}`, `"required"`}, {`{"tool_choice":"auto"}`, `"auto"`}, {`null`, `"required"`}} {
		c.send(`{"type":"response.create","response":` + response.settings + `}`)
		r := g.engine.next(t)
		if got := string(r.body().ToolChoice); got != response.want {
			t.Errorf("response %d: tool_choice %s, want %s", i, got, response.want)
		}
		r.say("x")
		r.finish("stop")
		c.seen("response.done")
	}
}

// A session of text alone may say how its audio would be, as frameworks do. Nothing speaks there,
// so the other settings hold.
func TestR8_AudioSettingsOfATextSession(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	for _, modalities := range []string{"modalities", "output_modalities"} {
		c.send(`{"type":"session.update","session":{"` + modalities + `":["text"],"voice":"ash","audio":{"output":{"voice":"ash"}},"instructions":"Be brief."}}`)
		if _, m := c.seen("session.updated"); !strings.Contains(m.raw, `"Be brief."`) || strings.Contains(m.raw, "ash") {
			t.Errorf("%s: %s", modalities, m.raw)
		}
	}
	c.send(userItem)
	c.send(`{"type":"response.create","response":{"output_modalities":["text"],"audio":{"output":{"voice":"ash"}}}}`)
	r := g.engine.next(t)
	if said := r.conversation(); !strings.Contains(said, `"Be brief."`) {
		t.Errorf("%s", said)
	}
	r.say("x")
	r.finish("stop")
	c.seen("response.done")
}

// What this gateway does not serve is refused by name, and a response that is cancelled or fails
// says so. The socket goes on.
func TestR8_Refusals(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	for message, want := range map[string]string{
		`{"type":"session.update","session":{"output_modalities":["audio"]}}`:    "Audio is not served",
		`{"type":"session.update","session":{"audio":{"output":{"voice":"a"}}}}`: "Audio is not served",
		`{"type":"session.update","session":{"voice":"a","modalities":[]}}`:      "Audio is not served",
		`{"type":"input_audio_buffer.append","audio":"AAAA"}`:                    "Audio is not served",
		`{"type":"session.update","session":{"tools":[{"type":"mcp"}]}}`:         "type function",
		`{"type":"conversation.item.delete","item_id":"x"}`:                      "conversation.item.delete",
		`{"type":"conversation.item.create","item":{"type":"item_reference"}}`:   "not served",
		`{"type":"response.cancel"}`:                                             "No response runs",
		`{"type":"response.create","response":{"conversation":"none"}}`:          "outside of the conversation",
		`{"type":"response.create","response":{"input":[]}}`:                     "outside of the conversation",
		newAnswer: "conversation is empty",
		`{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_audio","audio":"AAAA"}]}}`: "Audio is not served",
	} {
		c.send(strings.Replace(message, "{", `{"event_id":"mine",`, 1))
		if _, m := c.seen("error"); !strings.Contains(m.raw, want) || !strings.Contains(m.raw, `"event_id":"mine"`) {
			t.Errorf("%s: %s", message, m.raw)
		}
	}
	c.send(userItem)
	c.send(newAnswer)
	r := g.engine.next(t)
	r.say("Hel")
	c.seen("response.output_text.delta")
	c.send(newAnswer)
	c.seen("error")
	c.send(`{"type":"response.cancel"}`)
	r.left()
	if _, m := c.seen("response.done"); !strings.Contains(m.raw, `"status":"cancelled"`) || !strings.Contains(m.raw, `"text":"Hel"`) {
		t.Errorf("%s", m.raw)
	}
	c.send(newAnswer)
	g.engine.next(t).end(relay.Result{Fault: openai.ModelNotFound("model", "m")})
	if kinds, m := c.seen("error"); kinds != "response.created response.done error" || !strings.Contains(m.raw, `"code":"model_not_found"`) {
		t.Errorf("%s: %s", kinds, m.raw)
	}
}

// The handshake and the first message say which protocol a client speaks.
func TestR8_WhichProtocol(t *testing.T) {
	g := newGateway(t, nil)
	sdk := handshake()
	sdk.Set("X-Stainless-Lang", "python")
	if m := g.dialWith(t, g.url+"?model=m", &websocket.DialOptions{HTTPHeader: sdk}).expect("session.created"); !strings.Contains(m.raw, `"model":"m"`) {
		t.Errorf("%s", m.raw)
	}
	silent := g.dialWith(t, g.url+"?model=m", nil)
	silent.expect("session.created")
	silent.send(`{"type":"start","messages":[{"role":"user","content":"hi"}]}`)
	r := g.engine.next(t)
	r.say("own")
	silent.tokens("own")
	r.finish("stop")
	silent.final("stop")
	beta := handshake()
	beta.Set("OpenAI-Beta", "realtime=v1")
	c := g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: beta})
	c.expect("session.created")
	c.send(userItem)
	c.expect("conversation.item.created")
	c.send(newAnswer)
	r = g.engine.next(t)
	r.say("x")
	r.finish("stop")
	if kinds, m := c.seen("response.done"); !strings.Contains(kinds, "response.text.delta response.text.done") || !json.Valid([]byte(m.raw)) {
		t.Errorf("%s: %s", kinds, m.raw)
	}
}

// itemOf is an event of a client that creates an item with this id behind another one.
func itemOf(id, previous string) string {
	return strings.Replace(userItem, `"item":{`, `"previous_item_id":"`+previous+`","item":{"id":"`+id+`",`, 1)
}

// items reads messages up to the first of a type. It returns what they say of items: the event, the
// item, its status, and the item before it.
func (c *client) items(last string) (list []string) {
	c.t.Helper()
	for {
		m, err := c.read()
		if err != nil {
			c.t.Fatal(err)
		}
		var e struct {
			Previous string `json:"previous_item_id"`
			Item     struct{ ID, Status string }
		}
		if err := json.Unmarshal([]byte(m.raw), &e); err != nil {
			c.t.Fatal(err)
		}
		if kind, ok := strings.CutPrefix(m.Type, "conversation.item."); ok {
			id := strings.Replace(e.Item.ID, "item_resp_r1.1_", "out", 1)
			list = append(list, strings.Join([]string{kind, id, e.Item.Status, "behind", strings.Replace(e.Previous, "item_resp_r1.1_", "out", 1)}, " "))
		}
		if m.Type == last {
			return list
		}
	}
}

// The items of a response are items of the conversation, and each item names the one before it. An
// item that comes while a response is generated stands behind the response.
func TestItemsOfTheConversation(t *testing.T) {
	for header, want := range map[string][]string{
		"X-Stainless-Lang": {"added one completed behind ", "done one completed behind ", "added out0 in_progress behind one",
			"added two completed behind out0", "done two completed behind out0", "added out1 in_progress behind out0",
			"done out1 completed behind out0", "done out0 completed behind one", "added three completed behind two", "done three completed behind two"},
		"OpenAI-Beta": {"created one completed behind ", "created out0 in_progress behind one", "created two completed behind out0",
			"created out1 in_progress behind out0", "created three completed behind two"},
	} {
		g := newGateway(t, nil)
		as := handshake()
		as.Set(header, "x")
		c := g.dialWith(t, g.url+"?model=m", &websocket.DialOptions{HTTPHeader: as})
		c.send(itemOf("one", "root"))
		c.send(newAnswer)
		r := g.engine.next(t)
		r.say("a")
		got := c.items("response.content_part.added")
		c.send(itemOf("two", ""))
		c.send(`{"type":"?"}`)
		got = append(got, c.items("error")...)
		r.delta(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`)
		r.finish("tool_calls")
		got = append(got, c.items("response.done")...)
		c.send(itemOf("three", "two"))
		c.send(itemOf("four", "one"))
		got = append(got, c.items("error")...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", header, diff)
		}
	}
}

// Settings reach the engine by the names of chat completions, and a response has the metadata that
// its client has given.
func TestSettingsOfResponses(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"model":"m","parallel_tool_calls":false,"reasoning":{"effort":"low"},"prompt":null,` +
		`"tools":[{"type":"function","name":"f"}]}}`)
	c.send(userItem)
	c.send(`{"type":"response.create","response":{"metadata":{"topic":"x"},"reasoning":{"effort":"high"}}}`)
	r := g.engine.next(t)
	if body := string(r.call.Body); !strings.Contains(body, `"parallel_tool_calls":false,"reasoning_effort":"high"`) {
		t.Error(body)
	}
	if _, m := c.seen("response.created"); !strings.Contains(m.raw, `"metadata":{"topic":"x"}`) {
		t.Error(m.raw)
	}
	r.finish("stop")
	if _, m := c.seen("response.done"); !strings.Contains(m.raw, `"metadata":{"topic":"x"}`) {
		t.Error(m.raw)
	}
	c.send(newAnswer)
	r = g.engine.next(t)
	if body := string(r.call.Body); !strings.Contains(body, `"reasoning_effort":"low"`) {
		t.Error(body)
	}
	r.finish("stop")
	if _, m := c.seen("response.done"); !strings.Contains(m.raw, `"metadata":null`) {
		t.Error(m.raw)
	}
	c.send(`{"type":"response.create","response":{"tools":[],"tool_choice":"auto"}}`) // engines refuse settings of tools without tools
	if r = g.engine.next(t); strings.Contains(string(r.call.Body), `tool`) {
		t.Error(string(r.call.Body))
	}
	r.finish("stop")
	c.seen("response.done")
	for _, refused := range []string{`"prompt":{"id":"p"}`, `"metadata":[]`, `"reasoning":"high"`} {
		c.send(`{"type":"response.create","response":{` + refused + `}}`)
		c.seen("error")
	}
}

// A cancel that names a response does not end another one.
func TestCancelOfAnotherResponse(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(`{"type":"session.update","session":{"model":"m"}}`)
	c.send(userItem)
	c.send(newAnswer)
	r := g.engine.next(t)
	c.send(`{"type":"response.cancel","response_id":"resp_r1.0"}`)
	if _, m := c.seen("error"); !strings.Contains(m.raw, `"param":"response_id"`) {
		t.Error(m.raw)
	}
	r.say("a")
	c.send(`{"type":"response.cancel","response_id":"resp_r1.1"}`)
	r.left()
	if _, m := c.seen("response.done"); !strings.Contains(m.raw, `"status":"cancelled"`) {
		t.Error(m.raw)
	}
}
