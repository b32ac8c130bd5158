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

// explainPick adds to a prediction what the pick chose from. The load of the picked replica already
// has the request.
func (t *modelRoute) explainPick(p *pickInput, q *prompt, to *Prediction) {
	to.Strategy = string(t.strategy.name)
	f, predicted := p.forecasts, t.forecasts()
	for i := range t.replicas {
		c := request.Candidate{Replica: t.replicas[i].id, Load: int(t.replicas[i].load.Load()), Full: p.loads[i] < 0}
		if predicted {
			c.MatchedTokens, c.UncachedTokens = int(q.matchedTokens(f.matched[i])), int(f.uncached[i])
			c.WaitingTokens, c.TTFT = int(f.predictions[i].Waiting), f.candidates[i].TTFT
		}
		to.Candidates = append(to.Candidates, c)
	}
}
