package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestTimeOnTheWire follows one stream through the whole engine. The headers come at once, the
// first token after the prefill, the others at the pace of the batch.
func TestTimeOnTheWire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{PrefillRate: 100, TokenInterval: 10 * time.Millisecond, CacheTokens: -1})
		body := chatBody("Tell me of the sea", `,"stream":true,"max_tokens":3`)
		prefill := textPrompt("<|user|>\nTell me of the sea\n<|assistant|>\n").tokens * 10
		w := newTimedWriter()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
		var got []int
		for _, m := range w.marks {
			got = append(got, int(m.at.Milliseconds()))
		}
		// headers, role, three tokens, finish_reason, [DONE]
		compareTimes(t, "events", got, []int{0, prefill, prefill, prefill + 10, prefill + 20, prefill + 20, prefill + 20})
	})
}

func TestLoading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{LoadTime: 5 * time.Second})
		status := func(method, path, body string) int {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
			return w.Code
		}
		for _, want := range []int{503, 200} {
			health, chat := status("GET", "/health", ""), status("POST", "/v1/chat/completions", chatBody("x", ""))
			if health != want || chat != want || e.State().Loaded != (want == 200) {
				t.Errorf("health %d, chat %d, want %d", health, chat, want)
			}
			time.Sleep(5 * time.Second)
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Models: []string{"sim", "other"}})
	tests := []struct {
		path, body string
		status     int
		param      any
	}{
		{"/v1/chat/completions", `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, 404, "model"},
		{"/v1/chat/completions", `{`, 400, nil},
		{"/v1/chat/completions", `{"model":7}`, 400, "model"},
		{"/v1/chat/completions", `{"messages":[]}`, 400, "messages"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":7}]}`, 400, "messages"},
		{"/v1/chat/completions", chatBody("x", `,"max_tokens":0`), 400, "max_tokens"},
		{"/v1/chat/completions", chatBody("x", `,"n":0`), 400, "n"},
		{"/v1/chat/completions", chatBody("x", `,"max_tokens":2,"min_tokens":3`), 400, "min_tokens"},
		{"/v1/chat/completions", chatBody("x", `,"tool_choice":"required"`), 400, "tool_choice"},
		{"/v1/completions", `{"model":"sim"}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":{}}`, 400, nil},
		{"/v1/responses", `{"model":"sim"}`, 400, "input"},
		{"/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, 404, "response_id"},
		{"/v1/responses", `{"input":"x","max_output_tokens":0}`, 400, "max_output_tokens"},
		{"/v1/embeddings", `{"model":"nope","input":"x"}`, 404, "model"},
		{"/v1/embeddings", `{"input":[]}`, 400, "input"},
		{"/v1/embeddings", `{"input":"x","dimensions":9999}`, 400, "dimensions"},
		{"/v1/embeddings", `{"input":"x","encoding_format":"hex"}`, 400, "encoding_format"},
		{"/v1/rerank", `{"query":"x"}`, 400, "documents"},
		{"/v1/score", `{"text_1":["a","b"],"text_2":["c"]}`, 400, "text_1"},
		{"/v1/audio/transcriptions", `{}`, 400, nil},
		{"/v1/nothing", `{}`, 404, nil},
	}
	for _, tt := range tests {
		r := s.post(tt.path, tt.body)
		body, err := readAll(r)
		if err != nil {
			t.Fatal(err)
		}
		v := decode(t, body)
		code, message := lookup(v, "error", "code"), lookup(v, "error", "message")
		if r.StatusCode != tt.status || code != float64(tt.status) || lookup(v, "error", "param") != tt.param || message == "" {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, r.StatusCode, body)
		}
	}
	if r := s.post("/v1/embeddings", `{"model":"other","input":"x"}`); r.StatusCode != http.StatusOK {
		t.Errorf("the second name: %d", r.StatusCode)
	}
}

