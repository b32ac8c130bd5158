// Package extproc is the transport of package internal/decide over Envoy's external processing
// protocol (ext_proc, over gRPC). Package internal/gateway runs it.
//
// There is one exchange per request, with at most four messages. Envoy first sends the request's
// headers, then the body. Before a request waits, extproc extends Envoy's message timeout. Envoy
// never sends response bodies. The trailers of a response, or the end of the exchange, say that the
// request has ended. See decide for what an exchange decides.
package extproc

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/internal/decide"
)

// Server implements envoy.service.ext_proc.v3.ExternalProcessor.
type Server struct {
	extproc.UnimplementedExternalProcessorServer
	*decide.Decider
	// Advertise is the IP address and port at which Envoys of other hosts reach this gateway.
	// Empty: the address to which an Envoy has connected.
	Advertise string

	metadata dynamicMetadata
	// successor serves the exchanges that are not decided yet. It is nil before Retire.
	successor atomic.Pointer[extproc.ExternalProcessorClient]
}

// New returns a Server that has a Decider decide.
func New(d *decide.Decider) *Server { return &Server{Decider: d} }

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { extproc.RegisterExternalProcessorServer(r, s) }

// Process serves one exchange of Envoy: either one request, or one report of a first token (see
// observe).
func (s *Server) Process(envoy extproc.ExternalProcessor_ProcessServer) error {
	if observing(envoy.Context()) {
		return s.observe(envoy)
	}
	e := &exchange{server: s, envoy: envoy, claimed: make(chan struct{})}
	e.Exchange = s.Open(e)
	defer e.End()
	for {
		in, err := envoy.Recv()
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		var out *extproc.ProcessingResponse
		moved := s.successor.Load() != nil && !e.Decided()
		if !moved {
			out = e.answer(in)
			moved = e.Moved()
		}
		switch {
		case moved:
			return e.passOn(in)
		case out == nil:
			return nil
		}
		if err := e.send(out); err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if e.Offered() {
			return e.awaitClaim()
		}
	}
}

// ignoreOrdinaryEnd returns nil if err is an ordinary end of an exchange: the end of the stream or
// a cancellation by Envoy. It returns any other error unchanged.
func ignoreOrdinaryEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// exchange is one request. It implements decide.Envoy.
type exchange struct {
	*decide.Exchange
	server *Server
	envoy  extproc.ExternalProcessor_ProcessServer
	// sending is held while a message is sent, since other goroutines answer a late body and cancel
	// the request.
	sending sync.Mutex
	// claimed is closed when the relay has claimed the request.
	claimed chan struct{}
	// first is the message with the request's headers, for passOn.
	first *extproc.ProcessingRequest
}

// answer returns the answer to one message. nil ends the exchange.
func (e *exchange) answer(in *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	switch m := in.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		e.first = in
		for _, h := range m.RequestHeaders.GetHeaders().GetHeaders() {
			value := h.GetRawValue()
			if len(value) == 0 {
				value = []byte(h.GetValue())
			}
			e.Head().Add(h.GetKey(), value)
		}
		return e.response(e.Headers(m.RequestHeaders.GetEndOfStream()))
	case *extproc.ProcessingRequest_RequestBody:
		out := e.response(e.Body(m.RequestBody.GetBody()))
		if e.Decided() {
			e.first = nil
		}
		return out
	case *extproc.ProcessingRequest_ResponseTrailers:
		e.Close() // the response has ended: free the slot before Envoy has read the answer
		return continueTrailers
	}
	e.server.Log.Error("unexpected ext_proc message received from Envoy; check that Envoy uses the listener that Sluice generates",
		zap.String("type", messageName(in)))
	return nil
}

// Context implements decide.Envoy.
func (e *exchange) Context() context.Context { return e.envoy.Context() }

// Block implements decide.Envoy. The goroutine serves this request alone.
func (e *exchange) Block() {}

// Claimed implements decide.Envoy.
func (e *exchange) Claimed() { close(e.claimed) }

// Wait implements decide.Envoy. Envoy's message timeout is short, so that Envoy notices a gateway
// that hangs.
func (e *exchange) Wait(d time.Duration) {
	// A failed send means that the exchange has ended; its context then cancels the dispatch.
	_ = e.send(overrideTimeout(d))
}

// Reply implements decide.Envoy.
func (e *exchange) Reply(a *decide.Answer) error { return e.send(immediate(a)) }

// send sends a message to Envoy.
func (e *exchange) send(m *extproc.ProcessingResponse) error {
	e.sending.Lock()
	defer e.sending.Unlock()
	return e.envoy.Send(m)
}

// awaitClaim waits until the relay has claimed the request. Until the claim, only this exchange can
// see that the client leaves.
//
// The exchange then ends without a further message. Envoy takes this end as the processor's word
// that the processor wants no more messages. Answers that Envoy has received stay in force, and a
// message that Envoy waits for is skipped (ext_proc.cc, onGrpcClose).
func (e *exchange) awaitClaim() error {
	left := make(chan error, 1)
	go func() { // Recv returns at the latest when Process has returned
		_, err := e.envoy.Recv()
		left <- err
	}()
	select {
	case <-e.claimed:
		return nil
	case err := <-left: // a message here concerns a response that did not come from the relay, and needs no answer
		return ignoreOrdinaryEnd(err)
	}
}
