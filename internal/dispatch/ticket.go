package dispatch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Ticket is the lease and the slot of a request that may go to its replica. It holds them until
// Release.
type Ticket struct {
	// Model is the name of the model, not the alias or the pool that the client asked for.
	Model string
	// Served is the name of the model in the request to the engine. It is the model's name on the
	// picked replica and on all others in Endpoints, or that of the adapter that the client asked
	// for.
	Served string
	// MaxDuration bounds the response; 0 means that the route of Envoy bounds it.
	MaxDuration time.Duration
	// BoundByRoute says that MaxDuration is also the bound of the route of Envoy.
	BoundByRoute bool
	// FailOver are the statuses of a replica after which the next one is tried.
	FailOver failover.Statuses
	// GRPC and RerankAPI are those of the model's WayPolicy, which a model that leaves keeps.
	GRPC, RerankAPI bool

	dispatcher *Dispatcher
	lease      *admission.Lease
	// apiKey is Request.APIKey.
	apiKey string
	// releaseIDs releases the client's request id and the task.
	releaseIDs func()
	// watch says that FirstToken will be called. measure says that the engine's own token count is
	// wanted.
	watch, measure bool
	// wantsResponseID says that LearnResponse will be called.
	wantsResponseID bool
	// preemptible says that Request.Preempt may be called.
	preemptible bool
	// tokenByToken says that the response begins with its first token. A whole answer of a
	// generation begins when its last token is there.
	tokenByToken bool
	prompt       prompt
	estimate     estimate
	estimator    *estimator
	// task is the id of the task of the request, which has the lease. It is empty if there is none.
	task string
	// holdsOut says that the request waits for a better replica than those that are free, holdUntil
	// for how long; guarded by admission.Controller.mu
	holdsOut  bool
	holdUntil time.Time
	// next, previous and listed belong to Dispatcher.held.
	next, previous *Ticket
	listed         bool

	mu sync.Mutex
	// route and replicaIndex say on which replica the slot is, and picked on which it was first;
	// guarded by mu
	route                *modelRoute
	replicaIndex, picked int
	held                 bool
	// pinned says that no other replica can serve the request; guarded by mu
	pinned bool
	// prefill says that the slot is held and there is no token yet. released and corrected say that
	// Release and Correct were called; guarded by mu
	prefill, released, corrected bool
	// preempted says that Request.Preempt has been called or is about to be called; guarded by mu
	preempted bool
	// endpoints is the list for Envoy, see Endpoints
	endpoints string
	// work is the request in the queue of its replica, prediction what was expected at the pick;
	// guarded by mu
	work       predict.Work
	prediction Prediction
	// reservedAt is when the slot was acquired; guarded by mu
	reservedAt time.Time
	// matched is how many bytes of the prompt the replica was expected to have; guarded by mu
	matched int32
	// response is the session of requests that continue the response; the zero value: its id is not
	// known. Guarded by mu.
	response sessionID
	// late is the charge of a response in the background whose usage may be told later; nil: there
	// is none. Guarded by mu.
	late *lateCharge
}

// measureEvery is the interval, in requests, at which the engine's token count is looked for
// although no limit needs it and the engine may not tell it. The estimator learns from these
// requests.
const measureEvery = 16

// granted sets the lease and the fields that depend on the picked model.
func (t *Ticket) granted(lease *admission.Lease, r *Request) {
	t.lease = lease
	if charged := lease.Tokens(); charged < t.estimate.tokens.total() && t.estimate.guessed() > 0 {
		t.estimate.tokens.output = max(charged-t.estimate.tokens.prompt, 1)
	}
	t.mu.Lock()
	t.Model, t.MaxDuration, t.estimator = t.route.Name, t.route.policy.MaxDuration, t.route.estimator
	t.estimator.admitted.Add(1)
	t.FailOver, t.BoundByRoute = t.route.policy.FailOver, t.route.policy.BoundByRoute
	t.GRPC, t.RerankAPI = t.route.policy.Way.GRPC, t.route.policy.Way.RerankAPI
	if t.Served = t.replicaLocked().servedModel; t.route.isAdapter(r.Model) {
		t.Served = r.Model
	}
	t.measure = r.TellsUsage || t.route.policy.Limits.TokensPerMinute > 0 ||
		t.dispatcher.tenant(t.estimate.tenant).TokensPerMinute > 0 ||
		t.apiKey != "" && t.dispatcher.tenant(admission.KeyTenant(t.apiKey)).TokensPerMinute > 0 ||
		t.estimator.asked.Add(1)%measureEvery == 1
	t.placeLocked()
	t.estimator.recent.Add(time.Now(), t.work.TTFT, t.work.Own)
	t.mu.Unlock()
	t.dispatcher.held.add(t)
}

// replicaLocked returns the replica that the slot is on. t.mu is held.
func (t *Ticket) replicaLocked() *replica { return &t.route.replicas[t.replicaIndex] }

// Cluster returns the Envoy cluster of the picked replica and of all others in Endpoints.
func (t *Ticket) Cluster() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replicaLocked().cluster
}

