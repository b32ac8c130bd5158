package dispatch

import (
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// drains are the models and the replicas that an operator has drained: they get no new requests.
// The maps are never changed. A change replaces them.
type drains struct{ models, replicas map[string]bool }

// with returns a copy of a set with or without one member. The empty set is nil.
func with(set map[string]bool, member string, in bool) map[string]bool {
	next := maps.Clone(set)
	if !in {
		delete(next, member)
		if len(next) == 0 {
			return nil
		}
		return next
	}
	if next == nil {
		next = map[string]bool{}
	}
	next[member] = true
	return next
}

// DrainModel has the model refuse new requests and tasks, or accept them again. Its running and its
// waiting requests go on.
func (d *Dispatcher) DrainModel(model string, drained bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drains.models = with(d.drains.models, model, drained)
	d.dirty[model] = struct{}{}
	d.rebuildLocked()
}

// mostDrained is how many replicas may be drained before Sluice forgets the drains of replicas that
// the fleet does not have. Without a bound, the drains of ended pods would add up.
const mostDrained = 1000

// DrainReplica takes a replica out of rotation, or puts it back. Its running requests go on.
// Requests for a model whose replicas are all out of rotation wait, as they do for a start. A
// drained replica may leave the fleet for a while: it is still drained when it comes back.
func (d *Dispatcher) DrainReplica(id string, drained bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if drained && len(d.drains.replicas) >= mostDrained {
		d.forgetAbsentLocked()
	}
	d.drains.replicas = with(d.drains.replicas, id, drained)
	for name, m := range d.config.Fleet.Snapshot().Models {
		if m.Replica(id) != nil {
			d.dirty[name] = struct{}{}
		}
	}
	d.rebuildLocked()
}

// forgetAbsentLocked forgets the drains of replicas that the fleet does not have.
func (d *Dispatcher) forgetAbsentLocked() {
	present := map[string]bool{}
	for _, m := range d.config.Fleet.Snapshot().Models {
		for i := range m.Replicas {
			if id := m.Replicas[i].ID; d.drains.replicas[id] {
				present[id] = true
			}
		}
	}
	d.drains.replicas = present
}

// Drained returns the drained models and the drained replicas, by name and id. The caller must not
// change them.
func (d *Dispatcher) Drained() (models, replicas map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drains.models, d.drains.replicas
}

// SetDrained drains these models and replicas and no others. The replicas need not exist yet. The
// caller must not change the sets afterwards.
func (d *Dispatcher) SetDrained(models, replicas map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drains = drains{models, replicas}
	for name := range d.config.Fleet.Snapshot().Models {
		d.dirty[name] = struct{}{}
	}
	d.rebuildLocked()
}

// undrainedLocked returns the replicas that are not drained.
func (d *Dispatcher) undrainedLocked(known []*engines.Replica) []*engines.Replica {
	if len(d.drains.replicas) == 0 {
		return known
	}
	return slices.DeleteFunc(slices.Clone(known), func(r *engines.Replica) bool { return d.drains.replicas[r.ID] })
}

// errDrained is the answer to a request for a drained model, or for a pool of which all models are
// drained. name says which.
func errDrained(name string) *openai.Error {
	return openai.Errorf(openai.CodeNoReplica, "An operator has drained %s: it takes no new requests for now.", name)
}
