package grpcapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"google.golang.org/protobuf/proto"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// errTruncated says that a stream ended with neither a result nor an error.
var errTruncated = errors.New("llmv1: the worker's stream ended before its result")

// RoundTrip implements http.RoundTripper. The response to a request for a stream is a stream of
// server-sent events, as an engine of OpenAI's API sends it. Otherwise it is a chat.completion.
// RoundTrip returns with the worker's first chunk, so that a refusal still becomes a status. An
// error is that of a connection: the worker has answered nothing. The call is cancelled by the
// context of the request and by closing the body of the response.
//
// The worker gets the time that is left as timeout_ms. It is taken from the header
// x-sluice-timeout-ms, else from the deadline of the context.
func (w *Workers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(r.URL.Path, chatPath) || r.Method != http.MethodPost {
		return errorResponse(r, errorOf(&openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound,
			Message: "The engine speaks llm.v1, which has chats only."})), nil
	}
	q, err := newWorkerRequest(body)
	if err != nil {
		return errorResponse(r, errorOf(openai.Errorf(openai.CodeInvalidRequest, "The request is no chat."))), nil
	}
	q.start.RequestId = r.Header.Get(headers.RequestID)
	q.start.TimeoutMs = timeLeft(r)
	c, err := w.open(r, q)
	if err != nil {
		return nil, err
	}
	response, err := c.respond(r)
	var told *workerError
	if errors.As(err, &told) {
		return errorResponse(r, told.cause), nil
	}
	return response, err
}

// readBody reads the body of a request, which may be nil.
func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer r.Body.Close()
	return io.ReadAll(r.Body)
}

// timeLeft returns how long the worker may take, in milliseconds, at least 1. 0: there is no limit.
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
	request        workerRequest // without start, which holds the prompt
	size           int           // of start, in bytes
	worker         *worker
	stream         grpc.ServerStreamingClient[pb.StreamChunk]
	ctx            context.Context
	cancel         context.CancelFunc
	statusReceived atomic.Bool // the status of the call has come from the worker
	once           sync.Once
}

// open begins a call.
func (w *Workers) open(r *http.Request, q workerRequest) (*call, error) {
	at := address{host: r.URL.Host, secure: r.URL.Scheme == "https"}
	worker, err := w.acquire(at)
	if err != nil {
		return nil, err
	}
	md := metadata.MD{}
	for name, values := range r.Header {
		if name = strings.ToLower(name); !isHopByHop(name) && name != headers.Timeout && sendable(name, values) {
			md.Append(name, values...)
		}
	}
	c := &call{request: q, size: proto.Size(q.start), worker: worker}
	c.request.start = nil
	ctx := context.WithValue(r.Context(), statusReceivedKey{}, &c.statusReceived)
	c.ctx, c.cancel = context.WithCancel(metadata.NewOutgoingContext(ctx, md))
	if c.stream, err = pb.NewInferenceClient(worker.conn).Stream(c.ctx, q.start); err != nil {
		err = c.outcome(err)
		c.end()
		return nil, err
	}
	return c, nil
}

// sendable reports whether gRPC accepts a header with its name in lower case. Clients choose names
// and values, and gRPC would fail the call because of other ones.
func sendable(name string, values []string) bool {
	if strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) {
		return false
	}
	for _, v := range values {
		if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return true
}

// respond waits for the first chunk and returns the response.
func (c *call) respond(r *http.Request) (*http.Response, error) {
	first, err := c.recv()
	if err != nil {
		c.end()
		return nil, err
	}
	body := newEventBody(c, first, r.Header.Get(headers.RequestID))
	if c.request.streamed {
		return newResponse(r, http.StatusOK, "text/event-stream", body), nil
	}
	defer c.end()
	whole, err := body.readWhole()
	if err != nil {
		return nil, err
	}
	return newResponse(r, http.StatusOK, "application/json", io.NopCloser(bytes.NewReader(whole))), nil
}

// workerError is an error that the worker has reported.
type workerError struct{ cause *pb.Error }