func TestAPIKey(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{APIKey: "right"})
	for key, want := range map[string]int{"": 401, "Bearer wrong": 401, "right": 401, "Bearer right": 200} {
		r := s.post("/v1/embeddings", `{"input":"x"}`, "Authorization", key)
		if body, _ := readAll(r); r.StatusCode != want || want == 401 && !strings.Contains(body, `"error":"Unauthorized"`) {
			t.Errorf("%q: %d %s", key, r.StatusCode, body)
		}
	}
	if code, _ := s.get("/health"); code != 200 {
		t.Errorf("/health needs a key: %d", code)
	}
	if _, body := s.get("/sim/requests"); strings.Contains(body, "right") || !strings.Contains(body, `"credentials":["authorization"]`) {
		t.Errorf("the key was kept: %s", body)
	}
}

func TestRequestsReportTheBody(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{KeepRequests: 2})
	body := "{\"input\" :\t\"ünïcode \\u0041 " + strings.Repeat("x", 1<<20) + "\"}\r\n"
	for _, b := range []string{`{"input":"forgotten"}`, body, `{`} {
		s.post("/v1/embeddings?a=b", b, "X-Sluice-Test", "1", "Cookie", "secret", "Traceparent", "00-1")
	}
	testutil.Eventually(t, "all are over", func() bool {
		list, _ := s.engine.requestLog.all()
		return !slices.ContainsFunc(list, func(r RecordedRequest) bool { return r.Outcome == "running" })
	})
	_, text := s.get("/sim/requests")
	v := decode(t, text)
	sum := sha256.Sum256([]byte(body))
	first := lookup(v, "requests", 0)
	if lookup(v, "total") != 3.0 || len(lookup(v, "requests").([]any)) != 2 || lookup(first, "number") != 2.0 {
		t.Errorf("unexpected response: %.500s", text)
	}
	if lookup(first, "sha256") != hex.EncodeToString(sum[:]) || lookup(first, "length") != float64(len(body)) {
		t.Errorf("hash or length: %v", first)
	}
	if lookup(first, "path") != "/v1/embeddings?a=b" || lookup(first, "outcome") != "ok" || lookup(v, "requests", 1, "outcome") != "refused" {
		t.Errorf("unexpected response: %.700s", text)
	}
	if lookup(first, "headers", "x-sluice-test") != "1" || lookup(first, "headers", "traceparent") != "00-1" || strings.Contains(text, "secret") {
		t.Errorf("headers: %v", lookup(first, "headers"))
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL+"/sim/requests", nil)
	if r, err := s.Client().Do(req); err != nil || r.Body.Close() != nil {
		t.Fatal(err)
	}
	if _, text := s.get("/sim/requests"); !strings.Contains(text, `"requests":[]`) {
		t.Errorf("after DELETE: %s", text)
	}
}

// TestClientDisconnects closes connections of requests that wait, are prefilled and decode.
func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{MaxNumSeqs: 1, TokenInterval: time.Hour, PrefillRate: 1e9})
	state := func(running, waiting int) func() bool {
		return func() bool { st := s.engine.State(); return st.Running == running && st.Waiting == waiting }
	}
	leave := make([]context.CancelFunc, 3)
	for i, stream := range []string{`,"stream":true`, "", `,"stream":true`} {
		ctx, cancel := context.WithCancel(t.Context())
		leave[i] = cancel
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(chatBody("x", stream)))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if r, err := s.Client().Do(req); err == nil {
				readAll(r)
				r.Body.Close()
			}
		}()
		testutil.Eventually(t, "one more request", state(1, i))
	}
	if _, body := s.get("/sim/state"); !strings.HasPrefix(body, `{"running":1,"waiting":2,"loaded":true`) {
		t.Errorf("state: %s", body)
	}
	leave[1]()
	testutil.Eventually(t, "the queue is shorter", state(1, 1))
	leave[0]()
	testutil.Eventually(t, "the next is running", state(1, 0))
	leave[2]()
	testutil.Eventually(t, "all have left", state(0, 0))
	_, metrics := s.get("/metrics")
	for _, line := range []string{
		`vllm:request_success_total{engine="0",finished_reason="abort",model_name="sim"} 3`,
		`vllm:num_requests_running{engine="0",model_name="sim"} 0`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %s in\n%s", line, metrics)
		}
	}
}

