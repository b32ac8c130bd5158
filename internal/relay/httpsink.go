package relay

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

const (
	// maxWriteBytes bounds one write to a client, and what is gathered for it, in bytes.
	maxWriteBytes = 32 << 10
	// maxPooledEvents bounds the buffers that go back to eventBuffers, in bytes.
	maxPooledEvents = 2 * largeRead
)

// eventBuffers is a pool of buffers in which events are gathered for a write. A sink has one from
// the first of these events until they are written, so a stream that waits holds none.
var eventBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, maxIdleBuffer)
	return &b
}}

// httpSink is a Sink that writes an HTTP response: a stream of server-sent events, or an answer.
type httpSink struct {
	w http.ResponseWriter
	// inline is w if it can write without waiting. nil: it cannot.
	inline     tryWriter
	controller *http.ResponseController
	call       *Call
	// showReplica says that responses name their replica in a header.
	showReplica bool
	// numbersEvents says that events get their number as id.
	numbersEvents bool
	// writeTimeout is how long one write may take.
	writeTimeout time.Duration

	// translator translates for a client of the Messages API. nil: the client gets what the engine
	// sends.
	translator *translator

	// gen is the generation of the call. nil: the call was refused before there was one.
	gen *generation
	// headerSent says that the response has begun, and isStream that its header has promised
	// events.
	headerSent, isStream bool
	// buffer holds what was not written yet. It is one of eventBuffers, which pooled has come from;
	// nil: there is none. unflushed says that something was written since the last flush.
	buffer    []byte
	pooled    *[]byte
	unflushed bool
	// passed counts the events of which the client gets something.
	passed int64
}

// tryWriter is what the responses of internal/http1 have beside the methods of http.ResponseWriter.
type tryWriter interface {
	TryWrite(b []byte) (whole bool, err error)
}

func (r *Relay) newHTTPSink(w http.ResponseWriter, c *Call) *httpSink {
	s := &httpSink{w: w, controller: http.NewResponseController(w), call: c, showReplica: r.config.ReplicaHeader(),
		writeTimeout: r.config.WriteTimeout, numbersEvents: c.isNamed(), translator: translatorOf(c)}
	s.inline, _ = w.(tryWriter)
	if c.Patient { // another gateway has forwarded it, and ends it if its own client accepts nothing for too long
		s.writeTimeout = max(s.writeTimeout, r.config.Patience)
	}
	return s
}

// sendStreamHeader sends the header of a stream, unless a header was sent before. source says who
// speaks first: the engine or the gateway.
func (s *httpSink) sendStreamHeader(source string) {
	if s.headerSent {
		return
	}
	s.headerSent, s.isStream = true, true
	h := s.w.Header()
	h.Set("content-type", "text/event-stream")
	h.Set("cache-control", "no-cache, no-transform")
	h.Set("x-accel-buffering", "no")
	s.setSourceHeader(source)
	s.w.WriteHeader(http.StatusOK)
}

// setSourceHeader sets the headers that say who answers and how much the tenant may still ask for.
func (s *httpSink) setSourceHeader(source string) {
	h := s.w.Header()
	h.Set(headers.Source, source)
	if s.gen == nil {
		return
	}
	replica, quota := s.gen.status.responseHeader()
	if source == headers.SourceEngine && s.showReplica && replica != "" {
		h.Set(headers.Replica, replica)
	}
	for name, value := range quota {
		h.Set(name, value)
	}
}

// Answer implements Sink.
func (s *httpSink) Answer(a *Answer) error {
	if s.headerSent { // the header has promised a stream, so the answer becomes an event
		s.appendError(a.eventError())
		return s.Flush()
	}
	if s.translator != nil {
		a = s.translator.answer(a)
	}
	s.headerSent = true
	h := s.w.Header()
	passHeaders(h, a.Header)
	if a.Status >= http.StatusBadRequest && h.Get("retry-after") == "" {
		if after := a.EngineError().RetryAfterSeconds(); after != "" {
			h.Set("retry-after", after)
		}
	}
	s.setSourceHeader(headers.SourceEngine)
	h.Set("content-length", strconv.Itoa(len(a.Body)))
	s.w.WriteHeader(a.Status)
	return s.write(a.Body)
}

// eventError returns the error of an event that stands for the answer. A successful answer becomes
// an error too, because a client that was promised chunks cannot read it.
func (a *Answer) eventError() *openai.Error {
	if a.Status < http.StatusBadRequest {
		return openai.Errorf(openai.CodeUpstreamError, "The engine answered with status %d and no stream.", a.Status)
	}
	return a.EngineError()
}

// appendError appends an event with an error to the buffer, as the last event of the stream.
func (s *httpSink) appendError(e *openai.Error) {
	s.takeBuffer()
	switch {
	case s.translator != nil:
		s.buffer = messages.AppendError(s.buffer, e)
	case s.call.Scan.Endpoint == openai.Responses:
		s.buffer = e.AppendResponsesEvent(s.buffer, s.nextSequence())
	default:
		s.buffer = sse.AppendData(s.buffer, e.EventData())
	}
}

// nextSequence returns the sequence number of an event that follows the last one of a response of
// the Responses API. It is 0 if the response has not failed.
func (s *httpSink) nextSequence() int64 {
	if s.gen == nil {
		return 0
	}
	return s.gen.nextSequence.Load()
}

// Event implements Sink.
func (s *httpSink) Event(raw []byte, number uint64) error {
	s.Append(raw, number)
	if len(s.buffer) < maxWriteBytes {
		return nil
	}
	return s.writeBuffer()
}

