package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// sentBody is what the tests of this file read of a body that reached an engine.
type sentBody struct {
	Model       string
	Temperature *float64
	MaxTokens   *int `json:"max_tokens"`
	Tools       []any
	Messages    []struct {
		Role, Content string
		CallID        string `json:"tool_call_id"`
	}
}

// startTools starts an engine with the model m. It sends the bodies that it gets to the channel. It
// calls two tools when it is offered some and has no result yet, else it says "done".
func startTools(t *testing.T) (url string, bodies chan sentBody) {
	bodies = make(chan sentBody, 10)
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		var body sentBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		bodies <- body
		w.Header().Set("Content-Type", "text/event-stream")
		delta, finish := `{"content":"done"}`, "stop"
		if len(body.Tools) > 0 && body.Messages[len(body.Messages)-1].Role != "tool" {
			delta, finish = `{"tool_calls":[{"index":0,"id":"one","type":"function","function":{"name":"f","arguments":"{}"}},`+
				`{"index":1,"id":"two","type":"function","function":{"name":"f","arguments":"{}"}}]}`, "tool_calls"
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":%s}]}`+"\n\n"+`data: {"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`+"\n\ndata: [DONE]\n\n",
			delta, finish)
	}), bodies
}

// TestE2E_S9_ParametersAndToolsOfASession: the sampling parameters of a session reach the engine,
// changed ones from the next turn on. One tool call is answered and the other cancelled, and the
// engine is told of both.
func TestE2E_S9_ParametersAndToolsOfASession(t *testing.T) {
	t.Parallel()
	url, bodies := startTools(t)
	g := harness.Start(t, fmt.Sprintf("models: [{name: m, task: text-generation, launcher: upstream, upstreams: [%q]}]\n", url))
	ws := g.Realtime("")
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "a", "model": "m",
		"messages": []harness.Message{{"role": "user", "content": "look"}}, "params": harness.Message{"temperature": 0.5, "max_tokens": 7},
		"tools": []harness.Message{{"type": "function", "function": harness.Message{"name": "f"}}}})
	readMessages(t, ws, "final")
	if b := harness.Receive(t, bodies, "the engine gets a body"); b.Temperature == nil || *b.Temperature != 0.5 || b.MaxTokens == nil || *b.MaxTokens != 7 {
		t.Errorf("the first turn: %+v", b)
	}
	harness.SendMessage(t, ws, harness.Message{"type": "update", "params": harness.Message{"temperature": 0.25}})
	harness.SendMessage(t, ws, harness.Message{"type": "tool_result", "tool_call_id": "one", "content": "sunny"})
	harness.SendMessage(t, ws, harness.Message{"type": "tool_cancel", "tool_call_id": "two"})
	if all := readMessages(t, ws, "final"); messageText(all) != "done" {
		t.Errorf("after the tools: %v", all)
	}
	b := harness.Receive(t, bodies, "the engine gets a body")
	if n := len(b.Messages); n != 4 || b.Messages[2].CallID != "one" || b.Messages[2].Content != "sunny" ||
		b.Messages[3].CallID != "two" || b.Messages[3].Content == "" {
		t.Errorf("what the engine is told of the tools: %+v", b.Messages)
	}
	if b.Temperature == nil || *b.Temperature != 0.25 || b.MaxTokens == nil || *b.MaxTokens != 7 {
		t.Errorf("the turn after the update: %+v", b)
	}
}

// fieldsWorker is an engine that speaks llm.v1. It sends one token and waits until its call ends.
type fieldsWorker struct {
	llmv1.UnimplementedInferenceServer
	calls chan *llmv1.StartRequest
	ends  chan error // of the calls
}

// Stream implements llmv1.InferenceServer.
func (f *fieldsWorker) Stream(r *llmv1.StartRequest, out grpc.ServerStreamingServer[llmv1.StreamChunk]) error {
	f.calls <- r
	if err := out.Send(&llmv1.StreamChunk{Payload: &llmv1.StreamChunk_Delta{Delta: &llmv1.TokenDelta{Text: "hi"}}}); err != nil {
		return err
	}
	<-out.Context().Done()
	f.ends <- out.Context().Err()
	return out.Context().Err()
}

// TestE2E_S10_FieldsAndEndsReachTheEngine: what a client of llm.v1 asks for reaches an engine that
// speaks OpenAI's API, and a worker that speaks llm.v1. The worker is told the time that the
// client's deadline leaves. The deadline and a cancel end the call of the worker.
func TestE2E_S10_FieldsAndEndsReachTheEngine(t *testing.T) {
	t.Parallel()
	url, bodies := startTools(t)
	worker := &fieldsWorker{calls: make(chan *llmv1.StartRequest, 1), ends: make(chan error, 1)}
	calls := grpc.NewServer()
	llmv1.RegisterInferenceServer(calls, worker)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "worker") {
			calls.ServeHTTP(w, r)
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, task: text-generation, launcher: upstream, upstreams: [%q]}
  - {name: worker, task: text-generation, launcher: upstream, protocol: grpc, upstreams: [%q], admission: {max_per_replica: 4}}
`, url, server.URL))
	c, heat := dialGRPC(g), float32(0.5)
	ask := func(model string) *llmv1.StartRequest {
		return &llmv1.StartRequest{Model: model, Messages: []string{"one", "two", "three"}, Temperature: &heat, MaxTokens: 7}
	}
	if text, _, err := generate(t.Context(), c, ask("m")); text != "done" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	b := harness.Receive(t, bodies, "the engine gets a body")
	if b.Model != "m" || b.Temperature == nil || *b.Temperature != 0.5 || b.MaxTokens == nil || *b.MaxTokens != 7 ||
		len(b.Messages) != 3 || b.Messages[0].Role != "user" || b.Messages[2].Content != "three" {
		t.Errorf("the engine has got %+v", b)
	}
	for _, end := range []string{"deadline", "cancel"} {
		ctx, leave := context.WithCancel(t.Context())
		if end == "deadline" {
			ctx, leave = context.WithTimeout(t.Context(), 5*time.Second) // in which the call arrives
		}
		defer leave()
		s, err := c.Stream(ctx, ask("worker"))
		if err != nil {
			t.Fatal(err)
		}
		r := harness.Receive(t, worker.calls, "the worker gets a call")
		if r.GetTemperature() != 0.5 || r.GetMaxTokens() != 7 || len(r.GetMessages()) != 3 {
			t.Errorf("the worker has got %v", r)
		}
		if left := r.GetTimeoutMs(); left > 5000 || left > 0 != (end == "deadline") {
			t.Errorf("%s: the worker is told that %d ms are left", end, left)
		}
		for err == nil {
			var chunk *llmv1.StreamChunk
			if chunk, err = s.Recv(); chunk.GetDelta().GetText() != "" && end == "cancel" {
				leave()
			}
		}
		harness.Receive(t, worker.ends, "the call of the worker ends")
		g.AwaitIdle("worker")
	}
}