// Endpoints returns a list of addresses, ip:port,ip:port: the picked replica, then those that Envoy
// may retry on. A request that only one of several replicas can take has that one twice.
func (t *Ticket) Endpoints() string { return t.endpoints }

// Watched reports whether FirstToken has to be called.
func (t *Ticket) Watched() bool { return t.watch }

// Measured reports whether Correct wants the engine's own token count.
func (t *Ticket) Measured() bool { return t.measure }

// Lease returns the id of the lease and the tokens that it was charged. The id is empty if no other
// process can know the lease.
func (t *Ticket) Lease() (id string, tokens int) { return t.lease.ID(), t.estimate.tokens.total() }

// Quota returns the tenant's remaining quota as response headers. It is nil if the tenant has no
// limits per minute.
func (t *Ticket) Quota() map[string]string { return quotaHeader(t.lease.Quota()) }

// QuotaLeft returns the tenant's remaining quota.
func (t *Ticket) QuotaLeft() admission.Quota { return t.lease.Quota() }

// Retries returns how often Envoy may retry: once for each further entry of Endpoints, and at
// least once. A single replica may have closed an idle connection at the moment of its use, which
// justifies one retry. With more retries than endpoints, Envoy would pick replicas by itself,
// including full ones.
func (t *Ticket) Retries() int { return max(strings.Count(t.endpoints, ","), 1) }

// HasFallback reports whether Endpoints has other replicas than the picked one.
func (t *Ticket) HasFallback() bool {
	picked, others, several := strings.Cut(t.endpoints, ",")
	return several && picked != others
}

// Replica returns the id of the replica that the slot is on.
func (t *Ticket) Replica() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replicaLocked().id
}

// Age returns how long the replica has been pickable, at most since the process started.
func (t *Ticket) Age() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.replicaLocked().since)
}

// setSlot records the pick; its slot is already acquired, and the request is in the replica's
// queue. Admission calls it with Controller.mu held.
func (t *Ticket) setSlot(route *modelRoute, replicaIndex int, endpoints string, expected expectation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.route, t.replicaIndex, t.endpoints, t.held, t.prefill = route, replicaIndex, endpoints, true, t.watch
	t.picked, t.pinned = replicaIndex, expected.pinned
	t.work, t.prediction, t.matched, t.reservedAt = expected.work, expected.Prediction, expected.matched, expected.at
}

// releaseSlot releases the slot on the replica. Further calls do nothing.
func (t *Ticket) releaseSlot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.held = false
		t.endPrefillLocked()
		now := time.Now()
		t.work.Leave(now)
		r := t.replicaLocked()
		r.slotTime.observe(now.Sub(t.reservedAt))
		r.count(-1)
	}
}

// endPrefillLocked ends the prefill of the request. It returns false if the request was not in
// prefill.
func (t *Ticket) endPrefillLocked() bool {
	was := t.prefill
	if was {
		t.prefill = false
		t.replicaLocked().prefill.Add(-1)
	}
	return was
}

// returnSlot releases a slot that the request did not use: its client disconnected during
// admission, or another gateway took the last slot. It wakes the waiters of other models; admission
// itself retries those of the ticket's model.
func (t *Ticket) returnSlot() {
	t.releaseSlot()
	t.mu.Lock()
	replica, model := t.replicaLocked().counter, t.route.Name
	t.mu.Unlock()
	t.dispatcher.wakeOthers(replica, model)
}

// FirstToken reports that the response has begun, which ends prefill. It may also be called if
// Watched is false. False means that the request has already been preempted (Request.Preempt), and
// that the token must not reach the client.
func (t *Ticket) FirstToken() bool {
	if t.preemptible && !t.lease.FirstToken() {
		return false
	}
	t.mu.Lock()
	if t.tokenByToken {
		t.work.FirstToken(time.Now())
	} else {
		t.work.Leave(time.Now())
	}
	was := t.held && t.endPrefillLocked()
	var replica *counter
	if was {
		replica = t.replicaLocked().counter
	}
	t.mu.Unlock()
	if was {
		t.lease.FirstToken() // only the first call has an effect
		t.dispatcher.wakeOthers(replica, t.Model)
		t.dispatcher.config.Admission.RetryWaiters(t.Model)
	}
	return true
}

// Keep says that the request stays at its replica, although its first token has not come: it may
// not be preempted any more. False means that it has already been preempted.
func (t *Ticket) Keep() bool { return !t.preemptible || t.lease.Keep() }

// Moved reports that Envoy's retry moved the request to another replica. The slot moves with it,
// even past the replica's limit. An address that the route does not have changes nothing.
func (t *Ticket) Moved(address string) {
	t.move(func() int { return t.route.indexAt(address, t.replicaLocked().cluster) }) // Envoy's retry stays in the cluster
}

// MovedTo reports that the request has moved to a replica of Upstreams, as Moved does.
func (t *Ticket) MovedTo(id string) {
	t.move(func() int { return slices.IndexFunc(t.route.replicas, func(r replica) bool { return r.id == id }) })
}

