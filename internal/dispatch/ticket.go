package dispatch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// Ticket is a request that may go: where to, and what it holds until it is released.
type Ticket struct {
	// Model is the name of the model, not the alias or the pool that the client asked for.
	Model string
	// Served is the name that the engine is to be asked for: the model's, or that of an adapter on
	// it that the client asked for.
	Served string
	// MaxDuration of the response; 0 leaves it to the route.
	MaxDuration time.Duration

	dispatcher *Dispatcher
	lease      *admission.Lease
	// releaseIDs releases the request id and the task.
	releaseIDs func()
	// watch: somebody will tell of the first token. measure: the engine's own count of tokens is
	// wanted.
	watch, measure bool
	// preemptible: Request.Preempt may be called.
	preemptible bool
	// affinities are the replicas that have served the beginning of the conversation, mostly one,
	// in space. turn is the conversation's key up to the last user message, if turned.
	affinities []affinity
	space      [1]affinity
	turn       uint64
	turned     bool
	estimate   estimate
	estimator  *estimator

	mu sync.Mutex
	// target and at say which replica is held; guarded by mu
	route *modelRoute
	at    int
	held  bool
	// prefill: held, and no token yet; released; settled; guarded by mu
	prefill, released, settled bool
	// preempted: Request.Preempt has been called, or is about to be; guarded by mu
	preempted bool
	// endpoints is the list for Envoy
	endpoints string
}

// measureEvery is how many requests there are to one whose tokens are counted although no limit
// asks for it: to learn.
const measureEvery = 16

// granted fills in what is known when the request may go.
func (t *Ticket) granted(lease *admission.Lease, asked string) {
	t.lease = lease
	t.Model, t.MaxDuration, t.estimator = t.route.Name, t.route.policy.MaxDuration, t.route.estimator
	if t.Served = t.Model; slices.Contains(t.route.Adapters, asked) {
		t.Served = asked
	}
	t.measure = t.route.policy.Limits.TokensPerMinute > 0 ||
		t.dispatcher.tenant(t.estimate.tenant).TokensPerMinute > 0 ||
		t.estimator.asked.Add(1)%measureEvery == 1
	t.recordAffinity(t.route, t.route.replicas[t.at].counter)
}

// Cluster is the name of the Envoy cluster of the picked replica, and of all others in Endpoints.
func (t *Ticket) Cluster() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.route.replicas[t.at].cluster
}

// Endpoints lists addresses, ip:port,ip:port: the picked replica, then where Envoy may turn when
// that one refuses.
func (t *Ticket) Endpoints() string { return t.endpoints }

// Watched says that FirstToken is to be called.
func (t *Ticket) Watched() bool { return t.watch }

// Measured says that the engine's own count of tokens is wanted in Settle.
func (t *Ticket) Measured() bool { return t.measure }

// Lease is the id of the lease, empty when no other process could know it, and Tokens what it was
// charged.
func (t *Ticket) Lease() (id string, tokens int) { return t.lease.ID(), t.estimate.tokens.total() }

// Quota is what the tenant has left, as response headers; nil when it has no limits a minute.
func (t *Ticket) Quota() map[string]string { return quotaHeader(t.lease.Quota()) }

// Retries is how often Envoy may try again: once for each further replica of Endpoints, and at
// least once, because a single replica may have closed an idle connection in the moment it was
// used. Beyond the list Envoy would pick replicas by itself, also full ones.
func (t *Ticket) Retries() int { return max(strings.Count(t.endpoints, ","), 1) }

// Replica is the id of the replica whose slot the ticket holds.
func (t *Ticket) Replica() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.route.replicas[t.at].id
}

// Age is how long the picked replica could be picked, at most since this process began.
func (t *Ticket) Age() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.route.replicas[t.at].since)
}

// setSlot writes the pick into the ticket; its slot is already acquired. Admission calls it with
// Controller.mu held.
func (t *Ticket) setSlot(route *modelRoute, at int, endpoints string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.route, t.at, t.endpoints, t.held, t.prefill = route, at, endpoints, true, t.watch
}

// releaseSlot gives the slot back.
func (t *Ticket) releaseSlot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.held = false
		t.endPrefillLocked()
		t.route.replicas[t.at].load.Add(-1)
	}
}

