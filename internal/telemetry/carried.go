package telemetry

import (
	"cmp"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// Carried is what Sluice's relay tells of a request that it carried. What is not known is zero.
type Carried struct {
	// Model by its own name, and Replica that answered or was tried last.
	Model, Replica string
	// FirstToken is from the receipt of the request to its first token; 0: there was none. Held is the part of it for which the request was held
	// before it left for the replica that answered, Decode from the first token to the last.
	FirstToken, Held, Decode time.Duration
	// Usage is what the response has cost. Where it is not Known, Completion may count the events that had something of the answer. It is all
	// zero for a request that joined another one's generation: tokens are counted once.
	Usage Usage
	// FinishReason is the finish_reason that came last.
	FinishReason string
	// Code is the code of the error that the client was told, before its stream or in it, Status the HTTP status that belongs to it; empty
	// and 0: none.
	Code   string
	Status int
	// Cause says who ended a stream before its end: CauseClient and so on; empty: nobody did.
	Cause string
	// Attempts is how many replicas were tried.
	Attempts int
	// Answered says that bytes of an engine reached the client.
	Answered bool
}

// Carried notes how a request that the relay carried has ended. It wins over what Envoy's record says of that, which knows the relay and not the
// replica, and whose first byte may be a heartbeat's. It comes before End; calls after the first do nothing.
//
// Envoy's final record of such a request may come first, when its client has left: then the request waits for this call, or for End.
func (l *Live) Carried(c Carried) {
	if l == nil {
		return
	}
	l.requests.tell(l.carry(c))
}

// carry returns the request and true when this was the last that was awaited of it.
func (l *Live) carry(c Carried) (Request, bool) {
	r := l.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.carried != nil {
		return Request{}, false
	}
	l.carried = &c
	if !l.decided {
		l.row.Waited = time.Since(l.began)
	}
	l.row.carry(c)
	return l.heldLocked()
}

// heldLocked joins the record that came too soon; false when there is none.
func (l *Live) heldLocked() (Request, bool) {
	if l.record == nil {
		return Request{}, false
	}
	e := *l.record
	l.record = nil
	return l.requests.concludeLocked(l, e), true
}

// turnLocked finishes a turn, of which no record comes.
func (l *Live) turnLocked() Request {
	q := &l.row
	q.Duration = time.Since(l.began)
	if l.carried != nil {
		if q.FirstByte > 0 {
			q.LastByte = q.FirstByte + q.Decode
		}
		q.Status = cmp.Or(q.Status, l.carried.status())
		q.carry(*l.carried)
	}
	q.Cause = disconnectCause(*q)
	if q.Source == "" {
		q.Source = headers.SourceGateway
	}
	l.requests.finishLocked(l)
	return l.row
}

// status is what the status of the response would be if a turn had one of its own: that of its error, unless that came after tokens. 0: its client
// has left.
func (c Carried) status() int {
	switch {
	case c.Cause == CauseClient:
		return 0
	case c.Answered:
		return http.StatusOK
	}
	return c.Status
}

// byRelay says that the record is of a request which one of Sluice's own listeners for managed streams has answered.
func byRelay(e Entry) bool {
	return e.Cluster == headers.RelayCluster || e.Cluster == headers.GRPCCluster
}

// carry copies what the relay knows better than Envoy does.
func (q *Request) carry(c Carried) {
	q.Route, q.Source = RouteManaged, headers.SourceGateway
	if c.Answered {
		q.Source = headers.SourceEngine
	}
	if c.Model != "" {
		q.Model = c.Model
	}
	if c.Replica != "" {
		q.Replica = c.Replica
	}
	if c.Held > 0 {
		q.Waited = c.Held
	}
	if c.Code != "" {
		q.Code = c.Code
	}
	q.FinishReason, q.Cause, q.Attempts = c.FinishReason, c.Cause, c.Attempts
	q.PromptTokens, q.CompletionTokens, q.UsageKnown = c.Usage.Prompt, c.Usage.Completion, c.Usage.Known
	q.CachedTokens, q.CachedKnown = c.Usage.Cached, c.Usage.CachedKnown
	q.FirstByte, q.Decode = c.FirstToken, c.Decode
	if !c.Answered || c.Cause != "" || c.Code != "" {
		q.LastByte = 0 // what ended was not the engine's response
	}
	q.UpstreamDuration = 0
	if q.LastByte > 0 {
		q.UpstreamDuration = max(0, q.LastByte-q.Waited)
	}
}
