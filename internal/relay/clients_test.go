package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A client whose body came in chunks of no told length is noticed when it leaves, too.
func TestClientOfAChunkedBodyLeaves(t *testing.T) {
	h := newHarness(t, options{handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/chat/completions", io.MultiReader(strings.NewReader(hello)))
	request.Header.Set(headers.Handoff, h.offer(hello, "", "/v1/chat/completions"))
	r, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r.Body, make([]byte, 10))
	leave()
	r.Body.Close()
	if r := h.result(1); r.Cause != causeClient {
		t.Errorf("%+v", r)
	}
	h.waitIdle()
}

// A body that is not what ext_proc has seen is refused, and the engine does not get it.
func TestBodyThatIsNotWhole(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{handler: countRequests(&calls, engineThatSends(doneEvent))})
	for _, body := range []string{hello[1:], hello + " "} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(body))
		request.Header.Set(headers.Handoff, h.offer(hello, "", "/v1/chat/completions"))
		r, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 400 || !strings.Contains(string(text), "invalid_request") || calls.Load() != 0 {
			t.Errorf("%d bytes: %d %s", len(body), r.StatusCode, text)
		}
	}
}

// engineThatFloods returns an engine that writes until the relay ends the request.
func engineThatFloods() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for writeEvents(w, roleEvent); r.Context().Err() == nil; {
			if _, err := io.WriteString(w, tokenEvent(strings.Repeat("x", 8000))); err != nil {
				return
			}
		}
	})
}

// A client that neither reads nor leaves costs neither the engine nor its connection for long.
func TestClientThatNeverReads(t *testing.T) {
	for _, id := range []string{"", "r"} {
		h := newHarness(t, options{handler: engineThatFloods(), write: 100 * time.Millisecond, policy: Policy{Resume: 10 * time.Millisecond}})
		more := []string{}
		if id != "" {
			more = append(more, "id: "+id)
		}
		r := h.send(hello, more...)
		if got := h.result(1); got.Cause != causeSlow || got.Fault == nil || got.Fault.Code != openai.CodeClientTooSlow {
			t.Errorf("%q: %+v", id, got)
		}
		h.waitIdle()
		r.Body.Close()
	}
}

// funcSink is a sink that calls a function for each event.
type funcSink struct {
	event func(raw []byte)
	ended chan Result
}

func (s funcSink) Answer(*Answer) error             { return nil }
func (s funcSink) Event(raw []byte, _ uint64) error { s.event(raw); return nil }
func (s funcSink) Flush() error                     { return nil }
func (s funcSink) Heartbeat(Progress) error         { return nil }
func (s funcSink) Finish(r Result) error            { s.ended <- r; return nil }

// newCall returns a call for Relay.Generate.
func (h *harness) newCall(body string) *Call {
	h.t.Helper()
	c, fault := NewCall(CallParams{Tenant: acme, Path: "/v1/chat/completions", Body: []byte(body), Received: time.Now()})
	if fault != nil {
		h.t.Fatal(fault)
	}
	return c
}

// A client that says how much it wants may take its time: the engine is not blamed for having been
// held up.
func TestPatienceIsNoStall(t *testing.T) {
	const stall = 500 * time.Millisecond
	pieces := []string{roleEvent}
	for range 600 {
		pieces = append(pieces, tokenEvent("x"))
	}
	h := newHarness(t, options{handler: engineThatSends(append(pieces, finishEvent("", "stop"), doneEvent)...), policy: Policy{StallTimeout: stall}})
	c := h.newCall(hello)
	c.Patient = true
	var once sync.Once
	sink := funcSink{ended: make(chan Result, 1), event: func([]byte) {
		once.Do(func() { time.Sleep(3 * stall) }) // it is that time which matters
	}}
	h.relay.Generate(t.Context(), c, sink)
	if r := <-sink.ended; r.Fault != nil || r.Finish != "stop" {
		t.Errorf("%+v, %v", r, r.Fault)
	}
}

