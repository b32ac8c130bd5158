// Package news asks each ready replica how busy its engine is and what its cache can hold. The
// gateway runs one Reader and passes the news on to the dispatcher.
//
// The Reader follows the fleet, whatever has launched a replica. What to ask for is data of the
// catalogue (engines.Metrics). The engine of a server that somebody else runs is recognised by the
// names of its metrics, or by a document that only this engine has. An engine that tells nothing
// has no news, and Sluice works on what it sees itself.
//
// Read news.go (what is told), run.go (when which replica is asked), ask.go (one replica is asked),
// page.go (metrics and documents) and book.go (what to ask for).
package news

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// News is what the engine of a replica says of itself.
type News struct {
	// Engine is the name of the engine in the catalogue. It is empty while it is not known.
	Engine string
	// Running and Waiting are numbers of requests, whoever has sent them. -1 means not told.
	Running, Waiting int
	// KVUsage is the used share of the key-value cache, from 0 to 1. -1 means not told.
	KVUsage float64
	// CacheTokens is how many tokens the prefix cache can hold. 0 means not told.
	CacheTokens int
	// CachedTokens counts the prompt tokens that the engine has found in its cache since its start.
	// -1 means not told.
	CachedTokens int64
	// PrefillRate is how many prompt tokens a second the engine has lately computed while it worked
	// on a prompt. It is measured per request, so prompts that are computed side by side make it
	// smaller than what the engine computes in all. 0 means not told, or no prompt so far.
	PrefillRate float64
	// Slots is how many requests the engine works on at once. 0 means not told.
	Slots int
	// UsualSlots is the number that the catalogue gives for engines of this kind. 0 means none.
	UsualSlots int
	// At is when the engine said so. It is zero if it has said nothing yet.
	At time.Time
	// Fault says why the last question had no answer. It is empty if it had one. The other fields
	// are those of the last answer.
	Fault string
}

// Config is the configuration of a Reader. Fleet is required.
type Config struct {
	Fleet *engines.Fleet
	// Tell is called with the news of a replica after each answer, from the goroutine of Run. It is
	// also called for a replica that shows nothing of a known engine, or not any more, or that
	// refuses to show anything; Engine is then empty. It is not called for a replica that does not
	// answer or is too busy to. It must not block. Nil: News is the only way to the news.
	Tell func(replica string, n News)
	// Interval is the time between two questions to a replica, which is varied by a tenth. 0 means
	// 2 s.
	Interval time.Duration
	// Pause is the longest time until a replica is asked again that gives no answer, and the time
	// until one is asked again that has no metrics. Documents are read again after it, and those
	// that a replica does not have after ten times as long. 0 means 1 m.
	Pause time.Duration
	// Timeout is the longest time of a request. 0 means 1 s.
	Timeout time.Duration
	// AtOnce is the greatest number of replicas that are asked at the same time. 0 means 16.
	AtOnce int
}

// Engine is an engine by its name in the catalogue, with what its replicas tell.
type Engine struct {
	Name    string
	Metrics engines.Metrics
	// UsualSlots is News.UsualSlots of its servers.
	UsualSlots int
}

// Known says which engines there are.
type Known struct {
	// Models are the engines of the models that Sluice launches, by model.
	Models map[string]Engine
	// Engines are all engines that a server may turn out to be. If the metrics fit several, the one
	// with the most figures counts, and of those the last. A server whose metrics fit none is the
	// first whose sign it has.
	Engines []Engine
}

// Reader asks replicas. Its methods may be called from any goroutine.
type Reader struct {
	Config
	// book is what to ask for; never nil.
	book atomic.Pointer[book]
	// newClient makes the clients; engines.NewClient unless a test replaces it.
	newClient func(*engines.Transport) *http.Client

	mu sync.RWMutex
	// news by replica; guarded by mu
	news map[string]News
}

// New returns a Reader. It starts nothing.
func New(c Config) *Reader {
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Pause = cmp.Or(c.Pause, time.Minute)
	c.Timeout = cmp.Or(c.Timeout, time.Second)
	c.AtOnce = cmp.Or(c.AtOnce, 16)
	r := &Reader{Config: c, newClient: engines.NewClient, news: map[string]News{}}
	r.book.Store(newBook(Known{}))
	return r
}

// Set replaces the known engines. It holds from the next question to each replica on.
func (r *Reader) Set(k Known) { r.book.Store(newBook(k)) }

// News returns what is known of a replica. It returns false for a replica that is not ready, and
// for one that has not been asked yet.
func (r *Reader) News(replica string) (News, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n, ok := r.news[replica]
	return n, ok
}

// publish makes the news of a replica known after a question.
func (r *Reader) publish(a *asked) {
	id, n := a.replica.ID, a.news
	r.mu.Lock()
	r.news[id] = n
	r.mu.Unlock()
	if (n.Fault == "" && !n.At.IsZero() || n.Engine == "" && (a.absent || a.refused)) && r.Tell != nil {
		r.Tell(id, n)
	}
}

// forget drops the news of a replica.
func (r *Reader) forget(replica string) {
	r.mu.Lock()
	delete(r.news, replica)
	r.mu.Unlock()
}

// Run asks the ready replicas until ctx ends. It then returns nil.
func (r *Reader) Run(ctx context.Context) error {
	newRounds(r).run(ctx)
	return nil
}
