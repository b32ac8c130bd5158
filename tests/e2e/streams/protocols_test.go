package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// readMessages reads messages up to the first of the given type, and returns all of them.
func readMessages(t *testing.T, ws *websocket.Conn, until string) (all []harness.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	for {
		var m harness.Message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		all = append(all, m)
		if m["type"] == until {
			return all
		}
		if m["type"] == "error" {
			t.Fatalf("%v", m)
		}
	}
}

func messageText(all []harness.Message) (text string) {
	for _, m := range all {
		if m["type"] == "token" {
			text += m["delta"].(string)
		}
	}
	return text
}

// Several turns on one socket: answers, changed parameters, a pause, credit, a cancel, a tool call.
// Keys and quotas are those of all requests.
func TestE2E_S9_Realtime(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme")
	const model = `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 5ms}
    stream: {heartbeat: 300ms}
`
	g := harness.Start(t, "\nauth: {mode: keys}\n"+text+model)
	if _, r, err := websocket.Dial(t.Context(), g.URL+"/v1/realtime", nil); err == nil || r == nil || r.StatusCode != 401 {
		t.Errorf("without a key: %v", err)
	}
	if a := g.Fetch("/v1/realtime", "Authorization: Bearer "+keys["acme"]); a.StatusCode != 426 {
		t.Errorf("without an upgrade: %s", a)
	}
	ws := g.Realtime(keys["acme"])
	user := func(text string) []harness.Message { return []harness.Message{{"role": "user", "content": text}} }

	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "a", "model": "m", "messages": user("hello"), "params": harness.Message{"max_tokens": 12, "ignore_eos": true}})
	all := readMessages(t, ws, "final")
	final := all[len(all)-1]
	if final["finish_reason"] != "length" || final["request_id"] != "a" || final["usage"].(map[string]any)["completion_tokens"] != 12.0 || messageText(all) == "" {
		t.Errorf("%v", all)
	}
	// The next turn goes on with the conversation, with a changed parameter.
	harness.SendMessage(t, ws, harness.Message{"type": "update", "params": harness.Message{"max_tokens": 5}})
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "b", "message": harness.Message{"role": "user", "content": "go on"}})
	all = readMessages(t, ws, "final")
	if usage := all[len(all)-1]["usage"].(map[string]any); usage["completion_tokens"] != 5.0 || usage["prompt_tokens"].(float64) <= final["usage"].(map[string]any)["prompt_tokens"].(float64) {
		t.Errorf("the second turn: %v", all[len(all)-1])
	}
	// Credit holds the engine up exactly.
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "c", "messages": user("credit"), "params": harness.Message{"max_tokens": 20}, "credit": 6})
	for range 6 { // a busy machine has heartbeats between them
		readMessages(t, ws, "token")
	}
	if more := readMessages(t, ws, "heartbeat"); len(more) != 1 {
		t.Errorf("after 6 tokens for 6 credits: %v", more)
	}
	harness.SendMessage(t, ws, harness.Message{"type": "credit", "tokens": 100})
	if rest := readMessages(t, ws, "final"); strings.Count(fmt.Sprint(rest), "type:token") != 14 {
		t.Errorf("after the credit: %v", rest)
	}
	// A pause, and a cancel, which frees the engine.
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "d", "messages": user("long"), "params": harness.Message{"max_tokens": 100000}})
	readMessages(t, ws, "token")
	harness.SendMessage(t, ws, harness.Message{"type": "pause"})
	harness.Eventually(t, "the pause has begun", func() error { // tokens that were on their way
		all = readMessages(t, ws, "heartbeat")
		if last := all[len(all)-1]; last["phase"] != "paused" {
			return fmt.Errorf("%v", last)
		}
		return nil
	})
	if more := readMessages(t, ws, "heartbeat"); len(more) != 1 {
		t.Errorf("paused: %v", more)
	}
	harness.SendMessage(t, ws, harness.Message{"type": "resume"})
	readMessages(t, ws, "token")
	harness.SendMessage(t, ws, harness.Message{"type": "cancel", "request_id": "d"})
	all = readMessages(t, ws, "final")
	if all[len(all)-1]["finish_reason"] != "cancelled" {
		t.Errorf("%v", all[len(all)-1])
	}
	g.AwaitIdle("m")
	// A tool is called and answered; the answer goes on by itself.
	tool := harness.Message{"type": "function", "function": harness.Message{"name": "weather", "parameters": harness.Message{"type": "object", "properties": harness.Message{}}}}
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "e", "messages": user("use the tool weather"), "tools": []harness.Message{tool}, "params": harness.Message{"max_tokens": 50, "tool_choice": "required"}})
	all = readMessages(t, ws, "final")
	var call harness.Message
	for _, m := range all {
		if m["type"] == "tool_call" {
			call = m
		}
	}
	if call == nil || call["name"] != "weather" || call["done"] != true {
		t.Fatalf("%v", all)
	}
	harness.SendMessage(t, ws, harness.Message{"type": "tool_result", "tool_call_id": call["id"], "content": "sunny"})
	if all = readMessages(t, ws, "final"); messageText(all) == "" {
		t.Errorf("after the tool: %v", all)
	}
	// A fault of one turn leaves the socket.
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "f", "model": "nobody", "messages": user("x")})
	var fault harness.Message
	if err := wsjson.Read(t.Context(), ws, &fault); err != nil || fault["error"].(map[string]any)["code"] != "model_not_found" {
		t.Errorf("%v %v", fault, err)
	}
	// A socket that is closed frees the engine.
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "g", "model": "m", "messages": user("long"), "params": harness.Message{"max_tokens": 100000, "tool_choice": nil}, "tools": []harness.Message{}})
	readMessages(t, ws, "token")
	ws.CloseNow()
	g.AwaitIdle("m")
	// A key that is taken back is good for the turn that runs, and no other.
	ws = g.Realtime(keys["acme"])
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "h", "model": "m", "messages": user("hello"), "params": harness.Message{"max_tokens": 5}})
	readMessages(t, ws, "final")
	_, others := harness.TenantKeys("acme")
	g.Configure("\nauth: {mode: keys}\n" + others + model)
	harness.Eventually(t, "the key is no longer good", func() error {
		if a := g.Fetch("/v1/models", "Authorization: Bearer "+keys["acme"]); a.StatusCode != 401 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "i", "model": "m", "messages": user("hello")})
	for {
		var m harness.Message
		if err := wsjson.Read(t.Context(), ws, &m); err != nil {
			if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				t.Errorf("%v", err)
			}
			break
		}
		if m["type"] == "token" {
			t.Fatal("a turn with a key that was taken back")
		}
	}
	if metrics := g.AdminText("/metrics"); !strings.Contains(metrics, `stream_ttft_seconds_count{model="m",route="managed"}`) {
		t.Error("turns are not in the metrics")
	}
}

