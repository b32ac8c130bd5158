package admission

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// prefilling is an upstream with one model. It answers each request when the test lets it go on,
// first by a token and then by the rest.
type prefilling struct {
	tokens, ends chan struct{}

	mu      sync.Mutex
	prompts []string // of all requests so far
	running int
}

func (p *prefilling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if harness.ServeModelList(w, r, "m") {
		return
	}
	var body struct{ Messages []struct{ Content string } }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.prompts = append(p.prompts, body.Messages[0].Content)
	p.running++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	for _, step := range []struct {
		when chan struct{}
		text string
	}{
		{p.tokens, `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"},
		{p.ends, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\ndata: [DONE]\n\n"},
	} {
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-step.when:
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, step.text)
	}
}

// advance lets the request that runs go on by one step.
func advance(t *testing.T, step chan struct{}) {
	t.Helper()
	select {
	case step <- struct{}{}:
	case <-time.After(testutil.Patience):
		t.Fatal("no request waits for this step")
	}
}

// awaitPrompts waits until the engine has got these requests and no other, and runs the last one
// alone.
func (p *prefilling) awaitPrompts(t *testing.T, want ...string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint("the engine has got ", want), func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !slices.Equal(p.prompts, want) || p.running != 1 {
			return fmt.Errorf("it has got %v, and runs %d", p.prompts, p.running)
		}
		return nil
	})
}

// readStream sends a chat and reads its stream, which must be whole. It closes begun at the first
// token, or when there is none.
func readStream(g *harness.Gateway, prompt, key string, begun chan struct{}) error {
	begin := sync.OnceFunc(func() { close(begun) })
	defer begin()
	ctx, cancel := context.WithTimeout(g.T.Context(), 2*testutil.Patience)
	defer cancel()
	r, err := g.Open(ctx, harness.ChatPath, harness.ChatBody("m", true, 10, prompt), key)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var text []byte
	for lines := bufio.NewReader(r.Body); ; {
		line, err := lines.ReadBytes('\n')
		if text = append(text, line...); bytes.Contains(line, []byte(`"content"`)) {
			begin()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w after %s", err, text)
		}
	}
	if err := harness.CheckWholeStream(text); err != nil {
		return fmt.Errorf("%s: %w: %s", r.Status, err, text)
	}
	return nil
}

// A request that is more urgent takes the place of one that has no token yet, whose client notices
// nothing but time. One that has begun to answer is left alone.
func TestE2E_S11_UrgentRequestPushesOutPrefill(t *testing.T) {
	t.Parallel()
	engine := &prefilling{tokens: make(chan struct{}), ends: make(chan struct{})}
	tenants, key := tenantsOf(map[string]string{"people": ", priority: interactive", "night": ", priority: batch"})
	g := harness.Start(t, tenants+fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%s]
    admission: {max_concurrent_requests: 1, max_per_replica: 4}
    stream: {mode: managed, heartbeat: 500ms}
`, harness.StartUpstream(t, engine.ServeHTTP)))
	var clients sync.WaitGroup
	ask := func(tenant, prompt string) (begun chan struct{}) {
		begun = make(chan struct{})
		clients.Go(func() {
			if err := readStream(g, prompt, key[tenant], begun); err != nil {
				t.Errorf("%s: %v", prompt, err)
			}
		})
		return begun
	}
	begun := ask("night", "long")
	engine.awaitPrompts(t, "long")
	ask("people", "quick")
	engine.awaitPrompts(t, "long", "quick")
	g.AwaitQueued("m", 1) // the one that was pushed out
	advance(t, engine.tokens)
	advance(t, engine.ends)
	engine.awaitPrompts(t, "long", "quick", "long")
	harness.Eventually(t, "the preemption is in the metrics", func() error {
		if !strings.Contains(g.AdminText("/metrics"), `stream_retries_total{reason="preempted"} 1`) {
			return errors.New("the metrics lack it")
		}
		return nil
	})
	// In decode it stays.
	advance(t, engine.tokens)
	harness.Receive(t, begun, "the long stream begins")
	ask("people", "waits")
	g.AwaitQueued("m", 1)
	engine.awaitPrompts(t, "long", "quick", "long")
	advance(t, engine.ends)
	engine.awaitPrompts(t, "long", "quick", "long", "waits")
	advance(t, engine.tokens)
	advance(t, engine.ends)
	clients.Wait()
	g.AwaitIdle("m")
}
