package dispatch

import "github.com/sluice-gateway/sluice/internal/request"

// Prediction is what dispatch expected of a request when it picked the replica.
type Prediction = request.Prediction

// The reasons for which a request leaves its replica, see Prediction.Moved.
const (
	// moveLoad: the replica was over the bound of loads, or another promised a sooner first token.
	moveLoad = "load"
	// moveFull: the replica had no free slot.
	moveFull = "full"
	// moveReplicaGone: the replica may not be picked any more.
	moveReplicaGone = "replica_gone"
)

// Prediction returns what dispatch expected of the request when it picked the replica.
func (t *Ticket) Prediction() Prediction {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.prediction
}

// WantsResponseID reports whether LearnResponse is to be called.
func (t *Ticket) WantsResponseID() bool { return t.wantsResponseID }
