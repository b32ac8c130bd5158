package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
)

// shutdownGrace is how long Run waits for running requests after its context is done.
const shutdownGrace = 2 * time.Second

// maxBody is the size of the largest request body, in bytes. It keeps a mistaken client from
// exhausting the memory.
const maxBody = 512 << 20

// ErrExit is returned by Run when Config.Fault makes the engine fail while it loads.
var ErrExit = errors.New("sim: simulated early exit")

// Engine is a simulated inference engine. It is an http.Handler; Run serves it on a listener. Its
// methods may be called concurrently.
type Engine struct {
	config Config
	// loadedAt is the time at which loading ends.
	loadedAt   time.Time
	mux        *http.ServeMux
	scheduler  *scheduler
	metrics    *metrics
	requestLog *requestLog
	answered   answeredUsage
	vocabulary vocabulary
	// filler are the tokens that extend an answer that is too short.
	filler []string

	// faultMu guards active, the process-wide fault.
	faultMu sync.Mutex
	active  activeFault
}

// New returns an Engine. It starts no goroutine. LoadTime begins with this call.
func New(c Config) *Engine {
	c = c.withDefaults()
	e := &Engine{
		config:     c,
		loadedAt:   time.Now().Add(c.LoadTime),
		requestLog: newRequestLog(c.KeepRequests),
		filler:     tokenize(fillerText),
		active:     activeFault{Fault: c.Fault},
	}
	e.metrics = newMetrics(c, func() loadSnapshot { return e.scheduler.snapshot() })
	e.scheduler = newScheduler(c, e.metrics)
	e.mux = e.routes()
	return e
}

// routes returns the handlers of all paths.
func (e *Engine) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/models", e.handle((*handler).models))
	mux.Handle("POST /v1/chat/completions", e.handle((*handler).chat))
	mux.Handle("POST /v1/completions", e.handle((*handler).completions))
	mux.Handle("POST /v1/responses", e.handle((*handler).responses))
	mux.Handle("POST /v1/responses/input_tokens", e.handle((*handler).inputTokens))
	mux.Handle("POST /v1/embeddings", e.handle((*handler).embeddings))
	mux.Handle("POST /v1/rerank", e.handle((*handler).rerank))
	mux.Handle("POST /v1/score", e.handle((*handler).score))
	mux.Handle("POST /v1/audio/transcriptions", e.handle((*handler).transcribe))
	mux.Handle("POST /v1/audio/translations", e.handle((*handler).translate))
	mux.Handle("POST /v1/audio/speech", e.handle((*handler).speak))
	mux.Handle("POST /v1/images/generations", e.handle((*handler).draw))
	mux.Handle("POST /v1/images/edits", e.handle((*handler).redraw))
	mux.Handle("POST /v1/images/variations", e.handle((*handler).redraw))
	mux.Handle("POST /v1/messages", e.handle((*handler).messages))
	mux.Handle("POST /v1/messages/count_tokens", e.handle((*handler).countTokens))
	mux.Handle("POST /tokenize", e.handle((*handler).tokenize))
	mux.Handle("POST /detokenize", e.handle((*handler).detokenize))
	mux.Handle("POST "+llmv1.Inference_Stream_FullMethodName, e.handleGRPC((*handler).inference))
	mux.HandleFunc("GET /health", e.handleHealth)
	mux.Handle("GET /metrics", e.metrics.handler())
	mux.HandleFunc("POST /reset_prefix_cache", func(http.ResponseWriter, *http.Request) { e.scheduler.clearCache() })
	mux.HandleFunc("GET /sim/requests", e.handleRequests)
	mux.HandleFunc("DELETE /sim/requests", func(http.ResponseWriter, *http.Request) { e.requestLog.clear() })
	mux.HandleFunc("GET /sim/state", e.handleState)
	mux.HandleFunc("GET /sim/usage", e.handleUsage)
	mux.HandleFunc("GET /sim/fault", e.handleGetFault)
	mux.HandleFunc("POST /sim/fault", e.handleSetFault)
	mux.HandleFunc("POST /sim/pace", e.handleSetPace)
	mux.Handle("/", e.handle(func(*handler) error {
		return &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: "Not Found"}
	}))
	return mux
}

// ServeHTTP implements http.Handler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

