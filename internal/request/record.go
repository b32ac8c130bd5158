package request

import (
	"cmp"
	"container/list"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Record is one request. Store.Begin makes it, and each part that has something to add finds it. It
// ends once, when Close was called and Envoy's log entry has come. A request on a connection ends
// without the entry. The entry of a request that the relay carried, which may come before
// SetOutcome when the client has left, waits for SetOutcome or for Close. See Lose for a request
// whose entry does not come. A nil *Record does nothing.
type Record struct {
	store        *Store
	onConnection bool

	// What follows is guarded by store.mu.

	// waitingSince is when the body had been read; before that, when the record was made.
	waitingSince time.Time
	// waits: SetWaits was called.
	waits bool

	summary Summary
	// canceller can cancel the request; nil: nobody can, or it is closed.
	canceller Canceller
	// element is the record's in store.running; nil once the request is done.
	element *list.Element
	// hold is what a native request holds; nil once it was released and its charge corrected.
	hold Hold
	// unnamed says that the id of the response is wanted and has not come.
	unnamed bool
	// untold is the number of retries that Envoy's final entry counts and the log of attempts has
	// not told of. It is below 0 while the final entry has not come.
	untold int
	// dispatched: it was sent to a replica. closed: Close was called, at closedAt. logged: Envoy's
	// final entry has come. The request is done with the first of the latter two.
	dispatched, closed, logged bool
	closedAt                   time.Time
	// lost: it has ended without a final entry, because its Envoy has died. It counts as logged.
	lost bool
	// elsewhere: it has ended at another process.
	elsewhere bool
	// told is the listed record of a request that has ended at another process, while its log entry
	// is joined; nil for other requests.
	told *Record
	// failures counts the failed attempts; failure is why the last one failed, until it is seen to
	// be repeated.
	failures int
	failure  string
	// failedAt is the attempt of failure; retries are those that were repeated.
	failedAt Retry
	retries  []Retry
	// logOnly: the request is known from the access log alone. heard: when its last periodic entry
	// came. interim is that entry, if its Envoy is known.
	logOnly bool
	heard   time.Time
	interim *Entry
	// outcome is what the relay told, entry is Envoy's final one that came before that.
	outcome *Outcome
	entry   *Entry
}

// SetBody adds what the body of the request says, when it has been read. bytes is the size of the
// body. model is a model by its own name, or a pool. clientID is the client's own id (empty: none).
// The request waits from then on.
func (r *Record) SetBody(model, clientID string, stream bool, bytes int) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.waitingSince = time.Now()
	r.summary.Model, r.summary.Stream, r.summary.BytesIn = clip(model), stream, int64(bytes)
	r.summary.ClientID = clip(clientID)
}

// SetWaits tells that the request cannot go at once. A request that is refused without that has not
// waited.
func (r *Record) SetWaits() {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.waits = true
}

// SetDispatched implements Follower.
func (r *Record) SetDispatched(model, replica string, waited time.Duration) {
	r.SetNative(nil, model, replica, waited)
}

// SetNative tells that the request leaves for this replica of this model (by its own name, not an
// alias) after it has waited so long, by Envoy alone. The record releases hold in Close.
func (r *Record) SetNative(hold Hold, model, replica string, waited time.Duration) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	r.dispatched, r.hold = true, hold
	r.unnamed = hold != nil && hold.WantsResponseID()
	r.summary.Model, r.summary.Replica, r.summary.Waited = model, replica, waited
	if r.summary.State == Queued {
		r.summary.State = Streaming
	}
	r.store.mu.Unlock()
	if tell := r.store.subscribers.Dispatched; tell != nil {
		tell(model, replica, waited)
	}
}

// SetPrediction implements Follower.
func (r *Record) SetPrediction(p Prediction) {
	if r == nil {
		return
	}
	tell := r.store.subscribers.Picked
	var now Summary
	r.store.mu.Lock()
	r.summary.Prediction = p
	if tell != nil {
		now = r.summary
	}
	r.store.mu.Unlock()
	if tell != nil {
		tell(now)
	}
}