// move moves the slot to the replica of this index, which is negative for none.
func (t *Ticket) move(indexLocked func() int) {
	from := t.moveTo(indexLocked)
	if from == nil {
		return
	}
	t.lease.MoveSlot(t.sharedReplica) // before anybody asks for the slot that is free
	t.dispatcher.held.moved(t)
	t.dispatcher.wakeOthers(from, t.Model)
	t.dispatcher.config.Admission.RetryWaiters(t.Model)
}

// moveTo moves the slot to the replica of an index. It returns the counter of the replica that had
// the slot before, and nil if nothing changes. A replica that has left the fleet since the pick,
// without requests, and has come back has a new counter. The request then counts on the old one.
func (t *Ticket) moveTo(indexLocked func() int) (from *counter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, i := t.replicaLocked(), indexLocked()
	if !t.held || i < 0 || i == t.replicaIndex {
		return nil
	}
	to := &t.route.replicas[i]
	to.count(1)
	to.served.Add(1)
	if t.endPrefillLocked() {
		t.prefill = true
		to.prefill.Add(1)
	}
	before.count(-1)
	t.unplaceLocked()
	t.replicaIndex = i
	t.moveWorkLocked()
	t.placeLocked()
	return before.counter
}

// sharedReplica returns the sharedID of the replica that the slot is on.
func (t *Ticket) sharedReplica() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replicaLocked().sharedID
}

// Release releases the lease, the slot and the ids. Only the first call has an effect.
func (t *Ticket) Release() {
	t.mu.Lock()
	if t.released {
		t.mu.Unlock()
		return
	}
	t.released = true
	replica, preempted := t.replicaLocked().counter, t.preempted
	t.mu.Unlock()

	t.dispatcher.held.remove(t)
	t.releaseIDs()
	t.releaseSlot()
	if preempted {
		t.lease.Release() // before other models retry: the preempting request gets the slot first
	}
	t.dispatcher.wakeOthers(replica, t.Model)
	t.lease.Release() // admits the next waiter of this model; a second call does nothing
}

// Correct corrects the charge of the request to the real usage of its response, and has the
// estimator learn from it. It may be called before or after Release. Only the first call has an
// effect. Correct returns what the response has cost.
func (t *Ticket) Correct(r Response) request.Cost {
	t.mu.Lock()
	first := !t.corrected
	t.corrected = true
	at := t.replicaLocked()
	told, partial := r, t.isPartialLocked(r)
	r, doubted := t.estimate.believed(r, time.Since(t.reservedAt))
	if partial {
		r = untold(r)
	}
	silence := Failure(0)
	if first {
		t.learnLocked(plausible(r))
		silence = t.noteSilenceLocked(r)
	}
	t.mu.Unlock()
	if silence != 0 {
		t.dispatcher.config.Failed(t.Model, at.id, silence, silentReason)
	}
	if first {
		if doubted {
			t.dispatcher.doubt(t.Model, at, told, time.Now())
		}
		tokens := t.estimator.correct(r, t.estimate)
		t.dispatcher.held.corrected(t, tokens)
		t.lease.Correct(tokens)
	}
	cost := t.estimator.costOf(r, t.estimate)
	cost.Partial, cost.Doubted, cost.Late = partial, doubted, t.lateUsage(r)
	return cost
}

// isPartialLocked reports whether the engine has counted one of several answers alone. t.mu must be
// held.
func (t *Ticket) isPartialLocked(r Response) bool {
	if !r.Known || t.estimate.choices < 2 {
		return false
	}
	news := t.replicaLocked().news.Load()
	return news != nil && engines.CountsOneAnswer(news.Engine)
}

// wakeOthers makes the waiters of the other models that use the replica retry, because one of its
// slots is free. The models come in rotation, starting after the model that had the slot. had is
// empty if no model had it; then the first model rotates too.
func (d *Dispatcher) wakeOthers(replica *counter, had string) {
	users := replica.models()
	at := slices.Index(users, had)
	if at < 0 && len(users) > 0 {
		at = int(d.nextWoken.Add(1) % uint64(len(users)))
	}
	for n := range users {
		if model := users[(at+1+n)%len(users)]; model != had {
			d.config.Admission.RetryWaiters(model)
		}
	}
}

// idClaims are the request ids and tasks that are in use now. The zero value is ready to use.
type idClaims struct {
	running sync.Map // identity → struct{}

	mu sync.Mutex
	// held counts the holds of each id that has any; guarded by mu
	held map[identity]int
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

// hold holds the id for the tenant, until release is called once. An id may have several holds,
// also beside a claim.
func (s *idClaims) hold(tenant, id string) (release func()) {
	key := identity{tenant, id}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[identity]int{}
	}
	s.held[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[key]--; s.held[key] == 0 {
			delete(s.held, key)
		}
	}
}

// isHeld reports whether the id has a hold.
func (s *idClaims) isHeld(tenant, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[identity{tenant, id}] > 0
}
