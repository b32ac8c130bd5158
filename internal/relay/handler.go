package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
	"github.com/sluice-gateway/sluice/internal/routes"
)

const (
	// bodyTimeout is how long a body may take that Envoy has received already.
	bodyTimeout = time.Minute
	// maxIgnoredBody bounds what is read of a body that means nothing, in bytes.
	maxIgnoredBody = 64 << 10
)

// Handler returns the handler of the relay's socket: requests that ext_proc has offered, and
// requests for the streams that clients have named. Only Envoy may reach it.
func (r *Relay) Handler() http.Handler {
	return r.routes(r.serveInference)
}

// routes routes by path. It is not a ServeMux, which would clean paths and the request ids in them.
func (r *Relay) routes(inference http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasPrefix(req.URL.Path, routes.StreamsPath):
			r.serveStreams(w, req)
		case strings.HasPrefix(req.URL.Path, routes.StoredPath) && !isEndpoint(req.URL.EscapedPath()):
			r.serveStored(w, req)
		case strings.HasPrefix(req.URL.Path, "/v1/"), isEndpoint(req.URL.Path):
			inference(w, req)
		default:
			r.answerFault(w, req, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound, Message: "There is nothing at this path."})
		}
	})
}

// isEndpoint reports whether replicas answer requests to the path.
func isEndpoint(path string) bool {
	_, ok := openai.EndpointOf(path)
	return ok
}

// serveInference serves a request that ext_proc has offered.
func (r *Relay) serveInference(w http.ResponseWriter, req *http.Request) {
	offer, ok := r.config.Handoff.Claim(req.Header.Get(headers.Handoff))
	if !ok {
		if !r.isElsewhere(w, req) {
			openai.Errorf(openai.CodeGatewayUnavailable, "The gateway has forgotten this request.").AnswerTo(w, req.URL.Path)
		}
		return
	}
	defer offer.Done() // also when the answer of a remote gateway is cut, which is a panic
	c := callOfOffer(offer)
	c.Header = forwardedHeaders(req.Header)
	if fault := r.reserve(req.Context(), c, c.memorySize()); fault != nil {
		r.refuseHTTP(w, c, offer.Pending, Result{Fault: fault})
		return
	}
	if c.Body, ok = readBody(w, req, c.Scan.Size); !ok {
		r.refuseHTTP(w, c, offer.Pending, Result{Fault: openai.Errorf(openai.CodeInvalidRequest, "The request body did not arrive."), Cause: causeClient})
		return
	}
	r.serveCall(w, req, c, offer.Pending)
}

// readBody reads a body of this size. It reads up to the end of the body, because the server
// notices that a client leaves only after that.
func readBody(w http.ResponseWriter, req *http.Request, size int) (body []byte, ok bool) {
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(bodyTimeout)) // some requests, as in tests, have no deadline
	body = make([]byte, size)
	if _, err := io.ReadFull(req.Body, body); err != nil {
		return nil, false
	}
	n, err := io.CopyN(io.Discard, req.Body, 1)
	_ = controller.SetReadDeadline(time.Time{})
	return body, n == 0 && errors.Is(err, io.EOF)
}

// discardBody reads a body that means nothing, because the server notices that a client leaves only
// after its body.
func discardBody(w http.ResponseWriter, req *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(bodyTimeout)) // as in readBody
	_, _ = io.CopyN(io.Discard, req.Body, maxIgnoredBody)
	_ = controller.SetReadDeadline(time.Time{})
}

// serveCall carries the call, or has the remote gateway answer that has its request id. pending may
// be nil.
func (r *Relay) serveCall(w http.ResponseWriter, req *http.Request, c *Call, pending *dispatch.Pending) {
	c.EmptyChunks = c.EmptyChunks || req.Header.Get(headers.Heartbeat) == headers.HeartbeatChunk
	after := int64(noEvent)
	var fault *openai.Error
	if c.isNamed() { // the events of other calls have no numbers
		after, fault = parseAfter(req)
		c.Path = withoutAfter(c.Path)
	}
	if fault != nil {
		r.refuseHTTP(w, c, pending, Result{Fault: fault})
		return
	}
	if owner, mine := r.claimID(req.Context(), c); !mine && req.Header.Get(headers.Forwarded) == "" {
		cancelPending(pending)
		defer c.memory.Release() // also when the answer is cut, which is a panic
		r.forwardRequest(w, req, c, owner)
		return
	}
	if fault := c.translate(); fault != nil {
		if c.isNamed() {
			r.releaseID(c.key(), nil)
		}
		r.refuseHTTP(w, c, pending, Result{Fault: fault})
		return
	}
	r.carry(req.Context(), c, pending, subscription{sink: r.newHTTPSink(w, c), after: after, foreseen: c.Foreseen})
}

