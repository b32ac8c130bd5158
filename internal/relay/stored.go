package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// storedMethods are the methods of the paths below routes.StoredPath, by what follows the id.
var storedMethods = map[string][]string{
	"":             {http.MethodGet, http.MethodDelete},
	"/cancel":      {http.MethodPost},
	"/input_items": {http.MethodGet},
}

// serveStored serves /v1/responses/{id}, /cancel and /input_items: it has the replica answer that
// has given the response. Such a request takes no slot and is not charged.
func (r *Relay) serveStored(w http.ResponseWriter, req *http.Request) {
	rest := strings.TrimPrefix(req.URL.EscapedPath(), routes.StoredPath)
	escaped, sub, _ := strings.Cut(rest, "/")
	if sub != "" {
		sub = "/" + sub
	}
	id, err := url.PathUnescape(escaped)
	methods, ok := storedMethods[sub]
	switch {
	case err != nil || !ok || openai.CheckRequestID("response_id", id) != nil || id == "":
		r.answerFault(w, req, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound, Message: "There is nothing at this path."})
		return
	case !slices.Contains(methods, req.Method):
		w.Header().Set("allow", strings.Join(methods, ", "))
		r.answerFault(w, req, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusMethodNotAllowed,
			Message: "This URL takes " + strings.Join(methods, " and ") + " requests only."})
		return
	}
	tenant := req.Header.Get(headers.Tenant)
	model, replica, ok := r.config.Dispatcher.Holder(tenant, id)
	rules := r.rules.Load()
	switch {
	case !ok || !slices.ContainsFunc(r.config.Dispatcher.Permitting(model), func(name string) bool { return r.mayUse(req, name) }):
		r.answerFault(w, req, &openai.Error{Code: openai.CodeResponseNotFound, Param: "response_id",
			Message: "There is no stored response with this id, or the gateway does not know any more which replica has it."})
	case rules.policy(model).GRPC:
		r.answerFault(w, req, openai.Errorf(openai.CodeInvalidRequest, "The engine of the model %s stores no responses.", model))
	case rules.Moderated(model, tenant):
		r.answerFault(w, req, openai.Errorf(openai.CodeInvalidRequest,
			"Moderation rules apply to the model %s, so its stored responses are not served.", model))
	default:
		at := holder{rest: rest, replica: replica, limit: r.config.Dispatcher.MaxDuration(model)}
		if r.config.Dispatcher.AwaitsUsage(tenant, id) {
			at.told = func(u request.Usage) { r.config.Dispatcher.TellUsage(tenant, id, u) }
		}
		r.passStored(w, req, at)
	}
}

// holder is where a stored response is.
type holder struct {
	// rest is what follows routes.StoredPath in the path of the request.
	rest    string
	replica dispatch.Upstream
	// limit bounds the answer; 0: nothing does.
	limit time.Duration
	// told is called with the usage of the response if the answer tells it; nil: nobody waits for
	// it.
	told func(request.Usage)
}

// passStored passes a request for a stored response on to a replica, and its answer to the client.
func (r *Relay) passStored(w http.ResponseWriter, req *http.Request, at holder) {
	defer r.delayClose()()
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	if at.limit > 0 {
		defer time.AfterFunc(at.limit, func() { cancel(errTooLong) }).Stop()
	}
	defer context.AfterFunc(r.ctx, func() { cancel(errClosing) })()
	discardBody(w, req) // a cancel has no body that means anything
	call, err := http.NewRequestWithContext(ctx, req.Method, urlOf(at.replica, routes.StoredPath+at.rest, req.URL.RawQuery), http.NoBody)
	if err != nil { // the path and the address were parsed before
		r.answerFault(w, req, openai.Errorf(openai.CodeUpstreamError, "The engine's address cannot be called."))
		return
	}
	call.Header = forwardedHeaders(req.Header)
	setReplicaHeaders(call.Header, at.replica)
	call.Host = at.replica.Host // empty: that of the URL
	response, err := r.send(call, at.replica, Policy{})
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errTooLong):
		r.answerFault(w, req, openai.Errorf(openai.CodeUpstreamTimeout, "The engine that has the response did not answer in time."))
		return
	case err != nil:
		r.answerFault(w, req, openai.Errorf(openai.CodeUpstreamError, "The engine that has the response could not be reached."))
		return
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK { // the body is the connection
		r.answerFault(w, req, openai.Errorf(openai.CodeUpstreamError, "The engine that has the response wants to change the protocol."))
		return
	}
	if fault := refuseRedirect(response); fault != nil {
		r.answerFault(w, req, fault)
		return
	}
	h := w.Header()
	passHeaders(h, response.Header)
	h.Set(headers.Source, headers.SourceEngine)
	if r.config.ReplicaHeader() {
		h.Set(headers.Replica, at.replica.ID)
	}
	w.WriteHeader(response.StatusCode)
	body, release := r.readUsage(response, at.told)
	defer release()
	if !copyFlushed(r.timed(w), body) {
		panic(http.ErrAbortHandler) // so that the client sees that the answer is not whole
	}
}

// copyFlushed copies a body and sends each piece at once, because the body may be a stream. It
// reports whether the body was whole.
func copyFlushed(w http.ResponseWriter, body io.Reader) (whole bool) {
	controller, buffer := http.NewResponseController(w), make([]byte, largeRead)
	for {
		n, err := body.Read(buffer)
		if _, failed := w.Write(buffer[:n]); failed != nil {
			return true // the client has left
		}
		_ = controller.Flush() // as above
		if err != nil {
			return err == io.EOF //nolint:errorlint // a body ends with io.EOF itself
		}
	}
}
