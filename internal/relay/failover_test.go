package relay

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	statuses "github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/sim"
)

// plainHello is hello for an answer that is no stream.
var plainHello = strings.Replace(hello, `"stream":true,`, "", 1)

// faultFirst serves a simulated engine that has the fault for the first n requests.
func faultFirst(fault string, n int64) http.Handler {
	engine, served := sim.New(sim.Config{Models: []string{"m"}}), new(atomic.Int64)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) <= n {
			r.Header.Set(sim.FaultHeader, fault)
		}
		engine.ServeHTTP(w, r)
	})
}

// Whatever an engine does in place of an answer, another replica answers and the client sees
// nothing of it. In brackets stands what the client is told if all replicas do it.
func TestX6_R9_AnotherReplicaAnswers(t *testing.T) {
	for fault, c := range map[string]struct {
		reason, code string
		// status is that of the client if all replicas fail. streams and plain say for which
		// requests the engine fails.
		status         int
		streams, plain bool
	}{
		"status=429":           {"429", "rate_limited", 429, true, true},
		"status=503":           {request.Reason5xx, "upstream_error", 503, true, true},
		"status=500":           {request.Reason5xx, "upstream_error", 500, true, true},
		"reset-before-headers": {request.ReasonReset, "upstream_error", 502, true, true},
		"early-close":          {request.ReasonReset, "upstream_error", 502, true, true},
		"1xx":                  {request.ReasonReset, "upstream_error", 502, true, true},
		"endless-header":       {request.ReasonReset, "upstream_error", 502, true, true},
		"cut=0":                {request.ReasonReset, "upstream_truncated", 502, false, true},
		"eof=0":                {request.ReasonReset, "upstream_truncated", 502, false, true},
		"close,cut=0":          {request.ReasonReset, "upstream_truncated", 502, false, true},
		"close,cut=1":          {request.ReasonReset, "upstream_error", 502, true, false}, // before the first token
		"length=5":             {request.ReasonReset, "upstream_truncated", 502, false, true},
		"length=-5":            {request.ReasonReset, "upstream_truncated", 502, false, true},
		"close,garbage":        {request.ReasonReset, "upstream_truncated", 502, false, true},
		"gzip,cut=0":           {request.ReasonReset, "upstream_truncated", 502, false, true},
		"type=text/html,eof=0": {request.ReasonReset, "upstream_error", 502, false, true},
	} {
		for body, applies := range map[string]bool{hello: c.streams, plainHello: c.plain} {
			if !applies {
				continue
			}
			h := newHarness(t, options{replicas: 2, handler: faultFirst(fault, 1)})
			status, text := h.sendAndRead(body)
			if status != 200 || body == hello && endingOf(text) != "whole" || body != hello && !strings.Contains(text, `"finish_reason":"length"`) {
				t.Errorf("%s: %d %s", fault, status, text)
			}
			if r := h.result(1); len(h.retries) != 1 || h.retries[0] != c.reason || r.Attempts != 2 || r.Fault != nil {
				t.Errorf("%s: retries %v, %+v", fault, h.retries, r)
			} else if len(h.failedAt) != 1 || !strings.HasPrefix(h.failedAt[0], c.reason+" at ") || strings.HasSuffix(h.failedAt[0], r.Replica) {
				t.Errorf("%s: the record was told of %v, and %s has answered", fault, h.failedAt, r.Replica)
			}
			h = newHarness(t, options{replicas: 2, handler: faultFirst(fault, 9)})
			if status, text := h.sendAndRead(body); status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) {
				t.Errorf("%s everywhere: %d %s", fault, status, text)
			}
		}
	}
}

