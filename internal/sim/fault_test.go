package sim

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestParseFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]faultPart{
		"":                     nil,
		"none":                 {{kind: faultNone, afterEvents: -1}},
		"status=503":           {{kind: faultStatus, afterEvents: -1, status: 503}},
		"cut=3":                {{kind: faultCut, afterEvents: 3}},
		"cut":                  {{kind: faultCut}},
		"stall=3":              {{kind: faultStall, afterEvents: 3}},
		"stall=3:10s":          {{kind: faultStall, afterEvents: 3, pause: 10 * time.Second}},
		"hang":                 {{kind: faultHang, afterEvents: -1}},
		"hang=2s":              {{kind: faultHang, afterEvents: -1, pause: 2 * time.Second}},
		"exit":                 {{kind: faultExit, afterEvents: -1}},
		"exit=0":               {{kind: faultExit}},
		"slow=50ms, eof=2":     {{kind: faultSlow, afterEvents: -1, pause: 50 * time.Millisecond}, {kind: faultEOF, afterEvents: 2}},
		"duplicate":            {{kind: faultDuplicate, afterEvents: -1}},
		"gzip,unhealthy":       {{kind: faultGzip, afterEvents: -1}, {kind: faultUnhealthy, afterEvents: -1}},
		"status=429:7":         {{kind: faultStatus, afterEvents: -1, status: 429, retryAfter: 7}},
		"status=429:0":         {{kind: faultStatus, afterEvents: -1, status: 429, retryAfter: -1}},
		"close,cut=1":          {{kind: faultClose, afterEvents: -1}, {kind: faultCut, afterEvents: 1}},
		"length=-7":            {{kind: faultLength, afterEvents: -1, number: -7}},
		"type=text/html":       {{kind: faultType, afterEvents: -1, text: "text/html"}},
		"1xx,gzip-bomb":        {{kind: faultInformational, afterEvents: -1}, {kind: faultGzipBomb, afterEvents: -1}},
		"reset-before-headers": {{kind: faultReset, afterEvents: -1}},
	} {
		f, err := ParseFault(text)
		if diff := cmp.Diff(want, f.parts, cmp.AllowUnexported(faultPart{})); diff != "" || err != nil {
			t.Errorf("%q: %v, -want +got\n%s", text, err, diff)
		}
	}
	for _, text := range []string{
		"explode", "status", "status=200", "status=999", "cut=-1", "cut=x", "stall", "stall=:1s", "stall=1:", "stall=1:-2s",
		"slow", "slow=0s", "gzip=1", "cut=1,", ",", "exit=", "none=1", "status=429:x", "status=429:-1",
		"length", "length=0", "length=x", "type", "type=", "close=1",
	} {
		if f, err := ParseFault(text); err == nil {
			t.Errorf("%q was parsed as %+v, want an error", text, f)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("cut=3,slow=1ms")
	f.Add("stall=3:10s")
	f.Fuzz(func(t *testing.T, text string) {
		one, err := ParseFault(text)
		if err != nil {
			return
		}
		again, err := ParseFault(one.String())
		if diff := cmp.Diff(one.parts, again.parts, cmp.AllowUnexported(faultPart{})); err != nil || diff != "" {
			t.Errorf("%q changes when it is parsed again: %v %s", text, err, diff)
		}
	})
}

// TestStreamFaults sends the same chat with each fault and compares the stream with the one without
// a fault.
func TestStreamFaults(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	body := chatBody("Tell me of the sea", `,"stream":true,"seed":7`)
	id := []string{"X-Request-Id", "fixed"}
	whole, err := s.events("/v1/chat/completions", body, id...)
	if err != nil || whole[len(whole)-1] != "[DONE]" {
		t.Fatalf("without a fault: %v %q", err, whole)
	}
	same := func(n int) func([]string) bool {
		return func(got []string) bool { return cmp.Equal(stripCreated(got), stripCreated(whole[:n])) }
	}
	tests := []struct {
		fault string
		cut   bool
		holds func(events []string) bool
	}{
		{"cut=3", true, same(3)},
		{"cut=0", true, same(0)},
		{"eof=3", false, same(3)},
		{"stall=2:1ms", false, same(len(whole))},
		{"slow=1us", false, same(len(whole))},
		{"none", false, same(len(whole))},
		{"malformed=2", false, func(got []string) bool {
			return len(got) == len(whole) && strings.HasPrefix(got[2], `{"id":`) && !strings.HasSuffix(got[2], "}")
		}},
		{"error=2", false, func(got []string) bool {
			return len(got) == 3 && lookup(decode(t, got[2]), "error", "code") == 500.0
		}},
		{"duplicate", false, func(got []string) bool { return len(got) == 2*len(whole) && got[0] == got[1] && got[2] == got[3] }},
		{"duplicate=1", false, func(got []string) bool { return len(got) == len(whole)+1 && got[1] == got[2] }},
		{"huge=2", false, func(got []string) bool {
			return len(got) == len(whole) && len(got[2]) > 1<<20 && len(got[3]) < 1000 && joinDeltas(t, got, 0) == joinDeltas(t, whole, 0)
		}},
		{"gzip", false, func(got []string) bool { return joinDeltas(t, got, 0) == joinDeltas(t, whole, 0) }},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			got, err := s.events("/v1/chat/completions", body, append(id, FaultHeader, tt.fault)...)
			if cut := errors.Is(err, io.ErrUnexpectedEOF); cut != tt.cut || !cut && err != nil {
				t.Errorf("the body ended with %v", err)
			}
			if !tt.holds(got) {
				t.Errorf("%d events: %.2000q", len(got), got)
			}
		})
	}
}

