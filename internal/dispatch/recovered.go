package dispatch

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// recoveredRequests are the requests that still run from before a restart: Envoy kept them running,
// and at first only their replica is known. Each holds a slot on its replica and a lease of its
// model, so no limit is exceeded meanwhile. Envoy's access log later names their tenants. From then
// on their leases count against the tenants too. The zero value is ready to use.
type recoveredRequests struct {
	mu sync.Mutex
	// held holds the counted requests by location; guarded by mu
	held map[Location][]recoveredRequest
	// unlocated counts the requests at addresses where no replica is known yet; guarded by mu.
	unlocated map[Location]int
	// named holds those of unlocated that are known by their ids, by location and id; guarded by mu
	named map[Location]map[string]RecoveredRequest
}

// Location is a replica as Envoy names it: a model, an address (ip:port), and a cluster. The
// servers of one URL have one address, and each has a cluster of its own.
type Location struct{ Model, Address, Cluster string }

// RecoveredRequest is what Envoy's access log reports of a request from before a restart.
type RecoveredRequest struct {
	Location
	// Request is Envoy's id of the request.
	Request string
	// Tenant that made the request. Lease is the id of its lease, empty if no other process can
	// know the lease. Tokens is what it was charged.
	Tenant, Lease string
	// Key is the name of the key that made the request; empty: none, or not known.
	Key    string
	Tokens int
	// Task is the id of the task of the request; empty: it belongs to none.
	Task string
	// end is what is known of its end.
	end recoveredEnd
}

// recoveredEnd is what Envoy's access log tells of the end of a request from before a restart.
type recoveredEnd struct {
	response Response
	// took is how long the request lasted, body the size of its body. noOutput says that its
	// endpoint has no output.
	took     time.Duration
	body     int
	noOutput bool
}

func endOf(e *request.Entry) recoveredEnd {
	endpoint, _ := openai.EndpointOf(e.Path)
	return recoveredEnd{response: e.Response(), took: e.Duration, body: int(e.BytesIn), noOutput: endpoint.NoOutput()}
}

// recoveredRequest is one request that is counted at its replica.
type recoveredRequest struct {
	// lease is nil while the shared state still has the old lease, and no log entry has named it.
	lease   *admission.Lease
	counter *counter
	here    *atomic.Int64
	// request is Envoy's id, empty until it is known.
	request string
	// leaveTask ends the claim of the task of the request, and its renewals. It is nil until the
	// request is known.
	leaveTask func()
}

// Recover counts the requests from before a restart that still run, by their location. A request at
// a location without a known replica is counted when a launcher reports a replica there, which may
// be late. Until then it occupies no slot.
func (d *Dispatcher) Recover(running map[Location]int) {
	d.recovered.mu.Lock()
	if d.recovered.unlocated == nil {
		d.recovered.unlocated = map[Location]int{}
	}
	for at, n := range running {
		if n > 0 {
			d.recovered.unlocated[at] = max(n, len(d.recovered.named[at]))
		}
	}
	d.recovered.mu.Unlock()
	d.rebuild()
}