// Run serves the engine on ln until ctx is done. Then it waits up to shutdownGrace for running
// requests and closes the rest. It closes ln. It returns nil after ctx is done, ErrExit for a
// simulated failure at startup, else the error of the server.
func (e *Engine) Run(ctx context.Context, ln net.Listener) error {
	if e.config.Fault.exitsAtStart() {
		defer ln.Close()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(e.loadedAt)):
			return ErrExit
		}
	}
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: time.Minute, IdleTimeout: e.config.KeepAlive,
		Protocols: protocols(), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: grpcConcurrency},
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	return nil
}

// handler handles one request of a client. It holds the request and the state of its response.
type handler struct {
	engine      *Engine
	w           http.ResponseWriter
	r           *http.Request
	requestBody []byte
	fault       Fault

	// body is the writer of the response body: w or compressor. It is nil until the headers are
	// sent.
	body io.Writer
	// compressor compresses the body for the fault gzip; otherwise it is nil.
	compressor *gzip.Writer
	// generation is the work on the request; nil before generate.
	generation *generation
	// raw writes the response for the faults that net/http would not commit; otherwise it is nil.
	raw *rawWriter
	// translation translates the answer for a client of the Messages API; otherwise it is nil.
	translation *messages.Stream
	// eventCount is the number of events sent so far.
	eventCount int
}

// The ways in which a response ends that is not complete, beside an apiError.
var (
	errCutConnection = errors.New("cut the connection")
	errResponseEnded = errors.New("the fault ended the response")
)

// handle wraps a handler of a path for clients. It logs the request, injects faults, and checks the
// key and that the engine has loaded.
func (e *Engine) handle(handle func(*handler) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			writeBodyError(w, err)
			return
		}
		done := e.requestLog.add(r, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		h := &handler{engine: e, w: w, r: r, requestBody: body}
		err = h.run(handle)
		how := outcome(r.Context(), err, h.fault)
		done(how)
		e.answered.add(h.generation, how == outcomeOK)
		if h.raw != nil {
			h.raw.close(err == nil)
			return
		}
		if errors.Is(err, errCutConnection) {
			panic(http.ErrAbortHandler) // closes the connection inside the body
		}
	})
}

// writeBodyError answers a request whose body could not be read completely.
func writeBodyError(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &tooLarge) {
		panic(http.ErrAbortHandler) // the client disconnected while it sent the body
	}
	(&apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError", message: "Request body too large"}).writeTo(w)
}

// run answers the request, with an error if it is rejected.
func (h *handler) run(handle func(*handler) error) error {
	err := h.precheck()
	if err == nil {
		err = handle(h)
	}
	var rejected *apiError
	if errors.As(err, &rejected) {
		h.writeError(rejected)
	}
	return err
}

// precheck makes the checks that apply to every request, and injects the faults that come before
// the headers.
func (h *handler) precheck() error {
	e := h.engine
	if !e.authorised(h.r) {
		return &apiError{status: http.StatusUnauthorized, message: "Unauthorized"}
	}
	if !e.ready() {
		return &apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: "The model is still being loaded."}
	}
	var err error
	if h.fault, err = e.faultFor(h.r); err != nil {
		return err
	}
	return h.injectBeforeHeaders()
}

// authorised tells whether the request has the key. It compares in constant time, to leak nothing
// about the key.
func (e *Engine) authorised(r *http.Request) bool {
	if e.config.APIKey == "" {
		return true
	}
	key, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer && subtle.ConstantTimeCompare([]byte(key), []byte(e.config.APIKey)) == 1
}

func (e *Engine) ready() bool { return !time.Now().Before(e.loadedAt) }

// handleHealth answers GET /health.
func (e *Engine) handleHealth(w http.ResponseWriter, _ *http.Request) {
	if e.activeFault().has(faultUnhealthy) || !e.ready() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// outcomeOK is the outcome of a request whose response was written to its end.
const outcomeOK = "ok"

// outcome returns how a request ended, in one word for GET /sim/requests.
func outcome(ctx context.Context, err error, f Fault) string {
	var rejected *apiError
	switch {
	case err == nil:
		return outcomeOK
	case ctx.Err() != nil:
		return "client left"
	case len(f.parts) > 0:
		return "fault"
	case errors.As(err, &rejected):
		return "refused"
	}
	return "client left" // a write failed
}
