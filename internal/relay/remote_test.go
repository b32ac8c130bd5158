package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// fakePeers are Peers to which every request id belongs. The function answers.
type fakePeers func(w http.ResponseWriter, r *http.Request) *openai.Error

func (fakePeers) Claim(context.Context, string, string, time.Duration) (string, bool, error) {
	return "other", false, nil
}
func (fakePeers) Find(context.Context, string, string) (string, bool, error) {
	return "other", true, nil
}
func (fakePeers) Keep(string, string)                     {}
func (fakePeers) Release(context.Context, string, string) {}
func (e fakePeers) Forward(w http.ResponseWriter, r *http.Request, _ string) *openai.Error {
	return e(w, r)
}

// recordingSink is a Sink that records what it receives.
type recordingSink struct {
	events     strings.Builder
	numbers    []uint64
	heartbeats []Progress
	answer     *Answer
	result     Result
}

func (n *recordingSink) Event(raw []byte, number uint64) error {
	n.events.Write(raw)
	n.numbers = append(n.numbers, number)
	return nil
}
func (n *recordingSink) Flush() error           { return nil }
func (n *recordingSink) Answer(a *Answer) error { n.answer = a; return nil }
func (n *recordingSink) Heartbeat(p Progress) error {
	n.heartbeats = append(n.heartbeats, p)
	return nil
}
func (n *recordingSink) Finish(r Result) error { n.result = r; return nil }

// callRemotely has a relay with these peers carry a named call.
func (h *harness) callRemotely(ctx context.Context, peers fakePeers) *recordingSink {
	h.relay.config.Peers = peers
	call := h.newCall(hello)
	call.Scan.RequestID, call.Patient = "x/y", true
	n := new(recordingSink)
	h.relay.Generate(ctx, call, n)
	return n
}

// A call that another gateway runs is heard as one of our own: events, heartbeats of both kinds,
// the end.
func TestAbroadStream(t *testing.T) {
	queued := Progress{Phase: Queued, Position: 3, Waited: 1500 * time.Millisecond, Note: "loading weights"}
	chunk := "data: " + string(heartbeatChunk(&Call{})) + "\n\n"
	var asked *http.Request
	n := newHarness(t, options{}).callRemotely(t.Context(), func(w http.ResponseWriter, r *http.Request) *openai.Error {
		asked = r
		w.Header().Set("content-type", "text/event-stream")
		w.Header().Set(headers.Replica, "m-0")
		io.WriteString(w, ": "+queued.String()+"\n\n"+chunk+"id: 0\n"+tokenEvent("a")+chunk+finishEvent("", "stop")+doneEvent)
		return nil
	})
	if asked.Header.Get(headers.Patient) == "" || asked.Header.Get(headers.IdempotencyKey) != "x/y" || asked.Header.Get(headers.Tenant) != "acme" {
		t.Errorf("asked with %v", asked.Header)
	}
	if want := "id: 0\n" + tokenEvent("a") + finishEvent("", "stop") + doneEvent; n.events.String() != want {
		t.Errorf("heard %q, want %q", n.events.String(), want)
	}
	if diff := cmp.Diff([]Progress{queued, {Phase: Prefill}, {Phase: Decode}}, n.heartbeats); diff != "" {
		t.Error(diff)
	}
	if r := n.result; r.Fault != nil || r.Finish != "stop" || r.Replica != "m-0" || r.Model != "m" || r.Usage.Completion != 1 {
		t.Errorf("%+v", r)
	}
}

// TestO5_CallsCountByTheOwnName: the record of a call by an alias has the own name of the model. It
// has that name also when the call is refused at once, or when another gateway carries it.
func TestO5_CallsCountByTheOwnName(t *testing.T) {
	h := newHarness(t, options{})
	h.relay.config.Requests = request.NewStore(10)
	h.relay.config.Peers = fakePeers(func(w http.ResponseWriter, _ *http.Request) *openai.Error {
		w.Header().Set("content-type", "text/event-stream")
		io.WriteString(w, tokenEvent("a")+finishEvent("", "stop")+doneEvent)
		return nil
	})
	carried := h.newCall(strings.Replace(hello, `"m"`, `"alias"`, 1))
	carried.Scan.RequestID = "x"
	h.relay.Generate(t.Context(), carried, new(recordingSink))
	h.relay.config.Budget = func(*authz.Tenant) *openai.Error {
		return openai.Errorf(openai.CodeInsufficientQuota, "It is used up.")
	}
	h.relay.Generate(t.Context(), h.newCall(strings.Replace(hello, `"m"`, `"alias"`, 1)), new(recordingSink))
	all, _ := h.relay.config.Requests.List(0)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	for _, q := range all {
		if q.Model != "m" {
			t.Errorf("the record of the call %q has %q: %+v", q.ClientID, q.Model, q)
		}
	}
}

