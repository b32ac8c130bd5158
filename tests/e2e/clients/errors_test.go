package clients

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestE2E_P2_ErrorsAreOpenAIs(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "max_body: 2MiB"+harness.OneSim)
	good := harness.ChatBody("chat", false, 4, "hello")
	for _, c := range []struct {
		name, path, body, header string
		status                   int
		code                     string
	}{
		{"good", "/v1/chat/completions", good, "", 200, ""},
		{"alias", "/v1/chat/completions", harness.ChatBody("default-chat", false, 4, "hello"), "", 200, ""},
		{"query string", "/v1/chat/completions?api-version=1", good, "", 200, ""},
		{"unknown model", "/v1/chat/completions", harness.ChatBody("nope", false, 4, "hi"), "", 404, "model_not_found"},
		{"unknown path", "/v1/nothing", good, "", 404, "invalid_request"},
		{"no model", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}]}`, "", 200, ""},
		{"model twice", "/v1/chat/completions", `{"model":"chat","mod\u0065l":"other"}`, "", 400, "invalid_request"},
		{"model in another case", "/v1/chat/completions", `{"model":"chat","Model":"other"}`, "", 400, "invalid_request"},
		{"model is a number", "/v1/chat/completions", `{"model":7}`, "", 400, "invalid_request"},
		{"not JSON", "/v1/chat/completions", `{"model":"chat"`, "", 400, "invalid_request"},
		{"bad UTF-8", "/v1/chat/completions", "{\"model\":\"chat\",\"x\":\"\xff\"}", "", 400, "invalid_request"},
		{"empty body", "/v1/chat/completions", "", "", 400, "invalid_request"},
		{"compressed", "/v1/chat/completions", good, "Content-Encoding: gzip", 415, "invalid_request"},
		{"wrong type", "/v1/chat/completions", good, "Content-Type: text/plain", 415, "invalid_request"},
		{"too large", "/v1/chat/completions", good + strings.Repeat(" ", 3<<20), "", 413, "request_too_large"},
		{"bad timeout", "/v1/chat/completions", good, "X-Sluice-Timeout-Ms: soon", 400, "invalid_request"},
		{"path in another shape", "/v1//chat/./completions", good, "", 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var extra []string
			if c.header != "" {
				extra = append(extra, c.header)
			}
			a := answerTo(t, func() (*harness.Answer, error) { return g.TryPost(t.Context(), c.path, c.body, extra...) })
			if a.StatusCode != c.status || a.Code() != c.code {
				t.Fatalf("want %d %s, got %s", c.status, c.code, a)
			}
			if a.Header.Get("X-Request-Id") == "" {
				t.Error("no x-request-id")
			}
			if source := a.Header.Values("X-Sluice-Source"); len(source) != 1 || source[0] != map[bool]string{true: "engine", false: "gateway"}[c.status == 200] {
				t.Errorf("x-sluice-source: %q", source)
			}
			if c.status == 200 && a.Header.Get("X-Sluice-Replica") != "chat-0" {
				t.Errorf("x-sluice-replica: %q", a.Header.Get("X-Sluice-Replica"))
			}
			if c.status != 200 && a.Header.Get("Content-Type") != "application/json" {
				t.Errorf("content-type: %q", a.Header.Get("Content-Type"))
			}
		})
	}
	for _, c := range []struct {
		method, path, allow string
		status              int
	}{
		{"GET", "/v1/chat/completions", "POST", 405},
		{"POST", "/v1/models", "GET, HEAD", 405},
		{"DELETE", "/v1/models/chat", "GET, HEAD", 405},
		{"PUT", "/models", "GET, HEAD", 405},
		{"POST", "/health", "GET, HEAD", 405},
		{"GET", "/v1/models/%zz", "", 404},
		{"GET", "/models/a%2", "", 404},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), c.method, g.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Opaque = c.path // as it is
			answer, err := harness.Client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			b, _ := io.ReadAll(answer.Body)
			a := &harness.Answer{Response: answer, Content: b}
			if a.StatusCode != c.status || a.Code() != "invalid_request" || a.Header.Get("Allow") != c.allow {
				t.Errorf("%s, allow %q", a, a.Header.Get("Allow"))
			}
		})
	}
	t.Run("too large without a length", func(t *testing.T) {
		a := answerTo(t, func() (*harness.Answer, error) {
			body := io.MultiReader(strings.NewReader(good), strings.NewReader(strings.Repeat(" ", 3<<20)))
			r, err := harness.Client.Post(g.URL+"/v1/chat/completions", "application/json", body)
			if err != nil {
				return nil, err
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			return &harness.Answer{Response: r, Content: b}, err
		})
		if a.StatusCode != 413 || a.Code() != "request_too_large" || !strings.Contains(string(a.Content), "2 MiB") {
			t.Errorf("want 413 that names the limit, got %s", a)
		}
	})
}

// answerTo sends a request until it has an answer. Envoy closes the connection of a body that is
// too large a second after the refusal, whether or not the client has read it by then.
func answerTo(t *testing.T, send func() (*harness.Answer, error)) (a *harness.Answer) {
	t.Helper()
	harness.Eventually(t, "an answer", func() (err error) {
		a, err = send()
		return err
	})
	return a
}

func TestE2E_N9_P6_S14_KeysAndTenants(t *testing.T) {
	t.Parallel()
	all, some := authz.NewKey(), authz.NewKey()
	g := harness.Start(t, `
auth: {mode: keys}
tenants:
  - {name: acme, keys: ["`+all.Hash+`"], models: ["*"]}
  - {name: beta, keys: ["`+some.Hash+`"], models: [other]}
`+harness.OneSim+`
  - {name: other, task: embedding, engine: sim}
`)
	body := harness.ChatBody("chat", false, 4, "hush-hush prompt")
	for _, c := range []struct {
		name, path, key string
		status          int
		code            string
	}{
		{"no key", "/v1/chat/completions", "", 401, "invalid_api_key"},
		{"wrong key", "/v1/chat/completions", "sk-wrong", 401, "invalid_api_key"},
		{"good key", "/v1/chat/completions", all.Secret, 200, ""},
		{"not this model", "/v1/chat/completions", some.Secret, 404, "model_not_found"},
		{"unknown paths tell nothing to strangers", "/v1/nothing", "", 401, "invalid_api_key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := g.Post(c.path, body, "Authorization: Bearer "+c.key)
			if a.StatusCode != c.status || a.Code() != c.code {
				t.Fatalf("want %d %s, got %s", c.status, c.code, a)
			}
		})
	}
	t.Run("models", func(t *testing.T) {
		for key, want := range map[string]int{"": 401, "sk-wrong": 401, all.Secret: 200, some.Secret: 200} {
			a := g.Fetch("/v1/models", "Authorization: Bearer "+key)
			if a.StatusCode != want || want == 200 && strings.Contains(string(a.Content), `"chat"`) != (key == all.Secret) {
				t.Errorf("want %d, got %s", want, a)
			}
		}
		if a := g.Fetch("/v1/models/chat", "Authorization: Bearer "+all.Secret); a.StatusCode != 200 || !strings.Contains(string(a.Content), `"id":"chat"`) {
			t.Errorf("got %s", a)
		}
		if a := g.Fetch("/v1/models/nope", "Authorization: Bearer "+all.Secret); a.StatusCode != 404 || a.Code() != "model_not_found" {
			t.Errorf("got %s", a)
		}
		if a := g.Fetch("/health"); a.StatusCode != 200 {
			t.Errorf("health needs no key; got %s", a)
		}
	})
	t.Run("a key refused before a large body was sent", func(t *testing.T) {
		pipe, never := io.Pipe()
		defer never.Close()
		req, _ := http.NewRequestWithContext(context.Background(), "POST", g.URL+"/v1/chat/completions", pipe)
		req.ContentLength = 1 << 20
		req.Header.Set("Content-Type", "application/json")
		r, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != 401 {
			t.Errorf("got %s", r.Status)
		}
	})
	t.Run("nothing secret is written down", func(t *testing.T) {
		metrics := g.AdminText("/metrics") + g.AdminText("/api/v1/requests") + g.AdminText("/api/v1/tenants") + g.LogText()
		for _, secret := range []string{all.Secret, some.Secret, "hush-hush", all.Hash[7:], "sk-wrong"} {
			if strings.Contains(metrics, secret) {
				t.Errorf("found %q", secret)
			}
		}
		if !strings.Contains(metrics, "acme") {
			t.Error("the check looks in the wrong place: it does not even find the tenant")
		}
	})
}

func TestE2E_E3_ForgedHeadersAreNothing(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.OneSim, "token_interval: 0s", "token_interval: 1ms", 1))
	address := g.Replicas()["chat-0"].Address
	for _, h := range []string{
		"X-Sluice-Cluster: model/chat", "x_sluice_cluster: model/chat", "X-Gateway-Destination-Endpoint: " + address,
		"X-Envoy-Original-Path: /v1/models", "X-Envoy-Upstream-Rq-Timeout-Ms: 1", "X-Sluice-Tenant: acme", "X-Forwarded-For: 10.0.0.1",
	} {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("nope", false, 4, "hi"), h); a.StatusCode != 404 {
			t.Errorf("%s: %s", h, a)
		}
		if a := g.Post("/v1/anything", harness.ChatBody("chat", false, 4, "hi"), h, "X-Sluice-Cluster: model/chat"); a.StatusCode != 404 || a.Header.Get("X-Sluice-Source") != "gateway" {
			t.Errorf("%s: %s", h, a)
		}
	}
	// Envoy obeys this header. The gateway leaves it out where the route has the same bound.
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 100, "hi"), "X-Envoy-Upstream-Rq-Timeout-Ms: 1"); a.StatusCode != 200 {
		t.Errorf("with a forged timeout: %s", a)
	}
}

// TestE2E_B6_RefusalsOfGRPC: whoever sends the content type of gRPC is told of a refusal in its
// way, whether the filter or ext_proc asks. A refusal is never a success.
func TestE2E_B6_RefusalsOfGRPC(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [{hash: '"+authz.HashKey("good")+"'}]}]"+harness.OneSim)
	for _, c := range []struct{ path, key, want string }{
		{"/v1/chat/completions", "bad", "16"}, {"/v1/nothing", "good", "12"}, {"/grpc.health.v1.Health/Check", "good", "12"},
	} {
		a := g.Post(c.path, "{}", "Content-Type: application/grpc", "Authorization: Bearer "+c.key)
		if got := a.Header.Get("Grpc-Status"); a.StatusCode != 200 || got != c.want {
			t.Errorf("%s: status %d, grpc-status %q, want %s", c.path, a.StatusCode, got, c.want)
		}
	}
}

// TestE2E_B6_TheListSaysWhoWasTold: the list of requests has the tenant and the code of what Sluice
// itself answers, and each request once.
func TestE2E_B6_TheListSaysWhoWasTold(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [{hash: '"+authz.HashKey("good")+"'}]}]"+harness.OneSim)
	const key = "Authorization: Bearer good"
	cases := []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", "/v1/streams/none", "", 404, "stream_not_found"},
		{"POST", "/v1/streams/none/cancel", "", 404, "stream_not_found"},
		{"GET", "/v1/responses/resp_none", "", 404, "response_not_found"},
		{"GET", "/v1/realtime?model=chat", "", 426, "invalid_request"},
		{"POST", "/schedule", `{"model": "chat", "estimated_tokens": 1}`, 200, ""},
		{"POST", "/schedule", `{"model": "none", "estimated_tokens": 1}`, 404, "model_not_found"},
		{"POST", "/complete", `{"task_id": "none"}`, 404, ""},
		{"GET", "/v1/models", "", 200, ""},
	}
	for _, c := range cases {
		var a *harness.Answer
		if c.method == "GET" {
			a = g.Fetch(c.path, key)
		} else {
			a = g.Post(c.path, c.body, key)
		}
		if a.StatusCode != c.status {
			t.Errorf("%s: %s", c.path, a)
		}
		path, _, _ := strings.Cut(c.path, "?")
		harness.Eventually(t, "the list has "+c.path, func() error {
			var list struct {
				Requests []struct {
					Path, Tenant, Code, Source string
					Status                     int
				}
			}
			if err := g.TryGet("/api/v1/requests?limit=1", &list); err != nil {
				return err
			}
			if len(list.Requests) != 1 || list.Requests[0].Path != path || list.Requests[0].Status != c.status {
				return fmt.Errorf("%+v", list)
			}
			if r := list.Requests[0]; r.Tenant != "acme" || r.Code != c.code || r.Source != "gateway" {
				t.Errorf("%s %s: %+v, want the tenant acme and the code %q", c.method, c.path, r, c.code)
			}
			return nil
		})
	}
	var list struct{ Requests []struct{ Path string } }
	if g.Get("/api/v1/requests?limit=100", &list); len(list.Requests) != len(cases) {
		t.Errorf("%d requests in the list, want %d: %+v", len(list.Requests), len(cases), list)
	}
}
