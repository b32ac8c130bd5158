package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// eventStream writes what comes from a channel, and flushes each; it ends with the channel or the
// request.
func eventStream(texts <-chan string, left chan<- struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-type", "text/event-stream; charset=utf-8")
		http.NewResponseController(w).Flush()
		for {
			select {
			case text, ok := <-texts:
				if !ok {
					return
				}
				io.WriteString(w, text)
				http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				close(left)
				return
			}
		}
	})
}

func code(t *testing.T, answer *http.Response) openai.Code {
	t.Helper()
	var body struct{ Error struct{ Code openai.Code } }
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return body.Error.Code
}

// Each event arrives before the owner has the next one; a client that leaves ends the request at
// the owner.
func TestForwardEventByEvent(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	texts, left := make(chan string), make(chan struct{})
	a, b := start(t, c, nil, eventStream(texts, left)), start(t, c, nil, nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	answer := b.ask(ctx, t, a.ID(), "/v1/streams/x")
	if answer.StatusCode != 200 || answer.Header.Get("content-type") != "text/event-stream; charset=utf-8" {
		t.Fatal(answer.Status, answer.Header)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	for i := range 20 {
		want := fmt.Sprintf("data: %d", i)
		texts <- want + "\n\n"
		if got := within(t, want, lines); got != want {
			t.Fatalf("got %q; want %q", got, want)
		}
		within(t, "the blank line", lines)
	}
	leave()
	within(t, "the owner hears that the client has left", left)
	for range lines {
	}
}

// The owner gets the request as it was, but for keys and for what is this gateway's own business.
func TestForwardRequest(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	type seen struct {
		Method, URI, Host, Body, From string
		Header                        http.Header
	}
	got := make(chan seen, 1)
	a := start(t, c, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		from := r.Header.Get(headers.Forwarded)
		r.Header.Del(headers.Forwarded)
		got <- seen{r.Method, r.RequestURI, r.Host, string(body), from, r.Header}
		w.Header().Set("x-answer", "yes")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, "no")
	}))
	b := start(t, c, nil, nil)
	const uri = "/v1/streams/a%2Fb%20c/cancel?after=3;x&=%zz"
	r, err := http.NewRequestWithContext(t.Context(), "POST", b.front.URL+uri, strings.NewReader("the body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"x-owner": a.ID(), headers.Tenant: "acme", headers.Priority: "batch", headers.TimeLeft: "9", headers.Messages: "1", headers.RequestID: "r-1",
		"last-event-id": "7", "authorization": "Bearer key", "x-api-key": "key", "api-key": "key", headers.Handoff: "ticket", headers.Cluster: "model/x",
		"user-agent": "test", "accept-encoding": "identity"} {
		r.Header.Set(name, value)
	}
	r.Host = "api.example.com"
	answer, err := b.front.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	want := seen{"POST", uri, "api.example.com", "the body", b.ID(), http.Header{"X-Owner": {a.ID()}, "X-Sluice-Tenant": {"acme"}, "X-Sluice-Time-Left-Ms": {"9"},
		"X-Sluice-Priority": {"batch"}, "X-Request-Id": {"r-1"}, "Last-Event-Id": {"7"}, "User-Agent": {"test"}, "Accept-Encoding": {"identity"},
		"Content-Length": {"8"}}}
	if diff := cmp.Diff(want, within(t, "the request arrives", got)); diff != "" {
		t.Error(diff)
	}
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != 409 || string(body) != "no" || answer.Header.Get("x-answer") != "yes" {
		t.Errorf("%d %s %v", answer.StatusCode, body, answer.Header)
	}
}

// What was passed on is not passed on again, nor is anything to itself; a gateway does not hear
// from another that it was not passed on.
func TestForwardLoop(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	b := start(t, c, nil, nil)
	var a *gateway
	a = start(t, c, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := a.Forward(w, r, b.ID()); fault != nil {
			fault.AnswerTo(w, r.URL.Path)
		}
	}))
	for _, owner := range []string{a.ID(), b.ID()} {
		answer := b.ask(t.Context(), t, owner, "/")
		if answer.StatusCode != 503 || answer.Header.Get("retry-after") == "" || code(t, answer) != openai.CodeGatewayUnavailable {
			t.Errorf("owner %s: %s", owner, answer.Status)
		}
	}
}

// An owner that has no record, or does not listen, is unavailable.
func TestForwardNobodyThere(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	a.stopServing()
	for _, owner := range []string{"nobody", a.ID()} {
		answer := b.ask(t.Context(), t, owner, "/")
		if answer.StatusCode != 503 || code(t, answer) != openai.CodeGatewayUnavailable {
			t.Errorf("owner %s: %s", owner, answer.Status)
		}
	}
	fault := b.Forward(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), a.ID())
	if want := b.cfg.Expiry / renewalsPerExpiry; fault == nil || fault.RetryAfter != want {
		t.Errorf("the client of an owner that does not listen is told %+v; want it to wait %v", fault, want)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, owner := range []string{"nobody", a.ID()} {
		w := httptest.NewRecorder()
		if fault := b.Forward(w, httptest.NewRequestWithContext(gone, "GET", "/", nil), owner); fault != nil || w.Body.Len() > 0 {
			t.Errorf("a client that has left is told %v and %q", fault, w.Body)
		}
	}
}