// TestBlockedWriteHoldsNoSlot checks that a client which has disconnected holds no slot, even if a
// write to its connection still blocks.
func TestBlockedWriteHoldsNoSlot(t *testing.T) {
	t.Parallel()
	e := New(Config{TokenInterval: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	w := &blockedWriter{header: make(http.Header), writing: make(chan struct{}), release: make(chan struct{})}
	over := make(chan struct{})
	go func() {
		defer close(over)
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody("x", `,"stream":true`)))
		e.ServeHTTP(w, r.WithContext(ctx))
	}()
	<-w.writing
	if got := e.State().Running; got != 1 {
		t.Errorf("%d running", got)
	}
	cancel()
	testutil.Eventually(t, "the slot is free", func() bool { return e.State().Running == 0 })
	close(w.release)
	<-over
}

// blockedWriter is a connection that accepts the headers and then no bytes.
type blockedWriter struct {
	header           http.Header
	writing, release chan struct{}
}

func (w *blockedWriter) Header() http.Header { return w.header }
func (w *blockedWriter) WriteHeader(int)     {}
func (w *blockedWriter) Flush()              {}

func (w *blockedWriter) Write([]byte) (int, error) {
	close(w.writing)
	<-w.release
	return 0, net.ErrClosed
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Models: []string{"m"}})
	said := strings.Repeat("the same words again ", 20)
	var prompt, cached, generated float64
	for range 2 {
		v := s.object("/v1/chat/completions", `{"messages":[{"role":"user","content":"`+said+`"}]}`)
		prompt += lookup(v, "usage", "prompt_tokens").(float64)
		cached += lookup(v, "usage", "prompt_tokens_details", "cached_tokens").(float64)
		generated += lookup(v, "usage", "completion_tokens").(float64)
	}
	if cached == 0 {
		t.Error("the second request found nothing in the cache")
	}
	_, metrics := s.get("/metrics")
	for name, value := range map[string]float64{
		"vllm:prefix_cache_queries_total":          prompt,
		"vllm:prefix_cache_hits_total":             cached,
		"vllm:prompt_tokens_total":                 prompt,
		"vllm:generation_tokens_total":             generated,
		"vllm:time_to_first_token_seconds_count":   2,
		"vllm:e2e_request_latency_seconds_count":   2,
		"vllm:num_requests_waiting":                0,
		"vllm:kv_cache_usage_perc":                 0,
		"vllm:time_per_output_token_seconds_count": 0,
	} {
		if line := fmt.Sprintf("%s{engine=\"0\",model_name=\"m\"} %v\n", name, value); !strings.Contains(metrics, line) {
			t.Errorf("no %s", line)
		}
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{Models: []string{"a", "b/c"}})
	_, body := s.get("/v1/models")
	v := decode(t, body)
	if got := []any{lookup(v, "object"), lookup(v, "data", 0, "id"), lookup(v, "data", 1, "id"), lookup(v, "data", 1, "object")}; !cmp.Equal(got, []any{"list", "a", "b/c", "model"}) {
		t.Errorf("unexpected value: %v", got)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- New(Config{}).Run(ctx, ln) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Post("http://"+ln.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("hello", "")))
	if err != nil {
		t.Fatal(err)
	}
	body, err := readAll(r)
	r.Body.Close()
	port := fmt.Sprintf("on port %d", ln.Addr().(*net.TCPAddr).Port)
	if err != nil || !strings.Contains(body, port) || !strings.Contains(body, "simulated") {
		t.Errorf("the answer names neither itself nor its port: %s %v", body, err)
	}
	cancel()
	if err := <-over; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if conn, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		conn.Close()
		t.Error("the listener is open after Run")
	}
}

func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	writeBodyError(w, &http.MaxBytesError{Limit: 1})
	if w.Code != 413 || !bytes.Contains(w.Body.Bytes(), []byte(`"code":413`)) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
