package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1/server"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// response is a Sink that is an HTTP response: of server-sent events, or of an answer as it came.
type response struct {
	w http.ResponseWriter
	// try is w if it can write without waiting; nil: it cannot
	try  tryWriter
	flow *http.ResponseController
	call *Call
	// replica says that responses name their replica
	replica bool

	// within is how long a write may take
	within time.Duration

	of *generation
	// begun: the headers have gone; stream: they have promised events
	begun, stream bool
	numbers       bool
	// buffer is what is not written yet; written says that something is not flushed.
	buffer  []byte
	written bool
}

// tryWriter is what h1server's responses have beside the others.
type tryWriter interface {
	TryWrite(b []byte) (whole bool, err error)
}

func (r *Relay) respond(w http.ResponseWriter, c *Call) *response {
	s := &response{w: w, flow: http.NewResponseController(w), call: c, replica: r.config.ReplicaHeader(),
		within: r.config.WriteTimeout, numbers: c.Scan.RequestID != ""}
	s.try, _ = w.(tryWriter)
	if c.Patient {
		s.within = max(s.within, patience)
	}
	return s
}

// patience is how long the client of another gateway may take for one write if it may hold the engine up. That gateway ends a turn whose client takes
// nothing for too long.
const patience = 10 * time.Minute

// begins implements beginner.
func (s *response) begins(g *generation) { s.of = g }

// head sends the headers of a stream. from is who speaks first.
func (s *response) head(from string) {
	if s.begun {
		return
	}
	s.begun, s.stream = true, true
	h := s.w.Header()
	h.Set("content-type", "text/event-stream")
	h.Set("cache-control", "no-cache, no-transform")
	h.Set("x-accel-buffering", "no")
	s.named(from)
	s.w.WriteHeader(http.StatusOK)
}

// named says who answers, and what the tenant has left.
func (s *response) named(from string) {
	h := s.w.Header()
	h.Set(headers.Source, from)
	if s.of == nil {
		return
	}
	s.of.mu.Lock()
	replica, more := s.of.soFar.Replica, s.of.header
	s.of.mu.Unlock()
	if from == headers.SourceEngine && s.replica && replica != "" {
		h.Set(headers.Replica, replica)
	}
	for name, value := range more {
		h.Set(name, value)
	}
}

