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
	Journal string
}

// Controller admits requests. It is safe for concurrent use and runs nothing of its own: requests wait in their callers'
// goroutines. A model has one timer, which runs only while its first waiting request waits for a known time.
type Controller struct {
	shared   Shared
	gateway  string
	ageing   time.Duration
	maxBytes int64
	journal  journal

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
	held     int64
	tasks    tasks
	leases   uint64
	replicas map[string]int
	// gateways is how many share the limits; at least 1.
	gateways int
	// after is what is to be done as soon as the lock is given up.
	after []func()
}

// New returns a Controller without models. It starts nothing.
func New(cfg Config) *Controller {
	c := &Controller{
		shared: cfg.Shared, gateway: cfg.Gateway, ageing: cfg.Ageing, maxBytes: cfg.MaxQueueBytes, gateways: 1,
		gates: map[string]*gate{}, retired: map[string]*gate{}, pools: map[string]*pool{}, tenants: map[string]*tenant{},
		replicas: map[string]int{}, tasks: newTasks(), journal: journal{path: cfg.Journal},
	}
	if c.maxBytes <= 0 {
		c.maxBytes = defaultMaxQueueBytes
	}
	if c.ageing <= 0 {
		c.ageing = defaultAgeing
	}
	if c.gateway == "" {
		c.gateway = rand.Text()
	}
	if c.shared != nil {
		c.shared.Attach(listener{c})
	}
	return c
}

// unlock gives up the lock and does what had to wait for that.
func (c *Controller) unlock() {
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, do := range after {
		do()
	}
}

// share is this process's part of a limit: all of it, unless others share it.
func (c *Controller) share(limit int) int {
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
	defer c.unlock()
	now := time.Now()
	g, known := c.gates[model]
	if !known {
		g = c.anyGate(model)
		delete(c.retired, model)
		g.closed = false
		c.gates[model] = g
	}
	if l != g.book.limits || !known {
		g.book.limits = l
		g.book.bucket.resize(c.share(l.TokensPerMinute), now)
		g.ask.forget()
		g.note()
		c.relink()
		c.refuseHopeless(g, now)
	}
	c.pump(g, now)
}

// anyGate finds the model's gate, or makes one that is closed.
func (c *Controller) anyGate(model string) *gate {
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
func (c *Controller) refuseHopeless(g *gate, now time.Time) {
	ahead := map[*flow]int64{} // of those who stay
	for _, w := range g.queue.all() {
		if err := c.hopeless(g, &w.arrival, ahead[w.flow], w.deadline.Sub(now)); err != nil {
			c.refuse(w, err)
			continue
		}
		ahead[w.flow] += w.due()
	}
	for _, m := range g.members {
		for _, w := range m.pool.queue.all() {
			if !w.Admitted && !m.pool.fits(w.Tokens) {
				c.refuse(w, ErrNeverFits)
			}
		}
	}
}

// Remove forgets the model: its waiting requests fail with ErrRemoved, new ones with ErrUnknownModel. Its leases can still be
// released, and count again if the model comes back before they are.
func (c *Controller) Remove(model string) {
	c.mu.Lock()
	defer c.unlock()
	g, ok := c.gates[model]
	if !ok {
		return
	}
	now := time.Now()
	delete(c.gates, model)
	g.closed, g.lacks = true, nil
	c.retired[model] = g
	members := g.members
	c.relink()
	for _, w := range g.queue.all() {
		if w.home != &g.queue { // it may go elsewhere
			g.queue.remove(w, false)
			c.bind(w, now)
			continue
		}
		c.refuse(w, ErrRemoved)
	}
	for _, m := range members { // who waits there for an answer of this one
		c.pumpQueue(&m.pool.queue, now)
	}
	g.arm(c, 0)
	for name, g := range c.retired {
		if g.idle(now) {
			delete(c.retired, name)
		}
	}
}

// Close ends all waiting: who waits, and from now on who would have to, fails with ErrClosed. Leases stay, and who finds room is let
// in.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.unlock()
	c.closed = true
	for _, g := range c.gates {
		for _, w := range g.queue.all() {
			c.refuse(w, ErrClosed)
		}
	}
	for _, p := range c.pools {
		for _, w := range p.queue.all() {
			c.refuse(w, ErrClosed)
		}
	}
}

// Limits returns the model's limits as they were set, and whether the model is known.
func (c *Controller) Limits(model string) (Limits, bool) {
	c.mu.Lock()
	defer c.unlock()
	g, ok := c.gates[model]
	if !ok {
		return Limits{}, false
	}
	return g.book.limits, true
}