// locateRecoveredLocked counts the recovered requests whose replicas are known by now, and
// identifies the named ones.
func (d *Dispatcher) locateRecoveredLocked() {
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	for at, n := range d.recovered.unlocated {
		if r := d.replicaAt(at); r != nil {
			named := d.recovered.named[at]
			d.recovered.setUnlocatedLocked(at, 0)
			d.recoverLocked(at, d.counterLocked(at.Model, r.ID), n)
			for _, one := range named {
				d.identifyLocked(one)
			}
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
		one := recoveredRequest{counter: c, here: c.at(at.Address)}
		if !d.config.Shared { // else the old lease in the shared state still counts
			one.lease = d.config.Admission.RecoverRequest(admission.RecoveredRequest{Model: at.Model})
		}
		c.add(one.here, 1)
		d.recovered.held[at] = append(d.recovered.held[at], one)
	}
}

// IdentifyRecovered assigns an id and a tenant to one of the recovered requests. A request at a
// known replica that was not counted is counted now: Envoy may not have answered when it was asked
// how many there are. One that an earlier process carries (Carry) is counted already. A request at
// a location without a known replica is named, and identified when the replica is known.
// IdentifyRecovered does nothing for a request that is identified already.
func (d *Dispatcher) IdentifyRecovered(r RecoveredRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	if !d.identifyLocked(r) {
		d.recovered.nameLocked(r)
	}
}

// nameLocked names one of the requests at a location without a known replica. If all of them are
// named, the request is one more.
func (q *recoveredRequests) nameLocked(r RecoveredRequest) {
	if r.Address == "" || r.Request == "" {
		return
	}
	if q.named == nil {
		q.named = map[Location]map[string]RecoveredRequest{}
	}
	if q.unlocated == nil {
		q.unlocated = map[Location]int{}
	}
	if q.named[r.Location] == nil {
		q.named[r.Location] = map[string]RecoveredRequest{}
	}
	named := q.named[r.Location]
	named[r.Request] = r
	q.unlocated[r.Location] = max(q.unlocated[r.Location], len(named))
}

// endUnlocatedLocked removes a request that has ended from those at a location without a known
// replica. It does nothing for a request that was not counted.
func (q *recoveredRequests) endUnlocatedLocked(r RecoveredRequest) {
	n, named := q.unlocated[r.Location], q.named[r.Location]
	if _, isNamed := named[r.Request]; !isNamed && len(named) == n {
		return
	}
	delete(named, r.Request)
	q.setUnlocatedLocked(r.Location, n-1)
}

// setUnlocatedLocked sets how many requests are at a location without a known replica.
func (q *recoveredRequests) setUnlocatedLocked(at Location, n int) {
	if n <= 0 {
		delete(q.unlocated, at)
		delete(q.named, at)
		return
	}
	q.unlocated[at] = n
	named := q.named[at]
	for id := range named {
		if len(named) <= n {
			break
		}
		delete(named, id)
	}
}

// identifyLocked assigns an id and a tenant to one of the recovered requests. It returns false if
// no replica is known at the location. The caller holds Dispatcher.mu and recoveredRequests.mu.
func (d *Dispatcher) identifyLocked(r RecoveredRequest) bool {
	held := d.recovered.held[r.Location]
	if slices.ContainsFunc(held, func(one recoveredRequest) bool { return one.request == r.Request }) {
		return true
	}
	i := slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == "" })
	if i < 0 {
		at := d.replicaAt(r.Location)
		if at == nil {
			return false
		}
		c := d.counterLocked(r.Model, at.ID)
		if c.at("").Load() > 0 { // an earlier process carries requests there, and this is one of them
			return true
		}
		d.recoverLocked(r.Location, c, 1)
		held = d.recovered.held[r.Location]
		i = len(held) - 1
	}
	before := held[i].lease
	held[i].lease, held[i].request, held[i].leaveTask = d.recoverLease(r), r.Request, d.holdTask(r.Tenant, r.Task)
	if before != nil {
		before.Release()
	}
	return true
}

// recoverLease returns the lease of an identified request, with its slot for the other gateways.
// The buckets of a gateway without shared state have forgotten what the request was charged.
func (d *Dispatcher) recoverLease(r RecoveredRequest) *admission.Lease {
	if !d.config.Shared {
		r.Tokens = 0
	}
	recovered := admission.RecoveredRequest{Model: r.Model, Tenant: r.Tenant, APIKey: r.Key, ID: r.Lease, Tokens: r.Tokens, UnderTask: r.Task}
	if at := d.replicaAt(r.Location); at != nil {
		recovered.Replica = d.sharedID(at)
	}
	return d.config.Admission.RecoverRequest(recovered)
}

// LimitRecovered sets how many recovered requests may remain at some locations, and releases the
// others there: they have ended. A location that is missing in most is not changed, because Envoy
// no longer lists a replica that it drains, whose requests go on. If most is nil, none remain at
// any location.
func (d *Dispatcher) LimitRecovered(most map[Location]int) {
	d.recovered.mu.Lock()
	locations := slices.Collect(maps.Keys(d.recovered.held))
	for at, n := range d.recovered.unlocated {
		if left, known := most[at]; most == nil || known {
			d.recovered.setUnlocatedLocked(at, min(n, left))
		}
	}
	d.recovered.mu.Unlock()
	for _, at := range locations {
		if _, known := most[at]; most != nil && !known {
			continue
		}
		for ended := true; ended; {
			_, ended = d.endOne(at, func(held []recoveredRequest) int {
				if len(held) <= most[at] {
					return -1
				}
				// Unidentified requests first: the access log will report the end of the others.
				return max(slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == "" }), 0)
			})
		}
	}
}

// EndRecovered releases the recovered request, which has ended. It charges the model and the tenant
// what the request has cost, also if it was never counted.
func (d *Dispatcher) EndRecovered(r RecoveredRequest) {
	lease := d.endIdentified(r)
	if lease == nil {
		lease = d.recoverLease(r)
		lease.Release()
	}
	if r.Tenant != "" { // else the entry comes from a version that did not tell whose request it was
		l, q := d.recoveredEstimate(r.Model, r.Tenant, &r.end)
		response, _ := q.believed(r.end.response, r.end.took)
		lease.Correct(l.cost(response, q))
	}
}

