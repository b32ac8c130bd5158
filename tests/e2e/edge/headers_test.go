package edge

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X8_TooManyHeaders sends more and more headers, and larger and larger ones, on every kind
// of route by HTTP/1.1 and HTTP/2. Each request is served, or refused with 431. None gets a 503,
// and none hurts the connection.
func TestE2E_X8_TooManyHeaders(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, small)
	harness.Eventually(t, "a request", func() error { return ask(newClient(t), g) })
	one := &http.Client{Transport: &http.Transport{}}
	two := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	two.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(one.CloseIdleConnections)
	t.Cleanup(two.CloseIdleConnections)
	for protocol, client := range map[string]*http.Client{"HTTP/1.1": one, "HTTP/2": two} {
		for route, request := range map[string]func() *http.Request{
			"native": func() *http.Request { return chat(t, g, `{"model":"chat","messages":[],"max_tokens":1}`) },
			"managed": func() *http.Request {
				return chat(t, g, `{"model":"chat","messages":[],"max_tokens":1,"stream":true,"heartbeat_ms":1000}`)
			},
			"api":   func() *http.Request { return get(t, g, "/v1/models") },
			"relay": func() *http.Request { return get(t, g, "/v1/streams/none") },
		} {
			t.Run(protocol+" "+route, func(t *testing.T) {
				sweep(t, client, request)
			})
		}
	}
}

// sweep sends a request with more and more headers.
func sweep(t *testing.T, client *http.Client, request func() *http.Request) {
	refused := map[bool]int{}
	for _, many := range []bool{true, false} {
		for _, n := range []int{1, 60, 80, 86, 90, 100, 105, 110, 140, 200} {
			r := request()
			if many {
				for i := range n {
					r.Header.Set(fmt.Sprint("x-many-", i), "x")
				}
			} else { // n KiB in few headers
				for i := range n {
					r.Header.Add(fmt.Sprint("x-large-", i%8), strings.Repeat("x", 1000))
				}
				if n > 110 {
					continue // Envoy resets an HTTP/2 stream above twice the limit
				}
			}
			status := statusOf(t, client, r)
			if status == http.StatusRequestHeaderFieldsTooLarge {
				refused[many]++
			} else if n > 105 || status >= 500 {
				t.Errorf("%d headers or KiB (many: %v): status %d", n, many, status)
			}
			if n <= 50 && status == http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%d headers or KiB (many: %v) were refused", n, many)
			}
		}
	}
	if refused[true] == 0 || refused[false] == 0 {
		t.Errorf("refused %v", refused)
	}
}

// statusOf sends a request. It checks that a refusal has the form of OpenAI's errors.
func statusOf(t *testing.T, client *http.Client, r *http.Request) int {
	t.Helper()
	answer, err := client.Do(r)
	if err != nil {
		t.Errorf("%d headers: %v", len(r.Header), err)
		return 0
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		return answer.StatusCode
	}
	var e struct {
		Error struct{ Code, Type, Message string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Code != "headers_too_large" || e.Error.Type != "invalid_request_error" {
		t.Errorf("a refusal without the form of an error: %s", body)
	}
	if answer.Header.Get("Retry-After") != "" {
		t.Error("a client is told to send the same headers again")
	}
	return answer.StatusCode
}

// chat returns a request for a chat completion.
func chat(t *testing.T, g *harness.Gateway, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, g.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

func get(t *testing.T, g *harness.Gateway, path string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, g.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
