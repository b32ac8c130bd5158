package request

import (
	"cmp"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Envoy carries every request and knows how it ended; Sluice knows who called and what it decided.
// The two halves are joined here. Answers that Envoy gave alone (a 503 while Sluice was away, a
// 413) reach no filter but do reach the access log, so every request is counted.

// Observe adds an entry of Envoy's access log to the request that it belongs to, and tells the
// subscribers and the request's hold what follows from it. begun reports whether the entry tells of
// a request that Begin has made a record of. Entries of one request may come from several
// goroutines.
func (s *Store) Observe(e Entry) (begun bool) {
	switch {
	case s == nil:
		return false
	case e.Log == headers.LogAttempts:
		return s.observeAttempt(&e)
	}
	return s.observeRequest(&e)
}

// observeAttempt adds an entry of headers.LogAttempts. A retry is told once, when it is seen to
// have happened: the last of several failed attempts was not repeated.
func (s *Store) observeAttempt(e *Entry) (begun bool) {
	s.mu.Lock()
	begun = s.byID[e.RequestID].begun()
	reason, hold := s.addAttemptLocked(e)
	var model, tenant string
	if reason != "" {
		of := &s.byID[e.RequestID].summary
		model, tenant = of.Model, of.Tenant
	}
	s.mu.Unlock()
	if hold != nil {
		hold.Moved(e.Upstream)
	}
	if reason != "" && s.subscribers.Retried != nil {
		s.subscribers.Retried(model, tenant, reason)
	}
	return begun
}

// begun reports whether Begin has made the record, and its final entry has not come. The lock of
// the store is held.
func (r *Record) begun() bool { return r != nil && !r.logOnly && !r.logged }

// addAttemptLocked returns why the attempt before was repeated, if it was, and the hold that is to
// move to the replica that has taken over, if one has.
func (s *Store) addAttemptLocked(e *Entry) (reason string, hold Hold) {
	r := s.byID[e.RequestID]
	if r == nil {
		return "", nil
	}
	failed := e.FailedAttempt()
	if failed == "" && !e.Moved() {
		return "", nil
	}
	reason, r.failure = r.failure, failed
	if reason != "" {
		r.untold--
		r.addRetryLocked(r.failedAt)
	}
	if failed != "" {
		r.failures++
		r.failedAt = Retry{After: time.Since(r.summary.Started), Reason: failed, Replica: e.Replica}
	}
	if e.Moved() {
		hold = r.hold
	}
	if !r.logged {
		r.summary.Replica, r.summary.Upstream = e.Replica, e.Upstream
		r.summary.Attempts = r.failures
		if e.Moved() {
			r.summary.Attempts++
		}
	}
	return reason, hold
}

// observeRequest adds an entry of headers.LogRequests. The final one ends the request, once, unless
// the relay has yet to tell the outcome. A request that was never begun (a 401, Envoy's own 503)
// becomes a finished one out of the entry alone.
func (s *Store) observeRequest(e *Entry) (begun bool) {
	var cost Cost
	e.dropTotal()
	begun, hold := s.holdOf(e)
	switch {
	case hold != nil:
		cost = hold.Correct(e.Response())
	case s.subscribers.CostOf != nil && !e.Interim && e.Model != "" && !e.byRelay():
		recovered := *e // what a func is given lives as long as the garbage collector lets it
		cost = s.subscribers.CostOf(&recovered)
	}
	s.mu.Lock()
	q, ended := s.addLocked(e, cost)
	s.mu.Unlock()
	if ended {
		if q.Route != RouteManaged { // else the relay has told it
			s.used(&q)
		}
		s.finish(&q)
	}
	return begun
}

// holdOf returns the hold of the request that a final entry of a model belongs to, or nil. begun is
// as of Observe.
func (s *Store) holdOf(e *Entry) (begun bool, hold Hold) {
	if e.RequestID == "" {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[e.RequestID]
	if r != nil && !r.logged && !e.Interim && e.Model != "" {
		hold = r.hold
	}
	return r.begun(), hold
}

// addLocked adds an entry. The response has cost what is in cost, if it is known.
func (s *Store) addLocked(e *Entry, cost Cost) (q Summary, ended bool) {
	r := s.byID[e.RequestID]
	if r != nil && r.lost {
		return Summary{}, false
	}
	var told *Record
	if r != nil && r.elsewhere {
		told = r
	}
	if e.RequestID == "" || r != nil && r.logged {
		r = nil // nothing to join with, or a second request of the same id
	}
	if e.Interim {
		s.addInterimLocked(r, e)
		return Summary{}, false
	}
	if r == nil {
		r = s.adoptLocked(e, true)
		if r.told = told; told.lacksEnd() || told != nil && e.byRelay() {
			r.summary = told.summary
		}
		if told != nil && e.byRelay() {
			r.outcome = told.summary.outcome()
		}
	}
	r.logged = true
	if !e.byRelay() { // else the relay tells of its retries
		r.untold += e.Attempts - 1
	}
	if e.byRelay() && !r.logOnly && r.outcome == nil && !r.closed {
		own := *e
		r.entry = &own
		return Summary{}, false
	}
	return r.joinLocked(e, cost), true
}

// joinLocked joins the log entry that ends the request, of which the response has cost so much.
func (r *Record) joinLocked(e *Entry, cost Cost) Summary {
	q := &r.summary
	q.apply(e)
	q.applyEnd(e)
	if r.outcome != nil {
		q.applyOutcome(r.outcome)
	}
	q.Cause = q.DisconnectCause()
	q.estimate(cost)
	if r.closed {
		r.store.endLocked(r)
	}
	switch {
	case r.element == nil:
	case r.told != nil:
		if r.outcome != nil || r.told.lacksEnd() {
			r.told.summary = *q
		}
		r.store.dropLocked(r)
	case r.logOnly && isProbe(e.Path, e.Status):
		r.store.dropLocked(r)
	default:
		r.store.finishLocked(r)
	}
	return *q
}

// lacksEnd reports whether the other process that has told of a request does not know how it has
// ended, because no log entry had come there.
func (r *Record) lacksEnd() bool { return r != nil && r.summary.Status == 0 }

// addInterimLocked takes the figures so far. A running request that Sluice does not know is one of
// before its restart.
func (s *Store) addInterimLocked(r *Record, e *Entry) {
	now := time.Now()
	if r == nil {
		if e.Model == "" {
			return
		}
		s.sweepLocked(now)
		r = s.adoptLocked(e, false)
	}
	r.heard = now
	r.summary.apply(e)
	if r.logOnly && e.PID != 0 && s.subscribers.Lives != nil {
		watched, own := r.interim != nil, *e
		if r.interim = &own; !watched {
			r.watch()
		}
	}
}

// adoptLocked makes a request out of an entry alone; no Close will come for it. A final entry needs
// no index.
func (s *Store) adoptLocked(e *Entry, final bool) *Record {
	r := &Record{store: s, waitingSince: time.Now(), logOnly: true, closed: true}
	r.summary = Summary{ID: clip(e.RequestID), Started: r.waitingSince, State: Streaming}
	r.element = s.running.PushBack(r)
	if !final && e.RequestID != "" {
		s.byID[r.summary.ID] = r
	}
	return r
}

// apply copies what the entry knows better than Sluice does.
func (q *Summary) apply(e *Entry) {
	upstream, attempts, firstByte, upstreamDuration := e.Upstream, e.Attempts, e.FirstByte, e.UpstreamDuration
	if e.byRelay() { // these are the relay's own figures, not a replica's
		upstream, attempts, firstByte, upstreamDuration = "", 0, 0, 0
	}
	q.Method, q.Path = e.Method, e.Path
	if e.ClientID != "" {
		q.ClientID = clip(e.ClientID)
	}
	if e.Model != "" {
		q.Model = e.Model
	}
	if e.Replica != "" {
		q.Replica = e.Replica
	}
	q.Upstream, q.Attempts = upstream, max(q.Attempts, attempts)
	q.Stream = q.Stream || e.Streamed
	if tenant := e.Metadata[headers.MetadataTenant]; tenant != "" {
		q.Tenant = tenant
	}
	if key := e.Metadata[headers.MetadataKey]; key != "" {
		q.Key = key
	}
	q.BytesIn, q.BytesOut = max(q.BytesIn, e.BytesIn), e.BytesOut
	q.FirstByte, q.LastByte, q.Duration, q.UpstreamDuration = firstByte, e.LastByte, e.Duration, upstreamDuration
	if !e.Start.IsZero() {
		q.Started = e.Start
	}
}

// applyEnd copies how the request ended.
func (q *Summary) applyEnd(e *Entry) {
	q.State = Done
	q.Status, q.Flags, q.Details = e.Status, e.Flags, e.Details
	q.setUsage(e.Usage)
	q.setReading(e)
	q.Source = headers.SourceGateway
	if e.byRelay() {
		q.Route = RouteManaged
	}
	if e.answeredByEngine() {
		q.Source, q.Route = headers.SourceEngine, RouteNative
	}
	q.Abandoned = e.abandoned()
	if code, ok := strings.CutPrefix(e.Details, headers.DetailsPrefix); ok && q.Code == "" {
		q.Code = code
	}
	q.Code = cmp.Or(q.Code, string(e.codeOfEnvoy()))
}

// codeOfEnvoy returns the code of an error that Envoy has answered by itself, as package xds has it
// answer. It is empty for other answers: only their bodies have the code.
func (e *Entry) codeOfEnvoy() openai.Code {
	if e.Status < 400 || e.Details == "" || e.Details == "via_upstream" || e.answeredByEngine() {
		return ""
	}
	switch e.Status {
	case 401:
		return openai.CodeInvalidAPIKey
	case 408:
		return openai.CodeRequestTimeout
	case 413:
		return openai.CodeRequestTooLarge
	case 431:
		return openai.CodeHeadersTooLarge
	case 502:
		return openai.CodeUpstreamError
	case 504:
		return openai.CodeUpstreamTimeout
	}
	switch {
	case e.Status < 500:
		return openai.CodeInvalidRequest
	case e.Details == "no_healthy_upstream" && e.Model != "":
		return openai.CodeNoReplica
	}
	return openai.CodeGatewayUnavailable
}

// setReading copies what Envoy has read of the response.
func (q *Summary) setReading(e *Entry) {
	r := e.Reading
	if r == nil {
		return
	}
	q.Reading, q.FinishReason = r, r.Finish
	if r.Tokens > 0 {
		q.Decode = q.within(r.Last.Sub(r.First))
	}
	if !q.UsageKnown {
		q.CompletionTokens = r.tokens(e.BytesOut)
	}
}

// estimate fills in what nobody has read of a native response.
func (q *Summary) estimate(cost Cost) {
	q.Late = cmp.Or(q.Late, cost.Late)
	if cost.Doubted {
		q.setUsage(Usage{})
	}
	answered := q.Source == headers.SourceEngine && q.Route == RouteNative && q.Status < 300
	if !answered && !q.Abandoned || q.Route == RouteManaged {
		return
	}
	if cost.Partial {
		q.UsageKnown, q.CompletionTokens = false, 0
	}
	if !q.UsageKnown {
		q.PromptTokens = cost.Usage.Prompt
		q.CompletionTokens = cmp.Or(q.CompletionTokens, cost.Usage.Completion)
	}
	if answered && q.FinishReason == "" && q.Cause == "" && cost.Finish != "" {
		q.FinishReason, q.FinishEstimated = cost.Finish, true
	}
}
