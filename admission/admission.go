// Package admission decides when a request may go on to a model. Package dispatch uses it for every
// request and task, and package admission/redis shares its limits between gateways.
//
// # What it decides
//
// Each model has a capacity (requests at once, tokens per minute) and a queue. Each tenant has
// limits over all models. A request that finds room gets a [Lease] at once. Any other request waits
// in the queue, which is bounded in number, bytes and time. A waiter leaves the queue at once when
// its context ends. A request that would wait in vain is refused at once. A Lease holds a part of
// the capacity until Release.
//
// The waiters of a model are ordered by band ([Priority]). Bands are strict, except that a lower
// band gets one admission in eight when its oldest waiter has waited long. Inside a band, tenants
// share the model by deficit round robin over tokens. The requests of one tenant go in the order of
// their arrival. The head waiter waits until the model has a free lease, the tokens, and a
// replica's slot. No request of its band or of a lower band passes it. A tenant at a limit of its
// own holds up nobody.
//
// A request may ask for a pool of models. While several of them have room, they share the pool's
// tokens by their weights. When none has room, the request waits for all of them at once.
//
// All state is in this process. With [Config].Shared, the limits hold over all gateways together:
// this package decides the order, and the shared state decides whether there is room.
//
// # Tokens
//
// A request is charged an estimate (Request.Tokens) when it is admitted, and corrected with the
// real usage when that is known ([Lease.Correct]). A lease that was not used gives back its charge.
//
// A task is charged its estimate too, and its requests (Request.UnderTask) use up that charge
// before they are charged themselves. In the end the task has cost what its requests have used or
// what its caller declares, whichever is more. So a task passes no limit.
//
// # Locks
//
// One lock, Controller.mu, guards all gates, queues, tenants and tasks. It is never held while this
// package waits. Locks are taken in this order; a goroutine that holds one may only take those
// after it:
//
//  1. dispatch.Dispatcher.mu: held while rules or the fleet change, and so around SetLimits,
//     SetTenants, SetPools, Remove, RetryWaiters, RefuseWaiters and RefusePoolWaiters.
//  2. the lock of dispatch's recovered requests: held around RecoverRequest.
//  3. taskJournal.mu: held while a task is written to the file.
//  4. Controller.mu.
//  5. the locks of a request and of its replicas (dispatch.Ticket.mu), which LockedHooks take, and
//     redis.Store.mu, which Shared.ReportLease and Shared.MoveSlot take. Nothing is called with one
//     of them held.
//
// With Controller.mu held, the Controller calls [LockedHooks], Shared.ReportLease and
// Shared.MoveSlot. After it has given up the lock (unlockAndRun) it calls [UnlockedHooks] and all
// other methods of [Shared]. The goroutine is then any that called the Controller, and may still
// hold locks 1 to 3 of its own. Only OnPreempt and methods of Shared are called so; ReleaseSlot,
// OnWait and Slot.OnFull are called with no lock of this list held.
package admission

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"
)

// Config is what New needs. The zero value is ready to use.
type Config struct {
	// MaxQueueBytes bounds the sum of Request.Bytes of all waiters of all models. 0 or less means 1
	// GiB.
	MaxQueueBytes int64
	// Ageing is how long a waiter of a lower band waits before its band gets one admission in
	// eight. 0 or less means 30 s.
	Ageing time.Duration
	// Shared is the state that this gateway shares with others. nil means that there are no others.
	Shared Shared
	// Gateway is the prefix of all lease ids. It must be unique over all gateways and all time. ""
	// means a random one.
	Gateway string
	// TaskJournal is the path of the file that keeps tasks over a restart. "" means that tasks are
	// lost.
	TaskJournal string
}

// Controller admits requests. It is safe for concurrent use. It starts no goroutine: requests wait
// in the goroutines of their callers. Each gate has at most one timer, for a head waiter that waits
// for a known time.
type Controller struct {
	shared        Shared
	gateway       string
	ageing        time.Duration
	maxQueueBytes int64
	taskJournal   taskJournal

	mu sync.Mutex
	// mu guards everything below. The package comment has the order of locks.

	gates map[string]*gate
	// retired are the gates of removed models that still have leases, or a bucket that is not full.
	// A model that comes back finds its gate again, so removing it does not refill its bucket.
	retired map[string]*gate
	pools   map[string]*pool
	tenants map[string]*tenant
	// closed says that no request may wait any more.
	closed bool
	// waitingBytes is the sum of Request.Bytes of all waiters but newcomers, which newcomerBytes
	// sums up.
	waitingBytes  int64
	newcomerBytes int64
	tasks         tasks
	lastLeaseID   uint64
	replicaLeases map[string]int
	// gateways is the number of gateways that share the limits; at least 1.
	gateways int
	// afterUnlock are the calls to make as soon as mu is unlocked.
	afterUnlock []func()
}

