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
)

// shutdownGrace is how long Run lets requests finish once its context has ended.
const shutdownGrace = 2 * time.Second

// maxBody bounds what is read of one request, so that a mistake does not fill the memory.
const maxBody = 512 << 20

// ErrExit is what Run returns when Config.Fault says that the engine is to die while it loads.
var ErrExit = errors.New("sim: simulated early exit")

// Engine is a simulated inference engine. It is an http.Handler; Run serves it on a listener.
type Engine struct {
	config  Config
	loaded  time.Time // when loading is over
	mux     *http.ServeMux
	batch   *scheduler
	metrics *metrics
	seen    *record
	filler  []string // tokens that follow when an answer has to be longer than it is

	faultMu sync.Mutex
	fault   standingFault
}

// New makes an engine. It starts nothing; loading counts from here.
func New(c Config) *Engine {
	c = c.withDefaults()
	e := &Engine{
		config: c,
		loaded: time.Now().Add(c.LoadTime),
		seen:   newRecord(c.KeepRequests),
		filler: tokenize(fillerText),
		fault:  standingFault{Fault: c.Fault},
	}
	e.metrics = newMetrics(c, func() load { return e.batch.load() })
	e.batch = newScheduler(c, e.metrics)
	e.mux = e.routes()
	return e
}

func (e *Engine) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/models", e.api((*call).models))
	mux.Handle("POST /v1/chat/completions", e.api((*call).chat))
	mux.Handle("POST /v1/completions", e.api((*call).completions))
	mux.Handle("POST /v1/responses", e.api((*call).responses))
	mux.Handle("POST /v1/embeddings", e.api((*call).embeddings))
	mux.Handle("POST /v1/rerank", e.api((*call).rerank))
	mux.Handle("POST /v1/score", e.api((*call).score))
	mux.Handle("POST /v1/audio/transcriptions", e.api((*call).transcribe))
	mux.Handle("POST /v1/audio/translations", e.api((*call).translate))
	mux.Handle("POST "+llmv1.Inference_Stream_FullMethodName, e.grpc((*call).inference))
	mux.HandleFunc("GET /health", e.health)
	mux.Handle("GET /metrics", e.metrics.handler())
	mux.HandleFunc("POST /reset_prefix_cache", func(http.ResponseWriter, *http.Request) { e.batch.forget() })
	mux.HandleFunc("GET /sim/requests", e.simRequests)
	mux.HandleFunc("DELETE /sim/requests", func(http.ResponseWriter, *http.Request) { e.seen.clear() })
	mux.HandleFunc("GET /sim/state", e.simState)
	mux.HandleFunc("GET /sim/fault", e.simFault)
	mux.HandleFunc("POST /sim/fault", e.setSimFault)
	mux.Handle("/", e.api(func(*call) error {
		return &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: "Not Found"}
	}))
	return mux
}

// ServeHTTP implements http.Handler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

// Run serves the engine on the listener until ctx ends, then gives requests a moment to finish and closes the rest.
// It closes the listener and returns nil after such an end.
func (e *Engine) Run(ctx context.Context, ln net.Listener) error {
	if e.config.Fault.exitsAtStart() {
		defer ln.Close()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(e.loaded)):
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

// call is one request below /v1 and the way to answer it.
type call struct {
	engine *Engine
	w      http.ResponseWriter
	r      *http.Request
	body   []byte
	fault  Fault

	out    io.Writer    // w, or what compresses into it; nil: the headers are not sent
	packed *gzip.Writer // out, when it compresses
	events int          // sent so far
}

// How a handler ends without an answer of its own.
var (
	errCut  = errors.New("cut the connection")
	errDone = errors.New("the fault ended the response")
)

// api wraps what is below /v1: record, key, readiness, faults, errors.
func (e *Engine) api(handle func(*call) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			refuseBody(w, err)
			return
		}
		done := e.seen.add(r, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		c := &call{engine: e, w: w, r: r, body: body}
		err = c.serve(handle)
		done(outcome(r.Context(), err, c.fault))
		if errors.Is(err, errCut) {
			panic(http.ErrAbortHandler) // net/http's way to close a connection inside a body
		}
	})
}

// refuseBody answers a body that could not be read to its end.
func refuseBody(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &tooLarge) {
		panic(http.ErrAbortHandler) // the client left while it was sending
	}
	(&apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError", message: "Request body too large"}).write(w)
}

// serve answers the request, or says why not.
func (c *call) serve(handle func(*call) error) error {
	err := c.admit()
	if err == nil {
		err = handle(c)
	}
	var refused *apiError
	if errors.As(err, &refused) {
		c.refuse(refused)
	}
	return err
}

// admit holds everything that may end a request before it is looked at.
func (c *call) admit() error {
	e := c.engine
	if !e.authorized(c.r) {
		return &apiError{status: http.StatusUnauthorized, message: "Unauthorized"}
	}
	if !e.ready() {
		return &apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: "The model is still being loaded."}
	}
	var err error
	if c.fault, err = e.faultOf(c.r); err != nil {
		return err
	}
	return c.misbehave()
}

// authorized compares in constant time, as one compares keys.
func (e *Engine) authorized(r *http.Request) bool {
	if e.config.APIKey == "" {
		return true
	}
	key, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer && subtle.ConstantTimeCompare([]byte(key), []byte(e.config.APIKey)) == 1
}

func (e *Engine) ready() bool { return !time.Now().Before(e.loaded) }

func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	if _, unhealthy := e.standing().find(faultUnhealthy); unhealthy || !e.ready() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// outcome is how a request ended, in a word for GET /sim/requests.
func outcome(ctx context.Context, err error, f Fault) string {
	var refused *apiError
	switch {
	case err == nil:
		return "ok"
	case ctx.Err() != nil:
		return "client left"
	case len(f.parts) > 0:
		return "fault"
	case errors.As(err, &refused):
		return "refused"
	}
	return "client left" // a write failed
}
