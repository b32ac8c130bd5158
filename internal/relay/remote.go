package relay

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// remoteResponse receives the response of a remote gateway as an http.ResponseWriter. It gives a
// stream to a sink event by event, and holds an answer until finish.
type remoteResponse struct {
	// sink is nil if the response does not matter.
	sink Sink
	// endpoint is that of the call.
	endpoint openai.Endpoint
	// numbered says that the remote gateway gives its events their numbers as ids.
	numbered bool
	header   http.Header
	// status is 0 until the header of the response has come.
	status   int
	isStream bool

	scanner sse.Scanner
	tracker sse.Tracker
	// nextNumber is the number of the next event.
	nextNumber uint64
	// body is the body of a response that is no stream.
	body []byte
	// reported is the error that an event has reported. nil: none has.
	reported *openai.Error
	// err is why the response cannot be received any further. nil: it can. fault is the same for
	// the client, if the client is not the cause.
	err   error
	fault *openai.Error
}

func (r *remoteResponse) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

func (r *remoteResponse) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status, r.isStream = status, status == http.StatusOK && mediaType(r.Header()) == "text/event-stream"
	}
}

func (r *remoteResponse) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	switch {
	case r.err != nil:
		return 0, r.err
	case r.sink == nil:
	case !r.isStream && len(r.body)+len(b) > defaultMaxAnswer:
		return 0, r.fail("The answer is larger than %d bytes.", defaultMaxAnswer)
	case !r.isStream:
		r.body = append(r.body, b...)
	default:
		r.scanner.Feed(b)
		for r.err == nil && r.scanner.Next() {
			r.err = r.handleEvent(r.scanner.Event())
		}
		if r.scanner.Err() != nil {
			return 0, r.fail("An event of the answer is too large.")
		}
	}
	return len(b), r.err
}

// fail ends the response, which the relay cannot take.
func (r *remoteResponse) fail(format string, args ...any) error {
	r.fault = openai.Errorf(openai.CodeUpstreamError, format, args...)
	r.err = errors.New(r.fault.Message)
	return r.err
}

func (r *remoteResponse) Flush() {
	if r.isStream && r.err == nil {
		r.err = r.sink.Flush()
	}
}

// handleEvent gives an event to the sink. A heartbeat of the remote gateway becomes a heartbeat.
func (r *remoteResponse) handleEvent(e *sse.Event) error {
	switch {
	case e.IsComment():
		return r.sink.Heartbeat(parseProgress(e.Raw))
	case bytes.HasPrefix(e.Data, []byte(heartbeatPrefix)):
		return r.sink.Heartbeat(Progress{Phase: r.phase()})
	}
	if chunk := r.tracker.See(e); chunk.Error {
		r.reported = parseError(e.Data)
	}
	number := r.numberOf(e)
	r.nextNumber = number + 1
	return r.sink.Event(e.Raw, number)
}

// numberOf returns the number of an event. Numbers are missing where the remote gateway has merged
// events for a client that reads slowly. An event without an id follows the one before.
func (r *remoteResponse) numberOf(e *sse.Event) uint64 {
	if !r.numbered || !e.HasID {
		return r.nextNumber
	}
	number, err := strconv.ParseUint(string(e.ID), 10, 63)
	if err != nil {
		return r.nextNumber
	}
	return number
}

// phase returns what a heartbeat means that is an empty chunk.
func (r *remoteResponse) phase() Phase {
	if r.tracker.Tokens() == 0 {
		return Prefill
	}
	return Decode
}

// finish gives an answer to the sink, and adds to the result how the response has ended.
func (r *remoteResponse) finish(result *Result) {
	if r.status >= http.StatusBadRequest && r.Header().Get(headers.Source) == headers.SourceGateway {
		result.Fault = parseError(r.body)
		if s, err := strconv.Atoi(r.Header().Get("retry-after")); err == nil && result.Fault.RetryAfter == 0 {
			result.Fault.RetryAfter = time.Duration(s) * time.Second
		}
		return
	}
	result.Answered = true
	if !r.isStream {
		_ = r.sink.Answer(&Answer{Status: r.status, Header: r.header, Body: r.body}) // the remote gateway has finished anyway
		return
	}
	result.Usage, result.Finish = usageOf(&r.tracker), r.tracker.Finish()
	switch {
	case r.reported != nil:
		result.Fault, result.Told, result.Cause = r.reported, true, causeOfReported(r.reported.Code)
	case r.tracker.Outcome() == sse.Truncated && r.endpoint.Generates(): // the events of others do not tell their end
		result.Fault, result.Cause = openai.Errorf(openai.CodeUpstreamTruncated, "The answer ended before it was whole."), causeGateway
	}
}

// parseError reads an error in the form of the API: one of a gateway, with its code, or any other
// as the fault of an engine.
func parseError(data []byte) *openai.Error {
	e := openai.ParseEngineError(data)
	if code := openai.Code(e.Code); code.Known() {
		return &openai.Error{Code: code, Message: e.Message, Param: e.Param, RetryAfter: e.RetryAfter}
	}
	return openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
}
