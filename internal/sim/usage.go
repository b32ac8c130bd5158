package sim

import (
	"net/http"
	"sync"
)

// Used is what the requests of some kind have used.
type Used struct {
	Requests         int `json:"requests"`
	PromptTokens     int `json:"prompt_tokens"`
	CachedTokens     int `json:"cached_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// answeredUsage counts what requests have used, as their usage was or would have been told. The
// zero value has counted nothing.
type answeredUsage struct {
	mu sync.Mutex
	// finished counts the requests whose responses were written to their ends, broken the others;
	// guarded by mu.
	finished, broken Used
}

// add counts a request that has ended. A nil generation used nothing.
func (a *answeredUsage) add(g *generation, finished bool) {
	if g == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	to := &a.broken
	if finished {
		to = &a.finished
	}
	u := g.usage()
	to.Requests++
	to.PromptTokens += u.PromptTokens
	to.CachedTokens += u.PromptDetails.CachedTokens
	to.CompletionTokens += u.CompletionTokens
}

// handleUsage answers GET /sim/usage.
func (e *Engine) handleUsage(w http.ResponseWriter, _ *http.Request) {
	e.answered.mu.Lock()
	defer e.answered.mu.Unlock()
	respond(w, map[string]Used{"finished": e.answered.finished, "broken": e.answered.broken})
}
