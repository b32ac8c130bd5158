package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// llamaServer returns a configuration with a model that llama-server serves from tiny.gguf. More
// fields of the model may follow it, each on a line.
func llamaServer(t *testing.T, name, task string) string {
	t.Helper()
	return `
registries:
  - {name: local, kind: directory, path: ` + tinyModels(t) + `}
models:
  - name: ` + name + `
    task: ` + task + `
    engine: llama-cpp
    source: {registry: local, name: tiny.gguf}`
}

// tinyModels makes the models of random weights: tiny.gguf, rank.gguf that reranks, and embed.gguf
// that says how it pools.
func tinyModels(t *testing.T) string {
	t.Helper()
	testutil.Tool(t, "llama-server") // found by PATH
	folder := t.TempDir()
	for _, arguments := range [][]string{{"tiny.gguf"}, {"rank.gguf", "rerank"}, {"embed.gguf", "embed"}} {
		arguments[0] = filepath.Join(folder, arguments[0])
		generator := append([]string{filepath.Join(testutil.Root(), "tests/models/tinygguf.py")}, arguments...)
		if out, err := exec.Command(testutil.Tool(t, "venv/bin/python"), generator...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return folder
}

// fromZero has one model of each task, and one more for text alone. None of them runs before it is
// asked.
func fromZero(models string) string {
	config := "registries:\n  - {name: local, kind: directory, path: " + models + "}\nmodels:"
	for _, m := range []struct{ name, task, file, variables string }{
		{"chat", "text-generation", "tiny.gguf", "parallel: 2, "},
		{"text", "text-generation", "tiny.gguf", ""},
		{"embed", "embedding", "tiny.gguf", "pooling: mean, "},
		{"rank", "rerank", "rank.gguf", ""},
	} {
		config += fmt.Sprintf(`
  - name: %s
    task: %s
    engine: llama-cpp
    source: {registry: local, name: %s}
    replicas: {min: 0, max: 1}
    cooldown: 1s
    variables: {%sctx_size: 2048, threads: 1}
`, m.name, m.task, m.file, m.variables)
	}
	return config
}

// countServers counts the engines of this gateway that run for a model.
func countServers(g *harness.Gateway, model string) int {
	n := 0
	for _, command := range g.Processes() {
		if strings.Contains(command, "llama-server ") && strings.Contains(command, " --alias "+model+" ") {
			n++
		}
	}
	return n
}

// TestE2E_N1_P3_T6_LlamaServerFromZeroByARequest: a real engine for each task begins with the first
// request, answers it, and is gone when nobody has asked for a while.
func TestE2E_N1_P3_T6_LlamaServerFromZeroByARequest(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fromZero(tinyModels(t)))
	for _, tt := range []struct {
		what, model string
		ask         func(*harness.Gateway) error
	}{
		{"a chat", "chat", askChat},
		{"a streamed chat", "chat", askStream},
		{"a completion", "text", askCompletion},
		{"embeddings", "embed", askEmbeddings},
		{"reranking", "rank", askRerank},
		{"the tokens of an input", "text", askInputTokens},
	} {
		if n := countServers(g, tt.model); n != 0 {
			t.Fatalf("%s: %d engines run and nobody has asked", tt.what, n)
		}
		if err := tt.ask(g); err != nil {
			t.Errorf("%s: %v", tt.what, err)
		}
		if n := countServers(g, tt.model); n > 1 { // it ends soon
			t.Errorf("%s: %d engines run after it", tt.what, n)
		}
		g.AwaitReplicas(tt.model, 0)
		harness.Eventually(t, tt.what+": nobody has asked for long", func() error {
			if n := countServers(g, tt.model); n != 0 {
				return fmt.Errorf("%d engines run", n)
			}
			return nil
		})
	}
	// Once more by the official client, which asks for embeddings in base64 and reads streams
	// strictly.
	harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/chat.py")}, map[string]string{
		"BASE_URL": g.URL + "/v1", "MODEL": "chat", "EMBED_MODEL": "embed",
		// The engine's responses do not satisfy the client, a template without tools calls none,
		// and nothing transcribes.
		"SKIP": "responses,streamed tool call,transcription",
	})
	for _, model := range []string{"chat", "embed"} {
		g.AwaitReplicas(model, 0)
	}
}