// endPrefillLocked says whether the request was in prefill until now.
func (t *Ticket) endPrefillLocked() bool {
	was := t.prefill
	if was {
		t.prefill = false
		t.route.replicas[t.at].prefill.Add(-1)
	}
	return was
}

// returnSlot gives back a slot that the request did not come to use: its client left in the moment
// of admission, or another gateway was quicker. The queue of its own model looks again by itself.
func (t *Ticket) returnSlot() {
	t.releaseSlot()
	t.mu.Lock()
	replica, model := t.route.replicas[t.at].counter, t.route.Name
	t.mu.Unlock()
	t.dispatcher.wakeOthers(replica, model)
}

// FirstToken tells that the response has begun: the request is in prefill no longer. It may be
// called always, also when nobody watches. False: it is too late, the request was preempted a
// moment ago (Request.Preempt), and the token must not reach the client.
func (t *Ticket) FirstToken() bool {
	if t.preemptible && !t.lease.FirstToken() {
		return false
	}
	t.mu.Lock()
	was := t.held && t.endPrefillLocked()
	var replica *counter
	if was {
		replica = t.route.replicas[t.at].counter
	}
	t.mu.Unlock()
	if was {
		t.lease.FirstToken() // it only counts once
		t.dispatcher.wakeOthers(replica, t.Model)
		t.dispatcher.admission.RetryWaiters(t.Model)
	}
	return true
}

// Moved tells that another replica serves the request, as Envoy's retry may decide: the slot
// follows it. An address that is not of the model changes nothing.
func (t *Ticket) Moved(address string) {
	t.mu.Lock()
	if !t.held || t.route.replicas[t.at].address == address {
		t.mu.Unlock()
		return
	}
	from := t.route.replicas[t.at].counter
	cluster := t.route.replicas[t.at].cluster // a retry never leaves it
	for i, r := range t.route.replicas {
		if r.address == address && r.cluster == cluster {
			r.load.Add(1)
			r.served.Add(1)
			if t.endPrefillLocked() {
				t.prefill = true
				r.prefill.Add(1)
			}
			t.route.replicas[t.at].load.Add(-1)
			t.at = i
			break
		}
	}
	route, to := t.route, t.route.replicas[t.at].counter
	t.mu.Unlock()
	if to != from {
		t.recordAffinity(route, to)
		t.dispatcher.wakeOthers(from, t.Model)
		t.dispatcher.admission.RetryWaiters(t.Model)
	}
}

// Release frees everything that the ticket holds. Only the first call counts.
func (t *Ticket) Release() {
	t.mu.Lock()
	if t.released {
		t.mu.Unlock()
		return
	}
	t.released = true
	replica, preempted := t.route.replicas[t.at].counter, t.preempted
	t.mu.Unlock()

	t.releaseIDs()
	t.releaseSlot()
	if preempted {
		t.lease.Release() // whom it made way for goes before those of other models
	}
	t.dispatcher.wakeOthers(replica, t.Model)
	t.lease.Release() // lets the next of this model in
}

// Settle tells what the response was, before or after Release, and corrects the charge. Only the
// first call counts.
func (t *Ticket) Settle(r Response) {
	t.mu.Lock()
	again := t.settled
	t.settled = true
	t.mu.Unlock()
	if !again {
		t.lease.Correct(t.estimator.settle(r, t.estimate))
	}
}

// wakeOthers wakes the queues of the other models that use a replica of which a slot is free. The
// models take turns: the one after the model that has had the slot comes first, and that model
// last.
func (d *Dispatcher) wakeOthers(replica *counter, had string) {
	users := replica.models()
	at := slices.Index(users, had)
	if at < 0 && len(users) > 0 {
		at = int(d.turn.Add(1) % uint64(len(users)))
	}
	for n := range users {
		if model := users[(at+1+n)%len(users)]; model != had {
			d.admission.RetryWaiters(model)
		}
	}
}

// idClaims are the request ids and tasks that are in use now. The zero value is ready to use.
type idClaims struct {
	running sync.Map // identity → struct{}
}

type identity struct{ tenant, id string }

// claim claims the id for the tenant, until release is called. An empty id is always free.
func (s *idClaims) claim(tenant, id string) (release func(), ok bool) {
	if id == "" {
		return func() {}, true
	}
	key := identity{tenant, id}
	if _, taken := s.running.LoadOrStore(key, struct{}{}); taken {
		return nil, false
	}
	return func() { s.running.Delete(key) }, true
}
