package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// remoteCancelTimeout is how long a remote gateway has to accept that a call is cancelled.
const remoteCancelTimeout = 5 * time.Second

// forwardRequest has the remote gateway owner answer an HTTP request whose body was read already.
func (r *Relay) forwardRequest(w http.ResponseWriter, req *http.Request, c *Call, owner string) {
	response := &forwardedResponse{timedWriter: r.timed(w)}
	if fault := r.config.Peers.Forward(response, setCall(req.Clone(req.Context()), c), owner); fault != nil {
		r.refuse(c, r.newHTTPSink(w, c), Result{Fault: fault})
	} else if c.Entry != nil {
		c.Entry.SetOutcome(response.result())
	}
}

// forwardedResponse is a response that a remote gateway writes to a client of this one. It notices
// an error that ends a stream, because this gateway has the record of the request.
type forwardedResponse struct {
	*timedWriter
	isStream bool
	scanner  sse.Scanner
	tracker  sse.Tracker
	// reported is the error that an event has reported. nil: none has.
	reported *openai.Error
}

func (f *forwardedResponse) WriteHeader(status int) {
	f.isStream = mediaType(f.Header()) == "text/event-stream"
	f.timedWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. The forwarder calls WriteHeader before.
func (f *forwardedResponse) Write(b []byte) (int, error) {
	if f.isStream {
		f.scanner.Feed(b)
		for f.scanner.Next() {
			if e := f.scanner.Event(); f.tracker.See(e).Error {
				f.reported = parseError(e.Data)
			}
		}
	}
	return f.timedWriter.Write(b)
}

// result returns how the response has ended.
func (f *forwardedResponse) result() Result {
	if f.reported == nil {
		return Result{}
	}
	return Result{Fault: f.reported, Told: true, Cause: causeOfReported(f.reported.Code)}
}

// remote is what carries a call over HTTP: a remote gateway, or the successor of this process.
type remote struct {
	forward Forwarder
	// records says that it has a record of the call, which shows the usage.
	records bool
	// trace is ended when the call is over. nil: there is none to end.
	trace Trace
}

func (r *Relay) remoteGateway(owner string) remote {
	return remote{records: true, forward: func(w http.ResponseWriter, req *http.Request) *openai.Error {
		return r.config.Peers.Forward(w, req, owner)
	}}
}

// report reports how a call has ended that the remote has carried.
func (to remote) report(c *Call, result Result) {
	if to.trace != nil {
		to.trace.End(result)
	}
	if c.Entry != nil {
		result.Model = "" // it is the name that the client has asked for; the record has the own name
		c.Entry.SetOutcome(result)
	}
}

// forwardCall has a remote carry a call and gives its response to the sink. If the client cancels
// the call, the remote cancels it for all clients.
func (r *Relay) forwardCall(ctx context.Context, c *Call, to remote, sink Sink) {
	defer r.delayClose()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(openai.Stopping()) })()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Path, http.NoBody)
	if err != nil { // the path is one of Sluice's own
		panic(err)
	}
	if c.Header != nil {
		request.Header = c.Header.Clone()
	}
	if request.Header.Get("content-type") == "" { // a call that has moved may have a form
		request.Header.Set("content-type", "application/json")
	}
	result := Result{Model: c.Scan.Model, Cause: causeClient, UsedElsewhere: true} // the forwarder panics if the client leaves
	defer func() { to.report(c, result) }()
	response := &remoteResponse{sink: sink, endpoint: c.Scan.Endpoint, numbered: c.isNamed(), tracker: sse.Tracker{Choices: c.Scan.Answers()}}
	fault := to.forward(response, setCall(request, c))
	result = Result{Fault: fault, Model: c.Scan.Model, Replica: response.Header().Get(headers.Replica), UsedElsewhere: true}
	var clientFault *openai.Error
	switch why := errors.Join(response.err, context.Cause(ctx)); {
	case response.fault != nil:
		result.Fault, result.Cause = response.fault, causeGateway
	case errors.As(why, &clientFault):
		result.Fault, result.Cause = clientFault, causeOfCode(clientFault.Code)
	case why != nil:
		result.Cause = causeClient
	case result.Fault == nil:
		response.finish(&result)
	}
	if result.Cause == causeCancelled {
		release := r.delayClose()
		go func() {
			defer release()
			r.cancelRemote(c, to)
		}()
	}
	_ = sink.Finish(result) // the call is over anyway
	if to.records {
		result.Usage = Usage{}
	}
}

// cancelRemote cancels a call that a remote carries, for all clients that share it.
func (r *Relay) cancelRemote(c *Call, to remote) {
	ctx, cancel := context.WithTimeout(r.ctx, remoteCancelTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, routes.StreamsPath+url.PathEscape(c.Scan.RequestID)+"/cancel", nil)
	if err != nil { // the id was escaped
		panic(err)
	}
	request.Header.Set(headers.Tenant, c.Tenant.Name)
	_ = to.forward(&remoteResponse{}, request) // it logs failures
}

