package relay

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

const usageEvent = `data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":3}}` + "\n\n"

// readUntil reads a response up to a line with this text.
func readUntil(t *testing.T, r *http.Response, text string) {
	t.Helper()
	for lines := bufio.NewReader(r.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, text) {
			return
		}
	}
}

// shownLate returns what the record of a call was told after its outcome.
func (h *harness) shownLate() []Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.usedLate)
}

// What a named request uses is counted exactly once, also when the client that has started it
// leaves, and whether or not another one reads the rest.
func TestB3_NamedRequestsAreCountedOnce(t *testing.T) {
	leaves := func(_ *testing.T, _ *harness, r *http.Response) { r.Body.Close() }
	for name, c := range map[string]struct {
		resume time.Duration
		// leave is what the client does after its first token, before the engine goes on.
		leave func(t *testing.T, h *harness, r *http.Response)
	}{
		"stays":             {resume: time.Minute},
		"nobody comes back": {resume: time.Minute, leave: leaves},
		"has no grace":      {leave: leaves},
		"cancels": {resume: time.Minute,
			leave: func(_ *testing.T, h *harness, _ *http.Response) { h.getStream(http.MethodPost, "/v1/streams/r/cancel") }},
		"leaves and cancels": {resume: time.Minute,
			leave: func(_ *testing.T, h *harness, r *http.Response) {
				r.Body.Close()
				h.result(1)
				h.getStream(http.MethodPost, "/v1/streams/r/cancel")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			h := newHarness(t, options{policy: Policy{Resume: c.resume}, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				writeEvents(w, roleEvent, tokenEvent("a"))
				<-goOn
				writeEvents(w, tokenEvent("b"), finishEvent("", "stop"), usageEvent, doneEvent)
			})})
			l := keepLedger(h)
			r := h.send(hello, "id: r")
			defer r.Body.Close()
			readUntil(t, r, `"a"`)
			if c.leave != nil {
				c.leave(t, h, r)
				h.result(1)
			}
			close(goOn)
			if c.leave == nil {
				io.Copy(io.Discard, r.Body)
			}
			counts := func() int {
				n := len(l.entries())
				if own := h.result(1); !own.UsedElsewhere && own.Usage.Prompt > 0 && own.Usage.Completion > 0 {
					n++
				}
				return n
			}
			testutil.Eventually(t, "the request is counted", func() bool { return counts() > 0 })
			if c.resume > 0 {
				h.getStream(http.MethodGet, "/v1/streams/r")
			}
			h.waitIdle()
			if n := counts(); n != 1 || len(l.entries()) > 0 && l.entries()[0] != "acme m used both" {
				t.Errorf("counted %d times: %v, %+v", n, l.entries(), h.result(1))
			}
			testutil.Eventually(t, "the record shows what was counted later", func() bool { return len(h.shownLate()) == len(l.entries()) })
			if shown := h.shownLate(); len(shown) > 0 && shown[0].Completion == 0 {
				t.Errorf("the record shows %+v", shown)
			}
		})
	}
}

// A client that closes its connection at the end marker, before the engine has ended its response,
// is charged as one that stays.
func TestB3_ClientThatClosesAtTheEndMarkerIsCounted(t *testing.T) {
	closed := make(chan struct{})
	h := newHarness(t, options{policy: Policy{Resume: time.Minute}, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeEvents(w, roleEvent, tokenEvent("a"), finishEvent("", "stop"), usageEvent, doneEvent)
		<-closed
	})})
	l := keepLedger(h)
	r := h.send(hello, "id: r")
	readUntil(t, r, "[DONE]")
	r.Body.Close()
	if got := h.result(1); !got.UsedElsewhere {
		t.Errorf("%+v", got)
	}
	close(closed)
	testutil.Eventually(t, "the generation has counted", func() bool { return slices.Equal(l.entries(), []string{"acme m used both"}) })
}

// A count that is no number of tokens is no count of the engine, in a stream and in an answer.
func TestB3_UsageThatCannotBeRead(t *testing.T) {
	for _, count := range []string{"1e3", "-3", `"7"`, "9999999999999", "null"} {
		usage := `"usage":{"prompt_tokens":` + count + `,"completion_tokens":3}`
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), `"stream":true`) {
				writeEvents(w, roleEvent, tokenEvent("a"), finishEvent("", "stop"), `data: {"choices":[],`+usage+"}\n\n", doneEvent)
				return
			}
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],`+usage+"}")
		})})
		for i, body := range []string{hello, strings.Replace(hello, `"stream":true,`, "", 1)} {
			h.sendAndRead(body)
			if r := h.result(i + 1); r.Usage.Known || r.Fault != nil {
				t.Errorf("%s in %s: %+v", count, body, r)
			}
		}
	}
}

// The total is the prompt if an engine tells nothing else, and the endpoint has no output.
func TestB3_UsageThatIsOnlyATotal(t *testing.T) {
	for path, c := range map[string]struct {
		body string
		want Usage
	}{
		"/v1/rerank":           {`{"model":"m","query":"q","documents":["d"]}`, Usage{Prompt: 56, Known: true}},
		"/v1/chat/completions": {strings.Replace(hello, `"stream":true,`, "", 1), Usage{}},
	} {
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, `{"results":[],"choices":[{"index":0,"message":{"content":"a"}}],"usage":{"total_tokens":56}}`)
		})})
		h.postBody(path, "application/json", []byte(c.body))
		if u := h.result(1).Usage; u.Known != c.want.Known || u.Known && u != c.want {
			t.Errorf("%s: %+v, want %+v", path, u, c.want)
		}
	}
}

// A stream that the engine refuses in its first event costs nothing, as an answer with that status.
func TestB3_AStreamRefusedInAnEventCostsNothing(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions": hello,
		"/v1/responses":        `{"model":"m","input":"x","stream":true,"background":true,"max_output_tokens":4000}`,
	} {
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			writeEvents(w, `data: {"type":"error","error":{"message":"no room","code":503}}`+"\n\n")
		})})
		h.postBody(path, "application/json", []byte(body))
		if r := h.result(1); r.Usage.Prompt+r.Usage.Completion != 0 || r.Fault == nil {
			t.Errorf("%s: %+v, %v", path, r.Usage, r.Fault)
		}
	}
}

// TestX2_TheLateUsageOfAResponseWhoseClientLeavesIsAwaited: the client of a named request leaves at
// the moment at which the generation ends, so its own result lacks what the generation knows.
func TestX2_TheLateUsageOfAResponseWhoseClientLeavesIsAwaited(t *testing.T) {
	g := &generation{done: make(chan struct{}), result: Result{Usage: Usage{Prompt: 5}, Late: new(request.LateUsage)}}
	g.countedBy.Store(countedByStarter)
	close(g.done)
	if result := g.leaveUsage(Result{Cause: causeClient}); result.Late != g.result.Late || result.Usage != g.result.Usage {
		t.Errorf("%+v", result)
	}
}