// Answer implements Sink.
func (s *response) Answer(a *Answer) error {
	if s.begun { // a stream was promised: what there is becomes an event
		s.buffer = sse.AppendData(s.buffer, a.event())
		return s.Flush()
	}
	s.begun = true
	h := s.w.Header()
	for name, values := range a.Header {
		if lower := strings.ToLower(name); !hopByHop(lower) && lower != "server" && lower != headers.Source && lower != headers.Replica {
			h[name] = values
		}
	}
	s.named(headers.SourceEngine)
	h.Set("content-length", strconv.Itoa(len(a.Body)))
	s.w.WriteHeader(a.Status)
	for rest := a.Body; len(rest) > 0; {
		n := min(len(rest), maxUnflushed)
		if err := s.put(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// event is the answer as the data of an event that a client takes for an error: the engine's own if it has one, else what can be said of the
// answer. A good answer is one too: whoever was promised chunks cannot make anything of it.
func (a *Answer) event() []byte {
	var told struct{ Error json.RawMessage }
	var compact bytes.Buffer
	if a.Status >= http.StatusBadRequest && json.Unmarshal(a.Body, &told) == nil && bytes.HasPrefix(told.Error, []byte("{")) &&
		json.Compact(&compact, a.Body) == nil {
		return compact.Bytes()
	}
	if a.Status < http.StatusBadRequest {
		return openai.Errorf(openai.CodeUpstreamError, "The engine answered with status %d and no stream.", a.Status).EventData()
	}
	e := openai.Errorf(openai.CodeUpstreamError, "The engine answered with status %d.", a.Status)
	if words := bytes.TrimSpace(a.Body); len(words) > 0 && len(words) <= maxWords && utf8.Valid(words) {
		e.Message = fmt.Sprintf("The engine answered with status %d: %s", a.Status, words)
	}
	e.Status = a.Status // which says whether another try may help
	return e.EventData()
}

// maxWords bounds what is passed on of an answer that is no error as the API has them, in bytes.
const maxWords = 2 << 10

// Event implements Sink.
func (s *response) Event(raw []byte, number uint64) error {
	s.Gather(raw, number)
	if len(s.buffer) < maxUnflushed {
		return nil
	}
	return s.write()
}

// Prompt implements prompt.
func (s *response) Prompt() bool { return s.try != nil }

// Gather implements prompt.
func (s *response) Gather(raw []byte, number uint64) {
	s.head(headers.SourceEngine)
	if s.numbers {
		s.buffer = sse.AppendNumbered(s.buffer, raw, number)
		return
	}
	s.buffer = sse.AppendRaw(s.buffer, raw)
}

// TryFlush implements prompt.
func (s *response) TryFlush() (whole bool, err error) {
	if len(s.buffer) == 0 {
		return true, nil
	}
	whole, err = s.try.TryWrite(s.buffer)
	switch {
	case errors.Is(err, h1server.ErrFull): // none of it was taken
		return false, nil
	case err != nil:
		return false, err
	}
	s.written = s.written || !whole
	s.sent()
	return whole, nil
}

// sent empties the buffer.
func (s *response) sent() {
	s.buffer = s.buffer[:0]
	if cap(s.buffer) > maxKeptBuffer {
		s.buffer = nil
	}
}

// maxUnflushed bounds what is gathered for one write, in bytes.
const maxUnflushed = 32 << 10

// Flush implements Sink.
func (s *response) Flush() error {
	if len(s.buffer) > 0 {
		if err := s.write(); err != nil {
			return err
		}
	}
	if !s.written {
		return nil
	}
	s.sent()
	s.limit()
	s.written = false
	return s.flow.Flush()
}

func (s *response) write() error {
	err := s.put(s.buffer)
	s.buffer, s.written = s.buffer[:0], true
	return err
}

// put writes, within the time that a client may take for it: one that neither reads nor leaves would hold this goroutine, and the
// connection, for good.
func (s *response) put(b []byte) error {
	s.limit()
	_, err := s.w.Write(b)
	return err
}

func (s *response) limit() {
	_ = s.flow.SetWriteDeadline(time.Now().Add(s.within)) // where there is none, there is none
}

// Silence implements Sink. A client that asked for no stream can hear nothing.
func (s *response) Silence(p Progress) error {
	if !s.call.Scan.Stream {
		return nil
	}
	s.head(headers.SourceGateway)
	if s.call.EmptyChunks || s.of != nil && s.of.policy.EmptyChunks {
		if s.call.Scan.Endpoint.Chunked() {
			s.buffer = sse.AppendData(s.buffer, heartbeatChunk(s.call))
			return s.Flush()
		}
	}
	s.buffer = sse.AppendComment(s.buffer, p.String())
	return s.Flush()
}

// heartbeatPrefix is how the data of a heartbeat begins that is a chunk.
const heartbeatPrefix = `{"id":"heartbeat",`

func heartbeatChunk(c *Call) []byte {
	k := identity{id: "heartbeat", object: "chat.completion.chunk", model: c.Scan.Model, created: time.Now().Unix()}
	if c.Scan.Endpoint == openai.Completions {
		k.object = "text_completion"
	}
	return k.empty()
}

// String is the progress as the comment of a heartbeat.
func (p Progress) String() string {
	var b strings.Builder
	b.WriteString(string(p.Phase))
	if p.Position > 0 {
		b.WriteString(" position=" + strconv.Itoa(p.Position))
	}
	b.WriteString(" waited_ms=" + strconv.FormatInt(p.Waited.Milliseconds(), 10))
	if p.Note != "" {
		b.WriteString(" " + p.Note)
	}
	return b.String()
}

// End implements Sink.
func (s *response) End(r Result) error {
	s.limit() // for the end of the body, too, which the server writes; the last limit may have been long ago
	switch {
	case r.Fault != nil && !s.begun:
		fail(s.w, r.Fault)
		return nil
	case r.Fault != nil && !r.Told && s.stream:
		s.buffer = sse.AppendData(s.buffer, r.Fault.EventData())
	case !s.begun: // the client has all of it already
		s.head(headers.SourceEngine)
	}
	return s.Flush()
}

// fail answers with an error.
func fail(w http.ResponseWriter, e *openai.Error) {
	w.Header().Set(headers.Source, headers.SourceGateway)
	e.Answer(w)
}
