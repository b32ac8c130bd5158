// Package extproc speaks Envoy's external processing protocol: it learns of every inference
// request, says whether and where the request goes, and holds its ticket until the response has
// ended. Package internal/gateway runs it.
//
// There is one exchange per request, of four messages at most. The request's headers bring the key:
// a caller without a good one is answered before a body is read. The body brings the model: extproc
// reads it in one pass and has it dispatched, which may take a while, so extproc extends Envoy's
// message timeout first. The answer names the cluster and the ordered list of replicas. Response
// bodies never come here. The exchange stays open until the response has ended; its end frees the
// ticket, and also tells within milliseconds that a client has left. The exchange of a request that
// goes to the relay ends when the relay has claimed the request: the relay then holds the ticket
// and sees the client leave, and a stream may last for hours.
package extproc

import (
	"context"
	"errors"
	"io"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Config is what a Server works with.
type Config struct {
	Authenticator *authz.Authenticator
	Dispatcher    *dispatch.Dispatcher
	// Handoff is how the relay gets what Envoy alone cannot carry. nil: there is no relay, and
	// every request is native.
	Handoff *dispatch.Handoff
	// Trace settles whether a request that goes to its replica at once is traced, by the
	// traceparent header of its client's, and gives the one that the engine is to get. nil: none
	// is.
	Trace func(client string) (own string, traced bool)
	// MaxBody in bytes; a request that declares more is refused before it is read. 0 means 32 MiB.
	// Envoy holds the same bound for requests that do not declare their length.
	MaxBody int64
	// Hold is the longest a request may wait here; Envoy's max_message_timeout must not be shorter.
	// 0 means 1 hour, the longest that Envoy allows.
	Hold time.Duration
	// Requests has the records of the requests; nil: none are made.
	Requests *request.Store
	Log      *zap.Logger
}

const (
	defaultMaxBody = 32 << 20
	// defaultHold is the longest that Envoy allows, and beyond the longest wait that a file may ask
	// for.
	defaultHold = time.Hour
)

// Server implements envoy.service.ext_proc.v3.ExternalProcessor.
type Server struct {
	extproc.UnimplementedExternalProcessorServer
	Config
	metadata dynamicMetadata
}

// New returns a Server.
func New(c Config) *Server {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.Hold == 0 {
		c.Hold = defaultHold
	}
	if c.Requests == nil {
		c.Requests = request.NewStore(1) // it finds the tickets of the requests that run
	}
	return &Server{Config: c}
}

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { extproc.RegisterExternalProcessorServer(r, s) }

// Process is one request, or the first token of one.
func (s *Server) Process(envoy extproc.ExternalProcessor_ProcessServer) error {
	if observing(envoy.Context()) {
		return s.observe(envoy)
	}
	x := exchange{server: s, envoy: envoy}
	defer x.end()
	for {
		in, err := envoy.Recv()
		if err != nil {
			return ended(err)
		}
		out := x.answer(in)
		if out == nil {
			return nil
		}
		if err := envoy.Send(out); err != nil {
			return ended(err)
		}
		if x.claimed != nil {
			return x.awaitClaim()
		}
	}
}

// ended tells the ordinary ends of an exchange from faults.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// exchange is the state of one request.
type exchange struct {
	server *Server
	envoy  extproc.ExternalProcessor_ProcessServer

	head     requestHead
	tenant   *authz.Tenant
	priority admission.Priority
	// received is when the headers came, understood when the body had been read
	received, understood time.Time
	// token is that of the request's offer to the relay; empty: the request was not offered.
	// claimed is closed when the relay has claimed the request.
	token   string
	claimed <-chan struct{}
	// record is made when the body has been understood. It is nil before, and once the exchange has
	// ended, or has left it to the relay.
	record *request.Record
	fault  *openai.Error
}

// answer handles one message; nil ends the exchange.
func (x *exchange) answer(in *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	switch m := in.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		return x.headers(m.RequestHeaders)
	case *extproc.ProcessingRequest_RequestBody:
		return x.body(m.RequestBody.GetBody())
	case *extproc.ProcessingRequest_ResponseTrailers:
		x.end() // the response is over: free the slot before Envoy has even read our answer
		return continueTrailers
	}
	x.server.Log.Error("Envoy sent a message that it was not configured to send; is it using Sluice's own listener?",
		zap.String("type", messageName(in)))
	return nil
}

