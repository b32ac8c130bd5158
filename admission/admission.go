// Package admission decides when a request may go on to a model.
//
// Every model has a capacity (a number of requests at once, tokens a minute) and a queue; every tenant has limits over all
// models. A request that finds room gets a Lease at once; one that does not waits its turn, bounded in number, in bytes and in time. It
// leaves the queue in the moment its context ends, and it is told at once when waiting would be in vain. Who holds a Lease holds a
// part of the capacity until Release.
//
// Waiting requests of a model go by band (Priority), strictly, but for one admission in eight that a lower band gets when it
// has waited long; inside a band tenants share by deficit round robin over tokens, and a tenant's own requests go in the order in which
// they came. The first in that order waits until the model has a free place, the tokens, and a replica's slot
// (Request.Place), and nobody of its band or a lower one passes it. A tenant that is at a limit of its own holds nobody up.
//
// A request may ask for a pool of models instead. While several of them have room, they share the tokens by their weight; when none
// has, the request waits for all of them at once.
//
// All state is in this process, under one lock. With Config.Shared the limits are those of all gateways together: the order is decided
// here, and whether there is room is asked there.
package admission

import (
	"crypto/rand"
	"sync"
	"time"
)

// Config is what a Controller is made of. The zero value is ready for use.
type Config struct {
	// MaxQueueBytes bounds the sum of Request.Bytes of all waiting requests of all models. 0 or less means 1 GiB.
	MaxQueueBytes int64
	// Ageing is after how long a waiting request of a lower band gets one admission in eight before a higher band. 0 or less
	// means 30 s.
	Ageing time.Duration
	// Shared is what this process shares with other gateways. nil: nothing.
	Shared Shared
	// Gateway begins the ids of leases and must be unique over all gateways and all time. "" means random.
	Gateway string
	// Journal is the file that keeps tasks over a restart. "" means none.
	TaskJournal string
}

// Controller admits requests. It is safe for concurrent use and runs nothing of its own: requests wait in their callers'
// goroutines. A model has one timer, which runs only while its first waiting request waits for a known time.
type Controller struct {
	shared        Shared
	gateway       string
	ageing        time.Duration
	maxQueueBytes int64
	taskJournal   taskJournal

	mu sync.Mutex
	// Everything below is guarded by mu.

	gates map[string]*gate
	// retired are the gates of removed models that still have something to remember: leases, or a bucket that is not full. A
	// model that comes back must not come back with more than it left with.
	retired map[string]*gate
	pools   map[string]*pool
	tenants map[string]*tenant
	// closed: nobody waits any more.
	closed bool
	// held is the sum of the bytes of all who wait.
	waitingBytes  int64
	tasks         tasks
	lastLeaseID   uint64
	replicaLeases map[string]int
	// gateways is how many share the limits; at least 1.
	gateways int
	// after is what is to be done as soon as the lock is given up.
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

// unlock gives up the lock and does what had to wait for that.
func (c *Controller) unlockAndRun() {
	after := c.afterUnlock
	c.afterUnlock = nil
	c.mu.Unlock()
	for _, do := range after {
		do()
	}
}

// share is this process's part of a limit: all of it, unless others share it.
func (c *Controller) shareOf(limit int) int {
	if limit <= 0 || c.gateways <= 1 {
		return limit
	}
	return max(limit/c.gateways, 1)
}

// SetLimits makes the model known, or changes its limits. A change holds at once and for those who wait too: they go as soon
// as the new limits let them, and fail as a new request would when their tokens can no longer come in time. They keep the
// deadline and the place in the queue that they were given. Leases are kept when there are more than the new limit; the
// bucket keeps its tokens, up to its new size. Setting the limits that hold already is cheap and refuses nobody.
func (c *Controller) SetLimits(model string, l Limits) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	g, known := c.gates[model]
	if !known {
		g = c.findOrCreateGate(model)
		delete(c.retired, model)
		g.closed = false
		c.gates[model] = g
	}
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

// anyGate finds the model's gate, or makes one that is closed.
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

// refuseHopeless ends the waiting of those whose tokens can no longer come in time.
func (c *Controller) refuseHopelessWaiters(g *gate, now time.Time) {
	ahead := map[*flow]int64{} // of those who stay
	for _, w := range g.queue.allWaiters() {
		if err := c.checkTokenWait(g, &w.arrival, ahead[w.flow], w.deadline.Sub(now)); err != nil {
			c.refuse(w, err)
			continue
		}
		ahead[w.flow] += w.charge()
	}
	for _, m := range g.memberships {
		for _, w := range m.pool.queue.allWaiters() {
			if !w.SlotOnly && !m.pool.fits(w.Tokens) {
				c.refuse(w, ErrNeverFits)
			}
		}
	}
}

// Remove forgets the model: its waiting requests fail with ErrRemoved, new ones with ErrUnknownModel. Its leases can still be
// released, and count again if the model comes back before they are.
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
	c.relinkPools()
	for _, w := range g.queue.allWaiters() {
		if w.homeQueue != &g.queue { // it may go elsewhere
			g.queue.dequeue(w, false)
			c.enqueueAtMember(w, now)
			continue
		}
		c.refuse(w, ErrRemoved)
	}
	for _, m := range members { // who waits there for an answer of this one
		c.admitFromQueue(&m.pool.queue, now)
	}
	g.setTimer(c, 0)
	for name, g := range c.retired {
		if g.isIdle(now) {
			delete(c.retired, name)
		}
	}
}

