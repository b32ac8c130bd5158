package sim

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// This file implements the server side of gRPC on net/http, for one method that returns a stream.
// gRPC has a length before each message, and a status in the trailers (doc/PROTOCOL-HTTP2.md of the
// grpc project). It does not use the server of grpc-go, because the faults must break the protocol:
// a reset inside a message, an end without a status. Messages are not compressed. The faults huge
// and gzip are for HTTP only. Each event is one StreamChunk.

// grpcConcurrency is the number of concurrent calls of one connection. It is larger than the number
// of slots, so that calls wait in the engine's queue.
const grpcConcurrency = 10000

// protocols returns the protocols of the server of Run: HTTP/1.1, and HTTP/2 without TLS for gRPC.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// handleGRPC wraps a handler of a gRPC method. The deadline of the call becomes the deadline of the
// request.
func (e *Engine) handleGRPC(handle func(*handler) error) http.Handler {
	inner := e.handle(func(c *handler) error { return c.reportDeadline(handle(c)) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isGRPC(r) {
			(&apiError{status: http.StatusUnsupportedMediaType, kind: "BadRequestError", message: "This path is for gRPC."}).writeTo(w)
			return
		}
		if d, ok := grpcTimeout(r.Header.Get("Grpc-Timeout")); ok {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			r = r.WithContext(ctx)
		}
		inner.ServeHTTP(w, r)
	})
}

// isGRPC tells whether the request is a gRPC call.
func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// grpcTimeout parses the header grpc-timeout: up to eight digits and a unit.
func grpcTimeout(text string) (time.Duration, bool) {
	if text == "" || len(text) > 9 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil {
		return 0, false
	}
	units := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}
	unit, ok := units[text[len(text)-1]]
	if ok && unit == time.Hour {
		n = min(n, 1<<20) // about a century, as a Duration cannot hold more
	}
	return time.Duration(n) * unit, ok
}

// writeError answers with an error, in the form of the request's protocol.
func (h *handler) writeError(e *apiError) {
	if !isGRPC(h.r) {
		e.ofMessages = strings.HasPrefix(h.r.URL.Path, messagesPath)
		e.writeTo(h.w)
		return
	}
	h.setStatus(e.chunk().Status())
}

// reportDeadline sends the status of a call whose deadline has passed. The client may not have
// noticed the deadline yet.
func (h *handler) reportDeadline(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		h.setStatus(status.New(codes.DeadlineExceeded, "the deadline has passed"))
	}
	return err
}

// chunk returns the error in the form that a stream contains.
func (e *apiError) chunk() *llmv1.Error {
	wait := e.status == http.StatusServiceUnavailable || e.status == http.StatusTooManyRequests
	x := &llmv1.Error{Code: int32(e.status), Message: e.message, Type: e.kind, Param: e.param, Retryable: wait}
	if wait {
		x.RetryAfterMs = 1000
	}
	return x
}

// decodeMessage parses the only message of a call.
func (h *handler) decodeMessage(into proto.Message) error {
	const prefix = 5
	if len(h.requestBody) < prefix || uint64(binary.BigEndian.Uint32(h.requestBody[1:])) != uint64(len(h.requestBody)-prefix) {
		return badRequest("", "The body must be one complete message.")
	}
	if h.requestBody[0] != 0 {
		return badRequest("", "Compressed messages are not supported.")
	}
	if err := proto.Unmarshal(h.requestBody[prefix:], into); err != nil {
		return badRequest("", "The message cannot be parsed: %v", err)
	}
	return nil
}

// startGRPC sends the headers of the stream.
func (h *handler) startGRPC() error {
	for _, k := range []faultKind{faultHuge, faultGzip} {
		if h.fault.has(k) {
			return badRequest(FaultHeader, "The fault %s is for HTTP only.", k)
		}
	}
	h.writeHeaders("application/grpc")
	return h.flush()
}

func (h *handler) sendChunk(m *llmv1.StreamChunk) error {
	if h.fault.at(faultError, h.eventCount) {
		return h.sendErrorChunk(m.GetRequestId())
	}
	message, err := frame(m)
	if err != nil {
		return err
	}
	return h.sendEvent(message)
}

// sendErrorChunk ends the stream with an error, as a message and as the status.
func (h *handler) sendErrorChunk(id string) error {
	e := (&apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "simulated fault"}).chunk()
	message, err := frame(&llmv1.StreamChunk{RequestId: id, Payload: &llmv1.StreamChunk_Error{Error: e}})
	if err != nil {
		return err
	}
	if _, err := h.body.Write(message); err != nil {
		return err
	}
	h.setStatus(e.Status())
	return errResponseEnded
}

// frame returns a message with its length prefix.
func frame(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 5, 64), m)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5))
	return b, nil
}

// setStatus sets the status of the call: in the trailers if the headers are sent, else in the
// headers, which then are the whole response.
func (h *handler) setStatus(s *status.Status) {
	header, prefix := h.w.Header(), http.TrailerPrefix
	if h.body == nil {
		header.Set("Content-Type", "application/grpc")
		prefix = ""
	}
	header.Set(prefix+"Grpc-Status", strconv.Itoa(int(s.Code())))
	if s.Message() != "" {
		header.Set(prefix+"Grpc-Message", percentEncode(s.Message()))
	}
	if len(s.Proto().GetDetails()) == 0 {
		return
	}
	if details, err := proto.Marshal(s.Proto()); err == nil {
		header.Set(prefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
}

// percentEncode encodes a status message for its header.
func percentEncode(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
