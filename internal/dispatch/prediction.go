package dispatch

import "time"

// Prediction is what dispatch expected of a request when it picked the replica. The zero value says
// that dispatch expected nothing, as for requests of the other strategies.
type Prediction struct {
	// TTFT is the expected time from the pick to the first token; 0 means not known.
	TTFT time.Duration
	// MatchedTokens are the tokens of the prompt that the replica was expected to have in its
	// cache. Known says that MatchedTokens was estimated; it may be 0 then.
	MatchedTokens int
	Known         bool
	// Moved says why the request left the replica that had served its session or the longest
	// beginning of its prompt. Empty means that the request did not leave it.
	Moved Move
}

// Move says why a request left the replica that had served its session or the longest beginning of
// its prompt.
type Move string

// The reasons of moves.
const (
	// moveLoad: the replica was over the bound of loads, or another promised a sooner first token.
	moveLoad Move = "load"
	// moveFull: the replica had no free slot.
	moveFull Move = "full"
	// moveReplicaGone: the replica may not be picked any more.
	moveReplicaGone Move = "replica_gone"
	// moveEvicted: the replica was expected to have lost the beginning from its cache.
	moveEvicted Move = "evicted"
)

// Prediction returns what dispatch expected of the request when it picked the replica.
func (t *Ticket) Prediction() Prediction {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.prediction
}

// WantsResponseID reports whether LearnResponse is to be called.
func (t *Ticket) WantsResponseID() bool { return t.wantsResponseID }

// LearnResponse tells the id of the response that the replica of the ticket gives, so that a
// request which continues the response finds the replica. It may be called more than once, and
// after Release. An empty id is ignored.
func (t *Ticket) LearnResponse(id string) {}
