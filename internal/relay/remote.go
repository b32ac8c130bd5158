package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// abroad has the gateway that runs the call tell the sink of it, by HTTP. If the client wants the call cancelled, it is cancelled there.
func (r *Relay) abroad(ctx context.Context, c *Call, owner string, sink Sink) {
	defer r.listens()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.life, func() { cancel(closing()) })()
	there, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Path, http.NoBody)
	if err != nil { // the path is one of ours
		panic(err)
	}
	if c.Header != nil {
		there.Header = c.Header.Clone()
	}
	there.Header.Set("content-type", "application/json")
	ear := &remote{sink: sink, tracker: sse.Tracker{Choices: c.Scan.Choices}}
	fault := r.config.Peers.Forward(ear, asForwarded(there, c), owner)
	result := Result{Fault: fault, Model: c.Scan.Model, Replica: ear.Header().Get(headers.Replica)}
	var told *openai.Error
	switch why := errors.Join(ear.lost, context.Cause(ctx)); {
	case errors.As(why, &told):
		result.Fault, result.Cause = told, causeOfCode(told.Code)
	case why != nil:
		result.Cause = causeClient
	case result.Fault == nil:
		ear.over(&result)
	}
	if result.Cause == causeCancelled {
		over := r.listens()
		go func() {
			defer over()
			r.cancelAbroad(c, owner)
		}()
	}
	_ = sink.End(result) // nothing is left to stop
	if c.Entry != nil {
		result.Usage = Usage{} // the other gateway counts it
		c.Entry.Carried(result)
	}
}

// cancelWithin is how long another gateway has to hear that a call is cancelled.
const cancelWithin = 5 * time.Second

// cancelAbroad ends a call that another gateway runs, for all who listen to it.
func (r *Relay) cancelAbroad(c *Call, owner string) {
	ctx, cancel := context.WithTimeout(r.life, cancelWithin)
	defer cancel()
	there, err := http.NewRequestWithContext(ctx, http.MethodPost, streamsPath+url.PathEscape(c.Scan.RequestID)+"/cancel", nil)
	if err != nil { // it was escaped
		panic(err)
	}
	there.Header.Set(headers.Tenant, c.Tenant.Name)
	_ = r.config.Peers.Forward(&remote{}, there, owner) // which writes down what is wrong
}

// remote is the response of another gateway: a stream whose events are told to a sink, or an answer. Without a sink it is not looked at.
type remote struct {
	sink    Sink
	header  http.Header
	status  int
	stream  bool
	scanner sse.Scanner
	tracker sse.Tracker
	number  uint64
	body    []byte
	told    *openai.Error // by an event
	lost    error         // the sink has gone
}

// Header implements http.ResponseWriter.
func (r *remote) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

// WriteHeader implements http.ResponseWriter.
func (r *remote) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status, r.stream = status, isStream(&http.Response{StatusCode: status, Header: r.Header()})
	}
}

// Write implements http.ResponseWriter.
func (r *remote) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	switch {
	case r.lost != nil:
		return 0, r.lost
	case r.sink == nil:
	case !r.stream && len(r.body)+len(b) > maxAnswer:
		r.lost = errors.New("the answer is too large")
		return 0, r.lost
	case !r.stream:
		r.body = append(r.body, b...)
	default:
		r.scanner.Feed(b)
		for r.lost == nil && r.scanner.Next() {
			r.lost = r.event(r.scanner.Event())
		}
	}
	return len(b), r.lost
}

// Flush implements http.Flusher.
func (r *remote) Flush() {
	if r.stream && r.lost == nil {
		r.lost = r.sink.Flush()
	}
}

func (r *remote) event(e *sse.Event) error {
	switch {
	case e.IsComment():
		return r.sink.Silence(progressOf(e.Raw))
	case bytes.HasPrefix(e.Data, []byte(heartbeatPrefix)):
		return r.sink.Silence(Progress{Phase: r.phase()})
	}
	if chunk := r.tracker.See(e); chunk.Error {
		r.told = faultIn(e.Data)
	}
	r.number++
	return r.sink.Event(e.Raw, r.number-1)
}

// phase is what a heartbeat without words means.
func (r *remote) phase() Phase {
	if r.tracker.Tokens() == 0 {
		return Prefill
	}
	return Decode
}

// over says how the response has ended.
func (r *remote) over(result *Result) {
	if r.status >= http.StatusBadRequest && r.Header().Get(headers.Source) == headers.SourceGateway {
		result.Fault = faultIn(r.body)
		if s, err := strconv.Atoi(r.Header().Get("retry-after")); err == nil && result.Fault.RetryAfter == 0 {
			result.Fault.RetryAfter = time.Duration(s) * time.Second
		}
		return
	}
	result.Answered = true
	if !r.stream {
		_ = r.sink.Answer(&Answer{Status: r.status, Header: r.header, Body: r.body}) // nothing is left to stop
		return
	}
	result.Usage, result.Finish = usageIn(&r.tracker), r.tracker.Finish()
	switch {
	case r.told != nil:
		result.Fault, result.Told = r.told, true
	case r.tracker.Outcome() == sse.Truncated:
		result.Fault, result.Cause = openai.Errorf(openai.CodeUpstreamTruncated, "The answer ended before it was whole."), causeGateway
	}
}

// faultIn is the error that an event tells of: a gateway's own, or that an engine has failed.
func faultIn(data []byte) *openai.Error {
	var event struct {
		Error struct {
			Code       openai.Code
			Message    string
			Param      string
			RetryAfter int64 `json:"retry_after_ms"`
		}
	}
	if json.Unmarshal(data, &event) != nil || event.Error.Code.Status() == http.StatusInternalServerError {
		return openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
	}
	e := event.Error
	return &openai.Error{Code: e.Code, Message: e.Message, Param: e.Param, RetryAfter: time.Duration(e.RetryAfter) * time.Millisecond}
}

// progressOf reads what Progress.String has written, in a comment.
func progressOf(comment []byte) (p Progress) {
	phase, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(comment)), ": "), " ")
	p.Phase = Phase(phase)
	if text, ok := strings.CutPrefix(rest, "position="); ok {
		text, rest, _ = strings.Cut(text, " ")
		p.Position, _ = strconv.Atoi(text) // 0: not known
	}
	if text, ok := strings.CutPrefix(rest, "waited_ms="); ok {
		text, p.Note, _ = strings.Cut(text, " ")
		ms, _ := strconv.ParseInt(text, 10, 64) // as above
		p.Waited = time.Duration(ms) * time.Millisecond
	}
	return p
}
