package relay

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Events as engines write them.
const (
	roleEvent  = `data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	errorEvent = `data: {"error":{"message":"out of memory","code":500}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

func tokenEvent(text string) string {
	return fmt.Sprintf(`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":%q}}]}`+"\n\n", text)
}

// finishEvent returns the last event of a choice, with its last text.
func finishEvent(text, reason string) string {
	return fmt.Sprintf(`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":%q},"finish_reason":%q}]}`+"\n\n", text, reason)
}

// writeEvents sends pieces of a stream, each at once.
func writeEvents(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("content-type", "text/event-stream")
	for _, p := range pieces {
		io.WriteString(w, p)
		http.NewResponseController(w).Flush()
	}
}

// engineThatSends returns an engine that answers every request with the same pieces.
func engineThatSends(pieces ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeEvents(w, pieces...) })
}

// engineThatHangs returns an engine that sends pieces and then nothing until the relay has left.
func engineThatHangs(pieces ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		writeEvents(w, pieces...)
		<-r.Context().Done()
	})
}

var contents = regexp.MustCompile(`"content":"([^"]*)"`)

// contentOf returns the text of a stream, and the number of its end markers.
func contentOf(text string) (words string, ends int) {
	for _, m := range contents.FindAllStringSubmatch(text, -1) {
		words += m[1]
	}
	return words, strings.Count(text, "[DONE]")
}

func helloWith(field string) string { return strings.Replace(hello, "{", "{"+field+",", 1) }

// An engine's own word of a fault is the last one, whatever it sends after it, and before the first
// token another replica is asked.
func TestFaultThatAnEngineTells(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			writeEvents(w, roleEvent, errorEvent, doneEvent)
			return
		}
		writeEvents(w, roleEvent, tokenEvent("well"), finishEvent("", "stop"), doneEvent)
	})})
	if _, text := h.sendAndRead(hello); endingOf(text) != "whole" || strings.Contains(text, "error") || !slices.Equal(h.retries, []string{"5xx"}) {
		t.Errorf("no other replica was asked, %v: %s", h.retries, text)
	}
	for name, pieces := range map[string][]string{"before a token": {roleEvent, errorEvent, doneEvent}, "after one": {roleEvent, tokenEvent("a"), errorEvent, doneEvent, tokenEvent("b")}} {
		h := newHarness(t, options{handler: engineThatSends(pieces...)})
		_, text := h.sendAndRead(hello)
		if _, marks := contentOf(text); marks != 0 || !strings.HasSuffix(text, errorEvent) || strings.Count(text, "error") != 1 {
			t.Errorf("%s: %s", name, text)
		}
		if r := h.result(1); r.Fault == nil || !r.Told || r.Cause != causeEngine || !r.Answered {
			t.Errorf("%s: %+v", name, r)
		}
		if blamed := len(h.failures) > 0; blamed != (name == "before a token") {
			t.Errorf("%s: the replica is blamed for %v", name, h.failures)
		}
	}
}

// An error that an engine tells in an error line, as older servers of llama.cpp do, is an error,
// and the end marker after it is none.
func TestX6_ErrorLine(t *testing.T) {
	for name, line := range map[string]string{"object": `{"code":500,"message":"context size exceeded"}`, "words": "context size exceeded"} {
		failed := "error: " + line + "\n\n"
		h := newHarness(t, options{replicas: 2, handler: engineThatSends(roleEvent, tokenEvent("a"), failed, doneEvent)})
		_, text := h.sendAndRead(hello)
		if r := h.result(1); r.Fault == nil || !r.Told || endingOf(text) != "error" || !strings.Contains(text, "context size exceeded") {
			t.Errorf("%s after a token: %+v\n%s", name, r, text)
		}
		h = newHarness(t, options{replicas: 2, handler: engineThatSends(failed, doneEvent)})
		_, text = h.sendAndRead(hello)
		if len(h.retries) != 1 || endingOf(text) != "error" || !strings.Contains(text, "context size exceeded") {
			t.Errorf("%s at once: retries %v\n%s", name, h.retries, text)
		}
	}
}