// AddRetry implements Follower.
func (r *Record) AddRetry(reason, replica string) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.addRetryLocked(Retry{After: time.Since(r.summary.Started), Reason: reason, Replica: replica})
}

// addRetryLocked keeps the first maxRetries of the request.
func (r *Record) addRetryLocked(retry Retry) {
	if len(r.retries) < maxRetries {
		r.retries = append(r.retries, retry)
	}
}

// awaitsNews says whether something may come after the final entry and Close.
func (r *Record) awaitsNews() bool { return r.unnamed || r.untold > 0 }

// SetTrace implements Follower.
func (r *Record) SetTrace(own, client string) {
	if r == nil || own == "" {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.summary.Trace, r.summary.TraceParent = own, client
}

// SetOutcome implements Follower. What the relay tells wins over what Envoy's log entry says of the
// same. Envoy knows the relay and not the replica, and its first byte may be a heartbeat's. It
// comes before Close; calls after the first do nothing.
func (r *Record) SetOutcome(o Outcome) {
	if r == nil {
		return
	}
	q, used, ended := r.setOutcome(o)
	if used {
		r.store.used(&q)
	}
	if ended {
		r.store.finish(&q)
	}
}

// SetUsage implements Follower. The request may have ended before.
func (r *Record) SetUsage(u Usage) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	if r.outcome == nil {
		r.store.mu.Unlock()
		return
	}
	r.outcome.Usage = u // Envoy's log entry, which may still come, joins the outcome once more
	r.summary.setUsage(r.outcome.usage())
	q, closed := r.summary, r.closed
	r.store.mu.Unlock()
	if tell := r.store.subscribers.Elsewhere; closed && tell != nil {
		tell(q)
	}
}

// setOutcome returns how the request has ended, whether what it has used is to be told, and whether
// nothing else was awaited.
func (r *Record) setOutcome(o Outcome) (q Summary, used, ended bool) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.outcome != nil {
		return Summary{}, false, false
	}
	r.outcome = &o
	if !r.dispatched && (r.waits || o.status() != 400) { // a wrong request is mostly refused before it waits
		r.summary.Waited = time.Since(r.waitingSince)
	}
	r.summary.applyOutcome(&o)
	if q, ended = r.joinHeldLocked(); !ended {
		q = r.summary
	}
	return q, !o.UsedElsewhere, ended
}

// Close tells that the request is over for Sluice, and releases its hold. fault is the error with
// which Sluice answered; nil when it was not Sluice that answered. Calls after the first do
// nothing.
func (r *Record) Close(fault *openai.Error) {
	if r == nil {
		return
	}
	hold, q, ended := r.close(fault)
	if hold != nil {
		hold.Release()
	}
	if ended {
		r.store.finish(&q)
	}
}

// close returns what is to be released; and true, and how the request has ended, if nothing else
// was awaited and nobody was told yet.
func (r *Record) close(fault *openai.Error) (hold Hold, q Summary, ended bool) {
	now := time.Now()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.closed {
		return nil, Summary{}, false
	}
	r.closed, r.closedAt, hold, r.canceller = true, now, r.hold, nil
	if fault != nil {
		r.summary.Code = cmp.Or(string(fault.Code), r.summary.Code)
		r.summary.Status = cmp.Or(r.summary.Status, fault.HTTPStatus())
		if r.outcome == nil {
			r.summary.Source = headers.SourceGateway
		}
	}
	if r.waits && !r.dispatched && r.outcome == nil {
		r.summary.Waited = now.Sub(r.waitingSince)
	}
	switch {
	case r.onConnection:
		return hold, r.endOnConnectionLocked(now), true
	case r.entry != nil:
		q, ended = r.joinHeldLocked()
		return hold, q, ended
	case r.logged:
		r.store.endLocked(r)
	default:
		r.summary.Duration = now.Sub(r.summary.Started)
		r.store.finishLocked(r)
	}
	return hold, Summary{}, false
}

