package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// prompt is what a pick knows of the prompt of a request. It is computed before the request waits,
// so that the body need not be kept.
type prompt struct {
	// chain has the beginnings of the prompt. It is empty if no model of the request is
	// cache-aware.
	chain prefix.Chain
	// tokens is the estimated length of the prompt.
	tokens float64
	// session is the request's session, previous the response which the request continues. The zero
	// value means none.
	session, previous sessionID
}

// uncached returns how many tokens of the prompt a replica has to compute that has so many bytes of
// it in its cache. The last token is always computed.
func (p *prompt) uncached(matched int32) float64 {
	if p.chain.Bytes <= 0 {
		return p.tokens
	}
	return max(p.tokens*float64(p.chain.Bytes-int(matched))/float64(p.chain.Bytes), 1)
}

// matchedTokens returns the tokens of the prompt in so many bytes.
func (p *prompt) matchedTokens(matched int32) float64 {
	if p.chain.Bytes <= 0 {
		return 0
	}
	return p.tokens * float64(matched) / float64(p.chain.Bytes)
}

// own returns how many bytes of the prompt count in favour of a replica that has so many in its
// cache and is about as fast as others. Instructions and tools alone do not count unless they are
// long and most of the prompt, because conversations that share them must spread.
func (p *prompt) own(matched int32) int32 {
	if m := int(matched); m > p.chain.Start || m >= longStart && 2*m >= p.chain.Bytes {
		return matched
	}
	return 0
}

// longStart is the length of instructions, in bytes, from which they count as prompt.own says.
const longStart = 512

// promptOf returns the prompt of a request that may go to the models of the choice.
func (c choice) promptOf(r *Request, tokens int) prompt {
	p := prompt{tokens: float64(tokens), previous: responseOf(r.Tenant, r.Previous)}
	if !c.any((*modelRoute).isCacheAware) {
		return p
	}
	p.session = sessionOf(r.Tenant, r.Session)
	if r.Chain == nil {
		return p
	}
	p.chain = r.Chain(c.members[0].policy.UserMessages)
	for _, m := range c.members {
		if m.isAdapter(r.Model) { // the keys and values of an adapter are its own
			p.chain.Reroot(r.Model)
			break
		}
	}
	return p
}

// isCacheAware reports whether picks of the model look at what the caches of its replicas hold.
// They do if the strategy does, and the model has or may soon have more than one replica.
func (t *modelRoute) isCacheAware() bool {
	return t.strategy != nil && t.strategy.cacheAware && !t.isAlone()
}

// isAlone reports whether the model has one replica, and will not soon have more.
func (t *modelRoute) isAlone() bool { return max(len(t.replicas), t.MaxReplicas) <= 1 }

// forecasts is what a pick expects of each replica, in the order of modelRoute.replicas. The slices
// are storage that picks reuse.
type forecasts struct {
	candidates  []predict.Candidate
	predictions []predict.Prediction
	uncached    []float64
	// bySlot are the matched bytes by slot of the index, matched by replica.
	bySlot, matched []int32
	// loads are those of the pick, ties is storage for predict.Choice.
	loads, ties []int
	// session is the index of the replica that serves the session; -1 means none. wasKnown says
	// that the session is known, even if its replica may not be picked any more.
	session  int
	wasKnown bool
	// pinned says that only the replica at session can serve the request, which continues a
	// response of that replica.
	pinned  bool
	history uint32
	// beginning is the hash of the longest beginning of the prompt that a replica has; 0 means
	// none. at is the time of the forecast.
	beginning uint64
	at        time.Time
}

// forecastsPool has storage for picks. A pick needs it for a microsecond.
var forecastsPool = sync.Pool{New: func() any { return new(forecasts) }}

