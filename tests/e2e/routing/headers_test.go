package routing

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// ways are bodies of requests that take each way to a replica.
var ways = map[string]string{
	"native":          `{"model":"m","messages":[]}`,
	"native stream":   `{"model":"m","messages":[],"stream":true}`,
	"managed":         `{"model":"m","messages":[],"request_id":"a"}`,
	"managed stream":  `{"model":"m","messages":[],"stream":true,"timeout_ms":60000}`,
	"managed and key": `{"model":"keyed","messages":[],"request_id":"b"}`,
	"native and key":  `{"model":"keyed","messages":[]}`,
}

// answer answers a request as an engine does, by a stream if the request asks for one.
func answer(w http.ResponseWriter, body string) {
	if strings.Contains(body, "stream") {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		return
	}
	io.WriteString(w, `{"choices":[]}`)
}

// TestE2E_X14_HeadersStopAtTheGateway: headers that name another request, claim another client or
// hold credentials reach no engine; headers that act on browsers and proxies reach no client.
func TestE2E_X14_HeadersStopAtTheGateway(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[http.Header]
	engine := func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m", "keyed") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		got.Store(&r.Header)
		for _, h := range headers.FromEngines() {
			w.Header().Set(h.Name, "evil")
		}
		w.Header().Set("X-Of-The-Engine", "kept")
		answer(w, string(body))
	}
	g := harness.Start(t, `
models:
  - {name: m, launcher: upstream, upstreams: [`+harness.StartUpstream(t, engine)+`]}
  - {name: keyed, launcher: upstream, upstreams: [{url: `+harness.StartUpstream(t, engine)+`, api_key_env: SLUICE_TEST_HEADER_KEY, headers: {cookie: of-the-file}}]}
`, "SLUICE_TEST_HEADER_KEY=the-files-key")
	sent := []string{"X-Of-The-Client: kept", "x_original_url: /admin", "X-Portkey-Config: evil", "Helicone-Target-Url: evil", "x-pass-cookie: evil"}
	for _, h := range headers.FromClients() {
		// The first two have effects of their own, and the last means the same as x-api-key.
		if h.Name != headers.IdempotencyKey && h.Name != "expect" && h.Name != "api-key" {
			sent = append(sent, h.Name+": evil")
		}
	}
	for name, body := range ways {
		a := g.Post(harness.ChatPath, body, sent...)
		if a.StatusCode != 200 {
			t.Fatalf("%s: %s", name, a)
		}
		keyed := strings.Contains(body, "keyed")
		for _, h := range headers.FromClients() {
			want := ""
			switch {
			case keyed && h.Name == "authorization":
				want = "Bearer the-files-key"
			case keyed && h.Name == "cookie":
				want = "of-the-file"
			}
			if value := got.Load().Get(h.Name); value != want {
				t.Errorf("%s: the engine gets %s: %q, want %q", name, h.Name, value, want)
			}
		}
		if h := *got.Load(); h.Get("x-of-the-client") != "kept" || h.Get("x_original_url") != "" || h.Get("x-sluice-cluster") != "" ||
			h.Get("x-portkey-config") != "" || h.Get("helicone-target-url") != "" || h.Get("x-pass-cookie") != "" {
			t.Errorf("%s: the engine gets %v", name, h)
		}
		for _, h := range headers.FromEngines() {
			if value := a.Header.Get(h.Name); value != "" {
				t.Errorf("%s: the client gets %s: %s", name, h.Name, value)
			}
		}
		g.Post(harness.ChatPath, body, "api-key: evil")
		if value := got.Load().Get("api-key"); value != "" {
			t.Errorf("%s: the engine gets api-key: %q", name, value)
		}
		if !strings.Contains(name, "stream") && a.Header.Get("x-of-the-engine") != "kept" {
			t.Errorf("%s: the client gets %v", name, a.Header)
		}
	}
}