// deathTime is how long an Envoy that is being killed may still run after its connections have
// broken.
const deathTime = time.Second / 2

// EndElsewhere tells, after Close, that the final entry of the request goes to another process.
// Either it is a managed request, and the other process is told at once what this one knows. Or the
// connection of a native request to Envoy has broken. If the request has not ended well and its
// Envoy has died, no entry goes anywhere: the request ends here without one. alive is as of Lose.
// done is called when nothing more is to be done here, maybe from another goroutine.
func (r *Record) EndElsewhere(alive func() bool, done func()) {
	if r == nil {
		done()
		return
	}
	r.tellElsewhere()
	hold, awaited := r.awaited()
	if !awaited || alive == nil {
		done()
		return
	}
	time.AfterFunc(deathTime, func() {
		defer done()
		if !alive() {
			r.endLost(hold) // the record may have forgotten its hold
		}
	})
}

// tellElsewhere tells Subscribers.Elsewhere how a managed request has ended, as far as this process
// knows. It does nothing if the final entry of Envoy's log has come here, and for a request on a
// connection, of which none comes.
func (r *Record) tellElsewhere() {
	if r.store.subscribers.Elsewhere == nil {
		return
	}
	r.store.mu.Lock()
	q, ended := r.summary, r.closed && !r.logged && r.outcome != nil && !r.onConnection
	if ended {
		q.Status = cmp.Or(q.Status, r.outcome.status())
		q.applyOutcome(r.outcome)
		q.Cause = q.DisconnectCause()
	}
	r.store.mu.Unlock()
	if ended {
		r.store.subscribers.Elsewhere(q)
	}
}

// joinHeldLocked joins the log entry that came too soon; false when there is none.
func (r *Record) joinHeldLocked() (Summary, bool) {
	if r.entry == nil {
		return Summary{}, false
	}
	e := *r.entry
	r.entry = nil
	return r.joinLocked(&e, Cost{}), true
}

// endOnConnectionLocked finishes a request on a connection, of which no log entry comes.
func (r *Record) endOnConnectionLocked(now time.Time) Summary {
	q := &r.summary
	q.Duration = now.Sub(q.Started)
	if r.outcome != nil {
		if q.FirstByte > 0 {
			q.LastByte = q.FirstByte + q.Decode
		}
		q.Status = cmp.Or(q.Status, r.outcome.status())
		q.applyOutcome(r.outcome)
	}
	q.Cause = q.DisconnectCause()
	q.Source = cmp.Or(q.Source, headers.SourceGateway)
	r.store.finishLocked(r)
	r.hold = nil
	return r.summary
}

// soFar is a running request with its times until now.
func (r *Record) soFar(now time.Time) Summary {
	q := r.summary
	q.Duration = now.Sub(q.Started)
	if q.State == Queued {
		q.Waited = now.Sub(r.waitingSince)
	}
	return q
}

// applyOutcome copies what the relay knows better than Envoy does.
func (q *Summary) applyOutcome(o *Outcome) {
	q.Route, q.Source = RouteManaged, headers.SourceGateway
	if o.Answered {
		q.Source = headers.SourceEngine
	}
	q.Model = cmp.Or(o.Model, q.Model)
	q.Replica = cmp.Or(o.Replica, q.Replica)
	q.Code = cmp.Or(o.Code(), q.Code)
	if o.Held > 0 {
		q.Waited = o.Held
	}
	q.FinishReason, q.Cause, q.Attempts = o.Finish, o.Cause, o.Attempts
	q.setUsage(o.usage())
	q.UsedApart, q.Late = o.UsedElsewhere, o.Late
	q.Abandoned = o.abandoned()
	q.FirstByte, q.Decode = o.TTFT, o.Decode
	if !o.Answered || o.Cause != "" || o.Fault != nil {
		q.LastByte = 0 // what ended was not the engine's response
	}
	q.UpstreamDuration = 0
	if q.LastByte > 0 {
		q.UpstreamDuration = max(0, q.LastByte-q.Waited)
	}
}