// Events of another gateway keep their numbers, which are those of its replay log. Numbers are
// missing where that gateway has merged events for a client that reads slowly.
func TestS7_NumbersOfMergedEvents(t *testing.T) {
	n := newHarness(t, options{}).callRemotely(t.Context(), func(w http.ResponseWriter, _ *http.Request) *openai.Error {
		w.Header().Set("content-type", "text/event-stream")
		io.WriteString(w, "id: 0\n"+roleEvent+"id: 40\n"+tokenEvent("abc")+"id: 41\n"+tokenEvent("d")+finishEvent("", "stop")+"id: x\n"+doneEvent)
		return nil
	})
	if diff := cmp.Diff([]uint64{0, 40, 41, 42, 43}, n.numbers); diff != "" {
		t.Error(diff)
	}
}

// A refusal of the other gateway's own is one of ours, and an engine's is the engine's; what is cut
// says so.
func TestAbroadEnds(t *testing.T) {
	h := newHarness(t, options{})
	answers := func(source, kind string, status int, body string) *recordingSink {
		return h.callRemotely(t.Context(), func(w http.ResponseWriter, _ *http.Request) *openai.Error {
			w.Header().Set(headers.Source, source)
			w.Header().Set("content-type", kind)
			w.Header().Set("retry-after", "7")
			w.WriteHeader(status)
			io.WriteString(w, body)
			return nil
		})
	}
	const refusal = `{"error":{"message":"full","type":"rate_limit_error","code":"queue_full","param":null}}`
	n := answers(headers.SourceGateway, "application/json", 429, refusal)
	if f := n.result.Fault; f == nil || f.Code != openai.CodeQueueFull || f.Message != "full" || f.RetryAfter != 7*time.Second || n.answer != nil || n.result.Answered {
		t.Errorf("the gateway's: %+v, %+v", n.result, n.answer)
	}
	n = answers(headers.SourceEngine, "application/json", 400, refusal)
	if n.result.Fault != nil || n.answer == nil || n.answer.Status != 400 || string(n.answer.Body) != refusal {
		t.Errorf("the engine's: %+v, %+v", n.result, n.answer)
	}
	n = answers(headers.SourceEngine, "text/event-stream", 200, tokenEvent("a"))
	if f := n.result.Fault; f == nil || f.Code != openai.CodeUpstreamTruncated {
		t.Errorf("cut: %+v", n.result)
	}
	fault := openai.Errorf(openai.CodeClientTooSlow, "slow")
	n = answers(headers.SourceEngine, "text/event-stream", 200, tokenEvent("a")+"data: "+string(fault.EventData())+"\n\n")
	if f := n.result.Fault; f == nil || f.Code != openai.CodeClientTooSlow || !n.result.Told || n.result.Cause != causeSlow {
		t.Errorf("an error event: %+v", n.result)
	}
}

