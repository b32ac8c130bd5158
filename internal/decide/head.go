package decide

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Head holds the headers of a request that Sluice reads. Add adds them.
type Head struct {
	id, method, path string
	endpoint         openai.Endpoint
	// enginePath is the path as engines know it: the client may have used an alias.
	enginePath      string
	credentials     authz.Credentials
	contentType     string
	contentEncoding string
	contentLength   string
	requestID       string // the client's own id of the request
	sessionID       string
	timeout         string
	priority        string
	heartbeat       string
	task            string
	traceparent     string
	// trusted is the name of the header in which a proxy names the caller; empty if there is none.
	trusted string
	// repeated is the name of a header that the client sent more than once. Such a request is
	// refused, since two readers could choose different values.
	repeated string
	// steering are the names of the headers by which the client would steer a gateway behind an
	// upstream.
	steering []string
	// empty are the names of the headers whose field is empty although the client has sent them.
	empty []string
	// count is the number of all headers, and bytes the size of their names and values.
	count, bytes int
}

// ID returns Envoy's id of the request.
func (r *Head) ID() string { return r.id }

// Add adds a header. It keeps neither name nor value.
func (r *Head) Add(name string, value []byte) {
	r.count++
	r.bytes += len(name) + len(value)
	field := r.field(name)
	if field == nil {
		if headers.SteersGateways(name) {
			r.steering = append(r.steering, strings.Clone(name))
		}
		return
	}
	if (*field != "" || slices.Contains(r.empty, name)) && field != &r.traceparent && field != &r.credentials.ForwardedFor {
		r.repeated = strings.Clone(name)
	}
	if len(value) == 0 {
		r.empty = append(r.empty, strings.Clone(name))
	}
	*field = kept(value)
}

// kept returns a copy of a value. Values that most requests have cost no memory.
func kept(value []byte) string {
	switch string(value) {
	case "POST":
		return "POST"
	case "application/json":
		return "application/json"
	case "/v1/chat/completions":
		return "/v1/chat/completions"
	}
	return string(value)
}

// field returns the field that keeps the value of a header. It is nil for a header that Sluice does
// not read.
func (r *Head) field(name string) *string {
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
	case headers.SessionID:
		return &r.sessionID
	case headers.Timeout:
		return &r.timeout
	case headers.Priority:
		return &r.priority
	case headers.TaskID:
		return &r.task
	case headers.Heartbeat:
		return &r.heartbeat
	case "x-forwarded-for":
		return &r.credentials.ForwardedFor
	case r.trusted:
		return &r.credentials.User
	}
	return nil
}

// unsent returns the names of the headers that end here and that no route of Envoy removes.
func (r *Head) unsent() []string {
	if r.trusted == "" {
		return r.steering
	}
	return append(r.steering, r.trusted)
}

// unknownURL is the error of a request that no endpoint serves. Clients that add /v1 to their base
// URL themselves, such as Anthropic's, send it twice when the base URL ends in it.
func unknownURL(method, path string) *openai.Error {
	path, _, _ = strings.Cut(path, "?")
	hint := ""
	if strings.HasPrefix(path, "/v1/v1/") {
		hint = ". The base URL of this client must not end in /v1."
	}
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: 404,
		Message: "Unknown request URL: " + method + " " + strings.ToValidUTF8(path, "?") + hint}
}

// check validates the headers and sets the endpoint. It runs before Envoy reads the body.
func (r *Head) check(maxBody int64) *openai.Error {
	if r.repeated != "" {
		return openai.Invalid(r.repeated, "must not be sent twice")
	}
	endpoint, ok := openai.EndpointOf(r.path)
	if !ok {
		return unknownURL(r.method, r.path)
	}
	r.endpoint, r.enginePath = endpoint, endpoint.EnginePath(r.path)
	if r.method != "POST" {
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: 405,
			Message: "This URL takes POST requests only."}
	}
	if len(r.task) > maxRequestID {
		return openai.Invalid(headers.TaskID, "must not be longer than "+strconv.Itoa(maxRequestID)+" bytes")
	}
	if h := r.heartbeat; h != "" && h != headers.HeartbeatChunk && h != headers.HeartbeatComment {
		return openai.Invalid(headers.Heartbeat, "must be "+headers.HeartbeatChunk+" or "+headers.HeartbeatComment)
	}
	if fault := openai.CheckEncoding(r.contentEncoding); fault != nil {
		return fault
	}
	if fault := openai.CheckContentType(endpoint, r.contentType); fault != nil {
		return fault
	}
	return checkLength(r.length(), maxBody)
}

// checkLength validates the length of a body.
func checkLength(n, maxBody int64) *openai.Error {
	if n > maxBody {
		return openai.Errorf(openai.CodeRequestTooLarge, "The request body of %d bytes is larger than the limit of %d bytes.", n, maxBody)
	}
	return nil
}

// isOfMessages reports whether the client speaks the Messages API, whose errors have another form.
// The path need not have been checked: clients of this API also ask for parts of it that Sluice
// does not have.
func (r *Head) isOfMessages() bool {
	path, _, _ := strings.Cut(r.path, "?")
	path = strings.TrimPrefix(path, "/v1")
	return path == "/messages" || strings.HasPrefix(path, "/messages/")
}

// length returns the declared length of the body, or -1 if there is none.
func (r *Head) length() int64 {
	if n, err := strconv.ParseInt(r.contentLength, 10, 64); err == nil && n >= 0 {
		return n
	}
	return -1
}

// Limits of the client's own options.
const (
	maxRequestID = 256
	maxTimeout   = 24 * time.Hour
)

// mergeOptions adds the options of the headers to those of the body. The error says that the two
// differ, or that a header has an invalid value.
func (r *Head) mergeOptions(scan *openai.Request) *openai.Error {
	if r.requestID != "" {
		if fault := openai.CheckRequestID(headers.IdempotencyKey, r.requestID); fault != nil {
			return fault
		}
		if scan.RequestID != "" && scan.RequestID != r.requestID {
			return openai.Invalid("request_id", "differs from the header "+headers.IdempotencyKey)
		}
		scan.RequestID = r.requestID
	}
	if r.timeout != "" {
		ms, err := strconv.ParseInt(r.timeout, 10, 64)
		if err != nil || ms <= 0 || ms > maxTimeout.Milliseconds() {
			return openai.Invalid(headers.Timeout, "must be a number of milliseconds between 1 and 86400000")
		}
		timeout := time.Duration(ms) * time.Millisecond
		if scan.Timeout != 0 && scan.Timeout != timeout {
			return openai.Invalid("timeout_ms", "differs from the header "+headers.Timeout)
		}
		scan.Timeout = timeout
	}
	return scan.SetSessionID(headers.SessionID, r.sessionID)
}
