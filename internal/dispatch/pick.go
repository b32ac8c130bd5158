package dispatch

import (
	"cmp"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
)

// Question is a request as Explain reads it. The zero value is a request without a prompt.
type Question struct {
	// Key is the position of the request on the ring. It is only read if Request is nil.
	Key uint64
	// Request is the whole request; nil means that only its key is known.
	Request *Request
	// PromptTokens is the length of a prompt that no replica has in its cache. It is only read if
	// Request is nil.
	PromptTokens int
}

// Routing explains a pick.
type Routing struct {
	// Key is the position of the key on the ring.
	Key uint64
	// Picked is the replica that the request would get now; empty if none has a free slot.
	Picked string
	// Reason says in a word why the replica was picked: a predict.Reason, or the name of a strategy
	// that does not predict. It is empty if Picked is.
	Reason string
	// PromptTokens is the estimated length of the prompt.
	PromptTokens int
	// Order lists all replicas in ring order from the key.
	Order []Candidate
}

// Candidate is a replica as a pick sees it.
type Candidate struct {
	ID   string
	Load int
	// Free is false for a replica at its limit.
	Free bool
	// MatchedTokens are the tokens of the prompt that the replica has in its cache, UncachedTokens
	// those that it has to compute. WaitingTokens are computed before them.
	MatchedTokens, UncachedTokens, WaitingTokens int
	// Rate is how many tokens the replica computes in a second.
	Rate float64
	// TTFT is the predicted time to the first token.
	TTFT time.Duration
}

// Explain returns what a pick would do now; false means that there is no such model. It changes
// nothing.
func (d *Dispatcher) Explain(model string, q Question) (Routing, bool) {
	w := d.table.Load()
	m, ok := w.snapshot.Resolve(model)
	if !ok {
		return Routing{}, false
	}
	t := w.routes[m.Name]
	key, about := q.Key, prompt{tokens: float64(q.PromptTokens)}
	if r := q.Request; r != nil {
		c := choice{members: []*modelRoute{t}}
		about = c.promptOf(r, t.estimator.estimate(r).tokens.prompt)
		key = c.keys(r, &about).of(t.policy.UserMessages)
	}
	f := new(forecasts)
	p := pickInput{key: key, loads: t.loads(nil), now: t.warmUpTime(), peek: true, forecasts: f}
	free := make([]bool, len(p.loads))
	t.forecast(f, &about, p.loads, time.Now())
	for i, load := range p.loads {
		free[i] = load >= 0
	}
	r := Routing{Key: key, PromptTokens: int(about.tokens)}
	if picked := t.pick(&p); picked >= 0 {
		r.Picked, r.Reason = t.replicas[picked].id, string(cmp.Or(p.why, predict.Reason(t.strategy.name)))
	}
	for _, i := range t.ring.Order(key) {
		r.Order = append(r.Order, Candidate{ID: t.replicas[i].id, Load: int(t.replicas[i].load.Load()), Free: free[i],
			MatchedTokens: int(about.matchedTokens(f.matched[i])), UncachedTokens: int(f.uncached[i]),
			WaitingTokens: int(f.predictions[i].Waiting), Rate: f.predictions[i].Rate, TTFT: f.candidates[i].TTFT})
	}
	return r, true
}
