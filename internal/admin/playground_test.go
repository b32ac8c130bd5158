package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// chatRequest is a chat completion that the page sends.
func chatRequest(body string, header map[string]string) *http.Request {
	r := httptest.NewRequest("POST", playgroundPath, strings.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return r
}

// TestO10_PlaygroundIsNoProxy: only the body and the key reach the listener, on its one path. A
// redirect, a page, and the listener's other headers do not reach the browser.
func TestO10_PlaygroundIsNoProxy(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body string
	answer := func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/json"); fmt.Fprint(w, "{}") }
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got, body = r, string(data)
		answer(w)
	}))
	defer listener.Close()
	c := newConfig()
	c.Chat = NewChat(listener.Listener.Addr().String(), false)
	h := New(c)
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, chatRequest(`{"model":"chat"}`, map[string]string{
			playgroundKey: "sk-1", "Cookie": "sluice_admin=x", "X-Forwarded-For": "1.2.3.4", "X-Sluice-Cluster": "other", "Forwarded": "host=evil.example",
		}))
		return w
	}
	if w := ask(); w.Code != 200 || w.Body.String() != "{}" {
		t.Fatalf("the answer is %d %s", w.Code, w.Body)
	}
	if got.URL.String() != "/v1/chat/completions" || got.Header.Get("Authorization") != "Bearer sk-1" || body != `{"model":"chat"}` {
		t.Errorf("the listener got %s with %v: %s", got.URL, got.Header, body)
	}
	for _, name := range []string{"Cookie", "X-Forwarded-For", "X-Sluice-Cluster", "Forwarded", playgroundKey} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("the listener got %s: %s", name, v)
		}
	}

	answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "a=b")
		fmt.Fprint(w, "<script>")
	}
	if w := ask(); w.Code != 502 || strings.Contains(w.Body.String(), "<script>") || w.Header().Get("Set-Cookie") != "" {
		t.Errorf("a page is passed on: %d %v %s", w.Code, w.Header(), w.Body)
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Location", "http://evil.example/")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(302)
	}
	if w := ask(); w.Code != 302 || w.Header().Get("Location") != "" {
		t.Errorf("a redirect is passed on or followed: %d %v", w.Code, w.Header())
	}
}

// TestO10_PlaygroundIsForOperators: a viewer, another site and a form are refused before anything
// is sent to the listener.
func TestO10_PlaygroundIsForOperators(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.Access = newAccess
	c.Chat = func(context.Context, []byte, string) (*http.Response, error) {
		t.Error("the listener was called")
		return nil, context.Canceled
	}
	h := New(c)
	for name, test := range map[string]struct {
		header map[string]string
		status int
	}{
		"nobody":     {nil, 401},
		"viewer":     {map[string]string{"Authorization": "Bearer " + viewerToken}, 403},
		"other site": {map[string]string{"Authorization": "Bearer " + operatorToken, "Sec-Fetch-Site": "cross-site"}, 403},
		"form":       {map[string]string{"Authorization": "Bearer " + operatorToken, "Content-Type": "text/plain"}, 415},
	} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, chatRequest("{}", test.header)); w.Code != test.status {
			t.Errorf("%s: status %d, want %d: %s", name, w.Code, test.status, w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, chatRequest(strings.Repeat("x", maxPlayground+1), map[string]string{"Authorization": "Bearer " + operatorToken}))
	if w.Code != 413 {
		t.Errorf("a body that is too long: status %d, want 413", w.Code)
	}
}

// TestO10_PlaygroundStreams: an event reaches the page while the listener still holds the next.
func TestO10_PlaygroundStreams(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n")
		w.(http.Flusher).Flush()
		<-next
		fmt.Fprint(w, "data: 2\n")
	}))
	defer listener.Close()
	c := newConfig()
	c.Chat = NewChat(listener.Listener.Addr().String(), false)
	gateway := httptest.NewServer(New(c))
	defer gateway.Close()
	r, err := http.Post(gateway.URL+playgroundPath, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for _, want := range []string{"data: 1", "data: 2"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the page got %q, want %q: %v", lines.Text(), want, lines.Err())
		}
		if want == "data: 1" {
			close(next)
		}
	}
}

// TestO10_PlaygroundByTLS: a listener that wants TLS is called by TLS.
func TestO10_PlaygroundByTLS(t *testing.T) {
	t.Parallel()
	listener := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}")
	}))
	defer listener.Close()
	c := newConfig()
	c.Chat = NewChat(listener.Listener.Addr().String(), true)
	w := httptest.NewRecorder()
	if New(c).ServeHTTP(w, chatRequest("{}", nil)); w.Code != 200 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