// An engine's error with a successful status is an error: another replica is tried if its code
// allows, and the client is told.
func TestX6_ErrorWithASuccessfulStatus(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		status  int
		retries int
	}{
		"no code":    {`{"error":{"message":"CUDA out of memory"}}`, 500, 1},
		"words":      {`{"error":"CUDA out of memory"}`, 500, 1},
		"503":        {`{"error":{"message":"CUDA out of memory","code":503}}`, 503, 1},
		"text":       {`{"error":{"message":"CUDA out of memory","code":"oom"}}`, 500, 1},
		"400":        {`{"error":{"message":"CUDA out of memory","code":400}}`, 400, 0},
		"no error":   {`{"error":null,"choices":[{"index":0,"message":{"content":"CUDA out of memory"}}]}`, 200, 0},
		"with words": {`{"error":"","choices":[{"index":0,"message":{"content":"CUDA out of memory"}}]}`, 200, 0},
	} {
		for _, body := range []string{hello, plainHello} {
			if body == hello && c.status == 200 {
				continue // see TestAnswerInPlaceOfAStream
			}
			h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("content-type", "application/json")
				_, _ = io.WriteString(w, c.body)
			})})
			status, text := h.sendAndRead(body)
			if status != c.status || !strings.Contains(text, "CUDA out of memory") || len(h.retries) != c.retries {
				t.Errorf("%s: %d %s, retries %v", name, status, text, h.retries)
			}
		}
	}
}

// An error event before the first token counts as an answer with the status of its code, for the
// health of its replica and for fail_over_on. A fault of the request is no fault of the replica.
func TestX6_ErrorEventBeforeTheFirstToken(t *testing.T) {
	refusal := `data: {"error":{"message":"too long","code":400}}` + "\n\n"
	for name, c := range map[string]struct {
		event           string
		on              statuses.Statuses
		calls, failures int
	}{
		"always":                            {errorEvent, statuses.AllStatuses, 2, 2},
		"never":                             {errorEvent, statuses.NoStatus, 1, 1},
		"only after 503":                    {errorEvent, statuses.OnUnavailable, 1, 1},
		"of the request":                    {refusal, statuses.AllStatuses, 1, 0},
		"of the request, in the older form": {`data: {"object":"error","message":"too long","code":400}` + "\n\n", statuses.AllStatuses, 1, 0},
		"has another form":                  {`data: {"error":"out of memory"}` + "\n\n", statuses.AllStatuses, 2, 2},
	} {
		var calls atomic.Int64
		h := newHarness(t, options{replicas: 2, handler: countRequests(&calls, engineThatSends(roleEvent, c.event, doneEvent))})
		h.dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{FailOver: c.on, Strategy: dispatch.RoundRobin}})
		_, text := h.sendAndRead(hello)
		if r := h.result(1); !r.Told || r.Fault == nil || !strings.HasSuffix(text, c.event) {
			t.Errorf("%s: %+v\n%s", name, r, text)
		}
		if calls.Load() != int64(c.calls) || len(h.failures) != c.failures {
			t.Errorf("%s: %d calls, not %d; failures %v, not %d", name, calls.Load(), c.calls, h.failures, c.failures)
		}
	}
}

// Answers that look odd and are whole reach the client.
func TestX6_WholeAnswersPass(t *testing.T) {
	for _, fault := range []string{"close", "gzip", "type=text/plain", "type=application/problem+json", "close,type=text/plain", "garbage"} {
		for _, body := range []string{hello, plainHello} {
			if body == hello && (fault == "garbage" || strings.Contains(fault, "json")) {
				continue // the one needs a Content-Length, the other says that it is no stream
			}
			h := newHarness(t, options{replicas: 2, handler: faultFirst(fault, 1)})
			status, text := h.sendAndRead(body)
			if status != 200 || body == hello && endingOf(text) != "whole" || len(h.retries) > 0 {
				t.Errorf("%s: %d %s, retries %v", fault, status, text, h.retries)
			}
			if learned := len(h.closing) > 0; learned != strings.Contains(fault, "close") {
				t.Errorf("%s: closing %v", fault, h.closing)
			}
		}
	}
}

// A stream that was cut after its first token ends with an error, however the cut looks.
func TestX6_CutAfterTheFirstToken(t *testing.T) {
	for _, fault := range []string{"cut=4", "eof=4", "close,cut=4", "close,eof=4", "gzip,cut=4"} {
		h := newHarness(t, options{replicas: 2, handler: faultFirst(fault, 1)})
		status, text := h.sendAndRead(hello)
		if status != 200 || endingOf(text) != "error" || !strings.Contains(text, "upstream_truncated") || strings.Contains(text, "[DONE]") {
			t.Errorf("%s: %d %s", fault, status, text)
		}
	}
}