// The end marker comes exactly once: also where the engine's is broken off, forgotten, or followed
// by something, or where it then does not end its response.
func TestOneEndMarker(t *testing.T) {
	for name, engine := range map[string]http.Handler{
		"whole":     engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent),
		"cut":       engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), strings.TrimSpace(doneEvent)),
		"forgotten": engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop")),
		"twice":     engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent, doneEvent),
		"followed":  engineThatSends(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent, errorEvent),
		"open":      engineThatHangs(roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent),
	} {
		h := newHarness(t, options{handler: engine})
		_, text := h.sendAndRead(hello)
		if words, marks := contentOf(text); words != "a" || marks != 1 || !strings.HasSuffix(text, doneEvent) {
			t.Errorf("%s: %s", name, text)
		}
		if r := h.result(1); r.Fault != nil || r.Cause != "" || r.Finish != "stop" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func literalRule(words ...string) []Moderation {
	return []Moderation{{Rule: moderation.Rule{Name: "r", Literals: words}}}
}

// When the time of a stream is over, what a rule had to see more of was not forbidden: all of it
// goes, then the end.
func TestTimeReleasesWhatWasWithheld(t *testing.T) {
	for _, how := range []string{"timeout", "stall", "cut"} {
		engine, request, policy := engineThatHangs(roleEvent, tokenEvent("fine "), tokenEvent("for"), tokenEvent("bid"), tokenEvent("d")), hello, Policy{}
		switch how {
		case "timeout":
			request = helloWith(`"timeout_ms":150`)
		case "stall":
			policy.StallTimeout = 50 * time.Millisecond
		case "cut":
			engine = engineThatSends(roleEvent, tokenEvent("fine "), tokenEvent("for"), tokenEvent("bid"), tokenEvent("d"))
		}
		h := newHarness(t, options{handler: engine, policy: policy, rules: literalRule("forbidden")})
		_, text := h.sendAndRead(request)
		words, marks := contentOf(text)
		if words != "fine forbidd" || how == "timeout" && (marks != 1 || !strings.Contains(text, `"finish_reason":"length"`)) || how != "timeout" && (marks != 0 || endingOf(text) != "error") {
			t.Errorf("%s: %s", how, text)
		}
		h.waitIdle()
	}
}

// A timeout that comes before the first token ends a stream in the same way, whether the engine has
// sent its headers by then or not.
func TestTimeInPrefill(t *testing.T) {
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for name, engine := range map[string]http.Handler{"headers": engineThatHangs(roleEvent), "none": silent} {
		h := newHarness(t, options{handler: engine})
		status, text := h.sendAndRead(helloWith(`"timeout_ms":100`))
		if _, marks := contentOf(text); status != 200 || marks != 1 || !strings.Contains(text, `"finish_reason":"length"`) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if r := h.result(1); r.Cause != causeTimeout || r.Fault != nil {
			t.Errorf("%s: %+v", name, r)
		}
		h.waitIdle()
		whole := strings.Replace(helloWith(`"timeout_ms":100`), `"stream":true,`, "", 1)
		if status, text := h.sendAndRead(whole); status != 408 || !strings.Contains(text, `"request_timeout"`) {
			t.Errorf("%s, no stream: %d %s", name, status, text)
		}
		h.waitIdle()
	}
}

// A rule's service hears of all of an answer before the client hears that it is over. It does so
// also where the answer is shorter than what it is asked about at a time. A literal that is
// completed by the last event is found too.
func TestRulesSpeakBeforeTheEnd(t *testing.T) {
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(asked), `"model":"m"`) || !strings.Contains(string(asked), "something bad") {
			t.Errorf("asked %s", asked)
		}
		io.WriteString(w, `{"action":"block"}`)
	}))
	defer judge.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for name, c := range map[string]options{
		"service": {handler: engineThatSends(roleEvent, tokenEvent("something "), tokenEvent("bad"), finishEvent("", "stop"), doneEvent),
			rules: []Moderation{{Rule: moderation.Rule{Name: "r", Hook: &moderation.Hook{URL: judge.URL, Timeout: 10 * time.Second}}}}},
		"literal": {handler: engineThatSends(roleEvent, tokenEvent("something "), tokenEvent("b"), finishEvent("ad", "stop"), doneEvent), rules: literalRule("bad")},
	} {
		h := newHarness(t, c)
		_, text := h.sendAndRead(hello)
		if _, marks := contentOf(text); marks != 1 || strings.Contains(text, `"stop"`) || !strings.Contains(text, `"finish_reason":"content_filter"`) || strings.Contains(text, `"ad"`) {
			t.Errorf("%s: %s", name, text)
		}
		if r := h.result(1); r.Cause != causeModeration || r.Finish != finishFiltered {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A stream that ends without a token is handed on at once, and then belongs to its replica: nobody
// else is asked when the rest is slow.
func TestEndWithoutTokenStays(t *testing.T) {
	var calls atomic.Int64
	h := newHarness(t, options{replicas: 2, policy: Policy{TTFTTimeout: 30 * time.Millisecond},
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			writeEvents(w, roleEvent, finishEvent("", "stop"))
			select {
			case <-r.Context().Done():
			case <-time.After(150 * time.Millisecond): // long past the time for the first token
			}
			writeEvents(w, doneEvent)
		})})
	// On a busy machine the first event may be late, and then somebody else is asked.
	testutil.Eventually(t, "one replica is asked", func() bool {
		calls.Store(0)
		_, text := h.sendAndRead(hello)
		if strings.Count(text, `"stop"`) != 1 || !strings.HasSuffix(text, doneEvent) {
			t.Errorf("%d replicas were asked: %s", calls.Load(), text)
		}
		return calls.Load() == 1
	})
}

