// Package admission decides when a request may go on to a model.
//
// Every model has a capacity (a number of requests at once, tokens a minute) and a queue. A request that finds room gets a
// Lease at once; one that does not waits its turn, bounded in number, in bytes and in time. It leaves the queue in the moment
// its context ends, and it is told at once when waiting would be in vain. Who holds a Lease holds a part of the capacity until
// Release.
//
// Waiting requests of a model go in the order in which they came. The first one waits until the model has a free place in its
// concurrency, the tokens, and a replica's slot (Request.Place), and nobody passes it.
//
// All state is in this process. Models share nothing but the bound on queued bytes.
package admission

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a Controller is made of. The zero value is ready for use.
type Config struct {
	// MaxQueueBytes bounds the sum of Request.Bytes of all waiting requests of all models. 0 or less means 1 GiB.
	MaxQueueBytes int64
}

// Request asks for a lease.
type Request struct {
	// Model is the model's name, as given to SetLimits.
	Model string
	// Tenant is who asks. Tenants share a model's queue alike.
	Tenant string
	// Tokens is what the request is estimated to cost of the model's tokens a minute. Below 0 means 0.
	Tokens int
	// Bytes is the memory that the request keeps in use while it waits. Below 0 means 0.
	Bytes int
	// Timeout is how long the request may wait, in place of the model's QueueTimeout: shorter, or longer (a model that is only
	// starting). 0 or less means the model's.
	Timeout time.Duration
	// Place takes a slot on a replica and says whether it found one. It is called when everything else is there, with the
	// model's lock held: it must be quick and must not call the Controller. After a false it is called again when something
	// changed: a lease was released, another request left, or Kick. nil means that no slot is needed.
	Place func() bool
	// Unplace gives back the slot that Place took, if the request ended before it could use it. It is called without a lock.
	Unplace func()
	// OnWait is called once, without a lock, when the request has a place in the queue and is about to wait.
	OnWait func()
}

// Stats is a model's state at one moment.
type Stats struct {
	// InFlight is the number of leases.
	InFlight int
	// Queued is the number of waiting requests.
	Queued int
	// QueuedBytes is the sum of their Bytes.
	QueuedBytes int64
	// Tokens are in the model's bucket now; -1 when it has no token limit.
	Tokens float64
}

// Controller admits requests. It is safe for concurrent use and runs nothing of its own: requests wait in their callers'
// goroutines, and a model has one timer, which runs only while its first waiting request waits for tokens.
type Controller struct {
	held heldBytes
	// gates is replaced, never changed, so that a request finds its model without a lock.
	gates atomic.Pointer[map[string]*gate]

	mu sync.Mutex
	// retired are the gates of removed models that still have something to remember: leases, or a bucket that is not full. A
	// model that comes back must not come back with more than it left with. Guarded by mu.
	retired map[string]*gate
}

// New returns a Controller without models.
func New(cfg Config) *Controller {
	c := &Controller{retired: map[string]*gate{}}
	c.held.most = defaultMaxQueueBytes
	if cfg.MaxQueueBytes > 0 {
		c.held.most = cfg.MaxQueueBytes
	}
	c.gates.Store(&map[string]*gate{})
	return c
}

func (c *Controller) gate(model string) (*gate, bool) {
	g, ok := (*c.gates.Load())[model]
	return g, ok
}

// SetLimits makes the model known, or changes its limits. A change holds at once and for those who wait too: they go as soon
// as the new limits let them, and fail as a new request would when their tokens can no longer come in time. They keep the
// deadline and the place in the queue that they were given. Leases are kept when there are more than the new limit; the
// bucket keeps its tokens, up to its new size. Setting the limits that hold already is cheap and refuses nobody.
func (c *Controller) SetLimits(model string, l Limits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.gate(model); ok {
		g.open(l)
		return
	}
	g, ok := c.retired[model]
	if !ok {
		g = &gate{held: &c.held}
	}
	delete(c.retired, model)
	g.open(l)
	next := maps.Clone(*c.gates.Load())
	next[model] = g
	c.gates.Store(&next)
}

// Remove forgets the model: its waiting requests fail with ErrRemoved, new ones with ErrUnknownModel. Its leases can still be
// released, and count again if the model comes back before they are.
func (c *Controller) Remove(model string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.gate(model)
	if !ok {
		return
	}
	next := maps.Clone(*c.gates.Load())
	delete(next, model)
	c.gates.Store(&next)
	g.close()
	c.retired[model] = g
	maps.DeleteFunc(c.retired, func(_ string, g *gate) bool { return g.idle() })
}

// Limits returns the model's limits as they were set, and whether the model is known.
func (c *Controller) Limits(model string) (Limits, bool) {
	g, ok := c.gate(model)
	if !ok {
		return Limits{}, false
	}
	return g.limits(), true
}

// Admit returns a lease when the request may go on, and blocks until then. The caller must Release the lease.
//
// It fails at once with ErrUnknownModel, ErrNeverFits, ErrQueueFull, or *RateLimited; after a wait with ErrTimeout,
// ErrRemoved, or ctx.Err(). A failed request has taken nothing: no concurrency, no tokens, no slot.
func (c *Controller) Admit(ctx context.Context, r Request) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g, ok := c.gate(r.Model)
	if !ok {
		return nil, ErrUnknownModel
	}
	r.Tokens = min(max(r.Tokens, 0), maxTokens)
	r.Bytes = max(r.Bytes, 0)
	lease, waiting, err := g.enter(r)
	if waiting == nil {
		return lease, err
	}
	return g.wait(ctx, waiting)
}

// Resume returns a lease for a request that runs already, as one does whose admission was before a restart. It asks for nothing
// and cannot be refused for want of room; until leases have ended, a model may so be over its limits. The error is ErrUnknownModel.
func (c *Controller) Resume(model string) (*Lease, error) {
	g, ok := c.gate(model)
	if !ok {
		return nil, ErrUnknownModel
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leaseLocked(0), nil
}

// Kick lets the model's waiting requests try again. Call it when a replica's slot became free or a replica appeared.
func (c *Controller) Kick(model string) {
	if g, ok := c.gate(model); ok {
		g.kick()
	}
}

// Stats returns the model's state; of an unknown model there is nothing, and no token limit.
func (c *Controller) Stats(model string) Stats {
	g, ok := c.gate(model)
	if !ok {
		return Stats{Tokens: -1}
	}
	return g.stats()
}

// Lease is a part of a model's capacity. It lasts until Release.
type Lease struct {
	gate   *gate
	tokens int
	// released is guarded by gate.mu.
	released bool
}

// Release gives the concurrency back and lets the next request in. The tokens are spent. Only the first call counts. Give the
// replica's slot back before, so that the next request finds it.
func (l *Lease) Release() { l.gate.end(l, true) }
