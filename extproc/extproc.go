// Package extproc implements Envoy's external processing protocol (ext_proc): it authenticates
// every inference request, decides where the request goes, and holds the request's ticket until the
// response has ended. Package internal/gateway runs it.
//
// There is one exchange per request, with at most four messages. Envoy first sends the request's
// headers, which carry the API key. extproc refuses a caller without a valid key before Envoy reads
// the body. Envoy then sends the body, which names the model. extproc scans the body in one pass
// and has the request dispatched. Dispatch may take long, so extproc first extends Envoy's message
// timeout. The answer names the Envoy cluster and the ordered list of replicas. Envoy never sends
// response bodies to extproc.
//
// The exchange of a native request stays open until the response has ended. Its end releases the
// ticket, and also reports within milliseconds that a client has left. The exchange of a managed
// request ends when the relay has claimed the request. From then on the relay holds the ticket and
// sees the client leave. So no exchange stays open for a managed stream, which may last for hours.
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

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Config is the configuration of a Server.
type Config struct {
	Authenticator *authz.Authenticator
	Dispatcher    *dispatch.Dispatcher
	// Handoff passes requests that Envoy alone cannot serve to the relay. nil means that there is
	// no relay, and every request is native.
	Handoff *dispatch.Handoff
	// Trace decides whether a native request is traced, from the traceparent header of the client.
	// It returns the traceparent header for the engine. nil means that no native request is traced.
	Trace func(client string) (own string, traced bool)
	// MaxBody is the greatest request body in bytes. The server refuses a request that declares a
	// longer body before Envoy reads the body. 0 means 32 MiB. Envoy enforces the same limit for
	// requests that do not declare their length.
	MaxBody int64
	// MaxHeaders are the limits of a request's headers. The zero value means no limits. Envoy's own
	// limits must be higher by what Envoy and this server add.
	MaxHeaders headers.Limits
	// Uploads bound the bodies that Envoy is receiving.
	Uploads UploadLimits
	// MaxOpen returns the greatest number of requests that wait or run at engines. Each may take a
	// socket of Envoy, which ends itself when it cannot open one. 0 means no limit; nil as well.
	MaxOpen func() int
	// Advertise is the IP address and port at which Envoys of other hosts reach this gateway.
	// Empty: the address to which an Envoy has connected.
	Advertise string
	// Hold is the longest time that a request may wait in an exchange. Envoy's max_message_timeout
	// must not be shorter. 0 means 1 hour, the longest that Envoy allows.
	Hold time.Duration
	// Requests stores the records of the requests. nil means that the server keeps a store of its
	// own, which nobody else reads.
	Requests *request.Store
	Log      *zap.Logger
}

const (
	defaultMaxBody = 32 << 20
	// defaultHold is the longest time that Envoy allows. It is longer than the longest wait that
	// the configuration file may set.
	defaultHold = time.Hour
)

// Server implements envoy.service.ext_proc.v3.ExternalProcessor.
type Server struct {
	extproc.UnimplementedExternalProcessorServer
	Config
	metadata dynamicMetadata
	uploads  *uploads
	// open counts the exchanges of requests.
	open atomic.Int64
	// successor serves the exchanges that are not decided yet. It is nil before Retire.
	successor atomic.Pointer[extproc.ExternalProcessorClient]
}

// New returns a Server with the defaults of Config filled in.
func New(c Config) *Server {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.Hold == 0 {
		c.Hold = defaultHold
	}
	if c.Requests == nil {
		c.Requests = request.NewStore(1) // the observer finds the tickets of running requests in it
	}
	return &Server{Config: c, uploads: newUploads(c.Uploads, c.MaxBody)}
}

// UploadStats describes the bodies that Envoy is receiving.
func (s *Server) UploadStats() UploadStats { return s.uploads.status() }

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { extproc.RegisterExternalProcessorServer(r, s) }

