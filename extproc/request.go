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

// request is what the headers say.
type request struct {
	id, method, path string
	endpoint         openai.Endpoint
	credentials      authz.Credentials
	contentType      string
	contentEncoding  string
	contentLength    string
	requestID        string // the client's own
	timeout          string
}

func (r *request) read(h *core.HeaderMap) {
	for _, header := range h.GetHeaders() {
		value := header.GetValue()
		if raw := header.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		switch header.GetKey() {
		case ":method":
			r.method = value
		case ":path":
			r.path = value
		case headers.RequestID:
			r.id = value
		case "authorization":
			r.credentials.Authorization = value
		case "x-api-key":
			r.credentials.APIKey = value
		case "api-key":
			if r.credentials.APIKey == "" {
				r.credentials.APIKey = value
			}
		case "content-type":
			r.contentType = value
		case "content-encoding":
			r.contentEncoding = value
		case "content-length":
			r.contentLength = value
		case headers.IdempotencyKey:
			r.requestID = value
		case headers.Timeout:
			r.timeout = value
		}
	}
}

// check finds what is wrong with a request before its body is read.
func (r *request) check(maxBody int64) *openai.Error {
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

// mergeOptions adds the options that came as headers to those of the body. What both say must agree.
func (r *request) mergeOptions(scan *openai.Request) *openai.Error {
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
