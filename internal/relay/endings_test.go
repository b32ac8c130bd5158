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
)

// Events as engines write them.
const (
	role  = `data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	fault = `data: {"error":{"message":"out of memory","code":500}}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

func say(text string) string {
	return fmt.Sprintf(`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":%q}}]}`+"\n\n", text)
}

// closing event of a choice, with its last words.
func finish(text, reason string) string {
	return fmt.Sprintf(`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":%q},"finish_reason":%q}]}`+"\n\n", text, reason)
}

// write sends pieces of a stream, each at once.
func write(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("content-type", "text/event-stream")
	for _, p := range pieces {
		io.WriteString(w, p)
		http.NewResponseController(w).Flush()
	}
}

// script is an engine that says the same to everybody.
func script(pieces ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, pieces...) })
}

// hangs is an engine that says something and then nothing until the relay has left.
func hangs(pieces ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		write(w, pieces...)
		<-r.Context().Done()
	})
}

var contents = regexp.MustCompile(`"content":"([^"]*)"`)

// told is what a stream says, and how often it has an end marker.
func told(text string) (words string, ends int) {
	for _, m := range contents.FindAllStringSubmatch(text, -1) {
		words += m[1]
	}
	return words, strings.Count(text, "[DONE]")
}

func with(field string) string { return strings.Replace(hello, "{", "{"+field+",", 1) }

