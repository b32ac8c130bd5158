package extproc

import (
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// requestHead is what the headers of a request say.
type requestHead struct {
	id, method, path string
	endpoint         openai.Endpoint
	credentials      authz.Credentials
	contentType      string
	contentEncoding  string
	contentLength    string
	requestID        string // the client's own
	timeout          string
	priority         string
	task             string
	traceparent      string
	// repeated names a header that came more than once; who reads which of the two is anybody's
	// guess
	repeated string
}

func (r *requestHead) read(h *core.HeaderMap) {
	for _, header := range h.GetHeaders() {
		value := header.GetValue()
		if raw := header.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		if field := r.field(header.GetKey()); field != nil {
			if *field != "" && field != &r.traceparent {
				r.repeated = header.GetKey()
			}
			*field = value
		}
	}
}

// field is where a header's value is kept; nil for a header that means nothing here.
func (r *requestHead) field(name string) *string {
	switch name {
	case ":method":
		return &r.method
	case ":path":
		return &r.path
	case headers.RequestID:
		return &r.id
	case "authorization":
		return &r.credentials.Authorization
	case "x-api-key", "api-key":
		return &r.credentials.APIKey
	case "traceparent":
		return &r.traceparent
	case "content-type":
		return &r.contentType
	case "content-encoding":
		return &r.contentEncoding
	case "content-length":
		return &r.contentLength
	case headers.IdempotencyKey:
		return &r.requestID
	case headers.Timeout:
		return &r.timeout
	case headers.Priority:
		return &r.priority
	case headers.TaskID:
		return &r.task
	}
	return nil
}

// check finds what is wrong with a request before its body is read.
func (r *requestHead) check(maxBody int64) *openai.Error {
	if r.repeated != "" {
		return invalid(r.repeated, "must not be sent twice")
	}
	endpoint, ok := openai.EndpointOf(r.path)
	if !ok {
		path, _, _ := strings.Cut(r.path, "?")
		if len(path) > 200 {
			path = path[:200] + "…"
		}
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: 404,
			Message: "Unknown request URL: " + r.method + " " + strings.ToValidUTF8(path, "?")}
	}
	r.endpoint = endpoint
	if r.method != "POST" {
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: 405,
			Message: "This URL takes POST requests only."}
	}
	if len(r.task) > maxRequestID {
		return invalid(headers.TaskID, "must not be longer than "+strconv.Itoa(maxRequestID)+" bytes")
	}
	if fault := openai.CheckEncoding(r.contentEncoding); fault != nil {
		return fault
	}
	if n, err := strconv.ParseInt(r.contentLength, 10, 64); err == nil && n > maxBody {
		return openai.Errorf(openai.CodeRequestTooLarge, "The request body of %d bytes is larger than the limit of %d bytes.", n, maxBody)
	}
	return nil
}

// Bounds of the client's own options.
const (
	maxRequestID = 256
	maxTimeout   = 24 * time.Hour
)

// mergeOptions adds the options that came as headers to those of the body. What both say must
// agree.
func (r *requestHead) mergeOptions(scan *openai.Request) *openai.Error {
	if r.requestID != "" {
		if len(r.requestID) > maxRequestID {
			return invalid(headers.IdempotencyKey, "must not be longer than "+strconv.Itoa(maxRequestID)+" bytes")
		}
		if scan.RequestID != "" && scan.RequestID != r.requestID {
			return invalid("request_id", "differs from the header "+headers.IdempotencyKey)
		}
		scan.RequestID = r.requestID
	}
	if r.timeout != "" {
		ms, err := strconv.ParseInt(r.timeout, 10, 64)
		if err != nil || ms <= 0 || ms > maxTimeout.Milliseconds() {
			return invalid(headers.Timeout, "must be a number of milliseconds between 1 and 86400000")
		}
		timeout := time.Duration(ms) * time.Millisecond
		if scan.Timeout != 0 && scan.Timeout != timeout {
			return invalid("timeout_ms", "differs from the header "+headers.Timeout)
		}
		scan.Timeout = timeout
	}
	return nil
}

func invalid(param, what string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: param + " " + what + "."}
}
