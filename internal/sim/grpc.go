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

// gRPC over HTTP/2 is little for one method whose answer is a stream: a length before each message and a status in the trailers. It is
// written here, on net/http, and not left to grpc-go's server, because the faults have to break it: a reset inside a message, an end without
// a status. The protocol is that of doc/PROTOCOL-HTTP2.md of the grpc project. Messages are not compressed. The faults huge and gzip
// are for HTTP alone, and events are chunks.

// grpcConcurrency is how many calls one connection may have. More than the engine has slots: its queue is where calls are to wait.
const grpcConcurrency = 10000

// protocols are those of Run's server: HTTP/1.1, and HTTP/2 in the clear for gRPC.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// grpc wraps what is called by gRPC: its deadline becomes the request's.
func (e *Engine) grpc(handle func(*call) error) http.Handler {
	inner := e.api(func(c *call) error { return c.ended(handle(c)) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isGRPC(r) {
			(&apiError{status: http.StatusUnsupportedMediaType, kind: "BadRequestError", message: "This path is for gRPC."}).write(w)
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

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// grpcTimeout reads a deadline: up to eight digits and a unit.
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
		n = min(n, 1<<20) // a century: more does not fit into a Duration
	}
	return time.Duration(n) * unit, ok
}

// refuse answers with an error, in the way of the request's protocol.
func (c *call) refuse(e *apiError) {
	if !isGRPC(c.r) {
		e.write(c.w)
		return
	}
	c.status(e.chunk().Status())
}

// ended tells a client whose deadline has passed; it may not have noticed itself yet.
func (c *call) ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		c.status(status.New(codes.DeadlineExceeded, "the deadline has passed"))
	}
	return err
}

// chunk is the error as it is sent in a stream.
func (e *apiError) chunk() *llmv1.Error {
	wait := e.status == http.StatusServiceUnavailable || e.status == http.StatusTooManyRequests
	x := &llmv1.Error{Code: int32(e.status), Message: e.message, Type: e.kind, Param: e.param, Retryable: wait}
	if wait {
		x.RetryAfterMs = 1000
	}
	return x
}

// receive reads the only message of a request.
func (c *call) receive(into proto.Message) error {
	const prefix = 5
	if len(c.body) < prefix || uint64(binary.BigEndian.Uint32(c.body[1:])) != uint64(len(c.body)-prefix) {
		return badRequest("", "A call is one whole message.")
	}
	if c.body[0] != 0 {
		return badRequest("", "Compressed messages are not taken.")
	}
	if err := proto.Unmarshal(c.body[prefix:], into); err != nil {
		return badRequest("", "The message cannot be read: %v", err)
	}
	return nil
}

// accept sends the headers of the stream.
func (c *call) accept() error {
	for _, k := range []kind{faultHuge, faultGzip} {
		if _, ok := c.fault.find(k); ok {
			return badRequest(FaultHeader, "The fault %s is for HTTP.", k)
		}
	}
	c.begin("application/grpc")
	return c.flush()
}

// say sends one message of the stream.
func (c *call) say(m *llmv1.StreamChunk) error {
	if _, ok := c.fault.at(faultError, c.events); ok {
		return c.failStream(m.GetRequestId())
	}
	message, err := frame(m)
	if err != nil {
		return err
	}
	return c.event(message)
}

// failStream ends the stream with an error that it also tells.
func (c *call) failStream(id string) error {
	e := (&apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "simulated fault"}).chunk()
	message, err := frame(&llmv1.StreamChunk{RequestId: id, Payload: &llmv1.StreamChunk_Error{Error: e}})
	if err != nil {
		return err
	}
	if _, err := c.out.Write(message); err != nil {
		return err
	}
	c.status(e.Status())
	return errDone
}

// frame is a message with its length in front.
func frame(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 5, 64), m)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5))
	return b, nil
}

// status ends the call: in the trailers of a stream that has begun, else in the headers, which are then all there is.
func (c *call) status(s *status.Status) {
	h, prefix := c.w.Header(), http.TrailerPrefix
	if c.out == nil {
		h.Set("Content-Type", "application/grpc")
		prefix = ""
	}
	h.Set(prefix+"Grpc-Status", strconv.Itoa(int(s.Code())))
	if s.Message() != "" {
		h.Set(prefix+"Grpc-Message", percentEncode(s.Message()))
	}
	if len(s.Proto().GetDetails()) == 0 {
		return
	}
	if details, err := proto.Marshal(s.Proto()); err == nil {
		h.Set(prefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
}

// percentEncode writes a status message as its header wants it.
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