// TestE2E_U10_LlamaServerTellsItsLoad: what a real engine says of itself arrives in the API, and a
// prompt that it has in its cache is counted. The same server is recognised by a gateway that did
// not start it.
func TestE2E_U10_LlamaServerTellsItsLoad(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, llamaServer(t, "chat", "text-generation")+`
    replicas: {min: 1, max: 1}
    variables: {parallel: 2, ctx_size: 2048, threads: 1}
`)
	g.AwaitReplicas("chat", 1)
	told := func(n harness.EngineNews) bool { return n.Running != nil && n.Waiting != nil && n.CacheTokens != nil }
	if n := g.AwaitEngineNews("chat-0", told); n.Name != "llama-cpp" || *n.CacheTokens != 2048 {
		t.Errorf("%s with a cache of %d tokens, want llama-cpp with 2 slots of 1,024", n.Name, *n.CacheTokens)
	}
	for range 2 {
		if err := askChat(g); err != nil {
			t.Fatal(err)
		}
	}
	g.AwaitEngineNews("chat-0", func(n harness.EngineNews) bool { return n.CachedTokens != nil && *n.CachedTokens > 0 })
	address := g.Replicas()["chat-0"].Address
	finder := harness.Start(t, "upstreams: ['http://"+address+"']\n")
	if n := finder.AwaitEngineNews(address, told); n.Name != "llama-cpp" || *n.CacheTokens != 2048 {
		t.Errorf("%s with a cache of %d tokens", n.Name, *n.CacheTokens)
	}
}

// TestE2E_T4_T6_LlamaServerRefusesALongInput: the client of a text that is too long to be embedded
// is told so, and no other server is asked. That holds for servers that the gateway did not start,
// too.
func TestE2E_T4_T6_LlamaServerRefusesALongInput(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, llamaServer(t, "embed", "embedding")+`
    replicas: {min: 2, max: 2}
    variables: {pooling: mean, ctx_size: 2048, threads: 1}
`)
	g.AwaitReadyReplicas("embed", 2)
	checkLongInput(g) // at once: what the engine is may not be known yet
	one, two := g.Replicas()["embed-0"].Address, g.Replicas()["embed-1"].Address
	finder := harness.Start(t, "upstreams: ['http://"+one+"', 'http://"+two+"']\n")
	finder.AwaitReadyReplicas("embed", 2)
	checkLongInput(finder)
}

// checkLongInput checks that a text that is too long to be embedded is refused by one server alone.
func checkLongInput(g *harness.Gateway) {
	g.T.Helper()
	before := retries(g, "5xx")
	a := g.Post("/v1/embeddings", `{"model":"embed","input":["a","`+strings.Repeat("hello ", 200)+`"]}`)
	if a.StatusCode != 400 || a.Header.Get("X-Sluice-Source") != "engine" || !strings.Contains(string(a.Content), "too large to process") ||
		!strings.Contains(string(a.Content), `"type":"invalid_request_error"`) {
		g.T.Errorf("a long text: %s", a)
	}
	if now := retries(g, "5xx"); now != before {
		g.T.Errorf("%d further servers were asked", now-before)
	}
}

// usage is the usage that an engine reports for a request.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// is returns an error if the usage is not so many prompt and completion tokens.
func (u usage) is(prompt, completion int) error {
	if want := (usage{prompt, completion, prompt + completion}); u != want {
		return fmt.Errorf("usage %+v, want %+v", u, want)
	}
	return nil
}

// ask posts the body and reads the answer into the value given, which must have come from an
// engine.
func ask(g *harness.Gateway, path, body string, into any) error {
	a, err := g.TryPost(context.Background(), path, body)
	if err != nil {
		return err
	}
	if a.StatusCode != 200 || a.Header.Get("X-Sluice-Source") != "engine" {
		return fmt.Errorf("from %q: %s", a.Header.Get("X-Sluice-Source"), a)
	}
	if err := json.Unmarshal(a.Content, into); err != nil {
		return fmt.Errorf("%w: %s", err, a)
	}
	return nil
}

