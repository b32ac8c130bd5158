package relay

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// getStream asks for a named stream, as acme.
func (h *harness) getStream(method, path string) (status int, header http.Header, text string) {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	request.Header.Set("x-sluice-tenant", "acme")
	r, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(all)
}

func countRequests(n *atomic.Int64, engine http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		engine.ServeHTTP(w, r)
	})
}

// A client that wants to go on with a stream that nobody knows begins none. The number of an event
// means nothing to a call without a name.
func TestNothingBeginsForWhoWantsToGoOn(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{handler: countRequests(&calls, engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent)), policy: Policy{Resume: time.Minute}})
	if status, text := h.sendAndRead(hello, "id: r", "last-event-id: 7"); status != 404 || !strings.Contains(text, "stream_not_found") || calls.Load() != 0 {
		t.Errorf("%d %s, %d calls", status, text, calls.Load())
	}
	for _, number := range []string{"7", "nonsense"} {
		if status, text := h.sendAndRead(hello, "last-event-id: "+number); status != 200 || endingOf(text) != "whole" {
			t.Errorf("%s without a name: %d %s", number, status, text)
		}
	}
	if status, text := h.sendAndRead(hello, "id: r", "last-event-id: nonsense"); status != 400 || !strings.Contains(text, "Last-Event-ID") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := h.sendAndRead(hello, "id: r"); status != 200 || endingOf(text) != "whole" || calls.Load() != 3 {
		t.Errorf("the name is not free: %d %s, %d calls", status, text, calls.Load())
	}
	h.waitIdle()
}

// A start that is repeated with the number of an event goes on with the stream, by header or by
// parameter.
func TestR11_RepeatedStartGoesOn(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{handler: countRequests(&calls, engineThatSends(roleEvent, tokenEvent("a"), tokenEvent("b"), finishEvent("", "stop"), doneEvent)), policy: Policy{Resume: time.Minute}})
	_, all := h.sendAndRead(hello, "id: r")
	_, rest, _ := strings.Cut(all, "id: 1\n")
	_, rest, _ = strings.Cut(rest, "\n\n")
	for _, how := range [][]string{{"last-event-id: 1"}, {"query: after=1"}} {
		if status, text := h.sendAndRead(hello, append(how, "id: r")...); status != 200 || text != rest {
			t.Errorf("%v: %d %s, not %s", how, status, text, rest)
		}
	}
	if status, _, text := h.getStream(http.MethodGet, "/v1/streams/r?after=4"); status != 204 || text != "" {
		t.Errorf("who has all of it: %d %s", status, text)
	}
	if status, _, text := h.getStream(http.MethodGet, "/v1/streams/r?after=5"); status != 409 {
		t.Errorf("who has more than all of it: %d %s", status, text)
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

// A call that has failed in a way that may be tried again is begun anew by a start that is
// repeated. Others are told what became of it.
func TestRepeatedStartAfterAFault(t *testing.T) {
	good := engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent)
	refuses := func(status int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) })
	}
	for name, c := range map[string]struct {
		first http.Handler
		anew  bool
	}{
		"cut": {engineThatSends(roleEvent, tokenEvent("a")), true}, "503": {refuses(503), true}, "429": {refuses(429), true},
		"400": {refuses(400), false}, "whole": {good, false},
	} {
		var calls atomic.Int64
		h := newHarness(t, options{policy: Policy{Resume: time.Minute}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls.Add(1) == 1 {
				c.first.ServeHTTP(w, r)
			} else {
				good.ServeHTTP(w, r)
			}
		})})
		_, first := h.sendAndRead(hello, "id: r")
		h.result(1)
		_, again := h.sendAndRead(hello, "id: r")
		if anew := calls.Load() == 2; anew != c.anew || !anew && first != again || anew && endingOf(again) != "whole" {
			t.Errorf("%s: %d calls: %s\nand then %s", name, calls.Load(), first, again)
		}
	}
}