func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// forecast fills f with what the replicas are expected to do with the prompt. loads are those of
// the pick: a negative one excludes its replica. now is the time of the pick.
func (t *modelRoute) forecast(f *forecasts, p *prompt, loads []int, now time.Time) {
	n := len(t.replicas)
	f.candidates, f.predictions = resized(f.candidates, n), resized(f.predictions, n)
	f.uncached, f.matched, f.ties = resized(f.uncached, n), resized(f.matched, n), resized(f.ties, n)
	f.at = now
	t.match(f, p, now)
	for i := range t.replicas {
		r := &t.replicas[i]
		uncached := p.uncached(f.matched[i])
		if f.history > 0 && i != f.session {
			uncached += float64(f.history)
		}
		f.uncached[i] = uncached
		f.predictions[i] = r.queue.Predict(now, int(r.load.Load()), uncached)
		x := &f.predictions[i]
		f.candidates[i] = predict.Candidate{TTFT: x.TTFT, Own: x.Own, Queued: x.Queued, Matched: p.own(f.matched[i]), Load: loads[i]}
	}
}

// match sets what each replica has of the prompt, and which replica serves the session.
func (t *modelRoute) match(f *forecasts, p *prompt, now time.Time) {
	f.beginning = 0
	t.findPrevious(f, p, now)
	if !t.isCacheAware() || p.chain.Bytes == 0 && p.session.key == 0 {
		clear(f.matched)
		return
	}
	f.bySlot = resized(f.bySlot, t.estimator.index.Slots())
	clear(f.bySlot)
	if p.chain.Bytes > 0 && len(f.bySlot) > 0 {
		t.estimator.index.Match(&p.chain, f.bySlot)
		f.beginning = p.chain.HashAt(slices.Max(f.bySlot))
	}
	if p.session.key != 0 && f.session < 0 {
		if known, ok := t.estimator.sessions.find(p.session, now); ok {
			f.wasKnown, f.session = true, t.indexOf(known.replica)
		}
	}
	for i := range t.replicas {
		r := &t.replicas[i]
		f.matched[i] = 0
		if r.slot >= 0 && r.slot < len(f.bySlot) {
			f.matched[i] = f.bySlot[r.slot]
		}
	}
}

// findPrevious sets which replica has the response that the request continues. Only that replica
// can serve the request, whatever the strategy of the model is. When it is gone, any other one may
// try.
func (t *modelRoute) findPrevious(f *forecasts, p *prompt, now time.Time) {
	f.session, f.wasKnown, f.pinned, f.history = -1, false, false, 0
	if p.previous.key == 0 {
		return
	}
	known, ok := t.estimator.sessions.find(p.previous, now)
	if !ok {
		return
	}
	f.session = t.indexOf(known.replica)
	f.wasKnown, f.pinned, f.history = true, f.session >= 0, known.history
}

// raiseWarming raises the loads and the predicted times of the replicas that warm up: their caches
// are empty, and their engines may still compile. The time rises at first by what prompts wait at
// the warm replicas on average. The increase falls linearly to 0.
func (t *modelRoute) raiseWarming(p *pickInput) {
	t.raiseWarmingLoads(p.loads, p.now)
	total, warm := 0.0, 0
	for i := range t.replicas {
		if t.warmth(i, p.now) == 1 {
			total += p.forecasts.predictions[i].Waiting / p.forecasts.predictions[i].Rate
			warm++
		}
	}
	for i := range t.replicas {
		c := &p.forecasts.candidates[i]
		if c.Load = p.loads[i]; warm > 0 {
			c.TTFT += time.Duration(total / float64(warm) * (1 - t.warmth(i, p.now)) * float64(time.Second))
		}
	}
}

// moved returns why the pick leaves the replica that has served the session or most of the
// beginning. Empty means that the pick does not leave it.
func (t *modelRoute) moved(f *forecasts, loads []int, picked int) string {
	home := f.session
	if home < 0 {
		if f.wasKnown {
			return moveReplicaGone
		}
		for i, m := range f.matched {
			if m > 0 && (home < 0 || m > f.matched[home]) {
				home = i
			}
		}
	}
	switch {
	case home < 0 || home == picked || f.session < 0 && f.matched[home] == f.matched[picked]:
		return ""
	case loads[home] < 0:
		return moveFull
	}
	return moveLoad
}