// Generate carries the call to its end and writes it to the sink. If a generation already runs
// under the call's request id, here or at a remote gateway, the sink joins that one. ctx ends when
// the client has left.
func (r *Relay) Generate(ctx context.Context, c *Call, sink Sink) {
	call := *c
	fault := r.config.Dispatcher.SetModel(&call.Scan, call.Tenant)
	if call.Entry == nil && r.config.Requests != nil {
		arrival := call.arrival()
		arrival.Model = r.config.Dispatcher.OwnName(arrival.Model)
		record := r.config.Requests.Begin(arrival)
		defer func() {
			record.Close(nil)
			if r.isRetired() { // Envoy's access log goes to another process
				record.EndElsewhere(c.Alive, r.delayClose())
			} else {
				record.Lose(c.Alive)
			}
		}()
		call.Entry = record
	}
	if fault == nil && !r.isRetired() { // the successor knows the budgets in force
		fault = r.checkBudget(call.Tenant)
	}
	if fault == nil {
		fault = r.reserve(ctx, &call, len(call.Body))
	}
	if fault != nil {
		r.refuse(&call, sink, Result{Fault: fault})
		return
	}
	if owner, mine := r.claimID(ctx, &call); !mine {
		r.forwardCall(ctx, &call, r.remoteGateway(owner), sink)
		call.memory.Release()
		return
	}
	r.carry(ctx, &call, nil, subscription{sink: sink, after: noEvent})
}

// checkBudget refuses a call of a tenant or a key whose budget is used up.
func (r *Relay) checkBudget(t *authz.Tenant) *openai.Error {
	if r.config.Budget == nil {
		return nil
	}
	return r.config.Budget(t)
}

// carry starts or joins the generation of the call, subscribes to it, and reports the result. It
// drops the call's body and headers once the generation has them. pending may be nil.
func (r *Relay) carry(ctx context.Context, c *Call, pending *dispatch.Pending, how subscription) {
	g, started, fault := r.startOrJoin(c, pending, how.after)
	if !started {
		cancelPending(pending)
		c.memory.Release()
	}
	c.Body, c.Header, c.originalBody = nil, nil, nil
	if fault != nil {
		if c.isNamed() {
			r.releaseID(c.key(), nil)
		}
		r.refuse(c, how.sink, Result{Fault: fault})
		return
	}
	if c.Entry != nil {
		c.Entry.SetCanceller(g)
	}
	how.patient = c.Patient
	result, moved := g.subscribe(ctx, how)
	if started && !c.isNamed() {
		g.release()
	}
	if moved {
		var trace Trace
		if started {
			trace = g.trace
		}
		r.forwardMoved(ctx, c, g, trace, how.sink)
		return
	}
	if started {
		g.leaveTrace(result)
	}
	switch {
	case !started: // the times and the usage count for the call that has started the generation
		result = Result{Model: result.Model, Replica: result.Replica, Fault: result.Fault, Told: result.Told, Finish: result.Finish, Cause: result.Cause}
	case c.isNamed() && c.Entry != nil:
		result = g.leaveUsage(result)
	}
	if c.Entry != nil {
		c.Entry.SetOutcome(result)
	}
	if started && c.isNamed() {
		close(g.starterTold)
	}
}

// reserve reserves the memory for the body of a call, which has this size. A body that does not fit
// waits a little, because others end.
func (r *Relay) reserve(ctx context.Context, c *Call, size int) *openai.Error {
	if r.config.Memory == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.config.MemoryWait)
	defer cancel()
	hold := r.config.Memory.Hold(memory.Requests)
	if !hold.Await(ctx, int64(size)) {
		return memoryFault(r.config.Memory)
	}
	c.memory = &hold
	return nil
}

// memoryRetryAfter is when a client that was refused for want of memory may try again.
const memoryRetryAfter = 5 * time.Second

// memoryFault is what a client is told whose request or answer does not fit into the budget.
func memoryFault(b *memory.Budget) *openai.Error {
	return &openai.Error{Code: openai.CodeGatewayUnavailable, RetryAfter: memoryRetryAfter,
		Message: fmt.Sprintf("The gateway has no memory left for this request: %d of %d MiB are in use.", b.Total()>>20, b.Limit()>>20)}
}

// refuse ends a call for which there is no generation.
func (r *Relay) refuse(c *Call, sink Sink, result Result) {
	_ = sink.Finish(result) // the call is over anyway
	if c.Entry != nil {
		c.Entry.SetOutcome(result)
	}
}

// refuseHTTP is refuse for a call that came by HTTP. It gives back the memory of the call, and
// cancels its pending dispatch, which may be nil.
func (r *Relay) refuseHTTP(w http.ResponseWriter, c *Call, pending *dispatch.Pending, result Result) {
	c.memory.Release()
	cancelPending(pending)
	r.refuse(c, r.newHTTPSink(w, c), result)
}

