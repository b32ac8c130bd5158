package edge

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// request is a chat completion of a size.
func sized(n int) string {
	const begin, end = `{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":"`, `"}]}`
	return begin + strings.Repeat("x", n-len(begin)-len(end)) + end
}

// slowBody is a body that stops before its last byte until it is released. The client's transport
// closes it when the request has ended.
type slowBody struct {
	text    string
	release <-chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func newSlowBody(text string, release <-chan struct{}) *slowBody {
	return &slowBody{text: text, release: release, closed: make(chan struct{})}
}

func (b *slowBody) Read(p []byte) (int, error) {
	switch len(b.text) {
	case 0:
		return 0, io.EOF
	case 1:
		select {
		case <-b.release:
		case <-b.closed:
			return 0, io.ErrClosedPipe
		}
		n := copy(p, b.text)
		b.text = ""
		return n, nil
	}
	n := copy(p, b.text[:len(b.text)-1])
	b.text = b.text[n:]
	return n, nil
}

func (b *slowBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// upload sends a request whose last byte waits for release. known tells its length to the gateway.
func upload(ctx context.Context, client *http.Client, g *harness.Gateway, key string, body *slowBody, known bool) (*harness.Answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	if r.ContentLength = -1; known {
		r.ContentLength = int64(len(body.text))
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return &harness.Answer{Response: answer, Content: content}, err
}

// TestE2E_X7_LateBody: Envoy takes the answer to a late body while it receives the body.
func TestE2E_X7_LateBody(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "max_body: 1MiB\nupload: {min_rate: 1MiB, grace: 1s}\n"+small)
	harness.Eventually(t, "a request", func() error { return ask(newClient(t), g) })
	one := &http.Client{Transport: &http.Transport{}}
	two := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	two.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(one.CloseIdleConnections)
	t.Cleanup(two.CloseIdleConnections)
	for protocol, client := range map[string]*http.Client{"HTTP/1.1": one, "HTTP/2": two} {
		for _, size := range []int{200, 900 << 10} {
			for _, known := range []bool{true, false} {
				answer, err := upload(t.Context(), client, g, "", newSlowBody(sized(size), nil), known)
				if err != nil {
					t.Errorf("%s, %d bytes, known %v: %v", protocol, size, known, err)
				} else if answer.StatusCode != http.StatusRequestTimeout || answer.Code() != "request_timeout" {
					t.Errorf("%s, %d bytes, known %v: %s", protocol, size, known, answer)
				}
			}
		}
		if err := ask(client, g); err != nil {
			t.Errorf("%s: a request after the late ones: %v", protocol, err)
		}
	}
	harness.Eventually(t, "no upload is left", func() error { return wantMetric(g, `sluice_budget_used{budget="upload_bytes"} 0`) })
	g.AwaitIdle("chat")
}

func wantMetric(g *harness.Gateway, line string) error {
	if text := g.AdminText("/metrics"); !strings.Contains(text, line+"\n") {
		return fmt.Errorf("the metrics lack %s", line)
	}
	return nil
}

// TestE2E_B10_X7_UploadsOfATenant: a tenant that may have two requests cannot send 40 bodies.
func TestE2E_B10_X7_UploadsOfATenant(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme", "other")
	tenants = strings.Replace(tenants, "{name: acme,", "{name: acme, limits: {max_concurrent_streams: 2},", 1)
	g := harness.Start(t, "\nauth: {mode: keys}\n"+tenants+small)
	release := make(chan struct{})
	answers := make(chan *harness.Answer, 40)
	// Over HTTP/1.1 Envoy closes the connection of a refused body a second later, whether or not
	// the client has read the refusal by then.
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(client.CloseIdleConnections)
	for range 40 {
		go func() {
			answer, err := upload(t.Context(), client, g, keys["acme"], newSlowBody(sized(1<<20), release), true)
			if err != nil {
				t.Error(err)
			}
			answers <- answer
		}()
	}
	for range 38 {
		if answer := harness.Receive(t, answers, "an upload is refused"); answer == nil || answer.StatusCode != 429 || answer.Code() != "rate_limited" {
			t.Errorf("a body above the limit of its tenant: %v", answer)
		}
	}
	harness.Eventually(t, "two bodies are in flight", func() error {
		return wantMetric(g, `sluice_budget_used{budget="upload_bytes"} 2.097152e+06`)
	})
	if answer := g.Post("/v1/chat/completions", sized(500), "Authorization: Bearer "+keys["other"]); answer.StatusCode != 200 {
		t.Errorf("another tenant: %s", answer)
	}
	close(release)
	for range 2 {
		if answer := harness.Receive(t, answers, "an upload is answered"); answer == nil || answer.StatusCode != 200 {
			t.Errorf("a body within the limit: %v", answer)
		}
	}
}

// TestE2E_X7_BytesOfUploads: a body that does not fit is refused at once, and fits when another one
// has come.
func TestE2E_X7_BytesOfUploads(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "max_body: 1MiB\nupload: {max_bytes: 1MiB, grace: 5s, min_rate: 1KiB}\n"+small)
	harness.Eventually(t, "a request", func() error { return ask(newClient(t), g) })
	release := make(chan struct{})
	first := make(chan *harness.Answer, 1)
	go func() {
		answer, err := upload(t.Context(), harness.Client, g, "", newSlowBody(sized(900<<10), release), true)
		if err != nil {
			t.Error(err)
		}
		first <- answer
	}()
	if c := g.AwaitCondition(condition.MemoryNearLimit, "uploads"); !strings.Contains(c.Message, "Clients send 1 bodies of 0 MiB") {
		t.Errorf("%+v", c)
	}
	answer := g.Post("/v1/chat/completions", sized(200<<10))
	if answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" || answer.Code() != "gateway_unavailable" {
		t.Errorf("a body that does not fit: %s", answer)
	}
	close(release)
	if answer := harness.Receive(t, first, "the first upload is answered"); answer == nil || answer.StatusCode != 200 {
		t.Errorf("the body that came first: %v", answer)
	}
	if answer := g.Post("/v1/chat/completions", sized(200<<10)); answer.StatusCode != 200 {
		t.Errorf("a body that fits now: %s", answer)
	}
}

