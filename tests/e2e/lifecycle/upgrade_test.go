package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// upgradeModels are one model that Envoy alone serves and one that the relay serves.
const upgradeModels = `
models:
  - name: chat
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 20ms, batch_slowdown: 0, max_num_seqs: 4096}
    stream: {mode: native}
  - name: managed
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 20ms, batch_slowdown: 0, max_num_seqs: 4096}
    stream: {mode: managed}
`

// upgradeStreams is the number of managed and of native streams in the test of restarts; a fifth as
// many WebSockets and gRPC calls run beside. The environment can ask for the 100 of the issue.
func upgradeStreams() int {
	if n, err := strconv.Atoi(os.Getenv("SLUICE_E2E_UPGRADE_STREAMS")); err == nil {
		return n
	}
	return 25
}

// restart restarts the gateway with the installed binary, and returns what the command prints.
func restart(g *harness.Gateway) string {
	g.T.Helper()
	out, err := g.RunCommand("restart", "-c", g.Config)
	if err != nil {
		g.T.Fatalf("%v\n%s", err, out)
	}
	return out
}

// upgradeStatus is what the admin API says of the processes of a gateway.
type upgradeStatus struct {
	PID     int
	Upgrade struct {
		Failed       string
		Predecessors []struct{ PID, Requests int }
	}
}

// upgradeOf asks the gateway for its processes.
func upgradeOf(g *harness.Gateway) (s upgradeStatus) {
	g.T.Helper()
	g.Get("/api/v1/status", &s)
	return s
}

// load is a set of requests that run at the same time. The first of a kind is the reference for the
// others: equal requests have equal answers.
type load struct {
	*harness.Gateway
	tokens int
	// running has one for each request that runs, begun one for each without a token.
	running, begun sync.WaitGroup

	mu    sync.Mutex
	texts map[string]string
}

// run runs n requests of a kind. The func calls begun at the first token and returns the text.
func (l *load) run(kind string, n int, one func(i int, begun func()) (string, error)) {
	l.begun.Add(n)
	for i := range n {
		l.running.Go(func() {
			begun := sync.OnceFunc(l.begun.Done)
			defer begun()
			text, err := one(i, begun)
			l.mu.Lock()
			defer l.mu.Unlock()
			if want, ok := l.texts[kind]; err == nil && ok && text != want {
				err = fmt.Errorf("%d bytes of text instead of %d", len(text), len(want))
			}
			if err != nil {
				l.T.Errorf("%s %d: %v", kind, i, err)
				return
			}
			l.texts[kind] = text
		})
	}
}

// stream reads a stream to its end.
func (l *load) stream(model, id string, begun func()) (string, error) {
	body := harness.ChatBody(model, true, l.tokens, "tell me a story")
	if id != "" {
		body = strings.Replace(body, "{", `{"request_id":"`+id+`",`, 1)
	}
	r, err := l.Open(context.Background(), harness.ChatPath, body)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(r.Body, first); err != nil || r.StatusCode != 200 {
		return "", fmt.Errorf("%s %w", r.Status, err)
	}
	begun()
	all, err := harness.ReadEvents(io.MultiReader(strings.NewReader(string(first)), r.Body))
	if err != nil {
		return "", err
	}
	text, finish := harness.StreamedText(l.T, all)
	// Events may be merged for a client that is slow, so their number says nothing.
	if n := len(text); n < l.tokens || finish != "length" || all[len(all)-1].Data != "[DONE]" {
		return "", fmt.Errorf("%d bytes of text, finish reason %q, the last %+v", n, finish, all[len(all)-1])
	}
	return text, nil
}

// turn asks for one turn on a WebSocket and reads it to its end.
func (l *load) turn(ws *websocket.Conn, begun func()) (text string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*testutil.Patience)
	defer cancel()
	start := harness.Message{"type": "start", "model": "managed", "messages": []harness.Message{{"role": "user", "content": "tell me a story"}},
		"params": harness.Message{"max_tokens": l.tokens, "ignore_eos": true}}
	if err := wsjson.Write(ctx, ws, start); err != nil {
		return "", err
	}
	for {
		var m harness.Message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			return text, err
		}
		switch m["type"] {
		case "token":
			begun()
			text += m["delta"].(string)
		case "final":
			if m["finish_reason"] != "length" {
				return text, fmt.Errorf("%v", m)
			}
			return text, nil
		case "error":
			return text, fmt.Errorf("%v", m)
		}
	}
}