// New returns a Controller without models. It starts nothing.
func New(cfg Config) *Controller {
	c := &Controller{
		shared: cfg.Shared, gateway: cfg.Gateway, ageing: cfg.Ageing, maxQueueBytes: cfg.MaxQueueBytes, gateways: 1,
		gates: map[string]*gate{}, retired: map[string]*gate{}, pools: map[string]*pool{}, tenants: map[string]*tenant{},
		replicaLeases: map[string]int{}, tasks: newTasks(), taskJournal: taskJournal{path: cfg.TaskJournal},
	}
	if c.maxQueueBytes <= 0 {
		c.maxQueueBytes = defaultMaxQueueBytes
	}
	if c.ageing <= 0 {
		c.ageing = defaultAgeing
	}
	if c.gateway == "" {
		c.gateway = rand.Text()
	}
	if c.shared != nil {
		c.shared.Subscribe(sharedSubscriber{c})
	}
	return c
}

// unlockAndRun unlocks mu and makes the calls of afterUnlock.
func (c *Controller) unlockAndRun() {
	after := c.afterUnlock
	c.afterUnlock = nil
	c.mu.Unlock()
	for _, do := range after {
		do()
	}
}

// shareOf is this gateway's part of a limit, while it decides alone. It is at least 1, and 0 or
// less for no limit.
func (c *Controller) shareOf(limit int) int {
	if limit <= 0 || c.gateways <= 1 {
		return limit
	}
	return max(limit/c.gateways, 1)
}

// SetLimits makes the model known, or changes its limits. A change takes effect at once, also for
// waiters. They are admitted as soon as the new limits allow. They are refused if their tokens can
// no longer come in time. Waiters keep their deadline and their place in the queue. Leases beyond a
// lower limit are kept. The bucket keeps its tokens, up to its new size. A call that changes
// nothing is cheap and refuses nobody.
func (c *Controller) SetLimits(model string, l Limits) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	_, known := c.gates[model]
	g := c.openGate(model)
	if l != g.usage.limits || !known {
		g.usage.limits = l
		g.usage.bucket.resize(c.shareOf(l.TokensPerMinute), now)
		g.inquiry.clearHold()
		g.reportFreeLease()
		c.relinkPools()
		c.refuseHopelessWaiters(g, now)
	}
	c.admitWaiters(g, now)
}

// openGate returns the model's gate, which it opens if it is closed.
func (c *Controller) openGate(model string) *gate {
	g := c.findOrCreateGate(model)
	delete(c.retired, model)
	g.closed = false
	c.gates[model] = g
	return g
}

// findOrCreateGate returns the model's gate, a retired one included, or creates a gate that is
// closed.
func (c *Controller) findOrCreateGate(model string) *gate {
	if g, ok := c.gates[model]; ok {
		return g
	}
	g, ok := c.retired[model]
	if !ok {
		g = &gate{model: model, closed: true}
		g.queue.gate = g
		c.retired[model] = g
	}
	return g
}

// refuseHopelessWaiters refuses the waiters whose tokens can no longer come before their deadline.
// It lowers what was guessed of them first.
func (c *Controller) refuseHopelessWaiters(g *gate, now time.Time) {
	for _, w := range g.queue.allWaiters() {
		c.lowerGuessOfWaiter(w)
	}
	ahead := map[*flow]int64{} // tokens of the waiters that stay
	for _, w := range g.queue.allWaiters() {
		if err := c.checkTokenWait(g, &w.arrival, ahead[w.flow], w.deadline.Sub(now)); err != nil {
			c.refuse(w, err)
			continue
		}
		ahead[w.flow] += w.needTokens
	}
	for _, m := range g.memberships {
		for _, w := range m.pool.queue.allWaiters() {
			if c.lowerGuessOfWaiter(w); !m.pool.fits(&w.arrival) {
				c.refuse(w, ErrNeverFits)
			}
		}
	}
}

// RefuseWaiters refuses with err the requests that wait for the model alone. Those that wait for a
// pool stay, and so do tasks, which need no replica.
func (c *Controller) RefuseWaiters(model string, err error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	if g, ok := c.gates[model]; ok {
		c.refuseRequests(&g.queue, g.queue.allWaiters(), err)
	}
}

// RefusePoolWaiters refuses with err the requests that wait for the pool. Tasks stay.
func (c *Controller) RefusePoolWaiters(pool string, err error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	p, ok := c.pools[pool]
	if !ok {
		return
	}
	waiters := p.queue.allWaiters()
	for _, m := range p.memberships {
		waiters = append(waiters, m.gate.queue.allWaiters()...)
	}
	c.refuseRequests(&p.queue, waiters, err)
}

