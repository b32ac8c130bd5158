package request

import (
	"bytes"
	"cmp"
	"container/list"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Store keeps the requests that run and the last that have ended. Make it with NewStore. Its
// methods are safe for concurrent use. Each takes one lock, for well under a microsecond, and calls
// subscribers and holds without it. A nil *Store keeps nothing.
type Store struct {
	subscribers Subscribers
	// teller tells Subscribers.Finished.
	teller teller

	mu sync.Mutex
	// byID finds a record by Envoy's request id while news of the request may still come: an entry
	// of the access log, or Close; guarded by mu.
	byID map[string]*Record
	// running has every running request, *Record, oldest first; guarded by mu.
	running *list.List
	// finished is a ring of the last finished requests, next the index of the next; guarded by mu.
	finished []*Record
	next     int
	// late has requests, oldest first, that a replica had and that were pushed out of finished
	// before Envoy's log entry for them came. It also has those that have ended before the id of
	// their response came. They stay in byID for lateNews, so that the entry still joins them, and
	// the id is learned; guarded by mu.
	late []*Record
	// swept is when requests that nobody hears of any more were last looked for; guarded by mu.
	swept time.Time
}

// Subscribers are told what happens to requests. Each func must be quick and safe for concurrent
// use; nil: nobody is told.
type Subscribers struct {
	// Dispatched is told of each request that leaves for a replica of a model, after it has waited
	// so long.
	Dispatched func(model, replica string, waited time.Duration)
	// Retried is told why Envoy repeated an attempt for a tenant at another replica of a model:
	// ReasonConnect and so on.
	Retried func(model, tenant, reason string)
	// Begun is told what FirstToken is told of a request that the store does not know, and returns
	// what FirstToken returns. nil: nobody is told.
	Begun func(id string, begin []byte) (wantsMore bool)
	// Picked is told of each request whose replica was picked, with its Prediction.
	Picked func(Summary)
	// CostOf returns what a native request of before a restart has cost, by the entry that ends it.
	CostOf func(*Entry) Cost
	// Lost is called for each request of before a restart that ends without a final entry, because
	// its Envoy has died. The entry says what is known of its end. nil: nothing is called.
	Lost func(*Entry)
	// Lives reports whether the Envoy with this pid runs, or may still be heard by another process.
	Lives func(pid int) bool
	// Used is told what each request has used, once, as soon as that is known. It is known of a
	// managed request when the relay is done with it, and of another one when its log entry has
	// come. It is told before Finished. It is also told of requests that have used nothing. It must
	// not keep the Summary.
	Used func(*Summary)
	// Elsewhere is told of each managed request that has ended here and whose final entry goes to
	// another process. It is told again when the usage of an ended request is known.
	Elsewhere func(Summary)
	// Finished are told of every request that has ended, once, at most FinishedDelay later. 0: at
	// once.
	Finished      []func(Summary)
	FinishedDelay time.Duration
}

const (
	defaultKeep = 512
	// logOnlyTTL is how long a running request that is known from the access log alone is believed
	// in without a new entry. It counts if nobody can tell whether its Envoy lives.
	logOnlyTTL = 5 * time.Minute
	sweepEvery = time.Minute
	// lateNews is how long the access log may take to tell of a request's end. Entries come within
	// some 100 ms, unless Envoy has died.
	lateNews = 10 * time.Second
)

// NewStore returns a store that keeps the last keep finished requests; 0 means 512.
func NewStore(keep int) *Store {
	if keep <= 0 {
		keep = defaultKeep
	}
	return &Store{byID: map[string]*Record{}, running: list.New(), finished: make([]*Record, keep)}
}

// Subscribe sets who is told. Call it once, before the first request.
func (s *Store) Subscribe(to Subscribers) {
	if s != nil {
		s.subscribers = to
		s.teller.to, s.teller.delay = to.Finished, to.FinishedDelay
	}
}

// TellFinished tells Subscribers.Finished of all requests that have ended before the call. It
// returns when they were told.
func (s *Store) TellFinished() {
	if s != nil {
		s.teller.flush()
	}
}

// Begin makes the record of a request that Sluice is to dispatch. Every Begin must be followed by
// one Record.Close.
func (s *Store) Begin(a Arrival) *Record {
	if s == nil {
		return nil
	}
	r := &Record{store: s, waitingSince: time.Now(), onConnection: a.OnConnection, canceller: a.Canceller}
	r.summary = Summary{
		ID: a.ID, ClientID: clip(a.ClientID), Method: a.Method, Path: CleanPath(a.Path), Tenant: a.Tenant, Key: a.Key, Model: clip(a.Model),
		State: Queued, Stream: a.Stream, BytesIn: int64(a.Bytes), Started: r.waitingSince,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.element = s.running.PushBack(r)
	if a.ID != "" && !a.OnConnection {
		s.byID[a.ID] = r
	}
	return r
}

// FirstToken tells that the response of a native request has begun with these bytes. It returns
// true if the request wants the id of the response or its first token, and the bytes do not have
// both. The caller may then call again with a longer beginning. Of an id that is not known
// Subscribers.Begun is told.
func (s *Store) FirstToken(id string, begin []byte) (wantsMore bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	var hold Hold
	ended, stream := false, false
	r := s.byID[id]
	if r != nil {
		hold, ended, stream = r.hold, r.closed, r.summary.Stream
	}
	s.mu.Unlock()
	switch {
	case r == nil && s.subscribers.Begun != nil:
		return s.subscribers.Begun(id, begin)
	case hold == nil:
		return false
	}
	if !hold.WantsResponseID() {
		hold.FirstToken()
		return false
	}
	// A response of the Responses API begins long before its first token, or is whole.
	hasToken := bytes.Contains(begin, []byte(`.delta"`))
	if hasToken && stream && !ended {
		hold.FirstToken()
	}
	response := openai.ResponseID(begin)
	if response == "" {
		return true
	}
	hold.LearnResponse(response)
	s.setNamed(id)
	return stream && !hasToken
}

// setNamed records that the id of a response is known.
func (s *Store) setNamed(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[id]; r != nil {
		r.unnamed = false
	}
}

// List returns the running requests and then the finished ones, each newest first and each at most
// limit, and the number of all that run. A limit of 0 or less means all that are kept.
func (s *Store) List(limit int) (all []Summary, running int) {
	if s == nil {
		return nil, 0
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(now)
	running = s.running.Len()
	if limit <= 0 {
		limit = max(running, len(s.finished))
	}
	all = make([]Summary, 0, min(limit, running)+min(limit, len(s.finished)))
	for e := s.running.Back(); e != nil && len(all) < limit; e = e.Prev() {
		all = append(all, e.Value.(*Record).soFar(now))
	}
	for i := 1; i <= min(limit, len(s.finished)); i++ {
		r := s.finished[(s.next-i+len(s.finished))%len(s.finished)]
		if r == nil {
			break
		}
		all = append(all, r.summary)
	}
	return all, running
}

// AddEnded adds a request that has ended at another process of the gateway. A request that the
// store knows already is not added again. Envoy's log may tell this process of the end of a request
// that the relay of the other one has carried. The entry knows no model: it joins q if q has come
// before, and else q joins it. The entry of a native request joins q if the other process had none.
// A request that runs by periodic entries of the log has ended.
func (s *Store) AddEnded(q Summary) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.ID != "" {
		if known := s.anyLocked(func(r *Record) bool { return r.summary.ID == q.ID }); known != nil {
			switch {
			case known.elsewhere && known.summary.Status != 0 && q.Status == 0: // the entry has joined it
				known.summary.setUsage(q.Usage())
			case known.elsewhere:
				known.summary = q
			case known.element == nil && known.summary.Model == "":
				q.takeEnd(&known.summary)
				known.summary, known.elsewhere = q, true
			case known.element != nil && known.logOnly:
				known.summary, known.logged, known.lost = q, true, true
				s.finishLocked(known)
			}
			return
		}
	}
	if oldest := s.finished[s.next]; oldest != nil && q.ended().Before(oldest.summary.ended()) {
		return // it was pushed out of the list before its usage was known
	}
	r := &Record{store: s, summary: q, logOnly: true, closed: true, logged: true, elsewhere: true, waitingSince: q.Started, closedAt: time.Now()}
	r.element = s.running.PushBack(r)
	s.finishLocked(r)
	if q.ID != "" {
		s.byID[q.ID] = r
		s.awaitLocked(r)
	}
}

// ended returns when a finished request has ended.
func (q *Summary) ended() time.Time { return q.Started.Add(q.Duration) }

// takeEnd takes what only Envoy's log entry tells of a managed request.
func (q *Summary) takeEnd(entry *Summary) {
	q.Method, q.Path, q.Status = entry.Method, entry.Path, cmp.Or(entry.Status, q.Status)
	q.Flags, q.Details, q.Duration = entry.Flags, entry.Details, entry.Duration
	q.BytesIn, q.BytesOut = max(q.BytesIn, entry.BytesIn), entry.BytesOut
}

// Running returns the number of requests that run, and how many of them are streams. It walks all
// of them.
func (s *Store) Running() (requests, streams int) {
	if s == nil {
		return 0, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.running.Front(); e != nil; e = e.Next() {
		requests++
		if e.Value.(*Record).summary.Stream {
			streams++
		}
	}
	return requests, streams
}

// finishLocked moves a request from the running to the finished, where it replaces the oldest.
func (s *Store) finishLocked(r *Record) {
	s.running.Remove(r.element)
	r.element = nil
	r.summary.State = Done
	if old := s.finished[s.next]; old != nil {
		s.evictLocked(old)
	}
	s.finished[s.next] = r
	s.next = (s.next + 1) % len(s.finished)
}

// endLocked ends the joining of a request of which the log entry and Close have come. The id of a
// short response may come after both, and so may the log of attempts, which is a stream of its own.
func (s *Store) endLocked(r *Record) {
	if r.awaitsNews() {
		s.awaitLocked(r)
	} else {
		s.forgetLocked(r)
	}
}

// awaitLocked keeps a request in byID for lateNews.
func (s *Store) awaitLocked(r *Record) {
	now := time.Now()
	s.late = append(s.late, r)
	for len(s.late) > 0 && now.Sub(s.late[0].closedAt) > lateNews {
		s.forgetLocked(s.late[0])
		s.late[0] = nil
		s.late = s.late[1:]
	}
}

// evictLocked ends the joining of a request that is pushed out of the finished ones. It does not if
// Envoy's log entry is still to come and the entry alone would not do. The entry corrects the
// charge of a native request. It knows neither the model nor the tokens of a managed one.
func (s *Store) evictLocked(r *Record) {
	switch {
	case r.awaitsNews() && r.logged: // endLocked has it
	case r.logged, r.onConnection, !r.dispatched && r.outcome == nil:
		s.forgetLocked(r)
	default:
		s.awaitLocked(r)
	}
}

// forgetLocked ends the joining: nothing more is expected for this request.
func (s *Store) forgetLocked(r *Record) {
	if r.closed { // else Close has yet to release it
		r.hold = nil
	}
	if s.byID[r.summary.ID] == r {
		delete(s.byID, r.summary.ID)
	}
}

// dropLocked takes a running request out of the list without counting it.
func (s *Store) dropLocked(r *Record) {
	s.running.Remove(r.element)
	r.element = nil
	s.forgetLocked(r)
}

// sweepLocked drops running requests that are known from the access log alone and were not heard of
// for long, if their Envoy is not known. It walks all that run, so it does that once a minute at
// most.
func (s *Store) sweepLocked(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for e := s.running.Front(); e != nil; {
		r := e.Value.(*Record)
		e = e.Next()
		if r.logOnly && r.interim == nil && now.Sub(r.heard) > logOnlyTTL {
			s.dropLocked(r)
		}
	}
}

// used tells what a request has used. Called without the lock.
func (s *Store) used(q *Summary) {
	if s.subscribers.Used == nil {
		return
	}
	told := toldPool.Get().(*Summary)
	*told = *q
	s.subscribers.Used(told)
	*told = Summary{}
	toldPool.Put(told)
}

// toldPool has storage for what used tells.
var toldPool = sync.Pool{New: func() any { return new(Summary) }}

// finish tells the subscribers of a request that has ended. Called without the lock.
func (s *Store) finish(q *Summary) { s.teller.finished(q) }
