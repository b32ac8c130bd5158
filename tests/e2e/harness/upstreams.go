package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// SerialUpstream is an upstream that answers one request for each value that it receives on Next.
// It records the first word of each prompt that it answered.
type SerialUpstream struct {
	URL  string
	Next chan struct{}

	mu    sync.Mutex
	order []string
}

// StartSerialUpstream starts a SerialUpstream with the model m. It runs until the test ends.
func StartSerialUpstream(t *testing.T) *SerialUpstream {
	s := &SerialUpstream{Next: make(chan struct{}, 10_000)}
	s.URL = StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if ServeModelList(w, r, "m") {
			return
		}
		var body struct{ Prompt string }
		json.NewDecoder(r.Body).Decode(&body)
		select {
		case <-s.Next:
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
		s.order = append(s.order, strings.Fields(body.Prompt)[0])
		s.mu.Unlock()
		io.WriteString(w, `{"choices":[{"text":"ok"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	})
	return s
}

// Served returns the first words of the answered prompts, in the order of the answers.
func (s *SerialUpstream) Served() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.order...)
}

// StartUpstream starts an HTTP server that stands for an engine which someone else runs. It returns
// the URL of the server. The server runs until the test ends. It has no metrics: the handler is not
// asked for them.
func StartUpstream(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: withoutMetrics(handler)}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

// AsksForEngine reports whether a gateway asks a server how busy it is, or what engine it is.
func AsksForEngine(r *http.Request) bool {
	isQuestion := func(path string) bool { return strings.HasSuffix(r.URL.Path, path) }
	return r.Method == http.MethodGet &&
		slices.ContainsFunc([]string{"/metrics", "/props", "/info", "/get_server_info", "/server_info", "/api/version"}, isQuestion)
}

// StartEngine starts a server that answers a GET by the texts, by path, and each POST with the path
// in a JSON object. It returns the URL of the server, which runs until the test ends.
func StartEngine(t *testing.T, texts map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := texts[r.URL.Path]
		switch {
		case r.Method == http.MethodPost:
			io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, `{"data":[{"path":%q}]}`, r.URL.Path)
		case ok:
			io.WriteString(w, text)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// withoutMetrics answers 404 to gateways that ask a handler how busy it is.
func withoutMetrics(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if AsksForEngine(r) {
			http.NotFound(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// ServeModelList answers r with the list of models and returns true if r asks for that list.
func ServeModelList(w http.ResponseWriter, r *http.Request, models ...string) bool {
	if r.Method != http.MethodGet || r.URL.Path != "/v1/models" {
		return false
	}
	type card struct {
		ID string `json:"id"`
	}
	var data []card
	for _, m := range models {
		data = append(data, card{m})
	}
	json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data})
	return true
}

// HeldUpstream is an upstream that answers the headers of a request at once, and the body when it
// receives a value on Release.
type HeldUpstream struct {
	URL       string
	Running   atomic.Int64   // requests in flight
	Most      atomic.Int64   // the highest value of Running
	Served    atomic.Int64   // requests that were answered
	Cancelled chan time.Time // when the gateway cancelled a request
	Release   chan struct{}
}

// StartHeldUpstream starts a HeldUpstream with the model m. It runs until the test ends.
func StartHeldUpstream(t *testing.T) *HeldUpstream {
	u := &HeldUpstream{Cancelled: make(chan time.Time, 100), Release: make(chan struct{}, 1000)}
	u.URL = StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		n := u.Running.Add(1)
		defer u.Running.Add(-1)
		for most := u.Most.Load(); n > most && !u.Most.CompareAndSwap(most, n); most = u.Most.Load() {
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		select {
		case <-u.Release:
			u.Served.Add(1)
			fmt.Fprint(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
			u.Cancelled <- time.Now()
		}
	})
	return u
}

// ID is the id that a gateway gives the upstream as a replica: its host and port.
func (u *HeldUpstream) ID() string { return strings.TrimPrefix(u.URL, "http://") }
