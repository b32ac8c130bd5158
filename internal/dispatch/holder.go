package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Holder returns the replica that has the response with this id, and its model. ok is false if the
// tenant has no such response, if the response was given more than sessionTTL ago, or if its
// replica has gone.
func (d *Dispatcher) Holder(tenant, responseID string) (model string, u Upstream, ok bool) {
	id, now := responseOf(tenant, openai.ResponseSession(responseID)), time.Now()
	for _, t := range d.table.Load().routes {
		known, found := t.estimator.sessions.find(id, now)
		if !found {
			continue
		}
		for _, r := range t.replicas {
			if r.counter == known.replica {
				return t.Name, t.upstream(r), true
			}
		}
	}
	return "", Upstream{}, false
}

// Permitting returns the names that permit a caller requests to a model: its own name and those of
// its adapters.
func (d *Dispatcher) Permitting(model string) []string {
	names := []string{model}
	if t, ok := d.table.Load().routes[model]; ok {
		names = append(names, t.Adapters...)
	}
	return names
}