// SetPools says which models each pool has, and replaces all that were. Requests that wait for a pool that is no more, or that has no
// known model left, fail with ErrRemoved.
func (c *Controller) SetPools(pools map[string][]string) {
	c.mu.Lock()
	defer c.unlock()
	for name, p := range c.pools {
		if _, ok := pools[name]; !ok {
			delete(c.pools, name)
			p.models = nil
			c.link(p)
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
	c.relink()
	now := time.Now()
	for _, p := range c.pools {
		c.pumpQueue(&p.queue, now)
	}
}

// relink finds the gates of all pools anew, after models or pools came or went or weights changed.
func (c *Controller) relink() {
	for _, g := range c.gates {
		g.members = nil
	}
	for _, p := range c.pools {
		c.link(p)
	}
}

func (c *Controller) link(p *pool) {
	before := map[string]*member{}
	for _, m := range p.members {
		before[m.gate.model] = m
		m.gate.members = without(m.gate.members, m)
	}
	p.members, p.lightest, p.spare = nil, maxWeight, 0
	for _, model := range p.models {
		g, ok := c.gates[model]
		if !ok || p.has(g) {
			continue
		}
		m := before[model]
		if m == nil || m.gate != g {
			m = &member{pool: p, gate: g}
		}
		p.members = append(p.members, m)
		if g.spare {
			p.spare++
		}
		p.lightest = min(p.lightest, g.book.limits.weight())
		g.members = append(g.members, m)
	}
	if len(p.members) == 0 {
		for _, w := range p.queue.all() {
			c.refuse(w, ErrRemoved)
		}
	}
}

func without(members []*member, m *member) []*member {
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
	defer c.unlock()
	now := time.Now()
	for name := range limits {
		c.tenant(name)
	}
	for name, t := range c.tenants {
		l := limits[name]
		if l == t.limits {
			continue
		}
		t.set(l, c.share, now)
		t.denied = Granted
		c.trim(t, now)
		c.welcome(t, now)
	}
	for name, t := range c.tenants {
		if t.idle(now) {
			delete(c.tenants, name)
		}
	}
	for _, g := range c.gates {
		c.pump(g, now)
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
func (c *Controller) trim(t *tenant, now time.Time) {
	if t.waiters == 0 {
		return
	}
	for _, w := range c.waitersOf(t) {
		switch {
		case !fits(w.Tokens, t.limits.TokensPerMinute) && !w.Admitted:
			c.refuse(w, ErrNeverFits)
		case w.Preempted:
		case t.limits.MaxQueueBytes > 0 && t.waitingBytes > t.limits.MaxQueueBytes && w.Bytes > 0:
			c.refuse(w, c.refused(w.queue, t, TenantBytes, now))
		case w.Admitted:
		case t.limits.MaxConcurrent > 0 && t.running+t.waiting > t.limits.MaxConcurrent:
			c.refuse(w, c.refused(w.queue, t, TenantStreams, now))
		case c.shared == nil:
			if reason, wait := t.overdrawn(now); reason != Granted {
				c.refuse(w, &Refused{Reason: reason, RetryAfter: jittered(wait), Quota: c.quota(t, now)})
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
			for w := q.bands[b].all.first; w != nil; w = w.links[byArrival].next {
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
func (c *Controller) Kick(model string) {
	c.mu.Lock()
	defer c.unlock()
	if g, ok := c.gates[model]; ok {
		g.ask.kicked()
		c.pump(g, time.Now())
	}
}

// Stats returns the model's state; of an unknown model there is nothing, and no token limit.
func (c *Controller) Stats(model string) Stats {
	c.mu.Lock()
	defer c.unlock()
	g, ok := c.gates[model]
	if !ok {
		return Stats{Tokens: -1}
	}
	return Stats{
		InFlight:    g.book.leases,
		Queued:      g.queue.length + g.ask.waiting(),
		QueuedBytes: g.queue.bytes + g.ask.bytes(),
		Tokens:      g.book.bucket.tokens(time.Now()),
		Share:       g.book.leases + g.ask.elsewhere,
	}
}

// Tenant returns the tenant's state.
func (c *Controller) Tenant(name string) TenantStats {
	c.mu.Lock()
	defer c.unlock()
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
	if t.quota != (Quota{}) {
		return t.quota
	}
	return t.left(now)
}