// TestE2E_X14_AResponseSaysWhoHasAnswered: an engine cannot say itself who it is. What the gateway
// answers after an engine has failed is its own. The file can hide the replicas.
func TestE2E_X14_AResponseSaysWhoHasAnswered(t *testing.T) {
	t.Parallel()
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m", "keyed") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		for name := range r.Header {
			if name := strings.ToLower(name); strings.HasPrefix(name, "x-sluice-") {
				t.Errorf("the engine gets %s", name)
			}
		}
		for name, value := range map[string]string{headers.Source: "gateway", headers.Replica: "evil", "cache-control": "public"} {
			w.Header().Set(name, value)
		}
		switch {
		case strings.Contains(string(body), "hang"):
			<-r.Context().Done()
		case strings.Contains(string(body), "reset"):
			panic(http.ErrAbortHandler)
		case strings.Contains(string(body), "fail"):
			w.WriteHeader(400)
		}
		answer(w, string(body))
	})
	file := "upstreams: [" + url + "]\n"
	g := harness.Start(t, file)
	check := func(name, body string, status int, shown bool) {
		t.Helper()
		a := g.Post(harness.ChatPath, body)
		source, replica := a.Header.Values(headers.Source), a.Header.Values(headers.Replica)
		if a.StatusCode != status || len(source) != 1 || source[0] != headers.SourceEngine {
			t.Errorf("%s: %d, source %q", name, a.StatusCode, source)
		}
		if (len(replica) == 1 && replica[0] != "evil") != shown || !shown && len(replica) > 0 {
			t.Errorf("%s: replica %q", name, replica)
		}
		buffers := a.Header.Get("x-accel-buffering") != "no" || !strings.Contains(a.Header.Get("cache-control"), "no-transform")
		if strings.Contains(body, `"stream":true`) == buffers {
			t.Errorf("%s: the client gets %v", name, a.Header)
		}
	}
	for _, c := range []struct {
		body   string
		option []string
		status int
	}{
		{`{"model":"m","messages":[],"user":"hang"}`, []string{"x-sluice-timeout-ms: 300"}, 408},
		{`{"model":"m","messages":[],"user":"reset"}`, nil, 502},
		{`{"model":"m","messages":[],"user":"reset","stream":true}`, nil, 502},
	} {
		a := g.Post(harness.ChatPath, c.body, c.option...)
		if source := a.Header.Values(headers.Source); a.StatusCode != c.status || len(source) != 1 || source[0] != headers.SourceGateway {
			t.Errorf("%s: %s, source %q", c.body, a, source)
		}
	}
	for _, shown := range []bool{true, false} {
		if !shown {
			g.Configure(file + "replica_header: false\n")
			harness.Eventually(t, "the replica is hidden", func() error {
				if name := g.Post(harness.ChatPath, ways["native"]).Header.Get(headers.Replica); name != "" {
					return errors.New(name)
				}
				return nil
			})
		}
		for name, body := range ways {
			if shown || !strings.Contains(name, "managed") { // an answer of the same request_id is a repetition
				check(name, body, 200, shown)
			}
		}
		check("refused", `{"model":"m","messages":[],"user":"fail"}`, 400, shown)
	}
}

// TestE2E_X14_UnaskedProtocolSwitch: a 101 that nobody has asked for becomes a 502, and what
// follows it on the connection reaches nobody. A native request learns which replica did so.
func TestE2E_X14_UnaskedProtocolSwitch(t *testing.T) {
	t.Parallel()
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m", "keyed") {
			return
		}
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
	})
	g := harness.Start(t, "upstreams: ["+url+"]\n")
	for name, body := range ways {
		a := g.Post(harness.ChatPath, body)
		if a.StatusCode != 502 || a.Code() != "upstream_error" || strings.Contains(string(a.Content), "evil") {
			t.Errorf("%s: %s", name, a)
		}
		if native := strings.HasPrefix(name, "native"); (a.Header.Get(headers.Replica) != "") != native {
			t.Errorf("%s: the client gets %v", name, a.Header)
		}
	}
}