// An engine's own word of a fault is the last one, whatever it sends after it, and before the first token another replica is asked.
func TestFaultThatAnEngineTells(t *testing.T) {
	var calls atomic.Int64
	b := newBench(t, setup{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			write(w, role, fault, done)
			return
		}
		write(w, role, say("well"), finish("", "stop"), done)
	})})
	if _, text := b.read(hello); ends(text) != "whole" || strings.Contains(text, "error") || !slices.Equal(b.retries, []string{"5xx"}) {
		t.Errorf("no other replica was asked, %v: %s", b.retries, text)
	}
	for name, pieces := range map[string][]string{"before a token": {role, fault, done}, "after one": {role, say("a"), fault, done, say("b")}} {
		b := newBench(t, setup{handler: script(pieces...)})
		_, text := b.read(hello)
		if _, marks := told(text); marks != 0 || !strings.HasSuffix(text, fault) || strings.Count(text, "error") != 1 {
			t.Errorf("%s: %s", name, text)
		}
		if r := b.last(1); r.Fault == nil || !r.Told || r.Cause != causeEngine || !r.Answered {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The end marker comes exactly once: also where the engine's is broken off, forgotten, or followed by something, or where it then does not
// end its response.
func TestOneEndMarker(t *testing.T) {
	for name, engine := range map[string]http.Handler{
		"whole":     script(role, say("a"), finish("", "stop"), done),
		"cut":       script(role, say("a"), finish("", "stop"), strings.TrimSpace(done)),
		"forgotten": script(role, say("a"), finish("", "stop")),
		"twice":     script(role, say("a"), finish("", "stop"), done, done),
		"followed":  script(role, say("a"), finish("", "stop"), done, fault),
		"open":      hangs(role, say("a"), finish("", "stop"), done),
	} {
		b := newBench(t, setup{handler: engine})
		_, text := b.read(hello)
		if words, marks := told(text); words != "a" || marks != 1 || !strings.HasSuffix(text, done) {
			t.Errorf("%s: %s", name, text)
		}
		if r := b.last(1); r.Fault != nil || r.Cause != "" || r.Finish != "stop" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func literal(words ...string) []Moderation {
	return []Moderation{{Rule: moderation.Rule{Name: "r", Literals: words}}}
}

// When the time of a stream is over, what a rule had to see more of was not forbidden: all of it goes, then the end.
func TestTimeReleasesWhatWasWithheld(t *testing.T) {
	for _, how := range []string{"timeout", "stall", "cut"} {
		engine, request, policy := hangs(role, say("fine "), say("for"), say("bid"), say("d")), hello, Policy{}
		switch how {
		case "timeout":
			request = with(`"timeout_ms":150`)
		case "stall":
			policy.StallTimeout = 50 * time.Millisecond
		case "cut":
			engine = script(role, say("fine "), say("for"), say("bid"), say("d"))
		}
		b := newBench(t, setup{handler: engine, policy: policy, rules: literal("forbidden")})
		_, text := b.read(request)
		words, marks := told(text)
		if words != "fine forbidd" || how == "timeout" && (marks != 1 || !strings.Contains(text, `"finish_reason":"length"`)) || how != "timeout" && (marks != 0 || ends(text) != "error") {
			t.Errorf("%s: %s", how, text)
		}
		b.idle()
	}
}

// A timeout that comes before the first token ends a stream in the same way, whether the engine has sent its headers by then or not.
func TestTimeInPrefill(t *testing.T) {
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for name, engine := range map[string]http.Handler{"headers": hangs(role), "none": silent} {
		b := newBench(t, setup{handler: engine})
		status, text := b.read(with(`"timeout_ms":100`))
		if _, marks := told(text); status != 200 || marks != 1 || !strings.Contains(text, `"finish_reason":"length"`) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if r := b.last(1); r.Cause != causeTimeout || r.Fault != nil {
			t.Errorf("%s: %+v", name, r)
		}
		b.idle()
		whole := strings.Replace(with(`"timeout_ms":100`), `"stream":true,`, "", 1)
		if status, text := b.read(whole); status != 408 || !strings.Contains(text, `"request_timeout"`) {
			t.Errorf("%s, no stream: %d %s", name, status, text)
		}
		b.idle()
	}
}

// A rule's service hears of all of an answer before the client hears that it is over, also where the answer is shorter than what it is asked
// about at a time. A literal that is completed by the last event is found too.
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
	for name, c := range map[string]setup{
		"service": {handler: script(role, say("something "), say("bad"), finish("", "stop"), done),
			rules: []Moderation{{Rule: moderation.Rule{Name: "r", Hook: &moderation.Hook{URL: judge.URL, Timeout: 10 * time.Second}}}}},
		"literal": {handler: script(role, say("something "), say("b"), finish("ad", "stop"), done), rules: literal("bad")},
	} {
		b := newBench(t, c)
		_, text := b.read(hello)
		if _, marks := told(text); marks != 1 || strings.Contains(text, `"stop"`) || !strings.Contains(text, `"finish_reason":"content_filter"`) || strings.Contains(text, `"ad"`) {
			t.Errorf("%s: %s", name, text)
		}
		if r := b.last(1); r.Cause != causeModeration || r.Finish != finishFiltered {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A stream that ends without a token is handed on at once, and then belongs to its replica: nobody else is asked when the rest is slow.
func TestEndWithoutTokenStays(t *testing.T) {
	var calls atomic.Int64
	b := newBench(t, setup{replicas: 2, policy: Policy{TTFTTimeout: 30 * time.Millisecond},
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			write(w, role, finish("", "stop"))
			select {
			case <-r.Context().Done():
			case <-time.After(150 * time.Millisecond): // long past the time for the first token
			}
			write(w, done)
		})})
	_, text := b.read(hello)
	if strings.Count(text, `"stop"`) != 1 || !strings.HasSuffix(text, done) || calls.Load() != 1 {
		t.Errorf("%d replicas were asked: %s", calls.Load(), text)
	}
}

// Events of an endpoint that has no tokens pass as they come, and their end is the end of the response.
func TestStreamOfTranscription(t *testing.T) {
	next := make(chan struct{})
	b := newBench(t, setup{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(w, `data: {"type":"transcript.text.delta","delta":"one"}`+"\n\n")
		select {
		case <-next:
			write(w, `data: {"type":"transcript.text.done","text":"one"}`+"\n\n")
		case <-r.Context().Done():
		}
	})})
	ticket := b.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Path: "/v1/audio/transcriptions", Received: time.Now(), Record: b,
		Scan: openai.Request{Endpoint: openai.Transcriptions, Model: "m", Stream: true, Size: len(hello)}})
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/audio/transcriptions", strings.NewReader(hello))
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
	if r := b.last(1); r.Fault != nil || r.TTFT == 0 {
		t.Errorf("%+v", r)
	}
}
