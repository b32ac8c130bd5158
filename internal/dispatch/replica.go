package dispatch

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// replica is a replica of one model route.
type replica struct {
	id, address string
	cluster     string // in Envoy
	node        uint64 // see firstNode
	limit       int    // 0: none
	mostPrefill int    // 0: no bound
	// since is when it became pickable: see slow start
	since time.Time
	*counter
}

// counter counts what is on a replica. It outlives routing tables.
type counter struct {
	load atomic.Int64
	// prefill counts those of load that are known to have no token yet.
	prefill atomic.Int64
	served  atomic.Uint64
	// fullUntil is when other gateways are asked again whether they have filled it, in Unix
	// nanoseconds; 0 is now.
	fullUntil atomic.Int64
	// turns counts the turns of round robin while it warms up, in parts of a whole one.
	turns atomic.Uint64
	// users lists the models that the replica may be picked for now, sorted. The slice is never
	// changed.
	users atomic.Pointer[[]string]
	// since is when it became pickable, at address; guarded by Dispatcher.mu
	since   time.Time
	address netip.AddrPort
}

// models lists the models that the replica may be picked for now.
func (c *counter) models() []string {
	if all := c.users.Load(); all != nil {
		return *all
	}
	return nil
}

// join and part take a model in among the users, and out. Dispatcher.mu is held.
func (c *counter) join(model string) {
	users := c.models()
	if i, in := slices.BinarySearch(users, model); !in {
		users = slices.Insert(slices.Clone(users), i, model)
		c.users.Store(&users)
	}
}

func (c *counter) part(model string) {
	users := c.models()
	if i, in := slices.BinarySearch(users, model); in {
		users = slices.Delete(slices.Clone(users), i, i+1)
		c.users.Store(&users)
	}
}

// begin notes when the replica became pickable at the address, unless it has been so all the time.
// Dispatcher.mu is held.
func (c *counter) begin(address netip.AddrPort, now time.Time) time.Time {
	if len(c.models()) == 0 || c.address != address {
		c.since, c.address = now, address
	}
	return c.since
}

// fullFor is how long a replica that other gateways have filled is not offered.
const fullFor = 100 * time.Millisecond

// fullElsewhere records that other gateways have filled the replica.
func (d *Dispatcher) fullElsewhere(r replica) {
	now := time.Now()
	if before := r.fullUntil.Swap(now.Add(fullFor).UnixNano()); before < now.UnixNano() {
		d.lookAgain(r, fullFor)
	}
}

// lookAgain wakes who waits for the replica when it may be offered again.
func (d *Dispatcher) lookAgain(r replica, after time.Duration) {
	time.AfterFunc(after+time.Millisecond, func() {
		if rest := time.Until(time.Unix(0, r.fullUntil.Load())); rest > 0 {
			d.lookAgain(r, rest)
			return
		}
		d.wakeOthers(r.counter, "")
	})
}

// acquire counts one more request unless a limit is reached. watched says that the request counts
// as prefill until its first token.
func (r replica) acquire(watched bool) bool {
	if watched && !raise(&r.prefill, r.mostPrefill) {
		return false
	}
	if !raise(&r.load, r.limit) {
		if watched {
			r.prefill.Add(-1)
		}
		return false
	}
	r.served.Add(1)
	return true
}

// raise counts one more, unless the limit is reached; 0 is none.
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

// full says that the replica takes no more now.
func (r replica) full(load int64) bool {
	if until := r.fullUntil.Load(); until != 0 && time.Now().UnixNano() < until {
		return true
	}
	return r.limit > 0 && load >= int64(r.limit) || r.mostPrefill > 0 && r.prefill.Load() >= int64(r.mostPrefill)
}