func (x *exchange) headers(h *extproc.HttpHeaders) *extproc.ProcessingResponse {
	x.received = time.Now()
	x.head.read(h.GetHeaders())
	tenant, fault := x.server.Authenticator.Authenticate(x.head.credentials)
	if fault != nil {
		return x.refuse(fault)
	}
	if fault := x.head.check(x.server.MaxBody); fault != nil {
		return x.refuse(fault)
	}
	if x.priority, fault = priorityOf(tenant, x.head.priority); fault != nil {
		return x.refuse(fault)
	}
	x.tenant = tenant
	if h.GetEndOfStream() {
		return x.refuse(openai.Errorf(openai.CodeInvalidRequest, "The request has no body."))
	}
	return continueHeaders
}

func (x *exchange) body(body []byte) *extproc.ProcessingResponse {
	if x.tenant == nil || x.record != nil {
		return nil // no headers came first, or two bodies did: not our Envoy
	}
	r := &x.head
	scan, fault := openai.Scan(r.endpoint, r.contentType, body)
	if fault == nil {
		fault = r.mergeOptions(&scan)
	}
	if fault != nil {
		return x.refuse(fault)
	}
	x.record = x.server.Requests.Begin(request.Arrival{
		ID: r.id, Method: r.method, Path: r.path, Tenant: x.tenant.Name, Model: scan.Model, Stream: scan.Stream, Bytes: len(body),
	})
	x.understood = time.Now()
	return x.decide(&scan, body)
}

// native lets the request go to its replica with its ticket.
func (x *exchange) native(scan *openai.Request, body []byte, t *dispatch.Ticket) *extproc.ProcessingResponse {
	waited := time.Since(x.understood)
	x.record.SetNative(t, t.Model, t.Replica(), waited)
	answer := decided(t, scan, body, leaving{waited, x.traced()})
	answer.DynamicMetadata = x.server.metadata.of(x.tenant.Name, t)
	return answer
}

// traced is the traceparent header that the engine is to get; empty: the client's own, if there is
// one.
func (x *exchange) traced() string {
	if x.server.Trace == nil {
		return ""
	}
	own, traced := x.server.Trace(x.head.traceparent)
	if !traced {
		return ""
	}
	x.record.SetTrace(own, x.head.traceparent)
	return own
}

func priorityOf(tenant *authz.Tenant, asked string) (admission.Priority, *openai.Error) {
	name, fault := tenant.PriorityOf(asked)
	if fault != nil {
		return 0, fault
	}
	return dispatch.PriorityOf(name), nil
}

// stretch makes Envoy wait for us as long as the request may be held; without it a held request
// would fail after the message timeout, which is short so that a hung Sluice is noticed.
func (x *exchange) stretch() {
	// A failed send means that the exchange is over; its context tells the dispatcher so.
	_ = x.envoy.Send(stretched(x.server.Hold))
}

// refuse answers the client in Envoy's stead.
func (x *exchange) refuse(e *openai.Error) *extproc.ProcessingResponse {
	x.fault = e
	return immediate(e)
}

// end closes the record of the request, which releases its ticket, unless the relay has claimed the
// request. It may be called twice.
func (x *exchange) end() {
	if x.record == nil {
		return
	}
	if x.token == "" || x.server.Handoff.Cancel(x.token) {
		x.record.Close(x.fault)
	} // else the relay says when it is over
	x.record = nil
}
