// Package request keeps one record of each inference request, from its arrival to its end. It is
// used by package extproc and internal/relay, which add what they know, and by internal/telemetry
// and its trace package, which are told when a request has ended.
package request

import (
	"cmp"
	"strings"
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

// The ways that a request takes to its replica, as metrics and logs name them.
const (
	// RouteNative: Envoy passes the response on, and nobody but a reader in Envoy reads it.
	RouteNative = "native"
	// RouteManaged: the response goes through Sluice's relay, which reads every event.
	RouteManaged = "managed"
)

// Arrival is what is known of a request before it is dispatched.
type Arrival struct {
	// ID is Envoy's x-request-id. ClientID is the client's own id of the request (request_id), and
	// empty if it gave none.
	ID, ClientID string
	// Method and Path of the request, if they are known. The query is cut off the path.
	Method, Path string
	// Tenant is the name of the caller's tenant, Key names the caller's key. Key is empty if there
	// was none.
	Tenant, Key string
	// Model is the model's name or alias as the client sent it. Stream says that the client asked
	// for a streamed response. Bytes is the size of the body. If the body has not been read yet,
	// they and ClientID are zero, and Record.SetBody adds them.
	Model  string
	Stream bool
	Bytes  int
	// Canceller can cancel the request; nil: nobody can.
	Canceller Canceller
	// OnConnection says that the request is one of several on a connection, a WebSocket's say.
	// Envoy writes no access log entry for it, so Close ends it. ID is then one that no other
	// request has.
	OnConnection bool
}

// Summary is one request as an operator sees it. Fields that are not known (yet) are zero.
type Summary struct {
	// ID is Envoy's x-request-id. ClientID is the client's own id of the request, at most maxName
	// bytes of it; empty if the client gave none.
	ID, ClientID string
	// Method and Path; the path without its query. Empty until Envoy's log entry for the request
	// has come.
	Method, Path string
	// Tenant is the name of the caller's tenant, Key names the caller's key; empty if there was
	// none.
	Tenant, Key string
	// Model as the client named it until the request is dispatched, the model's own name after.
	Model string
	// Replica is where the dispatcher sent the request; once it has ended, the replica that served
	// it.
	Replica string
	// Upstream is the ip:port of the replica that served.
	Upstream string
	State    State
	// Status is the HTTP status of the answer; 0 when the client left without one.
	Status int
	// Code is the error code of an answer that Sluice itself gave, such as queue_full, or of the
	// error in which a managed stream has ended; empty otherwise.
	Code string
	// Route is RouteManaged when Sluice's relay carried the request, RouteNative when an engine's
	// response came through Envoy alone; empty until the request has ended, and for all others.
	Route string
	// Source says which side answered: headers.SourceGateway or headers.SourceEngine; empty until
	// the request has ended.
	Source string
	// Flags and Details are Envoy's words for how the request ended: see Entry.
	Flags, Details string
	// Stream is true when the client asked for a streamed response.
	Stream bool
	// Attempts is how often the request was tried at a replica.
	Attempts int
	// BytesIn and BytesOut count the bodies.
	BytesIn, BytesOut int64
	// PromptTokens and CompletionTokens are what the engine counted; 0 until the request has ended,
	// and where nothing is known. Where the engine did not count, CompletionTokens is the number of
	// events that had something of the answer, or an estimate if nobody has read the response.
	// PromptTokens is then an estimate.
	PromptTokens, CompletionTokens int64
	// UsageKnown says that the engine counted the two.
	UsageKnown bool
	// CachedTokens are those of PromptTokens that the engine had in its cache; 0 unless
	// CachedKnown.
	CachedTokens int64
	CachedKnown  bool
	// UsedApart says that the tokens are told to Subscribers.Used apart from the end of the
	// request, so that Finished must not add them to a sum. That is so if the generation goes on
	// after its client has left, or if another process has the record.
	UsedApart bool
	// Prediction is what was expected of the request when it was dispatched last.
	Prediction Prediction
	// FinishReason is why the engine has ended its response; empty if it has not ended it, or if
	// its responses have no such reason. FinishEstimated says that nobody has read the response and
	// that FinishReason is what its length suggests: stop or length.
	FinishReason    string
	FinishEstimated bool
	// Reading is what Envoy has read of a native response; nil if the response is not in the
	// sample.
	Reading *Reading
	// Abandoned says that a replica was at work on the request, and had not begun to answer, when
	// the client left or the time was over. Or Envoy has died meanwhile.
	Abandoned bool
	// Late is Cost.Late. Other processes are not told of it.
	Late *LateUsage `json:"-"`
	// Cause says who ended a stream before its end: CauseClient and so on; empty: nobody did, or
	// the response was no stream.
	Cause string
	// Trace is the traceparent of the request's own span, TraceParent the one that its client sent;
	// empty where the request is not traced.
	Trace, TraceParent string
	Started            time.Time
	// Waited is how long the request was held before it was sent to a replica or refused.
	Waited time.Duration
	// FirstByte is from Envoy's receipt of the request to the first byte of the response's body, of
	// a managed one to its first token.
	FirstByte time.Duration
	// Decode is from the first token to the last, of managed streams and of those with a Reading.
	Decode time.Duration
	// LastByte is from Envoy's receipt of the request to the last byte of the engine's response; 0
	// unless that is whole.
	LastByte time.Duration
	// Duration is from Envoy's receipt of the request to its end, or until now.
	Duration time.Duration
	// UpstreamDuration is what the replica took: first byte sent to last byte received. Of a
	// managed response it is the time from its leaving for the replica to the end.
	UpstreamDuration time.Duration
}

// Usage is what the response has cost.
func (q *Summary) Usage() Usage {
	return Usage{Prompt: q.PromptTokens, Completion: q.CompletionTokens, Known: q.UsageKnown, Cached: q.CachedTokens, CachedKnown: q.CachedKnown}
}

func (q *Summary) setUsage(u Usage) {
	q.PromptTokens, q.CompletionTokens, q.UsageKnown = u.Prompt, u.Completion, u.Known
	q.CachedTokens, q.CachedKnown = u.Cached, u.CachedKnown
}

// FirstTokenAfterPick returns the time from the pick of the replica to the first token, as it was
// predicted and as it was. It is known for streams whose first replica has answered.
func (q *Summary) FirstTokenAfterPick() (predicted, took time.Duration, ok bool) {
	predicted, took = q.Prediction.TTFT, q.FirstByte-q.Waited
	seen := q.Route == RouteManaged || q.Path != responsesPath
	return predicted, took, seen && q.Stream && q.Source == headers.SourceEngine && q.Attempts <= 1 && q.FirstByte > 0 && predicted > 0 && took > 0
}

// IsEstimated reports whether there are counts of tokens that no engine has told. The count of a
// stream that Cause has ended may be of its engine. The ledger has it as an estimate, because the
// engine may have done more.
func (q *Summary) IsEstimated() bool { return !q.UsageKnown && q.PromptTokens+q.CompletionTokens > 0 }

// TTFT returns the time from Envoy's receipt of a streamed request to the first token. For a native
// stream that Envoy has not read, the first byte of the body stands for the first token. 0: there
// was none.
func (q *Summary) TTFT() time.Duration {
	if q.Reading != nil && q.Reading.Tokens > 0 && q.FirstByte > 0 {
		return max(q.within(q.Reading.First.Sub(q.Started)), q.FirstByte)
	}
	return q.FirstByte
}

// maxSlew is by how much the clock of the machine may be adjusted during a request.
const maxSlew = time.Second

// within returns the time between two moments of the request by the clock of the machine. It is 0,
// not known, if it is longer than the request: somebody has set the clock meanwhile.
func (q *Summary) within(d time.Duration) time.Duration {
	if d > q.Duration+maxSlew {
		return 0
	}
	return max(0, d)
}

// TraceID is the id of the trace that the request belongs to, in hexadecimal; empty when it is not
// traced.
func (q *Summary) TraceID() string {
	_, rest, _ := strings.Cut(q.Trace, "-") // version-trace-span-flags
	id, _, _ := strings.Cut(rest, "-")
	return id
}

// IsProbe says that the request was a load balancer's health check, and went well. Such requests
// are counted but not kept, as they would push the others out of sight.
func (q *Summary) IsProbe() bool { return isProbe(q.Path, q.Status) }

func isProbe(path string, status int) bool { return path == "/health" && status == 200 }

// Prediction is what the dispatcher expected of a request when it picked the replica. The zero
// value says that it expected nothing, as for models whose routing does not predict.
type Prediction struct {
	// TTFT is the expected time from the pick to the first token; 0 means not known.
	TTFT time.Duration
	// MatchedTokens are the tokens of the prompt that the replica was expected to have in its
	// cache; 0 unless Known.
	MatchedTokens int
	Known         bool
	// Reason is a word for why the replica won, such as "cached"; empty if nothing is known.
	Reason string
	// Moved is a word for why the request left the replica that had served its session or the
	// longest beginning of its prompt, such as "load". It is empty if the request did not leave
	// one.
	Moved string
	// Strategy is the name of the routing strategy. It, Considered and Candidates are known only of
	// the picks that the dispatcher explains.
	Strategy string
	// Considered is how many replicas the dispatcher chose from. Candidates are the picked one and
	// the best of the others, or all of them.
	Considered int
	Candidates []Candidate
}

// Candidate is a replica as a pick saw it.
type Candidate struct {
	Replica string
	// Load is how many requests the replica had without this one. Full says that it had no free
	// slot, Picked that the request was sent there.
	Load         int
	Full, Picked bool
	// MatchedTokens are the tokens of the prompt in the replica's cache, UncachedTokens those that
	// it has to compute, WaitingTokens those that it computes before them. TTFT is the predicted
	// time to the first token. All are 0 where routing does not predict.
	MatchedTokens, UncachedTokens, WaitingTokens int
	TTFT                                         time.Duration
}

// Compare orders candidates, the best one first: the picked one, then those with a free slot, by
// their predicted first token and by their load.
func (c *Candidate) Compare(d *Candidate) int {
	first := func(x, y bool) int {
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	}
	return cmp.Or(first(c.Picked, d.Picked), first(d.Full, c.Full), cmp.Compare(c.TTFT, d.TTFT), cmp.Compare(c.Load, d.Load))
}

// Response is what is known of a response that has ended: it corrects what the request was charged,
// and teaches the dispatcher's estimates.
type Response struct {
	// Bytes of its body.
	Bytes int64
	// Stream says that it came as events.
	Stream bool
	// Failed says that the engine gave no answer: an error, or nothing. Abandoned says that it was
	// at work on a Failed response when the client left or the time was over. Lost says that nobody
	// knows the response, because Envoy has died with it; it is Failed and Abandoned then.
	Failed, Abandoned, Lost bool
	// Prompt and Completion are the tokens that the engine counted, if Known. Else Completion is
	// the number of events with a part of the answer; 0: nobody has read the response.
	Prompt, Completion int64
	Known              bool
	// Cached is how many of Prompt the engine needed not compute, as far as it told.
	Cached int64
	// TTFT is from when the request left for the replica to its first token; 0: not known, or there
	// was none.
	TTFT time.Duration
}

// Cost is what a response has cost, as far as its size tells.
type Cost struct {
	// Usage is estimated unless Known.
	Usage Usage
	// Partial says that the engine has counted only a part of the answer. Usage then replaces that
	// count.
	Partial bool
	// Doubted says that the usage that the engine has told cannot be true. Usage then replaces it.
	Doubted bool
	// Finish is the likely reason for which a whole response has ended, stop or length; empty for a
	// response without text.
	Finish string
	// Late is where the engine tells the usage of a response in the background later; nil: nobody
	// waits for it.
	Late *LateUsage
}

// Hold is what a native request holds at its model and its replica until it ends: the dispatcher's
// ticket. Its methods may be called from any goroutine and without a lock.
type Hold interface {
	// Moved tells that Envoy's retry took the request to the replica at this address (ip:port).
	Moved(address string)
	// FirstToken tells that the response has begun. False: it is too late for that.
	FirstToken() bool
	// WantsResponseID reports whether LearnResponse is to be called.
	WantsResponseID() bool
	// LearnResponse tells the id of the response, by which a later request may continue it.
	LearnResponse(id string)
	// Correct corrects the charge of the request to its real usage. Only the first call counts,
	// before or after Release. It returns what the response has cost.
	Correct(Response) Cost
	// Release frees everything. Only the first call counts.
	Release()
}

// Follower is told what becomes of a request that the relay carries. A *Record is one.
type Follower interface {
	// SetDispatched tells that the request leaves for this replica of this model (by its own name,
	// not an alias) after it has waited so long.
	SetDispatched(model, replica string, waited time.Duration)
	// SetPrediction tells what is expected of the request that SetDispatched told of.
	SetPrediction(p Prediction)
	// AddRetry tells that an attempt has failed at a replica, or had to give its slot back, for
	// ReasonConnect and so on, and that another attempt follows.
	AddRetry(reason, replica string)
	// SetTrace tells the traceparent of the request's own span, and the one that its client sent.
	SetTrace(own, client string)
	// SetCanceller tells who can cancel the request from now on.
	SetCanceller(c Canceller)
	// SetOutcome tells how the request has ended.
	SetOutcome(o Outcome)
	// SetUsage tells what the request has used in the end, after an Outcome with UsedElsewhere. It
	// is shown and not counted.
	SetUsage(u Usage)
}