// refuseRequests refuses those of the waiters that wait for the queue, except for tasks.
func (c *Controller) refuseRequests(home *queue, waiters []*waiter, err error) {
	refused := false
	for _, w := range waiters {
		if w.homeQueue == home && w.task == nil {
			c.refuse(w, err)
			refused = true
		}
	}
	if refused {
		c.admitFromQueue(home, time.Now()) // those behind may be admitted now
	}
}

// Remove forgets the model. Its waiters fail with ErrRemoved, later requests with ErrUnknownModel.
// Its leases can still be released. If the model comes back before that, they count again.
func (c *Controller) Remove(model string) {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[model]
	if !ok {
		return
	}
	now := time.Now()
	delete(c.gates, model)
	g.closed, g.blockedOnTokens = true, nil
	c.retired[model] = g
	members := g.memberships
	g.memberships = nil
	c.relinkPools()
	for _, w := range g.queue.allWaiters() {
		if w.homeQueue != &g.queue { // it may go to another model of its pool
			g.queue.dequeue(w, false)
			c.enqueueAtMember(w, now)
			continue
		}
		c.refuse(w, ErrRemoved)
	}
	for _, m := range members { // their newcomers may have waited for an answer about this model
		c.admitFromQueue(&m.pool.queue, now)
	}
	g.setTimer(c, 0)
	for name, g := range c.retired {
		if g.isIdle(now) {
			delete(c.retired, name)
		}
	}
}

// Close refuses all waiters with ErrClosed, and from now on every request that would have to wait.
// Leases stay, and requests that find room are admitted.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.unlockAndRun()
	c.closed = true
	for _, w := range c.allWaiters() {
		c.refuse(w, ErrClosed)
	}
}

// allWaiters returns the waiters of all models and pools. mu is held.
func (c *Controller) allWaiters() []*waiter {
	var all []*waiter
	for _, g := range c.gates {
		all = append(all, g.queue.allWaiters()...)
	}
	for _, p := range c.pools {
		all = append(all, p.queue.allWaiters()...)
	}
	return all
}

// isClosedTo reports whether the request may not wait any more. mu is held.
func (c *Controller) isClosedTo(a *arrival) bool {
	return c.closed || a.task != nil && c.tasks.closed
}

// SetPools replaces all pools; the values are their models. Waiters of a pool that is gone, or that
// has no known model left, fail with ErrRemoved.
func (c *Controller) SetPools(pools map[string][]string) {
	c.mu.Lock()
	defer c.unlockAndRun()
	for name, p := range c.pools {
		if _, ok := pools[name]; !ok {
			delete(c.pools, name)
			p.models = nil
			c.linkPool(p)
		}
	}
	for name, models := range pools {
		p := c.pools[name]
		if p == nil {
			p = &pool{}
			p.queue.pool = p
			c.pools[name] = p
		}
		p.models = append([]string(nil), models...)
	}
	c.relinkPools()
	now := time.Now()
	for _, p := range c.pools {
		c.admitFromQueue(&p.queue, now)
	}
	for _, g := range c.gates { // also those that have left a pool, whose waiters may have been before theirs
		c.admitWaiters(g, now)
	}
}

// relinkPools finds the gates of all pools again, after models, pools or weights have changed.
func (c *Controller) relinkPools() {
	for _, g := range c.gates {
		g.memberships = nil
	}
	for _, p := range c.pools {
		c.linkPool(p)
	}
}

func (c *Controller) linkPool(p *pool) {
	kept := map[string]*membership{}
	for _, m := range p.memberships {
		kept[m.gate.model] = m
	}
	p.memberships, p.minWeight, p.gatesWithFreeLease = nil, maxWeight, 0
	for _, model := range p.models {
		g, ok := c.gates[model]
		if !ok || p.hasMember(g) {
			continue
		}
		m := kept[model]
		if m == nil || m.gate != g {
			m = &membership{pool: p, gate: g}
		}
		p.memberships = append(p.memberships, m)
		if g.hasFreeLease {
			p.gatesWithFreeLease++
		}
		p.minWeight = min(p.minWeight, g.usage.limits.weight())
		g.memberships = append(g.memberships, m)
	}
	if len(p.memberships) == 0 {
		for _, w := range p.queue.allWaiters() {
			c.refuse(w, ErrRemoved)
		}
	}
}