// askInputTokens asks the engine to count the tokens of an input. The prompt is that of askChat. A
// call that the engine lacks is a 404.
func askInputTokens(g *harness.Gateway) error {
	var reply struct {
		Object string
		Tokens int `json:"input_tokens"`
	}
	if err := ask(g, "/v1/responses/input_tokens", `{"model":"text","input":"hello"}`, &reply); err != nil {
		return err
	}
	if reply.Object != "response.input_tokens" || reply.Tokens != 3+len("hello") {
		return fmt.Errorf("%+v", reply)
	}
	a, err := g.TryPost(context.Background(), "/v1/responses/compact", `{"model":"text","input":"hello"}`)
	if err == nil && (a.StatusCode != 404 || !strings.Contains(string(a.Content), `"model_not_capable"`)) {
		return fmt.Errorf("a compaction: %s", a)
	}
	return err
}

// askChat sends a chat and checks its usage. The prompt of the chat is a token for the beginning,
// one for each role, and one for each byte.
func askChat(g *harness.Gateway) error {
	var reply struct {
		Choices []struct {
			Message      struct{ Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage usage
	}
	if err := ask(g, "/v1/chat/completions", harness.ChatBody("chat", false, 12, "hello"), &reply); err != nil {
		return err
	}
	if len(reply.Choices) != 1 || reply.Choices[0].Message.Content == "" || reply.Choices[0].FinishReason != "length" {
		return fmt.Errorf("%+v", reply)
	}
	return reply.Usage.is(3+len("hello"), 12)
}

func askStream(g *harness.Gateway) error {
	body := strings.Replace(harness.ChatBody("chat", true, 12, "hello"), "{", `{"stream_options":{"include_usage":true},`, 1)
	a, err := g.TryPost(context.Background(), "/v1/chat/completions", body)
	if err != nil {
		return err
	}
	if err := harness.CheckWholeStream(a.Content); err != nil {
		return fmt.Errorf("%w: %s", err, a)
	}
	said, took, err := readStream(a.Content)
	if err != nil || said == "" {
		return fmt.Errorf("said %q: %w", said, err)
	}
	return took.is(3+len("hello"), 12)
}

// readStream returns the text and the usage of a streamed chat.
func readStream(body []byte) (string, usage, error) {
	var text strings.Builder
	var last usage
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *usage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", last, fmt.Errorf("%w: %s", err, data)
		}
		for _, choice := range chunk.Choices {
			text.WriteString(choice.Delta.Content)
		}
		if chunk.Usage != nil {
			last = *chunk.Usage
		}
	}
	return text.String(), last, nil
}

func askCompletion(g *harness.Gateway) error {
	var reply struct {
		Choices []struct{ Text string }
		Usage   usage
	}
	if err := ask(g, "/v1/completions", `{"model":"text","prompt":"once","max_tokens":7}`, &reply); err != nil {
		return err
	}
	if len(reply.Choices) != 1 || len(reply.Choices[0].Text) < 7 { // tokens of one byte, and one of two
		return fmt.Errorf("%+v", reply)
	}
	return reply.Usage.is(1+len("once"), 7)
}

// askEmbeddings checks that the engine returns one vector for each text. A vector is as wide as the
// model, has the length one, and is equal only for equal texts.
func askEmbeddings(g *harness.Gateway) error {
	var reply struct {
		Data []struct {
			Index     int
			Embedding []float64
		}
		Usage usage
	}
	if err := ask(g, "/v1/embeddings", `{"model":"embed","input":["one","another","one"]}`, &reply); err != nil {
		return err
	}
	if len(reply.Data) != 3 || reply.Usage.Prompt < len("oneanotherone") {
		return fmt.Errorf("%d vectors, usage %+v", len(reply.Data), reply.Usage)
	}
	for i, v := range reply.Data {
		if norm := dotProduct(v.Embedding, v.Embedding); v.Index != i || len(v.Embedding) != 64 || math.Abs(norm-1) > 1e-3 {
			return fmt.Errorf("vector %d has index %d, %d dimensions, length² %v", i, v.Index, len(v.Embedding), norm)
		}
	}
	one := reply.Data[0].Embedding
	if same, other := dotProduct(one, reply.Data[2].Embedding), dotProduct(one, reply.Data[1].Embedding); same < 0.999 || other > same-1e-4 {
		return fmt.Errorf("equal texts are %v alike, others %v", same, other)
	}
	return nil
}

func dotProduct(a, b []float64) float64 {
	sum := 0.0
	for i := range min(len(a), len(b)) {
		sum += a[i] * b[i]
	}
	return sum
}

