package dispatch

import (
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

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

// maxExplained bounds the candidates that are recorded of a pick, and explainedPerSecond the picks
// of which any are. So the cost does not grow with the rate of requests (decision 108).
const (
	maxExplained       = 8
	explainedPerSecond = 50
)

// candidatesToExplain returns how many candidates of a pick among so many replicas are recorded.
func (d *Dispatcher) candidatesToExplain(replicas int, now time.Time) int {
	switch {
	case d.config.ExplainPicks:
		return replicas
	case d.explained.acquire(now, explainedPerSecond):
		return min(replicas, maxExplained)
	}
	return 0
}

// pickExplained is a pick that is explained: the index of the picked replica, the prompt, and how
// many candidates are recorded.
type pickExplained struct {
	picked int
	prompt *prompt
	most   int
}

// explainPick adds to a prediction what the pick chose from: the picked replica and the best of the
// others, in the order of the replicas.
func (t *modelRoute) explainPick(p *pickInput, e pickExplained, to *Prediction) {
	to.Strategy, to.Considered = string(t.strategy.name), len(t.replicas)
	to.Candidates = make([]request.Candidate, 0, e.most)
	for i := range t.replicas {
		c := t.candidate(p, &e, i)
		if len(to.Candidates) < e.most {
			to.Candidates = append(to.Candidates, c)
			continue
		}
		worst := 0
		for n := range to.Candidates {
			if to.Candidates[worst].Compare(&to.Candidates[n]) < 0 {
				worst = n
			}
		}
		if c.Compare(&to.Candidates[worst]) < 0 {
			to.Candidates = append(slices.Delete(to.Candidates, worst, worst+1), c)
		}
	}
}

// candidate returns a replica as the pick saw it. The picked replica has the request already, which
// is not in its load here.
func (t *modelRoute) candidate(p *pickInput, e *pickExplained, i int) request.Candidate {
	c := request.Candidate{Replica: t.replicas[i].id, Load: int(t.replicas[i].load.Load()), Full: p.loads[i] < 0, Picked: i == e.picked}
	if c.Picked {
		c.Load--
	}
	if f := p.forecasts; t.forecasts() {
		c.MatchedTokens, c.UncachedTokens = int(e.prompt.matchedTokens(f.matched[i])), int(f.uncached[i])
		c.WaitingTokens, c.TTFT = int(f.predictions[i].Waiting), f.candidates[i].TTFT
	}
	return c
}
