package gateway

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// maxDepartures is how many departures wait for the metrics at most.
const maxDepartures = 256

// departure is a request that left for a replica.
type departure struct {
	model  string
	waited time.Duration
	// prefill and decode are the requests on the replica then, without and with a first token.
	prefill, decode int
}

// departures keeps the requests that left for replicas until the metrics are told of several
// together, for the reason of request.Subscribers.FinishedDelay. The zero value is empty.
type departures struct {
	// telling is held while departures are told. It comes before mu.
	telling sync.Mutex
	// spare is memory for all; guarded by telling.
	spare []departure

	mu sync.Mutex
	// all are those that wait; guarded by mu.
	all []departure
}

// add adds a departure. It reports whether the metrics are to be told now.
func (d *departures) add(one departure) (full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
	return len(d.all) >= maxDepartures
}

// tell calls to with each departure, and forgets it. It returns when all that waited were told.
func (d *departures) tell(to func(departure)) {
	d.telling.Lock()
	defer d.telling.Unlock()
	d.mu.Lock()
	all := d.all
	d.all = d.spare[:0]
	d.mu.Unlock()
	for _, one := range all {
		to(one)
	}
	clear(all) // the names of models
	d.spare = all
}

// dispatched records how long a request has waited, and how many requests run on its replica now.
// The requests without a token are known if the model has a limit on prefill, else predicted.
func (g *Gateway) dispatched(model, replica string, waited time.Duration) {
	on := g.dispatcher.Replica(model, replica)
	prefill := max(1, on.Prefill) // at least this request
	if on.Prefill == 0 {
		prefill = max(1, min(on.Queued, on.Load))
	}
	if g.departures.add(departure{model, waited, prefill, max(0, on.Load-prefill)}) {
		g.tellDepartures()
	}
}

// tellDepartures tells the metrics of all requests that left for replicas before the call.
func (g *Gateway) tellDepartures() {
	g.departures.tell(func(d departure) {
		g.metrics.Waited(d.waited)
		g.metrics.Dispatched(d.model, d.prefill, d.decode)
	})
}

// finished tells the metrics of a request that has ended, after those that left for replicas.
func (g *Gateway) finished(q request.Summary) {
	g.tellDepartures()
	g.metrics.Finished(q)
}