// What a small answer unpacks to is bounded.
func TestX6_GzipBomb(t *testing.T) {
	h := newHarness(t, options{replicas: 2, handler: faultFirst("gzip-bomb", 1)})
	status, text := h.sendAndRead(plainHello)
	if status != 502 || !strings.Contains(text, "larger than") {
		t.Errorf("%d %s", status, text)
	}
}

// When no replica takes the request, the client gets the engine's answer with its Retry-After, also
// when the last replica was not reached.
func TestR9_TheEnginesAnswerIsPassedOn(t *testing.T) {
	engine, first := sim.New(sim.Config{Models: []string{"m"}}), new(atomic.Value)
	h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(sim.FaultHeader, "reset-before-headers")
		if first.CompareAndSwap(nil, r.Host); first.Load() == r.Host {
			r.Header.Set(sim.FaultHeader, "status=429:7")
		}
		engine.ServeHTTP(w, r)
	})})
	for _, body := range []string{hello, plainHello} {
		r := h.send(body)
		r.Body.Close()
		if r.StatusCode != 429 || r.Header.Get("Retry-After") != "7" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %v", r.StatusCode, r.Header)
		}
	}
	if r := h.result(1); r.Fault != nil || !r.Answered {
		t.Errorf("%+v", r)
	}
	if len(h.rests) != 2 || !strings.HasSuffix(h.rests[0], " 7s") {
		t.Errorf("rests: %v", h.rests)
	}
}

// An engine's error that may be repeated says when, also if the engine does not. Others do not.
func TestRetryAfterOfAnEnginesError(t *testing.T) {
	for fault, want := range map[string]string{
		"status=502": "1", "status=504": "1", "status=429:0": "1", "status=503:7": "7", "status=500": "", "status=422": "",
	} {
		engine := sim.New(sim.Config{Models: []string{"m"}})
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set(sim.FaultHeader, fault)
			engine.ServeHTTP(w, r)
		})})
		for _, body := range []string{hello, plainHello} {
			r := h.send(body)
			r.Body.Close()
			if got := r.Header.Values("Retry-After"); strings.Join(got, ",") != want {
				t.Errorf("%s: Retry-After %q, want %q", fault, got, want)
			}
		}
	}
}

// A timeout ends all choices that the client has asked for, also when the engine has sent nothing.
func TestX6_TimeoutEndsEveryChoice(t *testing.T) {
	h := newHarness(t, options{handler: faultFirst("hang", 1)})
	body := strings.Replace(hello, `"stream":true`, `"stream":true,"n":3,"timeout_ms":500`, 1)
	_, text := h.sendAndRead(body)
	if n := strings.Count(text, `"finish_reason":"length"`); n != 3 {
		t.Errorf("%d of 3 choices have ended: %s", n, text)
	}
}

// An attempt that was preempted fails for that reason, and its replica is not blamed, even if the
// attempt notices it before its context has ended.
func TestAbandonedBeforeItsContextEnds(t *testing.T) {
	h := newHarness(t, options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &attempt{gen: &generation{relay: h.relay}, failover: &failover{ticket: &dispatch.Ticket{}}, ctx: ctx}
	a.cancel = func(cause error) {
		time.Sleep(20 * time.Millisecond)
		cancel(cause)
	}
	go a.abandon(errPreempted)
	for !a.isAbandoned() {
		runtime.Gosched()
	}
	if reason := a.fail(nil); reason != request.ReasonPreempted || len(h.failures) > 0 {
		t.Errorf("%q, %q", reason, h.failures)
	}
}

// A replica is not blamed when this process can open no further file.
func TestNoFilesIsNoFaultOfTheReplica(t *testing.T) {
	h := newHarness(t, options{})
	asked, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.engines[0].URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	response, err := new(http1.Transport).RoundTrip(asked)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		response.Body.Close()
		t.Fatal("a file was left")
	}
	a := &attempt{gen: &generation{relay: h.relay}, failover: &failover{ticket: &dispatch.Ticket{}}, ctx: t.Context()}
	if reason := a.fail(err); reason != request.ReasonConnect || len(h.failures) > 0 {
		t.Errorf("%v: %q, %q", err, reason, h.failures)
	}
}