// newWorkerError returns the error that a worker has reported, with a status that an engine's error
// may have. A worker that reports a cancelled request is at fault itself, because the relay has not
// cancelled it.
func newWorkerError(e *pb.Error) *workerError {
	if code := e.GetCode(); code < 400 || code > 599 || code == 499 {
		e.Code = http.StatusBadGateway
	}
	if e.GetType() == "" {
		e.Type = openai.TypeOf(int(e.GetCode()))
	}
	if e.GetName() == "" {
		e.Name = string(openai.CodeOfStatus(int(e.GetCode())))
	}
	return &workerError{e}
}

func (e *workerError) Error() string { return "llmv1: the worker refused: " + e.cause.GetMessage() }

// recv returns the next chunk. The error is a *workerError, the error of the context, or that of
// the connection.
func (c *call) recv() (*pb.StreamChunk, error) {
	chunk, err := c.stream.Recv()
	if err != nil {
		return nil, c.outcome(err)
	}
	if e := chunk.GetError(); e != nil {
		return nil, newWorkerError(e)
	}
	return chunk, nil
}

// outcome translates an error of gRPC.
func (c *call) outcome(err error) error {
	if errors.Is(err, io.EOF) {
		return errTruncated
	}
	e, told := pb.ErrorOf(err)
	switch {
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case c.isRequestTooLarge(err):
		return newWorkerError(&pb.Error{Code: http.StatusRequestEntityTooLarge, Name: string(openai.CodeRequestTooLarge),
			Message: "The request is larger than the engine accepts."})
	case told:
		return newWorkerError(e)
	case c.hasDeadline() && status.Code(err) == codes.DeadlineExceeded:
		return context.DeadlineExceeded // the worker's clock is ahead of this machine's
	case e == nil || !c.statusReceived.Load() || isFromLibrary(err):
		return c.worker.unansweredError(err)
	}
	return newWorkerError(e)
}

// isRequestTooLarge reports whether the worker's gRPC library has refused the request because of
// its size. Go and C++ say it in these words, and the code alone would mean that the worker is
// busy.
func (c *call) isRequestTooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted &&
		strings.Contains(status.Convert(err).Message(), fmt.Sprintf("eceived message larger than max (%d vs. ", c.size))
}

// isFromLibrary reports whether grpc-go has made the status of an error, for a message that cannot
// be decoded or is too large. The worker's own status may have come by then. The text of such a
// status tells a client nothing, and its code, ResourceExhausted, would mean that the worker is
// busy.
func isFromLibrary(err error) bool {
	return strings.HasPrefix(status.Convert(err).Message(), "grpc: ")
}

func (c *call) hasDeadline() bool {
	_, ok := c.ctx.Deadline()
	return ok
}

// statusReceivedKey is the key of a context for call.statusReceived.
type statusReceivedKey struct{}

// trailerHandler records that a status has come over the wire. A status that grpc-go makes up when
// a connection fails looks the same.
type trailerHandler struct{}

var _ stats.Handler = trailerHandler{}

func (trailerHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); !ok {
		return
	}
	if heard, ok := ctx.Value(statusReceivedKey{}).(*atomic.Bool); ok {
		heard.Store(true)
	}
}

func (trailerHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (trailerHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (trailerHandler) HandleConn(context.Context, stats.ConnStats) {}

// end cancels the call and releases the worker. A second call of end has no effect.
func (c *call) end() {
	c.once.Do(func() {
		c.cancel()
		c.worker.release()
	})
}

// errorResponse returns a response with an error, as an engine of OpenAI's API sends it.
func errorResponse(to *http.Request, e *pb.Error) *http.Response {
	body := errorJSON(e, false)
	r := newResponse(to, int(e.GetCode()), "application/json", io.NopCloser(bytes.NewReader(body)))
	r.ContentLength = int64(len(body))
	if e.GetRetryable() {
		r.Header.Set("Retry-After", strconv.FormatInt(max((e.GetRetryAfterMs()+999)/1000, 1), 10))
	}
	return r
}

func newResponse(to *http.Request, code int, contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{"Content-Type": {contentType}}, Body: body, ContentLength: -1, Request: to,
	}
}