// askRerank checks that the engine returns every document once, the best first. The order of the
// documents in the request must not change their scores.
func askRerank(g *harness.Gateway) error {
	documents := []string{"Envoy is a proxy", "the weather of Lisbon", "a sluice lets water through, or holds it", "x"}
	first, err := rank(g, documents)
	if err != nil {
		return err
	}
	backwards := []string{documents[3], documents[2], documents[1], documents[0]}
	second, err := rank(g, backwards)
	if err != nil {
		return err
	}
	different := false
	for i := range documents {
		if math.Abs(first[i]-second[len(documents)-1-i]) > 1e-4 {
			return fmt.Errorf("document %d scores %v and %v", i, first, second)
		}
		different = different || math.Abs(first[i]-first[0]) > 1e-4
	}
	if !different {
		return errors.New("all documents score alike")
	}
	return nil
}

// rank returns the scores by document.
func rank(g *harness.Gateway, documents []string) ([]float64, error) {
	body, err := json.Marshal(map[string]any{"model": "rank", "query": "what is a sluice?", "documents": documents})
	if err != nil {
		return nil, err
	}
	var reply struct {
		Results []struct {
			Index int
			Score *float64 `json:"relevance_score"`
		}
		Usage usage
	}
	if err := ask(g, "/v1/rerank", string(body), &reply); err != nil {
		return nil, err
	}
	if len(reply.Results) != len(documents) || reply.Usage.Prompt == 0 {
		return nil, fmt.Errorf("%d of %d documents, usage %+v", len(reply.Results), len(documents), reply.Usage)
	}
	scores, seen, last := make([]float64, len(documents)), map[int]bool{}, math.Inf(1)
	for _, r := range reply.Results {
		if r.Index < 0 || r.Index >= len(documents) || seen[r.Index] || r.Score == nil || *r.Score > last || *r.Score <= 0 || *r.Score >= 1 {
			return nil, fmt.Errorf("not each document once, best first, with a share: %+v", reply.Results)
		}
		scores[r.Index], seen[r.Index], last = *r.Score, true, *r.Score
	}
	return scores, nil
}

// TestE2E_N1_N2_N3_T6_RealLlamaServer: a conversation stays with its replica, and more requests
// than slots wait outside the engines.
func TestE2E_N1_N2_N3_T6_RealLlamaServer(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, llamaServer(t, "chat", "text-generation")+`
    replicas: {min: 2, max: 2}
    variables: {parallel: 2, ctx_size: 2048, threads: 1}
    routing: {strategy: chwbl}
`)
	// The ring and the loads alone decide. Strategy prefix would move so short a prompt away from a
	// replica that was slow once, as on a busy machine, because that costs nothing.
	g.AwaitReadyReplicas("chat", 2)
	if err := askStream(g); err != nil {
		t.Error(err)
	}
	g.AwaitIdle("chat") // with chwbl each request that has not quite ended counts
	home := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 12, "hello")).Header.Get("X-Sluice-Replica")
	moved := 0
	for range 5 {
		g.AwaitIdle("chat")
		a := g.Post("/v1/chat/completions", harness.ChatBody("chat", true, 12, "hello"))
		if at := a.Header.Get("X-Sluice-Replica"); a.StatusCode != 200 || at == "" {
			t.Errorf("at %q: %s", at, a.Status)
		} else if at != home {
			moved++
		}
	}
	// llama-server closes a connection after some requests. If Envoy has sent it another one by
	// then, the other replica gets that.
	harness.Eventually(t, "Envoy has tried once more what did not go to "+home, func() error {
		if again := retries(g, "reset"); moved > again {
			return fmt.Errorf("%d of 5 turns, and Envoy has tried %d", moved, again)
		}
		return nil
	})
	// Four slots in all: six requests at once, and nobody waits inside the engine.
	done := make(chan error, 6)
	for i := range 6 {
		go func() {
			a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 64, fmt.Sprint("text ", i)))
			if err == nil {
				err = harness.CheckWholeStream(a.Content)
			}
			done <- err
		}()
	}
	for range 6 {
		if err := harness.Receive(t, done, "a request is answered"); err != nil {
			t.Error(err)
		}
	}
	g.AwaitIdle("chat")
}
