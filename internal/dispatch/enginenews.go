package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/predict"
)

// EngineNews is what an engine says of its own load. 0 means that it does not say.
type EngineNews struct {
	// Running and Waiting are numbers of requests.
	Running, Waiting int
	// CacheTokens is how many tokens the prefix cache can hold.
	CacheTokens int
	// PrefillRate is how many tokens a second the engine has lately computed of prompts.
	PrefillRate float64
	// Engine is the name of the engine in the catalogue, if the news reveal it.
	Engine string
	// Slots is how many requests the engine works on at once, and UsualSlots how many an engine of
	// this kind usually does.
	Slots, UsualSlots int
}

// applyNewsLocked learns what the engine of a replica says of itself. Dispatcher.mu is held.
func (l *estimator) applyNewsLocked(replica string, n *EngineNews) {
	if s := l.slots[replica]; s != nil {
		l.resizeLocked(s, n.CacheTokens)
	}
	if n.PrefillRate > 0 {
		l.toldRate = n.PrefillRate
		l.rates.SetGuess(predict.PrefillRate(n.PrefillRate))
	}
}

// sameEngine reports whether nothing has changed that is part of a route. before may be nil.
func (n *EngineNews) sameEngine(before *EngineNews) bool {
	return before != nil && n.Engine == before.Engine && n.Slots == before.Slots && n.UsualSlots == before.UsualSlots
}

// takeEarlyNewsLocked gives a new counter the news that came before it. Dispatcher.mu is held.
func (d *Dispatcher) takeEarlyNewsLocked(id string, c *counter) {
	if n := d.earlyNews[id]; n != nil {
		c.news.Store(n)
		delete(d.earlyNews, id)
	}
}

// dropEarlyNewsLocked drops the early news of replicas that the fleet does not have any more.
// Dispatcher.mu is held.
func (d *Dispatcher) dropEarlyNewsLocked(s *engines.Snapshot) {
	for id := range d.earlyNews {
		gone := true
		for model := range s.Models {
			gone = gone && !named(s, model, id)
		}
		if gone {
			delete(d.earlyNews, id)
		}
	}
}

// recognisedLocked reports whether the engine of a discovered model is known from its news.
// Dispatcher.mu is held.
func (d *Dispatcher) recognisedLocked(m *engines.ModelSnapshot) bool {
	for i := range m.Replicas {
		if news := d.newsLocked(m.Replicas[i].ID); news != nil && news.Engine != "" {
			return true
		}
	}
	return false
}

// newsLocked returns the last news of a replica, also if it has no counter yet; nil: there are
// none. Dispatcher.mu is held.
func (d *Dispatcher) newsLocked(id string) *EngineNews {
	if c := d.counters[id]; c != nil {
		return c.news.Load()
	}
	return d.earlyNews[id]
}

// unknownEngine returns the strategy for servers of which nothing is known. Whether they cache
// prompts is not known either, so LeastConnections replaces Prefix.
func unknownEngine(s Strategy) Strategy {
	if s == Prefix || s == "" {
		return LeastConnections
	}
	return s
}

// usualUncached is how many uncached tokens a request of unknown length is taken to have.
const usualUncached = 512

// SetEngineNews tells what the engine of a replica says. News of a replica that Envoy does not know
// yet are kept until it does.
//
// Requests that the engine has and that no gateway has sent come from someone else. They count as
// waiting tokens and as running requests of the replica.
func (d *Dispatcher) SetEngineNews(replica string, n EngineNews) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters[replica]
	if c == nil {
		d.earlyNews[replica] = &n
		return
	}
	before := c.news.Swap(&n)
	for _, model := range c.models() {
		if own := d.estimators[model]; own != nil {
			own.applyNewsLocked(replica, &n)
		}
		if !n.sameEngine(before) {
			d.dirty[model] = struct{}{}
		}
	}
	if len(d.dirty) > 0 {
		d.rebuildLocked()
	}
	now := time.Now()
	waiting := c.queue.Predict(now, int(c.load.Load()), 0).Waiting - c.queue.Foreign()
	c.queue.SetForeign(now, float64(n.Waiting*usualUncached)-waiting, float64(n.Running-int(c.load.Load())))
}