// Close ends all waiting: who waits, and from now on who would have to, fails with ErrClosed. Leases stay, and who finds room is let
// in.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.unlockAndRun()
	c.closed = true
	for _, g := range c.gates {
		for _, w := range g.queue.allWaiters() {
			c.refuse(w, ErrClosed)
		}
	}
	for _, p := range c.pools {
		for _, w := range p.queue.allWaiters() {
			c.refuse(w, ErrClosed)
		}
	}
}

// Limits returns the model's limits as they were set, and whether the model is known.
func (c *Controller) Limits(model string) (Limits, bool) {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[model]
	if !ok {
		return Limits{}, false
	}
	return g.usage.limits, true
}

// SetPools says which models each pool has, and replaces all that were. Requests that wait for a pool that is no more, or that has no
// known model left, fail with ErrRemoved.
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
			p = &pool{name: name}
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
}

// relink finds the gates of all pools anew, after models or pools came or went or weights changed.
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
		m.gate.memberships = withoutMembership(m.gate.memberships, m)
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

func withoutMembership(members []*membership, m *membership) []*membership {
	kept := members[:0]
	for _, other := range members {
		if other != m {
			kept = append(kept, other)
		}
	}
	return kept
}

// SetTenants gives the tenants their limits, and replaces all that were set: tenants not among them have none. Like a model's limits
// they hold at once, and for those who wait too: what waits beyond them is refused, the youngest first.
func (c *Controller) SetTenants(limits map[string]TenantLimits) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	for name := range limits {
		c.tenant(name)
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

// tenant finds a tenant, or makes one without limits.
func (c *Controller) tenant(name string) *tenant {
	t := c.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		c.tenants[name] = t
	}
	return t
}

// trim refuses what waits of the tenant beyond its limits.
func (c *Controller) refuseOverLimits(t *tenant, now time.Time) {
	if t.waiters == 0 {
		return
	}
	for _, w := range c.waitersOf(t) {
		switch {
		case !fits(w.Tokens, t.limits.TokensPerMinute) && !w.SlotOnly:
			c.refuse(w, ErrNeverFits)
		case w.Preempted:
		case t.limits.MaxQueueBytes > 0 && t.waitingBytes > t.limits.MaxQueueBytes && w.Bytes > 0:
			c.refuse(w, c.refusal(w.queue, t, TenantBytes, now))
		case w.SlotOnly:
		case t.limits.MaxConcurrent > 0 && t.running+t.waiting > t.limits.MaxConcurrent:
			c.refuse(w, c.refusal(w.queue, t, TenantStreams, now))
		case c.shared == nil:
			if reason, wait := t.overdraft(now); reason != Granted {
				c.refuse(w, &Refused{Reason: reason, RetryAfter: addJitter(wait), Quota: c.quota(t, now)})
			}
		}
	}
}

// waitersOf lists what waits of a tenant, the youngest first.
func (c *Controller) waitersOf(t *tenant) []*waiter {
	var found []*waiter
	collect := func(q *queue) {
		for b := range q.bands {
			f := q.bands[b].flows[t.name]
			if f == nil {
				continue
			}
			for w := q.bands[b].arrivals.first; w != nil; w = w.links[arrivalOrder].next {
				if w.flow == f {
					found = append(found, w)
				}
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

// Kick lets the model's waiting requests try again. Call it when a replica's slot became free or a replica appeared.
func (c *Controller) RetryWaiters(model string) {
	c.mu.Lock()
	defer c.unlockAndRun()
	if g, ok := c.gates[model]; ok {
		g.inquiry.onSlotFreed()
		c.admitWaiters(g, time.Now())
	}
}

// Stats returns the model's state; of an unknown model there is nothing, and no token limit.
func (c *Controller) Stats(model string) Stats {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[model]
	if !ok {
		return Stats{Tokens: -1}
	}
	return Stats{
		InFlight:    g.usage.leases,
		Queued:      g.queue.length + g.inquiry.waitingCount(),
		QueuedBytes: g.queue.bytes + g.inquiry.waitingBytes(),
		Tokens:      g.usage.bucket.tokens(time.Now()),
		Share:       g.usage.leases + g.inquiry.remoteLeases,
	}
}

// Tenant returns the tenant's state.
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

// quota is what the tenant has left, by the best that is known.
func (c *Controller) quota(t *tenant, now time.Time) Quota {
	if t.limits.RequestsPerMinute <= 0 && t.limits.TokensPerMinute <= 0 {
		return Quota{}
	}
	if t.sharedQuota != (Quota{}) {
		return t.sharedQuota
	}
	return t.localQuota(now)
}