// stripCreated removes the field created, whose seconds may differ between two requests.
func stripCreated(events []string) []string {
	list := make([]string, len(events))
	for i, e := range events {
		before, rest, _ := strings.Cut(e, `"created":`)
		_, after, _ := strings.Cut(rest, ",")
		list[i] = before + after
	}
	return list
}

// TestAnswerFaults does the same as TestStreamFaults for a response that is not streamed.
func TestAnswerFaults(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	whole, err := readAll(s.post("/v1/embeddings", `{"input":"the sea","dimensions":4}`, "X-Request-Id", "fixed"))
	if err != nil {
		t.Fatal(err)
	}
	for fault, holds := range map[string]func(body string, err error) bool{
		"cut=3":       func(b string, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) && len(b) == len(whole)/2 },
		"eof=3":       func(b string, err error) bool { return err == nil && len(b) == len(whole)/2 },
		"malformed":   func(b string, err error) bool { return err == nil && len(b) == len(whole)/2 },
		"stall=0:1ms": func(b string, err error) bool { return err == nil && len(b) == len(whole) },
		"slow=1ms":    func(b string, err error) bool { return err == nil && len(b) == len(whole) },
		"huge":        func(b string, err error) bool { return err == nil && len(b) > 1<<20 },
		"gzip":        func(b string, err error) bool { return err == nil && len(b) == len(whole) },
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			r := s.post("/v1/embeddings", `{"input":"the sea","dimensions":4}`, FaultHeader, fault, "X-Request-Id", "fixed")
			if got, err := readAll(r); !holds(got, err) {
				t.Errorf("%d bytes of %d, %v", len(got), len(whole), err)
			}
		})
	}
}

func readAll(r *http.Response) (string, error) {
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

func TestGzipUnasked(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	r := s.post("/v1/embeddings", `{"input":"x"}`, FaultHeader, "gzip", "Accept-Encoding", "identity")
	if r.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("headers: %v", r.Header)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || !strings.Contains(string(b), "embedding") {
		t.Errorf("%.100q %v", b, err)
	}
}

func TestStatusFault(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	r := s.post("/v1/chat/completions", chatBody("x", ""), FaultHeader, "status=503")
	if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	if r := s.post("/v1/chat/completions", chatBody("x", ""), FaultHeader, "explode"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown fault: %d", r.StatusCode)
	}
}

func TestResetBeforeHeaders(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	r, err := s.tryPost("/v1/chat/completions", chatBody("x", ""), FaultHeader, "reset-before-headers")
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v %v, want a reset", r, err)
	}
}

