package dispatch

import (
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Ticket is a request that may go: where to, and what it holds until it is released.
type Ticket struct {
	// Model is the name of the model, not the alias the client used.
	Model string
	// MaxDuration of the response; 0 leaves it to the route.
	MaxDuration time.Duration

	dispatcher *Dispatcher
	lease      *admission.Lease
	unname     func()

	mu sync.Mutex
	// target and at say which replica is held; guarded by mu
	target *target
	at     int
	held   bool
	// endpoints is the list for Envoy
	endpoints string
}

// Cluster is the name of the model's Envoy cluster.
func (t *Ticket) Cluster() string { return headers.ModelCluster(t.Model) }

// Endpoints lists addresses, ip:port,ip:port: the picked replica, then where Envoy may turn when that one refuses.
func (t *Ticket) Endpoints() string { return t.endpoints }

// Retries is how often Envoy may try again: once for each further replica of Endpoints, and at least once, because a single
// replica may have closed an idle connection in the moment it was used. Beyond the list Envoy would pick replicas by itself, also
// full ones.
func (t *Ticket) Retries() int { return max(strings.Count(t.endpoints, ","), 1) }

// Replica is the id of the replica whose slot the ticket holds.
func (t *Ticket) Replica() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.target.replicas[t.at].id
}

// hold writes the pick into the ticket; its slot is already taken. Called under the lock of the model's queue.
func (t *Ticket) hold(target *target, at int, endpoints string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.target, t.at, t.endpoints, t.held = target, at, endpoints, true
}

// leave gives the slot back.
func (t *Ticket) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.held = false
		t.target.replicas[t.at].load.Add(-1)
	}
}

// unplace gives the slot back that the request did not come to use: its client left in the moment of admission. The queue of
// its own model looks again by itself.
func (t *Ticket) unplace() {
	t.leave()
	t.dispatcher.freed(t.Replica(), t.Model)
}

// Moved tells that another replica serves the request, as Envoy's retry may decide: the slot follows it. An address that is not
// of the model changes nothing.
func (t *Ticket) Moved(address string) {
	t.mu.Lock()
	if !t.held || t.target.replicas[t.at].address == address {
		t.mu.Unlock()
		return
	}
	from := t.target.replicas[t.at].id
	for i, r := range t.target.replicas {
		if r.address == address {
			r.load.Add(1)
			r.served.Add(1)
			t.target.replicas[t.at].load.Add(-1)
			t.at = i
			break
		}
	}
	moved := t.target.replicas[t.at].id != from
	t.mu.Unlock()
	if moved {
		t.dispatcher.admission.Kick(t.Model)
		t.dispatcher.freed(from, t.Model)
	}
}

// Release frees everything the ticket holds. Only the first call counts.
func (t *Ticket) Release() {
	t.mu.Lock()
	if t.lease == nil {
		t.mu.Unlock()
		return
	}
	lease, replica := t.lease, t.target.replicas[t.at].id
	t.lease = nil
	t.mu.Unlock()

	t.unname()
	t.leave()
	lease.Release() // lets the next of this model in
	t.dispatcher.freed(replica, t.Model)
}

// freed wakes the other models that use the replica.
func (d *Dispatcher) freed(replica, except string) {
	for _, model := range d.world.Load().users[replica] {
		if model != except {
			d.admission.Kick(model)
		}
	}
}

// identities are the request ids that run now. The zero value is ready to use.
type identities struct {
	running sync.Map // identity → struct{}
}

type identity struct{ tenant, id string }

// take claims the id for the tenant. An empty id is nobody's.
func (s *identities) take(tenant, id string) (release func(), ok bool) {
	if id == "" {
		return func() {}, true
	}
	key := identity{tenant, id}
	if _, taken := s.running.LoadOrStore(key, struct{}{}); taken {
		return nil, false
	}
	return func() { s.running.Delete(key) }, true
}
