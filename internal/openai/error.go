package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Names of package internal/headers, which this package may not import.
const (
	shouldRetry   = "x-should-retry"
	source        = "x-sluice-source"
	sourceGateway = "gateway"
)

// Error is the one error type that clients see, over every protocol. Its text must never hold a
// key, a prompt or a completion.
type Error struct {
	Code    Code
	Message string
	// Param names the request field at fault; empty is rendered as null.
	Param string
	// Status overrides the code's own status, for the few cases where one code has several (405,
	// 415). 0: the code's.
	Status int
	// EngineType is the type of an engine's own error, in its words; empty: TypeOf the status.
	EngineType string
	// RetryAfter is when a retry makes sense. 0 on a retryable error means 1 s.
	RetryAfter time.Duration
	// Header has further headers for the answer, such as x-ratelimit-*; nil: none.
	Header map[string]string
}

// Invalid returns the error for a field or header with an invalid value. what says what is wrong,
// as the rest of a sentence that begins with param.
func Invalid(param, what string) *Error {
	return &Error{Code: CodeInvalidRequest, Param: param, Message: param + " " + what + "."}
}

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Cancelled returns the answer to a request that was cancelled.
func Cancelled() *Error { return Errorf(CodeCancelled, "The request was cancelled.") }

// Stopping returns the answer to a request that the gateway cannot serve any more.
func Stopping() *Error { return Errorf(CodeGatewayUnavailable, "The gateway is stopping.") }

// ModelNotFound returns the one answer for a model or pool that does not exist and for one that the
// caller may not use. So nobody learns which names exist. param is the field that holds the name,
// "model" or "pool". name is what the client sent: never the name behind an alias.
func ModelNotFound(param, name string) *Error {
	const longest = 200
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	return &Error{Code: CodeModelNotFound, Param: param, Message: "The " + param + " `" + strings.ToValidUTF8(name, "?") +
		"` does not exist, or this API key may not use it. GET /v1/models lists what it may use."}
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// HTTPStatus returns the status that the error is answered with.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.Status()
}

// Retryable reports whether the same request may succeed later: 408, 429, 502, 503 and 504.
func (e *Error) Retryable() bool { return retryableStatus(e.HTTPStatus()) }

// RetryAfterMillis returns when a retry makes sense, in milliseconds. It is at least 1 for a
// retryable error, 1000 if RetryAfter is not set, and 0 for an error that is not retryable.
func (e *Error) RetryAfterMillis() int64 {
	if !e.Retryable() {
		return 0
	}
	return max(e.retryAfter().Milliseconds(), 1)
}

// RetryAfterSeconds returns the value of the Retry-After header in whole seconds, rounded up and at
// least 1 (RFC 9110, 10.2.3). It is empty for an error that is not retryable.
func (e *Error) RetryAfterSeconds() string {
	if !e.Retryable() {
		return ""
	}
	return strconv.FormatInt(int64((e.retryAfter()+time.Second-1)/time.Second), 10)
}

// MustNotRepeat reports whether a client must not repeat the request by itself. OpenAI's clients do
// so after 408, 409 and 429, and Claude Code also after 401. The key is wrong, the client's own
// timeout ended the request, its request id is in use, or its budget is used up. A repeated request
// would generate all of it again, or meet the same error.
func (e *Error) MustNotRepeat() bool {
	switch e.HTTPStatus() {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict:
		return true
	}
	return e.Code == CodeInsufficientQuota
}

func (e *Error) retryAfter() time.Duration {
	if e.RetryAfter <= 0 {
		return defaultRetryAfter
	}
	return e.RetryAfter
}

// ParseRetryAfter reads the value of a Retry-After header: seconds, or a date (RFC 9110, 10.2.3).
// It is 0 for a date in the past and for what is neither. The result is at most a day.
func ParseRetryAfter(value string, now time.Time) time.Duration {
	var after time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 32); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		after = date.Sub(now)
	}
	return min(max(after, 0), 24*time.Hour)
}

// Type returns OpenAI's coarse class of the error, or the engine's own word for it.
func (e *Error) Type() string {
	if e.Code == CodeInsufficientQuota { // OpenAI has a type of its own for it
		return string(e.Code)
	}
	return cmp.Or(e.EngineType, TypeOf(e.HTTPStatus()))
}