// dialGRPC opens a gRPC connection to Envoy.
func dialGRPC(g *harness.Gateway) llmv1.InferenceClient {
	g.T.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(g.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { conn.Close() })
	return llmv1.NewInferenceClient(conn)
}

// generate reads a stream of llm.v1 to its end.
func generate(ctx context.Context, c llmv1.InferenceClient, r *llmv1.StartRequest) (text string, final *llmv1.FinalResult, err error) {
	s, err := c.Stream(ctx, r)
	if err != nil {
		return "", nil, err
	}
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return text, final, nil
		}
		if err != nil {
			return text, final, err
		}
		text += chunk.GetDelta().GetText()
		if f := chunk.GetFinal(); f != nil {
			final = f
		}
	}
}

// Clients speak llm.v1 through Envoy, with the same keys, quotas and admission; deadlines and
// cancellation reach the engine. Engines may speak it too, and their clients need not know.
func TestE2E_S10_GRPC(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme", "poor")
	text = strings.Replace(text, "name: poor,", "name: poor, limits: {requests_per_minute: 1},", 1)
	g := harness.Start(t, "\nauth: {mode: keys}\n"+text+`
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 5ms}
  - name: worker
    engine: sim
    launcher: local
    protocol: grpc
    variables: {prefill_rate: 0, token_interval: 5ms}
`)
	c := dialGRPC(g)
	as := func(name string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+keys[name])
	}
	for _, model := range []string{"m", "worker"} {
		text, final, err := generate(as("acme"), c, &llmv1.StartRequest{Model: model, Messages: []string{"tell me"}, MaxTokens: 12})
		if err != nil || text == "" || final.GetFinishReason() == "" || final.GetOutputTokens() == 0 {
			t.Errorf("%s: %q %v %v", model, text, final, err)
		}
	}
	if _, _, err := generate(t.Context(), c, &llmv1.StartRequest{Model: "m"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	if _, _, err := generate(as("acme"), c, &llmv1.StartRequest{Model: "nobody", Messages: []string{"x"}}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown model: %v", err)
	}
	generate(as("poor"), c, &llmv1.StartRequest{Model: "m", Messages: []string{"x"}, MaxTokens: 2})
	if _, _, err := generate(as("poor"), c, &llmv1.StartRequest{Model: "m", Messages: []string{"x"}, MaxTokens: 2}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beyond its requests: %v", err)
	}
	for _, model := range []string{"m", "worker"} {
		ctx, cancel := context.WithCancel(as("acme"))
		s, err := c.Stream(ctx, &llmv1.StartRequest{Model: model, Messages: []string{"long"}, MaxTokens: 100000})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		g.AwaitIdle(model)
		harness.Eventually(t, "the engine of "+model+" is free", func() error { return checkIdle(g.Replicas()[model+"-0"].Address) })
	}
	words, final, err := generate(as("acme"), c, &llmv1.StartRequest{Request: []byte(harness.ChatBody("m", true, 100000, "long")), TimeoutMs: 5000})
	if err != nil || final.GetFinishReason() != "length" || words == "" {
		t.Errorf("timeout_ms: %q %v %v", words, final, err)
	}
	// A client of OpenAI's API does not notice what its engine speaks.
	auth := "Authorization: Bearer " + keys["acme"]
	_, all := g.Stream(harness.ChatPath, withFields(harness.ChatBody("worker", true, 12, "one"), `"stream_options":{"include_usage":true}`), auth)
	if told, finish := harness.StreamedText(t, all); finish == "" || told == "" || all[len(all)-1].Data != "[DONE]" {
		t.Errorf("%v", all)
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("worker", false, 12, "one"), auth); a.StatusCode != 200 || !strings.Contains(string(a.Content), `"chat.completion"`) {
		t.Errorf("%s", a)
	}
	g.AwaitIdle("worker")
}

// checkIdle returns an error if a request runs at the engine.
func checkIdle(address string) error {
	r, err := http.Get("http://" + address + "/sim/state")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var state struct{ Running, Waiting int }
	if err := json.NewDecoder(r.Body).Decode(&state); err != nil {
		return err
	}
	if state.Running+state.Waiting > 0 {
		return fmt.Errorf("%+v", state)
	}
	return nil
}

// What a rule forbids ends the answer with content_filter and frees the engine; of a literal not a
// byte is sent.
func TestE2E_S15_Moderation(t *testing.T) {
	t.Parallel()
	hook := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		action := "allow"
		if strings.Contains(string(b), "poison") {
			action = "block"
		}
		fmt.Fprintf(w, `{"action":%q}`, action)
	})
	g := harness.Start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 1ms}
  - name: free
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 1ms}
moderation:
  - {name: words, models: [m], literals: ["forbidden fruit"], ignore_case: true}
  - {name: numbers, models: [m], patterns: ['\b\d{3}-\d{4}']}
  - {name: judge, models: [m], hook: {url: "`+hook+`", every: 16}}