// A long prompt is kept only until the first token: nobody else can be asked after that.
func TestPromptIsLetGo(t *testing.T) {
	needsOwnHTTP1(t, "net/http keeps the request, and with it the prompt, while its response lasts")
	h := newHarness(t, options{handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	began, over := make(chan struct{}, 1), make(chan struct{})
	sink := funcSink{ended: make(chan Result, 1), event: func(raw []byte) {
		if strings.Contains(string(raw), `"a"`) {
			began <- struct{}{}
		}
	}}
	ctx, leave := context.WithCancel(t.Context())
	body := func() weak.Pointer[byte] {
		c := h.newCall(strings.Replace(hello, `"hello"`, `"`+strings.Repeat("hello ", 50_000)+`"`, 1))
		go func(c *Call) {
			h.relay.Generate(ctx, c, sink)
			close(over)
		}(c)
		return weak.Make(&c.Body[0])
	}()
	select {
	case <-began:
	case r := <-sink.ended:
		t.Fatalf("%+v: %v", r, r.Fault)
	}
	for end := time.Now().Add(20 * time.Second); body.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("the prompt of a stream that runs is still held")
		}
	}
	leave()
	<-over
	h.waitIdle()
}

// engineThatClosesConnections returns a server that answers one request on each connection, and
// closes the connection when the next one comes.
func engineThatClosesConnections(t *testing.T) http.Handler {
	var mu sync.Mutex
	seen := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		again := seen[r.RemoteAddr]
		seen[r.RemoteAddr] = true
		mu.Unlock()
		if again {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
			return
		}
		w.Header().Set("content-length", fmt.Sprint(len(roleEvent+tokenEvent("a")+finishEvent("", "stop")+doneEvent)))
		writeEvents(w, roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent)
	})
}

// An idle connection that is closed in the moment it is used costs neither the request nor the
// replica's reputation.
func TestIdleConnectionThatCloses(t *testing.T) {
	needsOwnHTTP1(t, "net/http does not repeat a POST")
	h := newHarness(t, options{handler: engineThatClosesConnections(t)})
	for range 10 {
		if status, text := h.sendAndRead(hello); status != 200 || endingOf(text) != "whole" {
			t.Fatalf("%d %s", status, text)
		}
		h.waitIdle()
	}
	if len(h.failures) > 0 {
		t.Errorf("%v", h.failures)
	}
}

