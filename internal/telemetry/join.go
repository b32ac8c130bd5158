package telemetry

import (
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// Record returns a func for AccessLog.OnEntry that joins every record with its request and counts what it tells. Each of also is told of
// every request that has ended, once; it holds up what OnEntry does, or for requests that end otherwise (see Carried, and Begun.Turn) Live's
// Carried or End. It is called once for r, before the first request.
func Record(r *Requests, m *Metrics, also ...func(Request)) func(Entry) {
	finished := func(q Request) {
		m.Finished(q)
		for _, tell := range also {
			tell(q)
		}
	}
	r.onFinished(finished)
	return func(e Entry) {
		if e.Log == headers.LogAttempts {
			if reason := r.Tried(e); reason != "" {
				m.Retried(reason)
			}
			return
		}
		if q, done := r.Join(e); done {
			finished(q)
		}
	}
}

func (r *Requests) onFinished(finished func(Request)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = finished
}

// Join adds a record of LogRequests to the request it belongs to. It returns the joined request and true for the record that
// ends a request, which comes once for each; false for a periodic one, and for the final one of a request of which the relay has not told
// yet. A request that was never begun (a 401, Envoy's own 503) becomes a finished one out of the record alone.
func (r *Requests) Join(e Entry) (Request, bool) {
	if r == nil {
		return Request{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.byID[e.RequestID]
	if e.RequestID == "" || l != nil && l.logged {
		l = nil // nothing to join with, or a second request of the same id
	}
	if e.Interim {
		r.interimLocked(l, e)
		return Request{}, false
	}
	if l == nil {
		l = r.adoptLocked(e, true)
	}
	l.logged = true
	if byRelay(e) && !l.logOnly && l.carried == nil && !l.ended {
		l.record = &e
		return Request{}, false
	}
	return r.concludeLocked(l, e), true
}

// concludeLocked joins the record that ends a request.
func (r *Requests) concludeLocked(l *Live, e Entry) Request {
	l.row.apply(e)
	l.row.finish(e)
	if l.carried != nil {
		l.row.carry(*l.carried)
	}
	l.row.Cause = disconnectCause(l.row)
	r.settleLocked(l, e)
	return l.row
}

// Tried adds a record of LogAttempts. It returns why the attempt before was repeated, once for each repetition and when it is
// seen to have happened; empty otherwise. (The last of several failed attempts was not repeated.)
func (r *Requests) Tried(e Entry) (reason string) {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.byID[e.RequestID]
	if l == nil {
		return ""
	}
	failed := e.FailedAttempt()
	if failed == "" && !e.Moved() {
		return ""
	}
	reason, l.failure = l.failure, failed
	if failed != "" {
		l.failures++
	}
	if !l.logged {
		l.row.Replica, l.row.Upstream = e.Replica, e.Upstream
		l.row.Attempts = l.failures
		if e.Moved() {
			l.row.Attempts++
		}
	}
	return reason
}

// settleLocked puts a request whose final record has come where it belongs.
func (r *Requests) settleLocked(l *Live, e Entry) {
	if l.ended {
		r.forgetLocked(l)
	}
	if l.place == nil {
		return
	}
	if l.logOnly && probe(e.Path, e.Status) {
		r.dropLocked(l)
		return
	}
	r.finishLocked(l)
}

// interimLocked takes the figures so far. A running request that Sluice does not know is one of before its restart.
func (r *Requests) interimLocked(l *Live, e Entry) {
	now := time.Now()
	if l == nil {
		if e.Model == "" {
			return
		}
		r.sweepLocked(now)
		l = r.adoptLocked(e, false)
	}
	l.heard = now
	l.row.apply(e)
}

// adoptLocked makes a request out of a record alone; no End will come for it. A final record needs no index.
func (r *Requests) adoptLocked(e Entry, final bool) *Live {
	l := &Live{requests: r, began: time.Now(), logOnly: true, ended: true}
	l.row = Request{ID: clip(e.RequestID), Started: l.began, State: Streaming}
	l.place = r.live.PushBack(l)
	if !final && e.RequestID != "" {
		r.byID[l.row.ID] = l
	}
	return l
}

// apply copies what the record knows better than Sluice does.
func (q *Request) apply(e Entry) {
	q.Method, q.Path = e.Method, e.Path
	if e.Model != "" {
		q.Model = e.Model
	}
	if e.Replica != "" {
		q.Replica = e.Replica
	}
	if byRelay(e) { // these are the relay's own figures, not a replica's
		e.Upstream, e.Attempts, e.FirstByte, e.UpstreamDuration = "", 0, 0, 0
	}
	q.Upstream, q.Attempts = e.Upstream, max(q.Attempts, e.Attempts)
	q.Stream = q.Stream || e.Streamed
	if tenant := e.Notes[headers.MetadataTenant]; tenant != "" {
		q.Tenant = tenant
	}
	q.BytesIn, q.BytesOut = max(q.BytesIn, e.BytesIn), e.BytesOut
	q.FirstByte, q.LastByte, q.Duration, q.UpstreamDuration = e.FirstByte, e.LastByte, e.Duration, e.UpstreamDuration
	if !e.Start.IsZero() {
		q.Started = e.Start
	}
}

// finish copies how the request ended.
func (q *Request) finish(e Entry) {
	q.State = Done
	q.Status, q.Flags, q.Details = e.Status, e.Flags, e.Details
	q.PromptTokens, q.CompletionTokens, q.UsageKnown = e.Usage.Prompt, e.Usage.Completion, e.Usage.Known
	q.CachedTokens, q.CachedKnown = e.Usage.Cached, e.Usage.CachedKnown
	q.Source = headers.SourceGateway
	if byRelay(e) {
		q.Route = RouteManaged
	}
	if answeredByEngine(e) {
		q.Source, q.Route = headers.SourceEngine, RouteNative
	}
	if code, ok := strings.CutPrefix(e.Details, headers.DetailsPrefix); ok && q.Code == "" {
		q.Code = code
	}
}

// usage is what the response has cost.
func (q *Request) usage() Usage {
	return Usage{Prompt: q.PromptTokens, Completion: q.CompletionTokens, Known: q.UsageKnown, Cached: q.CachedTokens, CachedKnown: q.CachedKnown}
}

// answeredByEngine tells a replica's answer, whole or cut short, from one that Sluice or Envoy gave in its stead: those are
// errors, and no byte of them came from a replica.
func answeredByEngine(e Entry) bool {
	if e.Model == "" || e.Status == 0 {
		return false
	}
	return e.Status < 400 || e.FirstByte > 0 || e.Details == "via_upstream"
}

// probe says that a request was that of a load balancer, and went well. They would push the others out of sight.
func probe(path string, status int) bool { return path == "/health" && status == 200 }

// sweepLocked drops running requests that are known from the access log alone and were not heard of for long. It walks all that
// run, so it does that once a minute at most.
func (r *Requests) sweepLocked(now time.Time) {
	if now.Sub(r.swept) < sweepEvery {
		return
	}
	r.swept = now
	for e := r.live.Front(); e != nil; {
		l := e.Value.(*Live)
		e = e.Next()
		if l.logOnly && now.Sub(l.heard) > logOnlyTTL {
			r.dropLocked(l)
		}
	}
}

func (r *Requests) dropLocked(l *Live) {
	r.live.Remove(l.place)
	l.place = nil
	r.forgetLocked(l)
}