// A stream that breaks off between two events ends with an error event; what breaks off otherwise
// must not look whole.
func TestForwardBreaksOff(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	var kind, text atomic.Value
	a := start(t, c, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", kind.Load().(string))
		io.WriteString(w, text.Load().(string))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	b := start(t, c, nil, nil)
	const sse = "text/event-stream"
	for _, test := range []struct {
		kind, text string
		told       bool
	}{
		{sse, "data: 1\n\n", true}, {sse, "data: 1\r\n\r\n", true}, {sse, "", true}, {sse, "data: 1\n\ndata: 2\n", false}, {sse, "d", false},
		{"application/json", "{}\n\n", false},
	} {
		kind.Store(test.kind)
		text.Store(test.text)
		answer := b.ask(t.Context(), t, a.ID(), "/")
		body, err := io.ReadAll(answer.Body)
		if test.told {
			rest, ok := bytes.CutPrefix(body, []byte(test.text+"data: "))
			var event struct {
				Error struct {
					Code      string
					Retryable bool
				}
			}
			if fault := json.Unmarshal(rest, &event); !ok || fault != nil || err != nil || event.Error.Code != "gateway_unavailable" || !event.Error.Retryable {
				t.Errorf("%q is followed by %q, %v", test.text, body, err)
			}
		} else if err == nil || string(body) != test.text {
			t.Errorf("%q in %s ends as if it were whole: %q, %v", test.text, test.kind, body, err)
		}
	}
}

// breakOff starts two gateways. The streams of the first one, which are those of a path or resumed
// ones of it, break off after what has begun them.
func breakOff(t *testing.T, path, begun string) (a, b *gateway) {
	t.Helper()
	c := client(t, redistest.Start(t))
	a = start(t, c, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-type", "text/event-stream")
		if r.URL.Path != path {
			w.Header().Set(headers.Resumed, path)
		}
		io.WriteString(w, begun)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	return a, start(t, c, nil, nil)
}

// A client of the Messages API gets the error event of that API, also if it resumes a stream.
func TestB9_ForwardedMessagesBreakOff(t *testing.T) {
	t.Parallel()
	const begun = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	a, b := breakOff(t, "/v1/messages", begun)
	for _, path := range []string{"/v1/messages?beta=true", "/v1/streams/r?after=2"} {
		answer := b.ask(t.Context(), t, a.ID(), path)
		body, err := io.ReadAll(answer.Body)
		rest, ok := strings.CutPrefix(string(body), begun+"event: error\ndata: ")
		var event struct {
			Type  string
			Error struct{ Type, Code string }
		}
		if fault := json.Unmarshal([]byte(rest), &event); err != nil || !ok || fault != nil || event.Type != "error" ||
			event.Error.Type != "overloaded_error" || event.Error.Code != "gateway_unavailable" {
			t.Errorf("%s: %q, %v", path, body, err)
		}
		if answer.Header.Get(headers.Resumed) != "" {
			t.Errorf("%s: the client gets %v", path, answer.Header)
		}
	}
}

// A client of the Responses API gets an event of the type error, which its schema of events has.
func TestS8_ForwardedResponsesBreakOff(t *testing.T) {
	t.Parallel()
	const begun = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n"
	a, b := breakOff(t, "/v1/responses", begun)
	for _, path := range []string{"/v1/responses", "/v1/streams/r?after=2"} {
		body, err := io.ReadAll(b.ask(t.Context(), t, a.ID(), path).Body)
		rest, ok := strings.CutPrefix(string(body), begun+"event: error\ndata: ")
		var event struct {
			Type, Code, Message string
			Sequence            *int64 `json:"sequence_number"`
		}
		if fault := json.Unmarshal([]byte(rest), &event); err != nil || !ok || fault != nil || event.Type != "error" ||
			event.Code != "gateway_unavailable" || event.Message == "" || event.Sequence == nil {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
}

// A gateway that says nothing any more, but whose connections stay, is given up when its record has
// been missing for long enough.
func TestForwardOwnerSilent(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	texts, left := make(chan string, 1), make(chan struct{})
	a, b := start(t, c, nil, eventStream(texts, left)), start(t, c, func(cfg *Config) { cfg.Expiry = short }, nil)
	texts <- "data: 1\n\n"
	answer := b.ask(t.Context(), t, a.ID(), "/")
	a.wire.cut.Store(true)
	if n := c.Del(t.Context(), a.recordKey(a.ID())).Val(); n != 1 {
		t.Fatalf("%d records", n)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasPrefix(string(body), "data: 1\n\ndata: {\"error\"") {
		t.Errorf("%q, %v", body, err)
	}
	within(t, "the owner hears of it", left)
}

// Only an owner whose record is missing for long is given up. A record that comes back, and a Redis
// that does not answer, are no reason.
func TestCheckOwner(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a := start(t, c, nil, nil)
	way := &wire{Scripter: c}
	p, err := New(Config{Redis: way, Listen: anyPort, Timeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := p.trackForward(t.Context(), a.ID())
	defer stop()
	other, stopOther := p.trackForward(t.Context(), "other")
	defer stopOther()
	check := func(when string, want error, missing bool) {
		t.Helper()
		err := p.checkOwner(t.Context(), a.ID())
		if _, is := p.missingSince[a.ID()]; !errors.Is(err, want) || is != missing {
			t.Errorf("%s: %v; missing: %v", when, err, is)
		}
	}
	a.wire.cut.Store(true)
	if n := c.Del(t.Context(), a.recordKey(a.ID())).Val(); n != 1 {
		t.Fatalf("%d records", n)
	}
	check("the record is missing", nil, true)
	a.wire.cut.Store(false)
	if err := a.writeRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("the record is back", nil, false)
	way.cut.Store(true)
	check("Redis does not answer", errCut, false)
	if _, known := p.cachedRecord(a.ID()); !known {
		t.Error("a record is forgotten because Redis does not answer")
	}
	way.cut.Store(false)
	a.stop() // removes the record
	p.missingSince[a.ID()] = time.Now().Add(-p.cfg.Expiry)
	if running.Err() != nil {
		t.Fatal("given up too early")
	}
	check("the record is missing for long", nil, false)
	if !errors.Is(context.Cause(running), errNoRecord) || other.Err() != nil {
		t.Errorf("the forward ends with %v, and one to another owner with %v", context.Cause(running), other.Err())
	}
}

// Serve ends although a client does not read its answer.
func TestServeEndsBesideASlowClient(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	ended := make(chan struct{})
	a := start(t, c, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for text := make([]byte, 64<<10); ; {
			if _, err := w.Write(text); err != nil {
				return
			}
		}
	}))
	b := start(t, c, nil, nil)
	b.ask(t.Context(), t, a.ID(), "/")
	a.stopServing()
	within(t, "the handler ends", ended)
}

// The end of an answer whose owner was given up is not believed.
func TestEndOfGivenUp(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var cut error
		b := &responseBody{ReadCloser: io.NopCloser(strings.NewReader("data: 1\n\n")), ctx: ctx, isEventStream: events, cut: &cut}
		if _, err := io.ReadFull(b, make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		cancel(errNoRecord)
		rest, err := io.ReadAll(b)
		if events && (err != nil || !strings.Contains(string(rest), "gateway_unavailable") || !errors.Is(cut, errNoRecord)) {
			t.Errorf("the events end with %q, %v, %v", rest, err, cut)
		}
		if !events && !errors.Is(err, errNoRecord) {
			t.Errorf("the answer ends with %q, %v", rest, err)
		}
	}
}

// roleKey makes the test binary play a gateway that runs a stream; its value is the URL of Redis.
const roleKey = "PEERS_TEST_REDIS"

const (
	ownerID     = "the-owner"
	ownerExpiry = 2 * time.Second
)

// playOwner claims an id and streams until it is killed.
func playOwner(url string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	c, err := newClient(url)
	check(err)
	p, err := New(Config{Redis: c, ID: ownerID, Listen: "127.0.0.1:0", Expiry: ownerExpiry, Timeout: 10 * time.Second})
	check(err)
	texts := make(chan string, 1)
	texts <- "data: 1\n\n"
	go func() { check(p.Run(context.Background())) }()
	go func() { check(p.Serve(context.Background(), eventStream(texts, make(chan struct{})))) }()
	for p.ownAddress() == "" {
		time.Sleep(time.Millisecond)
	}
	_, mine, err := p.Claim(context.Background(), "acme", "x", time.Hour)
	check(err)
	if !mine {
		check(errors.New("it is another's"))
	}
	p.Keep("acme", "x")
	fmt.Println("ready")
	select {}
}

// An owner that is killed: its streams end with an error event, and its ids are free when its
// record has expired.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := start(t, client(t, server), nil, nil)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), roleKey+"="+redistest.URL(server), "GORACE=atexit_sleep_ms=0")
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer owner.Wait()
	defer owner.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the owner says %q, %v", line, err)
	}
	if _, mine := b.claims(t, "acme", "x"); mine {
		t.Fatal("it is not the owner's")
	}
	answer := b.ask(t.Context(), t, ownerID, "/v1/streams/x")
	events := bufio.NewReader(answer.Body)
	if line, err := events.ReadString('\n'); line != "data: 1\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(events); err != nil || !strings.HasPrefix(string(rest), "\ndata: {\"error\"") {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
	eventually(t, "the id is free", func() bool {
		_, mine := b.claims(t, "acme", "x")
		return mine
	})
	if fault := b.Forward(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), ownerID); fault == nil ||
		fault.Code != openai.CodeGatewayUnavailable {
		t.Errorf("who is dead can be asked: %v", fault)
	}
}