// TestE2E_X7_EndlessInformationalResponses: an engine that sends 1xx responses for ever holds its
// slot no longer than a silent one, until the end of max_duration.
func TestE2E_X7_EndlessInformationalResponses(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 16)
	engine := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "chat", "managed") || r.Method != http.MethodPost {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				ended <- struct{}{}
				return
			case <-tick.C:
				w.WriteHeader(http.StatusEarlyHints)
			}
		}
	})
	g := harness.Start(t, `
models:
  - name: chat
    launcher: upstream
    task: text-generation
    upstreams: [{url: `+engine+`}]
    stream: {max_duration: 2s}
  - name: managed
    launcher: upstream
    task: text-generation
    upstreams: [{url: `+engine+`}]
    stream: {max_duration: 2s, mode: managed}
`)
	harness.Eventually(t, "the model is ready", func() error {
		if a, b := g.Model("chat"), g.Model("managed"); a.Ready != 1 || b.Ready != 1 {
			return fmt.Errorf("%+v, %+v", a, b)
		}
		return nil
	})
	for _, model := range []string{"chat", "managed"} {
		for _, stream := range []string{"false", "true"} {
			answer := g.Post("/v1/chat/completions", `{"model":"`+model+`","messages":[],"stream":`+stream+`}`)
			// The relay gives such an engine up sooner than Envoy does.
			if code := answer.Code(); code != "upstream_timeout" && (code != "upstream_error" || model == "chat") {
				t.Errorf("%s, stream %s: %s", model, stream, answer)
			}
			harness.Receive(t, ended, "the engine is told that its request has ended")
		}
		g.AwaitIdle(model)
	}
}