// cancelPending cancels a dispatch that has begun; nil: there is none.
func cancelPending(p *dispatch.Pending) {
	if p != nil {
		p.Cancel()
	}
}

// serveStreams serves /v1/streams/{id} and /v1/streams/{id}/cancel.
func (r *Relay) serveStreams(w http.ResponseWriter, req *http.Request) {
	discardBody(w, req)
	id, cancel, named := routes.StreamID(req.URL.EscapedPath())
	method := http.MethodGet
	if cancel {
		method = http.MethodPost
	}
	switch {
	case !named:
		r.answerFault(w, req, openai.Errorf(openai.CodeInvalidRequest, "This is no request id."))
		return
	case req.Method != method:
		w.Header().Set("allow", method)
		r.answerFault(w, req, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusMethodNotAllowed,
			Message: "This URL takes " + method + " requests only."})
		return
	}
	key := replay.Key{Tenant: req.Header.Get(headers.Tenant), ID: id}
	g, ok := r.named.Find(key)
	switch {
	case !ok:
		r.serveRemoteStream(w, req, key)
	case !r.mayUse(req, g.call.Scan.Model):
		r.answerFault(w, req, notFoundFault())
	case cancel:
		g.cancel(errCancelled)
		r.config.Requests.Answered(req, http.StatusOK, nil)
		w.Header().Set("content-type", "application/json")
		w.Header().Set(headers.Source, headers.SourceGateway)
		io.WriteString(w, `{"ok":true}`) //nolint:errcheck // the client may be gone
	default:
		r.resume(w, req, g)
	}
}

// mayUse reports whether the caller of a request may use a model. A key may be for fewer models
// than its tenant.
func (r *Relay) mayUse(req *http.Request, model string) bool {
	return r.config.MayUse == nil || r.config.MayUse(req.Header.Get(headers.Tenant), req.Header.Get(headers.Key), model)
}

// resume continues a stream after the last event that the client has seen.
func (r *Relay) resume(w http.ResponseWriter, req *http.Request, g *generation) {
	after, fault := parseAfter(req)
	if fault != nil {
		r.config.Requests.Answered(req, fault.HTTPStatus(), fault)
		fault.AnswerTo(w, g.call.clientEndpoint().Path())
		return
	}
	if g.isReceived(after) {
		r.config.Requests.Answered(req, http.StatusNoContent, nil)
		w.Header().Set(headers.Source, headers.SourceGateway)
		w.WriteHeader(http.StatusNoContent) // an EventSource stops to connect again
		return
	}
	sink := r.newHTTPSink(w, g.call)
	sink.translator = translatorOfReturn(g.call)
	if isOfGateway(req) {
		w.Header().Set(headers.Resumed, g.call.clientEndpoint().Path())
	}
	if _, moved := g.subscribe(req.Context(), subscription{sink: sink, after: after}); moved {
		r.forwardMoved(req.Context(), &Call{}, g, nil, sink)
	}
}

// isOfGateway reports whether another gateway has forwarded the request: another process of this
// gateway is none.
func isOfGateway(req *http.Request) bool {
	from := req.Header.Get(headers.Forwarded)
	return from != "" && from != headers.ForwardedByProcess
}

// serveRemoteStream has the remote gateway answer that has the request id.
func (r *Relay) serveRemoteStream(w http.ResponseWriter, req *http.Request, key replay.Key) {
	if r.config.Peers != nil && req.Header.Get(headers.Forwarded) == "" {
		if owner, ok, _ := r.config.Peers.Find(req.Context(), key.Tenant, key.ID); ok {
			if fault := r.config.Peers.Forward(r.timed(w), req, owner); fault != nil {
				r.answerFault(w, req, fault)
			}
			return
		}
	}
	if !r.isElsewhere(w, req) {
		r.answerFault(w, req, notFoundFault())
	}
}

// parseAfter returns the number of the last event that the client has seen, or noEvent. The header
// counts if there are both: an EventSource that connects again sends it with the URL of its first
// request.
func parseAfter(req *http.Request) (int64, *openai.Error) {
	text, param := req.Header.Get("last-event-id"), "Last-Event-ID"
	if text == "" {
		text, param = req.URL.Query().Get("after"), "after"
	}
	if text == "" {
		return noEvent, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < noEvent {
		return 0, openai.Invalid(param, "must be the id of an event")
	}
	return n, nil
}

// withoutAfter removes the parameter after from a path. The parameter is for the relay only: a
// repeated start is the same request with it and without it.
func withoutAfter(path string) string {
	path, query, _ := strings.Cut(path, "?")
	var rest []string
	for parameter := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(parameter, "="); name != "after" && parameter != "" {
			rest = append(rest, parameter)
		}
	}
	if len(rest) == 0 {
		return path
	}
	return path + "?" + strings.Join(rest, "&")
}
