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

	"github.com/sluice-gateway/sluice/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an engine behind a real HTTP server.
type server struct {
	*httptest.Server
	engine *Engine
	t      testing.TB
}

func newServer(t testing.TB, c Config) *server {
	t.Helper()
	e := New(c)
	s := &server{Server: httptest.NewServer(e), engine: e, t: t}
	t.Cleanup(s.Close)
	return s
}

// post sends a body and returns the response after its headers.
func (s *server) post(path, body string, header ...string) *http.Response {
	s.t.Helper()
	r, err := s.tryPost(path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *server) tryPost(path, body string, header ...string) (*http.Response, error) {
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

// object posts a body and returns the JSON of the response, which must have status 200.
func (s *server) object(path, body string) map[string]any {
	s.t.Helper()
	r := s.post(path, body)
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		s.t.Fatalf("POST %s: %d %s %v", path, r.StatusCode, b, err)
	}
	return decode(s.t, string(b))
}

// events posts a body and reads the stream to its end. It returns the data of the events and the
// error that ended the stream.
func (s *server) events(path, body string, header ...string) ([]string, error) {
	s.t.Helper()
	r := s.post(path, body, header...)
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		s.t.Fatalf("POST %s: %d %s", path, r.StatusCode, r.Header.Get("Content-Type"))
	}
	return readEvents(r.Body)
}

// readEvents returns the data of every event, and the error that ended the stream; nil for a clean
// end.
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

// lookup returns the part of decoded JSON at a path of names and indexes; nil if there is none.
func lookup(v any, path ...any) any {
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

// chatBody returns a chat request with one user message. more is further JSON members, with a
// leading comma.
func chatBody(said, more string) string {
	return `{"model":"sim","messages":[{"role":"user","content":` + string(openai.Encode(said)) + `}]` + more + `}`
}

// joinDeltas returns the text of one choice in chat chunks.
func joinDeltas(t *testing.T, events []string, index int) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		if e == "[DONE]" {
			continue
		}
		v := decode(t, e)
		if lookup(v, "choices", 0, "index") == float64(index) {
			text, _ := lookup(v, "choices", 0, "delta", "content").(string)
			b.WriteString(text)
		}
	}
	return b.String()
}

// timedWriter is a response writer that records the time of each write. It serves tests in
// simulated time, which cannot use sockets.
type timedWriter struct {
	start  time.Time
	header http.Header
	marks  []mark
	buf    bytes.Buffer
}

// mark is one write.
type mark struct {
	at   time.Duration
	text string
}

func newTimedWriter() *timedWriter { return &timedWriter{start: time.Now(), header: make(http.Header)} }

func (w *timedWriter) Header() http.Header { return w.header }

func (w *timedWriter) WriteHeader(status int) { w.record(http.StatusText(status)) }

func (w *timedWriter) Write(b []byte) (int, error) {
	w.record(string(b))
	return w.buf.Write(b)
}

func (w *timedWriter) Flush() {}

func (w *timedWriter) record(text string) {
	w.marks = append(w.marks, mark{time.Since(w.start), text})
}