// endIdentified releases the recovered request and returns its lease. It returns nil if the request
// was not counted.
func (d *Dispatcher) endIdentified(r RecoveredRequest) *admission.Lease {
	d.mu.Lock()
	d.recovered.mu.Lock()
	n := d.recovered.unlocated[r.Location]
	if n > 0 {
		d.recovered.endUnlocatedLocked(r)
	} else {
		d.identifyLocked(r)
	}
	d.recovered.mu.Unlock()
	d.mu.Unlock()
	if n > 0 {
		return nil
	}
	one, _ := d.endOne(r.Location, func(held []recoveredRequest) int {
		return slices.IndexFunc(held, func(one recoveredRequest) bool { return one.request == r.Request })
	})
	return one.lease
}

// CostOfRecovered returns what a request of before a restart has cost, by its final entry in
// Envoy's access log.
func (d *Dispatcher) CostOfRecovered(e *request.Entry) request.Cost {
	at := endOf(e)
	l, q := d.recoveredEstimate(e.Model, e.Metadata[headers.MetadataTenant], &at)
	response, doubted := q.believed(at.response, at.took)
	cost := l.costOf(response, q)
	cost.Doubted = doubted
	return cost
}

// recoveredEstimate returns the estimator of a recovered request's model, and an estimate of the
// request. The estimate of before the restart is gone, so the size of the body stands for the
// prompt. Nobody knows how many answers the request has, and whether it continues a conversation.
func (d *Dispatcher) recoveredEstimate(model, tenant string, at *recoveredEnd) (*estimator, estimate) {
	l := d.estimatorOf(model)
	q := l.estimate(&Request{Tenant: tenant, PromptBytes: at.body, NoOutput: at.noOutput})
	q.mostPrompt, q.choices = q.mostPrompt+addedHistory, mostAnswers
	return l, q
}

// estimatorOf returns the estimator of a model. It is a new one for a model that is not known.
func (d *Dispatcher) estimatorOf(model string) *estimator {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.estimators[model]; l != nil {
		return l
	}
	return new(estimator)
}

// ObserveRecovered applies an entry of Envoy's access log to the recovered requests: it identifies
// one, or ends it.
func (d *Dispatcher) ObserveRecovered(e *request.Entry) {
	if e.Log != headers.LogRequests || e.Model == "" {
		return
	}
	tokens, _ := strconv.Atoi(e.Metadata[headers.MetadataTokens]) // 0 if the entry has no metadata
	r := RecoveredRequest{Location: Location{Model: e.Model, Address: e.Upstream, Cluster: e.Cluster}, Request: e.RequestID,
		Tenant: e.Metadata[headers.MetadataTenant], Key: e.Metadata[headers.MetadataKey], Lease: e.Metadata[headers.MetadataLease], Tokens: tokens,
		Task: e.Metadata[headers.MetadataTask],
		end:  endOf(e)}
	if e.Interim {
		d.IdentifyRecovered(r)
		return
	}
	d.EndRecovered(r)
}

// endOne ends one request at a location and returns it. which returns the index of that request;
// endOne returns false if the index is negative.
func (d *Dispatcher) endOne(at Location, which func([]recoveredRequest) int) (one recoveredRequest, ok bool) {
	d.recovered.mu.Lock()
	held := d.recovered.held[at]
	i := which(held)
	if i < 0 {
		d.recovered.mu.Unlock()
		return one, false
	}
	one = held[i]
	if held = slices.Delete(held, i, i+1); len(held) == 0 {
		delete(d.recovered.held, at)
	} else {
		d.recovered.held[at] = held
	}
	d.recovered.mu.Unlock()
	if one.leaveTask != nil {
		one.leaveTask()
	}
	one.counter.add(one.here, -1)
	if one.lease != nil {
		one.lease.Release()
	}
	d.wakeOthers(one.counter, "")
	return one, true
}

// RecoveredAt returns the number of recovered requests that still run, by their location.
func (d *Dispatcher) RecoveredAt() map[Location]int {
	d.recovered.mu.Lock()
	defer d.recovered.mu.Unlock()
	all := maps.Clone(d.recovered.unlocated)
	if all == nil {
		all = map[Location]int{}
	}
	for at, held := range d.recovered.held {
		all[at] += len(held)
	}
	return all
}

// RecoveredCount returns the number of recovered requests that still run: the counted ones, and
// those at locations without a known replica.
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

// replicaAt returns the replica at a location; nil: none is known. A replica may have changed its
// cluster since, so any one at the address is better than none.
func (d *Dispatcher) replicaAt(at Location) (found *engines.Replica) {
	m, ok := d.config.Fleet.Snapshot().Models[at.Model]
	if !ok {
		return nil
	}
	for i := range m.Replicas {
		if r := &m.Replicas[i]; r.Address.String() == at.Address && (found == nil || clusterOf(r) == at.Cluster) {
			found = r
		}
	}
	return found
}