// errorObject is the error as clients see it.
type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Code    Code    `json:"code"`
	Param   *string `json:"param"`
	// Only an event of a stream has these: it has no status and no headers that say the same.
	Retryable  *bool `json:"retryable,omitempty"`
	RetryAfter int64 `json:"retry_after_ms,omitempty"`
}

func (e *Error) object() errorObject {
	o := errorObject{Message: e.Message, Type: e.Type(), Code: e.Code}
	if e.Param != "" {
		o.Param = &e.Param
	}
	return o
}

// Body renders the error as {"error":{"message","type","code","param"}}.
func (e *Error) Body() []byte { return render(e.object()) }

// messagesError is the error as the Messages API has it, with the stable code beside it.
type messagesError struct {
	Type    string  `json:"type"`
	Message string  `json:"message"`
	Code    Code    `json:"code,omitempty"`
	Param   *string `json:"param,omitempty"`
}

// MessagesBody renders the error in the form of the Messages API, for an answer and for an event:
// {"type":"error","error":{"type","message","code","param"}}.
func (e *Error) MessagesBody() []byte {
	o := e.object()
	return marshal(struct {
		Type  string        `json:"type"`
		Error messagesError `json:"error"`
	}{"error", messagesError{MessagesType(e.HTTPStatus()), o.Message, o.Code, o.Param}})
}

// VersionHeader is the header in which clients of Anthropic's API send its version.
const VersionHeader = "anthropic-version"

// BodyFor renders the error for a client that has sent this version of Anthropic's API: as
// MessagesBody, or as Body if the version is empty. It is for paths that both APIs have.
func (e *Error) BodyFor(version string) []byte {
	if version != "" {
		return e.MessagesBody()
	}
	return e.Body()
}

// MessagesType returns the type that the Messages API gives an error with this status.
func MessagesType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if status < http.StatusInternalServerError {
		return "invalid_request_error"
	}
	return "api_error"
}

// EventData renders the error for a stream that has started: as Body, with "retryable", and with
// "retry_after_ms" if the error is retryable.
func (e *Error) EventData() []byte { return render(e.eventObject()) }

// EventObject renders the error object of EventData alone, for events of another form.
func (e *Error) EventObject() json.RawMessage { return marshal(e.eventObject()) }

// AppendResponsesEvent appends the error as an event of a stream of the Responses API. The event
// has the type error and a sequence number. It has the members that OpenAI documents for it beside
// those of EventData.
func (e *Error) AppendResponsesEvent(dst []byte, sequence int64) []byte {
	o := e.eventObject()
	data := marshal(map[string]any{"type": "error", "sequence_number": sequence,
		"code": o.Code, "message": o.Message, "param": o.Param, "error": o})
	dst = append(append(dst, "event: error\ndata: "...), data...)
	return append(dst, "\n\n"...)
}

func (e *Error) eventObject() errorObject {
	o, retryable := e.object(), e.Retryable()
	o.Retryable, o.RetryAfter = &retryable, e.RetryAfterMillis()
	return o
}

func render(o errorObject) []byte { return marshal(map[string]errorObject{"error": o}) }

// Encode returns a value as JSON, with the characters of its texts as they are. The value must be
// one that always encodes: of texts, numbers, and what was read as JSON.
func Encode(value any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	return b
}

// Answer writes the error as an HTTP response: the headers of the error, Retry-After if the error
// is retryable, and Body. Headers that w has already stay.
func (e *Error) Answer(w http.ResponseWriter) { e.AnswerWith(w, e.Body()) }

// AnswerTo answers a client's request to a path in the form of the API of that path. A header says
// that the gateway answers.
func (e *Error) AnswerTo(w http.ResponseWriter, path string) {
	w.Header().Set(source, sourceGateway)
	body := e.Body
	if endpoint, ok := EndpointOf(path); ok && endpoint.OfMessages() {
		body = e.MessagesBody
	}
	e.AnswerWith(w, body())
}

// AnswerWith is Answer with another body, such as MessagesBody.
func (e *Error) AnswerWith(w http.ResponseWriter, body []byte) {
	h := w.Header()
	for name, value := range e.Header {
		h.Set(name, value)
	}
	if s := e.RetryAfterSeconds(); s != "" {
		h.Set("retry-after", s)
	}
	if e.MustNotRepeat() {
		h.Set(shouldRetry, "false")
	}
	h.Set("content-type", "application/json")
	h.Set("content-length", strconv.Itoa(len(body)))
	w.WriteHeader(e.HTTPStatus())
	_, _ = w.Write(body) // the client may have disconnected
}
