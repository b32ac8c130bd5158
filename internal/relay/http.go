package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// Handler is what Envoy reaches on the relay's socket: requests that ext_proc has sent here, and what clients ask of the streams that they
// have named. Its callers are Envoy and nobody else.
func (r *Relay) Handler() http.Handler {
	return r.routes(r.serveInference)
}

// routes leads to what a path means. A ServeMux would tidy paths up, and with them the ids in them.
func (r *Relay) routes(inference http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasPrefix(req.URL.Path, streamsPath):
			r.serveStreams(w, req)
		case strings.HasPrefix(req.URL.Path, "/v1/"):
			inference(w, req)
		default:
			fail(w, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound, Message: "There is nothing at this path."})
		}
	})
}

// streamsPath is where streams are that clients have named.
const streamsPath = "/v1/streams/"

// serveInference carries a request that ext_proc has given a ticket.
func (r *Relay) serveInference(w http.ResponseWriter, req *http.Request) {
	offer, ok := r.config.Handoff.Claim(req.Header.Get(headers.Handoff))
	if !ok {
		fail(w, openai.Errorf(openai.CodeGatewayUnavailable, "The gateway has forgotten this request."))
		return
	}
	defer offer.Done() // also when what another gateway answers is cut, which is a panic
	c := offered(offer)
	c.Header = passed(req.Header)
	c.EmptyChunks = c.EmptyChunks || req.Header.Get(headers.Heartbeat) == headers.HeartbeatChunk
	if c.Body, ok = bodyOf(w, req, c.Scan.Size); !ok {
		if offer.Pending != nil {
			offer.Pending.Cancel()
		}
		r.conclude(&c, r.respond(w, &c), Result{Fault: openai.Errorf(openai.CodeInvalidRequest, "The request body did not arrive."), Cause: causeClient})
		return
	}
	r.carry(w, req, &c, offer.Pending)
}

// offered is the call that an offer of ext_proc's stands for, without its body and its headers.
func offered(o *dispatch.Offer) Call {
	return Call{RequestID: o.RequestID, Tenant: o.Tenant, Priority: o.Priority, Path: o.Path, Scan: o.Scan, Task: o.Task, Received: o.Received,
		Foreseen: o.Foreseen, Entry: o.Record}
}

// bodyWithin is how long a body may take that Envoy has whole.
const bodyWithin = time.Minute

// bodyOf reads a body of this size to its end: without that nobody would notice that the client leaves.
func bodyOf(w http.ResponseWriter, req *http.Request, size int) (body []byte, ok bool) {
	flow := http.NewResponseController(w)
	_ = flow.SetReadDeadline(time.Now().Add(bodyWithin)) // where there is none, there is none
	body = make([]byte, size)
	if _, err := io.ReadFull(req.Body, body); err != nil {
		return nil, false
	}
	n, err := io.CopyN(io.Discard, req.Body, 1)
	_ = flow.SetReadDeadline(time.Time{})
	return body, n == 0 && errors.Is(err, io.EOF)
}

// carry has the call answered here, or by the gateway that its request id belongs to.
func (r *Relay) carry(w http.ResponseWriter, req *http.Request, c *Call, pending *dispatch.Pending) {
	after := int64(-1)
	var fault *openai.Error
	if c.Scan.RequestID != "" { // the events of others have no numbers
		after, fault = afterOf(req)
		c.Path = withoutAfter(c.Path)
	}
	if fault != nil {
		if pending != nil {
			pending.Cancel()
		}
		r.conclude(c, r.respond(w, c), Result{Fault: fault})
		return
	}
	if owner, mine := r.claim(req.Context(), c); !mine && req.Header.Get(headers.Forwarded) == "" {
		if pending != nil {
			pending.Cancel()
		}
		r.forward(w, req, c, owner)
		return
	}
	r.generate(req.Context(), c, pending, listening{sink: r.respond(w, c), after: after, foreseen: c.Foreseen})
}

// claim makes the call's request id ours, or says whose it is.
func (r *Relay) claim(ctx context.Context, c *Call) (owner string, mine bool) {
	id := c.Scan.RequestID
	if id == "" || r.config.Peers == nil {
		return "", true
	}
	if _, ours := r.named.Find(c.key()); ours {
		return "", true
	}
	owner, mine, _ = r.config.Peers.Claim(ctx, c.Tenant.Name, id, claimLease) // an error says that it is ours alone
	if mine {
		r.config.Peers.Keep(c.Tenant.Name, id)
	}
	return owner, mine
}

// withoutAfter is a path without the parameter that is for the relay: a start that is repeated is the same request with it.
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

// afterOf is the number of the last event that the client has seen: -1 for one that has seen none.
func afterOf(req *http.Request) (int64, *openai.Error) {
	text, param := req.Header.Get("last-event-id"), "Last-Event-ID"
	if query := req.URL.Query(); query.Has("after") {
		text, param = query.Get("after"), "after"
	}
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < -1 {
		return 0, &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: param + " must be the id of an event."}
	}
	return n, nil
}

// maxIgnored bounds what is read of a body that means nothing, in bytes.
const maxIgnored = 64 << 10

// serveStreams answers /v1/streams/{id} and /v1/streams/{id}/cancel.
func (r *Relay) serveStreams(w http.ResponseWriter, req *http.Request) {
	_, _ = io.CopyN(io.Discard, req.Body, maxIgnored) // nobody notices that a client leaves before its body is read
	rest := strings.TrimPrefix(req.URL.EscapedPath(), streamsPath)
	escaped, cancel := strings.CutSuffix(rest, "/cancel")
	id, err := url.PathUnescape(escaped)
	method := http.MethodGet
	if cancel {
		method = http.MethodPost
	}
	switch {
	case err != nil || id == "" || strings.Contains(escaped, "/"):
		fail(w, openai.Errorf(openai.CodeInvalidRequest, "This is no request id."))
		return
	case req.Method != method:
		w.Header().Set("allow", method)
		fail(w, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusMethodNotAllowed, Message: "This URL takes " + method + " requests only."})
		return
	}
	key := replay.Key{Tenant: req.Header.Get(headers.Tenant), ID: id}
	g, ok := r.named.Find(key)
	if !ok {
		r.elsewhere(w, req, key)
		return
	}
	if cancel {
		g.cancel(errCancelled)
		w.Header().Set("content-type", "application/json")
		w.Header().Set(headers.Source, headers.SourceGateway)
		io.WriteString(w, `{"ok":true}`) //nolint:errcheck // the client may be gone
		return
	}
	r.resume(w, req, g)
}

// resume goes on with a stream.
func (r *Relay) resume(w http.ResponseWriter, req *http.Request, g *generation) {
	after, fault := afterOf(req)
	if fault != nil {
		fail(w, fault)
		return
	}
	g.listen(req.Context(), listening{sink: r.respond(w, g.call), after: after})
}

// elsewhere has the gateway answer that the request id belongs to.
func (r *Relay) elsewhere(w http.ResponseWriter, req *http.Request, key replay.Key) {
	if r.config.Peers != nil && req.Header.Get(headers.Forwarded) == "" {
		if owner, ok, _ := r.config.Peers.Find(req.Context(), key.Tenant, key.ID); ok {
			if fault := r.config.Peers.Forward(w, req, owner); fault != nil {
				fail(w, fault)
			}
			return
		}
	}
	fail(w, notFound())
}

func notFound() *openai.Error {
	return openai.Errorf(openai.CodeStreamNotFound, "No request with this id is running, or ended a moment ago.")
}