// A server that ends answers with their connection cannot pass half of one for all of it.
func TestAnswerWithoutLengthIsCut(t *testing.T) {
	h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"+`{"choices":[{"index":0,"mess`)
		conn.(*net.TCPConn).CloseWrite()
	})})
	status, text := h.sendAndRead(strings.Replace(hello, `"stream":true,`, "", 1))
	if status != 502 || !strings.Contains(text, "upstream_truncated") || len(h.failures) == 0 {
		t.Errorf("%d %s, %v", status, text, h.failures)
	}
}

// What an engine says to a request for a stream without one: passed with its status while that can
// be, else an error that clients see as one. No client of a stream can read a whole answer. An
// error without a code gets one.
func TestAnswerInPlaceOfAStream(t *testing.T) {
	const refused = `"type":"invalid_request_error","code":"invalid_request","param":null`
	for _, c := range []struct {
		status           int
		body, pass, want string
		told             int
	}{
		{400, `{"error":{"message":"too long","code":400}}`, `{"error":{"message":"too long",` + refused + `}}`,
			`data: {"error":{"message":"too long",` + refused + `,"retryable":false}}`, 400},
		{400, `{"error":{"message":"long","code":"own"}}`, `{"error":{"message":"long","code":"own"}}`, `"message":"long","type":"invalid_request_error","code":"own"`, 400},
		{422, `{"detail":"no"}`, `{"error":{"message":"no",` + refused + `}}`, `"message":"no",` + refused + `,"retryable":false}}`, 422},
		{503, `busy`, `{"error":{"message":"The engine answered with status 503: busy","type":"server_error","code":"upstream_error","param":null}}`,
			`"retryable":true,"retry_after_ms":1000}}`, 503},
		{200, `{"choices":[]}`, ``, `The engine answered with status 200 and no stream.`, 502},
		{204, ``, ``,
			`"code":"upstream_truncated"`, 502},
	} {
		heard := make(chan struct{}, 1)
		heard <- struct{}{}
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-heard
			w.Header().Set("content-type", "application/json")
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})})
		r := h.send(hello)
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != c.told || c.told != 502 && string(text) != c.pass {
			t.Errorf("%d: %v %d %v %s", c.status, err, r.StatusCode, r.Header, text)
		}
		scan, _ := openai.Scan(openai.Chat, "application/json", []byte(hello))
		ticket := h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Path: "/v1/chat/completions", Scan: scan, Received: time.Now(), Record: h,
			Foreseen: true})
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(hello))
		request.Header.Set(headers.Handoff, ticket)
		if r, err = http.DefaultTransport.RoundTrip(request); err != nil {
			t.Fatal(err)
		}
		r.Body.Read(make([]byte, 1))
		heard <- struct{}{}
		text, err = io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(text), c.want) || endingOf(string(text)) != "error" {
			t.Errorf("%d after a heartbeat: %v %s", c.status, err, text)
		}
	}
}

// A stream may go on for longer than one write may take, after a heartbeat too, and ends properly.
func TestLongerThanAWrite(t *testing.T) {
	const heartbeat, write = 150 * time.Millisecond, 300 * time.Millisecond
	heard := make(chan struct{})
	h := newHarness(t, options{write: write, policy: Policy{Heartbeat: heartbeat}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "text/event-stream")
		flow := http.NewResponseController(w)
		select { // the prefill
		case <-heard:
		case <-time.After(testutil.Patience):
		}
		for begun := time.Now(); time.Since(begun) < 2*write; time.Sleep(20 * time.Millisecond) {
			io.WriteString(w, tokenEvent("word "))
			flow.Flush()
		}
		io.WriteString(w, finishEvent("", "stop")+doneEvent)
	})})
	r := h.send(hello) // it returns with the first heartbeat
	defer r.Body.Close()
	close(heard)
	text, err := io.ReadAll(r.Body)
	if err != nil || endingOf(string(text)) != "whole" || !strings.HasPrefix(string(text), ":") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// needsOwnHTTP1 skips a test of something that only internal/http1 has, when the tests run once
// more with net/http in its place.
func needsOwnHTTP1(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("SLUICE_HTTP1") == "std" {
		t.Skip(reason)
	}
}

// A client that says how much it wants, and then takes nothing for too long, holds its replica no
// longer.
func TestPatienceEnds(t *testing.T) {
	pieces := []string{roleEvent}
	for range 1000 {
		pieces = append(pieces, tokenEvent("x"))
	}
	h := newHarness(t, options{handler: engineThatHangs(pieces...)})
	h.relay.config.Patience = 50 * time.Millisecond
	c := h.newCall(hello)
	c.Patient = true
	reads, once := make(chan struct{}), sync.Once{}
	sink := funcSink{ended: make(chan Result, 1), event: func([]byte) { once.Do(func() { <-reads }) }}
	go h.relay.Generate(t.Context(), c, sink)
	for h.dispatcher.Load("m-0") == 0 {
		time.Sleep(time.Millisecond)
	}
	h.waitIdle()
	close(reads)
	if r := <-sink.ended; r.Fault == nil || r.Fault.Code != openai.CodeClientTooSlow || r.Cause != causeSlow {
		t.Errorf("%+v", r)
	}
}

// A client that says how much it wants is not held up by another one that shares its call and reads
// slowly or not at all.
func TestS3_PatientClientsDoNotWaitForOthers(t *testing.T) {
	const count = 6000
	pieces := []string{roleEvent}
	for range count {
		pieces = append(pieces, tokenEvent(strings.Repeat("x", 4000)))
	}
	pieces = append(pieces, finishEvent("", "stop"), doneEvent)
	for otherIsPatient, patience := range map[bool]time.Duration{false: time.Hour, true: time.Second} {
		begin := make(chan struct{})
		h := newHarness(t, options{policy: Policy{Resume: time.Minute, Heartbeat: time.Millisecond}, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-begin
			writeEvents(w, pieces...)
		})})
		h.relay.config.Patience = patience
		call := h.newCall(hello)
		call.Scan.RequestID, call.Patient = "r", true
		events, first := 0, funcSink{ended: make(chan Result, 1)}
		first.event = func([]byte) { events++ }
		go h.relay.Generate(t.Context(), call, first)
		for !h.relay.Owns("acme", "r") {
			time.Sleep(time.Millisecond)
		}
		ctx, leave := context.WithCancel(t.Context())
		if other := (funcSink{ended: make(chan Result, 1), event: func([]byte) { <-ctx.Done() }}); otherIsPatient {
			go h.relay.Generate(ctx, call, other)
		} else {
			defer h.send(string(call.Body), "id: r").Body.Close()
		}
		close(begin)
		select {
		case r := <-first.ended:
			if r.Fault != nil || r.Finish != "stop" || events < count {
				t.Errorf("the other is patient: %t: %d events, %+v", otherIsPatient, events, r)
			}
		case <-time.After(testutil.Patience):
			t.Errorf("the other is patient: %t: the call is held up", otherIsPatient)
		}
		leave()
	}
}