func TestHangAndStallEndOnDisconnect(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	for _, fault := range []string{"hang", "stall=2"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions",
			strings.NewReader(chatBody("x", `,"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(FaultHeader, fault)
		over := make(chan int)
		go func() {
			r, err := s.Client().Do(req)
			if err != nil {
				over <- -1
				return
			}
			defer r.Body.Close()
			events, _ := readEvents(r.Body)
			over <- len(events)
		}()
		testutil.Eventually(t, "the request is there", func() bool { return s.lastOutcome() == "running" })
		if fault != "hang" {
			testutil.Eventually(t, "it stalls", func() bool { return s.engine.State().Running == 0 })
		}
		select {
		case n := <-over:
			t.Errorf("%s: ended by itself after %d events", fault, n)
		case <-time.After(20 * time.Millisecond): // there is no event to wait for
			cancel()
			if n := <-over; n > 2 {
				t.Errorf("%s: %d events", fault, n)
			}
		}
		testutil.Eventually(t, "the engine saw it leave", func() bool { return s.lastOutcome() == "client left" })
		s.engine.requestLog.clear()
		cancel()
	}
}

// lastOutcome returns how the newest request ended.
func (s *server) lastOutcome() string {
	list, _ := s.engine.requestLog.all()
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].Outcome
}

func TestExitFault(t *testing.T) {
	t.Parallel()
	codes := make(chan int, 2)
	s := newServer(t, Config{Exit: func(code int) { codes <- code }})
	if r, err := s.tryPost("/v1/chat/completions", chatBody("x", ""), FaultHeader, "exit"); err == nil {
		t.Errorf("answered with %d", r.StatusCode)
	}
	events, err := s.events("/v1/chat/completions", chatBody("x", `,"stream":true`), FaultHeader, "exit=2")
	if len(events) != 2 || err == nil {
		t.Errorf("%d events, %v", len(events), err)
	}
	if a, b := <-codes, <-codes; a != 1 || b != 1 {
		t.Errorf("exit codes %d and %d", a, b)
	}
	part := newServer(t, Config{})
	if r := part.post("/v1/chat/completions", chatBody("x", ""), FaultHeader, "exit"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("an engine that cannot exit answered %d", r.StatusCode)
	}
}

func TestEarlyExit(t *testing.T) {
	t.Parallel()
	fault, err := ParseFault("exit")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ln := &idleListener{closed: make(chan struct{})}
		start := time.Now()
		e := New(Config{Fault: fault, LoadTime: 3 * time.Second})
		if err := e.Run(t.Context(), ln); !errors.Is(err, ErrExit) || time.Since(start) != 3*time.Second {
			t.Errorf("Run returned %v after %v", err, time.Since(start))
		}
		<-ln.closed
	})
}

// idleListener is a listener that nobody connects to.
type idleListener struct{ closed chan struct{} }

func (n *idleListener) Accept() (net.Conn, error) { <-n.closed; return nil, net.ErrClosed }
func (n *idleListener) Addr() net.Addr            { return &net.TCPAddr{} }
func (n *idleListener) Close() error              { close(n.closed); return nil }

// TestPace: a stream that takes an hour ends when the pace is set.
func TestPace(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{TokenInterval: time.Hour})
	r := s.post("/v1/chat/completions", chatBody("x", `,"stream":true,"max_tokens":50,"ignore_eos":true`))
	for _, body := range []string{`{`, `{"token_interval":"fast"}`, `{}`} {
		if r := s.post("/sim/pace", body); r.StatusCode != 400 {
			t.Errorf("%s: status %d", body, r.StatusCode)
		}
	}
	if n := s.engine.State().Running; n != 1 {
		t.Errorf("%d requests run after wrong settings", n)
	}
	if r := s.post("/sim/pace", `{"token_interval":"0s"}`); r.StatusCode != 200 {
		t.Errorf("status %d", r.StatusCode)
	}
	body, err := io.ReadAll(r.Body)
	if n := strings.Count(string(body), `"content":`); err != nil || n < 50 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream: %v, %d tokens: %s", err, n, body)
	}
}

func TestActiveFault(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	status := func(header ...string) int {
		return s.post("/v1/chat/completions", chatBody("x", ""), header...).StatusCode
	}
	order := func(body string, want int) {
		t.Helper()
		if r := s.post("/sim/fault", body); r.StatusCode != want {
			t.Fatalf("setting %s: status %d", body, r.StatusCode)
		}
	}
	order(`{"fault":"status=500","times":2}`, 200)
	if a, b, c := status(), status(), status(); a != 500 || b != 500 || c != 200 {
		t.Errorf("two requests with status 500 were set, got %d %d %d", a, b, c)
	}
	order(`{"fault":"status=502"}`, 200)
	if a, b, c := status(FaultHeader, "none"), status(FaultHeader, "status=429"), status(); a != 200 || b != 429 || c != 502 {
		t.Errorf("the header must override the setting, got %d %d %d", a, b, c)
	}
	if _, body := s.get("/sim/fault"); lookup(decode(t, body), "fault") != "status=502" {
		t.Errorf("GET /sim/fault: %s", body)
	}
	order(`{"fault":"status=503","path":"/v1/models"}`, 200)
	if code, _ := s.get("/v1/models"); code != 503 || status() != 200 {
		t.Errorf("only models: %d", code)
	}
	order(`{"fault":"explode"}`, 400)
	order(`{`, 400)
	order(`{"fault":"unhealthy"}`, 200)
	if code, _ := s.get("/health"); code != 503 || status() != 200 {
		t.Errorf("unhealthy: /health says %d", code)
	}
	order(`{"fault":""}`, 200)
	if code, _ := s.get("/health"); code != 200 {
		t.Errorf("healthy again: %d", code)
	}
}