// A call that was left for longer than its grace is over and forgotten: its name is free.
func TestLeftCallIsForgotten(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{policy: Policy{Resume: time.Millisecond}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			engineThatHangs(roleEvent, tokenEvent("a")).ServeHTTP(w, r)
		} else {
			writeEvents(w, roleEvent, tokenEvent("b"), finishEvent("", "stop"), doneEvent)
		}
	})})
	r := h.send(hello, "id: r")
	io.ReadFull(r.Body, make([]byte, 20))
	r.Body.Close()
	h.waitIdle()
	if _, text := h.sendAndRead(hello, "id: r"); endingOf(text) != "whole" {
		t.Errorf("%s", text)
	}
	h.result(2)
	testutil.Eventually(t, "no name is known", func() bool { return h.relay.named.Len() == 0 })
}

// Names may hold what paths do not like.
func TestOddNames(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	for _, name := range []string{"a//b", "..", "a/../b", "./a", "cancel", "a/cancel", "ü ?&#%"} {
		_, text := h.sendAndRead(hello, "id: "+name)
		if status, _, again := h.getStream(http.MethodGet, "/v1/streams/"+url.PathEscape(name)); status != 200 || again != text {
			t.Errorf("%s: %d %s", name, status, again)
		}
		if status, _, _ := h.getStream(http.MethodPost, "/v1/streams/"+url.PathEscape(name)+"/cancel"); status != 200 {
			t.Errorf("%s: cancel answers %d", name, status)
		}
	}
	for path, want := range map[string]int{"/v1/streams/": 400, "/v1/streams/x/y": 400, "/v1/streams/none": 404, "/other": 404} {
		if status, _, text := h.getStream(http.MethodGet, path); status != want || !strings.Contains(text, `"error"`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// Many who start, repeat, leave and come back under few names leave nothing behind, also when the
// relay closes meanwhile.
func TestNamesInACrowd(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), tokenEvent("b"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Millisecond}})
	stop := make(chan struct{})
	runConcurrently(8, func(n int) {
		for i := range 60 {
			if n == 0 && i == 40 {
				close(stop)
			}
			r := h.send(hello, "id: "+string(rune('a'+i%3)))
			if (n+i)%3 == 0 {
				r.Body.Close()
				continue
			}
			text, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode == 200 && endingOf("data: "+string(text)) == "cut" {
				t.Errorf("%v %s", err, text)
			}
		}
	}, func() { <-stop; h.relay.Close(t.Context()) })
	h.waitIdle()
	// A name is forgotten a moment after the end of its stream.
	testutil.Eventually(t, "no name is known any more", func() bool { return h.relay.named.Len() == 0 })
}

// The grace of a call ends it only if nobody listens then; and what begins after Close is over at
// once.
func TestGraceAndClose(t *testing.T) {
	h := newHarness(t, options{handler: http.NotFoundHandler()})
	c := h.newCall(hello)
	c.Scan.RequestID = "r"
	g := h.relay.newGeneration(c, nil)
	l, err := g.broadcast.Subscribe(-1)
	if err != nil {
		t.Fatal(err)
	}
	g.cancelIfIdle()
	if g.ctx.Err() != nil {
		t.Error("a call that somebody listens to was ended")
	}
	l.Unsubscribe()
	if g.ctx.Err() == nil || !g.mayRestart() {
		t.Error("a call that nobody listens to goes on")
	}
	h.relay.Close(t.Context())
	g = h.relay.newGeneration(h.newCall(hello), nil)
	h.relay.start(g)
	select {
	case <-g.done:
		if g.result.Fault == nil || g.result.Fault.HTTPStatus() != 503 {
			t.Errorf("%+v", g.result)
		}
	default:
		t.Error("a call runs after Close has returned")
	}
}

// A client of the Messages API that has more than all of a stream is told, as any other is.
func TestR11_MoreThanAllOfMessages(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages",
		strings.NewReader(`{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`))
	request.Header.Set("content-type", "application/json")
	request.Header.Set(headers.Tenant, "acme")
	request.Header.Set(headers.IdempotencyKey, "r")
	w := httptest.NewRecorder()
	h.peerHandler().ServeHTTP(w, request)
	if w.Code != 200 || !strings.Contains(w.Body.String(), "event: message_stop") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for after, want := range map[string]int{"-1": 200, "1": 200, "3": 204, "4": 409, "1000": 409} {
		status, _, text := h.getStream(http.MethodGet, "/v1/streams/r?after="+after)
		if status != want || want == 200 && !strings.Contains(text, "event: message_stop") {
			t.Errorf("after %s: %d %s", after, status, text)
		}
	}
}

