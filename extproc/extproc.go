// Package extproc is the transport of package internal/decide over Envoy's external processing
// protocol (ext_proc, over gRPC). Package internal/gateway runs it.
//
// There is one exchange per request, with at most five messages. Envoy first sends the request's
// headers, then the body, and trailers if the request has any. Of a request with trailers and no
// body it sends no body. Before a request waits, extproc extends Envoy's message timeout. Envoy
// never sends response bodies. The trailers of a response, or the end of the exchange, say that the
// request has ended. See decide for what an exchange decides.
//
// Package internal/grpcserver carries the messages. An exchange has a goroutine only while it
// waits. wire.go reads and writes the messages.
package extproc

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Method is the path of the method that Envoy calls.
const Method = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

// Server serves Method.
type Server struct {
	*decide.Decider
	// Advertise is the IP address and port at which Envoys of other hosts reach this gateway.
	// Empty: the address to which an Envoy has connected.
	Advertise string

	// successor serves the exchanges that are not decided yet. It is nil before Retire.
	successor atomic.Pointer[grpc.ClientConnInterface]
}

// New returns a Server that has a Decider decide.
func New(d *decide.Decider) *Server { return &Server{Decider: d} }

// Open opens the exchange of a stream: either one request, or one report of a first token (see
// observer).
func (s *Server) Open(stream *grpcserver.Stream, header func(name string) string) grpcserver.Handler {
	if header(headers.Role) == headers.RoleObserver {
		return &observer{server: s, stream: stream}
	}
	e := &exchange{server: s, stream: stream, told: header(headers.Endpoint)}
	if header(headers.Role) != headers.RolePassed {
		e.pid = stream.PeerPID()
	}
	s.Decider.Open(&e.Exchange, e)
	return e
}

// exchange is one request. It implements decide.Envoy and grpcserver.Handler.
type exchange struct {
	decide.Exchange
	server *Server
	stream *grpcserver.Stream
	// told is the address of this gateway, if a predecessor has passed the exchange on.
	told string
	// pid is the process of Envoy; 0: not known.
	pid int
	// first is the message with the request's headers, for passOn. It is nil once the request is
	// decided.
	first []byte
	// passed is the exchange at the successor. It is nil if this process decides.
	passed *passed
	// halfClosed means that Envoy has ended the exchange.
	halfClosed bool
}

// Message implements grpcserver.Handler.
func (e *exchange) Message(content []byte) {
	if e.passed != nil {
		e.stream.Block() // the successor may be slow
		e.passed.send(content)
		return
	}
	m, err := parse(content)
	switch {
	case err == nil && m.kind == requestTrailers && e.Decided():
		_ = e.stream.Send(func(out []byte) []byte { return append(out, requestTrailersAnswer...) })
		return
	case e.Offered(): // it concerns a response that did not come from the relay, and needs no answer
		e.stream.Finish(codes.OK, "")
		return
	case e.server.successor.Load() != nil && !e.Decided():
		e.passOn(content)
		return
	case err != nil:
		e.stream.Finish(codes.Internal, "malformed message: "+err.Error())
		return
	}
	switch m.kind {
	case requestHeaders:
		e.headers(content, &m)
	case requestBody, requestTrailers: // trailers without a body before them
		e.body(content, &m)
	case responseTrailers:
		e.Close() // the response has ended: free the slot before Envoy has read the answer
		_ = e.stream.Send(func(out []byte) []byte { return append(out, responseTrailersAnswer...) })
	default:
		e.server.Log.Error("unexpected ext_proc message received from Envoy; check that Envoy uses the listener that Sluice generates",
			zap.Stringer("type", m.kind))
		e.stream.Finish(codes.OK, "")
	}
}

// headers answers the headers of a request.
func (e *exchange) headers(content []byte, m *message) {
	if e.first != nil || e.Decided() {
		e.stream.Finish(codes.Internal, "second headers of a request")
		return
	}
	if err := eachHeader(m.headers, e.Head().Add); err != nil {
		e.stream.Finish(codes.Internal, "malformed headers: "+err.Error())
		return
	}
	e.first = bytes.Clone(content)
	a := e.Headers(m.ended)
	_ = e.send(a) // an error means that the exchange has ended
}

// body answers the body of a request.
func (e *exchange) body(content []byte, m *message) {
	a := e.Body(m.body)
	if e.Decided() {
		e.first = nil
	}
	switch {
	case e.Moved():
		e.passOn(content)
	case a == nil || e.send(a) != nil:
		e.stream.Finish(codes.OK, "")
	}
}

func (e *exchange) send(a *decide.Answer) error {
	return e.stream.Send(func(out []byte) []byte {
		switch a.Kind {
		case decide.Reply:
			return appendReply(out, a)
		case decide.Continue:
			return appendContinue(out, a.Remove)
		}
		return appendGo(out, a)
	})
}

// HalfClose implements grpcserver.Handler.
func (e *exchange) HalfClose() {
	e.halfClosed = true
	e.stream.Finish(codes.OK, "")
}

// End implements grpcserver.Handler. The stream may have ended because Envoy has died. A successor
// gets the access log, so a retired process does not know which requests have ended before. It asks
// only for the Envoy of a stream that has broken off.
func (e *exchange) End() {
	if e.passed != nil {
		e.passed.cancel()
	}
	if e.halfClosed && e.server.Retired() {
		e.Exchange.End()
		return
	}
	e.Lose()
}

// PID implements decide.Envoy.
func (e *exchange) PID() int { return e.pid }

// Context implements decide.Envoy.
func (e *exchange) Context() context.Context { return e.stream.Context() }

// Block implements decide.Envoy: another goroutine reads the connection from now on.
func (e *exchange) Block() { e.stream.Block() }

// Claimed implements decide.Envoy. Until the claim, only this exchange can see that the client
// leaves.
//
// The exchange ends without a further message. Envoy takes this end as the processor's word that
// the processor wants no more messages. Answers that Envoy has received stay in force, and a
// message that Envoy waits for is skipped (ext_proc.cc, onGrpcClose).
func (e *exchange) Claimed() {
	e.stream.Finish(codes.OK, "")
	e.stream.Flush()
}

// Wait implements decide.Envoy. Envoy's message timeout is short, so that Envoy notices a gateway
// that hangs.
func (e *exchange) Wait(d time.Duration) {
	// A failed send means that the exchange has ended; its context then cancels the dispatch.
	if e.stream.Send(func(out []byte) []byte { return appendWait(out, d) }) == nil {
		e.stream.Flush()
	}
}

// Reply implements decide.Envoy.
func (e *exchange) Reply(a *decide.Answer) error {
	err := e.send(a)
	e.stream.Flush()
	return err
}
