package openai

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Code is the stable, machine-readable name of an error. Clients may branch on it; the message is for people.
type Code string

// The codes a client can meet. Each has one status (see [Code.Status]).
const (
	CodeInvalidRequest     Code = "invalid_request"
	CodeInvalidAPIKey      Code = "invalid_api_key"
	CodeForbiddenModel     Code = "forbidden_model"
	CodeModelNotFound      Code = "model_not_found"
	CodeRequestTimeout     Code = "request_timeout"
	CodeRequestIDConflict  Code = "request_id_conflict"
	CodeRequestTooLarge    Code = "request_too_large"
	CodeRateLimited        Code = "rate_limited"
	CodeQueueFull          Code = "queue_full"
	CodeUpstreamError      Code = "upstream_error"
	CodeUpstreamTruncated  Code = "upstream_truncated"
	CodeQueueTimeout       Code = "queue_timeout"
	CodeNoReplica          Code = "no_replica"
	CodeColdStartTimeout   Code = "cold_start_timeout"
	CodeGatewayUnavailable Code = "gateway_unavailable"
	CodeUpstreamTimeout    Code = "upstream_timeout"
	CodeClientTooSlow      Code = "client_too_slow"
	CodeCancelled          Code = "cancelled"
	CodeStreamNotFound     Code = "stream_not_found"
)

// Status is the HTTP status that belongs to the code; 500 for a code that is not of the list.
func (c Code) Status() int {
	switch c {
	case CodeInvalidRequest:
		return 400
	case CodeInvalidAPIKey:
		return 401
	case CodeForbiddenModel:
		return 403
	case CodeModelNotFound, CodeStreamNotFound:
		return 404
	case CodeRequestTimeout, CodeClientTooSlow:
		return 408
	case CodeRequestIDConflict:
		return 409
	case CodeRequestTooLarge:
		return 413
	case CodeRateLimited, CodeQueueFull:
		return 429
	case CodeUpstreamError, CodeUpstreamTruncated:
		return 502
	case CodeQueueTimeout, CodeNoReplica, CodeColdStartTimeout, CodeGatewayUnavailable:
		return 503
	case CodeUpstreamTimeout:
		return 504
	case CodeCancelled:
		return 499
	}
	return 500
}

// Error is the one error type that clients see, over every protocol. Its text must never hold a key, a prompt or
// a completion.
type Error struct {
	Code    Code
	Message string
	// Param names the request field at fault; empty is rendered as null.
	Param string
	// Status overrides the code's own status, for the few cases where one code has several (405, 415). 0: the code's.
	Status int
	// RetryAfter is when a retry makes sense. 0 on a retryable error means 1 s.
	RetryAfter time.Duration
	// Header has further headers for the answer, such as x-ratelimit-*; nil: none.
	Header map[string]string
}

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// HTTPStatus is the status the error is answered with.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.Status()
}

// Retryable says whether the same request may succeed later: 408, 429, 502, 503 and 504.
func (e *Error) Retryable() bool {
	switch e.HTTPStatus() {
	case 408, 429, 502, 503, 504:
		return true
	}
	return false
}

// RetryAfterMillis is RetryAfter in milliseconds: 1000 for a retryable error that does not say, 0 for one that is not retryable.
func (e *Error) RetryAfterMillis() int64 {
	switch {
	case !e.Retryable():
		return 0
	case e.RetryAfter <= 0:
		return 1000
	}
	return max(e.RetryAfter.Milliseconds(), 1)
}

// RetryAfterSeconds is the value of the Retry-After header in whole seconds, rounded up and at least 1 (RFC 9110,
// 10.2.3); empty when the error is not retryable.
func (e *Error) RetryAfterSeconds() string {
	if !e.Retryable() {
		return ""
	}
	s := int64((e.RetryAfter + time.Second - 1) / time.Second)
	return strconv.FormatInt(max(s, 1), 10)
}

// Type is OpenAI's coarse class of the error.
func (e *Error) Type() string { return TypeOf(e.HTTPStatus()) }

// TypeOf is OpenAI's coarse class of an error with the given HTTP status.
func TypeOf(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// shape is the error as clients see it.
type shape struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Code    Code    `json:"code"`
	Param   *string `json:"param"`
	// Of an event in a stream, which has no status and no headers to say it.
	Retryable  *bool `json:"retryable,omitempty"`
	RetryAfter int64 `json:"retry_after_ms,omitempty"`
}

func (e *Error) shape() shape {
	s := shape{Message: e.Message, Type: e.Type(), Code: e.Code}
	if e.Param != "" {
		s.Param = &e.Param
	}
	return s
}

// Body renders the error as {"error":{"message","type","code","param"}}.
func (e *Error) Body() []byte { return render(e.shape()) }

// EventData renders the error for a stream that has begun: as Body, with "retryable", and "retry_after_ms" when it is.
func (e *Error) EventData() []byte {
	s, retryable := e.shape(), e.Retryable()
	s.Retryable, s.RetryAfter = &retryable, e.RetryAfterMillis()
	return render(s)
}

func render(s shape) []byte {
	b, err := json.Marshal(map[string]shape{"error": s})
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	return b
}
