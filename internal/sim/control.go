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
)

// Seen is one request as GET /sim/requests tells of it.
type Seen struct {
	Number int       `json:"number"` // counts from 1
	Time   time.Time `json:"time"`
	Method string    `json:"method"`
	Path   string    `json:"path"` // with the query
	// Length and SHA256 are of the raw body, as it came over the wire.
	Length int    `json:"length"`
	SHA256 string `json:"sha256"`
	// Headers are those that a gateway deals with, in lower case. Several values are joined by commas.
	Headers map[string]string `json:"headers"`
	// Credentials names the headers that hold secrets; their values are not kept.
	Credentials []string `json:"credentials"`
	// Outcome is running, ok, refused, fault or client left. It is known a moment after the last byte was sent.
	Outcome string `json:"outcome"`
}

// record keeps the last requests.
type record struct {
	mu    sync.Mutex
	limit int
	count int
	list  []*Seen
}

func newRecord(limit int) *record { return &record{limit: limit} }

// add notes a request. The returned func notes how it ended.
func (s *record) add(r *http.Request, body []byte) func(outcome string) {
	sum := sha256.Sum256(body)
	seen := &Seen{
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

	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	seen.Number = s.count
	s.list = append(s.list, seen)
	if over := len(s.list) - max(s.limit, 0); over > 0 {
		s.list = slices.Delete(s.list, 0, over)
	}
	return func(outcome string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		seen.Outcome = outcome
	}
}

// isCredential tells the headers whose values are secrets.
func isCredential(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "x-api-key", "api-key":
		return true
	}
	return false
}

// isKept tells the headers that say something about the way a request took.
func isKept(name string) bool {
	switch name {
	case "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
		"idempotency-key", "te", "traceparent", "tracestate", "user-agent", "via":
		return true
	}
	return strings.HasPrefix(name, "x-")
}

// all returns copies, oldest first, and how many requests there have been.
func (s *record) all() ([]Seen, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Seen, len(s.list))
	for i, seen := range s.list {
		list[i] = *seen
	}
	return list, s.count
}

func (s *record) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
}

// simRequests answers GET /sim/requests.
func (e *Engine) simRequests(w http.ResponseWriter, _ *http.Request) {
	list, count := e.seen.all()
	respond(w, http.StatusOK, map[string]any{"requests": list, "total": count})
}

// State is the answer to GET /sim/state.
type State struct {
	Running      int     `json:"running"` // sequences that hold a slot
	Waiting      int     `json:"waiting"` // sequences in the queue
	Loaded       bool    `json:"loaded"`
	KVUsage      float64 `json:"kv_cache_usage"` // 0 … 1
	CachedTokens int     `json:"cached_tokens"`  // tokens in the prefix cache
	Requests     int     `json:"requests"`       // seen since the start
	Fault        string  `json:"fault"`          // process-wide
}

// State tells what the engine is doing right now.
func (e *Engine) State() State {
	l := e.batch.load()
	_, count := e.seen.all()
	return State{
		Running: l.running, Waiting: l.waiting, Loaded: e.ready(), KVUsage: l.kvUsage,
		CachedTokens: l.cachedTokens, Requests: count, Fault: e.standing().String(),
	}
}

func (e *Engine) simState(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, e.State())
}

// faultOrder is the body of POST /sim/fault.
type faultOrder struct {
	Fault string `json:"fault"`
	// Times is how many requests it is for; 0: all, until the next order.
	Times int `json:"times"`
	// Path is what their paths begin with; empty: all below /v1.
	Path string `json:"path"`
}

func (e *Engine) simFault(w http.ResponseWriter, _ *http.Request) {
	f := e.standing()
	respond(w, http.StatusOK, faultOrder{Fault: f.String(), Times: f.times, Path: f.path})
}

func (e *Engine) setSimFault(w http.ResponseWriter, r *http.Request) {
	var order faultOrder
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&order)
	if err == nil {
		var f Fault
		if f, err = ParseFault(order.Fault); err == nil {
			e.setStanding(standingFault{Fault: f, times: max(order.Times, 0), path: order.Path})
		}
	}
	if err != nil {
		badRequest("fault", "%v", err).write(w)
		return
	}
	e.simFault(w, r)
}

// respond sends a value as JSON, free of faults.
func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(marshal(v), '\n'))
}

// models answers GET /v1/models.
func (c *call) models() error {
	names := c.engine.config.Models
	data := make([]any, len(names))
	for i, name := range names {
		data[i] = map[string]any{
			"id": name, "object": "model", "created": c.engine.loaded.Unix(), "owned_by": "sluice-sim",
			"root": names[0], "parent": nil,
		}
	}
	return c.answer(map[string]any{"object": "list", "data": data})
}
