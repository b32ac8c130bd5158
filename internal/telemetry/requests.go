package telemetry

import (
	"container/list"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// State is where a request is in its life.
type State string

// The states of a request.
const (
	// Queued: it waits for admission or for a replica.
	Queued State = "queued"
	// Streaming: it was sent to a replica and its response, streamed or not, has not ended.
	Streaming State = "streaming"
	// Done: its response has ended, or Sluice or Envoy answered in a replica's stead.
	Done State = "done"
)

// Request is one request as the operator sees it. Fields that are not known (yet) are zero.
type Request struct {
	// ID is Envoy's x-request-id.
	ID string
	// Method and Path; the path without its query. Empty until Envoy's record of the request has come.
	Method, Path string
	Tenant       string
	// Model as the client named it until the request is decided, the model's own name after.
	Model string
	// Replica is where the dispatcher sent the request; once it has ended, the replica that served it.
	Replica string
	// Upstream is the ip:port of the replica that served.
	Upstream string
	State    State
	// Status is the HTTP status of the answer; 0 when the client left without one.
	Status int
	// Code is the error code of an answer that Sluice itself gave, such as queue_full, or of the error in which a managed stream has ended;
	// empty otherwise.
	Code string
	// Route is RouteManaged when Sluice's relay carried the request, RouteNative when an engine's response came through Envoy alone; empty
	// until the request has ended, and for all others.
	Route string
	// Source says which side answered: headers.SourceGateway or headers.SourceEngine; empty until the request has ended.
	Source string
	// Flags and Details are Envoy's words for how it ended: see Entry.
	Flags, Details string
	// Stream is true when the client asked for a streamed response.
	Stream bool
	// Attempts is how often the request was tried upstream.
	Attempts int
	// BytesIn and BytesOut count the bodies.
	BytesIn, BytesOut int64
	// PromptTokens and CompletionTokens are what the engine counted; 0 until the request has ended, and where the count is not known. Of a
	// managed stream whose engine did not count, CompletionTokens is the number of its events that had something of the answer.
	PromptTokens, CompletionTokens int64
	// UsageKnown says that the engine counted the two.
	UsageKnown bool
	// CachedTokens are those of PromptTokens that the engine had in its cache; 0 unless CachedKnown.
	CachedTokens int64
	CachedKnown  bool
	// FinishReason is why the engine has ended its response; empty where nobody has read it, as in native streams.
	FinishReason string
	// Cause says who ended a stream before its end: CauseClient and so on; empty: nobody did, or it was none.
	Cause string
	// Trace is the traceparent of the request's own span, TraceParent that which its client sent; empty where the request is not traced.
	Trace, TraceParent string
	Started            time.Time
	// Waited is how long the request was held before it was sent to a replica or refused.
	Waited time.Duration
	// FirstByte is from Envoy's receipt of the request to the first byte of the response's body, of a managed one to its first token.
	FirstByte time.Duration
	// Decode is from the first token to the last, of managed streams.
	Decode time.Duration
	// LastByte is from Envoy's receipt of the request to the last byte of the engine's response; 0 unless that is whole.
	LastByte time.Duration
	// Duration is from Envoy's receipt of the request to its end, or until now.
	Duration time.Duration
	// UpstreamDuration is what the replica took: first byte sent to last byte received. Of a managed response it is the time from its leaving
	// for the replica to the end.
	UpstreamDuration time.Duration
}

// Requests keeps the requests that run and the last that have ended. Make it with NewRequests. Its methods are safe for
// concurrent use; each takes one lock for well under a microsecond. A nil *Requests keeps nothing.
type Requests struct {
	mu sync.Mutex
	// byID finds what a record of the access log or an End still has to be joined with; guarded by mu
	byID map[string]*Live
	// live has every running request, *Live, oldest first; guarded by mu
	live *list.List
	// done is a ring of the last finished ones, next the place of the next; guarded by mu
	done []*Live
	next int
	// finished is told of every request that has ended other than with the record that Join was given; nil: nobody is. Guarded by mu
	finished func(Request)
	// swept is when requests that nobody hears of any more were last looked for; guarded by mu
	swept time.Time
}

const (
	defaultKeep = 512
	// logOnlyTTL is how long a running request that is known from the access log alone is believed in without a new
	// record; its end was lost with the Envoy that served it.
	logOnlyTTL = 5 * time.Minute
	sweepEvery = time.Minute
	// maxName bounds what a client chooses and we keep.
	maxName = 200
)

// NewRequests returns a store that keeps the last keep finished requests; 0 means 512.
func NewRequests(keep int) *Requests {
	if keep <= 0 {
		keep = defaultKeep
	}
	return &Requests{byID: map[string]*Live{}, live: list.New(), done: make([]*Live, keep)}
}

// Begun is what is known of a request before it is dispatched.
type Begun struct {
	// ID is Envoy's x-request-id.
	ID string
	// Method and Path of the request, if they are at hand; the path may have a query, which is cut off.
	Method, Path string
	// Tenant is who calls, Model what it asked for.
	Tenant, Model string
	// Stream is true when it asked for a streamed response.
	Stream bool
	// Bytes of the request's body.
	Bytes int
	// Turn says that no record of Envoy's will come, because the request is a turn of a connection: it is finished, counted and logged with its
	// End. ID is then one that no other turn and no request has.
	Turn bool
}

// Begin notes a request that Sluice is to dispatch. Every Begin must be followed by one End.
func (r *Requests) Begin(b Begun) *Live {
	if r == nil {
		return nil
	}
	l := &Live{requests: r, began: time.Now(), turn: b.Turn}
	l.row = Request{
		ID: b.ID, Method: b.Method, Path: cleanPath(b.Path), Tenant: b.Tenant, Model: clip(b.Model),
		State: Queued, Stream: b.Stream, BytesIn: int64(b.Bytes), Started: l.began,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l.place = r.live.PushBack(l)
	if b.ID != "" && !b.Turn {
		r.byID[b.ID] = l
	}
	return l
}

// Live is one request in the eyes of the dispatcher. A nil *Live does nothing.
type Live struct {
	requests *Requests
	began    time.Time

	// row and what follows are guarded by requests.mu
	row Request
	// place in requests.live; nil once it is done
	place *list.Element
	// decided: it was sent to a replica. ended: End was called. logged: Envoy's final record was joined. The request is done
	// with the first of the latter two.
	decided, ended, logged bool
	// failures counts the failed attempts; failure is why the last one failed, until it is seen to be repeated
	failures int
	failure  string
	// logOnly: known from the access log alone. heard: when the last periodic record came.
	logOnly bool
	heard   time.Time
	// carried is what the relay told, record is Envoy's final one that came before that. turn: no record will come.
	carried *Carried
	record  *Entry
	turn    bool
}

// Decided notes that the request leaves for a replica of the model (its own name, not an alias) after having waited so long.
func (l *Live) Decided(model, replica string, waited time.Duration) {
	if l == nil {
		return
	}
	l.requests.mu.Lock()
	defer l.requests.mu.Unlock()
	l.decided = true
	l.row.Model, l.row.Replica, l.row.Waited = model, replica, waited
	if l.row.State == Queued {
		l.row.State = Streaming
	}
}

// Trace notes the traceparent of the request's own span, and the one that its client sent.
func (l *Live) Trace(own, client string) {
	if l == nil || own == "" {
		return
	}
	l.requests.mu.Lock()
	defer l.requests.mu.Unlock()
	l.row.Trace, l.row.TraceParent = own, client
}

// End notes that the request is over for Sluice. Status and code are those of the error that Sluice answered with; 0 and
// empty when it was not Sluice that answered. Calls after the first do nothing.
func (l *Live) End(status int, code string) {
	if l != nil {
		l.requests.tell(l.end(status, code))
	}
}

// end returns the request and true when nothing else was awaited of it and nobody was told yet.
func (l *Live) end(status int, code string) (Request, bool) {
	l.requests.mu.Lock()
	defer l.requests.mu.Unlock()
	if l.ended {
		return Request{}, false
	}
	l.ended = true
	if code != "" {
		l.row.Code = code
		if l.carried == nil {
			l.row.Source = headers.SourceGateway
		}
	}
	if !l.decided && l.carried == nil {
		l.row.Waited = time.Since(l.began)
	}
	if l.row.Status == 0 {
		l.row.Status = status
	}
	switch {
	case l.turn:
		return l.turnLocked(), true
	case l.record != nil:
		return l.heldLocked()
	case l.logged:
		l.requests.forgetLocked(l)
	default:
		l.row.Duration = time.Since(l.began)
		l.requests.finishLocked(l)
	}
	return Request{}, false
}

// tell passes on a request that has ended, if it has.
func (r *Requests) tell(q Request, ended bool) {
	if !ended {
		return
	}
	r.mu.Lock()
	finished := r.finished
	r.mu.Unlock()
	if finished != nil {
		finished(q)
	}
}

// finishLocked moves a request from the running to the finished, where it takes the place of the oldest.
func (r *Requests) finishLocked(l *Live) {
	r.live.Remove(l.place)
	l.place = nil
	l.row.State = Done
	if old := r.done[r.next]; old != nil {
		r.forgetLocked(old)
	}
	r.done[r.next] = l
	r.next = (r.next + 1) % len(r.done)
}

// forgetLocked ends the joining: nothing more is expected for this request.
func (r *Requests) forgetLocked(l *Live) {
	if r.byID[l.row.ID] == l {
		delete(r.byID, l.row.ID)
	}
}

// List returns the running requests and then the finished ones, each newest first and each at most limit, and the number of
// all that run. A limit of 0 or less means all that are kept.
func (r *Requests) List(limit int) (rows []Request, running int) {
	if r == nil {
		return nil, 0
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(now)
	running = r.live.Len()
	if limit <= 0 {
		limit = max(running, len(r.done))
	}
	rows = make([]Request, 0, min(limit, running)+min(limit, len(r.done)))
	for e := r.live.Back(); e != nil && len(rows) < limit; e = e.Prev() {
		rows = append(rows, e.Value.(*Live).soFar(now))
	}
	for i := 1; i <= min(limit, len(r.done)); i++ {
		l := r.done[(r.next-i+len(r.done))%len(r.done)]
		if l == nil {
			break
		}
		rows = append(rows, l.row)
	}
	return rows, running
}

// soFar is a running request with its times until now.
func (l *Live) soFar(now time.Time) Request {
	row := l.row
	row.Duration = now.Sub(row.Started)
	if row.State == Queued {
		row.Waited = now.Sub(l.began)
	}
	return row
}

// clip bounds a name that a client chose.
func clip(name string) string {
	if len(name) > maxName {
		return name[:maxName]
	}
	return name
}