// setCall sets the body of a request to that of the call, and the headers from which a remote
// gateway reads the call. callOfPeer reads them.
func setCall(request *http.Request, c *Call) *http.Request {
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(c.Body)), int64(len(c.Body))
	request.Header.Set(headers.Tenant, c.Tenant.Name)
	request.Header.Set(headers.Key, c.Tenant.Key)
	request.Header.Set(headers.Priority, priorityName(c))
	if c.isNamed() {
		request.Header.Set(headers.IdempotencyKey, c.Scan.RequestID)
	}
	if c.Scan.SessionID != "" {
		request.Header.Set(headers.SessionID, c.Scan.SessionID)
	}
	setTimeLeft(request.Header, headers.Timeout, c.Scan.Timeout, c.Received)
	setTimeLeft(request.Header, headers.TimeLeft, c.Scan.MaxDuration, c.Received)
	if c.Task != "" {
		request.Header.Set(headers.TaskID, c.Task)
	}
	if c.Patient {
		request.Header.Set(headers.Patient, "1")
	}
	if o := c.clientOptions(); o != nil {
		request.Header.Set(headers.Messages, formatOptions(o))
	}
	request.Header.Del(headers.Handoff)
	return request
}

// setTimeLeft sets a header to what is left of a limit that counts from received, in milliseconds.
// A limit of 0 means that there is none.
func setTimeLeft(h http.Header, name string, limit time.Duration, received time.Time) {
	if limit > 0 {
		left := limit - time.Since(received)
		h.Set(name, strconv.FormatInt(max(left.Milliseconds(), 1), 10))
	}
}

// readTimeLeft replaces a limit by what the header says is left of it.
func readTimeLeft(h http.Header, name string, limit *time.Duration) {
	if ms, err := strconv.ParseInt(h.Get(name), 10, 64); err == nil && ms > 0 {
		*limit = time.Duration(ms) * time.Millisecond
	}
}

func priorityName(c *Call) string {
	for _, name := range []string{authz.Interactive, authz.Batch} {
		if dispatch.PriorityOf(name) == c.Priority {
			return name
		}
	}
	return authz.Default
}

// PeerHandler returns the handler of the requests that remote gateways forward. tenant finds the
// tenant that a remote gateway has authenticated, by its name and the name of its key. maxBody
// bounds bodies, in bytes.
func (r *Relay) PeerHandler(tenant func(name, key string) (*authz.Tenant, bool), maxBody int64) http.Handler {
	return r.routes(func(w http.ResponseWriter, req *http.Request) {
		c, fault := callOfPeer(req, tenant, maxBody)
		if fault == nil {
			fault = r.config.Dispatcher.SetModel(&c.Scan, c.Tenant)
		}
		if fault == nil {
			fault = r.checkBudget(c.Tenant)
		}
		if fault == nil {
			fault = r.reserve(req.Context(), c, c.memorySize())
		}
		if fault != nil {
			fault.AnswerTo(w, req.URL.Path)
			return
		}
		if r.config.Requests != nil {
			c.Entry = r.config.Requests.Forwarded(c.arrival())
		}
		r.serveCall(w, req, c, nil)
	})
}

// callOfPeer reads a call that a remote gateway has forwarded. setCall writes it.
func callOfPeer(req *http.Request, tenant func(name, key string) (*authz.Tenant, bool), maxBody int64) (*Call, *openai.Error) {
	t, ok := tenant(req.Header.Get(headers.Tenant), req.Header.Get(headers.Key))
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "This gateway does not know the tenant.")
	}
	endpoint, ok := openai.EndpointOf(req.URL.Path)
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "There is nothing at this path.")
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil || int64(len(body)) > maxBody {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The request body did not arrive.")
	}
	scan, fault := openai.Scan(endpoint, req.Header.Get("content-type"), body)
	if fault != nil {
		return nil, fault
	}
	scan.ReadQuery(req.URL.RequestURI())
	if id := req.Header.Get(headers.IdempotencyKey); id != "" {
		scan.RequestID = id
	}
	if fault := scan.SetSessionID(headers.SessionID, req.Header.Get(headers.SessionID)); fault != nil {
		return nil, fault
	}
	readTimeLeft(req.Header, headers.Timeout, &scan.Timeout)
	readTimeLeft(req.Header, headers.TimeLeft, &scan.MaxDuration)
	return &Call{RequestID: req.Header.Get(headers.RequestID), Tenant: t, Priority: dispatch.PriorityOf(req.Header.Get(headers.Priority)),
		Path: req.URL.RequestURI(), Header: forwardedHeaders(req.Header), Body: body, Scan: scan, Received: time.Now(),
		Task: req.Header.Get(headers.TaskID), Patient: req.Header.Get(headers.Patient) != "",
		movedOptions: parseOptions(req.Header.Get(headers.Messages), body)}, nil
}
