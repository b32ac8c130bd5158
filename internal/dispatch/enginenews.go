package dispatch

import "time"

// EngineNews is what an engine says of its own load. 0 means that it does not say.
type EngineNews struct {
	// Running and Waiting are numbers of requests.
	Running, Waiting int
	// KVUsage is the used share of the key-value cache, from 0 to 1.
	KVUsage float64
	// CacheTokens is how many tokens the prefix cache can hold.
	CacheTokens int
	// PrefillRate is how many tokens a second the engine has lately computed of prompts.
	PrefillRate float64
	// Engine is the name of the engine in the catalogue, if the news reveal it.
	Engine string
	// At is when the engine said so.
	At time.Time
}

// usualUncached is how many uncached tokens a request of unknown length is taken to have.
const usualUncached = 512

// SetEngineNews tells what the engine of a replica says. News of an unknown replica are ignored.
//
// Requests that the engine has and that no gateway has sent come from someone else. They count as
// waiting tokens and as running requests of the replica.
func (d *Dispatcher) SetEngineNews(replica string, n EngineNews) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters[replica]
	if c == nil {
		return
	}
	c.news.Store(&n)
	for _, model := range c.models() {
		own := d.estimators[model]
		if own == nil {
			continue
		}
		if s := own.slots[replica]; s != nil {
			own.resizeLocked(s, n.CacheTokens)
		}
	}
	now := time.Now()
	waiting := c.queue.Predict(now, int(c.load.Load()), 0).Waiting - c.queue.Foreign()
	c.queue.SetForeign(float64(n.Waiting*usualUncached)-waiting, float64(n.Running-int(c.load.Load())))
}
