package relay

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
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
	events  strings.Builder
	silence []Progress
	answer  *Answer
	result  Result
}

func (n *recordingSink) Event(raw []byte, _ uint64) error { n.events.Write(raw); return nil }
func (n *recordingSink) Flush() error                     { return nil }
func (n *recordingSink) Answer(a *Answer) error           { n.answer = a; return nil }
func (n *recordingSink) Heartbeat(p Progress) error       { n.silence = append(n.silence, p); return nil }
func (n *recordingSink) Finish(r Result) error            { n.result = r; return nil }

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
	if diff := cmp.Diff([]Progress{queued, {Phase: Prefill}, {Phase: Decode}}, n.silence); diff != "" {
		t.Error(diff)
	}
	if r := n.result; r.Fault != nil || r.Finish != "stop" || r.Replica != "m-0" || r.Model != "m" || r.Usage.Completion != 1 {
		t.Errorf("%+v", r)
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
	if f := n.result.Fault; f == nil || f.Code != openai.CodeClientTooSlow || !n.result.Told {
		t.Errorf("an error event: %+v", n.result)
	}
}

// Who cancels does so for the other gateway too, and a relay that goes tells its clients.
func TestAbroadIsLeft(t *testing.T) {
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
