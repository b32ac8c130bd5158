package dispatch

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// recoveredRequests are the requests that still run from before a restart: Envoy kept them going,
// and at first only their replica is known. Each holds a slot on its replica and a lease of its
// model, so no limit is exceeded meanwhile. Envoy's access log tells whose they are, and then their
// leases count against their tenants too. The zero value is ready to use.
type recoveredRequests struct {
	mu sync.Mutex
	// held by replica; guarded by mu
	held map[Location][]recoveredRequest
	// unlocated counts the requests at addresses where no replica is known yet; guarded by mu.
	unlocated map[Location]int
}

// Location is a replica as Envoy names it: a model, and an address (ip:port).
type Location struct{ Model, Address string }

// RecoveredRequest is what Envoy's access log tells of a request from before a restart.
type RecoveredRequest struct {
	Location
	// Request is Envoy's id of it.
	Request string
	// Tenant whose it is, Lease the id of the lease it was given (empty when no other process could
	// know it), Tokens what it was charged.
	Tenant, Lease string
	Tokens        int
}

// recoveredRequest is one such request.
type recoveredRequest struct {
	// lease is nil while the shared state has the lease of before, and no log entry has told which.
	lease   *admission.Lease
	counter *counter
	// request is empty until it is known.
	request string
}

// Recover counts the requests from before a restart that still run, by their location. Requests at
// a location where no replica is known weigh on no replica that could be picked. They are counted
// when a replica is known there: the launcher that reports it may be late.
func (d *Dispatcher) Recover(running map[Location]int) {
	d.recovered.mu.Lock()
	if d.recovered.unlocated == nil {
		d.recovered.unlocated = map[Location]int{}
	}
	for at, n := range running {
		if n > 0 {
			d.recovered.unlocated[at] = n
		}
	}
	d.recovered.mu.Unlock()
	d.rebuild()
}

// locateRecoveredLocked counts the recovered requests at replicas that are known by now.
func (d *Dispatcher) locateRecoveredLocked() {
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	for at, n := range d.recovered.unlocated {
		if id, ok := d.replicaAt(at); ok {
			delete(d.recovered.unlocated, at)
			d.recoverLocked(at, d.counterLocked(at.Model, id), n)
		}
	}
}

// recoverLocked counts n requests at a location. The caller holds Dispatcher.mu and
// recoveredRequests.mu.
func (d *Dispatcher) recoverLocked(at Location, c *counter, n int) {
	if d.recovered.held == nil {
		d.recovered.held = map[Location][]recoveredRequest{}
	}
	for range n {
		one := recoveredRequest{counter: c}
		if !d.shared { // else the lease of before still counts
			lease, err := d.admission.RecoverRequest(admission.RecoveredRequest{Model: at.Model})
			if err != nil {
				return
			}
			one.lease = lease
		}
		c.load.Add(1)
		d.recovered.held[at] = append(d.recovered.held[at], one)
	}
}

// IdentifyRecovered gives one of the recovered requests its id and its tenant. A request that is
// identified already, or that was not counted, changes nothing.
func (d *Dispatcher) IdentifyRecovered(r RecoveredRequest) {
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	held := d.recovered.held[r.Location]
	if slices.ContainsFunc(held, func(one recoveredRequest) bool { return one.request == r.Request }) {
		return
	}
	i := slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == "" })
	if i < 0 {
		return
	}
	lease, err := d.admission.RecoverRequest(admission.RecoveredRequest{Model: r.Model, Tenant: r.Tenant, ID: r.Lease, Tokens: r.Tokens})
	if err != nil {
		return
	}
	if before := held[i].lease; before != nil {
		before.Release()
	}
	held[i].lease, held[i].request = lease, r.Request
}

// LimitRecovered is told how many of the recovered requests may be left at some locations at most,
// and frees the others there: they have ended. Of a location that is missing in most nothing is
// known: Envoy no longer lists a replica that leaves, whose requests go on. nil: none are left
// anywhere.
func (d *Dispatcher) LimitRecovered(most map[Location]int) {
	d.recovered.mu.Lock()
	places := slices.Collect(maps.Keys(d.recovered.held))
	for at, n := range d.recovered.unlocated {
		if left, known := most[at]; most == nil || known {
			d.recovered.unlocated[at] = min(n, left)
		}
	}
	maps.DeleteFunc(d.recovered.unlocated, func(_ Location, n int) bool { return n == 0 })
	d.recovered.mu.Unlock()
	for _, at := range places {
		if _, known := most[at]; most != nil && !known {
			continue
		}
		for d.endOne(at, func(held []recoveredRequest) int {
			if len(held) <= most[at] {
				return -1
			}
			// The unknown ones first: of the others the log will tell.
			return max(slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == "" }), 0)
		}) {
		}
	}
}

// EndRecovered frees the recovered request that has ended.
func (d *Dispatcher) EndRecovered(r RecoveredRequest) {
	d.recovered.mu.Lock()
	if n := d.recovered.unlocated[r.Location]; n > 0 {
		if d.recovered.unlocated[r.Location]--; n == 1 {
			delete(d.recovered.unlocated, r.Location)
		}
		d.recovered.mu.Unlock()
		return
	}
	d.recovered.mu.Unlock()
	d.IdentifyRecovered(r)
	d.endOne(r.Location, func(held []recoveredRequest) int {
		return slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == r.Request })
	})
}

// ObserveRecovered takes over what an entry of Envoy's access log tells of a recovered request:
// whose it is, and that it has ended.
func (d *Dispatcher) ObserveRecovered(e *request.Entry) {
	if e.Log != headers.LogRequests || e.Model == "" {
		return
	}
	tokens, _ := strconv.Atoi(e.Metadata[headers.MetadataTokens]) // 0 where nothing was attached
	r := RecoveredRequest{Location: Location{Model: e.Model, Address: e.Upstream}, Request: e.RequestID,
		Tenant: e.Metadata[headers.MetadataTenant], Lease: e.Metadata[headers.MetadataLease], Tokens: tokens}
	if e.Interim {
		d.IdentifyRecovered(r)
		return
	}
	d.EndRecovered(r)
}

// endOne ends one request at a location: which returns its index. It returns false when the index
// is negative.
func (d *Dispatcher) endOne(at Location, which func([]recoveredRequest) int) bool {
	d.recovered.mu.Lock()
	held := d.recovered.held[at]
	i := which(held)
	if i < 0 {
		d.recovered.mu.Unlock()
		return false
	}
	one := held[i]
	if held = slices.Delete(held, i, i+1); len(held) == 0 {
		delete(d.recovered.held, at)
	} else {
		d.recovered.held[at] = held
	}
	d.recovered.mu.Unlock()
	one.counter.load.Add(-1)
	if one.lease != nil {
		one.lease.Release()
	}
	d.wakeOthers(one.counter, "")
	return true
}

// RecoveredCount returns the number of recovered requests that still run: those that are counted,
// and those at locations where no replica is known.
func (d *Dispatcher) RecoveredCount() (counted, unlocated int) {
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	for _, held := range d.recovered.held {
		counted += len(held)
	}
	for _, n := range d.recovered.unlocated {
		unlocated += n
	}
	return counted, unlocated
}

func (d *Dispatcher) replicaAt(at Location) (id string, ok bool) {
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