// TestS6_OptionsAreNotTheBody: a client that comes back with less time, or names its request at
// another place, joins its request.
func TestS6_OptionsAreNotTheBody(t *testing.T) {
	engine, generations := engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), atomic.Int64{}
	h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		generations.Add(1)
		engine.ServeHTTP(w, r)
	}), policy: Policy{Resume: time.Minute}})
	for _, c := range []struct {
		body string
		want int
	}{
		{`{"model":"m","stream":true,"request_id":"r","timeout_ms":60000,"messages":[]}`, 200},
		{`{"model":"m","stream":true,"request_id":"r","timeout_ms":50000,"messages":[]}`, 200},
		{`{"request_id": "r", "model":"m","stream":true,"messages":[], "max_duration_ms": 50000}`, 200},
		{`{"request_id":"r","model":"m","stream":true,"messages":[{}]}`, 409},
	} {
		if status, text := h.sendAndRead(c.body); status != c.want {
			t.Errorf("%s: %d %s, want %d", c.body, status, text, c.want)
		}
	}
	if n := generations.Load(); n != 1 {
		t.Errorf("%d generations, want 1", n)
	}
}

// Two requests to the Messages API of which only one asks for the reasoning are different requests,
// though the engine gets the same chat. A client that comes back gets the blocks of the request
// that was started.
func TestMessagesOfOneNameDifferInThinking(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	for _, c := range []struct {
		thinking string
		want     int
	}{{"", 200}, {"", 200}, {`"thinking":{"type":"enabled","budget_tokens":1024},`, 409}} {
		status, text := h.postBody("/v1/messages", "application/json",
			[]byte(`{"model":"m","stream":true,"max_tokens":9,"request_id":"r",`+c.thinking+`"messages":[{"role":"user","content":"x"}]}`))
		if status != c.want {
			t.Errorf("%q: %d %s, want %d", c.thinking, status, text, c.want)
		}
	}
}

// An EventSource that was opened with ?after connects again by itself, with the same URL and the
// number of its last event as a header. It gets no event twice.
func TestR11_EventSourceGoesOnAfterItsLastEvent(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent, tokenEvent("a"), tokenEvent("b"), finishEvent("", "stop"), doneEvent), policy: Policy{Resume: time.Minute}})
	h.sendAndRead(hello, "id: r")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+"/v1/streams/r?after=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(headers.Tenant, "acme")
	request.Header.Set("last-event-id", "2")
	r, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); err != nil || !strings.HasPrefix(string(text), "id: 3\n") {
		t.Errorf("%v: after event 2 comes %s", err, text)
	}
	if _, text := h.sendAndRead(hello, "id: r", "query: after=0", "last-event-id: 2"); !strings.HasPrefix(text, "id: 3\n") {
		t.Errorf("the repeated start goes on with %s", text)
	}
}

// TestFormsOfOtherBoundaries: a client that repeats a form chooses another boundary. It is the same
// request, unless its parts differ.
func TestFormsOfOtherBoundaries(t *testing.T) {
	fingerprint := func(boundary, file string) [32]byte {
		dash := "--" + boundary
		body := dash + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n" +
			dash + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + file + "\r\n" + dash + "--\r\n"
		scan, fault := openai.Scan(openai.Transcriptions, "multipart/form-data; boundary="+boundary, []byte(body))
		if fault != nil {
			t.Fatal(fault)
		}
		return (&Call{Path: "/v1/audio/transcriptions", Body: []byte(body), Scan: scan}).fingerprint()
	}
	first := fingerprint("one", "RIFF")
	if fingerprint("another", "RIFF") != first {
		t.Error("a form of another boundary is another request")
	}
	for _, file := range []string{"RIFX", "RIFF\r\n--another", "RIF"} {
		if fingerprint("one", file) == first {
			t.Errorf("a form with the file %q is the same request", file)
		}
	}
}