// call reads a gRPC call to its end.
func (l *load) call(begun func()) (text string, err error) {
	conn, err := grpc.NewClient(strings.TrimPrefix(l.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	s, err := llmv1.NewInferenceClient(conn).Stream(context.Background(),
		&llmv1.StartRequest{Request: []byte(harness.ChatBody("managed", true, l.tokens, "tell me a story"))})
	if err != nil {
		return "", err
	}
	final := false
	for {
		chunk, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF) && final:
			return text, nil
		case err != nil:
			return text, err
		}
		begun()
		text += chunk.GetDelta().GetText()
		final = final || chunk.GetFinal() != nil
	}
}

// flow sends small requests of all kinds, one after the other, until stop is called.
type flow struct {
	sent    atomic.Int64
	stopped chan struct{}
	running sync.WaitGroup
}

func startFlow(g *harness.Gateway, clients int, headers ...string) *flow {
	f := &flow{stopped: make(chan struct{})}
	for i := range clients {
		f.running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-f.stopped:
					return
				default:
				}
				model := []string{"chat", "managed"}[n%2]
				body := harness.ChatBody(model, n%4 > 1, 2, fmt.Sprint("flow ", i))
				if n%8 == 0 {
					body = strings.Replace(body, "{", fmt.Sprintf(`{"request_id":"flow-%d-%d-%d",`, i, n, len(headers)), 1)
				}
				a, err := g.TryPost(context.Background(), harness.ChatPath, body, headers...)
				if err != nil || a.StatusCode != 200 || strings.Contains(string(a.Content), `"error"`) {
					g.T.Errorf("small request %d of client %d to %s: %v %v", n, i, model, err, a)
				}
				if n%5 == 0 {
					if a := g.Fetch("/v1/models", headers...); a.StatusCode != 200 {
						g.T.Errorf("models: %s", a)
					}
				}
				f.sent.Add(1)
			}
		})
	}
	return f
}

func (f *flow) stop() int64 {
	close(f.stopped)
	f.running.Wait()
	return f.sent.Load()
}

// Streams of all kinds run over three restarts in a row to the end that they would have had, while
// small requests are served. The streams count until they end, and the old processes are gone then.
func TestE2E_X20_RestartsCutNothing(t *testing.T) {
	t.Parallel()
	n := upgradeStreams()
	g := harness.Start(t, harness.Lasting(upgradeModels))
	before := processIDs(g)
	l := &load{Gateway: g, tokens: harness.LastingTokens, texts: map[string]string{}}
	small := startFlow(g, 4)
	l.run("native stream", n, func(_ int, begun func()) (string, error) { return l.stream("chat", "", begun) })
	l.run("managed stream", n, func(i int, begun func()) (string, error) {
		id := ""
		if i%2 == 0 {
			id = fmt.Sprint("story-", i)
		}
		return l.stream("managed", id, begun)
	})
	l.run("WebSocket", n/5, func(_ int, begun func()) (string, error) { return l.turn(g.Realtime(""), begun) })
	l.run("gRPC call", n/5, func(_ int, begun func()) (string, error) { return l.call(begun) })
	l.begun.Wait()
	for range 3 {
		out := restart(g)
		t.Logf("%s", out)
		if !strings.Contains(out, "restarted: ") || !strings.Contains(out, "adopted: Envoy") {
			t.Errorf("the command printed %q", out)
		}
		if got, want := g.Model("managed").InFlight, n+2*(n/5); got < want {
			t.Errorf("%d managed requests count after the restart, want %d", got, want)
		}
		if got := g.Model("chat").InFlight; got < n {
			t.Errorf("%d native requests count after the restart, want %d", got, n)
		}
	}
	harness.FinishAnswers(t, g.Replicas())
	l.running.Wait()
	t.Logf("%d small requests", small.stop())
	mustHaveAdopted(g, before)
	g.AwaitIdle("chat")
	g.AwaitIdle("managed")
	awaitOneGateway(g)
}

// awaitOneGateway waits until no earlier process carries anything: beside the gateway there is at
// most the first process, which follows it.
func awaitOneGateway(g *harness.Gateway) {
	g.T.Helper()
	harness.Eventually(g.T, "the old processes are gone", func() error {
		s := upgradeOf(g)
		if len(s.Upgrade.Predecessors) > 0 {
			return fmt.Errorf("%+v", s.Upgrade.Predecessors)
		}
		for pid, command := range g.Processes() {
			if strings.Contains(command, " up ") && pid != s.PID && pid != g.Process.Process.Pid {
				return fmt.Errorf("%d: %s", pid, command)
			}
		}
		return nil
	})
}
