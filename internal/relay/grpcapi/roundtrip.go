package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// errCut is the end of a stream that has neither a result nor an error.
var errCut = errors.New("llmv1: the worker's stream ended before its result")

// RoundTrip implements http.RoundTripper. The response to a request for a stream is one of server-sent events as an engine of OpenAI's API
// would send them, otherwise a chat.completion. It comes with the worker's first chunk, so that a refusal still becomes a status. An error
// is that of a connection: no worker has said anything. The context of the request and closing the response's body cancel the call.
//
// What is left of the client's timeout is the context's deadline, or the header x-sluice-timeout-ms; the worker gets it as timeout_ms.
func (w *Workers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := read(r)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(r.URL.Path, chatPath) || r.Method != http.MethodPost {
		return respond(r, &pb.Error{Code: http.StatusNotFound, Type: openai.TypeOf(http.StatusNotFound), Name: string(openai.CodeInvalidRequest),
			Message: "The engine speaks llm.v1, which knows chats only."}), nil
	}
	q, err := ask(body)
	if err != nil {
		return respond(r, &pb.Error{Code: http.StatusBadRequest, Type: openai.TypeOf(http.StatusBadRequest), Name: string(openai.CodeInvalidRequest),
			Message: "The request is no chat."}), nil
	}
	q.start.RequestId = r.Header.Get(headers.RequestID)
	q.start.TimeoutMs = timeLeft(r)
	c, err := w.open(r, q)
	if err != nil {
		return nil, err
	}
	return c.respond(r)
}

// read reads a request's body, which may be nil.
func read(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer r.Body.Close()
	return io.ReadAll(r.Body)
}

// timeLeft is what the worker may take, in milliseconds, at least one; 0: it is not bound.
func timeLeft(r *http.Request) int32 {
	if ms, err := strconv.ParseInt(r.Header.Get(headers.Timeout), 10, 64); err == nil && ms > 0 {
		return clamp(ms)
	}
	if deadline, ok := r.Context().Deadline(); ok {
		return max(clamp(time.Until(deadline).Milliseconds()), 1)
	}
	return 0
}

// call is one call of a worker.
type call struct {
	question
	worker *worker
	stream grpc.ServerStreamingClient[pb.StreamChunk]
	ctx    context.Context
	cancel context.CancelFunc
	heard  atomic.Bool // the call's status has come from the worker
	once   sync.Once
}

func (w *Workers) open(r *http.Request, q question) (*call, error) {
	at := address{host: r.URL.Host, secure: r.URL.Scheme == "https"}
	worker, err := w.take(at)
	if err != nil {
		return nil, err
	}
	md := metadata.MD{}
	for name, values := range r.Header {
		if name = strings.ToLower(name); !between(name) && name != headers.Timeout && sendable(values) {
			md.Append(name, values...)
		}
	}
	c := &call{question: q, worker: worker}
	ctx := context.WithValue(r.Context(), heardKey{}, &c.heard)
	c.ctx, c.cancel = context.WithCancel(metadata.NewOutgoingContext(ctx, md))
	if c.stream, err = pb.NewInferenceClient(worker.conn).Stream(c.ctx, q.start); err != nil {
		err = c.outcome(err)
		c.end()
		return nil, err
	}
	return c, nil
}

// sendable says that gRPC takes the values of a header. It would fail a call over others, and they are for clients to choose.
func sendable(values []string) bool {
	for _, v := range values {
		if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return true
}

// respond waits for the first chunk, and answers.
func (c *call) respond(r *http.Request) (*http.Response, error) {
	first, err := c.recv()
	if err != nil {
		c.end()
		var told *refused
		if errors.As(err, &told) {
			return respond(r, told.cause), nil
		}
		return nil, err
	}
	body := newEvents(c, first, r.Header.Get(headers.RequestID))
	if c.streamed {
		return response(r, http.StatusOK, "text/event-stream", body), nil
	}
	defer c.end()
	whole, err := body.whole()
	var told *refused
	if errors.As(err, &told) {
		return respond(r, told.cause), nil
	}
	if err != nil {
		return nil, err
	}
	return response(r, http.StatusOK, "application/json", io.NopCloser(bytes.NewReader(whole))), nil
}

// refused is an error that the worker has told.
type refused struct{ cause *pb.Error }

// refusedBy is what the worker tells, with a status that an error of an engine may have. A worker that calls the request cancelled is at fault
// itself: nobody else has cancelled it.
func refusedBy(e *pb.Error) *refused {
	if code := e.GetCode(); code < 400 || code > 599 || code == 499 {
		e.Code = http.StatusBadGateway
	}
	if e.GetType() == "" {
		e.Type = openai.TypeOf(int(e.GetCode()))
	}
	return &refused{e}
}

// Error implements error.
func (e *refused) Error() string { return "llmv1: the worker refused: " + e.cause.GetMessage() }

// recv is the next chunk that means something. The error is refused, that of the context, or that of a connection; io.EOF only once there
// was a result.
func (c *call) recv() (*pb.StreamChunk, error) {
	chunk, err := c.stream.Recv()
	if err != nil {
		return nil, c.outcome(err)
	}
	if e := chunk.GetError(); e != nil {
		return nil, refusedBy(e)
	}
	return chunk, nil
}

// outcome is what the error of a call means.
func (c *call) outcome(err error) error {
	if errors.Is(err, io.EOF) {
		return errCut
	}
	e, told := pb.ErrorOf(err)
	switch {
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case told:
		return refusedBy(e)
	case c.bounded() && status.Code(err) == codes.DeadlineExceeded:
		return context.DeadlineExceeded // the worker's clock is ahead of ours
	case e == nil || !c.heard.Load():
		return c.worker.lost(err)
	}
	return refusedBy(e)
}

func (c *call) bounded() bool {
	_, ok := c.ctx.Deadline()
	return ok
}

// heardKey is the key of a context under which a call keeps whether its status came from the worker.
type heardKey struct{}

// trailers notes that a status has come over the wire: the statuses that grpc-go makes up when a connection fails look the same.
type trailers struct{}

var _ stats.Handler = trailers{}

// HandleRPC implements stats.Handler.
func (trailers) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); !ok {
		return
	}
	if heard, ok := ctx.Value(heardKey{}).(*atomic.Bool); ok {
		heard.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (trailers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (trailers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (trailers) HandleConn(context.Context, stats.ConnStats) {}

// end gives up what is not finished.
func (c *call) end() {
	c.once.Do(func() {
		c.cancel()
		c.worker.release()
	})
}

// respond answers with an error as an engine of OpenAI's API does.
func respond(to *http.Request, e *pb.Error) *http.Response {
	body := render(e, false)
	r := response(to, int(e.GetCode()), "application/json", io.NopCloser(bytes.NewReader(body)))
	r.ContentLength = int64(len(body))
	if e.GetRetryable() {
		r.Header.Set("Retry-After", strconv.FormatInt(max((e.GetRetryAfterMs()+999)/1000, 1), 10))
	}
	return r
}

func response(to *http.Request, code int, contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{"Content-Type": {contentType}}, Body: body, ContentLength: -1, Request: to,
	}
}
