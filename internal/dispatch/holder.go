package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Holder returns the replica that has the response with this id, and its model. The replica may be
// one that gets no new requests: it is drained, suspended or scaled down, and still has its
// responses. ok is false if the tenant has no such response, if the response was given more than
// sessionTTL ago, or if its replica has gone.
func (d *Dispatcher) Holder(tenant, responseID string) (model string, u Upstream, ok bool) {
	id, now := responseOf(tenant, openai.ResponseSession(responseID)), time.Now()
	for _, t := range d.table.Load().routes {
		known, found := t.estimator.sessions.find(id, now)
		if !found {
			continue
		}
		if i := t.indexOf(known.replica); i >= 0 {
			return t.Name, t.upstream(t.replicas[i]), true
		}
		if u, ok = d.unpicked(t, known.replica); ok {
			return t.Name, u, true
		}
	}
	return "", Upstream{}, false
}

// unpicked returns the replica of the counter if it may have its responses still. The replica need
// not be one that may be picked.
func (d *Dispatcher) unpicked(t *modelRoute, c *counter) (u Upstream, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range t.source.Replicas {
		if r := &t.source.Replicas[i]; d.counters[r.ID] == c && keepsResponses(r) {
			return t.upstream(replica{id: r.ID, address: r.Address.String()}), true
		}
	}
	return Upstream{}, false
}

// keepsResponses reports whether the replica still has its responses. A server that someone else
// runs may have them although it does not answer at the moment. A replica that must be started has
// lost them.
func keepsResponses(r *engines.Replica) bool {
	return r.State == engines.Ready || r.State == engines.Draining || r.State == engines.Failed && r.Launcher == engines.Upstream
}

// MaxDuration returns the bound on the responses of a model; 0: there is none.
func (d *Dispatcher) MaxDuration(model string) time.Duration {
	if t, ok := d.table.Load().routes[model]; ok {
		return t.policy.MaxDuration
	}
	return 0
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