// SetTenants replaces the limits of all tenants, and of all keys by their KeyTenant. A tenant that
// is not in the map has no limits. A change takes effect at once, also for waiters: those beyond
// the new limits are refused, the youngest first.
func (c *Controller) SetTenants(limits map[string]TenantLimits) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	for name := range limits {
		c.tenant(name)
		if strings.HasPrefix(name, KeyTenant("")) {
			c.openGate(keyGate)
		}
	}
	for name, t := range c.tenants {
		l := limits[name]
		if l == t.limits {
			continue
		}
		t.setLimits(l, c.shareOf, now)
		t.deniedReason = Granted
		c.refuseOverLimits(t, now)
		c.unparkFlows(t, now)
	}
	for name, t := range c.tenants {
		if t.isIdle(now) {
			delete(c.tenants, name)
		}
	}
	for _, g := range c.gates {
		c.admitWaiters(g, now)
	}
}

// tenant returns the tenant, or creates one without limits.
func (c *Controller) tenant(name string) *tenant {
	t := c.tenants[name]
	if t == nil {
		t = &tenant{name: name, tokens: bucket{deep: true}}
		c.tenants[name] = t
	}
	return t
}

// refuseOverLimits refuses the tenant's waiters beyond its limits. It lowers what was guessed of
// them first.
func (c *Controller) refuseOverLimits(t *tenant, now time.Time) {
	if t.waiters == 0 {
		return
	}
	waiting := c.waitersOf(t)
	for _, w := range waiting {
		c.lowerGuessOfWaiter(w)
	}
	for _, w := range waiting {
		switch {
		case !w.fits(t.limits.TokensPerMinute):
			c.refuse(w, ErrNeverFits)
		case w.Preempted:
		case t.limits.MaxQueueBytes > 0 && t.waitingBytes > t.limits.MaxQueueBytes && w.Bytes > 0:
			c.refuse(w, c.refusal(w.queue, t, TenantBytes, now))
		case !w.needsLease():
		case t.limits.MaxConcurrent > 0 && t.running+t.waiting > t.limits.MaxConcurrent:
			c.refuse(w, c.refusal(w.queue, t, TenantStreams, now))
		case c.shared == nil:
			if reason, wait := t.overdraft(now); reason != Granted {
				c.refuse(w, c.refusalUntil(t, reason, wait, now))
			}
		}
	}
}

// waitersOf returns the tenant's waiters, the youngest first. It takes time for these waiters, and
// not for those of other tenants: a reload may change the limits of thousands of tenants.
func (c *Controller) waitersOf(t *tenant) []*waiter {
	var found []*waiter
	collect := func(q *queue) {
		for b := range q.bands {
			if f := q.bands[b].flows[t.name]; f != nil {
				found = f.appendWaiters(found)
			}
		}
	}
	for _, g := range c.gates {
		collect(&g.queue)
	}
	for _, p := range c.pools {
		collect(&p.queue)
	}
	youngestFirst(found)
	return found
}

// RetryWaiters tries the model's waiters again. Call it when a slot of one of its replicas became
// free, or when a replica appeared.
func (c *Controller) RetryWaiters(model string) {
	c.mu.Lock()
	defer c.unlockAndRun()
	if g, ok := c.gates[model]; ok {
		g.inquiry.onSlotFreed()
		c.admitWaiters(g, time.Now())
	}
}

// Stats returns the state of the model. For an unknown model all is 0, and Tokens is -1.
func (c *Controller) Stats(model string) Stats {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[model]
	if !ok {
		return Stats{Tokens: -1}
	}
	asked, askedBytes := g.inquiry.waiting()
	return Stats{
		InFlight:       g.usage.leases,
		Queued:         g.queue.length + asked,
		AtTenantLimits: g.queue.parkedCount(),
		LacksTokens:    g.lacksTokens(),
		QueuedBytes:    g.queue.bytes + askedBytes,
		Tokens:         g.usage.bucket.tokens(time.Now()),
		Share:          g.usage.leases + g.inquiry.remoteLeases,
	}
}

// Tenant returns the state of the tenant.
func (c *Controller) Tenant(name string) TenantStats {
	c.mu.Lock()
	defer c.unlockAndRun()
	t, ok := c.tenants[name]
	if !ok {
		return TenantStats{}
	}
	return TenantStats{
		Running: t.running, Prefill: t.prefill, Queued: t.waiters, QueuedBytes: t.waitingBytes, Quota: c.quota(t, time.Now()),
	}
}

// quota is what the tenant has left: by the shared state if that has answered, else by this
// gateway's counts.
func (c *Controller) quota(t *tenant, now time.Time) Quota {
	if t.limits.RequestsPerMinute <= 0 && t.limits.TokensPerMinute <= 0 {
		return Quota{}
	}
	if t.sharedQuota.known {
		return t.sharedQuota.quota(now)
	}
	return t.localQuota(now)
}
