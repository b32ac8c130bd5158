package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an engine behind a real HTTP server.
type server struct {
	*httptest.Server
	engine *Engine
	t      testing.TB
}

func serve(t testing.TB, c Config) *server {
	t.Helper()
	e := New(c)
	s := &server{Server: httptest.NewServer(e), engine: e, t: t}
	t.Cleanup(s.Close)
	return s
}

// post sends a body and returns the response, headers read and no more.
func (s *server) post(path, body string, header ...string) *http.Response {
	s.t.Helper()
	r, err := s.try(path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *server) try(path, body string, header ...string) (*http.Response, error) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r, err := s.Client().Do(req)
	if err == nil {
		s.t.Cleanup(func() { r.Body.Close() })
	}
	return r, err
}

func (s *server) get(path string) (int, string) {
	s.t.Helper()
	r, err := s.Client().Get(s.URL + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// object posts and decodes an answer that must be 200.
func (s *server) object(path, body string) map[string]any {
	s.t.Helper()
	r := s.post(path, body)
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		s.t.Fatalf("POST %s: %d %s %v", path, r.StatusCode, b, err)
	}
	return decode(s.t, string(b))
}

// events posts and reads a stream to its end, and says how it ended.
func (s *server) events(path, body string, header ...string) ([]string, error) {
	s.t.Helper()
	r := s.post(path, body, header...)
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		s.t.Fatalf("POST %s: %d %s", path, r.StatusCode, r.Header.Get("Content-Type"))
	}
	return readEvents(r.Body)
}

// readEvents returns the data of every event, and the error that ended the stream; nil for a clean end.
func readEvents(body io.Reader) ([]string, error) {
	var events []string
	lines := bufio.NewReaderSize(body, 1<<16)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			events = append(events, strings.TrimSuffix(data, "\n"))
		}
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return events, err
		}
	}
}

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %.200q", err, text)
	}
	return v
}

// dig walks into decoded JSON by names and indexes.
func dig(v any, path ...any) any {
	for _, step := range path {
		switch at := v.(type) {
		case map[string]any:
			v = at[step.(string)]
		case []any:
			if step.(int) >= len(at) {
				return nil
			}
			v = at[step.(int)]
		default:
			return nil
		}
	}
	return v
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// chatBody is a chat request of one user message; more is further JSON members, with a leading comma.
func chatBody(said, more string) string {
	return `{"model":"sim","messages":[{"role":"user","content":` + string(marshal(said)) + `}]` + more + `}`
}

// deltas joins the contents of chat chunks of one choice.
func deltas(t *testing.T, events []string, index int) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		if e == "[DONE]" {
			continue
		}
		v := decode(t, e)
		if dig(v, "choices", 0, "index") == float64(index) {
			text, _ := dig(v, "choices", 0, "delta", "content").(string)
			b.WriteString(text)
		}
	}
	return b.String()
}

// timed is a response writer that notes when what arrived. It is for tests in simulated time, which cannot use sockets.
type timed struct {
	start  time.Time
	header http.Header
	marks  []mark
	buf    bytes.Buffer
}

type mark struct {
	at   time.Duration
	text string
}

func newTimed() *timed { return &timed{start: time.Now(), header: make(http.Header)} }

func (w *timed) Header() http.Header { return w.header }

func (w *timed) WriteHeader(status int) { w.note(http.StatusText(status)) }

func (w *timed) Write(b []byte) (int, error) {
	w.note(string(b))
	return w.buf.Write(b)
}

func (w *timed) Flush() {}

func (w *timed) note(text string) {
	w.marks = append(w.marks, mark{time.Since(w.start), text})
}
