package dispatch

import (
	"maps"
	"slices"
	"sync"

	"github.com/sluice-gateway/sluice/admission"
)

// inheritance is the requests that still run from before a restart: Envoy kept them going, and all that is known of them at first is
// where they are. Each holds a slot on its replica and a lease of its model, so that no limit is exceeded meanwhile. Envoy's access
// log tells whose they are, and then their leases count against their tenants too. The zero value is ready to use.
type inheritance struct {
	mu sync.Mutex
	// held by replica; guarded by mu
	held map[Place][]inherited
}

// Place is a replica as Envoy names it: a model, and an address (ip:port).
type Place struct{ Model, Address string }

// Running is what Envoy's access log tells of a request of before a restart.
type Running struct {
	Place
	// Request is Envoy's id of it.
	Request string
	// Tenant whose it is, Lease the id of the lease it was given (empty when no other process could know it), Tokens what it was charged.
	Tenant, Lease string
	Tokens        int
}

// inherited is one such request.
type inherited struct {
	// lease is nil while the shared state has the lease of before, and nobody has said which.
	lease   *admission.Lease
	counter *counter
	// request is empty until it is known.
	request string
}

// Inherit counts the requests of before a restart that still run, by where they are. A place that is nobody's any more is ignored:
// its requests weigh on no replica that could be picked.
func (d *Dispatcher) Inherit(running map[Place]int) {
	d.rebuild() // Run may not have followed the fleet yet
	for at, n := range running {
		if id, ok := d.replicaAt(at); ok && n > 0 {
			d.inherit(at, id, n)
		}
	}
}

func (d *Dispatcher) inherit(at Place, id string, n int) {
	d.mu.Lock()
	c := d.counterLocked(at.Model, id)
	d.mu.Unlock()
	d.past.mu.Lock()
	defer d.past.mu.Unlock()
	if d.past.held == nil {
		d.past.held = map[Place][]inherited{}
	}
	for range n {
		one := inherited{counter: c}
		if !d.shared { // else the lease of before still counts
			lease, err := d.admission.Resume(admission.Resumed{Model: at.Model})
			if err != nil {
				return
			}
			one.lease = lease
		}
		c.load.Add(1)
		d.past.held[at] = append(d.past.held[at], one)
	}
}

// Recognize gives one of the inherited requests its name. One that has it already, and one that was not counted, changes nothing.
func (d *Dispatcher) Recognize(r Running) {
	d.past.mu.Lock()
	defer d.past.mu.Unlock()
	held := d.past.held[r.Place]
	if slices.ContainsFunc(held, func(one inherited) bool { return one.request == r.Request }) {
		return
	}
	i := slices.IndexFunc(held, func(one inherited) bool { return one.request == "" })
	if i < 0 {
		return
	}
	lease, err := d.admission.Resume(admission.Resumed{Model: r.Model, Tenant: r.Tenant, ID: r.Lease, Tokens: r.Tokens})
	if err != nil {
		return
	}
	if before := held[i].lease; before != nil {
		before.Release()
	}
	held[i].lease, held[i].request = lease, r.Request
}

// Settle is told how many of the inherited requests may be left at most at some places, and frees the others there: they have ended. Of a
// place that is not in it nothing is known: Envoy no longer lists a replica that leaves, whose requests go on. nil: none are left anywhere.
func (d *Dispatcher) Settle(most map[Place]int) {
	d.past.mu.Lock()
	places := slices.Collect(maps.Keys(d.past.held))
	d.past.mu.Unlock()
	for _, at := range places {
		if _, known := most[at]; most != nil && !known {
			continue
		}
		for d.endOne(at, func(held []inherited) int {
			if len(held) <= most[at] {
				return -1
			}
			// The unknown ones first: of the others the log will tell.
			return max(slices.IndexFunc(held, func(one inherited) bool { return one.request == "" }), 0)
		}) {
		}
	}
}

// SettleOne frees the inherited request that has ended.
func (d *Dispatcher) SettleOne(r Running) {
	d.Recognize(r)
	d.endOne(r.Place, func(held []inherited) int {
		return slices.IndexFunc(held, func(one inherited) bool { return one.request == r.Request })
	})
}

// endOne ends the request at the index that which names; false when that is negative.
func (d *Dispatcher) endOne(at Place, which func([]inherited) int) bool {
	d.past.mu.Lock()
	held := d.past.held[at]
	i := which(held)
	if i < 0 {
		d.past.mu.Unlock()
		return false
	}
	one := held[i]
	if held = slices.Delete(held, i, i+1); len(held) == 0 {
		delete(d.past.held, at)
	} else {
		d.past.held[at] = held
	}
	d.past.mu.Unlock()
	one.counter.load.Add(-1)
	if one.lease != nil {
		one.lease.Release()
	}
	d.freed(one.counter, "")
	return true
}

// Inherited is the number of inherited requests that still run.
func (d *Dispatcher) Inherited() int {
	d.past.mu.Lock()
	defer d.past.mu.Unlock()
	n := 0
	for _, held := range d.past.held {
		n += len(held)
	}
	return n
}

func (d *Dispatcher) replicaAt(at Place) (id string, ok bool) {
	m, ok := d.fleet.Snapshot().Models[at.Model]
	if !ok {
		return "", false
	}
	for _, r := range m.Replicas {
		if r.Address.String() == at.Address {
			return r.ID, true
		}
	}
	return "", false
}
