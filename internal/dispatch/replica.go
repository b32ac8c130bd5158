package dispatch

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/predict"
)

// replica is a replica of one model route.
type replica struct {
	id, address string
	cluster     string // the Envoy cluster
	// servedModel is the name of the model there. All replicas of a cluster have the same.
	servedModel string
	limit       int // of concurrent requests; 0: no limit
	limitFrom   LimitFrom
	maxPrefill  int // 0: no bound
	// closeDelimited says that the replica ends responses by closing their connections.
	closeDelimited bool
	// sharedID is what Dispatcher.sharedID returns.
	sharedID string
	// since is when the replica became pickable. Slow start counts from then.
	since time.Time
	// slot is the replica's slot in the prefix index of the model.
	slot int
	*counter
	// here is the part of counter.load at the replica's address.
	here *atomic.Int64
}

// sharedID returns the name of a replica among all gateways. It is "" for a process of this
// gateway: other gateways may have one of the same id, which is another process. Gateways may have
// jobs of one name on Ray, at different addresses. An upstream at a loopback address is another
// server on each host.
func (d *Dispatcher) sharedID(r *engines.Replica) string {
	switch {
	case r.Launcher == engines.Local:
		return ""
	case r.Launcher == engines.Ray:
		return r.ID + "@" + r.Address.String()
	case r.Launcher == engines.Upstream && r.Address.Addr().IsLoopback() && d.config.Host != "":
		return r.ID + "@" + d.config.Host
	}
	return r.ID
}

// counter counts the requests on a replica. It outlives routing tables, which share it.
type counter struct {
	load atomic.Int64
	// byAddress holds the parts of load by address; "" is for requests whose address is not known.
	// The map is guarded by Dispatcher.mu.
	byAddress map[string]*atomic.Int64
	// prefill counts the requests in load that are known to have no token yet.
	prefill atomic.Int64
	served  atomic.Uint64
	// doubtedAt is when Config.Doubted was called last, by steady.Nanos; 0: never.
	doubtedAt atomic.Int64
	// fullUntil is the time until which the replica counts as full, because other gateways use all
	// its slots or because it rests after a 429. nil means that it never did.
	fullUntil atomic.Pointer[time.Time]
	// rounds counts the share of round robin's rounds that the replica got while it warmed up, in
	// parts of wholeRound.
	rounds atomic.Uint64
	// usedBy is the sorted list of the models that the replica may be picked for now. The slice is
	// never changed.
	usedBy atomic.Pointer[[]string]
	// queue has the prompts that the replica has yet to compute. It is never nil.
	queue *predict.Replica
	// slotTime is how long a request usually holds a slot.
	slotTime usualTime
	// silent is how many requests in a row the replica has left without a byte, see Silent.
	// silentSince is when the first of them ended, by steady.Nanos; 0: there is none.
	silent      atomic.Int32
	silentSince atomic.Int64
	// news is what the engine said last; nil: nothing.
	news atomic.Pointer[EngineNews]
	// run is the run of the engine that was pickable last; nil: none was.
	run atomic.Pointer[run]
	// since is when the replica became pickable at address; guarded by Dispatcher.mu
	since   time.Time
	address netip.AddrPort
	// sharedID is what Dispatcher.sharedID returned last; guarded by Dispatcher.mu
	sharedID string
}

// maxIdleAddresses limits the addresses without requests of a counter. A replica has one address at
// a time, and a local one gets another at each start.
const maxIdleAddresses = 32

// at returns the part of load at an address. Dispatcher.mu is held.
func (c *counter) at(address string) *atomic.Int64 {
	n := c.byAddress[address]
	if n == nil {
		if len(c.byAddress) >= maxIdleAddresses {
			now := c.address.String() // the routing table has the part at this one
			maps.DeleteFunc(c.byAddress, func(at string, n *atomic.Int64) bool { return at != now && n.Load() == 0 })
		}
		n = new(atomic.Int64)
		c.byAddress[address] = n
	}
	return n
}

// add adds n requests to the load. here is the part of it at their address.
func (c *counter) add(here *atomic.Int64, n int64) {
	c.load.Add(n)
	here.Add(n)
}

// models returns the models that the replica may be picked for now, sorted.
func (c *counter) models() []string {
	if all := c.usedBy.Load(); all != nil {
		return *all
	}
	return nil
}

// addModel adds a model that the replica may be picked for. Dispatcher.mu is held.
func (c *counter) addModel(model string) {
	users := c.models()
	if i, in := slices.BinarySearch(users, model); !in {
		users = slices.Insert(slices.Clone(users), i, model)
		c.usedBy.Store(&users)
	}
}

// removeModel removes a model that the replica may be picked for. Dispatcher.mu is held.
func (c *counter) removeModel(model string) {
	users := c.models()
	if i, in := slices.BinarySearch(users, model); in {
		users = slices.Delete(slices.Clone(users), i, i+1)
		c.usedBy.Store(&users)
	}
}

// setPickable returns when the replica became pickable at the address. It records now if the
// replica was not pickable there before. Dispatcher.mu is held.
func (c *counter) setPickable(address netip.AddrPort, now time.Time) time.Time {
	if len(c.models()) == 0 || c.address != address {
		c.since, c.address = now, address
	}
	return c.since
}

// fullFor is how long a replica that other gateways have filled is not picked.
const fullFor = 100 * time.Millisecond

// markFull records that the replica gets no new request for a while, because other gateways use all
// its slots or because it wants no more.
func (d *Dispatcher) markFull(c *counter, wait time.Duration) {
	now := time.Now()
	until := now.Add(wait)
	for {
		before := c.fullUntil.Load()
		if before != nil && !until.After(*before) {
			return
		}
		if !c.fullUntil.CompareAndSwap(before, &until) {
			continue
		}
		if before == nil || before.Before(now) { // else retryWhenFree is under way
			d.retryWhenFree(c, wait)
		}
		return
	}
}

// retryWhenFree wakes the waiters of the replica's models when the replica may be picked again.
func (d *Dispatcher) retryWhenFree(c *counter, after time.Duration) {
	time.AfterFunc(after+time.Millisecond, func() {
		if rest := time.Until(*c.fullUntil.Load()); rest > 0 {
			d.retryWhenFree(c, rest)
			return
		}
		d.wakeOthers(c, "")
	})
}

// acquire takes one slot of the replica. It returns false if a limit is reached. A watched request
// counts as prefill until its first token.
func (r *replica) acquire(watched bool) bool {
	if watched && !raise(&r.prefill, r.maxPrefill) {
		return false
	}
	if !raise(&r.load, r.limit) {
		if watched {
			r.prefill.Add(-1)
		}
		return false
	}
	r.here.Add(1)
	r.served.Add(1)
	return true
}

// count adds n requests to the load of the replica.
func (r *replica) count(n int64) { r.add(r.here, n) }

// raise increments n unless n has reached the limit. A limit of 0 means none.
func raise(n *atomic.Int64, limit int) bool {
	for {
		now := n.Load()
		if limit > 0 && now >= int64(limit) {
			return false
		}
		if n.CompareAndSwap(now, now+1) {
			return true
		}
	}
}

// rests reports whether the replica gets no new request at a time. A step of the clock does not
// change that.
func (c *counter) rests(now time.Time) bool {
	until := c.fullUntil.Load()
	return until != nil && now.Before(*until)
}

// full reports whether the replica has no free slot at this load.
func (r *replica) full(load int64) bool {
	if r.rests(time.Now()) {
		return true
	}
	return r.limit > 0 && load >= int64(r.limit) || r.maxPrefill > 0 && r.prefill.Load() >= int64(r.maxPrefill)
}
