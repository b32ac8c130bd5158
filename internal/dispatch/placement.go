package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/prefix"
)

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

// SetEngineNews tells what the engine of a replica says. News of an unknown replica are ignored.
func (d *Dispatcher) SetEngineNews(replica string, n EngineNews) {}

// Placement says that a replica was given a prompt, and so will have it in its cache.
type Placement struct {
	Model, Replica string
	Chain          prefix.Chain
	// Session identifies the session of the request; 0 means none.
	Session uint64
}

// Place records a placement of another gateway.
func (d *Dispatcher) Place(p Placement) {}

// WaitingTokens returns, by replica, the uncached tokens of this gateway's requests that have no
// first token yet.
func (d *Dispatcher) WaitingTokens() map[string]int64 { return nil }

// SetRemoteWaiting sets the waiting tokens of another gateway by replica. nil forgets the gateway.
func (d *Dispatcher) SetRemoteWaiting(gateway string, tokens map[string]int64) {}