// Process serves one exchange of Envoy: either one request, or one report of a first token (see
// observe).
func (s *Server) Process(envoy extproc.ExternalProcessor_ProcessServer) error {
	if observing(envoy.Context()) {
		return s.observe(envoy)
	}
	s.open.Add(1)
	defer s.open.Add(-1)
	x := exchange{server: s, envoy: envoy}
	defer x.finish()
	for {
		in, err := envoy.Recv()
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		var out *extproc.ProcessingResponse
		if x.moved = s.successor.Load() != nil && !x.decided; !x.moved {
			out = x.answer(in)
		}
		switch {
		case x.moved:
			return x.passOn(in)
		case out == nil:
			return nil
		}
		if err := x.send(out); err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if x.claimed != nil {
			return x.awaitClaim()
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

// exchange is the state of one request.
type exchange struct {
	server *Server
	envoy  extproc.ExternalProcessor_ProcessServer
	// sending is held while a message is sent, since other goroutines answer a late body and cancel
	// the request. It guards finished (nothing may be sent any more) and cancelled.
	sending             sync.Mutex
	finished, cancelled bool

	head     requestHead
	tenant   *authz.Tenant
	priority admission.Priority
	// received is when the headers arrived, scanned when the body had been scanned.
	received, scanned time.Time
	// upload is the body while Envoy receives it. It is in uploads while uploading is true.
	upload    upload
	uploading bool
	// token is the token of the request's offer to the relay. It is empty if the request was not
	// offered. claimed is closed when the relay has claimed the request.
	token   string
	claimed <-chan struct{}
	// record is created when the headers have been accepted. It is nil before, and after close.
	record *request.Record
	fault  *openai.Error
	// first is the message with the request's headers until the request is decided, for passOn.
	// moved says that the successor serves the exchange.
	first          *extproc.ProcessingRequest
	decided, moved bool
}

// answer returns the answer to one message. nil ends the exchange.
func (x *exchange) answer(in *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	switch m := in.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		x.first = in
		return x.headers(m.RequestHeaders)
	case *extproc.ProcessingRequest_RequestBody:
		return x.body(m.RequestBody.GetBody())
	case *extproc.ProcessingRequest_ResponseTrailers:
		x.close() // the response has ended: free the slot before Envoy has read the answer
		return continueTrailers
	}
	x.server.Log.Error("unexpected ext_proc message received from Envoy; check that Envoy uses the listener that Sluice generates",
		zap.String("type", messageName(in)))
	return nil
}

// headers authenticates the caller and checks what the headers of the request say.
func (x *exchange) headers(h *extproc.HttpHeaders) *extproc.ProcessingResponse {
	x.received = time.Now()
	x.head.trusted = x.server.Authenticator.Header()
	x.head.read(h.GetHeaders())
	if why := x.server.MaxHeaders.Exceeded(len(h.GetHeaders().GetHeaders()), x.head.bytes); why != "" {
		return x.refuse(&openai.Error{Code: openai.CodeHeadersTooLarge, Message: why})
	}
	if fault := x.server.checkOpen(); fault != nil {
		return x.refuse(fault)
	}
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
	x.record = x.server.Requests.Begin(request.Arrival{ID: x.head.id, Method: x.head.method, Path: x.head.path, Tenant: tenant.Name, Key: tenant.Key, Canceller: x})
	if h.GetEndOfStream() {
		return x.refuse(openai.Errorf(openai.CodeInvalidRequest, "The request has no body."))
	}
	if fault := x.beginUpload(); fault != nil {
		return x.refuse(fault)
	}
	return continueWithout(x.head.trusted)
}

// checkOpen refuses a request if as many are open as Envoy has sockets for.
func (s *Server) checkOpen() *openai.Error {
	if s.MaxOpen == nil {
		return nil
	}
	if most := s.MaxOpen(); most > 0 && s.open.Load() > int64(most) {
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway carries %d requests, as many as its limit of open files allows.", most)
	}
	return nil
}

// body scans the body of the request and has the request dispatched.
func (x *exchange) body(body []byte) *extproc.ProcessingResponse {
	if x.record == nil || !x.scanned.IsZero() {
		return nil // Envoy sends the headers first and one body: this is not Sluice's Envoy
	}
	if !x.endUpload() {
		return nil
	}
	r := &x.head
	scan, fault := openai.Scan(r.endpoint, r.contentType, body)
	if fault == nil {
		fault = r.mergeOptions(&scan)
	}
	if fault == nil {
		fault = x.server.Dispatcher.SetModel(&scan, x.tenant)
	}
	if fault != nil {
		return x.refuse(fault)
	}
	x.record.SetBody(scan.Model, scan.RequestID, scan.Stream, len(body))
	x.scanned = time.Now()
	return x.decide(&scan, body)
}

// sendNative returns the answer with which Envoy sends the request to the replica of its ticket.
func (x *exchange) sendNative(scan *openai.Request, body []byte, t *dispatch.Ticket) *extproc.ProcessingResponse {
	waited := time.Since(x.scanned)
	x.record.SetNative(t, t.Model, t.Replica(), waited)
	x.record.SetPrediction(t.Prediction())
	answer := nativeAnswer(t, scan, body, departure{waited, x.traceparent(), x.head.appendPath(nil)})
	answer.DynamicMetadata = x.server.metadata.of(x.tenant, t)
	return answer
}

// traceparent returns the traceparent header for the engine. It is empty if the request is not
// traced; Envoy then passes on the header of the client, if there is one.
func (x *exchange) traceparent() string {
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

// priorityOf returns the priority that the client asked for by name, or the tenant's default. The
// error says that the tenant may not use it.
func priorityOf(tenant *authz.Tenant, asked string) (admission.Priority, *openai.Error) {
	name, fault := tenant.PriorityOf(asked)
	if fault != nil {
		return 0, fault
	}
	return dispatch.PriorityOf(name), nil
}

// extendTimeout asks Envoy to wait for the answer as long as the request may be held. Otherwise a
// held request would fail after the message timeout. That timeout is short, so that Envoy notices a
// Sluice that hangs.
func (x *exchange) extendTimeout() {
	// A failed send means that the exchange has ended; its context then cancels the dispatch.
	_ = x.send(overrideTimeout(x.server.Hold))
}

// send sends a message to Envoy.
func (x *exchange) send(m *extproc.ProcessingResponse) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	return x.envoy.Send(m)
}

// refuse returns the answer with which Envoy sends the error e to the client.
func (x *exchange) refuse(e *openai.Error) *extproc.ProcessingResponse {
	x.fault = e
	return immediate(e, x.head.isOfMessages())
}

// close closes the record of the request, which releases its ticket, unless the relay has claimed
// the request. Further calls do nothing.
func (x *exchange) close() {
	x.endUpload()
	if x.record == nil {
		return
	}
	if x.token == "" || x.server.Handoff.Cancel(x.token) {
		x.record.Close(x.fault)
	} // else the relay closes the record (Offer.Done)
	x.record = nil
}