// A client that cancels does so at the remote gateway too. A relay that stops tells its clients.
func TestRemoteStreamsAreCancelled(t *testing.T) {
	h := newHarness(t, options{})
	cancelled := make(chan string, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	n := h.callRemotely(ctx, func(_ http.ResponseWriter, r *http.Request) *openai.Error {
		if strings.HasSuffix(r.URL.Path, "/cancel") {
			cancelled <- r.URL.EscapedPath() + " of " + r.Header.Get(headers.Tenant)
			return nil
		}
		cancel(openai.Errorf(openai.CodeCancelled, "enough"))
		<-r.Context().Done()
		return nil
	})
	if got := <-cancelled; got != "/v1/streams/x%2Fy/cancel of acme" || n.result.Cause != causeCancelled {
		t.Errorf("%q, %+v", got, n.result)
	}
	n = h.callRemotely(t.Context(), func(_ http.ResponseWriter, r *http.Request) *openai.Error {
		go h.relay.Close(context.Background())
		<-r.Context().Done()
		return nil
	})
	if f := n.result.Fault; f == nil || f.Code != openai.CodeGatewayUnavailable {
		t.Errorf("the relay went: %+v", n.result)
	}
}

// claimingPeers are Peers that know no other gateway. They record the ids that are kept.
type claimingPeers struct {
	fakePeers
	kept *sync.Map
}

func (p claimingPeers) Claim(context.Context, string, string, time.Duration) (string, bool, error) {
	return "self", true, nil
}
func (p claimingPeers) Keep(_, id string)                       { p.kept.Store(id, true) }
func (p claimingPeers) Release(_ context.Context, _, id string) { p.kept.Delete(id) }

// A request that cannot be translated gives its request id up again.
func TestUntranslatableCallReleasesItsID(t *testing.T) {
	h := newHarness(t, options{})
	kept := new(sync.Map)
	h.relay.config.Peers = claimingPeers{kept: kept}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages", strings.NewReader(`{"model":"m","messages":[]}`))
	request.Header.Set("content-type", "application/json")
	request.Header.Set(headers.Tenant, "acme")
	request.Header.Set(headers.IdempotencyKey, "x")
	w := httptest.NewRecorder()
	h.peerHandler().ServeHTTP(w, request)
	if w.Code != http.StatusBadRequest {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	kept.Range(func(id, _ any) bool {
		t.Errorf("the id %v is still kept", id)
		return true
	})
}

// peerHandler returns the handler of what other gateways forward.
func (h *harness) peerHandler() http.Handler {
	return h.relay.PeerHandler(func(string, string) (*authz.Tenant, bool) { return acme, true }, 1<<20)
}

// leavingWriter is a response whose client leaves when it has begun.
type leavingWriter struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (w *leavingWriter) Write(b []byte) (int, error) {
	defer w.leave()
	return w.ResponseRecorder.Write(b)
}

// A client whose request another gateway has forwarded gets heartbeats of the form that it has
// asked for.
func TestForwardedClientHasItsHeartbeats(t *testing.T) {
	h := newHarness(t, options{handler: engineThatHangs(), policy: Policy{Heartbeat: 20 * time.Millisecond}})
	ctx, leave := context.WithTimeout(t.Context(), testutil.Patience)
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(hello))
	request.Header.Set("content-type", "application/json")
	request.Header.Set(headers.Tenant, "acme")
	request.Header.Set(headers.Heartbeat, headers.HeartbeatChunk)
	w := &leavingWriter{httptest.NewRecorder(), leave}
	h.peerHandler().ServeHTTP(w, request)
	if text := w.Body.String(); !strings.HasPrefix(text, "data: "+heartbeatPrefix) {
		t.Errorf("%q", text)
	}
}

// A client of the Messages API gets errors in the form of that API, also about other gateways and
// from them.
func TestB9_ErrorsOfForwardedMessages(t *testing.T) {
	h := newHarness(t, options{})
	gone := openai.Errorf(openai.CodeGatewayUnavailable, "The gateway that runs this request does not answer.")
	h.relay.config.Peers = fakePeers(func(http.ResponseWriter, *http.Request) *openai.Error { return gone })
	for name, c := range map[string]struct {
		handler http.Handler
		header  [2]string
		want    openai.Code
	}{
		"the owner does not answer":    {h.peerHandler(), [2]string{headers.IdempotencyKey, "x"}, gone.Code},
		"the owner refuses":            {h.peerHandler(), [2]string{"content-type", "text/plain"}, openai.CodeInvalidRequest},
		"the gateway has forgotten it": {h.relay.Handler(), [2]string{headers.Handoff, "x"}, openai.CodeGatewayUnavailable},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages",
			strings.NewReader(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}`))
		request.Header.Set("content-type", "application/json")
		request.Header.Set(headers.Tenant, "acme")
		request.Header.Set(c.header[0], c.header[1])
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, request)
		if text := w.Body.String(); w.Code < 400 || !strings.HasPrefix(text, `{"type":"error","error":{`) || !strings.Contains(text, `"code":"`+string(c.want)+`"`) {
			t.Errorf("%s: %d %s", name, w.Code, text)
		}
	}
}

// startMessages runs a request to the Messages API with the request id r.
func (h *harness) startMessages() {
	h.t.Helper()
	h.startMessagesWith("")
}

// startMessagesWith is startMessages with a field more, and the comma after it.
func (h *harness) startMessagesWith(field string) {
	h.t.Helper()
	request := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/v1/messages",
		strings.NewReader(`{`+field+`"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`))
	request.Header.Set("content-type", "application/json")
	request.Header.Set(headers.Tenant, "acme")
	request.Header.Set(headers.IdempotencyKey, "r")
	w := httptest.NewRecorder()
	h.peerHandler().ServeHTTP(w, request)
	if !strings.HasSuffix(w.Body.String(), "data: {\"type\":\"message_stop\"}\n\n") {
		h.t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An answer that the engine has broken off is an error for a client of the Messages API, and for
// the record of the request too. A client of chats reads the finish reason itself.
func TestB9_MessagesThatAreBrokenOffHaveFailed(t *testing.T) {
	whole := `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"abort"}],` +
		`"usage":{"prompt_tokens":5,"completion_tokens":1}}`
	for _, c := range []struct {
		path   string
		stream bool
		failed bool
		cause  string
	}{{"/v1/messages", true, true, causeEngine}, {"/v1/messages", false, true, ""}, {"/v1/chat/completions", true, false, ""}, {"/v1/chat/completions", false, false, ""}} {
		engine := engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "abort"), doneEvent)
		if !c.stream {
			engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("content-type", "application/json")
				_, _ = io.WriteString(w, whole)
			})
		}
		h := newHarness(t, options{handler: engine})
		_, text := h.postFor(c.path, c.stream)
		r := h.result(1)
		if told := strings.Contains(text, `"type":"error"`); told != c.failed || (r.Code() == "upstream_error") != c.failed || r.Cause != c.cause {
			t.Errorf("%+v: code %q, cause %q: %s", c, r.Code(), r.Cause, text)
		}
		if r.Finish != "abort" || r.Usage.Completion != 1 {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// The owner of a stream tells another gateway in which form the client of the stream reads errors.
// It tells no client.
func TestB9_ResumedStreamsNameTheirForm(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	h.startMessages()
	h.sendAndRead(hello, "id: chat")
	for _, c := range []struct{ id, from, form string }{
		{"r", "other", "/v1/messages"}, {"r", "", ""}, {"r", headers.ForwardedByProcess, ""}, {"chat", "other", "/v1/chat/completions"},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/streams/"+c.id, nil)
		request.Header.Set(headers.Tenant, "acme")
		if c.from != "" {
			request.Header.Set(headers.Forwarded, c.from)
		}
		w := httptest.NewRecorder()
		h.peerHandler().ServeHTTP(w, request)
		if form := w.Header().Get(headers.Resumed); w.Code != http.StatusOK || form != c.form {
			t.Errorf("%+v: %d %v", c, w.Code, w.Header())
		}
	}
}

// A stream of the Messages API is resumed as long as a chat of the same length. It is also when the
// replay log has dropped the events with which its blocks have begun.
func TestS7_LongMessagesResume(t *testing.T) {
	events := []string{roleEvent, `data: {"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}` + "\n\n"}
	for i := range 3000 {
		events = append(events, tokenEvent(fmt.Sprintf("<%d>%s", i+2, strings.Repeat("x", 500))))
	}
	events = append(events, finishEvent("", "stop"), doneEvent)
	h := newHarness(t, options{handler: engineThatSends(events...), policy: Policy{Resume: time.Minute}})
	h.startMessagesWith(`"thinking":{"type":"enabled"},`)
	_, _, text := h.getStream(http.MethodGet, "/v1/streams/r?after=2990")
	begin := "id: 2991\nevent: content_block_delta\n" + `data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"<2991>`
	if !strings.HasPrefix(text, begin) || !strings.HasSuffix(text, "data: {\"type\":\"message_stop\"}\n\n") || strings.Contains(text, "_start") {
		t.Errorf("%.300s", text)
	}
	if n := strings.Count(text, `"text_delta"`); n != 3001-2990 {
		t.Errorf("%d tokens came after the event 2990 of 3001", n)
	}
	if status, _, text := h.getStream(http.MethodGet, "/v1/streams/r?after=5"); status != http.StatusConflict || !strings.HasPrefix(text, `{"type":"error"`) {
		t.Errorf("after an event that is not kept: %d %.300s", status, text)
	}
}

// A client that resumes a stream of the Messages API after no event of it gets that API's error.
func TestB9_BadResumeOfMessages(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	h.startMessages()
	h.sendAndRead(hello, "id: chat")
	for path, form := range map[string]string{
		"/v1/streams/r?after=abc": `{"type":"error","error":{`, "/v1/streams/r?after=99": `{"type":"error","error":{`,
		"/v1/streams/chat?after=abc": `{"error":{`,
	} {
		if status, _, text := h.getStream(http.MethodGet, path); status < 400 || !strings.HasPrefix(text, form) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// A stream of another gateway that ends with an error is in the record as one that failed.
func TestForwardedStreamThatFails(t *testing.T) {
	event := func(code openai.Code) string {
		return "data: " + string(openai.Errorf(code, "It has failed.").EventData()) + "\n\n"
	}
	for _, c := range []struct {
		end   string
		code  openai.Code
		cause string
	}{
		{doneEvent, "", ""},
		{event(openai.CodeGatewayUnavailable), openai.CodeGatewayUnavailable, causeGateway},
		{event(openai.CodeCancelled), openai.CodeCancelled, causeCancelled},
		{event(openai.CodeUpstreamTruncated), openai.CodeUpstreamTruncated, causeEngine},
		{errorEvent, openai.CodeUpstreamError, causeEngine},
		{event(openai.CodeUpstreamTimeout), openai.CodeUpstreamTimeout, causeTimeout},
		{event(openai.CodeQueueTimeout), openai.CodeQueueTimeout, ""},
		{"event: error\ndata: " + string(openai.Errorf(openai.CodeGatewayUnavailable, "It has gone.").MessagesBody()) + "\n\n",
			openai.CodeGatewayUnavailable, causeGateway},
	} {
		h := newHarness(t, options{})
		h.relay.config.Peers = fakePeers(func(w http.ResponseWriter, _ *http.Request) *openai.Error {
			w.Header().Set("content-type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			text := roleEvent + tokenEvent("a") + c.end
			io.WriteString(w, text[:len(text)-20])
			io.WriteString(w, text[len(text)-20:])
			return nil
		})
		if _, text := h.sendAndRead(hello, "id: x"); !strings.HasSuffix(text, c.end) {
			t.Errorf("%s", text)
		}
		if r := h.result(1); r.Code() != string(c.code) || r.Cause != c.cause || r.Told != (c.code != "") {
			t.Errorf("%s: %+v", c.end, r)
		}
	}
}

// An answer of another gateway that is cut ends in a panic, and leaves no memory reserved.
func TestX7_CutForwardLeavesNothing(t *testing.T) {
	b := memory.NewBudget(4 << 20)
	h := newHarness(t, options{memory: b})
	h.relay.config.Peers = fakePeers(func(http.ResponseWriter, *http.Request) *openai.Error { panic(http.ErrAbortHandler) })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(hello))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(headers.Handoff, h.offer(hello, "x", "/v1/chat/completions"))
	if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
		response.Body.Close()
		t.Errorf("the answer was not cut: %d", response.StatusCode)
	}
	h.awaitMemory(b)
}

// A client that neither reads the answer of another gateway nor leaves is cut off.
func TestForwardForAStalledClient(t *testing.T) {
	h := newHarness(t, options{write: 100 * time.Millisecond})
	ended := make(chan struct{}, 3)
	endless := func(w http.ResponseWriter) {
		for {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				ended <- struct{}{}
				return
			}
		}
	}
	h.relay.config.Peers = fakePeers(func(w http.ResponseWriter, _ *http.Request) *openai.Error {
		endless(w)
		return nil
	})
	h.relay.config.Elsewhere = func(w http.ResponseWriter, _ *http.Request) bool {
		endless(w)
		return true
	}
	for _, head := range []string{
		"GET /v1/streams/x HTTP/1.1\r\n",
		"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n",
		fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n%s: %s\r\n", len(hello), headers.Handoff, h.offer(hello, "x", "/v1/chat/completions")),
	} {
		client, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		fmt.Fprintf(client, "%sHost: x\r\n%s: acme\r\n\r\n%s", head, headers.Tenant, hello)
		select {
		case <-ended:
		case <-time.After(testutil.Patience):
			t.Errorf("%.50q: the answer is still written", head)
		}
	}
}

// What a remote gateway sends and the relay cannot take is a fault: it does not count as the end.
func TestRemoteResponseTooLarge(t *testing.T) {
	h := newHarness(t, options{})
	for name, endpoint := range map[string]openai.Endpoint{"answer": openai.Chat, "event": openai.Transcriptions} {
		h.relay.config.Peers = fakePeers(func(w http.ResponseWriter, _ *http.Request) *openai.Error {
			if name == "event" {
				w.Header().Set("content-type", "text/event-stream")
			}
			piece := []byte("data: " + strings.Repeat("x", 1<<20))
			for range defaultMaxAnswer/len(piece) + 1 {
				if _, err := w.Write(piece); err != nil {
					return nil
				}
			}
			return nil
		})
		call := h.newCall(hello)
		call.Scan.Endpoint = endpoint
		sink := new(recordingSink)
		h.relay.forwardCall(t.Context(), call, h.relay.remoteGateway("other"), sink)
		if r := sink.result; r.Fault == nil || r.Fault.Code != openai.CodeUpstreamError || r.Cause != causeGateway {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
