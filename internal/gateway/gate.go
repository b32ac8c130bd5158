package gateway

import (
	"net/http"
	"sync"

	"github.com/sluice-gateway/sluice/internal/relay"
)

// gate stands before the handler of a listener whose requests may change what a successor reads:
// tasks, and limits. During a hand-over it holds them; later it gives all requests to the
// successor. A gate that was not told anything lets all pass.
type gate struct {
	handler http.Handler

	mu sync.Mutex
	// changed is not nil while requests are held, and closed after that; guarded by mu
	changed chan struct{}
	// to answers requests after the hand-over; nil before. Guarded by mu
	to relay.Forwarder
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for {
		g.mu.Lock()
		to, changed := g.to, g.changed
		g.mu.Unlock()
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case to != nil:
			w.Header().Set("connection", "close") // the next request finds the successor by itself
			forward(to, w, r)
			return
		case changed == nil || reads:
			g.handler.ServeHTTP(w, r)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// hold holds requests that change something until move is called.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
}

// move gives all requests to the successor, also those that are held.
func (g *gate) move(to relay.Forwarder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = to
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// forward has another process answer the request. If it cannot, this gateway's error is the answer.
func forward(to relay.Forwarder, w http.ResponseWriter, r *http.Request) {
	if fault := to(w, r); fault != nil {
		fault.AnswerTo(w, r.URL.Path)
	}
}
