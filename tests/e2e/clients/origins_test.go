package clients

import (
	"net/http"
	"testing"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// preflight asks as a browser does before a page of the origin calls the API.
func preflight(t *testing.T, g *harness.Gateway, origin string) *harness.Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, g.URL+"/v1/chat/completions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Origin": {origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization"}}
	return g.Do(harness.Client, req)
}

// opens reports whether a page of the origin can open a WebSocket.
func opens(t *testing.T, g *harness.Gateway, origin string) bool {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), g.URL+"/v1/realtime", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {origin}}})
	if err != nil {
		return false
	}
	return ws.CloseNow() == nil
}

// Pages of the origins of cors call the API, those of others do not, and a reload changes which.
func TestE2E_B9_PagesOfListedOrigins(t *testing.T) {
	t.Parallel()
	const model, chat = "\nmodels: [{name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 0s}}]\n",
		`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"hello"}]}`
	const first, second, stranger = "https://app.example", "https://a.b.other.example:8443", "https://evil.example"
	g := harness.Start(t, "\nauth: {mode: none}"+model)
	if a := preflight(t, g, first); a.StatusCode < 400 {
		t.Errorf("without cors: %s", a)
	}
	if opens(t, g, first) {
		t.Error("a page of another origin opened a WebSocket without a key")
	}
	if a := g.Post("/v1/chat/completions", chat, "Origin: "+first); a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("without cors: %v", a.Header)
	}
	g.Configure("\nauth: {mode: none}\ncors: {origins: [" + first + ", 'https://*.other.example:8443']}" + model)
	testutil.Eventually(t, "the origin may call", func() bool { return preflight(t, g, first).StatusCode == 200 })
	for _, origin := range []string{first, second} {
		a := preflight(t, g, origin)
		if h := a.Header; a.StatusCode != 200 || h.Get("Access-Control-Allow-Origin") != origin || h.Get("Access-Control-Allow-Methods") != "POST" ||
			h.Get("Access-Control-Allow-Headers") != "authorization" || h.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %s %v", origin, a, h)
		}
		for path, status := range map[string]int{"/v1/chat/completions": 200, "/v1/nowhere": 404} {
			a = g.Post(path, chat, "Origin: "+origin)
			if h := a.Header; a.StatusCode != status || h.Get("Access-Control-Allow-Origin") != origin || h.Get("Access-Control-Expose-Headers") != "*" ||
				h.Get("Vary") != "Origin" {
				t.Errorf("%s %s: %s %v", origin, path, a, h)
			}
		}
		if !opens(t, g, origin) {
			t.Errorf("%s opened no WebSocket", origin)
		}
	}
	for _, origin := range []string{stranger, "https://evil.example#.other.example:8443", "null"} {
		if a := preflight(t, g, origin); a.StatusCode < 400 || a.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %s %v", origin, a, a.Header)
		}
	}
	a := g.Post("/v1/chat/completions", chat, "Origin: "+stranger)
	if a.StatusCode != 200 || a.Header.Get("Access-Control-Allow-Origin") != "" || opens(t, g, stranger) {
		t.Errorf("%s: %s %v", stranger, a, a.Header)
	}
	g.Configure("\nauth: {mode: none}" + model)
	testutil.Eventually(t, "the origin may call no more", func() bool { return preflight(t, g, first).StatusCode >= 400 })
	if opens(t, g, first) {
		t.Error("a page of an origin that was removed opened a WebSocket")
	}
}