// Events of an endpoint that has no tokens pass as they come, and their end is the end of the
// response.
func TestStreamOfTranscription(t *testing.T) {
	next := make(chan struct{})
	h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeEvents(w, `data: {"type":"transcript.text.delta","delta":"one"}`+"\n\n")
		select {
		case <-next:
			writeEvents(w, `data: {"type":"transcript.text.done","text":"one"}`+"\n\n")
		case <-r.Context().Done():
		}
	})})
	ticket := h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Path: "/v1/audio/transcriptions", Received: time.Now(), Record: h,
		Scan: openai.Request{Endpoint: openai.Transcriptions, Model: "m", Stream: true, Size: len(hello)}})
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/audio/transcriptions", strings.NewReader(hello))
	request.Header.Set(headers.Handoff, ticket)
	r, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	first := make([]byte, 20)
	if _, err := io.ReadFull(r.Body, first); err != nil {
		t.Fatal(err)
	}
	close(next)
	rest, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasSuffix(string(rest), `"text":"one"}`+"\n\n") {
		t.Errorf("%v: %s%s", err, first, rest)
	}
	if r := h.result(1); r.Fault != nil || r.TTFT == 0 {
		t.Errorf("%+v", r)
	}
}

// What Sluice itself adds to a stream belongs to the same response, also if the first event with a
// token is large.
func TestOwnEventsHaveTheIdentityOfTheStream(t *testing.T) {
	for name, text := range map[string]string{"small": "a", "large": strings.Repeat("a", 2*maxFirstTokenData)} {
		h := newHarness(t, options{handler: engineThatHangs(roleEvent, tokenEvent(text))})
		_, all := h.sendAndRead(helloWith(`"timeout_ms":200`))
		_, final, _ := strings.Cut(all, text+`"}}]}`)
		if !strings.Contains(final, `"id":"x"`) || !strings.Contains(final, `"finish_reason":"length"`) {
			t.Errorf("%s: %s", name, final)
		}
	}
	for cut := range len(`{"id":"x","model":"m"`) {
		if id := identityOf([]byte(`{"id":"x","model":"m"`)[:cut], "n"); id.id == "" || id.model == "" || id.created == 0 {
			t.Errorf("cut after %d bytes: %+v", cut, id)
		}
	}
}
