package relay

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// forwarderTo returns a Forwarder to the handler for other processes of a relay.
func forwarderTo(t *testing.T, h *harness) Forwarder {
	tenant := func(name, _ string) (*authz.Tenant, bool) {
		return &authz.Tenant{Name: name, Models: []string{"*"}}, true
	}
	server := httptest.NewServer(h.relay.PeerHandler(tenant, 1<<20))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(address)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	return func(w http.ResponseWriter, r *http.Request) *openai.Error {
		proxy.ServeHTTP(w, r)
		return nil
	}
}

// engineThatWaits returns an engine whose streams have a token, and end when moved is closed.
func engineThatWaits(moved <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		writeEvents(w, roleEvent, tokenEvent("a"))
		select {
		case <-moved:
		case <-r.Context().Done():
		}
		writeEvents(w, finishEvent("", "stop"), doneEvent)
	})
}

// When a process retires, calls that wait move to its successor, with and without a request id. A
// stream that has begun stays to its end, and later calls go to the successor.
func TestX20_WaitingCallsMove(t *testing.T) {
	moved := make(chan struct{})
	slow := options{limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatWaits(moved)}
	old, next := newHarness(t, slow), newHarness(t, options{})
	var clients sync.WaitGroup
	answers := make([]string, 5)
	ask := func(i int, more ...string) {
		clients.Go(func() { _, answers[i] = old.sendAndRead(hello, more...) })
	}
	ask(0)
	for old.admission.Stats("m").InFlight == 0 {
		time.Sleep(time.Millisecond)
	}
	ask(1)
	ask(2, "id: one")
	ask(3, "id: one")
	old.waitQueued(2) // the third of them joins
	old.relay.Retire(forwarderTo(t, next))
	old.dispatcher.Retire()
	ask(4)
	close(moved)
	clients.Wait()
	for i, a := range answers {
		if !strings.HasSuffix(a, "data: [DONE]\n\n") || strings.Contains(a, `"error"`) {
			t.Errorf("answer %d: %.300q", i, a)
		}
	}
	if old.relay.Carries() || old.relay.Keeps() {
		t.Error("the old relay still carries or keeps a call")
	}
}

// TestE3_X20_ACallOfAReplacedProcessEndsOnce: a gRPC call begins its record in the relay, and its
// log entry goes to the successor. The successor is told how the call has ended. If the Envoy of
// the call has died there is no entry, and the call ends here.
func TestE3_X20_ACallOfAReplacedProcessEndsOnce(t *testing.T) {
	for _, lives := range []bool{true, false} {
		h := newHarness(t, options{handler: engineThatHangs(roleEvent, tokenEvent("a"))})
		h.relay.config.Requests = request.NewStore(10)
		told := make(chan string, 2)
		h.relay.config.Requests.Subscribe(request.Subscribers{
			Finished:  []func(request.Summary){func(q request.Summary) { told <- "finished " + q.Model }},
			Elsewhere: func(q request.Summary) { told <- "elsewhere " + q.Model },
		})
		call := h.newCall(hello)
		call.Entry, call.Alive = nil, func() bool { return lives }
		ctx, leave := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() { h.relay.Generate(ctx, call, new(recordingSink)) })
		for h.admission.Stats("m").InFlight == 0 {
			time.Sleep(time.Millisecond)
		}
		h.relay.Retire(nil)
		leave()
		client.Wait()
		for h.relay.Carries() {
			time.Sleep(time.Millisecond)
		}
		if text := <-told; text != "elsewhere m" {
			t.Errorf("its Envoy lives: %v: %s", lives, text)
		}
		if n := len(told); lives != (n == 0) || n == 1 && <-told != "finished m" {
			t.Errorf("its Envoy lives: %v, and %d more were told", lives, n)
		}
	}
}

// A transcription that waits moves as it is: its body is a form, and its events do not tell their
// end. Its timeout goes on.
func TestX20_WaitingFormMoves(t *testing.T) {
	old := newHarness(t, options{limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	events := `data: {"type":"transcript.text.delta","delta":"hi"}` + "\n\n" + `data: {"type":"transcript.text.done","text":"hi"}` + "\n\n"
	next := newHarness(t, options{handler: engineThatSends(events)})
	first := old.send(hello)
	defer first.Body.Close()
	contentType := "multipart/form-data; boundary=b"
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"
	scan, fault := openai.Scan(openai.Transcriptions, contentType, []byte(form))
	if fault != nil {
		t.Fatal(fault)
	}
	scan.Timeout = time.Hour
	path := openai.Transcriptions.Path()
	token := old.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Priority: admission.Default, Path: path, Scan: scan,
		Received: time.Now().Add(-30 * time.Minute), Record: old})
	sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost, old.url+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	sent.Header.Set("content-type", contentType)
	sent.Header.Set(headers.Handoff, token)
	var status int
	var text string
	var client sync.WaitGroup
	client.Go(func() {
		response, err := http.DefaultTransport.RoundTrip(sent)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		all, _ := io.ReadAll(response.Body)
		status, text = response.StatusCode, string(all)
	})
	old.waitQueued(1)
	forward, timeout := forwarderTo(t, next), ""
	old.relay.Retire(func(w http.ResponseWriter, r *http.Request) *openai.Error {
		timeout = r.Header.Get(headers.Timeout)
		return forward(w, r)
	})
	old.dispatcher.Retire()
	client.Wait()
	if status != 200 || text != events {
		t.Errorf("%d %q", status, text)
	}
	if ms, err := strconv.Atoi(timeout); err != nil || ms > int(30*time.Minute/time.Millisecond) || ms < int(29*time.Minute/time.Millisecond) {
		t.Errorf("the successor has %s ms", timeout)
	}
}

