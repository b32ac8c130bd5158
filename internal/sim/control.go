package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// RecordedRequest is one request in the response to GET /sim/requests.
type RecordedRequest struct {
	Number int       `json:"number"` // from 1
	Time   time.Time `json:"time"`
	Method string    `json:"method"`
	Path   string    `json:"path"` // including the query
	// Length and SHA256 describe the raw body as it was received.
	Length int    `json:"length"`
	SHA256 string `json:"sha256"`
	// Headers are the headers that a gateway deals with, by names in lower case. Several values are
	// joined by commas.
	Headers map[string]string `json:"headers"`
	// Credentials are the names of the headers that hold secrets. Their values are not kept.
	Credentials []string `json:"credentials"`
	// Outcome is running, ok, refused, fault or client left. It is set shortly after the last byte
	// was sent.
	Outcome string `json:"outcome"`
}

// requestLog keeps the last requests. Its methods may be called concurrently.
type requestLog struct {
	// mu guards total and requests.
	mu sync.Mutex
	// limit is the number of requests to keep.
	limit int
	// total is the number of all requests so far.
	total int
	// requests are the kept requests, oldest first.
	requests []*RecordedRequest
}

// newRequestLog returns a log that keeps up to limit requests.
func newRequestLog(limit int) *requestLog { return &requestLog{limit: limit} }

// add records a request. The returned function records how the request ended.
func (l *requestLog) add(r *http.Request, body []byte) func(outcome string) {
	sum := sha256.Sum256(body)
	seen := &RecordedRequest{
		Time: time.Now().UTC(), Method: r.Method, Path: r.URL.RequestURI(), Length: len(body),
		SHA256: hex.EncodeToString(sum[:]), Credentials: []string{}, Outcome: "running",
	}
	seen.Headers = make(map[string]string)
	seen.Headers["host"] = r.Host
	for name, values := range r.Header {
		name = strings.ToLower(name)
		switch {
		case isCredential(name):
			seen.Credentials = append(seen.Credentials, name)
		case isKept(name):
			seen.Headers[name] = strings.Join(values, ", ")
		}
	}
	slices.Sort(seen.Credentials)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	seen.Number = l.total
	l.requests = append(l.requests, seen)
	if over := len(l.requests) - max(l.limit, 0); over > 0 {
		l.requests = slices.Delete(l.requests, 0, over)
	}
	return func(outcome string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		seen.Outcome = outcome
	}
}

// isCredential tells whether the values of a header are secrets. name is in lower case.
func isCredential(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "x-api-key", "api-key":
		return true
	}
	return false
}

// isKept tells whether a header is recorded, because a gateway may have set or changed it. name is
// in lower case.
func isKept(name string) bool {
	switch name {
	case "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
		"idempotency-key", "te", "traceparent", "tracestate", "user-agent", "via":
		return true
	}
	return strings.HasPrefix(name, "x-")
}

// all returns copies of the kept requests, oldest first, and the number of all requests so far.
func (l *requestLog) all() ([]RecordedRequest, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]RecordedRequest, len(l.requests))
	for i, seen := range l.requests {
		list[i] = *seen
	}
	return list, l.total
}

// clear removes the kept requests. Their number continues.
func (l *requestLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = nil
}

// handleRequests answers GET /sim/requests.
func (e *Engine) handleRequests(w http.ResponseWriter, _ *http.Request) {
	list, count := e.requestLog.all()
	respond(w, map[string]any{"requests": list, "total": count})
}

// State is the response to GET /sim/state.
type State struct {
	Running      int     `json:"running"` // sequences that hold a slot
	Waiting      int     `json:"waiting"` // sequences that wait for a slot
	Loaded       bool    `json:"loaded"`
	KVUsage      float64 `json:"kv_cache_usage"` // 0 to 1
	CachedTokens int     `json:"cached_tokens"`  // tokens in the prefix cache
	Requests     int     `json:"requests"`       // since the start
	Fault        string  `json:"fault"`          // the process-wide fault
}

// State returns what the engine is doing now.
func (e *Engine) State() State {
	l := e.scheduler.snapshot()
	_, count := e.requestLog.all()
	return State{
		Running: l.running, Waiting: l.waiting, Loaded: e.ready(), KVUsage: l.kvUsage,
		CachedTokens: l.cachedTokens, Requests: count, Fault: e.activeFault().String(),
	}
}

// handleState answers GET /sim/state.
func (e *Engine) handleState(w http.ResponseWriter, _ *http.Request) {
	respond(w, e.State())
}

// faultSetting is the body of POST /sim/fault and of the response to GET /sim/fault.
type faultSetting struct {
	Fault string `json:"fault"`
	// Times is the number of requests that the fault applies to. 0: all, until the next setting.
	Times int `json:"times"`
	// Path is the prefix of the paths that the fault applies to. Empty: all paths for clients.
	Path string `json:"path"`
}

// handleGetFault answers GET /sim/fault.
func (e *Engine) handleGetFault(w http.ResponseWriter, _ *http.Request) {
	f := e.activeFault()
	respond(w, faultSetting{Fault: f.String(), Times: f.remaining, Path: f.pathPrefix})
}

// handleSetFault answers POST /sim/fault.
func (e *Engine) handleSetFault(w http.ResponseWriter, r *http.Request) {
	var setting faultSetting
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&setting)
	if err == nil {
		var f Fault
		if f, err = ParseFault(setting.Fault); err == nil {
			e.setActiveFault(activeFault{Fault: f, remaining: max(setting.Times, 0), pathPrefix: setting.Path})
		}
	}
	if err != nil {
		badRequest("fault", "%v", err).writeTo(w)
		return
	}
	e.handleGetFault(w, r)
}

// handleSetPace answers POST /sim/pace.
func (e *Engine) handleSetPace(w http.ResponseWriter, r *http.Request) {
	var setting struct {
		TokenInterval string `json:"token_interval"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&setting)
	if err == nil {
		var interval time.Duration
		if interval, err = time.ParseDuration(setting.TokenInterval); err == nil {
			e.scheduler.setInterval(max(interval, 0))
		}
	}
	if err != nil {
		badRequest("token_interval", "%v", err).writeTo(w)
	}
}

// respond sends a value as JSON. No fault applies to it.
func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(openai.Encode(v), '\n'))
}

// models answers GET /v1/models.
func (h *handler) models() error {
	names := h.engine.config.Models
	data := make([]any, len(names))
	for i, name := range names {
		data[i] = map[string]any{
			"id": name, "object": "model", "created": h.engine.loadedAt.Unix(), "owned_by": "sluice-sim",
			"root": names[0], "parent": nil,
		}
	}
	return h.sendJSON(map[string]any{"object": "list", "data": data})
}