// CanWriteInline implements InlineSink.
func (s *httpSink) CanWriteInline() bool { return s.inline != nil }

// Append implements InlineSink.
func (s *httpSink) Append(raw []byte, number uint64) {
	s.sendStreamHeader(headers.SourceEngine)
	s.takeBuffer()
	if s.translator != nil {
		before := len(s.buffer)
		if s.buffer = s.translator.append(s.buffer, raw, number, s.numbersEvents); len(s.buffer) > before {
			s.passed++
		}
		return
	}
	s.passed++
	if s.numbersEvents {
		s.buffer = sse.AppendNumbered(s.buffer, raw, number)
		return
	}
	s.buffer = sse.AppendRaw(s.buffer, raw)
}

// Passed implements SelectiveSink.
func (s *httpSink) Passed() int64 { return s.passed }

// TryFlush implements InlineSink.
func (s *httpSink) TryFlush() (whole bool, err error) {
	rest := s.buffer
	for whole = true; whole && len(rest) > 0; {
		n := min(len(rest), maxWriteBytes)
		whole, err = s.inline.TryWrite(rest[:n])
		if err != nil { // the connection has accepted nothing
			break
		}
		rest, s.unflushed = rest[n:], s.unflushed || !whole
	}
	if s.buffer = s.buffer[:copy(s.buffer, rest)]; len(s.buffer) == 0 {
		s.clearBuffer()
	}
	if err != nil && !errors.Is(err, http1.ErrFull) {
		return false, err
	}
	return whole, nil
}

// Flush implements Sink.
func (s *httpSink) Flush() error {
	if len(s.buffer) > 0 {
		if err := s.writeBuffer(); err != nil {
			return err
		}
	}
	if !s.unflushed {
		return nil
	}
	s.clearBuffer()
	s.setWriteDeadline()
	s.unflushed = false
	return s.controller.Flush()
}

// takeBuffer takes a buffer from the pool, unless the sink has one.
func (s *httpSink) takeBuffer() {
	if s.pooled == nil {
		s.pooled = eventBuffers.Get().(*[]byte)
		s.buffer = (*s.pooled)[:0]
	}
}

// clearBuffer gives the buffer back to the pool, or drops one that has grown large.
func (s *httpSink) clearBuffer() {
	if s.pooled != nil && cap(s.buffer) <= maxPooledEvents {
		*s.pooled = s.buffer[:0]
		eventBuffers.Put(s.pooled)
	}
	s.pooled, s.buffer = nil, nil
}

func (s *httpSink) writeBuffer() error {
	err := s.write(s.buffer)
	s.buffer, s.unflushed = s.buffer[:0], true
	return err
}

// write writes b, each piece within the write timeout. A client that neither reads nor leaves would
// otherwise hold the goroutine and the connection for ever.
func (s *httpSink) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxWriteBytes)
		s.setWriteDeadline()
		if _, err := s.w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// setWriteDeadline starts the write timeout. Some responses, as in tests, have none.
func (s *httpSink) setWriteDeadline() {
	_ = s.controller.SetWriteDeadline(time.Now().Add(s.writeTimeout))
}

// Heartbeat implements Sink. A client that has not asked for a stream gets none. An engine may
// answer a request for audio or images with a whole answer although a stream was asked for. So
// such a client gets heartbeats only in a stream that the engine has begun.
func (s *httpSink) Heartbeat(p Progress) error {
	if !s.call.Scan.Stream || !s.isStream && !s.call.Scan.Endpoint.Generates() {
		return nil
	}
	s.sendStreamHeader(headers.SourceGateway)
	s.takeBuffer()
	wantsChunk := s.call.EmptyChunks || s.gen != nil && s.gen.policy.EmptyChunks
	switch {
	case wantsChunk && s.translator != nil:
		s.buffer = messages.AppendPing(s.buffer)
	case wantsChunk && s.call.Scan.Endpoint.Chunked():
		s.buffer = sse.AppendData(s.buffer, heartbeatChunk(s.call))
	default:
		s.buffer = sse.AppendComment(s.buffer, p.String())
	}
	return s.Flush()
}

// heartbeatPrefix is how the data of a heartbeat begins that is a chunk.
const heartbeatPrefix = `{"id":"heartbeat",`

// heartbeatChunk returns the data of a heartbeat that is a chunk without content.
func heartbeatChunk(c *Call) []byte {
	id := responseIdentity{id: "heartbeat", object: "chat.completion.chunk", model: c.Scan.Model, created: time.Now().Unix()}
	if c.Scan.Endpoint == openai.Completions {
		id.object = "text_completion"
	}
	return id.emptyChunk()
}

// Finish implements Sink.
func (s *httpSink) Finish(r Result) error {
	s.setWriteDeadline() // the server still has to write the end of the body, and the last deadline may be over
	switch {
	case r.Fault != nil && !s.headerSent:
		form := s.call.Scan.Endpoint
		if s.translator != nil {
			form = openai.Messages
		}
		r.Fault.AnswerTo(s.w, form.Path())
		return nil
	case r.Fault != nil && !r.Told && s.isStream:
		s.appendError(r.Fault)
	case !s.headerSent: // a client that came back has seen every event already
		s.sendStreamHeader(headers.SourceEngine)
	}
	return s.Flush()
}

// answerFault answers a request of the relay's own paths with an error, and has the list of
// requests show it.
func (r *Relay) answerFault(w http.ResponseWriter, req *http.Request, e *openai.Error) {
	r.config.Requests.Answered(req, e.HTTPStatus(), e)
	e.AnswerTo(w, req.URL.Path)
}