// A call that moves keeps its body, which tells it from others with the same id, and has what is
// left of the time that its body allows.
func TestX20_MovedCallHasTheTimeThatIsLeft(t *testing.T) {
	c := newHarness(t, options{}).newCall(helloWith(`"max_duration_ms":3600000`))
	c.Received = time.Now().Add(-30 * time.Minute)
	sent := setCall(httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.Path, http.NoBody), c)
	sent.Header.Set("content-type", "application/json")
	moved, fault := callOfPeer(sent, func(string, string) (*authz.Tenant, bool) { return acme, true }, 1<<20)
	if fault != nil {
		t.Fatal(fault)
	}
	if left := moved.Scan.MaxDuration; left > 30*time.Minute || left < 29*time.Minute {
		t.Errorf("%v of an hour are left after half an hour", left)
	}
	if moved.fingerprint() != c.fingerprint() {
		t.Errorf("%s has become %s", c.Body, moved.Body)
	}
	c.Received = time.Now().Add(-2 * time.Hour)
	if left := setCall(sent, c).Header.Get(headers.TimeLeft); left != "1" {
		t.Errorf("%s ms are left after the time is over", left)
	}
}

// A client of the Messages API whose request has moved resumes its stream at the successor. It gets
// the same events as before, with the reasoning and the stop sequence that it has asked for.
func TestX20_MovedMessagesResume(t *testing.T) {
	p := Policy{Resume: time.Minute}
	reasoning := `data: {"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}` + "\n\n"
	stopped := `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":"END"}]}` + "\n\n"
	for _, thinking := range []string{"", `"thinking":{"type":"enabled"},`} {
		old := newHarness(t, options{policy: p, limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatHangs(roleEvent, tokenEvent("a"))})
		next := newHarness(t, options{policy: p, handler: engineThatSends(roleEvent, reasoning, tokenEvent("b"), stopped, doneEvent)})
		first := old.send(hello)
		defer first.Body.Close()
		var text string
		var client sync.WaitGroup
		client.Go(func() {
			_, text = old.postBody("/v1/messages", "application/json",
				[]byte(`{"model":"m","stream":true,"max_tokens":9,"request_id":"r","stop_sequences":["END"],`+thinking+`"messages":[{"role":"user","content":"x"}]}`))
		})
		old.waitQueued(1)
		old.relay.Retire(forwarderTo(t, next))
		old.dispatcher.Retire()
		client.Wait()
		if !strings.HasSuffix(text, "data: {\"type\":\"message_stop\"}\n\n") || strings.Contains(text, "thinking_delta") != (thinking != "") ||
			!strings.Contains(text, `"stop_sequence":"END"`) {
			t.Errorf("moved: %s", text)
		}
		if _, _, again := next.getStream(http.MethodGet, "/v1/streams/r?after=-1"); again == "" || !strings.HasSuffix(text, again) {
			t.Errorf("resumed: %s\nbefore: %s", again, text)
		}
	}
}

// A request to the Messages API that waits moves with the bound on its duration, which its engine
// does not get.
func TestX20_WaitingMessagesMove(t *testing.T) {
	old := newHarness(t, options{limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	bodies := make(chan string, 2)
	answers := engineThatSends(roleEvent, tokenEvent("b"), finishEvent("", "stop"), doneEvent)
	record := func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		bodies <- string(body)
	}
	next := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record(r)
		answers.ServeHTTP(w, r)
	})})
	first := old.send(hello)
	defer first.Body.Close()
	var text string
	var client sync.WaitGroup
	client.Go(func() {
		_, text = old.postBody("/v1/messages", "application/json",
			[]byte(`{"model":"m","stream":true,"max_tokens":9,"max_duration_ms":60000,"messages":[{"role":"user","content":"x"}]}`))
	})
	old.waitQueued(1)
	forward := forwarderTo(t, next)
	old.relay.Retire(func(w http.ResponseWriter, r *http.Request) *openai.Error {
		record(r)
		return forward(w, r)
	})
	old.dispatcher.Retire()
	client.Wait()
	if !strings.HasSuffix(text, "data: {\"type\":\"message_stop\"}\n\n") {
		t.Errorf("%s", text)
	}
	if moved, asked := <-bodies, <-bodies; !strings.Contains(moved, `"max_duration_ms":60000`) || strings.Contains(asked, "max_duration") {
		t.Errorf("moved %s\nasked %s", moved, asked)
	}
}

// A turn of a WebSocket at a process that was replaced is judged by the budgets of its successor. A
// reload has changed them there alone.
func TestX20_TheSuccessorKnowsTheBudgets(t *testing.T) {
	usedUp := func(*authz.Tenant) *openai.Error {
		return openai.Errorf(openai.CodeInsufficientQuota, "It is used up.")
	}
	for name, c := range map[string]struct {
		old, next func(*authz.Tenant) *openai.Error
		want      openai.Code
	}{
		"raised":  {old: usedUp},
		"lowered": {next: usedUp, want: openai.CodeInsufficientQuota},
	} {
		old, next := newHarness(t, options{}), newHarness(t, options{})
		old.relay.config.Budget, next.relay.config.Budget = c.old, c.next
		old.relay.Retire(forwarderTo(t, next))
		old.dispatcher.Retire()
		sink := new(recordingSink)
		old.relay.Generate(t.Context(), old.newCall(hello), sink)
		var code openai.Code
		if sink.result.Fault != nil {
			code = sink.result.Fault.Code
		}
		if code != c.want || c.want == "" && sink.result.Finish == "" {
			t.Errorf("%s: %+v, want %q", name, sink.result, c.want)
		}
	}
}