`)
	// The simulated engine answers with its caller's words.
	for _, c := range []struct{ words, never string }{{"the Forbidden Fruit of the tree", "orbidden"}, {"call 555-1234 now", "1234"}, {"sweet poison in the cup is served to all who ask for it", ""}} {
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 400, c.words))
		text, finish := harness.StreamedText(t, all)
		if finish != "content_filter" || all[len(all)-1].Data != "[DONE]" {
			t.Errorf("%q: finished with %q after %q", c.words, finish, text)
		}
		if c.never != "" && strings.Contains(strings.ToLower(text), c.never) {
			t.Errorf("%q: sent %q", c.words, text)
		}
		a := g.Post(harness.ChatPath, harness.ChatBody("m", false, 400, c.words))
		if !strings.Contains(string(a.Content), `"content_filter"`) || c.never != "" && strings.Contains(strings.ToLower(string(a.Content)), c.never) {
			t.Errorf("%q, not streamed: %s", c.words, a)
		}
	}
	for model, words := range map[string]string{"m": "an apple a day", "free": "the forbidden fruit 555-1234"} {
		if _, all := g.Stream(harness.ChatPath, harness.ChatBody(model, true, 60, words)); all[len(all)-1].Data != "[DONE]" || fmt.Sprint(harness.StreamedText(t, all)) == "" {
			t.Errorf("%s: %v", model, all)
		} else if _, finish := harness.StreamedText(t, all); finish != "length" {
			t.Errorf("%s finished with %q", model, finish)
		}
	}
	g.AwaitIdle("m")
	harness.Eventually(t, "the engine is free", func() error { return checkIdle(g.Replicas()["m-0"].Address) })
	harness.Eventually(t, "three streams that moderation ended are in the metrics", func() error {
		if n := g.Metric(`stream_disconnects_total{cause="moderation"}`); n != 3 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
}
